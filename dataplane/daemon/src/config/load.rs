//! Reading the configuration from file, environment and flags.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use config::{Environment, File, FileFormat};
use serde_json::Value;

use super::paths::SYSTEM_FILE;
use super::settings::{Config, Key};

/// Where values come from.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// `--config`; not given: `/etc/vipd/vipd.toml` if it is there.
    pub file: Option<PathBuf>,
    /// The environment; only what begins with `VIPD_` is looked at.
    pub environment: Vec<(String, String)>,
    /// Flags by the key that they set.
    pub flags: Vec<(&'static str, String)>,
}

impl Sources {
    /// The environment of this process, and no flags.
    #[must_use]
    pub fn of_process() -> Self {
        let text = |value: std::ffi::OsString| value.to_string_lossy().into_owned();
        let environment = std::env::vars_os().map(|(name, value)| (text(name), text(value))).collect();
        Self { environment, ..Self::default() }
    }
}

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file that was named cannot be read.
    #[error("cannot read {}: {error}", .path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// Syntax, or a value of the wrong kind.
    #[error("{place}: {message}")]
    Value {
        /// The file, or "environment and flags".
        place: String,
        /// What, where, why.
        message: String,
    },
    /// Keys that vipd does not know.
    #[error("{}", .0.join("\n"))]
    Unknown(Vec<String>),
    /// Values that do not go together.
    #[error("{0}")]
    Contradiction(String),
}

/// Environment variables that begin like ours and are not: the test suite's own, and those that Kubernetes puts into a
/// pod for a service that is named `vipd`.
fn is_foreign(variable: &str) -> bool {
    variable.starts_with("VIPD_TESTS_") || variable.starts_with("VIPD_SERVICE_") || variable.starts_with("VIPD_PORT")
}

impl Config {
    /// Reads all sources.
    ///
    /// # Errors
    /// What is wrong, where, and what to write instead.
    pub fn load(sources: &Sources) -> Result<Self, ConfigError> {
        let text = read(sources.file.as_deref())?;
        let place = sources.file.as_deref().unwrap_or(Path::new(SYSTEM_FILE)).display().to_string();
        Self::parse(&text, &place, sources)
    }

    /// The same over the text of a file. A function: for tests and fuzzing.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn parse(text: &str, place: &str, sources: &Sources) -> Result<Self, ConfigError> {
        let wrong =
            |error: &config::ConfigError| ConfigError::Value { place: place.to_owned(), message: error.to_string() };
        let file = File::from_str(text, FileFormat::Toml);
        let in_file: Value = config::Config::builder()
            .add_source(file.clone())
            .build()
            .and_then(|c| c.try_deserialize())
            .map_err(|e| wrong(&e))?;
        let mut unknown = unknown_keys(&in_file, place);

        let environment = variables(&sources.environment, &mut unknown);
        if !unknown.is_empty() {
            return Err(ConfigError::Unknown(unknown));
        }
        let mut builder = config::Config::builder().add_source(file).add_source(environment);
        for (key, value) in &sources.flags {
            builder = builder.set_override(*key, value.as_str()).map_err(|e| wrong(&e))?;
        }
        let config: Self = builder.build().and_then(|c| c.try_deserialize()).map_err(|e| wrong(&e))?;
        config.check()?;
        Ok(config)
    }

    /// What goes together.
    fn check(&self) -> Result<(), ConfigError> {
        let contradiction = |text: String| Err(ConfigError::Contradiction(text));
        let tls = [("tls-cert", &self.tls_cert), ("tls-key", &self.tls_key), ("tls-client-ca", &self.tls_client_ca)];
        match tls.iter().find(|(_, file)| file.is_none()) {
            Some((missing, _)) if self.listen.is_some() => {
                return contradiction(format!(
                    "listen serves TCP with mutual TLS only, and {missing} is not set; set it, or use insecure-loopback \
                     to try things out on this host"
                ));
            }
            _ => {}
        }
        if let Some((set, _)) = tls.iter().find(|(_, file)| file.is_some() && self.listen.is_none()) {
            return contradiction(format!(
                "{set} is set without listen; set listen to the address to serve, or remove it"
            ));
        }
        if let Some(address) = self.insecure_loopback
            && !address.ip().is_loopback()
        {
            return contradiction(format!(
                "insecure-loopback is {address}, which others can reach; use 127.0.0.1 or [::1], or listen with tls-cert, \
                 tls-key and tls-client-ca"
            ));
        }
        if self.metrics_address().is_err() {
            let metrics = &self.metrics;
            return contradiction(format!(
                "metrics is {metrics:?}; write an address and port such as 127.0.0.1:9464, or off"
            ));
        }
        let owners = self.access.iter().filter_map(|entry| entry.default_owner.as_ref());
        for owner in owners.chain([&self.default_owner]).chain(&self.reconcile.wait_for_owners) {
            if let Err(why) = vipd_model::OwnerName::new(owner) {
                return contradiction(format!("the owner {owner:?} {why}"));
            }
        }
        if self.limits.large_removal_percent > 100 {
            return contradiction("limits.large-removal-percent is a percentage: 0 to 100".to_owned());
        }
        Ok(())
    }

    /// Where metrics are served, if they are.
    ///
    /// # Errors
    /// If it is no address.
    pub fn metrics_address(&self) -> Result<Option<std::net::SocketAddr>, std::net::AddrParseError> {
        match self.metrics.as_str() {
            "" | "off" => Ok(None),
            address => address.parse().map(Some),
        }
    }
}

fn read(file: Option<&Path>) -> Result<String, ConfigError> {
    let path = file.unwrap_or(Path::new(SYSTEM_FILE));
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(text),
        Err(error) if file.is_none() && error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(ConfigError::File { path: path.to_owned(), error }),
    }
}

/// Our variables, by key. Adds those that nobody knows to `unknown`.
fn variables(environment: &[(String, String)], unknown: &mut Vec<String>) -> Environment {
    let mut ours = BTreeMap::new();
    for (name, value) in environment.iter().filter(|(name, _)| name.starts_with("VIPD_") && !is_foreign(name)) {
        match Config::keys().find(|key| variable(key) == *name) {
            Some(_) => drop(ours.insert(name.clone(), value.clone())),
            None => {
                let known = Config::keys().map(variable).collect::<Vec<_>>();
                unknown.push(format!("environment: vipd has no variable {name}{}", suggestion(name, &known)));
            }
        }
    }
    Environment::with_prefix("VIPD")
        .prefix_separator("_")
        .separator("__")
        .convert_case(config::Case::Kebab)
        .try_parsing(true)
        .list_separator(",")
        .with_list_parse_key("engine-order")
        .with_list_parse_key("reconcile.wait-for-owners")
        .with_list_parse_key("node-ports.addresses")
        .source(Some(ours.into_iter().collect()))
}

/// The environment variable of a key: `limits.intake-bytes` is `VIPD_LIMITS__INTAKE_BYTES`.
fn variable(key: &Key) -> String {
    format!("VIPD_{}", key.name.to_uppercase().replace('.', "__").replace('-', "_"))
}

/// Every key of the file that vipd does not know, each with the one that was perhaps meant.
fn unknown_keys(file: &Value, place: &str) -> Vec<String> {
    let Value::Object(top) = file else { return Vec::new() };
    let known: Vec<String> = Config::keys().map(|key| key.name.to_owned()).collect();
    let mut unknown = Vec::new();
    for (name, value) in top {
        let section = format!("{name}.");
        match value {
            Value::Object(keys) if known.iter().any(|k| k.starts_with(&section)) => {
                let inside = keys.keys().map(|key| format!("{section}{key}"));
                unknown.extend(inside.filter(|key| !known.contains(key)));
            }
            _ if known.contains(name) => {}
            _ => unknown.push(name.clone()),
        }
    }
    let sentence = |key: String| format!("{place}: vipd has no key {key}{}", suggestion(&key, &known));
    unknown.into_iter().map(sentence).collect()
}

/// "; did you mean …?", if something is near.
fn suggestion(wrong: &str, known: &[String]) -> String {
    let distance = |name: &str| strsim::damerau_levenshtein(wrong, name);
    // Somebody may have the right key in the wrong section.
    let last = |name: &str| name.rsplit('.').next().unwrap_or_default().to_owned();
    let misplaced = known.iter().find(|name| last(name) == last(wrong));
    let near = known.iter().map(|name| (distance(name), name)).min().filter(|(d, _)| *d <= 3.max(wrong.len() / 4));
    match near.map(|(_, name)| name).or(misplaced) {
        Some(name) => format!("; did you mean {name}?"),
        None => "; `vipd check --example` prints every key".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(text, "vipd.toml", &Sources::default()).map_err(|e| e.to_string())
    }

    #[test]
    fn file_then_environment_then_flags() {
        let sources = Sources {
            file: None,
            environment: vec![
                ("VIPD_STATE_DIR".to_owned(), "/from/environment".to_owned()),
                ("VIPD_LIMITS__CALLS".to_owned(), "7".to_owned()),
                ("VIPD_ENGINE_ORDER".to_owned(), "userspace,ipvs".to_owned()),
                ("VIPD_RECONCILE__CHECK_EVERY".to_owned(), "5m".to_owned()),
                ("VIPD_SERVICE_HOST".to_owned(), "10.96.0.7".to_owned()),
                ("VIPD_TESTS_REQUIRE".to_owned(), "all".to_owned()),
                ("HOME".to_owned(), "/root".to_owned()),
            ],
            flags: vec![("socket", "/from/flag".to_owned())],
        };
        let text = "socket = '/from/file'\nstate-dir = '/from/file'\nlog = 'json'\n[limits]\ncalls = 5\nstreams = 6";
        let config = Config::parse(text, "vipd.toml", &sources).unwrap();
        assert_eq!(config.socket, Path::new("/from/flag"));
        assert_eq!(config.state_dir, Path::new("/from/environment"));
        assert_eq!(config.log, crate::config::value::LogFormat::Json);
        assert_eq!((config.limits.calls, config.limits.streams), (7, 6));
        assert_eq!(config.engine_order.len(), 2);
        assert_eq!(config.reconcile.check_every.0, 300.0);
    }

    #[test]
    fn an_unknown_key_is_an_error_with_the_one_that_was_meant() {
        let why = parse("sokcet = 'x'\n[limits]\ncals = 1\n[reconcil]\nbatch = 1\n[colours]\nred = 1").unwrap_err();
        assert!(why.contains("vipd.toml: vipd has no key sokcet; did you mean socket?"), "{why}");
        assert!(why.contains("no key limits.cals; did you mean limits.calls?"), "{why}");
        assert!(why.contains("no key reconcil; did you mean reconcile?"), "{why}");
        assert!(why.contains("no key colours; `vipd check --example`"), "{why}");
        let why = parse("check-every = '1s'").unwrap_err();
        assert!(why.contains("did you mean reconcile.check-every?"), "{why}");
        let environment = vec![("VIPD_SOCKT".to_owned(), "x".to_owned())];
        let sources = Sources { environment, ..Sources::default() };
        let why = Config::parse("", "vipd.toml", &sources).unwrap_err().to_string();
        assert!(why.contains("no variable VIPD_SOCKT; did you mean VIPD_SOCKET?"), "{why}");
    }

    #[test]
    fn a_wrong_value_names_its_key() {
        for (text, wanted) in [
            ("limits.calls = 'many'", "limits.calls"),
            ("engine = 'magic'", "userspace"),
            ("[[access]]\nwho = 'everybody'", "san:NAME"),
            ("[[access]]\nwho = 'uid:0'\nowner = 'x'", "owners"),
            ("socket-mode = '888'", "octal"),
            ("reconcile.check-every = 'soon'", "\"30s\""),
            ("socket = ", "vipd.toml"),
        ] {
            let why = parse(text).unwrap_err();
            assert!(why.contains(wanted), "{text}: {why}");
        }
    }

    #[test]
    fn what_does_not_go_together_is_refused_with_the_way_out() {
        for (text, wanted) in [
            ("listen = '10.0.0.1:1'", "tls-cert is not set"),
            ("tls-cert = '/x'", "set listen"),
            ("insecure-loopback = '10.0.0.1:1'", "use 127.0.0.1"),
            ("metrics = 'yes'", "or off"),
            ("default-owner = ''", "is empty"),
            ("limits.large-removal-percent = 101", "0 to 100"),
        ] {
            let why = parse(text).unwrap_err();
            assert!(why.contains(wanted), "{text}: {why}");
        }
    }
}
