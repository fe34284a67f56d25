//! What of the objects of the API server reaches a node: Services, EndpointSlices, ServiceCIDRs and this Node, reduced to
//! the fields that count and read leniently. Reducing at once keeps 50,000 endpoints within the adapter's memory.
//!
//! Pure. What the facts become is in `translate`.

mod lenient;
mod node;
mod service;
mod slice;

use std::fmt;

use ipnet::IpNet;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

pub use lenient::{address, range};
pub use node::NodeFacts;
pub use service::{LoadBalancer, Port, ServiceFacts};
pub use slice::{Endpoint, SliceFacts, SlicePort, SliceVersion};

/// Hides a Service, whatever its value: another proxy serves it.
const SERVICE_PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";
/// Hides a Service, whatever its value: it has no virtual address, or is to be treated so.
const HEADLESS: &str = "service.kubernetes.io/headless";

/// What Services, EndpointSlices and ServiceCIDRs are asked for with: kube-proxy's two requirements.
pub const LABEL_SELECTOR: &str = "!service.kubernetes.io/service-proxy-name,!service.kubernetes.io/headless";

/// The name of an object that lives in a namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Its namespace.
    pub namespace: Box<str>,
    /// Its name there.
    pub name: Box<str>,
}

impl Key {
    /// From its two parts.
    #[must_use]
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    /// Of an object.
    #[must_use]
    pub fn of(metadata: &ObjectMeta) -> Self {
        Self::new(metadata.namespace.as_deref().unwrap_or_default(), metadata.name.as_deref().unwrap_or_default())
    }
}

/// `shop/web`
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// What TCP, UDP and SCTP are called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protocol {
    /// The default.
    Tcp,
    /// Datagrams.
    Udp,
    /// Needs an engine that has it.
    Sctp,
}

impl Protocol {
    /// As the API writes it; absent is TCP.
    #[must_use]
    pub fn parse(text: Option<&str>) -> Option<Self> {
        match text {
            None | Some("" | "TCP") => Some(Self::Tcp),
            Some("UDP") => Some(Self::Udp),
            Some("SCTP") => Some(Self::Sctp),
            Some(_) => None,
        }
    }

    /// In the name of a vipd service.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        }
    }
}

/// Something the author of a Service should know: an event on it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Remark {
    /// CamelCase, as events have it.
    pub reason: &'static str,
    /// A sentence: what, and what follows of it.
    pub text: String,
}

impl Remark {
    /// One remark.
    pub fn new(reason: &'static str, text: impl Into<String>) -> Self {
        Self { reason, text: text.into() }
    }
}

/// The ranges of a ServiceCIDR that are ranges.
#[must_use]
pub fn service_ranges(object: &ServiceCIDR) -> Vec<IpNet> {
    let texts = object.spec.as_ref().and_then(|spec| spec.cidrs.as_deref()).unwrap_or_default();
    texts.iter().filter_map(|text| range(text)).collect()
}

/// The server leaves such objects out already; a server that does not must make no difference.
fn is_hidden(metadata: &ObjectMeta) -> bool {
    let labels = metadata.labels.as_ref();
    labels.is_some_and(|labels| labels.contains_key(SERVICE_PROXY_NAME) || labels.contains_key(HEADLESS))
}
