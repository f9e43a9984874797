//! Agents as a program in Rust writes them: `Agent`, `Offer`, `Takeover`.

use std::{
    os::unix::fs::PermissionsExt as _,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use baton::proto::v1::{self, RejectReason, TaskStatus};
use baton_client::{
    Agent, AgentBuilder, Asked, ClientError, HandOverError, HandedOver, HandlerResult, Offer, Progress, RecallReason,
    json_section, question,
};
use tokio::sync::{Notify, mpsc};

use crate::broker::{Broker, PATIENCE, a_request, eventually, identity, new_task};

/// An agent of this broker.
fn agent(broker: &Broker, name: &str) -> AgentBuilder {
    Agent::builder(name).server(&broker.address).ca(broker.ca()).key(identity(name).key)
}

fn goals() -> [v1::ContextSection; 1] {
    [json_section("goals", ["find the cause"])]
}

async fn take(offer: Offer) -> HandlerResult {
    if offer.summary().contains("printer") {
        return Ok(offer.reject(RejectReason::NoSkill, "I know routers only").await?);
    }
    let takeover = offer.accept().await?;
    let goals: Vec<String> = takeover.json("goals")?;
    let task = takeover.complete().await?;
    task.finish_with([("done", goals)]).await?;
    Ok(())
}

/// The reason of a call that the client or the broker has refused.
#[track_caller]
fn reason_of<T>(ended: Result<T, HandOverError>) -> String {
    match ended {
        Err(HandOverError::Client(ClientError::Refused(refused))) => refused.reason,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it was not refused"),
    }
}

async fn within<T>(waited: impl IntoFuture<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, waited).await.expect("it takes too long")
}

#[tokio::test]
async fn an_agent_makes_its_key_registers_itself_and_hands_a_task_over() {
    let broker = Broker::start();
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("bob.pem");
    let builder = || Agent::builder("bob").server(&broker.address).ca(broker.ca()).key_file(&key);
    let bob = builder().agent_type("support").on_handoff(take).connect().await.unwrap();
    assert_eq!(std::fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
    let alice = agent(&broker, "alice").connect().await.unwrap();
    let task = new_task();
    let handed = within(alice.hand_over("type:support", &task, &a_request(), goals())).await.unwrap();
    assert_eq!((handed.owner_id.as_str(), handed.epoch), ("bob", 2));
    eventually("the task has its result", async || {
        let task = alice.get_task(&task).await.unwrap();
        task.status() == TaskStatus::Completed && task.result_json.contains(r#""done":"#)
    })
    .await;

    let request = v1::HandoffRequest { initial_context_summary: "the printer is on fire".into(), ..a_request() };
    let kept = within(alice.hand_over("bob", &new_task(), &request, goals())).await.unwrap_err();
    let HandOverError::Failed { rejections, .. } = kept else { panic!("{kept}") };
    assert_eq!(rejections[0].to_string(), "bob: NO_SKILL: I know routers only");
    let rejection = (rejections[0].agent_id.as_str(), rejections[0].code(), rejections[0].text.as_str());
    assert_eq!(rejection, ("bob", "NO_SKILL", "I know routers only"));

    // The same key, and the card that is there, are used again.
    bob.stop().await.unwrap();
    let bob = builder().on_handoff(take).connect().await.unwrap();
    let card = bob.client().await.unwrap().get_agent("bob").await.unwrap().card.unwrap();
    assert_eq!(card.agent_types, ["support"]);
    bob.stop().await.unwrap();
    let other = Agent::builder("bob").server(&broker.address).ca(broker.ca());
    let other = other.key_file(folder.path().join("other.pem")).connect().await.unwrap_err();
    assert_eq!(other.reason(), Some("CHALLENGE_FAILED"), "{other}");
}

#[tokio::test]
async fn what_the_builder_has_is_checked_before_a_connection() {
    let settings = async |builder: AgentBuilder| match builder.connect().await {
        Err(ClientError::Settings(problem)) => problem,
        other => panic!("{other:?}"),
    };
    let key = || identity("bob").key;
    assert!(settings(Agent::builder("B o b").key(key())).await.contains("agent id \"B o b\""));
    assert!(settings(Agent::builder("bob").key(key()).server("broker")).await.contains("has no port"));
    let folder = tempfile::tempdir().unwrap();
    let open = folder.path().join("open.pem");
    key().write(&open).unwrap();
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert!(settings(Agent::builder("bob").key_file(open)).await.contains("chmod 600"));
}

#[tokio::test]
async fn a_second_call_for_a_task_that_is_waited_for_is_refused_and_the_first_gets_its_result() {
    let broker = Broker::start();
    let alice = agent(&broker, "alice").connect().await.unwrap();
    // Bob is registered, and takes no offer yet.
    agent(&broker, "bob").connect().await.unwrap().stop().await.unwrap();
    let task = new_task();
    let first = tokio::spawn({
        let (alice, task) = (alice.clone(), task.clone());
        async move { alice.delegate("bob", &task, &a_request(), goals()).await }
    });
    eventually("the task is there", async || alice.get_task(&task).await.is_ok()).await;
    assert_eq!(
        reason_of(within(alice.delegate("bob", &task, &a_request(), goals()).into_future()).await),
        "HANDOFF_OPEN"
    );
    assert_eq!(reason_of(within(alice.hand_over("bob", &task, &a_request(), goals())).await), "HANDOFF_OPEN");
    let handoff = alice.get_task(&task).await.unwrap().open_handoff_id;
    let resumed = within(alice.resume_hand_over(&handoff, goals().into())).await;
    assert_eq!(reason_of(resumed), "HANDOFF_OPEN");
    let _bob = agent(&broker, "bob").on_handoff(take).connect().await.unwrap();
    let returned = within(first).await.unwrap().unwrap();
    assert_eq!((returned.status, returned.epoch), (TaskStatus::Completed, 3));
    // The task has come back, and may be lent again.
    let own = alice.task(&task).await.unwrap();
    let again = within(own.delegate("bob", &a_request(), goals().into(), None)).await.unwrap();
    assert_eq!(again.epoch, 5);
}

#[tokio::test]
async fn a_handler_that_fails_gives_back_its_offer_and_after_the_takeover_ends_its_task() {
    let broker = Broker::start();
    let alice = agent(&broker, "alice").connect().await.unwrap();
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let handler = move |offer: Offer| {
        let call = counted.fetch_add(1, Ordering::Relaxed);
        async move {
            match call {
                0 => Err("not ready".into()), // before the accept: the request comes again
                1 => {
                    offer.accept().await?;
                    Err("no room for the context".into()) // before the completion: the context comes again
                }
                _ => {
                    assert!(offer.request().is_none(), "the handoff was accepted before");
                    offer.accept().await?.complete().await?;
                    Err("out of paper".into())
                }
            }
        }
    };
    let _bob = agent(&broker, "bob").on_handoff(handler).connect().await.unwrap();
    let task = new_task();
    let returned = within(alice.delegate("bob", &task, &a_request(), goals()).into_future()).await.unwrap();
    assert_eq!((returned.status, returned.details.as_str()), (TaskStatus::Failed, "out of paper"));
    assert_eq!(calls.load(Ordering::Relaxed), 3);
}

#[tokio::test]
async fn a_takeover_that_fails_leaves_the_task_with_its_sender() {
    let broker = Broker::start();
    let alice = agent(&broker, "alice").connect().await.unwrap();
    let handler = async |offer: Offer| Ok(offer.accept().await?.fail("it is in French").await?);
    let _bob = agent(&broker, "bob").on_handoff(handler).connect().await.unwrap();
    let task = new_task();
    let kept = within(alice.hand_over("bob", &task, &a_request(), goals())).await.unwrap_err();
    let HandOverError::Failed { reason, .. } = &kept else { panic!("{kept}") };
    assert_eq!(reason, "TAKEOVER_FAILED", "{kept}");
    assert_eq!(alice.task(&task).await.unwrap().epoch(), 1);
}

/// Checks that the time limit of a call has cancelled its handoff, so that the task is still this agent's.
#[track_caller]
fn is_cancelled(ended: Result<HandedOver, HandOverError>) -> Vec<String> {
    let HandOverError::Failed { reason, rejections, .. } = ended.unwrap_err() else { panic!("another error") };
    assert_eq!(reason, "HANDOFF_CANCELLED");
    rejections.iter().map(ToString::to_string).collect()
}

#[tokio::test]
async fn a_handoff_moves_the_task_within_its_limit_or_is_cancelled_there() {
    let broker = Broker::start();
    let alice = agent(&broker, "alice").connect().await.unwrap();
    let rejects = async |offer: Offer| Ok(offer.reject(v1::RejectReason::NoSkill, "I know routers only").await?);
    let bob = agent(&broker, "bob").on_handoff(rejects).connect().await.unwrap();
    agent(&broker, "carol").connect().await.unwrap().stop().await.unwrap();

    let task = new_task();
    let request = v1::HandoffRequest { fallback_candidates: vec!["carol".into()], ..a_request() };
    let late = within(alice.hand_over("bob", &task, &request, goals()).limit(Duration::from_secs(2))).await;
    assert_eq!(is_cancelled(late), ["bob: NO_SKILL: I know routers only"]);
    let own = alice.task(&task).await.unwrap();
    assert_eq!((own.epoch(), own.open_handoff_id.as_str()), (1, ""));
    let late = within(own.hand_over_within(Duration::from_secs(1), "carol", &a_request(), goals().into())).await;
    assert_eq!(is_cancelled(late), [""; 0]);
    bob.stop().await.unwrap();

    // The requests of the cancelled handoffs are not in the mailbox of an agent that comes later.
    let (taken, mut tasks) = mpsc::unbounded_channel();
    let take = move |offer: Offer| {
        let taken = taken.clone();
        async move {
            taken.send(offer.task_id.clone())?;
            offer.accept().await?.complete().await?;
            Ok(())
        }
    };
    let _carol = agent(&broker, "carol").on_handoff(take).connect().await.unwrap();
    let next = new_task();
    let handed = within(alice.hand_over("carol", &next, &a_request(), goals()).limit(PATIENCE)).await.unwrap();
    assert_eq!((handed.owner_id.as_str(), handed.epoch), ("carol", 2));
    assert_eq!(within(tasks.recv()).await, Some(next));
}

/// A handler that takes each task over and works on it without end. Tells `begun` of each, and `left` when it is dropped.
fn endless(begun: mpsc::UnboundedSender<bool>, left: Arc<Notify>) -> impl Fn(Offer) -> HandlerFuture + Send + Sync {
    struct Leaving(Arc<Notify>);
    impl Drop for Leaving {
        fn drop(&mut self) {
            self.0.notify_one();
        }
    }
    move |offer| {
        let (begun, leaving) = (begun.clone(), Leaving(Arc::clone(&left)));
        Box::pin(async move {
            let is_resumed = offer.is_resumed();
            let task = offer.accept().await?.complete().await?;
            begun.send(is_resumed).unwrap();
            std::future::pending::<()>().await;
            drop((task, leaving));
            Ok(())
        })
    }
}

type HandlerFuture = std::pin::Pin<Box<dyn Future<Output = HandlerResult> + Send>>;

#[tokio::test]
async fn the_next_process_goes_on_with_a_task_that_its_process_left() {
    let broker = Broker::start();
    let alice = agent(&broker, "alice").connect().await.unwrap();
    let (begun, mut begins) = mpsc::unbounded_channel();
    let worker = |begun: &mpsc::UnboundedSender<bool>| {
        let handler = endless(begun.clone(), Arc::default());
        agent(&broker, "bob").stop_grace(Duration::ZERO).on_handoff(handler)
    };
    let bob = worker(&begun).connect().await.unwrap();
    let task = new_task();
    within(alice.hand_over("bob", &task, &a_request(), goals())).await.unwrap();
    assert_eq!(within(begins.recv()).await, Some(false));
    within(bob.stop()).await.unwrap();
    let bob = worker(&begun).connect().await.unwrap();
    assert_eq!(within(begins.recv()).await, Some(true), "the task is resumed");
    within(bob.stop()).await.unwrap();
    assert_eq!(alice.get_task(&task).await.unwrap().owner_id, "bob");
}

#[tokio::test]
async fn a_handler_ends_where_it_waits_when_its_task_is_recalled() {
    let broker = Broker::start();
    let alice = agent(&broker, "alice").connect().await.unwrap();
    let (begun, mut begins) = mpsc::unbounded_channel();
    let (left, (told, mut recalls)) = (Arc::new(Notify::new()), mpsc::unbounded_channel());
    let recalled = move |recalled: baton_client::Recalled| {
        told.send(recalled.task_id).unwrap();
        std::future::ready(Ok(()))
    };
    let bob = agent(&broker, "bob").on_handoff(endless(begun, Arc::clone(&left))).on_recalled(recalled);
    let _bob = bob.connect().await.unwrap();
    let task = new_task();
    let lent = alice.delegate("bob", &task, &a_request(), goals()).limit(Duration::from_secs(3));
    let (ended, _) = within(async { tokio::join!(lent.into_future(), begins.recv()) }).await;
    let Err(HandOverError::Recalled { reason, epoch, .. }) = ended else { panic!("{ended:?}") };
    assert_eq!((reason, epoch), (RecallReason::Deadline, 3));
    within(left.notified()).await;
    assert_eq!(within(recalls.recv()).await, Some(task));
}

#[tokio::test]
async fn the_progress_of_a_lent_task_reaches_the_lender_and_its_loan_is_extended() {
    let broker = Broker::start();
    let alice = agent(&broker, "alice").connect().await.unwrap();
    let handler = async |offer: Offer| {
        let task = offer.accept().await?.complete().await?;
        task.extend(Duration::from_secs(600), "it takes longer").await?;
        task.progress("half of it", 0.5).await?;
        task.finish(None).await?;
        Ok(())
    };
    let _bob = agent(&broker, "bob").on_handoff(handler).connect().await.unwrap();
    let told: Arc<Mutex<Vec<Progress>>> = Arc::default();
    let noted = Arc::clone(&told);
    let seconds = |seconds| Some(prost_types::Duration { seconds, nanos: 0 });
    let request = v1::HandoffRequest { loan_timeout: seconds(60), loan_timeout_max: seconds(3600), ..a_request() };
    let lent = alice.delegate("bob", &new_task(), &request, goals());
    let lent = lent.on_progress(move |progress| noted.lock().unwrap().push(progress));
    let returned = within(lent.into_future()).await.unwrap();
    assert_eq!(returned.status, TaskStatus::Completed);
    let told = std::mem::take(&mut *told.lock().unwrap());
    let told: Vec<_> = told.iter().map(|told| (told.details.as_str(), told.progress, told.status)).collect();
    let expected = [
        ("it takes longer", None, TaskStatus::InProgress),
        ("half of it", Some(0.5), TaskStatus::InProgress),
        ("", None, TaskStatus::Completed),
    ];
    assert_eq!(told, expected);

    // A loan without a maximum cannot be extended.
    let plain = v1::HandoffRequest { loan_timeout: seconds(60), ..a_request() };
    let returned = within(alice.delegate("bob", &new_task(), &plain, goals()).into_future()).await.unwrap();
    assert_eq!(returned.status, TaskStatus::Failed, "{}", returned.details);
}

#[tokio::test]
async fn a_question_is_answered_and_a_later_process_gets_the_answer_too() {
    let broker = Broker::start();
    let alice = agent(&broker, "alice").connect().await.unwrap();
    let (asked, mut questions) = mpsc::unbounded_channel();
    let hold = move |question: baton_client::Question| {
        asked.send(question).unwrap();
        std::future::ready(Ok(()))
    };
    let bob = agent(&broker, "bob").on_question(hold).connect().await.unwrap();
    let task = new_task();
    let carol = async |offer: Offer| offer.reject(RejectReason::Other, "").await.map_err(Into::into);
    let _carol = agent(&broker, "carol").on_handoff(carol).connect().await.unwrap();
    within(alice.hand_over("carol", &task, &a_request(), goals())).await.unwrap_err();
    assert!(matches!(alice.resume_ask(&task).await.unwrap(), Asked::Withdrawn), "nothing was asked");
    // The process that asks goes away before the answer.
    let waiting = tokio::spawn({
        let (alice, task) = (alice.clone(), task.clone());
        async move { alice.ask(&task, question("Which router?", "bob")).await }
    });
    let question = within(questions.recv()).await.unwrap();
    assert_eq!((question.text(), question.owner_id.as_str()), ("Which router?", "alice"));
    waiting.abort();
    within(alice.stop()).await.unwrap();
    drop(alice);
    let alice = agent(&broker, "alice").connect().await.unwrap();
    let (resumed, second) = within(async {
        let first = alice.resume_ask(&task);
        tokio::pin!(first);
        // The first one waits before the second one asks.
        assert!(tokio::time::timeout(Duration::from_secs(2), &mut first).await.is_err(), "there is no answer yet");
        let second = alice.resume_ask(&task).await;
        question.answer("the one in the hall").await.unwrap();
        (first.await, second)
    })
    .await;
    assert_eq!(second.unwrap_err().reason(), Some("HANDOFF_OPEN"));
    let Asked::Answered(answer) = resumed.unwrap() else { panic!("it was answered") };
    assert_eq!((answer.agent_id.as_str(), answer.text.as_str()), ("bob", "the one in the hall"));
    assert_eq!(alice.resume_ask(&task).await.unwrap(), Asked::Answered(answer), "it is kept");
    bob.stop().await.unwrap();
}

#[tokio::test]
async fn mail_without_a_handler_stays_in_the_mailbox_and_can_be_looked_at() {
    let broker = Broker::start();
    let alice = agent(&broker, "alice").connect().await.unwrap();
    let bob = agent(&broker, "bob").connect().await.unwrap();
    let info = v1::Info { text: "lunch at noon".into(), ..Default::default() };
    let about = baton_client::About::default();
    alice.send("bob", v1::MessageType::Info, &about, &info).await.unwrap();
    eventually("bob has given it back", async || {
        let waiting = bob.peek().await.unwrap();
        waiting.len() == 1 && waiting[0].payload::<v1::Info>().text == "lunch at noon"
    })
    .await;
    bob.stop().await.unwrap();
    let (read, mut messages) = mpsc::unbounded_channel();
    let reader = move |message: baton_client::Delivered| {
        read.send(message.payload::<v1::Info>().text).unwrap();
        std::future::ready(Ok(()))
    };
    let bob = agent(&broker, "bob").on_message(reader).connect().await.unwrap();
    assert_eq!(within(messages.recv()).await.as_deref(), Some("lunch at noon"));
    bob.stop().await.unwrap();
    assert!(alice.peek().await.unwrap().is_empty());
}

#[tokio::test]
async fn lists_go_over_all_pages_and_a_custody_log_is_verified() {
    let broker = Broker::start();
    let alice = agent(&broker, "alice").connect().await.unwrap();
    let bob = agent(&broker, "bob").on_handoff(take).connect().await.unwrap();
    let mut tasks = Vec::new();
    for _ in 0..3 {
        let task = new_task();
        within(alice.hand_over("bob", &task, &a_request(), goals())).await.unwrap();
        tasks.insert(0, task);
    }
    let request = v1::ListHandoffsRequest { page_size: 1, ..Default::default() };
    let listed = within(alice.list(request).all()).await.unwrap();
    assert_eq!(listed.into_iter().map(|handoff| handoff.task_id).collect::<Vec<_>>(), tasks);
    let request = v1::ListTasksRequest { owner_id: "bob".into(), page_size: 2, ..Default::default() };
    assert_eq!(within(bob.list(request).all()).await.unwrap().len(), 3);

    let log = within(alice.verify_custody(&tasks[0])).await.unwrap();
    let task = alice.get_task(&tasks[0]).await.unwrap();
    assert!(log.entries.len() as u64 >= task.custody_length, "{} entries", log.entries.len());
    let first_owner = log.entries[0].entry.as_ref().unwrap().owner_id.as_str();
    assert_eq!(first_owner, "alice");
    let unknown = within(alice.verify_custody("none")).await.unwrap_err();
    assert_eq!(unknown.reason(), Some("TASK_UNKNOWN"), "{unknown}");

    let operator = broker.operator().await;
    let mut entries = operator.list(v1::ListAuditEntriesRequest { page_size: 1, ..Default::default() });
    assert_eq!(within(entries.next()).await.unwrap().unwrap().entry.unwrap().number, 1);
    assert!(!within(entries.all()).await.unwrap().is_empty(), "the further pages");
    let dead = operator.list(v1::ListDeadLettersRequest::default());
    assert!(within(dead.all()).await.unwrap().is_empty());
    let anyone = broker.client().await;
    let denied = within(anyone.list(v1::ListAuditEntriesRequest::default()).next()).await.unwrap_err();
    assert_eq!(denied.reason(), Some("IDENTITY_MISSING"), "{denied}");
}

#[tokio::test]
async fn an_agent_changes_its_card_and_its_keys_and_leaves() {
    let broker = Broker::start();
    let alice = agent(&broker, "alice").agent_type("support").connect().await.unwrap();
    let client = alice.client().await.unwrap();
    let before = client.get_agent("alice").await.unwrap();
    let card = v1::AgentCard { agent_id: "alice".into(), capacity: 8, ..Default::default() };
    let after = client.update_agent(card.clone(), &["capacity"], &before.etag).await.unwrap();
    let after = after.card.unwrap();
    assert_eq!((after.capacity, after.agent_types), (8, vec!["support".to_owned()]));
    let stale = client.update_agent(card, &["capacity"], &before.etag).await.unwrap_err();
    assert_eq!(stale.reason(), Some("CONFLICT"), "{stale}");
    let key = v1::AgentKey { key_id: "k2".into(), ..identity("another").agent_key() };
    let with_key = client.add_key("alice", key, &[], None).await.unwrap();
    assert_eq!(with_key.card.unwrap().keys.len(), 2);
    client.revoke_key("alice", "k2", "lost").await.unwrap();
    let operator = broker.operator().await;
    let model =
        v1::ModelSpec { model_id: "m".into(), provider: "p".into(), model_name: "n".into(), ..Default::default() };
    assert_eq!(operator.put_model_spec(model, "").await.unwrap().revision, 1);
    let models = operator.list(v1::ListModelSpecsRequest::default()).all().await.unwrap();
    assert_eq!(models.iter().map(|model| model.model_id.as_str()).collect::<Vec<_>>(), ["m"]);
    let unknown = client.get_agent_spec("none", 0).await.unwrap_err();
    assert_eq!(unknown.reason(), Some("SPEC_UNKNOWN"), "{unknown}");
    let gone = client.deregister("alice", false, "no more work").await.unwrap();
    assert!(gone.deregister_time.is_some());
}

#[tokio::test]
async fn an_agent_begins_a_task_without_a_handoff() {
    let broker = Broker::start();
    let (alice, bob) =
        (agent(&broker, "alice").connect().await.unwrap(), agent(&broker, "bob").connect().await.unwrap());
    let create = v1::TaskCreate {
        task_type: "bug".to_owned(),
        summary: "it crashes".to_owned(),
        conversation_id: "chat 7".to_owned(),
        ..Default::default()
    };
    let task = alice.create_task("whole", &create).await.unwrap();
    assert_eq!((task.epoch(), task.status), (1, TaskStatus::Created));
    let part = baton_client::in_task(&task, alice.create_task("part", &create)).await.unwrap();
    part.finish(None).await.unwrap();
    let shown = alice.link().get_task("whole").await.unwrap();
    assert_eq!((shown.summary.as_str(), shown.part_task_ids), ("it crashes", vec!["part".to_owned()]));
    let reason = |ended: Result<_, ClientError>| ended.map(drop).unwrap_err().reason().map(str::to_owned);
    assert_eq!(reason(alice.create_task("whole", &create).await).as_deref(), Some("TASK_EXISTS"));
    assert_eq!(reason(bob.create_task("whole", &create).await).as_deref(), Some("NOT_OWNER"));
}
