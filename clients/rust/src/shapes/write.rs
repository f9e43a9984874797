//! From a history to the shapes of models.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::HistoryError;
use crate::envelope::history;

type Written<T> = Result<T, HistoryError>;

const ANY_BYTES: &str = "application/octet-stream";

/// A system prompt, and the messages beside it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Prompted {
    /// The system prompt, `""` without one.
    pub system: String,
    /// The messages.
    pub messages: Vec<Value>,
}

/// Converts a history to messages of `OpenAI` Chat Completions.
///
/// # Errors
///
/// The first value without the shape of a history, or that the interface does not take in that place.
pub fn to_openai_chat(history: &[Value]) -> Written<Vec<Value>> {
    each(history, |at, entry| {
        let role = text(&entry["role"]);
        let content = content(at, entry, role != "user", chat_part)?;
        let mut message = json!({"role": role, "content": content});
        if role == "tool" {
            message["tool_call_id"] = entry["tool_call_id"].clone();
        } else {
            put(&mut message, "name", text(&entry["name"]));
        }
        let function = |call: &Value| json!({"name": call["name"], "arguments": call["arguments"]});
        let calls = calls(entry).map(|call| json!({"id": call["id"], "type": "function", "function": function(call)}));
        let calls: Vec<Value> = calls.collect();
        if !calls.is_empty() {
            if says_nothing(entry) {
                message["content"] = Value::Null;
            }
            message["tool_calls"] = Value::Array(calls);
        }
        Ok(vec![message])
    })
}

/// Converts a history to items of `OpenAI` Responses.
///
/// # Errors
///
/// The first value without the shape of a history, or that the interface does not take in that place.
pub fn to_openai_responses(history: &[Value]) -> Written<Vec<Value>> {
    each(history, |at, entry| {
        let role = text(&entry["role"]);
        if role == "tool" {
            let output = content(at, entry, false, responses_input)?;
            return Ok(vec![json!({
                "type": "function_call_output", "call_id": entry["tool_call_id"], "output": output,
            })]);
        }
        let is_output = role == "assistant";
        let content = content(at, entry, is_output, if is_output { responses_output } else { responses_input })?;
        let called = |call: &Value| {
            json!({
                "type": "function_call", "call_id": call["id"], "name": call["name"], "arguments": call["arguments"],
            })
        };
        let calls: Vec<Value> = calls(entry).map(called).collect();
        let says = (!says_nothing(entry) || calls.is_empty()).then(|| json!({"role": role, "content": content}));
        Ok(says.into_iter().chain(calls).collect())
    })
}

/// Converts a history to the system prompt and the messages of Anthropic.
///
/// # Errors
///
/// The first value without the shape of a history, or that the interface does not take in that place.
pub fn to_anthropic(history: &[Value]) -> Written<Prompted> {
    beside(history, "content", |at, entry| {
        let role = text(&entry["role"]);
        let content = content(at, entry, role == "assistant", anthropic_block)?;
        if role == "tool" {
            return Ok(Beside::Result(json!({
                "type": "tool_result", "tool_use_id": entry["tool_call_id"], "content": content,
            })));
        }
        let used = |call: &Value| {
            let input = arguments_of(call);
            json!({"type": "tool_use", "id": call["id"], "name": call["name"], "input": input})
        };
        let calls: Vec<Value> = calls(entry).map(used).collect();
        let content = match content {
            content if calls.is_empty() => content,
            Value::Array(blocks) => blocks.into_iter().chain(calls).collect(),
            content => Some(content)
                .filter(|text| text != "")
                .map(|text| json!({"type": "text", "text": text}))
                .into_iter()
                .chain(calls)
                .collect(),
        };
        Ok(Beside::Message(json!({"role": role, "content": content})))
    })
}

/// Converts a history to the system instruction and the contents of Gemini.
///
/// # Errors
///
/// The first value without the shape of a history, or that the interface does not take in that place; also the result
/// of a call that the history does not have, because a result of Gemini has the call's name.
pub fn to_gemini(history: &[Value]) -> Written<Prompted> {
    let mut names: HashMap<String, Value> = HashMap::new();
    beside(history, "parts", |at, entry| {
        if entry["role"] == "tool" {
            let name = names.get(text(&entry["tool_call_id"])).ok_or_else(|| {
                let problem = "is that of no call, and a result of Gemini has the call's name";
                HistoryError { pointer: format!("{at}/tool_call_id"), problem: problem.to_owned() }
            })?;
            let result = only_text(at, entry)?;
            let response = object_in(&result).unwrap_or_else(|| json!({"result": result}));
            return Ok(Beside::Result(json!({"functionResponse": {"name": name, "response": response}})));
        }
        let mut parts = match content(at, entry, false, gemini_part)? {
            Value::Array(parts) => parts,
            content if content == "" => Vec::new(),
            content => vec![json!({"text": content})],
        };
        for call in calls(entry) {
            names.insert(text(&call["id"]).to_owned(), call["name"].clone());
            parts.push(json!({"functionCall": {"name": call["name"], "args": arguments_of(call)}}));
        }
        if parts.is_empty() {
            parts.push(json!({"text": ""}));
        }
        let role = if entry["role"] == "assistant" { "model" } else { "user" };
        Ok(Beside::Message(json!({"role": role, "parts": parts})))
    })
}

/// Converts a history to what `messages_from_dict` and `mapStoredMessagesToChatMessages` of `LangChain` take.
///
/// # Errors
///
/// The first value without the shape of a history.
pub fn to_langchain(history: &[Value]) -> Written<Vec<Value>> {
    each(history, |at, entry| {
        let kind = match text(&entry["role"]) {
            "user" => "human",
            "assistant" => "ai",
            role => role,
        };
        let mut data = json!({"content": content(at, entry, false, langchain_part)?, "type": kind});
        if kind == "tool" {
            data["tool_call_id"] = entry["tool_call_id"].clone();
        } else {
            put(&mut data, "name", text(&entry["name"]));
        }
        if kind == "ai" {
            let (mut made, mut broken) = (Vec::new(), Vec::new());
            for call in calls(entry) {
                let (id, name, arguments) = (&call["id"], &call["name"], &call["arguments"]);
                match object_in(text(arguments)) {
                    Some(args) => made.push(json!({"name": name, "args": args, "id": id, "type": "tool_call"})),
                    None => broken.push(json!({
                        "name": name, "args": arguments, "id": id, "error": null, "type": "invalid_tool_call",
                    })),
                }
            }
            data["tool_calls"] = Value::Array(made);
            data["invalid_tool_calls"] = Value::Array(broken);
        }
        Ok(vec![json!({"type": kind, "data": data})])
    })
}

/// The messages of each entry.
fn each(history: &[Value], convert: impl Fn(&str, &Value) -> Written<Vec<Value>>) -> Written<Vec<Value>> {
    let mut messages = Vec::new();
    for (index, entry) in history::entries(Value::Array(history.to_vec()))?.iter().enumerate() {
        messages.extend(convert(&format!("/{index}"), entry)?);
    }
    Ok(messages)
}

/// What an entry is where the system prompt is beside the messages.
enum Beside {
    Message(Value),
    /// A result of a tool. Successive results are one message of the user.
    Result(Value),
}

/// The system prompt, and the messages of all other entries, whose results of tools are under `results`.
fn beside(
    history: &[Value],
    results: &str,
    mut convert: impl FnMut(&str, &Value) -> Written<Beside>,
) -> Written<Prompted> {
    let (mut system, mut messages, mut open) = (Vec::new(), Vec::new(), Vec::new());
    let close = |messages: &mut Vec<Value>, open: &mut Vec<Value>| {
        if !open.is_empty() {
            messages.push(json!({"role": "user", results: std::mem::take(open)}));
        }
    };
    for (index, entry) in history::entries(Value::Array(history.to_vec()))?.iter().enumerate() {
        let at = format!("/{index}");
        if entry["role"] == "system" {
            system.push(only_text(&at, entry)?);
            continue;
        }
        match convert(&at, entry)? {
            Beside::Result(result) => open.push(result),
            Beside::Message(message) => {
                close(&mut messages, &mut open);
                messages.push(message);
            }
        }
    }
    close(&mut messages, &mut open);
    Ok(Prompted { system: system.join("\n\n"), messages })
}

/// The content of an entry: the text, or the parts as `write` makes them.
fn content(at: &str, entry: &Value, only_text: bool, write: fn(&str, &Value) -> Written<Value>) -> Written<Value> {
    let Value::Array(parts) = &entry["content"] else { return Ok(entry["content"].clone()) };
    let written = parts.iter().enumerate().map(|(index, part)| {
        let (at, kind) = (format!("{at}/content/{index}"), text(&part["type"]));
        if only_text && matches!(kind, "image" | "file") {
            let role = text(&entry["role"]);
            let problem = format!("is of the type {kind}, which the interface does not take from {role}");
            return Err(HistoryError { pointer: at, problem });
        }
        write(&at, part)
    });
    written.collect()
}

fn only_text(at: &str, entry: &Value) -> Written<String> {
    Ok(match content(at, entry, true, |_, part| Ok(json!(text_of(part))))? {
        Value::Array(parts) => parts.iter().map(text).collect(),
        content => text(&content).to_owned(),
    })
}

fn chat_part(at: &str, part: &Value) -> Written<Value> {
    match text(&part["type"]) {
        "image" => Ok(json!({"type": "image_url", "image_url": {"url": url(part)}})),
        "file" if part.get("url").is_some() => {
            let problem = "is a file elsewhere, which Chat Completions does not take".to_owned();
            Err(HistoryError { pointer: format!("{at}/url"), problem })
        }
        "file" => {
            let mut file = json!({"file_data": url(part)});
            put(&mut file, "filename", text(&part["name"]));
            Ok(json!({"type": "file", "file": file}))
        }
        _ => Ok(json!({"type": "text", "text": text_of(part)})),
    }
}

fn responses_input(_: &str, part: &Value) -> Written<Value> {
    Ok(match text(&part["type"]) {
        "image" => json!({"type": "input_image", "image_url": url(part), "detail": "auto"}),
        "file" => {
            let place = if part.get("url").is_some() { "file_url" } else { "file_data" };
            let mut made = json!({"type": "input_file", place: url(part)});
            put(&mut made, "filename", text(&part["name"]));
            made
        }
        _ => json!({"type": "input_text", "text": text_of(part)}),
    })
}

fn responses_output(_: &str, part: &Value) -> Written<Value> {
    Ok(json!({"type": "output_text", "text": text_of(part)}))
}

fn anthropic_block(_: &str, part: &Value) -> Written<Value> {
    let source = match part.get("url") {
        Some(url) => json!({"type": "url", "url": url}),
        None => json!({"type": "base64", "media_type": media_type(part, ANY_BYTES), "data": part["data"]}),
    };
    Ok(match text(&part["type"]) {
        "image" => json!({"type": "image", "source": source}),
        "file" => {
            let mut made = json!({"type": "document", "source": source});
            put(&mut made, "title", text(&part["name"]));
            made
        }
        _ => json!({"type": "text", "text": text_of(part)}),
    })
}

fn gemini_part(_: &str, part: &Value) -> Written<Value> {
    let otherwise = match text(&part["type"]) {
        "image" => "image/png",
        "file" => ANY_BYTES,
        _ => return Ok(json!({"text": text_of(part)})),
    };
    let mut held = json!({"mimeType": media_type(part, otherwise)});
    put(&mut held, "displayName", text(&part["name"]));
    Ok(match part.get("url") {
        Some(url) => {
            held["fileUri"] = url.clone();
            json!({"fileData": held})
        }
        None => {
            held["data"] = part["data"].clone();
            json!({"inlineData": held})
        }
    })
}

fn langchain_part(_: &str, part: &Value) -> Written<Value> {
    Ok(match text(&part["type"]) {
        "image" => json!({"type": "image_url", "image_url": {"url": url(part)}}),
        "file" => {
            let names = [("data", "base64"), ("url", "url"), ("media_type", "mime_type"), ("name", "filename")];
            let members = names.iter().filter_map(|(own, name)| Some(((*name).to_owned(), part.get(own)?.clone())));
            let kind = ("type".to_owned(), json!("file"));
            Value::Object(members.chain([kind]).collect::<Map<_, _>>())
        }
        _ => json!({"type": "text", "text": text_of(part)}),
    })
}

/// The text of a part of the type text or data.
fn text_of(part: &Value) -> String {
    match &part["text"] {
        Value::String(text) => text.clone(),
        _ => part["data"].to_string(),
    }
}

/// The URL of an image or a file, which has its bytes in it where they are not elsewhere.
fn url(part: &Value) -> String {
    match &part["url"] {
        Value::String(url) => url.clone(),
        _ => format!("data:{};base64,{}", media_type(part, ANY_BYTES), text(&part["data"])),
    }
}

fn media_type<'a>(part: &'a Value, otherwise: &'a str) -> &'a str {
    part["media_type"].as_str().unwrap_or(otherwise)
}

/// The arguments of a call. A model may write another value than an object; its text stays.
fn arguments_of(call: &Value) -> Value {
    object_in(text(&call["arguments"])).unwrap_or_else(|| json!({"arguments": call["arguments"]}))
}

fn object_in(text: &str) -> Option<Value> {
    serde_json::from_str(text).ok().filter(Value::is_object)
}

fn calls(entry: &Value) -> impl Iterator<Item = &Value> {
    entry["tool_calls"].as_array().into_iter().flatten()
}

fn says_nothing(entry: &Value) -> bool {
    matches!(&entry["content"], Value::String(text) if text.is_empty())
        || matches!(&entry["content"], Value::Array(parts) if parts.is_empty())
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn put(members: &mut Value, name: &str, text: &str) {
    if !text.is_empty() {
        members[name] = json!(text);
    }
}
