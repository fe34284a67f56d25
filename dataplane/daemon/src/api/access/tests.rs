use super::*;
use crate::config::access::{AllowedFrontends, Ports};

fn peer(uid: u32) -> Peer {
    Peer::Process { uid, gid: 7, pid: 1, command: "test".into() }
}

fn access(net_admin: bool, entries: &str) -> Access {
    let config = crate::Config::parse(entries, "test", &crate::config::Sources::default()).unwrap();
    let own = || vec!["192.0.2.7".parse().unwrap()];
    Access::new(config.access, OwnerName::new("default").unwrap(), net_admin, Arc::new(own))
}

fn upsert(owner: &str, at: At, port: u16) -> Operation {
    let frontend = Frontend { at, ..Frontend::vip("10.0.0.1".parse().unwrap(), port) };
    let definition = vipd_model::Definition { frontends: vec![frontend], ..Default::default() };
    Operation::UpsertService {
        key: vipd_model::ServiceKey::new(owner, "web").unwrap(),
        definition: definition.into(),
        scheduler: None,
        expected: None,
    }
}

fn vip(address: &str) -> At {
    At::Address(address.parse().unwrap())
}

fn refusal(caller: &Caller, operation: &Operation) -> Option<(String, String)> {
    let problem = caller.may_do(operation, "").err()?.problems.remove(0);
    assert_eq!(problem.code, ProblemCode::NotAllowed);
    Some((problem.field, problem.message))
}

#[test]
fn with_net_admin_anything_but_what_hosts_need() {
    let caller = access(true, "").caller(peer(0)).unwrap();
    for good in ["10.96.0.10", "203.0.113.1", "fd00::1", "192.0.2.8"] {
        assert_eq!(refusal(&caller, &upsert("default", vip(good), 80)), None, "{good}");
    }
    for (bad, why) in [
        ("127.0.0.10", "loopback"),
        ("::1", "loopback"),
        ("169.254.1.1", "link-local"),
        ("fe80::1", "link-local"),
        ("224.0.0.1", "multicast"),
        ("0.0.0.0", "unspecified"),
        ("192.0.2.7", "this node has itself"),
    ] {
        let (field, message) = refusal(&caller, &upsert("default", vip(bad), 80)).unwrap();
        assert_eq!(field, "service.frontends[0].address");
        assert!(message.contains(why), "{bad}: {message}");
    }
}

#[test]
fn without_net_admin_only_what_can_be_listened_on() {
    let caller = access(false, "").caller(peer(1_000)).unwrap();
    for good in ["127.0.0.10", "::1", "192.0.2.7"] {
        assert_eq!(refusal(&caller, &upsert("default", vip(good), 8_080)), None, "{good}");
    }
    let (_, message) = refusal(&caller, &upsert("default", vip("10.96.0.10"), 80)).unwrap();
    assert!(message.contains("CAP_NET_ADMIN"), "{message}");
}

#[test]
fn an_entry_gives_owners_addresses_and_ports() {
    let entries = r#"
        [[access]]
        who = "uid:33"
        owners = ["k8s"]
        read = []
        default-owner = "k8s"
        frontends = [{ cidr = "10.96.0.0/12" }, { cidr = "127.0.0.0/8", ports = "8000-8999" }]
        node-ports = "30000-32767"
        operate = false
    "#;
    let caller = access(true, entries).caller(peer(33)).unwrap();
    assert_eq!(caller.default_owner.as_str(), "k8s");
    assert_eq!(refusal(&caller, &upsert("k8s", vip("10.96.0.1"), 1)), None);
    assert_eq!(refusal(&caller, &upsert("k8s", vip("127.0.0.1"), 8_080)), None, "a list replaces the default rule");
    let (field, message) = refusal(&caller, &upsert("k8s", vip("127.0.0.1"), 80)).unwrap();
    assert!(field == "service.frontends[0].address" && message.contains("8000-8999"), "{field}: {message}");
    let (_, message) = refusal(&caller, &upsert("k8s", vip("10.0.0.1"), 80)).unwrap();
    assert!(message.contains("10.96.0.0/12") && message.contains("uid:33"), "{message}");
    let node_port = || At::NodePort(vipd_model::NodePort { v4: true, v6: false, addresses: Vec::new() });
    assert_eq!(refusal(&caller, &upsert("k8s", node_port(), 30_000)), None);
    assert_eq!(refusal(&caller, &upsert("k8s", node_port(), 80)).unwrap().0, "service.frontends[0].port");
    let (field, message) = refusal(&caller, &upsert("nomad", vip("10.96.0.1"), 80)).unwrap();
    assert!(field == "service.owner" && message.contains("only k8s"), "{field}: {message}");
    assert!(!caller.reads(&OwnerName::new("nomad").unwrap()) && caller.reads(&OwnerName::new("k8s").unwrap()));
    assert!(caller.may_operate().is_err());

    let other = access(true, entries).caller(peer(34)).unwrap();
    assert!(other.may_operate().is_ok(), "no entry matches: the socket's permissions decide");
}

#[test]
fn a_certificate_may_do_nothing_until_it_is_named() {
    let names = |name: &str| Peer::Certificate { names: Arc::from([name.to_owned()]) };
    let access = access(true, "[[access]]\nwho = 'san:spiffe://example.org/k8s'\nowners = ['k8s']");
    assert!(access.caller(names("spiffe://example.org/other")).is_err());
    assert!(access.caller(names("spiffe://example.org/k8s")).is_ok());
}

#[test]
fn virtual_ranges_leave_the_host_alone() {
    let caller = access(true, "").caller(peer(0)).unwrap();
    let set = |range: &str| {
        let mut owner = Owner::new(OwnerName::new("default").unwrap());
        owner.network.virtual_ranges = vec![range.parse().unwrap()];
        caller.may_ask(&Request::SetOwner(owner))
    };
    assert!(set("10.96.0.0/12").is_ok());
    for bad in ["0.0.0.0/0", "192.0.2.0/24", "127.0.0.0/8", "::/0"] {
        let problem = set(bad).unwrap_err().problems.remove(0);
        assert_eq!(problem.field, "owner.network.virtual_ranges[0]", "{bad}");
    }
}

#[test]
fn ports_are_inclusive() {
    let allowed = AllowedFrontends { cidr: "10.0.0.0/8".parse().unwrap(), ports: "80-90".parse().unwrap() };
    assert!(allowed.ports.allow(vipd_model::PortRange { first: 80, last: 90 }));
    assert!(!allowed.ports.allow(vipd_model::PortRange { first: 80, last: 91 }));
    assert!("0".parse::<Ports>().is_err() && "90-80".parse::<Ports>().is_err());
}
