//! `baton agent serve`: a small agent that accepts every handoff offered to it.

use std::{collections::HashMap, sync::Arc, time::Duration};

use clap::Args;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::{
    Failure,
    connection::{ConnectionArgs, IdentityArgs},
    key, output, signals,
};
use baton_client::{
    envelope::keys::PublicKey,
    ids::{AgentId, AgentType, KeyId, SystemIds},
    proto::v1::{self, MessageType},
    time::SystemClock,
    {
        About, ClientError, Delivered, Handler, Identity, Link, LinkOptions, NotTaken, Trust, context_of,
        context_of_sections,
    },
};

/// The agent's credit, in deliveries.
const CREDIT: u32 = 16;
/// The time limit for the message in hand when the agent stops.
const STOP_GRACE: Duration = Duration::from_secs(10);
/// The interval of load reports. A new session has no report from the previous one.
const REPORT_INTERVAL: Duration = Duration::from_secs(5);

/// Run a small agent that accepts and completes each handoff it is offered, and prints each step.
///
/// The agent registers itself, verifies each context, and reconnects after a lost connection. On SIGINT or SIGTERM it
/// finishes the message in progress, returns the others to the broker, and exits with code 0. A second signal ends it
/// at once.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  baton agent serve --id expert --key expert.pem --type expert
  baton agent serve --id relay --key relay.pem --return-to alice --once")]
pub(super) struct ServeAgentArgs {
    #[command(flatten)]
    identity: IdentityArgs,
    /// A type to register under. May be repeated.
    #[arg(long = "type", value_name = "TYPE")]
    types: Vec<AgentType>,
    /// The most tasks that the agent takes. It rejects further handoffs as OVERLOADED. 0 means no limit.
    #[arg(long, default_value_t = 0, value_name = "TASKS")]
    capacity: u32,
    /// Hand each completed task on to this agent.
    #[arg(long, value_name = "AGENT")]
    return_to: Option<AgentId>,
    /// Trust only keys for which this operator has vouched (`baton agent key vouch`): its name and public key in hex.
    /// May be repeated.
    #[arg(long, value_name = "NAME=HEX", value_parser = parse_trusted)]
    trust: Vec<(KeyId, PublicKey)>,
    /// Trust only this public key (hex) of this agent, and no agent that is not pinned. May be repeated.
    #[arg(long, value_name = "AGENT=HEX", value_parser = parse_pin, conflicts_with = "trust")]
    pin: Vec<(AgentId, PublicKey)>,
    /// Exit after one task: taken over and, with --return-to, handed on.
    #[arg(long)]
    once: bool,
}

impl ServeAgentArgs {
    fn trust(&self) -> Trust {
        if !self.trust.is_empty() {
            return Trust::Operators(self.trust.iter().cloned().collect());
        }
        let mut pins: HashMap<AgentId, Vec<PublicKey>> = HashMap::new();
        for (agent, key) in &self.pin {
            pins.entry(agent.clone()).or_default().push(key.clone());
        }
        if pins.is_empty() { Trust::Broker } else { Trust::Pinned(pins) }
    }
}

fn parse_trusted(text: &str) -> Result<(KeyId, PublicKey), String> {
    parse_named(text, |name| KeyId::parse(name).map_err(|error| error.to_string()))
}

fn parse_pin(text: &str) -> Result<(AgentId, PublicKey), String> {
    parse_named(text, |name| AgentId::parse(name).map_err(|error| error.to_string()))
}

fn parse_named<N>(text: &str, parse: impl Fn(&str) -> Result<N, String>) -> Result<(N, PublicKey), String> {
    let (name, hex) = text.split_once('=').ok_or("must be NAME=HEX")?;
    let key = key::parse_public_key(hex).map_err(|failure| failure.message().to_owned())?;
    Ok((parse(name)?, key))
}

/// The state of the agent.
struct Worker {
    args: ServeAgentArgs,
    /// Locked while a message is handled, so that one message is handled at a time.
    state: Arc<tokio::sync::Mutex<State>>,
    /// Cancelled after the agent's only task is done.
    done: CancellationToken,
}

#[derive(Default)]
struct State {
    /// The context of each owned task, by task id.
    owned: HashMap<String, v1::TaskContextTransfer>,
}

pub(super) async fn run(args: ServeAgentArgs, connection: &ConnectionArgs) -> Result<(), Failure> {
    let identity = args.identity.load()?;
    let refused = |error| connection.not_signed_in(error, &identity, args.identity.key());
    register(&args.types, args.capacity, &identity, connection).await?;
    let options = LinkOptions {
        broker: connection.options_of_agent()?,
        identity: identity.clone(),
        credit: CREDIT,
        trust: args.trust(),
        handler_timeout: None,
        stop_grace: STOP_GRACE,
        resume: false,
    };
    let link = Link::connect(options, Arc::new(SystemClock), Arc::new(SystemIds)).await.map_err(refused)?;
    say("connected", &json!({"agent": args.identity.id().to_string()}));
    // Signals count only from here: before the first session the agent has nothing to finish.
    let stop = signals::stop_on_signal()?;
    let state = Arc::new(tokio::sync::Mutex::default());
    let report = tokio::spawn(report(link.clone(), args.capacity, Arc::clone(&state)));
    let served = link.serve(Worker { args, state, done: stop.clone() }, stop).await;
    report.abort();
    served?;
    say("stopped", &json!({}));
    Ok(())
}

/// Reports the number of owned tasks at intervals.
async fn report(link: Link, capacity: u32, state: Arc<tokio::sync::Mutex<State>>) {
    // A session begins without a load report, so the latest one must soon follow it.
    let mut turns = tokio::time::interval(REPORT_INTERVAL);
    loop {
        turns.tick().await;
        let heartbeat = heartbeat(capacity, &*state.lock().await);
        let Ok(agent) = link.live().await else { return };
        // A failure means that the session has ended. The next turn reports to its successor.
        drop(agent.session.heartbeat(heartbeat).await);
    }
}

fn heartbeat(capacity: u32, state: &State) -> v1::Heartbeat {
    let active_tasks = u32::try_from(state.owned.len()).unwrap_or(u32::MAX);
    v1::Heartbeat { active_tasks, capacity, ..Default::default() }
}

/// Registers the agent. An agent that the broker already has is no failure.
pub(super) async fn register(
    types: &[AgentType],
    capacity: u32,
    identity: &Identity,
    connection: &ConnectionArgs,
) -> Result<(), Failure> {
    let card = v1::AgentCard {
        agent_id: identity.agent.to_string(),
        agent_types: types.iter().map(ToString::to_string).collect(),
        capacity,
        keys: vec![identity.agent_key()],
        ..Default::default()
    };
    register_card(card, connection).await.map(drop)
}

/// Registers an agent with this card. Returns whether the broker has the card: `false` if the agent is registered with
/// another one, or by an operator.
pub(super) async fn register_card(card: v1::AgentCard, connection: &ConnectionArgs) -> Result<bool, Failure> {
    let client = connection.client_without_token().await?;
    let registered =
        client.agents().register_agent(v1::RegisterAgentRequest { card: Some(card), ..Default::default() }).await;
    match client.answer(registered) {
        Ok(_) => Ok(true),
        // Authentication by the key decides.
        Err(error) if matches!(error.reason(), Some("AGENT_EXISTS" | "IDENTITY_MISSING")) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

impl Handler for Worker {
    async fn handle(&self, link: Link, delivered: Delivered) -> Result<(), NotTaken> {
        // Held over the answer: two requests handled at the same time must not both pass the capacity check.
        let mut state = self.state.lock().await;
        match self.answer(&link, &delivered, &mut state).await {
            Ok(is_done) => {
                if is_done && self.args.once {
                    self.done.cancel();
                } else if let Ok(agent) = link.live().await {
                    // The number of tasks may have changed. If the session has ended, `report` informs the next one.
                    drop(agent.session.heartbeat(heartbeat(self.args.capacity, &state)).await);
                }
                Ok(())
            }
            Err(error) => {
                if let ClientError::Refused(refused) = &error {
                    say("refused", &json!({"reason": refused.reason, "message": refused.message}));
                }
                Err(error.into())
            }
        }
    }

    /// Provides the context of a task that the agent hands on.
    async fn context(&self, _: Link, accept: Delivered) -> Result<Option<Vec<v1::ContextSection>>, NotTaken> {
        let about = accept.about();
        let context = self.context_to_hand_on(&about.task_id, &*self.state.lock().await);
        let taker = &accept.envelope.sender_id;
        say("gives context", &json!({"task": about.task_id, "handoff": about.correlation_id, "to": taker}));
        Ok(Some(context.sections))
    }
}

impl Worker {
    /// Handles one message. Returns true if a task is done.
    async fn answer(&self, link: &Link, delivered: &Delivered, state: &mut State) -> Result<bool, ClientError> {
        let about = delivered.about();
        let facts = json!({
            "task": about.task_id, "handoff": about.correlation_id, "from": delivered.envelope.sender_id,
            "epoch": about.epoch,
        });
        match delivered.kind() {
            // Rejects instead of waiting, so that the broker asks the next candidate at once.
            MessageType::HandoffRequest if self.is_full(state) => {
                let reject = v1::HandoffReject {
                    reason: v1::RejectReason::Overloaded.into(),
                    reason_text: "at capacity".to_owned(),
                    ..Default::default()
                };
                link.reply(delivered, MessageType::HandoffReject, &reject).await?;
                say("rejected", &facts);
            }
            MessageType::HandoffRequest => {
                link.reply(delivered, MessageType::HandoffAccept, &v1::HandoffAccept::default()).await?;
                say("accepted", &facts);
            }
            MessageType::TaskContextTransfer => return self.take_over(link, delivered, about, facts, state).await,
            // The receiver could not take over, so this agent still owns the task.
            MessageType::HandoffComplete
                if delivered.payload::<v1::HandoffComplete>().outcome() == v1::HandoffOutcome::Failure =>
            {
                say("not handed on", &facts);
            }
            MessageType::HandoffComplete => {
                state.owned.remove(&about.task_id);
                say("handed on", &facts);
                return Ok(true);
            }
            MessageType::ErrorNotification => {
                let error: v1::ErrorNotification = delivered.payload();
                // A recalled task no longer counts against the capacity, and its context is not kept.
                if error.next_step() == v1::NextStep::DropTask {
                    state.owned.remove(&about.task_id);
                }
                say("told", &json!({"code": error.error_code().as_str_name(), "message": error.error_message}));
            }
            other => say("received", &json!({"type": other.as_str_name(), "from": delivered.envelope.sender_id})),
        }
        Ok(false)
    }

    /// The received sections of the task, with the agent's own report in place of the earlier one.
    fn context_to_hand_on(&self, task_id: &str, state: &State) -> v1::TaskContextTransfer {
        let report = json!({"by": self.args.identity.id().to_string()}).to_string();
        let mut sections = context_of([("progress_report", report)]).sections;
        let received = state.owned.get(task_id).map(|context| context.sections.clone()).unwrap_or_default();
        // Hands on the received sections unchanged; its own report replaces an earlier one of the same name.
        sections.extend(received.into_iter().filter(|section| section.name != "progress_report"));
        context_of_sections(sections)
    }

    fn is_full(&self, state: &State) -> bool {
        self.args.capacity > 0 && state.owned.len() >= self.args.capacity as usize
    }

    async fn take_over(
        &self,
        link: &Link,
        context: &Delivered,
        about: About,
        facts: serde_json::Value,
        state: &mut State,
    ) -> Result<bool, ClientError> {
        let receipt = link.complete(context).await?;
        // Only the receipt makes this agent the owner: the broker may still refuse the completion.
        state.owned.insert(about.task_id.clone(), context.payload());
        say("owns", &json!({"task": about.task_id, "epoch": receipt.epoch(), "handoff": about.correlation_id}));
        // The completion raised the epoch. With the epoch of the context, the status would be refused as stale.
        let task = About::task(&about.task_id, receipt.epoch());
        let progress = v1::TaskStatusUpdate {
            status: v1::TaskStatus::InProgress.into(),
            progress: Some(0.5),
            ..Default::default()
        };
        link.send("", MessageType::TaskStatusUpdate, &task, &progress).await?;
        // With a further handoff the task is done only when the next agent has completed it.
        let Some(next) = &self.args.return_to else { return Ok(true) };
        let request = v1::HandoffRequest {
            task_type: "returned".to_owned(),
            reason: v1::HandoffReason::Workflow.into(),
            initial_context_summary: format!("done by {}", self.args.identity.id()),
            ..Default::default()
        };
        link.send(next.as_str(), MessageType::HandoffRequest, &task, &request).await?;
        say("handing on", &facts);
        Ok(false)
    }
}

pub(super) fn say(what: &str, facts: &serde_json::Value) {
    output::say_json(&json!({"event": what, "facts": facts}));
}
