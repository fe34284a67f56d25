//! Every key of the configuration, once: type, default and explanation. The structs, the check for unknown keys and the
//! example file are all made from here.

use std::net::SocketAddr;
use std::path::PathBuf;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::access::AccessEntry;
use super::value::{EngineChoice, IptablesBackend, LogFormat, Mode, Seconds};
use crate::config::paths;

/// A key as people see it.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// As it is written in the file; `section.key` inside a section.
    pub name: &'static str,
    /// What it is for, in lines.
    pub doc: &'static [&'static str],
    /// A value for the example where the default is "not set".
    pub example: Option<&'static str>,
}

macro_rules! settings {
    (
        $(#[doc = $struct_doc:literal])+
        $struct:ident in $section:literal {
            $(
                $(#[doc = $doc:literal])+
                $name:ident $text:literal: $type:ty = $default:expr $(, example $example:literal)?;
            )+
        }
    ) => {
        $(#[doc = $struct_doc])+
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $struct {
            $(
                $(#[doc = $doc])+
                #[serde(rename = $text)]
                pub $name: $type,
            )+
        }

        impl Default for $struct {
            fn default() -> Self {
                Self { $($name: $default),+ }
            }
        }

        impl $struct {
            /// Its keys, in the order of the example file.
            pub const KEYS: &'static [Key] = &[
                $(Key { name: concat!($section, $text), doc: &[$($doc),+], example: settings!(@example $($example)?) }),+
            ];
        }
    };
    (@example) => { None };
    (@example $example:literal) => { Some($example) };
}

settings! {
    /// The configuration: what stands at the top of the file, and the sections.
    Config in "" {
        /// The unix socket on which the API is served. Without root: $XDG_RUNTIME_DIR/vipd/vipd.sock.
        socket "socket": PathBuf = paths::default_socket();
        /// Its permissions. The default lets root and the socket's group in.
        socket_mode "socket-mode": Mode = Mode(0o660);
        /// The group that owns the socket, by name or number. Not set: vipd's own.
        socket_group "socket-group": Option<String> = None, example "vipd";
        /// Where declared state is kept. Without root: $XDG_STATE_HOME/vipd.
        state_dir "state-dir": PathBuf = paths::default_state_dir();
        /// The node's default engine: auto, userspace, iptables, nftables or ipvs. auto: the first of engine-order that
        /// can run here.
        engine "engine": EngineChoice = EngineChoice::Auto;
        /// The order in which engines are asked for a service that the default one cannot honour.
        engine_order "engine-order": Vec<EngineChoice> = EngineChoice::ORDER.to_vec();
        /// If the engine named cannot run here: start with the next of engine-order (true), or do not start (false).
        engine_fallback "engine-fallback": bool = true;
        /// Which iptables the engine iptables uses: auto (the one that this host uses), legacy or nft.
        iptables_backend "iptables-backend": IptablesBackend = IptablesBackend::Auto;
        /// TCP address of the API for other machines; needs the three tls- files.
        listen "listen": Option<SocketAddr> = None, example "10.0.0.5:9463";
        /// The server's certificate chain, PEM.
        tls_cert "tls-cert": Option<PathBuf> = None, example "/etc/vipd/tls/server.crt";
        /// Its key, PEM.
        tls_key "tls-key": Option<PathBuf> = None, example "/etc/vipd/tls/server.key";
        /// The authorities whose client certificates are let in, PEM. The files are read again when they change.
        tls_client_ca "tls-client-ca": Option<PathBuf> = None, example "/etc/vipd/tls/clients.crt";
        /// Loopback address of the API without any authentication: for trying things out.
        insecure_loopback "insecure-loopback": Option<SocketAddr> = None, example "127.0.0.1:9463";
        /// Address of /metrics, /healthz, /livez and /readyz; "off": none.
        metrics "metrics": String = super::DEFAULT_METRICS.to_owned();
        /// How the log is written to standard error: text or json.
        log "log": LogFormat = LogFormat::Text;
        /// What is logged: error, warn, info, debug, trace, or a filter such as "info,vipd::api=debug".
        log_level "log-level": String = "info".to_owned();
        /// The owner of a call that names none, for callers to whom no entry of `access` gives another.
        default_owner "default-owner": String = "default".to_owned();
        /// How long established connections of the userspace engine may go on when vipd is told to stop.
        stop_patience "stop-patience": Seconds = Seconds(5.0);
        /// Bounds on what callers may take up.
        limits "limits": Limits = Limits::default();
        /// How changes reach the kernel and stay there.
        reconcile "reconcile": Reconcile = Reconcile::default();
        /// Node ports.
        node_ports "node-ports": NodePorts = NodePorts::default();
        /// Who may do what; the first entry that matches a caller holds.
        access "access": Vec<AccessEntry> = Vec::new();
    }
}

settings! {
    /// `[limits]`: bounds on what callers may take up.
    Limits in "limits." {
        /// Connections to the API at once; one caller may have three quarters of them. Never more than a quarter of the
        /// file descriptors that the process may have.
        connections "connections": usize = 2_048;
        /// Watch and Events streams at once.
        streams "streams": usize = 1_024;
        /// Calls at work at once; more are answered RESOURCE_EXHAUSTED.
        calls "calls": usize = 4_096;
        /// Bytes of requests that are being received or, in a Sync, collected, all callers together.
        intake_bytes "intake-bytes": usize = 512 * 1024 * 1024;
        /// A request of which nothing arrives for so long is ended.
        intake_idle "intake-idle": Seconds = Seconds(60.0);
        /// Services on this node.
        services "services": usize = 100_000;
        /// A Sync that would remove more than this percentage of its owner's services or endpoints is refused.
        large_removal_percent "large-removal-percent": u8 = 50;
    }
}

settings! {
    /// `[reconcile]`: how changes reach the kernel and stay there.
    Reconcile in "reconcile." {
        /// First retry of a service that the kernel refused; doubled each time.
        retry_first "retry-first": Seconds = Seconds(1.0);
        /// Longest pause between two retries.
        retry_most "retry-most": Seconds = Seconds(60.0);
        /// From one comparison of the whole kernel state with ours to the next.
        check_every "check-every": Seconds = Seconds(60.0);
        /// From one cheap look for foreign changes to the next.
        poll_every "poll-every": Seconds = Seconds(0.25);
        /// An engine that has not answered for so long makes /healthz say 503.
        stalled_after "stalled-after": Seconds = Seconds(30.0);
        /// Services programmed with one transaction at most.
        batch "batch": usize = 4_096;
        /// Events kept for the Events call.
        journal "journal": usize = 10_000;
        /// Owners that must have synced before objects of ours that nobody declared are removed, when the store was lost.
        wait_for_owners "wait-for-owners": Vec<String> = Vec::new();
    }
}

settings! {
    /// `[node-ports]`: where node ports are served.
    NodePorts in "node-ports." {
        /// Prefixes that select among this node's addresses; empty: all of them.
        addresses "addresses": Vec<IpNet> = Vec::new();
    }
}

impl Config {
    /// The defaults as root has them, wherever this runs: for the example file.
    #[must_use]
    pub fn of_root() -> Self {
        Self { socket: paths::SYSTEM_SOCKET.into(), state_dir: paths::SYSTEM_STATE_DIR.into(), ..Self::default() }
    }

    /// Every key, sections included.
    pub fn keys() -> impl Iterator<Item = &'static Key> {
        Self::KEYS.iter().chain(Limits::KEYS).chain(Reconcile::KEYS).chain(NodePorts::KEYS)
    }
}
