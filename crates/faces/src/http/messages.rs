//! The methods of `baton.v1` and their messages as JSON, by the published descriptors. No method has code of its own.
//!
//! JSON is that of Protocol Buffers, as grpcurl reads and writes it. An envelope is signed over its bytes, so a request may
//! have it as base64 of these bytes, which go on unchanged.

use std::{collections::HashMap, sync::LazyLock};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use baton_client::{envelope, proto};
use bytes::Bytes;
use prost::Message as _;
use prost_reflect::{DescriptorPool, DynamicMessage, FieldDescriptor, Kind, MessageDescriptor};
use prost_types::{DescriptorProto, FileDescriptorSet, field_descriptor_proto::Type};
use serde_json::Value;

use crate::text::clean;

const PACKAGE: &str = "baton.v1";
const ENVELOPE: &str = "baton.v1.Envelope";

/// The schema as it is published.
static PUBLISHED: LazyLock<DescriptorPool> =
    LazyLock::new(|| DescriptorPool::decode(proto::DESCRIPTORS).expect("the schema was compiled with this program"));

/// The same, with each field of the type Envelope as bytes. Encoded, both are equal.
static WITH_BYTES: LazyLock<DescriptorPool> = LazyLock::new(|| {
    let mut files = FileDescriptorSet::decode(proto::DESCRIPTORS).expect("the schema was compiled with this program");
    files.file.iter_mut().flat_map(|file| &mut file.message_type).for_each(envelopes_as_bytes);
    DescriptorPool::from_file_descriptor_set(files).expect("the fields have another type alone")
});

fn envelopes_as_bytes(message: &mut DescriptorProto) {
    for field in &mut message.field {
        if field.type_name().strip_prefix('.') == Some(ENVELOPE) {
            field.set_type(Type::Bytes);
            field.type_name = None;
        }
    }
    message.nested_type.iter_mut().for_each(envelopes_as_bytes);
}

/// A method, with its messages.
#[derive(Debug)]
pub(super) struct Method {
    input: MessageDescriptor,
    input_with_bytes: MessageDescriptor,
    output: MessageDescriptor,
    output_with_bytes: MessageDescriptor,
    /// Whether its request is a stream.
    pub(super) takes_stream: bool,
    /// Whether its answer is a stream.
    pub(super) gives_stream: bool,
}

/// All methods by their path, `/baton.v1.Service/Method`.
static METHODS: LazyLock<HashMap<String, Method>> = LazyLock::new(|| {
    let services = PUBLISHED.services().filter(|service| service.package_name() == PACKAGE);
    let methods = services.flat_map(|service| {
        let name = service.full_name().to_owned();
        service.methods().map(move |method| (format!("/{name}/{}", method.name()), method)).collect::<Vec<_>>()
    });
    methods
        .map(|(path, method)| {
            let with_bytes = |message: &MessageDescriptor| {
                WITH_BYTES.get_message_by_name(message.full_name()).expect("both have the same messages")
            };
            let (input, output) = (method.input(), method.output());
            let (takes_stream, gives_stream) = (method.is_client_streaming(), method.is_server_streaming());
            let (input_with_bytes, output_with_bytes) = (with_bytes(&input), with_bytes(&output));
            (path, Method { input, input_with_bytes, output, output_with_bytes, takes_stream, gives_stream })
        })
        .collect()
});

/// The method with this path.
pub(super) fn method(path: &str) -> Option<&'static Method> {
    METHODS.get(path)
}

/// The paths of all services.
pub(super) fn services() -> impl Iterator<Item = String> {
    PUBLISHED
        .services()
        .filter(|service| service.package_name() == PACKAGE)
        .map(|service| format!("/{}", service.full_name()))
}

/// A request that is no message of its type.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Wrong {
    /// The path of the wrong field, as `card.agent_types[0]`. Empty: the whole request.
    pub(super) field: String,
    /// The fact.
    pub(super) problem: String,
}

impl Wrong {
    fn new(field: impl Into<String>, problem: &dyn std::fmt::Display) -> Self {
        Self { field: field.into(), problem: clean(&problem.to_string(), 512) }
    }
}

impl Method {
    /// The encoded request. An empty body is the empty message.
    pub(super) fn encode(&self, body: &[u8]) -> Result<Bytes, Wrong> {
        let text = std::str::from_utf8(body).map_err(|error| Wrong::new("", &error))?;
        if text.trim_ascii().is_empty() {
            return Ok(Bytes::new());
        }
        let mut value = envelope::read_json(text).map_err(|error| Wrong::new("", &error))?;
        write_envelopes(&mut value, &self.input, "")?;
        let message = parsed(self.input_with_bytes.clone(), value, "")?;
        Ok(message.encode_to_vec().into())
    }

    /// An encoded answer as JSON. `None`: it is no message of its type.
    pub(super) fn decode(&self, answer: &[u8]) -> Option<String> {
        let written =
            |kind: &MessageDescriptor| serde_json::to_string(&DynamicMessage::decode(kind.clone(), answer).ok()?).ok();
        // A payload of a type that this program does not know has no JSON: the envelope then stays bytes.
        written(&self.output).or_else(|| written(&self.output_with_bytes))
    }
}

fn parsed(kind: MessageDescriptor, value: Value, place: &str) -> Result<DynamicMessage, Wrong> {
    let mut track = serde_path_to_error::Track::new();
    let deserializer = serde_path_to_error::Deserializer::new(value, &mut track);
    DynamicMessage::deserialize(kind, deserializer).map_err(|error| {
        let (path, problem) = (track.path().to_string(), error.to_string());
        // The path ends before an unknown field.
        let unknown = problem.strip_prefix("unrecognized field name '").and_then(|rest| rest.strip_suffix('\''));
        let parts = [Some(place), Some(&path).filter(|path| *path != ".").map(String::as_str), unknown];
        let parts: Vec<&str> = parts.into_iter().flatten().filter(|part| !part.is_empty()).collect();
        Wrong::new(clean(&parts.join("."), 256), &problem)
    })
}

/// Writes each envelope that is an object as base64 of its bytes. `place`: where the value is.
fn write_envelopes(value: &mut Value, kind: &MessageDescriptor, place: &str) -> Result<(), Wrong> {
    // The types of google.protobuf have a JSON of their own.
    let Value::Object(members) = value else { return Ok(()) };
    if kind.package_name() != PACKAGE {
        return Ok(());
    }
    for (name, value) in members {
        let field = kind.get_field_by_json_name(name).or_else(|| kind.get_field_by_name(name));
        let Some((field, Kind::Message(inner))) = field.map(|field| (field.clone(), field.kind())) else { continue };
        let place = if place.is_empty() { name.clone() } else { format!("{place}.{name}") };
        in_each(value, &field, &place, &|value, place| match inner.full_name() {
            ENVELOPE if value.is_object() => {
                let envelope = parsed(inner.clone(), value.take(), place)?;
                *value = STANDARD.encode(envelope.encode_to_vec()).into();
                Ok(())
            }
            _ => write_envelopes(value, &inner, place),
        })?;
    }
    Ok(())
}

/// Calls `write` with each message in the value of a field.
fn in_each(
    value: &mut Value,
    field: &FieldDescriptor,
    place: &str,
    write: &dyn Fn(&mut Value, &str) -> Result<(), Wrong>,
) -> Result<(), Wrong> {
    match value {
        Value::Array(values) if field.is_list() => {
            let mut each = values.iter_mut().enumerate();
            each.try_for_each(|(index, value)| write(value, &format!("{place}[{index}]")))
        }
        // No map of the schema has messages with envelopes.
        _ if field.is_map() => Ok(()),
        value => write(value, place),
    }
}

/// A detail of an error: its type, and itself as JSON if its type is known.
pub(super) fn detail(sent: &proto::Any) -> (&str, Option<Value>) {
    let name = sent.type_url.rsplit('/').next().unwrap_or_default();
    let kind = PUBLISHED.get_message_by_name(name);
    let message = kind.and_then(|kind| DynamicMessage::decode(kind, sent.value.clone()).ok());
    (name, message.and_then(|message| serde_json::to_value(message).ok()))
}

/// A message of the schema as a detail. `value` has its JSON.
pub(super) fn detail_of(name: &str, value: Value) -> proto::Any {
    let kind = PUBLISHED.get_message_by_name(name).expect("the schema has it");
    let message = DynamicMessage::deserialize(kind, value).expect("the JSON is of this type");
    proto::Any { type_url: format!("type.googleapis.com/{name}"), value: message.encode_to_vec().into() }
}

#[cfg(test)]
mod tests {
    use baton_client::proto::v1;
    use serde_json::json;

    use super::*;

    fn request(path: &str, body: &Value) -> Result<Bytes, Wrong> {
        method(path).unwrap().encode(body.to_string().as_bytes())
    }

    #[test]
    fn a_request_is_encoded_and_what_is_wrong_is_named() {
        let list = "/baton.v1.TaskService/ListTasks";
        let body = json!({"pageSize": 2, "owner_id": "alice", "statuses": ["TASK_STATUS_COMPLETED"]});
        let encoded = v1::ListTasksRequest::decode(request(list, &body).unwrap()).unwrap();
        assert_eq!((encoded.page_size, encoded.owner_id.as_str()), (2, "alice"));
        assert_eq!(encoded.statuses, [i32::from(v1::TaskStatus::Completed)]);
        assert!(method(list).unwrap().encode(b" \n").unwrap().is_empty());
        for (body, field) in [
            (json!({"pageSize": "many"}), "pageSize"),
            (json!({"statuses": ["TASK_STATUS_COMPLETED", "DONE"]}), "statuses[1]"),
            (json!([1]), ""),
            (json!(null), ""),
        ] {
            let wrong = request(list, &body).unwrap_err();
            assert_eq!(wrong.field, field, "{body}: {wrong:?}");
        }
        let wrong = request(list, &json!({"hurry": true})).unwrap_err();
        assert!(wrong.field == "hurry" && wrong.problem.contains("unrecognized"), "{wrong:?}");
        for text in ["{", "", "{\"pageSize\": 1, \"pageSize\": 2}"] {
            let wrong = method(list).unwrap().encode(text.as_bytes());
            assert_eq!(wrong.is_err(), !text.is_empty(), "{text}: {wrong:?}");
        }
    }

    #[test]
    fn an_envelope_is_an_object_or_its_bytes() {
        let send = "/baton.v1.BrokerService/Send";
        let envelope = json!({
            "messageId": "0198c0de-1b2a-7c3d-8e4f-5a6b7c8d9e0f", "senderId": "alice",
            "payload": {"@type": "type.googleapis.com/baton.v1.TaskCreate", "taskType": "review"},
        });
        let sent = |envelope: Value| {
            let request = request(send, &json!({ "envelope": envelope }))?;
            Ok::<_, Wrong>(v1::SendRequest::decode(request).unwrap().envelope)
        };
        let by_object = sent(envelope).unwrap();
        let parsed = v1::Envelope::decode(by_object.clone()).unwrap();
        assert_eq!(parsed.sender_id, "alice");
        assert_eq!(v1::TaskCreate::decode(parsed.payload.unwrap().value).unwrap().task_type, "review");
        // Bytes go on as they are, also those that no encoder of this schema writes: a field twice.
        let twice = [by_object.clone(), by_object].concat();
        assert_eq!(sent(STANDARD.encode(&twice).into()).unwrap(), twice);
        assert_eq!(sent(json!({"senderId": 7})).unwrap_err().field, "envelope.senderId");
        assert_eq!(sent(json!("%")).unwrap_err().field, "envelope");
        let unknown = sent(json!({"sender": "alice"})).unwrap_err();
        assert_eq!(unknown.field, "envelope.sender");
    }

    #[test]
    fn an_answer_with_an_envelope_of_an_unknown_type_keeps_its_bytes() {
        let receive = method("/baton.v1.HandoffService/GetHandoff").unwrap();
        let of = |type_url: &str| {
            let payload = proto::Any { type_url: type_url.to_owned(), value: Bytes::new() };
            let envelope = v1::Envelope { payload: Some(payload), sender_id: "alice".into(), ..Default::default() };
            let context = envelope.encode_to_vec().into();
            let answer = v1::GetHandoffResponse { context, ..Default::default() }.encode_to_vec();
            serde_json::from_str::<Value>(&receive.decode(&answer).unwrap()).unwrap()["context"].clone()
        };
        assert_eq!(of("type.googleapis.com/baton.v1.TaskCreate")["senderId"], "alice");
        let bytes = STANDARD.decode(of("type.googleapis.com/other.Type").as_str().unwrap()).unwrap();
        assert_eq!(v1::Envelope::decode(&*bytes).unwrap().sender_id, "alice");
        assert_eq!(receive.decode(b"\xff"), None);
    }
}
