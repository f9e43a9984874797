//! Agents of the Rust client at a broker: handing over and delegating tasks by calls, processes that die in between,
//! and messages over the size limits.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use baton::{
    proto::v1::{self, MessageType},
    time::{Clock, SystemClock, Timestamp},
};
use baton_client::{
    About, ClientError, Delivered, HandOverError, Handler, Link, NotTaken, RecallReason, Returned, context_of,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

use crate::broker::{Broker, PATIENCE, a_request, baton, card, eventually, exit_of, new_task};

/// The agent's reactions to its mail.
#[derive(Default)]
struct Plan {
    /// The message type at which the process appears to die: its handler never returns.
    dies_at: Option<MessageType>,
    rejects: bool,
    /// The sections that the context provider returns.
    provides: Option<Vec<v1::ContextSection>>,
    /// The result with which the agent ends a task after a takeover.
    finishes: Option<serde_json::Value>,
}

struct Mail {
    plan: Plan,
    seen: mpsc::UnboundedSender<Delivered>,
}

impl Handler for Mail {
    async fn handle(&self, link: Link, delivered: Delivered) -> Result<(), NotTaken> {
        drop(self.seen.send(delivered.clone()));
        if self.plan.dies_at == Some(delivered.kind()) {
            std::future::pending::<()>().await;
        }
        match delivered.kind() {
            MessageType::HandoffRequest if self.plan.rejects => {
                let reject = v1::HandoffReject { reason: v1::RejectReason::NoSkill.into(), ..Default::default() };
                link.reject(&delivered, &reject).await?;
            }
            MessageType::HandoffRequest => link.accept(&delivered, &v1::HandoffAccept::default()).await?,
            MessageType::TaskContextTransfer => {
                let task = link.complete(&delivered).await?;
                if let Some(result) = self.plan.finishes.clone() {
                    task.finish(Some(result)).await?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    async fn context(&self, _: Link, accept: Delivered) -> Result<Option<Vec<v1::ContextSection>>, NotTaken> {
        drop(self.seen.send(accept));
        Ok(self.plan.provides.clone())
    }
}

/// One process of an agent. Dropping it kills the process.
struct Process {
    link: Link,
    seen: mpsc::UnboundedReceiver<Delivered>,
    serving: JoinHandle<()>,
}

impl Process {
    async fn start(broker: &Broker, name: &str, plan: Plan) -> Self {
        let link = broker.link(name).await;
        let (sender, seen) = mpsc::unbounded_channel();
        let serving = {
            let (link, mail) = (link.clone(), Mail { plan, seen: sender });
            tokio::spawn(async move { link.serve(mail, CancellationToken::new()).await.unwrap() })
        };
        Self { link, seen, serving }
    }

    /// The next message of this type that reaches the handler.
    async fn sees(&mut self, kind: MessageType) -> Delivered {
        loop {
            let seen = tokio::time::timeout(PATIENCE, self.seen.recv()).await;
            let delivered = seen.expect("it comes in time").expect("the agent serves");
            if delivered.kind() == kind {
                return delivered;
            }
        }
    }

    /// Ends the process: its session ends without acks for the deliveries in hand.
    async fn dies(self) {
        self.serving.abort();
        drop(self.serving.await);
        drop(self.link);
    }
}

async fn two_agents() -> Broker {
    let broker = Broker::start();
    let client = broker.client().await;
    for name in ["alice", "bob"] {
        let request = v1::RegisterAgentRequest { card: Some(card(name, "")), ..Default::default() };
        client.answer(client.agents().register_agent(request).await).unwrap();
    }
    broker
}

fn context() -> Vec<v1::ContextSection> {
    context_of([("goals", "[\"find the cause\"]".to_owned())]).sections
}

fn result() -> serde_json::Value {
    serde_json::json!({"cause": "a loose plug", "id": 1234567890123456789_u64, "count": 42, "none": null})
}

#[tokio::test]
async fn a_task_is_handed_over_in_one_call_and_its_end_is_typed() {
    let broker = two_agents().await;
    let alice = Process::start(&broker, "alice", Plan::default()).await;
    let bob = Process::start(&broker, "bob", Plan::default()).await;
    let task = new_task();
    let handed = alice.link.hand_over("bob", &About::task(&task, 1), &a_request(), context()).await.unwrap();
    assert_eq!((handed.owner_id.as_str(), handed.epoch, handed.task_id), ("bob", 2, task.clone()));
    let owned = bob.link.owned_tasks().await.unwrap();
    let owned: Vec<_> = owned.into_iter().map(|task| (task.task_id.clone(), task.epoch())).collect();
    assert_eq!(owned, [(task.clone(), 2)]);
    assert!(alice.link.owned_tasks().await.unwrap().is_empty());
    let too_late = alice.link.hand_over("bob", &About::task(&task, 1), &a_request(), context()).await.unwrap_err();
    assert!(matches!(&too_late, HandOverError::Client(error) if error.reason() == Some("STALE_EPOCH")), "{too_late}");

    bob.dies().await;
    let bob = Process::start(&broker, "bob", Plan { rejects: true, ..Plan::default() }).await;
    let kept = alice.link.hand_over("bob", &About::task(&new_task(), 1), &a_request(), context()).await.unwrap_err();
    let HandOverError::Failed { reason, rejections, .. } = kept else { panic!("{kept}") };
    assert_eq!((reason.as_str(), rejections[0].agent_id.as_str()), ("NO_CANDIDATE", "bob"));
    assert_eq!(rejections[0].reason, v1::RejectReason::NoSkill);
    bob.dies().await;
}

#[tokio::test]
async fn a_task_is_lent_in_one_call_and_comes_back_with_its_result() {
    let broker = two_agents().await;
    let alice = Process::start(&broker, "alice", Plan::default()).await;
    let _bob = Process::start(&broker, "bob", Plan { finishes: Some(result()), ..Plan::default() }).await;
    let task = new_task();
    let returned = alice.link.delegate("bob", &About::task(&task, 1), &a_request(), context(), None).await.unwrap();
    assert_eq!((returned.epoch, returned.status, returned.result), (3, v1::TaskStatus::Completed, Some(result())));
    let [own] = &alice.link.owned_tasks().await.unwrap()[..] else { panic!("the task is alice's again") };
    assert_eq!((own.task_id.as_str(), own.epoch(), own.open_handoff_id.as_str()), (task.as_str(), 3, ""));
    own.finish(None).await.unwrap();
    assert!(alice.link.owned_tasks().await.unwrap().is_empty(), "a task that is final is not listed");
}

/// Checks why a delegation ended without a result, and that the task is alice's again at epoch 3.
async fn is_back(alice: &Process, task: &str, ended: Result<Returned, HandOverError>, expected: RecallReason) {
    let error = ended.unwrap_err();
    let HandOverError::Recalled { reason, epoch, is_owner, .. } = error else { panic!("{error}") };
    assert_eq!((reason, epoch, is_owner), (expected, 3, true));
    is_owned(alice, task, 3).await;
}

async fn is_owned(alice: &Process, task: &str, epoch: u64) {
    let task = alice.link.get_task(task).await.unwrap();
    assert_eq!((task.owner_id.as_str(), task.epoch, task.open_handoff_id.as_str()), ("alice", epoch, ""));
}

/// Waits until the broker tells bob to drop a task.
async fn is_dropped(bob: &mut Process) -> v1::ErrorNotification {
    bob.sees(MessageType::ErrorNotification).await.payload()
}

/// Waits until bob owns the task. Returns the handoff that lent it.
async fn lent_by(alice: &Process, task: &str) -> String {
    loop {
        match alice.link.get_task(task).await {
            Ok(task) if task.owner_id == "bob" => return task.loans[0].handoff_id.clone(),
            _ => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

#[tokio::test]
async fn a_lent_task_comes_back_by_its_loan_timeout_by_the_limit_and_by_a_recall() {
    let broker = two_agents().await;
    let alice = Process::start(&broker, "alice", Plan::default()).await;
    let mut bob = Process::start(&broker, "bob", Plan::default()).await;

    let task = new_task();
    let short = prost_types::Duration { seconds: 1, nanos: 0 };
    let request = v1::HandoffRequest { loan_timeout: Some(short), ..a_request() };
    let ended = alice.link.delegate("bob", &About::task(&task, 1), &request, context(), None).await;
    is_back(&alice, &task, ended, RecallReason::LoanTimeout).await;
    assert_eq!(is_dropped(&mut bob).await.error_code(), v1::ErrorCode::TaskRecalled);

    let task = new_task();
    let limit = Some(Duration::from_secs(3));
    let ended = alice.link.delegate("bob", &About::task(&task, 1), &a_request(), context(), limit).await;
    is_back(&alice, &task, ended, RecallReason::Deadline).await;
    is_dropped(&mut bob).await;

    let task = new_task();
    let lending = {
        let (link, about) = (alice.link.clone(), About::task(&task, 1));
        tokio::spawn(async move { link.delegate("bob", &about, &a_request(), context(), None).await })
    };
    let handoff = lent_by(&alice, &task).await;
    assert_eq!(bob.link.recall(&handoff, "").await.unwrap_err().reason(), Some("NOT_OWNER"));
    let owned = alice.link.recall(&handoff, "done by phone").await.unwrap();
    is_back(&alice, &task, lending.await.unwrap(), RecallReason::Recall).await;
    is_dropped(&mut bob).await;
    assert_eq!(alice.link.recall(&handoff, "").await.unwrap_err().reason(), Some("NOT_LENT"));
    owned.finish(None).await.unwrap();
}

/// The outcome of a wait for a loan that is refused.
async fn waiting_is_refused(link: &Link, handoff_id: &str) -> String {
    match link.wait_for_loan(handoff_id, None).await {
        Err(HandOverError::Client(refused)) => refused.reason().unwrap_or_default().to_owned(),
        ended => panic!("{ended:?}"),
    }
}

#[tokio::test]
async fn a_later_process_waits_for_the_loan_of_an_earlier_one() {
    let broker = two_agents().await;
    let mut bob = Process::start(&broker, "bob", Plan::default()).await;
    let alice = Process::start(&broker, "alice", Plan::default()).await;
    let (task, about) = (new_task(), |task: &str| About::task(task, 1));
    let lent = v1::HandoffRequest { mode: v1::HandoffMode::Delegate.into(), ..a_request() };
    let receipt = alice.link.send("bob", MessageType::HandoffRequest, &about(&task), &lent).await.unwrap();
    let handoff_id = receipt.handoff_id;
    alice.dies().await;

    let alice = Process::start(&broker, "alice", Plan::default()).await;
    let wait = |sections| {
        let (link, handoff_id) = (alice.link.clone(), handoff_id.clone());
        tokio::spawn(async move { link.wait_for_loan(&handoff_id, sections).await })
    };
    let dropped = wait(Some(context()));
    assert_eq!(lent_by(&alice, &task).await, handoff_id);
    assert_eq!(waiting_is_refused(&alice.link, &handoff_id).await, "HANDOFF_OPEN");
    dropped.abort();
    assert!(dropped.await.is_err());
    let waiting = wait(None);
    let [own] = &bob.link.owned_tasks().await.unwrap()[..] else { panic!("the task is bob's: the wait ended nothing") };
    own.finish(Some(serde_json::json!({"cause": "a loose cable"}))).await.unwrap();
    let returned = waiting.await.unwrap().unwrap();
    assert_eq!((returned.epoch, returned.status), (3, v1::TaskStatus::Completed));
    assert_eq!(returned.result, Some(serde_json::json!({"cause": "a loose cable"})));
    // From the records alone.
    assert_eq!(wait(Some(context())).await.unwrap().unwrap(), returned);

    assert_eq!(waiting_is_refused(&bob.link, &handoff_id).await, "NOT_OWNER");
    let given = new_task();
    let handed = alice.link.hand_over("bob", &about(&given), &a_request(), context()).await.unwrap();
    assert_eq!(waiting_is_refused(&alice.link, &handed.handoff_id).await, "NOT_LENT");
    let unknown = "00000000-0000-4000-8000-000000000000";
    assert_eq!(waiting_is_refused(&alice.link, unknown).await, "HANDOFF_UNKNOWN");

    let again = About::task(&task, 3);
    let lending = {
        let (link, again) = (alice.link.clone(), again.clone());
        tokio::spawn(async move { link.delegate("bob", &again, &a_request(), context(), None).await })
    };
    let second = lent_by(&alice, &task).await;
    alice.link.recall(&second, "").await.unwrap();
    is_back_at(lending.await.unwrap(), 5);
    is_dropped(&mut bob).await;
    is_back_at(alice.link.wait_for_loan(&second, None).await, 5);
    assert_eq!(waiting_is_refused(&alice.link, &handoff_id).await, "NOT_LENT");
}

/// Checks that a loan ended by a recall, at this epoch.
fn is_back_at(ended: Result<Returned, HandOverError>, expected: u64) {
    let Err(HandOverError::Recalled { reason: RecallReason::Recall, epoch, is_owner: true, .. }) = ended else {
        panic!("{ended:?}")
    };
    assert_eq!(epoch, expected);
}

#[tokio::test]
async fn a_delegation_whose_call_is_dropped_is_taken_back() {
    let broker = two_agents().await;
    let alice = Process::start(&broker, "alice", Plan::default()).await;
    let task = new_task();
    let views = Arc::new(Mutex::new(Vec::new()));
    let lend = || {
        let seen = Arc::clone(&views);
        let link = alice.link.with_views(move |_, view| seen.lock().unwrap().push(view));
        let about = About::task(&task, 1);
        tokio::spawn(async move { link.delegate("bob", &about, &a_request(), context(), None).await })
    };
    // Before the accept: bob is not there, and the handoff is cancelled.
    let lending = lend();
    while views.lock().unwrap().last() != Some(&v1::SenderView::AwaitingHandoffAccept) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    lending.abort();
    while !alice.link.get_task(&task).await.unwrap().open_handoff_id.is_empty() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    is_owned(&alice, &task, 1).await;

    let mut bob = Process::start(&broker, "bob", Plan::default()).await;
    views.lock().unwrap().clear();
    let lending = lend();
    lent_by(&alice, &task).await;
    let [own] = &bob.link.owned_tasks().await.unwrap()[..] else { panic!("the task is bob's") };
    let recalled = own.recalled();
    lending.abort();
    let recalled = tokio::time::timeout(PATIENCE, recalled).await.unwrap();
    assert_eq!((recalled.task_id.as_str(), recalled.epoch, recalled.reason), (task.as_str(), 3, RecallReason::Recall));
    is_dropped(&mut bob).await;
    is_owned(&alice, &task, 3).await;
    let first = [v1::SenderView::Idle, v1::SenderView::HandoffInitiated, v1::SenderView::AwaitingHandoffAccept];
    assert_eq!(views.lock().unwrap()[..3], first);
}

#[tokio::test]
async fn a_sender_that_died_after_its_request_resumes_or_provides() {
    let broker = two_agents().await;
    let mut bob = Process::start(&broker, "bob", Plan::default()).await;
    for resumes in [true, false] {
        let alice = Process::start(&broker, "alice", Plan::default()).await;
        let task = new_task();
        let about = About::task(&task, 1);
        let receipt = alice.link.send("bob", MessageType::HandoffRequest, &about, &a_request()).await.unwrap();
        let handoff_id = receipt.handoff_id;
        alice.dies().await;
        bob.sees(MessageType::HandoffRequest).await;

        let provides = (!resumes).then(context);
        let mut alice = Process::start(&broker, "alice", Plan { provides, ..Plan::default() }).await;
        if resumes {
            // No call waits for the accept, so the client returns it for redelivery.
            alice.sees(MessageType::HandoffAccept).await;
            let [own] = &alice.link.owned_tasks().await.unwrap()[..] else { panic!("it is alice's still") };
            assert_eq!((own.task_id.as_str(), own.open_handoff_id.as_str()), (task.as_str(), handoff_id.as_str()));
            let handed = alice.link.resume_hand_over(&own.open_handoff_id, context()).await.unwrap();
            assert_eq!((handed.owner_id.as_str(), handed.epoch), ("bob", 2));
        } else {
            alice.sees(MessageType::HandoffComplete).await;
        }
        let again = alice.link.resume_hand_over(&handoff_id, context()).await.unwrap();
        assert_eq!((again.owner_id.as_str(), again.epoch), ("bob", 2), "it has ended, and is told from the handoff");
        let of_another = bob.link.resume_hand_over(&handoff_id, context()).await.unwrap_err();
        let HandOverError::Client(refused) = of_another else { panic!("{of_another}") };
        assert_eq!(refused.reason(), Some("NOT_OWNER"), "{refused}");
        alice.dies().await;
    }
}

#[tokio::test]
async fn a_receiver_that_died_at_any_step_takes_over_in_its_next_life() {
    let broker = two_agents().await;
    let alice = Process::start(&broker, "alice", Plan::default()).await;
    for dies_at in [MessageType::HandoffRequest, MessageType::TaskContextTransfer] {
        let mut bob = Process::start(&broker, "bob", Plan { dies_at: Some(dies_at), ..Plan::default() }).await;
        let (link, task) = (alice.link.clone(), new_task());
        let about = About::task(&task, 1);
        let handing = tokio::spawn(async move { link.hand_over("bob", &about, &a_request(), context()).await });
        bob.sees(dies_at).await;
        bob.dies().await;
        let bob = Process::start(&broker, "bob", Plan::default()).await;
        let handed = handing.await.unwrap().unwrap();
        assert_eq!((handed.task_id.as_str(), handed.epoch), (task.as_str(), 2), "after {dies_at:?}");
        bob.dies().await;
    }
}

#[tokio::test]
async fn steps_that_an_earlier_process_made_are_done() {
    let broker = two_agents().await;
    let alice = Process::start(&broker, "alice", Plan { provides: Some(context()), ..Plan::default() }).await;
    let at_request = Plan { dies_at: Some(MessageType::HandoffRequest), ..Plan::default() };
    let mut bob = Process::start(&broker, "bob", at_request).await;
    let task = new_task();
    let about = About::task(&task, 1);
    alice.link.send("bob", MessageType::HandoffRequest, &about, &a_request()).await.unwrap();
    let offered = bob.sees(MessageType::HandoffRequest).await;
    bob.link.accept(&offered, &v1::HandoffAccept::default()).await.unwrap();
    bob.link.accept(&offered, &v1::HandoffAccept::default()).await.unwrap();
    bob.dies().await;

    let at_context = Plan { dies_at: Some(MessageType::TaskContextTransfer), ..Plan::default() };
    let mut bob = Process::start(&broker, "bob", at_context).await;
    let handed = bob.sees(MessageType::TaskContextTransfer).await;
    assert_eq!(bob.link.complete(&handed).await.unwrap().epoch(), 2);
    bob.dies().await;

    let mut bob = Process::start(&broker, "bob", Plan::default()).await;
    assert_eq!(bob.sees(MessageType::TaskContextTransfer).await.delivery.attempt, 2);
    let [own] = &bob.link.owned_tasks().await.unwrap()[..] else { panic!("bob owns it") };
    assert_eq!((own.task_id.as_str(), own.epoch()), (task.as_str(), 2));
}

#[tokio::test]
async fn what_is_too_large_is_refused_before_it_is_sent() {
    let broker = two_agents().await;
    let alice = Process::start(&broker, "alice", Plan::default()).await;
    let session_id = alice.link.live().await.unwrap().session.welcome.session_id.clone();
    for bytes in [1_048_577, 5_000_000] {
        let info = v1::Info { text: "x".repeat(bytes), ..Default::default() };
        let sent = alice.link.send("bob", MessageType::Info, &About::default(), &info).await.unwrap_err();
        assert_eq!(sent.reason(), Some("PAYLOAD_TOO_LARGE"), "{sent}");
        let agent = alice.link.live().await.unwrap();
        let sent = agent.send("bob", MessageType::Info, &About::default(), &info).await.unwrap_err();
        assert_eq!(sent.reason(), Some("PAYLOAD_TOO_LARGE"), "{sent}");
        let large = context_of([("goals", format!("[\"{}\"]", "x".repeat(bytes)))]).sections;
        let kept = alice.link.hand_over("bob", &About::task(&new_task(), 1), &a_request(), large).await.unwrap_err();
        let HandOverError::Client(kept) = kept else { panic!("{kept}") };
        assert_eq!(kept.reason(), Some("PAYLOAD_TOO_LARGE"), "{kept}");
    }
    let agent = alice.link.live().await.unwrap();
    let raw = agent.session.send(vec![0xa; 5_000_000].into()).await.unwrap_err();
    assert!(matches!(&raw, ClientError::Refused(_)), "a frame that would end the connection: {raw}");
    let long = "a".repeat(129);
    let sent = alice.link.send(&long, MessageType::Info, &About::default(), &v1::Info::default()).await.unwrap_err();
    assert_eq!(sent.reason(), Some("FIELD_INVALID"), "{sent}");
    assert!(alice.link.owned_tasks().await.unwrap().is_empty(), "no request was sent");
    assert_eq!(alice.link.live().await.unwrap().session.welcome.session_id, session_id, "the session goes on");
}

#[test]
fn a_command_with_too_large_a_context_names_the_limit() {
    let broker = Broker::start();
    let folder = Arc::clone(&broker.folder);
    let run = |arguments: &[&str]| {
        let mut command = baton();
        command.current_dir(folder.path()).args(["--server", &broker.address, "-o", "json", "--ca"]).arg(broker.ca());
        command.args(arguments);
        command
    };
    for name in ["alice", "bob"] {
        let key = format!("{name}.pem");
        assert!(run(&["keygen", "--out", &key]).output().unwrap().status.success());
        assert!(run(&["agent", "register", "--id", name, "--key", &key]).output().unwrap().status.success());
    }
    let (alice, bob) = (["--id", "alice", "--key", "alice.pem"], ["--id", "bob", "--key", "bob.pem"]);
    let asked = run(&["handoff", "request", "--to", "bob"]).args(alice).output().unwrap();
    let receipt: serde_json::Value = serde_json::from_slice(&asked.stdout).unwrap();
    let handoff = receipt["handoffId"].as_str().unwrap();
    assert!(run(&["handoff", "accept", handoff]).args(bob).output().unwrap().status.success());
    for bytes in [1_100_000, 5_000_000] {
        std::fs::write(folder.path().join("large.json"), format!("{{\"notes\": [\"{}\"]}}", "x".repeat(bytes)))
            .unwrap();
        let (code, text) = exit_of(run(&["handoff", "context", handoff, "--file", "large.json"]).args(alice));
        assert_eq!(code, Some(8), "{text}");
        assert!(text.contains("PAYLOAD_TOO_LARGE") && !text.contains("no broker answers"), "{text}");
    }
}

#[tokio::test]
async fn a_link_that_has_lost_its_session_serves_over_another_one() {
    let broker = two_agents().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (server, to) = (listener.local_addr().unwrap().to_string(), broker.address.clone());
    let (cut, is_cut) = tokio::sync::oneshot::channel::<()>();
    let relay = tokio::spawn(async move {
        let mut first = Some(is_cut);
        loop {
            let (mut client, _) = listener.accept().await.unwrap();
            let mut broker = TcpStream::connect(&to).await.unwrap();
            let passed_on = tokio::io::copy_bidirectional(&mut client, &mut broker);
            match first.take() {
                Some(is_cut) => drop(tokio::select! { passed = passed_on => passed.map(drop), _ = is_cut => Ok(()) }),
                None => drop(passed_on.await),
            }
        }
    });
    let link = broker.link_by("alice", server, Arc::new(SystemClock)).await;
    cut.send(()).unwrap();
    let sending = {
        let link = link.clone();
        let text = v1::Info::default();
        tokio::spawn(async move { link.send("bob", MessageType::Info, &About::default(), &text).await })
    };
    eventually("the call finds that the session is over", async || {
        tokio::time::timeout(Duration::ZERO, link.live()).await.is_err()
    })
    .await;
    let (stop, (seen, _)) = (CancellationToken::new(), mpsc::unbounded_channel());
    let serving = tokio::spawn({
        let stop = stop.clone();
        async move { link.serve(Mail { plan: Plan::default(), seen }, stop).await }
    });
    sending.await.unwrap().unwrap();
    stop.cancel();
    serving.await.unwrap().unwrap();
    relay.abort();
}

/// A clock that is an hour late for this number of readings.
struct LateClock(AtomicUsize);

impl Clock for LateClock {
    fn now(&self) -> Timestamp {
        let is_late = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok();
        SystemClock.now().minus(if is_late { Duration::from_secs(3600) } else { Duration::ZERO })
    }
}

#[tokio::test]
async fn a_message_that_has_waited_longer_than_the_clock_window_is_signed_again() {
    let broker = two_agents().await;
    let send = async |readings: usize| {
        let alice = broker.link_at("alice", Arc::new(LateClock(readings.into()))).await;
        alice.send("bob", MessageType::Info, &About::default(), &v1::Info::default()).await
    };
    // The first reading dates the message. An hour has passed by the next one, as over an outage.
    let receipt = send(1).await.unwrap();
    let bob = broker.agent_session("bob").await;
    assert_eq!(bob.next().await.unwrap().envelope.message_id, receipt.message_id);
    let refused = send(usize::MAX).await.unwrap_err();
    assert_eq!(refused.reason(), Some("TIMESTAMP_OUTSIDE_WINDOW"), "a clock that stays late: {refused}");
}

#[tokio::test]
async fn a_list_of_large_cards_has_pages_that_fit_a_frame() {
    const AGENTS: usize = 72;
    let broker = Broker::start();
    let operator = broker.operator().await;
    let mut ids = Vec::new();
    for number in 0..AGENTS {
        let name = format!("a{number:02}");
        // Some 60 KB.
        let skill =
            |number| v1::AgentSkill { name: format!("s{number}"), description: "x".repeat(1000), ..Default::default() };
        let card = v1::AgentCard { skills: (0..60).map(skill).collect(), ..card(&name, "") };
        let request = v1::RegisterAgentRequest { card: Some(card), ..Default::default() };
        operator.answer(operator.agents().register_agent(request).await).unwrap();
        ids.push(name);
    }
    let (mut listed, mut pages, mut page_token) = (Vec::new(), 0, String::new());
    loop {
        let request = v1::ListAgentsRequest { page_size: 1000, page_token, ..Default::default() };
        let page = operator.answer(operator.agents().list_agents(request).await).unwrap();
        listed.extend(page.agents.into_iter().map(|agent| agent.card.unwrap().agent_id));
        (pages, page_token) = (pages + 1, page.next_page_token);
        if page_token.is_empty() {
            break;
        }
    }
    listed.retain(|id| id.starts_with('a'));
    assert_eq!(listed, ids, "each agent is on one page");
    assert!(pages > 1);
}
