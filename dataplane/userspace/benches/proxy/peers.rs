//! The proxies under test, each a child process.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use vipd_model::{Algorithm, Definition, Endpoint, EngineKind, Frontend, Protocol, Scheduler, Service, ServiceKey};
use vipd_userspace::{Admission, Door, Proxy, ProxyConfig};

use crate::load::Load;

/// Who carries the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// Nobody: clients talk to a back end.
    Direct,
    Vipd,
    Haproxy,
    /// With `option splice-auto`.
    HaproxySplice,
    Nginx,
}

impl Peer {
    pub(crate) const ALL: [Self; 5] = [Self::Direct, Self::Vipd, Self::Haproxy, Self::HaproxySplice, Self::Nginx];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Direct => "(direct)",
            Self::Vipd => "vipd",
            Self::Haproxy => "haproxy",
            Self::HaproxySplice => "haproxy splice",
            Self::Nginx => "nginx",
        }
    }

    pub(crate) fn is_installed(self) -> bool {
        let (program, package) = match self {
            Self::Direct | Self::Vipd => return true,
            Self::Haproxy | Self::HaproxySplice => ("/usr/sbin/haproxy", "haproxy"),
            Self::Nginx => ("/usr/sbin/nginx", "nginx libnginx-mod-stream"),
        };
        let installed = std::path::Path::new(program).exists();
        if !installed {
            println!("{} is left out: not installed (apt-get install {package})", self.name());
        }
        installed
    }

    pub(crate) fn carries(self, load: Load) -> bool {
        match self {
            Self::Direct | Self::Vipd | Self::Nginx => true,
            Self::Haproxy => !load.is_udp(),
            Self::HaproxySplice => load == Load::Transfer,
        }
    }
}

/// A proxy that runs.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    child: Option<Child>,
    files: Option<PathBuf>,
}

impl Running {
    pub(crate) fn start(peer: Peer, load: Load, backends: &[SocketAddr]) -> Self {
        let address = free_address();
        let files = std::env::temp_dir().join(format!("vipd-bench-{}-{}", std::process::id(), address.port()));
        let config = files.join("config");
        std::fs::create_dir_all(&files).unwrap();
        let mut command = match peer {
            Peer::Direct => return Self { address: backends[0], child: None, files: Some(files) },
            Peer::Vipd => {
                let backends: Vec<String> = backends.iter().map(ToString::to_string).collect();
                let protocol = if load.is_udp() { "udp" } else { "tcp" };
                let mut command = Command::new(std::env::current_exe().unwrap());
                command.args(["serve", &format!("{protocol} {address} {}", backends.join(" "))]);
                command
            }
            Peer::Haproxy | Peer::HaproxySplice => {
                let splice = if peer == Peer::HaproxySplice { "    option splice-auto\n" } else { "" };
                std::fs::write(&config, haproxy(address, backends, splice)).unwrap();
                let mut command = Command::new("/usr/sbin/haproxy");
                command.args(["-q", "-db", "-f"]).arg(&config);
                command
            }
            Peer::Nginx => {
                std::fs::write(&config, nginx(address, backends, load.is_udp())).unwrap();
                let mut command = Command::new("/usr/sbin/nginx");
                command.arg("-p").arg(&files).arg("-c").arg(&config).args(["-e", "stderr"]);
                command
            }
        };
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit()).spawn().unwrap();
        let running = Self { address, child: Some(child), files: Some(files) };
        running.wait_ready(peer, load.is_udp());
        running
    }

    pub(crate) fn id(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    fn wait_ready(&self, peer: Peer, udp: bool) {
        let end = Instant::now() + Duration::from_secs(10);
        while Instant::now() < end {
            let ready = if udp {
                std::net::UdpSocket::bind(self.address).is_err()
            } else {
                std::net::TcpStream::connect(self.address).is_ok()
            };
            if ready {
                return std::thread::sleep(Duration::from_millis(200));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("{} does not listen on {}", peer.name(), self.address);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let pid = nix::unistd::Pid::from_raw(child.id().try_into().unwrap());
            // nginx takes its workers along on TERM, not on KILL.
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
            let _ = child.wait();
        }
        if let Some(files) = &self.files {
            let _ = std::fs::remove_dir_all(files);
        }
    }
}

fn free_address() -> SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn haproxy(address: SocketAddr, backends: &[SocketAddr], option: &str) -> String {
    let mut text = format!(
        "global\n    nbthread 2\n    maxconn 4000\ndefaults\n    mode tcp\n    timeout connect 5s\n    \
         timeout client 1m\n    timeout server 1m\n{option}listen all\n    bind {address}\n    balance roundrobin\n"
    );
    for (index, backend) in backends.iter().enumerate() {
        text += &format!("    server s{index} {backend}\n");
    }
    text
}

fn nginx(address: SocketAddr, backends: &[SocketAddr], udp: bool) -> String {
    let servers: String = backends.iter().map(|backend| format!("        server {backend};\n")).collect();
    // Sessions of clients that have gone end after a second, as ours do here.
    let listen = if udp { "udp reuseport" } else { "reuseport" };
    let timeout = if udp { "1s" } else { "1m" };
    format!(
        "load_module /usr/lib/nginx/modules/ngx_stream_module.so;\ndaemon off;\nworker_processes 2;\npid nginx.pid;\n\
         error_log stderr crit;\n\nevents {{ worker_connections 8000; }}\nstream {{\n    \
         upstream all {{\n{servers}    }}\n    server {{\n        listen {address} {listen};\n        \
         proxy_timeout {timeout};\n        proxy_pass all;\n    }}\n}}\n"
    )
}

/// The child that is our proxy: `tcp|udp ADDRESS BACKEND…`.
pub(crate) fn serve(place: &str) {
    let mut words = place.split(' ');
    let udp = words.next() == Some("udp");
    let mut addresses = words.map(|word| word.parse::<SocketAddr>().unwrap());
    let frontend = addresses.next().unwrap();
    let mut endpoints: Vec<Endpoint> = addresses.map(|at| Endpoint::new(at.ip(), at.port())).collect();
    endpoints.sort_by_key(|endpoint| endpoint.key);
    let service = Arc::new(Service {
        key: ServiceKey::new("bench", "all").unwrap(),
        definition: Arc::new(Definition {
            protocol: if udp { Protocol::Udp } else { Protocol::Tcp },
            frontends: vec![Frontend::vip(frontend.ip(), frontend.port())],
            idle_timeout: udp.then_some(Duration::from_secs(1)),
            ..Definition::default()
        }),
        scheduler: Scheduler::default(),
        endpoints: endpoints.into(),
        leaving: Arc::default(),
        revisions: Default::default(),
        waiting: Vec::new(),
    });
    let proxy = Proxy::start(&ProxyConfig { workers: 2, ..ProxyConfig::default() }).unwrap();
    proxy.set(Arc::new(vipd_model::select(&service, EngineKind::Userspace, Algorithm::Rr)));
    let door = if udp { Door::Udp(frontend) } else { Door::Tcp(frontend) };
    proxy.open(door, &Admission::Everybody).unwrap();
    loop {
        std::thread::park();
    }
}
