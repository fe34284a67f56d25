//! Prints services and destinations much as `ipvsadm -Ln` does; with `--stats`, what went through them.

use ipvs_rs::{Forwarding, Ipvs, ServiceFlags, Stats, TunnelKind};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let stats = std::env::args().any(|argument| argument == "--stats");
    let mut ipvs = Ipvs::open()?;
    let info = ipvs.info()?;
    println!("IP Virtual Server version {} (size={})", info.version, info.connection_table_size);
    for entry in ipvs.table()? {
        let service = entry.service.service;
        print!("{} {}", service.key, service.scheduler);
        if service.flags.contains(ServiceFlags::PERSISTENT) {
            print!(" persistent {} {}", service.timeout.as_secs(), service.netmask);
        }
        if let Some(engine) = service.persistence_engine {
            print!(" engine {engine}");
        }
        if service.flags.contains(ServiceFlags::ONE_PACKET) {
            print!(" one-packet");
        }
        println!();
        show(stats, &entry.service.stats);
        for entry in entry.destinations {
            let (destination, now) = (entry.destination, entry.connections);
            println!(
                "  -> {:<30} {:<14} weight {:<6} active {:<6} inactive {}",
                destination.key.to_string(),
                method(destination.forwarding),
                destination.weight,
                now.active,
                now.inactive
            );
            show(stats, &entry.stats);
        }
    }
    for entry in ipvs.daemons()? {
        println!("{} daemon on {}, id {}", entry.daemon.role, entry.daemon.interface, entry.daemon.sync_id);
    }
    Ok(())
}

fn show(wanted: bool, stats: &Stats) {
    if wanted {
        let Stats { connections, packets_in, packets_out, bytes_in, bytes_out, .. } = stats;
        println!("     {connections} connections, in {packets_in} ({bytes_in} B), out {packets_out} ({bytes_out} B)");
    }
}

fn method(forwarding: Forwarding) -> String {
    match forwarding {
        Forwarding::Masquerade => "masquerade".into(),
        Forwarding::LocalNode => "local".into(),
        Forwarding::DirectRoute => "route".into(),
        Forwarding::Tunnel(tunnel) => match tunnel.kind {
            TunnelKind::Ipip => "ipip".into(),
            TunnelKind::Gre => "gre".into(),
            TunnelKind::Gue { port } => format!("gue:{port}"),
            TunnelKind::Other { number, .. } => format!("tunnel {number}"),
        },
        Forwarding::Bypass => "bypass".into(),
        Forwarding::Other(number) => format!("method {number}"),
    }
}
