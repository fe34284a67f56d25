//! The guard's objects: what it has in the kernel, by name, printed as `nft` prints it.

use std::fmt;

use vipd_netlink::nft::{ChainKind, Data, Hook, HookPoint, TableFlags};

use super::{
    element::ElementKey,
    names::{ChainName, Prefix, SetName, TableName},
};
use crate::rule::Rule;

/// Names one object. Ordered so that what others refer to comes first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Where it is: the anchor is made before anything else.
    pub table: TableName,
    /// What it is.
    pub object: Object,
}

/// What is in a table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Object {
    /// The table itself.
    Table,
    /// A set or map.
    Set(SetName),
    /// A chain with its constant rules.
    Chain(ChainName),
    /// The rule of a prefix length, in front of its chain.
    Prefix(Prefix),
    /// An element of a set or map.
    Element(SetName, ElementKey),
    /// A set of another layout than this one's: of another version of vipd, or somebody's.
    StraySet(String),
    /// A chain of another layout.
    StrayChain(String),
}

impl Key {
    pub(crate) fn table(table: TableName) -> Self {
        Self { table, object: Object::Table }
    }

    pub(crate) fn set(set: SetName) -> Self {
        Self { table: TableName::Main, object: Object::Set(set) }
    }

    pub(crate) fn chain(chain: ChainName) -> Self {
        Self { table: chain.table(), object: Object::Chain(chain) }
    }

    pub(crate) fn prefix(prefix: Prefix) -> Self {
        Self { table: TableName::Main, object: Object::Prefix(prefix) }
    }

    pub(crate) fn element(set: SetName, key: ElementKey) -> Self {
        Self { table: TableName::Main, object: Object::Element(set, key) }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = self.table;
        match &self.object {
            Object::Table => write!(f, "table inet {table}"),
            Object::Set(set) => write!(f, "set inet {table} {set}"),
            Object::Chain(chain) => write!(f, "chain inet {table} {chain}"),
            Object::Prefix(prefix) => write!(f, "rule inet {table} {}", prefix.chain()),
            Object::Element(set, key) => write!(f, "element inet {table} {set} {{ {key} }}"),
            Object::StraySet(name) => write!(f, "set inet {table} {name}"),
            Object::StrayChain(name) => write!(f, "chain inet {table} {name}"),
        }
    }
}

/// What an object is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Flags of a table that is ours alone now.
    Table(TableFlags),
    /// A table whose owner is another running process, by its netlink port.
    OwnedByAnother(u32),
    /// A set or map.
    Set(vipd_netlink::nft::Set),
    /// A chain.
    Chain {
        /// None if it is only jumped to.
        hook: Option<Hook>,
        /// In order.
        rules: Vec<Rule>,
    },
    /// One rule.
    Rule(Rule),
    /// Nothing but its key.
    Present,
    /// The proxy's port.
    Port(u16),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Table(TableFlags { owner: true, persist: true }) => f.write_str("{ flags owner, persist }"),
            Self::Table(TableFlags { owner: false, persist: true }) => f.write_str("{ flags persist }"),
            Self::Table(TableFlags { owner: true, persist: false }) => f.write_str("{ flags owner }"),
            Self::Table(_) => f.write_str("{ }"),
            Self::OwnedByAnother(port) => write!(f, "{{ owned by another process, netlink port {port} }}"),
            Self::Set(set) => {
                let key: Vec<_> = set.key.iter().map(|field| field.name()).collect();
                write!(f, "{{ type {}", key.join(" . "))?;
                match &set.data {
                    Some(Data::Fields(fields)) => {
                        let data: Vec<_> = fields.iter().map(|field| field.name()).collect();
                        write!(f, " : {}", data.join(" . "))?;
                    }
                    Some(Data::Verdict) => f.write_str(" : verdict")?,
                    None => {}
                }
                f.write_str(if set.interval { "; flags interval }" } else { " }" })
            }
            Self::Chain { hook, rules } => {
                f.write_str("{")?;
                if let Some(hook) = hook {
                    write!(f, "\n  {}", HookText(*hook))?;
                }
                for rule in rules {
                    write!(f, "\n  {rule}")?;
                }
                f.write_str("\n}")
            }
            Self::Rule(rule) => rule.fmt(f),
            Self::Present => Ok(()),
            Self::Port(port) => write!(f, ": {port}"),
        }
    }
}

/// A hook as `nft` takes it.
struct HookText(Hook);

impl fmt::Display for HookText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Hook { kind, point, priority } = self.0;
        let kind = match kind {
            ChainKind::Filter => "filter",
            ChainKind::Nat => "nat",
        };
        let point = match point {
            HookPoint::Prerouting => "prerouting",
            HookPoint::Input => "input",
            HookPoint::Forward => "forward",
            HookPoint::Output => "output",
            HookPoint::Postrouting => "postrouting",
        };
        write!(f, "type {kind} hook {point} priority {priority}; policy accept;")
    }
}
