//! Documents to operations, remembering which came from where.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use vipd_client::v1::operation::Operation as Op;
use vipd_client::v1::{
    ApplyRequest, ListServicesResponse, Operation, Owner, OwnerStatus, ServiceState, SetEndpointsRequest,
    UpsertServiceRequest,
};

use super::batch::Batch;
use crate::failure::Failure;
use crate::schema::Schema;
use crate::text::{did_you_mean, key};

/// One document.
pub(super) enum Document {
    Services(Vec<(ServiceState, HasEndpoints)>),
    Owner(Owner),
    Apply(Box<ApplyRequest>),
    One(Box<Op>),
}

/// An empty list and none at all are two things: none leaves the endpoints as they are.
type HasEndpoints = bool;

/// Everything that was read.
#[derive(Default)]
pub(crate) struct Declared {
    /// Settings of owners, each a call of its own.
    pub(crate) owners: Vec<Owner>,
    /// All operations, for one Apply.
    pub(crate) batch: Batch,
    /// An ApplyRequest that says how it is to be applied; then it is the only document.
    pub(crate) alone: Option<Box<ApplyRequest>>,
    documents: usize,
}

/// The keys by which a document is recognised.
const KEYS: [&str; 5] = ["service", "services", "owner", "operations", "name"];

impl Document {
    /// A document by its keys, checked.
    pub(super) fn parse(schema: &Schema, document: Value) -> Result<Self, Vec<String>> {
        let Value::Object(entries) = &document else {
            return Err(vec!["is no mapping; write for example `service: {name: web, …}`".to_owned()]);
        };
        let has = |key: &str| entries.get(key).is_some_and(|value| !value.is_null());
        match () {
            // An owner's status has numbers of `services` and of `endpoints`, so it comes first; the owner of a request
            // for one part of a service is text.
            () if entries.get("owner").is_some_and(Value::is_object) => {
                let status: OwnerStatus = read(schema, "OwnerStatus", document)?;
                Ok(Self::Owner(status.owner.unwrap_or_default()))
            }
            () if has("operations") => read(schema, "ApplyRequest", document).map(|r| Self::Apply(Box::new(r))),
            () if has("services") => list(schema, document),
            () if has("service") => {
                let with_endpoints = has("endpoints");
                let state = read(schema, "ServiceState", document)?;
                Ok(Self::Services(vec![(state, with_endpoints)]))
            }
            () if has("name") => request(schema, document),
            () => Err(vec![unrecognised(entries)]),
        }
    }
}

/// What `get -o json` prints for several services.
fn list(schema: &Schema, document: Value) -> Result<Document, Vec<String>> {
    let services = document["services"].as_array().cloned().unwrap_or_default();
    let with_endpoints: Vec<bool> = services.iter().map(|service| !service["endpoints"].is_null()).collect();
    let list: ListServicesResponse = read(schema, "ListServicesResponse", document)?;
    Ok(Document::Services(list.services.into_iter().zip(with_endpoints).collect()))
}

/// The request of a call that writes one part of a service.
fn request(schema: &Schema, document: Value) -> Result<Document, Vec<String>> {
    let has = |key: &str| !document[key].is_null();
    let op = if has("endpoints") {
        Op::SetEndpoints(read(schema, "SetEndpointsRequest", document)?)
    } else if has("upsert") || has("remove") {
        Op::PatchEndpoints(read(schema, "PatchEndpointsRequest", document)?)
    } else if has("scheduler") {
        Op::SetScheduler(read(schema, "SetSchedulerRequest", document)?)
    } else {
        let why = "a name alone declares nothing; a service is `service: {name: …}`, and `vipctl delete` removes one";
        return Err(vec![why.to_owned()]);
    };
    Ok(Document::One(Box::new(op)))
}

fn unrecognised(entries: &Map<String, Value>) -> String {
    let found: Vec<&str> = entries.keys().map(String::as_str).collect();
    let hint = found.first().map(|key| did_you_mean(key, KEYS.to_vec())).unwrap_or_default();
    format!("declares nothing that is known: it has {}{hint}", found.join(", "))
}

fn read<T: DeserializeOwned>(schema: &Schema, message: &str, mut document: Value) -> Result<T, Vec<String>> {
    let mistakes = schema.mistakes(message, &document);
    if !mistakes.is_empty() {
        return Err(mistakes.into_iter().map(|wrong| format!("{}: {}", wrong.path, wrong.why)).collect());
    }
    without_nulls(&mut document);
    serde_json::from_value(document).map_err(|error| vec![error.to_string()])
}

/// A null is a field that is not set, wherever it stands.
fn without_nulls(value: &mut Value) {
    match value {
        Value::Object(entries) => {
            entries.retain(|_, value| !value.is_null());
            entries.values_mut().for_each(without_nulls);
        }
        Value::Array(elements) => elements.iter_mut().for_each(without_nulls),
        _ => {}
    }
}

impl Declared {
    pub(super) fn add(&mut self, place: String, document: Document) {
        self.documents += 1;
        match document {
            Document::Owner(owner) => self.owners.push(owner),
            Document::Services(services) => {
                services.into_iter().for_each(|(state, with_endpoints)| self.service(&place, state, with_endpoints));
            }
            Document::One(op) => self.push(place, *op),
            Document::Apply(mut request) => {
                for operation in std::mem::take(&mut request.operations) {
                    self.batch.push(place.clone(), operation);
                }
                if request.mode != 0 || request.options.is_some() {
                    self.alone = Some(request);
                }
            }
        }
    }

    fn service(&mut self, place: &str, state: ServiceState, with_endpoints: bool) {
        let ServiceState { service, endpoints, .. } = state;
        let service = service.unwrap_or_default();
        let (owner, name) = (service.owner.clone(), service.name.clone());
        let place = format!("{place} ({})", key(&owner, &name));
        let upsert = UpsertServiceRequest { service: Some(service), ..Default::default() };
        self.push(place.clone(), Op::UpsertService(upsert));
        if with_endpoints {
            let set = SetEndpointsRequest { owner, name, endpoints, ..Default::default() };
            self.push(place, Op::SetEndpoints(set));
        }
    }

    fn push(&mut self, place: String, op: Op) {
        self.batch.push(place, Operation { operation: Some(op) });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.documents == 0
    }

    /// An ApplyRequest with a mode or options of its own cannot be mixed with others.
    pub(super) fn check(&self) -> Result<(), Failure> {
        if self.alone.is_some() && self.documents > 1 {
            let why =
                "an ApplyRequest with `mode` or `options` must be the only document: all documents are one change";
            return Err(Failure::Usage(why.to_owned()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn declared(documents: &[Value]) -> Declared {
        let schema = Schema::new().unwrap();
        let mut declared = Declared::default();
        for (number, document) in documents.iter().enumerate() {
            let document = Document::parse(&schema, document.clone()).unwrap();
            declared.add(format!("document {}", number + 1), document);
        }
        declared
    }

    fn wrong(document: Value) -> String {
        Document::parse(&Schema::new().unwrap(), document).err().expect("is wrong").join("; ")
    }

    #[test]
    fn no_endpoints_and_an_empty_list_are_two_things() {
        let without = declared(&[json!({"service": {"name": "web"}, "endpoints": null})]);
        assert_eq!(without.batch.len(), 1);
        let empty = declared(&[json!({"service": {"name": "web"}, "endpoints": []})]);
        assert!(
            matches!(&empty.batch.operations()[1].operation, Some(Op::SetEndpoints(set)) if set.endpoints.is_empty())
        );
    }

    #[test]
    fn every_form_is_understood() {
        let all = declared(&[
            json!({"owner": {"name": "k8s", "network": {"virtualRanges": ["10.96.0.0/12"]}}, "services": 3}),
            json!({"services": [{"service": {"name": "a"}}, {"service": {"name": "b"}, "endpoints": []}]}),
            json!({"name": "a", "scheduler": {"algorithm": "WLC"}}),
            json!({"name": "a", "remove": [{"address": "10.1.0.2", "port": 1}]}),
            json!({"operations": [{"deleteService": {"name": "c"}}]}),
        ]);
        assert_eq!((all.owners.len(), all.batch.len()), (1, 6));
        assert_eq!(all.batch.services(), ["a", "b", "a", "c"]);
        assert!(all.check().is_ok());
    }

    #[test]
    fn what_is_not_understood_names_the_nearest() {
        assert!(wrong(json!({"servce": {}})).contains("did you mean service?"));
        assert!(wrong(json!({"name": "web"})).contains("vipctl delete"));
        assert!(wrong(json!([1])).contains("no mapping"));
        assert!(wrong(json!({"owner": "ops", "name": "web", "endpoint": [], "endpoints": []})).contains("endpoints?"));
    }

    #[test]
    fn a_field_of_the_call_is_told_as_one_of_the_file() {
        let two = declared(&[json!({"service": {"name": "a"}}), json!({"service": {"name": "b"}, "endpoints": []})]);
        let told = two.batch.translate("operations[2].set_endpoints.endpoints[0].port");
        assert_eq!(told.as_deref(), Some("document 2 (b): endpoints[0].port"));
        assert_eq!(two.batch.translate("operations[0].upsert_service").as_deref(), Some("document 1 (a)"));
        assert_eq!(two.batch.translate("mode"), None);
    }

    #[test]
    fn a_request_with_options_stands_alone() {
        let request = json!({"operations": [], "mode": "EACH"});
        let mixed = declared(&[request, json!({"service": {"name": "a"}})]);
        assert!(mixed.check().is_err());
    }
}
