//! Many at once on a real kernel: batches, lost answers, dumps while others write. As `kernel.rs`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests, outside of a #[test] function")]

mod support;

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use ipvs_rs::message::messages;
use ipvs_rs::table::same_configuration;
use ipvs_rs::{Batch, Destination, DestinationKey, Error, Ipvs, Reason, Request, Scheduler, Service, ServiceKey};
use nix::sys::socket::{MsgFlags, NetlinkAddr, recv, sendto, setsockopt, sockopt};
use support::with_ipvs;

fn key(number: u16) -> ServiceKey {
    let [high, low] = number.to_be_bytes();
    ServiceKey::tcp(SocketAddr::from(([10, 96, high, low], 80)))
}

fn backend(number: u32) -> SocketAddr {
    SocketAddr::new(Ipv4Addr::from_bits(0x0af4_0000 + number).into(), 8080)
}

/// So many services with so many destinations each.
fn fill(services: u16, destinations: u32) -> Batch {
    let mut batch = Batch::new();
    for number in 0..services {
        batch.add_service(&Service::new(key(number), Scheduler::WEIGHTED_ROUND_ROBIN)).unwrap();
        for destination in 0..destinations {
            batch.add_destination(&key(number), &Destination::new(backend(destination))).unwrap();
        }
    }
    batch
}

#[test]
fn a_batch_is_done_but_for_what_is_refused_and_each_refusal_is_told_apart() {
    with_ipvs(|mut ipvs| {
        ipvs.add_service(&Service::new(key(3), Scheduler::ROUND_ROBIN)).unwrap();
        let mut batch = fill(300, 2);
        batch.delete_service(&key(999));
        batch.delete_destination(&key(0), &DestinationKey::new(backend(7)));
        batch.add_destination(&key(0), &Destination::new(backend(5))).unwrap();
        assert_eq!(batch.len(), 903);
        let report = ipvs.run(&batch).unwrap();
        let refused: Vec<_> = report.refusals.iter().map(|refusal| (refusal.index, refusal.reason)).collect();
        assert_eq!(refused, [(9, Reason::ServiceExists), (900, Reason::NoService), (901, Reason::NoDestination)]);
        assert_eq!(report.refusals[1].request, Request::DeleteService(key(999)));
        assert_eq!(report.unanswered, []);
        assert_eq!(ipvs.services().unwrap().len(), 300);
        assert_eq!(ipvs.destinations(&key(0)).unwrap().len(), 3);
        // A refusal as the very last request is both a refusal and the end.
        let mut last = Batch::new();
        last.delete_service(&key(0));
        last.delete_service(&key(0));
        let report = ipvs.run(&last).unwrap();
        assert_eq!(report.refusals.iter().map(|refusal| refusal.index).collect::<Vec<_>>(), [1]);
    });
}

#[test]
fn a_send_full_of_refusals_fits_the_receive_buffer() {
    with_ipvs(|mut ipvs| {
        let mut batch = Batch::new();
        (0..1000).for_each(|number| batch.delete_service(&key(number)));
        let report = ipvs.run(&batch).unwrap();
        assert_eq!((report.refusals.len(), report.unanswered.len()), (1000, 0));
    });
}

#[test]
fn answers_that_are_lost_are_said_and_the_next_call_is_sound() {
    with_ipvs(|mut ipvs| {
        setsockopt(&ipvs, sockopt::RcvBuf, &8192).unwrap();
        let mut batch = Batch::new();
        (0..300).for_each(|number| batch.delete_service(&key(number)));
        batch.add_service(&Service::new(key(1), Scheduler::ROUND_ROBIN)).unwrap();
        let report = ipvs.run(&batch).unwrap();
        let lost: Vec<_> = report.unanswered.iter().map(|unanswered| unanswered.requests.clone()).collect();
        assert_eq!(lost, [0..256, 256..301]);
        assert!(!report.refusals.is_empty() && report.refusals.len() < 300);
        for refusal in &report.refusals {
            assert_eq!(refusal.request, Request::DeleteService(key(refusal.index as u16)));
        }
        assert!(matches!(report.into_result(), Err(Error::AnswerLost(_))));
        // Read back: what was not answered was done all the same.
        assert_eq!(ipvs.service(&key(1)).unwrap().service.key, key(1));
    });
}

#[test]
fn ten_thousand_destinations_of_one_service_are_all_there() {
    with_ipvs(|mut ipvs| {
        assert!(ipvs.run(&fill(1, 10_000)).unwrap().is_clean());
        let mut read: Vec<_> = ipvs.destinations(&key(0)).unwrap().iter().map(|entry| entry.destination.key).collect();
        read.sort();
        assert_eq!(read, (0..10_000).map(|number| backend(number).into()).collect::<Vec<_>>());
        assert_eq!(ipvs_rs::proc::read().unwrap().services[0].destinations.len(), 10_000);
    });
}

/// A message of these numbers and attributes, numbered 0, which no call here waits for.
fn message(kind: u16, flags: u16, command: u8, attributes: &[u8]) -> Vec<u8> {
    let mut bytes = (20 + attributes.len() as u32).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend([command, 1, 0, 0]);
    bytes.extend(attributes);
    bytes
}

#[test]
fn an_unfinished_dump_of_the_socket_does_not_keep_the_next_from_it() {
    with_ipvs(|mut ipvs| {
        const REQUEST: u16 = 0x1;
        const DUMP: u16 = 0x301;
        assert!(ipvs.run(&fill(2000, 0)).unwrap().is_clean());
        let fd = ipvs.as_fd().as_raw_fd();
        let send = |bytes: &[u8]| sendto(fd, bytes, &NetlinkAddr::new(0, 0), MsgFlags::empty()).unwrap();
        // Which number IPVS has: asked of the controller by name.
        send(&message(0x10, REQUEST, 3, b"\x09\0\x02\0IPVS\0\0\0\0"));
        let mut answer = [0; 1 << 16];
        let length = recv(fd, &mut answer, MsgFlags::empty()).unwrap();
        let (_, attributes) = messages(&answer[..length]).next().unwrap().unwrap().command().unwrap();
        let number = attributes.flatten().find(|attribute| attribute.kind == 1).unwrap();
        let family = u16::from_ne_bytes(*number.payload.first_chunk().unwrap());
        // A dump of the services that nobody reads to its end keeps the socket busy.
        send(&message(family, DUMP, 4, &[]));
        assert_eq!(ipvs.services().unwrap().len(), 2000);
        send(&message(family, DUMP, 4, &[]));
        assert_eq!(ipvs.info().unwrap().version.major, 1);
        assert_eq!(ipvs.services().unwrap().len(), 2000);
    });
}

#[test]
fn what_others_do_meanwhile_never_makes_a_settled_table_wrong() {
    with_ipvs(|mut ipvs| {
        let stays = 100;
        assert!(ipvs.run(&fill(stays, 3)).unwrap().is_clean());
        let expected = ipvs.settled_table(2).unwrap();
        assert_eq!(expected.len(), usize::from(stays));
        let (stop, mut other) = (AtomicBool::new(false), Ipvs::open().unwrap());
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut churn = Batch::new();
                for number in 1000..1050 {
                    churn.add_service(&Service::new(key(number), Scheduler::ROUND_ROBIN)).unwrap();
                }
                (1000..1050).for_each(|number| churn.delete_service(&key(number)));
                while !stop.load(Ordering::Relaxed) {
                    assert!(other.run(&churn).unwrap().is_clean());
                    thread::sleep(std::time::Duration::from_millis(20));
                }
            });
            for _ in 0..5 {
                match ipvs.settled_table(10) {
                    Ok(table) => {
                        let ours: Vec<_> =
                            table.into_iter().filter(|entry| entry.service.service.key < key(1000)).collect();
                        assert!(same_configuration(&ours, &expected), "{} of {stays}", ours.len());
                    }
                    // Never two equal readings: said, not guessed.
                    Err(Error::Unsettled { attempts: 10, .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert!(same_configuration(&ipvs.settled_table(3).unwrap(), &expected));
    });
}
