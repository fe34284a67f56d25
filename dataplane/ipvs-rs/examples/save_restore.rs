//! `save` prints the table, a line for a service and one for each of its destinations; `restore` makes the table what it
//! is told, by changing only what is different: nothing that stays is touched, nothing is flushed.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{self, Read as _};
use std::net::SocketAddr;
use std::time::Duration;

use ipvs_rs::{
    Batch, Destination, DestinationKey, Family, Forwarding, Ipvs, Netmask, Service, ServiceFlags, ServiceKey, Tunnel,
    TunnelKind,
};

type Table = BTreeMap<ServiceKey, (Service, BTreeMap<DestinationKey, Destination>)>;

fn main() -> Result<(), Box<dyn Error>> {
    let mut ipvs = Ipvs::open()?;
    match std::env::args().nth(1).as_deref() {
        Some("save") => save(&read(&mut ipvs)?),
        Some("restore") => {
            let mut text = String::new();
            io::stdin().read_to_string(&mut text)?;
            let batch = difference(&read(&mut ipvs)?, &parse(&text)?)?;
            let report = ipvs.run(&batch)?;
            report.refusals.iter().for_each(|refusal| eprintln!("{refusal}"));
            report.into_result()?;
            eprintln!("{} changes", batch.len());
        }
        _ => return Err("say save or restore".into()),
    }
    Ok(())
}

fn read(ipvs: &mut Ipvs) -> Result<Table, Box<dyn Error>> {
    let entries = ipvs.settled_table(10)?.into_iter().map(|entry| {
        let destinations = entry.destinations.iter().map(|entry| (entry.destination.key, entry.destination));
        (entry.service.service.key, (entry.service.service, destinations.collect()))
    });
    Ok(entries.collect())
}

fn save(table: &Table) {
    for (service, destinations) in table.values() {
        let (flags, seconds) = (service.flags.bits(), service.timeout.as_secs());
        println!("service {} {} {flags} {seconds} {}", key(&service.key), service.scheduler, service.netmask);
        for destination in destinations.values() {
            let Destination { key, weight, upper_threshold, lower_threshold, .. } = destination;
            println!("destination {key} {} {weight} {upper_threshold} {lower_threshold}", method(destination));
        }
    }
}

/// What makes the table `from` the table `to`.
fn difference(from: &Table, to: &Table) -> Result<Batch, Box<dyn Error>> {
    let (mut batch, none) = (Batch::new(), BTreeMap::new());
    for key in from.keys().filter(|key| !to.contains_key(key)) {
        batch.delete_service(key);
    }
    for (key, (service, wanted)) in to {
        let there = match from.get(key) {
            None => {
                batch.add_service(service)?;
                &none
            }
            Some((old, there)) => {
                if old != service {
                    batch.set_service(service)?;
                }
                there
            }
        };
        for (at, destination) in wanted {
            match there.get(at) {
                None => batch.add_destination(key, destination)?,
                Some(old) if old != destination => batch.set_destination(key, destination)?,
                Some(_) => {}
            }
        }
        for at in there.keys().filter(|at| !wanted.contains_key(at)) {
            batch.delete_destination(key, at);
        }
    }
    Ok(batch)
}

fn parse(text: &str) -> Result<Table, Box<dyn Error>> {
    let mut table = Table::new();
    let mut last = None;
    for line in text.lines() {
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["service", kind, at, scheduler, flags, seconds, netmask] => {
                let mut service = Service::new(parse_key(kind, at)?, scheduler.parse()?);
                service.flags = ServiceFlags::from_bits_retain(flags.parse()?);
                service.timeout = Duration::from_secs(seconds.parse()?);
                service.netmask = match netmask.strip_prefix('/') {
                    Some(bits) => Netmask::Prefix(bits.parse()?),
                    None if netmask == "host" => Netmask::Host,
                    None => Netmask::Bits(netmask.parse()?),
                };
                table.insert(service.key, (service, BTreeMap::new()));
                last = Some(service.key);
            }
            ["destination", at, method, weight, upper, lower] => {
                let destination = Destination::new(at.parse()?)
                    .with_forwarding(parse_method(method)?)
                    .with_weight(weight.parse()?)
                    .with_thresholds(upper.parse()?, lower.parse()?);
                let service = last.and_then(|key| table.get_mut(&key)).ok_or("a destination before any service")?;
                service.1.insert(destination.key, destination);
            }
            _ => return Err(format!("not understood: {line}").into()),
        }
    }
    Ok(table)
}

fn key(key: &ServiceKey) -> String {
    match key {
        ServiceKey::Address { protocol, address, port } => format!("{protocol} {}", SocketAddr::new(*address, *port)),
        ServiceKey::Fwmark { mark, family: Family::V4 } => format!("mark4 {mark}"),
        ServiceKey::Fwmark { mark, family: Family::V6 } => format!("mark6 {mark}"),
    }
}

fn parse_key(kind: &str, at: &str) -> Result<ServiceKey, Box<dyn Error>> {
    Ok(match kind {
        "tcp" => ServiceKey::tcp(at.parse()?),
        "udp" => ServiceKey::udp(at.parse()?),
        "sctp" => ServiceKey::sctp(at.parse()?),
        "mark4" => ServiceKey::fwmark(at.parse()?, Family::V4),
        "mark6" => ServiceKey::fwmark(at.parse()?, Family::V6),
        other => return Err(format!("no such kind of service: {other}").into()),
    })
}

fn method(destination: &Destination) -> String {
    match destination.forwarding {
        Forwarding::DirectRoute => "route".into(),
        Forwarding::Tunnel(Tunnel { kind: TunnelKind::Gue { port }, .. }) => format!("gue:{port}"),
        Forwarding::Tunnel(Tunnel { kind: TunnelKind::Gre, .. }) => "gre".into(),
        Forwarding::Tunnel(_) => "ipip".into(),
        _ => "masquerade".into(),
    }
}

fn parse_method(text: &str) -> Result<Forwarding, Box<dyn Error>> {
    let tunnel = |kind| Forwarding::Tunnel(Tunnel { kind, ..Tunnel::default() });
    Ok(match (text, text.strip_prefix("gue:")) {
        ("masquerade", _) => Forwarding::Masquerade,
        ("route", _) => Forwarding::DirectRoute,
        ("ipip", _) => tunnel(TunnelKind::Ipip),
        ("gre", _) => tunnel(TunnelKind::Gre),
        (_, Some(port)) => tunnel(TunnelKind::Gue { port: port.parse()? }),
        _ => return Err(format!("no such way to a destination: {text}").into()),
    })
}
