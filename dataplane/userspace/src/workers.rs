//! The data path's own threads: each is a runtime that nothing else uses, so a flow never waits for the control side and
//! never changes threads.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use tokio::runtime::{Builder, Handle};
use tokio_util::sync::CancellationToken;

/// The threads.
pub(crate) struct Workers {
    handles: Vec<Handle>,
    threads: Vec<JoinHandle<()>>,
    stop: CancellationToken,
    next: AtomicUsize,
}

impl Workers {
    pub(crate) fn start(count: usize) -> io::Result<Self> {
        let stop = CancellationToken::new();
        let mut workers = Self { handles: Vec::new(), threads: Vec::new(), stop, next: AtomicUsize::new(0) };
        for index in 0..count.max(1) {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            workers.handles.push(runtime.handle().clone());
            let stop = workers.stop.clone();
            let run = move || {
                runtime.block_on(stop.cancelled());
                // Connections that still live end with the runtime; whoever wanted them to finish has waited.
                runtime.shutdown_background();
            };
            workers.threads.push(std::thread::Builder::new().name(format!("vipd-proxy-{index}")).spawn(run)?);
        }
        Ok(workers)
    }

    pub(crate) fn all(&self) -> &[Handle] {
        &self.handles
    }

    /// A worker for something that needs just one, in turn.
    pub(crate) fn one(&self) -> &Handle {
        &self.handles[self.next.fetch_add(1, Ordering::Relaxed) % self.handles.len()]
    }

    /// Ends the threads and what still runs on them.
    pub(crate) fn stop(&mut self) {
        self.stop.cancel();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A task on a worker; it ends when this is dropped.
pub(crate) struct Task {
    handle: Handle,
    join: Option<tokio::task::JoinHandle<()>>,
}

impl Task {
    pub(crate) fn spawn(handle: &Handle, future: impl Future<Output = ()> + Send + 'static) -> Self {
        Self { handle: handle.clone(), join: Some(handle.spawn(future)) }
    }

    /// Ends it and waits until what it held is released: only then is a listening socket closed. From a thread that may
    /// block.
    pub(crate) fn end(mut self) {
        if let Some(join) = self.join.take() {
            join.abort();
            let _ = self.handle.block_on(join);
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if let Some(join) = &self.join {
            join.abort();
        }
    }
}

/// Raises this process's limit of open files as far as it may, and says what it is then.
pub(crate) fn raise_descriptor_limit() -> u64 {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return 1_024 };
    match setrlimit(Resource::RLIMIT_NOFILE, hard, hard) {
        Ok(()) => hard,
        Err(_) => soft,
    }
}
