//! SPEC 3: the liveness of work. A task whose owner is silent about it is abandoned, and a loan is extended.
//!
//! A case that shows that a task is kept gives the same agent, or another one, a second task later that is not: when that
//! one is taken back, the silence_timeout of the first is over, too.

use std::time::Duration;

use prost_types::Duration as Span;
use tonic::Code;

use super::{
    check::{Checks, Refusal, Verdict, answered, refused, same},
    negotiations::in_seconds,
    story::{a_request, give},
    world::{Actor, CREDIT, World},
};
use baton_client::{
    About,
    proto::v1::{self, ErrorCode, NextStep, Severity, TaskStatus, custody_entry::Event},
    time::Moment,
};

cases! {
    "silence.loan-comes-back" "3"
        "A loan whose delegate lists it no more is recalled after the silence_timeout: TASK_ABANDONED tells both, the custody log has the silence, and one that is listed stays."
        loan_comes_back;
    "silence.begins-with-the-last-sign" "3"
        "A loan whose delegate has lost its last process is recalled after the silence_timeout." process_is_lost;
    "silence.is-judged-of-those-that-tell" "3"
        "The silence of an agent whose processes never said that they tell their work is not judged." plain_stubs;
    "silence.ends-with-a-status" "3"
        "Each status update about a task is a sign of work." status_is_a_sign;
    "silence.waits-for-an-answer" "3"
        "A task that waits for an answer with a deadline is not silent." question_waits;
    "silence.returns-a-transferred-task" "3"
        "An abandoned task that was transferred goes back with return_when_abandoned; without it the former owner is told, with severity CRITICAL."
        transferred;
    "silence.terms-are-bounded" "3"
        "A silence_timeout under 5 s or over a day, return_when_abandoned of a loan or without silence_timeout, and a loan_timeout_max below loan_timeout are refused with FIELD_INVALID."
        terms_are_bounded;
    "loan.is-extended-to-its-limit" "3"
        "extend_by moves the end of a loan, and never beyond the loan_timeout_max of its request." extended;
    "loan.without-a-limit-is-not-extended" "3"
        "extend_by for a loan without loan_timeout_max is refused with NOT_LENT." not_extended;
}

/// The least silence_timeout that the rules allow.
const SILENCE: Duration = Duration::from_secs(5);

fn seconds(seconds: i64) -> Option<Span> {
    Some(Span { seconds, nanos: 0 })
}

fn lent() -> v1::HandoffRequest {
    v1::HandoffRequest { silence_timeout: seconds(5), mode: v1::HandoffMode::Delegate.into(), ..a_request() }
}

/// Alice, and bob with a process that tells its work.
async fn pair(world: &World) -> Verdict<(Actor, Actor)> {
    let identity = world.enrol("bob", &[]).await?;
    Ok((world.agent("alice").await?, world.process(&identity, CREDIT, true).await?))
}

/// Says what the process works on. Its later heartbeats repeat it.
async fn works_on(process: &Actor, tasks: &[&str]) -> Verdict {
    let working_on = tasks.iter().map(ToString::to_string).collect();
    let heartbeat = v1::Heartbeat { working_on, ..Default::default() };
    answered("bob says what it works on", process.call(process.agent.session.heartbeat(heartbeat)).await)
}

async fn is_told(who: &Actor, task: &str, (next_step, severity): (NextStep, Severity)) -> Verdict {
    let told: v1::ErrorNotification = who.notified_of(task, SILENCE).await?.payload();
    let mut checks = Checks::of(format!("{} is told", who.id()));
    checks.same("error_code", ErrorCode::TaskAbandoned, told.error_code());
    checks.same("next_step", next_step, told.next_step());
    checks.same("severity", severity, told.severity());
    checks.done()
}

const KEEP: (NextStep, Severity) = (NextStep::KeepTask, Severity::Warning);
const DROP: (NextStep, Severity) = (NextStep::DropTask, Severity::Warning);

fn in_progress() -> v1::TaskStatusUpdate {
    v1::TaskStatusUpdate { status: TaskStatus::InProgress.into(), ..Default::default() }
}

async fn loan_comes_back(world: World) -> Verdict {
    let (alice, bob) = pair(&world).await?;
    let (kept, left) = (world.id("kept"), world.id("left"));
    works_on(&bob, &[&kept, &left]).await?;
    give(&alice, &bob, &kept, &lent()).await?;
    give(&alice, &bob, &left, &lent()).await?;
    works_on(&bob, &[&kept]).await?;
    is_told(&alice, &left, KEEP).await?;
    is_told(&bob, &left, DROP).await?;
    alice.owns("alice reads the task that is left", &left, alice.id(), 3).await?;
    alice.owns("alice reads the task that is kept", &kept, bob.id(), 2).await?;
    let late = bob.say("", &About::task(&left, 2), &in_progress()).await;
    refused("bob reports", late, Refusal(Code::FailedPrecondition, "STALE_EPOCH"))?;
    let request = v1::GetCustodyLogRequest { task_id: left, page_size: 1000, ..Default::default() };
    let log = alice.call(async { alice.client.answer(alice.client.tasks().get_custody_log(request).await) }).await;
    let entries = answered("alice reads the custody log", log)?.entries;
    let events = entries.into_iter().filter_map(|entry| entry.entry?.event);
    let silences = events.filter(|event| matches!(event, Event::Silent(_))).count();
    same("alice reads the custody log", "silent entries", 1, silences)
}

async fn process_is_lost(world: World) -> Verdict {
    let (alice, bob) = pair(&world).await?;
    let task = world.id("task");
    works_on(&bob, &[&task]).await?;
    give(&alice, &bob, &task, &lent()).await?;
    // The drop of the actor ends its session.
    drop(bob);
    is_told(&alice, &task, KEEP).await?;
    alice.owns("alice reads the task", &task, alice.id(), 3).await
}

/// Checks that a task of this agent is kept for longer than the silence_timeout: another task is given to a silent agent
/// now, and comes back.
async fn is_kept(world: &World, alice: &Actor, owner: &Actor, kept: &str) -> Verdict {
    let carol = world.process(&world.enrol("carol", &[]).await?, CREDIT, true).await?;
    let left = world.id("left");
    give(alice, &carol, &left, &lent()).await?;
    is_told(alice, &left, KEEP).await?;
    alice.owns("alice reads the task that is kept", kept, owner.id(), 2).await
}

async fn plain_stubs(world: World) -> Verdict {
    let (alice, bob) = (world.agent("alice").await?, world.agent("bob").await?);
    let kept = world.id("kept");
    give(&alice, &bob, &kept, &lent()).await?;
    is_kept(&world, &alice, &bob, &kept).await
}

async fn status_is_a_sign(world: World) -> Verdict {
    let (alice, bob) = pair(&world).await?;
    let (kept, left) = (world.id("kept"), world.id("left"));
    give(&alice, &bob, &kept, &lent()).await?;
    give(&alice, &bob, &left, &lent()).await?;
    let began = Moment::now();
    let is_back = async || answered("alice reads the task", alice.task(&left).await).map(|task| task.epoch == 3);
    while !is_back().await? {
        let mut checks = Checks::of("bob reports about one of two tasks");
        checks.holds("time", began.elapsed() < SILENCE + world.target.patience, "the other one is back", "longer");
        checks.done()?;
        bob.tell("", &About::task(&kept, 2), &in_progress()).await?;
        // A pause much shorter than the silence_timeout.
        tokio::time::sleep(SILENCE / 10).await;
    }
    alice.owns("alice reads the task that is kept", &kept, bob.id(), 2).await
}

async fn question_waits(world: World) -> Verdict {
    let (alice, bob) = pair(&world).await?;
    let kept = world.id("kept");
    give(&alice, &bob, &kept, &lent()).await?;
    let prompt = v1::TaskPrompt {
        question: "which colour?".into(),
        answer_by: alice.id().to_owned(),
        answer_before: in_seconds(600),
        ..Default::default()
    };
    let status = TaskStatus::WaitingForInput.into();
    bob.tell("", &About::task(&kept, 2), &v1::TaskStatusUpdate { status, prompt: Some(prompt), ..Default::default() })
        .await?;
    is_kept(&world, &alice, &bob, &kept).await
}

async fn transferred(world: World) -> Verdict {
    let (alice, bob) = pair(&world).await?;
    let (stays, returns) = (world.id("stays"), world.id("returns"));
    let terms = v1::HandoffRequest { silence_timeout: seconds(5), ..a_request() };
    give(&alice, &bob, &stays, &terms).await?;
    give(&alice, &bob, &returns, &v1::HandoffRequest { return_when_abandoned: true, ..terms }).await?;
    is_told(&alice, &stays, (NextStep::Unspecified, Severity::Critical)).await?;
    is_told(&alice, &returns, KEEP).await?;
    is_told(&bob, &returns, DROP).await?;
    alice.owns("alice reads the task that goes back", &returns, alice.id(), 3).await?;
    alice.owns("alice reads the task that stays", &stays, bob.id(), 2).await
}

async fn terms_are_bounded(world: World) -> Verdict {
    let (alice, bob) = (world.agent("alice").await?, world.agent("bob").await?);
    let loan = |terms: v1::HandoffRequest| v1::HandoffRequest { mode: v1::HandoffMode::Delegate.into(), ..terms };
    let (given, none) = (a_request(), v1::HandoffRequest { silence_timeout: None, ..a_request() });
    let mut checks = Checks::of("alice requests a handoff");
    for (what, terms) in [
        ("a silence of 4 s", loan(v1::HandoffRequest { silence_timeout: seconds(4), ..given.clone() })),
        ("a silence of a day and a second", v1::HandoffRequest { silence_timeout: seconds(86_401), ..given.clone() }),
        ("a loan that returns", v1::HandoffRequest { return_when_abandoned: true, ..lent() }),
        ("a return without silence", v1::HandoffRequest { return_when_abandoned: true, ..none }),
        ("a longest time without a time", loan(v1::HandoffRequest { loan_timeout_max: seconds(60), ..given.clone() })),
        (
            "a longest time below the time",
            loan(v1::HandoffRequest { loan_timeout: seconds(60), loan_timeout_max: seconds(59), ..given }),
        ),
    ] {
        let answer = alice.say(bob.id(), &About::task(&world.id("task"), 1), &terms).await;
        checks.refused(what, answer, Refusal(Code::InvalidArgument, "FIELD_INVALID"));
    }
    checks.done()
}

fn extending(extend_by: i64) -> v1::TaskStatusUpdate {
    v1::TaskStatusUpdate { extend_by: seconds(extend_by), ..in_progress() }
}

/// The time at which the only loan of the task is due, and the latest time to which it can move.
async fn due(who: &Actor, task: &str) -> Verdict<(i64, i64)> {
    let loans = answered("alice reads the task", who.task(task).await)?.loans;
    same("alice reads the task", "loans", 1, loans.len())?;
    let at = |time: Option<prost_types::Timestamp>| time.unwrap_or_default().seconds;
    Ok((at(loans[0].due_time), at(loans[0].latest_due_time)))
}

async fn extended(world: World) -> Verdict {
    let (alice, bob) = (world.agent("alice").await?, world.agent("bob").await?);
    let task = world.id("task");
    let mode = v1::HandoffMode::Delegate.into();
    let terms = v1::HandoffRequest { mode, loan_timeout: seconds(600), loan_timeout_max: seconds(6000), ..a_request() };
    give(&alice, &bob, &task, &terms).await?;
    let (first, latest) = due(&alice, &task).await?;
    let mut checks = Checks::of("alice reads the loan");
    checks.same("latest_due_time", first + 5400, latest);
    bob.tell("", &About::task(&task, 2), &extending(1200)).await?;
    let (later, _) = due(&alice, &task).await?;
    checks.holds("due_time", (first + 600..latest).contains(&later), "20 minutes from now", (first, later, latest));
    bob.tell("", &About::task(&task, 2), &extending(60_000)).await?;
    checks.same("due_time at the limit", latest, due(&alice, &task).await?.0);
    bob.tell("", &About::task(&task, 2), &extending(1)).await?;
    checks.same("due_time after a shorter extension", latest, due(&alice, &task).await?.0);
    checks.done()
}

async fn not_extended(world: World) -> Verdict {
    let (alice, bob) = (world.agent("alice").await?, world.agent("bob").await?);
    let task = world.id("task");
    let mode = v1::HandoffMode::Delegate.into();
    give(&alice, &bob, &task, &v1::HandoffRequest { mode, loan_timeout: seconds(600), ..a_request() }).await?;
    let (first, _) = due(&alice, &task).await?;
    let answer = bob.say("", &About::task(&task, 2), &extending(60)).await;
    refused("bob extends the loan", answer, Refusal(Code::FailedPrecondition, "NOT_LENT"))?;
    same("alice reads the loan", "due_time", first, due(&alice, &task).await?.0)
}
