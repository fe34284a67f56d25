//! `vipctl owner`.

use std::process::ExitCode;
use std::time::Duration;

use vipd_client::v1::{
    DeleteOwnerRequest, Lease, ListOwnersRequest, ListOwnersResponse, Network, Owner, OwnerStatus, RenewLeaseRequest,
    SetOwnerRequest, lease, owner,
};

use crate::cli::{self, OwnerCommand, OwnerSet};
use crate::failure::Failure;
use crate::output::{self, Format};
use crate::session::Session;
use crate::table::Columns;
use crate::text;
use crate::words;

pub(super) async fn run(session: &Session, owner: &cli::Owner) -> Result<ExitCode, Failure> {
    match &owner.command {
        OwnerCommand::Get { name } => get(session, name.as_deref()).await,
        OwnerCommand::Set(set) => self::set(session, set).await,
        OwnerCommand::Delete { name, write } => {
            let request = DeleteOwnerRequest { name: name.clone(), options: write.options() };
            let reply = session.client.dataplane().delete_owner(session.ask(request)).await?.into_inner();
            let subject = format!("owner {name} deleted with {} services", reply.services_removed);
            output::reply(session.format, &reply, || text::change(&subject, reply.change.as_ref()))?;
            Ok(ExitCode::SUCCESS)
        }
        OwnerCommand::Renew { name, session: number } => {
            let request = RenewLeaseRequest { owner: name.clone(), session: *number };
            let reply = session.client.dataplane().renew_lease(session.ask(request)).await?.into_inner();
            let until = text::when(reply.expires.as_ref());
            output::reply(session.format, &reply, || format!("{name}: lease renewed until {until}\n"))?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

async fn list(session: &Session) -> Result<ListOwnersResponse, Failure> {
    Ok(session.client.dataplane().list_owners(session.ask(ListOwnersRequest {})).await?.into_inner())
}

fn name_of(status: &OwnerStatus) -> &str {
    status.owner.as_ref().map_or("", |owner| &owner.name)
}

async fn get(session: &Session, name: Option<&str>) -> Result<ExitCode, Failure> {
    let mut all = list(session).await?;
    if let Some(name) = name {
        all.owners.retain(|status| name_of(status) == name);
        if all.owners.is_empty() {
            return Err(Failure::Refused(format!(
                "there is no owner {name:?}; `vipctl owner get` lists those there are"
            )));
        }
    }
    match session.format {
        Format::Yaml => {
            all.owners.iter().try_for_each(|status| output::message(session.format, status, String::new))?;
        }
        format => output::reply(format, &all, || table(&all.owners))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn table(owners: &[OwnerStatus]) -> String {
    if owners.is_empty() {
        return "no owners\n".to_owned();
    }
    let mut columns = Columns::new(&[
        "OWNER",
        "SERVICES",
        "ENDPOINTS",
        "FAILED",
        "LAST WRITE",
        "LAST SYNC",
        "LEASE UNTIL",
        "SESSION",
        "RANGES",
    ]);
    for status in owners {
        let network = status.owner.as_ref().and_then(|owner| owner.network.clone()).unwrap_or_default();
        let session =
            if status.session == 0 { String::new() } else { format!("{} {}", status.session, status.session_holder) };
        columns.row([
            name_of(status).to_owned(),
            status.services.to_string(),
            status.endpoints.to_string(),
            if status.failed_services == 0 { String::new() } else { status.failed_services.to_string() },
            text::when(status.last_write.as_ref()),
            text::when(status.last_sync.as_ref()),
            text::when(status.lease_expires.as_ref()),
            session,
            network.virtual_ranges.join(" "),
        ]);
    }
    columns.render("")
}

/// SetOwner replaces all settings, so those that are not named are read first.
async fn set(session: &Session, set: &OwnerSet) -> Result<ExitCode, Failure> {
    let known = list(session).await?.owners.into_iter().find(|status| name_of(status) == set.name);
    let mut owner = known.and_then(|status| status.owner).unwrap_or_default();
    owner.name.clone_from(&set.name);
    change(&mut owner, set)?;
    let request = SetOwnerRequest { owner: Some(owner), options: set.write.options() };
    let reply = session.client.dataplane().set_owner(session.ask(request)).await?.into_inner();
    output::reply(session.format, &reply, || text::change(&format!("owner {}", set.name), reply.change.as_ref()))?;
    Ok(ExitCode::SUCCESS)
}

fn change(owner: &mut Owner, set: &OwnerSet) -> Result<(), Failure> {
    let mut network = owner.network.take().unwrap_or_default();
    network.virtual_ranges = set.virtual_ranges.clone().unwrap_or(network.virtual_ranges);
    network.local_sources = set.local_sources.clone().unwrap_or(network.local_sources);
    network.local_source_interfaces = set.local_interfaces.clone().unwrap_or(network.local_source_interfaces);
    network.source_nat_all = set.source_nat_all.unwrap_or(network.source_nat_all);
    owner.network = (network != Network::default()).then_some(network);
    if let Some(time) = set.lease {
        let on_expiry = owner.lease.as_ref().map_or(0, |lease| lease.on_expiry);
        owner.lease = (time > Duration::ZERO).then(|| Lease { ttl: Some(words::message_of(time)), on_expiry });
    }
    if let Some(withdraws) = set.lease_withdraws {
        let none = || Failure::Usage("--lease-withdraws needs a lease: add --lease DURATION".to_owned());
        let on_expiry = if withdraws { lease::OnExpiry::Withdraw } else { lease::OnExpiry::Report };
        owner.lease.as_mut().ok_or_else(none)?.set_on_expiry(on_expiry);
    }
    if let Some(await_sync) = set.await_sync {
        owner.set_on_restart(if await_sync { owner::Restart::AwaitSync } else { owner::Restart::Restore });
    }
    if let Some(age) = set.restore_max_age {
        owner.restore_max_age = (age > Duration::ZERO).then(|| words::message_of(age));
    }
    owner.node_draining = set.node_draining.unwrap_or(owner.node_draining);
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Arguments, Command};

    fn changed(mut owner: Owner, words: &str) -> Result<Owner, Failure> {
        let arguments = Arguments::parse_from(format!("vipctl owner set k8s {words}").split_whitespace());
        let Command::Owner(cli::Owner { command: OwnerCommand::Set(set) }) = arguments.command else {
            panic!("`owner set` was typed");
        };
        change(&mut owner, &set).map(|()| owner)
    }

    #[test]
    fn what_is_not_named_stays() {
        let ranges = vec!["10.96.0.0/12".to_owned()];
        let network = Network { virtual_ranges: ranges.clone(), source_nat_all: true, ..Default::default() };
        let before = Owner { network: Some(network), node_draining: true, ..Default::default() };
        let after = changed(before, "--local-source 10.244.1.0/24 fd00::/64 --lease 5m").unwrap();
        let network = after.network.unwrap();
        assert_eq!((network.virtual_ranges, network.source_nat_all), (ranges, true));
        assert_eq!(network.local_sources, ["10.244.1.0/24", "fd00::/64"]);
        assert_eq!(after.lease.unwrap().ttl.unwrap().seconds, 300);
        assert!(after.node_draining);
    }

    #[test]
    fn zero_takes_away() {
        let ttl = Some(words::message_of(Duration::from_secs(60)));
        let before = Owner { lease: Some(Lease { ttl, on_expiry: 2 }), restore_max_age: ttl, ..Default::default() };
        let shorter = changed(before.clone(), "--lease 10s").unwrap().lease.unwrap();
        assert_eq!((shorter.ttl.unwrap().seconds, shorter.on_expiry()), (10, lease::OnExpiry::Withdraw));
        let after = changed(before, "--lease 0 --restore-max-age 0").unwrap();
        assert_eq!((after.lease, after.restore_max_age), (None, None));
        assert!(changed(Owner::default(), "--lease-withdraws true").is_err());
    }
}
