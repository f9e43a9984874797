//! What an agent can do, each act once: its name, its words, its input and output types, and the function.
//!
//! The schemas are made of the types. A face turns this table into its own form, as [`crate::mcp`] does.

mod contexts;
pub(crate) mod find;
pub(crate) mod inbox;
mod mail;
pub(crate) mod moves;
mod offers;
pub(crate) mod plans;
mod requests;
mod takeovers;
pub(crate) mod tasks;
mod workspace;

use std::{borrow::Cow, pin::Pin, sync::Arc, time::Duration};

use baton_client::{
    Client, Watch, Watched,
    envelope::{sections, signing},
    proto::v1,
    time::Moment,
};
use schemars::{
    JsonSchema, Schema, SchemaGenerator, generate::SchemaSettings, json_schema, transform::ReplaceBoolSchemas,
};
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{DeserializeOwned, Error as _},
};
use serde_json::{Map, Value};
use tokio::{sync::Notify, task::JoinSet, time::sleep};

pub(crate) use self::requests::{leave_time_to, terms};
use crate::{ActError, Face};

/// The longest wait of an act, and the one that it has by default. Hosts cut a call after 60 s, some after 240 s.
const WAIT_MAX: u64 = 240;
const WAIT: u64 = 45;
/// The most questions of a page.
const QUESTIONS_MAX: u32 = 40;
/// How often a wait looks without a stream of the broker.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How often a wait looks beside a stream, which may be silent because a connection is lost unnoticed.
const LOOK_ANYWAY: Duration = Duration::from_secs(15);

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
        Self { name, description, effect, input: schema_of::<I>(settings()), output: output_of::<O>(), run }
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

/// An object of data. Some frameworks close such an object for their models, because its names are free; so a text of its
/// JSON is taken, too.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Data(pub(crate) Map<String, Value>);

impl Data {
    fn to_json(&self) -> String {
        Value::Object(self.0.clone()).to_string()
    }
}

impl<'de> Deserialize<'de> for Data {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        const ADVICE: &str = r#"write an object, or its JSON as a text, for example "{\"name\": \"value\"}""#;
        match Value::deserialize(deserializer)? {
            Value::Object(members) => Ok(Self(members)),
            Value::String(text) => match serde_json::from_str(&text) {
                Ok(Value::Object(members)) => Ok(Self(members)),
                Ok(_) => Err(D::Error::custom(format!("the text is JSON, and no object; {ADVICE}"))),
                Err(error) => Err(D::Error::custom(format!("the text is not JSON ({error}); {ADVICE}"))),
            },
            _ => Err(D::Error::custom(format!("is no object; {ADVICE}"))),
        }
    }
}

impl JsonSchema for Data {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Data".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"anyOf": [
            {"type": "object", "additionalProperties": true},
            {"type": "string", "description": "JSON"},
        ]})
    }
}

fn settings() -> SchemaSettings {
    // Version 1 of the official TypeScript library, which most hosts have, refuses a list of tools in which the schema of a
    // property is `true`.
    let mut objects = ReplaceBoolSchemas::default();
    objects.skip_additional_properties = true;
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    settings.with_transform(objects)
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
                    // Mastra makes all members required, and adds null to a type, but not to choices.
                    if let Some(Value::Array(choices)) = one.get_mut("anyOf") {
                        choices.push(serde_json::json!({"type": "null"}));
                    }
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

/// Whether a wait may be so long.
pub(crate) const fn is_wait(seconds: u64) -> bool {
    seconds <= WAIT_MAX
}

/// The looks of an act that waits: when a stream of the broker says that something has changed, and without a stream by
/// time. Dropping this ends the streams, and nothing else.
struct Looks {
    began: Moment,
    wait: Duration,
    changed: Arc<Notify>,
    streams: JoinSet<()>,
    has_followed: bool,
}

impl Looks {
    fn new(wait: Duration) -> Self {
        Self { began: Moment::now(), wait, changed: Arc::default(), streams: JoinSet::new(), has_followed: false }
    }

    /// The remaining time.
    fn left(&self) -> Duration {
        self.wait.saturating_sub(self.began.elapsed())
    }

    /// Looks at each update of this stream, too. If the broker refuses the stream or ends it, the looks go on by time.
    fn follow<R: Watched + 'static>(&mut self, client: Client, request: R) {
        self.has_followed = true;
        let changed = Arc::clone(&self.changed);
        self.streams.spawn(async move {
            let Ok(watch) = Watch::open(client, request).await else { return };
            // The next look finds out whether the broker is away.
            let interrupted = Arc::clone(&changed);
            let mut watch = watch.on_interruption(move |_, _| interrupted.notify_one());
            while let Ok(Some(_)) = watch.next().await {
                changed.notify_one();
            }
        });
    }

    /// Waits until the next look. `false`: the time is over.
    async fn again(&mut self) -> bool {
        let left = self.left();
        if left.is_zero() {
            return false;
        }
        let pause = if self.streams.is_empty() { LOOK_EVERY } else { LOOK_ANYWAY };
        tokio::select! {
            () = self.changed.notified() => {}
            Some(_) = self.streams.join_next() => {}
            () = sleep(pause.min(left)) => {}
        }
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

/// The task with this id, if it has an open question to this agent.
pub(crate) async fn asked_about(face: &Face, task_id: &str) -> Result<Option<v1::Task>, ActError> {
    Ok(asked(face, QUESTIONS_MAX).await?.into_iter().find(|task| task.task_id == task_id))
}

/// The tasks and plans that these acts make begin with it. No other program ends them.
const MADE_PREFIX: &str = "mcp-";

/// The ids of what a call makes without an id of its own, from its arguments: in this hour, and in the one before. `again`: a
/// new id, twice.
fn derived_id(face: &Face, arguments: &Value, again: bool) -> [String; 2] {
    let composer = face.composer();
    if again {
        let id = format!("{MADE_PREFIX}{}", composer.ids.message_id(composer.clock.now()));
        return [id.clone(), id];
    }
    let text = serde_json::json!([face.id(), arguments]).to_string();
    // The order of names is of no meaning. A number without a canonical form stays unchanged.
    let canonical = sections::parse("the arguments", &text).map_or(text, |value| sections::canonical(&value));
    let digest = hex::encode(&signing::sha256(&[canonical.as_bytes()])[..12]);
    let hour = prost_types::Timestamp::from(composer.clock.now()).seconds / 3600;
    [hour, hour - 1].map(|hour| format!("{MADE_PREFIX}{digest}-{hour}"))
}

/// A set of acts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Set {
    /// What each agent needs.
    Core,
    /// Contexts, and the steps of a takeover one by one.
    Context,
    /// Plans of subtasks.
    Plans,
    /// Negotiations.
    Offers,
    /// The workspaces of tasks.
    Workspace,
    /// Plain messages.
    Mail,
}

impl Set {
    /// All sets.
    pub const ALL: [Self; 6] = [Self::Core, Self::Context, Self::Plans, Self::Offers, Self::Workspace, Self::Mail];

    fn acts(self) -> Vec<Act> {
        match self {
            Self::Core => core(),
            Self::Context => vec![
                Act::new("read_context", Effect::None, contexts::READ_CONTEXT, contexts::read_context),
                Act::new("save_context", Effect::Adds, contexts::SAVE_CONTEXT, contexts::save_context),
                Act::new("accept_handoff", Effect::Once, contexts::ACCEPT_HANDOFF, contexts::accept_handoff),
                Act::new("complete_handoff", Effect::Once, contexts::COMPLETE_HANDOFF, contexts::complete_handoff),
            ],
            Self::Plans => vec![
                Act::new("check_plan", Effect::None, plans::CHECK_PLAN, plans::check_plan),
                Act::new("submit_plan", Effect::Adds, plans::SUBMIT_PLAN, plans::submit_plan),
                cancel_plan(),
            ],
            Self::Offers => vec![
                Act::new("request_offers", Effect::Adds, offers::REQUEST_OFFERS, offers::request_offers),
                Act::new("make_offer", Effect::Adds, offers::MAKE_OFFER, offers::make_offer),
                Act::new("choose_offer", Effect::Ends, offers::CHOOSE_OFFER, offers::choose_offer),
                Act::new("read_mail", Effect::Once, mail::READ_MAIL, mail::read_mail),
            ],
            Self::Workspace => vec![
                Act::new("post", Effect::Adds, workspace::POST, workspace::post),
                Act::new("read_topic", Effect::None, workspace::READ_TOPIC, workspace::read_topic),
            ],
            Self::Mail => vec![
                Act::new("send_mail", Effect::Adds, mail::SEND_MAIL, mail::send_mail),
                Act::new("read_mail", Effect::Once, mail::READ_MAIL, mail::read_mail),
            ],
        }
    }
}

/// The acts of these sets, each once, in the order in which they are shown.
pub fn of(sets: &[Set]) -> Vec<Act> {
    let mut acts: Vec<Act> = Vec::new();
    for act in sets.iter().flat_map(|set| set.acts()) {
        if acts.iter().all(|known| known.name != act.name) {
            acts.push(act);
        }
    }
    acts
}

pub(crate) fn delegate() -> Act {
    Act::new("delegate", Effect::Adds, requests::DELEGATE, requests::delegate)
}

pub(crate) fn hand_over() -> Act {
    Act::new("hand_over", Effect::Ends, requests::HAND_OVER, requests::hand_over)
}

pub(crate) fn take_back() -> Act {
    Act::new("take_back", Effect::EndsOnce, moves::TAKE_BACK, moves::take_back)
}

pub(crate) fn answer() -> Act {
    Act::new("answer", Effect::Once, tasks::ANSWER, tasks::answer)
}

pub(crate) fn cancel_plan() -> Act {
    Act::new("cancel_plan", Effect::EndsOnce, plans::CANCEL_PLAN, plans::cancel_plan)
}

/// The schema of an output.
pub(crate) fn output_of<O: JsonSchema>() -> Map<String, Value> {
    schema_of::<O>(settings().for_serialize())
}

fn core() -> Vec<Act> {
    vec![
        Act::new("find_agents", Effect::None, find::DESCRIPTION, find::find_agents),
        delegate(),
        hand_over(),
        Act::new("wait", Effect::None, moves::WAIT, moves::wait),
        take_back(),
        Act::new("inbox", Effect::None, inbox::DESCRIPTION, inbox::inbox),
        Act::new("take_task", Effect::Once, takeovers::TAKE_TASK, takeovers::take_task),
        Act::new("decline_task", Effect::Once, takeovers::DECLINE_TASK, takeovers::decline_task),
        Act::new("report", Effect::Once, tasks::REPORT, tasks::report),
        Act::new("ask", Effect::Adds, tasks::ASK, tasks::ask),
        answer(),
        Act::new("get_task", Effect::None, tasks::GET_TASK, tasks::get_task),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Version 1 of the official TypeScript library reads these so.
    #[test]
    fn the_schema_of_each_property_is_an_object() {
        fn check(schema: &Value, name: &str) {
            match schema {
                Value::Object(members) => {
                    if let Some(Value::Object(fields)) = members.get("properties") {
                        assert!(fields.values().all(Value::is_object), "{name}: {schema}");
                    }
                    members.values().for_each(|member| check(member, name));
                }
                Value::Array(members) => members.iter().for_each(|member| check(member, name)),
                _ => {}
            }
        }
        for act in of(&[Set::Core, Set::Context, Set::Plans, Set::Offers, Set::Workspace, Set::Mail]) {
            check(&Value::Object(act.input.clone()), act.name);
            check(&Value::Object(act.output.clone()), act.name);
        }
    }

    #[test]
    fn the_schemas_are_closed_and_short() {
        let sets = [Set::Core, Set::Context, Set::Plans, Set::Offers, Set::Workspace, Set::Mail];
        let acts = of(&sets);
        assert_eq!((of(&sets[..1]).len(), acts.len()), (12, 26));
        let mut bytes = 0;
        for (place, act) in acts.iter().enumerate() {
            assert_eq!(act.input["type"], "object", "{}", act.name);
            assert_eq!(act.input["additionalProperties"], false, "{}", act.name);
            // A host checks each output against its schema: what may be absent is not required.
            let required = |schema: &Map<String, Value>, name: &str| {
                schema["required"].as_array().is_some_and(|names| names.contains(&name.into()))
            };
            assert!(required(&act.output, "next") && !required(&act.output, "details"), "{}", act.name);
            let text = Value::Object(act.input.clone()).to_string();
            let shown = text.replace(r#"{"type":"null"}"#, "");
            assert!(
                !shown.contains("null") && !shown.contains("$ref") && !shown.contains("\"format\""),
                "{}: {text}",
                act.name
            );
            if place < 12 {
                bytes += text.len() + act.name.len() + act.description.len() + 112;
            }
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
        for (context, problem) in [
            (serde_json::json!("all of it"), "not JSON"),
            (serde_json::json!(""), "not JSON"),
            (serde_json::json!("[1]"), "no object"),
            (serde_json::json!([1]), "no object"),
        ] {
            let (field, text) = wrong(serde_json::json!({"to": "b", "summary": "s", "context": context}));
            assert_eq!(field, "/context", "{text}");
            assert!(text.contains(problem) && text.contains(r#""{\"name\": \"value\"}""#), "{text}");
        }
    }

    #[test]
    fn data_is_an_object_or_its_json() {
        let given = |context: Value| {
            parsed::<requests::Delegate>(
                serde_json::json!({"to": "b", "summary": "s", "context": context}).as_object().unwrap().clone(),
            )
            .unwrap()
            .context
        };
        let data = serde_json::json!({"a": {"b": [1]}});
        let Value::Object(members) = data.clone() else { panic!() };
        assert_eq!(given(data.clone()), Some(Data(members)));
        assert_eq!(given(data.to_string().into()), given(data.clone()), "the same by its JSON");
        assert_eq!(given(Value::Null), None);
        assert_eq!(serde_json::to_value(given(data.clone())).unwrap(), data, "ids that are derived of it are equal");
        let schema = &of(&Set::ALL)[1].input["properties"]["context"]["anyOf"];
        let kinds: Vec<_> = schema.as_array().unwrap().iter().map(|kind| kind["type"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["object", "string", "null"], "{schema}");
        let all = of(&Set::ALL);
        let save = all.iter().find(|act| act.name == "save_context").unwrap();
        assert_eq!(save.input["properties"]["context"]["anyOf"].as_array().unwrap().len(), 2, "it is required");
    }

    #[tokio::test]
    async fn a_wait_looks_when_a_stream_says_so_and_without_one_by_time() {
        let long = Duration::from_secs(240);
        let (once, twice) = (LOOK_EVERY / 2, LOOK_EVERY * 2);
        // Beside a silent stream it does not look.
        let mut looks = Looks::new(long);
        looks.streams.spawn(std::future::pending());
        assert!(tokio::time::timeout(twice, looks.again()).await.is_err());
        looks.changed.notify_one();
        assert!(tokio::time::timeout(once, looks.again()).await.unwrap(), "an update");
        // A stream that ends is a reason to look. Afterwards time is.
        let mut looks = Looks::new(long);
        looks.streams.spawn(std::future::ready(()));
        assert!(tokio::time::timeout(once, looks.again()).await.unwrap(), "the end of a stream");
        assert!(tokio::time::timeout(once, looks.again()).await.is_err());
        assert!(tokio::time::timeout(twice, looks.again()).await.unwrap(), "no stream");
        let mut over = Looks::new(Duration::ZERO);
        over.streams.spawn(std::future::pending());
        assert!(!over.again().await, "the time is over");
    }
}
