//! How replies look to people, word for word. `VIPCTL_BLESS=1` writes the files anew: look at the difference before you
//! commit it.

use std::path::Path;

use crate::fake::Fake;
use serde_json::{Value, json};

fn golden(fake: &Fake, name: &str, line: &str) {
    let ended = fake.vipctl(line);
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{line}");
    let printed = format!("$ vipctl {line}\n{}", ended.out);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/{name}.txt"));
    if std::env::var_os("VIPCTL_BLESS").is_some() {
        std::fs::write(&path, &printed).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(printed, expected, "{}", path.display());
}

fn web() -> Value {
    json!({
        "service": {
            "owner": "default", "name": "web", "protocol": "TCP", "group": "shop",
            "labels": {"app": "shop", "tier": "front"},
            "frontends": [
                {"address": "10.96.0.10", "port": 80, "scope": "INTERNAL", "policy": "ALL", "sourceNat": "AUTO"},
                {"address": "fd96::10", "port": 80, "scope": "INTERNAL", "policy": "ALL", "sourceNat": "AUTO"},
                {"nodePort": {"family": "BOTH"}, "port": 30080, "scope": "EXTERNAL", "policy": "LOCAL",
                 "sourceNat": "NEVER", "sourceRanges": ["192.0.2.0/24", "198.51.100.0/24"]},
            ],
            "clientAffinity": {"timeout": "10800s", "prefixV4": 24, "prefixV6": 64},
            "drain": {"timeout": "30s", "onExpiry": "RESET"},
            "onNoEndpoints": "DROP", "onNoLocalEndpoints": "REJECT", "healthPort": 32000,
        },
        "endpoints": [
            {"address": "10.1.0.2", "port": 8080, "weight": 1, "state": "READY", "local": true,
             "target": "pod shop/web-7f9"},
            {"address": "10.1.0.3", "port": 8080, "weight": 3, "state": "DRAINING", "tier": 1,
             "drain": {"timeout": "300s"}, "maxConnections": 100},
            {"address": "fd20::2", "port": 8080, "weight": 0, "state": "NOT_READY"},
        ],
        "status": {
            "state": "IN_FORCE", "revision": "17", "definitionRevision": "12", "endpointsRevision": "17",
            "schedulerRevision": "14", "programmedRevision": "17", "programmedAt": "2026-11-30T10:42:07.123Z",
            "engine": "USERSPACE", "drainingEngine": "NFTABLES", "algorithm": "WLC", "usableEndpoints": 1,
            "localReadyEndpoints": 1, "waitingFrontends": [2],
            "problems": [{"code": "ENGINE_CHOSEN", "field": "service.scheduler", "since": "2026-11-30T10:42:00Z",
                          "message": "nftables has no WLC; userspace serves it"}],
        },
    })
}

fn dns() -> Value {
    json!({
        "service": {"owner": "k8s", "name": "kube-system/dns:udp", "protocol": "UDP",
                    "frontends": [{"address": "10.96.0.53", "port": 53, "portEnd": 54}]},
        "status": {"state": "PENDING", "revision": "18", "engine": "USERSPACE"},
    })
}

#[test]
fn lists() {
    let fake = Fake::start();
    fake.answers("list_services", [json!({"services": [web(), dns()], "revision": "18"})]);
    golden(&fake, "get", "get");
    golden(&fake, "get-wide", "get -o wide");
    golden(&fake, "get-yaml", "get -o yaml");
    fake.answers("list_services", [json!({})]);
    golden(&fake, "get-none", "get --problems");
}

#[test]
fn one_service() {
    let fake = Fake::start();
    fake.answers("get_service", [web()]);
    golden(&fake, "describe", "describe web");
    fake.answers("get_service", [dns()]);
    golden(&fake, "describe-bare", "describe --owner k8s kube-system/dns:udp");
}

#[test]
fn why_a_packet_goes_where_it_goes() {
    let fake = Fake::start();
    let step = |stage: &str, outcome: &str| json!({"stage": stage, "outcome": outcome});
    let candidates = json!([
        {"endpoint": {"address": "10.1.0.2", "port": 8080, "target": "pod shop/web-7f9"}, "probability": 0.75},
        {"endpoint": {"address": "10.1.0.4", "port": 8080}, "probability": 0.25, "pinned": true},
        {"endpoint": {"address": "10.1.0.3", "port": 8080}, "whyNot": "DRAINING, and 2 READY ones are usable"},
    ]);
    fake.answers(
        "explain",
        [json!({
            "verdict": "FORWARDED", "owner": "default", "service": "web", "engine": "USERSPACE", "revision": "17",
            "steps": [step("frontend", "default/web has 10.96.0.10:80"), step("scheduler", "WRR, weights 3:1"),
                      step("source-nat", "translated: the proxy connects by itself")],
            "candidates": candidates, "sourceNat": true, "sourceNatReason": "the proxy connects by itself",
        })],
    );
    golden(&fake, "explain", "explain 172.16.1.2 10.96.0.10:80");
    fake.answers(
        "explain",
        [json!({"verdict": "NOT_OURS", "revision": "17", "steps": [step("frontend", "nobody's")]})],
    );
    golden(&fake, "explain-not-ours", "explain fd10:1::2 '[fd96::99]:53' --udp --interface eth0");
    let sent = fake.asked().pop().unwrap().1;
    let expected = json!({"source": "fd10:1::2", "destination": "fd96::99", "protocol": "UDP", "destinationPort": 53,
                          "inInterface": "eth0"});
    assert_eq!(sent, expected);
}

#[test]
fn the_node() {
    let fake = Fake::start();
    fake.answers(
        "get_info",
        [json!({
            "version": "0.1.0", "apiLevel": 1, "epoch": "6f1d", "revision": "18", "programmedRevision": "17",
            "failedServices": "1", "digest": "b1946ac9", "kernel": "6.18.44", "holding": true,
            "engines": [
                {"engine": "USERSPACE", "usable": true, "services": "2",
                 "algorithms": ["ALGORITHM_UNSPECIFIED", "RR", "WRR", "WLC"],
                 "features": ["FEATURE_TCP", "FEATURE_UDP"]},
                {"engine": "IPVS", "reason": "ip_vs: kernel has no IPVS and no module to load"},
            ],
            "defaultEngine": "USERSPACE", "defaultEngineReason": "configured",
            "findings": [{"code": "HOST", "message": "net.ipv4.ip_forward is 0: set it to 1"}],
            "limits": {"services": "50000", "frontendsPerService": "64", "endpointsPerService": "60000",
                       "serviceBytes": "3145728", "requestBytes": "16777216", "operationsPerApply": "10000"},
            "sysctls": [{"name": "net.ipv4.ip_nonlocal_bind", "value": "1", "before": "0"}],
        })],
    );
    golden(&fake, "node", "node");
    golden(&fake, "node-wide", "node -o wide");
}

#[test]
fn owners_and_numbers() {
    let fake = Fake::start();
    let owner = json!({"name": "k8s", "network": {"virtualRanges": ["10.96.0.0/12"]}, "lease": {"ttl": "300s"}});
    fake.answers(
        "list_owners",
        [json!({"owners": [
            {"owner": {"name": "default"}, "services": "1", "endpoints": "3", "lastWrite": "2026-11-30T10:42:07Z"},
            {"owner": owner, "services": "2", "endpoints": "20", "failedServices": "1", "session": "4",
             "sessionHolder": "uid 0 pid 4211 (vipd-k8s)", "lastSync": "2026-11-30T10:40:00Z",
             "leaseExpires": "2026-11-30T10:47:07Z"},
        ]})],
    );
    golden(&fake, "owners", "owner get");
    let endpoint = json!({"address": "10.1.0.2", "port": 8080, "target": "pod shop/web-7f9",
                          "counters": {"connections": "90", "bytesIn": "4096"}});
    let total = json!({"connections": "120", "active": "3", "refused": "0", "bytesIn": "5000", "bytesOut": "70000"});
    let web = json!({"owner": "default", "name": "web", "total": total, "endpoints": [endpoint],
                     "since": "2026-11-30T10:00:00Z"});
    fake.answers("get_stats", [json!({"services": [web]})]);
    golden(&fake, "stats", "stats --endpoints");
}

#[test]
fn streams() {
    let fake = Fake::start();
    let synced = json!({"synced": {"epoch": "6f1d", "revision": "18"}});
    let deleted = json!({"deleted": {"owner": "default", "name": "old", "revision": "19"}});
    let reset = json!({"reset": {"reason": "another epoch"}});
    fake.answers("watch", [reset, json!({"service": web()}), synced.clone(), synced, deleted]);
    golden(&fake, "watch", "watch");
    golden(&fake, "watch-json", "watch -o json");
    let event = |sequence: &str, kind: &str, actor: &str, text: &str| {
        json!({"sequence": sequence, "at": "2026-11-30T10:42:07Z", "kind": kind, "actor": actor, "owner": "default",
               "name": "web", "revision": "17", "text": text})
    };
    let mut first = event("41", "CHANGED", "uid 0 pid 4211 (vipctl)", "scheduler RR → WLC");
    first["lost"] = json!("40");
    fake.answers("events", [first, event("42", "PROGRAMMED", "", "in force after 2 ms")]);
    golden(&fake, "events", "events --name web");
}

#[test]
fn plans() {
    let fake = Fake::start();
    let change = |action: &str, object: &str| json!({"action": action, "object": object});
    let changes =
        [change("ADD", "frontend 10.96.0.10:80"), change("CHANGE", "endpoints web"), change("REMOVE", "door 7")];
    fake.answers("plan", [json!({"changes": changes, "changesTotal": "1003", "flowsCut": "2"})]);
    golden(&fake, "plan", "plan --engine ipvs");
}
