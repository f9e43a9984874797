//! `baton agent serve`: a small agent that takes every handoff it is offered.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use clap::Args;
use serde_json::json;

use super::{
    Failure,
    connection::{ConnectionArgs, IdentityArgs},
    key,
};
use crate::{
    client::{About, Agent, ClientError, Delivered, Trust, context_of, context_of_sections},
    envelope::keys::PublicKey,
    ids::{AgentId, AgentType, KeyId},
    proto::v1::{self, MessageType},
};

const RECONNECT_MAX: Duration = Duration::from_secs(10);

/// Run a small agent: it takes each handoff it is offered, checks the context, completes, and prints what happens.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  baton agent serve --id expert --key expert.pem --type expert
  baton agent serve --id relay --key relay.pem --return-to alice --once")]
pub(super) struct ServeAgentArgs {
    #[command(flatten)]
    identity: IdentityArgs,
    /// A type to register under; may be repeated.
    #[arg(long = "type", value_name = "TYPE")]
    types: Vec<AgentType>,
    /// Tasks it takes; further handoffs are rejected as OVERLOADED. 0: no limit.
    #[arg(long, default_value_t = 0, value_name = "TASKS")]
    capacity: u32,
    /// Hand each task on to this agent once it is taken over.
    #[arg(long, value_name = "AGENT")]
    return_to: Option<AgentId>,
    /// Take only keys that this operator has vouched for; can be given several times.
    #[arg(long, value_name = "NAME=HEX", value_parser = parse_trusted)]
    trust: Vec<(KeyId, PublicKey)>,
    /// Take only this key of this agent, and no other agents; can be given several times.
    #[arg(long, value_name = "AGENT=HEX", value_parser = parse_pin, conflicts_with = "trust")]
    pin: Vec<(AgentId, PublicKey)>,
    /// End after one task: taken over, and handed on if it is to be.
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
    let key = key::parse_public_key(hex).map_err(|failure| failure.to_string())?;
    Ok((parse(name)?, key))
}

/// What the agent has to do with tasks.
struct Worker<'a> {
    args: &'a ServeAgentArgs,
    agent: &'a Agent,
    seen: &'a mut HashSet<String>,
    /// The context of each task that it owns.
    owned: &'a mut HashMap<String, v1::TaskContextTransfer>,
}

pub(super) async fn run(args: ServeAgentArgs, connection: &ConnectionArgs) -> Result<(), Failure> {
    let identity = args.identity.load()?;
    register(&args, connection).await?;
    let (mut seen, mut owned) = (HashSet::new(), HashMap::new());
    let mut wait = Duration::from_millis(250);
    loop {
        let agent = connection.agent(identity.clone(), 16).await.map(|agent| agent.trusting(args.trust()));
        let ended = match agent {
            Ok(agent) => {
                wait = Duration::from_millis(250);
                say("connected", &json!({"agent": agent.id().to_string()}));
                let worker = Worker { args: &args, agent: &agent, seen: &mut seen, owned: &mut owned };
                match worker.work().await {
                    Ok(()) => return Ok(()),
                    Err(error) if error.is_passing() => error.to_string(),
                    Err(error) => return Err(error.into()),
                }
            }
            Err(failure) if failure.may_pass() => failure.to_string(),
            Err(failure) => return Err(failure),
        };
        eprintln!("baton: {ended}; connecting again in {wait:?}");
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(RECONNECT_MAX);
    }
}

/// Registers the agent, unless it is registered already.
async fn register(args: &ServeAgentArgs, connection: &ConnectionArgs) -> Result<(), Failure> {
    let identity = args.identity.load()?;
    let client = connection.client_without_token().await?;
    let card = v1::AgentCard {
        agent_id: identity.agent.to_string(),
        agent_types: args.types.iter().map(ToString::to_string).collect(),
        capacity: args.capacity,
        keys: vec![identity.agent_key()],
        ..Default::default()
    };
    let registered =
        client.agents().register_agent(v1::RegisterAgentRequest { card: Some(card), ..Default::default() }).await;
    match client.answer(registered) {
        Ok(_) => Ok(()),
        // Registered with another card, or by an operator: its key decides.
        Err(error) if matches!(error.reason(), Some("AGENT_EXISTS" | "IDENTITY_MISSING")) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

impl Worker<'_> {
    async fn work(mut self) -> Result<(), ClientError> {
        self.heartbeat().await?;
        loop {
            let delivered = self.agent.next().await?;
            let done = self.handle(&delivered).await?;
            self.agent.session.ack(&delivered.delivery.delivery_id).await?;
            if done && self.args.once {
                return Ok(());
            }
            self.heartbeat().await?; // it may own more or less now
        }
    }

    async fn heartbeat(&self) -> Result<(), ClientError> {
        let active_tasks = u32::try_from(self.owned.len()).unwrap_or(u32::MAX);
        let heartbeat = v1::Heartbeat { active_tasks, capacity: self.args.capacity, ..Default::default() };
        self.agent.session.heartbeat(heartbeat).await
    }

    /// Handles one delivery. True if a task is done with.
    async fn handle(&mut self, delivered: &Delivered) -> Result<bool, ClientError> {
        // A request that is tried again is the same message, and another handoff.
        if !self.seen.insert(format!("{} {}", delivered.envelope.message_id, delivered.handoff_id())) {
            return Ok(false); // a redelivery of what was handled
        }
        match self.answer(delivered).await {
            // The handoff has moved on without us; its end comes as mail.
            Err(ClientError::Refused(refused)) => {
                say("refused", &json!({"reason": refused.reason, "message": refused.message}));
                Ok(false)
            }
            answered => answered,
        }
    }

    async fn answer(&mut self, delivered: &Delivered) -> Result<bool, ClientError> {
        let about = delivered.about();
        let facts = json!({
            "task": about.task_id, "handoff": about.correlation_id, "from": delivered.envelope.sender_id,
            "epoch": about.epoch,
        });
        match delivered.kind() {
            MessageType::HandoffRequest if self.is_full() => {
                let reject = v1::HandoffReject {
                    reason: v1::RejectReason::Overloaded.into(),
                    reason_text: "at capacity".to_owned(),
                    ..Default::default()
                };
                self.agent.reject(delivered, &reject).await?;
                say("rejected", &facts);
            }
            MessageType::HandoffRequest => {
                self.agent.accept(delivered).await?;
                say("accepted", &facts);
            }
            MessageType::TaskContextTransfer => return self.take_over(delivered, about, facts).await,
            MessageType::HandoffAccept => {
                let context = self.context_to_hand_on(&about.task_id);
                self.agent.send_context(delivered, &context).await?;
                say("context sent", &facts);
            }
            MessageType::HandoffComplete => {
                self.owned.remove(&about.task_id);
                say("handed on", &facts);
                return Ok(true);
            }
            MessageType::ErrorNotification => {
                let error: v1::ErrorNotification = delivered.payload();
                say("told", &json!({"code": error.error_code().as_str_name(), "message": error.error_message}));
            }
            other => say("received", &json!({"type": other.as_str_name(), "from": delivered.envelope.sender_id})),
        }
        Ok(false)
    }

    /// All that it received about the task, and a report of its own in place of the one before.
    fn context_to_hand_on(&self, task_id: &str) -> v1::TaskContextTransfer {
        let report = json!({"by": self.agent.id().to_string()}).to_string();
        let mut sections = context_of([("progress_report", report)]).sections;
        let received = self.owned.get(task_id).map(|context| context.sections.clone()).unwrap_or_default();
        sections.extend(received.into_iter().filter(|section| section.name != "progress_report"));
        context_of_sections(sections)
    }

    fn is_full(&self) -> bool {
        self.args.capacity > 0 && self.owned.len() >= self.args.capacity as usize
    }

    async fn take_over(
        &mut self,
        context: &Delivered,
        about: About,
        facts: serde_json::Value,
    ) -> Result<bool, ClientError> {
        let receipt = self.agent.complete(context).await?;
        self.owned.insert(about.task_id.clone(), context.payload());
        say("owns", &json!({"task": about.task_id, "epoch": receipt.epoch, "handoff": about.correlation_id}));
        let task = About::task(&about.task_id, receipt.epoch);
        let progress = v1::TaskStatusUpdate {
            status: v1::TaskStatus::InProgress.into(),
            progress: Some(0.5),
            ..Default::default()
        };
        self.agent.report(&task, &progress).await?;
        let Some(next) = &self.args.return_to else { return Ok(true) };
        let request = v1::HandoffRequest {
            task_type: "returned".to_owned(),
            reason: v1::HandoffReason::Workflow.into(),
            initial_context_summary: format!("done by {}", self.agent.id()),
            ..Default::default()
        };
        self.agent.request(next.as_str(), &about.task_id, receipt.epoch, &request).await?;
        say("handing on", &facts);
        Ok(false)
    }
}

fn say(what: &str, facts: &serde_json::Value) {
    say!("{}", json!({"event": what, "facts": facts}));
}
