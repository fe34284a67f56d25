//! Explain: every decision about one packet, from what is programmed.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use ipnet::IpNet;
use tonic::Status;
use vipd_engine::Hashed;
use vipd_engine::runner::Seen;
use vipd_model::explain::{Explanation, Held, Packet, Verdict, View, explain};
use vipd_model::source::Arrival;
use vipd_model::{
    Algorithm, At, EndpointKey, EngineKind, Family, Network, Place, Protocol, Revision, Selected, Serve, ServiceKey,
    affinity_client, select,
};
use vipd_proto::v1;

use super::call::{Api, Call};
use super::convert::{endpoint, engine, scalar, service};
use super::relay::Relay;
use crate::reconcile::Core;
use crate::reconcile::lanes::Pins;

/// What is programmed, as Explain asks for it.
struct Programmed<'a> {
    core: &'a Core,
    /// Whether there is a guard.
    guarded: bool,
    relay: Option<&'a dyn Relay>,
    /// What the engine that serves said, once it is known which that is.
    pins: Pins,
}

impl View for Programmed<'_> {
    fn holder(&self, place: Place, protocol: Protocol, port: u16) -> Option<Held> {
        let (service, _) = self.core.desired.holder(place, protocol, port)?;
        let track = self.core.tracks.get(&service.key)?;
        // What packets meet is what was programmed last, which may be older than what was declared.
        let programmed = track.programmed.as_ref()?;
        let (engine, algorithm) = (track.engine?, track.algorithm?);
        let at = |frontend: &vipd_model::Frontend| {
            frontend.spans().any(|span| span.place == place && span.ports.contains(port))
        };
        let frontend = programmed.held_frontends().find(|(_, frontend)| at(frontend))?.0;
        if programmed.definition.protocol != protocol {
            return None;
        }
        Some(Held { selected: Arc::new(select::select(programmed, engine, algorithm)), frontend })
    }

    fn network(&self) -> &Network {
        &self.core.node.network
    }

    fn is_node_address(&self, address: IpAddr) -> bool {
        self.core.node.addresses.contains(&address)
    }

    fn node_port_addresses(&self) -> &[IpNet] {
        &self.core.node.node_port_addresses
    }

    fn serves_loopback(&self) -> bool {
        self.core.desired.engines().abilities.get(&EngineKind::Userspace).is_some_and(|ability| ability.usable)
    }

    fn affinity(&self, service: &ServiceKey, client: IpAddr) -> Option<EndpointKey> {
        self.pins.remembered.or_else(|| self.relay?.remembered(service, client))
    }

    fn hashed(&self, _: &Selected, _: Serve) -> Option<EndpointKey> {
        self.pins.hashed
    }

    fn has_guard(&self) -> bool {
        self.guarded
    }
}

/// A packet as the request describes it.
struct Asked {
    source: IpAddr,
    destination: IpAddr,
    protocol: Protocol,
    source_port: u16,
    destination_port: u16,
    in_interface: String,
}

/// Serves one Explain.
pub(super) async fn serve(api: &Api, call: &Call, message: v1::ExplainRequest) -> Result<v1::ExplainResponse, Status> {
    let asked = call.read(|_, at, problems| {
        let mut address = |field: &'static str, text: &str| match scalar::address(text) {
            Ok(address) => Some(address),
            Err(why) => problems.invalid(&at.field(field), why),
        };
        let destination = address("destination", &message.destination);
        let source = match (message.source.as_str(), destination) {
            ("", Some(IpAddr::V4(_))) => Some(Ipv4Addr::UNSPECIFIED.into()),
            ("", Some(IpAddr::V6(_))) => Some(Ipv6Addr::UNSPECIFIED.into()),
            (text, _) => address("source", text),
        };
        let protocol = service::parse_protocol(message.protocol, &at.field("protocol"), problems);
        let source_port = scalar::port(message.source_port, &at.field("source_port"), problems);
        let destination_port = scalar::port(message.destination_port, &at.field("destination_port"), problems);
        let in_interface = scalar::text(message.in_interface, 15, &at.field("in_interface"), problems);
        let (source, destination) = (source?, destination?);
        if Family::of(source) != Family::of(destination) {
            return problems.invalid(&at.field("destination"), "is of another address family than `source`");
        }
        if destination_port == Some(0) {
            return problems
                .invalid(&at.field("destination_port"), "is missing; give the port that the client connects to");
        }
        Some(Asked {
            source,
            destination,
            protocol: protocol?,
            source_port: source_port?,
            destination_port: destination_port?,
            in_interface: in_interface?,
        })
    })?;
    let packet = Packet {
        source: asked.source,
        source_port: (asked.source_port != 0).then_some(asked.source_port),
        destination: asked.destination,
        destination_port: asked.destination_port,
        protocol: asked.protocol,
        arrival: match asked.in_interface.as_str() {
            "" if asked.source.is_unspecified() => Arrival::Node,
            "" => Arrival::Unknown,
            name => Arrival::Interface(name),
        },
    };
    let guarded = api.access.net_admin;
    let relay = api.relay.as_deref();
    let look = |pins| {
        api.control.read(|core| {
            let explanation = explain(&Programmed { core, guarded, relay, pins }, &packet);
            (explanation, core.programmed_revision())
        })
    };
    let (mut explanation, mut revision) = look(Pins::default());
    let pins = pins(api, &explanation, &asked).await;
    if pins != Pins::default() {
        (explanation, revision) = look(pins);
    }
    if let Some(held) = &explanation.held {
        let key = &held.selected.service.key;
        call.caller.may_read(&key.owner, "").map_err(|rejection| call.refused(Some(key.clone()), &rejection))?;
    }
    let mut answer = response(&explanation, revision);
    if let Some(held) = &explanation.held {
        answer.steps.extend(in_kernel(api, held, &asked).await);
    }
    Ok(answer)
}

/// Asks the engine of the kernel that serves the packet what it binds it to.
async fn pins(api: &Api, explanation: &Explanation, asked: &Asked) -> Pins {
    let (Some(held), Some(engine), Some(serve)) = (&explanation.held, explanation.engine, explanation.serve) else {
        return Pins::default();
    };
    let selected = &held.selected;
    let affinity = selected.service.definition.client_affinity.as_ref();
    let hashes = matches!(selected.algorithm, Algorithm::Sh | Algorithm::Mh | Algorithm::Dh);
    if engine == EngineKind::Userspace || (affinity.is_none() && !hashes) {
        return Pins::default();
    }
    let client = affinity.map(|affinity| affinity_client(affinity, asked.source));
    let flow = hashes.then_some(Hashed {
        serve,
        source: asked.source,
        source_port: (asked.source_port != 0).then_some(asked.source_port),
        destination: asked.destination,
        destination_port: asked.destination_port,
    });
    // An engine that does not answer binds nothing that could be told.
    api.control.pins(engine, Arc::clone(selected), client, flow).await.unwrap_or_default()
}

/// Objects shown of one lane; more are counted.
const OBJECTS: usize = 20;

/// Which objects decide, as the kernel has them at this moment, and where they are not what was programmed.
async fn in_kernel(api: &Api, held: &Held, asked: &Asked) -> Vec<v1::explain_response::Step> {
    let place =
        held.selected.service.definition.frontends.get(held.frontend as usize).map(|frontend| match frontend.at {
            At::Address(address) => Place::Address(address),
            At::NodePort(_) => Place::Node(Family::of(asked.destination)),
        });
    let at = place.map(|place| (place, asked.destination_port));
    let view = api.control.view(held.selected.service.key.clone(), at).await;
    let step = |outcome: String| v1::explain_response::Step { stage: "kernel".to_owned(), outcome };
    let lanes = match view {
        Ok(lanes) => lanes,
        Err(error) => return vec![step(format!("could not be read back: {error}"))],
    };
    let mut steps = Vec::new();
    for (lane, seen) in lanes {
        let (wrong, right): (Vec<_>, Vec<_>) = seen.into_iter().partition(|object| object.wrong.is_some());
        for Seen { object, wrong } in wrong {
            let how = wrong.unwrap_or_default();
            steps.push(step(format!("WARNING {lane}: {object}: {how}; what is said above may not hold")));
        }
        let more = right.len().saturating_sub(OBJECTS);
        steps.extend(right.into_iter().take(OBJECTS).map(|object| step(format!("{lane}: {}", object.object))));
        if more > 0 {
            steps.push(step(format!("{lane}: and {more} more objects of this service, as programmed")));
        }
    }
    steps
}

fn response(explanation: &Explanation, revision: Revision) -> v1::ExplainResponse {
    use v1::explain_response::{Candidate, Step, Verdict as Told};
    let verdict = match explanation.verdict {
        Verdict::NotOurs => Told::NotOurs,
        Verdict::Forwarded => Told::Forwarded,
        Verdict::Rejected => Told::Rejected,
        Verdict::Dropped => Told::Dropped,
    };
    let steps = explanation.steps.iter();
    let candidates = explanation.candidates.iter();
    let key = explanation.held.as_ref().map(|held| &held.selected.service.key);
    v1::ExplainResponse {
        verdict: verdict.into(),
        steps: steps.map(|step| Step { stage: step.stage.to_string(), outcome: step.outcome.clone() }).collect(),
        owner: key.map(|key| key.owner.to_string()).unwrap_or_default(),
        service: key.map(|key| key.name.to_string()).unwrap_or_default(),
        frontend: explanation.held.as_ref().map(|held| held.frontend).unwrap_or_default(),
        candidates: candidates
            .map(|candidate| Candidate {
                endpoint: Some(endpoint::message(&candidate.endpoint)),
                probability: candidate.probability,
                why_not: candidate.why_not.clone().unwrap_or_default(),
                pinned: candidate.pinned,
            })
            .collect(),
        source_nat: explanation.source_nat.is_some_and(vipd_model::source::NatReason::translates),
        source_nat_reason: explanation.source_nat.map(|reason| reason.to_string()).unwrap_or_default(),
        engine: engine::message(explanation.engine).into(),
        revision: revision.0,
    }
}
