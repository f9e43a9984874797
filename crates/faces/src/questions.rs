//! Questions to this agent, as forms for the person at the host.

use baton_client::proto::v1;
use rmcp::model::{ElicitRequest, ElicitRequestParams, ElicitationSchema};
use serde_json::{Map, Value, json};

use crate::{
    ActError, Face,
    acts::{self, asked_about},
    text::{TEXT_MAX, clean},
};

/// An open question to this agent.
pub(crate) struct Question {
    /// The message_id of the status update that asks.
    pub(crate) id: String,
    task_id: String,
    from: String,
    text: String,
    /// The schema of the answer, if a form can have it.
    schema: Option<ElicitationSchema>,
}

/// The open question of this task to this agent, if any.
pub(crate) async fn open(face: &Face, task_id: &str) -> Result<Option<Question>, ActError> {
    Ok(asked_about(face, task_id).await?.and_then(|task| of(&task)))
}

fn of(task: &v1::Task) -> Option<Question> {
    let open = task.open_prompt.as_ref()?;
    let prompt = open.prompt.as_ref()?;
    Some(Question {
        id: open.message_id.clone(),
        task_id: task.task_id.clone(),
        from: task.owner_id.clone(),
        text: clean(&prompt.question, TEXT_MAX),
        schema: form_of(&prompt.answer_schema_json),
    })
}

/// The schema of an answer as a form: an object of texts, numbers and choices. `None`: a form cannot have it.
fn form_of(schema: &str) -> Option<ElicitationSchema> {
    let schema: Value = serde_json::from_str(schema).ok()?;
    let fields = schema.get("properties")?.as_object()?;
    if fields.is_empty() || schema["type"] != "object" {
        return None;
    }
    serde_json::from_value(schema).ok()
}

impl Question {
    /// The form. What the question says is marked as the words of its author.
    pub(crate) fn request(&self) -> ElicitRequest {
        let message = format!("The agent {} asks about the task {}:\n\n{}", self.from, self.task_id, self.text);
        let text = json!({
            "type": "object",
            "properties": {"text": {"type": "string", "title": "Answer"}},
            "required": ["text"],
        });
        let schema = self.schema.clone().or_else(|| serde_json::from_value(text).ok());
        ElicitRequest::new(ElicitRequestParams::FormElicitationParams {
            meta: None,
            message,
            requested_schema: schema.unwrap_or_else(|| ElicitationSchema::new(std::collections::BTreeMap::new())),
        })
    }

    /// Answers with what the person has entered. `false`: the person has not answered, and the question stays open.
    pub(crate) async fn answer(&self, face: &std::sync::Arc<Face>, result: &Value) -> Result<bool, ActError> {
        if result["action"] != "accept" {
            return Ok(false);
        }
        let content = result["content"].as_object().cloned().unwrap_or_default();
        let mut arguments = Map::new();
        arguments.insert("task_id".to_owned(), self.task_id.clone().into());
        match self.schema {
            Some(_) => {
                arguments.insert("data".to_owned(), content.into());
            }
            None => {
                let text = content.get("text").and_then(Value::as_str).unwrap_or_default();
                arguments.insert("text".to_owned(), text.into());
            }
        }
        acts::answer().run(std::sync::Arc::clone(face), arguments).await?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_has_flat_schemas_alone() {
        assert!(form_of(r#"{"type":"object","properties":{"yes":{"type":"boolean"}},"required":["yes"]}"#).is_some());
        assert!(form_of(r#"{"type":"object","properties":{"n":{"type":"integer","minimum":1}}}"#).is_some());
        for other in [
            "",
            "{}",
            r#"{"type":"object"}"#,
            r#"{"type":"object","properties":{}}"#,
            r#"{"type":"array","items":{"type":"string"}}"#,
            r#"{"type":"object","properties":{"a":{"type":"object","properties":{}}}}"#,
        ] {
            assert!(form_of(other).is_none(), "{other}");
        }
        let question = Question {
            id: String::new(),
            task_id: "t".to_owned(),
            from: "bob".to_owned(),
            text: "which?".to_owned(),
            schema: None,
        };
        let form = serde_json::to_value(question.request()).unwrap();
        assert_eq!(form["method"], "elicitation/create");
        assert_eq!(form["params"]["requestedSchema"]["required"], json!(["text"]));
        assert!(form["params"]["message"].as_str().unwrap().starts_with("The agent bob asks about the task t:"));
    }
}
