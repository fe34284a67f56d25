//! An object, read as far as it can be. The types of the API are stricter than what servers keep: a condition that was
//! patched without a time has `null` there, and one such Service must not be lost, nor fail the list that it is in.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::de::{Deserialize, DeserializeOwned, Deserializer, Error as _};
use serde_json::Value;

/// An object of a kind, or why it is none.
#[derive(Clone, Debug)]
pub(super) struct Read<K> {
    metadata: ObjectMeta,
    pub(super) object: Result<K, String>,
}

impl<'de, K: DeserializeOwned> Deserialize<'de> for Read<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut value = Value::deserialize(deserializer)?;
        for (part, field) in UNREAD {
            if let Some(part) = value.get_mut(*part).and_then(Value::as_object_mut) {
                part.remove(*field);
            }
        }
        without_nulls(&mut value);
        let metadata = value.get("metadata").cloned().unwrap_or_default();
        let metadata = serde_json::from_value(metadata).map_err(D::Error::custom)?;
        Ok(Self { metadata, object: serde_json::from_value(value).map_err(|error| error.to_string()) })
    }
}

/// What nobody here reads, and others write much or loosely into.
const UNREAD: &[(&str, &str)] = &[("metadata", "managedFields"), ("status", "conditions"), ("status", "images")];

/// To the API a field that is null and one that is absent are the same.
fn without_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, value| !value.is_null());
            map.values_mut().for_each(without_nulls);
        }
        Value::Array(list) => list.iter_mut().for_each(without_nulls),
        _ => {}
    }
}

impl<K: Resource<DynamicType = ()>> Resource for Read<K> {
    type DynamicType = ();
    type Scope = K::Scope;

    fn kind(_: &()) -> Cow<'_, str> {
        K::kind(&())
    }
    fn group(_: &()) -> Cow<'_, str> {
        K::group(&())
    }
    fn version(_: &()) -> Cow<'_, str> {
        K::version(&())
    }
    fn plural(_: &()) -> Cow<'_, str> {
        K::plural(&())
    }
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Service;
    use serde_json::json;

    use super::*;

    fn read(mut value: Value) -> Read<Service> {
        value["metadata"] = json!({ "name": "web", "resourceVersion": "7", "creationTimestamp": null });
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn nulls_and_loose_conditions_are_no_obstacle() {
        let condition = json!({ "type": "Patched", "status": "True", "lastTransitionTime": null });
        let found = read(json!({
            "spec": { "clusterIP": "10.96.0.1", "selector": null, "ports": [{ "port": 80, "name": null }] },
            "status": { "conditions": [condition], "loadBalancer": { "ingress": [{ "ip": "192.0.2.1", "ports": null }] } },
        }));
        assert_eq!(found.meta().name.as_deref(), Some("web"));
        assert_eq!(found.object.unwrap().spec.unwrap().ports.unwrap()[0].port, 80);
    }

    #[test]
    fn what_is_no_object_of_its_kind_is_known_by_its_name() {
        let found = read(json!({ "spec": { "ports": "eighty" } }));
        assert_eq!(found.meta().resource_version.as_deref(), Some("7"));
        assert!(found.object.is_err());
    }
}
