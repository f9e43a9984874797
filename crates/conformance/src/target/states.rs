//! SPEC 3: in every state of a handoff, each of its messages is a transition or a typed rejection.

use tonic::Code;

use super::{
    check::{Answer, Checks, Refusal, Verdict, answered},
    story::{Stage, Story, a_request},
    world::World,
};
use baton_client::proto::v1::{self, HandoffState, ReceiverView, SenderView, watch_handoffs_response::Event};

cases! {
    "handoff.state-requested" "3"
        "In REQUESTED the context and the completion are refused, and the candidate or the owner can end it."
        in_requested;
    "handoff.state-deciding" "3"
        "In DECIDING the context and the completion are refused; it waits for the candidate's decision." in_deciding;
    "handoff.state-accepted" "3"
        "In ACCEPTED a second accept, a reject and a completion are refused; it waits for the context." in_accepted;
    "handoff.state-context-sent" "3"
        "In CONTEXT_SENT an accept, a reject and a second context are refused; it waits for the completion."
        in_context_sent;
    "handoff.state-completed-is-final" "3"
        "COMPLETED is final: every message of the handoff is refused." completed_is_final;
    "handoff.state-rejected-is-final" "3"
        "REJECTED is final: every message of the handoff is refused with HANDOFF_FINAL, which says the state."
        rejected_is_final;
    "handoff.state-failed-is-final" "3"
        "FAILED by the candidate is final: every message of the handoff is refused with HANDOFF_FINAL."
        failed_is_final;
    "handoff.state-cancelled-is-final" "3"
        "CANCELLED is final: every message of the handoff is refused with HANDOFF_FINAL, which says the state."
        cancelled_is_final;
    "handoff.views-of-both-sides" "3"
        "GetHandoff shows the state and both sides' views of it, as the table has them." views;
    "handoff.transitions-are-shown" "3"
        "GetHandoff shows each transition with its time, the candidate and the deadline." transitions;
    "handoff.watch-shows-each-state" "3"
        "WatchHandoff shows the present state, then every step, and ends with the final state." watch;
    "handoff.watch-of-all-goes-on" "13"
        "WatchHandoffs sends the open handoffs, caught_up once, then changes; after a cursor it sends only later ones." watch_all;
    "handoff.watch-shows-what-one-may-see" "13"
        "WatchHandoffs sends an agent the handoffs that it may read, and a cursor of the future gets a gap." watch_own;
    "handoff.list-filters-apart" "13"
        "ListHandoffs tells sender and candidate apart, and filters by type, openness and deadline." list_filters;
    "handoff.list-finds-it" "3"
        "ListHandoffs finds handoffs by task, agent and state, newest first, in pages." list;
}

const STATE: Refusal = Refusal(Code::FailedPrecondition, "HANDOFF_STATE");
const FINAL: Refusal = Refusal(Code::FailedPrecondition, "HANDOFF_FINAL");

/// Checks that a message is refused, and that the refusal's metadata names the state.
fn refuses(checks: &mut Checks, what: &str, answer: Answer<v1::Receipt>, refusal: Refusal, state: HandoffState) {
    let expected = state.as_str_name().trim_start_matches("HANDOFF_STATE_");
    match super::check::refused(what, answer, refusal) {
        Ok(seen) => {
            let seen = seen.metadata.get("state").map_or("", String::as_str);
            checks.same(&format!("{what}: ErrorInfo.metadata.state"), expected, seen);
        }
        Err(super::check::Problem::Failed(failed)) => failed.differences.into_iter().for_each(|difference| {
            checks.differs(&format!("{what}: {}", difference.field), difference.expected, difference.seen);
        }),
        Err(super::check::Problem::Skipped(_)) => {}
    }
}

async fn in_requested(world: World) -> Verdict {
    let story = Story::at(&world, Stage::Requested).await?;
    let mut checks = Checks::of("the handoff is REQUESTED");
    refuses(&mut checks, "context", story.send_context().await, STATE, HandoffState::Requested);
    refuses(&mut checks, "complete", story.complete().await, STATE, HandoffState::Requested);
    checks.same("state after that", HandoffState::Requested, story.state("alice reads the handoff").await?);
    checks.done()?;
    answered("alice cancels", story.cancel().await).map(drop)
}

async fn in_deciding(world: World) -> Verdict {
    let story = Story::at(&world, Stage::Deciding).await?;
    let mut checks = Checks::of("the handoff is DECIDING");
    checks.same("state once the request is acked", HandoffState::Deciding, story.state("bob acked the request").await?);
    refuses(&mut checks, "context", story.send_context().await, STATE, HandoffState::Deciding);
    refuses(&mut checks, "complete", story.complete().await, STATE, HandoffState::Deciding);
    checks.done()?;
    answered("bob accepts", story.accept().await).map(drop)
}

async fn in_accepted(world: World) -> Verdict {
    let story = Story::at(&world, Stage::Accepted).await?;
    let mut checks = Checks::of("the handoff is ACCEPTED");
    refuses(&mut checks, "accept", story.accept().await, STATE, HandoffState::Accepted);
    refuses(&mut checks, "reject", story.reject().await, STATE, HandoffState::Accepted);
    refuses(&mut checks, "complete", story.complete().await, STATE, HandoffState::Accepted);
    checks.done()?;
    answered("alice sends the context", story.send_context().await).map(drop)
}

async fn in_context_sent(world: World) -> Verdict {
    let story = Story::at(&world, Stage::ContextSent).await?;
    let mut checks = Checks::of("the handoff is CONTEXT_SENT");
    refuses(&mut checks, "accept", story.accept().await, STATE, HandoffState::ContextSent);
    refuses(&mut checks, "reject", story.reject().await, STATE, HandoffState::ContextSent);
    refuses(&mut checks, "context", story.send_context().await, STATE, HandoffState::ContextSent);
    checks.done()?;
    answered("bob completes", story.complete().await).map(drop)
}

/// Sends every message of a handoff in a final state. Each must be refused, and the owner must stay the same.
async fn all_refused(story: &Story, state: HandoffState) -> Verdict {
    let mut checks = Checks::of(format!("the handoff is {state:?}"));
    refuses(&mut checks, "accept", story.accept().await, FINAL, state);
    refuses(&mut checks, "reject", story.reject().await, FINAL, state);
    refuses(&mut checks, "complete", story.complete().await, FINAL, state);
    refuses(&mut checks, "context", story.send_context().await, FINAL, state);
    refuses(&mut checks, "cancel", story.cancel().await, FINAL, state);
    checks.same("state after that", state, story.state("alice reads the handoff").await?);
    checks.done()?;
    story.alice.owns("alice reads the task", &story.task, story.alice.id(), 1).await
}

async fn completed_is_final(world: World) -> Verdict {
    let story = Story::at(&world, Stage::Completed).await?;
    // The ownership has moved on: a message has a stale epoch, or the handoff is final.
    let mut checks = Checks::of("the handoff is COMPLETED, and a message of it comes");
    let answers = [
        ("accept", story.accept().await),
        ("reject", story.reject().await),
        ("complete", story.complete().await),
        ("context", story.send_context().await),
        ("cancel", story.cancel().await),
    ];
    for (what, answer) in answers {
        let reason = match &answer {
            Err(super::check::NoAnswer::Refused(refused)) => refused.reason.clone(),
            other => format!("{other:?}"),
        };
        let is_refused = ["STALE_EPOCH", "HANDOFF_FINAL"].contains(&reason.as_str());
        checks.holds(what, is_refused, "refused: STALE_EPOCH or HANDOFF_FINAL", reason);
    }
    checks.same("state after that", HandoffState::Completed, story.state("alice reads the handoff").await?);
    checks.done()?;
    story.alice.owns("alice reads the task", &story.task, story.bob.id(), 2).await
}

async fn rejected_is_final(world: World) -> Verdict {
    let story = Story::at(&world, Stage::Deciding).await?;
    answered("bob rejects", story.reject().await)?;
    all_refused(&story, HandoffState::Rejected).await
}

async fn failed_is_final(world: World) -> Verdict {
    let story = Story::at(&world, Stage::ContextSent).await?;
    answered("bob cannot take over", story.complete_with(v1::HandoffOutcome::Failure).await)?;
    all_refused(&story, HandoffState::Failed).await
}

async fn cancelled_is_final(world: World) -> Verdict {
    let story = Story::at(&world, Stage::Accepted).await?;
    answered("alice cancels", story.cancel().await)?;
    all_refused(&story, HandoffState::Cancelled).await
}

async fn views(world: World) -> Verdict {
    use {ReceiverView as R, SenderView as S};
    let table = [
        (Stage::Requested, HandoffState::Requested, S::AwaitingHandoffAccept, R::HandoffRequested),
        (Stage::Deciding, HandoffState::Deciding, S::AwaitingHandoffAccept, R::AwaitingDecision),
        (Stage::Accepted, HandoffState::Accepted, S::ContextPreparing, R::AwaitingContextTransfer),
    ];
    for (stage, state, sender, receiver) in table {
        let story = Story::at(&world.another(), stage).await?;
        let seen = story.look(&format!("alice reads a handoff that is {state:?}")).await?;
        views_are(&seen, state, sender, receiver)?;
    }
    let story = Story::at(&world, Stage::ContextSent).await?;
    story.bob.take(v1::MessageType::TaskContextTransfer).await?;
    let seen = story.look("alice reads a handoff whose context bob has").await?;
    views_are(&seen, HandoffState::ContextSent, S::AwaitingContextAck, R::ContextTransferred)?;
    answered("bob completes", story.complete().await)?;
    let seen = story.look("alice reads a handoff that is completed").await?;
    let mut checks = Checks::of("alice reads a handoff that is completed");
    checks.same("state", HandoffState::Completed, seen.state());
    let is_done = [S::HandoffCompleted, S::TaskFinished].contains(&seen.sender_view());
    checks.holds("sender_view", is_done, "HandoffCompleted or TaskFinished", seen.sender_view());
    let owns = [R::HandoffCompleted, R::Active].contains(&seen.receiver_view());
    checks.holds("receiver_view", owns, "HandoffCompleted or Active", seen.receiver_view());
    checks.done()
}

fn views_are(seen: &v1::Handoff, state: HandoffState, sender: SenderView, receiver: ReceiverView) -> Verdict {
    let mut checks = Checks::of(format!("alice reads a handoff that is {state:?}"));
    checks.same("state", state, seen.state());
    checks.same("sender_view", sender, seen.sender_view());
    checks.same("receiver_view", receiver, seen.receiver_view());
    checks.done()
}

async fn transitions(world: World) -> Verdict {
    let story = Story::at(&world, Stage::Completed).await?;
    let seen = story.look("alice reads the handoff").await?;
    let mut checks = Checks::of("alice reads a handoff that is completed");
    let states: Vec<HandoffState> = seen.transitions.iter().map(v1::HandoffTransition::state).collect();
    for state in [
        HandoffState::Requested,
        HandoffState::Deciding,
        HandoffState::Accepted,
        HandoffState::ContextSent,
        HandoffState::Completed,
    ] {
        checks.holds("transitions", states.contains(&state), state.as_str_name(), &states);
    }
    let times: Vec<_> = seen.transitions.iter().filter_map(|step| step.transition_time).collect();
    let in_order = times.windows(2).all(|pair| (pair[0].seconds, pair[0].nanos) <= (pair[1].seconds, pair[1].nanos));
    checks.holds("transition_time", in_order && times.len() == states.len(), "each, in order", &times);
    checks.same("candidate_id", story.bob.id(), &seen.candidate_id);
    checks.same("sender_id", story.alice.id(), &seen.sender_id);
    checks.same("context_digest", hex::encode(&story.context.context_digest), hex::encode(&seen.context_digest));
    checks.done()?;
    let open = Story::at(&world.another(), Stage::Deciding).await?;
    let seen = open.look("alice reads a handoff that is open").await?;
    let mut checks = Checks::of("alice reads a handoff that bob has to decide");
    checks.holds("deadline", seen.deadline.is_some(), "set", seen.deadline);
    checks.holds("whole_deadline", seen.whole_deadline.is_some(), "set", seen.whole_deadline);
    checks.done()
}

async fn watch(world: World) -> Verdict {
    let story = Story::at(&world, Stage::Deciding).await?;
    let alice = &story.alice;
    let request = v1::WatchHandoffRequest { handoff_id: story.handoff.clone() };
    let watch = alice.call(async { alice.client.answer(alice.client.handoffs().watch_handoff(request).await) }).await;
    let mut watch = answered("alice watches the handoff", watch)?;
    let now = answered("alice watches the handoff", alice.call(async { Ok(watch.message().await) }).await)?;
    let now = now.ok().flatten().and_then(|update| update.handoff).unwrap_or_default().state();
    let reading = async {
        let mut states = vec![now];
        while let Ok(Some(update)) = watch.message().await {
            let state = update.handoff.unwrap_or_default().state();
            if states.last() != Some(&state) {
                states.push(state);
            }
        }
        Ok(states)
    };
    let moving = async {
        answered("bob accepts", story.accept().await)?;
        answered("alice sends the context", story.send_context().await)?;
        answered("bob completes", story.complete().await)
    };
    let (states, moved) = tokio::join!(alice.call(reading), moving);
    moved?;
    let expected =
        vec![HandoffState::Deciding, HandoffState::Accepted, HandoffState::ContextSent, HandoffState::Completed];
    let states = answered("alice watches to the end", states)?;
    super::check::same("alice watches to the end", "states", expected, states)
}

/// The events of a watch up to `caught_up`: the states of one handoff, the gaps, and the cursor.
async fn caught_up(
    watch: &mut tonic::Streaming<v1::WatchHandoffsResponse>,
    handoff: &str,
) -> Result<(Vec<HandoffState>, usize, u64), baton_client::ClientError> {
    let (mut states, mut gaps) = (Vec::new(), 0);
    loop {
        let Ok(Some(response)) = watch.message().await else { return Ok((states, gaps, 0)) };
        match response.event {
            // Some changes leave the state as it is.
            Some(Event::Handoff(found)) if found.handoff_id == handoff => {
                states.push(found.state());
                states.dedup();
            }
            Some(Event::Gap(_)) => gaps += 1,
            Some(Event::CaughtUp(_)) => return Ok((states, gaps, response.cursor)),
            Some(Event::Handoff(_)) | None => {}
        }
    }
}

async fn watch_from(
    agent: &super::world::Actor,
    request: v1::WatchHandoffsRequest,
) -> Result<tonic::Streaming<v1::WatchHandoffsResponse>, super::check::Problem> {
    let watch = agent.call(async { agent.client.answer(agent.client.handoffs().watch_handoffs(request).await) }).await;
    answered("alice watches her handoffs", watch)
}

async fn watch_all(world: World) -> Verdict {
    let story = Story::at(&world, Stage::Deciding).await?;
    let alice = &story.alice;
    let of_task = v1::WatchHandoffsRequest { task_id: story.task.clone(), ..Default::default() };
    let mut watch = watch_from(alice, of_task.clone()).await?;
    let first = alice.call(caught_up(&mut watch, &story.handoff)).await;
    let (there, _, cursor) = answered("alice watches until caught_up", first)?;
    answered("bob accepts", story.accept().await)?;
    let seen = alice.call(async { Ok(watch.message().await) }).await;
    let seen = answered("alice waits for the change", seen)?.ok().flatten().unwrap_or_default();
    let state = match &seen.event {
        Some(Event::Handoff(handoff)) => handoff.state(),
        _ => HandoffState::Unspecified,
    };
    drop(watch);
    answered("alice sends the context", story.send_context().await)?;
    let mut again = watch_from(alice, v1::WatchHandoffsRequest { after_cursor: seen.cursor, ..of_task }).await?;
    let later = alice.call(caught_up(&mut again, &story.handoff)).await;
    let (later, gaps, last) = answered("alice watches after the cursor", later)?;
    let mut checks = Checks::of("alice watches the handoffs of her task");
    checks.same("states before caught_up", vec![HandoffState::Deciding], there);
    checks.same("state after the accept", HandoffState::Accepted, state);
    checks.holds("cursors", cursor < seen.cursor && seen.cursor < last, "rising", (cursor, seen.cursor, last));
    checks.same("states after the cursor", vec![HandoffState::ContextSent], later);
    checks.same("gaps", 0, gaps);
    checks.done()
}

async fn watch_own(world: World) -> Verdict {
    let story = Story::at(&world, Stage::Deciding).await?;
    let stranger = world.agent("carol").await?;
    // A policy may let every agent read all handoffs.
    let client = &stranger.client;
    let get = v1::GetHandoffRequest { handoff_id: story.handoff.clone(), ..Default::default() };
    let may_read = stranger.call(async { client.answer(client.handoffs().get_handoff(get).await) }).await.is_ok();
    let expected = if may_read { vec![HandoffState::Deciding] } else { Vec::new() };
    let mut watch = watch_from(&stranger, v1::WatchHandoffsRequest::default()).await?;
    let seen = stranger.call(caught_up(&mut watch, &story.handoff)).await;
    let (of_others, _, cursor) = answered("carol watches until caught_up", seen)?;
    let after_cursor = cursor.saturating_add(1 << 40);
    let future = v1::WatchHandoffsRequest { task_id: story.task.clone(), after_cursor, ..Default::default() };
    let mut watch = watch_from(&story.alice, future).await?;
    let seen = story.alice.call(caught_up(&mut watch, &story.handoff)).await;
    let (own, gaps, _) = answered("alice watches after a cursor of the future", seen)?;
    let mut checks = Checks::of("carol and alice watch all handoffs");
    checks.same("what carol sees of alice's handoff", expected, of_others);
    checks.same("gaps", 1, gaps);
    checks.same("what alice sees after the gap", vec![HandoffState::Deciding], own);
    checks.done()
}

async fn list_filters(world: World) -> Verdict {
    let story = Story::at(&world, Stage::Deciding).await?;
    let (alice, bob) = (&story.alice, &story.bob);
    let found = async |request: v1::ListHandoffsRequest| {
        let list =
            alice.call(async { alice.client.answer(alice.client.handoffs().list_handoffs(request).await) }).await;
        let page = answered("alice lists handoffs with filters", list)?;
        Ok::<_, super::check::Problem>(page.handoffs.iter().any(|handoff| handoff.handoff_id == story.handoff))
    };
    let all = v1::ListHandoffsRequest { task_id: story.task.clone(), ..Default::default() };
    let at = |seconds| Some(prost_types::Timestamp { seconds, nanos: 0 });
    let mut checks = Checks::of("alice lists handoffs with filters");
    for (what, request, expected) in [
        ("sender_id of the sender", v1::ListHandoffsRequest { sender_id: alice.id().into(), ..all.clone() }, true),
        ("sender_id of the candidate", v1::ListHandoffsRequest { sender_id: bob.id().into(), ..all.clone() }, false),
        (
            "candidate_id of the candidate",
            v1::ListHandoffsRequest { candidate_id: bob.id().into(), ..all.clone() },
            true,
        ),
        (
            "candidate_id of the sender",
            v1::ListHandoffsRequest { candidate_id: alice.id().into(), ..all.clone() },
            false,
        ),
        ("another task_type", v1::ListHandoffsRequest { task_type: "no-such-type".into(), ..all.clone() }, false),
        ("open_only", v1::ListHandoffsRequest { open_only: true, ..all.clone() }, true),
        ("deadline_before in 1970", v1::ListHandoffsRequest { deadline_before: at(1), ..all.clone() }, false),
        (
            "deadline_before in 2200",
            v1::ListHandoffsRequest { deadline_before: at(7_258_118_400), ..all.clone() },
            true,
        ),
    ] {
        checks.same(what, expected, found(request).await?);
    }
    answered("bob rejects", story.reject().await)?;
    checks.same("open_only after the end", false, found(v1::ListHandoffsRequest { open_only: true, ..all }).await?);
    checks.done()
}

async fn list(world: World) -> Verdict {
    let story = Story::at(&world, Stage::Deciding).await?;
    answered("bob rejects", story.reject().await)?;
    let about = baton_client::About::task(&story.task, 1);
    let second = story.alice.tell(story.bob.id(), &about, &a_request()).await?.handoff_id;
    let client = &story.alice.client;
    let of_task = v1::ListHandoffsRequest { task_id: story.task.clone(), page_size: 1, ..Default::default() };
    let list = async |request: v1::ListHandoffsRequest| {
        story.alice.call(async { client.answer(client.handoffs().list_handoffs(request).await) }).await
    };
    let ids = |page: &v1::ListHandoffsResponse| -> Vec<String> {
        page.handoffs.iter().map(|handoff| handoff.handoff_id.clone()).collect()
    };
    let first = answered("alice lists the task's handoffs, one a page", list(of_task.clone()).await)?;
    let next = v1::ListHandoffsRequest { page_token: first.next_page_token.clone(), ..of_task.clone() };
    let next = answered("alice asks for the next page", list(next).await)?;
    let states = vec![HandoffState::Rejected.into()];
    let rejected = v1::ListHandoffsRequest { states, page_size: 0, ..of_task };
    let rejected = answered("alice lists those that were rejected", list(rejected).await)?;
    let mut checks = Checks::of("alice lists the task's handoffs");
    checks.same("first page", vec![second], ids(&first));
    checks.same("second page", vec![story.handoff.clone()], ids(&next));
    checks.same("rejected ones", vec![story.handoff.clone()], ids(&rejected));
    checks.done()
}
