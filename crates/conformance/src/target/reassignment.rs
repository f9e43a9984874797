//! SPEC 3: an operator takes a task from its owner and hands it to another agent.

use tonic::Code;

use super::{
    check::{Answer, Checks, Refusal, Verdict, answered, refused},
    story::a_request,
    world::{Actor, World},
};
use baton_client::{
    About, Client,
    proto::v1::{self, MessageType},
};

cases! {
    "reassignment.hands-the-task-on" "3"
        "ReassignTask moves the task to baton.coordinator at the next epoch; it asks the new agent, and the former owner is told to drop the task."
        hands_on;
    "reassignment.fences-the-former-owner" "3"
        "After a reassignment each message of the former owner is refused with STALE_EPOCH." fences;
    "reassignment.needs-the-right-and-the-epoch" "3"
        "ReassignTask is refused for another epoch, the present owner, an unknown agent, and a caller without the right; nothing changes."
        is_checked;
}

/// A task of alice's, with a handoff to bob that is open.
async fn a_task(world: &World) -> Verdict<(Actor, String)> {
    let (alice, bob) = (world.agent("alice").await?, world.agent("bob").await?);
    let task = world.id("task");
    alice.tell(bob.id(), &About::task(&task, 1), &a_request()).await?;
    Ok((alice, task))
}

async fn reassign(
    world: &World,
    by: &Client,
    (task, epoch): (&str, u64),
    to: &str,
) -> Answer<v1::ReassignTaskResponse> {
    let request = v1::ReassignTaskRequest {
        task_id: task.to_owned(),
        expected_epoch: epoch,
        to: to.to_owned(),
        reason_text: "the owner is gone".to_owned(),
    };
    world.call(async { by.answer(by.tasks().reassign_task(request).await) }).await
}

async fn hands_on(world: World) -> Verdict {
    let operator = world.operator()?;
    let (alice, task) = a_task(&world).await?;
    let carol = world.agent("carol").await?;
    let made = reassign(&world, &operator, (&task, 1), carol.id()).await;
    let made = answered("the operator reassigns", made)?.task.unwrap_or_default();
    let mut checks = Checks::of("the operator reassigns");
    checks.same("task.owner_id", "baton.coordinator", &made.owner_id);
    checks.same("task.epoch", 2, made.epoch);
    checks.done()?;
    let told: v1::ErrorNotification = alice.take(MessageType::ErrorNotification).await?.payload();
    let mut checks = Checks::of("alice is told");
    checks.same("error_code", v1::ErrorCode::TaskReassigned, told.error_code());
    checks.same("next_step", v1::NextStep::DropTask, told.next_step());
    checks.done()?;
    let offer = carol.take(MessageType::HandoffRequest).await?;
    let mut checks = Checks::of("carol is asked");
    checks.same("sender_id", "baton.coordinator", offer.envelope.sender_id.as_str());
    checks.same("epoch", 2, offer.envelope.epoch);
    checks.done()?;
    answered("carol accepts", carol.call(carol.agent.accept(&offer)).await)?;
    let context = carol.take(MessageType::TaskContextTransfer).await?;
    answered("carol completes", carol.call(carol.agent.complete(&context)).await)?;
    carol.owns("carol reads the task", &task, carol.id(), 3).await
}

async fn fences(world: World) -> Verdict {
    let operator = world.operator()?;
    let (alice, task) = a_task(&world).await?;
    let carol = world.agent("carol").await?;
    let made = reassign(&world, &operator, (&task, 1), carol.id()).await;
    answered("the operator reassigns", made)?;
    let stale = Refusal(Code::FailedPrecondition, "STALE_EPOCH");
    let done = v1::TaskStatusUpdate { status: v1::TaskStatus::Completed.into(), ..Default::default() };
    refused("alice completes the task", alice.say("", &About::task(&task, 1), &done).await, stale)?;
    let again = alice.say(carol.id(), &About::task(&task, 1), &a_request()).await;
    refused("alice hands the task over", again, stale)?;
    alice.owns("alice reads the task", &task, "baton.coordinator", 2).await
}

async fn is_checked(world: World) -> Verdict {
    let operator = world.operator()?;
    let (alice, task) = a_task(&world).await?;
    let carol = world.agent("carol").await?;
    let mut checks = Checks::of("a reassignment");
    let ahead = Refusal(Code::FailedPrecondition, "EPOCH_AHEAD");
    checks.refused("at epoch 2", reassign(&world, &operator, (&task, 2), carol.id()).await, ahead);
    let invalid = Refusal(Code::InvalidArgument, "RECEIVER_INVALID");
    checks.refused("to the owner", reassign(&world, &operator, (&task, 1), alice.id()).await, invalid);
    let unknown = Refusal(Code::NotFound, "RECEIVER_UNKNOWN");
    checks.refused("to no agent", reassign(&world, &operator, (&task, 1), &world.id("unknown")).await, unknown);
    let denied = Refusal(Code::PermissionDenied, "PERMISSION_DENIED");
    checks.refused("by the owner", reassign(&world, &alice.client, (&task, 1), carol.id()).await, denied);
    checks.done()?;
    alice.owns("alice reads the task", &task, alice.id(), 1).await
}
