//! A support agent that hands tickets over, or takes them.
//!
//!     ticket_agent --ca ca.pem --id bob --key bob.pem serve
//!     ticket_agent --ca ca.pem --id alice --key alice.pem offer --to bob
//!
//! Without `--id` the agent is the one that the environment or the profile in use names. Further flags: `--server
//! HOST:PORT` (127.0.0.1:22866), and for `offer` also `--task ID` (a new one) and `--title TEXT`.
//!
//! The key file is made if it is missing. `offer` ends when the ticket is the other agent's, or with exit code 1 when it
//! stays here. After a restart, the same command with the same `--task` continues where the last process ended.

use std::{collections::HashMap, error::Error};

use baton_client::{Agent, AgentBuilder, HandOverError, HandlerResult, Offer, json_section, v1::HandoffRequest};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (command, flags) = arguments()?;
    let agent = builder(&flags)?.agent_type("support").description("Takes and hands over support tickets.");
    match command.as_str() {
        "serve" => {
            let agent = agent.on_handoff(take).connect().await?;
            println!("{}: waiting for tickets", agent.id());
            tokio::select! {
                ended = agent.run() => ended?,
                _ = tokio::signal::ctrl_c() => agent.stop().await?,
            }
            Ok(())
        }
        "offer" => {
            let agent = agent.connect().await?;
            let offered = offer(&agent, &flags).await;
            agent.stop().await?;
            offered
        }
        other => Err(format!("{other:?} is neither serve nor offer").into()),
    }
}

/// The agent that the flags name, or else the environment.
fn builder(flags: &HashMap<String, String>) -> Result<AgentBuilder, Box<dyn Error>> {
    let mut agent = match flags.get("id") {
        Some(id) => Agent::builder(id),
        None => Agent::from_env()?,
    };
    for (name, value) in flags {
        agent = match name.as_str() {
            "server" => agent.server(value),
            "ca" => agent.ca(value),
            "key" => agent.key_file(value),
            _ => agent,
        };
    }
    Ok(agent)
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
    Ok((command.ok_or("usage: ticket_agent [--id ID --key FILE] (serve | offer --to AGENT)")?, flags))
}

/// Takes every ticket.
async fn take(offer: Offer) -> HandlerResult {
    let (task_id, sender) = (offer.task_id.clone(), offer.sender_id.clone());
    println!("{task_id}: {sender} asks: {}", offer.summary());
    let takeover = offer.accept().await?;
    // From here on, and not before, the ticket is this agent's.
    let task = takeover.complete().await?;
    let names: Vec<&str> = takeover.context().sections.iter().map(|section| section.name.as_str()).collect();
    println!("{task_id}: taken over from {sender} at epoch {}, with {}", task.epoch(), names.join(", "));
    Ok(())
}

/// Hands one ticket over, and waits until it is gone.
async fn offer(agent: &Agent, flags: &HashMap<String, String>) -> Result<(), Box<dyn Error>> {
    let flag = |name: &str, default: &str| flags.get(name).cloned().unwrap_or_else(|| default.to_owned());
    let to = flags.get("to").ok_or("--to is missing")?;
    let task_id = flag("task", &format!("ticket-{}", agent.instance_id()));
    let request = HandoffRequest {
        task_type: "support-ticket".to_owned(),
        initial_context_summary: flag("title", "Router drops the line every evening."),
        ..Default::default()
    };
    let context = [
        json_section("task_description", serde_json::json!({"customer": "4711", "product": "router"})),
        json_section("goals", ["find the cause", "call the customer back"]),
    ];
    let owned = agent.owned_tasks().await?;
    let earlier = owned.iter().find(|task| task.task_id == task_id && !task.open_handoff_id.is_empty());
    let handed = match earlier {
        Some(task) => {
            println!("{task_id}: was offered before");
            agent.resume_hand_over(&task.open_handoff_id, context.into()).await
        }
        None => {
            println!("{task_id}: offered to {to}");
            agent.hand_over(to, &task_id, &request, context).await
        }
    };
    match handed {
        Ok(handed) => {
            println!("{task_id}: handed over, owned by {} at epoch {}", handed.owner_id, handed.epoch);
            Ok(())
        }
        Err(HandOverError::Failed { message, rejections, .. }) => {
            rejections.iter().for_each(|rejection| println!("{rejection}"));
            Err(format!("{task_id} stays here: {message}").into())
        }
        Err(error) => Err(error.into()),
    }
}
