//! SPEC 4: order, acks, redelivery, credit, and queued mail.

use std::time::Duration;

use tonic::Code;

use super::{
    check::{Checks, Problem, Refusal, Verdict, answered, fail, refused, same},
    story::a_request,
    world::{Actor, World},
};
use baton_client::{
    About, Delivered, Identity,
    proto::v1::{self, MessageType, NackCause, Priority},
    time::Moment,
};

cases! {
    "delivery.in-order-of-the-task" "4"
        "Messages of one task reach a receiver in the order of their receipts." in_order;
    "delivery.redelivery-keeps-the-order" "4"
        "A message that was nacked comes again before the next one of its task." redelivery_keeps_the_order;
    "delivery.mail-waits-for-no-task" "4"
        "Plain mail about a task does not wait for the unacknowledged messages of the task." mail_overtakes;
    "delivery.mail-is-of-participants" "4"
        "Mail that names a task is refused with NOT_OWNER, unless its sender takes part in the task."
        stranger_writes_about_no_task;
    "delivery.ack-is-for-good" "4"
        "An acked message is never delivered again, and its delivery is no longer known." ack_is_for_good;
    "delivery.nacked-comes-again" "4"
        "A message nacked as FAILURE is delivered again, as the next attempt." nacked_comes_again;
    "delivery.retry-after-is-kept" "4"
        "A nack's retry_after is waited for." retry_after_is_kept;
    "delivery.backoff-begins-at-a-second" "4"
        "Without a retry_after the first redelivery comes after about a second, never at once." backoff;
    "delivery.no-ack-comes-again" "4"
        "Without an ack within the ack wait a message comes again." no_ack_comes_again;
    "delivery.extend-keeps-it" "4"
        "An extension moves the ack deadline, and the broker says to when." extend_keeps_it;
    "delivery.end-of-session-comes-again" "4"
        "When a session ends, its unacked messages are delivered again in the next one." end_of_session;
    "delivery.shutdown-is-no-failure" "4"
        "Nacks as SHUTDOWN and ends of sessions do not count as failures, however many." shutdown_is_no_failure;
    "delivery.unknown-is-refused" "4"
        "An acknowledgement of a delivery that the agent does not hold is refused with DELIVERY_UNKNOWN."
        unknown_is_refused;
    "delivery.nack-needs-a-cause" "4"
        "A nack without a cause is refused with FIELD_INVALID, and the delivery stays." nack_needs_a_cause;
    "delivery.credit-is-kept" "4"
        "No more deliveries are handed out than the credit says; an ack makes room for the next." credit_is_kept;
    "delivery.no-credit-no-delivery" "4"
        "A session begins without credit, and gets nothing until it gives some." no_credit;
    "delivery.slow-agent-slows-no-other" "4"
        "One agent that takes nothing does not keep others from their mail." slow_agent;
    "delivery.away-agent-finds-its-mail" "4"
        "An agent that was away finds its mail on its return." away_agent;
    "delivery.higher-priority-first" "4"
        "Higher priority comes first, and the oldest first within one priority." higher_priority_first;
    "delivery.lower-priority-still-moves" "4"
        "Mail of low priority gets through while more of high priority waits." lower_priority_moves;
    "delivery.senders-take-turns" "4"
        "The requests of one sender do not stand before the one of another; of each the oldest comes first."
        senders_take_turns;
    "delivery.fairness-keys-take-turns" "4"
        "The fairness keys of a sender take turns, within the turns of the sender." fairness_keys_take_turns;
    "delivery.fairness-key-is-a-name" "4"
        "A fairness key with other characters than an agent id is refused with FIELD_INVALID." fairness_key_is_a_name;
    "delivery.by-calls" "4"
        "Receive and Ack do the same as a session." by_calls;
    "delivery.peek-takes-nothing" "4"
        "Receive with peek shows what waits, the higher priority first, and ends; it has no delivery id and counts no attempt."
        peek_takes_nothing;
    "delivery.calls-and-sessions-share" "4"
        "A delivery of Receive can be acked after its stream has ended, and does not come again." ack_after_the_stream;
}

fn text(text: impl Into<String>) -> v1::Info {
    v1::Info { text: text.into(), ..Default::default() }
}

fn text_of(delivered: &Delivered) -> String {
    delivered.payload::<v1::Info>().text
}

async fn pair(world: &World) -> Verdict<(Actor, Actor)> {
    Ok((world.agent("alice").await?, world.agent("bob").await?))
}

/// A task of alice, whose status updates go to bob. Only messages of a handoff, status updates and recalls stand in the
/// order of a task.
async fn task_of(alice: &Actor, bob: &Actor, world: &World) -> Verdict<About> {
    let about = About::task(&world.id("task"), 1);
    alice.tell(bob.id(), &about, &a_request()).await?;
    bob.take(MessageType::HandoffRequest).await?;
    Ok(about)
}

fn status(details: impl Into<String>) -> v1::TaskStatusUpdate {
    v1::TaskStatusUpdate { status: v1::TaskStatus::InProgress.into(), details: details.into(), ..Default::default() }
}

async fn in_order(world: World) -> Verdict {
    let (alice, bob) = pair(&world).await?;
    let about = task_of(&alice, &bob, &world).await?;
    let sent: Vec<String> = (0..24).map(|number| number.to_string()).collect();
    for each in &sent {
        alice.tell(bob.id(), &about, &status(each)).await?;
    }
    let mut seen = Vec::new();
    for _ in &sent {
        seen.push(bob.take(MessageType::TaskStatusUpdate).await?.payload::<v1::TaskStatusUpdate>().details);
    }
    same("alice sends 24 status updates of one task, and bob takes them", "order", sent, seen)
}

async fn redelivery_keeps_the_order(world: World) -> Verdict {
    let (alice, bob) = pair(&world).await?;
    let about = task_of(&alice, &bob, &world).await?;
    for each in ["first", "second"] {
        alice.tell(bob.id(), &about, &status(each)).await?;
    }
    let first = bob.next("bob's first delivery").await?;
    same("bob's first delivery", "details", "first", &first.payload::<v1::TaskStatusUpdate>().details)?;
    bob.nack(&first, NackCause::Failure, Duration::from_millis(200)).await?;
    let mut seen = Vec::new();
    for _ in 0..2 {
        seen.push(bob.take(MessageType::TaskStatusUpdate).await?.payload::<v1::TaskStatusUpdate>().details);
    }
    same(
        "bob nacks the first message and takes what comes",
        "order",
        vec!["first".to_owned(), "second".to_owned()],
        seen,
    )
}

async fn mail_overtakes(world: World) -> Verdict {
    let (alice, bob) = pair(&world).await?;
    let about = task_of(&alice, &bob, &world).await?;
    alice.tell(bob.id(), &about, &status("waits")).await?;
    let held = bob.next("bob's status update, which it does not ack yet").await?;
    same("bob's status update", "details", "waits", &held.payload::<v1::TaskStatusUpdate>().details)?;
    alice.tell(bob.id(), &about, &text("waits for nothing")).await?;
    let mail = bob.take(MessageType::Info).await?;
    same("mail about the same task", "text", "waits for nothing", &text_of(&mail))
}

async fn stranger_writes_about_no_task(world: World) -> Verdict {
    let (alice, bob) = pair(&world).await?;
    let about = task_of(&alice, &bob, &world).await?;
    let carol = world.agent("carol").await?;
    let refusal = Refusal(Code::PermissionDenied, "NOT_OWNER");
    refused("a stranger writes about a task", carol.say(alice.id(), &about, &text("mine?")).await, refusal)?;
    bob.tell(alice.id(), &about, &text("a candidate may write")).await.map(drop)
}

const UNKNOWN: Refusal = Refusal(Code::NotFound, "DELIVERY_UNKNOWN");

async fn ack_is_for_good(world: World) -> Verdict {
    let (alice, bob) = pair(&world).await?;
    alice.tell(bob.id(), &About::default(), &text("once")).await?;
    let delivered = bob.take(MessageType::Info).await?;
    let again = bob.call(bob.agent.session.ack(&delivered.delivery.delivery_id)).await;
    refused("bob acks a delivery twice", again, UNKNOWN)?;
    let identity = bob.identity.clone();
    drop(bob);
    let bob = world.connect(&identity, 4).await?;
    // A redelivery of the acked message would come before this newer one.
    alice.tell(bob.id(), &About::default(), &text("last")).await?;
    same("bob takes the next in a new session", "text", "last", &text_of(&bob.take(MessageType::Info).await?))
}

async fn nacked_comes_again(world: World) -> Verdict {
    let (alice, bob) = pair(&world).await?;
    alice.tell(bob.id(), &About::default(), &text("again")).await?;
    for attempt in 1..=3 {
        let step = format!("delivery {attempt}, which bob nacks as FAILURE");
        let delivered = bob.next(&step).await?;
        same(&step, "attempt", attempt, delivered.delivery.attempt)?;
        same(&step, "text", "again", &text_of(&delivered))?;
        bob.nack(&delivered, NackCause::Failure, Duration::from_millis(50)).await?;
    }
    let last = bob.take(MessageType::Info).await?;
    same("bob takes it at last", "attempt", 4, last.delivery.attempt)
}

/// Nacks a delivery as FAILURE, and measures the time until its redelivery.
async fn redelivery_after(bob: &Actor, step: &str, first: &Delivered) -> Verdict<Duration> {
    let nacked = Moment::now();
    let retry_after = None;
    let nack = v1::Nack { cause: NackCause::Failure.into(), retry_after, ..Default::default() };
    answered(step, bob.call(bob.agent.session.nack(&first.delivery.delivery_id, nack)).await)?;
    let again = bob.next(step).await?;
    let waited = nacked.elapsed();
    bob.ack(&again).await?;
    Ok(waited)
}

async fn backoff(world: World) -> Verdict {
    let (alice, bob) = pair(&world).await?;
    alice.tell(bob.id(), &About::default(), &text("later")).await?;
    let step = "bob nacks a message as FAILURE, without a retry_after";
    let first = bob.next(step).await?;
    let waited = redelivery_after(&bob, step, &first).await?;
    let mut checks = Checks::of(step);
    // 1 s less 20 % jitter, and a margin for the clocks. No upper bound: it would depend on the machine's load.
    checks.holds("redelivery", waited >= Duration::from_millis(750), "after 0.8 s at least", waited);
    checks.done()
}

async fn retry_after_is_kept(world: World) -> Verdict {
    let (alice, bob) = pair(&world).await?;
    alice.tell(bob.id(), &About::default(), &text("later")).await?;
    let step = "bob nacks a message with a retry_after of 1.5 s";
    let first = bob.next(step).await?;
    let nacked = Moment::now();
    bob.nack(&first, NackCause::Failure, Duration::from_millis(1500)).await?;
    let again = bob.next(step).await?;
    let waited = nacked.elapsed();
    bob.ack(&again).await?;
    let mut checks = Checks::of(step);
    checks.holds("redelivery", waited >= Duration::from_millis(1400), "after 1.5 s at least", waited);
    checks.done()
}

/// The longest ack wait that a case sits out.
const ACK_WAIT_MAX: Duration = Duration::from_secs(60);

async fn no_ack_comes_again(world: World) -> Verdict {
    let (alice, bob) = pair(&world).await?;
    let wait = bob.agent.session.welcome.ack_wait.and_then(|wait| Duration::try_from(wait).ok()).unwrap_or_default();
    if wait > ACK_WAIT_MAX {
        return Err(Problem::Skipped(format!("the broker's ack wait is {wait:?}, longer than {ACK_WAIT_MAX:?}")));
    }
    alice.tell(bob.id(), &About::default(), &text("no ack")).await?;
    let step = format!("bob does not ack a message for {wait:?}");
    let first = bob.next(&step).await?;
    let began = Moment::now();
    let again = bob.next_within(&step, wait).await?;
    let mut checks = Checks::of(&step);
    checks.same("attempt", 2, again.delivery.attempt);
    checks.same("message_id", &first.envelope.message_id, &again.envelope.message_id);
    // A margin, because the suite and the broker measure with different clocks.
    let early = wait.saturating_sub(Duration::from_millis(200));
    checks.holds("redelivery", began.elapsed() >= early, "after the ack wait", began.elapsed());
    let late = bob.call(bob.agent.session.ack(&first.delivery.delivery_id)).await;
    checks.refused("an ack of the first delivery", late, UNKNOWN);
    checks.done()?;
    bob.ack(&again).await
}

async fn extend_keeps_it(world: World) -> Verdict {
    let (alice, bob) = pair(&world).await?;
    alice.tell(bob.id(), &About::default(), &text("slow")).await?;
    let step = "bob asks for 5 minutes more";
    let delivered = bob.next(step).await?;
    let extension = prost_types::Duration { seconds: 300, nanos: 0 };
    let outcome = v1::acknowledgement::Outcome::Extend(v1::Extend { extension: Some(extension) });
    let acknowledgement =
        v1::Acknowledgement { delivery_id: delivered.delivery.delivery_id.clone(), outcome: Some(outcome) };
    let request = v1::AckRequest { acknowledgement: Some(acknowledgement) };
    let answer = bob.call(async { bob.client.answer(bob.client.messages().ack(request).await) }).await;
    let extended = answered(step, answer)?.acknowledged.unwrap_or_default();
    let seconds = |time: Option<prost_types::Timestamp>| time.unwrap_or_default().seconds;
    let (before, after) = (seconds(delivered.delivery.ack_deadline), seconds(extended.ack_deadline));
    let mut checks = Checks::of(step);
    checks.holds("ack_deadline", after > before, "later than before", (before, after));
    checks.done()?;
    bob.ack(&delivered).await
}

async fn end_of_session(world: World) -> Verdict {
    let (alice, bob) = pair(&world).await?;
    alice.tell(bob.id(), &About::default(), &text("again")).await?;
    let first = bob.next("bob gets a message").await?;
    let identity = bob.identity.clone();
    drop(bob);
    let bob = world.connect(&identity, 4).await?;
    let step = "bob's session ends without an ack, and he comes back";
    let again = bob.next(step).await?;
    same(step, "message_id", &first.envelope.message_id, &again.envelope.message_id)?;
    same(step, "attempt", 2, again.delivery.attempt)?;
    bob.ack(&again).await
}

async fn shutdown_is_no_failure(world: World) -> Verdict {
    let (alice, bob) = pair(&world).await?;
    alice.tell(bob.id(), &About::default(), &text("still here")).await?;
    // More than the 5 failed attempts that would make a dead letter (SPEC 4).
    for attempt in 1..=7 {
        let step = format!("delivery {attempt}, which bob nacks as SHUTDOWN");
        let delivered = bob.next(&step).await?;
        bob.nack(&delivered, NackCause::Shutdown, Duration::from_millis(10)).await?;
    }
    bob.take(MessageType::Info).await.map(drop)
}

async fn unknown_is_refused(world: World) -> Verdict {
    let (alice, bob) = pair(&world).await?;
    alice.tell(bob.id(), &About::default(), &text("bob's")).await?;
    let delivered = bob.next("bob gets a message").await?;
    let theirs = &delivered.delivery.delivery_id;
    let mut checks = Checks::of("an acknowledgement of what is not handed out to the agent");
    checks.refused("made up", bob.call(bob.agent.session.ack("nonsense")).await, UNKNOWN);
    checks.refused("another agent's", alice.call(alice.agent.session.ack(theirs)).await, UNKNOWN);
    checks.done()?;
    bob.ack(&delivered).await
}

async fn nack_needs_a_cause(world: World) -> Verdict {
    let (alice, bob) = pair(&world).await?;
    alice.tell(bob.id(), &About::default(), &text("stays")).await?;
    let delivered = bob.next("bob gets a message").await?;
    let nacked = bob.call(bob.agent.session.nack(&delivered.delivery.delivery_id, v1::Nack::default())).await;
    let field = Refusal(Code::InvalidArgument, "FIELD_INVALID");
    refused("bob nacks it without a cause", nacked, field)?;
    bob.ack(&delivered).await
}

async fn credit_is_kept(world: World) -> Verdict {
    let (alice, bob) = (world.agent("alice").await?, world.agent_of("bob", &[], 2).await?);
    for number in 0..3 {
        alice.tell(bob.id(), &About::default(), &text(number.to_string())).await?;
    }
    let step = "bob has a credit of 2, and three messages wait for him";
    let first = bob.next(step).await?;
    let second = bob.next(step).await?;
    if let Some(third) = bob.comes_within(Duration::from_millis(300)).await {
        return fail(step, "third delivery", "none before an ack", text_of(&third));
    }
    bob.ack(&first).await?;
    let third = bob.next("bob acks the first, and gets the third").await?;
    same("bob acks the first, and gets the third", "text", "2", &text_of(&third))?;
    bob.ack(&second).await?;
    bob.ack(&third).await
}

async fn no_credit(world: World) -> Verdict {
    let (alice, bob) = (world.agent("alice").await?, world.agent_of("bob", &[], 0).await?);
    alice.tell(bob.id(), &About::default(), &text("waits")).await?;
    if let Some(delivered) = bob.comes_within(Duration::from_millis(300)).await {
        return fail("bob gave no credit", "delivery", "none", text_of(&delivered));
    }
    answered("bob gives a credit of 1", bob.call(bob.agent.session.credit(1)).await)?;
    bob.take(MessageType::Info).await.map(drop)
}

async fn slow_agent(world: World) -> Verdict {
    let alice = world.agent("alice").await?;
    let (slow, quick) = (world.agent_of("slow", &[], 1).await?, world.agent("quick").await?);
    for number in 0..20 {
        alice.tell(slow.id(), &About::default(), &text(number.to_string())).await?;
        alice.tell(quick.id(), &About::default(), &text(number.to_string())).await?;
    }
    slow.next("the slow one gets a message and does nothing").await?;
    for _ in 0..20 {
        quick.take(MessageType::Info).await?;
    }
    Ok(())
}

async fn away_agent(world: World) -> Verdict {
    let alice = world.agent("alice").await?;
    let bob = world.enrol("bob", &[]).await?;
    alice.tell(bob.agent.as_str(), &About::default(), &text("while you were away")).await?;
    let bob = world.connect(&bob, 4).await?;
    let delivered = bob.take(MessageType::Info).await?;
    same("bob comes, and takes his mail", "text", "while you were away", &text_of(&delivered))
}

async fn ask(world: &World, alice: &Actor, bob: &str, name: &str, priority: Priority) -> Verdict {
    let request = v1::HandoffRequest { priority: priority.into(), ..a_request() };
    alice.tell(bob, &About::task(&world.id(name), 1), &request).await.map(drop)
}

async fn higher_priority_first(world: World) -> Verdict {
    let alice = world.agent("alice").await?;
    let bob = world.enrol("bob", &[]).await?;
    let asked = [
        ("low", Priority::Low),
        ("medium", Priority::Unspecified),
        ("critical", Priority::Critical),
        ("high", Priority::High),
        ("critical-2", Priority::Critical),
        ("medium-2", Priority::Medium),
    ];
    for (name, priority) in asked {
        ask(&world, &alice, bob.agent.as_str(), name, priority).await?;
    }
    let bob = world.connect(&bob, 1).await?;
    let mut seen = Vec::new();
    for _ in asked {
        seen.push(bob.take(MessageType::HandoffRequest).await?.envelope.task_id);
    }
    let expected = ["critical", "critical-2", "high", "medium", "medium-2", "low"].map(|name| world.id(name));
    same("six requests wait for bob, who takes them one by one", "order", expected.to_vec(), seen)
}

async fn lower_priority_moves(world: World) -> Verdict {
    let alice = world.agent("alice").await?;
    let bob = world.enrol("bob", &[]).await?;
    ask(&world, &alice, bob.agent.as_str(), "low", Priority::Low).await?;
    for number in 0..64 {
        ask(&world, &alice, bob.agent.as_str(), &format!("high-{number}"), Priority::High).await?;
    }
    let bob = world.connect(&bob, 1).await?;
    for _ in 0..64 {
        // Every eighth delivery is the oldest message of any priority (SPEC 4).
        if bob.take(MessageType::HandoffRequest).await?.envelope.task_id == world.id("low") {
            return Ok(());
        }
    }
    fail("a request of low priority waits before 64 of high", "order", "before the last of high", "the last of all")
}

/// The tasks of the requests that wait for bob, who takes them one by one.
async fn tasks_in_order(world: &World, bob: &Identity, many: usize) -> Verdict<Vec<String>> {
    let bob = world.connect(bob, 1).await?;
    let mut seen = Vec::new();
    for _ in 0..many {
        seen.push(bob.take(MessageType::HandoffRequest).await?.envelope.task_id);
    }
    Ok(seen)
}

async fn senders_take_turns(world: World) -> Verdict {
    let (alice, carol) = (world.agent("alice").await?, world.agent("carol").await?);
    let bob = world.enrol("bob", &[]).await?;
    for number in 0..20 {
        ask(&world, &alice, bob.agent.as_str(), &format!("alice-{number}"), Priority::Medium).await?;
    }
    ask(&world, &carol, bob.agent.as_str(), "carol", Priority::Medium).await?;
    let mut seen = tasks_in_order(&world, &bob, 21).await?;
    let step = "twenty requests of alice and then one of carol wait for bob";
    match seen.iter().position(|task| *task == world.id("carol")) {
        Some(place @ 0..=2) => drop(seen.remove(place)),
        place => return fail(step, "the place of carol's request", "at most 2", format!("{place:?}")),
    }
    let expected: Vec<String> = (0..20).map(|number| world.id(&format!("alice-{number}"))).collect();
    same(step, "the order of alice's", expected, seen)
}

async fn fairness_keys_take_turns(world: World) -> Verdict {
    let (alice, carol) = (world.agent("alice").await?, world.agent("carol").await?);
    let bob = world.enrol("bob", &[]).await?;
    let asked = [
        (&alice, "north-1", "north"),
        (&alice, "north-2", "north"),
        (&alice, "north-3", "north"),
        (&alice, "south-1", "south"),
        (&carol, "carol-1", "north"),
        (&carol, "carol-2", ""),
        (&carol, "carol-3", ""),
    ];
    for (sender, name, key) in asked {
        let request = v1::HandoffRequest { fairness_key: key.to_owned(), ..a_request() };
        sender.tell(bob.agent.as_str(), &About::task(&world.id(name), 1), &request).await?;
    }
    let seen = tasks_in_order(&world, &bob, asked.len()).await?;
    let expected = ["north-1", "carol-1", "south-1", "carol-2", "north-2", "carol-3", "north-3"];
    let expected = expected.map(|name| world.id(name)).to_vec();
    same("the requests of two senders with two keys wait for bob", "order", expected, seen)
}

async fn fairness_key_is_a_name(world: World) -> Verdict {
    let (alice, bob) = pair(&world).await?;
    let mut checks = Checks::of("alice sends requests with fairness keys that are no names");
    for bad in ["-north", "the north", &"n".repeat(129)] {
        let request = v1::HandoffRequest { fairness_key: bad.to_owned(), ..a_request() };
        let refused = alice.say(bob.id(), &About::task(&world.id("t"), 1), &request).await;
        checks.refused(bad, refused, Refusal(Code::InvalidArgument, "FIELD_INVALID"));
    }
    checks.done()
}

async fn receive(bob: &Actor, most: u32) -> Verdict<tonic::Streaming<v1::ReceiveResponse>> {
    let request = v1::ReceiveRequest { max_deliveries: most, ..Default::default() };
    let stream = bob.call(async { bob.client.answer(bob.client.messages().receive(request).await) }).await;
    answered("bob calls Receive", stream)
}

async fn next_of(bob: &Actor, stream: &mut tonic::Streaming<v1::ReceiveResponse>) -> Verdict<v1::Delivery> {
    let step = "the next delivery of Receive";
    let next = answered(step, bob.call(async { Ok(stream.message().await) }).await)?;
    match next {
        Ok(Some(v1::ReceiveResponse { delivery: Some(delivery) })) => Ok(delivery),
        other => fail(step, "delivery", "one", format!("{other:?}")),
    }
}

async fn ack_by_call(bob: &Actor, delivery_id: &str) -> Verdict {
    let outcome = Some(v1::acknowledgement::Outcome::Ack(v1::Ack {}));
    let acknowledgement = Some(v1::Acknowledgement { delivery_id: delivery_id.to_owned(), outcome });
    let request = v1::AckRequest { acknowledgement };
    let acked = bob.call(async { bob.client.answer(bob.client.messages().ack(request).await) }).await;
    answered("bob calls Ack", acked).map(drop)
}

async fn by_calls(world: World) -> Verdict {
    let (alice, bob) = (world.agent("alice").await?, world.agent_of("bob", &[], 0).await?);
    for number in 0..2 {
        alice.tell(bob.id(), &About::default(), &text(number.to_string())).await?;
    }
    let mut stream = receive(&bob, 2).await?;
    for _ in 0..2 {
        let delivery = next_of(&bob, &mut stream).await?;
        ack_by_call(&bob, &delivery.delivery_id).await?;
    }
    let ended = answered("Receive after two deliveries", bob.call(async { Ok(stream.message().await) }).await)?;
    same("Receive with max_deliveries 2, after two", "end", true, matches!(ended, Ok(None)))
}

async fn ack_after_the_stream(world: World) -> Verdict {
    let (alice, bob) = (world.agent("alice").await?, world.agent_of("bob", &[], 0).await?);
    alice.tell(bob.id(), &About::default(), &text("first")).await?;
    let mut stream = receive(&bob, 1).await?;
    let delivery = next_of(&bob, &mut stream).await?;
    let ended = answered("Receive after its delivery", bob.call(async { Ok(stream.message().await) }).await)?;
    same("Receive with max_deliveries 1, after one", "end", true, matches!(ended, Ok(None)))?;
    ack_by_call(&bob, &delivery.delivery_id).await?;
    alice.tell(bob.id(), &About::default(), &text("second")).await?;
    answered("bob gives credit", bob.call(bob.agent.session.credit(1)).await)?;
    same("bob's session", "text", "second", &text_of(&bob.take(MessageType::Info).await?))
}

async fn peek_takes_nothing(world: World) -> Verdict {
    let (alice, bob) = (world.agent("alice").await?, world.agent_of("bob", &[], 0).await?);
    alice.tell(bob.id(), &About::default(), &text("first")).await?;
    let request = v1::HandoffRequest { priority: Priority::High.into(), ..a_request() };
    let handoff = alice.tell(bob.id(), &About::task(&world.id("task"), 1), &request).await?.handoff_id;
    for _ in 0..3 {
        let request = v1::ReceiveRequest { peek: true, ..Default::default() };
        let stream = bob.call(async { bob.client.answer(bob.client.messages().receive(request).await) }).await;
        let mut stream = answered("bob peeks", stream)?;
        let (offer, mail) = (next_of(&bob, &mut stream).await?, next_of(&bob, &mut stream).await?);
        let ended = answered("bob peeks to the end", bob.call(async { Ok(stream.message().await) }).await)?;
        let mut checks = Checks::of("bob peeks");
        checks.same("the first handoff_id", handoff.as_str(), offer.handoff_id.as_str());
        checks.same("the second handoff_id", "", mail.handoff_id.as_str());
        checks.same("delivery_id", "", mail.delivery_id.as_str());
        checks.same("attempt", 1, mail.attempt);
        checks.same("end", true, matches!(ended, Ok(None)));
        checks.done()?;
    }
    let mut stream = receive(&bob, 1).await?;
    let taken = next_of(&bob, &mut stream).await?;
    let mut checks = Checks::of("bob receives");
    checks.same("handoff_id", handoff.as_str(), taken.handoff_id.as_str());
    checks.same("attempt", 1, taken.attempt);
    checks.done()
}
