//! No field without effect: code reads or refuses each field of a request, and an enum number that the schema does not
//! define is refused.

use std::{collections::BTreeSet, fs, path::Path};

use baton_broker_core::{
    codes::{ErrorCode, Refusal as _},
    envelope::UnverifiedEnvelope,
    proto::{Any, DESCRIPTORS, v1},
};
use prost::Message as _;
use prost_reflect::{DescriptorPool, DynamicMessage, FieldDescriptor, Kind, MessageDescriptor, Value};

use crate::world::World;

/// The fields that the search does not find, each with the place where it has its effect: a file and a text in it; or
/// `carried`, for content of plain mail that only its receiver reads.
const ELSEWHERE: &str = include_str!("fields.txt");

fn schema() -> DescriptorPool {
    DescriptorPool::decode(DESCRIPTORS).unwrap()
}

/// The payloads that agents send, by message type.
fn payloads(schema: &DescriptorPool) -> Vec<(i32, MessageDescriptor)> {
    let types = schema.get_enum_by_name("baton.v1.MessageType").unwrap();
    let of_type = |value: prost_reflect::EnumValueDescriptor| {
        let words = value.name().strip_prefix("MESSAGE_TYPE_").unwrap().split('_').map(|word| {
            let (first, rest) = word.split_at(1);
            format!("{first}{}", rest.to_lowercase())
        });
        let name = format!("baton.v1.{}", words.collect::<String>());
        Some((value.number(), schema.get_message_by_name(&name)?))
    };
    types.values().filter(|value| value.number() != 0).filter_map(of_type).collect()
}

/// All messages that a caller sends: the payloads, the requests of all calls, and the messages within them.
fn sent(schema: &DescriptorPool) -> Vec<MessageDescriptor> {
    let ours = schema.services().filter(|service| service.full_name().starts_with("baton.v1."));
    let requests = ours.flat_map(|service| service.methods().map(|method| method.input()).collect::<Vec<_>>());
    let mut all: Vec<MessageDescriptor> =
        payloads(schema).into_iter().map(|(_, payload)| payload).chain(requests).collect();
    let mut seen: BTreeSet<String> = BTreeSet::new();
    let mut next = 0;
    while next < all.len() {
        let within: Vec<_> = all[next].fields().filter_map(|field| message_of(&field)).collect();
        all.extend(within);
        next += 1;
    }
    all.retain(|message| message.full_name().starts_with("baton.v1.") && seen.insert(message.full_name().to_owned()));
    all
}

fn message_of(field: &FieldDescriptor) -> Option<MessageDescriptor> {
    match field.kind() {
        Kind::Message(message) if !message.is_map_entry() => {
            Some(message).filter(|message| message.full_name().starts_with("baton.v1."))
        }
        _ => None,
    }
}

/// The folder of the whole project.
fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// The functions of the broker and of the envelope's parser, as texts.
fn functions() -> Vec<String> {
    let mut functions = Vec::new();
    for folder in ["src/wire", "crates/broker/src", "crates/replay/src", "crates/envelope/src"] {
        collect(&root().join(folder), &mut functions);
    }
    functions
}

fn collect(path: &Path, functions: &mut Vec<String>) {
    if path.is_dir() {
        let mut entries: Vec<_> = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
        entries.sort();
        return entries.iter().for_each(|entry| collect(entry, functions));
    }
    let source = fs::read_to_string(path).unwrap();
    let code = source.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let mut function = String::new();
    for line in code.lines() {
        let is_head = line.trim_start().split(' ').take(4).any(|word| word == "fn");
        if is_head {
            functions.push(std::mem::take(&mut function));
        }
        function.push_str(line);
        function.push('\n');
    }
    functions.push(function);
}

/// Whether the text has the words with no further letter of a name after them.
fn has_word(text: &str, words: &str) -> bool {
    let is_of_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == '(';
    text.match_indices(words).any(|(at, _)| !text[at + words.len()..].starts_with(is_of_name))
}

/// Whether a function that names the message reads the field. A field of a oneof is a variant.
fn is_read(functions: &[String], message: &MessageDescriptor, field: &FieldDescriptor) -> bool {
    let camel: String = field.name().split('_').map(|word| word[..1].to_uppercase() + &word[1..]).collect();
    functions
        .iter()
        .filter(|function| has_word(function, message.name()))
        .any(|function| has_word(function, &format!(".{}", field.name())) || function.contains(&format!("::{camel}(")))
}

#[test]
fn every_field_of_a_request_has_an_effect_or_is_refused() {
    let (schema, functions) = (schema(), functions());
    let mut elsewhere = BTreeSet::new();
    for line in ELSEWHERE.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let mut parts = line.splitn(3, ' ').map(str::trim);
        let (field, place, text) = (parts.next().unwrap(), parts.next().unwrap(), parts.next().unwrap_or_default());
        if place != "carried" {
            let source = fs::read_to_string(root().join(place)).unwrap();
            assert!(!text.is_empty() && source.contains(text), "{field}: {place} does not have {text:?}");
        }
        assert!(elsewhere.insert(field.to_owned()), "{field} is listed twice");
    }
    let mut unread = Vec::new();
    for message in sent(&schema) {
        for field in message.fields() {
            let name = format!("{}.{}", message.name(), field.name());
            if !elsewhere.remove(&name) && !is_read(&functions, &message, &field) {
                unread.push(name);
            }
        }
    }
    assert!(unread.is_empty(), "no code reads or refuses {unread:?}; tests/broker/fields.txt is for exceptions");
    assert!(elsewhere.is_empty(), "tests/broker/fields.txt has fields that the schema does not have: {elsewhere:?}");
}

#[test]
fn an_enum_number_that_the_schema_does_not_define_is_refused() {
    let world = World::with(&["a", "b"]);
    let mut checked = 0;
    for (kind, payload) in payloads(&schema()) {
        for field in payload.fields().filter(|field| matches!(field.kind(), Kind::Enum(_))) {
            let mut message = DynamicMessage::new(payload.clone());
            message.set_field(&field, Value::EnumNumber(9999));
            let mut envelope = world.envelope("a", "b", v1::MessageType::Info, &v1::Info::default());
            let id = envelope.message_id.clone();
            (envelope.task_id, envelope.epoch, envelope.correlation_id) = ("t".into(), 1, id);
            envelope.message_type = kind;
            let type_url = format!("type.googleapis.com/{}", payload.full_name());
            envelope.payload = Some(Any { type_url, value: message.encode_to_vec().into() });
            let refusal = UnverifiedEnvelope::parse(envelope.encode_to_vec().into()).expect_err("an unknown number");
            let path = format!("envelope.payload.{}", field.name());
            assert_eq!(refusal.code(), ErrorCode::FieldInvalid, "{path} of {}", payload.name());
            assert!(refusal.violations().iter().any(|violation| violation.path == path), "{path}: {refusal}");
            checked += 1;
        }
    }
    assert!(checked >= 10, "only {checked} fields were checked");
}
