//! Whatever a kernel of another version, or a broken one, sends: decoded or refused, never a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vipd_netlink::attr::Attrs;
use vipd_netlink::message::{parse_acknowledgement, parse_messages};
use vipd_netlink::{addresses, conntrack, nft};

fuzz_target!(|datagram: &[u8]| {
    for message in parse_messages(datagram) {
        let _ = parse_acknowledgement(message.flags, message.body);
        body(message.body);
    }
    body(datagram);
});

fn body(bytes: &[u8]) {
    let attrs = Attrs::new(bytes);
    let _ = (nft::parse_table(attrs), nft::parse_chain(attrs), nft::parse_rule(attrs), nft::parse_set(attrs));
    let _ = (nft::parse_element(bytes), nft::parse_found(bytes), nft::parse_expressions(bytes));
    let _ = conntrack::parse_flow(attrs);
    let _ = (addresses::parse_address(bytes), addresses::parse_link(bytes));
}
