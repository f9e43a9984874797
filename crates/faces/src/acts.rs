//! What an agent can do, each act once: its name, its words, its input and output types, and the function.
//!
//! The schemas are made of the types. A face turns this table into its own form, as [`crate::mcp`] does.

mod find;
mod inbox;
mod moves;
mod requests;
mod takeovers;
mod tasks;

use std::{pin::Pin, sync::Arc, time::Duration};

use baton_client::{proto::v1, time::Moment};
use schemars::{JsonSchema, generate::SchemaSettings};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};
use tokio::time::sleep;

use crate::{ActError, Face};

/// The longest wait of an act, and the one that it has by default. Hosts cut a call after 60 s, some after 240 s.
const WAIT_MAX: u64 = 240;
const WAIT: u64 = 45;
/// The most questions of a page.
const QUESTIONS_MAX: u32 = 40;
/// How often a wait looks.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// One thing that an agent can do.
pub struct Act {
    /// The name.
    pub name: &'static str,
    /// The purpose, for a model.
    pub description: &'static str,
    /// The effect.
    pub effect: Effect,
    /// The JSON Schema of the input.
    pub input: Map<String, Value>,
    /// The JSON Schema of the output.
    pub output: Map<String, Value>,
    run: Run,
}

type Run = Box<dyn Fn(Arc<Face>, Map<String, Value>) -> Running + Send + Sync>;
type Running = Pin<Box<dyn Future<Output = Result<Map<String, Value>, ActError>> + Send>>;

/// What an act changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    None,
    /// It adds something; a repeat may add it again.
    Adds,
    /// It changes something; a repeat changes nothing more.
    Once,
    /// It gives something away or ends it.
    Ends,
    /// It ends something; a repeat changes nothing more.
    EndsOnce,
}

impl std::fmt::Debug for Act {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Act").field("name", &self.name).field("effect", &self.effect).finish_non_exhaustive()
    }
}

impl Act {
    fn new<I, O, F>(
        name: &'static str,
        effect: Effect,
        description: &'static str,
        run: impl Fn(Arc<Face>, I) -> F + Send + Sync + Copy + 'static,
    ) -> Self
    where
        I: DeserializeOwned + JsonSchema + Send + 'static,
        O: Serialize + JsonSchema,
        F: Future<Output = Result<O, ActError>> + Send + 'static,
    {
        let run: Run = Box::new(move |face, arguments| {
            Box::pin(async move {
                let output = run(face, parsed(arguments)?).await?;
                match serde_json::to_value(output) {
                    Ok(Value::Object(output)) => Ok(output),
                    other => unreachable!("an output is an object: {other:?}"),
                }
            })
        });
        Self {
            name,
            description,
            effect,
            input: schema_of::<I>(settings()),
            output: schema_of::<O>(settings().for_serialize()),
            run,
        }
    }

    /// Runs the act as this agent. Dropping the future ends a wait, and nothing else.
    ///
    /// # Errors
    ///
    /// [`ActError`], with what to do.
    pub async fn run(&self, face: Arc<Face>, arguments: Map<String, Value>) -> Result<Map<String, Value>, ActError> {
        (self.run)(face, arguments).await
    }
}

/// The arguments as the input type. `Err`: names the wrong one by its JSON Pointer.
fn parsed<I: DeserializeOwned>(arguments: Map<String, Value>) -> Result<I, ActError> {
    serde_path_to_error::deserialize(Value::Object(arguments)).map_err(|error| {
        let mut pointer = String::new();
        for segment in error.path() {
            use serde_path_to_error::Segment;
            let name = match segment {
                Segment::Seq { index } => index.to_string(),
                Segment::Map { key } => key.replace('~', "~0").replace('/', "~1"),
                Segment::Enum { variant } => variant.clone(),
                Segment::Unknown => continue,
            };
            pointer.push('/');
            pointer.push_str(&name);
        }
        let problem = crate::text::clean(&error.inner().to_string(), 512);
        // The path ends before an unknown field.
        let unknown = problem.strip_prefix("unknown field `").and_then(|rest| rest.split('`').next());
        if let Some(name) = unknown.filter(|name| !pointer.ends_with(&format!("/{name}"))) {
            pointer.push('/');
            pointer.push_str(name);
        }
        ActError::argument(pointer, problem)
    })
}

fn settings() -> SchemaSettings {
    SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    })
}

/// The schema of a type, without what a model does not need.
fn schema_of<T: JsonSchema>(settings: SchemaSettings) -> Map<String, Value> {
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    shorten(&mut schema);
    match schema {
        Value::Object(mut schema) => {
            schema.remove("title");
            schema.remove("description");
            schema
        }
        _ => Map::new(),
    }
}

/// Removes formats of numbers, defaults and null, which an absent member stands for.
fn shorten(schema: &mut Value) {
    match schema {
        Value::Object(members) => {
            // Below `properties` the members are names of fields.
            if let Some(Value::Object(fields)) = members.get_mut("properties") {
                fields.values_mut().for_each(shorten);
            }
            if let Some(items) = members.get_mut("items") {
                shorten(items);
            }
            members.remove("format");
            members.remove("default");
            if let Some(Value::Array(types)) = members.get_mut("type") {
                types.retain(|name| name != "null");
                if let [one] = &types[..] {
                    members["type"] = one.clone();
                }
            }
            if let Some(Value::Array(values)) = members.get_mut("enum") {
                values.retain(|value| !value.is_null());
            }
            if let Some(Value::Array(mut choices)) = members.remove("anyOf") {
                choices.retain(|choice| choice["type"] != "null");
                if let [Value::Object(one)] = &mut choices[..] {
                    let mut one = Value::Object(std::mem::take(one));
                    shorten(&mut one);
                    if let Value::Object(one) = one {
                        members.extend(one);
                    }
                } else {
                    members.insert("anyOf".to_owned(), choices.into());
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(shorten),
        _ => {}
    }
}

/// The time of a wait. `Err`: the argument is out of bounds.
fn wait_of(seconds: Option<u64>) -> Result<Duration, ActError> {
    match seconds.unwrap_or(WAIT) {
        seconds @ 0..=WAIT_MAX => Ok(Duration::from_secs(seconds)),
        seconds => Err(ActError::argument("/wait_seconds", format!("{seconds} is over {WAIT_MAX}"))),
    }
}

/// The looks of an act that waits.
struct Looks {
    began: Moment,
    wait: Duration,
}

impl Looks {
    fn new(wait: Duration) -> Self {
        Self { began: Moment::now(), wait }
    }

    /// Waits until the next look. `false`: the time is over.
    async fn again(&self) -> bool {
        let left = self.wait.saturating_sub(self.began.elapsed());
        if left.is_zero() {
            return false;
        }
        sleep(LOOK_EVERY.min(left)).await;
        true
    }
}

/// The tasks with an open question to this agent.
async fn asked(face: &Face, limit: u32) -> Result<Vec<v1::Task>, ActError> {
    let client = face.client().await?;
    let asked_agent_id = face.id().to_owned();
    let request = v1::ListTasksRequest { page_size: limit.min(QUESTIONS_MAX), asked_agent_id, ..Default::default() };
    Ok(client.answer(client.tasks().list_tasks(request).await)?.tasks)
}

/// All acts, in the order in which they are shown.
pub fn all() -> Vec<Act> {
    vec![
        Act::new("find_agents", Effect::None, find::DESCRIPTION, find::find_agents),
        Act::new("delegate", Effect::Adds, requests::DELEGATE, requests::delegate),
        Act::new("hand_over", Effect::Ends, requests::HAND_OVER, requests::hand_over),
        Act::new("wait", Effect::None, moves::WAIT, moves::wait),
        Act::new("take_back", Effect::EndsOnce, moves::TAKE_BACK, moves::take_back),
        Act::new("inbox", Effect::None, inbox::DESCRIPTION, inbox::inbox),
        Act::new("take_task", Effect::Once, takeovers::TAKE_TASK, takeovers::take_task),
        Act::new("decline_task", Effect::Once, takeovers::DECLINE_TASK, takeovers::decline_task),
        Act::new("report", Effect::Once, tasks::REPORT, tasks::report),
        Act::new("ask", Effect::Adds, tasks::ASK, tasks::ask),
        Act::new("answer", Effect::Once, tasks::ANSWER, tasks::answer),
        Act::new("get_task", Effect::None, tasks::GET_TASK, tasks::get_task),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schemas_are_closed_and_short() {
        let acts = all();
        assert_eq!(acts.len(), 12);
        let mut bytes = 0;
        for act in &acts {
            assert_eq!(act.input["type"], "object", "{}", act.name);
            assert_eq!(act.input["additionalProperties"], false, "{}", act.name);
            // A host checks each output against its schema: what may be absent is not required.
            let required = |schema: &Map<String, Value>, name: &str| {
                schema["required"].as_array().is_some_and(|names| names.contains(&name.into()))
            };
            assert!(required(&act.output, "next") && !required(&act.output, "details"), "{}", act.name);
            let text = Value::Object(act.input.clone()).to_string();
            assert!(
                !text.contains("null") && !text.contains("$ref") && !text.contains("\"format\""),
                "{}: {text}",
                act.name
            );
            bytes += text.len() + act.name.len() + act.description.len() + 120;
        }
        assert!(bytes <= 7 * 1024, "{bytes} bytes");
    }

    #[test]
    fn a_wrong_argument_is_named_by_its_pointer() {
        let wrong = |arguments: Value| {
            let Value::Object(arguments) = arguments else { panic!() };
            let error = parsed::<requests::Delegate>(arguments).unwrap_err();
            assert_eq!(error.reason, "ARGUMENTS_INVALID");
            (error.field.unwrap(), error.text)
        };
        let (field, text) = wrong(serde_json::json!({"to": 7, "summary": "s"}));
        assert!(field == "/to" && text.contains("expected a string"), "{text}");
        let (field, text) = wrong(serde_json::json!({"summary": "s"}));
        assert!(field.is_empty() && text.contains("`to`"), "{text}");
        let (_, text) = wrong(serde_json::json!({"to": "b", "summary": "s", "hurry": true}));
        assert!(text.contains("`hurry`"), "{text}");
    }
}
