//! What is being received: bounded in bytes for all callers together, and in time for each. A caller that sends half a
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
    most: usize,
    idle: Duration,
}

impl Intake {
    /// So many bytes, and so long between two pieces of a request.
    #[must_use]
    pub fn new(most: usize, idle: Duration) -> Self {
        Self { used: Arc::default(), most, idle }
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
        let measure = |body| Body::new(MeasuredBody { body, intake: self.intake.clone(), counted: 0, timer: None });
        self.inner.call(request.map(measure))
    }
}

struct MeasuredBody {
    body: Body,
    intake: Intake,
    counted: usize,
    /// Runs while nothing arrives.
    timer: Option<Pin<Box<Sleep>>>,
}

impl MeasuredBody {
    fn count(&mut self, bytes: usize) -> Result<(), Status> {
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
                let bytes = frame.data_ref().map_or(0, bytes::Bytes::len);
                Poll::Ready(Some(self.count(bytes).map(|()| frame)))
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

    fn measured(intake: &Intake, body: Body) -> MeasuredBody {
        MeasuredBody { body, intake: intake.clone(), counted: 0, timer: None }
    }

    #[tokio::test(start_paused = true)]
    async fn half_a_request_is_ended() {
        let intake = Intake::new(10, Duration::from_secs(60));
        let status = next(&mut measured(&intake, Body::new(Stuck))).await.unwrap().unwrap_err();
        assert_eq!(status.code(), tonic::Code::DeadlineExceeded);
    }

    #[tokio::test]
    async fn all_requests_together_are_bounded_and_given_back() {
        let intake = Intake::new(10, Duration::from_secs(60));
        let body = |text: &'static str| Body::new(http_body_util::Full::new(bytes::Bytes::from(text)));
        let mut first = measured(&intake, body("12345678"));
        assert!(next(&mut first).await.unwrap().is_ok());
        let status = next(&mut measured(&intake, body("12345678"))).await.unwrap().unwrap_err();
        assert_eq!(status.code(), tonic::Code::ResourceExhausted);
        assert_eq!(intake.used(), 8);
        drop(first);
        assert_eq!(intake.used(), 0);
    }
}
