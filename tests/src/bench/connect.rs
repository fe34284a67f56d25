//! What a client sees: how long the first packet's way takes, and how many connections a second there are.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use socket2::{Domain, Socket, Type};

use super::scene::{PORT, Scene, Size, virtual_ip};
use super::subject::Sample;
use crate::lab::Host;

/// Connections to one target in one visit to a lab.
const VISIT: usize = 60;
/// Visits to each lab.
const VISITS: usize = 50;
/// How long connections are counted in one visit.
const COUNTING: Duration = Duration::from_millis(1500);

/// Medians of the time a `connect` takes, in µs: first, middle and last service, and a connection that is no service's.
pub type Times = [f64; 4];

/// All labs' times of one size.
pub struct AllTimes {
    /// No rules and no connection tracking at all.
    pub direct: Times,
    /// No service, but connections are tracked and looked up for NAT, as by every kernel engine.
    pub tracked: Times,
    /// The subjects', in their order.
    pub of: Vec<Times>,
}

/// Two labs without any service, for comparison.
pub struct Probe {
    direct: Scene,
    tracked: Scene,
}

impl Probe {
    /// Makes them.
    ///
    /// # Errors
    /// Those of the lab.
    pub fn new() -> Result<Self> {
        let (direct, tracked) = (Scene::new()?, Scene::new()?);
        // The kernel tracks connections in a namespace once a rule of it needs that; these two never match.
        for line in [
            "nft add table ip track",
            "nft add chain ip track in { type nat hook prerouting priority -100 ; }",
            "nft add chain ip track own { type nat hook output priority -100 ; }",
            "nft add chain ip track out { type nat hook postrouting priority 100 ; }",
            "nft add rule ip track in ip daddr 192.0.2.1 dnat to 192.0.2.2",
            "nft add rule ip track out ip daddr 192.0.2.1 masquerade",
        ] {
            tracked.node().run(line)?;
        }
        Ok(Self { direct, tracked })
    }

    /// Times connections through every scene, in turn.
    ///
    /// # Errors
    /// When a connection fails.
    pub fn times(&self, scenes: &[&Scene], size: Size) -> Result<AllTimes> {
        let all: Vec<&Scene> = [&self.direct, &self.tracked].into_iter().chain(scenes.iter().copied()).collect();
        let mut taken = vec![<[Vec<f64>; 4]>::default(); all.len()];
        let targets = [Scene::endpoints(size), Scene::targets(size)];
        // Nobody waits in accept: waking a server is within the time of `connect`, and no engine's doing.
        let listeners = all.iter().map(|scene| listen(scene)).collect::<Result<Vec<_>>>()?;
        for listener in &listeners {
            listener.set_nonblocking(true)?;
        }
        for _ in 0..VISITS {
            for (at, scene) in all.iter().enumerate() {
                // Without rules only the endpoints themselves answer.
                visit(&scene.lab.client, &targets[usize::from(at >= 2)], &mut taken[at])
                    .with_context(|| format!("connections through scene {at}"))?;
                while listeners[at].accept().is_ok() {}
            }
        }
        let times = |of: [Vec<f64>; 4]| of.map(|values| Sample::new(values).median());
        let mut all = taken.into_iter().map(times);
        let (direct, tracked) = (all.next().unwrap_or_default(), all.next().unwrap_or_default());
        Ok(AllTimes { direct, tracked, of: all.collect() })
    }

    /// Connections a second of two clients to services here and there, the better of two visits.
    ///
    /// # Errors
    /// When a connection fails.
    pub fn rates(&self, scenes: &[&Scene], size: Size) -> Result<Vec<f64>> {
        let mut best = vec![0f64; scenes.len()];
        serving(scenes, || {
            for _ in 0..2 {
                for (at, scene) in scenes.iter().enumerate() {
                    best[at] = best[at].max(count(&scene.lab.client, size)?);
                }
            }
            Ok(())
        })?;
        Ok(best)
    }
}

fn visit(client: &Host, targets: &[SocketAddr; 4], taken: &mut [Vec<f64>; 4]) -> Result<()> {
    client.enter(|| -> io::Result<()> {
        for n in 0..VISIT {
            for (target, taken) in targets.iter().zip(taken.iter_mut()) {
                let took = connect(*target)?;
                // The first ones find cold caches: this process was elsewhere.
                if n >= 10 {
                    taken.push(took.as_secs_f64() * 1e6);
                }
            }
        }
        Ok(())
    })??;
    Ok(())
}

fn count(client: &Host, size: Size) -> Result<f64> {
    let (done, begin) = (AtomicU64::new(0), Instant::now());
    thread::scope(|scope| -> Result<()> {
        let clients: Vec<_> = (0..2u32)
            .map(|n| {
                let (done, begin) = (&done, &begin);
                let work = move || -> io::Result<()> {
                    let mut i = n;
                    while begin.elapsed() < COUNTING {
                        // A stride that meets every service before it meets one again.
                        i = (i + 7919) % size.services;
                        connect(SocketAddr::new(virtual_ip(i), 80))?;
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok(())
                };
                scope.spawn(move || -> Result<()> { Ok(client.enter(work)??) })
            })
            .collect();
        clients.into_iter().try_for_each(|client| client.join().map_err(|_| anyhow!("a client panicked"))?)
    })?;
    Ok(done.into_inner() as f64 / begin.elapsed().as_secs_f64())
}

/// One connection, made and reset, so that no port is taken afterwards; the time of `connect`.
fn connect(target: SocketAddr) -> io::Result<Duration> {
    let socket = Socket::new(Domain::for_address(target), Type::STREAM, None)?;
    socket.set_linger(Some(Duration::ZERO))?;
    let begin = Instant::now();
    socket.connect(&target.into())?;
    Ok(begin.elapsed())
}

/// Does `work` while every scene's endpoints accept connections and end them.
fn serving<T>(scenes: &[&Scene], work: impl FnOnce() -> Result<T>) -> Result<T> {
    let listeners = scenes.iter().map(|scene| listen(scene)).collect::<Result<Vec<_>>>()?;
    thread::scope(|scope| {
        for listener in &listeners {
            let listener: TcpListener = listener.try_clone()?.into();
            // Ends when the socket is shut down below.
            scope.spawn(move || while listener.accept().is_ok() {});
        }
        let result = work();
        for listener in &listeners {
            let _ = listener.shutdown(std::net::Shutdown::Both);
        }
        result
    })
}

/// Every endpoint of a scene, listening.
fn listen(scene: &Scene) -> Result<Socket> {
    let socket = scene.lab.backends[0].enter(|| -> io::Result<Socket> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.bind(&SocketAddr::from(([0, 0, 0, 0], PORT)).into())?;
        socket.listen(16_384)?;
        Ok(socket)
    })??;
    Ok(socket)
}
