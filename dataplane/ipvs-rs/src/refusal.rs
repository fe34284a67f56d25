//! The kernel's refusals, in words.
//!
//! IPVS answers with a number and nothing else; what the number means depends on what was asked. The meanings here are
//! those of net/netfilter/ipvs/ip_vs_ctl.c and ip_vs_sync.c.

use std::fmt;

use nix::errno::Errno;

use crate::message::Answer;
use crate::request::Request;

/// A request that the kernel refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Its place in the batch, from 0; alone it is 0.
    pub index: usize,
    /// What was asked.
    pub request: Request,
    /// Why it was refused.
    pub reason: Reason,
    /// The kernel's error number.
    pub errno: i32,
    /// The kernel's own words, which it has only for an attribute that breaks netlink's rules.
    pub kernel: Option<String>,
}

/// Why a request was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// There is such a service already.
    ServiceExists,
    /// The service has such a destination already.
    DestinationExists,
    /// A daemon of that role runs already.
    DaemonRuns,
    /// There is no such service.
    NoService,
    /// The service has no such destination.
    NoDestination,
    /// No daemon of that role runs.
    NoDaemon,
    /// The kernel has no such scheduler, or no such persistence engine: it does not say which.
    NoSchedulerOrEngine,
    /// There is no such network interface.
    NoInterface,
    /// The kernel has no IPv6, or its IPVS was built without.
    NoFamily,
    /// The kernel's IPVS is older than the command.
    NoCommand,
    /// Not allowed: IPVS wants CAP_NET_ADMIN in the initial user namespace.
    NotPermitted,
    /// A weight, a threshold or a time-out is out of range.
    OutOfRange,
    /// The kernel does not take it; which part, it does not say.
    Invalid,
    /// The kernel has no memory left.
    NoMemory,
    /// The module is going away.
    Unloading,
    /// Something that this crate has no word for; see [`Refusal::errno`].
    Other,
}

impl Reason {
    pub(crate) fn of(request: &Request, errno: i32) -> Self {
        use Request as R;
        let on_daemon = matches!(request, R::StartDaemon(_) | R::StopDaemon(_));
        let on_destination =
            matches!(request, R::AddDestination(..) | R::SetDestination(..) | R::DeleteDestination(..));
        match Errno::from_raw(errno) {
            Errno::EEXIST if on_daemon => Self::DaemonRuns,
            Errno::EEXIST if on_destination => Self::DestinationExists,
            Errno::EEXIST => Self::ServiceExists,
            Errno::ESRCH if on_daemon => Self::NoDaemon,
            Errno::ESRCH => Self::NoService,
            Errno::ENOENT if on_destination => Self::NoDestination,
            Errno::ENOENT if matches!(request, R::AddService(_) | R::SetService(_)) => Self::NoSchedulerOrEngine,
            Errno::ENODEV if on_daemon => Self::NoInterface,
            Errno::EAFNOSUPPORT => Self::NoFamily,
            Errno::EOPNOTSUPP => Self::NoCommand,
            Errno::EPERM | Errno::EACCES => Self::NotPermitted,
            Errno::ERANGE => Self::OutOfRange,
            Errno::EINVAL => Self::Invalid,
            Errno::ENOMEM => Self::NoMemory,
            Errno::ENOPROTOOPT => Self::Unloading,
            _ => Self::Other,
        }
    }

    /// What is wrong and what to do, where something can be done.
    fn words(self, request: &Request) -> &'static str {
        use Request as R;
        match (self, request) {
            (Self::ServiceExists, _) => "there is such a service already",
            (Self::DestinationExists, _) => "the service has that destination already",
            (Self::DaemonRuns, _) => "one runs already; stop it first",
            (Self::NoService, _) => "there is no such service",
            (Self::NoDestination, _) => "the service has no such destination",
            (Self::NoDaemon, _) => "none runs",
            (Self::NoSchedulerOrEngine, _) => {
                "the kernel has no such scheduler or persistence engine (module ip_vs_<name> or ip_vs_pe_<name>)"
            }
            (Self::NoInterface, _) => "there is no such network interface",
            (Self::NoFamily, _) => "IPv6 is off in this kernel, or its IPVS was built without",
            (Self::NoCommand, _) => "this kernel's IPVS does not know the command",
            (Self::NotPermitted, _) => "not permitted; it takes CAP_NET_ADMIN in the initial user namespace",
            (Self::OutOfRange, _) => "a weight, a threshold or a time-out is out of range",
            (Self::Invalid, R::AddDestination(..) | R::SetDestination(..)) => {
                "not accepted; its address must be one host's (while a namespace's loopback is down, none is), and of \
                 its service's family unless it is reached by a tunnel and no synchronisation daemon runs"
            }
            (Self::Invalid, R::AddService(_) | R::SetService(_)) => {
                "not accepted; the scheduler may not take such a service"
            }
            (Self::Invalid, R::StartDaemon(_)) => {
                "not accepted; the group must be multicast, the identity 0 to 255, and no destination may be of \
                 another family than its service"
            }
            (Self::Invalid, _) => "not accepted",
            (Self::NoMemory, _) => "the kernel has no memory left",
            (Self::Unloading, _) => "the module ip_vs is being unloaded",
            (Self::Other, _) => "refused",
        }
    }
}

impl Refusal {
    pub(crate) fn new(index: usize, request: Request, answer: &Answer<'_>) -> Self {
        let kernel = answer.text.map(|text| String::from_utf8_lossy(text).into_owned());
        Self { index, request, reason: Reason::of(&request, answer.errno), errno: answer.errno, kernel }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let errno = Errno::from_raw(self.errno);
        write!(f, "{}: {} ({errno:?})", self.request, self.reason.words(&self.request))?;
        match &self.kernel {
            Some(text) => write!(f, "; the kernel says: {text}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Refusal {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DestinationKey, ServiceKey};

    #[test]
    fn the_same_number_means_what_was_asked() {
        let service = ServiceKey::tcp("10.96.0.10:80".parse().unwrap());
        let destination = DestinationKey::new("10.1.1.2:8080".parse().unwrap());
        let add = Request::AddDestination(service, destination);
        for (request, errno, reason) in [
            (Request::AddService(service), Errno::EEXIST, Reason::ServiceExists),
            (add, Errno::EEXIST, Reason::DestinationExists),
            (add, Errno::ESRCH, Reason::NoService),
            (Request::DeleteDestination(service, destination), Errno::ENOENT, Reason::NoDestination),
            (Request::AddService(service), Errno::ENOENT, Reason::NoSchedulerOrEngine),
            (Request::StopDaemon(crate::DaemonRole::Master), Errno::ESRCH, Reason::NoDaemon),
            (Request::Flush, Errno::EPERM, Reason::NotPermitted),
            (Request::Flush, Errno::EIO, Reason::Other),
        ] {
            assert_eq!(Reason::of(&request, errno as i32), reason, "{request}: {errno}");
        }
        let refusal = Refusal { index: 0, request: add, reason: Reason::NoService, errno: 3, kernel: None };
        assert_eq!(
            refusal.to_string(),
            "add destination 10.1.1.2:8080 to tcp 10.96.0.10:80: there is no such service (ESRCH)"
        );
    }
}
