//! Whatever IPVS of another version, or a broken one, sends or writes to /proc: decoded or refused, never a panic.
#![no_main]

use ipvs_rs::attr::Attributes;
use ipvs_rs::message::messages;
use ipvs_rs::{DaemonEntry, DestinationEntry, Family, Info, Request, ServiceEntry, Stats, Timeouts, Width, proc};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    for message in messages(bytes).flatten() {
        let _ = message.content();
        if let Ok((_, attributes)) = message.command() {
            body(attributes);
            attributes.flatten().for_each(|attribute| body(attribute.nested()));
        }
    }
    body(Attributes::new(bytes));
    let _ = Request::decode(bytes);
    let _ = proc::parse(&String::from_utf8_lossy(bytes));
});

fn body(attributes: Attributes<'_>) {
    for family in [Family::V4, Family::V6] {
        let _ = DestinationEntry::decode(attributes, family);
    }
    let _ = (ServiceEntry::decode(attributes), DaemonEntry::decode(attributes), Info::decode(attributes));
    let _ = (Timeouts::decode(attributes), Stats::decode(attributes, Width::Bits64));
}
