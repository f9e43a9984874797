//! SPEC 3: a request waits for an agent without room, and for an agent that is not there. Only its whole time ends it.

use std::time::Duration;

use prost_types::Duration as Span;
use tonic::Code;

use super::{
    check::{Checks, Refusal, Verdict, answered, refused, same},
    story::{a_request, with_timeouts},
    times::{SHORT, notice_within},
    world::{Actor, CREDIT, World},
};
use baton_client::{
    About, completion_of, context_of,
    proto::v1::{self, HandoffState, MessageType, OfferOutcome, TaskStatus, WaitingFor},
};

cases! {
    "busy.full-agent-gets-one-after-the-other" "3"
        "Offers for an agent without room are held, shown as waiting_for CAPACITY, and sent one by one as it has room; none of them counts as a rejection."
        one_after_the_other;
    "busy.first-with-room-gets-it" "3"
        "A request to a type whose agents are all full goes to the first of them that has room." first_with_room;
    "busy.heartbeat-shows-room" "3"
        "An agent whose heartbeat states no room gets no offer until a heartbeat states room." heartbeat_shows_room;
    "busy.held-offer-is-no-offer" "3"
        "A held offer cannot be accepted: NOT_CANDIDATE; it is cancelled, or ends with the whole timeout, without a word to the full agent."
        no_offer;
    "busy.overloaded-is-asked-again" "3"
        "A candidate that rejects with OVERLOADED and retry_after is asked again at each time that it names, and is no rejection."
        asked_again;
    "busy.overloaded-without-a-time-is-asked-again" "3"
        "A candidate that rejects with OVERLOADED without a time is asked again after about a second." asked_again_by_itself;
    "busy.waits-for-the-first-agent" "3"
        "With wait_for_agent a request to an unknown agent or type waits, shown as waiting_for AGENT, and goes to the agent that registers; without it is RECEIVER_UNKNOWN."
        waits_for_agent;
}

/// Requests a handoff of a new task. Returns the id of the handoff.
async fn request(by: &Actor, to: &str, task: &str, request: &v1::HandoffRequest) -> Verdict<String> {
    Ok(by.tell(to, &About::task(task, 1), request).await?.handoff_id)
}

async fn waits_for(who: &Actor, handoff: &str) -> Verdict<WaitingFor> {
    Ok(answered("the owner reads the handoff", who.handoff(handoff).await)?.waiting_for())
}

/// The candidate takes over the task of an offer that it has taken.
async fn take_over(owner: &Actor, by: &Actor, task: &str, handoff: &str) -> Verdict {
    let about = About::handoff(task, 1, handoff);
    let context = context_of([]);
    by.tell(owner.id(), &about, &v1::HandoffAccept::default()).await?;
    owner.tell(by.id(), &about, &context).await?;
    by.take(MessageType::TaskContextTransfer).await?;
    by.tell(owner.id(), &about, &completion_of(&context)).await.map(drop)
}

async fn finish(owner: &Actor, task: &str) -> Verdict {
    let done = v1::TaskStatusUpdate { status: TaskStatus::Completed.into(), ..Default::default() };
    owner.tell("", &About::task(task, 2), &done).await.map(drop)
}

/// The offer that comes next is for this task.
async fn is_offered(to: &Actor, task: &str) -> Verdict {
    let offer = to.take(MessageType::HandoffRequest).await?;
    same(&format!("{} takes an offer", to.id()), "task_id", task, &offer.envelope.task_id)
}

async fn one_after_the_other(world: World) -> Verdict {
    let (alice, bob) = (world.agent("alice").await?, world.worker("bob", &[], 1).await?);
    let tasks: Vec<String> = (1..=3).map(|number| world.id(&format!("task-{number}"))).collect();
    let mut handoffs = Vec::new();
    for task in &tasks {
        handoffs.push(request(&alice, bob.id(), task, &a_request()).await?);
    }
    for handoff in &handoffs[1..] {
        let seen = answered("alice reads a held handoff", alice.handoff(handoff).await)?;
        let mut checks = Checks::of("alice reads a held handoff");
        checks.same("state", HandoffState::Requested, seen.state());
        checks.same("waiting_for", WaitingFor::Capacity, seen.waiting_for());
        checks.same("offers", 0, seen.offers.len());
        checks.same("deadline", None, seen.deadline);
        checks.done()?;
    }
    for (place, (task, handoff)) in tasks.iter().zip(&handoffs).enumerate() {
        is_offered(&bob, task).await?;
        take_over(&alice, &bob, task, handoff).await?;
        if let Some(next) = handoffs.get(place + 1) {
            same("bob owns a task", "waiting_for", WaitingFor::Capacity, waits_for(&alice, next).await?)?;
        }
        finish(&bob, task).await?;
    }
    for handoff in &handoffs {
        let seen = answered("alice reads the handoff", alice.handoff(handoff).await)?;
        let outcomes: Vec<_> = seen.offers.iter().map(v1::HandoffOffer::outcome).collect();
        let mut checks = Checks::of("alice reads the handoff");
        checks.same("state", HandoffState::Completed, seen.state());
        checks.same("offers", vec![OfferOutcome::Accepted], outcomes);
        checks.done()?;
    }
    Ok(())
}

async fn first_with_room(world: World) -> Verdict {
    let (alice, types) = (world.agent("alice").await?, [world.id("worker")]);
    let (bob, carol) = (world.worker("bob", &types, 1).await?, world.worker("carol", &types, 1).await?);
    let (of_bob, of_carol, waiting) = (world.id("of-bob"), world.id("of-carol"), world.id("waiting"));
    let handoff = request(&alice, bob.id(), &of_bob, &a_request()).await?;
    is_offered(&bob, &of_bob).await?;
    take_over(&alice, &bob, &of_bob, &handoff).await?;
    let handoff = request(&alice, carol.id(), &of_carol, &a_request()).await?;
    is_offered(&carol, &of_carol).await?;
    take_over(&alice, &carol, &of_carol, &handoff).await?;
    let held = request(&alice, &format!("type:{}", types[0]), &waiting, &a_request()).await?;
    same("both are full", "waiting_for", WaitingFor::Capacity, waits_for(&alice, &held).await?)?;
    finish(&carol, &of_carol).await?;
    is_offered(&carol, &waiting).await?;
    take_over(&alice, &carol, &waiting, &held).await
}

async fn says_room(agent: &Actor, capacity: u32, active_tasks: u32) -> Verdict {
    let heartbeat = v1::Heartbeat { capacity, active_tasks, ..Default::default() };
    answered("bob sends a heartbeat", agent.call(agent.agent.session.heartbeat(heartbeat)).await)
}

async fn heartbeat_shows_room(world: World) -> Verdict {
    let (alice, bob) = (world.agent("alice").await?, world.agent("bob").await?);
    says_room(&bob, 2, 2).await?;
    let task = world.id("task");
    let handoff = request(&alice, bob.id(), &task, &a_request()).await?;
    same("bob is full", "waiting_for", WaitingFor::Capacity, waits_for(&alice, &handoff).await?)?;
    says_room(&bob, 2, 1).await?;
    is_offered(&bob, &task).await?;
    same("bob has the offer", "waiting_for", WaitingFor::Unspecified, waits_for(&alice, &handoff).await?)
}

async fn no_offer(world: World) -> Verdict {
    let (alice, bob) = (world.agent("alice").await?, world.worker("bob", &[], 1).await?);
    let (first, cancelled, late) = (world.id("first"), world.id("cancelled"), world.id("late"));
    let handoff = request(&alice, bob.id(), &first, &a_request()).await?;
    is_offered(&bob, &first).await?;
    take_over(&alice, &bob, &first, &handoff).await?;
    let held = request(&alice, bob.id(), &cancelled, &a_request()).await?;
    let about = About::handoff(&cancelled, 1, &held);
    let accept = bob.say(alice.id(), &about, &v1::HandoffAccept::default()).await;
    refused("bob accepts a held offer", accept, Refusal(Code::PermissionDenied, "NOT_CANDIDATE"))?;
    alice.tell(bob.id(), &about, &v1::HandoffCancel::default()).await?;
    let terms = with_timeouts(SHORT, SHORT, SHORT, SHORT);
    let held = request(&alice, bob.id(), &late, &terms).await?;
    alice.take(MessageType::HandoffAccept).await?;
    alice.take(MessageType::HandoffComplete).await?;
    let whole = Duration::from_millis(SHORT.unsigned_abs());
    notice_within(&alice, v1::ErrorCode::WholeTimeout, v1::NextStep::KeepTask, whole).await?;
    let seen = answered("alice reads the handoff", alice.handoff(&held).await)?;
    same("alice reads the handoff", "state", HandoffState::Failed, seen.state())?;
    // What comes next to bob is the mail that is sent last.
    alice.tell(bob.id(), &About::default(), &v1::Info::default()).await?;
    bob.take(MessageType::Info).await.map(drop)
}

async fn reject_for_room(by: &Actor, to: &Actor, about: &About, retry_after: Option<Span>) -> Verdict {
    let reason = v1::RejectReason::Overloaded.into();
    by.tell(to.id(), about, &v1::HandoffReject { reason, retry_after, ..Default::default() }).await.map(drop)
}

async fn asked_again(world: World) -> Verdict {
    let (alice, bob) = (world.agent("alice").await?, world.agent("bob").await?);
    let task = world.id("task");
    let handoff = request(&alice, bob.id(), &task, &a_request()).await?;
    for _ in 0..3 {
        is_offered(&bob, &task).await?;
        let retry_after = Some(Span { seconds: 0, nanos: 700_000_000 });
        reject_for_room(&bob, &alice, &About::handoff(&task, 1, &handoff), retry_after).await?;
        same("bob has no room", "waiting_for", WaitingFor::RetryTime, waits_for(&alice, &handoff).await?)?;
    }
    is_offered(&bob, &task).await?;
    take_over(&alice, &bob, &task, &handoff).await
}

async fn asked_again_by_itself(world: World) -> Verdict {
    let (alice, bob) = (world.agent("alice").await?, world.agent("bob").await?);
    let task = world.id("task");
    let handoff = request(&alice, bob.id(), &task, &a_request()).await?;
    is_offered(&bob, &task).await?;
    reject_for_room(&bob, &alice, &About::handoff(&task, 1, &handoff), None).await?;
    same("bob has no room", "waiting_for", WaitingFor::RetryTime, waits_for(&alice, &handoff).await?)?;
    is_offered(&bob, &task).await?;
    take_over(&alice, &bob, &task, &handoff).await
}

async fn waits_for_agent(world: World) -> Verdict {
    let (alice, types) = (world.agent("alice").await?, [world.id("gpu")]);
    let unknown = Refusal(Code::NotFound, "RECEIVER_UNKNOWN");
    let (to_type, named) = (format!("type:{}", types[0]), world.id("bob"));
    let waits = v1::HandoffRequest { wait_for_agent: true, ..a_request() };
    let mut held = Vec::new();
    for (to, task) in [(&to_type, world.id("task-1")), (&named, world.id("task-2"))] {
        let at_once = alice.say(to, &About::task(&task, 1), &a_request()).await;
        refused("alice does not wait", at_once, unknown)?;
        let handoff = request(&alice, to, &task, &waits).await?;
        same("alice waits", "waiting_for", WaitingFor::Agent, waits_for(&alice, &handoff).await?)?;
        held.push(task);
    }
    let bob = world.agent_of("bob", &types, CREDIT).await?;
    let mut seen = Vec::new();
    for _ in &held {
        seen.push(bob.take(MessageType::HandoffRequest).await?.envelope.task_id);
    }
    seen.sort();
    same("bob registers and takes the offers", "task_ids", held, seen)
}
