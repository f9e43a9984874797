//! The one shape of a chat history: the section schema `baton.history`, version 1.
//!
//! Filters of a history work on this shape and on no other. A list of another shape may keep tool calls in places that a
//! filter does not know, so it is refused instead of passed on. `vectors/history-v1.schema.json` is the schema, and
//! `vectors/filters-v1.json` has examples for every language.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

/// The id of the schema. Every broker knows it without a registration.
pub const SCHEMA_ID: &str = "baton.history";
/// The version of the schema.
pub const SCHEMA_VERSION: &str = "1";
/// The JSON Schema.
pub const SCHEMA_JSON: &str = include_str!("history-v1.schema.json");

/// Whether this is the schema of histories.
pub fn is_schema(id: &str, version: &str) -> bool {
    id == SCHEMA_ID && version == SCHEMA_VERSION
}

/// A value is no history.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("it is no {SCHEMA_ID} version {SCHEMA_VERSION}: {pointer:?} {problem}")]
pub struct NoHistory {
    /// The JSON Pointer of the value that does not fit.
    pub pointer: String,
    /// What is wrong with it, as a continuation of "the value".
    pub problem: &'static str,
}

/// The entries of a history.
///
/// # Errors
///
/// The first value that does not fit.
pub fn entries(value: Value) -> Result<Vec<Value>, NoHistory> {
    let Value::Array(entries) = value else { return Err(wrong(String::new(), "must be a list")) };
    entries.iter().enumerate().try_for_each(|(index, entry)| check_entry(&format!("/{index}"), entry))?;
    Ok(entries)
}

/// The latest entries, at least `last` of them: more where the first one would be the result of a call before it.
pub fn latest(mut entries: Vec<Value>, last: usize) -> Vec<Value> {
    let mut start = entries.len().saturating_sub(last);
    let calls = calls_of_results(&entries);
    let mut at = entries.len();
    // An entry that is let in for its results may itself be a result.
    while at > start {
        at -= 1;
        start = calls[at].map_or(start, |call| start.min(call));
    }
    entries.split_off(start)
}

/// For each result of a tool, the index of the entry with its call.
fn calls_of_results(entries: &[Value]) -> Vec<Option<usize>> {
    let mut latest: HashMap<&str, usize> = HashMap::new();
    let mut found = Vec::with_capacity(entries.len());
    for (index, entry) in entries.iter().enumerate() {
        for call in entry["tool_calls"].as_array().into_iter().flatten() {
            latest.extend(call["id"].as_str().map(|id| (id, index)));
        }
        found.push(entry["tool_call_id"].as_str().and_then(|id| latest.get(id).copied()));
    }
    found
}

/// The entries without calls of tools and without their results. An entry that only calls tools is left out.
pub fn without_tool_calls(entries: Vec<Value>) -> Vec<Value> {
    entries.into_iter().filter_map(without_calls).collect()
}

fn without_calls(mut entry: Value) -> Option<Value> {
    if entry["role"] == "tool" {
        return None;
    }
    let called = entry.as_object_mut()?.remove("tool_calls").is_some_and(|calls| calls != Value::Array(Vec::new()));
    let says_nothing = entry["content"] == "" || entry["content"] == Value::Array(Vec::new());
    (!(called && says_nothing)).then_some(entry)
}

/// The entries without calls that have no result yet, and without results of unknown calls.
///
/// Interfaces of models refuse such a history. A handoff leaves them, because the call of a handoff is open while it is made.
pub fn settled(entries: Vec<Value>) -> Vec<Value> {
    let result_of = |entry: &Value| entry["tool_call_id"].as_str().map(str::to_owned);
    let answered: HashSet<String> = entries.iter().filter_map(result_of).collect();
    let mut known = HashSet::new();
    let settle = |mut entry: Value| {
        if let Some(calls) = entry["tool_calls"].as_array().filter(|calls| !calls.is_empty()) {
            let is_answered = |call: &&Value| call["id"].as_str().is_some_and(|id| answered.contains(id));
            let kept: Vec<Value> = calls.iter().filter(is_answered).cloned().collect();
            if kept.is_empty() {
                return without_calls(entry);
            }
            known.extend(kept.iter().filter_map(|call| call["id"].as_str()).map(str::to_owned));
            entry["tool_calls"] = Value::Array(kept);
        }
        result_of(&entry).is_none_or(|id| known.contains(&id)).then_some(entry)
    };
    entries.into_iter().filter_map(settle).collect()
}

fn check_entry(at: &str, entry: &Value) -> Result<(), NoHistory> {
    let members = object(at, entry)?;
    let role = members.get("role").and_then(Value::as_str);
    let Some(role @ ("system" | "user" | "assistant" | "tool")) = role else {
        return Err(wrong(format!("{at}/role"), "must be system, user, assistant or tool"));
    };
    for (name, value) in members {
        let place = || format!("{at}/{}", escaped(name));
        match name.as_str() {
            "role" | "content" => {}
            "name" | "agent_id" | "time" => text(place, value)?,
            "tool_call_id" if role == "tool" => text(place, value)?,
            "tool_call_id" => return Err(wrong(place(), "is for the role tool")),
            "tool_calls" if role == "assistant" => each(&place(), value, check_call)?,
            "tool_calls" => return Err(wrong(place(), "is for the role assistant")),
            _ => return Err(wrong(place(), "is no member of an entry")),
        }
    }
    if role == "tool" && !members.contains_key("tool_call_id") {
        return Err(wrong(format!("{at}/tool_call_id"), "is missing"));
    }
    match members.get("content") {
        Some(Value::String(_)) => Ok(()),
        Some(parts @ Value::Array(_)) => each(&format!("{at}/content"), parts, check_part),
        Some(_) => Err(wrong(format!("{at}/content"), "must be a text or a list of parts")),
        None => Err(wrong(format!("{at}/content"), "is missing")),
    }
}

fn check_call(at: &str, call: &Value) -> Result<(), NoHistory> {
    let members = object(at, call)?;
    for (name, value) in members {
        match name.as_str() {
            "id" | "name" | "arguments" => text(|| format!("{at}/{name}"), value)?,
            _ => return Err(wrong(format!("{at}/{}", escaped(name)), "is no member of a call")),
        }
    }
    match ["id", "name", "arguments"].iter().find(|name| !members.contains_key(**name)) {
        Some(missing) => Err(wrong(format!("{at}/{missing}"), "is missing")),
        None => Ok(()),
    }
}

fn check_part(at: &str, part: &Value) -> Result<(), NoHistory> {
    let members = object(at, part)?;
    let kind = members.get("type").and_then(Value::as_str);
    let Some(kind @ ("text" | "image" | "file" | "data")) = kind else {
        return Err(wrong(format!("{at}/type"), "must be text, image, file or data"));
    };
    for (name, value) in members {
        let place = || format!("{at}/{}", escaped(name));
        match (kind, name.as_str()) {
            (_, "type") | ("data", "data") => {}
            ("text", "text") | ("image" | "file", "url" | "data" | "media_type" | "name") => text(place, value)?,
            _ => return Err(wrong(place(), "is no member of such a part")),
        }
    }
    let has = |name: &str| members.contains_key(name);
    match kind {
        "text" if !has("text") => Err(wrong(format!("{at}/text"), "is missing")),
        "data" if !has("data") => Err(wrong(format!("{at}/data"), "is missing")),
        "image" | "file" if has("url") == has("data") => Err(wrong(at.to_owned(), "must have either url or data")),
        _ => Ok(()),
    }
}

fn each(at: &str, list: &Value, check: impl Fn(&str, &Value) -> Result<(), NoHistory>) -> Result<(), NoHistory> {
    let Value::Array(values) = list else { return Err(wrong(at.to_owned(), "must be a list")) };
    values.iter().enumerate().try_for_each(|(index, value)| check(&format!("{at}/{index}"), value))
}

fn object<'a>(at: &str, value: &'a Value) -> Result<&'a Map<String, Value>, NoHistory> {
    value.as_object().ok_or_else(|| wrong(at.to_owned(), "must be an object"))
}

fn text(place: impl FnOnce() -> String, value: &Value) -> Result<(), NoHistory> {
    if value.is_string() { Ok(()) } else { Err(wrong(place(), "must be a text")) }
}

const fn wrong(pointer: String, problem: &'static str) -> NoHistory {
    NoHistory { pointer, problem }
}

fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

#[cfg(test)]
mod tests {
    use super::SCHEMA_JSON;

    #[test]
    fn the_vectors_have_the_same_schema() {
        assert_eq!(SCHEMA_JSON, include_str!("../../../../vectors/history-v1.schema.json"));
    }
}
