//! The expensive calls and messages, each at its limits.

use std::{pin::Pin, time::Duration};

use baton::{
    envelope::{context_of_sections, sections},
    proto::v1::{self, MessageType, context_section::Content},
};
use baton_client::{About, Client};

use super::{Broker, Failure, composer};

type Prepared = Pin<Box<dyn Future<Output = Result<Call, Failure>> + Send>>;

/// A case: how it is prepared.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) prepare: fn(&Broker) -> Prepared,
}

/// What the noisy agent repeats.
pub(crate) enum Call {
    /// A message with this payload, about this task, each time under a new id.
    Message {
        kind: MessageType,
        to: &'static str,
        about: About,
        payload: Box<Payload>,
    },
    ValidatePlan(v1::ValidatePlanRequest),
    ValidateGraph(v1::ValidateGraphRequest),
    RegisterGraph(v1::RegisterGraphRequest),
    /// Hangs up after 50 ms.
    CheckSchema(v1::CheckSchemaRequest),
    GetSection(v1::GetContextSectionRequest),
    ListTasks(v1::ListTasksRequest),
}

pub(crate) enum Payload {
    Context(v1::TaskContextTransfer),
    Plan(v1::Plan),
    TaskRequest(Box<v1::TaskRequest>),
    Info(v1::Info),
    HandoffRequest(Box<v1::HandoffRequest>),
}

pub(crate) const ALL: [Case; 14] = [
    Case { name: "slow-pattern", prepare: |broker| slow_pattern(clients(broker)) },
    Case { name: "check-schema-and-hang-up", prepare: |_| Box::pin(async { Ok(check_schema()) }) },
    Case { name: "wide-schema", prepare: |broker| wide_schema(clients(broker)) },
    Case { name: "many-deltas", prepare: |broker| many_deltas(clients(broker)) },
    Case { name: "large-context", prepare: |broker| large_context(clients(broker)) },
    Case { name: "filtered-section", prepare: |broker| filtered_section(clients(broker)) },
    Case { name: "validate-plan", prepare: |_| Box::pin(async { Ok(validate_plan()) }) },
    Case { name: "submit-plan", prepare: |_| Box::pin(async { Ok(submit_plan()) }) },
    Case { name: "validate-graph", prepare: |_| Box::pin(async { Ok(validate_graph()) }) },
    Case { name: "register-graph", prepare: |_| Box::pin(async { Ok(register_graph()) }) },
    Case { name: "list-tasks", prepare: |broker| list_tasks(clients(broker)) },
    Case { name: "ask-a-thousand", prepare: |broker| ask_a_thousand(anonymous(broker)) },
    Case { name: "tell-a-thousand", prepare: |broker| tell_a_thousand(anonymous(broker)) },
    Case { name: "one-of-a-thousand", prepare: |broker| one_of_a_thousand(anonymous(broker)) },
];

/// Makes the call once.
pub(crate) async fn call(client: &Client, call: &Call) -> Result<(), Failure> {
    match call {
        Call::Message { kind, to, about, payload } => {
            let composer = composer("noisy")?;
            let raw = match &**payload {
                Payload::Context(context) => composer.encode(to, *kind, about, context),
                Payload::Plan(plan) => {
                    let plan_id = format!("p{}", hex::encode(random()));
                    composer.encode(to, *kind, about, &v1::Plan { plan_id, ..plan.clone() })
                }
                Payload::TaskRequest(request) => composer.encode(to, *kind, about, &**request),
                Payload::Info(info) => composer.encode(to, *kind, about, info),
                Payload::HandoffRequest(request) => composer.encode(to, *kind, &new_task(), &**request),
            };
            client.send(raw).await?;
        }
        Call::ValidatePlan(request) => drop(client.answer(client.plans().validate_plan(request.clone()).await)?),
        Call::ValidateGraph(request) => drop(client.answer(client.routing().validate_graph(request.clone()).await)?),
        Call::RegisterGraph(request) => drop(client.answer(client.routing().register_graph(request.clone()).await)?),
        Call::CheckSchema(request) => {
            let mut schemas = client.schemas();
            let check = schemas.check_schema(request.clone());
            drop(client.answer(tokio::time::timeout(Duration::from_millis(50), check).await?)?);
        }
        Call::GetSection(request) => {
            drop(client.answer(client.contexts().get_context_section(request.clone()).await)?);
        }
        Call::ListTasks(request) => drop(client.answer(client.tasks().list_tasks(request.clone()).await)?),
    }
    Ok(())
}

fn random() -> [u8; 16] {
    use baton::ids::{IdSource as _, SystemIds};
    SystemIds.random()
}

type Connected = Pin<Box<dyn Future<Output = Result<Client, Failure>> + Send>>;

/// The noisy agent's connection for the preparation.
fn clients(broker: &Broker) -> Connected {
    let (address, ca) = (broker.address.clone(), broker.ca());
    Box::pin(async move {
        let options = baton_client::Options { server: address, ca: Some(ca), ..Default::default() };
        let client = Client::connect(&options).await?;
        let token = client.prove(&super::identity("noisy")?).await?;
        Ok(client.with_token(&token)?)
    })
}

/// A connection without an identity: agents register themselves.
fn anonymous(broker: &Broker) -> Connected {
    let options = baton_client::Options { server: broker.address.clone(), ca: Some(broker.ca()), ..Default::default() };
    Box::pin(async move { Ok(Client::connect(&options).await?) })
}

fn section(name: &str, content: Content) -> v1::ContextSection {
    v1::ContextSection { name: name.into(), content: Some(content), ..Default::default() }
}

/// Creates a task of the noisy agent. Its request goes to the quiet one, which does not take it, so the offer is cancelled.
fn new_task() -> About {
    About::task(&format!("task-{}", hex::encode(random())), 1)
}

async fn own_task(client: &Client) -> Result<About, Failure> {
    let about = new_task();
    let request = v1::HandoffRequest { task_type: "noise".into(), ..Default::default() };
    let composer = composer("noisy")?;
    let raw = composer.encode("idle", MessageType::HandoffRequest, &about, &request);
    let idle = v1::AgentCard {
        agent_id: "idle".into(),
        keys: vec![super::identity("idle")?.agent_key()],
        ..Default::default()
    };
    let register = v1::RegisterAgentRequest { card: Some(idle), ..Default::default() };
    drop(client.agents().register_agent(register).await);
    client.send(raw).await?;
    Ok(about)
}

async fn register(client: &Client, id: &str, text: String) -> Result<(), Failure> {
    let schema =
        v1::Schema { schema_id: id.into(), schema_version: "1".into(), schema_json: text, ..Default::default() };
    client.answer(
        client
            .schemas()
            .register_schema(v1::RegisterSchemaRequest { schema: Some(schema), ..Default::default() })
            .await,
    )?;
    Ok(())
}

fn checkpoint(about: About, sections: Vec<v1::ContextSection>) -> Call {
    let payload = Box::new(Payload::Context(context_of_sections(sections)));
    Call::Message { kind: MessageType::ContextCheckpoint, to: "", about, payload }
}

const SLOW: &str = r#"{"properties": {"notes": {"pattern": "a[ab]{3000}[^ab]"}}}"#;

/// One section of 900 KB that a pattern of 3,000 states nearly fits.
fn slow_pattern(client: Connected) -> Prepared {
    Box::pin(async move {
        let client = client.await?;
        register(&client, "slow", SLOW.to_owned()).await?;
        let text = format!(r#"{{"notes": "{}"}}"#, "ab".repeat(450_000));
        let section = v1::ContextSection {
            schema_id: "slow".into(),
            schema_version: "1".into(),
            ..section("notes", Content::Json(text))
        };
        Ok(checkpoint(own_task(&client).await?, vec![section]))
    })
}

fn check_schema() -> Call {
    let data_json = format!(r#"{{"notes": "{}"}}"#, "ab".repeat(6_000));
    Call::CheckSchema(v1::CheckSchemaRequest { schema_json: SLOW.to_owned(), data_json, ..Default::default() })
}

/// 60 sections that each take the largest check by numbers of values.
fn wide_schema(client: Connected) -> Prepared {
    Box::pin(async move {
        let client = client.await?;
        let options: Vec<u32> = (0..1000).collect();
        register(&client, "wide", serde_json::json!({"items": {"enum": options}}).to_string()).await?;
        let text = serde_json::json!(vec![999; 2000]).to_string();
        let sections = (0..60).map(|number| v1::ContextSection {
            schema_id: "wide".into(),
            schema_version: "1".into(),
            ..section(&format!("s{number}"), Content::Json(text.clone()))
        });
        Ok(checkpoint(own_task(&client).await?, sections.collect()))
    })
}

/// 62 deltas in 6 KB, over sections that together fill a payload.
fn many_deltas(client: Connected) -> Prepared {
    Box::pin(async move {
        let client = client.await?;
        let about = own_task(&client).await?;
        let base = |number: usize| format!(r#"{{"n":{number},"text":"{}"}}"#, "x".repeat(14_000));
        let first = (0..62).map(|number| section(&format!("s{number}"), Content::Json(base(number)))).collect();
        call(&client, &checkpoint(about.clone(), first)).await?;
        let change = |number: usize| {
            let target = base(number).replace("\"n\":", "\"m\":1,\"n\":");
            let (delta, _) = sections::delta(&base(number), &target).ok_or("no delta")?;
            Ok::<_, Failure>(section(&format!("s{number}"), Content::Delta(delta)))
        };
        Ok(checkpoint(about, (0..62).map(change).collect::<Result<_, _>>()?))
    })
}

fn large_context(client: Connected) -> Prepared {
    Box::pin(async move {
        let client = client.await?;
        let text = format!(r#"{{"text":"{}"}}"#, "x".repeat(1_000_000));
        Ok(checkpoint(own_task(&client).await?, vec![section("notes", Content::Json(text))]))
    })
}

/// A history of 900 KB, without its tool calls.
fn filtered_section(client: Connected) -> Prepared {
    Box::pin(async move {
        let client = client.await?;
        let about = own_task(&client).await?;
        let entry = serde_json::json!({"role": "user", "content": "x".repeat(100)});
        let log = serde_json::Value::Array(vec![entry; 6_000]).to_string();
        call(&client, &checkpoint(about.clone(), vec![section("history_log", Content::Json(log))])).await?;
        let history = v1::HistoryFilter::WithoutToolCalls.into();
        let filter = Some(v1::ContextFilter { history, ..Default::default() });
        let request = v1::GetContextSectionRequest {
            task_id: about.task_id,
            name: "history_log".into(),
            filter,
            ..Default::default()
        };
        Ok(Call::GetSection(request))
    })
}

/// 256 subtasks, each with 64 dependencies and 64 topics.
fn large_plan() -> v1::Plan {
    let names = |prefix: &str, many: usize| (0..many).map(|number| format!("{prefix}{number}")).collect::<Vec<_>>();
    let subtask = |number: usize| v1::Subtask {
        id: format!("s{number}"),
        agent_id: "quiet".into(),
        dependencies: names("s", number.min(64)),
        produces: if number < 64 { names("t", 64) } else { Vec::new() },
        consumes: if number < 64 { Vec::new() } else { names("t", 64) },
        ..Default::default()
    };
    v1::Plan { plan_id: "noise".into(), subtasks: (0..256).map(subtask).collect(), ..Default::default() }
}

fn validate_plan() -> Call {
    Call::ValidatePlan(v1::ValidatePlanRequest { plan: Some(large_plan()) })
}

fn submit_plan() -> Call {
    let payload = Box::new(Payload::Plan(large_plan()));
    Call::Message { kind: MessageType::PlanSubmission, to: "", about: About::default(), payload }
}

/// 256 nodes with 32 outputs each.
fn large_graph() -> v1::Graph {
    let node = |number: usize| v1::Node {
        node_id: format!("n{number}"),
        description: "x".repeat(1900),
        output_nodes: (number + 1..(number + 33).min(256))
            .map(|next| format!("n{next}"))
            .chain(["end".into()])
            .take(32)
            .collect(),
        ..Default::default()
    };
    v1::Graph {
        graph_id: "noise".into(),
        nodes: (0..256).map(node).collect(),
        entry_node_ids: vec!["n0".into()],
        ..Default::default()
    }
}

fn validate_graph() -> Call {
    Call::ValidateGraph(v1::ValidateGraphRequest { graph: Some(large_graph()) })
}

fn register_graph() -> Call {
    Call::RegisterGraph(v1::RegisterGraphRequest { graph: Some(large_graph()), ..Default::default() })
}

/// Pages of 1,000 tasks.
fn list_tasks(client: Connected) -> Prepared {
    Box::pin(async move {
        let client = client.await?;
        for _ in 0..400 {
            own_task(&client).await?;
        }
        Ok(Call::ListTasks(v1::ListTasksRequest { page_size: 1000, ..Default::default() }))
    })
}

/// A thousand agents of one type.
async fn register_a_thousand(client: &Client) -> Result<(), Failure> {
    for number in 0..1000 {
        let name = format!("bidder-{number}");
        let keys = vec![super::identity(&name)?.agent_key()];
        let card = v1::AgentCard { agent_id: name, agent_types: vec!["bidder".into()], keys, ..Default::default() };
        let request = v1::RegisterAgentRequest { card: Some(card), ..Default::default() };
        client.answer(client.agents().register_agent(request).await)?;
    }
    Ok(())
}

/// Requests for offers to a thousand agents, which all close within seconds.
fn ask_a_thousand(client: Connected) -> Prepared {
    Box::pin(async move {
        register_a_thousand(&client.await?).await?;
        let request = v1::TaskRequest { description: "noise".into(), ..Default::default() };
        let payload = Box::new(Payload::TaskRequest(Box::new(request)));
        Ok(Call::Message { kind: MessageType::TaskRequest, to: "all:bidder", about: About::default(), payload })
    })
}

/// Mail to a thousand agents.
fn tell_a_thousand(client: Connected) -> Prepared {
    Box::pin(async move {
        register_a_thousand(&client.await?).await?;
        let payload = Box::new(Payload::Info(v1::Info { text: "noise".into(), ..Default::default() }));
        Ok(Call::Message { kind: MessageType::Info, to: "all:bidder", about: About::default(), payload })
    })
}

/// Requests to a type that a thousand agents have.
fn one_of_a_thousand(client: Connected) -> Prepared {
    Box::pin(async move {
        register_a_thousand(&client.await?).await?;
        let request = v1::HandoffRequest { task_type: "noise".into(), ..Default::default() };
        let payload = Box::new(Payload::HandoffRequest(Box::new(request)));
        Ok(Call::Message { kind: MessageType::HandoffRequest, to: "type:bidder", about: About::default(), payload })
    })
}
