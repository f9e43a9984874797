//! The Rust agent of the relay test (tests/relay), in which a task goes from language to language.
//!
//!     relay SERVER CA.pem ID KEY.pem pass NEXT     takes the task and hands it on
//!     relay SERVER CA.pem ID KEY.pem audit TASK    replays its custody log
//!
//! Prints its steps as JSON lines.

use std::{collections::HashMap, error::Error, path::PathBuf, sync::Arc};

use baton::replay::Replay;
use baton_client::{Client, Delivered, Identity, Options, session::Agent};
use baton_client::{
    envelope::keys::{PrivateKey, PublicKey},
    ids::{AgentId, KeyId, SystemIds, TaskId},
    proto::v1::{self, MessageType},
    time::SystemClock,
};
use serde_json::json;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [server, ca, id, key, command, argument] = arguments.as_slice() else {
        return Err("usage: relay SERVER CA.pem ID KEY.pem (pass NEXT | audit TASK)".into());
    };
    let options = Options { server: server.clone(), ca: Some(PathBuf::from(ca)), ..Default::default() };
    let client = Client::connect(&options).await?;
    let identity =
        Identity { agent: AgentId::parse(id)?, key_id: KeyId::parse("k1")?, key: PrivateKey::read(key.as_ref())? };
    if command == "audit" {
        return audit(&client.with_token(&client.prove(&identity).await?)?, argument).await;
    }
    register(&client, &identity).await?;
    let agent = Agent::connect(&client, identity, 16, Arc::new(SystemClock), Arc::new(SystemIds)).await?;
    println!("{}", json!({"event": "ready"}));
    let mut contexts = HashMap::new();
    loop {
        let delivered = agent.next().await?;
        handle(&agent, &delivered, argument, &mut contexts).await?;
        agent.session.ack(&delivered.delivery.delivery_id).await?;
    }
}

async fn register(client: &Client, identity: &Identity) -> Result<(), Box<dyn Error>> {
    let card = v1::AgentCard {
        agent_id: identity.agent.to_string(),
        agent_types: vec!["relay".to_owned()],
        keys: vec![identity.agent_key()],
        ..Default::default()
    };
    let request = v1::RegisterAgentRequest { card: Some(card), ..Default::default() };
    client.answer(client.agents().register_agent(request).await)?;
    Ok(())
}

/// Handles a delivery. `contexts` holds the contexts of the tasks to hand on.
async fn handle(
    agent: &Agent,
    delivered: &Delivered,
    next: &str,
    contexts: &mut HashMap<String, v1::TaskContextTransfer>,
) -> Result<(), Box<dyn Error>> {
    let (task_id, sender) = (&delivered.envelope.task_id, &delivered.envelope.sender_id);
    match delivered.kind() {
        MessageType::HandoffRequest => {
            agent.accept(delivered).await?;
        }
        MessageType::TaskContextTransfer => {
            let context: v1::TaskContextTransfer = delivered.payload();
            // The client sends the digest that it computed; the broker compares it with the sender's.
            let epoch = agent.complete(delivered).await?.epoch;
            let digest = hex::encode(&context.context_digest);
            println!("{}", json!({"event": "taken", "sender": sender, "epoch": epoch, "digest": digest}));
            contexts.insert(task_id.clone(), context);
            let request = v1::HandoffRequest { task_type: "relay".to_owned(), ..Default::default() };
            agent.request(next, task_id, epoch, &request).await?;
        }
        MessageType::HandoffAccept => {
            agent.send_context(delivered, &contexts[task_id]).await?;
        }
        MessageType::HandoffComplete => {
            let epoch = delivered.envelope.epoch + 1;
            println!("{}", json!({"event": "handed", "receiver": sender, "epoch": epoch}));
        }
        _ => {}
    }
    Ok(())
}

async fn audit(client: &Client, task_id: &str) -> Result<(), Box<dyn Error>> {
    let request = v1::GetAgentRequest { agent_id: AgentId::broker().to_string() };
    let broker = client.answer(client.agents().get_agent(request).await)?.agent.unwrap_or_default();
    let keys = broker.card.unwrap_or_default().keys;
    let key = PublicKey::parse(&keys.first().ok_or("the broker shows no key")?.public_key)?;
    let mut replay = Replay::new(TaskId::parse(task_id)?, Some(key));
    loop {
        let request = v1::GetCustodyLogRequest {
            task_id: task_id.to_owned(),
            after_number: replay.length(),
            page_size: 200,
            include_envelopes: true,
        };
        let page = client.answer(client.tasks().get_custody_log(request).await)?;
        page.entries.iter().try_for_each(|entry| replay.take(entry))?;
        if replay.length() >= page.custody_length {
            break;
        }
        if page.entries.is_empty() {
            return Err("entries are missing".into());
        }
    }
    let request = v1::GetTaskRequest { task_id: task_id.to_owned() };
    let task = client.answer(client.tasks().get_task(request).await)?.task.unwrap_or_default();
    replay.compare(&task)?;
    let (entries, head) = (replay.length(), hex::encode(replay.hash()));
    let facts = json!({
        "event": "audited", "entries": entries, "owner": task.owner_id, "epoch": task.epoch, "head": head,
    });
    println!("{facts}");
    Ok(())
}
