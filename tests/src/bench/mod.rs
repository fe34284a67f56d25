//! The bench of the engines beside the real kube-proxy, in one run on one machine: `make bench`, docs/performance.md.
//!
//! Every subject has a lab of its own and is loaded, changed and restarted there, one after the other. Their rules then
//! stay, and connections are timed through all the labs in turn, so that a busy second hits everybody alike. Processor
//! seconds are the steadier figure; wall times hold what the machine did besides. Nothing is asserted of a figure.
//!
//! * [`scene`]: the services, and the hosts that answer for them.
//! * [`subject`]: what is measured, with [`kube_proxy`] and [`vipd`] as the two kinds; [`cluster`] feeds the first.
//! * [`gauge`]: processor time and memory of a process and its children.
//! * [`connect`]: what a client sees.
//! * [`report`]: the tables.

pub mod cluster;
pub mod connect;
pub mod gauge;
pub mod kube_proxy;
pub mod report;
pub mod scene;
pub mod subject;
pub mod vipd;

use std::env;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};

use cluster::Cluster;
use connect::Probe;
use kube_proxy::{KubeProxy, Mode};
use report::Row;
use scene::Size;
use subject::{Figures, Subject, What};
use vipd::Vipd;

use crate::conformance::Variant;
use crate::conformance::subject::VARIANTS;

/// Runs it: sizes (`10000x5`, or `all`) from the command line or `VIPD_BENCH_SIZES`, subjects that contain one of the
/// words of `VIPD_BENCH_SUBJECTS`.
///
/// # Errors
/// When something cannot be measured; a peer that is not built is said and left out.
pub fn run() -> Result<ExitCode> {
    let words: Vec<String> = env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let words = if words.is_empty() { env::var("VIPD_BENCH_SIZES").unwrap_or_default() } else { words.join(",") };
    let sizes = if words == "all" { Size::ALL.to_vec() } else { Size::parse_list(&words)? };
    let mut cluster = match Cluster::start() {
        Ok(cluster) => Some(cluster),
        Err(error) => {
            println!("SKIPPED: kube-proxy beside us: {error:#}: run tests/peers-k8s/build.sh\n");
            None
        }
    };
    let probe = Probe::new()?;
    for size in sizes {
        let rows = measure(size, cluster.as_mut().filter(|_| size.beside_peers), &probe)?;
        println!("{}", report::table(size, &rows));
    }
    Ok(ExitCode::SUCCESS)
}

/// All subjects at one size.
fn measure(size: Size, cluster: Option<&mut Cluster>, probe: &Probe) -> Result<Vec<Row>> {
    let mut held: Vec<(Box<dyn Subject>, Figures)> = Vec::new();
    if let Some(cluster) = cluster {
        cluster.declare(size)?;
        for mode in Mode::ALL {
            if wanted(mode.name()) && mode.can(size) {
                let subject = KubeProxy::new(cluster, mode, size)?;
                held.push(figures(Box::new(subject), size)?);
            }
        }
    }
    for variant in VARIANTS {
        if wanted(&format!("vipd {}", variant.name)) && can(&variant, size) {
            match Vipd::new(variant, size) {
                Ok(subject) => held.push(figures(Box::new(subject), size)?),
                Err(error) => println!("SKIPPED: vipd {}: {error:#}\n", variant.name),
            }
        }
    }
    if held.is_empty() {
        bail!("nobody to measure: VIPD_BENCH_SUBJECTS names none");
    }
    let scenes: Vec<_> = held.iter().map(|(subject, _)| subject.scene()).collect();
    let times = probe.times(&scenes, size)?;
    let rates = probe.rates(&scenes, size)?;
    let mut rows = vec![Row::direct(&times.direct), Row::tracked(&times.tracked)];
    for (at, (subject, figures)) in held.iter().enumerate() {
        rows.push(Row { name: subject.name(), figures: Some(figures.clone()), times: times.of[at], rate: rates[at] });
    }
    Ok(rows)
}

/// What a subject itself costs, in the order of its life.
fn figures(mut subject: Box<dyn Subject>, size: Size) -> Result<(Box<dyn Subject>, Figures)> {
    let name = subject.name();
    eprintln!("{size}: {name}");
    let load = subject.load().with_context(|| format!("loading {name}"))?;
    eprintln!("  load {load:?}");
    let endpoint = subject.change(What::Endpoint).with_context(|| format!("changing {name}"))?;
    let service = subject.change(What::Service).with_context(|| format!("changing {name}"))?;
    let memory = subject.memory()?;
    eprintln!("  +1 endpoint {:.2} ms, +1 service {:.2} ms, {memory:?}", endpoint.median(), service.median());
    let restart = subject.restart().with_context(|| format!("restarting {name}"))?;
    eprintln!("  restart {restart:?}");
    // The rules stay; the process would only disturb the others.
    subject.stop()?;
    Ok((subject, Figures { load, endpoint, service, restart, memory }))
}

fn wanted(name: &str) -> bool {
    let words = env::var("VIPD_BENCH_SUBJECTS").unwrap_or_default();
    words.is_empty() || words.split(',').any(|word| name.contains(word))
}

/// What would only be waited for: iptables by its nft back end commits no such number of rules in reasonable time.
fn can(variant: &Variant, size: Size) -> bool {
    variant.name != "iptables-nft" || size.services <= 10_000
}
