//! The commands that README.md shows, run as they stand there, with the real `grpcurl`: without root and as root.
//!
//! Two things are changed, both said here: `cargo build` is left out (the programs that this test was built with stand
//! in `target/release`), and before the first `grpcurl` the script waits for the socket, as a person typing does.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::IpAddr;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};

use anyhow::{Context as _, Result, ensure};
use vipd_tests::lab::{Family, Host, Lab, vip, vipd_binary, without_our_variables};
use vipd_tests::rings;
use vipd_tests::runner::{self, Selection, Trial};
use vipd_tests::traffic::{Client, Proto, Server, Tally};

fn main() -> ExitCode {
    rings::in_the_lab("readme", || {
        rings::with_peer("grpcurl", || {
            let trials = vec![
                Trial::new("the_commands_without_root", without_root),
                Trial::new("the_commands_as_root", as_root),
            ];
            Ok(runner::conclude(&runner::run(trials, &Selection::from_args())))
        })
    })
}

/// The shell block under "Run it" that contains `mark`.
fn block(mark: &str) -> Result<String> {
    let readme = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md"))?;
    let mut blocks = readme.split("```sh\n").skip(1).filter_map(|rest| rest.split_once("```").map(|(block, _)| block));
    let found = blocks.find(|block| block.contains("grpcurl") && block.contains(mark));
    Ok(found.with_context(|| format!("README.md has no shell block with grpcurl and {mark:?}"))?.to_owned())
}

/// A shell that has run the block and waits, its daemon running, until it is dropped.
struct Shown(Child);

impl Shown {
    fn run(host: &Host, dir: &Path, shell: &[&str], block: &str) -> Result<Self> {
        let programs = dir.join("target/release");
        fs::create_dir_all(&programs)?;
        let vipd = vipd_binary()?;
        for program in ["vipd", "vipctl"] {
            symlink(vipd.with_file_name(program), programs.join(program))?;
        }
        let mut script = String::from("set -e\n");
        let mut waited = false;
        for line in block.lines().filter(|line| !line.starts_with("cargo build")) {
            if line.starts_with("grpcurl") && !waited {
                script += "until [ -S \"${S#unix://}\" ]; do sleep 0.05; done\n";
                waited = true;
            }
            script += line;
            script += "\n";
        }
        script += "echo SHOWN; read -r _ || true; kill $!\n";
        fs::write(dir.join("shown.sh"), script)?;
        let mut command = Command::new(shell[0]);
        command
            .args(&shell[1..])
            .args(["timeout", "60", "bash", "shown.sh"])
            .current_dir(dir)
            .env("HOME", dir)
            .env("XDG_RUNTIME_DIR", dir.join("runtime"))
            .env_remove("XDG_STATE_HOME")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        without_our_variables(&mut command);
        let mut child = host.spawn(&mut command)?;
        let output = BufReader::new(child.stdout.take().context("no output")?);
        let shown = Self(child);
        let mut said = Vec::new();
        for line in output.lines() {
            let line = line?;
            if line == "SHOWN" {
                return Ok(shown);
            }
            said.push(line);
        }
        anyhow::bail!("the commands of the README failed after: {said:#?}")
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// A user namespace in which nobody is root: no capability is left once a program runs there.
fn without_root() -> Result<()> {
    let lab = Lab::new()?;
    let loopback: IpAddr = "127.0.0.1".parse()?;
    let _servers = [
        Server::start(&lab.node, "first", (loopback, 9001), Proto::Tcp)?,
        Server::start(&lab.node, "second", (loopback, 9002), Proto::Tcp)?,
    ];
    let nobody = ["unshare", "--user", "--map-user=1000", "--map-group=1000"];
    let _shown = Shown::run(&lab.node, lab.dir(), &nobody, &block("127.0.0.10")?)?;
    let tally: Tally = Client::new(&lab.node, Proto::Tcp).ask_many(8, ("127.0.0.10".parse()?, 8080))?;
    ensure!(tally.answered() == 8 && tally.count("second") > 0, "{tally}");
    Ok(())
}

/// The endpoints that the README names do not exist here; another list does, so that traffic can be shown to flow.
fn as_root() -> Result<()> {
    let lab = Lab::new()?;
    let shown = Shown::run(&lab.node, lab.dir(), &["env"], &block("10.96.0.10")?)?;
    let b1 = &lab.backends[0];
    let server = Server::start(b1, "b1", (b1.address(Family::V4), 8080), Proto::Tcp)?;
    let list =
        format!("{{\"name\":\"web\",\"endpoints\":[{{\"address\":\"{}\",\"port\":8080}}]}}", server.address().ip());
    let mut call = Command::new("grpcurl");
    call.args(["-plaintext", "-d", &list, "unix:///run/vipd/vipd.sock", "vipd.v1.Dataplane/SetEndpoints"]);
    ensure!(lab.node.spawn(&mut call)?.wait()?.success(), "SetEndpoints by grpcurl");
    Client::new(&lab.client, Proto::Tcp).ask_many(4, (vip(Family::V4, 10), 80))?.is_all("b1")?;
    drop(shown);
    Ok(())
}
