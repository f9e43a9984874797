//! The OpenAPI document of the JSON acts, out of their table.

use serde_json::{Map, Value, json};

use crate::acts::{Act, Effect};

/// The document, of OpenAPI 3.1, whose schemas are those of JSON Schema.
pub(super) fn document(acts: &[Act], version: &str) -> String {
    let paths: Map<String, Value> =
        acts.iter().map(|act| (format!("/api/v1/acts/{}", act.name), json!({"post": operation(act)}))).collect();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "baton",
            "version": version,
            "description": "What an agent can do at a broker. The bearer token of a grant says which agent.",
        },
        "paths": paths,
        "security": [{"grant": []}],
        "components": {
            "securitySchemes": {
                "grant": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A token of `baton gateway grant`.",
                },
            },
            "schemas": {"Refusal": refusal()},
            "responses": {
                "Refused": {
                    "description": "It did not happen. 401: the token; 409: the state of the task or handoff; 429 and 503: later, \
                         after the seconds of Retry-After.",
                    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Refusal"}}},
                },
            },
        },
    })
    .to_string()
}

fn operation(act: &Act) -> Value {
    let effect = match act.effect {
        Effect::None => "Changes nothing.",
        Effect::Adds => "Adds something.",
        Effect::Once => "A repeat changes nothing more.",
        Effect::Ends => "Gives something away or ends it.",
        Effect::EndsOnce => "Ends something; a repeat changes nothing more.",
    };
    json!({
        "operationId": act.name,
        "summary": act.description,
        "description": effect,
        "requestBody": {"required": true, "content": {"application/json": {"schema": act.input}}},
        "responses": {
            "200": {"description": "It happened.", "content": {"application/json": {"schema": act.output}}},
            "default": {"$ref": "#/components/responses/Refused"},
        },
    })
}

fn refusal() -> Value {
    json!({
        "type": "object",
        "required": ["reason", "message"],
        "properties": {
            "reason": {"type": "string", "description": "The stable code: that of the broker, or of the gateway."},
            "message": {"type": "string", "description": "The fact, and what to do."},
            "retry_after_seconds": {"type": "integer", "description": "Absent: another try is of no use."},
            "field": {"type": "string", "description": "The JSON Pointer of the wrong argument."},
            "handoff_id": {"type": "string", "description": "The handoff of the act."},
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acts::{self, Set};

    #[test]
    fn the_document_has_each_act_with_its_types() {
        let acts = acts::of(&Set::ALL);
        let document: Value = serde_json::from_str(&document(&acts, "1.2.3")).unwrap();
        assert_eq!(document["paths"].as_object().unwrap().len(), acts.len());
        for act in &acts {
            let operation = &document["paths"][format!("/api/v1/acts/{}", act.name)]["post"];
            let schema = |of: &Value| of["content"]["application/json"]["schema"].clone();
            assert_eq!(schema(&operation["requestBody"]), Value::Object(act.input.clone()));
            assert_eq!(schema(&operation["responses"]["200"]), Value::Object(act.output.clone()));
        }
    }
}
