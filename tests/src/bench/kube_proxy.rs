//! The real kube-proxy as a subject, in each of its modes.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::cluster::Cluster;
use super::gauge::{self, Cost, Memory};
use super::scene::{Scene, Size};
use super::subject::{Sample, Subject, What};
use crate::lab::installed;

/// Changes of each kind; each is followed by a pause of 1.2 s, kube-proxy's own `minSyncPeriod` and a little.
const CHANGES: u32 = 12;
/// How long its first sync may take: 335 s were seen, for 5,000 services on iptables' nft back end.
const PATIENCE: Duration = Duration::from_secs(900);

/// How it programs the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// nf_tables.
    Nftables,
    /// `xtables-legacy-multi`.
    IptablesLegacy,
    /// `xtables-nft-multi`.
    IptablesNft,
}

impl Mode {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Nftables, Self::IptablesLegacy, Self::IptablesNft];

    /// For the table.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nftables => "kube-proxy nftables",
            Self::IptablesLegacy => "kube-proxy iptables-legacy",
            Self::IptablesNft => "kube-proxy iptables-nft",
        }
    }

    /// On the nft back end 10,000 services take it an hour.
    #[must_use]
    pub fn can(self, size: Size) -> bool {
        self != Self::IptablesNft || size.services <= 5_000
    }
}

/// A kube-proxy on the node of a scene.
pub struct KubeProxy {
    mode: Mode,
    size: Size,
    /// The API server, as this node reaches it.
    server: String,
    loader: PathBuf,
    program: PathBuf,
    calls: u32,
    child: Option<Child>,
    scene: Scene,
}

impl KubeProxy {
    /// Prepares it; nothing runs yet.
    ///
    /// # Errors
    /// Those of the lab, and a tool that is missing.
    pub fn new(cluster: &mut Cluster, mode: Mode, size: Size) -> Result<Self> {
        let scene = Scene::new()?;
        let server = cluster.reach_from(&scene)?;
        let tools = scene.lab.dir().join("xtables");
        fs::create_dir_all(&tools)?;
        let multi = if mode == Mode::IptablesLegacy { "xtables-legacy-multi" } else { "xtables-nft-multi" };
        for tool in ["iptables", "iptables-restore", "iptables-save"] {
            let multi = installed(multi)?;
            symlink(&multi, tools.join(tool))?;
            symlink(&multi, tools.join(tool.replace("ip", "ip6")))?;
        }
        let kubeconfig = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: bench\n\
             clusters: [{{name: bench, cluster: {{server: '{server}', insecure-skip-tls-verify: true}}}}]\n\
             users: [{{name: bench, user: {{token: bench}}}}]\n\
             contexts: [{{name: bench, context: {{cluster: bench, user: bench}}}}]\n"
        );
        fs::write(scene.lab.dir().join("kubeconfig"), kubeconfig)?;
        let (loader, program) = (cluster.program("load"), cluster.program("kube-proxy"));
        Ok(Self { mode, size, server, loader, program, calls: 0, child: None, scene })
    }

    /// Starts it and waits for its first sync, which is the whole state: it begins when everything has been listed.
    fn start(&mut self) -> Result<Cost> {
        let dir = self.scene.lab.dir();
        let log = File::options().create(true).append(true).open(dir.join("kube-proxy.log"))?;
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new(&self.program);
        command
            .args(["--hostname-override=node1", "--conntrack-max-per-core=0", "--v=1"])
            .arg(format!("--proxy-mode={}", if self.mode == Mode::Nftables { "nftables" } else { "iptables" }))
            .arg(format!("--kubeconfig={}", dir.join("kubeconfig").display()))
            .args(["--metrics-bind-address=127.0.0.1:10249", "--healthz-bind-address=127.0.0.1:10256"])
            .env("PATH", format!("{}:{path}", dir.join("xtables").display()))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let begin = Instant::now();
        let child = self.child.insert(self.scene.node().spawn(&mut command)?);
        let pid = child.id();
        while synced(&self.scene).unwrap_or(0.0) < 1.0 {
            if let Some(status) = child.try_wait()? {
                let log = fs::read_to_string(dir.join("kube-proxy.log")).unwrap_or_default();
                bail!("kube-proxy ended ({status}): {}", log.lines().last().unwrap_or_default());
            }
            ensure!(begin.elapsed() < PATIENCE, "no sync within {PATIENCE:?}");
            thread::sleep(Duration::from_millis(100));
        }
        let wall = begin.elapsed();
        Ok(Cost { wall, cpu: gauge::when_quiet(pid)? })
    }

    fn pid(&self) -> Result<u32> {
        Ok(self.child.as_ref().context("kube-proxy does not run")?.id())
    }
}

/// How many syncs of all rules it has done, by its own metrics.
fn synced(scene: &Scene) -> Result<f64> {
    let mut connection = scene.node().enter(|| TcpStream::connect("127.0.0.1:10249"))??;
    connection.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
    let mut text = String::new();
    connection.read_to_string(&mut text)?;
    // With a label for the address family since 1.35 or so.
    let counts = text.lines().filter(|line| line.starts_with("kubeproxy_sync_proxy_rules_duration_seconds_count"));
    let counts = counts.filter(|line| !line.contains("IPv6"));
    Ok(counts.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum())
}

impl Subject for KubeProxy {
    fn name(&self) -> String {
        self.mode.name().to_owned()
    }

    fn scene(&self) -> &Scene {
        &self.scene
    }

    fn load(&mut self) -> Result<Cost> {
        self.start()
    }

    fn change(&mut self, what: What) -> Result<Sample> {
        self.calls += 1;
        let mut command = Command::new(&self.loader);
        command
            .arg("change")
            .args(["-what", if what == What::Endpoint { "endpoint" } else { "service" }])
            .args(["-by", if self.mode == Mode::IptablesLegacy { "legacy" } else { "nft" }])
            .args(["-server", &self.server])
            .args(["-count", &CHANGES.to_string(), "-serial", &(self.calls + 10 * self.mode as u32).to_string()])
            .args(["-services", &self.size.services.to_string(), "-endpoints", &self.size.endpoints.to_string()]);
        let output = self.scene.node().enter(|| command.output())??;
        ensure!(output.status.success(), "load change: {}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok(Sample::new(text.lines().map(str::parse).collect::<Result<_, _>>()?))
    }

    fn memory(&self) -> Result<Memory> {
        gauge::memory(self.pid()?)
    }

    fn restart(&mut self) -> Result<Cost> {
        self.stop()?;
        self.start()
    }

    fn stop(&mut self) -> Result<()> {
        if let Some(mut child) = self.child.take() {
            kill(Pid::from_raw(i32::try_from(child.id())?), Signal::SIGTERM)?;
            child.wait()?;
        }
        Ok(())
    }
}

impl Drop for KubeProxy {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}
