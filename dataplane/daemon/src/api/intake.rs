//! What is being received: bounded in bytes for each message and for all callers together, and in time for each. A caller that sends half a
//! request and stops, or many that send much at once, costs the others nothing.
//!
//! Bytes are counted until the request's body is dropped: for a single call when it is decoded, for a Sync when it ends,
//! as until then what it sent is kept.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use http_body::{Frame, SizeHint};
use tokio::time::{Instant, Sleep};
use tonic::Status;
use tonic::body::Body;

use super::status;

/// The bounds, and how much of them is used. Clones count together.
#[derive(Clone, Debug)]
pub struct Intake {
    used: Arc<AtomicUsize>,
    message_most: usize,
    most: usize,
    idle: Duration,
}

impl Intake {
    /// So many bytes in one message, so many in all, and so long between two pieces of a request.
    #[must_use]
    pub fn new(message_most: usize, most: usize, idle: Duration) -> Self {
        Self { used: Arc::default(), message_most, most, idle }
    }

    /// Bytes that are being received.
    #[must_use]
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }
}

impl<S> tower::Layer<S> for Intake {
    type Service = Measured<S>;

    fn layer(&self, inner: S) -> Measured<S> {
        Measured { inner, intake: self.clone() }
    }
}

/// A service whose requests are measured.
#[derive(Clone, Debug)]
pub struct Measured<S> {
    inner: S,
    intake: Intake,
}

impl<S: tower::Service<http::Request<Body>>> tower::Service<http::Request<Body>> for Measured<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> S::Future {
        self.inner.call(request.map(|body| Body::new(MeasuredBody::new(body, self.intake.clone()))))
    }
}

struct MeasuredBody {
    body: Body,
    intake: Intake,
    counted: usize,
    messages: Messages,
    /// Runs while nothing arrives.
    timer: Option<Pin<Box<Sleep>>>,
}

/// Follows the messages in a body: each has a prefix of five bytes, a flag and its length.
#[derive(Default)]
struct Messages {
    prefix: Vec<u8>,
    left: usize,
}

impl Messages {
    /// The length of a message that begins in these bytes and is longer than `most`.
    fn too_long(&mut self, mut bytes: &[u8], most: usize) -> Option<usize> {
        const PREFIX_BYTES: usize = 5;
        while !bytes.is_empty() {
            if self.left > 0 {
                let taken = self.left.min(bytes.len());
                self.left -= taken;
                bytes = &bytes[taken..];
                continue;
            }
            let taken = (PREFIX_BYTES - self.prefix.len()).min(bytes.len());
            self.prefix.extend_from_slice(&bytes[..taken]);
            bytes = &bytes[taken..];
            if let [_, a, b, c, d] = self.prefix[..] {
                self.prefix.clear();
                self.left = u32::from_be_bytes([a, b, c, d]) as usize;
                if self.left > most {
                    return Some(self.left);
                }
            }
        }
        None
    }
}

impl MeasuredBody {
    fn new(body: Body, intake: Intake) -> Self {
        Self { body, intake, counted: 0, messages: Messages::default(), timer: None }
    }

    fn count(&mut self, data: &[u8]) -> Result<(), Status> {
        let most = self.intake.message_most;
        if let Some(bytes) = self.messages.too_long(data, most) {
            return Err(status::limit(format!("the request has {bytes} bytes; the most is {most}; send it in parts")));
        }
        let bytes = data.len();
        self.counted += bytes;
        let used = self.intake.used.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if used <= self.intake.most {
            return Ok(());
        }
        let most = self.intake.most;
        Err(status::limit(format!("vipd receives more than {most} bytes of requests at this moment; try again")))
    }
}

impl Drop for MeasuredBody {
    fn drop(&mut self) {
        self.intake.used.fetch_sub(self.counted, Ordering::Relaxed);
    }
}

impl http_body::Body for MeasuredBody {
    type Data = bytes::Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<bytes::Bytes>, Status>>> {
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                self.timer = None;
                let counted = frame.data_ref().map_or(Ok(()), |data| self.count(data));
                Poll::Ready(Some(counted.map(|()| frame)))
            }
            Poll::Ready(other) => Poll::Ready(other),
            Poll::Pending => {
                let idle = self.intake.idle;
                let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + idle)));
                timer.as_mut().poll(cx).map(|()| {
                    let why = format!("nothing of this request has arrived for {} s", idle.as_secs());
                    Some(Err(Status::deadline_exceeded(why)))
                })
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use http_body::Body as _;

    use super::*;

    struct Stuck;

    impl http_body::Body for Stuck {
        type Data = bytes::Bytes;
        type Error = Status;

        fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<bytes::Bytes>, Status>>> {
            Poll::Pending
        }
    }

    async fn next(body: &mut MeasuredBody) -> Option<Result<Frame<bytes::Bytes>, Status>> {
        poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await
    }

    #[tokio::test(start_paused = true)]
    async fn half_a_request_is_ended() {
        let intake = Intake::new(100, 10, Duration::from_secs(60));
        let status = next(&mut MeasuredBody::new(Body::new(Stuck), intake)).await.unwrap().unwrap_err();
        assert_eq!(status.code(), tonic::Code::DeadlineExceeded);
    }

    #[tokio::test]
    async fn all_requests_together_are_bounded_and_given_back() {
        let intake = Intake::new(100, 10, Duration::from_secs(60));
        let body = |_| Body::new(http_body_util::Full::new(bytes::Bytes::from_static(&[0; 8])));
        let mut first = MeasuredBody::new(body("12345678"), intake.clone());
        assert!(next(&mut first).await.unwrap().is_ok());
        let status = next(&mut MeasuredBody::new(body("12345678"), intake.clone())).await.unwrap().unwrap_err();
        assert_eq!(status.code(), tonic::Code::ResourceExhausted);
        assert_eq!(intake.used(), 8);
        drop(first);
        assert_eq!(intake.used(), 0);
    }

    #[test]
    fn a_message_that_is_too_long_is_seen_in_its_prefix() {
        let mut stream = vec![0, 0, 0, 0, 3, 1, 2, 3, 0, 0, 0, 0, 0];
        stream.extend([0, 0, 0, 0, 101]);
        for size in 1..=stream.len() {
            let mut messages = Messages::default();
            let found: Vec<_> = stream.chunks(size).filter_map(|piece| messages.too_long(piece, 100)).collect();
            assert_eq!(found, [101], "in pieces of {size}");
        }
    }
}
