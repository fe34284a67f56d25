//! How a question is put to the kernel and its answers are read: one change, one question, one dump.

use std::mem;

use nix::errno::Errno;

use crate::attr::Attributes;
use crate::batch::Batch;
use crate::connection::Ipvs;
use crate::controller;
use crate::error::{Error, Invalid, Malformed};
use crate::message::{Content, Message, flags, messages};
use crate::refusal::Refusal;
use crate::report::Report;
use crate::request::Request;
use crate::socket::Received;

/// How often a dump that was disturbed is begun again.
const DUMP_ATTEMPTS: usize = 20;

/// A request that waits for its answers, and which command they are.
#[derive(Debug, Clone, Copy)]
struct Question {
    request: Request,
    sequence: u32,
    reply: u8,
}

/// What one message says to a question.
enum Said<'a> {
    /// Nothing: it is not for us, or a formality.
    Nothing,
    /// An answer; a dump has more.
    Entry(Attributes<'a>),
    /// All is said.
    Done,
    /// Not now: a dump of this socket is unfinished.
    Busy,
    Refused(Refusal),
}

impl Question {
    fn hear<'a>(&self, message: &Message<'a>) -> Result<Said<'a>, Malformed> {
        if message.sequence != self.sequence {
            return Ok(Said::Nothing);
        }
        Ok(match message.content()? {
            Content::Command { command, attributes } if command == self.reply => Said::Entry(attributes),
            Content::Answer(answer) | Content::Done(answer) => match answer.errno {
                0 => Said::Done,
                errno if errno == Errno::EBUSY as i32 => Said::Busy,
                _ => Said::Refused(Refusal::new(0, self.request, &answer)),
            },
            Content::Command { .. } | Content::Other => Said::Nothing,
        })
    }

    fn malformed(&self, source: Malformed) -> Error {
        Error::Answer { request: self.request, source }
    }
}

impl Ipvs {
    /// Answers were lost: takes in those that were not, and lets go of the rest.
    pub(crate) fn read_what_is_left(&mut self, batch: &Batch, report: &mut Report) -> Result<(), Error> {
        loop {
            match self.socket.poll()? {
                Received::Datagram(datagram) => report.read(batch, datagram)?,
                Received::Overflow => {}
                Received::Nothing => break,
            }
        }
        report.give_up();
        Ok(())
    }

    /// "No such entry" may be meant of IPVS itself: of its number, when the module was unloaded under us.
    pub(crate) fn check_family(&mut self) -> Result<(), Error> {
        let family = controller::resolve(&mut self.socket)?;
        if mem::replace(&mut self.family, family) == family { Ok(()) } else { Err(Error::ModuleReloaded) }
    }

    /// One change.
    pub(crate) fn change(&mut self, fill: impl FnOnce(&mut Batch) -> Result<(), Invalid>) -> Result<(), Error> {
        let mut batch = mem::take(&mut self.single);
        batch.clear();
        let result = match fill(&mut batch) {
            Ok(()) => self.run(&batch).and_then(Report::into_result),
            Err(invalid) => Err(invalid.into()),
        };
        self.single = batch;
        result
    }

    /// One question with one answer.
    pub(crate) fn ask<T>(
        &mut self,
        fill: impl FnOnce(&mut Batch),
        reply: u8,
        decode: impl Fn(Attributes<'_>) -> Result<T, Malformed>,
    ) -> Result<T, Error> {
        let question = self.put(fill, reply, 0)?;
        loop {
            let Received::Datagram(datagram) = self.socket.receive()? else {
                self.socket.drain()?;
                return Err(Error::AnswerLost(question.request));
            };
            for message in messages(datagram) {
                let said = message.and_then(|message| question.hear(&message));
                match said.map_err(|source| question.malformed(source))? {
                    Said::Entry(attributes) => {
                        return decode(attributes).map_err(|source| question.malformed(source));
                    }
                    Said::Refused(refusal) => return Err(self.refused(refusal)),
                    Said::Nothing | Said::Done | Said::Busy => {}
                }
            }
        }
    }

    /// One question with many answers; asked again while something disturbs it.
    pub(crate) fn dump<T>(
        &mut self,
        fill: impl Fn(&mut Batch),
        reply: u8,
        decode: impl Fn(Attributes<'_>) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Error> {
        let mut attempts = 0;
        loop {
            let question = self.put(&fill, reply, flags::DUMP)?;
            if let Some(entries) = self.dump_once(&question, &decode)? {
                return Ok(entries);
            }
            attempts += 1;
            if attempts == DUMP_ATTEMPTS {
                return Err(Error::Unsettled { request: question.request, attempts });
            }
            // An earlier dump of this socket may be unfinished; only when all of it is read may the next begin.
            self.socket.drain()?;
        }
    }

    /// One attempt; nothing if it was disturbed.
    fn dump_once<T>(
        &mut self,
        question: &Question,
        decode: impl Fn(Attributes<'_>) -> Result<T, Malformed>,
    ) -> Result<Option<Vec<T>>, Error> {
        let (mut entries, mut disturbed) = (Vec::new(), false);
        loop {
            let Received::Datagram(datagram) = self.socket.receive()? else { return Ok(None) };
            for message in messages(datagram) {
                let message = message.map_err(|source| question.malformed(source))?;
                disturbed |= message.flags & flags::DUMP_INTERRUPTED != 0;
                match question.hear(&message).map_err(|source| question.malformed(source))? {
                    Said::Entry(attributes) => {
                        entries.push(decode(attributes).map_err(|source| question.malformed(source))?);
                    }
                    Said::Done => return Ok(if disturbed { None } else { Some(entries) }),
                    Said::Busy => return Ok(None),
                    Said::Refused(refusal) => return Err(self.refused(refusal)),
                    Said::Nothing => {}
                }
            }
        }
    }

    /// Sends one request that is no change.
    fn put(&mut self, fill: impl FnOnce(&mut Batch), reply: u8, flags: u16) -> Result<Question, Error> {
        self.single.clear();
        fill(&mut self.single);
        let sequence = self.socket.sequences(1);
        self.single.datagram(&(0..1), self.family, flags, sequence, &mut self.datagram);
        self.socket.send(&self.datagram)?;
        let request = self.single.request_sent(0);
        Ok(Question { request, sequence, reply })
    }

    fn refused(&mut self, refusal: Refusal) -> Error {
        match refusal.errno == Errno::ENOENT as i32 {
            true => self.check_family().err().unwrap_or_else(|| refusal.into()),
            false => refusal.into(),
        }
    }
}
