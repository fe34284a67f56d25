//! The messages of the API, by its own descriptor: what fields there are, and what a document has that they have not.
//!
//! The generated types would refuse a wrong document too, but at the first mistake and without saying where it is.

use std::collections::BTreeMap;

use prost::Message as _;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorSet};
use serde_json::Value;

use crate::text::did_you_mean;

/// Every message and enum, by full name with a leading dot, as fields refer to them.
pub(crate) struct Schema {
    messages: BTreeMap<String, DescriptorProto>,
    enums: BTreeMap<String, Vec<String>>,
}

/// One thing wrong with a document.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Mistake {
    /// `service.frontends[0].prt`
    pub(crate) path: String,
    /// Why, and what to write.
    pub(crate) why: String,
}

impl Schema {
    /// From the descriptor that the API's crate carries.
    pub(crate) fn new() -> Result<Self, String> {
        let set = FileDescriptorSet::decode(vipd_proto::DESCRIPTOR).map_err(|error| error.to_string())?;
        let mut schema = Self { messages: BTreeMap::new(), enums: BTreeMap::new() };
        for file in set.file {
            let package = format!(".{}", file.package.unwrap_or_default());
            file.enum_type.into_iter().for_each(|one| schema.add_enum(&package, one));
            file.message_type.into_iter().for_each(|one| schema.add_message(&package, one));
        }
        Ok(schema)
    }

    fn add_message(&mut self, parent: &str, mut message: DescriptorProto) {
        let name = format!("{parent}.{}", message.name());
        std::mem::take(&mut message.enum_type).into_iter().for_each(|one| self.add_enum(&name, one));
        std::mem::take(&mut message.nested_type).into_iter().for_each(|one| self.add_message(&name, one));
        self.messages.insert(name, message);
    }

    fn add_enum(&mut self, parent: &str, one: EnumDescriptorProto) {
        let values = one.value.iter().map(|value| value.name().to_owned()).collect();
        self.enums.insert(format!("{parent}.{}", one.name()), values);
    }

    /// What `value` has that a message of `vipd.v1` has not. Nulls are as if absent.
    pub(crate) fn mistakes(&self, message: &str, value: &Value) -> Vec<Mistake> {
        let mut mistakes = Vec::new();
        self.message(&format!(".vipd.v1.{message}"), value, "", &mut mistakes);
        mistakes
    }

    fn message(&self, name: &str, value: &Value, path: &str, mistakes: &mut Vec<Mistake>) {
        let Some(message) = self.messages.get(name) else { return };
        let Value::Object(entries) = value else {
            return mistakes.push(Mistake::at(path, format!("is {}; write a mapping of fields", kind(value))));
        };
        for (key, value) in entries {
            let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            match message.field.iter().find(|field| field.name() == key || field.json_name() == key) {
                Some(field) => self.field(field, value, &path, mistakes),
                None => {
                    let known = message.field.iter().map(FieldDescriptorProto::json_name).collect();
                    mistakes.push(Mistake::at(&path, format!("no such field{}", did_you_mean(key, known))));
                }
            }
        }
    }

    fn field(&self, field: &FieldDescriptorProto, value: &Value, path: &str, mistakes: &mut Vec<Mistake>) {
        let entry = self.messages.get(field.type_name()).filter(|message| is_map(message));
        match (entry, field.label(), value) {
            (_, _, Value::Null) => {}
            (Some(entry), _, Value::Object(entries)) => {
                // A map's entry is a message of two fields: 1 the key, 2 the value.
                let Some(of) = entry.field.iter().find(|field| field.number() == 2) else { return };
                entries.iter().for_each(|(key, value)| self.one(of, value, &format!("{path}.{key}"), mistakes));
            }
            (Some(_), _, _) => mistakes.push(Mistake::at(path, format!("is {}; write key: value", kind(value)))),
            (None, Label::Repeated, Value::Array(elements)) => {
                let each = elements.iter().enumerate();
                each.for_each(|(at, element)| self.one(field, element, &format!("{path}[{at}]"), mistakes));
            }
            (None, Label::Repeated, _) => {
                mistakes.push(Mistake::at(path, format!("is {}; write a list", kind(value))));
            }
            (None, _, _) => self.one(field, value, path, mistakes),
        }
    }

    fn one(&self, field: &FieldDescriptorProto, value: &Value, path: &str, mistakes: &mut Vec<Mistake>) {
        let why = match field.r#type() {
            Type::Message if field.type_name() == ".google.protobuf.Duration" => duration(value),
            Type::Message if field.type_name() == ".google.protobuf.Timestamp" => string(value),
            Type::Message => return self.message(field.type_name(), value, path, mistakes),
            Type::Enum => self.enumeration(field.type_name(), value),
            Type::String => string(value),
            Type::Bool if !value.is_boolean() => Some(format!("is {}; write true or false", kind(value))),
            Type::Uint32 => number(value, u32::MAX.into()),
            Type::Uint64 => number(value, u64::MAX),
            _ => None,
        };
        mistakes.extend(why.map(|why| Mistake::at(path, why)));
    }

    fn enumeration(&self, name: &str, value: &Value) -> Option<String> {
        let known = self.enums.get(name)?;
        match value {
            Value::String(word) if known.contains(word) => None,
            Value::String(word) => {
                let known = known.iter().map(String::as_str).filter(|name| !name.ends_with("_UNSPECIFIED")).collect();
                Some(format!("{word:?} is none of its values{}", did_you_mean(word, known)))
            }
            Value::Number(_) => None,
            _ => Some(format!("is {}; write one of {}", kind(value), known.join(", "))),
        }
    }
}

impl Mistake {
    fn at(path: &str, why: String) -> Self {
        Self { path: path.to_owned(), why }
    }
}

fn is_map(message: &DescriptorProto) -> bool {
    message.options.as_ref().is_some_and(prost_types::MessageOptions::map_entry)
}

fn kind(value: &Value) -> String {
    match value {
        Value::Null => "nothing".to_owned(),
        Value::Bool(value) => format!("the truth value {value}"),
        Value::Number(value) => format!("the number {value}"),
        Value::String(_) => "text".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "a mapping".to_owned(),
    }
}

fn string(value: &Value) -> Option<String> {
    match value {
        Value::String(_) => None,
        Value::Number(_) | Value::Bool(_) => Some(format!("is {}, and should be text: put it in quotes", kind(value))),
        _ => Some(format!("is {}; write text", kind(value))),
    }
}

/// Canonical JSON lets 64-bit numbers be text.
fn number(value: &Value, most: u64) -> Option<String> {
    let found = match value {
        Value::Number(number) => number.as_u64(),
        Value::String(text) => text.parse().ok(),
        _ => None,
    };
    match found {
        Some(number) if number <= most => None,
        _ => Some(format!("is {}; write a whole number, 0 to {most}", kind(value))),
    }
}

/// `"90s"`, `"0.5s"`: canonical JSON has no other unit.
fn duration(value: &Value) -> Option<String> {
    let seconds = value.as_str().and_then(|text| text.strip_suffix('s'));
    let well_formed = seconds.is_some_and(|text| text.parse::<f64>().is_ok_and(f64::is_finite));
    (!well_formed).then(|| "is no duration; write seconds with an s, such as 90s or 0.5s".to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn mistakes(message: &str, value: &Value) -> Vec<String> {
        let found = Schema::new().unwrap().mistakes(message, value);
        found.into_iter().map(|mistake| format!("{}: {}", mistake.path, mistake.why)).collect()
    }

    #[test]
    fn every_mistake_is_found_with_its_path() {
        let value = json!({
            "service": {
                "name": 7,
                "protocol": "tcp",
                "frontends": [{"address": "10.96.0.10", "port": 80}, {"adress": "10.96.0.11", "port": -1}],
                "labels": {"version": 1.10},
                "clientAffinity": {"timeout": "3h"},
            },
            "endpoints": {"address": "10.1.0.2"},
        });
        assert_eq!(
            mistakes("ServiceState", &value),
            [
                "endpoints: is a mapping; write a list",
                "service.clientAffinity.timeout: is no duration; write seconds with an s, such as 90s or 0.5s",
                "service.frontends[1].adress: no such field; did you mean address?",
                "service.frontends[1].port: is the number -1; write a whole number, 0 to 4294967295",
                "service.labels.version: is the number 1.1, and should be text: put it in quotes",
                "service.name: is the number 7, and should be text: put it in quotes",
                "service.protocol: \"tcp\" is none of its values; did you mean TCP?",
            ]
        );
    }

    #[test]
    fn what_the_api_itself_prints_has_no_mistakes() {
        let value = json!({
            "service": {"owner": "default", "name": "web", "labels": {"a": "b"}, "precedence": "18446744073709551615",
                        "frontends": [{"node_port": {"family": "BOTH"}, "port": 30080, "port_end": 0}],
                        "scheduler": {"algorithm": "WLC", "hashSourcePort": true}, "drain": {"timeout": "0.500s"}},
            "endpoints": [{"address": "10.1.0.2", "port": 8080, "weight": 0, "local": true, "drain": null}],
            "status": {"state": "IN_FORCE", "revision": "3", "programmedAt": "2026-11-30T00:00:00Z"},
        });
        assert_eq!(mistakes("ServiceState", &value), Vec::<String>::new());
    }
}
