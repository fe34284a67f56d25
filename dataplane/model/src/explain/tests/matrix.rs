//! The traffic matrix of KUBE-PROXY-SEMANTICS §3.2, row by row, in vipd's words.

use super::*;

/// Which endpoints a row may reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reaches {
    Both,
    LocalOne,
}

/// What becomes of a packet when all endpoints, the local one, or none are there.
#[derive(Debug)]
struct Row {
    to: &'static str,
    from: (&'static str, Arrival<'static>),
    policy: Policy,
    reaches: Reaches,
    nat: NatReason,
    /// The verdict when the only endpoint is on another node.
    only_remote: Verdict,
}

const POD: (&str, Arrival<'static>) = ("10.244.0.9", Arrival::Interface("veth7"));
const HOST: (&str, Arrival<'static>) = ("192.0.2.10", Arrival::Node);
const OUTSIDE: (&str, Arrival<'static>) = ("198.51.100.7", Arrival::Interface("eth0"));

const INTERNAL_VIP: &str = "10.96.0.10:80";
const EXTERNAL_VIP: &str = "203.0.113.5:80";
const NODE_PORT: &str = "192.0.2.10:30080";

fn rows() -> Vec<Row> {
    use NatReason as Nat;
    use Policy::{All, Local};
    use Reaches::{Both, LocalOne};
    use Verdict::{Dropped, Forwarded};
    let row = |to, from, policy, reaches, nat, only_remote| Row { to, from, policy, reaches, nat, only_remote };
    let mut rows = vec![
        row(INTERNAL_VIP, POD, All, Both, Nat::LocalSource, Forwarded),
        row(INTERNAL_VIP, POD, Local, LocalOne, Nat::LocalSource, Dropped),
        row(INTERNAL_VIP, HOST, All, Both, Nat::NotLocal, Forwarded),
        row(INTERNAL_VIP, HOST, Local, LocalOne, Nat::NotLocal, Dropped),
        row(INTERNAL_VIP, OUTSIDE, All, Both, Nat::NotLocal, Forwarded),
        row(INTERNAL_VIP, OUTSIDE, Local, LocalOne, Nat::NotLocal, Dropped),
    ];
    for to in [NODE_PORT, EXTERNAL_VIP] {
        rows.extend([
            row(to, POD, All, Both, Nat::External, Forwarded),
            row(to, HOST, All, Both, Nat::External, Forwarded),
            row(to, OUTSIDE, All, Both, Nat::External, Forwarded),
            row(to, POD, Local, Both, Nat::ExternalLocal, Forwarded),
            row(to, HOST, Local, Both, Nat::NodeProcess, Forwarded),
            row(to, OUTSIDE, Local, LocalOne, Nat::ExternalLocal, Dropped),
        ]);
    }
    rows
}

fn told(row: &Row, endpoints: Vec<Endpoint>) -> Explanation {
    let mut frontends = vec![
        Frontend::vip(ip("10.96.0.10"), 80),
        Frontend { scope: Scope::External, ..Frontend::vip(ip("203.0.113.5"), 80) },
        node_port(30080),
    ];
    for frontend in &mut frontends {
        frontend.policy = row.policy;
    }
    let node = Node::new(vec![served(service(frontends, endpoints), EngineKind::Nftables)]);
    explain(&node, &packet(row.from.0, row.to, row.from.1))
}

#[test]
fn every_row_is_as_the_reference_says() {
    for row in rows() {
        let all = told(&row, remote_and_local());
        assert_eq!(all.verdict, Verdict::Forwarded, "{row:?}");
        assert_eq!(all.source_nat, Some(row.nat), "{row:?}");
        let probabilities: Vec<f64> = all.candidates.iter().map(|c| c.probability).collect();
        let expected = if row.reaches == Reaches::Both { [0.5, 0.5] } else { [0.0, 1.0] };
        assert_eq!(probabilities, expected, "{row:?}");

        let only_remote = told(&row, remote_and_local()[..1].to_vec());
        assert_eq!(only_remote.verdict, row.only_remote, "{row:?}");
        assert_eq!(told(&row, vec![]).verdict, Verdict::Rejected, "{row:?}");
    }
}

#[test]
fn the_steps_of_a_row_read_well() {
    let told = told(&rows().pop().unwrap(), remote_and_local());
    let lines: Vec<String> = told.steps.iter().map(|step| format!("{}: {}", step.stage, step.outcome)).collect();
    assert_eq!(
        lines,
        [
            "frontend: 203.0.113.5:80/tcp is frontends[1] of ops/web, EXTERNAL + LOCAL",
            "source-ranges: none: everybody may come in",
            "local-source: from outside",
            "tiers: policy LOCAL: 1 of 2 endpoints, READY",
            "scheduler: RR",
            "source-nat: kept: AUTO: EXTERNAL + LOCAL keeps the client's address",
        ]
    );
    assert_eq!(told.candidates[0].why_not.as_deref(), Some("not local"));
}
