//! Owners: lease, network, restart policy.

use vipd_model::{Lease, LeaseExpiry, Network, Owner, OwnerName, Restart};
use vipd_proto::v1;

use super::path::{Path, Problems};
use super::scalar;

/// An owner's settings.
pub fn parse(message: v1::Owner, default: &OwnerName, at: &Path<'_>, problems: &mut Problems) -> Option<Owner> {
    let name = scalar::owner(&message.name, default, &at.field("name"), problems);
    let lease = match &message.lease {
        None => Some(None),
        Some(lease) => parse_lease(lease, &at.field("lease"), problems).map(Some),
    };
    let network = match message.network {
        None => Some(Network::default()),
        Some(network) => parse_network(network, &at.field("network"), problems),
    };
    let on_restart = scalar::known(message.on_restart, &at.field("on_restart"), problems).map(|value| match value {
        v1::owner::Restart::Unspecified | v1::owner::Restart::Restore => Restart::Restore,
        v1::owner::Restart::AwaitSync => Restart::AwaitSync,
    });
    let restore_max_age = scalar::duration(message.restore_max_age, &at.field("restore_max_age"), problems);
    Some(Owner {
        name: name?,
        lease: lease?,
        network: network?,
        on_restart: on_restart?,
        restore_max_age: restore_max_age?,
        node_draining: message.node_draining,
    })
}

fn parse_lease(message: &v1::Lease, at: &Path<'_>, problems: &mut Problems) -> Option<Lease> {
    let ttl = match message.ttl {
        Some(_) => scalar::duration(message.ttl, &at.field("ttl"), problems).flatten(),
        None => problems.invalid(&at.field("ttl"), "is missing; give 1 s to 7 d, or leave out the lease"),
    };
    let on_expiry = scalar::known(message.on_expiry, &at.field("on_expiry"), problems).map(|value| match value {
        v1::lease::OnExpiry::Unspecified | v1::lease::OnExpiry::Report => LeaseExpiry::Report,
        v1::lease::OnExpiry::Withdraw => LeaseExpiry::Withdraw,
    });
    Some(Lease { ttl: ttl?, on_expiry: on_expiry? })
}

fn parse_network(message: v1::Network, at: &Path<'_>, problems: &mut Problems) -> Option<Network> {
    let local_sources = scalar::prefixes(&message.local_sources, &at.field("local_sources"), problems);
    let virtual_ranges = scalar::prefixes(&message.virtual_ranges, &at.field("virtual_ranges"), problems);
    Some(Network {
        local_sources: local_sources?,
        local_source_interfaces: message.local_source_interfaces,
        virtual_ranges: virtual_ranges?,
        source_nat_all: message.source_nat_all,
    })
}

/// An owner's settings as replies show them.
#[must_use]
pub fn message(owner: &Owner) -> v1::Owner {
    let on_restart = match owner.on_restart {
        Restart::Restore => v1::owner::Restart::Restore,
        Restart::AwaitSync => v1::owner::Restart::AwaitSync,
    };
    v1::Owner {
        name: owner.name.to_string(),
        lease: owner.lease.as_ref().map(lease_message),
        network: Some(network_message(&owner.network)),
        on_restart: on_restart.into(),
        restore_max_age: owner.restore_max_age.map(scalar::duration_message),
        node_draining: owner.node_draining,
    }
}

fn lease_message(lease: &Lease) -> v1::Lease {
    let on_expiry = match lease.on_expiry {
        LeaseExpiry::Report => v1::lease::OnExpiry::Report,
        LeaseExpiry::Withdraw => v1::lease::OnExpiry::Withdraw,
    };
    v1::Lease { ttl: Some(scalar::duration_message(lease.ttl)), on_expiry: on_expiry.into() }
}

fn network_message(network: &Network) -> v1::Network {
    v1::Network {
        local_sources: scalar::prefixes_message(&network.local_sources),
        local_source_interfaces: network.local_source_interfaces.clone(),
        virtual_ranges: scalar::prefixes_message(&network.virtual_ranges),
        source_nat_all: network.source_nat_all,
    }
}
