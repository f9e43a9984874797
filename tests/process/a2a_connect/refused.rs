//! Agents that a connector cannot use, with the exit codes and the advice.

use serde_json::{Value, json};

use super::{
    command, remote,
    remote::{Remote, Reply},
};
use crate::{
    broker::{Broker, exit_of},
    gateway::Gateway,
};

async fn refused(broker: &Broker, card: impl FnOnce(&str) -> Value) -> (Option<i32>, String) {
    let remote = Remote::with(card, |_, _| Reply::Silence).await;
    let mut command = command(broker, &remote.url);
    command.arg("--allow-local-targets");
    tokio::task::spawn_blocking(move || exit_of(&mut command)).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_card_that_cannot_be_used_ends_the_command() {
    let broker = Broker::start();
    let with = |pointer: &'static str, value: Value| {
        move |url: &str| {
            let mut card = remote::card(url);
            *card.pointer_mut(pointer).unwrap() = value;
            card
        }
    };
    let old = refused(&broker, |url| json!({"name": "old", "protocolVersion": "0.3.0", "url": url})).await;
    let new = refused(&broker, with("/supportedInterfaces/0/protocolVersion", json!("2.0"))).await;
    let grpc = refused(&broker, with("/supportedInterfaces/0/protocolBinding", json!("GRPC"))).await;
    let elsewhere = refused(&broker, with("/supportedInterfaces/0/url", json!("https://a.example"))).await;
    for ((code, said), words) in [
        (old, "the agent speaks A2A 0.3.0"),
        (new, "the agent speaks A2A 2.0"),
        (grpc, "the binding GRPC is neither JSONRPC nor HTTP+JSON"),
        (elsewhere, "allow it with --allow-origin"),
    ] {
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("failed: CARD_UNSUPPORTED: ") && said.contains(words), "{said}");
        assert!(said.contains("the card is http://127.0.0.1:"), "{said}");
    }
    let (code, said) = refused(&broker, |_| json!("none")).await;
    assert!(code == Some(1) && said.contains("failed: CARD_INVALID: "), "{code:?} {said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_card_that_does_not_come_ends_the_command() {
    let broker = Broker::start();
    let gateway = Gateway::start(&broker, &["--a2a-publish", "bob"]);
    let run = |url: &str, change: &dyn Fn(&mut std::process::Command)| {
        let mut command = command(&broker, url);
        change(&mut command);
        exit_of(&mut command)
    };
    let local = |command: &mut std::process::Command| {
        command.arg("--allow-local-targets");
    };
    let gone = "http://127.0.0.1:1";
    let encrypted = format!("https://{}/a2a/none", gateway.address);
    let untrusted = |command: &mut std::process::Command| {
        command.arg("--allow-local-targets").env("SSL_CERT_FILE", broker.folder.path().join("bob.pem"));
    };
    let secret = |command: &mut std::process::Command| {
        command.args(["--allow-local-targets", "--bearer-file", "/no/such/file"]);
    };
    for ((code, said), expected, name, words) in [
        (run(gone, &local), 9, "failed: REMOTE_UNREACHABLE: ", "no card comes from http://127.0.0.1:1/.well-known/"),
        (run(&encrypted, &untrusted), 9, "failed: CERTIFICATE_UNTRUSTED: ", "SSL_CERT_FILE"),
        (run(&encrypted, &local), 1, "failed: CARD_INVALID: ", "404"),
        (run(&encrypted, &|_| {}), 2, "failed: USAGE_INVALID: ", "--allow-local-targets"),
        (run("http://agents.example", &local), 2, "failed: USAGE_INVALID: ", "this machine alone"),
        (run("ftp://agents.example", &|_| {}), 2, "failed: USAGE_INVALID: ", "https://"),
        (run(gone, &secret), 3, "failed: FILE_UNUSABLE: ", "/no/such/file"),
    ] {
        assert_eq!(code, Some(expected), "{said}");
        assert!(said.contains(name) && said.contains(words), "{said}");
    }
}
