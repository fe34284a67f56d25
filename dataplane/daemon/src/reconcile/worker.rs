//! A thread that owns something which blocks (an engine, the guard, the store), and the handle to ask it.
//!
//! One job runs at a time, in order. The handle waits without blocking the control runtime, so an apply that holds its
//! thread for seconds delays nobody but its own callers.

use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

type Job<R> = Box<dyn FnOnce(&mut R) + Send>;

/// The thread is gone: it panicked, or the daemon is stopping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the worker thread is gone")]
pub struct Gone;

/// Asks a worker. Clones ask the same one.
pub struct Worker<R: ?Sized> {
    jobs: mpsc::UnboundedSender<Job<R>>,
}

impl<R: ?Sized> Clone for Worker<R> {
    fn clone(&self) -> Self {
        Self { jobs: self.jobs.clone() }
    }
}

impl<R: ?Sized + 'static> Worker<R> {
    /// Starts a thread that owns `owned`. It ends, and drops it, when the last handle is gone.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub fn thread(name: &str, mut owned: Box<R>) -> std::io::Result<Self>
    where
        R: Send,
    {
        // Unbounded is bounded here: the reconciler has at most a handful of jobs under way with each worker.
        let (jobs, mut queue) = mpsc::unbounded_channel::<Job<R>>();
        std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            while let Some(job) = queue.blocking_recv() {
                job(&mut owned);
            }
        })?;
        Ok(Self { jobs })
    }

    /// The same as a task of the current runtime, for tests in virtual time: `pause` says how long a job lasts, or that the
    /// process is dead, which ends the task at whatever it is.
    pub fn task(mut owned: Box<R>, pause: impl Fn() -> Option<Duration> + Send + 'static) -> Self
    where
        R: Send,
    {
        let (jobs, mut queue) = mpsc::unbounded_channel::<Job<R>>();
        tokio::spawn(async move {
            while let Some(job) = queue.recv().await {
                let Some(lasts) = pause() else { return };
                if !lasts.is_zero() {
                    tokio::time::sleep(lasts).await;
                    // Killed in the middle of a pause: what it was about to do never happens.
                    if pause().is_none() {
                        return;
                    }
                }
                job(&mut owned);
            }
        });
        Self { jobs }
    }

    /// Runs `job` there and returns what it returns.
    ///
    /// # Errors
    /// [`Gone`] if the thread ended before it was done.
    pub async fn call<T: Send + 'static>(&self, job: impl FnOnce(&mut R) -> T + Send + 'static) -> Result<T, Gone> {
        let (reply, answer) = oneshot::channel();
        let job: Job<R> = Box::new(move |owned| {
            let _ = reply.send(job(owned));
        });
        self.jobs.send(job).map_err(|_| Gone)?;
        answer.await.map_err(|_| Gone)
    }
}
