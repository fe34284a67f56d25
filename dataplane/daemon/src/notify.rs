//! Tells systemd that we are ready, alive, or stopping. Without systemd nothing happens.

use std::time::Duration;

use sd_notify::NotifyState;

use crate::reconcile::Control;
use crate::reconcile::run::Clock;

/// Says READY once what was stored has been programmed, then feeds the watchdog as long as the reconciler lives. Runs
/// until it is dropped.
pub async fn follow(control: Control, clock: Clock) {
    let mut changed = control.changed();
    while !control.read(|core| core.ready) {
        if changed.changed().await.is_err() {
            return;
        }
    }
    tell(&[NotifyState::Ready]);
    let Some(limit) = sd_notify::watchdog_enabled() else { return };
    // Twice in the time that systemd allows, as sd_watchdog_enabled(3) advises.
    let mut beat = tokio::time::interval(limit / 2);
    loop {
        beat.tick().await;
        if is_alive(&control, limit).await {
            tell(&[NotifyState::Watchdog]);
        }
        let status = control.read(|core| core.unhealthy(clock())).unwrap_or_else(|| "serving".to_owned());
        tell(&[NotifyState::Status(&status)]);
    }
}

/// Whether the reconciler still takes questions: a plan of nothing asks no engine. A programming that stalls does not
/// count against it: a restart would not make the kernel faster, and `/healthz` says so already.
async fn is_alive(control: &Control, limit: Duration) -> bool {
    tokio::time::timeout(limit / 4, control.plan(Vec::new(), None)).await.is_ok_and(|answer| answer.is_ok())
}

/// The daemon is going down.
pub fn stopping() {
    tell(&[NotifyState::Stopping]);
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!("systemd could not be told: {error}");
    }
}
