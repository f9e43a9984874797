//! Tasks of baton as messages of A2A, and what the remote agent sends as results and questions of baton.

use std::collections::HashMap;

use a2a::{Artifact, Message, Part, PartContent, Role};
use baton_client::{
    Answer,
    proto::v1::{self, context_section::Content},
    question,
};
use serde_json::{Map, Value, json};

use super::card::{self, Card};
use crate::runner::Input;

/// The section that has a summary and details.
const DESCRIPTION: &str = "task_description";
/// The longest question, and the largest schema of its answer, in bytes: those of the protocol.
const QUESTION_MAX: usize = 16_384;
const SCHEMA_MAX: usize = 65_536;
const JSON: &str = "application/json";
const TEXT: &str = "text/plain";

/// Why the remote agent cannot take a task with this input. `None`: it can.
pub(super) fn problem(card: &Card, input: &Input) -> Option<String> {
    let is_taken = |media_type: &str| card.takes(media_type);
    let strange: Vec<String> = files(input)
        .filter(|(_, bytes)| !is_taken(&bytes.media_type))
        .map(|(name, bytes)| format!("{name} ({})", bytes.media_type))
        .collect();
    match strange.is_empty() {
        true => None,
        false => Some(format!("NO_SKILL: {} does not take the media type of {}", card.name, strange.join(", "))),
    }
}

/// The sections with bytes of their own.
fn files(input: &Input) -> impl Iterator<Item = (&str, &v1::ContextBytes)> {
    input.whole.iter().filter_map(|section| match &section.content {
        Some(Content::Bytes(bytes)) => Some((section.name.as_str(), bytes)),
        _ => None,
    })
}

/// The message that begins the work: its words are a text part, its sections of JSON one data part, and bytes a part each.
pub(super) fn opening(card: &Card, input: &Input, message_id: &str, conversation_id: &str) -> Message {
    let (mut data, mut words) = (Map::new(), input.summary.clone());
    let mut files = Vec::new();
    for section in &input.whole {
        match &section.content {
            Some(Content::Json(text)) => {
                let value: Value = serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.clone()));
                match (section.name.as_str(), words_in(&value)) {
                    (DESCRIPTION, Some(described)) => words = described,
                    _ => drop(data.insert(section.name.clone(), value)),
                }
            }
            Some(Content::Bytes(bytes)) => files.push(file(&section.name, bytes)),
            Some(Content::Reference(found)) => match found.uri.starts_with("https://") {
                true => files.push(named(Part::url(&found.uri), &section.name, &found.media_type)),
                // The remote agent cannot read a blob of the broker, and learns its name.
                false => {
                    let (uri, media_type) = (&found.uri, &found.media_type);
                    let shown = json!({"uri": uri, "sha256": hex::encode(&found.sha256),
                        "size_bytes": found.size_bytes, "media_type": media_type});
                    data.insert(section.name.clone(), shown);
                }
            },
            Some(Content::Delta(_)) | None => {}
        }
    }
    let mut parts = Vec::new();
    let takes_data = card.takes(JSON);
    if !takes_data {
        for (name, value) in std::mem::take(&mut data) {
            words.push_str(&format!("\n\n## {name}\n\n{value}"));
        }
    }
    if card.takes(TEXT) {
        parts.push(Part::text(if words.is_empty() { input.task_type.clone() } else { words }).with_media_type(TEXT));
    } else {
        data.insert("summary".to_owned(), words.into());
    }
    if !data.is_empty() {
        parts.push(Part::data(data.into()).with_media_type(JSON));
    }
    parts.extend(files);
    let about = [("baton/from", &input.from), ("baton/task_type", &input.task_type)];
    let metadata: HashMap<String, Value> =
        about.into_iter().map(|(name, text)| (name.to_owned(), text.clone().into())).collect();
    Message { metadata: Some(metadata), ..message(message_id, conversation_id, None, parts) }
}

/// The words of a description that has nothing else.
fn words_in(value: &Value) -> Option<String> {
    let members = value.as_object()?;
    let text = |name: &str| members.get(name).map_or(Some(""), Value::as_str);
    let (summary, details) = (text("summary")?, text("details")?);
    let has_more = members.keys().any(|name| name != "summary" && name != "details");
    match (has_more, summary.is_empty(), details.is_empty()) {
        (true, _, _) | (_, true, true) => None,
        (false, _, true) => Some(summary.to_owned()),
        // The summary is often the beginning of the details.
        (false, _, false) if details.starts_with(summary) => Some(details.to_owned()),
        (false, _, false) => Some(format!("{summary}\n\n{details}")),
    }
}

fn file(name: &str, bytes: &v1::ContextBytes) -> Part {
    let part = match std::str::from_utf8(&bytes.data) {
        Ok(text) if bytes.media_type.starts_with("text/") => Part::text(text),
        _ => Part::raw(bytes.data.to_vec()),
    };
    named(part, name, &bytes.media_type)
}

fn named(part: Part, name: &str, media_type: &str) -> Part {
    let part = part.with_filename(name);
    if media_type.is_empty() { part } else { part.with_media_type(media_type) }
}

fn message(message_id: &str, context_id: &str, task_id: Option<&str>, parts: Vec<Part>) -> Message {
    Message {
        message_id: message_id.to_owned(),
        context_id: (!context_id.is_empty()).then(|| context_id.to_owned()),
        task_id: task_id.map(str::to_owned),
        role: Role::User,
        parts,
        metadata: None,
        extensions: None,
        reference_task_ids: None,
    }
}

/// What the remote agent asks, as a question of baton. With `is_text_alone`, its data stay out.
pub(super) fn prompt(asked: Option<&Message>, answer_by: &str, is_text_alone: bool) -> v1::TaskPrompt {
    let parts = asked.map(|message| message.parts.as_slice()).unwrap_or_default();
    let (mut words, mut schema) = (text_of(parts), String::new());
    for part in parts {
        match &part.content {
            PartContent::Data(data) if !is_text_alone => match data.get("answerSchema").filter(|one| one.is_object()) {
                Some(found) if found.to_string().len() <= SCHEMA_MAX => schema = found.to_string(),
                _ => words.push_str(&format!("\n\n{data}")),
            },
            PartContent::Url(url) if !is_text_alone => words.push_str(&format!("\n\n{url}")),
            _ => {}
        }
    }
    let words = match (words.trim(), is_text_alone) {
        ("", true) => "The remote agent asks for an authorization.".to_owned(),
        ("", false) => "The remote agent asks for input, without words.".to_owned(),
        (words, _) => words.to_owned(),
    };
    let hint = match is_text_alone {
        true => {
            "\n\nAuthorize it at the remote agent itself. Credentials do not belong into the answer: only its text is \
                 passed on."
        }
        false => "",
    };
    let words = &words[..words.floor_char_boundary(QUESTION_MAX - hint.len())];
    v1::TaskPrompt { answer_schema_json: schema, ..question(&format!("{words}{hint}"), answer_by) }
}

/// The answer to a question as the next message to the remote task.
pub(super) fn reply(answer: &Answer, id: &str, context_id: &str, task_id: &str, is_text_alone: bool) -> Message {
    let mut parts = Vec::new();
    if !answer.text.is_empty() || is_text_alone {
        parts.push(Part::text(&answer.text).with_media_type(TEXT));
    }
    if let Some(data) = answer.data.as_ref().filter(|_| !is_text_alone) {
        parts.push(Part::data(data.clone()).with_media_type(JSON));
    }
    if parts.is_empty() {
        parts.push(Part::text("").with_media_type(TEXT));
    }
    message(id, context_id, Some(task_id), parts)
}

/// The texts of these parts.
pub(super) fn text_of(parts: &[Part]) -> String {
    parts.iter().filter_map(Part::as_text).collect::<Vec<_>>().join("\n\n")
}

/// The artifacts as the result of a task, a text of JSON: a single object unchanged, a single text as a response, and
/// anything else as the artifacts themselves. Without artifacts the last words are the response.
pub(super) fn result_of(artifacts: &[Artifact], words: &str) -> String {
    let parts: Vec<&Part> = artifacts.iter().flat_map(|artifact| &artifact.parts).collect();
    if parts.is_empty() {
        return match words.is_empty() {
            true => String::new(),
            false => json!({ "response": words }).to_string(),
        };
    }
    let whole = match &parts[..] {
        [one] => plain(one),
        // An agent that gives its data as text beside.
        [one, two] => match (&one.content, &two.content) {
            (PartContent::Data(data), PartContent::Text(text)) | (PartContent::Text(text), PartContent::Data(data))
                if says_the_same(data, text) && one.filename.is_none() && two.filename.is_none() =>
            {
                Some(data.clone()).filter(Value::is_object)
            }
            _ => None,
        },
        _ => None,
    };
    whole.unwrap_or_else(|| json!({ "artifacts": artifacts })).to_string()
}

/// A part that needs nothing beside it.
fn plain(part: &Part) -> Option<Value> {
    if part.filename.is_some() || part.metadata.as_ref().is_some_and(|metadata| !metadata.is_empty()) {
        return None;
    }
    let media_type = part.media_type.as_deref().unwrap_or_default();
    match &part.content {
        PartContent::Data(data @ Value::Object(_)) => Some(data.clone()),
        PartContent::Text(text) if media_type.is_empty() || card::takes(&[TEXT.to_owned()], media_type) => {
            Some(json!({ "response": text }))
        }
        _ => None,
    }
}

fn says_the_same(data: &Value, text: &str) -> bool {
    let is_response = || data.as_object().is_some_and(|members| members.len() == 1) && data["response"] == text;
    serde_json::from_str::<Value>(text).is_ok_and(|parsed| parsed == *data) || is_response()
}

/// Adds the parts of a piece to an artifact. Text goes on where it has stopped.
pub(super) fn append(parts: &mut Vec<Part>, more: Vec<Part>) {
    for (place, part) in more.into_iter().enumerate() {
        match (parts.last_mut(), &part.content) {
            (
                Some(Part { content: PartContent::Text(text), filename, media_type, metadata }),
                PartContent::Text(rest),
            ) if place == 0
                && (&*filename, &*media_type, &*metadata) == (&part.filename, &part.media_type, &part.metadata) =>
            {
                text.push_str(rest);
            }
            _ => parts.push(part),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn artifact(parts: Vec<Part>) -> Artifact {
        Artifact { artifact_id: "a".to_owned(), name: None, description: None, parts, metadata: None, extensions: None }
    }

    fn result(artifacts: &[Artifact], words: &str) -> Value {
        serde_json::from_str(&result_of(artifacts, words)).unwrap_or_default()
    }

    #[test]
    fn a_single_object_or_text_is_the_result_and_the_rest_comes_as_artifacts() {
        let one = |part: Part| result(&[artifact(vec![part])], "");
        assert_eq!(one(Part::data(json!({"sum": 42}))), json!({"sum": 42}));
        assert_eq!(one(Part::text("hello").with_media_type("text/plain")), json!({"response": "hello"}));
        assert_eq!(result(&[], "done"), json!({"response": "done"}));
        assert_eq!(result_of(&[], ""), "", "no result");
        let both = vec![Part::data(json!({"sum": 42})), Part::text("{\"sum\": 42}")];
        assert_eq!(result(&[artifact(both)], "words"), json!({"sum": 42}));
        let response = vec![Part::data(json!({"response": "hi"})), Part::text("hi")];
        assert_eq!(result(&[artifact(response)], ""), json!({"response": "hi"}));

        for parts in [
            vec![Part::data(json!([1]))],
            vec![Part::text("# a").with_media_type("text/markdown")],
            vec![Part::text("a").with_filename("a.txt")],
            vec![Part::raw(vec![0, 255]).with_media_type("image/png")],
            vec![Part::url("https://a.example/x")],
            vec![Part::data(json!({"a": 1})), Part::text("other")],
            vec![Part::text("a"), Part::text("b")],
        ] {
            let artifacts = [artifact(parts)];
            assert_eq!(result(&artifacts, "words"), json!({ "artifacts": artifacts }), "nothing is lost");
        }
    }

    #[test]
    fn pieces_of_text_go_on_and_other_parts_follow() {
        let mut parts = Vec::new();
        append(&mut parts, vec![Part::text("one ")]);
        append(&mut parts, vec![Part::text("two"), Part::text("three")]);
        append(&mut parts, vec![Part::data(json!(1)), Part::text("four")]);
        append(&mut parts, vec![Part::text("five").with_filename("f")]);
        let texts: Vec<_> = parts.iter().map(|part| part.as_text().unwrap_or("-")).collect();
        assert_eq!(texts, ["one two", "three", "-", "four", "five"]);
    }

    #[test]
    fn a_question_has_its_schema_and_an_authorization_has_text_alone() {
        let schema = json!({"answerSchema": {"type": "object"}});
        let parts = vec![Part::text("which?"), Part::data(schema), Part::data(json!({"of": [1, 2]}))];
        let asked = message("m", "", None, parts);
        let asks = prompt(Some(&asked), "alice", false);
        assert_eq!((asks.question.as_str(), asks.answer_by.as_str()), ("which?\n\n{\"of\":[1,2]}", "alice"));
        assert_eq!(asks.answer_schema_json, r#"{"type":"object"}"#);
        let asks = prompt(Some(&asked), "alice", true);
        assert!(asks.question.starts_with("which?\n\nAuthorize") && asks.answer_schema_json.is_empty());
        assert!(prompt(None, "alice", false).question.contains("without words"));
        let long = message("m", "", None, vec![Part::text("x".repeat(QUESTION_MAX))]);
        assert_eq!(prompt(Some(&long), "alice", true).question.len(), QUESTION_MAX);

        let answer = Answer { agent_id: "alice".into(), text: "yes".into(), data: Some(json!({"pin": 1})) };
        assert_eq!(reply(&answer, "m", "c", "t", false).parts.len(), 2);
        let text_alone = reply(&answer, "m", "c", "t", true);
        assert_eq!((text_alone.parts.len(), text_alone.parts[0].as_text()), (1, Some("yes")));
    }

    #[test]
    fn a_description_of_summary_and_details_is_text() {
        let words = |value: Value| words_in(&value);
        assert_eq!(words(json!({"summary": "a", "details": ""})).as_deref(), Some("a"));
        assert_eq!(words(json!({"summary": "ab", "details": "abc"})).as_deref(), Some("abc"));
        assert_eq!(words(json!({"summary": "a", "details": "b"})).as_deref(), Some("a\n\nb"));
        assert_eq!(words(json!({"summary": "a", "more": 1})), None);
        assert_eq!(words(json!("a")), None);
    }
}
