//! Programming a table, each way in the same kernel: batches, one request a round trip, `ipvsadm -R`; reading it back;
//! one destination more. `cargo bench --bench pipeline [-- SERVICES DESTINATIONS]`; root and IPVS.
//!
//! Each way gets a network namespace of its own: what a removed table leaves behind would slow the next one down. Nothing
//! is asserted about time: kernels and machines differ.

use std::error::Error;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use ipvs_rs::{Batch, Destination, Ipvs, Scheduler, Service, ServiceKey};
use nix::sched::{CloneFlags, unshare};

type Failure = Box<dyn Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let mut sizes = std::env::args().skip(1).filter_map(|argument| argument.parse::<u32>().ok());
    let (services, destinations) = (sizes.next().unwrap_or(5000), sizes.next().unwrap_or(5));
    println!("{services} services with {destinations} destinations each");
    let expected = services as usize * (1 + destinations as usize);

    let (batched, read) = in_namespace(move || {
        let mut ipvs = Ipvs::open()?;
        let begin = Instant::now();
        let batch = fill(services, destinations)?;
        let encoded = begin.elapsed();
        ipvs.run(&batch)?.into_result()?;
        let batched = begin.elapsed();
        println!("batches of 256        {batched:>12.2?}   of which encoding {encoded:.2?}");
        let begin = Instant::now();
        let table = ipvs.table()?;
        let read = begin.elapsed();
        assert_eq!(table.iter().map(|entry| 1 + entry.destinations.len()).sum::<usize>(), expected);
        println!("read back, netlink    {read:>12.2?}");
        let begin = Instant::now();
        let view = ipvs_rs::proc::read()?;
        let quick = begin.elapsed();
        assert_eq!(view.services.iter().map(|service| 1 + service.destinations.len()).sum::<usize>(), expected);
        println!("read back, /proc      {quick:>12.2?}");
        one_more(&mut ipvs, services)?;
        Ok((batched, read))
    })?;
    println!("read back / program   {:>11.1}x", read.as_secs_f64() / batched.as_secs_f64());

    let single = in_namespace(move || {
        let mut ipvs = Ipvs::open()?;
        let begin = Instant::now();
        for number in 0..services {
            ipvs.add_service(&service(number))?;
            for other in 0..destinations {
                ipvs.add_destination(&key(number), &destination(number, other))?;
            }
        }
        Ok(begin.elapsed())
    })?;
    ratio("one request a trip", single, batched);

    match in_namespace(move || ipvsadm(services, destinations, expected)) {
        Ok(peer) => ratio("ipvsadm -R", peer, batched),
        Err(why) => println!("ipvsadm -R            not measured: {why}"),
    }
    Ok(())
}

fn ratio(name: &str, time: Duration, batched: Duration) {
    println!("{name:<21} {time:>12.2?}   {:.1} times the batches'", time.as_secs_f64() / batched.as_secs_f64());
}

/// The same table by the peer, which reads it from its standard input.
fn ipvsadm(services: u32, destinations: u32, expected: usize) -> Result<Duration, Failure> {
    let mut text = String::new();
    for number in 0..services {
        let at = address(number);
        text += &format!("-A -t {at} -s wrr\n");
        for other in 0..destinations {
            text += &format!("-a -t {at} -r {} -m -w 1\n", destination(number, other).key);
        }
    }
    let begin = Instant::now();
    let mut peer = Command::new("ipvsadm").arg("-R").stdin(Stdio::piped()).spawn()?;
    peer.stdin.take().ok_or("no standard input")?.write_all(text.as_bytes())?;
    let status = peer.wait()?;
    let time = begin.elapsed();
    let there: usize = ipvs_rs::proc::read()?.services.iter().map(|service| 1 + service.destinations.len()).sum();
    if !status.success() || there != expected {
        return Err(format!("{status}, {there} of {expected} there").into());
    }
    Ok(time)
}

/// A destination more and less, of services all over the table: from the call to its being in force.
fn one_more(ipvs: &mut Ipvs, services: u32) -> Result<(), Failure> {
    let mut times = Vec::new();
    for round in 0..1000 {
        let number = round * 7919 % services;
        let more = Destination::new(SocketAddr::from(([10, 0, 0, 1], 9999)));
        let begin = Instant::now();
        ipvs.add_destination(&key(number), &more)?;
        times.push(begin.elapsed());
        ipvs.delete_destination(&key(number), &more.key)?;
    }
    times.sort();
    println!("one destination more  {:>12.2?}   p99 {:.2?}", times[times.len() / 2], times[times.len() * 99 / 100]);
    Ok(())
}

fn fill(services: u32, destinations: u32) -> Result<Batch, Failure> {
    let mut batch = Batch::new();
    for number in 0..services {
        batch.add_service(&service(number))?;
        for other in 0..destinations {
            batch.add_destination(&key(number), &destination(number, other))?;
        }
    }
    Ok(batch)
}

fn address(number: u32) -> SocketAddr {
    SocketAddr::new(Ipv4Addr::from_bits(0x0a60_0000 + number).into(), 80)
}

fn key(number: u32) -> ServiceKey {
    ServiceKey::tcp(address(number))
}

fn service(number: u32) -> Service {
    Service::new(key(number), Scheduler::WEIGHTED_ROUND_ROBIN)
}

fn destination(service: u32, number: u32) -> Destination {
    Destination::new(SocketAddr::new(Ipv4Addr::from_bits(0x0a80_0000 + service * 16 + number).into(), 8080))
}

/// Runs in a thread with a network namespace of its own, which is gone afterwards.
fn in_namespace<T: Send + 'static>(inside: impl FnOnce() -> Result<T, Failure> + Send + 'static) -> Result<T, Failure> {
    let run = move || {
        unshare(CloneFlags::CLONE_NEWNET)?;
        // Before it is up a namespace has no table of addresses, and the kernel takes no destination.
        Command::new("ip").args(["link", "set", "lo", "up"]).status()?;
        inside()
    };
    thread::spawn(run).join().map_err(|_| "a panic")?
}
