//! `baton demo`: the support story over the wire.

use std::sync::Mutex;

use clap::Args;
use serde_json::json;
use tokio_stream::StreamExt as _;

use super::{
    Failure,
    connection::ConnectionArgs,
    exit, handoff_show, output,
    table::{self, Column},
};
use baton_client::{
    envelope::keys::PrivateKey,
    ids::{AgentId, IdSource as _, KeyId, SystemIds},
    proto::v1::{self, MessageType},
    {About, Client, Delivered, Identity, context_of, session::Agent},
};

/// Show four agents that hand over a task, against a running broker.
///
/// A chatbot receives a crash report and hands it to support. Support reads the context and hands the task to an
/// expert. The first expert rejects it because it is overloaded, and the broker asks the second.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  baton dev &
  baton demo")]
pub(super) struct DemoArgs {}

/// The agents of one run; each run has its own, so that it can be repeated.
struct Cast {
    client: Client,
    chatbot: Agent,
    support: Agent,
    full_expert: Agent,
    free_expert: Agent,
    expert_type: String,
    /// How many steps of each handoff were shown.
    shown: Mutex<std::collections::HashMap<String, usize>>,
}

pub(super) async fn run(_: DemoArgs, connection: &ConnectionArgs) -> Result<(), Failure> {
    let cast = Cast::assemble(connection).await?;
    let task = format!("crash-{}", cast.suffix());
    say_lines!("\n1. A user reports a crash to the chatbot. It creates task {task} and asks support to take it.");
    let receipt = cast.chatbot_hands_to_support(&task).await?;
    say_lines!(
        "\n2. Support reads the stack trace: a data race, beyond its skill. It asks for any agent of the type expert."
    );
    let receipt = cast.support_hands_to_expert(&task, receipt.epoch).await?;
    say_lines!("\n3. The expert reports that it is done. Watchers of the task see it; the status is final.");
    let done = v1::TaskStatusUpdate {
        status: v1::TaskStatus::Completed.into(),
        progress: Some(1.0),
        details: "fixed: the mutex is held over the await".to_owned(),
        ..Default::default()
    };
    cast.free_expert.report(&About::task(&task, receipt.epoch), &done).await?;
    say_lines!("\n4. The chatbot, a former owner, tries to complete the task too, at epoch 1:");
    // The task has moved twice, so epoch 1 is stale, and the broker has to refuse the message (SPEC 1).
    let stale = cast.chatbot.report(&About::task(&task, 1), &done).await;
    match stale {
        Err(error) => say_lines!("   {}", exit::describe(&error)),
        Ok(_) => {
            return Err(Failure::failed("the broker let a former owner end the task: this is a bug of the broker"));
        }
    }
    cast.show_who_owns_what(&task).await
}

impl Cast {
    async fn assemble(connection: &ConnectionArgs) -> Result<Self, Failure> {
        let client = connection.client().await?;
        let suffix = hex::encode(&SystemIds.random()[..3]);
        let expert_type = format!("expert-{suffix}");
        say!("Four agents, each with an ed25519 key of its own, register and open sessions over TLS:");
        let join = async |name: &str, agent_type: &str| -> Result<Agent, Failure> {
            let identity = Identity {
                agent: AgentId::parse(&format!("{name}-{suffix}")).map_err(|e| Failure::failed(e.to_string()))?,
                key_id: KeyId::parse("k1").map_err(|e| Failure::failed(e.to_string()))?,
                key: PrivateKey::generate(&SystemIds),
            };
            register(&client, &identity, agent_type).await?;
            say!("   {:<24} {}", identity.agent.as_str(), hex::encode(identity.key.public().as_bytes()));
            connection.agent(identity, 16).await
        };
        Ok(Self {
            chatbot: join("chatbot", "chatbot").await?,
            support: join("support", "support").await?,
            full_expert: join("expert-busy", &expert_type).await?,
            free_expert: join("expert-free", &expert_type).await?,
            client,
            expert_type,
            shown: Mutex::default(),
        })
    }

    fn suffix(&self) -> &str {
        self.expert_type.rsplit('-').next().unwrap_or_default()
    }

    async fn chatbot_hands_to_support(&self, task: &str) -> Result<v1::Receipt, Failure> {
        let request = v1::HandoffRequest {
            task_type: "crash_report".to_owned(),
            reason: v1::HandoffReason::Skill.into(),
            reason_text: "needs an agent that reads stack traces".to_owned(),
            initial_context_summary: "the app crashes on start since the update".to_owned(),
            priority: v1::Priority::High.into(),
            ..Default::default()
        };
        let receipt = self.chatbot.request(self.support.id().as_str(), task, 1, &request).await?;
        let offer = self.take(&self.support, MessageType::HandoffRequest).await?;
        let accept = v1::HandoffAccept {
            wanted_sections: vec!["collected_data".to_owned(), "history_log".to_owned()],
            ..Default::default()
        };
        let to = offer.envelope.sender_id.clone();
        self.support.send(&to, MessageType::HandoffAccept, &offer.about(), &accept).await?;
        self.show_steps(&receipt.handoff_id).await?;
        let context = context_of([
            (
                "collected_data",
                json!({"app": "notes 4.2.0", "log": [
                    "12:00:01 INFO  start",
                    "12:00:01 ERROR thread 'sync' panicked at sync.rs:118: already borrowed",
                ]})
                .to_string(),
            ),
            (
                "history_log",
                json!([
                    {"role": "user", "text": "It crashes every time I open it."},
                    {"role": "assistant", "text": "Since when? I collect the log."},
                    {"role": "user", "text": "Since yesterday's update."},
                ])
                .to_string(),
            ),
        ]);
        self.finish(&self.chatbot, &self.support, &receipt.handoff_id, &context).await
    }

    async fn support_hands_to_expert(&self, task: &str, epoch: u64) -> Result<v1::Receipt, Failure> {
        let request = v1::HandoffRequest {
            task_type: "crash_report".to_owned(),
            reason: v1::HandoffReason::Escalation.into(),
            initial_context_summary: "a data race in sync.rs, with log and history".to_owned(),
            desired_agent_type: self.expert_type.clone(),
            ..Default::default()
        };
        let to = format!("type:{}", self.expert_type);
        let receipt = self.support.request(&to, task, epoch, &request).await?;
        let offer = self.take(&self.full_expert, MessageType::HandoffRequest).await?;
        say!("   {} is full and rejects; the broker asks the next expert by itself.", self.full_expert.id());
        let reject = v1::HandoffReject {
            reason: v1::RejectReason::Overloaded.into(),
            reason_text: "5 of 5 tasks".to_owned(),
            ..Default::default()
        };
        self.full_expert.reject(&offer, &reject).await?;
        self.take(&self.support, MessageType::HandoffReject).await?;
        let offer = self.take(&self.free_expert, MessageType::HandoffRequest).await?;
        self.free_expert.accept(&offer).await?;
        self.show_steps(&receipt.handoff_id).await?;
        let context = context_of([
            ("progress_report", json!({"finding": "RefCell borrowed over an await point"}).to_string()),
            ("decision_path", json!(["chatbot: not a usage question", "support: a data race"]).to_string()),
        ]);
        self.finish(&self.support, &self.free_expert, &receipt.handoff_id, &context).await
    }

    /// Plays the handoff from the accept to the completion.
    async fn finish(
        &self,
        sender: &Agent,
        receiver: &Agent,
        handoff_id: &str,
        context: &v1::TaskContextTransfer,
    ) -> Result<v1::Receipt, Failure> {
        let accept = self.take(sender, MessageType::HandoffAccept).await?;
        sender.send_context(&accept, context).await?;
        let context = self.take(receiver, MessageType::TaskContextTransfer).await?;
        let receipt = receiver.complete(&context).await?;
        self.take(sender, MessageType::HandoffComplete).await?;
        self.show_steps(handoff_id).await?;
        let owner = &receipt.owner_id;
        say!("   {owner} owns the task now, epoch {}. Custody {}", receipt.epoch, hex::encode(&receipt.custody_hash));
        Ok(receipt)
    }

    /// Acks the next delivery, which must have this type. Its signature is verified with the sender's key.
    async fn take(&self, agent: &Agent, kind: MessageType) -> Result<Delivered, Failure> {
        let delivered = agent.take().await?;
        if delivered.kind() == kind {
            return Ok(delivered);
        }
        Err(Failure::failed(format!("{} received {:?} instead of {kind:?}", agent.id(), delivered.kind())))
    }

    /// Prints the steps of a handoff that are not yet printed, as a watcher receives them.
    async fn show_steps(&self, handoff_id: &str) -> Result<(), Failure> {
        let request = v1::WatchHandoffRequest { handoff_id: handoff_id.to_owned() };
        let mut updates = self.client.answer(self.client.handoffs().watch_handoff(request).await)?;
        let Some(update) = updates.next().await else { return Ok(()) };
        let handoff = self.client.answer(update.map(tonic::Response::new))?.handoff.unwrap_or_default();
        let mut shown = self.shown.lock().expect("no holder panics");
        let before = shown.insert(handoff_id.to_owned(), handoff.transitions.len()).unwrap_or(0);
        for step in handoff.transitions.iter().skip(before) {
            handoff_show::say_step(step);
        }
        Ok(())
    }

    async fn show_who_owns_what(&self, task_id: &str) -> Result<(), Failure> {
        let request = v1::GetTaskRequest { task_id: task_id.to_owned() };
        let task = self.client.answer(self.client.tasks().get_task(request).await)?.task.unwrap_or_default();
        say_lines!("\nWho owned what:");
        let mut rows = vec![vec!["1".to_owned(), self.chatbot.id().to_string(), "made the task".to_owned()]];
        rows.extend(
            task.hops
                .iter()
                .map(|hop| vec![hop.epoch.to_string(), hop.receiver_id.clone(), format!("from {}", hop.sender_id)]),
        );
        table::print(&[Column::Whole("EPOCH"), Column::Whole("OWNER"), Column::Text("HOW")], rows);
        let status = output::short(task.status().as_str_name(), "TASK_STATUS_");
        say!("");
        say!("{task_id} is {status}, owned by {}: \"{}\"", task.owner_id, task.details);
        say!("custody log: {} entries, {}", task.custody_length, hex::encode(&task.custody_hash));
        say_lines!("\nLook at it again:  baton task show {task_id}    baton handoff list --task {task_id}");
        Ok(())
    }
}

async fn register(client: &Client, identity: &Identity, agent_type: &str) -> Result<(), Failure> {
    let card = v1::AgentCard {
        agent_id: identity.agent.to_string(),
        agent_types: vec![agent_type.to_owned()],
        description: "a part in baton demo".to_owned(),
        keys: vec![identity.agent_key()],
        ..Default::default()
    };
    let request = v1::RegisterAgentRequest { card: Some(card), ..Default::default() };
    client.answer(client.agents().register_agent(request).await).map(drop).map_err(Failure::from)
}
