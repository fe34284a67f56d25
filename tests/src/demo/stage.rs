//! The hosts, the daemon and the commands of the demo.

use std::env;
use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use vipd_proto::v1::EngineInfo;

use crate::lab::{Daemon, Family, Lab, vip};
use crate::traffic::{Client, Proto, Server};

/// The port of every back end.
const PORT: u16 = 8080;

/// Everything that plays.
pub(super) struct Stage {
    pub(super) lab: Lab,
    pub(super) daemon: Daemon,
    /// TCP and UDP, both families, by back end.
    servers: Vec<(usize, Vec<Server>)>,
    vipctl: PathBuf,
    pub(super) engine: String,
}

impl Stage {
    /// Hosts, servers and a running daemon.
    pub(super) fn set(engine: &str) -> Result<Self> {
        let lab = Lab::new()?;
        println!(
            "six hosts, each a network namespace: a client, a neighbour, three back ends, and the node that vipd runs on"
        );
        let mut stage = Self {
            daemon: Daemon::start(&lab, engine, &[])?,
            servers: Vec::new(),
            vipctl: vipctl_binary()?,
            engine: engine.to_owned(),
            lab,
        };
        for backend in 0..3 {
            stage.start_server(backend)?;
        }
        Ok(stage)
    }

    /// A fresh daemon with this engine, on an empty state and a clean kernel.
    pub(super) fn restart(&mut self, engine: &str) -> Result<()> {
        self.daemon.stop()?;
        self.daemon.cleanup(&self.lab)?;
        let _ = fs::remove_dir_all(self.lab.dir().join("state"));
        engine.clone_into(&mut self.engine);
        self.start_daemon()
    }

    /// The daemon again, on the state that it left.
    pub(super) fn start_daemon(&mut self) -> Result<()> {
        self.daemon = Daemon::start(&self.lab, &self.engine, &[])?;
        Ok(())
    }

    /// The engines that `GetInfo` calls usable.
    pub(super) fn usable_engines(&self) -> Result<Vec<String>> {
        let engines = self.daemon.api()?.info()?.engines;
        let usable = engines.iter().filter(|engine| engine.usable);
        let names: Vec<_> = usable.map(|engine| engine.engine().as_str_name().to_lowercase()).collect();
        ensure!(!names.is_empty(), "no engine is usable here");
        Ok(names)
    }

    /// What `GetInfo` says of the engine that the daemon runs.
    pub(super) fn engine_info(&self) -> Result<EngineInfo> {
        let info = self.daemon.api()?.info()?;
        let number = info.default_engine;
        info.engines.into_iter().find(|engine| engine.engine == number).context("GetInfo lists no such engine")
    }

    pub(super) fn start_server(&mut self, backend: usize) -> Result<()> {
        let (host, name) = (&self.lab.backends[backend], format!("b{}", backend + 1));
        let mut servers = Vec::new();
        for family in [Family::V4, Family::V6] {
            for proto in [Proto::Tcp, Proto::Udp] {
                servers.push(Server::start(host, &name, (host.address(family), PORT), proto)?);
            }
        }
        self.servers.push((backend, servers));
        Ok(())
    }

    pub(super) fn stop_server(&mut self, backend: usize) {
        self.servers.retain(|(number, _)| *number != backend);
    }

    /// The address of a back end's server, as an operator writes it.
    pub(super) fn endpoint(&self, backend: usize, family: Family) -> String {
        match self.lab.backends[backend].address(family) {
            IpAddr::V4(address) => format!("{address}:{PORT}"),
            IpAddr::V6(address) => format!("[{address}]:{PORT}"),
        }
    }

    /// A client on the client host.
    pub(super) fn client(&self, proto: Proto) -> Client<'_> {
        Client::new(&self.lab.client, proto)
    }

    /// The VIP of the demo.
    pub(super) fn web(family: Family) -> (IpAddr, u16) {
        (vip(family, 10), 80)
    }

    /// Shows and runs `vipctl`, feeding it `input`, and returns what it printed.
    pub(super) fn vipctl(&self, line: &str, input: &str) -> Result<String> {
        println!("$ vipctl {line}{}", if input.is_empty() { String::new() } else { format!(" <<EOF\n{input}EOF") });
        let output = self.quiet_vipctl(line, input)?;
        print!("{output}");
        Ok(output)
    }

    /// The same without showing it.
    pub(super) fn quiet_vipctl(&self, line: &str, input: &str) -> Result<String> {
        let words = line.split_whitespace();
        let file = self.lab.dir().join("input.yaml");
        fs::write(&file, input)?;
        let output = Command::new(&self.vipctl)
            .arg("--socket")
            .arg(self.daemon.socket())
            .args(words)
            .stdin(Stdio::from(fs::File::open(&file)?))
            .output()
            .context("running vipctl")?;
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        let complaint = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "vipctl {line}: {}\n{printed}{complaint}", output.status);
        Ok(printed)
    }
}

/// Beside this program, where cargo puts it.
fn vipctl_binary() -> Result<PathBuf> {
    let path = env::current_exe()?.with_file_name("vipctl");
    ensure!(path.is_file(), "{} is missing: run `cargo build -p vipctl` first", path.display());
    Ok(path)
}
