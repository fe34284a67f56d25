//! What a newcomer wants to see, on hosts made of network namespaces, without root: services declared over gRPC, who
//! answers and how evenly, and traffic that goes on while endpoints die, schedulers change, endpoints drain, the daemon
//! is killed and engines are switched. Every line that says something happened was checked; the first that did not happen ends the demo
//! with an error.

mod scenes;
mod stage;

use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;

use stage::Stage;

/// Plays every scene on every engine that this node can run.
///
/// # Errors
/// The first thing that did not truly happen.
pub fn run() -> Result<ExitCode> {
    let begin = Instant::now();
    let mut stage = Stage::set("auto")?;
    scenes::node(&stage)?;
    let engines = stage.usable_engines()?;
    for engine in &engines {
        println!("\n──── engine {engine} ────");
        stage.restart(engine)?;
        scenes::declare(&stage)?;
        scenes::who_answers(&stage)?;
        scenes::endpoint_goes(&mut stage)?;
        scenes::scheduler_changes(&stage)?;
        scenes::endpoint_drains(&stage)?;
        scenes::explain(&stage)?;
        scenes::daemon_is_killed(&mut stage)?;
    }
    if engines.len() > 1 {
        println!("\n──── from engine to engine ────");
        stage.restart("auto")?;
        scenes::declare(&stage)?;
        scenes::engines_are_switched(&stage, &engines)?;
    }
    println!("\nAll of it happened, in {:.1} s.", begin.elapsed().as_secs_f64());
    Ok(ExitCode::SUCCESS)
}
