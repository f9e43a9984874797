//! Messages of A2A as what a handoff, an answer or a piece of mail carries.

use a2a::{Message, Part, PartContent, Role};
use baton_client::{
    context_of_sections, json_section,
    proto::v1::{self, context_section::Content},
};
use prost::Message as _;
use serde_json::{Map, Value, json};

use super::{Failure, cards::MODES};

/// The longest summary, in bytes: the beginning of the texts.
const SUMMARY_MAX: usize = 1024;
/// The longest id of a message, and of a context, in bytes.
const MESSAGE_ID_MAX: usize = 256;
const CONTEXT_ID_MAX: usize = 112;
/// The largest context, in bytes.
const CONTEXT_MAX: usize = 1_048_576;
/// The most parts with bytes.
const FILES_MAX: usize = 48;
/// The longest text, and the largest data, of a message to a task that goes on, in bytes.
const WORDS_MAX: usize = 65_536;

/// Checks what every message has.
pub(super) fn check(message: &Message) -> Result<(), Failure> {
    if message.message_id.is_empty() || message.message_id.len() > MESSAGE_ID_MAX {
        return Err(Failure::invalid("message.messageId", format!("must have 1 to {MESSAGE_ID_MAX} bytes")));
    }
    if message.role != Role::User {
        return Err(Failure::invalid("message.role", "must be ROLE_USER"));
    }
    if let Some(context_id) = &message.context_id
        && (context_id.len() > CONTEXT_ID_MAX || context_id.chars().any(char::is_control))
    {
        let problem = format!("must have at most {CONTEXT_ID_MAX} bytes and no control characters");
        return Err(Failure::invalid("message.contextId", problem));
    }
    if message.parts.is_empty() {
        return Err(Failure::invalid("message.parts", "must have at least one part"));
    }
    for (at, part) in message.parts.iter().enumerate() {
        let named = part.media_type.as_deref().unwrap_or_default();
        let essence = named.split(';').next().unwrap_or_default().trim();
        if !essence.is_empty() && !MODES.iter().any(|mode| mode.eq_ignore_ascii_case(essence)) {
            let shown = crate::text::clean(essence, 128);
            return Err(Failure::content_type(format!(
                "message.parts[{at}] is {shown:?}; the card names {}",
                MODES.join(" and ")
            )));
        }
    }
    Ok(())
}

/// A message that begins a task.
#[derive(Debug)]
pub(super) struct Opening {
    pub(super) summary: String,
    pub(super) sections: Vec<v1::ContextSection>,
}

/// The context of a task that begins with this message. `metadata` is that of the request.
pub(super) fn opening(message: &Message, metadata: Option<&Value>) -> Result<Opening, Failure> {
    let text = text_of(&message.parts);
    let summary = match text.is_empty() {
        true => "a message without text".to_owned(),
        false => text[..text.floor_char_boundary(SUMMARY_MAX)].to_owned(),
    };
    let details = if text.len() > summary.len() { text } else { String::new() };
    let mut sections = vec![json_section("task_description", json!({"summary": summary, "details": details}))];
    if let Some(data) = data_of(&message.parts) {
        sections.push(json_section("collected_data", data));
    }
    let (mut resources, mut files) = (Vec::new(), Vec::new());
    for (at, part) in message.parts.iter().enumerate() {
        match &part.content {
            PartContent::Url(uri) => {
                resources.push(named(part, json!({"uri": uri})));
            }
            PartContent::Raw(data) => {
                let name = format!("part-{}", at + 1);
                let media_type = part.media_type.clone().unwrap_or_else(|| "application/octet-stream".to_owned());
                let content = Content::Bytes(v1::ContextBytes { media_type, data: data.clone().into() });
                files.push(named(part, json!({"section": name})));
                sections.push(v1::ContextSection { name, content: Some(content), ..Default::default() });
            }
            PartContent::Text(_) | PartContent::Data(_) => {}
        }
    }
    if files.len() > FILES_MAX {
        return Err(Failure::invalid("message.parts", format!("has over {FILES_MAX} parts with bytes")));
    }
    if !resources.is_empty() {
        sections.push(json_section("resources", resources));
    }
    sections.push(json_section("a2a", described(message, metadata, files)));
    if context_of_sections(sections.clone()).encoded_len() > CONTEXT_MAX {
        return Err(Failure::invalid(
            "message.parts",
            format!("has over {CONTEXT_MAX} bytes; give an address instead"),
        ));
    }
    Ok(Opening { summary, sections })
}

/// What the message says beside its parts.
fn described(message: &Message, metadata: Option<&Value>, files: Vec<Value>) -> Value {
    let mut shown = Map::new();
    shown.insert("messageId".to_owned(), message.message_id.clone().into());
    let mut add = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            shown.insert(name.to_owned(), value);
        }
    };
    add("referenceTaskIds", message.reference_task_ids.clone().map(Value::from));
    add("extensions", message.extensions.clone().map(Value::from));
    add("metadata", message.metadata.as_ref().map(|metadata| json!(metadata)));
    add("requestMetadata", metadata.cloned());
    add("files", (!files.is_empty()).then(|| files.into()));
    shown.into()
}

fn named(part: &Part, mut shown: Value) -> Value {
    if let Some(name) = &part.filename {
        shown["filename"] = name.clone().into();
    }
    if let Some(media_type) = &part.media_type {
        shown["media_type"] = media_type.clone().into();
    }
    shown
}

/// A message to a task that goes on: its text, and its data as the text of a JSON object.
pub(super) fn words(message: &Message) -> Result<(String, String), Failure> {
    if message.parts.iter().any(|part| matches!(part.content, PartContent::Raw(_) | PartContent::Url(_))) {
        return Err(Failure::content_type("a message to a task that goes on has text and data alone"));
    }
    let text = text_of(&message.parts);
    let data = data_of(&message.parts).map(|data| match data {
        Value::Object(_) => data,
        other => json!({"data": other}),
    });
    let data = data.map(|data| data.to_string()).unwrap_or_default();
    if text.len() > WORDS_MAX || data.len() > WORDS_MAX {
        return Err(Failure::invalid("message.parts", format!("has over {WORDS_MAX} bytes of text or of data")));
    }
    Ok((text, data))
}

fn text_of(parts: &[Part]) -> String {
    parts.iter().filter_map(Part::as_text).collect::<Vec<_>>().join("\n\n")
}

/// The data of a message: a single object unchanged, else a list of all. `None`: no part has data.
fn data_of(parts: &[Part]) -> Option<Value> {
    let mut all: Vec<&Value> = Vec::new();
    all.extend(parts.iter().filter_map(|part| match &part.content {
        PartContent::Data(data) => Some(data),
        _ => None,
    }));
    match &all[..] {
        [] => None,
        [Value::Object(one)] => Some(Value::Object(one.clone())),
        _ => Some(all.into_iter().cloned().collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(parts: Vec<Part>) -> Message {
        Message { message_id: "m1".to_owned(), ..Message::new(Role::User, parts) }
    }

    fn json_of(section: &v1::ContextSection) -> Value {
        match &section.content {
            Some(Content::Json(text)) => serde_json::from_str(text).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_kind_of_part_has_its_section() {
        let long = "ä".repeat(600);
        let parts = vec![
            Part::text(&long),
            Part::data(json!({"n": 1})),
            Part::raw(vec![7; 3]).with_filename("a.bin"),
            Part::url("https://example.com/a").with_media_type("text/plain"),
        ];
        let opening = opening(&message(parts), Some(&json!({"k": 1}))).unwrap();
        assert_eq!(opening.summary, "ä".repeat(512));
        let by_name = |name: &str| opening.sections.iter().find(|section| section.name == name).unwrap();
        assert_eq!(json_of(by_name("task_description"))["details"], long);
        assert_eq!(json_of(by_name("collected_data")), json!({"n": 1}));
        let resource = json!([{"uri": "https://example.com/a", "media_type": "text/plain"}]);
        assert_eq!(json_of(by_name("resources")), resource);
        assert!(matches!(&by_name("part-3").content, Some(Content::Bytes(bytes)) if bytes.data.as_ref() == [7; 3]));
        let file = json!([{"section": "part-3", "filename": "a.bin"}]);
        let about = json!({"messageId": "m1", "requestMetadata": {"k": 1}, "files": file});
        assert_eq!(json_of(by_name("a2a")), about);
    }

    #[test]
    fn several_data_are_a_list_and_an_answer_is_an_object() {
        let two = message(vec![Part::data(json!(1)), Part::data(json!({"a": 2}))]);
        assert_eq!(data_of(&two.parts), Some(json!([1, {"a": 2}])));
        assert_eq!(words(&two).unwrap(), (String::new(), r#"{"data":[1,{"a":2}]}"#.to_owned()));
        let refused = words(&message(vec![Part::url("https://example.com")])).unwrap_err();
        assert_eq!(refused.code, -32005);
        assert_eq!(words(&message(vec![Part::text("x".repeat(WORDS_MAX + 1))])).unwrap_err().code, -32602);
    }

    #[test]
    fn a_message_without_id_role_or_parts_is_refused_and_so_is_a_foreign_kind() {
        let good = || message(vec![Part::text("a").with_media_type("Text/Plain; charset=utf-8")]);
        assert_eq!(check(&good()), Ok(()));
        for (wrong, code) in [
            (Message { message_id: String::new(), ..good() }, -32602),
            (Message { role: Role::Agent, ..good() }, -32602),
            (Message { context_id: Some("x".repeat(CONTEXT_ID_MAX + 1)), ..good() }, -32602),
            (Message { parts: vec![], ..good() }, -32602),
            (message(vec![Part::raw(vec![]).with_media_type("image/png")]), -32005),
        ] {
            assert_eq!(check(&wrong).unwrap_err().code, code, "{wrong:?}");
        }
        let large = message(vec![Part::raw(vec![7; CONTEXT_MAX])]);
        assert_eq!(opening(&large, None).unwrap_err().code, -32602);
    }
}
