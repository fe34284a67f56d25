//! Whatever a disk gives back: a record or an error, never a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, Vec<u8>, Vec<u8>)| vipd::store::decode_anything(input.0, &input.1, &input.2));
