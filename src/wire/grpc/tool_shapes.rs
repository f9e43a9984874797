//! The tools of a node as JSON, in the shapes of the interfaces of models.

use serde::Serialize;
use serde_json::Value;

use crate::{
    domain::routing::Tool,
    proto::v1::{NodeTool, ToolShape},
};

/// The most bytes of the reason in the arguments of a tool.
const REASON_BYTES_MAX: usize = 1024;

/// A tool in this shape. `None`: no shape is wanted.
pub fn tool_json(tool: &Tool, shape: ToolShape) -> Option<String> {
    let (name, description) = (tool.name.as_str(), tool.description.as_str());
    let shaped = match shape {
        ToolShape::Unspecified => return None,
        ToolShape::Openai => {
            Shaped::Openai { description, name, parameters: &PARAMETERS, strict: true, r#type: "function" }
        }
        ToolShape::Anthropic => Shaped::Anthropic { description, input_schema: &PARAMETERS, name, strict: true },
        ToolShape::Mcp => Shaped::Mcp { description, input_schema: &PARAMETERS, name },
    };
    Some(serde_json::to_string(&shaped).expect("names and texts are JSON"))
}

// Written without a tree of values in between: a node may have 32 tools.
#[derive(Serialize)]
#[serde(untagged)]
enum Shaped<'a> {
    Openai {
        description: &'a str,
        name: &'a str,
        parameters: &'a Parameters,
        strict: bool,
        r#type: &'a str,
    },
    Anthropic {
        description: &'a str,
        input_schema: &'a Parameters,
        name: &'a str,
        strict: bool,
    },
    #[serde(rename_all = "camelCase")]
    Mcp {
        description: &'a str,
        input_schema: &'a Parameters,
        name: &'a str,
    },
}

/// The schema of the arguments. A strict schema lists every property as required and allows no other.
const PARAMETERS: Parameters = Parameters {
    additional_properties: false,
    properties: Properties {
        reason: Property { description: "Why this is the next step, in a sentence.", r#type: "string" },
    },
    required: ["reason"],
    r#type: "object",
};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Parameters {
    additional_properties: bool,
    properties: Properties,
    required: [&'static str; 1],
    r#type: &'static str,
}

#[derive(Serialize)]
struct Properties {
    reason: Property,
}

#[derive(Serialize)]
struct Property {
    description: &'static str,
    r#type: &'static str,
}

/// The message of a tool.
pub(super) fn node_tool(tool: &Tool) -> NodeTool {
    NodeTool { name: tool.name.clone(), node_id: tool.output.to_string(), description: tool.description.clone() }
}

/// The reason in the arguments of a tool call, or what is wrong with them, for the model.
pub(super) fn reason_of(arguments_json: &str) -> Result<String, String> {
    // Models call a tool of one argument without it.
    if arguments_json.trim().is_empty() {
        return Ok(String::new());
    }
    let wanted = "the arguments must be a JSON object with a text \"reason\"";
    let arguments: Value = serde_json::from_str(arguments_json).map_err(|_| wanted.to_owned())?;
    let reason = match &arguments {
        Value::Null => "",
        Value::Object(object) => match object.get("reason") {
            None | Some(Value::Null) => "",
            Some(reason) => reason.as_str().ok_or_else(|| wanted.to_owned())?,
        },
        _ => return Err(wanted.to_owned()),
    };
    if reason.len() > REASON_BYTES_MAX {
        return Err(format!("\"reason\" has {} bytes, over the limit of {REASON_BYTES_MAX}", reason.len()));
    }
    Ok(reason.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::ids::NodeId;

    fn tool() -> Tool {
        Tool {
            name: "transfer_to_a".to_owned(),
            output: NodeId::parse("a").unwrap(),
            description: "Transfer to a.".to_owned(),
        }
    }

    #[test]
    fn a_tool_has_the_shape_of_each_interface() {
        let shaped = |shape| -> Value { serde_json::from_str(&tool_json(&tool(), shape).unwrap()).unwrap() };
        let openai = shaped(ToolShape::Openai);
        assert_eq!((&openai["type"], &openai["strict"]), (&json!("function"), &json!(true)));
        assert_eq!((&openai["name"], &openai["description"]), (&json!("transfer_to_a"), &json!("Transfer to a.")));
        let reason = json!({ "type": "string", "description": "Why this is the next step, in a sentence." });
        let schema = json!({
            "type": "object", "properties": { "reason": reason }, "required": ["reason"], "additionalProperties": false,
        });
        assert_eq!(openai["parameters"], schema);
        let anthropic = shaped(ToolShape::Anthropic);
        assert_eq!((&anthropic["input_schema"], &anthropic["strict"]), (&schema, &json!(true)));
        assert_eq!(shaped(ToolShape::Mcp)["inputSchema"], schema);
        assert_eq!(tool_json(&tool(), ToolShape::Unspecified), None);
    }

    #[test]
    fn arguments_have_a_reason_of_at_most_1024_bytes() {
        assert_eq!(reason_of(r#"{"reason": "more facts", "other": 1}"#), Ok("more facts".to_owned()));
        for without in ["", " ", "null", "{}", r#"{"reason": null}"#] {
            assert_eq!(reason_of(without), Ok(String::new()), "{without:?}");
        }
        for wrong in ["reason", "[]", r#"{"reason": 1}"#, r#"{"reason": "cut"#, &"[".repeat(10_000)] {
            assert!(reason_of(wrong).unwrap_err().contains("JSON object"), "{wrong:.20}");
        }
        let long = json!({ "reason": "x".repeat(1025) }).to_string();
        assert!(reason_of(&long).unwrap_err().contains("1025 bytes"));
    }
}
