//! `vipd check`: would vipd run here, and with what? Changes nothing.

use std::fmt::Write as _;

use vipd_model::{Engines, Problem};

use crate::config::Config;

/// What was found.
#[derive(Debug)]
pub struct Report {
    /// For people.
    pub text: String,
    /// Whether vipd can run here as configured.
    pub usable: bool,
}

/// What this node has, or why it cannot run.
#[derive(Debug)]
pub struct Host<'a> {
    /// Every engine, the default first in the order.
    pub engines: Result<&'a Engines, String>,
    /// Why there is no guard; absent: there is one.
    pub no_guard: Option<&'a str>,
    /// What an operator should know.
    pub findings: &'a [Problem],
}

/// Puts it into words.
#[must_use]
pub fn report(config: &Config, host: &Host<'_>) -> Report {
    let mut text = String::new();
    // Writing to a String does not fail.
    let _ = describe(&mut text, config, host);
    let usable = host.engines.as_ref().is_ok_and(|engines| engines.abilities.values().any(|ability| ability.usable));
    let verdict = if usable { "vipd can run here" } else { "vipd CANNOT run here as configured" };
    let _ = writeln!(text, "\n{verdict}");
    Report { text, usable }
}

fn describe(text: &mut String, config: &Config, host: &Host<'_>) -> std::fmt::Result {
    writeln!(text, "configuration")?;
    writeln!(text, "  socket      {} ({:04o})", config.socket.display(), config.socket_mode.0)?;
    writeln!(text, "  state       {}", config.state_dir.display())?;
    if let Some(address) = config.listen {
        writeln!(text, "  TLS         {address}")?;
    }
    if let Some(address) = config.insecure_loopback {
        writeln!(text, "  loopback    {address}, INSECURE: every user of this host may declare")?;
    }
    writeln!(text, "  metrics     {}", config.metrics)?;
    writeln!(text, "  access      {} entries", config.access.len())?;
    writeln!(text, "kernel        {}", crate::api::kernel())?;
    match host.no_guard {
        None => writeln!(text, "guard         nftables: virtual IPs work")?,
        Some(why) => writeln!(text, "guard         none ({why}): only this host's own addresses can be served")?,
    }
    writeln!(text, "engines")?;
    match &host.engines {
        Err(why) => writeln!(text, "  {why}")?,
        Ok(engines) => {
            for kind in &engines.order {
                let Some(ability) = engines.abilities.get(kind) else { continue };
                let default = if engines.order.first() == Some(kind) { ", the default" } else { "" };
                let state =
                    if ability.usable { format!("usable{default}") } else { format!("not usable: {}", ability.reason) };
                writeln!(text, "  {:<11} {state}", kind.to_string())?;
            }
            writeln!(text, "  default     {}", engines.default_reason)?;
        }
    }
    if !host.findings.is_empty() {
        writeln!(text, "findings")?;
        for finding in host.findings {
            writeln!(text, "  {}", finding.message)?;
        }
    }
    Ok(())
}
