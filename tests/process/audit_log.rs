//! `baton audit`: following over restarts, and spans of time. Exports of dead letters by time.

use baton::proto::v1::{self, MessageType};
use baton_client::About;
use serde_json::Value;

use crate::{
    broker::{Broker, card, exit_of},
    handoffs_watch::Follower,
    ports::HeldPort,
};

async fn register(broker: &Broker, name: &str) {
    let request = v1::RegisterAgentRequest { card: Some(card(name, "")), ..Default::default() };
    let operator = broker.operator().await;
    operator.answer(operator.agents().register_agent(request).await).unwrap();
}

fn number(shown: &Value) -> u64 {
    shown["entry"]["number"].as_str().unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_followed_audit_log_has_each_act_once_over_restarts() {
    // The broker comes back where the command looks for it.
    let port = HeldPort::new();
    let broker = Broker::serve_on(&port);
    register(&broker, "a").await;
    let log = broker.lines(&["audit"]);
    let after = (log.len() - 1).to_string();
    let mut follower = Follower::of(broker.command(&["audit", "--follow", "--after", &after, "--output", "jsonl"]));
    let mut seen = vec![follower.next()];
    assert_eq!(seen[0], log[log.len() - 1]);
    register(&broker, "b").await;
    seen.push(follower.next());
    let broker = Broker::serve_again(broker.kill());
    register(&broker, "c").await;
    let broker = Broker::serve_again(broker.kill());
    register(&broker, "d").await;
    while seen.last().unwrap()["entry"]["subject"] != "d" {
        seen.push(follower.next());
    }
    follower.stop();
    let log = broker.lines(&["audit", "--after", &after]);
    assert_eq!(seen, log, "each act once, in order");
    let subjects: Vec<&Value> = seen.iter().map(|shown| &shown["entry"]["subject"]).collect();
    assert!(["a", "b", "c", "d"].iter().all(|name| subjects.iter().any(|subject| *subject == name)), "{subjects:?}");
}

#[tokio::test]
async fn an_audit_log_is_shown_for_a_span_of_time() {
    let broker = Broker::start();
    for name in ["a", "b", "c", "d"] {
        register(&broker, name).await;
    }
    let log = broker.lines(&["audit"]);
    let time = |shown: &Value| shown["entry"]["entryTime"].as_str().unwrap().to_owned();
    let (from, to) = (time(&log[log.len() - 3]), time(&log[log.len() - 1]));
    let expected: Vec<&Value> =
        log.iter().filter(|shown| (from.as_str()..to.as_str()).contains(&&*time(shown))).collect();
    assert!(!expected.is_empty() && expected.len() < log.len());
    let shown = broker.lines(&["audit", "--since", &from, "--until", &to]);
    assert!(shown.iter().eq(expected), "{shown:?}");
    assert_eq!(broker.lines(&["audit", "--since", "1h"]), log);
    assert_eq!(broker.lines(&["audit", "--until", "1h"]), Vec::<Value>::new());
    let last = number(log.last().unwrap());
    for (arguments, code, words) in [
        (vec!["audit", "--since", &to, "--until", &from], 2, "is not after"),
        (vec!["audit", "--since", "yesterday"], 2, "2026-11-22"),
        (vec!["audit", "--follow", "--until", "1h"], 2, "--until"),
        (vec!["audit", "--after", "999999"], 1, &*format!("the audit log ends at number {last}")),
        (vec!["audit", "--follow", "--after", "999999"], 1, "or was restored from a backup"),
    ] {
        let (ended, said) = exit_of(&mut broker.command(&arguments));
        assert!(ended == Some(code) && said.contains(words), "{arguments:?}: {ended:?} {said}");
    }
}

#[tokio::test]
async fn dead_letters_are_exported_for_a_span_of_time() {
    let broker = Broker::start();
    let (a, _b) = (broker.agent("a").await, broker.agent("b").await);
    a.send("b", MessageType::Info, &About::default(), &v1::Info::default()).await.unwrap();
    let operator = broker.operator().await;
    let request = v1::DeregisterAgentRequest { agent_id: "b".into(), force: true, ..Default::default() };
    operator.answer(operator.agents().deregister_agent(request).await).unwrap();
    let count = |arguments: &[&str]| broker.lines(&[&["dlq", "export"], arguments].concat()).len();
    assert_eq!(count(&[]), 1);
    assert_eq!(
        (count(&["--since", "1h"]), count(&["--until", "1h"]), count(&["--since", "2h", "--until", "1h"])),
        (1, 0, 0)
    );
    let (ended, said) = exit_of(&mut broker.command(&["dlq", "export", "--since", "1h", "--until", "2h"]));
    assert!(ended == Some(2) && said.contains("is not after"), "{ended:?} {said}");
}
