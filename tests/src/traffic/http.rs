//! Just enough HTTP/1.1 to ask for a page: health ports and metrics.

use std::io::{Read as _, Write as _};
use std::net::IpAddr;

use anyhow::{Context as _, Result, anyhow};

use super::{Client, Flow};

/// What a server answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// 200, 503, …
    pub status: u16,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    /// To the end of the connection.
    pub body: String,
}

impl Page {
    /// A header's value.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }
}

/// Asks for a page on a connection of its own.
///
/// # Errors
/// When nobody answers, or not in HTTP.
pub fn get(client: &Client<'_>, to: (IpAddr, u16), path: &str) -> Result<Page> {
    let flow: Flow = client.open(to)?.map_err(|end| anyhow!("{to:?}: {}", end.word()))?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: vipd\r\nConnection: close\r\n\r\n");
    flow.socket().write_all(request.as_bytes())?;
    let mut text = String::new();
    flow.rest().read_to_string(&mut text).with_context(|| format!("reading {to:?}{path}"))?;
    let (head, body) = text.split_once("\r\n\r\n").with_context(|| format!("no HTTP from {to:?}: {text:?}"))?;
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok()).context("no status line")?;
    let header = |line: &str| line.split_once(':').map(|(name, value)| (name.to_lowercase(), value.trim().to_owned()));
    Ok(Page { status, headers: lines.filter_map(header).collect(), body: body.to_owned() })
}
