//! [`Ipvs`]: every operation, one call each. How a question is put and its answers are read is in `exchange`.

use std::os::fd::{AsFd, BorrowedFd};

use nix::errno::Errno;

use crate::batch::Batch;
use crate::config::Timeouts;
use crate::controller;
use crate::daemon::{Daemon, DaemonEntry, DaemonRole};
use crate::destination::{Destination, DestinationEntry, DestinationKey};
use crate::error::Error;
use crate::info::Info;
use crate::message::flags;
use crate::report::Report;
use crate::request::{command, kind, nested};
use crate::service::{Service, ServiceEntry, ServiceKey};
use crate::socket::{Received, Socket};

/// A way to the IPVS of the network namespace in which it was opened.
///
/// It blocks, but never long: the kernel does what it is asked within the call. Everything takes CAP_NET_ADMIN in the
/// initial user namespace, reading too.
#[derive(Debug)]
pub struct Ipvs {
    pub(crate) socket: Socket,
    /// The number of IPVS's messages.
    pub(crate) family: u16,
    /// The bytes of the send under way; kept for the next.
    pub(crate) datagram: Vec<u8>,
    /// The one request of a call that is no batch; kept for the next.
    pub(crate) single: Batch,
}

impl Ipvs {
    /// Opens a socket and finds IPVS, which makes the kernel load its module where it has one.
    ///
    /// # Errors
    /// [`Error::NoModule`] on a kernel without IPVS, [`Error::Socket`] if there can be no socket.
    pub fn open() -> Result<Self, Error> {
        let mut socket = Socket::open()?;
        let family = controller::resolve(&mut socket)?;
        Ok(Self { socket, family, datagram: Vec::new(), single: Batch::new() })
    }

    /// Whether IPVS is there, and what it says of itself; which is nothing without the right to ask.
    ///
    /// # Errors
    /// As [`Ipvs::open`] and [`Ipvs::info`].
    pub fn probe() -> Result<Info, Error> {
        Self::open()?.info()
    }

    /// Makes the changes of a batch, at most [`REQUESTS_A_SEND`](crate::batch::REQUESTS_A_SEND) a send, and says which
    /// were refused. The kernel goes on behind a refused one.
    ///
    /// # Errors
    /// [`Error::Socket`], [`Error::Answer`] and [`Error::NoModule`]: what the batch did is then unknown and to be read
    /// back. Refusals are no error of this call.
    pub fn run(&mut self, batch: &Batch) -> Result<Report, Error> {
        let mut report = Report::default();
        for requests in batch.sends() {
            let first = self.socket.sequences(requests.len());
            batch.datagram(&requests, self.family, flags::ACK, first, &mut self.datagram);
            self.socket.send(&self.datagram)?;
            report.begin(batch, requests, first);
            while report.waits() {
                match self.socket.receive()? {
                    Received::Datagram(datagram) => report.read(batch, datagram)?,
                    Received::Overflow | Received::Nothing => self.read_what_is_left(batch, &mut report)?,
                }
            }
        }
        if report.refusals.iter().any(|refusal| refusal.errno == Errno::ENOENT as i32) {
            self.check_family()?;
        }
        Ok(report)
    }

    /// Makes a service.
    ///
    /// # Errors
    /// [`Error::Refused`], for instance with [`Reason::ServiceExists`](crate::Reason::ServiceExists); as for all calls
    /// of one change, [`Error::Invalid`], and the errors of [`Ipvs::run`].
    pub fn add_service(&mut self, service: &Service) -> Result<(), Error> {
        self.change(|batch| batch.add_service(service))
    }

    /// Changes a service in place; see [`Batch::set_service`].
    ///
    /// # Errors
    /// As [`Ipvs::add_service`].
    pub fn set_service(&mut self, service: &Service) -> Result<(), Error> {
        self.change(|batch| batch.set_service(service))
    }

    /// Removes a service with its destinations; what is established through it is cut.
    ///
    /// # Errors
    /// As [`Ipvs::add_service`].
    pub fn delete_service(&mut self, service: &ServiceKey) -> Result<(), Error> {
        self.change(|batch| {
            batch.delete_service(service);
            Ok(())
        })
    }

    /// Reads one service.
    ///
    /// # Errors
    /// [`Error::Refused`] with [`Reason::NoService`](crate::Reason::NoService) if there is none.
    pub fn service(&mut self, service: &ServiceKey) -> Result<ServiceEntry, Error> {
        self.ask(
            |batch| batch.about(command::GET_SERVICE, service),
            command::NEW_SERVICE,
            |attributes| nested(attributes, kind::SERVICE).and_then(ServiceEntry::decode),
        )
    }

    /// Reads all services, in the kernel's order. Another writer that deletes meanwhile may make the kernel skip some,
    /// and nothing tells: see [`Ipvs::settled_table`].
    ///
    /// # Errors
    /// [`Error::Unsettled`] if it was disturbed each time.
    pub fn services(&mut self) -> Result<Vec<ServiceEntry>, Error> {
        self.dump(
            |batch| batch.push(command::GET_SERVICE, |_| ()),
            command::NEW_SERVICE,
            |attributes| nested(attributes, kind::SERVICE).and_then(ServiceEntry::decode),
        )
    }

    /// Adds a destination to a service.
    ///
    /// # Errors
    /// As [`Ipvs::add_service`].
    pub fn add_destination(&mut self, service: &ServiceKey, destination: &Destination) -> Result<(), Error> {
        self.change(|batch| batch.add_destination(service, destination))
    }

    /// Changes a destination in place.
    ///
    /// # Errors
    /// As [`Ipvs::add_service`].
    pub fn set_destination(&mut self, service: &ServiceKey, destination: &Destination) -> Result<(), Error> {
        self.change(|batch| batch.set_destination(service, destination))
    }

    /// Takes a destination off a service.
    ///
    /// # Errors
    /// As [`Ipvs::add_service`].
    pub fn delete_destination(&mut self, service: &ServiceKey, destination: &DestinationKey) -> Result<(), Error> {
        self.change(|batch| {
            batch.delete_destination(service, destination);
            Ok(())
        })
    }

    /// Reads the destinations of a service, in the kernel's order; as with [`Ipvs::services`], another writer may make
    /// the kernel skip some. Of a service that does not exist the kernel says that it has none.
    ///
    /// # Errors
    /// [`Error::Unsettled`] if it was disturbed each time.
    pub fn destinations(&mut self, service: &ServiceKey) -> Result<Vec<DestinationEntry>, Error> {
        self.dump(
            |batch| batch.about(command::GET_DEST, service),
            command::NEW_DEST,
            |attributes| {
                let destination = nested(attributes, kind::DESTINATION)?;
                DestinationEntry::decode(destination, service.family())
            },
        )
    }

    /// Sets the counters of a service and its destinations to 0.
    ///
    /// # Errors
    /// As [`Ipvs::add_service`].
    pub fn zero_service(&mut self, service: &ServiceKey) -> Result<(), Error> {
        self.change(|batch| {
            batch.zero_service(service);
            Ok(())
        })
    }

    /// Sets all counters to 0.
    ///
    /// # Errors
    /// As [`Ipvs::add_service`].
    pub fn zero_all(&mut self) -> Result<(), Error> {
        self.change(|batch| {
            batch.zero_all();
            Ok(())
        })
    }

    /// Removes all services, whoever made them; see [`Batch::flush`].
    ///
    /// # Errors
    /// As [`Ipvs::add_service`].
    pub fn flush(&mut self) -> Result<(), Error> {
        self.change(|batch| {
            batch.flush();
            Ok(())
        })
    }

    /// Reads the time-outs of connections.
    ///
    /// # Errors
    /// [`Error::Refused`], [`Error::AnswerLost`], [`Error::Answer`], [`Error::Socket`].
    pub fn timeouts(&mut self) -> Result<Timeouts, Error> {
        self.ask(|batch| batch.push(command::GET_CONFIG, |_| ()), command::SET_CONFIG, Timeouts::decode)
    }

    /// Sets the time-outs of connections; those that are `None` stay.
    ///
    /// # Errors
    /// As [`Ipvs::add_service`].
    pub fn set_timeouts(&mut self, timeouts: &Timeouts) -> Result<(), Error> {
        self.change(|batch| batch.set_timeouts(timeouts))
    }

    /// Reads version and table size.
    ///
    /// # Errors
    /// As [`Ipvs::timeouts`].
    pub fn info(&mut self) -> Result<Info, Error> {
        self.ask(|batch| batch.push(command::GET_INFO, |_| ()), command::SET_INFO, Info::decode)
    }

    /// Reads the synchronisation daemons that run: none, one, or one of each role.
    ///
    /// # Errors
    /// [`Error::Unsettled`] if it was disturbed each time.
    pub fn daemons(&mut self) -> Result<Vec<DaemonEntry>, Error> {
        self.dump(
            |batch| batch.push(command::GET_DAEMON, |_| ()),
            command::NEW_DAEMON,
            |attributes| nested(attributes, kind::DAEMON).and_then(DaemonEntry::decode),
        )
    }

    /// Starts a synchronisation daemon.
    ///
    /// # Errors
    /// As [`Ipvs::add_service`].
    pub fn start_daemon(&mut self, daemon: &Daemon) -> Result<(), Error> {
        self.change(|batch| {
            batch.start_daemon(daemon);
            Ok(())
        })
    }

    /// Stops a synchronisation daemon.
    ///
    /// # Errors
    /// As [`Ipvs::add_service`].
    pub fn stop_daemon(&mut self, role: DaemonRole) -> Result<(), Error> {
        self.change(|batch| {
            batch.stop_daemon(role);
            // Of a daemon that has not run yet the kernel gives no answer (its thread ends with EINTR, which netlink
            // keeps to itself), so the answer that is waited for is that to a request which does nothing.
            batch.push(command::SET_CONFIG, |_| ());
            Ok(())
        })
    }
}

/// For socket options; what is read from or written to it by others is lost to the calls here.
impl AsFd for Ipvs {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
