//! `make test`: runs ring by ring and prints one line for each. See `vipd_tests::rings`.

use std::process::ExitCode;

fn main() -> anyhow::Result<ExitCode> {
    vipd_tests::rings::run_all()
}
