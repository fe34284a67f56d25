//! What `vipctl` sends for what is typed, and how it ends: the real program against a fake vipd.

use crate::fake::{Fake, run};
use serde_json::json;
use vipd_client::tonic::{Code, Status};
use vipd_client::v1::{Problem, problem};

fn changed() -> serde_json::Value {
    json!({"change": {"revision": "17", "changed": true, "inForce": true}})
}

/// An error as vipd sends it.
fn status(code: Code, problems: &[(problem::Code, &str, &str)]) -> Status {
    status_saying("in words", code, problems)
}

fn status_saying(message: &str, code: Code, problems: &[(problem::Code, &str, &str)]) -> Status {
    use prost::Message as _;
    let any = |(code, field, message): &(problem::Code, &str, &str)| {
        let (field, message) = ((*field).to_owned(), (*message).to_owned());
        let problem = Problem { code: (*code).into(), field, message, since: None };
        prost_types::Any { type_url: "type.googleapis.com/vipd.v1.Problem".to_owned(), value: problem.encode_to_vec() }
    };
    let details = problems.iter().map(any).collect();
    let details = tonic_types::pb::Status { code: code.into(), message: message.to_owned(), details };
    Status::with_details(code, message, details.encode_to_vec().into())
}

#[test]
fn apply_makes_all_documents_one_change() {
    let fake = Fake::start();
    fake.answers("apply", [changed()]).answers("set_owner", [changed()]);
    let documents = "service: {name: web, frontends: [{address: 10.96.0.10, port: 80}]}\n\
                     endpoints: [{address: 10.1.0.2, port: 8080, weight: 3}]\n\
                     ---\nowner: {name: ops, network: {virtual_ranges: [10.96.0.0/16]}}\n\
                     ---\nservice: {name: dns, protocol: UDP}\n";
    let ended = fake.vipctl_reading("apply -f - --note INC-1", documents);
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""));
    assert_eq!(ended.out, "owner ops: in force, revision 17\n2 services: in force, revision 17\n");
    let options = json!({"wait": "PROGRAMMED", "note": "INC-1"});
    let web = json!({"name": "web", "frontends": [{"address": "10.96.0.10", "port": 80}]});
    let endpoints = json!([{"address": "10.1.0.2", "port": 8080, "weight": 3}]);
    let operations = json!([
        {"upsertService": {"service": web}},
        {"setEndpoints": {"name": "web", "endpoints": endpoints}},
        {"upsertService": {"service": {"name": "dns", "protocol": "UDP"}}},
    ]);
    let owner = json!({"name": "ops", "network": {"virtualRanges": ["10.96.0.0/16"]}});
    assert_eq!(
        fake.asked(),
        [
            ("set_owner", json!({"owner": owner, "options": options})),
            ("apply", json!({"operations": operations, "options": options})),
        ]
    );
}

#[test]
fn a_document_that_is_wrong_is_not_sent() {
    let fake = Fake::start();
    let documents = "service: {name: web}\n---\nservice: {name: dns, frontends: [{adress: 10.96.0.10, port: 53}]}\n";
    let ended = fake.vipctl_reading("apply -f -", documents);
    assert_eq!(ended.code, Some(2));
    let said = "vipctl: document 2: service.frontends[0].adress: no such field; did you mean address?\n";
    assert_eq!(ended.err, said);
    assert_eq!(fake.asked(), []);
}

#[test]
fn what_get_prints_apply_reads() {
    let fake = Fake::start();
    let state = json!({
        "service": {"owner": "default", "name": "web", "frontends": [{"nodePort": {}, "port": 30080}],
                    "labels": {"debug": "no", "version": "1.10"}, "precedence": "18446744073709551615"},
        "endpoints": [{"address": "fd20::2", "port": 8080, "weight": 0, "drain": {"timeout": "0.500s"}}],
        "status": {"state": "IN_FORCE", "revision": "3", "programmedAt": "2026-11-30T10:00:00Z"},
    });
    fake.answers("list_services", [json!({"services": [state, state], "revision": "3"})]).answers("apply", [changed()]);
    let mut sent = Vec::new();
    for format in ["yaml", "json"] {
        let printed = fake.vipctl(&format!("get -o {format}"));
        assert_eq!(printed.code, Some(0), "{}", printed.err);
        fake.asked();
        let ended = fake.vipctl_reading("apply -f -", &printed.out);
        assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{}", printed.out);
        sent.push(fake.asked());
    }
    assert_eq!(sent[0], sent[1]);
    let operations = &sent[0][0].1["operations"];
    assert_eq!(operations[0]["upsertService"]["service"], state["service"]);
    assert_eq!(operations[3]["setEndpoints"]["endpoints"], state["endpoints"]);
}

#[test]
fn endpoints_are_set_or_patched() {
    let fake = Fake::start();
    fake.answers("set_endpoints", [changed()]).answers("patch_endpoints", [changed()]);
    let ended = fake.vipctl("set-endpoints web 10.1.1.2:8080,weight=4 '[fd20::2]:8080' --no-wait");
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), "web: 2 endpoints: in force, revision 17\n"));
    fake.vipctl("set-endpoints web --add 10.1.1.3:8080,state=DRAINING --remove 10.1.1.2:8080 10.1.1.4:8080");
    fake.vipctl("set-endpoints web --none --owner k8s");
    let (accepted, programmed) = (json!({"wait": "ACCEPTED"}), json!({"wait": "PROGRAMMED"}));
    let two = json!([{"address": "10.1.1.2", "port": 8080, "weight": 4}, {"address": "fd20::2", "port": 8080}]);
    let add = json!([{"address": "10.1.1.3", "port": 8080, "state": "DRAINING"}]);
    let remove = json!([{"address": "10.1.1.2", "port": 8080}, {"address": "10.1.1.4", "port": 8080}]);
    assert_eq!(
        fake.asked(),
        [
            ("set_endpoints", json!({"name": "web", "endpoints": two, "options": accepted})),
            ("patch_endpoints", json!({"name": "web", "upsert": add, "remove": remove, "options": programmed})),
            ("set_endpoints", json!({"owner": "k8s", "name": "web", "options": programmed})),
        ]
    );
}

#[test]
fn the_other_writes() {
    let fake = Fake::start();
    fake.answers("set_scheduler", [changed()])
        .answers("delete_service", [json!({"change": {"revision": "17", "changed": false}, "existed": false})])
        .answers("apply", [changed()])
        .answers("set_default_engine", [json!({"from": "USERSPACE", "to": "IPVS", "servicesMoved": "2"})])
        .answers("release_hold", [json!({"objectsRemoved": "3"})])
        .answers("renew_lease", [json!({"expires": "2026-11-30T10:00:00Z"})]);
    assert_eq!(fake.vipctl("set-scheduler web mh --hash-source-port --fallback nearest").code, Some(0));
    assert!(fake.vipctl("delete web").out.starts_with("web was not there: unchanged"));
    assert_eq!(fake.vipctl("delete a b").code, Some(0));
    assert!(fake.vipctl("node default-engine ipvs --drain 90s").out.contains("USERSPACE → IPVS: 2 services moved"));
    assert_eq!(fake.vipctl("node release-hold --note checked").code, Some(0));
    assert!(fake.vipctl("owner renew k8s --session 4").out.contains("2026-11-30T10:00:00Z"));
    let options = json!({"wait": "PROGRAMMED"});
    let scheduler = json!({"algorithm": "MH", "hashSourcePort": true, "fallback": "NEAREST"});
    let delete = json!([{"deleteService": {"name": "a"}}, {"deleteService": {"name": "b"}}]);
    assert_eq!(
        fake.asked(),
        [
            ("set_scheduler", json!({"name": "web", "scheduler": scheduler, "options": options})),
            ("delete_service", json!({"name": "web", "options": options})),
            ("apply", json!({"operations": delete, "options": options})),
            ("set_default_engine", json!({"engine": "IPVS", "drain": {"timeout": "90s"}})),
            ("release_hold", json!({"note": "checked"})),
            ("renew_lease", json!({"owner": "k8s", "session": "4"})),
        ]
    );
}

#[test]
fn exit_codes_tell_refused_from_unreachable_from_not_yet() {
    let fake = Fake::start();
    fake.refuses("get_service", status(Code::NotFound, &[(problem::Code::NoSuchService, "name", "there is no web")]));
    let ended = fake.vipctl("get web");
    assert_eq!(ended.code, Some(1));
    assert_eq!(ended.err, "vipctl: refused (NotFound), nothing was changed:\n  name: there is no web\n");

    fake.refuses("set_endpoints", status(Code::Unavailable, &[(problem::Code::NotProgrammed, "", "nft: no table")]));
    let ended = fake.vipctl("set-endpoints web --none");
    assert_eq!(ended.code, Some(4));
    assert!(ended.err.contains("accepted and stored, but not in force yet") && ended.err.contains("nft: no table"));

    fake.refuses("get_service", Status::deadline_exceeded("slow"));
    assert_eq!(fake.vipctl("get web").code, Some(3));
    let nobody = run(&fake.socket().with_file_name("nobody.sock"), "get", None);
    assert_eq!(nobody.code, Some(3));
    assert!(nobody.err.contains("is vipd running?"), "{}", nobody.err);

    for usage in ["get --nonsense", "set-endpoints web", "set-endpoints web 10.1.1.2:x", "explain 10.0.0.1 10.0.0.2"] {
        assert_eq!(fake.vipctl(usage).code, Some(2), "{usage}");
    }
}

#[test]
fn problems_that_did_not_fit_are_not_forgotten() {
    let fake = Fake::start();
    let (message, problem) =
        ("no (1 of 100 problems fit into the details)", (problem::Code::Invalid, "name", "is missing"));
    fake.refuses("get_service", status_saying(message, Code::InvalidArgument, &[problem]));
    assert!(fake.vipctl("get web").err.ends_with("\n  name: is missing\n  (1 of 100 problems fit into the details)\n"));
}

#[test]
fn a_problem_of_a_call_is_told_as_one_of_the_file() {
    let fake = Fake::start();
    let field = "operations[1].set_endpoints.endpoints[0].address";
    fake.refuses("apply", status(Code::InvalidArgument, &[(problem::Code::Invalid, field, "\"b1\" is no address")]));
    let ended = fake.vipctl_reading("apply -f -", "service: {name: web}\nendpoints: [{address: b1, port: 1}]");
    assert_eq!(ended.code, Some(1));
    assert!(ended.err.ends_with("\n  document 1 (web): endpoints[0].address: \"b1\" is no address\n"), "{}", ended.err);
}

#[test]
fn with_each_the_refused_are_told_and_the_others_are_changed() {
    let fake = Fake::start();
    let problem = json!({"code": "FRONTEND_TAKEN", "field": "operations[1].upsert_service.service.frontends[0]",
                         "message": "default/old has it"});
    let refused = json!([{"index": 1, "owner": "default", "name": "dns", "problems": [problem]}]);
    let change = changed()["change"].clone();
    fake.answers("apply", [json!({"change": change, "refused": refused})]);
    let ended = fake.vipctl_reading("apply -f - --each", "service: {name: web}\n---\nservice: {name: dns}");
    assert_eq!(ended.code, Some(1));
    let why = "  document 2 (dns): service.frontends[0]: default/old has it\n";
    assert_eq!(ended.out, format!("web: in force, revision 17\ndefault/dns: refused\n{why}"));
    assert_eq!(fake.asked()[0].1["mode"], "EACH");
}

#[test]
fn pages_are_read_to_the_end() {
    let fake = Fake::start();
    let page = |name: &str, next: &str| json!({"services": [{"service": {"name": name}}], "nextPageToken": next});
    fake.answers("list_services", [page("a", "more"), page("b", "")]);
    let printed: serde_json::Value = serde_json::from_str(&fake.vipctl("get -o json").out).unwrap();
    assert_eq!(printed["services"].as_array().unwrap().len(), 2);
    assert_eq!(fake.asked()[1].1["pageToken"], "more");
}

#[test]
fn verify_fails_where_something_drifted() {
    let fake = Fake::start();
    fake.answers("verify", [json!({"objects": "12", "revision": "3"})]);
    assert_eq!(fake.vipctl("verify").code, Some(0));
    fake.answers("verify", [json!({"objects": "12", "drift": [{"code": "DRIFT", "message": "chain web is gone"}]})]);
    let ended = fake.vipctl("verify");
    assert_eq!(ended.code, Some(1));
    assert!(ended.out.contains("chain web is gone"), "{}", ended.out);
}

#[test]
fn a_reader_that_leaves_is_no_failure() {
    let fake = Fake::start();
    let service = json!({"service": {"name": "w".repeat(200)}});
    fake.answers("list_services", [json!({"services": vec![service; 2_000]})]);
    let line = format!("{} --socket {} get | head -n 1", env!("CARGO_BIN_EXE_vipctl"), fake.socket().display());
    let script = format!("set -o pipefail; {line}");
    let output = std::process::Command::new("bash").args(["-c", &script]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}
