//! Who may do what. The configuration's entries decide which owners a caller may write and read, and which addresses and
//! ports it may use as frontends; what it says is checked here, after conversion and before the reconciler sees it.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use vipd_model::command::{Operation, Request};
use vipd_model::problem::Rejection;
use vipd_model::{At, Frontend, Owner, OwnerName, Problem, ProblemCode};

use super::identity::Peer;
use crate::config::access::{AccessEntry, Who};

/// Tells this node's addresses, loopback's excepted, as they are now.
pub type OwnAddresses = Arc<dyn Fn() -> Vec<IpAddr> + Send + Sync>;

/// The rules of this node.
#[derive(Clone)]
pub struct Access {
    entries: Arc<[Arc<AccessEntry>]>,
    fallback: Arc<AccessEntry>,
    default_owner: OwnerName,
    /// Whether VIPs can be made here. Without CAP_NET_ADMIN only addresses that the node has can be listened on.
    pub(super) net_admin: bool,
    own_addresses: OwnAddresses,
}

impl Access {
    /// From the configuration.
    #[must_use]
    pub fn new(
        entries: Vec<AccessEntry>,
        default_owner: OwnerName,
        net_admin: bool,
        own_addresses: OwnAddresses,
    ) -> Self {
        Self {
            entries: entries.into_iter().map(Arc::new).collect(),
            fallback: Arc::new(AccessEntry::of_the_socket()),
            default_owner,
            net_admin,
            own_addresses,
        }
    }

    /// What holds for a caller.
    ///
    /// # Errors
    /// NOT_ALLOWED for a certificate that no entry names.
    pub fn caller(&self, peer: Peer) -> Result<Caller, Rejection> {
        let matching = self.entries.iter().find(|entry| matches(&entry.who, &peer));
        let entry = match (matching, &peer) {
            (Some(entry), _) => Arc::clone(entry),
            (None, Peer::Certificate { .. }) => {
                let why = format!(
                    "{peer} may do nothing here: no entry of `access` in the configuration of vipd has \
                     who = \"san:…\" with a name of this certificate"
                );
                return Err(Problem::new(ProblemCode::NotAllowed, "", why).into());
            }
            (None, _) => Arc::clone(&self.fallback),
        };
        let named = entry.default_owner.as_deref().and_then(|name| OwnerName::new(name).ok());
        let default_owner = named.unwrap_or_else(|| self.default_owner.clone());
        Ok(Caller { peer, entry, default_owner, access: self.clone() })
    }
}

fn matches(who: &Who, peer: &Peer) -> bool {
    match (who, peer) {
        (Who::Socket, Peer::Process { .. }) | (Who::Loopback, Peer::Loopback(_)) => true,
        (Who::Uid(wanted), Peer::Process { uid, .. }) => wanted == uid,
        (Who::Gid(wanted), Peer::Process { gid, .. }) => wanted == gid,
        (Who::San(wanted), Peer::Certificate { names }) => names.contains(wanted),
        _ => false,
    }
}

/// A caller, with what it may do.
#[derive(Clone)]
pub struct Caller {
    /// Who it is.
    pub peer: Peer,
    /// The owner of its calls that name none.
    pub default_owner: OwnerName,
    entry: Arc<AccessEntry>,
    access: Access,
}

impl Caller {
    /// Whether it may write this owner.
    ///
    /// # Errors
    /// NOT_ALLOWED.
    pub fn may_write(&self, owner: &OwnerName, field: &str) -> Result<(), Rejection> {
        self.in_list(&self.entry.owners, owner, field, "write")
    }

    /// Whether it may read this owner.
    #[must_use]
    pub fn reads(&self, owner: &OwnerName) -> bool {
        names(&self.entry.read, owner) || names(&self.entry.owners, owner)
    }

    /// The same for a call about one owner.
    ///
    /// # Errors
    /// NOT_ALLOWED.
    pub fn may_read(&self, owner: &OwnerName, field: &str) -> Result<(), Rejection> {
        if self.reads(owner) { Ok(()) } else { self.in_list(&self.entry.read, owner, field, "read") }
    }

    fn in_list(&self, list: &[String], owner: &OwnerName, field: &str, verb: &str) -> Result<(), Rejection> {
        if names(list, owner) {
            return Ok(());
        }
        let why = format!(
            "{} may not {verb} owner {owner}, only {} (access entry who = \"{}\")",
            self.peer,
            list.join(", "),
            self.entry.who
        );
        Err(Problem::new(ProblemCode::NotAllowed, field, why).into())
    }

    /// Whether it may operate the node: SetDefaultEngine, ReleaseHold.
    ///
    /// # Errors
    /// NOT_ALLOWED.
    pub fn may_operate(&self) -> Result<(), Rejection> {
        if self.entry.operate {
            return Ok(());
        }
        let why = format!("{} may not operate this node (access entry who = \"{}\")", self.peer, self.entry.who);
        Err(Problem::new(ProblemCode::NotAllowed, "", why).into())
    }

    /// Whether a write is within what it may do: owners, frontends, virtual ranges.
    ///
    /// # Errors
    /// NOT_ALLOWED for each field at fault.
    pub fn may_ask(&self, request: &Request) -> Result<(), Rejection> {
        match request {
            Request::One(operation) => self.may_do(operation, ""),
            Request::Apply { operations, .. } => {
                operations.iter().enumerate().try_for_each(|(i, one)| self.may_do(one, &format!("operations[{i}]")))
            }
            Request::Sync(sync) => {
                self.may_write(&sync.owner, "begin.owner")?;
                let settings = sync.settings.iter().try_for_each(|owner| self.may_set(owner, "begin.settings"));
                settings.and_then(|()| {
                    sync.declares.iter().try_for_each(|declare| {
                        let field = format!("declare[{}].service", declare.index);
                        self.may_have(&declare.definition.frontends, &field)
                    })
                })
            }
            Request::SetOwner(owner) => {
                self.may_write(&owner.name, "owner.name")?;
                self.may_set(owner, "owner")
            }
            Request::DeleteOwner(owner) => self.may_write(owner, "name"),
            Request::RenewLease(owner) => self.may_write(owner, "owner"),
            Request::SetDefaultEngine { .. } => self.may_operate(),
        }
    }

    /// The same for one operation; `root` is the path of the operation in an Apply.
    ///
    /// # Errors
    /// NOT_ALLOWED for each field at fault.
    pub fn may_do(&self, operation: &Operation, root: &str) -> Result<(), Rejection> {
        let (call, service) = match operation {
            Operation::UpsertService { .. } => ("upsert_service", "service."),
            Operation::DeleteService { .. } => ("delete_service", ""),
            Operation::SetEndpoints { .. } => ("set_endpoints", ""),
            Operation::PatchEndpoints { .. } => ("patch_endpoints", ""),
            Operation::SetScheduler { .. } => ("set_scheduler", ""),
        };
        let root = if root.is_empty() { String::new() } else { format!("{root}.{call}.") };
        self.may_write(&operation.key().owner, &format!("{root}{service}owner"))?;
        match operation {
            Operation::UpsertService { definition, .. } => {
                self.may_have(&definition.frontends, &format!("{root}service"))
            }
            _ => Ok(()),
        }
    }

    fn may_have(&self, frontends: &[Frontend], service: &str) -> Result<(), Rejection> {
        let mut problems = Vec::new();
        for (index, frontend) in frontends.iter().enumerate() {
            let refusal = match &frontend.at {
                At::Address(address) => self.refuses_vip(*address, frontend).map(|why| ("address", why)),
                At::NodePort(_) => self.refuses_node_port(frontend).map(|why| ("port", why)),
            };
            if let Some((field, why)) = refusal {
                let field = format!("{service}.frontends[{index}].{field}");
                problems.push(Problem::new(ProblemCode::NotAllowed, field, why));
            }
        }
        if problems.is_empty() { Ok(()) } else { Err(Rejection { problems }) }
    }

    fn refuses_vip(&self, address: IpAddr, frontend: &Frontend) -> Option<String> {
        let Some(allowed) = &self.entry.frontends else { return self.refuses_by_default(address) };
        let ports = frontend.ports;
        let inside: Vec<_> = allowed.iter().filter(|allowed| allowed.cidr.contains(&address)).collect();
        if inside.iter().any(|allowed| allowed.ports.allow(ports)) {
            return None;
        }
        let who = &self.entry.who;
        Some(if inside.is_empty() {
            let cidrs: Vec<_> = allowed.iter().map(|allowed| allowed.cidr.to_string()).collect();
            format!("{address} is outside {} (access entry who = \"{who}\")", cidrs.join(", "))
        } else {
            let ports_allowed: Vec<_> = inside.iter().map(|allowed| allowed.ports.to_string()).collect();
            format!(
                "{address} may have ports {} only, not {ports} (access entry who = \"{who}\")",
                ports_allowed.join(", ")
            )
        })
    }

    /// What every caller may use who has no list of its own.
    fn refuses_by_default(&self, address: IpAddr) -> Option<String> {
        let is_own = || (self.access.own_addresses)().contains(&address);
        if !self.access.net_admin {
            return (!address.is_loopback() && !is_own()).then(|| {
                format!(
                    "{address} is no address of this node, and without CAP_NET_ADMIN vipd can serve only those and \
                     loopback; use one that `ip address` shows or 127.0.0.0/8, or run vipd with CAP_NET_ADMIN"
                )
            });
        }
        let kind = match address {
            _ if address.is_loopback() => "a loopback address",
            IpAddr::V4(v4) if v4.is_link_local() => "a link-local address",
            IpAddr::V6(v6) if v6.is_unicast_link_local() => "a link-local address",
            _ if address.is_multicast() => "a multicast address",
            _ if address.is_unspecified() => "the unspecified address",
            _ if is_own() => "an address that this node has itself (use a node port)",
            _ => return None,
        };
        Some(format!("{address} is {kind}; a VIP must not be, unless `frontends` of an access entry says so"))
    }

    fn refuses_node_port(&self, frontend: &Frontend) -> Option<String> {
        let allowed = self.entry.node_ports;
        (!allowed.allow(frontend.ports)).then(|| {
            format!(
                "{} is outside {allowed}, the node ports of access entry who = \"{}\"",
                frontend.ports, self.entry.who
            )
        })
    }

    /// An owner's virtual ranges are refused to everybody else, so they must be what its frontends could be.
    fn may_set(&self, owner: &Owner, field: &str) -> Result<(), Rejection> {
        let mut problems = Vec::new();
        for (index, range) in owner.network.virtual_ranges.iter().enumerate() {
            if let Some(why) = self.refuses_range(range) {
                let field = format!("{field}.network.virtual_ranges[{index}]");
                problems.push(Problem::new(ProblemCode::NotAllowed, field, why));
            }
        }
        if problems.is_empty() { Ok(()) } else { Err(Rejection { problems }) }
    }

    fn refuses_range(&self, range: &IpNet) -> Option<String> {
        if let Some(allowed) = &self.entry.frontends {
            let inside = allowed.iter().any(|allowed| allowed.cidr.contains(range));
            return (!inside)
                .then(|| format!("{range} is not inside the frontends of access entry who = \"{}\"", self.entry.who));
        }
        let special = ["127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "::1/128", "fe80::/10", "ff00::/8"];
        let special = special.iter().filter_map(|net| net.parse::<IpNet>().ok());
        let own = (self.access.own_addresses)().into_iter().map(IpNet::from);
        let met = special.chain(own).find(|net| net.contains(range) || range.contains(net))?;
        Some(format!("{range} holds {met}, which must stay reachable as it is; give ranges that hold nothing but VIPs"))
    }
}

fn names(list: &[String], owner: &OwnerName) -> bool {
    list.iter().any(|name| name == "*" || name == owner.as_str())
}

#[cfg(test)]
mod tests;
