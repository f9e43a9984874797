//! The stream of `WatchHandoffs` over the wire, and the command line's views of it.

use std::{
    io::{BufRead as _, BufReader, Lines},
    process::{Child, ChildStdout, Command, Stdio},
    sync::Arc,
};

use baton::proto::v1::{self, HandoffState, MessageType, watch_handoffs_response::Event};
use baton_client::{About, Client};
use serde_json::Value;
use tonic::Streaming;

use crate::{
    broker::{Broker, PATIENCE, a_request, card, composer, new_task},
    ports::HeldPort,
};

struct Watch(Streaming<v1::WatchHandoffsResponse>);

impl Watch {
    async fn begin(client: &Client, request: v1::WatchHandoffsRequest) -> Self {
        Self(client.answer(client.handoffs().watch_handoffs(request).await).unwrap())
    }

    async fn after(client: &Client, after_cursor: u64) -> Self {
        Self::begin(client, v1::WatchHandoffsRequest { after_cursor, ..Default::default() }).await
    }

    async fn next(&mut self) -> (Event, u64) {
        let next = tokio::time::timeout(PATIENCE, self.0.message()).await.expect("an event in time");
        let response = next.unwrap().expect("the watch goes on");
        (response.event.unwrap(), response.cursor)
    }

    /// The ids and states of the handoffs and the gaps up to `caught_up`, and its cursor.
    async fn catches_up(&mut self) -> (Vec<(String, HandoffState)>, Vec<v1::WatchGap>, u64) {
        let (mut handoffs, mut gaps) = (Vec::new(), Vec::new());
        loop {
            match self.next().await {
                (Event::CaughtUp(_), cursor) => return (handoffs, gaps, cursor),
                (Event::Handoff(handoff), _) => handoffs.push((handoff.handoff_id.clone(), handoff.state())),
                (Event::Gap(gap), _) => gaps.push(gap),
            }
        }
    }

    /// Waits until this handoff has this state. Returns the cursor.
    async fn sees(&mut self, id: &str, state: HandoffState) -> u64 {
        loop {
            if let (Event::Handoff(handoff), cursor) = self.next().await
                && (handoff.handoff_id.as_str(), handoff.state()) == (id, state)
            {
                return cursor;
            }
        }
    }
}

async fn request(broker: &Broker, from: &str, to: &str) -> v1::Receipt {
    let (client, about) = (broker.client().await, About::task(&new_task(), 1));
    client.send(composer(from).encode(to, MessageType::HandoffRequest, &about, &a_request())).await.unwrap()
}

async fn cancel(broker: &Broker, from: &str, to: &str, receipt: &v1::Receipt) {
    let client = broker.client().await;
    let about = About::handoff(&receipt.task_id, 1, &receipt.handoff_id);
    let payload = v1::HandoffCancel::default();
    client.send(composer(from).encode(to, MessageType::HandoffCancel, &about, &payload)).await.unwrap();
}

#[tokio::test]
async fn a_watch_of_all_handoffs_goes_on_over_a_kill() {
    let broker = Broker::start();
    let (a, b) = (broker.agent("a").await, broker.agent("b").await);
    let operator = broker.operator().await;
    let first = request(&broker, "a", "b").await;
    let mut watch = Watch::after(&operator, 0).await;
    let (there, gaps, _) = watch.catches_up().await;
    assert_eq!((there.len(), there[0].0.as_str(), gaps), (1, first.handoff_id.as_str(), Vec::new()));
    let second = request(&broker, "b", "a").await;
    let cursor = watch.sees(&second.handoff_id, HandoffState::Requested).await;
    // What happens from here on the watcher does not get before the kill.
    drop(watch);
    cancel(&broker, "a", "b", &first).await;
    let third = request(&broker, "a", "b").await;
    cancel(&broker, "a", "b", &third).await;
    drop((a, b, operator));
    let broker = Broker::start_in(broker.kill(), &[]);
    let operator = broker.operator().await;
    let mut watch = Watch::after(&operator, cursor).await;
    let (mut there, gaps, resumed) = watch.catches_up().await;
    there.sort();
    let mut expected = vec![(first.handoff_id, HandoffState::Cancelled), (third.handoff_id, HandoffState::Cancelled)];
    expected.sort();
    // The second may have been delivered meanwhile, which is a change too.
    there.retain(|(id, _)| *id != second.handoff_id);
    assert_eq!((there, gaps), (expected, Vec::new()));
    assert!(resumed > cursor);
    cancel(&broker, "b", "a", &second).await;
    watch.sees(&second.handoff_id, HandoffState::Cancelled).await;
    let mut again = Watch::after(&operator, 0).await;
    assert_eq!(again.catches_up().await.0, [], "a new watch begins with the open handoffs");
}

#[tokio::test]
async fn a_watcher_sees_only_what_it_may_and_what_it_asks_for() {
    // The policy of a development broker lets every agent read all handoffs.
    let broker = Broker::serve("", "");
    let operator = broker.operator().await;
    for name in ["a", "b", "c"] {
        let request = v1::RegisterAgentRequest { card: Some(card(name, "")), ..Default::default() };
        operator.answer(operator.agents().register_agent(request).await).unwrap();
    }
    let of_b = request(&broker, "a", "b").await;
    let of_c = request(&broker, "b", "c").await;
    let ids = |seen: Vec<(String, HandoffState)>| seen.into_iter().map(|(id, _)| id).collect::<Vec<_>>();
    let client = broker.client_of("c").await;
    let mut watch = Watch::after(&client, 0).await;
    assert_eq!(ids(watch.catches_up().await.0), std::slice::from_ref(&of_c.handoff_id));
    for filter in [
        v1::WatchHandoffsRequest { task_id: of_b.task_id.clone(), ..Default::default() },
        v1::WatchHandoffsRequest { sender_id: "a".into(), ..Default::default() },
        v1::WatchHandoffsRequest { task_type: "support".into(), sender_id: "a".into(), ..Default::default() },
    ] {
        let mut watch = Watch::begin(&operator, filter).await;
        assert_eq!(ids(watch.catches_up().await.0), std::slice::from_ref(&of_b.handoff_id));
    }
    cancel(&broker, "a", "b", &of_b).await;
    cancel(&broker, "b", "c", &of_c).await;
    // The first event is of the only handoff that c takes part in.
    watch.sees(&of_c.handoff_id, HandoffState::Cancelled).await;
}

#[tokio::test]
async fn a_cursor_of_the_future_gets_a_gap_and_then_all_open_handoffs() {
    let broker = Broker::start();
    let _sessions = (broker.agent("a").await, broker.agent("b").await);
    let operator = broker.operator().await;
    let open = request(&broker, "a", "b").await;
    let mut watch = Watch::after(&operator, 1 << 40).await;
    let (there, gaps, cursor) = watch.catches_up().await;
    assert_eq!(there[0].0, open.handoff_id);
    assert!(gaps.len() == 1 && gaps[0].last_number == 1 << 40 && cursor < 1 << 40, "{gaps:?}");
}

#[tokio::test]
async fn wrong_filters_are_refused_by_name() {
    let broker = Broker::start();
    let operator = broker.operator().await;
    let refused = |status: tonic::Status| code_of(&operator, status);
    let watch = v1::WatchHandoffsRequest { task_id: "\n".into(), ..Default::default() };
    assert_eq!(refused(operator.handoffs().watch_handoffs(watch).await.unwrap_err()), "FIELD_INVALID");
    let list = v1::ListHandoffsRequest { states: vec![99], ..Default::default() };
    assert_eq!(refused(operator.handoffs().list_handoffs(list).await.unwrap_err()), "FIELD_INVALID");
    let tasks = v1::ListTasksRequest { order: 99, ..Default::default() };
    assert_eq!(refused(operator.tasks().list_tasks(tasks).await.unwrap_err()), "FIELD_INVALID");
    let order = v1::TaskOrder::Update.into();
    let tasks = v1::ListTasksRequest { order, asked_agent_id: "a".into(), ..Default::default() };
    assert_eq!(refused(operator.tasks().list_tasks(tasks).await.unwrap_err()), "FIELD_INVALID");
    let page_token = "0".repeat(24);
    let list = v1::ListHandoffsRequest { page_token, open_only: true, ..Default::default() };
    assert_eq!(refused(operator.handoffs().list_handoffs(list).await.unwrap_err()), "PAGE_TOKEN_INVALID");
}

fn code_of(client: &Client, status: tonic::Status) -> String {
    let error = client.answer::<()>(Err(status)).unwrap_err();
    error.reason().expect("the broker names a code").to_owned()
}

#[tokio::test]
async fn an_agent_shows_how_much_mail_waits_for_it() {
    let broker = Broker::start();
    let _sessions = (broker.agent("a").await, broker.agent("b").await);
    let operator = broker.operator().await;
    let mailbox = async |name: &str| {
        let request = v1::GetAgentRequest { agent_id: name.into() };
        let agent = operator.answer(operator.agents().get_agent(request).await).unwrap().agent.unwrap();
        agent.mailbox.expect("an agent has a mailbox")
    };
    assert_eq!(mailbox("b").await.oldest_letter_time, None);
    request(&broker, "a", "b").await;
    let waiting = mailbox("b").await;
    assert_eq!(waiting.letter_count, Some(1));
    assert!(waiting.oldest_letter_time.is_some());
    let listed = operator.answer(operator.agents().list_agents(v1::ListAgentsRequest::default()).await).unwrap();
    let of = |name: &str| listed.agents.iter().find(|agent| agent.card.as_ref().unwrap().agent_id == name).unwrap();
    assert_eq!((of("b").mailbox, of("a").mailbox.unwrap().letter_count), (Some(waiting), Some(0)));
    let own = v1::GetAgentRequest { agent_id: "baton".into() };
    let broker_itself = operator.answer(operator.agents().get_agent(own).await).unwrap().agent.unwrap();
    assert_eq!(broker_itself.mailbox, None);
}

/// Lines of a command that runs until it is told to end.
pub(crate) struct Follower {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Follower {
    pub(crate) fn of(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    pub(crate) fn next(&mut self) -> Value {
        serde_json::from_str(&self.lines.next().expect("the command goes on").unwrap()).unwrap()
    }

    /// Not by ctrl-C, which a program may have inherited as ignored.
    pub(crate) fn stop(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Sends ctrl-C. Returns the exit code.
    fn interrupt(mut self) -> Option<i32> {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
        drop(self.lines);
        self.child.wait().unwrap().code()
    }
}

#[tokio::test]
async fn baton_handoff_watch_prints_what_is_open_and_each_change_with_a_cursor() {
    let broker = Broker::start();
    let _sessions = (broker.agent("a").await, broker.agent("b").await);
    let first = request(&broker, "a", "b").await;
    let mut watch = Follower::of(broker.command(&["handoff", "watch", "--from", "a", "--output", "jsonl"]));
    assert_eq!(watch.next()["handoff"]["handoffId"], first.handoff_id);
    assert_eq!(watch.next()["caughtUp"], true);
    cancel(&broker, "a", "b", &first).await;
    let cursor = loop {
        let change = watch.next();
        assert_eq!(change["handoff"]["handoffId"], first.handoff_id);
        if change["handoff"]["state"] == "HANDOFF_STATE_CANCELLED" {
            break change["cursor"].as_str().unwrap().to_owned();
        }
    };
    watch.stop();
    let mut again = Follower::of(broker.command(&["handoff", "watch", "--after", &cursor, "--output", "jsonl"]));
    assert_eq!(again.next()["caughtUp"], true, "nothing has changed since the cursor");
    again.stop();
}

#[tokio::test]
async fn baton_top_shows_whose_turn_it_is_and_ends_in_order_with_ctrl_c() {
    let broker = Broker::start();
    let _sessions = (broker.agent("a").await, broker.agent("b").await);
    let first = request(&broker, "a", "b").await;
    let once = &broker.lines(&["top", "--once"])[0];
    assert_eq!((&once["open"], &once["handoffs"][0]["turn"]), (&Value::from(1), &Value::from("b")));
    assert!(once["handoffs"][0]["secondsLeft"].as_u64().unwrap() <= 360 && once["rates"].is_null(), "{once}");
    assert_eq!(
        (&once["agents"][0]["card"]["agentId"], &once["agents"][0]["mailbox"]["letterCount"]),
        (&"b".into(), &"1".into())
    );
    let table = broker.command(&["top", "--once", "--output", "table"]).output().unwrap();
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    assert!(table.contains("1 open") && table.contains("LEFT") && table.contains("OLDEST"), "{table}");

    let mut top = Follower::of(broker.command(&["top", "--every", "100ms", "--output", "jsonl"]));
    assert_eq!(top.next()["open"], 1);
    cancel(&broker, "a", "b", &first).await;
    while top.next()["open"] != 0 {}
    let ended = loop {
        let shown = top.next();
        if !shown["rates"].is_null() {
            break shown["rates"]["ended"]["CANCELLED"].clone();
        }
    };
    assert_eq!(ended, 1);
    assert_eq!(top.interrupt(), Some(0));
    let wrong = broker.command(&["top", "--every", "1ms"]).output().unwrap();
    assert_eq!(wrong.status.code(), Some(2));
}

#[tokio::test]
async fn a_watch_of_a_task_goes_on_after_the_broker_was_killed() {
    let port = HeldPort::new();
    let broker = Broker::start_on(&port, Arc::new(tempfile::tempdir().unwrap()));
    let _sessions = (broker.agent("a").await, broker.agent("b").await);
    let first = request(&broker, "a", "b").await;
    let mut watch = Follower::of(broker.command(&["task", "watch", &first.task_id, "--output", "jsonl"]));
    let number = |shown: &Value| shown["entry"]["entry"]["number"].as_str().unwrap().to_owned();
    assert_eq!(number(&watch.next()), "1");
    let broker = Broker::start_on(&port, broker.kill());
    cancel(&broker, "a", "b", &first).await;
    let mut numbers = vec!["1".to_owned()];
    loop {
        let shown = watch.next();
        numbers.push(number(&shown));
        if shown["entry"]["entry"]["handoffState"] == "HANDOFF_STATE_CANCELLED" {
            break;
        }
    }
    let expected: Vec<String> = (1..=numbers.len()).map(|number| number.to_string()).collect();
    assert_eq!(numbers, expected, "each entry came once");
    watch.stop();
}
