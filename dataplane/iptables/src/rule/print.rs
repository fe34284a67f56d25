//! A rule as `iptables-restore` takes it and as we compare it.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use vipd_model::{Family, PortRange, Protocol};

use super::{CERTAIN, Chance, Recent, Rule, State, Target};

/// "Source is destination", as a classic BPF program: iptables itself cannot compare two fields of a packet.
/// Offsets are those of the addresses in the header (RFC 791, RFC 8200).
pub(super) fn bytecode(family: Family) -> &'static str {
    match family {
        // ld [12]; tax; ld [16]; jeq x, 0, 1; ret 65535; ret 0
        Family::V4 => "6,32 0 0 12,7 0 0 0,32 0 0 16,29 0 1 0,6 0 0 65535,6 0 0 0",
        // The same for each of four words: source at 8, destination at 24.
        Family::V6 => {
            "18,32 0 0 8,7 0 0 0,32 0 0 24,29 0 13 0,32 0 0 12,7 0 0 0,32 0 0 28,29 0 9 0,32 0 0 16,7 0 0 0,\
             32 0 0 32,29 0 5 0,32 0 0 20,7 0 0 0,32 0 0 36,29 0 1 0,6 0 0 65535,6 0 0 0"
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = Words { f, first: true };
        self.header(&mut out)?;
        self.connection(&mut out)?;
        if let Some(comment) = &self.comment {
            out.word(format_args!("-m comment --comment \"{}\"", Quoted(comment)))?;
        }
        match self.chance {
            Some(Chance::Random(chance)) => {
                let probability = f64::from(chance) / f64::from(CERTAIN);
                out.word(format_args!("-m statistic --mode random --probability {probability:.11}"))?;
            }
            Some(Chance::Nth(every)) => {
                out.word(format_args!("-m statistic --mode nth --every {every} --packet 0"))?;
            }
            None => {}
        }
        if let Some(Recent { name, mask, within }) = &self.recent {
            match within {
                Some(seconds) => out.word(format_args!("-m recent --update --seconds {seconds} --reap"))?,
                None => out.word(format_args!("-m recent --set"))?,
            }
            out.word(format_args!("--name {name} --mask {mask} --rsource"))?;
        }
        if let Some(family) = self.to_itself {
            out.word(format_args!("-m bpf --bytecode \"{}\"", bytecode(family)))?;
        }
        match &self.target {
            Some(target) => out.word(format_args!("{target}")),
            None => Ok(()),
        }
    }
}

impl Rule {
    fn header(&self, out: &mut Words<'_, '_>) -> fmt::Result {
        if let Some(source) = &self.source {
            out.word(format_args!("-s {source}"))?;
        }
        if let Some((not, destination)) = &self.destination {
            out.word(format_args!("{}-d {destination}", if *not { "! " } else { "" }))?;
        }
        if let Some((not, interface)) = &self.interface {
            out.word(format_args!("{}-i {interface}", if *not { "! " } else { "" }))?;
        }
        if let Some(protocol) = self.protocol {
            out.word(format_args!("-p {protocol}"))?;
            match (protocol, self.ports) {
                (_, None) => {}
                // Kernels without xt_sctp know its ports by multiport.
                (Protocol::Sctp, Some(ports)) => out.word(format_args!("-m multiport --dports {}", Ports(ports)))?,
                (_, Some(ports)) => out.word(format_args!("-m {protocol} --dport {}", Ports(ports)))?,
            }
        }
        Ok(())
    }

    fn connection(&self, out: &mut Words<'_, '_>) -> fmt::Result {
        if self.local_source {
            out.word(format_args!("-m addrtype --src-type LOCAL"))?;
        }
        if self.local_destination {
            out.word(format_args!("-m addrtype --dst-type LOCAL"))?;
        }
        for state in &self.states {
            out.word(format_args!("-m conntrack {state}"))?;
        }
        let original = &self.original;
        if original.destination.is_some() || original.ports.is_some() {
            out.word(format_args!("-m conntrack"))?;
            if let Some(destination) = original.destination {
                out.word(format_args!("--ctorigdst {}", Bare(destination)))?;
            }
            if let Some(ports) = original.ports {
                out.word(format_args!("--ctorigdstport {}", Ports(ports)))?;
            }
        }
        match self.reply_port {
            Some(port) => out.word(format_args!("-m conntrack --ctreplsrcport {port}")),
            None => Ok(()),
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::New => "--ctstate NEW",
            Self::Dnat => "--ctstate DNAT",
            Self::NotDnat => "! --ctstate DNAT",
            Self::Invalid => "--ctstate INVALID",
            Self::Established => "--ctstate ESTABLISHED",
        })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Jump(chain) => write!(f, "-j {chain}"),
            Self::Goto(chain) => write!(f, "-g {chain}"),
            Self::Return => f.write_str("-j RETURN"),
            Self::Dnat(address, None) => write!(f, "-j DNAT --to-destination {address}"),
            Self::Dnat(IpAddr::V4(address), Some(port)) => write!(f, "-j DNAT --to-destination {address}:{port}"),
            Self::Dnat(IpAddr::V6(address), Some(port)) => write!(f, "-j DNAT --to-destination [{address}]:{port}"),
            Self::Redirect(port) => write!(f, "-j REDIRECT --to-ports {port}"),
            Self::Masquerade => f.write_str("-j MASQUERADE"),
            Self::Reset => f.write_str("-j REJECT --reject-with tcp-reset"),
            Self::Unreachable(Family::V4) => f.write_str("-j REJECT --reject-with icmp-port-unreachable"),
            Self::Unreachable(Family::V6) => f.write_str("-j REJECT --reject-with icmp6-port-unreachable"),
            Self::Drop => f.write_str("-j DROP"),
        }
    }
}

/// Words with a space between them.
struct Words<'a, 'b> {
    f: &'a mut fmt::Formatter<'b>,
    first: bool,
}

impl Words<'_, '_> {
    fn word(&mut self, word: fmt::Arguments<'_>) -> fmt::Result {
        if !std::mem::take(&mut self.first) {
            self.f.write_str(" ")?;
        }
        self.f.write_fmt(word)
    }
}

/// `80` or `80:90`.
struct Ports(PortRange);

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PortRange { first, last } = self.0;
        if first == last { write!(f, "{first}") } else { write!(f, "{first}:{last}") }
    }
}

/// A single address without its length: both spellings are printed by some version, this is the one we compare.
struct Bare(IpNet);

impl fmt::Display for Bare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.prefix_len() == self.0.max_prefix_len() { self.0.addr().fmt(f) } else { self.0.fmt(f) }
    }
}

/// Within double quotes.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            if matches!(character, '"' | '\\') {
                f.write_str("\\")?;
            }
            write!(f, "{character}")?;
        }
        Ok(())
    }
}
