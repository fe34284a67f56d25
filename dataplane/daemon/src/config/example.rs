//! The example file: every key with its explanation and default, made from [`super::settings`].

use serde_json::Value;

use super::settings::{Config, Key};

/// The text of `vipd.example.toml`. Keys stand commented out with their defaults, so that the file changes nothing until
/// somebody edits it.
#[must_use]
pub fn example() -> String {
    let defaults = serde_json::to_value(Config::of_root()).unwrap_or_default();
    let mut text = String::from(HEAD);
    for key in Config::keys() {
        let value = key.name.split('.').try_fold(&defaults, |value, part| value.get(part));
        match value {
            Some(Value::Object(_)) => {}
            Some(Value::Array(_)) if key.name == "access" => {}
            value => entry(&mut text, key, value.unwrap_or(&Value::Null)),
        }
    }
    text.push_str(ACCESS);
    text
}

const HEAD: &str = "\
# vipd: every key with its default. Generated: `vipd check --example`.
# Each can also stand in the environment: state-dir is VIPD_STATE_DIR, limits.calls is VIPD_LIMITS__CALLS.
# Durations are written \"250ms\", \"30s\", \"5m\", \"1h\", \"2d\".
";

const ACCESS: &str = r#"
# Who may do what; the first entry that matches a caller holds. Without an entry, whoever the socket's permissions let in
# (and, with insecure-loopback, whoever is on this host) may write every owner, and a certificate may do nothing.
#[[access]]
#who = "san:spiffe://example.org/vipd-k8s"   # or "socket", "loopback", "uid:1000", "gid:1000", "san:node7.example.org"
#owners = ["k8s"]                            # that may be written; "*": any
#read = ["*"]                                # that may be read
#default-owner = "k8s"                       # of calls that name none
#frontends = [{ cidr = "10.96.0.0/12" }, { cidr = "192.0.2.0/24", ports = "1-1023" }]
#node-ports = "30000-32767"
#operate = false                             # SetDefaultEngine, ReleaseHold
"#;

fn entry(text: &mut String, key: &Key, value: &Value) {
    let (section, name) = key.name.rsplit_once('.').unwrap_or(("", key.name));
    if !section.is_empty() && !text.contains(&format!("\n[{section}]\n")) {
        text.push_str(&format!("\n[{section}]\n"));
    } else {
        text.push('\n');
    }
    for line in key.doc {
        text.push_str(&format!("#{}\n", line.trim_end()));
    }
    match (value, key.example) {
        (Value::Null, Some(example)) => text.push_str(&format!("# Not set; for example:\n#{name} = {example:?}\n")),
        // JSON's numbers, strings, booleans and lists of them are TOML's too.
        (value, _) => text.push_str(&format!("#{name} = {value}\n")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Config, Sources};
    use super::*;

    /// Takes the comment sign from lines that hold a key.
    fn uncommented(text: &str) -> String {
        fn key(line: &str) -> Option<&str> {
            line.strip_prefix('#').filter(|rest| rest.starts_with(|c: char| c.is_ascii_lowercase() || c == '['))
        }
        text.lines().map(|line| key(line).unwrap_or(line)).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn the_example_has_every_key_with_its_default() {
        let text = example();
        assert_eq!(
            Config::parse(&text, "example", &Sources::default()).unwrap(),
            Config::default(),
            "as it is: nothing"
        );
        let full = Config::parse(&uncommented(&text), "example", &Sources::default());
        let full = full.unwrap_or_else(|e| panic!("{e}\n{}", uncommented(&text)));
        assert_eq!((full.limits, full.reconcile), (Config::default().limits, Config::default().reconcile));
        for key in Config::keys().filter(|key| !matches!(key.name, "limits" | "reconcile" | "node-ports" | "access")) {
            let name = key.name.rsplit('.').next().unwrap_or_default();
            assert!(text.contains(&format!("\n#{name} = ")), "{} is missing", key.name);
        }
        assert_eq!(full.access.len(), 1);
    }

    #[test]
    fn the_file_in_the_repository_is_this_example() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/vipd.example.toml");
        if std::env::var_os("VIPD_TESTS_WRITE").is_some() {
            std::fs::write(path, example()).unwrap();
        }
        let text = std::fs::read_to_string(path).unwrap();
        assert_eq!(text, example(), "write it anew: VIPD_TESTS_WRITE=1 cargo test -p vipd --lib example");
    }
}
