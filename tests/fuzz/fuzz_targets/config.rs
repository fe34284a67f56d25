//! A configuration file: read, or refused in words; never a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vipd::config::{Config, Sources};

fuzz_target!(|text: &str| {
    if let Err(error) = Config::parse(text, "fuzz.toml", &Sources::default()) {
        assert!(!error.to_string().is_empty(), "a refusal without words");
    }
});
