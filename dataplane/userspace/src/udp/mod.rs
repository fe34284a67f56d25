//! UDP: a [`door`] for each frontend, and a [`session`] for each client at it.
//!
//! A door and its sessions live on one worker, so they share buffers and need no lock between them. Read `door` first.

pub(crate) mod batch;
pub(crate) mod door;
pub(crate) mod session;
mod sessions;

use std::cell::RefCell;

use batch::Batch;

thread_local! {
    static BUFFERS: RefCell<Option<Batch>> = const { RefCell::new(None) };
}

/// Lends the worker's buffers, made when they are first needed.
pub(crate) fn with_batch<T>(use_it: impl FnOnce(&mut Batch) -> T) -> T {
    BUFFERS.with_borrow_mut(|buffers| use_it(buffers.get_or_insert_with(Batch::new)))
}
