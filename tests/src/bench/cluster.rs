//! What kube-proxy listens to: the real API server and etcd, on a host of their own, with services written into etcd.

use std::env;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::scene::{Scene, Size};
use crate::lab::{Host, Lab, installed};

/// Both together.
pub struct Cluster {
    programs: PathBuf,
    children: Vec<Child>,
    declared: Option<Size>,
    links: u8,
    /// Its hosts are not used but for the neighbour, on which the cluster lives.
    lab: Lab,
}

impl Cluster {
    /// Starts them and waits until they answer.
    ///
    /// # Errors
    /// When they are not built (`tests/peers-k8s/build.sh`) or do not start.
    pub fn start() -> Result<Self> {
        let cache = env::var_os("VIPD_PEERS").map(PathBuf::from);
        let cache = cache.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cache/vipd-peers")));
        let programs = cache.context("HOME is not set")?.join("k8s/bin");
        for program in ["etcd", "kube-apiserver", "kube-proxy", "load"] {
            ensure!(programs.join(program).is_file(), "{} is not built", programs.join(program).display());
        }
        let cluster = Self { programs, children: Vec::new(), declared: None, links: 0, lab: Lab::new()? };
        Ok(cluster)
    }

    /// One of the peers' programs.
    #[must_use]
    pub fn program(&self, name: &str) -> PathBuf {
        self.programs.join(name)
    }

    fn host(&self) -> &Host {
        &self.lab.neighbour
    }

    /// A fresh cluster with so many services: what earlier measurements changed in the last one is gone.
    ///
    /// # Errors
    /// When something of it does not start.
    pub fn declare(&mut self, size: Size) -> Result<()> {
        self.end();
        let dir = self.lab.dir().join("cluster");
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir)?;
        self.spawn("etcd", &["--data-dir", "etcd", "--unsafe-no-fsync", "--quota-backend-bytes=4294967296"])?;
        installed("openssl")?;
        let key = dir.join("sa.key");
        self.host().run(&format!("openssl genrsa -out {} 2048", key.display()))?;
        self.host().run(&format!("openssl rsa -in {} -pubout -out {}", key.display(), dir.join("sa.pub").display()))?;
        fs::write(dir.join("tokens.csv"), "bench,admin,admin,\"system:masters\"\n")?;
        self.spawn(
            "kube-apiserver",
            &[
                "--etcd-servers=http://127.0.0.1:2379",
                "--bind-address=0.0.0.0",
                "--advertise-address=172.16.2.2",
                "--secure-port=6443",
                "--cert-dir=certificates",
                "--service-cluster-ip-range=10.96.0.0/12",
                "--service-account-issuer=https://kubernetes.default.svc",
                "--service-account-key-file=sa.pub",
                "--service-account-signing-key-file=sa.key",
                "--token-auth-file=tokens.csv",
                "--authorization-mode=AlwaysAllow",
                "--disable-admission-plugins=ServiceAccount",
                "--endpoint-reconciler-type=none",
            ],
        )?;
        self.wait_for_node()?;
        let (services, endpoints) = (size.services.to_string(), size.endpoints.to_string());
        self.load(&["write", "-to", &services, "-endpoints", &endpoints])?;
        thread::sleep(Duration::from_secs(3));
        self.declared = Some(size);
        Ok(())
    }

    /// The API server answers once the node could be registered.
    fn wait_for_node(&mut self) -> Result<()> {
        let begin = Instant::now();
        loop {
            match self.load(&["node"]) {
                Ok(()) => return Ok(()),
                Err(error) if begin.elapsed() > Duration::from_secs(90) => return Err(error),
                Err(_) => thread::sleep(Duration::from_millis(500)),
            }
        }
    }

    fn load(&self, arguments: &[&str]) -> Result<()> {
        let mut command = Command::new(self.program("load"));
        command.args(arguments);
        let output = self.host().enter(|| command.output())??;
        ensure!(output.status.success(), "load {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }

    fn spawn(&mut self, program: &str, arguments: &[&str]) -> Result<()> {
        let dir = self.lab.dir().join("cluster");
        let log = File::create(dir.join(format!("{program}.log")))?;
        let mut command = Command::new(self.program(program));
        command.args(arguments).current_dir(&dir).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = self.host().spawn(&mut command)?;
        self.children.push(child);
        Ok(())
    }

    /// A link from a scene's node, and the API server's address at its other end.
    ///
    /// # Errors
    /// When the link cannot be made.
    pub fn reach_from(&mut self, scene: &Scene) -> Result<String> {
        self.links += 1;
        let (n, far) = (self.links, self.host().name().to_owned());
        scene.node().ip(&format!(
            "link add cluster type veth peer name node{n} netns {far}\n\
             addr add 172.31.{n}.1/24 dev cluster\nlink set cluster up\n"
        ))?;
        self.host().ip(&format!("addr add 172.31.{n}.2/24 dev node{n}\nlink set node{n} up\n"))?;
        Ok(format!("https://172.31.{n}.2:6443"))
    }

    fn end(&mut self) {
        for mut child in self.children.drain(..).rev() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.end();
    }
}
