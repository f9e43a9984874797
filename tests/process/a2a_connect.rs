//! `baton a2a connect`: a foreign agent of A2A as an agent.

mod chain;
mod cut;
mod refused;
mod remote;
mod states;

use std::{
    io::BufRead as _,
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use baton::proto::v1;
use baton_client::{Agent, AgentBuilder, Delegation, Returned, json_section};
use serde_json::{Value, json};

use crate::broker::{Broker, PATIENCE, a_request, baton, eventually, identity, new_task};

/// A process of `baton a2a connect` as the agent bob. Dropping it kills the process.
struct Connector {
    child: Child,
    lines: std::io::Lines<std::io::BufReader<std::process::ChildStdout>>,
}

impl Connector {
    /// A connector to the agent of this origin, on this machine.
    fn start(broker: &Broker, url: &str, options: &[&str]) -> Self {
        let mut command = command(broker, url);
        command.arg("--allow-local-targets").args(options);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
        let mut connector = Self { child, lines };
        connector.says("connected");
        connector
    }

    /// Skips the output before this event.
    #[track_caller]
    fn says(&mut self, event: &str) -> Value {
        loop {
            let line = self.lines.next().unwrap_or_else(|| panic!("it ended before it said {event}")).unwrap();
            let said: Value = serde_json::from_str(&line).unwrap();
            if said["event"] == event {
                return said["facts"].clone();
            }
        }
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Connector {
    fn drop(&mut self) {
        // The process may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn command(broker: &Broker, url: &str) -> Command {
    let key = broker.folder.path().join("bob.pem");
    if !key.exists() {
        identity("bob").key.write(&key).unwrap();
    }
    let mut command = baton();
    command.args(["a2a", "connect", "--card", url, "--id", "bob", "--type", "billing", "--server", &broker.address]);
    command.arg("--key").arg(key).arg("--ca").arg(broker.ca());
    // The CA of the gateways of these tests stands for those of the system.
    command.env("SSL_CERT_FILE", broker.ca());
    command
}

fn builder(broker: &Broker, name: &str) -> AgentBuilder {
    Agent::builder(name).server(&broker.address).ca(broker.ca()).key(identity(name).key)
}

async fn alice(broker: &Broker) -> Agent {
    builder(broker, "alice").connect().await.unwrap()
}

fn lend(alice: &Agent, task: &str) -> Delegation {
    let request = v1::HandoffRequest {
        initial_context_summary: "bill it".into(),
        conversation_id: "talk-7".into(),
        ..a_request()
    };
    alice.delegate("type:billing", task, &request, [json_section("collected_data", json!({"hours": [40, 2]}))])
}

async fn within<T>(waited: impl IntoFuture<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, waited.into_future()).await.expect("it takes too long")
}

async fn returned(alice: &Agent) -> Returned {
    within(lend(alice, &new_task())).await.unwrap()
}

/// The details of the reports of bob, in order.
async fn reports(alice: &Agent, task: &str) -> Vec<String> {
    let log = alice.verify_custody(task).await.unwrap();
    let told = log.entries.iter().filter_map(baton_client::Progress::of);
    told.filter(|told| told.agent_id == "bob").map(|told| told.details).collect()
}

/// Waits for a report of bob with these words in it.
async fn reported(alice: &Agent, task: &str, words: &str) {
    eventually("bob has reported", async || {
        let known = alice.get_task(task).await.is_ok();
        known && reports(alice, task).await.iter().any(|details| details.contains(words))
    })
    .await;
}

fn file(broker: &Broker, name: &str) -> PathBuf {
    broker.folder.path().join(name)
}
