//! The engines beside kube-proxy: see `vipd_tests::bench`.
//!
//! `cargo bench -p vipd-tests --bench engines [-- 1000x5 10000x5]`, after `cargo build --release -p vipd` and, for the
//! peers, `tests/peers-k8s/build.sh`.

use std::process::ExitCode;

use vipd_tests::{bench, rings};

fn main() -> ExitCode {
    rings::in_the_lab("bench of the engines", bench::run)
}
