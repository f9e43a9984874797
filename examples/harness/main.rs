//! The Rust client's harness for `baton conformance --client`. docs/conformance-client.md specifies its protocol.
//!
//! `--wrong NAME` makes it commit one fault, for the tests of the suite itself. The faults are in this example, not in
//! the library.

mod agent;
mod bidding;
mod naive;
mod wrong;

use std::{
    io::{self, BufRead as _, Write as _},
    path::PathBuf,
    time::Duration,
};

use baton_client::{ClientError, Identity, LinkOptions, Options, Trust};
use baton_client::{
    envelope::keys::PrivateKey,
    ids::{AgentId, KeyId},
};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use self::{agent::Agent, wrong::Wrong};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let wrong = wrong::from_arguments()?;
    say(&json!({
        "event": "hello", "protocol": 1, "language": "rust", "library": concat!("baton ", env!("CARGO_PKG_VERSION")),
    }));
    let mut commands = commands();
    if wrong == Some(Wrong::Naive) {
        return naive::run(commands).await;
    }
    let mut agent = None;
    while let Some(command) = commands.recv().await {
        match (command["command"].as_str(), &agent) {
            (Some("connect"), None) => match Agent::connect(&command, wrong).await {
                Ok(connected) => {
                    agent = Some(connected);
                    done(&command, json!({}));
                }
                Err(error) => failed(&command, &error, wrong),
            },
            (Some("handle"), Some(agent)) => agent.handle(&command),
            (Some("release"), Some(agent)) => agent.release(&command),
            (Some("send"), Some(agent)) => agent.send(command),
            (Some("hand_over"), Some(agent)) => agent.hand_over(command),
            (Some("resume"), Some(agent)) => agent.resume(command),
            (Some("delegate"), Some(agent)) => agent.delegate(command),
            (Some("recall"), Some(agent)) => agent.recall(command),
            (Some("cancel"), Some(agent)) => agent.cancel(&command),
            (Some("owned_tasks"), Some(agent)) => agent.owned_tasks(command),
            (Some("negotiate"), Some(agent)) => agent.negotiate(command),
            (Some("counter" | "award"), Some(agent)) => agent.order(command),
            (Some("close"), Some(agent)) => agent.close(command),
            (other, _) => return Err(format!("a command that cannot be: {other:?}").into()),
        }
    }
    Ok(())
}

/// Reads the commands from stdin until its end.
fn commands() -> mpsc::UnboundedReceiver<Value> {
    let (sender, commands) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            let Ok(command) = serde_json::from_str(&line) else { return };
            if sender.send(command).is_err() {
                return;
            }
        }
    });
    commands
}

/// The broker and the identity that a command names.
fn options(command: &Value) -> Result<LinkOptions, Box<dyn std::error::Error>> {
    let text = |name: &str| command[name].as_str().unwrap_or_default().to_owned();
    let milliseconds = |name: &str| command[name].as_u64().map(Duration::from_millis);
    let identity = Identity {
        agent: AgentId::parse(&text("agent_id"))?,
        key_id: KeyId::parse(&text("key_id"))?,
        key: PrivateKey::read(&PathBuf::from(text("key")))?,
    };
    Ok(LinkOptions {
        broker: Options { server: text("server"), ca: Some(text("ca").into()), ..Options::default() },
        identity,
        credit: command["credit"].as_u64().and_then(|credit| u32::try_from(credit).ok()).unwrap_or(16),
        trust: Trust::default(),
        handler_timeout: milliseconds("handler_timeout_ms"),
        stop_grace: milliseconds("stop_grace_ms").unwrap_or_default(),
        resume: command["resume"].as_bool().unwrap_or_default(),
    })
}

fn say(event: &Value) {
    let mut out = io::stdout().lock();
    // A failed write means that the suite has gone.
    let _ = writeln!(out, "{event}");
}

/// Reports that the command is done.
fn done(command: &Value, mut facts: Value) {
    facts["event"] = "done".into();
    facts["id"] = command["id"].clone();
    say(&facts);
}

/// Reports that the command has failed.
fn failed(command: &Value, error: &ClientError, wrong: Option<Wrong>) {
    failed_as(command, account(error), wrong);
}

/// Reports that the command has failed with this error event.
fn failed_as(command: &Value, account: Value, wrong: Option<Wrong>) {
    let mut event = account;
    if wrong == Some(Wrong::UntypedErrors) {
        event = json!({"kind": "other", "message": event["message"]});
    }
    event["event"] = "failed".into();
    event["id"] = command["id"].clone();
    say(&event);
}

/// An error as an event of the protocol.
fn account(error: &ClientError) -> Value {
    let mut account = match error {
        ClientError::Refused(refused) => json!({
            "kind": "refused",
            "reason": refused.reason,
            "code": code_name(refused.code),
            "metadata": refused.metadata,
            "retry_delay_ms": refused.retry_after.map(|delay| delay.as_millis()),
        }),
        ClientError::Untrusted { .. } => json!({"kind": "untrusted"}),
        ClientError::Unverified { reason, .. } => json!({"kind": "unverified", "reason": reason}),
        ClientError::Unreachable { .. } | ClientError::SessionEnded(_) => json!({"kind": "unavailable"}),
        _ => json!({"kind": "other"}),
    };
    account["message"] = error.to_string().into();
    account
}

/// The code as gRPC writes it: `FAILED_PRECONDITION`.
fn code_name(code: tonic::Code) -> String {
    let words = format!("{code:?}");
    let mut name = String::new();
    for letter in words.chars() {
        if letter.is_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.extend(letter.to_uppercase());
    }
    name
}
