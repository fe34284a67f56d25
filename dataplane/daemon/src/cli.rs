//! The command line of `vipd`. Flags stand over the environment and the file; what a flag sets is a key of the
//! configuration.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::config::value::{EngineChoice, IptablesBackend, LogFormat};
use crate::config::{Config, ConfigError, Sources};

/// Makes virtual IPs work on this node, for any orchestrator. Told what to do over gRPC.
#[derive(Clone, Debug, Parser)]
#[command(name = "vipd", version, after_help = EXAMPLES, args_conflicts_with_subcommands = false)]
pub struct Cli {
    /// What to do instead of serving.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Flags.
    #[command(flatten)]
    pub flags: Flags,
}

const EXAMPLES: &str = "\
Examples:
  vipd                                        serve; as root with virtual IPs, without root on this host's own addresses
  vipd --engine userspace --socket /tmp/v.sock --state-dir /tmp/v    try it out beside another vipd
  vipd check                                  would it run here, and with what?
  vipd check --example > /etc/vipd/vipd.toml  every key of the configuration, with its default
  vipd cleanup                                remove everything of vipd from the kernel

Then declare something:
  vipctl apply -f service.yaml
  grpcurl -plaintext -d '{\"service\":{\"name\":\"web\",\"frontends\":[{\"address\":\"10.96.0.10\",\"port\":80}]}}' \\
    unix:///run/vipd/vipd.sock vipd.v1.Dataplane/UpsertService";

/// What to do instead of serving.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Removes everything of vipd from the kernel, nothing else. Declared state stays in the store.
    Cleanup,
    /// Shows configuration, kernel, engines and host findings; the exit status says whether vipd can run here.
    Check {
        /// Print the example configuration, every key with its default, and do nothing else.
        #[arg(long)]
        example: bool,
    },
}

/// Flags that set keys of the configuration.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Flags {
    /// Configuration file [default: /etc/vipd/vipd.toml if it is there].
    #[arg(long, value_name = "FILE", global = true)]
    pub config: Option<PathBuf>,
    /// Unix socket of the API [default: /run/vipd/vipd.sock; without root: $XDG_RUNTIME_DIR/vipd/vipd.sock].
    #[arg(long, value_name = "PATH", global = true)]
    pub socket: Option<PathBuf>,
    /// Where declared state is kept [default: /var/lib/vipd; without root: $XDG_STATE_HOME/vipd].
    #[arg(long, value_name = "DIR", global = true)]
    pub state_dir: Option<PathBuf>,
    /// The node's default engine.
    #[arg(long, value_enum, global = true)]
    pub engine: Option<EngineChoice>,
    /// Do not start if the engine named cannot run here, instead of using the next one.
    #[arg(long, global = true)]
    pub no_engine_fallback: bool,
    /// Which iptables the engine iptables uses [default: auto, the one that this host uses].
    #[arg(long, value_enum, global = true)]
    pub iptables_backend: Option<IptablesBackend>,
    /// TCP address of the API with mutual TLS.
    #[arg(long, value_name = "ADDR", global = true)]
    pub listen: Option<SocketAddr>,
    /// The server's certificate chain, PEM.
    #[arg(long, value_name = "FILE", global = true)]
    pub tls_cert: Option<PathBuf>,
    /// Its key, PEM.
    #[arg(long, value_name = "FILE", global = true)]
    pub tls_key: Option<PathBuf>,
    /// Authorities whose client certificates are let in, PEM.
    #[arg(long, value_name = "FILE", global = true)]
    pub tls_client_ca: Option<PathBuf>,
    /// Loopback address of the API without authentication, for trying things out.
    #[arg(long, value_name = "ADDR", global = true)]
    pub insecure_loopback: Option<SocketAddr>,
    /// Address of /metrics, /healthz, /livez and /readyz, or "off" [default: 127.0.0.1:9464].
    #[arg(long, value_name = "ADDR", global = true)]
    pub metrics: Option<String>,
    /// How the log is written [default: text].
    #[arg(long, value_enum, global = true)]
    pub log: Option<LogFormat>,
    /// What is logged: error, warn, info, debug, trace, or a filter [default: info].
    #[arg(long, value_name = "LEVEL", global = true)]
    pub log_level: Option<String>,
}

impl Flags {
    /// The configuration that these flags, the environment and the file make together.
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub fn load(&self) -> Result<Config, ConfigError> {
        Config::load(&self.sources())
    }

    fn sources(&self) -> Sources {
        let mut flags = Vec::new();
        let mut set = |key, value: Option<String>| flags.extend(value.map(|value| (key, value)));
        let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.to_string_lossy().into_owned());
        let address = |address: Option<SocketAddr>| address.map(|address| address.to_string());
        set("socket", path(&self.socket));
        set("state-dir", path(&self.state_dir));
        set("engine", self.engine.map(|engine| engine.to_string()));
        set("engine-fallback", self.no_engine_fallback.then(|| "false".to_owned()));
        set("iptables-backend", self.iptables_backend.map(|backend| backend.to_string()));
        set("listen", address(self.listen));
        set("tls-cert", path(&self.tls_cert));
        set("tls-key", path(&self.tls_key));
        set("tls-client-ca", path(&self.tls_client_ca));
        set("insecure-loopback", address(self.insecure_loopback));
        set("metrics", self.metrics.clone());
        set("log", self.log.map(|log| log.to_string()));
        set("log-level", self.log_level.clone());
        Sources { file: self.config.clone(), flags, ..Sources::of_process() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_of_the_api_page() {
        let line = "vipd --config F --socket P --state-dir D --engine nftables --no-engine-fallback --listen 10.0.0.1:1 \
                    --tls-cert F --tls-key F --tls-client-ca F --metrics 127.0.0.1:0 --log json --log-level debug";
        let cli = Cli::try_parse_from(line.split_whitespace()).unwrap();
        let sources = cli.flags.sources();
        let text = Config::parse("", "none", &Sources { environment: Vec::new(), ..sources }).unwrap();
        assert_eq!((text.engine, text.engine_fallback), (EngineChoice::Nftables, false));
        assert_eq!((text.log, text.log_level.as_str()), (LogFormat::Json, "debug"));
        assert_eq!(text.metrics, "127.0.0.1:0");
        for line in
            ["vipd cleanup --state-dir D", "vipd check", "vipd --insecure-loopback 127.0.0.1:1", "vipd --engine auto"]
        {
            assert!(Cli::try_parse_from(line.split_whitespace()).is_ok(), "{line}");
        }
        assert!(Cli::try_parse_from(["vipd", "--engine", "magic"]).is_err());
    }

    #[test]
    fn the_definition_holds_together() {
        <Cli as clap::CommandFactory>::command().debug_assert();
    }
}
