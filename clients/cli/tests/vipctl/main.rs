//! The real program against a fake vipd: what it sends, how it ends, how replies look.

#![expect(clippy::unwrap_used, reason = "helpers of tests, outside of a #[test] function")]

mod calls;
mod fake;
mod tables;
