//! SPEC 3: the timeouts of a handoff, their extension, and late messages.

use std::time::Duration;

use prost_types::Duration as Span;
use tonic::Code;

use super::{
    check::{Answer, Checks, Refusal, Verdict, answered, refused, same},
    story::{Stage, Story, a_request, with_timeouts},
    world::{Actor, World},
};
use baton_client::{
    About,
    proto::v1::{self, ErrorCode, HandoffState, MessageType, NextStep},
    time::Moment,
};

cases! {
    "timeout.accept-fails-the-handoff" "3"
        "Without a decision within the accept timeout the handoff is FAILED, both are told, and the task stays."
        accept_timeout;
    "timeout.accept-asks-the-next" "3"
        "Without a decision in time the next candidate is asked." accept_timeout_asks_the_next;
    "timeout.context-fails-the-handoff" "3"
        "Without the context within its timeout the handoff is FAILED and both are told." context_timeout;
    "timeout.complete-fails-the-handoff" "3"
        "Without the completion within its timeout the handoff is FAILED and both are told." complete_timeout;
    "timeout.whole-fails-the-handoff" "3"
        "Every handoff ends within its whole timeout, for any timeouts of its steps." whole_timeout;
    "timeout.late-messages-are-refused" "3"
        "A late accept, context or completion is refused with HANDOFF_EXPIRED." late_messages;
    "timeout.late-messages-are-recorded" "3"
        "The custody log records late messages with the reason of their refusal." late_is_recorded;
    "timeout.in-progress-extends-the-step" "3"
        "IN_PROGRESS from the side on turn restarts its timeout." in_progress_extends;
    "timeout.in-progress-never-extends-the-whole" "3"
        "IN_PROGRESS does not extend the whole timeout." never_the_whole;
    "timeout.out-of-bounds-is-refused" "3"
        "A timeout outside the operator's bounds is refused with FIELD_INVALID, by its path." out_of_bounds;
    "timeout.default-is-set" "3"
        "A request that names no timeouts gets the broker's, and the deadline is on view." default_is_set;
    "timeout.card-gives-time-to-decide" "3"
        "A candidate has the longer time of its card's decides_within, and the whole time of the first one has room for it."
        card_gives_time;
    "timeout.named-accept-is-for-every-candidate" "3"
        "A request that names its accept timeout is not decided later, whatever the candidate's card states."
        named_accept_wins;
    "timeout.card-is-bounded" "6"
        "A card whose decides_within is under 1 s or over 7 days is refused with FIELD_INVALID, and stays as it was."
        card_is_bounded;
}

/// A short timeout in milliseconds, but long enough for the steps before it on a busy machine.
pub(super) const SHORT: i64 = 2_000;
const LONG: i64 = 60_000;
const EXPIRED: Refusal = Refusal(Code::FailedPrecondition, "HANDOFF_EXPIRED");

/// Expects the broker's notification as the agent's next delivery, with this code and next step.
pub(super) async fn notice(who: &Actor, code: ErrorCode, next: NextStep) -> Verdict {
    notice_within(who, code, next, Duration::ZERO).await
}

/// The same, with `longer` added to the time limit.
pub(super) async fn notice_within(who: &Actor, code: ErrorCode, next: NextStep, longer: Duration) -> Verdict {
    let delivered = who.take_within(MessageType::ErrorNotification, longer).await?;
    let payload: v1::ErrorNotification = delivered.payload();
    let mut checks = Checks::of(format!("{} takes the broker's notice", who.id()));
    checks.same("sender_id", "baton", delivered.envelope.sender_id.as_str());
    checks.same("error_code", code, payload.error_code());
    checks.same("next_step", next, payload.next_step());
    checks.done()
}

/// After a timeout of this many milliseconds: both agents are notified, the handoff has failed, and the task has the
/// same owner and epoch.
async fn failed_by(story: &Story, code: ErrorCode, timeout: i64) -> Verdict {
    let timeout = Duration::from_millis(timeout.unsigned_abs());
    notice_within(&story.alice, code, NextStep::KeepTask, timeout).await?;
    notice(&story.bob, code, NextStep::DropTask).await?;
    let seen = story.look("alice reads the handoff").await?;
    let mut checks = Checks::of("alice reads the handoff");
    checks.same("state", HandoffState::Failed, seen.state());
    checks.same("error_code", code, seen.error_code());
    checks.done()?;
    story.alice.owns("alice reads the task", &story.task, story.alice.id(), 1).await
}

async fn accept_timeout(world: World) -> Verdict {
    let story = Story::with(&world, with_timeouts(SHORT, LONG, LONG, LONG), Stage::Deciding).await?;
    failed_by(&story, ErrorCode::AcceptTimeout, SHORT).await
}

async fn accept_timeout_asks_the_next(world: World) -> Verdict {
    let carol = world.agent("carol").await?;
    let fallback_candidates = vec![carol.id().to_owned()];
    let request = v1::HandoffRequest { fallback_candidates, ..with_timeouts(SHORT, LONG, LONG, LONG) };
    let story = Story::with(&world, request, Stage::Deciding).await?;
    let delivered = carol.next("carol is asked after bob").await?;
    same("carol is asked after bob", "message_type", MessageType::HandoffRequest, delivered.kind())?;
    let late = story.accept().await;
    refused("bob accepts after that", late, EXPIRED)?;
    let receipt = carol.tell(story.alice.id(), &story.about(), &v1::HandoffAccept::default()).await?;
    same("carol accepts", "handoff_state", HandoffState::Accepted, receipt.handoff_state())
}

async fn context_timeout(world: World) -> Verdict {
    let story = Story::with(&world, with_timeouts(LONG, SHORT, LONG, LONG), Stage::Accepted).await?;
    story.alice.take(MessageType::HandoffAccept).await?;
    failed_by(&story, ErrorCode::ContextTimeout, SHORT).await
}

async fn complete_timeout(world: World) -> Verdict {
    let story = Story::with(&world, with_timeouts(LONG, LONG, SHORT, LONG), Stage::ContextSent).await?;
    story.bob.take(MessageType::TaskContextTransfer).await?;
    failed_by(&story, ErrorCode::CompleteTimeout, SHORT).await
}

async fn whole_timeout(world: World) -> Verdict {
    let story = Story::with(&world, with_timeouts(LONG, LONG, LONG, 3 * SHORT), Stage::Accepted).await?;
    story.alice.take(MessageType::HandoffAccept).await?;
    failed_by(&story, ErrorCode::WholeTimeout, 3 * SHORT).await
}

async fn late_messages(world: World) -> Verdict {
    let story = Story::with(&world, with_timeouts(SHORT, LONG, LONG, LONG), Stage::Deciding).await?;
    // The notice shows that the time is over, so the case needs no clock.
    story.alice.take(MessageType::ErrorNotification).await?;
    refused("bob accepts after the accept timeout", story.accept().await, EXPIRED)?;
    let story = Story::with(&world.another(), with_timeouts(LONG, SHORT, LONG, LONG), Stage::Accepted).await?;
    story.alice.take(MessageType::HandoffAccept).await?;
    story.alice.take(MessageType::ErrorNotification).await?;
    refused("alice sends the context after its timeout", story.send_context().await, EXPIRED)?;
    let story = Story::with(&world.another(), with_timeouts(LONG, LONG, SHORT, LONG), Stage::ContextSent).await?;
    story.alice.take(MessageType::ErrorNotification).await?;
    refused("bob completes after the complete timeout", story.complete().await, EXPIRED)?;
    story.alice.owns("alice reads the task", &story.task, story.alice.id(), 1).await
}

/// The refused messages in the task's custody log, each with its reason.
pub(super) async fn refusals_of(who: &Actor, task_id: &str) -> Verdict<Vec<(String, ErrorCode)>> {
    let request = v1::GetCustodyLogRequest { task_id: task_id.to_owned(), page_size: 1000, ..Default::default() };
    let log = who.call(async { who.client.answer(who.client.tasks().get_custody_log(request).await) }).await;
    let log = answered("the custody log is read", log)?;
    let refused = |entry: v1::CustodyLogEntry| match entry.entry?.event? {
        v1::custody_entry::Event::Refused(refused) => Some((refused.message_id.clone(), refused.error_code())),
        _ => None,
    };
    Ok(log.entries.into_iter().filter_map(refused).collect())
}

async fn late_is_recorded(world: World) -> Verdict {
    let story = Story::with(&world, with_timeouts(SHORT, LONG, LONG, LONG), Stage::Deciding).await?;
    story.alice.take(MessageType::ErrorNotification).await?;
    let late = story.bob.envelope(story.alice.id(), &story.about(), &v1::HandoffAccept::default());
    refused("bob accepts late", story.bob.submit(&late).await, EXPIRED)?;
    let seen = refusals_of(&story.alice, &story.task).await?;
    same("alice reads the custody log", "refused entries", vec![(late.message_id, ErrorCode::HandoffExpired)], seen)
}

async fn in_progress_extends(world: World) -> Verdict {
    let story = Story::with(&world, with_timeouts(LONG, LONG, 3 * SHORT, LONG), Stage::ContextSent).await?;
    story.bob.take(MessageType::TaskContextTransfer).await?;
    let step = "bob says IN_PROGRESS, and alice reads the deadline";
    let before = story.look(step).await?.deadline.unwrap_or_default();
    // A pause, so that the later deadline differs from the one that was read.
    tokio::time::sleep(Duration::from_millis(20)).await;
    answered(step, story.in_progress(&story.bob).await)?;
    let after = story.look(step).await?.deadline.unwrap_or_default();
    let moved = (after.seconds, after.nanos) > (before.seconds, before.nanos);
    let mut checks = Checks::of(step);
    checks.holds("deadline", moved, "later than before", (before, after));
    checks.done()?;
    let began = Moment::now();
    // For twice the timeout of the step, with pauses much shorter than that timeout.
    while began.elapsed() < Duration::from_millis(6 * SHORT.unsigned_abs()) {
        answered("bob says IN_PROGRESS again and again", story.in_progress(&story.bob).await)?;
        tokio::time::sleep(Duration::from_millis(SHORT.unsigned_abs() / 4)).await;
    }
    answered("bob completes after twice the timeout", story.complete().await).map(drop)
}

async fn never_the_whole(world: World) -> Verdict {
    let story = Story::with(&world, with_timeouts(LONG, LONG, LONG, 4 * SHORT), Stage::ContextSent).await?;
    story.bob.take(MessageType::TaskContextTransfer).await?;
    let whole = |handoff: v1::Handoff| handoff.whole_deadline;
    let before = whole(story.look("alice reads the handoff").await?);
    answered("bob says IN_PROGRESS", story.in_progress(&story.bob).await)?;
    let after = whole(story.look("bob says IN_PROGRESS, and alice reads the handoff").await?);
    same("bob says IN_PROGRESS, and alice reads the handoff", "whole_deadline", before, after)?;
    failed_by(&story, ErrorCode::WholeTimeout, 4 * SHORT).await
}

async fn out_of_bounds(world: World) -> Verdict {
    let (alice, bob) = (world.agent("alice").await?, world.agent("bob").await?);
    let request = with_timeouts(0, LONG, LONG, 1_000_000_000_000);
    let answer = alice.say(bob.id(), &About::task(&world.id("task"), 1), &request).await;
    let step = "alice asks with an accept timeout of 0 and a whole one of 31 years";
    let refusal = refused(step, answer, Refusal(Code::InvalidArgument, "FIELD_INVALID"))?;
    let paths: Vec<&String> = refusal.violations.iter().map(|(path, _)| path).collect();
    let mut checks = Checks::of(step);
    for path in ["envelope.payload.timeouts.accept", "envelope.payload.timeouts.whole"] {
        checks.holds("BadRequest", paths.iter().any(|seen| *seen == path), path, &paths);
    }
    checks.done()
}

async fn default_is_set(world: World) -> Verdict {
    let story = Story::with(&world, a_request(), Stage::Deciding).await?;
    let seen = story.look("alice reads the handoff").await?;
    let (Some(deadline), Some(whole)) = (seen.deadline, seen.whole_deadline) else {
        return super::check::fail("alice reads the handoff", "deadlines", "set", format!("{seen:?}"));
    };
    let mut checks = Checks::of("alice reads the handoff");
    let now = seen.update_time.unwrap_or_default();
    checks.holds("deadline", deadline.seconds > now.seconds, "later than the step", (deadline, now));
    checks.holds("whole_deadline", whole.seconds >= deadline.seconds, "not before the step's", (deadline, whole));
    checks.done()
}

/// A time for decisions that is longer than any default, in seconds.
const DAY: i64 = 24 * 60 * 60;

/// States in the card of an agent that it needs this time to decide.
async fn decides_within(who: &Actor, span: Span) -> Answer<v1::UpdateAgentResponse> {
    let card = v1::AgentCard { agent_id: who.id().to_owned(), decides_within: Some(span), ..Default::default() };
    let update_mask = Some(prost_types::FieldMask { paths: vec!["decides_within".to_owned()] });
    let request = v1::UpdateAgentRequest { card: Some(card), update_mask, ..Default::default() };
    who.call(async { who.client.answer(who.client.agents().update_agent(request).await) }).await
}

/// A handoff with this request to an agent whose card states a day, which has acked the request.
async fn story_of_a_day(world: &World, request: v1::HandoffRequest) -> Verdict<Story> {
    let (alice, bob) = (world.agent("alice").await?, world.agent("bob").await?);
    let day = Span { seconds: DAY, nanos: 0 };
    answered("bob states that he decides within a day", decides_within(&bob, day).await)?;
    Story::between(alice, bob, world, request, Stage::Deciding).await
}

async fn card_gives_time(world: World) -> Verdict {
    let story = story_of_a_day(&world, a_request()).await?;
    let seen = story.look("alice reads the handoff").await?;
    let (acked, whole) = (seen.update_time.unwrap_or_default(), seen.whole_deadline.unwrap_or_default());
    let mut checks = Checks::of("alice reads the handoff");
    checks.same("deadline", acked.seconds + DAY, seen.deadline.unwrap_or_default().seconds);
    let limit = acked.seconds + DAY;
    checks.holds("whole_deadline", whole.seconds >= limit, "not before the end of the day", (whole, limit));
    checks.done()
}

async fn named_accept_wins(world: World) -> Verdict {
    let story = story_of_a_day(&world, with_timeouts(SHORT, LONG, LONG, LONG)).await?;
    failed_by(&story, ErrorCode::AcceptTimeout, SHORT).await
}

async fn card_is_bounded(world: World) -> Verdict {
    let bob = world.agent("bob").await?;
    let hour = Span { seconds: 3600, nanos: 0 };
    answered("bob states that he decides within an hour", decides_within(&bob, hour).await)?;
    let invalid = Refusal(Code::InvalidArgument, "FIELD_INVALID");
    let mut checks = Checks::of("bob states another time");
    for (what, span) in [
        ("no time", Span::default()),
        ("less than a second", Span { seconds: 0, nanos: 999_999_999 }),
        ("more than 7 days", Span { seconds: 7 * DAY, nanos: 1 }),
        ("a time before now", Span { seconds: -1, nanos: 0 }),
    ] {
        checks.refused(what, decides_within(&bob, span).await, invalid);
    }
    let request = v1::GetAgentRequest { agent_id: bob.id().to_owned() };
    let read = bob.call(async { bob.client.answer(bob.client.agents().get_agent(request).await) }).await;
    let card = answered("bob reads his card", read)?.agent.and_then(|agent| agent.card).unwrap_or_default();
    checks.same("decides_within", Some(hour), card.decides_within);
    checks.done()
}
