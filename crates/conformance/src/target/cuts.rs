//! SPEC 3 and 4: a session breaks between a message and its receipt, and the agent comes back and sends it again.

use tonic::Code;

use super::{
    check::{Checks, NoAnswer, Verdict, answered, same},
    story::{Stage, Story, a_request},
    world::{Actor, CREDIT, World},
};
use baton_client::{
    About,
    proto::v1::{self, MessageType, TaskStatus},
};

cases! {
    "cut.recall-is-applied-once" "3"
        "A TaskRecall whose session breaks before its receipt is sent again: same receipt, and the task comes back once."
        recall;
    "cut.end-of-a-loan-is-applied-once" "3"
        "A delegate's final status whose session breaks before its receipt is sent again: same receipt, and the delegator gets one status."
        end_of_a_loan;
    "cut.question-is-asked-once" "2"
        "A question whose session breaks before its receipt is sent again: same receipt, and the agent that is asked gets it once." question;
    "cut.answer-is-taken-once" "2"
        "An answer whose session breaks before its receipt is sent again: same receipt, no INPUT_TAKEN, and the owner gets it once." answer;
    "cut.reassignment-moves-the-task-once" "3"
        "A ReassignTask that breaks off and is called again moves the task by one epoch, or is refused with STALE_EPOCH."
        reassignment;
}

/// Sends an envelope, breaks the session while the receipt is on its way, and sends it again over a new session, twice.
/// Returns the agent with its new session, and the receipt.
async fn cut_off(world: &World, actor: Actor, envelope: &v1::Envelope) -> Verdict<(Actor, v1::Receipt)> {
    // The first poll hands the message to the connection. Whether it arrives before the break is left to the network.
    tokio::select! {
        biased;
        _ = actor.submit(envelope) => {}
        () = std::future::ready(()) => {}
    }
    let identity = actor.identity.clone();
    drop(actor);
    let back = world.connect(&identity, CREDIT).await?;
    let first = answered(&format!("{} sends it again", identity.agent), back.submit(envelope).await)?;
    let again = answered(&format!("{} sends it once more", identity.agent), back.submit(envelope).await)?;
    same(&format!("{} sends it once more", identity.agent), "receipt", &first, &again)?;
    Ok((back, first))
}

/// A task that alice has lent to bob. Alice has taken his completion.
async fn lent(world: &World) -> Verdict<Story> {
    let request = v1::HandoffRequest { mode: v1::HandoffMode::Delegate.into(), ..a_request() };
    let story = Story::with(world, request, Stage::Completed).await?;
    story.alice.take(MessageType::HandoffComplete).await?;
    Ok(story)
}

/// Checks that the next two deliveries are one of this type and then mail that was sent after it.
async fn comes_once(to: &Actor, kind: MessageType, from: &Actor) -> Verdict {
    to.take(kind).await?;
    from.tell(to.id(), &About::default(), &v1::Info::default()).await?;
    to.take(MessageType::Info).await.map(drop)
}

async fn recall(world: World) -> Verdict {
    let Story { alice, bob, task, handoff, .. } = lent(&world).await?;
    let recall = v1::TaskRecall { reason_text: "no longer needed".to_owned() };
    let recall = alice.envelope("", &About::handoff(&task, 1, &handoff), &recall);
    let (alice, receipt) = cut_off(&world, alice, &recall).await?;
    let mut checks = Checks::of("alice's receipt");
    checks.same("owner_id", alice.id(), receipt.owner_id.as_str());
    checks.same("epoch", 3, receipt.epoch);
    checks.done()?;
    alice.owns("alice reads the task", &task, alice.id(), 3).await?;
    comes_once(&bob, MessageType::ErrorNotification, &alice).await
}

async fn end_of_a_loan(world: World) -> Verdict {
    let Story { alice, bob, task, .. } = lent(&world).await?;
    let done = v1::TaskStatusUpdate { status: TaskStatus::Completed.into(), ..Default::default() };
    let done = bob.envelope("", &About::task(&task, 2), &done);
    let (bob, receipt) = cut_off(&world, bob, &done).await?;
    same("bob's receipt", "epoch", 3, receipt.epoch)?;
    alice.owns("alice reads the task", &task, alice.id(), 3).await?;
    comes_once(&alice, MessageType::TaskStatusUpdate, &bob).await
}

/// A task of alice's at epoch 1, about which she asks bob: the agents, the task, and the question.
async fn asking(world: &World) -> Verdict<(Actor, Actor, String, v1::Envelope)> {
    let story = Story::at(world, Stage::Deciding).await?;
    answered("alice cancels", story.cancel().await)?;
    story.bob.take(MessageType::HandoffCancel).await?;
    let Story { alice, bob, task, .. } = story;
    let prompt =
        v1::TaskPrompt { question: "which colour?".to_owned(), answer_by: bob.id().to_owned(), ..Default::default() };
    let status = TaskStatus::WaitingForInput.into();
    let question = v1::TaskStatusUpdate { status, prompt: Some(prompt), ..Default::default() };
    let question = alice.envelope("", &About::task(&task, 1), &question);
    Ok((alice, bob, task, question))
}

async fn question(world: World) -> Verdict {
    let (alice, bob, task, question) = asking(&world).await?;
    let (alice, _) = cut_off(&world, alice, &question).await?;
    let open = answered("alice reads the task", alice.task(&task).await)?.open_prompt.unwrap_or_default();
    same("alice reads the task", "open_prompt.message_id", &question.message_id, &open.message_id)?;
    comes_once(&bob, MessageType::TaskStatusUpdate, &alice).await
}

async fn answer(world: World) -> Verdict {
    let (alice, bob, task, question) = asking(&world).await?;
    answered("alice asks", alice.submit(&question).await)?;
    bob.take(MessageType::TaskStatusUpdate).await?;
    let input = v1::TaskInput { text: "blue".to_owned(), ..Default::default() };
    let input = bob.envelope("", &About::handoff(&task, 1, &question.message_id), &input);
    let (bob, _) = cut_off(&world, bob, &input).await?;
    comes_once(&alice, MessageType::TaskInput, &bob).await
}

async fn reassignment(world: World) -> Verdict {
    let operator = world.operator()?;
    let alice = world.agent("alice").await?;
    let (bob, carol) = (world.agent("bob").await?, world.agent("carol").await?);
    let task = world.id("task");
    alice.tell(bob.id(), &About::task(&task, 1), &a_request()).await?;
    let request = v1::ReassignTaskRequest {
        task_id: task.clone(),
        expected_epoch: 1,
        to: carol.id().to_owned(),
        reason_text: String::new(),
    };
    let mut tasks = operator.tasks();
    tokio::select! {
        biased;
        _ = tasks.reassign_task(request.clone()) => {}
        () = std::future::ready(()) => {}
    }
    let again = world.call(async { operator.answer(operator.tasks().reassign_task(request).await) }).await;
    // The call that broke off may have arrived before this one.
    match again {
        Ok(_) => {}
        Err(NoAnswer::Refused(refused))
            if (refused.code, &*refused.reason) == (Code::FailedPrecondition, "STALE_EPOCH") => {}
        Err(problem) => return answered("the operator reassigns again", Err(problem)),
    }
    carol.take(MessageType::HandoffRequest).await?;
    alice.owns("alice reads the task", &task, "baton.coordinator", 2).await?;
    alice.tell(carol.id(), &About::default(), &v1::Info::default()).await?;
    carol.take(MessageType::Info).await.map(drop)
}
