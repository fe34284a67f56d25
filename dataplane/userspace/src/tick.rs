//! Spares the runtime a system call for each connection.
//!
//! A timer that is due before all others makes tokio wake its own event loop by a write to an eventfd, and every attempt
//! to connect has such a timer. While connections are being made, a tick that is due sooner than any of them keeps them
//! from being the first; when none was made between two ticks, it ends.

use std::cell::Cell;
use std::time::Duration;

/// Sooner than the shortest patience with an endpoint (250 ms).
const TICK: Duration = Duration::from_millis(100);

thread_local! {
    static TICKING: Cell<bool> = const { Cell::new(false) };
    static NEEDED: Cell<bool> = const { Cell::new(false) };
}

/// A timer is about to be set on this worker.
pub(crate) fn before_timer() {
    NEEDED.set(true);
    if !TICKING.replace(true) {
        tokio::spawn(async {
            while NEEDED.replace(false) {
                tokio::time::sleep(TICK).await;
            }
            TICKING.set(false);
        });
    }
}
