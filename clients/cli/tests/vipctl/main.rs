//! The real program against a fake vipd: what it sends, how it ends, how replies look.

mod calls;
mod fake;
mod tables;
