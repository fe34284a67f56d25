//! Datagrams in batches: `recvmmsg(2)` and `sendmmsg(2)`, with the local address that each was sent to and is to be
//! answered from.
//!
//! nix and socket2 wrap neither call in a way that keeps its buffers from one call to the next, so this file makes the
//! calls itself; everything unsafe of the datagram path is here.
#![expect(
    unsafe_code,
    reason = "recvmmsg, sendmmsg and their control messages have no safe wrapper that reuses buffers"
)]

use std::io;
use std::mem::{size_of, zeroed};
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};

use libc::{c_void, cmsghdr, in_pktinfo, in6_pktinfo, iovec, mmsghdr, msghdr, sockaddr_storage};
use socket2::{SockAddr, SockAddrStorage};

/// Datagrams of one system call.
pub(crate) const BATCH: usize = 32;
/// No datagram is larger: 65,535 bytes with its headers (RFC 768, RFC 791).
const DATAGRAM_MAX: usize = 65_536;
/// CMSG_SPACE of `in6_pktinfo`, the larger packet information: 16 bytes of header and 20 of content, aligned to 8.
const CONTROL_BYTES: usize = 40;

/// Room for one packet information of either family.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);

/// Buffers for a batch. A worker has one and uses it between two awaits only.
pub(crate) struct Batch {
    bytes: Box<[u8]>,
    names: Box<[sockaddr_storage]>,
    controls: Box<[Control]>,
    /// Length, sender's address length and control length of each datagram received.
    received: Vec<(usize, libc::socklen_t, usize)>,
}

impl Batch {
    pub(crate) fn new() -> Self {
        // SAFETY: all zeroes is a valid `sockaddr_storage`, of family AF_UNSPEC.
        let name: sockaddr_storage = unsafe { zeroed() };
        Self {
            bytes: vec![0; BATCH * DATAGRAM_MAX].into(),
            names: vec![name; BATCH].into(),
            controls: vec![Control([0; CONTROL_BYTES]); BATCH].into(),
            received: Vec::with_capacity(BATCH),
        }
    }

    /// Takes what waits at a socket, up to [`BATCH`] datagrams.
    pub(crate) fn receive(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        self.received.clear();
        let mut parts: [iovec; BATCH] = std::array::from_fn(|index| {
            let bytes = &mut self.bytes[index * DATAGRAM_MAX..(index + 1) * DATAGRAM_MAX];
            iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }
        });
        let mut headers: [mmsghdr; BATCH] = std::array::from_fn(|index| {
            // SAFETY: all zeroes is a valid `mmsghdr`: null pointers with length 0.
            let mut header: mmsghdr = unsafe { zeroed() };
            header.msg_hdr.msg_name = (&raw mut self.names[index]).cast();
            header.msg_hdr.msg_namelen = size_of::<sockaddr_storage>() as libc::socklen_t;
            header.msg_hdr.msg_iov = &raw mut parts[index];
            header.msg_hdr.msg_iovlen = 1;
            header.msg_hdr.msg_control = (&raw mut self.controls[index]).cast();
            header.msg_hdr.msg_controllen = CONTROL_BYTES;
            header
        });
        // SAFETY: every header points to its own name, part and control buffer with their true lengths; all of them
        // outlive the call, which keeps none of the pointers.
        let count = unsafe {
            let (flags, forever) = (libc::MSG_DONTWAIT, std::ptr::null_mut());
            libc::recvmmsg(socket.as_raw_fd(), headers.as_mut_ptr(), BATCH as libc::c_uint, flags, forever)
        };
        let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
        self.received.extend(headers[..count].iter().map(|header| {
            let message = &header.msg_hdr;
            (header.msg_len as usize, message.msg_namelen, message.msg_controllen)
        }));
        Ok(count)
    }

    /// The content of a received datagram.
    pub(crate) fn bytes(&self, index: usize) -> &[u8] {
        let length = self.received[index].0;
        &self.bytes[index * DATAGRAM_MAX..index * DATAGRAM_MAX + length]
    }

    /// Who sent it.
    pub(crate) fn sender(&self, index: usize) -> Option<SocketAddr> {
        let mut storage = SockAddrStorage::zeroed();
        // SAFETY: `sockaddr_storage` is what a `SockAddrStorage` is made to be seen as, and all its bytes are plain.
        unsafe { *storage.view_as::<sockaddr_storage>() = self.names[index] };
        // SAFETY: the kernel wrote an address of this length there.
        let address = unsafe { SockAddr::new(storage, self.received[index].1) };
        address.as_socket()
    }

    /// Which of our addresses it was sent to, if the socket was asked to say so.
    pub(crate) fn local(&self, index: usize) -> Option<IpAddr> {
        // SAFETY: all zeroes is a valid `msghdr`.
        let mut message: msghdr = unsafe { zeroed() };
        message.msg_control = (&raw const self.controls[index]).cast_mut().cast();
        message.msg_controllen = self.received[index].2;
        // SAFETY: the control buffer and its length are as the kernel wrote them, so CMSG_FIRSTHDR is null or points to
        // a whole header within the buffer, aligned as the buffer is.
        let header = unsafe { libc::CMSG_FIRSTHDR(&raw const message).as_ref()? };
        // SAFETY: the kind of a control message decides its content, which lies behind its header in the buffer.
        unsafe {
            let content = libc::CMSG_DATA(header);
            match (header.cmsg_level, header.cmsg_type) {
                (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                    let info = content.cast::<in_pktinfo>().read_unaligned();
                    Some(IpAddr::from(info.ipi_addr.s_addr.to_ne_bytes()))
                }
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                    let info = content.cast::<in6_pktinfo>().read_unaligned();
                    Some(IpAddr::from(info.ipi6_addr.s6_addr))
                }
                _ => None,
            }
        }
    }

    /// Sends received datagrams on by a connected socket. Says how many went; the rest did not.
    pub(crate) fn forward(&self, socket: BorrowedFd<'_>, which: Range<usize>) -> io::Result<usize> {
        self.send(socket, which, None, None)
    }

    /// Sends received datagrams on to `to`, from one of our addresses.
    pub(crate) fn reply(
        &self,
        socket: BorrowedFd<'_>,
        which: Range<usize>,
        to: &SockAddr,
        from: Option<IpAddr>,
    ) -> io::Result<usize> {
        self.send(socket, which, Some(to), from)
    }

    fn send(
        &self,
        socket: BorrowedFd<'_>,
        which: Range<usize>,
        to: Option<&SockAddr>,
        from: Option<IpAddr>,
    ) -> io::Result<usize> {
        let mut control = Control([0; CONTROL_BYTES]);
        let control_length = from.map_or(0, |from| write_source(&mut control, from));
        let (first, count) = (which.start, which.len().min(BATCH));
        // SAFETY: all zeroes is a valid `iovec` and a valid `mmsghdr`: null pointers with length 0.
        let (mut parts, mut headers): ([iovec; BATCH], [mmsghdr; BATCH]) = unsafe { (zeroed(), zeroed()) };
        for index in 0..count {
            let bytes = self.bytes(first + index);
            parts[index] = iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
            let header = &mut headers[index].msg_hdr;
            if let Some(to) = to {
                header.msg_name = to.as_ptr().cast_mut().cast::<c_void>();
                header.msg_namelen = to.len();
            }
            header.msg_iov = &raw mut parts[index];
            header.msg_iovlen = 1;
            if control_length != 0 {
                header.msg_control = (&raw mut control).cast();
                header.msg_controllen = control_length;
            }
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the first `count` headers point to an address, a part and a control message with their true lengths,
        // which the call only reads and which outlive it.
        let sent = unsafe { libc::sendmmsg(socket.as_raw_fd(), headers.as_mut_ptr(), count as libc::c_uint, flags) };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }
}

/// Writes a control message that says which address to send from; returns its length.
fn write_source(control: &mut Control, from: IpAddr) -> usize {
    // SAFETY: both contents are plain numbers, for which all zeroes is valid: interface 0 leaves the route to the kernel.
    let (mut v4, mut v6): (in_pktinfo, in6_pktinfo) = unsafe { (zeroed(), zeroed()) };
    match from {
        IpAddr::V4(from) => {
            v4.ipi_spec_dst.s_addr = u32::from_ne_bytes(from.octets());
            write_message(control, libc::IPPROTO_IP, libc::IP_PKTINFO, v4)
        }
        IpAddr::V6(from) => {
            v6.ipi6_addr.s6_addr = from.octets();
            write_message(control, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, v6)
        }
    }
}

fn write_message<T>(control: &mut Control, level: i32, kind: i32, content: T) -> usize {
    const { assert!(size_of::<T>() <= CONTROL_BYTES - size_of::<cmsghdr>()) };
    let content_length = size_of::<T>() as libc::c_uint;
    // SAFETY: the buffer is aligned for a header and holds header and content, as asserted above; CMSG_LEN and CMSG_SPACE
    // only compute.
    unsafe {
        let header = (&raw mut *control).cast::<cmsghdr>();
        (*header).cmsg_level = level;
        (*header).cmsg_type = kind;
        (*header).cmsg_len = libc::CMSG_LEN(content_length) as usize;
        libc::CMSG_DATA(header).cast::<T>().write_unaligned(content);
        libc::CMSG_SPACE(content_length) as usize
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, UdpSocket};
    use std::os::fd::AsFd;

    use super::super::door::ask_for_local_address;
    use super::*;

    #[test]
    fn datagrams_keep_content_sender_and_local_address() {
        for (address, source) in [("127.0.0.1:0", "127.0.0.1"), ("[::1]:0", "::1")] {
            let (door, client) = (UdpSocket::bind(address).unwrap(), UdpSocket::bind(address).unwrap());
            ask_for_local_address(&door).unwrap();
            let mut batch = Batch::new();
            for size in [0, 1, 1_000, 65_507] {
                client.send_to(&vec![7; size], door.local_addr().unwrap()).unwrap();
            }
            assert_eq!(batch.receive(door.as_fd()).unwrap(), 4);
            for (index, size) in [0, 1, 1_000, 65_507].into_iter().enumerate() {
                assert_eq!(batch.bytes(index), vec![7; size]);
                assert_eq!(batch.sender(index), Some(client.local_addr().unwrap()));
                assert_eq!(batch.local(index), Some(source.parse().unwrap()));
            }
            assert_eq!(batch.receive(door.as_fd()).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        }
    }

    #[test]
    fn a_reply_leaves_from_the_address_that_was_asked() {
        let door = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        ask_for_local_address(&door).unwrap();
        let port = door.local_addr().unwrap().port();
        let client = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let asked = SocketAddr::from((Ipv4Addr::new(127, 3, 2, 1), port));
        for text in ["one", "two", "three"] {
            client.send_to(text.as_bytes(), asked).unwrap();
        }
        let mut batch = Batch::new();
        assert_eq!(batch.receive(door.as_fd()).unwrap(), 3);
        let to = SockAddr::from(client.local_addr().unwrap());
        assert_eq!(batch.reply(door.as_fd(), 1..3, &to, batch.local(1)).unwrap(), 2);
        let mut answer = [0; 10];
        for text in ["two", "three"] {
            let (length, from) = client.recv_from(&mut answer).unwrap();
            assert_eq!((&answer[..length], from), (text.as_bytes(), asked));
        }
    }
}
