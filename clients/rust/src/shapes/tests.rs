use serde::Serialize;
use serde_json::{Value, json};

use super::*;
use crate::{
    envelope::history::{latest, settled, without_tool_calls},
    v1::context_section::Content,
};

const SHAPES: [&str; 5] = ["openai-chat", "openai-responses", "anthropic", "gemini", "langchain"];

fn cases() -> Vec<Value> {
    let vectors: Value = serde_json::from_str(include_str!("../../../../vectors/history-v1.json")).unwrap();
    let cases = vectors["cases"].as_array().unwrap().clone();
    assert!(cases.len() >= 29);
    cases
}

fn conversation() -> Vec<Value> {
    cases()[0]["history"].as_array().unwrap().clone()
}

fn read(shape: &str, messages: &Value, system: &Value) -> Result<Vec<Value>, HistoryError> {
    match shape {
        "openai-chat" => from_openai_chat(messages),
        "openai-responses" => from_openai_responses(messages),
        "anthropic" => from_anthropic(messages, system),
        "gemini" => from_gemini(messages, system),
        "langchain" => from_langchain(messages),
        _ => panic!("{shape} is no shape"),
    }
}

fn write(shape: &str, history: &[Value]) -> Result<Prompted, HistoryError> {
    let alone = |messages| Prompted { system: String::new(), messages };
    match shape {
        "openai-chat" => to_openai_chat(history).map(alone),
        "openai-responses" => to_openai_responses(history).map(alone),
        "anthropic" => to_anthropic(history),
        "gemini" => to_gemini(history),
        "langchain" => to_langchain(history).map(alone),
        _ => panic!("{shape} is no shape"),
    }
}

fn pointer<T: std::fmt::Debug>(result: Result<T, HistoryError>) -> String {
    result.unwrap_err().pointer
}

#[test]
fn a_history_comes_from_a_shape_and_goes_back() {
    for case in cases().iter().filter(|case| !case["history"].is_null()) {
        let shape = case["shape"].as_str().unwrap();
        let history = read(shape, &case["messages"], &case["system"]).unwrap();
        assert_eq!(json!(history), case["history"], "{shape}: {}", case["name"]);
        let written = write(shape, &history).unwrap();
        let back = case.get("back").unwrap_or(&case["messages"]);
        let system = case.get("back_system").or(case.get("system")).unwrap_or(&json!("")).clone();
        assert_eq!(json!(written.messages), *back, "{shape}: {}", case["name"]);
        assert_eq!(json!(written.system), system, "{shape}: {}", case["name"]);
    }
}

#[test]
fn what_has_no_form_is_refused_with_its_place() {
    for case in cases().iter().filter(|case| case["history"].is_null()) {
        let shape = case["shape"].as_str().unwrap();
        assert_eq!(json!(pointer(read(shape, &case["messages"], &Value::Null))), case["pointer"], "{case}");
    }
}

#[test]
fn a_conversation_is_the_same_after_any_two_shapes() {
    for (first, second) in SHAPES.iter().flat_map(|first| SHAPES.map(|second| (*first, second))) {
        let mut history = conversation();
        for shape in [first, second] {
            let written = write(shape, &history).unwrap();
            history = read(shape, &json!(written.messages), &json!(written.system)).unwrap();
        }
        // A call of Gemini has no id.
        let plain = json!(history).to_string().replace("call_1", "c1").replace("call_2", "c2");
        assert_eq!(serde_json::from_str::<Vec<Value>>(&plain).unwrap(), conversation(), "{first}, {second}");
    }
}

#[test]
fn a_part_that_an_interface_does_not_take_is_refused() {
    let image = [json!({"role": "assistant", "content": [{"type": "image", "url": "https://example.com/a.png"}]})];
    for shape in ["openai-chat", "openai-responses", "anthropic"] {
        assert_eq!(pointer(write(shape, &image)), "/0/content/0", "{shape}");
    }
    let file = [json!({"role": "user", "content": [{"type": "file", "url": "https://example.com/a.pdf"}]})];
    assert_eq!(pointer(to_openai_chat(&file)), "/0/content/0/url");
    assert_eq!(pointer(to_gemini(&[json!({"role": "tool", "content": "a", "tool_call_id": "c"})])), "/0/tool_call_id");
    let wrong = [json!({"role": "user", "content": ""}), json!({"role": "agent", "content": "hi"})];
    for shape in SHAPES {
        assert_eq!(pointer(write(shape, &wrong)), "/1/role", "{shape}");
    }
}

#[test]
fn what_is_no_message_is_refused() {
    let wrong = [
        json!(null),
        json!(7),
        json!({}),
        json!([7]),
        json!([null]),
        json!([{}]),
        json!([{"role": "assistant", "tool_calls": [{}]}]),
        json!([{"role": "user", "content": 7}]),
    ];
    for (shape, messages) in SHAPES.iter().flat_map(|shape| wrong.iter().map(move |messages| (shape, messages))) {
        assert!(read(shape, messages, &Value::Null).is_err(), "{shape}: {messages}");
    }
    let called = |call: Value| json!([{"role": "assistant", "tool_calls": [call]}]);
    for (place, messages) in [
        ("/0/content", json!([{"role": "user", "content": 7}])),
        ("/0/content/1", json!([{"role": "user", "content": ["a", 7]}])),
        ("/0/name", json!([{"role": "user", "content": "a", "name": 7}])),
        ("/0/tool_call_id", json!([{"role": "tool", "content": "a"}])),
        ("/0/tool_calls/0/id", called(json!({"function": {"name": "f", "arguments": "{}"}}))),
        ("/0/tool_calls/0/function/arguments", called(json!({"id": "c", "function": {"name": "f", "arguments": 7}}))),
        ("/0/tool_calls", json!([{"role": "user", "tool_calls": [{"id": "c", "function": {"name": "f"}}]}])),
        ("/0/function_call", json!([{"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}}])),
        ("/0/content/0/image_url/url", json!([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}])),
    ] {
        assert_eq!(pointer(from_openai_chat(&messages)), place);
    }
    let other = json!([{"role": "user", "content": "a", "tool_calls": [{}]}]);
    assert_eq!(pointer(from_anthropic(&other, &())), "/0/tool_calls");
    assert_eq!(pointer(from_anthropic(&json!([]), &json!([{"type": "hologram"}]))), "/system/0/type");
    assert_eq!(pointer(from_langchain(&json!([["function", "a"]]))), "/0/0");
    let empty = json!([{"type": "human", "data": {"content": [{"type": "text"}]}}]);
    assert_eq!(pointer(from_langchain(&empty)), "/0/content/0/text");
}

#[test]
fn the_arguments_of_a_call_keep_their_values() {
    let input = json!({"a": 9_223_372_036_854_775_807_i64, "b": 42.0, "t": "<&é"});
    let block = json!({"type": "tool_use", "id": "c", "name": "f", "input": input});
    let history = from_anthropic(&json!([{"role": "assistant", "content": [block]}]), "").unwrap();
    let written = &history[0]["tool_calls"][0]["arguments"];
    assert_eq!(written, r#"{"a":9223372036854775807,"b":42.0,"t":"<&é"}"#);
    assert_eq!(to_anthropic(&history).unwrap().messages[0]["content"][0]["input"], input);
    // What is no object stays a text.
    let broken =
        json!({"role": "assistant", "content": "", "tool_calls": [{"id": "c", "name": "f", "arguments": "{a"}]});
    assert_eq!(to_anthropic(&[broken]).unwrap().messages[0]["content"][0]["input"], json!({"arguments": "{a"}));
}

#[test]
fn a_history_comes_from_the_types_of_an_sdk() {
    #[derive(Serialize)]
    struct Message {
        role: &'static str,
        content: &'static str,
    }
    let history = from_openai_chat(&[Message { role: "developer", content: "be brief" }]).unwrap();
    assert_eq!(history, [json!({"role": "system", "content": "be brief"})]);
}

#[test]
fn a_section_has_a_history_and_names_its_schema() {
    let section = history_section("history_log", conversation()).unwrap();
    assert_eq!((&*section.schema_id, &*section.schema_version), ("baton.history", "1"));
    let Some(Content::Json(text)) = section.content else { panic!("the section is no JSON") };
    assert_eq!(serde_json::from_str::<Vec<Value>>(&text).unwrap(), conversation());
    let refused = history_section("history_log", vec![json!({"role": "agent", "content": "hi"})]).unwrap_err();
    assert_eq!(refused.to_string(), r#""/0/role" must be system, user, assistant or tool"#);
}

#[test]
fn open_calls_and_lost_results_are_left_out() {
    let call = |id: &str| json!({"id": id, "name": "f", "arguments": "{}"});
    let calls = |content: &str, calls: &[Value]| json!({"role": "assistant", "content": content, "tool_calls": calls});
    let result = |id: &str| json!({"role": "tool", "content": "1", "tool_call_id": id});
    let both = calls("", &[call("c1"), call("c2")]);
    let found = settled(vec![result("c0"), both.clone(), result("c1")]);
    assert_eq!(found, [calls("", &[call("c1")]), result("c1")]);
    assert_eq!(settled(vec![both.clone()]), Vec::<Value>::new());
    let said = json!({"role": "assistant", "content": "I look"});
    assert_eq!(settled(vec![calls("I look", &[call("c1")])]), std::slice::from_ref(&said));
    assert_eq!(latest(vec![both.clone(), result("c1")], 1), [both.clone(), result("c1")]);
    assert_eq!(without_tool_calls(vec![both, result("c1"), calls("I look", &[call("c1")])]), [said]);
}
