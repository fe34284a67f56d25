//! A socket filter that drops packets by source address before the socket sees them: how a door lets in only some
//! sources without any privilege. A dropped SYN or datagram meets silence, as one that a firewall drops.
//!
//! Classic BPF (Documentation/networking/filter.rst); `SKF_NET_OFF` addresses the network header. Listening sockets hand
//! the filter down to the connections that they accept, whose source does not change.

use std::io;
use std::net::IpAddr;

use ipnet::IpNet;
use socket2::{SockFilter, SockRef};

use crate::objects::Admission;

/// Networks at one door: the kernel takes 4,096 instructions, and an IPv6 network needs up to 13.
pub(crate) const FILTER_NETWORKS_MAX: usize = 300;

/// `SKF_NET_OFF` of linux/filter.h, as the unsigned number that an instruction holds.
const NETWORK_HEADER: u32 = (-0x10_0000_i32).cast_unsigned();
/// Offset of the source address in the network header (RFC 791, RFC 8200).
const SOURCE_V4: u32 = 12;
const SOURCE_V6: u32 = 8;

// Opcodes of linux/bpf_common.h, composed.
const LOAD_WORD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
const AND: u16 = 0x54; // BPF_ALU | BPF_AND | BPF_K
const JUMP_IF_EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
const RETURN: u16 = 0x06; // BPF_RET | BPF_K
const PASS: u32 = u32::MAX;
const DROP: u32 = 0;

/// Lets in whom the door admits.
pub(crate) fn attach(socket: SockRef<'_>, admission: &Admission) -> io::Result<()> {
    match admission {
        Admission::Everybody => Ok(()),
        Admission::Only(sources) => socket.attach_filter(&program(sources)),
    }
}

fn program(sources: &[IpNet]) -> Vec<SockFilter> {
    let mut program = Vec::new();
    for source in sources {
        let (offset, words): (u32, Vec<(u32, u32)>) = match (source.network(), source.netmask()) {
            (IpAddr::V4(net), IpAddr::V4(mask)) => (SOURCE_V4, vec![(net.to_bits(), mask.to_bits())]),
            (IpAddr::V6(net), IpAddr::V6(mask)) => (SOURCE_V6, words(net.to_bits(), mask.to_bits())),
            _ => continue,
        };
        push_network(&mut program, offset, &words);
    }
    program.push(SockFilter::new(RETURN, 0, 0, DROP));
    program
}

/// Passes if every word of the source is in the network; else the next network's instructions follow.
fn push_network(program: &mut Vec<SockFilter>, mut offset: u32, words: &[(u32, u32)]) {
    let words: Vec<_> = words.iter().filter(|(_, mask)| *mask != 0).collect();
    for (index, (net, mask)) in words.iter().enumerate() {
        // Each remaining word takes three instructions, and the return one.
        let to_next = u8::try_from((words.len() - index - 1) * 3 + 1).unwrap_or(u8::MAX);
        program.push(SockFilter::new(LOAD_WORD, 0, 0, NETWORK_HEADER.wrapping_add(offset)));
        program.push(SockFilter::new(AND, 0, 0, *mask));
        program.push(SockFilter::new(JUMP_IF_EQUAL, 0, to_next, *net));
        offset += 4;
    }
    program.push(SockFilter::new(RETURN, 0, 0, PASS));
}

fn words(net: u128, mask: u128) -> Vec<(u32, u32)> {
    // The casts keep the lowest word.
    [96, 64, 32, 0].map(|shift| ((net >> shift) as u32, (mask >> shift) as u32)).to_vec()
}
