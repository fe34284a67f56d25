//! What became of a batch.

use std::ops::Range;

use crate::batch::Batch;
use crate::error::Error;
use crate::message::{Content, messages};
use crate::refusal::Refusal;
use crate::request::Request;

/// What became of a batch: each request that is not named here was done.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[must_use = "a batch may have been refused in part"]
pub struct Report {
    /// What the kernel refused, in the batch's order.
    pub refusals: Vec<Refusal>,
    /// What was sent but not answered, because the receive buffer overflowed: each may be done or refused, but for what
    /// is among the refusals. Read back what is there.
    pub unanswered: Vec<Unanswered>,
    /// The send whose answers are being read.
    send: Option<Send>,
}

/// Requests of one send whose answers were lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unanswered {
    /// Their places in the batch.
    pub requests: Range<usize>,
    /// The first of them.
    pub first: Request,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Send {
    requests: Range<usize>,
    /// The sequence number of the first.
    sequence: u32,
    first: Request,
}

impl Report {
    /// Whether everything was done.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.refusals.is_empty() && self.unanswered.is_empty()
    }

    /// All or the first that went wrong.
    ///
    /// # Errors
    /// [`Error::AnswerLost`] if anything is unknown, else [`Error::Refused`] with the first refusal.
    pub fn into_result(self) -> Result<(), Error> {
        if let Some(unanswered) = self.unanswered.first() {
            return Err(Error::AnswerLost(unanswered.first));
        }
        self.refusals.into_iter().next().map_or(Ok(()), |refusal| Err(refusal.into()))
    }

    /// A send went out, numbered from `sequence`.
    pub(crate) fn begin(&mut self, batch: &Batch, requests: Range<usize>, sequence: u32) {
        let first = batch.request_sent(requests.start);
        self.send = Some(Send { requests, sequence, first });
    }

    /// Whether the send's last answer is still to come.
    pub(crate) fn waits(&self) -> bool {
        self.send.is_some()
    }

    /// Takes in the answers of a datagram.
    pub(crate) fn read(&mut self, batch: &Batch, datagram: &[u8]) -> Result<(), Error> {
        let Some(send) = &self.send else { return Ok(()) };
        let malformed = |source| Error::Answer { request: send.first, source };
        let mut last = false;
        for message in messages(datagram) {
            let message = message.map_err(malformed)?;
            // Numbers before the first wrap around and are far beyond the last, as are those of other requests.
            let number = message.sequence.wrapping_sub(send.sequence) as usize;
            if number >= send.requests.len() {
                continue;
            }
            let Content::Answer(answer) = message.content().map_err(malformed)? else { continue };
            let index = send.requests.start + number;
            last |= index + 1 == send.requests.end;
            if answer.errno != 0 {
                self.refusals.push(Refusal::new(index, batch.request_sent(index), &answer));
            }
        }
        if last {
            self.send = None;
        }
        Ok(())
    }

    /// No more answers will come.
    pub(crate) fn give_up(&mut self) {
        if let Some(send) = self.send.take() {
            self.unanswered.push(Unanswered { requests: send.requests, first: send.first });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message;
    use crate::{Reason, ServiceKey};

    fn key(port: u16) -> ServiceKey {
        ServiceKey::tcp(([10, 96, 0, 1], port).into())
    }

    fn batch(requests: u16) -> Batch {
        let mut batch = Batch::new();
        (0..requests).for_each(|port| batch.delete_service(&key(port)));
        batch
    }

    /// The kernel's answer to the request with this number.
    fn answer(sequence: u32, errno: i32) -> Vec<u8> {
        let mut bytes = vec![0; message::HEADER];
        bytes.extend_from_slice(&(-errno).to_ne_bytes());
        bytes.extend_from_slice(&[0; message::HEADER]);
        message::end(&mut bytes, 0);
        message::address(&mut bytes, 0, 2, message::flags::CAPPED, sequence);
        bytes
    }

    #[test]
    fn a_refusal_is_told_by_its_number_and_the_last_answer_ends_the_send() {
        let batch = batch(300);
        let mut report = Report::default();
        report.begin(&batch, 256..300, 70);
        report.read(&batch, &[answer(69, 1), answer(73, 3)].concat()).unwrap();
        assert!(report.waits());
        report.read(&batch, &answer(70 + 43, 0)).unwrap();
        assert!(!report.waits());
        let [refusal] = &report.refusals[..] else { panic!("{report:?}") };
        assert_eq!((refusal.index, refusal.request), (259, Request::DeleteService(key(259))));
        assert_eq!(refusal.reason, Reason::NoService);
        assert!(matches!(report.into_result(), Err(Error::Refused(refusal)) if refusal.index == 259));
    }

    #[test]
    fn lost_answers_are_said_and_win_over_refusals() {
        let batch = batch(4);
        let mut report = Report::default();
        report.begin(&batch, 0..4, u32::MAX - 1);
        report.read(&batch, &answer(0, 3)).unwrap();
        report.give_up();
        assert_eq!(report.refusals[0].index, 2, "numbers go round");
        assert_eq!(report.unanswered, [Unanswered { requests: 0..4, first: Request::DeleteService(key(0)) }]);
        assert!(!report.is_clean());
        assert!(matches!(report.into_result(), Err(Error::AnswerLost(Request::DeleteService(_)))));
    }
}
