//! People as agents: a chatbot hands to a person who works with `baton inbox` and the commands that it names.

use std::{fs, path::Path, process::Stdio};

use baton::proto::v1::{self, MessageType};
use baton_client::{About, context_of};
use serde_json::Value;

use crate::broker::{Broker, a_request, baton, exit_of, identity};

/// The command line of a person with a profile.
pub(crate) struct Person {
    folder: tempfile::TempDir,
}

impl Person {
    pub(crate) fn new(broker: &Broker, name: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let key = folder.path().join("key.pem");
        identity(name).key.write(&key).unwrap();
        let person = Self { folder };
        let (key, ca) = (key.to_str().unwrap(), broker.ca());
        let connection = ["--server", &broker.address, "--ca", ca.to_str().unwrap()];
        let add = [&["profile", "add", "me", "--id", name, "--key", key, "--use"][..], &connection].concat();
        person.run(&add);
        person
    }

    fn command(&self, args: &[&str]) -> std::process::Command {
        let mut command = baton();
        command.env("XDG_CONFIG_HOME", self.folder.path()).args(args).stdin(Stdio::null());
        command
    }

    /// Runs a command. Returns its document on stdout, and the text on stderr.
    #[track_caller]
    pub(crate) fn run(&self, args: &[&str]) -> (Value, String) {
        let output = self.command(args).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{args:?}: {stderr}");
        (serde_json::from_slice(&output.stdout).unwrap_or(Value::Null), stderr)
    }

    pub(crate) fn inbox(&self) -> Value {
        self.run(&["inbox"]).0
    }

    fn file(&self, name: &str) -> std::path::PathBuf {
        Path::new(self.folder.path()).join(name)
    }
}

/// The ids of the tasks in this part of an inbox.
fn tasks(inbox: &Value, part: &str) -> Vec<String> {
    let entries = inbox[part].as_array().unwrap();
    entries.iter().map(|entry| entry["taskId"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chatbot_hands_to_a_person_who_works_with_the_inbox_alone() {
    let broker = Broker::start();
    let bot = broker.agent("chatbot").await;
    drop(broker.agent("carol").await);
    let carol = Person::new(&broker, "carol");
    assert_eq!(carol.inbox()["offers"], Value::Array(vec![]));

    let request = v1::HandoffRequest { initial_context_summary: "refund of order 7".into(), ..a_request() };
    bot.request("carol", "ticket-7", 1, &request).await.unwrap();
    let inbox = carol.inbox();
    assert_eq!(tasks(&inbox, "offers"), ["ticket-7"]);
    assert_eq!(inbox["offers"][0]["initialContextSummary"], "refund of order 7");
    let shown = carol.command(&["inbox", "-o", "table"]).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("baton handoff accept TASK") && shown.contains("refund of order 7"), "{shown}");

    carol.run(&["handoff", "accept", "ticket-7"]);
    let accept = bot.take().await.unwrap();
    assert_eq!(accept.kind(), MessageType::HandoffAccept);
    bot.send_context(&accept, &context_of([("order", r#"{"id": 7}"#.to_owned())])).await.unwrap();
    let inbox = carol.inbox();
    assert_eq!((tasks(&inbox, "offers"), tasks(&inbox, "contexts")), (vec![], vec!["ticket-7".to_owned()]));
    let (code, stderr) = exit_of(&mut carol.command(&["handoff", "complete", "ticket-7"]));
    assert!(code == Some(2) && stderr.contains("--yes"), "nothing is signed unseen: {stderr}");
    let (receipt, stderr) = carol.run(&["handoff", "complete", "ticket-7", "--yes"]);
    assert_eq!(receipt["ownerId"], "carol");
    assert!(stderr.contains("signature and digest verified") && stderr.contains(r#"order: {"id": 7}"#), "{stderr}");
    let inbox = carol.inbox();
    assert_eq!((tasks(&inbox, "contexts"), tasks(&inbox, "tasks")), (vec![], vec!["ticket-7".to_owned()]));

    // The chatbot asks her about another task of its own.
    bot.request("carol", "ticket-8", 1, &a_request()).await.unwrap();
    carol.run(&["handoff", "reject", "ticket-8", "--text", "not mine"]);
    let prompt = v1::TaskPrompt {
        question: "May I refund 90 EUR?".into(),
        answer_by: "carol".into(),
        answer_schema_json: r#"{"required": ["refund"]}"#.into(),
        ..Default::default()
    };
    let status = v1::TaskStatus::WaitingForInput.into();
    let update = v1::TaskStatusUpdate { status, prompt: Some(prompt), ..Default::default() };
    bot.report(&About::task("ticket-8", 1), &update).await.unwrap();
    let inbox = carol.inbox();
    assert_eq!(tasks(&inbox, "questions"), ["ticket-8"]);
    assert_eq!(inbox["questions"][0]["openPrompt"]["prompt"]["question"], "May I refund 90 EUR?");
    let (code, stderr) = exit_of(&mut carol.command(&["task", "input", "ticket-8", "--data-json", "{}"]));
    assert!(code == Some(8) && stderr.contains("refund"), "{stderr}");
    carol.run(&["task", "input", "ticket-8", "--data-json", r#"{"refund": true}"#]);
    let answer = loop {
        let delivered = bot.take().await.unwrap();
        if delivered.kind() == MessageType::TaskInput {
            break delivered.payload::<v1::TaskInput>();
        }
    };
    assert_eq!(answer.data_json, r#"{"refund": true}"#);
    assert_eq!(tasks(&carol.inbox(), "questions"), Vec::<String>::new());

    carol.run(&["task", "status", "ticket-7", "completed", "--result-json", r#"{"refunded": true}"#]);
    assert_eq!(carol.inbox()["tasks"], Value::Array(vec![]));
    // The mail that she has answered has left her mailbox. The inbox has taken no other: a session of hers gets it for the
    // first time.
    bot.send("carol", MessageType::Info, &About::default(), &v1::Info::default()).await.unwrap();
    let session = broker.agent_session("carol").await;
    let first = session.take().await.unwrap();
    assert_eq!((first.delivery.attempt, first.kind()), (1, MessageType::Info));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_of_a_shell_shows_the_number_of_offers() {
    let broker = Broker::start();
    let bot = broker.agent("chatbot").await;
    drop(broker.agent("carol").await);
    let carol = Person::new(&broker, "carol");
    let count = |more: &[&str]| {
        let output = carol.command(&[&["inbox", "--count"], more].concat()).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(count(&[]), "0\n");
    for task in ["ticket-1", "ticket-2", "ticket-3"] {
        bot.request("carol", task, 1, &a_request()).await.unwrap();
    }
    for format in ["table", "json"] {
        assert_eq!(count(&["-o", format]), "3\n");
    }
    // What she has taken or declined, and what she has requested herself, waits no more.
    carol.run(&["handoff", "accept", "ticket-1"]);
    carol.run(&["handoff", "reject", "ticket-2"]);
    carol.run(&["handoff", "request", "--to", "chatbot", "--task", "of-carol"]);
    assert_eq!(count(&[]), "1\n");
    let (code, stderr) = exit_of(&mut carol.command(&["inbox", "--count", "--limit", "2"]));
    assert!(code == Some(2) && stderr.contains("--limit"), "{code:?} {stderr}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_inbox_shows_each_side_of_a_negotiation_its_turn() {
    let broker = Broker::start();
    for name in ["alice", "carol", "dave"] {
        drop(broker.agent_with(name, if name == "alice" { "customer" } else { "analyst" }, 0).await);
    }
    let [alice, carol, dave] = ["alice", "carol", "dave"].map(|name| Person::new(&broker, name));
    let ids = |person: &Person, part: &str| {
        let inbox = person.inbox();
        let entries = inbox[part].as_array().unwrap().iter();
        entries.map(|entry| entry["negotiationId"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let request = ["negotiation", "request", "--to", "all:analyst", "--description", "the sums", "--deadline", "10m"];
    let id = alice.run(&request).0["messageId"].as_str().unwrap().to_owned();
    let (asked, offered) = ("negotiationsAsked", "negotiationsOffered");
    assert_eq!(
        (ids(&carol, asked), ids(&dave, asked), ids(&alice, offered)),
        (vec![id.clone()], vec![id.clone()], vec![])
    );
    carol.run(&["negotiation", "offer", &id, "--cost", "5"]);
    assert_eq!((ids(&carol, asked), ids(&alice, offered)), (vec![], vec![id.clone()]));
    alice.run(&["negotiation", "offer", &id, "--to", "carol", "--cost", "4"]);
    assert_eq!((ids(&carol, asked), ids(&alice, offered)), (vec![id.clone()], vec![]));
    let shown = carol.command(&["inbox", "-o", "table"]).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("baton negotiation offer NEGOTIATION") && shown.contains(&id), "{shown}");
    carol.run(&["negotiation", "offer", &id, "--cost", "4"]);
    alice.run(&["negotiation", "accept", &id, "--to", "carol", "--task", "march"]);
    assert_eq!((ids(&dave, asked), ids(&alice, offered)), (vec![], vec![]));
    let inbox = carol.inbox();
    assert_eq!(tasks(&inbox, "offers"), ["march"]);
    assert_eq!(inbox["offers"][0]["taskType"], "task");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_inbox_is_for_its_agent_alone() {
    let broker = Broker::start();
    let bot = broker.agent("chatbot").await;
    for name in ["carol", "dave"] {
        drop(broker.agent(name).await);
    }
    let (carol, dave) = (Person::new(&broker, "carol"), Person::new(&broker, "dave"));
    bot.request("carol", "ticket-7", 1, &a_request()).await.unwrap();
    assert_eq!(tasks(&carol.inbox(), "offers"), ["ticket-7"]);
    assert_eq!(dave.inbox()["offers"], Value::Array(vec![]));
    // Another key is no proof.
    identity("dave").key.write(&carol.file("other.pem")).unwrap();
    let other = carol.file("other.pem");
    let (code, _) = exit_of(&mut carol.command(&["inbox", "--id", "carol", "--key", other.to_str().unwrap()]));
    assert_eq!(code, Some(8));
    fs::remove_file(carol.file("key.pem")).unwrap();
    assert_eq!(exit_of(&mut carol.command(&["inbox"])).0, Some(3));
}
