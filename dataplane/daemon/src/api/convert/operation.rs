//! The calls that change a service, alone and inside an Apply, and the options that every write has.

use std::sync::Arc;

use vipd_model::command::{Mode, Operation};
use vipd_model::limits::NOTE_BYTES;
use vipd_model::problem::{Refused, Rejection};
use vipd_model::{OwnerName, Revision, Wait};
use vipd_proto::v1;

use super::path::{Path, Problems};
use super::{endpoint, scalar, scheduler, service};

/// What a write says beside its change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// When to answer.
    pub wait: Wait,
    /// 0: none, not fenced.
    pub session: u64,
    /// For the journal.
    pub note: String,
}

/// The options of a write, which may be absent.
pub fn parse_options(message: Option<v1::WriteOptions>, at: &Path<'_>, problems: &mut Problems) -> Option<Options> {
    let message = message.unwrap_or_default();
    let at = at.field("options");
    let wait = scalar::known(message.wait, &at.field("wait"), problems).map(|wait| match wait {
        v1::write_options::Wait::Unspecified | v1::write_options::Wait::Programmed => Wait::Programmed,
        v1::write_options::Wait::Accepted => Wait::Accepted,
    });
    let note = scalar::text(message.note, NOTE_BYTES, &at.field("note"), problems);
    Some(Options { wait: wait?, session: message.session, note: note? })
}

/// The note of a call that has one beside no other option.
pub fn parse_note(note: String, problems: &mut Problems) -> Option<String> {
    scalar::text(note, NOTE_BYTES, &Path::Root.field("note"), problems)
}

/// UpsertService, without its options.
pub fn parse_upsert(
    message: v1::UpsertServiceRequest,
    default: &OwnerName,
    at: &Path<'_>,
    problems: &mut Problems,
) -> Option<Operation> {
    let Some(service) = message.service else {
        return problems.invalid(&at.field("service"), "is missing; give at least its name");
    };
    let service::Declared { key, definition, scheduler } =
        service::parse(service, default, &at.field("service"), problems)?;
    let expected = message.expected_revision.map(Revision);
    Some(Operation::UpsertService { key, definition: Arc::new(definition), scheduler, expected })
}

/// DeleteService, without its options.
pub fn parse_delete(
    message: &v1::DeleteServiceRequest,
    default: &OwnerName,
    at: &Path<'_>,
    problems: &mut Problems,
) -> Option<Operation> {
    let key = scalar::key(&message.owner, &message.name, default, at, problems)?;
    Some(Operation::DeleteService { key, expected: message.expected_revision.map(Revision) })
}

/// SetEndpoints, without its options.
pub fn parse_set_endpoints(
    message: &v1::SetEndpointsRequest,
    default: &OwnerName,
    at: &Path<'_>,
    problems: &mut Problems,
) -> Option<Operation> {
    let key = scalar::key(&message.owner, &message.name, default, at, problems);
    let endpoints = endpoint::parse_list(&message.endpoints, &at.field("endpoints"), problems);
    let expected = message.expected_revision.map(Revision);
    Some(Operation::SetEndpoints { key: key?, endpoints: endpoints?, expected })
}

/// PatchEndpoints, without its options.
pub fn parse_patch(
    message: &v1::PatchEndpointsRequest,
    default: &OwnerName,
    at: &Path<'_>,
    problems: &mut Problems,
) -> Option<Operation> {
    let key = scalar::key(&message.owner, &message.name, default, at, problems);
    let upsert = endpoint::parse_list(&message.upsert, &at.field("upsert"), problems);
    let remove = endpoint::parse_keys(&message.remove, &at.field("remove"), problems);
    let expected = message.expected_revision.map(Revision);
    Some(Operation::PatchEndpoints { key: key?, upsert: upsert?, remove: remove?, expected })
}

/// SetScheduler, without its options; no scheduler: the default.
pub fn parse_set_scheduler(
    message: &v1::SetSchedulerRequest,
    default: &OwnerName,
    at: &Path<'_>,
    problems: &mut Problems,
) -> Option<Operation> {
    let key = scalar::key(&message.owner, &message.name, default, at, problems);
    let scheduler = scheduler::parse(&message.scheduler.unwrap_or_default(), &at.field("scheduler"), problems);
    let expected = message.expected_revision.map(Revision);
    Some(Operation::SetScheduler { key: key?, scheduler: scheduler?, expected })
}

/// An Apply's operations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Operations {
    /// Those that could be converted.
    pub converted: Vec<Operation>,
    /// Where each of them stood in the request.
    pub indices: Vec<u32>,
    /// EACH: those that could not.
    pub refused: Vec<Refused>,
}

/// The mode of an Apply.
pub fn parse_mode(number: i32, problems: &mut Problems) -> Option<Mode> {
    scalar::known(number, &Path::Root.field("mode"), problems).map(|mode| match mode {
        v1::apply_request::Mode::Unspecified | v1::apply_request::Mode::Atomic => Mode::Atomic,
        v1::apply_request::Mode::Each => Mode::Each,
    })
}

/// The operations of an Apply (or a Plan). ATOMIC: one that cannot be converted is a problem of the request. EACH: it is
/// refused, and the others go on.
pub fn parse_operations(
    messages: Vec<v1::Operation>,
    mode: Mode,
    default: &OwnerName,
    problems: &mut Problems,
) -> Option<Operations> {
    let at = Path::Root.field("operations");
    let mut operations = Operations::default();
    for (index, message) in messages.into_iter().enumerate() {
        let (owner, name) = named(&message, default);
        let mut own = Problems::new();
        let operation = parse_operation(message, default, &at.index(index), &mut own);
        // A request of 16 MiB holds fewer.
        let index = u32::try_from(index).unwrap_or(u32::MAX);
        match own.into_result(operation) {
            Ok(operation) => {
                operations.converted.push(operation);
                operations.indices.push(index);
            }
            Err(rejection) if mode == Mode::Each => {
                operations.refused.push(Refused { index, owner, name, problems: rejection.problems });
            }
            Err(rejection) => problems.extend(rejection.problems),
        }
    }
    Some(operations)
}

fn parse_operation(
    message: v1::Operation,
    default: &OwnerName,
    at: &Path<'_>,
    problems: &mut Problems,
) -> Option<Operation> {
    use v1::operation::Operation as Message;
    match message.operation {
        Some(Message::UpsertService(m)) => {
            let at = at.field("upsert_service");
            without_options(m.options.as_ref(), &at, problems);
            parse_upsert(m, default, &at, problems)
        }
        Some(Message::DeleteService(m)) => {
            let at = at.field("delete_service");
            without_options(m.options.as_ref(), &at, problems);
            parse_delete(&m, default, &at, problems)
        }
        Some(Message::SetEndpoints(m)) => {
            let at = at.field("set_endpoints");
            without_options(m.options.as_ref(), &at, problems);
            parse_set_endpoints(&m, default, &at, problems)
        }
        Some(Message::PatchEndpoints(m)) => {
            let at = at.field("patch_endpoints");
            without_options(m.options.as_ref(), &at, problems);
            parse_patch(&m, default, &at, problems)
        }
        Some(Message::SetScheduler(m)) => {
            let at = at.field("set_scheduler");
            without_options(m.options.as_ref(), &at, problems);
            parse_set_scheduler(&m, default, &at, problems)
        }
        None => problems.invalid(at, "has no operation; give one, such as `set_endpoints`"),
    }
}

/// One change has one set of options: the Apply's.
fn without_options(options: Option<&v1::WriteOptions>, at: &Path<'_>, problems: &mut Problems) {
    if options.is_some() {
        let _: Option<()> =
            problems.invalid(&at.field("options"), "must be absent; give the options of the whole call");
    }
}

/// Owner and name as sent (and cut, since they may be what is wrong), for a report.
fn named(message: &v1::Operation, default: &OwnerName) -> (String, String) {
    use v1::operation::Operation as Message;
    let (owner, name) = match &message.operation {
        Some(Message::UpsertService(m)) => m.service.as_ref().map_or(("", ""), |s| (s.owner.as_str(), s.name.as_str())),
        Some(Message::DeleteService(m)) => (m.owner.as_str(), m.name.as_str()),
        Some(Message::SetEndpoints(m)) => (m.owner.as_str(), m.name.as_str()),
        Some(Message::PatchEndpoints(m)) => (m.owner.as_str(), m.name.as_str()),
        Some(Message::SetScheduler(m)) => (m.owner.as_str(), m.name.as_str()),
        None => ("", ""),
    };
    (scalar::cut(if owner.is_empty() { default.as_str() } else { owner }), scalar::cut(name))
}

impl Operations {
    /// EACH: also refuses those of which `check` says why; it is told the path of each in the request.
    pub fn refuse_where(&mut self, check: impl Fn(&Operation, &str) -> Result<(), Rejection>) {
        let converted = std::mem::take(&mut self.converted).into_iter().zip(std::mem::take(&mut self.indices));
        for (operation, index) in converted {
            match check(&operation, &format!("operations[{index}]")) {
                Ok(()) => {
                    self.converted.push(operation);
                    self.indices.push(index);
                }
                Err(rejection) => {
                    let key = operation.key();
                    let (owner, name) = (key.owner.to_string(), key.name.to_string());
                    self.refused.push(Refused { index, owner, name, problems: rejection.problems });
                }
            }
        }
    }
}
