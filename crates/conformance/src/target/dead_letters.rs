//! SPEC 4: dead letters, and the operations on them.

use std::time::Duration;

use bytes::Bytes;
use prost::Message as _;
use tonic::Code;

use super::{
    check::{Checks, Refusal, Verdict, answered, fail, refused, same},
    story::{Stage, Story, with_timeouts},
    world::{Actor, World},
};
use baton_client::{
    About, Client,
    proto::v1::{self, DeadLetterReason, DeadLetterState, MessageType, NackCause},
};

cases! {
    "dead-letter.poison-at-once" "4"
        "A nack for POISON makes a dead letter at once, with the envelope byte for byte and the attempt."
        poison_at_once;
    "dead-letter.attempts-exhausted" "4"
        "After 5 failed attempts a message is a dead letter, with every attempt, and is not delivered again."
        attempts_exhausted;
    "dead-letter.expired" "4"
        "Mail becomes a dead letter with reason EXPIRED at its expires_at, and is not delivered." expired;
    "dead-letter.accept-timeout" "4"
        "A request that the last candidate did not decide in time is a dead letter for ACCEPT_TIMEOUT." accept_timeout;
    "dead-letter.no-candidate" "4"
        "A request that all candidates rejected is a dead letter with reason NO_CANDIDATE." no_candidate;
    "dead-letter.malformed-of-a-proven-agent" "4"
        "What a proven agent sends and is no envelope is refused, and kept as MALFORMED." malformed;
    "dead-letter.schema-invalid" "4"
        "A payload that does not fit its type is refused, and kept as SCHEMA_INVALID." schema_invalid;
    "dead-letter.stranger-leaves-none" "4"
        "What a stranger sends and is no envelope is refused and not stored." stranger_leaves_none;
    "dead-letter.list-filters-and-pages" "4"
        "Dead letters are listed by agent, sender, task, reason and type, newest first, in pages." list;
    "dead-letter.redrive-to-the-same" "4"
        "A redriven message comes again to the same agent, and its dead letter is marked REDRIVEN." redrive_same;
    "dead-letter.redrive-to-another" "4"
        "A message can be redriven to another agent." redrive_another;
    "dead-letter.redriven-request-is-a-new-handoff" "4"
        "A redriven request is a new handoff; its owner gets a notice." redriven_request;
    "dead-letter.redrive-all-that-match" "4"
        "All that match a filter are redriven with one call, oldest first." redrive_all;
    "dead-letter.discard" "4"
        "A discarded dead letter is kept, marked DISCARDED, and cannot be redriven any more." discard;
    "dead-letter.export" "4"
        "An export has all that match, oldest first, with their envelopes." export;
}

async fn pair(world: &World) -> Verdict<(Actor, Actor)> {
    Ok((world.agent("alice").await?, world.agent("bob").await?))
}

fn by_sender(sender: &Actor) -> v1::DeadLetterFilter {
    v1::DeadLetterFilter { sender_id: sender.id().to_owned(), ..Default::default() }
}

async fn list_page(
    by: &Client,
    world: &World,
    request: v1::ListDeadLettersRequest,
) -> Verdict<v1::ListDeadLettersResponse> {
    let listed = world.call(async { by.answer(by.dead_letters().list_dead_letters(request).await) }).await;
    answered("dead letters are listed", listed)
}

async fn listed(by: &Client, world: &World, filter: v1::DeadLetterFilter) -> Verdict<Vec<v1::DeadLetter>> {
    let request = v1::ListDeadLettersRequest { filter: Some(filter), ..Default::default() };
    Ok(list_page(by, world, request).await?.dead_letters)
}

async fn get(by: &Client, world: &World, dead_letter_id: &str) -> Verdict<v1::DeadLetter> {
    let request = v1::GetDeadLetterRequest { dead_letter_id: dead_letter_id.to_owned() };
    let got = world.call(async { by.answer(by.dead_letters().get_dead_letter(request).await) }).await;
    Ok(answered("a dead letter is read", got)?.dead_letter.unwrap_or_default())
}

/// Waits for the only dead letter that the filter matches, and reads it in full. It polls, because the broker announces
/// no parked message.
async fn found(world: &World, alice: &Actor, filter: v1::DeadLetterFilter, step: &str) -> Verdict<v1::DeadLetter> {
    const TURN: Duration = Duration::from_millis(100);
    let turns = world.target.patience.as_millis() / TURN.as_millis();
    for _ in 0..turns {
        let mut seen = listed(&alice.client, world, filter.clone()).await?;
        match (seen.pop(), seen.len()) {
            (Some(one), 0) => return get(&alice.client, world, &one.dead_letter_id).await,
            (Some(_), more) => return fail(step, "dead letters", "1", (more + 1).to_string()),
            (None, _) => tokio::time::sleep(TURN).await,
        }
    }
    fail(step, "dead letters", "1", "0")
}

/// The only dead letter of this sender, in full.
async fn the_one(world: &World, alice: &Actor, step: &str) -> Verdict<v1::DeadLetter> {
    found(world, alice, by_sender(alice), step).await
}

/// The filter for the refused envelopes of this agent.
fn refused_of(agent: &Actor) -> v1::DeadLetterFilter {
    v1::DeadLetterFilter { agent_id: agent.id().to_owned(), ..Default::default() }
}

async fn poison_at_once(world: World) -> Verdict {
    let (alice, bob) = pair(&world).await?;
    let envelope = alice.info(bob.id(), "poison");
    let receipt = answered("alice sends a message", alice.submit(&envelope).await)?;
    let delivered = bob.next("bob gets it").await?;
    bob.nack(&delivered, NackCause::Poison, Duration::ZERO).await?;
    let step = "bob nacks it for POISON";
    let dead = the_one(&world, &alice, step).await?;
    let mut checks = Checks::of(step);
    checks.same("reason", DeadLetterReason::Poison, dead.reason());
    checks.same("state", DeadLetterState::Parked, dead.state());
    checks.same("agent_id", bob.id(), &dead.agent_id);
    checks.same("message_id", &envelope.message_id, &dead.message_id);
    checks.same("message_type", MessageType::Info, dead.message_type());
    checks.same("sequence", receipt.sequence, dead.sequence);
    checks.same("envelope_bytes", hex::encode(envelope.encode_to_vec()), hex::encode(&dead.envelope_bytes));
    let ends: Vec<_> = dead.attempts.iter().map(v1::DeliveryAttempt::end).collect();
    checks.same("attempts", vec![v1::DeliveryEnd::Poison], ends);
    checks.done()
}

async fn attempts_exhausted(world: World) -> Verdict {
    let (alice, bob) = pair(&world).await?;
    let envelope = alice.info(bob.id(), "fails");
    answered("alice sends a message", alice.submit(&envelope).await)?;
    for attempt in 1..=5 {
        let delivered = bob.next(&format!("attempt {attempt}")).await?;
        bob.nack(&delivered, NackCause::Failure, Duration::from_millis(20)).await?;
    }
    let step = "bob nacks it for the fifth time";
    let dead = the_one(&world, &alice, step).await?;
    let mut checks = Checks::of(step);
    checks.same("reason", DeadLetterReason::DeliveryAttemptsExhausted, dead.reason());
    checks.same("failure_count", 5, dead.failure_count);
    let ends: Vec<_> = dead.attempts.iter().map(v1::DeliveryAttempt::end).collect();
    checks.same("attempts", vec![v1::DeliveryEnd::Failure; 5], ends);
    checks.same("envelope_bytes", hex::encode(envelope.encode_to_vec()), hex::encode(&dead.envelope_bytes));
    checks.done()?;
    // The dead message is older. If it were delivered again, it would come first.
    alice.tell(bob.id(), &About::default(), &v1::Delegation::default()).await?;
    bob.take(MessageType::Delegation).await.map(drop)
}

async fn expired(world: World) -> Verdict {
    let alice = world.agent("alice").await?;
    let bob = world.enrol("bob", &[]).await?;
    let mut envelope = alice.info(bob.agent.as_str(), "in a hurry");
    envelope.expires_at = envelope.timestamp.map(|time| prost_types::Timestamp { seconds: time.seconds + 2, ..time });
    alice.sign(&mut envelope);
    answered("alice sends a message that is good for two seconds", alice.submit(&envelope).await)?;
    let step = "bob is away, and the time is over";
    let dead = the_one(&world, &alice, step).await?;
    same(step, "reason", DeadLetterReason::Expired, dead.reason())?;
    alice.tell(bob.agent.as_str(), &About::default(), &v1::Delegation::default()).await?;
    let bob = world.connect(&bob, 4).await?;
    bob.take(MessageType::Delegation).await.map(drop)
}

async fn accept_timeout(world: World) -> Verdict {
    let story =
        Story::with(&world, with_timeouts(super::times::SHORT, 60_000, 60_000, 60_000), Stage::Deciding).await?;
    story.alice.take(MessageType::ErrorNotification).await?;
    let step = "bob does not decide in time";
    let dead = the_one(&world, &story.alice, step).await?;
    let mut checks = Checks::of(step);
    checks.same("reason", DeadLetterReason::AcceptTimeout, dead.reason());
    checks.same("handoff_id", &story.handoff, &dead.handoff_id);
    checks.same("task_id", &story.task, &dead.task_id);
    checks.done()
}

async fn no_candidate(world: World) -> Verdict {
    let story = Story::at(&world, Stage::Deciding).await?;
    answered("bob rejects", story.reject().await)?;
    let step = "bob rejects, and there is no other candidate";
    let dead = the_one(&world, &story.alice, step).await?;
    let mut checks = Checks::of(step);
    checks.same("reason", DeadLetterReason::NoCandidate, dead.reason());
    checks.same("handoff_id", &story.handoff, &dead.handoff_id);
    let ends: Vec<_> = dead.attempts.iter().map(v1::DeliveryAttempt::end).collect();
    checks.same("attempts", vec![v1::DeliveryEnd::Rejected], ends);
    checks.done()
}

const MALFORMED: Refusal = Refusal(Code::InvalidArgument, "MALFORMED");

async fn malformed(world: World) -> Verdict {
    let alice = world.agent("alice").await?;
    let garbage = Bytes::from_static(b"\xff\xff\xff\xff");
    refused("alice sends bytes that are no envelope", alice.submit_bytes(garbage.clone()).await, MALFORMED)?;
    let step = "alice looks for what is kept of her";
    let dead = found(&world, &alice, refused_of(&alice), step).await?;
    same(step, "reason", DeadLetterReason::Malformed, dead.reason())?;
    same(step, "envelope_bytes", hex::encode(garbage), hex::encode(&dead.envelope_bytes))
}

async fn schema_invalid(world: World) -> Verdict {
    let (alice, bob) = pair(&world).await?;
    let mut envelope = alice.info(bob.id(), "");
    envelope.payload = Some(baton_client::envelope::payload_of(&v1::Delegation::default()));
    alice.sign(&mut envelope);
    let mismatch = Refusal(Code::InvalidArgument, "PAYLOAD_TYPE_MISMATCH");
    refused("alice sends a Delegation and calls it an Info", alice.submit(&envelope).await, mismatch)?;
    let step = "alice looks for what is kept of her";
    let dead = found(&world, &alice, refused_of(&alice), step).await?;
    same(step, "reason", DeadLetterReason::SchemaInvalid, dead.reason())
}

async fn stranger_leaves_none(world: World) -> Verdict {
    let (alice, bob) = pair(&world).await?;
    // Only the unauthenticated envelope names alice as its sender. Without a token the broker must not retain it.
    let mut envelope = alice.info(bob.id(), "");
    envelope.task_id = "no id".to_owned();
    let request = v1::SendRequest { envelope: envelope.encode_to_vec().into(), ..Default::default() };
    let answer = world.call(async { world.anonymous.answer(world.anonymous.messages().send(request).await) }).await;
    let field = Refusal(Code::InvalidArgument, "FIELD_INVALID");
    refused("a stranger sends what cannot be, in alice's name", answer, field)?;
    // The broker retains this later envelope. When it appears, an earlier one would have appeared too.
    refused(
        "alice sends bytes that are no envelope",
        alice.submit_bytes(Bytes::from_static(b"\xff")).await,
        MALFORMED,
    )?;
    let step = "alice looks for what is kept of her";
    let dead = found(&world, &alice, refused_of(&alice), step).await?;
    same(step, "envelope_bytes", "ff", &hex::encode(&dead.envelope_bytes))
}

/// Sends `many` messages from alice that bob nacks as POISON. Returns their ids, oldest first.
async fn poisoned(alice: &Actor, bob: &Actor, many: usize) -> Verdict<Vec<String>> {
    let mut ids = Vec::new();
    for _ in 0..many {
        let envelope = alice.info(bob.id(), "poison");
        answered("alice sends a message", alice.submit(&envelope).await)?;
        let delivered = bob.next("bob gets it").await?;
        bob.nack(&delivered, NackCause::Poison, Duration::ZERO).await?;
        ids.push(envelope.message_id);
    }
    Ok(ids)
}

fn message_ids(dead: &[v1::DeadLetter]) -> Vec<String> {
    dead.iter().map(|dead| dead.message_id.clone()).collect()
}

async fn list(world: World) -> Verdict {
    let (alice, bob) = pair(&world).await?;
    let mut newest_first = poisoned(&alice, &bob, 3).await?;
    newest_first.reverse();
    let by = &alice.client;
    let mut checks = Checks::of("three messages of alice are dead letters");
    let filters = [
        ("by sender", by_sender(&alice), 3),
        ("by agent", v1::DeadLetterFilter { agent_id: bob.id().to_owned(), ..Default::default() }, 3),
        ("by another task", v1::DeadLetterFilter { task_id: world.id("none"), ..by_sender(&alice) }, 0),
        ("by reason", v1::DeadLetterFilter { reasons: vec![DeadLetterReason::Poison.into()], ..by_sender(&alice) }, 3),
        (
            "by another reason",
            v1::DeadLetterFilter { reasons: vec![DeadLetterReason::Expired.into()], ..by_sender(&alice) },
            0,
        ),
        ("by type", v1::DeadLetterFilter { message_types: vec![MessageType::Info.into()], ..by_sender(&alice) }, 3),
        (
            "by another type",
            v1::DeadLetterFilter { message_types: vec![MessageType::Delegation.into()], ..by_sender(&alice) },
            0,
        ),
        ("by state", v1::DeadLetterFilter { states: vec![DeadLetterState::Discarded.into()], ..by_sender(&alice) }, 0),
    ];
    for (name, filter, many) in filters {
        checks.same(name, many, listed(by, &world, filter).await?.len());
    }
    let request = v1::ListDeadLettersRequest { page_size: 2, filter: Some(by_sender(&alice)), ..Default::default() };
    let first = list_page(by, &world, request.clone()).await?;
    let next = v1::ListDeadLettersRequest { page_token: first.next_page_token.clone(), ..request };
    let next = list_page(by, &world, next).await?;
    let seen = [message_ids(&first.dead_letters), message_ids(&next.dead_letters)].concat();
    checks.same("two pages", newest_first, seen);
    checks.same("last page's token", "", &next.next_page_token);
    checks.done()
}

async fn redrive(
    by: &Client,
    world: &World,
    id: &str,
    to: &str,
) -> super::check::Answer<v1::RedriveDeadLetterResponse> {
    let request = v1::RedriveDeadLetterRequest { dead_letter_id: id.to_owned(), to_agent_id: to.to_owned() };
    world.call(async { by.answer(by.dead_letters().redrive_dead_letter(request).await) }).await
}

const SETTLED: Refusal = Refusal(Code::FailedPrecondition, "DEAD_LETTER_SETTLED");

async fn redrive_same(world: World) -> Verdict {
    let operator = world.operator()?;
    let (alice, bob) = pair(&world).await?;
    let sent = poisoned(&alice, &bob, 1).await?;
    let dead = the_one(&world, &alice, "bob poisons a message").await?;
    let step = "the operator redrives it";
    let answer = answered(step, redrive(&operator, &world, &dead.dead_letter_id, "").await)?;
    let state = answer.dead_letter.unwrap_or_default();
    same(step, "state", DeadLetterState::Redriven, state.state())?;
    let again = bob.take(MessageType::Info).await?;
    same("bob takes it again", "message_id", &sent[0], &again.envelope.message_id)?;
    let twice = redrive(&operator, &world, &dead.dead_letter_id, "").await;
    refused("the operator redrives it a second time", twice, SETTLED).map(drop)
}

async fn redrive_another(world: World) -> Verdict {
    let operator = world.operator()?;
    let (alice, bob) = pair(&world).await?;
    let carol = world.agent("carol").await?;
    let sent = poisoned(&alice, &bob, 1).await?;
    let dead = the_one(&world, &alice, "bob poisons a message").await?;
    let step = "the operator redrives it to carol";
    answered(step, redrive(&operator, &world, &dead.dead_letter_id, carol.id()).await)?;
    let delivered = carol.take(MessageType::Info).await?;
    same("carol takes it", "message_id", &sent[0], &delivered.envelope.message_id)?;
    let shown = get(&operator, &world, &dead.dead_letter_id).await?;
    same(step, "redriven_to_agent_id", carol.id(), &shown.redriven_to_agent_id)
}

async fn redriven_request(world: World) -> Verdict {
    let operator = world.operator()?;
    let story = Story::at(&world, Stage::Deciding).await?;
    answered("bob rejects", story.reject().await)?;
    story.alice.take(MessageType::HandoffReject).await?;
    story.alice.take(MessageType::ErrorNotification).await?;
    let dead = the_one(&world, &story.alice, "bob rejects").await?;
    let step = "the operator redrives the request";
    let answer = answered(step, redrive(&operator, &world, &dead.dead_letter_id, "").await)?;
    let new = answer.dead_letter.unwrap_or_default().redriven_handoff_id;
    let delivered = story.bob.take(MessageType::HandoffRequest).await?;
    same("bob takes the request again", "handoff_id", &new, &delivered.delivery.handoff_id)?;
    super::times::notice(&story.alice, v1::ErrorCode::HandoffRedriven, v1::NextStep::Unspecified).await?;
    let about = About::handoff(&story.task, 1, &new);
    let receipt = story.bob.tell(story.alice.id(), &about, &v1::HandoffAccept::default()).await?;
    same("bob accepts it", "handoff_state", v1::HandoffState::Accepted, receipt.handoff_state())?;
    let shown = answered(step, story.alice.handoff(&new).await)?;
    same("alice reads the new handoff", "redrive_of_handoff_id", &story.handoff, &shown.redrive_of_handoff_id)
}

async fn redrive_all(world: World) -> Verdict {
    let operator = world.operator()?;
    let (alice, bob) = pair(&world).await?;
    let sent = poisoned(&alice, &bob, 3).await?;
    let request = v1::RedriveDeadLettersRequest { filter: Some(by_sender(&alice)), ..Default::default() };
    let stream =
        world.call(async { operator.answer(operator.dead_letters().redrive_dead_letters(request).await) }).await;
    let mut stream = answered("the operator redrives all of alice's", stream)?;
    let reading = async {
        let mut redriven = Vec::new();
        while let Ok(Some(one)) = stream.message().await {
            redriven.extend(one.dead_letter);
        }
        Ok(redriven)
    };
    let redriven = answered("the operator redrives all of alice's", world.call(reading).await)?;
    same("the operator redrives all of alice's", "redriven", sent.clone(), message_ids(&redriven))?;
    let mut seen = Vec::new();
    for _ in &sent {
        seen.push(bob.take(MessageType::Info).await?.envelope.message_id);
    }
    same("bob takes them", "message ids", sent, seen)
}

async fn discard(world: World) -> Verdict {
    let operator = world.operator()?;
    let (alice, bob) = pair(&world).await?;
    poisoned(&alice, &bob, 1).await?;
    let dead = the_one(&world, &alice, "bob poisons a message").await?;
    let request = v1::DiscardDeadLetterRequest {
        dead_letter_id: dead.dead_letter_id.clone(),
        reason_text: "of no use".to_owned(),
    };
    let answer =
        world.call(async { operator.answer(operator.dead_letters().discard_dead_letter(request).await) }).await;
    answered("the operator discards it", answer)?;
    let shown = get(&operator, &world, &dead.dead_letter_id).await?;
    same("the operator discards it", "state", DeadLetterState::Discarded, shown.state())?;
    refused("and redrives it", redrive(&operator, &world, &dead.dead_letter_id, "").await, SETTLED).map(drop)
}

async fn export(world: World) -> Verdict {
    let (alice, bob) = pair(&world).await?;
    let sent = poisoned(&alice, &bob, 2).await?;
    let request = v1::ExportDeadLettersRequest { filter: Some(by_sender(&alice)) };
    let by = &alice.client;
    let stream = world.call(async { by.answer(by.dead_letters().export_dead_letters(request).await) }).await;
    let mut stream = answered("alice exports her dead letters", stream)?;
    let reading = async {
        let mut exported = Vec::new();
        while let Ok(Some(one)) = stream.message().await {
            exported.extend(one.dead_letter);
        }
        Ok(exported)
    };
    let exported = answered("alice exports her dead letters", world.call(reading).await)?;
    let mut checks = Checks::of("alice exports her dead letters");
    checks.same("message ids", sent, message_ids(&exported));
    let whole = exported.iter().all(|dead| !dead.envelope_bytes.is_empty());
    checks.holds("envelope_bytes", whole, "set in each", whole);
    checks.done()
}
