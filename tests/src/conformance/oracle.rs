//! Explain as the oracle: what it says of a packet, against what packets did.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use vipd_proto::v1::explain_response::Verdict;
use vipd_proto::v1::scheduler::Algorithm;
use vipd_proto::v1::{ExplainRequest, ExplainResponse};

use super::world::{Vantage, World, say};
use crate::traffic::{Outcome, Proto, Tally};

/// A refusal is immediate. One that takes this long (the first SYN retransmission, RFC 6298) followed a lost packet.
const AT_ONCE: Duration = Duration::from_secs(1);
/// How long silence must last to be silence: past the first SYN retransmission.
const SILENCE: Duration = Duration::from_millis(1200);

impl World {
    /// Asks Explain about a new flow.
    pub fn explain(&self, from: Vantage, to: (IpAddr, u16)) -> Result<ExplainResponse> {
        self.explain_source(self.address(from), from, to)
    }

    /// Asks Explain about a new flow from one of several source addresses.
    pub fn explain_source(&self, source: IpAddr, from: Vantage, to: (IpAddr, u16)) -> Result<ExplainResponse> {
        let request = ExplainRequest {
            source: source.to_string(),
            destination: to.0.to_string(),
            protocol: self.protocol().into(),
            destination_port: to.1.into(),
            in_interface: interface(from),
            ..Default::default()
        };
        self.api.explain(request).map_err(|status| anyhow!("Explain {from:?} to {to:?}: {}", say(&status)))
    }

    /// Asks Explain what must happen, sends `count` new flows, and compares. Returns what the packets did.
    ///
    /// # Errors
    /// Where the two differ.
    pub fn check(&self, from: Vantage, to: (IpAddr, u16), count: usize) -> Result<Tally> {
        let said = self.explain(from, to)?;
        let tally = match said.verdict() {
            Verdict::Dropped => self.from(from).patience(SILENCE).ask_many(count.min(1), to)?,
            _ => self.from(from).ask_many(count, to)?,
        };
        self.compare(&said, from, &tally).with_context(|| format!("from {from:?} to {to:?}"))?;
        Ok(tally)
    }

    /// What must be so under this verdict, whatever Explain says of the rest: for cases that know the answer.
    pub fn check_is(&self, from: Vantage, to: (IpAddr, u16), verdict: Verdict) -> Result<()> {
        let said = self.explain(from, to)?;
        ensure!(said.verdict() == verdict, "Explain {from:?} to {to:?}: expected {verdict:?}, says {said:?}");
        self.check(from, to, 3).map(|_| ())
    }

    /// Forwarded, and spread over just these back ends, by Explain and by traffic.
    pub fn check_over(&self, from: Vantage, to: (IpAddr, u16), names: &[&str]) -> Result<()> {
        let tally = self.check(from, to, names.len() * 12)?;
        for name in ["b1", "b2", "b3"] {
            let expected = names.contains(&name);
            let seen = tally.count(name) > 0;
            ensure!(expected == seen, "from {from:?} to {to:?}: expected {names:?}, counted {tally}");
        }
        Ok(())
    }

    fn compare(&self, said: &ExplainResponse, from: Vantage, tally: &Tally) -> Result<()> {
        match said.verdict() {
            Verdict::Forwarded => self.compare_spread(said, from, tally),
            // The node's own UDP senders hear of a filter from `send` itself, whatever it does with the packet.
            Verdict::Rejected | Verdict::Dropped if self.proto == Proto::Udp && from == Vantage::Node => {
                let ended = tally.count("refused") + tally.count("forbidden") + tally.count("timed out");
                ensure!(ended == tally.total(), "Explain says {:?}, counted {tally}", said.verdict());
                Ok(())
            }
            Verdict::Rejected => {
                tally.is_all("refused").context("Explain says REJECTED")?;
                ensure!(tally.slowest() < AT_ONCE, "refused only after {:?}", tally.slowest());
                Ok(())
            }
            Verdict::Dropped => tally.is_all(Outcome::TimedOut.word()).context("Explain says DROPPED"),
            Verdict::NotOurs => {
                let ours = self.servers.iter().map(|server| tally.count(server.name())).sum::<u64>();
                ensure!(ours == 0, "Explain says NOT_OURS, yet endpoints answered: {tally}");
                Ok(())
            }
            Verdict::Unspecified => bail!("Explain gave no verdict: {said:?}"),
        }
    }

    fn compare_spread(&self, said: &ExplainResponse, from: Vantage, tally: &Tally) -> Result<()> {
        let mut shares: Vec<(&str, f64)> = Vec::new();
        for candidate in &said.candidates {
            ensure!(candidate.probability == 0.0 || candidate.why_not.is_empty(), "both: {candidate:?}");
            let address = candidate.endpoint.as_ref().map(|endpoint| endpoint.address.as_str()).unwrap_or_default();
            let server = self.servers.iter().find(|server| server.address().ip().to_string() == address);
            match server {
                Some(server) => shares.push((server.name(), candidate.probability)),
                None => ensure!(candidate.probability == 0.0, "Explain forwards to a stranger: {candidate:?}"),
            }
        }
        let sum: f64 = shares.iter().map(|(_, share)| share).sum();
        ensure!((sum - 1.0).abs() < 1e-6, "probabilities sum to {sum}: {:?}", said.candidates);
        let algorithm = self.api.get(&said.service).map_err(|status| anyhow!(say(&status)))?;
        match algorithm.status.unwrap_or_default().algorithm() {
            _ if said.candidates.iter().any(|candidate| candidate.pinned) => tally.is_drawn_from(&shares)?,
            Algorithm::Rr | Algorithm::Wrr => tally.is_in_turn(&shares)?,
            Algorithm::Random => tally.is_drawn_from(&shares)?,
            // What depends on load has its own cases; here only: nobody else answers.
            _ => {
                let answered: u64 = shares.iter().filter(|share| share.1 > 0.0).map(|share| tally.count(share.0)).sum();
                ensure!(answered == tally.total(), "Explain says {shares:?}, counted {tally}");
            }
        }
        self.compare_source(said, from, tally)
    }

    /// The source that the back ends saw: the client's own, unless translated. An endpoint that reaches itself never
    /// sees itself, or its answer would not come back through the node.
    fn compare_source(&self, said: &ExplainResponse, from: Vantage, tally: &Tally) -> Result<()> {
        if from == Vantage::Node {
            return Ok(());
        }
        let own = self.address(from);
        for (name, seen) in tally.sources() {
            let hairpin = self.servers.iter().any(|server| server.name() == name && server.address().ip() == own);
            let translated = said.source_nat || hairpin;
            ensure!(
                (*seen == own) != translated,
                "source NAT: {} ({}); {name} saw {seen} of client {own}",
                said.source_nat,
                said.source_nat_reason
            );
        }
        Ok(())
    }
}

/// Where packets from a vantage point come in on the node; empty for its own.
fn interface(from: Vantage) -> String {
    match from {
        Vantage::Client => "client".to_owned(),
        Vantage::Neighbour => "neighbour".to_owned(),
        Vantage::Node => String::new(),
        Vantage::Backend(n) => format!("b{}", n + 1),
    }
}
