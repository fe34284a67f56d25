//! Programs that are missing, fail or hang; a lock that is held; a death between two writes.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use vipd_engine::{Operation, Runner, Steps as _};
use vipd_iptables::{Backend, Choice, Iptables, Options, Patience};
use vipd_model::Protocol;
use vipd_netlink::testing::{in_namespace, run};

use crate::kit::*;
use crate::lab::*;

const TCP: Protocol = Protocol::Tcp;

/// A folder with stand-ins for the programs of a back end; each runs this script with its own name's real program in
/// `$REAL`.
struct Programs {
    folder: PathBuf,
}

impl Programs {
    fn new(backend: Backend, script: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("vipd-iptables-{}-{backend}", nix::unistd::gettid()));
        fs::create_dir_all(&folder).unwrap();
        let programs = Self { folder };
        for family in ["iptables", "ip6tables"] {
            for verb in ["restore", "save"] {
                let name = format!("{family}-{backend}-{verb}");
                let script = if verb == "restore" { script } else { "exec $REAL \"$@\"" };
                programs.write(&name, &format!("#!/bin/sh\nREAL=/usr/sbin/{name}\n{script}\n"));
            }
        }
        programs
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.folder.join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn options(&self, backend: Backend) -> Options {
        let patience = Patience { lock: Duration::from_secs(1), program: Duration::from_secs(2) };
        Options { backend: Choice::Only(backend), patience, folders: vec![self.folder.clone()] }
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Tries to put a service in force and returns what was said.
fn refused(runner: &mut Runner<Iptables>, spec: &Spec) -> String {
    let made = runner.make(vec![(spec.key.clone(), Some(spec.selected()))]);
    made.outcomes.into_iter().next().unwrap().1.unwrap_err().message
}

#[test]
fn without_the_programs_it_is_said_what_to_install() {
    let options = Options { folders: vec![PathBuf::from("/nonexistent")], ..Options::default() };
    let why = Iptables::open(&options).unwrap_err().to_string();
    assert!(why.contains("iptables-nft-restore") && why.contains("install"), "{why}");
    assert_eq!(Iptables::probe(&options).unwrap_err().to_string(), why);
}

#[test]
fn a_program_that_fails_or_hangs_loses_nothing() {
    on_both(|backend| {
        let lab = Lab::new();
        let faults = [
            ("echo boom >&2; exit 2", "boom"),
            ("exec sleep 600", "did not end"),
            ("$REAL \"$@\"; sleep 600", "did not end"),
            ("kill -9 $$", "killed"),
        ];
        let to = at("10.96.0.1", 80);
        for (script, said) in faults {
            let programs = Programs::new(backend, "exec $REAL \"$@\"");
            let mut runner = Runner::start(Iptables::open(&programs.options(backend)).unwrap()).unwrap();
            runner.set_node(node()).unwrap();
            runner.release().unwrap();
            let web = spec("web", TCP).vip("10.96.0.1", 80).to(&[11]);
            put(&mut runner, &[&web]);
            let broken = Programs::new(backend, script);
            let moved = web.clone().to(&[12]);
            let why = refused(&mut runner, &moved);
            assert!(why.contains(said), "{script}: {why}");
            assert!(lab.client.connect(to).by().is_some(), "{script}: what was in force stays");
            drop(broken);
            let _mended = Programs::new(backend, "exec $REAL \"$@\"");
            put(&mut runner, &[&moved]);
            settled(&mut runner);
            assert_eq!(lab.client.connect(to).by(), Some(at("10.2.0.12", 8080)));
            remove(&mut runner, &[&web]);
        }
    });
}

#[test]
fn a_held_lock_is_named_and_waited_for() {
    in_namespace(|| {
        let lock = std::env::temp_dir().join(format!("vipd-xtables-{}.lock", nix::unistd::gettid()));
        fs::write(&lock, "").unwrap();
        let backend = Backend::Legacy;
        let script = format!("export XTABLES_LOCKFILE={}\nexec $REAL \"$@\"", lock.display());
        let programs = Programs::new(backend, &script);
        let mut runner = Runner::start(Iptables::open(&programs.options(backend)).unwrap()).unwrap();
        runner.set_node(node()).unwrap();
        let web = spec("web", TCP).vip("10.96.0.1", 80).to(&[11]);
        let holder = hold(&lock, "600");
        let before = Instant::now();
        let why = refused(&mut runner, &web);
        assert!(why.contains("xtables lock is held"), "{why}");
        assert!(before.elapsed() < Duration::from_secs(20), "bounded");
        end(holder);
        // Held, and free in time: nobody is told anything.
        let holder = hold(&lock, "0.5");
        put(&mut runner, &[&web]);
        settled(&mut runner);
        end(holder);
        fs::remove_file(lock).unwrap();
    });
}

/// Holds the lock for so many seconds.
fn hold(lock: &Path, seconds: &str) -> std::process::Child {
    let mut holder = Command::new("flock");
    holder
        .arg("--no-fork")
        .arg(lock)
        .args(["sh", "-c", &format!("echo held; exec sleep {seconds}")])
        .stdout(Stdio::piped());
    let mut child = holder.spawn().unwrap();
    let mut said = [0; 5];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut said).unwrap();
    child
}

fn end(mut child: std::process::Child) {
    let _ = child.kill();
    let _ = child.wait();
}

/// What one process left half done, the next finds and finishes: each prefix of the operations is tried.
#[test]
fn a_death_between_two_writes_is_survived() {
    on_both(|backend| {
        let lab = Lab::new();
        let before: Vec<Spec> =
            (0..3).map(|n| spec(&format!("s{n}"), TCP).vip(&vip_of(vipd_model::Family::V4, n), 80).to(&[11])).collect();
        let after: Vec<Spec> = vec![
            before[0].clone(),
            before[1].clone().to(&[12]).node_port(30080),
            spec("new", TCP).vip("10.96.0.77", 80).to(&[13]),
        ];
        let mut writes = 0;
        loop {
            let mut runner = started(backend, node());
            put(&mut runner, &before.iter().collect::<Vec<_>>());
            let mut batch: Vec<_> = after.iter().map(|s| (s.key.clone(), Some(s.selected()))).collect();
            batch.push((before[2].key.clone(), None));
            let (plan, _) = runner.dry_run(batch);
            drop(runner);
            let operations: Vec<_> = plan.make.into_iter().chain(plan.finish).collect();
            let mut dying = Iptables::open(&options(backend)).unwrap();
            let there = dying.observe().unwrap().objects;
            // What a start does first; while no service of a family is served this is not written.
            let mut numbers = vipd_engine::Assignments::default();
            let of_node =
                dying.render_node(&node(), &mut numbers).into_iter().filter(|(key, _)| !there.contains_key(key));
            let of_node: Vec<_> = of_node.map(|(key, value)| Operation::Add { key, value }).collect();
            dying.apply(&of_node, &mut numbers).unwrap();
            for operation in operations.iter().take(writes) {
                dying.apply(std::slice::from_ref(operation), &mut numbers).unwrap();
                assert_eq!(lab.client.connect(at("10.96.0.0", 80)).by(), Some(at("10.2.0.11", 8080)), "undisturbed");
            }
            drop(dying);
            let mut next = Runner::start(Iptables::open(&options(backend)).unwrap()).unwrap();
            next.set_node(node()).unwrap();
            put(&mut next, &after.iter().collect::<Vec<_>>());
            next.release().unwrap();
            settled(&mut next);
            assert_eq!(lab.client.connect(at("10.96.0.77", 80)).by(), Some(at("10.2.0.13", 8080)));
            assert_eq!(lab.client.connect(at("10.96.0.2", 80)).by(), None);
            remove(&mut next, &after.iter().collect::<Vec<_>>());
            if writes >= operations.len() {
                assert!(writes > 4, "{writes} operations");
                return;
            }
            writes += 2;
        }
    });
}

#[test]
fn somebody_elses_writes_are_noticed_cheaply() {
    on_both(|backend| {
        let mut runner = started(backend, node());
        assert!(!runner.steps_mut().disturbed());
        put(&mut runner, &[&spec("web", TCP).vip("10.96.0.1", 80).to(&[11])]);
        settled(&mut runner);
        let noticed = |runner: &mut Runner<Iptables>| {
            let patience = Instant::now() + Duration::from_secs(20);
            while Instant::now() < patience {
                if runner.steps_mut().disturbed() {
                    return true;
                }
                std::thread::sleep(Duration::from_millis(50));
            }
            false
        };
        std::thread::sleep(Duration::from_secs(3));
        assert!(!runner.steps_mut().disturbed(), "nobody wrote");
        put(&mut runner, &[&spec("more", TCP).vip("10.96.0.2", 80).to(&[11])]);
        assert!(!runner.steps_mut().disturbed(), "that was us");
        run(&format!("iptables-{backend}"), &["-t", "nat", "-F", "VIPD-SERVICES"]);
        assert!(noticed(&mut runner));
        assert!(!runner.check().unwrap().is_empty());
        runner.repair();
        settled(&mut runner);
    });
}
