//! The reconciler in virtual time, on fake engines and a fake guard that share one kernel: the promise of the API, point
//! by point, then what goes wrong. `kit` is the node under test.

mod chaos;
mod failures;
mod holds;
mod kit;
mod owners;
mod promise;
mod queries;
mod switch;
mod watch;
mod words;
