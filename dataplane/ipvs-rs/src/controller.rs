//! Which number the kernel gave IPVS's messages: asked of generic netlink's controller (linux/genetlink.h).

use nix::errno::Errno;

use crate::attr::Encoder;
use crate::error::{Error, Malformed};
use crate::message::{self, Answer, Content, flags, messages};
use crate::refusal::Refusal;
use crate::request::Request;
use crate::socket::{Received, Socket};

/// `GENL_ID_CTRL`.
const CONTROLLER: u16 = 0x10;
/// `CTRL_CMD_GETFAMILY`.
const GET_FAMILY: u8 = 3;
/// `CTRL_ATTR_FAMILY_ID` and `CTRL_ATTR_FAMILY_NAME`.
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
/// `IPVS_GENL_NAME`.
const NAME: &[u8] = b"IPVS";
/// Stands for the question where an error has to name one: nobody can ask anything of IPVS before it.
const REQUEST: Request = Request::GetInfo;

/// The number of the family IPVS. Asking makes the kernel load the module, where it may and has it.
pub(crate) fn resolve(socket: &mut Socket) -> Result<u16, Error> {
    let mut datagram = Vec::new();
    let start = message::begin(&mut datagram, GET_FAMILY, 1);
    Encoder::new(&mut datagram).put_text(FAMILY_NAME, NAME);
    message::end(&mut datagram, start);
    let sequence = socket.sequences(1);
    message::address(&mut datagram, start, CONTROLLER, flags::REQUEST, sequence);
    socket.send(&datagram)?;
    loop {
        let Received::Datagram(datagram) = socket.receive()? else { return Err(Error::AnswerLost(REQUEST)) };
        if let Some(answer) = read(datagram, sequence).map_err(|source| Error::Answer { request: REQUEST, source })? {
            return match answer {
                Ok(family) => Ok(family),
                Err(errno) if errno == Errno::ENOENT as i32 => Err(Error::NoModule),
                Err(errno) => Err(Refusal::new(0, REQUEST, &Answer { errno, text: None }).into()),
            };
        }
    }
}

/// The number, or an error number; nothing if the answer is not in this datagram.
fn read(datagram: &[u8], sequence: u32) -> Result<Option<Result<u16, i32>>, Malformed> {
    for message in messages(datagram) {
        let message = message?;
        if message.sequence != sequence {
            continue;
        }
        match message.content()? {
            Content::Answer(answer) => return Ok(Some(Err(answer.errno))),
            Content::Command { attributes, .. } => {
                for attribute in attributes {
                    let attribute = attribute?;
                    if attribute.kind == FAMILY_ID {
                        return attribute.u16().map(|family| Some(Ok(family)));
                    }
                }
                return Err(Malformed("a family without a number"));
            }
            Content::Done(_) | Content::Other => {}
        }
    }
    Ok(None)
}
