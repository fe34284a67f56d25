//! Holds the workspace to the drawing in ARCHITECTURE.md: who may depend on whom, and a few rules that a compiler does
//! not check. Reads manifests and sources; builds nothing.

#![expect(clippy::expect_used, reason = "helpers of tests, outside of a #[test] function")]

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// What each crate may use of this workspace. Down the drawing only: a crate may use what stands before it here.
const MAY_USE: &[(&str, &[&str])] = &[
    ("vipd-proto", &[]),
    ("vipd-model", &[]),
    ("vipd-netlink", &[]),
    ("ipvs-rs", &[]),
    ("vipd-engine", &["vipd-model"]),
    ("vipd-userspace", &["vipd-model", "vipd-engine"]),
    ("vipd-nftables", &["vipd-model", "vipd-engine", "vipd-netlink"]),
    ("vipd-iptables", &["vipd-model", "vipd-engine", "vipd-netlink"]),
    ("vipd-ipvs", &["vipd-model", "vipd-engine", "vipd-netlink", "ipvs-rs"]),
    (
        "vipd",
        &[
            "vipd-proto",
            "vipd-model",
            "vipd-engine",
            "vipd-netlink",
            "vipd-userspace",
            "vipd-nftables",
            "vipd-iptables",
            "vipd-ipvs",
        ],
    ),
    ("vipd-client", &["vipd-proto"]),
    ("vipctl", &["vipd-proto", "vipd-client"]),
    ("vipd-k8s", &["vipd-proto", "vipd-client"]),
    ("vipd-tests", &["vipd-proto", "vipd-client"]),
];

/// Crates that know no async runtime: what they do is a function of what they are given, or blocking netlink.
const NO_TOKIO: &[&str] = &["vipd-model", "vipd-engine", "vipd-netlink", "ipvs-rs", "vipd-nftables", "vipd-iptables"];

/// Folders in which `unsafe` may be allowed.
const UNSAFE: &[&str] = &["dataplane/netlink", "dataplane/ipvs-rs", "dataplane/userspace"];

/// A file longer than this holds more than one noun.
const LINES: usize = 500;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the workspace's root")
}

/// Crate → what it uses in its normal build, by `cargo metadata`.
fn uses() -> BTreeMap<String, BTreeSet<String>> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let arguments = ["metadata", "--no-deps", "--offline", "--format-version", "1"];
    let output = Command::new(cargo).args(arguments).current_dir(root()).output().expect("cargo metadata");
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("JSON of cargo metadata");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let uses_of = |package: &Value| {
        let normal = list(&package["dependencies"]).into_iter().filter(|dependency| dependency["kind"].is_null());
        normal.map(|dependency| text(&dependency["name"])).collect()
    };
    list(&metadata["packages"]).iter().map(|package| (text(&package["name"]), uses_of(package))).collect()
}

/// Every Rust source of the workspace, by its path from the root.
fn sources() -> Vec<(String, String)> {
    fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).expect("a readable folder").flatten() {
            let path = entry.path();
            let hidden = entry.file_name().to_string_lossy().starts_with('.') || path.ends_with("target");
            if path.is_dir() && !hidden {
                walk(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    let (root, mut found) = (root(), Vec::new());
    walk(&root, &mut found);
    assert!(found.len() > 20, "only {} sources found under {}", found.len(), root.display());
    let read = |path: PathBuf| {
        let name = path.strip_prefix(&root).unwrap_or(&path).display().to_string();
        (name, fs::read_to_string(path).expect("a readable source"))
    };
    found.into_iter().map(read).collect()
}

#[test]
fn dependencies_point_down_the_drawing() {
    let uses = uses();
    assert!(uses.contains_key("vipd-model"), "cargo metadata says nothing: {uses:?}");
    for (name, used) in &uses {
        let ours: BTreeSet<&String> = used.iter().filter(|used| uses.contains_key(*used)).collect();
        let allowed = MAY_USE.iter().find(|(known, _)| known == name).map(|(_, allowed)| *allowed);
        let allowed = allowed.unwrap_or_else(|| panic!("{name} has no place in the drawing: give it one in MAY_USE"));
        for used in ours {
            assert!(allowed.contains(&used.as_str()), "{name} may not use {used}: see ARCHITECTURE.md");
        }
    }
}

#[test]
fn pure_crates_know_no_async_runtime() {
    for (name, used) in uses() {
        assert!(!NO_TOKIO.contains(&name.as_str()) || !used.contains("tokio"), "{name} depends on tokio");
    }
    for (path, text) in sources() {
        let pure = path.ends_with("/render.rs") || path.ends_with("/plan.rs");
        assert!(!pure || !text.contains("tokio"), "{path} names tokio");
    }
}

#[test]
fn generated_types_stop_at_the_api() {
    for (path, text) in sources() {
        // The store's records are messages of the API (docs/decisions/0001-store.md); what reads them is converted.
        let ends = ["dataplane/daemon/src/api", "dataplane/daemon/src/store/"].iter().any(|end| path.starts_with(end));
        let behind = path.starts_with("dataplane/") && !ends;
        let test = path.contains("/tests/") || path.ends_with("tests.rs") || path.contains("/benches/");
        assert!(!behind || test || !text.contains("vipd_proto"), "{path} uses generated types");
    }
}

#[test]
fn unsafe_code_is_allowed_only_where_the_kernel_is_spoken_to() {
    // Put together here, so that this file does not find itself.
    let allowing = [concat!("allow(", "unsafe_code"), concat!("expect(", "unsafe_code")];
    for (path, text) in sources() {
        let found = allowing.iter().any(|allow| text.contains(allow));
        assert!(!found || UNSAFE.iter().any(|folder| path.starts_with(folder)), "{path} allows unsafe code");
    }
}

#[test]
fn files_hold_one_noun() {
    let long: Vec<String> = sources()
        .into_iter()
        .map(|(path, text)| (path, text.lines().count()))
        .filter(|&(_, lines)| lines > LINES)
        .map(|(path, lines)| format!("{path}: {lines} lines"))
        .collect();
    assert!(long.is_empty(), "longer than {LINES} lines: {long:#?}");
}
