//! Responses of models: their tool calls, and the results of those in the shape of the same interface.
//!
//! A response is anything that serde writes as the JSON of its interface, so the types of any SDK will do, and the client
//! depends on none. `vectors/turns-v1.json` has examples for every language.

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::{Value, json};

use crate::proto::v1;

const TRANSFER_PREFIX: &str = "transfer_to_";

/// The interface that a response belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResponseShape {
    /// A Response of OpenAI.
    OpenAiResponses,
    /// A `ChatCompletion` of OpenAI.
    OpenAiChat,
    /// A Message of Anthropic.
    Anthropic,
    /// A `CreateMessageResult` of MCP.
    McpSampling,
    /// A `CallToolRequest` of MCP.
    McpCall,
}

/// What a run records of a model's response.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelTurn {
    /// The interface of the response.
    pub shape: ResponseShape,
    /// The tool calls.
    pub calls: Vec<v1::ToolCall>,
    /// The text of the response.
    pub output: String,
    /// Whether the model ended its turn by itself and without a tool call.
    pub finished: bool,
}

/// The value is no response of a known interface.
#[derive(Debug, thiserror::Error)]
#[error("the value is no response of a known interface{}", problem.as_ref().map(|text| format!(": {text}")).unwrap_or_default())]
pub struct NoResponse {
    problem: Option<String>,
}

impl ModelTurn {
    /// Reads a response: the type of an SDK, or the same as a [`Value`]. The call of a `CallToolRequest` of MCP is named
    /// `call`.
    ///
    /// # Errors
    ///
    /// [`NoResponse`], also for a `ChatCompletion` with more than one choice.
    pub fn read(response: &impl Serialize) -> Result<Self, NoResponse> {
        let read = serde_json::to_value(response).map_err(|error| NoResponse { problem: Some(error.to_string()) })?;
        if let Some(items) = read["output"].as_array() {
            return Ok(of_responses(&read, items));
        }
        if let Some(choices) = read["choices"].as_array() {
            return of_chat(choices);
        }
        if let Some(name) = read["params"]["name"].as_str() {
            let call = call("call", name, written(&read["params"]["arguments"]));
            return Ok(Self {
                shape: ResponseShape::McpCall,
                calls: vec![call],
                output: String::new(),
                finished: false,
            });
        }
        if read["role"] == "assistant" && !read["content"].is_null() {
            return Ok(of_message(&read));
        }
        Err(NoResponse { problem: None })
    }

    /// The results of the transfer calls as messages for the model's history, in the shape of the response. The results of
    /// all other calls are the runtime's own.
    pub fn messages(&self, results: &[v1::ToolResult]) -> Vec<Value> {
        let transfers = self.calls.iter().filter(|call| call.name.starts_with(TRANSFER_PREFIX));
        let transfers: BTreeSet<&str> = transfers.map(|call| &*call.call_id).collect();
        let own = results.iter().filter(|result| transfers.contains(&*result.call_id));
        let messages: Vec<Value> = own.map(|result| message(self.shape, result)).collect();
        match self.shape {
            ResponseShape::Anthropic | ResponseShape::McpSampling if !messages.is_empty() => {
                vec![json!({"role": "user", "content": messages})]
            }
            _ => messages,
        }
    }
}

fn message(shape: ResponseShape, result: &v1::ToolResult) -> Value {
    let v1::ToolResult { call_id, text, is_error } = result;
    match shape {
        ResponseShape::OpenAiResponses => json!({"type": "function_call_output", "call_id": call_id, "output": text}),
        ResponseShape::OpenAiChat => json!({"role": "tool", "tool_call_id": call_id, "content": text}),
        ResponseShape::Anthropic => {
            json!({"type": "tool_result", "tool_use_id": call_id, "content": text, "is_error": is_error})
        }
        ResponseShape::McpSampling => {
            let content = json!([{"type": "text", "text": text}]);
            json!({"type": "tool_result", "toolUseId": call_id, "content": content, "isError": is_error})
        }
        ResponseShape::McpCall => json!({"content": [{"type": "text", "text": text}], "isError": is_error}),
    }
}

fn of_responses(response: &Value, items: &[Value]) -> ModelTurn {
    let (mut calls, mut output) = (Vec::new(), String::new());
    for item in items {
        let (id, name) = (text(&item["call_id"]), text(&item["name"]));
        match item["type"].as_str() {
            Some("function_call") => calls.push(call(id, name, text(&item["arguments"]).to_owned())),
            Some("custom_tool_call") => calls.push(call(id, name, written(&item["input"]))),
            Some("message") => {
                let parts = item["content"].as_array().into_iter().flatten();
                output.extend(parts.filter(|part| part["type"] == "output_text").map(|part| text(&part["text"])));
            }
            // Reasoning, and calls that the provider runs by itself.
            _ => {}
        }
    }
    let status = &response["status"];
    let finished = calls.is_empty() && (status.is_null() || status == "completed");
    ModelTurn { shape: ResponseShape::OpenAiResponses, calls, output, finished }
}

fn of_chat(choices: &[Value]) -> Result<ModelTurn, NoResponse> {
    let [choice] = choices else {
        let problem = format!("a turn is one choice of the model, not {}", choices.len());
        return Err(NoResponse { problem: Some(problem) });
    };
    let message = &choice["message"];
    let calls: Vec<v1::ToolCall> = message["tool_calls"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|made| {
            let (id, function, custom) = (text(&made["id"]), &made["function"], &made["custom"]);
            match function.is_object() {
                true => call(id, text(&function["name"]), text(&function["arguments"]).to_owned()),
                false => call(id, text(&custom["name"]), written(&custom["input"])),
            }
        })
        .collect();
    let finished = calls.is_empty() && choice["finish_reason"] == "stop";
    let output = text(&message["content"]).to_owned();
    Ok(ModelTurn { shape: ResponseShape::OpenAiChat, calls, output, finished })
}

/// Reads a message of Anthropic or of MCP, which differ in the names of their stop reasons.
fn of_message(message: &Value) -> ModelTurn {
    let content = &message["content"];
    let blocks = content.as_array().map_or(std::slice::from_ref(content), Vec::as_slice);
    let (mut calls, mut output) = (Vec::new(), String::new());
    for block in blocks {
        match block["type"].as_str() {
            Some("tool_use") => calls.push(call(text(&block["id"]), text(&block["name"]), written(&block["input"]))),
            Some("text") => output.push_str(text(&block["text"])),
            // Thinking, and tools that the provider runs by itself.
            _ => {}
        }
    }
    let stop = message["stop_reason"].as_str().unwrap_or_else(|| text(&message["stopReason"]));
    let finished = calls.is_empty() && ["end_turn", "stop_sequence", "endTurn", "stopSequence"].contains(&stop);
    let is_anthropic = message["type"] == "message";
    let shape = if is_anthropic { ResponseShape::Anthropic } else { ResponseShape::McpSampling };
    ModelTurn { shape, calls, output, finished }
}

fn call(call_id: &str, name: &str, arguments: String) -> v1::ToolCall {
    let arguments_json = if arguments.is_empty() { "{}".to_owned() } else { arguments };
    v1::ToolCall { call_id: call_id.to_owned(), name: name.to_owned(), arguments_json }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn written(value: &Value) -> String {
    if value.is_null() { String::new() } else { value.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vectors() -> Value {
        serde_json::from_str(include_str!("../../../vectors/turns-v1.json")).unwrap()
    }

    fn shape(name: &str) -> ResponseShape {
        match name {
            "OPENAI_RESPONSES" => ResponseShape::OpenAiResponses,
            "OPENAI_CHAT" => ResponseShape::OpenAiChat,
            "ANTHROPIC" => ResponseShape::Anthropic,
            "MCP_SAMPLING" => ResponseShape::McpSampling,
            "MCP_CALL" => ResponseShape::McpCall,
            _ => panic!("{name} is no shape"),
        }
    }

    fn calls(values: &Value) -> Vec<v1::ToolCall> {
        let made =
            |one: &Value| call(text(&one["call_id"]), text(&one["name"]), text(&one["arguments_json"]).to_owned());
        values.as_array().unwrap().iter().map(made).collect()
    }

    fn arguments(calls: &[v1::ToolCall]) -> Vec<(&str, &str, Value)> {
        let read = |call: &v1::ToolCall| serde_json::from_str(&call.arguments_json).unwrap();
        calls.iter().map(|call| (&*call.call_id, &*call.name, read(call))).collect()
    }

    #[test]
    fn turns_are_those_of_the_vectors() {
        let vectors = vectors();
        for case in vectors["cases"].as_array().unwrap() {
            let found = ModelTurn::read(&case["response"]);
            if case["calls"].is_null() {
                assert!(found.is_err(), "{case}");
                continue;
            }
            let found = found.unwrap();
            assert_eq!(found.shape, shape(text(&case["shape"])), "{case}");
            assert_eq!(arguments(&found.calls), arguments(&calls(&case["calls"])), "{case}");
            assert_eq!(
                (json!(found.output), json!(found.finished)),
                (case["output"].clone(), case["finished"].clone())
            );
        }
    }

    #[test]
    fn results_are_those_of_the_vectors() {
        let vectors = vectors();
        let results = &vectors["results"];
        let told: Vec<v1::ToolResult> = results["tool_results"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| v1::ToolResult {
                call_id: text(&one["call_id"]).to_owned(),
                text: text(&one["text"]).to_owned(),
                is_error: false,
            })
            .collect();
        for (name, messages) in results["messages"].as_object().unwrap() {
            let turn = ModelTurn {
                shape: shape(name),
                calls: calls(&results["calls"]),
                output: String::new(),
                finished: false,
            };
            assert_eq!(json!(turn.messages(&told)), *messages, "{name}");
        }
    }
}
