//! The steps of a Sync.

use std::sync::Arc;

use vipd_model::command::Declare;
use vipd_model::problem::Refused;
use vipd_model::{Owner, OwnerName};
use vipd_proto::v1;

use super::operation::{Options, parse_options};
use super::path::{Path, Problems};
use super::{endpoint, owner, scalar, service};

/// What a Sync says at its begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Begin {
    /// Whose state.
    pub owner: OwnerName,
    /// Opens a session.
    pub take_over: bool,
    /// Absent: as they are.
    pub settings: Option<Owner>,
    /// Do not refuse a large removal.
    pub allow_large_removal: bool,
    /// Refuse everything if one service is refused.
    pub all_or_nothing: bool,
    /// Of the write.
    pub options: Options,
}

/// The first step.
pub fn parse_begin(message: v1::SyncBegin, default: &OwnerName, problems: &mut Problems) -> Option<Begin> {
    let at = &Path::Root.field("begin");
    let name = scalar::owner(&message.owner, default, &at.field("owner"), problems);
    let settings = match message.settings {
        None => Some(None),
        Some(settings) => {
            let default = name.as_ref().unwrap_or(default);
            owner::parse(settings, default, &at.field("settings"), problems).map(Some)
        }
    };
    let options = parse_options(message.options, at, problems);
    let (name, settings) = (name?, settings?);
    if settings.as_ref().is_some_and(|settings| settings.name != name) {
        let why = format!("is another owner; leave it out, or write {name}");
        return problems.invalid(&at.field("settings").field("name"), why);
    }
    Some(Begin {
        owner: name,
        take_over: message.take_over,
        settings,
        allow_large_removal: message.allow_large_removal,
        all_or_nothing: message.all_or_nothing,
        options: options?,
    })
}

/// A service of the Sync, the `index`th from 0; refused alone if it cannot be converted. Field paths begin with
/// `declare[index]`.
///
/// # Errors
/// The refusal, for the list in the reply.
pub fn parse_declare(message: v1::Declare, index: u32, owner: &OwnerName) -> Result<Declare, Refused> {
    let named = message.service.as_ref();
    let shown_owner = named.map(|s| s.owner.as_str()).filter(|o| !o.is_empty()).unwrap_or(owner.as_str());
    let shown = (scalar::cut(shown_owner), scalar::cut(named.map_or("", |s| s.name.as_str())));
    let mut problems = Problems::new();
    let declare = convert_declare(message, index, owner, &mut problems);
    problems.into_result(declare).map_err(|rejection| {
        let (owner, name) = shown;
        Refused { index, owner, name, problems: rejection.problems }
    })
}

fn convert_declare(message: v1::Declare, index: u32, owner: &OwnerName, problems: &mut Problems) -> Option<Declare> {
    let at = &Path::Root.field("declare");
    let at = &at.index(index as usize);
    let endpoints = endpoint::parse_list(&message.endpoints, &at.field("endpoints"), problems);
    let Some(service) = message.service else {
        return problems.invalid(&at.field("service"), "is missing; give at least its name");
    };
    let declared = service::parse(service, owner, &at.field("service"), problems)?;
    if declared.key.owner != *owner {
        let why = format!("is not the owner of this Sync; leave it out, or write {owner}");
        return problems.invalid(&at.field("service").field("owner"), why);
    }
    let service::Declared { key, definition, scheduler } = declared;
    Some(Declare { index, key, definition: Arc::new(definition), scheduler, endpoints: endpoints? })
}
