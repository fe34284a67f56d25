//! On which of the node's addresses node ports are served: kube-proxy's `nodePortAddresses`.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::facts::{self, NodeFacts};

/// What was configured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodePorts {
    ranges: Vec<IpNet>,
    primary: bool,
}

impl NodePorts {
    /// Ranges and the words `primary`, `localhost` and `all`, in any mixture. None at all leaves it to vipd.
    ///
    /// # Errors
    /// The first entry that is neither.
    pub fn parse<'a>(entries: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let mut found = Self::default();
        for entry in entries.into_iter().map(str::trim) {
            match entry {
                "primary" => found.primary = true,
                "localhost" => found.ranges.extend(["127.0.0.0/8", "::1/128"].into_iter().filter_map(facts::range)),
                "all" => found.ranges.extend([every(false), every(true)]),
                _ => found.ranges.push(facts::range(entry).ok_or_else(|| {
                    format!("node port address {entry:?} is neither a range such as 10.0.0.0/8 nor primary, localhost or all")
                })?),
            }
        }
        Ok(found)
    }

    /// The ranges of a family; empty leaves it to vipd's configuration, `None` is nowhere. A family of which nothing is
    /// said is served everywhere, as by kube-proxy; but `primary` speaks of both.
    #[must_use]
    pub fn addresses(&self, v6: bool, node: &NodeFacts) -> Option<Vec<IpNet>> {
        if self == &Self::default() {
            return Some(Vec::new());
        }
        let mut ranges: Vec<IpNet> = self.ranges.iter().copied().filter(|range| range.addr().is_ipv6() == v6).collect();
        if self.primary {
            ranges.extend(node.address(v6).map(IpNet::from));
        } else if ranges.is_empty() {
            ranges.push(every(v6));
        }
        ranges.sort();
        ranges.dedup();
        (!ranges.is_empty()).then_some(ranges)
    }
}

fn every(v6: bool) -> IpNet {
    let address = if v6 { IpAddr::from([0; 16]) } else { IpAddr::from([0; 4]) };
    IpNet::new_assert(address, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served(entries: &[&str], node: &[&str]) -> (Option<String>, Option<String>) {
        let node = NodeFacts { addresses: node.iter().map(|a| a.parse().unwrap()).collect(), ..Default::default() };
        let ports = NodePorts::parse(entries.iter().copied()).unwrap();
        let text = |v6| {
            let ranges = ports.addresses(v6, &node)?;
            Some(ranges.iter().map(IpNet::to_string).collect::<Vec<_>>().join(" "))
        };
        (text(false), text(true))
    }

    #[test]
    fn words_and_ranges() {
        let some = |text: &str| Some(text.to_owned());
        let node = ["10.0.0.1", "fd00::1"];
        assert_eq!(served(&[], &node), (some(""), some("")));
        assert_eq!(served(&["10.0.0.0/8"], &node), (some("10.0.0.0/8"), some("::/0")));
        assert_eq!(served(&["primary"], &node), (some("10.0.0.1/32"), some("fd00::1/128")));
        assert_eq!(served(&["primary"], &["10.0.0.1"]), (some("10.0.0.1/32"), None));
        assert_eq!(served(&["primary", "localhost"], &[]), (some("127.0.0.0/8"), some("::1/128")));
        assert_eq!(served(&["all"], &node), (some("0.0.0.0/0"), some("::/0")));
        assert!(NodePorts::parse(["eth0"]).unwrap_err().contains("eth0"));
    }
}
