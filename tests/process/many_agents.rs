//! Thousands of connected agents, of which every other one sleeps: it receives mail and reads none. Active agents do
//! not wait for sleeping agents, and an agent that wakes up receives all of its mail.

use std::{collections::BTreeSet, future::Future, sync::Arc, time::Duration};

use baton::{
    ids::SystemIds,
    proto::v1::{self, HandoffState, MessageType, connect_request::Request, connect_response::Response},
    time::{Clock as _, SystemClock},
};
use baton_client::{About, Client, context_of, session::Agent};
use tokio::{
    sync::{Semaphore, mpsc},
    task::JoinSet,
};
use tokio_stream::{StreamExt as _, wrappers::ReceiverStream};
use tonic::Streaming;

use crate::broker::{Broker, PATIENCE, a_request, card, identity, new_task};

/// TLS connections, each shared by active and sleeping agents.
const CONNECTIONS: usize = 8;
/// The most agents that connect or wake up at the same time.
const AT_A_TIME: usize = 64;
const CREDIT: u32 = 16;
/// Below the number of messages to a sleeper, so that some are delivered and some stay queued.
const CREDIT_OF_SLEEPERS: u32 = 2;
/// The broker's ack wait, which is the shortest wait for a sleeper. Work that waits for one exceeds `PATIENCE`.
const DELIVERY: &str = "[delivery]\nack_wait_ms = 600000\n";

/// The number of agents: BATON_AGENTS, or 2000; a multiple of four.
fn agents() -> usize {
    let many: usize =
        std::env::var("BATON_AGENTS").map_or(2000, |text| text.parse().expect("BATON_AGENTS is a number"));
    assert!(many >= 4 && many.is_multiple_of(4), "BATON_AGENTS must be in fours");
    many
}

/// A connected agent that reads nothing.
struct Sleeper {
    name: String,
    has_credit: bool,
    client: Client,
    _frames: mpsc::Sender<v1::ConnectRequest>,
    /// Held open and never read again.
    _responses: Streaming<v1::ConnectResponse>,
}

/// Two active agents, and two sleeping agents to which they write.
struct Four {
    giver: Agent,
    taker: Agent,
    sleepers: [Sleeper; 2],
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_idle_agents_delay_no_other_and_lose_nothing() {
    let (broker, fours) = (Broker::serve("enrollment = \"open\"", DELIVERY), agents() / 4);
    let empty = resident_kib(&broker);
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        connections.push(broker.client().await);
    }
    let come = |number: usize| come_in_four(connections[number % CONNECTIONS].clone(), number);
    let (fours, coming) = timed(all(AT_A_TIME, 0..fours, come)).await;
    let connected = resident_kib(&broker);
    let (worked, working) = timed(all(fours.len(), fours, work)).await;
    let at_work = resident_kib(&broker);
    let mut handoffs: Vec<Duration> = worked.iter().map(|(_, handoff)| *handoff).collect();
    handoffs.sort();
    let sleepers = worked.into_iter().flat_map(|(four, _)| four.sleepers);
    let (mail, waking) = timed(all(AT_A_TIME, sleepers, wake)).await;
    println!(
        "{} agents on {CONNECTIONS} connections in {coming:?}; {} handoffs in {working:?}, each {:?} to {:?}, half in \
         {:?}; {} messages for sleepers in {waking:?}; broker {empty} KiB empty, {connected} connected, {at_work} \
         after the work, {} in the end",
        agents(),
        handoffs.len(),
        handoffs[0],
        handoffs[handoffs.len() - 1],
        handoffs[handoffs.len() / 2],
        mail.iter().sum::<usize>(),
        resident_kib(&broker),
    );
    broker.stop().await;
}

/// Runs `act` for every item, `at_a_time` at once.
async fn all<I, O: Send + 'static, F: Future<Output = O> + Send + 'static>(
    at_a_time: usize,
    items: impl IntoIterator<Item = I>,
    act: impl Fn(I) -> F,
) -> Vec<O> {
    let (permits, mut acting) = (Arc::new(Semaphore::new(at_a_time)), JoinSet::new());
    for item in items {
        let (permits, act) = (permits.clone(), act(item));
        acting.spawn(async move {
            let _permit = permits.acquire().await;
            act.await
        });
    }
    tokio::time::timeout(PATIENCE, acting.join_all()).await.expect("an active agent waits for a sleeper")
}

async fn timed<T>(act: impl Future<Output = T>) -> (T, Duration) {
    let before = SystemClock.now();
    (act.await, SystemClock.now().since(before))
}

fn resident_kib(broker: &Broker) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", broker.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("Linux says how much is resident");
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

async fn come_in_four(client: Client, number: usize) -> Four {
    let name = |role| format!("{role}-{number}");
    let (giver, taker, deaf, closed) = tokio::join!(
        come(&client, name("giver")),
        come(&client, name("taker")),
        fall_asleep(&client, name("deaf"), true),
        fall_asleep(&client, name("closed"), false),
    );
    Four { giver, taker, sleepers: [deaf, closed] }
}

async fn register(client: &Client, name: &str) {
    let request = v1::RegisterAgentRequest { card: Some(card(name, "")), ..Default::default() };
    client.answer(client.agents().register_agent(request).await).unwrap();
}

async fn come(client: &Client, name: String) -> Agent {
    register(client, &name).await;
    connect(client, &name).await
}

async fn connect(client: &Client, name: &str) -> Agent {
    Agent::connect(client, identity(name), CREDIT, Arc::new(SystemClock), Arc::new(SystemIds)).await.unwrap()
}

/// Connects an agent that reads nothing. With credit the broker sends it deliveries; without credit it sends none.
async fn fall_asleep(client: &Client, name: String, has_credit: bool) -> Sleeper {
    register(client, &name).await;
    let own = client.with_token(&client.prove(&identity(&name)).await.unwrap()).unwrap();
    let (frames, receiver) = mpsc::channel(1);
    let mut responses = own.answer(own.messages().connect(ReceiverStream::new(receiver)).await).unwrap();
    let welcome = responses.next().await.unwrap().unwrap();
    assert!(matches!(welcome.response, Some(Response::Welcome(_))), "{welcome:?}");
    if has_credit {
        let credit = Request::Credit(v1::Credit { max_outstanding: CREDIT_OF_SLEEPERS });
        frames.send(v1::ConnectRequest { request_id: 1, request: Some(credit) }).await.unwrap();
        let credited = responses.next().await.unwrap().unwrap();
        assert!(matches!(credited.response, Some(Response::Credited(_))), "{credited:?}");
    }
    Sleeper { name, has_credit, client: client.clone(), _frames: frames, _responses: responses }
}

/// The mail for a sleeper, in any order.
const MAIL: [&str; 3] = ["before the work", "after the work", "and once more"];

/// Writes to the sleepers, exchanges mail, hands a task over, and writes again. Returns the duration of the handoff.
async fn work(four: Four) -> (Four, Duration) {
    let Four { giver, taker, sleepers } = &four;
    write_to(giver, sleepers, MAIL[0]).await;
    let (giver_id, taker_id) = (giver.id().to_string(), taker.id().to_string());
    tell(giver, &taker_id, "ready?").await;
    assert_eq!(taker.take().await.unwrap().payload::<v1::Info>().text, "ready?");
    tell(taker, &giver_id, "ready").await;
    assert_eq!(giver.take().await.unwrap().payload::<v1::Info>().text, "ready");
    let ((), handoff) = timed(hand_over(giver, taker)).await;
    write_to(taker, sleepers, MAIL[1]).await;
    write_to(giver, sleepers, MAIL[2]).await;
    (four, handoff)
}

async fn tell(from: &Agent, to: &str, text: &str) {
    let info = v1::Info { text: text.into(), ..Default::default() };
    from.send(to, MessageType::Info, &About::default(), &info).await.unwrap();
}

async fn write_to(from: &Agent, sleepers: &[Sleeper], text: &str) {
    for sleeper in sleepers {
        tell(from, &sleeper.name, text).await;
    }
}

async fn hand_over(giver: &Agent, taker: &Agent) {
    giver.request(taker.id().as_str(), &new_task(), 1, &a_request()).await.unwrap();
    taker.accept(&taker.take().await.unwrap()).await.unwrap();
    let accept = giver.take().await.unwrap();
    giver.send_context(&accept, &context_of([("goals", "[]".to_owned())])).await.unwrap();
    let done = taker.complete(&taker.take().await.unwrap()).await.unwrap();
    assert_eq!((done.owner_id.as_str(), done.epoch), (taker.id().as_str(), 2));
    assert_eq!(done.handoff_state(), HandoffState::Completed);
    assert_eq!(giver.take().await.unwrap().kind(), MessageType::HandoffComplete);
}

/// Ends the sleeper's session and begins one that receives all of its mail. Returns the number of messages.
async fn wake(sleeper: Sleeper) -> usize {
    let Sleeper { name, has_credit, client, _frames: frames, _responses: responses } = sleeper;
    drop((frames, responses));
    let awake = connect(&client, &name).await;
    let (mut mail, mut redelivered) = (BTreeSet::new(), 0);
    for _ in MAIL {
        let delivered = tokio::time::timeout(PATIENCE, awake.take()).await;
        let delivered = delivered.unwrap_or_else(|_| panic!("{name} has only {mail:?}")).unwrap();
        redelivered += u32::from(delivered.delivery.attempt > 1);
        mail.insert(delivered.payload::<v1::Info>().text);
    }
    let handed_out = if has_credit { CREDIT_OF_SLEEPERS } else { 0 };
    assert!(redelivered >= handed_out && (has_credit || redelivered == 0), "{name} has had {redelivered} before");
    assert_eq!(mail, MAIL.map(str::to_owned).into(), "{name}");
    mail.len()
}
