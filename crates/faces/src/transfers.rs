//! The tools `transfer_to_…`: the choices of the runs in which this agent has an active node, and the receivers that the
//! person has named.

use std::sync::Arc;

use baton_client::{
    About,
    envelope::signing,
    ids::{MessageId, check_name},
    proto::v1::{self, HandoffMode, MessageType, NodeState, RunState, ToolShape, TurnOutcome},
};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::{
    ActError, Face,
    acts::{self, moves::Moved},
    contexts,
    text::clean,
};

/// The prefix of each name.
pub(crate) const PREFIX: &str = "transfer_to_";
/// The most runs and nodes that have tools at a time.
const RUNS_MAX: u32 = 20;
const NODES_MAX: usize = 8;

/// A receiver that the person has named: `transfer_to_NAME` hands a task to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fixed {
    name: String,
    to: String,
    is_loan: bool,
}

impl std::str::FromStr for Fixed {
    type Err = String;

    /// Parses `NAME=RECEIVER` or `NAME=lend:RECEIVER`; a receiver is an agent's id or `type:NAME`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (name, to) = text.split_once('=').ok_or("must be NAME=RECEIVER, as billing=type:billing")?;
        let is_of_name = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-');
        if name.is_empty() || name.len() > 28 || !name.chars().all(is_of_name) {
            return Err("the name must have 1 to 28 of A-Z a-z 0-9 _ -".to_owned());
        }
        let (to, is_loan) = to.strip_prefix("lend:").map_or((to, false), |to| (to, true));
        check_name(to.strip_prefix("type:").unwrap_or(to)).map_err(|problem| format!("the receiver {problem}"))?;
        Ok(Self { name: name.to_owned(), to: to.to_owned(), is_loan })
    }
}

impl std::fmt::Display for Fixed {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}={}{}", self.name, if self.is_loan { "lend:" } else { "" }, self.to)
    }
}

/// A tool, as a face shows it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Shown {
    pub(crate) name: String,
    pub(crate) description: String,
    pub(crate) input: Map<String, Value>,
    pub(crate) output: Map<String, Value>,
}

impl Fixed {
    pub(crate) fn tool(&self) -> Shown {
        let act = self.act();
        let mut input = act.input.clone();
        if let Some(Value::Object(fields)) = input.get_mut("properties") {
            fields.remove("to");
        }
        if let Some(Value::Array(names)) = input.get_mut("required") {
            names.retain(|name| name != "to");
        }
        let does = if self.is_loan { "Lend a task to" } else { "Give a task for good to" };
        let description = format!("{does} {}. The person has chosen this receiver.", self.to);
        Shown { name: format!("{PREFIX}{}", self.name), description, input, output: act.output.clone() }
    }

    pub(crate) fn is_called(&self, name: &str) -> bool {
        name.strip_prefix(PREFIX) == Some(&self.name)
    }

    pub(crate) async fn run(
        &self,
        face: Arc<Face>,
        mut arguments: Map<String, Value>,
    ) -> Result<Map<String, Value>, ActError> {
        if arguments.contains_key("to") {
            return Err(ActError::argument("/to", format!("is not an argument: the receiver is {}", self.to)));
        }
        arguments.insert("to".to_owned(), self.to.clone().into());
        self.act().run(face, arguments).await
    }

    fn act(&self) -> acts::Act {
        if self.is_loan { acts::delegate() } else { acts::hand_over() }
    }
}

/// What a choice has done.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Transferred {
    run_id: String,
    node_id: String,
    /// The chosen node, or "end".
    chosen: String,
    /// The nodes that are next.
    active_nodes: Vec<String>,
    /// The handoff of the task that the choice needs.
    #[serde(skip_serializing_if = "Option::is_none")]
    handoff: Option<Moved>,
    next: String,
}

/// An active node of this agent, with its tools.
struct Node {
    run: v1::Run,
    node: v1::NodeRun,
    tools: Vec<Tool>,
}

struct Tool {
    name: String,
    description: String,
    input: Map<String, Value>,
}

/// The tools of all active nodes of this agent, each name once, in the order of runs and nodes.
pub(crate) async fn offered(face: &Face) -> Result<Vec<Shown>, ActError> {
    Ok(merged(&nodes(face).await?))
}

fn merged(nodes: &[Node]) -> Vec<Shown> {
    let mut shown: Vec<Shown> = Vec::new();
    for (node, tool) in nodes.iter().flat_map(|node| node.tools.iter().map(move |tool| (node, tool))) {
        if shown.iter().any(|known| known.name == tool.name) {
            continue;
        }
        let with_it: Vec<&Node> =
            nodes.iter().filter(|node| node.tools.iter().any(|other| other.name == tool.name)).collect();
        let mut input = tool.input.clone();
        // One node leaves no choice.
        if nodes.len() > 1 {
            let mut ids: Vec<&str> = with_it.iter().map(|node| node.run.run_id.as_str()).collect();
            ids.dedup();
            require(&mut input, "run_id", &ids);
            let of_run = |id: &&str| with_it.iter().filter(|node| node.run.run_id == **id).count();
            if ids.iter().any(|id| of_run(id) > 1) {
                let nodes: Vec<&str> = with_it.iter().map(|node| node.node.node_id.as_str()).collect();
                require(&mut input, "node_id", &nodes);
            }
        }
        let rest = match node.node.remaining {
            1 => " This is the last choice of the node.".to_owned(),
            _ => String::new(),
        };
        let description = format!("{}{rest}", clean(&tool.description, 512));
        shown.push(Shown { name: tool.name.clone(), description, input, output: acts::output_of::<Transferred>() });
    }
    shown
}

/// Adds a required argument that has one of these values.
fn require(input: &mut Map<String, Value>, name: &str, values: &[&str]) {
    let fields = input.entry("properties").or_insert_with(|| json!({}));
    if let Some(fields) = fields.as_object_mut() {
        fields.insert(name.to_owned(), json!({"type": "string", "enum": values}));
    }
    if let Some(required) = input.entry("required").or_insert_with(|| json!([])).as_array_mut() {
        required.push(name.into());
    }
}

async fn nodes(face: &Face) -> Result<Vec<Node>, ActError> {
    let client = face.client().await?;
    let listed = match face.run_id() {
        Some(run_id) => vec![run_id.to_owned()],
        None => {
            let states = vec![RunState::Running.into()];
            let request = v1::ListRunsRequest { page_size: RUNS_MAX, states, ..Default::default() };
            let listed = client.answer(client.routing().list_runs(request).await)?.runs;
            listed.into_iter().map(|run| run.run_id).collect()
        }
    };
    if listed.is_empty() {
        return Ok(Vec::new());
    }
    let types = client.get_agent(face.id()).await?.card.unwrap_or_default().agent_types;
    let mut found = Vec::new();
    for run_id in listed {
        let run = match client.answer(client.routing().get_run(v1::GetRunRequest { run_id }).await) {
            Ok(answer) => answer.run.unwrap_or_default(),
            Err(error) if error.reason() == Some("RUN_UNKNOWN") => continue,
            Err(error) => return Err(error.into()),
        };
        let owner = match run.task_id.as_str() {
            "" => None,
            // An agent that takes no part in the task any more has no choice.
            task => match face.task(task).await {
                Ok(task) => Some(task.owner_id),
                Err(error) if error.retry_after_seconds.is_none() => continue,
                Err(error) => return Err(error),
            },
        };
        if owner.is_some_and(|owner| owner != face.id()) {
            continue;
        }
        let graph = run.graph.clone().unwrap_or_default();
        for node in run.nodes.iter().filter(|node| node.state() == NodeState::Active) {
            let Some(made) = graph.nodes.iter().find(|made| made.node_id == node.node_id) else { continue };
            let is_mine = match (made.agent_id.as_str(), made.agent_type.as_str()) {
                ("", "") => run.starter_id == face.id() || !run.task_id.is_empty(),
                ("", kind) => types.iter().any(|own| own == kind),
                (agent, _) => agent == face.id(),
            };
            if is_mine && found.len() < NODES_MAX {
                let tools = tools_of(face, &run, &node.node_id).await?;
                found.push(Node { run: run.clone(), node: node.clone(), tools });
            }
        }
    }
    Ok(found)
}

/// The tools of a node. None, if the node has become inactive.
async fn tools_of(face: &Face, run: &v1::Run, node_id: &str) -> Result<Vec<Tool>, ActError> {
    let client = face.client().await?;
    let request = v1::GetNodeToolsRequest {
        run_id: run.run_id.clone(),
        node_id: node_id.to_owned(),
        shape: ToolShape::Mcp.into(),
    };
    let found = match client.answer(client.routing().get_node_tools(request).await) {
        Ok(found) => found,
        Err(error) if matches!(error.reason(), Some("NODE_NOT_ACTIVE" | "RUN_FINAL" | "RUN_UNKNOWN")) => {
            return Ok(Vec::new());
        }
        Err(error) => return Err(error.into()),
    };
    let tool = |text: &String| {
        let tool: Value = serde_json::from_str(text).ok()?;
        Some(Tool {
            name: tool["name"].as_str()?.to_owned(),
            description: tool["description"].as_str().unwrap_or_default().to_owned(),
            input: tool["inputSchema"].as_object()?.clone(),
        })
    };
    Ok(found.tools_json.iter().filter_map(tool).collect())
}

/// Records the choice that the tool stands for, and hands the task to the agent of the chosen node where it needs that.
pub(crate) async fn transfer(
    face: Arc<Face>,
    name: &str,
    mut arguments: Map<String, Value>,
) -> Result<Map<String, Value>, ActError> {
    let nodes = nodes(&face).await?;
    let given = |arguments: &mut Map<String, Value>, field: &str| match arguments.remove(field) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(ActError::argument(format!("/{field}"), "must be a text")),
    };
    let (run_id, node_id) = (given(&mut arguments, "run_id")?, given(&mut arguments, "node_id")?);
    let fits = |node: &&Node| {
        node.tools.iter().any(|tool| tool.name == name)
            && run_id.as_ref().is_none_or(|id| *id == node.run.run_id)
            && node_id.as_ref().is_none_or(|id| *id == node.node.node_id)
    };
    let fitting: Vec<&Node> = nodes.iter().filter(fits).collect();
    let node = match fitting[..] {
        [node] => node,
        [] => return Err(not_offered(name, &merged(&nodes))),
        [one, other, ..] => {
            let field = if one.run.run_id == other.run.run_id { "/node_id" } else { "/run_id" };
            return Err(ActError::argument(field, "is needed: more than one node offers the tool"));
        }
    };
    let (run, at) = (&node.run, &node.node);
    let arguments_json = Value::Object(arguments).to_string();
    let activation = json!([run.run_id, at.node_id, run.step, at.choices, run.turns, name, arguments_json]).to_string();
    let turn_id = uuid_of(&activation);
    let call = v1::ToolCall { call_id: turn_id.clone(), name: name.to_owned(), arguments_json };
    let request = v1::RecordTurnRequest {
        run_id: run.run_id.clone(),
        node_id: at.node_id.clone(),
        turn_id,
        calls: vec![call],
        ..Default::default()
    };
    let client = face.client().await?;
    let answer = client.answer(client.routing().record_turn(request).await)?;
    if !matches!(answer.outcome(), TurnOutcome::Chosen | TurnOutcome::Proposed) {
        let words = answer.tool_results.first().map(|result| clean(&result.text, 512)).unwrap_or_default();
        let reason = answer.error_code().as_str_name().trim_start_matches("ERROR_CODE_").to_owned();
        let text = format!("The choice does not count: {words}. Choose one of the tools that are offered.");
        return Err(ActError::new(&reason, text));
    }
    let choice = answer.choice.unwrap_or_default();
    let handoff = match &answer.handoff_proposal {
        Some(proposal) => Some(propose(&face, run, proposal, &answer.handoff_receiver_id, &choice.reason).await?),
        None => None,
    };
    let next = match &handoff {
        Some(moved) => moved.next.clone(),
        None if choice.target_node_id == "end" => {
            "The run has come to its end; `report` the end of its task.".to_owned()
        }
        None => format!("The run is at {}.", answer.next_node_ids.join(", ")),
    };
    let done = Transferred {
        run_id: run.run_id.clone(),
        node_id: at.node_id.clone(),
        chosen: choice.target_node_id,
        active_nodes: answer.next_node_ids,
        handoff,
        next,
    };
    match serde_json::to_value(done) {
        Ok(Value::Object(done)) => Ok(done),
        other => unreachable!("an output is an object: {other:?}"),
    }
}

/// Sends the request of the handoff that a choice needs, with the context that the task has.
async fn propose(
    face: &Face,
    run: &v1::Run,
    proposal: &v1::HandoffRequest,
    to: &str,
    reason: &str,
) -> Result<Moved, ActError> {
    let task = face.task(&run.task_id).await?;
    let about = About::task(&task.task_id, task.epoch);
    if contexts::latest(face, &task.task_id).await?.is_none() {
        let given = json!({"task_description": {"summary": reason, "details": ""}});
        let sections = contexts::sections_of(given.as_object().unwrap_or(&Map::new()));
        contexts::store(face, &about, sections).await?;
    }
    let terms = acts::terms(&proposal.task_type, &proposal.initial_context_summary, HandoffMode::Transfer);
    let mut request = v1::HandoffRequest { timeouts: terms.timeouts, ..proposal.clone() };
    acts::leave_time_to(face, to, &mut request).await;
    let receipt = face.send(to, MessageType::HandoffRequest, &about, &request).await?;
    acts::moves::follow_at_first(face, &receipt.handoff_id).await
}

pub(crate) fn not_offered(name: &str, offered: &[Shown]) -> ActError {
    let names: Vec<&str> = offered.iter().map(|tool| tool.name.as_str()).collect();
    let what = match names.is_empty() {
        true => "No transfer is offered now".to_owned(),
        false => format!("Offered are: {}", names.join(", ")),
    };
    ActError::new(
        "TRANSFER_NOT_OFFERED",
        format!("{} is not offered. {what}; `inbox` shows your tasks.", clean(name, 128)),
    )
}

/// A UUID derived from a text.
fn uuid_of(text: &str) -> String {
    uuid_of_digest(&signing::sha256(&[b"baton.faces.turn", text.as_bytes()]))
}

/// The UUID (version 8 of RFC 9562) that begins with a digest.
pub(crate) fn uuid_of_digest(digest: &[u8; 32]) -> String {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    bytes[6] = (bytes[6] & 0x0f) | 0x80;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    MessageId::from_bytes(bytes).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fixed_receiver_is_parsed_and_shown() {
        let fixed = |text: &str| text.parse::<Fixed>();
        let billing = fixed("billing=lend:type:billing").unwrap();
        assert_eq!(
            (billing.to.as_str(), billing.is_loan, billing.to_string().as_str()),
            ("type:billing", true, "billing=lend:type:billing")
        );
        assert!(billing.is_called("transfer_to_billing") && !billing.is_called("billing"));
        let tool = billing.tool();
        assert_eq!(tool.input["required"], json!(["summary"]));
        assert!(tool.input["properties"].get("to").is_none());
        for wrong in ["billing", "=bob", "a b=bob", "b=", "b=type:", "b=a b", &format!("{}=bob", "x".repeat(29))] {
            assert!(fixed(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn two_nodes_with_the_same_tool_are_told_apart() {
        let node = |run: &str, node: &str| Node {
            run: v1::Run { run_id: run.to_owned(), ..Default::default() },
            node: v1::NodeRun { node_id: node.to_owned(), remaining: 2, ..Default::default() },
            tools: vec![Tool {
                name: "transfer_to_b".to_owned(),
                description: "b\u{202e}".to_owned(),
                input: json!({"type": "object", "properties": {"reason": {}}}).as_object().unwrap().clone(),
            }],
        };
        let alone = merged(&[node("r1", "a")]);
        assert_eq!((alone.len(), alone[0].description.as_str(), alone[0].input.get("required")), (1, "b", None));
        let two = merged(&[node("r1", "a"), node("r2", "a")]);
        assert_eq!((two.len(), &two[0].input["required"]), (1, &json!(["run_id"])));
        assert_eq!(two[0].input["properties"]["run_id"]["enum"], json!(["r1", "r2"]));
        let twice = merged(&[node("r1", "a"), node("r1", "c")]);
        assert_eq!(twice[0].input["required"], json!(["run_id", "node_id"]));
        assert_eq!(twice[0].input["properties"]["node_id"]["enum"], json!(["a", "c"]));
    }
}
