//! The guard's own statements: frontends, captures, prefixes.

use vipd_model::{Family, Protocol};
use vipd_netlink::nft::Expr;

use super::names::{Prefix, Reach, SetName};
use crate::rule::{KEY, KeyFields, Rule};

impl Rule {
    /// The packet's destination is in a set of frontends; for [`Reach::Node`] of one that is known to be for this node.
    pub(super) fn at(self, reach: Reach, family: Family, set: SetName) -> Self {
        let key = spot(reach, family);
        let rule = match reach {
            Reach::Address => self.family_implied(family),
            Reach::Node => self.family(family),
        };
        rule.with(&format!("{} @{set}", key.text), key.expressions).lookup(set, None)
    }

    /// The packet's protocol and destination port are in a set.
    pub(super) fn port_in(self, set: SetName) -> Self {
        let key = spot(Reach::Node, Family::V4);
        self.with(&format!("{} @{set}", key.text), key.expressions).lookup(set, None)
    }

    /// Redirects packets of a protocol to the port that a map has for their destination; for [`Reach::Node`] as above.
    pub(super) fn redirect(self, protocol: Protocol, reach: Reach, family: Family, map: SetName) -> Self {
        let rule = self.protocol(protocol).family(family);
        let key = spot(reach, family);
        // Where the protocol is known, `nft` calls its port by it.
        let fields = key.text.replace("th dport", &format!("{protocol} dport"));
        let rule = rule.with(&format!("redirect to :{fields} map @{map}"), key.expressions);
        rule.lookup(map, Some(KEY)).with("", [Expr::Redirect { port: Some(KEY) }])
    }

    /// The packet's source (or destination), cut to the prefix's length, is in its set.
    pub(super) fn in_prefix(self, prefix: Prefix) -> Self {
        let (family, set) = (prefix.family(), SetName::Prefix(prefix));
        let (key, relation) = match prefix {
            Prefix::Allow { reach, .. } => (spot(reach, family).source(family), ""),
            Prefix::Virtual { .. } => (KeyFields::default().destination(family), "== "),
        };
        let key = key.masked(family, prefix.length());
        let relation = if key.text.contains('&') { relation } else { "" };
        let text = format!("{} {relation}@{set}", key.text);
        self.family_implied(family).with(&text, key.expressions).lookup(set, None)
    }
}

/// The packet's destination as frontends are found: address (unless by node), protocol, port.
fn spot(reach: Reach, family: Family) -> KeyFields {
    match reach {
        Reach::Address => KeyFields::default().destination(family).port(),
        Reach::Node => KeyFields::default().port(),
    }
}
