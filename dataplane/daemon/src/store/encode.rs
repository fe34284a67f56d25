//! Deltas into batches, and records into the parts of a desired state. The messages inside the records are the API's, so
//! the API's conversions serve here too; what no client sends (when an endpoint left, say) stands beside them.
//!
//! Pure: no disk, no clock.

use std::collections::BTreeMap;
use std::sync::Arc;

use vipd_model::desired::Stored;
use vipd_model::service::Revisions;
use vipd_model::{
    Definition, Delta, Drain, Endpoint, EndpointKey, Millis, OwnerChange, OwnerName, OwnerRecord, Revision, Scheduler,
    Service, ServiceChange, ServiceKey, endpoint::Leaving,
};
use vipd_proto::v1;

use super::StoredRecord;
use super::batch::Batch;
use super::error::Finding;
use super::record::{
    Record, RecordKey, StoredDefinition, StoredEndpoints, StoredLeaving, StoredLeft, StoredNode, StoredOwner,
    StoredScheduler, Subject, Table, decode_record,
};
use crate::api::convert::path::converted;
use crate::api::convert::{Path, Problems, endpoint, engine, owner, scalar, scheduler, service};

impl Batch {
    /// Adds what a Delta changed: of a service only the parts that are not as they were.
    pub fn add(&mut self, delta: &Delta) {
        if delta.changed() {
            self.set_revision(delta.revision.0);
        }
        for change in &delta.services {
            self.add_service(change);
        }
        for change in &delta.owners {
            self.add_owner(change);
        }
        if let Some(default_engine) = delta.default_engine {
            let record = StoredNode { default_engine: engine::message(default_engine).into() };
            self.put(RecordKey::single(Table::Node), &Record::Node(record));
        }
    }

    fn add_service(&mut self, change: &ServiceChange) {
        let key = |table| RecordKey::service(table, change.key.owner.as_str(), change.key.name.as_str());
        let Some(after) = &change.after else {
            for table in [Table::Definition, Table::Endpoints, Table::Scheduler] {
                self.delete(key(table));
            }
            return;
        };
        let before = change.before.as_deref();
        let differs = |same: fn(&Service, &Service) -> bool| before.is_none_or(|before| !same(before, after));
        if differs(|a, b| {
            let (then, now) = (a.revisions, b.revisions);
            a.definition == b.definition && (then.definition, then.created) == (now.definition, now.created)
        }) {
            self.put(key(Table::Definition), &Record::Definition(definition_record(after)));
        }
        if differs(|a, b| {
            (&a.endpoints, &a.leaving) == (&b.endpoints, &b.leaving) && a.revisions.endpoints == b.revisions.endpoints
        }) {
            self.put(key(Table::Endpoints), &Record::Endpoints(endpoints_record(after)));
        }
        if differs(|a, b| a.scheduler == b.scheduler && a.revisions.scheduler == b.revisions.scheduler) {
            self.put(key(Table::Scheduler), &Record::Scheduler(scheduler_record(after)));
        }
    }

    fn add_owner(&mut self, change: &OwnerChange) {
        let key = RecordKey::owner(change.name.as_str());
        match &change.after {
            Some(after) => self.put(key, &Record::Owner(owner_record(after))),
            None => self.delete(key),
        }
    }
}

fn definition_record(service: &Service) -> StoredDefinition {
    StoredDefinition {
        service: Some(service::definition_message(&service.definition)),
        revision: service.revisions.definition.0,
        created: service.revisions.created.0,
    }
}

fn endpoints_record(service: &Service) -> StoredEndpoints {
    let left = (0..).zip(service.endpoints.iter()).filter_map(|(index, endpoint)| {
        let since = endpoint.left_at?.0;
        Some(StoredLeft { index, since })
    });
    let leaving = service.leaving.iter().map(|leaving| StoredLeaving {
        address: leaving.key.address.to_string(),
        port: leaving.key.port.into(),
        since: leaving.since.0,
        drain: Some(endpoint::drain_message(&leaving.drain)),
    });
    StoredEndpoints {
        endpoints: service.endpoints.iter().map(endpoint::message).collect(),
        revision: service.revisions.endpoints.0,
        left: left.collect(),
        leaving: leaving.collect(),
    }
}

fn scheduler_record(service: &Service) -> StoredScheduler {
    StoredScheduler { scheduler: Some(scheduler::message(&service.scheduler)), revision: service.revisions.scheduler.0 }
}

fn owner_record(record: &OwnerRecord) -> StoredOwner {
    StoredOwner {
        owner: Some(v1::Owner { name: String::new(), ..owner::message(&record.owner) }),
        revision: record.revision.0,
        session: record.session,
        session_holder: record.session_holder.clone(),
        last_write: record.last_write.0,
        last_sync: record.last_sync.map(|at| at.0),
    }
}

/// What the records of a store declare.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Restored {
    /// For [`vipd_model::desired::Desired::restore`]. Every service's owner is among the owners.
    pub stored: Stored,
    /// Records that cannot be used, and parts that are missing.
    pub findings: Vec<Finding>,
}

/// The list, what still drains, and when both were last changed.
type Endpoints = (Arc<[Endpoint]>, Arc<[Leaving]>, Revision);

/// The parts of a service, as far as they have been found.
#[derive(Default)]
struct Parts {
    definition: Option<(Definition, Revision, Revision)>,
    endpoints: Option<Endpoints>,
    scheduler: Option<(Scheduler, Revision)>,
}

/// Decodes records. What cannot be used is named in the findings, and the rest is served: a service without a readable
/// scheduler has the default one; without readable endpoints it has none, and refuses until they are set again; without
/// a readable definition nothing is known of what to serve.
#[must_use]
pub fn restore(revision: u64, records: &[StoredRecord]) -> Restored {
    let mut restored = Restored::default();
    restored.stored.revision = Revision(revision);
    let mut owners = BTreeMap::new();
    let mut services = BTreeMap::<ServiceKey, Parts>::new();
    for StoredRecord { key, value } in records {
        let result = decode_record(key.table, &key.key, value)
            .map_err(|error| error.to_string())
            .and_then(|record| take(key, record, &mut restored, &mut owners, &mut services));
        if let Err(why) = result {
            restored.findings.push(Finding::Unusable { key: key.clone(), why });
        }
    }
    for (key, parts) in services {
        if let Some(service) = assemble(&key, parts, &mut restored.findings) {
            owners.entry(key.owner.clone()).or_insert_with(|| lost_owner(key.owner, service.revisions.newest()));
            restored.stored.services.push(service);
        }
    }
    restored.stored.owners = owners.into_values().collect();
    restored
}

fn take(
    key: &RecordKey,
    record: Record,
    restored: &mut Restored,
    owners: &mut BTreeMap<OwnerName, OwnerRecord>,
    services: &mut BTreeMap<ServiceKey, Parts>,
) -> Result<(), String> {
    let subject = key.subject().ok_or("its key names nothing")?;
    match (record, subject) {
        (Record::Meta(_), _) => {}
        (Record::Node(record), _) => {
            restored.stored.default_engine =
                convert(|at, problems| engine::parse(record.default_engine, at, problems))?;
        }
        (Record::Owner(record), Subject::Owner(name)) => {
            let record = owner_value(&name, record)?;
            owners.insert(record.owner.name.clone(), record);
        }
        (record, Subject::Service { owner, name }) => {
            let key = ServiceKey::new(&owner, &name).map_err(|error| format!("a name {error}"))?;
            let parts = services.entry(key).or_default();
            match record {
                Record::Definition(record) => parts.definition = Some(definition_value(record)?),
                Record::Endpoints(record) => parts.endpoints = Some(endpoints_value(&record)?),
                Record::Scheduler(record) => parts.scheduler = Some(scheduler_value(&record)?),
                Record::Meta(_) | Record::Node(_) | Record::Owner(_) => {}
            }
        }
        (_, Subject::Store | Subject::Owner(_)) => return Err("its key is not one of its table".into()),
    }
    Ok(())
}

/// One service of its parts. A part that is missing has been lost: each is written when the service is made.
fn assemble(key: &ServiceKey, parts: Parts, findings: &mut Vec<Finding>) -> Option<Service> {
    let mut lost = |table| {
        let key = RecordKey::service(table, key.owner.as_str(), key.name.as_str());
        let known = |finding: &Finding| matches!(finding, Finding::Unusable { key: known, .. } if *known == key);
        if !findings.iter().any(known) {
            findings.push(Finding::Lost(key));
        }
    };
    if parts.definition.is_none() {
        lost(Table::Definition);
    }
    let (definition, revision, created) = parts.definition?;
    let (endpoints, leaving, endpoints_revision) = parts.endpoints.unwrap_or_else(|| {
        lost(Table::Endpoints);
        ([].into(), [].into(), revision)
    });
    let (scheduler, scheduler_revision) = parts.scheduler.unwrap_or_else(|| {
        lost(Table::Scheduler);
        (Scheduler::default(), revision)
    });
    Some(Service {
        key: key.clone(),
        definition: Arc::new(definition),
        scheduler,
        endpoints,
        leaving,
        revisions: Revisions {
            created,
            definition: revision,
            endpoints: endpoints_revision,
            scheduler: scheduler_revision,
        },
        waiting: Vec::new(),
    })
}

/// An owner whose record was lost while services of it were not.
fn lost_owner(name: OwnerName, revision: Revision) -> OwnerRecord {
    OwnerRecord {
        owner: vipd_model::Owner::new(name),
        revision,
        session: 0,
        session_holder: String::new(),
        last_write: Millis(0),
        last_sync: None,
    }
}

/// Runs a conversion; the error is every problem that it found.
fn convert<T>(conversion: impl FnOnce(&Path<'_>, &mut Problems) -> Option<T>) -> Result<T, String> {
    converted(conversion).map_err(|rejection| {
        let texts = rejection.problems.iter().map(|problem| format!("{} {}", problem.field, problem.message));
        texts.collect::<Vec<_>>().join("; ")
    })
}

fn owner_value(name: &str, record: StoredOwner) -> Result<OwnerRecord, String> {
    let name = OwnerName::new(name).map_err(|error| format!("its name {error}"))?;
    let message = record.owner.ok_or("the settings are missing")?;
    Ok(OwnerRecord {
        owner: convert(|at, problems| owner::parse(message, &name, at, problems))?,
        revision: Revision(record.revision),
        session: record.session,
        session_holder: record.session_holder,
        last_write: Millis(record.last_write),
        last_sync: record.last_sync.map(Millis),
    })
}

fn definition_value(record: StoredDefinition) -> Result<(Definition, Revision, Revision), String> {
    let message = record.service.ok_or("the definition is missing")?;
    let definition = convert(|at, problems| service::parse_definition(message, at, problems))?;
    Ok((definition, Revision(record.revision), Revision(record.created)))
}

fn endpoints_value(record: &StoredEndpoints) -> Result<Endpoints, String> {
    let mut endpoints = convert(|at, problems| {
        let parsed = record.endpoints.iter().map(|message| endpoint::parse(message, at, problems));
        parsed.collect::<Option<Vec<_>>>()
    })?;
    for left in &record.left {
        let endpoint = endpoints.get_mut(left.index as usize).ok_or("it speaks of an endpoint that is not there")?;
        endpoint.left_at = Some(Millis(left.since));
    }
    let leaving = record.leaving.iter().map(leaving_value).collect::<Result<Vec<_>, _>>()?;
    Ok((endpoints.into(), leaving.into(), Revision(record.revision)))
}

fn leaving_value(record: &StoredLeaving) -> Result<Leaving, String> {
    let address = scalar::address(&record.address)?;
    let port = u16::try_from(record.port).map_err(|_| format!("{} is no port", record.port))?;
    let drain = match &record.drain {
        Some(drain) => convert(|at, problems| endpoint::parse_drain(drain, at, problems))?,
        None => Drain::default(),
    };
    Ok(Leaving { key: EndpointKey { address, port }, since: Millis(record.since), drain })
}

fn scheduler_value(record: &StoredScheduler) -> Result<(Scheduler, Revision), String> {
    let message = record.scheduler.ok_or("the scheduler is missing")?;
    Ok((convert(|at, problems| scheduler::parse(&message, at, problems))?, Revision(record.revision)))
}

#[cfg(test)]
mod tests;
