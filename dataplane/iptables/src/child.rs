//! Runs one program to its end, or to the end of our patience.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// What a program said.
#[derive(Debug)]
pub(crate) struct Said {
    /// Its exit status; absent: killed by a signal.
    pub(crate) code: Option<i32>,
    pub(crate) output: Vec<u8>,
    pub(crate) errors: String,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChildError {
    #[error("{} cannot be started: {error}", .program.display())]
    Start { program: PathBuf, error: io::Error },
    #[error("{} did not end within {} s and was killed", .program.display(), .after.as_secs())]
    Hung { program: PathBuf, after: Duration },
    #[error("{} cannot be waited for: {error}", .program.display())]
    Lost { program: PathBuf, error: io::Error },
}

impl ChildError {
    /// Whether it may have done something.
    pub(crate) fn may_have_acted(&self) -> bool {
        !matches!(self, Self::Start { .. })
    }
}

/// Feeds `input` to the program and collects what it says. It is killed when `patience` is over.
pub(crate) fn run(program: &Path, arguments: &[&str], input: String, patience: Duration) -> Result<Said, ChildError> {
    let start = |error| ChildError::Start { program: program.to_owned(), error };
    let mut command = Command::new(program);
    command.args(arguments).env("LC_ALL", "C").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(start)?;
    let deadline = Instant::now() + patience;
    let output = gather(child.stdout.take());
    let errors = gather(child.stderr.take());
    if let Some(mut stdin) = child.stdin.take() {
        // A program that ends early closes its side; what it says of that is its exit status.
        thread::spawn(move || stdin.write_all(input.as_bytes()));
    }
    let said = collect(&output, deadline).and_then(|output| Ok((output, collect(&errors, deadline)?)));
    let code = said.and_then(|said| Ok((said, wait(&mut child, deadline)?)));
    match code {
        Ok(((output, errors), code)) => {
            Ok(Said { code, output, errors: String::from_utf8_lossy(&errors).trim().to_owned() })
        }
        Err(None) => {
            // It may have ended meanwhile: then there is nothing to kill.
            let _ = child.kill();
            let _ = child.wait();
            Err(ChildError::Hung { program: program.to_owned(), after: patience })
        }
        Err(Some(error)) => Err(ChildError::Lost { program: program.to_owned(), error }),
    }
}

/// Reads a stream to its end on a thread of its own, so that no full pipe stops the program.
fn gather(stream: Option<impl Read + Send + 'static>) -> Receiver<Vec<u8>> {
    let (send, receive) = channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut stream) = stream {
            // What was read before an error is what was said.
            let _ = stream.read_to_end(&mut bytes);
        }
        // Nobody listens any more if it took too long.
        let _ = send.send(bytes);
    });
    receive
}

/// `Err(None)`: it takes too long.
fn collect(stream: &Receiver<Vec<u8>>, deadline: Instant) -> Result<Vec<u8>, Option<io::Error>> {
    match stream.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        Ok(bytes) => Ok(bytes),
        Err(RecvTimeoutError::Timeout) => Err(None),
        Err(RecvTimeoutError::Disconnected) => Err(Some(io::ErrorKind::BrokenPipe.into())),
    }
}

/// Its streams are closed, so it is about to end.
fn wait(child: &mut Child, deadline: Instant) -> Result<Option<i32>, Option<io::Error>> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status.code()),
            Ok(None) if Instant::now() > deadline => return Err(None),
            Ok(None) => thread::sleep(Duration::from_micros(200)),
            Err(error) => return Err(Some(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn much_goes_in_and_out_and_nothing_stands_still() {
        let input = "x".repeat(1 << 20);
        let said = run(Path::new("/bin/cat"), &[], input.clone(), Duration::from_secs(20)).unwrap();
        assert_eq!((said.code, said.output.len()), (Some(0), input.len()));
        let said = run(Path::new("/bin/true"), &[], input, Duration::from_secs(20)).unwrap();
        assert_eq!(said.code, Some(0));
    }

    #[test]
    fn what_hangs_is_killed() {
        let before = Instant::now();
        let error = run(Path::new("/bin/sleep"), &["60"], String::new(), Duration::from_millis(100)).unwrap_err();
        assert!(matches!(error, ChildError::Hung { .. }) && error.may_have_acted(), "{error}");
        assert!(before.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn what_is_missing_is_named() {
        let error = run(Path::new("/nonexistent/iptables-restore"), &[], String::new(), Duration::from_secs(1));
        let error = error.unwrap_err();
        assert!(error.to_string().contains("/nonexistent/iptables-restore") && !error.may_have_acted());
    }
}
