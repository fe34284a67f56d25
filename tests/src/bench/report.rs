//! The tables: one for each size, a row for each subject, and each row of ours beside kube-proxy's of the same kind.

use std::fmt::Write as _;
use std::time::Duration;

use super::connect::Times;
use super::scene::Size;
use super::subject::Figures;

/// A subject's row.
pub struct Row {
    /// The subject's name.
    pub name: String,
    /// What it costs; absent where there is nobody.
    pub figures: Option<Figures>,
    /// What its clients see.
    pub times: Times,
    /// Connections a second.
    pub rate: f64,
}

impl Row {
    /// Nobody at all.
    #[must_use]
    pub fn direct(times: &Times) -> Self {
        Self { name: "(no rules)".to_owned(), figures: None, times: *times, rate: f64::NAN }
    }

    /// Nobody, but connections are tracked.
    #[must_use]
    pub fn tracked(times: &Times) -> Self {
        Self { name: "(no rules, NAT)".to_owned(), ..Self::direct(times) }
    }
}

/// The table of one size, in Markdown.
#[must_use]
pub fn table(size: Size, rows: &[Row]) -> String {
    let mut text = format!("### {size}\n\n");
    text += "| | load, wall / CPU | +1 endpoint, p50 / p99 | +1 service, p50 / p99 | restart, wall / CPU \
             | resident / peak | connect: first / middle / last / no service's | connections/s |\n";
    text += "|---|---|---|---|---|---|---|---|\n";
    for row in rows {
        let own = row.figures.as_ref().map_or_else(|| " | | | | ".to_owned(), costs);
        let rate = if row.rate.is_nan() { String::new() } else { format!("{:.0}", row.rate) };
        let _ = writeln!(text, "| {} | {own} | {} | {rate} |", row.name, seen(&row.times));
    }
    let pairs: Vec<String> = rows.iter().filter_map(|row| ratios(row, rows)).collect();
    if !pairs.is_empty() {
        text += "\n| how many times less than kube-proxy | load, CPU | +1 endpoint, p50 / p99 | +1 service, p50 \
                 | restart, wall / CPU | resident |\n|---|---|---|---|---|---|\n";
        text += &pairs.concat();
    }
    text + "\n"
}

fn costs(figures: &Figures) -> String {
    let Figures { load, endpoint, service, restart, memory } = figures;
    format!(
        "{} / {} | {} / {} | {} / {} | {} / {} | {:.0} / {:.0} MiB",
        seconds(load.wall),
        seconds(load.cpu),
        milliseconds(endpoint.median()),
        milliseconds(endpoint.p99()),
        milliseconds(service.median()),
        milliseconds(service.p99()),
        seconds(restart.wall),
        seconds(restart.cpu),
        memory.resident,
        memory.peak
    )
}

fn seconds(time: Duration) -> String {
    format!("{:.2} s", time.as_secs_f64())
}

fn milliseconds(time: f64) -> String {
    if time < 10.0 { format!("{time:.2} ms") } else { format!("{time:.0} ms") }
}

fn seen(times: &Times) -> String {
    let word = |time: &f64| if *time > 0.0 { format!("{time:.1}") } else { "–".to_owned() };
    format!("{} µs", times.iter().map(word).collect::<Vec<_>>().join(" / "))
}

/// vipd's row as so many times less than kube-proxy's of the same kind.
fn ratios(row: &Row, rows: &[Row]) -> Option<String> {
    let kind = row.name.strip_prefix("vipd ")?;
    let peer = rows.iter().find(|other| other.name == format!("kube-proxy {kind}"))?;
    let (ours, theirs) = (row.figures.as_ref()?, peer.figures.as_ref()?);
    let times = |theirs: f64, ours: f64| format!("{:.1}", theirs / ours);
    let span = |theirs: Duration, ours: Duration| times(theirs.as_secs_f64(), ours.as_secs_f64());
    Some(format!(
        "| {kind} | {} | {} / {} | {} | {} / {} | {} |\n",
        span(theirs.load.cpu, ours.load.cpu),
        times(theirs.endpoint.median(), ours.endpoint.median()),
        times(theirs.endpoint.p99(), ours.endpoint.p99()),
        times(theirs.service.median(), ours.service.median()),
        span(theirs.restart.wall, ours.restart.wall),
        span(theirs.restart.cpu, ours.restart.cpu),
        times(theirs.memory.resident, ours.memory.resident)
    ))
}
