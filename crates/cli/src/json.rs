//! Converts messages to JSON and back by the published schema, in the form that grpcurl reads and writes.

use std::{path::Path, sync::LazyLock};

use prost::{Message, Name};
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor};
use serde_json::Value;

use super::Failure;
use baton_client::{envelope::read_json, proto};

static SCHEMA: LazyLock<DescriptorPool> =
    LazyLock::new(|| DescriptorPool::decode(proto::DESCRIPTORS).expect("the schema was compiled with this program"));

static STORAGE: LazyLock<DescriptorPool> = LazyLock::new(|| {
    DescriptorPool::decode(baton_broker_core::proto::STORAGE_DESCRIPTORS)
        .expect("the schema was compiled with this program")
});

fn descriptor(name: &str) -> MessageDescriptor {
    let found = SCHEMA.get_message_by_name(name).or_else(|| STORAGE.get_message_by_name(name));
    found.expect("every message of ours is in a schema")
}

/// The values that a field of this enum can be set to, without their prefix.
pub(super) fn words(name: &str, prefix: &str) -> Vec<String> {
    let found = SCHEMA.get_enum_by_name(name).expect("every enum of ours is in the schema");
    let set = found.values().filter(|value| value.number() != 0);
    set.map(|value| value.name().trim_start_matches(prefix).to_owned()).collect()
}

/// Converts a message to JSON.
pub(super) fn of<M: Message + Name>(message: &M) -> Result<Value, Failure> {
    of_bytes(&M::full_name(), &message.encode_to_vec())
}

/// Converts an encoded message of this type to JSON.
pub(super) fn of_bytes(name: &str, encoded: &[u8]) -> Result<Value, Failure> {
    let problem = |error: &dyn std::fmt::Display| Failure::failed(format!("failed to write {name} as JSON: {error}"));
    let message = DynamicMessage::decode(descriptor(name), encoded).map_err(|error| problem(&error))?;
    serde_json::to_value(&message).map_err(|error| problem(&error))
}

/// Parses a message from JSON. An unknown field is an error that names it.
pub(super) fn parse<M: Message + Name + Default>(value: Value) -> Result<M, Failure> {
    let name = M::full_name();
    let problem = |error: &dyn std::fmt::Display| Failure::failed(format!("failed to read {name} from JSON: {error}"));
    let message = DynamicMessage::deserialize(descriptor(&name), value).map_err(|error| problem(&error))?;
    M::decode(message.encode_to_vec().as_slice()).map_err(|error| problem(&error))
}

/// A value of an option that is the text of a JSON object. It is sent as it was given.
pub(super) fn object_text(text: &str) -> Result<String, String> {
    match read_json(text) {
        Ok(value) if value.is_object() => Ok(text.to_owned()),
        Ok(_) => Err("must be a JSON object, as {\"answer\": 42}".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Reads a file of JSON. A name that occurs twice in an object is refused: one of its values would be lost.
pub(super) fn read_file(path: &Path) -> Result<Value, Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| Failure::file(path, error))?;
    read_json(&text).map_err(|error| Failure::file(path, error))
}

/// Writes the member `name`, an object that people write in a file, as the text that the schema has in `NAME_json`.
pub(super) fn object_as_text(value: &mut Value, name: &str) -> Result<(), Failure> {
    let Some(members) = value.as_object_mut() else { return Ok(()) };
    let Some(object) = members.remove(name) else { return Ok(()) };
    let of_text = format!("{name}_json");
    if !object.is_object() {
        return Err(Failure::usage(format!("{name} must be a JSON object")));
    }
    match members.insert(of_text.clone(), object.to_string().into()) {
        None => Ok(()),
        Some(_) => Err(Failure::usage(format!("{name} and {of_text} are both given"))),
    }
}
