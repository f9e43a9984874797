//! SPEC 3: the agent that may make each step, the owner after it, the order of candidates, and the loop guard.

use tonic::Code;

use super::{
    check::{Checks, Refusal, Verdict, answered, receipt_says, refused, same},
    story::{Stage, Story, a_request},
    world::{Actor, World},
};
use baton_client::{
    About, context_of,
    proto::v1::{self, HandoffState, MessageType},
};

cases! {
    "handoff.ownership-moves-only-at-completion" "3"
        "Until COMPLETED the sender owns the task at its epoch; in COMPLETED the receiver does, one epoch on."
        ownership_moves_once;
    "handoff.new-task-begins-at-epoch-1" "2"
        "A new task_id makes the task, owned by the sender, at epoch 1; another first epoch is refused."
        new_task_at_epoch_1;
    "handoff.one-open-at-a-time" "2"
        "While a handoff of a task is open, another request is refused with HANDOFF_OPEN, which names the open one."
        one_open_at_a_time;
    "handoff.only-the-owner-asks" "2"
        "A request for another agent's task is refused with NOT_OWNER." only_the_owner_asks;
    "handoff.only-the-candidate-answers" "2"
        "An accept, reject or completion from an agent other than the current candidate is refused with NOT_CANDIDATE."
        only_the_candidate_answers;
    "handoff.only-the-owner-goes-on" "2"
        "A context or a cancel from an agent other than the owner is refused with NOT_OWNER." only_the_owner_goes_on;
    "handoff.unknown-is-refused" "3"
        "A message of an unknown handoff is refused with HANDOFF_UNKNOWN; one of an unknown task, as if from an outsider." unknown_is_refused;
    "handoff.accept-repeated-gets-its-receipt" "3"
        "A repeat of each message of a handoff is an idempotent repeat, also after the state has moved on."
        repeats_of_each_message;
    "handoff.wrong-context-digest-is-refused" "2"
        "A context whose digest is not that of its sections is refused with CONTEXT_DIGEST_MISMATCH."
        wrong_context_digest;
    "handoff.wrong-takeover-digest-is-refused" "7"
        "A completion that names another digest than the context's is refused, and the handoff stays."
        wrong_takeover_digest;
    "handoff.failure-leaves-the-task" "3"
        "A completion with FAILURE ends the handoff; both sides get a notice, the candidate with DROP_TASK."
        failure_leaves_the_task;
    "handoff.cancel-tells-the-candidate" "3"
        "A cancel reaches the candidate, and the task is free for another handoff." cancel_tells_the_candidate;
    "handoff.cancel-names-the-candidate" "2"
        "A cancel that names another receiver than the present candidate is refused with RECEIVER_INVALID."
        cancel_names_the_candidate;
    "handoff.sender-is-no-fallback" "2"
        "A request that names its sender among its fallback candidates is refused with FIELD_INVALID, by its path."
        sender_is_no_fallback;
    "handoff.rejected-goes-to-the-suggested" "3"
        "After a reject the agents that it suggests are asked next." rejected_goes_to_the_suggested;
    "handoff.same-request-for-each-candidate" "3"
        "Each further candidate gets the request byte for byte, with the sender's signature." same_request;
    "handoff.wanted-sections-are-told" "2"
        "The accept reaches the owner with the sections that it wants." wanted_sections;
    "handoff.delegated-comes-back" "2"
        "DELEGATE: the delegate's final status gives the task back to the delegator, epoch + 1, with the result."
        delegated_comes_back;
    "loop.limit-of-the-task" "3"
        "After as many completed handoffs as the task's limit, the next is refused with LOOP_LIMIT." limit_of_the_task;
    "loop.limit-of-the-pair" "3"
        "After as many along one ordered pair as the limit, LOOP_LIMIT says which limit and shows the chain."
        limit_of_the_pair;
    "loop.limit-holds-by-default" "3"
        "Without limits of its own a task goes at most 4 times along the same ordered pair." default_limit;
}

async fn ownership_moves_once(world: World) -> Verdict {
    let story = Story::at(&world, Stage::Requested).await?;
    let Story { alice, bob, task, .. } = &story;
    let before = (1, alice.id());
    // Read after each step, because ownership must not move before the completion (SPEC 3).
    alice.owns("the request is stored", task, alice.id(), 1).await?;
    bob.take(MessageType::HandoffRequest).await?;
    let receipt = answered("bob accepts", story.accept().await)?;
    receipt_says("bob accepts", &receipt, HandoffState::Accepted, before)?;
    alice.owns("bob has accepted", task, alice.id(), 1).await?;
    let receipt = answered("alice sends the context", story.send_context().await)?;
    receipt_says("alice sends the context", &receipt, HandoffState::ContextSent, before)?;
    alice.owns("the context is sent", task, alice.id(), 1).await?;
    let receipt = answered("bob completes", story.complete().await)?;
    receipt_says("bob completes", &receipt, HandoffState::Completed, (2, bob.id()))?;
    alice.owns("the handoff is completed", task, bob.id(), 2).await?;
    let shown = answered("bob reads the task", bob.task(task).await)?;
    let hop = v1::TaskHop {
        handoff_id: story.handoff.clone(),
        sender_id: alice.id().to_owned(),
        receiver_id: bob.id().to_owned(),
        epoch: 2,
    };
    same("bob reads the task", "hops", vec![hop], shown.hops)
}

async fn new_task_at_epoch_1(world: World) -> Verdict {
    let (alice, bob) = (world.agent("alice").await?, world.agent("bob").await?);
    let about = About::task(&world.id("ahead"), 7);
    let ahead = Refusal(Code::FailedPrecondition, "EPOCH_AHEAD");
    refused("alice makes a task at epoch 7", alice.say(bob.id(), &about, &a_request()).await, ahead)?;
    let task = world.id("task");
    let receipt = alice.tell(bob.id(), &About::task(&task, 1), &a_request()).await?;
    receipt_says("alice makes a task", &receipt, HandoffState::Requested, (1, alice.id()))
}

async fn one_open_at_a_time(world: World) -> Verdict {
    let story = Story::at(&world, Stage::Requested).await?;
    let about = About::task(&story.task, 1);
    let open = Refusal(Code::FailedPrecondition, "HANDOFF_OPEN");
    let step = "alice asks again while a handoff is open";
    let refusal = refused(step, story.alice.say(story.bob.id(), &about, &a_request()).await, open)?;
    same(step, "metadata.handoff_id", Some(&story.handoff), refusal.metadata.get("handoff_id"))
}

async fn only_the_owner_asks(world: World) -> Verdict {
    let story = Story::at(&world, Stage::Requested).await?;
    answered("alice cancels", story.cancel().await)?;
    let answer = story.bob.say(story.alice.id(), &About::task(&story.task, 1), &a_request()).await;
    refused("bob hands over alice's task", answer, Refusal(Code::PermissionDenied, "NOT_OWNER")).map(drop)
}

async fn only_the_candidate_answers(world: World) -> Verdict {
    let story = Story::at(&world, Stage::Deciding).await?;
    let carol = world.agent("carol").await?;
    let (to, about) = (story.alice.id(), story.about());
    let mut checks = Checks::of("carol and alice answer a handoff that is offered to bob");
    let not_candidate = Refusal(Code::PermissionDenied, "NOT_CANDIDATE");
    for who in [&carol, &story.alice] {
        let name = who.id();
        checks.refused(
            &format!("accept of {name}"),
            who.say(to, &about, &v1::HandoffAccept::default()).await,
            not_candidate,
        );
        checks.refused(
            &format!("reject of {name}"),
            who.say(to, &about, &v1::HandoffReject::default()).await,
            not_candidate,
        );
        let failure = v1::HandoffComplete { outcome: v1::HandoffOutcome::Failure.into(), ..Default::default() };
        checks.refused(&format!("complete of {name}"), who.say(to, &about, &failure).await, not_candidate);
    }
    checks.done()?;
    answered("bob accepts", story.accept().await).map(drop)
}

async fn only_the_owner_goes_on(world: World) -> Verdict {
    let story = Story::at(&world, Stage::Accepted).await?;
    let carol = world.agent("carol").await?;
    let mut checks = Checks::of("carol and bob send what is the owner's to send");
    let not_owner = Refusal(Code::PermissionDenied, "NOT_OWNER");
    for who in [&carol, &story.bob] {
        let name = who.id();
        let to = story.bob.id();
        checks.refused(&format!("context of {name}"), who.say(to, &story.about(), &story.context).await, not_owner);
        let cancel = who.say(to, &story.about(), &v1::HandoffCancel::default()).await;
        checks.refused(&format!("cancel of {name}"), cancel, not_owner);
    }
    checks.done()?;
    answered("alice sends the context", story.send_context().await).map(drop)
}

async fn unknown_is_refused(world: World) -> Verdict {
    let story = Story::at(&world, Stage::Requested).await?;
    let Story { alice, bob, task, handoff, .. } = &story;
    let other = bob.info(alice.id(), "").message_id;
    let accept = v1::HandoffAccept::default();
    let mut checks = Checks::of("bob accepts an unknown handoff");
    let known_task = bob.say(alice.id(), &About::handoff(task, 1, &other), &accept).await;
    checks.refused("another handoff", known_task, Refusal(Code::NotFound, "HANDOFF_UNKNOWN"));
    let unknown_task = bob.say(alice.id(), &About::handoff(&world.id("unknown"), 1, &other), &accept).await;
    // The same refusal as for a known task in which bob takes no part.
    checks.refused("another task", unknown_task, Refusal(Code::PermissionDenied, "NOT_CANDIDATE"));
    checks.refused_as_absent("GetHandoff", alice.handoff(&other).await, Refusal(Code::NotFound, "HANDOFF_UNKNOWN"));
    checks.refused_as_absent(
        "GetTask",
        alice.task(&world.id("unknown")).await,
        Refusal(Code::NotFound, "TASK_UNKNOWN"),
    );
    checks.holds("the handoff", !handoff.is_empty(), "has an id", handoff);
    checks.done()
}

async fn repeats_of_each_message(world: World) -> Verdict {
    let story = Story::at(&world, Stage::Deciding).await?;
    let Story { alice, bob, context, .. } = &story;
    let about = story.about();
    let complete = v1::HandoffComplete {
        outcome: v1::HandoffOutcome::Success.into(),
        context_digest: context.context_digest.clone(),
        ..Default::default()
    };
    let messages = [
        (bob, bob.envelope(alice.id(), &about, &v1::HandoffAccept::default())),
        (alice, alice.envelope(bob.id(), &about, context)),
        (bob, bob.envelope(alice.id(), &about, &complete)),
    ];
    let mut first = Vec::new();
    for (who, envelope) in &messages {
        let step = format!("{:?} is sent", envelope.message_type());
        first.push(answered(&step, who.submit(envelope).await)?);
    }
    for ((who, envelope), first) in messages.iter().zip(first) {
        let step = format!("{:?} is sent again after the end", envelope.message_type());
        same(&step, "receipt", first, answered(&step, who.submit(envelope).await)?)?;
    }
    alice.owns("alice reads the task", &story.task, bob.id(), 2).await
}

const MISMATCH: Refusal = Refusal(Code::InvalidArgument, "CONTEXT_DIGEST_MISMATCH");

async fn wrong_context_digest(world: World) -> Verdict {
    let story = Story::at(&world, Stage::Accepted).await?;
    let sections = context_of([("goals", "[\"something else\"]".to_owned())]).sections;
    let wrong = v1::TaskContextTransfer {
        sections,
        context_digest: story.context.context_digest.clone(),
        ..Default::default()
    };
    let answer = story.alice.say(story.bob.id(), &story.about(), &wrong).await;
    refused("alice sends sections under the digest of others", answer, MISMATCH)?;
    same("after that", "state", HandoffState::Accepted, story.state("alice reads the handoff").await?)
}

async fn wrong_takeover_digest(world: World) -> Verdict {
    let story = Story::at(&world, Stage::ContextSent).await?;
    let context_digest = vec![7; 32].into();
    let outcome = v1::HandoffOutcome::Success.into();
    let wrong = v1::HandoffComplete { outcome, context_digest, ..Default::default() };
    let answer = story.bob.say(story.alice.id(), &story.about(), &wrong).await;
    refused("bob completes with a digest of his own", answer, MISMATCH)?;
    same("after that", "state", HandoffState::ContextSent, story.state("alice reads the handoff").await?)?;
    story.alice.owns("alice reads the task", &story.task, story.alice.id(), 1).await
}

/// Expects the broker's notification as the agent's next delivery, with this code and next step.
async fn notice(who: &Actor, code: v1::ErrorCode, next: v1::NextStep) -> Verdict {
    super::times::notice(who, code, next).await
}

async fn failure_leaves_the_task(world: World) -> Verdict {
    let story = Story::at(&world, Stage::ContextSent).await?;
    let Story { alice, bob, task, .. } = &story;
    bob.take(MessageType::TaskContextTransfer).await?;
    let receipt = answered("bob cannot take over", story.complete_with(v1::HandoffOutcome::Failure).await)?;
    receipt_says("bob cannot take over", &receipt, HandoffState::Failed, (1, alice.id()))?;
    alice.take(MessageType::HandoffComplete).await?;
    notice(alice, v1::ErrorCode::TakeoverFailed, v1::NextStep::KeepTask).await?;
    notice(bob, v1::ErrorCode::TakeoverFailed, v1::NextStep::DropTask).await?;
    alice.owns("alice reads the task", task, alice.id(), 1).await
}

async fn cancel_names_the_candidate(world: World) -> Verdict {
    let story = Story::at(&world, Stage::Accepted).await?;
    let carol = world.agent("carol").await?;
    let wrong = story.alice.say(carol.id(), &story.about(), &v1::HandoffCancel::default()).await;
    refused("alice cancels, and names carol", wrong, Refusal(Code::InvalidArgument, "RECEIVER_INVALID"))?;
    answered("alice cancels, and names bob", story.cancel().await).map(drop)
}

async fn sender_is_no_fallback(world: World) -> Verdict {
    let (alice, bob) = (world.agent("alice").await?, world.agent("bob").await?);
    let request = v1::HandoffRequest { fallback_candidates: vec![alice.id().to_owned()], ..a_request() };
    let step = "alice asks bob, and herself after him";
    let answer = alice.say(bob.id(), &About::task(&world.id("task"), 1), &request).await;
    let refusal = refused(step, answer, Refusal(Code::InvalidArgument, "FIELD_INVALID"))?;
    let paths: Vec<String> = refusal.violations.into_iter().map(|(path, _)| path).collect();
    same(step, "BadRequest", vec!["envelope.payload.fallback_candidates[0]".to_owned()], paths)
}

async fn cancel_tells_the_candidate(world: World) -> Verdict {
    let story = Story::at(&world, Stage::Accepted).await?;
    let receipt = answered("alice cancels", story.cancel().await)?;
    receipt_says("alice cancels", &receipt, HandoffState::Cancelled, (1, story.alice.id()))?;
    story.bob.take(MessageType::HandoffCancel).await?;
    story.alice.tell(story.bob.id(), &About::task(&story.task, 1), &a_request()).await.map(drop)
}

async fn rejected_goes_to_the_suggested(world: World) -> Verdict {
    let story = Story::at(&world, Stage::Deciding).await?;
    let carol = world.agent("carol").await?;
    let reject = v1::HandoffReject {
        reason: v1::RejectReason::NoSkill.into(),
        alternative_agent_suggestions: vec![carol.id().to_owned()],
        ..Default::default()
    };
    let receipt = story.bob.tell(story.alice.id(), &story.about(), &reject).await?;
    receipt_says("bob rejects and suggests carol", &receipt, HandoffState::Requested, (1, story.alice.id()))?;
    carol.take(MessageType::HandoffRequest).await?;
    let seen = story.look("alice reads the handoff").await?;
    same("alice reads the handoff", "candidate_id", carol.id(), &seen.candidate_id)
}

async fn same_request(world: World) -> Verdict {
    let (alice, bob, carol) = (world.agent("alice").await?, world.agent("bob").await?, world.agent("carol").await?);
    let request = v1::HandoffRequest { fallback_candidates: vec![carol.id().to_owned()], ..a_request() };
    let about = About::task(&world.id("task"), 1);
    let envelope = alice.envelope(bob.id(), &about, &request);
    let receipt = answered("alice asks bob, else carol", alice.submit(&envelope).await)?;
    bob.take(MessageType::HandoffRequest).await?;
    let about = About::handoff(&about.task_id, 1, &receipt.handoff_id);
    bob.tell(alice.id(), &about, &v1::HandoffReject::default()).await?;
    let delivered = carol.take(MessageType::HandoffRequest).await?;
    same("carol takes the request", "envelope", &envelope, &delivered.envelope)?;
    same("carol takes the request", "handoff_id", &receipt.handoff_id, &delivered.delivery.handoff_id)
}

async fn wanted_sections(world: World) -> Verdict {
    let story = Story::at(&world, Stage::Deciding).await?;
    let wanted = vec!["goals".to_owned(), "history_log".to_owned()];
    let accept = v1::HandoffAccept { wanted_sections: wanted.clone(), ..Default::default() };
    story.bob.tell(story.alice.id(), &story.about(), &accept).await?;
    let delivered = story.alice.take(MessageType::HandoffAccept).await?;
    same("alice takes the accept", "payload", &accept, &delivered.payload())?;
    let seen = story.look("alice reads the handoff").await?;
    same("alice reads the handoff", "wanted_sections", wanted, seen.wanted_sections)
}

async fn delegated_comes_back(world: World) -> Verdict {
    let request = v1::HandoffRequest { mode: v1::HandoffMode::Delegate.into(), ..a_request() };
    let story = Story::with(&world, request, Stage::Completed).await?;
    let Story { alice, bob, task, .. } = &story;
    alice.take(MessageType::HandoffComplete).await?;
    bob.owns("bob reads the task", task, bob.id(), 2).await?;
    let done = v1::TaskStatusUpdate {
        status: v1::TaskStatus::Completed.into(),
        details: "a loose plug".to_owned(),
        ..Default::default()
    };
    let receipt = bob.tell("", &About::task(task, 2), &done).await?;
    let mut checks = Checks::of("bob, to whom the task is lent, says COMPLETED");
    checks.same("receipt.owner_id", alice.id(), &receipt.owner_id);
    checks.same("receipt.epoch", 3, receipt.epoch);
    checks.holds(
        "receipt.task_status",
        receipt.task_status() != v1::TaskStatus::Completed,
        "not final",
        receipt.task_status(),
    );
    checks.done()?;
    let delivered = alice.take(MessageType::TaskStatusUpdate).await?;
    same("alice takes the result", "payload", &done, &delivered.payload())?;
    let receipt = alice.tell("", &About::task(task, 3), &done).await?;
    same("alice says COMPLETED", "task_status", v1::TaskStatus::Completed, receipt.task_status())
}

/// Hands the task from its owner to the other agent. Returns the new epoch.
async fn hand_over(from: &Actor, to: &Actor, task: &str, epoch: u64, request: &v1::HandoffRequest) -> Verdict<u64> {
    let handoff = from.tell(to.id(), &About::task(task, epoch), request).await?.handoff_id;
    let about = About::handoff(task, epoch, &handoff);
    to.tell(from.id(), &about, &v1::HandoffAccept::default()).await?;
    let context = context_of([]);
    from.tell(to.id(), &about, &context).await?;
    let complete = v1::HandoffComplete {
        outcome: v1::HandoffOutcome::Success.into(),
        context_digest: context.context_digest,
        ..Default::default()
    };
    Ok(to.tell(from.id(), &about, &complete).await?.epoch)
}

const LOOP: Refusal = Refusal(Code::FailedPrecondition, "LOOP_LIMIT");

async fn limit_of_the_task(world: World) -> Verdict {
    let (alice, bob) = (world.agent("alice").await?, world.agent("bob").await?);
    let limits = v1::LoopLimits { max_handoffs: 2, ..Default::default() };
    let request = v1::HandoffRequest { loop_limits: Some(limits), ..a_request() };
    let task = world.id("task");
    let epoch = hand_over(&alice, &bob, &task, 1, &request).await?;
    let epoch = hand_over(&bob, &alice, &task, epoch, &request).await?;
    let step = "alice hands the task over a third time; its limit is 2";
    let answer = alice.say(bob.id(), &About::task(&task, epoch), &request).await;
    let refusal = refused(step, answer, LOOP)?;
    let mut checks = Checks::of(step);
    for name in ["limit", "chain"] {
        checks.holds(&format!("metadata.{name}"), refusal.metadata.contains_key(name), "set", &refusal.metadata);
    }
    checks.done()?;
    alice.owns("alice reads the task", &task, alice.id(), 3).await
}

async fn limit_of_the_pair(world: World) -> Verdict {
    let (alice, bob) = (world.agent("alice").await?, world.agent("bob").await?);
    let limits = v1::LoopLimits { max_handoffs_per_pair: 1, ..Default::default() };
    let request = v1::HandoffRequest { loop_limits: Some(limits), ..a_request() };
    let task = world.id("task");
    let epoch = hand_over(&alice, &bob, &task, 1, &request).await?;
    let epoch = hand_over(&bob, &alice, &task, epoch, &request).await?;
    let step = "alice hands the task to bob a second time; the limit of a pair is 1";
    let refusal = refused(step, alice.say(bob.id(), &About::task(&task, epoch), &request).await, LOOP)?;
    let (limit, chain) = (refusal.metadata.get("limit"), refusal.metadata.get("chain"));
    let mut checks = Checks::of(step);
    checks.holds("metadata.limit", limit.is_some_and(|limit| limit.contains("pair")), "that of the pair", limit);
    let shows = chain.is_some_and(|chain| chain.contains(alice.id()) && chain.contains(bob.id()));
    checks.holds("metadata.chain", shows, "alice and bob", chain);
    checks.done()?;
    let carol = world.agent("carol").await?;
    alice.tell(carol.id(), &About::task(&task, epoch), &request).await.map(drop)
}

async fn default_limit(world: World) -> Verdict {
    let (alice, bob) = (world.agent("alice").await?, world.agent("bob").await?);
    let task = world.id("task");
    let mut epoch = 1;
    for round in 0..4 {
        // The operator may have configured a lower limit. The loop guard then applies earlier.
        let answer = alice.say(bob.id(), &About::task(&task, epoch), &a_request()).await;
        if round > 0 && answer.is_err() {
            return refused("alice hands the task to bob", answer, LOOP).map(drop);
        }
        let handoff = answered("alice asks bob", answer)?.handoff_id;
        let about = About::handoff(&task, epoch, &handoff);
        alice.tell(bob.id(), &about, &v1::HandoffCancel::default()).await?;
        epoch = hand_over(&alice, &bob, &task, epoch, &a_request()).await?;
        epoch = hand_over(&bob, &alice, &task, epoch, &a_request()).await?;
    }
    let answer = alice.say(bob.id(), &About::task(&task, epoch), &a_request()).await;
    refused("alice hands the task to bob a fifth time", answer, LOOP).map(drop)
}
