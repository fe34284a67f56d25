//! The series, by name.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, NoLabelSet};
use prometheus_client::metrics::MetricType;
use vipd_engine::Counters;

use super::snapshot::{Node, Process, Snapshot};
use crate::reconcile::core::LATENCY_BUCKETS;

/// Writes series one after the other.
struct Writer<'a>(DescriptorEncoder<'a>);

impl Writer<'_> {
    fn gauge(&mut self, name: &str, help: &str, value: impl Into<f64>) -> fmt::Result {
        self.0.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value.into())
    }

    /// `_total` is added to the name by the format.
    fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        metric.encode_counter::<NoLabelSet, _, u64>(&value, None)
    }

    fn gauges<S: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        values: impl Iterator<Item = (S, u64)>,
    ) -> fmt::Result {
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in values {
            metric.encode_family(&labels)?.encode_gauge(&float(value))?;
        }
        Ok(())
    }

    fn counters<S: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        values: impl Iterator<Item = (S, u64)>,
    ) -> fmt::Result {
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, value) in values {
            metric.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&value, None)?;
        }
        Ok(())
    }
}

/// Exact up to 2⁵³; Prometheus itself keeps all values as floats.
#[expect(clippy::cast_precision_loss, reason = "Prometheus keeps floats")]
fn float(value: u64) -> f64 {
    value as f64
}

impl Collector for Snapshot {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut writer = Writer(encoder);
        node(&mut writer, &self.node)?;
        work(&mut writer, &self.node)?;
        api(&mut writer, self)?;
        proxy(&mut writer, self)?;
        process(&mut writer, &self.process)?;
        services(&mut writer, self)
    }
}

fn node(writer: &mut Writer<'_>, node: &Node) -> fmt::Result {
    let version = [("version", env!("CARGO_PKG_VERSION"))];
    writer.gauges("vipd_build_info", "Version; the value is 1", [(version, 1)].into_iter())?;
    writer.gauge("vipd_start_time_seconds", "When this process began to serve", float(node.started.0) / 1_000.0)?;
    writer.gauge("vipd_ready", "1 once the stored state has been programmed", u8::from(node.ready))?;
    writer.gauge("vipd_healthy", "What /healthz says: 1 for 200, 0 for 503", u8::from(node.healthy))?;
    writer.gauge("vipd_holding", "1 while unknown objects of ours in the kernel are kept", u8::from(node.holding))?;
    writer.gauge(
        "vipd_store_writable",
        "0 if changes are refused because they cannot be stored",
        u8::from(node.store_writable),
    )?;
    let help = "0 if what is stored does not get to the disk: a power cut would lose it";
    writer.gauge("vipd_store_synced", help, u8::from(node.store_synced))?;
    let (services, flows) = node.drained;
    writer.gauge("vipd_draining_services", "Services that moved to another engine and left flows", float(services))?;
    writer.gauge("vipd_draining_flows", "Flows still carried by the engine that was left", float(flows))?;
    writer.gauge("vipd_revision", "Newest accepted change", float(node.revision))?;
    let help = "Newest change before which nothing is pending; failed services do not hold it back";
    writer.gauge("vipd_programmed_revision", help, float(node.programmed_revision))?;
    let stalled = node.stalled_since.map_or(0, |since| since.0);
    writer.gauge(
        "vipd_stalled_since_seconds",
        "Since when an engine has not answered; 0: all do",
        float(stalled) / 1_000.0,
    )?;
    writer.gauge("vipd_owners", "Owners known", float(node.owners as u64))?;
    writer.gauge("vipd_expired_leases", "Owners whose lease has run out", float(node.expired_leases as u64))?;
    writer.gauge(
        "vipd_findings",
        "What an operator should look at, as GetInfo lists it",
        float(node.findings as u64),
    )?;
    writer.gauge("vipd_endpoints", "Declared endpoints", float(node.endpoints))?;
    let states = node.states.iter().map(|(state, count)| ([("state", *state)], *count));
    writer.gauges("vipd_services", "Declared services by state", states)?;
    let engines = node.engines.iter().map(|(engine, count)| ([("engine", engine.to_string())], *count));
    writer.gauges("vipd_engine_services", "Services by the engine that serves them", engines)
}

fn work(writer: &mut Writer<'_>, node: &Node) -> fmt::Result {
    let figures = &node.figures;
    writer.counter("vipd_commands", "Writes taken in", figures.commands)?;
    writer.counter("vipd_commands_refused", "Of those, refused", figures.refused)?;
    writer.counter("vipd_store_commits", "Transactions of the store", figures.commits)?;
    writer.counter("vipd_batches", "Batches handed to engines", figures.batches)?;
    writer.counter("vipd_services_programmed", "Services programmed", figures.programmed)?;
    writer.counter(
        "vipd_programming_failures",
        "Attempts to program a service that failed",
        figures.failed_attempts,
    )?;
    writer.counter("vipd_drifts", "Objects found missing, changed or left over", figures.drifts)?;
    writer.counter("vipd_repairs", "Repairs made", figures.repairs)?;
    writer.counter("vipd_events", "Lines of the journal", node.events)?;
    let bounds = LATENCY_BUCKETS.iter().copied().chain([f64::INFINITY]);
    let buckets: Vec<(f64, u64)> = bounds.zip(figures.latency).collect();
    let count = figures.latency.iter().sum();
    let help = "From acceptance of a change to its being in force";
    let mut metric = writer.0.encode_descriptor("vipd_programming_seconds", help, None, MetricType::Histogram)?;
    metric.encode_histogram::<NoLabelSet>(figures.latency_sum, count, &buckets, None)
}

fn api(writer: &mut Writer<'_>, snapshot: &Snapshot) -> fmt::Result {
    writer.gauge("vipd_api_connections", "Connections to the API", float(snapshot.connections as u64))?;
    let help = "Connections closed at once because limits.connections were there";
    writer.counter("vipd_api_connections_turned_away", help, snapshot.turned_away as u64)?;
    writer.gauge("vipd_api_streams", "Watch and Events streams", float(snapshot.streams as u64))?;
    writer.gauge("vipd_api_intake_bytes", "Bytes of requests being received", float(snapshot.intake_bytes as u64))
}

fn proxy(writer: &mut Writer<'_>, snapshot: &Snapshot) -> fmt::Result {
    let totals = &snapshot.proxy;
    let shed = [([("what", "connections")], totals.shed_descriptors), ([("what", "datagrams")], totals.shed_sessions)];
    writer.counters(
        "vipd_proxy_shed",
        "New flows turned away for lack of descriptors or sessions",
        shed.into_iter(),
    )?;
    writer.gauge(
        "vipd_proxy_shedding",
        "1 while new flows are turned away",
        u8::from(totals.shedding_for_ms.is_some()),
    )?;
    writer.counter("vipd_proxy_unknown", "Connections for an address that no service has", totals.unknown)?;
    writer.gauge("vipd_proxy_descriptors", "File descriptors in use for flows", float(totals.descriptors))?;
    writer.gauge("vipd_proxy_descriptors_max", "Of so many", float(totals.descriptor_limit))
}

fn process(writer: &mut Writer<'_>, process: &Process) -> fmt::Result {
    let gauges = [
        ("process_open_fds", "File descriptors in use", process.open_fds),
        ("process_max_fds", "File descriptors allowed", process.max_fds),
        ("process_resident_memory_bytes", "Resident memory", process.resident_bytes),
        ("vipd_conntrack_entries", "Flows that the kernel tracks", process.conntrack),
        ("vipd_conntrack_entries_max", "Of so many", process.conntrack_max),
    ];
    gauges.into_iter().try_for_each(|(name, help, value)| match value {
        Some(value) => writer.gauge(name, help, float(value)),
        None => Ok(()),
    })
}

/// What one kind of series reads from a service's counters.
type Read = fn(&Counters) -> Option<u64>;

fn services(writer: &mut Writer<'_>, snapshot: &Snapshot) -> fmt::Result {
    let of = |read: Read| {
        snapshot.counters.iter().filter_map(move |counted| {
            let labels = [("owner", counted.key.owner.to_string()), ("name", counted.key.name.to_string())];
            Some((labels, read(&counted.total)?))
        })
    };
    writer.gauges("vipd_service_active", "Flows now", of(|c| c.active))?;
    let kinds: [(&str, &str, Read); 6] = [
        ("vipd_service_connections", "Flows", |c| c.connections),
        ("vipd_service_received_bytes", "Payload from clients", |c| c.bytes_in),
        ("vipd_service_sent_bytes", "Payload to clients", |c| c.bytes_out),
        ("vipd_service_received_packets", "Packets from clients", |c| c.packets_in),
        ("vipd_service_sent_packets", "Packets to clients", |c| c.packets_out),
        ("vipd_service_refused", "Flows that got no endpoint", |c| c.refused),
    ];
    kinds.into_iter().try_for_each(|(name, help, read)| writer.counters(name, help, of(read)))
}
