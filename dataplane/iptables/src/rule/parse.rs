//! Reads a rule from the words of a line of `iptables-save`.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use ipnet::IpNet;
use vipd_model::{Family, PortRange, Protocol};

use super::{CERTAIN, Chance, Recent, Rule, State, Target, print::bytecode};

/// The words of a line: separated by spaces, but for what stands in double quotes; a backslash there means the next
/// character.
pub(crate) fn words(line: &str) -> Vec<Cow<'_, str>> {
    let mut words = Vec::new();
    let mut rest = line.trim_start();
    while !rest.is_empty() {
        if let Some(quoted) = rest.strip_prefix('"') {
            let (word, after) = unquote(quoted);
            words.push(word);
            rest = after.trim_start();
        } else {
            let end = rest.find(' ').unwrap_or(rest.len());
            words.push(Cow::Borrowed(&rest[..end]));
            rest = rest[end..].trim_start();
        }
    }
    words
}

fn unquote(text: &str) -> (Cow<'_, str>, &str) {
    let plain = text.find(['"', '\\']).unwrap_or(text.len());
    if text[plain..].starts_with('"') {
        return (Cow::Borrowed(&text[..plain]), &text[plain + 1..]);
    }
    let mut word = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return (Cow::Owned(word), &text[at + 1..]),
            '\\' => word.extend(characters.next().map(|(_, next)| next)),
            _ => word.push(character),
        }
    }
    (Cow::Owned(word), "")
}

impl Rule {
    /// Reads what stands behind `-A CHAIN`. Absent: it has a part that we never write.
    #[must_use]
    pub fn parse(words: &[Cow<'_, str>]) -> Option<Self> {
        let mut reader = Reader { words: words.iter().map(AsRef::as_ref), rule: Self::default() };
        let mut draft = Draft::default();
        while let Some(word) = reader.words.next() {
            match word {
                "!" => {
                    let word = reader.words.next()?;
                    reader.negated(word)?;
                }
                _ => reader.read(word, &mut draft)?,
            }
        }
        draft.finish(reader.rule)
    }
}

/// Parts that are told in several words.
#[derive(Default)]
struct Draft {
    mode: Option<String>,
    chance: Option<u32>,
    every: Option<u32>,
    recent: Option<bool>,
    seconds: Option<u32>,
    name: Option<String>,
    mask: Option<IpAddr>,
    dnat: bool,
    redirect: bool,
    reject: bool,
}

impl Draft {
    fn finish(self, mut rule: Rule) -> Option<Rule> {
        rule.chance = match (self.mode.as_deref(), self.chance, self.every) {
            (None, None, None) => None,
            (Some("random"), Some(chance), None) => Some(Chance::Random(chance)),
            (Some("nth"), None, Some(every)) => Some(Chance::Nth(every)),
            _ => return None,
        };
        rule.recent = match (self.recent, self.name, self.mask) {
            (None, None, None) => None,
            (Some(update), Some(name), Some(mask)) if update == self.seconds.is_some() => {
                Some(Recent { name, mask, within: self.seconds })
            }
            _ => return None,
        };
        let undecided = (self.dnat || self.redirect || self.reject) && rule.target.is_none();
        (!undecided).then_some(rule)
    }
}

struct Reader<'a, I: Iterator<Item = &'a str>> {
    words: I,
    rule: Rule,
}

impl<'a, I: Iterator<Item = &'a str>> Reader<'a, I> {
    fn value<T: FromStr>(&mut self) -> Option<T> {
        self.words.next()?.parse().ok()
    }

    fn negated(&mut self, word: &str) -> Option<()> {
        match word {
            "-d" => self.rule.destination = Some((true, net(self.words.next()?)?)),
            "-i" => self.rule.interface = Some((true, self.words.next()?.to_owned())),
            "--ctstate" if self.words.next()? == "DNAT" => self.rule.states.push(State::NotDnat),
            _ => return None,
        }
        Some(())
    }

    fn read(&mut self, word: &str, draft: &mut Draft) -> Option<()> {
        let rule = &mut self.rule;
        match word {
            "-s" => rule.source = Some(net(self.words.next()?)?),
            "-d" => rule.destination = Some((false, net(self.words.next()?)?)),
            "-i" => rule.interface = Some((false, self.words.next()?.to_owned())),
            "-p" => rule.protocol = Some(protocol(self.words.next()?)?),
            "-m" => known_match(self.words.next()?)?,
            // Counters, as `-v -S` prints them.
            "-c" => drop((self.words.next()?, self.words.next()?)),
            "--dport" | "--dports" => rule.ports = Some(ports(self.words.next()?)?),
            "--src-type" if self.words.next()? == "LOCAL" => rule.local_source = true,
            "--dst-type" if self.words.next()? == "LOCAL" => rule.local_destination = true,
            "--ctstate" => rule.states.push(state(self.words.next()?)?),
            "--ctorigdst" => rule.original.destination = Some(net(self.words.next()?)?),
            "--ctorigdstport" => rule.original.ports = Some(ports(self.words.next()?)?),
            "--ctreplsrcport" => rule.reply_port = Some(self.words.next()?.parse().ok()?),
            "--comment" => rule.comment = Some(self.words.next()?.to_owned()),
            "--bytecode" => {
                let program = self.words.next()?;
                rule.to_itself = Some(Family::ALL.into_iter().find(|family| bytecode(*family) == program.trim())?);
            }
            "-g" => rule.target = Some(Target::Goto(self.words.next()?.to_owned())),
            "-j" => {
                let target = self.words.next()?;
                self.target(target, draft);
            }
            _ => self.option(word, draft)?,
        }
        Some(())
    }

    fn target(&mut self, target: &str, draft: &mut Draft) {
        self.rule.target = match target {
            "RETURN" => Some(Target::Return),
            "MASQUERADE" => Some(Target::Masquerade),
            "DROP" => Some(Target::Drop),
            "DNAT" => {
                draft.dnat = true;
                None
            }
            "REDIRECT" => {
                draft.redirect = true;
                None
            }
            "REJECT" => {
                draft.reject = true;
                None
            }
            chain => Some(Target::Jump(chain.to_owned())),
        };
    }

    /// Options of statistic, recent, and of targets.
    fn option(&mut self, word: &str, draft: &mut Draft) -> Option<()> {
        match word {
            "--mode" => draft.mode = Some(self.words.next()?.to_owned()),
            "--probability" => draft.chance = Some(chance(self.value()?)?),
            "--every" => draft.every = Some(self.value()?),
            "--packet" if self.words.next()? == "0" => {}
            "--set" => draft.recent = Some(false),
            "--update" => draft.recent = Some(true),
            "--seconds" => draft.seconds = Some(self.value()?),
            "--reap" | "--rsource" => {}
            "--name" => draft.name = Some(self.words.next()?.to_owned()),
            "--mask" => draft.mask = Some(self.value()?),
            "--to-destination" if draft.dnat => self.rule.target = Some(dnat(self.words.next()?)?),
            "--to-ports" if draft.redirect => self.rule.target = Some(Target::Redirect(self.value()?)),
            "--reject-with" if draft.reject => {
                self.rule.target = Some(match self.words.next()? {
                    "tcp-reset" => Target::Reset,
                    "icmp-port-unreachable" => Target::Unreachable(Family::V4),
                    "icmp6-port-unreachable" => Target::Unreachable(Family::V6),
                    _ => return None,
                });
            }
            _ => return None,
        }
        Some(())
    }
}

fn known_match(name: &str) -> Option<()> {
    let known = ["tcp", "udp", "sctp", "multiport", "addrtype", "conntrack", "comment", "statistic", "recent", "bpf"];
    known.contains(&name).then_some(())
}

/// With or without a length.
fn net(text: &str) -> Option<IpNet> {
    text.parse().ok().or_else(|| Some(text.parse::<IpAddr>().ok()?.into()))
}

fn protocol(text: &str) -> Option<Protocol> {
    match text {
        "tcp" | "6" => Some(Protocol::Tcp),
        "udp" | "17" => Some(Protocol::Udp),
        "sctp" | "132" => Some(Protocol::Sctp),
        _ => None,
    }
}

fn ports(text: &str) -> Option<PortRange> {
    let (first, last) = text.split_once(':').unwrap_or((text, text));
    Some(PortRange { first: first.parse().ok()?, last: last.parse().ok()? })
}

fn state(text: &str) -> Option<State> {
    [State::New, State::Dnat, State::Invalid, State::Established]
        .into_iter()
        .find(|state| state.to_string().strip_prefix("--ctstate ") == Some(text))
}

/// Back to the number that the kernel has; printed with 11 digits, it is exact.
fn chance(probability: f64) -> Option<u32> {
    let chance = (probability * f64::from(CERTAIN)).round();
    // In range, so nothing is cut off.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked on the same line")]
    (0.0..=f64::from(CERTAIN)).contains(&chance).then_some(chance as u32)
}

fn dnat(text: &str) -> Option<Target> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(Target::Dnat(address, None));
    }
    if let Some(address) = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')) {
        return Some(Target::Dnat(address.parse().ok()?, None));
    }
    let socket: SocketAddr = text.parse().ok()?;
    Some(Target::Dnat(socket.ip(), Some(socket.port())))
}
