//! Clients of a real vipd. Those that others wrote do what `docs/api.md` shows: its `grpcurl` commands and its Python
//! program are run as they stand there, in order, and every line of the output that it shows must come. Ours comes by
//! mutual TLS.
//!
//! The hosts that the guide talks of are the lab's, so what it declares can be asked with real traffic.

use std::env;
use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context as _, Result, ensure};
use vipd_tests::lab::{Daemon, Family, Lab, vip, vipd_binary};
use vipd_tests::rings;
use vipd_tests::runner::{self, Selection, Trial};
use vipd_tests::traffic::{Client, Proto, Server};

/// Where the guide says that vipd listens.
const SOCKET: &str = "/run/vipd/vipd.sock";

fn main() -> ExitCode {
    rings::in_the_lab("peers", || {
        let by_grpcurl = rings::with_peer("grpcurl", || Ok(conclude("the_guide_by_grpcurl", by_grpcurl)))?;
        let by_python = match python() {
            Some(_) => conclude("the_guide_by_python", by_python),
            None => rings::skip("peers: no Python with grpcio, grpcio-tools and grpcio-status: run tests/peers.sh"),
        };
        let by_tls = conclude("vipctl_by_mutual_tls", by_mutual_tls);
        let by_itself = conclude("vipctl_finds_vipd_by_itself", by_itself);
        let ends = [by_grpcurl, by_python, by_tls, by_itself];
        Ok(ends.into_iter().find(|&end| end != ExitCode::SUCCESS).unwrap_or(ExitCode::SUCCESS))
    })
}

fn conclude(name: &str, trial: fn() -> Result<()>) -> ExitCode {
    runner::conclude(&runner::run(vec![Trial::new(name, trial)], &Selection::from_args()))
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Something to run, and the lines that it must print.
struct Shown {
    language: String,
    code: String,
    printed: Vec<String>,
}

/// The blocks of the guide, in order. A `text` block is what the block before it prints.
fn guide() -> Result<Vec<Shown>> {
    let text = fs::read_to_string(root().join("docs/api.md"))?;
    let mut blocks: Vec<Shown> = Vec::new();
    // Between an opening and a closing fence is every second part.
    for block in text.split("\n```").skip(1).step_by(2) {
        let (language, code) = block.split_once('\n').context("a block without a line")?;
        if language == "text" {
            let before = blocks.last_mut().context("docs/api.md shows output of nothing")?;
            before.printed = code.lines().map(|line| line.trim().to_owned()).collect();
        } else {
            blocks.push(Shown { language: language.to_owned(), code: code.to_owned(), printed: Vec::new() });
        }
    }
    Ok(blocks)
}

impl Shown {
    /// Each line of the guide is found further down in the output than the one before it.
    fn is_in(&self, output: &str) -> Result<()> {
        let mut rest = output;
        for line in &self.printed {
            let found = rest.find(line.as_str());
            let at = found.with_context(|| format!("no {line:?} where the guide has it, after:\n{}", self.code))?;
            rest = &rest[at + line.len()..];
        }
        Ok(())
    }
}

/// A vipd that is reached where the guide has it.
struct Guided {
    _daemon: Daemon,
}

impl Guided {
    fn start(lab: &Lab) -> Result<Self> {
        let daemon = Daemon::start(lab, "userspace", &[])?;
        fs::create_dir_all(Path::new(SOCKET).parent().context("a folder")?)?;
        symlink(daemon.socket(), SOCKET)?;
        Ok(Self { _daemon: daemon })
    }
}

impl Drop for Guided {
    fn drop(&mut self) {
        let _ = fs::remove_file(SOCKET);
    }
}

/// Runs a program on the node and returns what it printed.
fn output(lab: &Lab, command: &mut Command) -> Result<String> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = lab.node.spawn(command)?.wait_with_output()?;
    let (printed, complaint) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "{}:\n{printed}{complaint}", output.status);
    Ok(printed.into_owned())
}

fn by_grpcurl() -> Result<()> {
    let lab = Lab::new()?;
    let _vipd = Guided::start(&lab)?;
    let b1 = &lab.backends[0];
    let _server = Server::start(b1, "b1", (b1.address(Family::V4), 8080), Proto::Tcp)?;
    let blocks: Vec<Shown> = guide()?.into_iter().filter(|block| block.language == "sh").collect();
    ensure!(blocks.len() > 5, "only {} blocks found in docs/api.md", blocks.len());
    for block in &blocks {
        let script = format!("set -eu -o pipefail\nS=unix://{SOCKET}\n{}", block.code);
        let mut bash = Command::new("timeout");
        bash.args(["30", "bash", "-c", &script]);
        let printed = output(&lab, &mut bash).with_context(|| block.code.clone())?;
        block.is_in(&printed).with_context(|| printed.clone())?;
    }
    Client::new(&lab.client, Proto::Tcp).ask_many(4, (vip(Family::V4, 20), 80))?.is_all("b1")
}

/// A Python that has what the guide installs.
fn python() -> Option<PathBuf> {
    let cached = env::var_os("HOME").map(|home| Path::new(&home).join(".cache/vipd-peers/python/bin/python"));
    let has_all = |python: &PathBuf| {
        let mut command = Command::new(python);
        command.args(["-c", "import grpc_tools, grpc_status"]).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    cached.into_iter().chain(["python3".into()]).find(has_all)
}

fn by_python() -> Result<()> {
    let lab = Lab::new()?;
    let _vipd = Guided::start(&lab)?;
    let mut servers = Vec::new();
    for (backend, name) in lab.backends.iter().zip(["b1", "b2"]) {
        servers.push(Server::start(backend, name, (backend.address(Family::V4), 8080), Proto::Tcp)?);
    }
    let python = python().context("Python was there a moment ago")?;
    let generated = lab.dir().join("generated");
    fs::create_dir_all(&generated)?;
    let mut protoc = Command::new(&python);
    protoc.args(["-m", "grpc_tools.protoc", "-I"]).arg(root().join("proto"));
    protoc.arg(format!("--python_out={}", generated.display()));
    protoc.arg(format!("--grpc_python_out={}", generated.display()));
    protoc.args(["service", "dataplane", "node"].map(|file| format!("vipd/v1/{file}.proto")));
    output(&lab, &mut protoc).context("generating the Python client")?;

    let program = guide()?.into_iter().find(|block| block.language == "python").context("no Python in docs/api.md")?;
    let mut run = Command::new("timeout");
    run.arg("60").arg(&python).args(["-c", &program.code]).env("PYTHONPATH", &generated);
    let printed = output(&lab, &mut run).context("the Python program of docs/api.md")?;
    program.is_in(&printed).with_context(|| printed.clone())?;
    ensure!(!program.printed.is_empty(), "docs/api.md does not show what its program prints");

    let web: (IpAddr, u16) = (vip(Family::V4, 10), 80);
    Client::new(&lab.client, Proto::Tcp).ask_many(40, web)?.is_drawn_from(&[("b1", 1.0), ("b2", 3.0)])
}

/// The certificate's name is the caller, and a certificate of somebody else's authority is nobody.
fn by_mutual_tls() -> Result<()> {
    const SERVER: &str = "127.0.0.1:9463";
    let files = root().canonicalize()?.join("dataplane/daemon/tests/api/tls");
    let lab = Lab::new()?;
    let config = lab.dir().join("vipd.toml");
    let file = |name: &str| files.join(name).display().to_string();
    let (certificate, key, ca) = (file("server.crt"), file("server.key"), file("ca.crt"));
    let who = "san:spiffe://example.org/vipd-k8s";
    fs::write(
        &config,
        format!(
            "listen = {SERVER:?}\ntls-cert = {certificate:?}\ntls-key = {key:?}\ntls-client-ca = {ca:?}\n\
             [[access]]\nwho = {who:?}\ndefault-owner = \"k8s\"\n"
        ),
    )?;
    let _daemon = Daemon::start(&lab, "userspace", &["--config", &config.display().to_string()])?;
    let vipctl = |name: &str, words: &[&str]| {
        let mut command = Command::new("timeout");
        command.arg("20").arg(vipd_binary()?.with_file_name("vipctl"));
        command.args(["--server", SERVER, "--tls-ca", &ca]);
        command.args(["--tls-cert", &file(&format!("{name}.crt")), "--tls-key", &file(&format!("{name}.key"))]);
        output(&lab, command.args(words))
    };
    let set = vipctl("client", &["owner", "set", "k8s", "--node-draining", "true"])?;
    ensure!(set.contains("in force"), "{set}");
    let journal = vipctl("client", &["events"])?;
    ensure!(journal.contains("spiffe://example.org/vipd-k8s"), "the journal names nobody: {journal}");
    let stranger = vipctl("stranger", &["get"]).err().context("a stranger was let in")?.to_string();
    ensure!(stranger.starts_with("exit status: 3"), "{stranger}");
    Ok(())
}

/// Client and daemon have the same rule for where the socket is, each its own: as root, and without root by whichever of
/// the variables there are.
fn by_itself() -> Result<()> {
    let lab = Lab::new()?;
    let vipd = vipd_binary()?;
    let vipctl = vipd.with_file_name("vipctl");
    let nobody = ["unshare", "--user", "--map-user=1000", "--map-group=1000"].as_slice();
    for (who, variables) in [
        (["env"].as_slice(), ["HOME"].as_slice()),
        (nobody, &["XDG_RUNTIME_DIR", "XDG_STATE_HOME", "HOME"]),
        (nobody, &["XDG_STATE_HOME", "HOME"]),
        (nobody, &["HOME"]),
    ] {
        let script = "\"$0\" --metrics off & trap 'kill $!' EXIT
            for _ in $(seq 100); do \"$1\" node 2>/dev/null && exit; sleep 0.1; done; exit 1";
        let mut command = Command::new(who[0]);
        command.args(&who[1..]).args(["timeout", "30", "bash", "-c", script]).arg(&vipd).arg(&vipctl);
        command.env_clear().env("PATH", env::var_os("PATH").unwrap_or_default());
        for name in variables {
            let dir = lab.dir().join(name);
            fs::create_dir_all(&dir)?;
            command.env(name, dir);
        }
        output(&lab, &mut command).with_context(|| format!("{} with {variables:?}", who[0]))?;
    }
    Ok(())
}
