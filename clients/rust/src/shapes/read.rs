//! From the shapes of models to a history.

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::HistoryError;

type Read<T> = Result<T, HistoryError>;

const REASONING: [&str; 4] = ["thinking", "redacted_thinking", "reasoning", "reasoning_content"];
/// Calls that a message of `LangChain` has a second time in its content.
const REPEATED: [&str; 5] = ["tool_use", "tool_call", "tool_call_chunk", "function_call", "input_json_delta"];

/// Converts messages of `OpenAI` Chat Completions.
///
/// # Errors
///
/// The first value that `baton.history` has no form for.
pub fn from_openai_chat(messages: &(impl Serialize + ?Sized)) -> Read<Vec<Value>> {
    let value = plain(messages, "")?;
    let read = |message: Place<'_>| chat_message(&message, message.role(chat_role)?);
    Place::root(&value).list_of()?.into_iter().map(read).collect()
}

/// Converts items of `OpenAI` Responses: an input, or the output of responses.
///
/// # Errors
///
/// The first value that `baton.history` has no form for.
pub fn from_openai_responses(items: &(impl Serialize + ?Sized)) -> Read<Vec<Value>> {
    let value = plain(items, "")?;
    let mut history = Vec::new();
    for item in Place::root(&value).list_of()? {
        responses_item(&mut history, &item)?;
    }
    Ok(history)
}

/// Converts messages of Anthropic, and the system prompt, which is beside them: a text, blocks, or `&()` without one.
///
/// # Errors
///
/// The first value that `baton.history` has no form for.
pub fn from_anthropic(messages: &(impl Serialize + ?Sized), system: &(impl Serialize + ?Sized)) -> Read<Vec<Value>> {
    let (value, system) = (plain(messages, "")?, plain(system, "/system")?);
    let mut history = system_prompt(&Place { at: "/system".to_owned(), value: &system }, anthropic_part)?;
    for message in Place::root(&value).list_of()? {
        message.check_members("content")?;
        anthropic_message(&mut history, &message)?;
    }
    Ok(history)
}

/// Converts contents of Gemini, and the system instruction, which is beside them: a text, a content, parts, or `&()` without
/// one.
///
/// A call of Gemini may have no id. Then it gets one by its place, and a result belongs to the first open call of its name.
///
/// # Errors
///
/// The first value that `baton.history` has no form for.
pub fn from_gemini(contents: &(impl Serialize + ?Sized), system: &(impl Serialize + ?Sized)) -> Read<Vec<Value>> {
    let (value, system) = (plain(contents, "")?, plain(system, "/system")?);
    let system = Place { at: "/system".to_owned(), value: &system };
    let parts = system.get("parts");
    let mut history = system_prompt(if parts.has() { &parts } else { &system }, gemini_part)?;
    let mut calls = GeminiCalls::default();
    for content in Place::root(&value).list_of()? {
        content.check_members("parts")?;
        gemini_content(&mut history, &mut calls, &content)?;
    }
    Ok(history)
}

/// Converts messages of `LangChain`: what `messages_to_dict` and `toDict` write, `{role, content}`, `[role, text]` and texts.
///
/// # Errors
///
/// The first value that `baton.history` has no form for.
pub fn from_langchain(messages: &(impl Serialize + ?Sized)) -> Read<Vec<Value>> {
    let value = plain(messages, "")?;
    Place::root(&value).list_of()?.iter().map(langchain_message).collect()
}

/// A value of the messages with its JSON Pointer. A missing one is null.
struct Place<'a> {
    at: String,
    value: &'a Value,
}

impl<'a> Place<'a> {
    fn root(value: &'a Value) -> Self {
        Self { at: String::new(), value }
    }

    fn get(&self, name: &str) -> Self {
        Self { at: format!("{}/{name}", self.at), value: &self.value[name] }
    }

    /// A member by its name in JSON, or by its name in Python.
    fn either(&self, name: &str, python: &str) -> Self {
        let found = self.get(name);
        if found.has() { found } else { self.get(python) }
    }

    fn has(&self) -> bool {
        !self.value.is_null()
    }

    /// The items of a list that must be there.
    fn list_of(&self) -> Read<Vec<Self>> {
        if self.has() { self.list() } else { Err(self.fail("must be a list")) }
    }

    fn list(&self) -> Read<Vec<Self>> {
        let item = |(index, value)| Self { at: format!("{}/{index}", self.at), value };
        match self.value {
            Value::Null => Ok(Vec::new()),
            Value::Array(items) => Ok(items.iter().enumerate().map(item).collect()),
            _ => Err(self.fail("must be a list")),
        }
    }

    /// A text that must be there.
    fn text(&self) -> Read<&'a str> {
        if self.has() { self.optional() } else { Err(self.fail("is missing")) }
    }

    /// A text that must not be empty.
    fn filled(&self) -> Read<&'a str> {
        match self.text()? {
            "" => Err(self.fail("is empty")),
            text => Ok(text),
        }
    }

    /// A text, `""` without one.
    fn optional(&self) -> Read<&'a str> {
        match self.value {
            Value::Null => Ok(""),
            Value::String(text) => Ok(text),
            _ => Err(self.fail("must be a text")),
        }
    }

    /// The member `type`, `""` if the value is no text.
    fn kind(&self) -> &'a str {
        self.value["type"].as_str().unwrap_or_default()
    }

    /// The JSON of the value, `"{}"` without one.
    fn json(&self) -> String {
        if self.has() { self.value.to_string() } else { "{}".to_owned() }
    }

    fn fail(&self, problem: impl Into<String>) -> HistoryError {
        HistoryError { pointer: self.at.clone(), problem: problem.into() }
    }

    fn unknown(&self, name: &str) -> HistoryError {
        let kind = self.get(name);
        let written = if kind.has() { kind.value.to_string() } else { format!("without a {name}") };
        kind.fail(format!("is {written}, which baton.history has no form for"))
    }

    fn check_object(&self) -> Read<()> {
        if self.value.is_object() { Ok(()) } else { Err(self.fail("must be an object")) }
    }

    /// Refuses a message of another shape, whose calls or texts would be overlooked.
    fn check_members(&self, needed: &str) -> Read<()> {
        self.check_object()?;
        if self.value.get(needed).is_none() {
            return Err(self.get(needed).fail("is missing"));
        }
        match &self.value["tool_calls"] {
            Value::Null => Ok(()),
            Value::Array(calls) if calls.is_empty() => Ok(()),
            _ => Err(self.get("tool_calls").fail("is of another shape")),
        }
    }

    /// The role of a message in a history.
    fn role(&self, known: fn(&str) -> Option<&'static str>) -> Read<&'static str> {
        self.check_object()?;
        known(self.get("role").optional()?).ok_or_else(|| self.unknown("role"))
    }
}

fn plain(value: &(impl Serialize + ?Sized), at: &str) -> Read<Value> {
    let failed = |error| HistoryError { pointer: at.to_owned(), problem: format!("cannot be read: {error}") };
    serde_json::to_value(value).map_err(failed)
}

fn chat_role(role: &str) -> Option<&'static str> {
    if role == "tool" { Some("tool") } else { spoken_role(role) }
}

fn spoken_role(role: &str) -> Option<&'static str> {
    match role {
        "system" | "developer" => Some("system"),
        "user" => Some("user"),
        "assistant" => Some("assistant"),
        _ => None,
    }
}

fn langchain_role(role: &str) -> Option<&'static str> {
    match role {
        "human" => Some("user"),
        "ai" => Some("assistant"),
        _ => chat_role(role),
    }
}

/// The parts of a content: of a text, of parts, or none.
fn parts_of(content: &Place<'_>, read: impl Fn(&Place<'_>) -> Read<Option<Value>>) -> Read<Vec<Value>> {
    match content.value {
        Value::Null => Ok(Vec::new()),
        Value::String(text) => Ok(vec![text_part(text)]),
        Value::Array(_) => {
            let part = |part: Place<'_>| match part.value {
                Value::String(text) => Ok(Some(text_part(text))),
                _ => part.check_object().and_then(|()| read(&part)),
            };
            content.list()?.into_iter().map(part).filter_map(Result::transpose).collect()
        }
        _ => Err(content.fail("must be a text or a list")),
    }
}

/// The parts, or the text of a single text part.
fn joined(parts: Vec<Value>) -> Value {
    match &*parts {
        [] => json!(""),
        [part] if part["type"] == "text" => part["text"].clone(),
        _ => Value::Array(parts),
    }
}

fn entry(role: &str, parts: Vec<Value>) -> Value {
    json!({"role": role, "content": joined(parts)})
}

fn result(call_id: &str, parts: Vec<Value>) -> Value {
    json!({"role": "tool", "content": joined(parts), "tool_call_id": call_id})
}

fn put(entry: &mut Value, name: &str, text: &str) {
    if !text.is_empty() {
        entry[name] = json!(text);
    }
}

/// Adds the calls, whose place is `at`, to the entry.
fn with_calls(mut entry: Value, calls: Vec<Value>, at: &Place<'_>) -> Read<Value> {
    if !calls.is_empty() {
        if entry["role"] != "assistant" {
            return Err(at.fail("has calls, which are for the role assistant"));
        }
        entry["tool_calls"] = Value::Array(calls);
    }
    Ok(entry)
}

/// Adds a call to the last entry, the assistant's.
fn add_call(history: &mut Vec<Value>, call: Value) {
    if history.last().is_none_or(|entry| entry["role"] != "assistant") {
        history.push(entry("assistant", Vec::new()));
    }
    let calls = history.last_mut().and_then(Value::as_object_mut).map(|entry| entry.entry("tool_calls"));
    if let Some(Value::Array(calls)) = calls.map(|calls| calls.or_insert_with(|| json!([]))) {
        calls.push(call);
    }
}

/// A call. Without arguments they are an empty object.
fn call(id: &Place<'_>, name: &Place<'_>, arguments: &str) -> Read<Value> {
    let arguments = if arguments.is_empty() { "{}" } else { arguments };
    Ok(json!({"id": id.text()?, "name": name.text()?, "arguments": arguments}))
}

fn text_part(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

fn some_text(text: &Place<'_>) -> Read<Option<Value>> {
    Ok(Some(text_part(text.text()?)))
}

/// A part of these members, of which the empty ones are left out.
fn part(kind: &str, members: &[(&str, &str)]) -> Value {
    let all = [("type", kind)].into_iter().chain(members.iter().copied());
    let filled = all.filter(|(_, text)| !text.is_empty());
    Value::Object(filled.map(|(name, text)| (name.to_owned(), json!(text))).collect::<Map<_, _>>())
}

/// An image or a file by its URL, whose bytes may be in it.
fn media(kind: &str, url: &Place<'_>, name: &str) -> Read<Option<Value>> {
    let url = url.filled()?;
    let data = url.strip_prefix("data:").and_then(|rest| rest.split_once(','));
    let data = data.and_then(|(header, data)| Some((header.strip_suffix(";base64")?, data)));
    Ok(Some(match data {
        Some((header, data)) if !data.is_empty() => {
            let media_type = header.split(';').next().unwrap_or_default();
            part(kind, &[("data", data), ("media_type", media_type), ("name", name)])
        }
        _ => part(kind, &[("url", url), ("name", name)]),
    }))
}

fn system_prompt(system: &Place<'_>, read: impl Fn(&Place<'_>) -> Read<Option<Value>>) -> Read<Vec<Value>> {
    let parts = parts_of(system, read)?;
    let is_none = parts.is_empty() || system.value == "";
    Ok(if is_none { Vec::new() } else { vec![entry("system", parts)] })
}

fn chat_message(message: &Place<'_>, role: &str) -> Read<Value> {
    let function_call = message.get("function_call");
    if function_call.has() {
        return Err(function_call.fail("has no id: use tool_calls"));
    }
    let content = message.get("content");
    let content = if content.has() { content } else { message.get("refusal") };
    let mut made = entry(role, parts_of(&content, chat_part)?);
    if role == "tool" {
        made["tool_call_id"] = json!(message.get("tool_call_id").text()?);
    } else {
        put(&mut made, "name", message.get("name").optional()?);
    }
    let calls = message.get("tool_calls");
    let read = |one: Place<'_>| {
        let (function, custom) = (one.get("function"), one.get("custom"));
        match function.has() {
            true => call(&one.get("id"), &function.get("name"), function.get("arguments").optional()?),
            false => call(&one.get("id"), &custom.get("name"), &custom.get("input").json()),
        }
    };
    with_calls(made, calls.list()?.into_iter().map(read).collect::<Read<_>>()?, &calls)
}

fn chat_part(found: &Place<'_>) -> Read<Option<Value>> {
    match found.kind() {
        "text" => some_text(&found.get("text")),
        "refusal" => some_text(&found.get("refusal")),
        "image_url" => {
            let image = found.get("image_url");
            let url = if image.value.is_string() { image } else { image.get("url") };
            media("image", &url, "")
        }
        "file" if !found.value["file"]["file_data"].is_null() => {
            let file = found.get("file");
            media("file", &file.get("file_data"), file.get("filename").optional()?)
        }
        "input_audio" => {
            let audio = found.get("input_audio");
            let media_type = format!("audio/{}", audio.get("format").text()?);
            Ok(Some(part("file", &[("data", audio.get("data").filled()?), ("media_type", &media_type)])))
        }
        _ => Err(found.unknown("type")),
    }
}

fn responses_item(history: &mut Vec<Value>, item: &Place<'_>) -> Read<()> {
    item.check_object()?;
    let kind = if item.get("type").has() { item.kind() } else { "message" };
    item.check_members(if kind == "message" { "content" } else { "type" })?;
    let called = |arguments: &str| call(&item.get("call_id"), &item.get("name"), arguments);
    match kind {
        "message" => history.push(entry(item.role(spoken_role)?, parts_of(&item.get("content"), responses_part)?)),
        "function_call" => add_call(history, called(item.get("arguments").optional()?)?),
        "custom_tool_call" => add_call(history, called(&item.get("input").json())?),
        "function_call_output" | "custom_tool_call_output" => {
            history.push(result(item.get("call_id").text()?, parts_of(&item.get("output"), responses_part)?));
        }
        "reasoning" | "item_reference" | "compaction" => {}
        // What the provider runs by itself.
        _ if kind.ends_with("_call") || kind.ends_with("_call_output") || kind.starts_with("mcp_") => {}
        _ => return Err(item.unknown("type")),
    }
    Ok(())
}

fn responses_part(found: &Place<'_>) -> Read<Option<Value>> {
    match found.kind() {
        "input_text" | "output_text" | "text" => some_text(&found.get("text")),
        "refusal" => some_text(&found.get("refusal")),
        "input_image" if found.get("image_url").has() => media("image", &found.get("image_url"), ""),
        "input_file" if found.either("file_data", "file_url").has() => {
            media("file", &found.either("file_data", "file_url"), found.get("filename").optional()?)
        }
        _ => Err(found.unknown("type")),
    }
}

fn anthropic_message(history: &mut Vec<Value>, message: &Place<'_>) -> Read<()> {
    let role = spoken_role(message.get("role").optional()?).ok_or_else(|| message.unknown("role"))?;
    let content = message.get("content");
    if let Value::String(text) = content.value {
        history.push(entry(role, vec![text_part(text)]));
        return Ok(());
    }
    let (mut parts, mut calls) = (Vec::new(), Vec::new());
    let blocks = content.list()?;
    for block in &blocks {
        match block.kind() {
            "tool_use" => calls.push(call(&block.get("id"), &block.get("name"), &block.get("input").json())?),
            "tool_result" => {
                let content = parts_of(&block.get("content"), anthropic_part)?;
                history.push(result(block.get("tool_use_id").text()?, content));
            }
            "server_tool_use" => {}
            kind if REASONING.contains(&kind) || kind.ends_with("_tool_result") => {}
            _ => {
                block.check_object()?;
                parts.extend(anthropic_part(block)?);
            }
        }
    }
    if !parts.is_empty() || !calls.is_empty() || blocks.is_empty() {
        history.push(with_calls(entry(role, parts), calls, message)?);
    }
    Ok(())
}

fn anthropic_part(block: &Place<'_>) -> Read<Option<Value>> {
    let source = block.get("source");
    let kind = match block.kind() {
        "document" => "file",
        kind => kind,
    };
    let name = block.get("title");
    match (kind, source.kind()) {
        ("text", _) => some_text(&block.get("text")),
        ("image" | "file", "base64") => {
            let (data, media_type) = (source.get("data").filled()?, source.get("media_type").text()?);
            Ok(Some(part(kind, &[("data", data), ("media_type", media_type), ("name", name.optional()?)])))
        }
        ("image" | "file", "url") => {
            Ok(Some(part(kind, &[("url", source.get("url").filled()?), ("name", name.optional()?)])))
        }
        ("file", "text") => some_text(&source.get("data")),
        _ => Err(block.unknown("type")),
    }
}

/// The calls of Gemini: the open ones with their ids and names, the earliest first, and the number of all.
#[derive(Default)]
struct GeminiCalls {
    open: Vec<(String, String)>,
    count: usize,
}

fn gemini_content(history: &mut Vec<Value>, known: &mut GeminiCalls, content: &Place<'_>) -> Read<()> {
    let role = if content.value["role"] == "model" { "assistant" } else { "user" };
    let (mut parts, mut calls) = (Vec::new(), Vec::new());
    let found = content.get("parts").list()?;
    for one in &found {
        let called = one.either("functionCall", "function_call");
        let response = one.either("functionResponse", "function_response");
        if called.has() {
            known.count += 1;
            let id = match called.get("id").optional()? {
                "" => format!("call_{}", known.count),
                id => id.to_owned(),
            };
            let name = called.get("name").text()?;
            calls.push(json!({"id": id, "name": name, "arguments": called.get("args").json()}));
            known.open.push((id, name.to_owned()));
        } else if response.has() {
            let (id, name) = (response.get("id").optional()?, response.get("name").optional()?);
            let by_id = known.open.iter().position(|(call, _)| call == id);
            let at = by_id.or_else(|| known.open.iter().position(|(_, call)| call == name));
            let (id, _) = known.open.remove(at.ok_or_else(|| one.fail("is the result of no call"))?);
            let extra = response.get("parts");
            if !extra.list()?.is_empty() {
                return Err(extra.fail("are what baton.history has no form for in a result"));
            }
            history.push(result(&id, vec![text_part(&response_text(&response.get("response")))]));
        } else if let Value::String(text) = one.value {
            parts.push(text_part(text));
        } else {
            one.check_object()?;
            parts.extend(gemini_part(one)?);
        }
    }
    if !parts.is_empty() || !calls.is_empty() || found.is_empty() {
        history.push(with_calls(entry(role, parts), calls, content)?);
    }
    Ok(())
}

/// The text of a result of Gemini. A text alone is under the name `result` or `output`.
fn response_text(response: &Place<'_>) -> String {
    let only =
        response.value.as_object().filter(|members| members.len() == 1).and_then(|members| members.iter().next());
    match only {
        Some((name, Value::String(text))) if name == "result" || name == "output" => text.clone(),
        _ => response.json(),
    }
}

fn gemini_part(found: &Place<'_>) -> Read<Option<Value>> {
    let is_run = found.either("executableCode", "executable_code").has()
        || found.either("codeExecutionResult", "code_execution_result").has();
    if found.value["thought"] == true || is_run {
        return Ok(None);
    }
    if found.get("text").has() {
        return some_text(&found.get("text"));
    }
    let held = found.either("inlineData", "inline_data");
    let held = if held.has() { held } else { found.either("fileData", "file_data") };
    if !held.has() {
        return Err(found.fail("is no part that baton.history has a form for"));
    }
    let media_type = held.either("mimeType", "mime_type").optional()?;
    let kind = if media_type.starts_with("image/") { "image" } else { "file" };
    let place = match held.get("data").optional()? {
        "" => ("url", held.either("fileUri", "file_uri").filled()?),
        data => ("data", data),
    };
    let name = held.either("displayName", "display_name").optional()?;
    Ok(Some(part(kind, &[place, ("media_type", media_type), ("name", name)])))
}

fn langchain_message(message: &Place<'_>) -> Read<Value> {
    if let Value::String(text) = message.value {
        return Ok(entry("user", vec![text_part(text)]));
    }
    if message.value.is_array() {
        let pair = message.list()?;
        let [role, content] = &*pair else { return Err(message.fail("must be a role and a content")) };
        let known = langchain_role(role.text()?).filter(|role| *role != "tool");
        let unknown = || role.fail(format!("is {}, which baton.history has no form for", role.value));
        return Ok(entry(known.ok_or_else(unknown)?, parts_of(content, langchain_part)?));
    }
    message.check_object()?;
    let data = message.get("data");
    if !data.has() {
        let by_type = || langchain_role(message.kind()).ok_or_else(|| message.unknown("type"));
        let role = if message.get("role").has() { message.role(langchain_role)? } else { by_type()? };
        return chat_message(message, role);
    }
    data.check_object()?;
    // A message's object does not have "data", so places do not name it.
    let data = Place { at: message.at.clone(), ..data };
    let content = data.get("content");
    let kind = message.kind();
    let role = match &*kind.strip_suffix("MessageChunk").unwrap_or(kind).to_lowercase() {
        "tool" => return Ok(result(data.get("tool_call_id").text()?, parts_of(&content, langchain_part)?)),
        "human" => "user",
        "ai" => "assistant",
        "system" | "developer" => "system",
        _ => return Err(message.unknown("type")),
    };
    let mut made = entry(role, parts_of(&content, langchain_part)?);
    put(&mut made, "name", data.get("name").optional()?);
    let mut calls = Vec::new();
    for one in data.get("tool_calls").list()? {
        calls.push(call(&one.get("id"), &one.get("name"), &one.get("args").json())?);
    }
    for one in data.get("invalid_tool_calls").list()? {
        calls.push(call(&one.get("id"), &one.get("name"), one.get("args").optional()?)?);
    }
    with_calls(made, calls, &data.get("tool_calls"))
}

fn langchain_part(found: &Place<'_>) -> Read<Option<Value>> {
    let kind = found.kind();
    match kind {
        "text" | "image_url" | "refusal" | "input_audio" => chat_part(found),
        "input_text" | "output_text" => some_text(&found.get("text")),
        "image" | "file" | "audio" | "video" if found.get("source").has() => anthropic_part(found),
        "image" | "file" | "audio" | "video" => {
            let data = match found.get("base64").optional()? {
                "" if found.value["source_type"] == "base64" => found.get("data").optional()?,
                data => data,
            };
            let place = if data.is_empty() { ("url", found.get("url").optional()?) } else { ("data", data) };
            if place.1.is_empty() {
                return Err(found.unknown("type"));
            }
            let name = match found.get("filename").optional()? {
                "" => found.get("name").optional()?,
                name => name,
            };
            let kind = if kind == "image" { "image" } else { "file" };
            Ok(Some(part(kind, &[place, ("media_type", found.get("mime_type").optional()?), ("name", name)])))
        }
        _ if REASONING.contains(&kind) || REPEATED.contains(&kind) => Ok(None),
        _ => Err(found.unknown("type")),
    }
}
