//! The page on which a person decides as an agent: `baton console --id ID --key FILE`.

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Stdio},
};

use baton::proto::v1::{self, MessageType};
use baton_client::{About, context_of};
use serde_json::Value;
use tokio::{io::AsyncWriteExt as _, net::TcpStream};

use crate::{
    broker::{Broker, a_request, baton, identity},
    hostile::raw::{self, Answer},
};

/// A running `baton console` of an agent.
struct Desk {
    child: Child,
    address: String,
    path: String,
    _folder: tempfile::TempDir,
}

impl Desk {
    fn open(broker: &Broker, name: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let key = folder.path().join("key.pem");
        identity(name).key.write(&key).unwrap();
        let mut command = baton();
        command.args(["console", "-o", "jsonl", "--server", &broker.address, "--id", name, "--ca"]).arg(broker.ca());
        let mut child = command.arg("--key").arg(&key).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let said: Value = serde_json::from_str(&line).unwrap();
        assert!(
            said["url"].as_str().unwrap().starts_with(&format!("https://{}/login#code=", broker.address)),
            "{said}"
        );
        let url = said["deskUrl"].as_str().unwrap().strip_prefix("http://").unwrap().to_owned();
        let (address, path) = url.split_once('/').unwrap();
        Self { child, address: address.to_owned(), path: format!("/{path}"), _folder: folder }
    }

    async fn ask(&self, line: &str, body: &str) -> Answer {
        let mut stream = TcpStream::connect(&self.address).await.unwrap();
        let kind = "content-type: application/x-www-form-urlencoded\r\nconnection: close\r\n";
        let (host, length) = (&self.address, body.len());
        let text = format!("{line} HTTP/1.1\r\nhost: {host}\r\n{kind}content-length: {length}\r\n\r\n{body}");
        stream.write_all(text.as_bytes()).await.unwrap();
        let answer = raw::answer(&mut stream).await.expect("an answer");
        assert!(answer.head.contains("content-security-policy: default-src 'none';"), "{}", answer.head);
        answer
    }

    async fn page(&self, below: &str) -> Answer {
        self.ask(&format!("GET {}{below}", self.path), "").await
    }

    async fn decide(&self, below: &str, body: &str) -> Answer {
        self.ask(&format!("POST {}{below}", self.path), body).await
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_decides_in_a_browser_and_signs_on_the_own_machine() {
    let broker = Broker::start();
    let bot = broker.agent("chatbot").await;
    drop(broker.agent("carol").await);
    let desk = Desk::open(&broker, "carol");
    assert!(desk.page("").await.body.contains("Nothing waits for carol"));

    let request = v1::HandoffRequest { initial_context_summary: "<b>refund</b> of order 7".into(), ..a_request() };
    let first = bot.request("carol", "ticket-7", 1, &request).await.unwrap().handoff_id;
    let second = bot.request("carol", "ticket-8", 1, &a_request()).await.unwrap().handoff_id;
    let inbox = desk.page("").await.body;
    assert!(inbox.contains("&#60;b&#62;refund&#60;/b&#62; of order 7") && inbox.contains("ticket-8"), "{inbox}");
    let accepted = desk.decide(&format!("handoffs/{first}/accept"), "").await;
    assert_eq!(accepted.status, 303, "{}", accepted.body);
    let accept = bot.take().await.unwrap();
    assert_eq!(accept.kind(), MessageType::HandoffAccept);
    assert_eq!(desk.decide(&format!("handoffs/{second}/reject"), "text=not+mine").await.status, 303);
    bot.send_context(&accept, &context_of([("order", r#"{"id": 7}"#.to_owned())])).await.unwrap();

    let context = desk.page(&format!("handoffs/{first}")).await;
    assert!(
        context.status == 200 && context.body.contains("<h3>id</h3><p class=\"plain\"><bdi>7</bdi>"),
        "{}",
        context.body
    );
    assert_eq!(desk.decide(&format!("handoffs/{first}/complete"), "").await.status, 303);
    assert!(desk.page("").await.body.contains("Tasks that you own"));

    let prompt = v1::TaskPrompt { question: "May I?".into(), answer_by: "carol".into(), ..Default::default() };
    let status = v1::TaskStatus::WaitingForInput.into();
    let update = v1::TaskStatusUpdate { status, prompt: Some(prompt), ..Default::default() };
    bot.report(&About::task("ticket-8", 1), &update).await.unwrap();
    assert!(desk.page("").await.body.contains("May I?"));
    assert_eq!(desk.decide("tasks/ticket-8/input", "text=you+may").await.status, 303);
    let answer = loop {
        let delivered = bot.take().await.unwrap();
        if delivered.kind() == MessageType::TaskInput {
            break delivered.payload::<v1::TaskInput>();
        }
    };
    assert_eq!(answer.text, "you may");
    assert_eq!(desk.decide("tasks/ticket-7/status", "text=done").await.status, 303);
    assert!(desk.page("").await.body.contains("Nothing waits for carol"));
    // The broker's refusal is shown with its code, and changes nothing.
    let late = desk.decide(&format!("handoffs/{first}/accept"), "").await;
    assert!(late.status == 409 && late.body.contains("HANDOFF_FINAL"), "{}", late.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_does_not_know_the_address_gets_nothing() {
    let broker = Broker::start();
    drop(broker.agent("carol").await);
    let desk = Desk::open(&broker, "carol");
    for path in ["/", "/handoffs/x/accept", &format!("/{}/", "0".repeat(64))] {
        assert_eq!(desk.ask(&format!("GET {path}"), "").await.status, 404, "{path}");
        assert_eq!(desk.ask(&format!("POST {path}"), "").await.status, 404, "{path}");
    }
    assert_eq!(desk.page("").await.status, 200);
}
