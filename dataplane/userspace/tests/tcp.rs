//! The TCP data path on loopback, through real sockets.

#![allow(clippy::unwrap_used, reason = "tests")]

mod kit;

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use kit::*;
use vipd_model::{ClientAffinity, Drain, EndpointState, Millis, OnExpiry};
use vipd_userspace::{Admission, Door};

#[test]
fn round_robin_is_even_and_a_change_holds_for_the_next_connection() {
    let proxy = proxy();
    let (a, b, c) = (named("a"), named("b"), named("c"));
    let vip = free_address();
    let mut service = Build::tcp("web", vip, &[a, b]);
    serve(&proxy, &service);
    let count = |name: &str, of: &[String]| of.iter().filter(|answer| *answer == name).count();
    let answers: Vec<String> = (0..20).map(|_| ask(vip).unwrap()).collect();
    assert_eq!((count("a", &answers), count("b", &answers)), (10, 10));
    service.endpoints = Build::tcp("web", vip, &[c]).endpoints;
    proxy.set(service.selected());
    assert_eq!(ask(vip).unwrap(), "c");
}

/// Case 109: send, shut down writing, then read a late answer.
#[test]
fn case_109_half_close_is_kept_in_both_directions() {
    let proxy = proxy();
    let late = backend(|mut stream| {
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        std::thread::sleep(Duration::from_millis(300));
        stream.write_all(format!("got {}", all.len()).as_bytes()).unwrap();
    });
    let vip = free_address();
    serve(&proxy, &Build::tcp("late", vip, &[late]));
    let mut client = connect(vip);
    client.write_all(&[7; 100_000]).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "got 100000");

    let first_to_finish = backend(|mut stream| {
        stream.write_all(b"bye").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        assert_eq!(all, b"still here");
    });
    let vip = free_address();
    serve(&proxy, &Build::tcp("early", vip, &[first_to_finish]));
    let mut client = connect(vip);
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "bye");
    client.write_all(b"still here").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    eventually("both sides are closed", || proxy.totals().connections + proxy.totals().sessions == 0);
}

/// Case 115: the endpoint chosen refuses; the client does not notice.
#[test]
fn case_115_another_endpoint_is_tried_and_the_dead_one_is_avoided() {
    let proxy = proxy();
    let (alive, dead) = (named("alive"), free_address());
    let vip = free_address();
    serve(&proxy, &Build::tcp("web", vip, &[alive, dead]));
    for _ in 0..50 {
        assert_eq!(ask(vip).unwrap(), "alive");
    }
    let counted = &proxy.statistics(&[])[0];
    assert_eq!(counted.traffic.connections, 50);
    assert!((1..=3).contains(&counted.retries), "avoided after the first failure: {} retries", counted.retries);
    let dead = counted.endpoints.iter().find(|endpoint| endpoint.key == key(dead)).unwrap();
    assert!(dead.failures > 0 && dead.avoided_for_ms.is_some());
}

/// A listener whose queue is full, so that it does not answer SYNs; with what fills it.
fn silent() -> (TcpListener, SocketAddr, Vec<socket2::Socket>) {
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    socket2::SockRef::from(&silent).listen(0).unwrap();
    let at = silent.local_addr().unwrap();
    let knock = |_| {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.set_nonblocking(true).unwrap();
        let _ = socket.connect(&at.into());
        socket
    };
    let full = (0..4).map(knock).collect();
    std::thread::sleep(Duration::from_millis(50));
    (silent, at, full)
}

/// A lost SYN is repeated after a second: the one endpoint that may serve must be given that time.
#[test]
fn the_last_endpoint_left_is_waited_for() {
    let proxy = proxy();
    let (listener, at, full) = silent();
    let vip = free_address();
    let mut service = Build::tcp("web", vip, &[at, free_address()]);
    service.endpoints.iter_mut().find(|e| e.key != key(at)).unwrap().state = EndpointState::NotReady;
    serve(&proxy, &service);
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(500));
        drop(full);
        for stream in listener.incoming() {
            let _ = stream.unwrap().write_all(b"at last");
        }
    });
    assert_eq!(ask(vip).unwrap(), "at last");
}

#[test]
fn a_silent_endpoint_costs_a_quarter_of_a_second() {
    let proxy = proxy();
    let (_silent, silent_at, _full) = silent();
    let vip = free_address();
    serve(&proxy, &Build::tcp("web", vip, &[silent_at, named("alive")]));
    let begun = Instant::now();
    for _ in 0..10 {
        assert_eq!(ask(vip).unwrap(), "alive");
    }
    assert!(begun.elapsed() >= Duration::from_millis(240), "one of ten met the silent endpoint");
    assert!(begun.elapsed() < Duration::from_millis(1_500), "and only one: {:?}", begun.elapsed());
}

#[test]
fn without_any_endpoint_that_answers_the_client_is_reset_soon() {
    let proxy = proxy();
    let vip = free_address();
    serve(&proxy, &Build::tcp("web", vip, &[free_address(), free_address()]));
    let begun = Instant::now();
    assert_eq!(ask(vip).unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert!(begun.elapsed() < Duration::from_secs(1));
    assert_eq!(proxy.statistics(&[])[0].unanswered, 1);
}

#[test]
fn a_reset_is_passed_on_to_the_other_side() {
    let proxy = proxy();
    let rude = backend(|mut stream| {
        let mut one = [0; 1];
        stream.read_exact(&mut one).unwrap();
        socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
    });
    let vip = free_address();
    serve(&proxy, &Build::tcp("rude", vip, &[rude]));
    let mut client = connect(vip);
    client.write_all(b"x").unwrap();
    assert_eq!(client.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::ConnectionReset);

    static RESETS: AtomicUsize = AtomicUsize::new(0);
    let patient = backend(|mut stream| {
        if stream.read(&mut [0; 1]).is_err_and(|error| error.kind() == ErrorKind::ConnectionReset) {
            RESETS.fetch_add(1, Ordering::SeqCst);
        }
    });
    let vip = free_address();
    serve(&proxy, &Build::tcp("patient", vip, &[patient]));
    let client = connect(vip);
    eventually("connected", || proxy.totals().connections > 0);
    std::thread::sleep(Duration::from_millis(50));
    socket2::SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
    drop(client);
    eventually("the back end sees a reset", || RESETS.load(Ordering::SeqCst) == 1);
}

/// 64 MiB each way at once, of bytes that would show any loss, repetition or exchange.
#[test]
fn large_transfers_arrive_as_sent() {
    const SIZE: usize = 64 << 20;
    fn byte(at: usize) -> u8 {
        (at.wrapping_mul(2_654_435_761) >> 13) as u8
    }
    fn send(mut to: impl Write) {
        let mut at = 0;
        let mut step = 1;
        while at < SIZE {
            let end = (at + step).min(SIZE);
            to.write_all(&(at..end).map(byte).collect::<Vec<_>>()).unwrap();
            at = end;
            step = (step * 3) % 300_007 + 1;
        }
    }
    fn check(mut from: impl Read) {
        let mut at = 0;
        let mut buffer = vec![0; 100_003];
        loop {
            let read = from.read(&mut buffer).unwrap();
            if read == 0 {
                break;
            }
            assert!(buffer[..read].iter().enumerate().all(|(i, b)| *b == byte(at + i)), "differs after {at}");
            at += read;
        }
        assert_eq!(at, SIZE);
    }
    let proxy = proxy();
    let both = backend(|stream| {
        let sender = stream.try_clone().unwrap();
        let sending = std::thread::spawn(move || {
            send(&sender);
            sender.shutdown(Shutdown::Write).unwrap();
        });
        check(&stream);
        sending.join().unwrap();
    });
    let vip = free_address();
    serve(&proxy, &Build::tcp("big", vip, &[both]));
    let client = connect(vip);
    let sender = client.try_clone().unwrap();
    let sending = std::thread::spawn(move || {
        send(&sender);
        sender.shutdown(Shutdown::Write).unwrap();
    });
    check(&client);
    sending.join().unwrap();
    eventually("counted", || proxy.statistics(&[])[0].traffic.active == 0);
    let counted = proxy.statistics(&[])[0].traffic;
    assert_eq!((counted.bytes_in, counted.bytes_out), (SIZE as u64, SIZE as u64));
}

#[test]
fn affinity_lasts_its_time_and_not_beyond_its_endpoint() {
    let proxy = proxy();
    let (a, b) = (named("a"), named("b"));
    let vip = free_address();
    let mut service = Build::tcp("sticky", vip, &[a, b]);
    service.definition.client_affinity =
        Some(ClientAffinity { timeout: Duration::from_secs(1), prefix_v4: 32, prefix_v6: 128 });
    serve(&proxy, &service);
    let first = ask(vip).unwrap();
    for _ in 0..10 {
        assert_eq!(ask(vip).unwrap(), first);
    }
    // Case 87: not a moment longer than it may take new flows, and not again when it comes back.
    let (mine, other) = if first == "a" { (a, b) } else { (b, a) };
    service.endpoint(mine).state = EndpointState::NotReady;
    proxy.set(service.selected());
    let second = ask(vip).unwrap();
    assert_ne!(second, first);
    service.endpoint(mine).state = EndpointState::Ready;
    proxy.set(service.selected());
    assert_eq!(ask(vip).unwrap(), second);
    std::thread::sleep(Duration::from_millis(1_100));
    let answers = [ask(vip).unwrap(), ask(vip).unwrap()];
    assert_eq!(answers[0], answers[1], "a new binding, and it holds");
    let _ = other;
}

/// Case 87, without a flow in between: what was not usable for a moment has lost its clients.
#[test]
fn an_endpoint_that_was_not_ready_has_lost_its_affine_clients() {
    let proxy = proxy();
    let (a, b) = (named("a"), named("b"));
    let vip = free_address();
    let mut service = Build::tcp("sticky", vip, &[a, b]);
    service.definition.client_affinity =
        Some(ClientAffinity { timeout: Duration::from_secs(60), prefix_v4: 32, prefix_v6: 128 });
    serve(&proxy, &service);
    let ask_all = || -> Vec<String> {
        (1..=8).map(|last| ask_from(Ipv4Addr::new(127, 0, 1, last).into(), vip).unwrap()).collect()
    };
    let first = ask_all();
    assert_eq!(ask_all(), first);
    for state in [EndpointState::NotReady, EndpointState::Ready] {
        service.endpoint(a).state = state;
        proxy.set(service.selected());
    }
    let then = ask_all();
    let stayed = |name: &str| first.iter().zip(&then).filter(|(first, then)| *first == name && first == then).count();
    assert_eq!((stayed("a"), stayed("b")), (2, 4), "half of a's four clients are picked to b: {first:?}, {then:?}");
}

#[test]
fn established_connections_stay_until_the_drain_is_over() {
    let proxy = proxy();
    let at = echo();
    let vip = free_address();
    let mut service = Build::tcp("drained", vip, &[at, named("other")]);
    serve(&proxy, &service);
    let mut clients: Vec<_> = (0..2).map(|_| connect(vip)).collect();
    let talk = |client: &mut std::net::TcpStream| -> std::io::Result<()> {
        client.write_all(b"ping")?;
        let mut answer = [0; 4];
        client.read_exact(&mut answer)?;
        if answer == *b"ping" { Ok(()) } else { Err(ErrorKind::InvalidData.into()) }
    };
    let echoing = clients.iter_mut().find_map(|client| talk(client).is_ok().then_some(client)).unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as u64;
    service.endpoint(at).state = EndpointState::Draining;
    service.endpoint(at).left_at = Some(Millis(now));
    service.endpoint(at).drain = Some(Drain { timeout: Some(Duration::from_millis(700)), on_expiry: OnExpiry::Reset });
    let begun = Instant::now();
    proxy.set(service.selected());
    assert_eq!(ask(vip).unwrap(), "other", "no new flows");
    assert_eq!(ask(vip).unwrap(), "other");
    talk(echoing).unwrap();
    let end = echoing.read(&mut [0; 1]).unwrap_err();
    assert_eq!(end.kind(), ErrorKind::ConnectionReset);
    assert!((600..2_000).contains(&begun.elapsed().as_millis()), "{:?}", begun.elapsed());
}

#[test]
fn a_removed_endpoint_and_a_removed_service_leave_their_connections() {
    let proxy = proxy();
    let at = echo();
    let vip = free_address();
    let mut service = Build::tcp("gone", vip, &[at]);
    serve(&proxy, &service);
    let mut client = connect(vip);
    let mut talk = || {
        client.write_all(b"ping").unwrap();
        client.read_exact(&mut [0; 4]).unwrap();
    };
    talk();
    service.endpoints.clear();
    proxy.set(service.selected());
    talk();
    assert!(ask(vip).is_err());
    proxy.remove(&service.key);
    talk();
}

#[test]
fn max_connections_holds_and_frees() {
    let proxy = proxy();
    let (a, b) = (echo(), echo());
    let vip = free_address();
    let mut service = Build::tcp("full", vip, &[a, b]);
    for endpoint in &mut service.endpoints {
        endpoint.max_connections = 2;
    }
    serve(&proxy, &service);
    let mut talking: Vec<_> = (0..4)
        .map(|_| {
            let mut client = connect(vip);
            client.write_all(b"ping").unwrap();
            client.read_exact(&mut [0; 4]).unwrap();
            client
        })
        .collect();
    assert_eq!(ask(vip).unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(proxy.statistics(&[])[0].full, 1);
    talking.pop();
    eventually("a place is free", || proxy.statistics(&[])[0].traffic.active == 3);
    let mut client = connect(vip);
    client.write_all(b"ping").unwrap();
    client.read_exact(&mut [0; 4]).unwrap();
}

#[test]
fn an_idle_connection_ends_when_the_service_says_so() {
    let proxy = proxy();
    let vip = free_address();
    let mut service = Build::tcp("idle", vip, &[echo()]);
    service.definition.idle_timeout = Some(Duration::from_millis(400));
    serve(&proxy, &service);
    let mut client = connect(vip);
    for _ in 0..4 {
        std::thread::sleep(Duration::from_millis(200));
        client.write_all(b"ping").unwrap();
        client.read_exact(&mut [0; 4]).unwrap();
    }
    let begun = Instant::now();
    assert!(matches!(client.read(&mut [0; 1]), Err(_) | Ok(0)));
    assert!((300..2_000).contains(&begun.elapsed().as_millis()), "{:?}", begun.elapsed());
}

#[test]
fn an_address_that_is_taken_says_so() {
    let proxy = proxy();
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let error = proxy.open(Door::Tcp(taken.local_addr().unwrap()), &Admission::Everybody).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
}

/// Case 114: connections are made at full speed while the control side changes services without pause.
#[test]
fn case_114_a_storm_of_changes_does_not_stop_connections() {
    let proxy = Arc::new(proxy());
    let vip = free_address();
    serve(&proxy, &Build::tcp("web", vip, &[named("ok")]));
    let stop = Arc::new(AtomicUsize::new(0));
    let storm = {
        let (proxy, stop) = (Arc::clone(&proxy), Arc::clone(&stop));
        std::thread::spawn(move || {
            let mut changes = 0u32;
            while stop.load(Ordering::Relaxed) == 0 {
                let n = changes % 10_000;
                let at = SocketAddr::from((Ipv4Addr::from(0x0a00_0000 + n), 80));
                let port = u16::try_from(changes % 7 + 1).unwrap();
                proxy
                    .set(Build::tcp(&format!("s{n}"), at, &[SocketAddr::from((Ipv4Addr::LOCALHOST, port))]).selected());
                changes += 1;
            }
            changes
        })
    };
    let mut worst = Duration::ZERO;
    for _ in 0..300 {
        let begun = Instant::now();
        assert_eq!(ask(vip).unwrap(), "ok");
        worst = worst.max(begun.elapsed());
    }
    stop.store(1, Ordering::Relaxed);
    assert!(storm.join().unwrap() > 100, "it was a storm");
    assert!(worst < Duration::from_secs(1), "{worst:?}");
}
