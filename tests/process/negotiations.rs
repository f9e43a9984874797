//! A negotiation end to end: bids, counter-offers, a kill before the deadline, an award, a winner that rejects.

use std::time::Duration;

use baton::{
    proto::v1::{self, BidState, MessageType, NegotiationState},
    time::{Clock as _, SystemClock},
};
use baton_client::{About, Delivered, context_of, session::Agent};

use serde_json::{Value, json};

use crate::broker::{Broker, exit_of, new_task};

const BIDDERS: [&str; 5] = ["bob", "carol", "dave", "erin", "frank"];

fn offer(cost: f64, round: u32) -> v1::TaskOffer {
    v1::TaskOffer { confidence: 0.9, cost, round, ..Default::default() }
}

async fn bid(agent: &Agent, to: &str, negotiation: &str, offer: &v1::TaskOffer) {
    agent.send(to, MessageType::TaskOffer, &About::handoff("", 0, negotiation), offer).await.unwrap();
}

/// Takes mail until a message of this type arrives.
async fn take_until(agent: &Agent, kind: MessageType) -> Delivered {
    loop {
        let delivered = agent.take().await.unwrap();
        if delivered.kind() == kind {
            return delivered;
        }
    }
}

async fn shown(agent: &str, broker: &Broker, negotiation: &str) -> v1::Negotiation {
    let client = broker.client_of(agent).await;
    let request = v1::GetNegotiationRequest { negotiation_id: negotiation.to_owned() };
    client.answer(client.negotiations().get_negotiation(request).await).unwrap().negotiation.unwrap()
}

#[tokio::test]
async fn a_killed_broker_awards_once_and_asks_the_next_offer_if_the_winner_rejects() {
    let broker = Broker::start();
    let alice = broker.agent("alice").await;
    let mut bidders = Vec::new();
    for name in BIDDERS {
        bidders.push(broker.agent_with(name, "analyst", 100).await);
    }
    // Grace never fetches the request, so the negotiation stays open until its deadline.
    drop(broker.agent_with("grace", "analyst", 0).await);
    let task = new_task();
    let deadline = SystemClock.now().plus(Duration::from_secs(8)).into();
    let request = v1::TaskRequest {
        description: "the sums of march".into(),
        offers_deadline: Some(deadline),
        award_rule: v1::AwardRule::LowestCost.into(),
        max_cost: 9.0,
        handoff: Some(v1::HandoffRequest { task_type: "report".into(), ..Default::default() }),
        ..Default::default()
    };
    let about = About::task(&task, 1);
    let negotiation = alice.send("all:analyst", MessageType::TaskRequest, &about, &request).await.unwrap().message_id;
    for (bidder, cost) in bidders.iter().zip([7.0, 6.0, 8.0, 4.0, 20.0]) {
        assert_eq!(bidder.take().await.unwrap().kind(), MessageType::TaskRequest);
        bid(bidder, "alice", &negotiation, &offer(cost, 0)).await;
    }
    // Bob and alice meet at 3 in three rounds.
    for round in 1..=3 {
        bid(&alice, "bob", &negotiation, &offer(1.0, round)).await;
        assert_eq!(bidders[0].take().await.unwrap().kind(), MessageType::TaskOffer);
        bid(&bidders[0], "alice", &negotiation, &offer(6.0 - f64::from(round), round)).await;
    }
    let about = About::handoff("", 0, &negotiation);
    let refused = alice.send("bob", MessageType::TaskOffer, &about, &offer(1.0, 4)).await.unwrap_err();
    assert_eq!(refused.reason(), Some("ROUND_LIMIT"), "{refused}");
    assert_eq!(shown("alice", &broker, &negotiation).await.state(), NegotiationState::Open);
    drop((alice, bidders));

    let broker = Broker::start_in(broker.kill(), &[]);
    let alice = broker.agent_session("alice").await;
    let before = shown("alice", &broker, &negotiation).await;
    let of_bob = before.bids.iter().find(|bid| bid.agent_id == "bob").unwrap();
    assert_eq!((before.bids.len(), of_bob.cost, of_bob.round), (6, 3.0, 3), "{before:?}");
    // A bidder sees its own bid alone.
    assert_eq!(shown("carol", &broker, &negotiation).await.bids.len(), 1);

    // Bob's offer wins, and bob rejects; erin's is the next one.
    let (bob, erin) = (broker.agent_session("bob").await, broker.agent_session("erin").await);
    let award = take_until(&bob, MessageType::NegotiationClosed).await;
    let closed: v1::NegotiationClosed = award.payload();
    assert_eq!((closed.state(), &*closed.winner_id), (NegotiationState::Awarded, "bob"));
    let about = About::handoff(&task, 1, &closed.handoff_id);
    let reject = v1::HandoffReject { reason: v1::RejectReason::Other.into(), ..Default::default() };
    bob.send("alice", MessageType::HandoffReject, &about, &reject).await.unwrap();
    let award = take_until(&erin, MessageType::NegotiationClosed).await;
    assert_eq!(award.payload::<v1::NegotiationClosed>().winner_id, "erin");
    erin.send("alice", MessageType::HandoffAccept, &about, &v1::HandoffAccept::default()).await.unwrap();
    let accept = take_until(&alice, MessageType::HandoffAccept).await;
    alice.send_context(&accept, &context_of([("goals", "[]".to_owned())])).await.unwrap();
    erin.complete(&take_until(&erin, MessageType::TaskContextTransfer).await).await.unwrap();

    let settled = shown("alice", &broker, &negotiation).await;
    assert_eq!((settled.state(), &*settled.winner_id), (NegotiationState::Settled, "erin"));
    let states = settled.bids.iter().map(|bid| (&*bid.agent_id, bid.state()));
    let expected = |name| if name == "grace" { BidState::NotReached } else { BidState::Offered };
    assert!(states.into_iter().all(|(name, state)| state == expected(name)), "{settled:?}");
    for name in ["carol", "dave", "frank"] {
        let bidder = broker.agent_session(name).await;
        let closed: v1::NegotiationClosed = take_until(&bidder, MessageType::NegotiationClosed).await.payload();
        assert_eq!((closed.state(), &*closed.winner_id), (NegotiationState::Settled, "erin"), "{name}");
    }
    let audit = broker.lines(&["task", "audit", &task]).remove(0);
    assert_eq!(audit["ownerId"].as_str(), Some("erin"), "{audit}");
}

#[tokio::test]
async fn the_command_line_negotiates_and_sends_mail() {
    let broker = Broker::start();
    let key = |name: &str| broker.data().join(format!("{name}.pem")).to_str().unwrap().to_owned();
    for (name, agent_type) in [("alice", "customer"), ("bob", "analyst"), ("carol", "analyst")] {
        assert_eq!(exit_of(&mut broker.command(&["keygen", "--out", &key(name)])).0, Some(0));
        broker.lines(&["agent", "register", "--id", name, "--type", agent_type, "--key", &key(name)]);
    }
    let run = |name: &str, arguments: &[&str]| {
        let key = key(name);
        let arguments: Vec<&str> = arguments.iter().copied().chain(["--id", name, "--key", &key]).collect();
        broker.lines(&arguments).remove(0)
    };
    let made = run(
        "alice",
        &[
            "negotiation",
            "request",
            "--to",
            "all:analyst",
            "--description",
            "sums",
            "--task-type",
            "sums",
            "--deadline",
            "1h",
        ],
    );
    let id = made["messageId"].as_str().unwrap().to_owned();
    run("bob", &["negotiation", "offer", &id, "--confidence", "0.8", "--cost", "3", "--estimate", "20m"]);
    run("alice", &["negotiation", "offer", &id, "--to", "bob", "--cost", "2"]);
    run("bob", &["negotiation", "offer", &id, "--cost", "2.5"]);
    let shown = run("alice", &["negotiation", "show", &id]);
    let bids = shown["bids"].as_array().unwrap();
    let costs: Vec<(&str, &Value)> = bids.iter().map(|bid| (bid["agentId"].as_str().unwrap(), &bid["cost"])).collect();
    assert!(costs.contains(&("bob", &json!(2.5))), "{shown:#}");
    run("alice", &["negotiation", "accept", &id, "--to", "bob", "--task", "sums"]);
    assert_eq!(run("bob", &["negotiation", "list", "--agent", "bob"])["state"], "NEGOTIATION_STATE_AWARDED");
    let (code, stderr) =
        exit_of(&mut broker.command(&["negotiation", "cancel", &id, "--id", "alice", "--key", &key("alice")]));
    assert!(code == Some(8) && stderr.contains("NEGOTIATION_CLOSED"), "{stderr}");
    run("alice", &["mail", "send", "--to", "bob", "--text", "hello", "--data", r#"{"n": 1}"#]);
    run("alice", &["mail", "send", "--to", "bob", "--delegation", "--text", "count"]);
    // A person at a command line has no session that could end.
    assert_eq!(broker.lines(&["agent", "show", "alice"])[0]["presence"], "PRESENCE_UNSEEN");
    let (code, stderr) = exit_of(&mut broker.command(&[
        "mail",
        "send",
        "--to",
        "bob",
        "--data",
        "[]",
        "--id",
        "alice",
        "--key",
        &key("alice"),
    ]));
    assert!(code == Some(2) && stderr.contains("'[]' for '--data <JSON>': must be a JSON object"), "{stderr}");
}
