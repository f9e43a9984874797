//! A support agent that hands tickets over, or takes them.
//!
//!     ticket_agent --id bob --key bob.pem serve
//!     ticket_agent --id alice --key alice.pem offer --to bob
//!
//! Further flags: `--server HOST:PORT` (127.0.0.1:22866), `--ca FILE` (baton-data/tls/ca.pem), and for `offer` also
//! `--task ID` (a new one) and `--title TEXT`.
//!
//! The key file is made if it is missing. `offer` ends when the ticket is the other agent's, or with exit code 1 when it
//! stays here. After a restart, the same command with the same `--task` continues where the last process ended.

use std::{collections::HashMap, error::Error, path::PathBuf, sync::Arc, time::Duration};

use baton_client::{
    About, Client, Delivered, HandOverError, Handler, Identity, Link, LinkOptions, NotTaken, Options, Trust,
    context_of,
    envelope::keys::PrivateKey,
    ids::{AgentId, IdSource as _, KeyId, SystemIds},
    proto::v1::{self, MessageType},
    time::{Clock as _, SystemClock},
};
use tokio_util::sync::CancellationToken;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (command, flags) = arguments()?;
    let flag = |name: &str, default: &str| flags.get(name).cloned().unwrap_or_else(|| default.to_owned());
    let ca = PathBuf::from(flag("ca", "baton-data/tls/ca.pem"));
    let broker = Options { server: flag("server", "127.0.0.1:22866"), ca: Some(ca), ..Default::default() };
    let key = PathBuf::from(flags.get("key").ok_or("--key is missing")?);
    if !key.exists() {
        PrivateKey::generate(&SystemIds).write(&key)?;
    }
    let identity = Identity {
        agent: AgentId::parse(flags.get("id").ok_or("--id is missing")?)?,
        key_id: KeyId::parse("k1")?,
        key: PrivateKey::read(&key)?,
    };
    register(&broker, &identity).await?;
    let options = LinkOptions {
        broker,
        identity,
        credit: 8,
        trust: Trust::Broker,
        handler_timeout: None,
        stop_grace: Duration::from_secs(10),
        resume: false,
    };
    let link = Link::connect(options, Arc::new(SystemClock), Arc::new(SystemIds)).await?;
    let stop = CancellationToken::new();
    match command.as_str() {
        "serve" => {
            println!("{}: waiting for tickets", link.id());
            tokio::spawn(stop_on_ctrl_c(stop.clone()));
            Ok(link.serve(Tickets, stop).await?)
        }
        "offer" => {
            let to = flags.get("to").ok_or("--to is missing")?;
            let task_id = flag("task", &format!("ticket-{}", SystemIds.message_id(SystemClock.now())));
            let title = flag("title", "Router drops the line every evening.");
            // The answers of the other agent arrive while this agent serves.
            let serving = tokio::spawn({
                let (link, stop) = (link.clone(), stop.clone());
                async move { link.serve(Tickets, stop).await }
            });
            let offered = offer(&link, to, &task_id, &title).await;
            stop.cancel();
            serving.await??;
            offered
        }
        other => Err(format!("{other:?} is neither serve nor offer").into()),
    }
}

/// The command, and the value of each flag.
fn arguments() -> Result<(String, HashMap<String, String>), Box<dyn Error>> {
    let (mut command, mut flags) = (None, HashMap::new());
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.strip_prefix("--") {
            Some(name) => {
                let value = arguments.next().ok_or_else(|| format!("--{name} has no value"))?;
                flags.insert(name.to_owned(), value);
            }
            None => command = Some(argument),
        }
    }
    Ok((command.ok_or("usage: ticket_agent --id ID --key FILE (serve | offer --to AGENT)")?, flags))
}

async fn register(broker: &Options, identity: &Identity) -> Result<(), Box<dyn Error>> {
    let card = v1::AgentCard {
        agent_id: identity.agent.to_string(),
        agent_types: vec!["support".to_owned()],
        description: "Takes and hands over support tickets.".to_owned(),
        keys: vec![identity.agent_key()],
        ..Default::default()
    };
    let client = Client::connect(broker).await?;
    let request = v1::RegisterAgentRequest { card: Some(card), ..Default::default() };
    client.answer(client.agents().register_agent(request).await)?;
    Ok(())
}

async fn stop_on_ctrl_c(stop: CancellationToken) {
    if tokio::signal::ctrl_c().await.is_ok() {
        stop.cancel();
    }
}

/// Takes every ticket.
struct Tickets;

impl Handler for Tickets {
    async fn handle(&self, link: Link, delivered: Delivered) -> Result<(), NotTaken> {
        let (task_id, sender) = (&delivered.envelope.task_id, &delivered.envelope.sender_id);
        match delivered.kind() {
            MessageType::HandoffRequest => {
                let request: v1::HandoffRequest = delivered.payload();
                println!("{task_id}: {sender} asks: {}", request.initial_context_summary);
                link.accept(&delivered, &v1::HandoffAccept::default()).await?;
            }
            MessageType::TaskContextTransfer => {
                let context: v1::TaskContextTransfer = delivered.payload();
                // From here on, and not before, the ticket is this agent's.
                let task = link.complete(&delivered).await?;
                let names: Vec<&str> = context.sections.iter().map(|section| section.name.as_str()).collect();
                println!("{task_id}: taken over from {sender} at epoch {}, with {}", task.epoch(), names.join(", "));
            }
            _ => {} // news of other handoffs
        }
        Ok(())
    }
}

/// Hands one ticket over, and waits until it is gone.
async fn offer(link: &Link, to: &str, task_id: &str, title: &str) -> Result<(), Box<dyn Error>> {
    let request = v1::HandoffRequest {
        task_type: "support-ticket".to_owned(),
        initial_context_summary: title.to_owned(),
        ..Default::default()
    };
    let context = context_of([
        ("task_description", r#"{"customer": "4711", "product": "router"}"#.to_owned()),
        ("goals", r#"["find the cause", "call the customer back"]"#.to_owned()),
    ]);
    let owned = link.owned_tasks().await?;
    let earlier = owned.iter().find(|task| task.task_id == task_id && !task.open_handoff_id.is_empty());
    let handed = match earlier {
        Some(task) => {
            println!("{task_id}: was offered before");
            link.resume_hand_over(&task.open_handoff_id, context.sections).await
        }
        None => {
            println!("{task_id}: offered to {to}");
            link.hand_over(to, &About::task(task_id, 1), &request, context.sections).await
        }
    };
    match handed {
        Ok(handed) => {
            println!("{task_id}: handed over, owned by {} at epoch {}", handed.owner_id, handed.epoch);
            Ok(())
        }
        Err(HandOverError::Failed { message, .. }) => Err(format!("{task_id} stays here: {message}").into()),
        Err(error) => Err(error.into()),
    }
}
