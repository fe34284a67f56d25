//! `make demo`: the main job of vipd on this machine, with real traffic. See `vipd_tests::demo`.

use std::process::ExitCode;

use vipd_tests::demo;
use vipd_tests::lab::sandbox;

fn main() -> ExitCode {
    sandbox::run(demo::run).unwrap_or_else(|sandbox::Unavailable(why)| {
        eprintln!("the demo makes its hosts as network namespaces, and this machine allows none: {why}");
        ExitCode::FAILURE
    })
}
