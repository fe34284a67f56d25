//! The addresses of this node, followed as they come and go.

use std::net::IpAddr;
use std::thread;
use std::time::Duration;

use vipd_netlink::addresses::{AddressMonitor, Addresses};

use crate::reconcile::Control;

/// From one look whether the daemon has stopped to the next, where addresses never change.
const PATIENCE: Duration = Duration::from_secs(5);
/// After a failure to read them.
const PAUSE: Duration = Duration::from_secs(1);

/// The addresses now, those that the kernel answers on.
///
/// # Errors
/// If netlink refuses.
pub fn list() -> Result<Vec<IpAddr>, vipd_netlink::Error> {
    let mut addresses: Vec<IpAddr> = Addresses::open()?
        .list()?
        .into_iter()
        .filter(|address| address.usable)
        .map(|address| address.address)
        .collect();
    addresses.sort();
    addresses.dedup();
    Ok(addresses)
}

/// Tells the reconciler whenever they change, from a thread of its own, until the daemon stops.
///
/// # Errors
/// If there is no thread, or netlink refuses the subscription.
pub fn follow(control: Control) -> std::io::Result<()> {
    let mut monitor = AddressMonitor::open().map_err(std::io::Error::other)?;
    let follow = move || {
        while !control.is_closed() {
            match monitor.wait(PATIENCE) {
                Ok(false) => {}
                // Lost notifications are a change too: the list is read anew either way.
                Ok(true) | Err(_) => match list() {
                    Ok(addresses) => control.set_addresses_blocking(addresses),
                    Err(error) => {
                        tracing::warn!(%error, "the node's addresses could not be read; trying again");
                        thread::sleep(PAUSE);
                    }
                },
            }
        }
    };
    thread::Builder::new().name("addresses".to_owned()).spawn(follow).map(drop)
}
