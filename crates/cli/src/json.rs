//! Converts messages to JSON and back by the published schema, in the form that grpcurl reads and writes.

use std::sync::LazyLock;

use prost::{Message, Name};
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor};
use serde_json::Value;

use super::Failure;
use baton_client::proto;

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
