//! The command line of an agent: waits, limits and lists.

use std::{fs, path::Path};

use serde_json::json;

use crate::broker::{Broker, baton, exit_of, identity};

/// A broker with the agents alice and bob, whose keys are in its folder, and a task of alice's.
async fn world() -> Broker {
    let broker = Broker::start();
    for name in ["alice", "bob"] {
        broker.agent(name).await;
        identity(name).key.write(&key(&broker, name)).unwrap();
    }
    broker
}

fn key(broker: &Broker, name: &str) -> std::path::PathBuf {
    broker.folder.path().join(format!("{name}.pem"))
}

/// A command that acts as this agent, without a token.
fn acting(broker: &Broker, name: &str, arguments: &[&str]) -> std::process::Command {
    let mut command = baton();
    command.args(arguments).args(["--server", &broker.address, "--ca"]).arg(broker.ca());
    command.args(["--id", name, "--key"]).arg(key(broker, name));
    command
}

fn file(broker: &Broker, name: &str, value: &serde_json::Value) -> String {
    let path = broker.folder.path().join(name);
    fs::write(&path, value.to_string()).unwrap();
    path.to_str().unwrap().to_owned()
}

#[track_caller]
fn check((code, stderr): (Option<i32>, String), expected: i32, part: &str) {
    assert_eq!(code, Some(expected), "{stderr}");
    assert!(stderr.contains(part), "{stderr:?} lacks {part:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_over_the_limit_of_a_message_is_refused_with_the_limit() {
    let broker = world().await;
    let text = "x".repeat(5_000_000);
    let context = file(&broker, "context.json", &json!({"notes": {"text": text}}));
    let plan = file(&broker, "plan.json", &json!([{"id": "a", "agent_id": "bob", "description": text}]));
    let request = ["handoff", "request", "--to", "bob", "--task", "t1"];
    assert_eq!(exit_of(&mut acting(&broker, "alice", &request)).0, Some(0));
    for arguments in [&["context", "checkpoint", "t1", "--file", &context][..], &["plan", "validate", &plan]] {
        let ended = exit_of(&mut acting(&broker, "alice", arguments));
        check(ended.clone(), 8, "PAYLOAD_TOO_LARGE");
        check(ended, 8, "4194304");
    }
}
