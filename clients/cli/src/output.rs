//! Where replies go: tables for people, canonical proto JSON or the same as YAML for programs.

use std::io::{self, Write as _};

use clap::ValueEnum;
use serde::Serialize;

use crate::failure::Failure;

/// `-o`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Columns that fit a terminal.
    #[default]
    Table,
    /// More columns.
    Wide,
    /// The reply as canonical proto JSON. Of streams one line for each message.
    Json,
    /// The same as YAML; what `get` prints so, `apply` reads.
    Yaml,
}

impl Format {
    /// True where people read.
    pub(crate) fn is_for_people(self) -> bool {
        matches!(self, Self::Table | Self::Wide)
    }
}

/// Prints a reply: as data if asked for, otherwise by `words`.
pub(crate) fn reply<T: Serialize>(format: Format, reply: &T, words: impl FnOnce() -> String) -> Result<(), Failure> {
    match format {
        Format::Table | Format::Wide => print(&words()),
        Format::Json => print(&(json(reply)? + "\n")),
        Format::Yaml => print(&yaml(reply)?),
    }
}

/// Prints one message of a stream.
pub(crate) fn message<T: Serialize>(format: Format, reply: &T, words: impl FnOnce() -> String) -> Result<(), Failure> {
    match format {
        Format::Table | Format::Wide => print(&words()),
        Format::Json => print(&(serde_json::to_string(reply).map_err(unprintable)? + "\n")),
        Format::Yaml => print(&format!("---\n{}", yaml(reply)?)),
    }
}

/// Prints text, all of it or a failure.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

fn json<T: Serialize>(value: &T) -> Result<String, Failure> {
    serde_json::to_string_pretty(value).map_err(unprintable)
}

fn yaml<T: Serialize>(value: &T) -> Result<String, Failure> {
    serde_saphyr::to_string(value).map_err(unprintable)
}

/// Only a defect of ours can lead here; it is said rather than panicked about.
fn unprintable(error: impl std::fmt::Display) -> Failure {
    Failure::Output(io::Error::other(error.to_string()))
}
