//! SPEC 2 and 3: the parts of a task end with it if it is cancelled, and the loop guard counts along the chain of parents.

use std::time::Duration;

use tonic::Code;

use super::{
    check::{Checks, Refusal, Verdict, answered, refused, same},
    story::{a_request, give},
    world::{Actor, World},
};
use baton_client::{About, proto::v1};

cases! {
    "part.ends-with-a-cancelled-task" "2"
        "A task that is CANCELED takes its open parts with it: a lent one ends its loan, an open handoff is CANCELLED; all are told TASK_CANCELED."
        ends_with_task;
    "part.of-a-part-ends-too" "2"
        "A task that is CANCELED also ends the parts of its parts, and those of other owners." ends_down_the_tree;
    "part.stays-if-it-is-kept" "2"
        "Parts stay after CANCELED with keep_parts and after COMPLETED; keep_parts with another status is FIELD_INVALID." stays;
    "part.chain-is-limited-by-pairs" "3"
        "Two agents that lend each other new tasks, each a part of the last, are stopped with LOOP_LIMIT, which shows the chain."
        pairs_are_limited;
    "part.chain-is-limited-by-levels" "3"
        "A chain of parts has at most as many levels as a task may have handoffs; the next part is refused with LOOP_LIMIT."
        levels_are_limited;
    "task.begins-without-a-handoff" "2"
        "A TaskCreate makes a task at epoch 1, owned by its sender, with its summary, parent and conversation; a checkpoint and an append work at once, and a handoff moves it."
        begins_without_handoff;
    "task.id-in-use-is-refused" "2"
        "A TaskCreate with the id of an own task is TASK_EXISTS, with that of others NOT_OWNER; an epoch above 1 is EPOCH_AHEAD."
        id_in_use;
    "task.same-creation-is-one-task" "2"
        "The same TaskCreate again gets its first receipt, also after the task has moved on." same_creation;
    "task.is-listed-by-its-conversation" "2"
        "ListTasks by conversation_id, by parent and by the latest update has the caller's tasks; another conversation of a known task is FIELD_INVALID."
        conversations;
    "task.limits-are-lowered-by-a-later-request" "2"
        "loop_limits of a later request of the task apply: over the lower limit it is refused with LOOP_LIMIT."
        limits_are_lowered;
}

/// A task of an agent without an open handoff.
async fn own_task(world: &World, owner: &Actor, other: &Actor) -> Verdict<String> {
    let task = world.id("whole");
    let handoff = owner.tell(other.id(), &About::task(&task, 1), &a_request()).await?.handoff_id;
    owner.tell(other.id(), &About::handoff(&task, 1, &handoff), &v1::HandoffCancel::default()).await?;
    Ok(task)
}

fn part_of(parent: &str, mode: v1::HandoffMode) -> v1::HandoffRequest {
    v1::HandoffRequest { parent_task_id: parent.to_owned(), mode: mode.into(), ..a_request() }
}

fn end(status: v1::TaskStatus, keep_parts: bool) -> v1::TaskStatusUpdate {
    v1::TaskStatusUpdate { status: status.into(), keep_parts, ..Default::default() }
}

/// Takes deliveries until a notification about this task comes, and checks it.
async fn is_told(who: &Actor, task: &str, handoff: &str) -> Verdict {
    let delivered = who.notified_of(task, Duration::ZERO).await?;
    let told: v1::ErrorNotification = delivered.payload();
    let mut checks = Checks::of(format!("{} is told", who.id()));
    checks.same("error_code", v1::ErrorCode::TaskCanceled, told.error_code());
    checks.same("next_step", v1::NextStep::DropTask, told.next_step());
    checks.same("correlation_id", handoff, delivered.envelope.correlation_id.as_str());
    checks.done()
}

async fn has_status(who: &Actor, task: &str, status: v1::TaskStatus) -> Verdict {
    let shown = answered("the owner reads the part", who.task(task).await)?;
    same("the owner reads the part", "status", status, shown.status())
}

async fn ends_with_task(world: World) -> Verdict {
    let (alice, bob, carol) = (world.agent("alice").await?, world.agent("bob").await?, world.agent("carol").await?);
    let whole = own_task(&world, &alice, &bob).await?;
    let (lent, open) = (world.id("lent"), world.id("open"));
    let loan = give(&alice, &bob, &lent, &part_of(&whole, v1::HandoffMode::Delegate)).await?;
    let request = part_of(&whole, v1::HandoffMode::Transfer);
    let offer = alice.tell(carol.id(), &About::task(&open, 1), &request).await?.handoff_id;
    alice.tell("", &About::task(&whole, 1), &end(v1::TaskStatus::Canceled, false)).await?;
    is_told(&bob, &lent, &loan).await?;
    is_told(&carol, &open, &offer).await?;
    is_told(&alice, &lent, &loan).await?;
    has_status(&alice, &lent, v1::TaskStatus::Canceled).await?;
    has_status(&alice, &open, v1::TaskStatus::Canceled).await?;
    alice.owns("alice reads the lent part", &lent, alice.id(), 3).await?;
    let handoff = answered("alice reads the handoff", alice.handoff(&offer).await)?;
    let mut checks = Checks::of("alice reads the handoff");
    checks.same("state", v1::HandoffState::Cancelled, handoff.state());
    checks.same("error_code", v1::ErrorCode::TaskCanceled, handoff.error_code());
    let cause = handoff.transitions.last().map(v1::HandoffTransition::cause);
    checks.same("cause", Some(v1::HandoffCause::TaskCanceled), cause);
    checks.done()
}

async fn ends_down_the_tree(world: World) -> Verdict {
    let (alice, bob, carol) = (world.agent("alice").await?, world.agent("bob").await?, world.agent("carol").await?);
    let whole = own_task(&world, &alice, &bob).await?;
    let (part, leaf) = (world.id("part"), world.id("leaf"));
    let given = give(&alice, &bob, &part, &part_of(&whole, v1::HandoffMode::Transfer)).await?;
    let lent = give(&bob, &carol, &leaf, &part_of(&part, v1::HandoffMode::Delegate)).await?;
    alice.tell("", &About::task(&whole, 1), &end(v1::TaskStatus::Canceled, false)).await?;
    is_told(&bob, &part, &given).await?;
    is_told(&carol, &leaf, &lent).await?;
    has_status(&bob, &part, v1::TaskStatus::Canceled).await?;
    has_status(&carol, &leaf, v1::TaskStatus::Canceled).await
}

async fn stays(world: World) -> Verdict {
    let (alice, bob) = (world.agent("alice").await?, world.agent("bob").await?);
    for (status, keep_parts) in [(v1::TaskStatus::Canceled, true), (v1::TaskStatus::Completed, false)] {
        let world = world.another();
        let whole = own_task(&world, &alice, &bob).await?;
        let part = world.id("part");
        give(&alice, &bob, &part, &part_of(&whole, v1::HandoffMode::Delegate)).await?;
        let invalid = Refusal(Code::InvalidArgument, "FIELD_INVALID");
        let answer = alice.say("", &About::task(&whole, 1), &end(v1::TaskStatus::Completed, true)).await;
        refused("alice keeps the parts with COMPLETED", answer, invalid)?;
        alice.tell("", &About::task(&whole, 1), &end(status, keep_parts)).await?;
        // A second task that is cancelled shows that the broker has done its work by then.
        let other = world.another();
        let second = own_task(&other, &alice, &bob).await?;
        let other_part = other.id("part");
        let loan = give(&alice, &bob, &other_part, &part_of(&second, v1::HandoffMode::Delegate)).await?;
        alice.tell("", &About::task(&second, 1), &end(v1::TaskStatus::Canceled, false)).await?;
        is_told(&bob, &other_part, &loan).await?;
        has_status(&alice, &part, v1::TaskStatus::Created).await?;
    }
    Ok(())
}

const LOOP: Refusal = Refusal(Code::FailedPrecondition, "LOOP_LIMIT");

async fn pairs_are_limited(world: World) -> Verdict {
    let (alice, bob) = (world.agent("alice").await?, world.agent("bob").await?);
    let (mut from, mut to, mut parent) = (&alice, &bob, String::new());
    // The operator may have configured lower limits. The loop guard then applies earlier.
    for number in 0..9 {
        let task = world.id(&format!("level-{number}"));
        let request = part_of(&parent, v1::HandoffMode::Delegate);
        let answer = from.say(to.id(), &About::task(&task, 1), &request).await;
        if number > 0 && answer.is_err() || number == 8 {
            let refusal = refused("a part goes along a pair once more", answer, LOOP)?;
            let chain = refusal.metadata.get("chain");
            let shows = chain.is_some_and(|chain| chain.contains(alice.id()) && chain.contains(bob.id()));
            let mut checks = Checks::of("the refusal");
            checks.holds("metadata.limit", refusal.metadata.contains_key("limit"), "set", &refusal.metadata);
            checks.holds("metadata.chain", shows, "alice and bob", chain);
            return checks.done();
        }
        let about = About::handoff(&task, 1, &answered("a part is requested", answer)?.handoff_id);
        from.tell(to.id(), &about, &v1::HandoffCancel::default()).await?;
        let again = v1::HandoffRequest { parent_task_id: String::new(), ..request };
        give(from, to, &task, &again).await?;
        (from, to, parent) = (to, from, task);
    }
    Ok(())
}

async fn levels_are_limited(world: World) -> Verdict {
    let (alice, bob) = (world.agent("alice").await?, world.agent("bob").await?);
    let limits = v1::LoopLimits { max_handoffs: 2, ..Default::default() };
    let tasks = ["first", "second", "third"].map(|name| world.id(name));
    let first = v1::HandoffRequest { loop_limits: Some(limits), ..a_request() };
    alice.tell(bob.id(), &About::task(&tasks[0], 1), &first).await?;
    alice.tell(bob.id(), &About::task(&tasks[1], 1), &part_of(&tasks[0], v1::HandoffMode::Transfer)).await?;
    let third = alice.say(bob.id(), &About::task(&tasks[2], 1), &part_of(&tasks[1], v1::HandoffMode::Transfer)).await;
    refused("alice makes a part on level 3; the limit is 2", third, LOOP).map(drop)
}

async fn conversations(world: World) -> Verdict {
    let (alice, bob) = (world.agent("alice").await?, world.agent("bob").await?);
    let [whole, part, other] = ["whole", "part", "other"].map(|name| world.id(name));
    let (chat, another) = (format!("chat {whole}"), format!("chat {other}"));
    let of = |conversation: &str, parent: &str| v1::HandoffRequest {
        conversation_id: conversation.to_owned(),
        parent_task_id: parent.to_owned(),
        ..a_request()
    };
    let first = alice.tell(bob.id(), &About::task(&whole, 1), &of(&chat, "")).await?.handoff_id;
    alice.tell(bob.id(), &About::task(&part, 1), &of(&chat, &whole)).await?;
    alice.tell(bob.id(), &About::task(&other, 1), &of(&another, "")).await?;
    alice.tell(bob.id(), &About::handoff(&whole, 1, &first), &v1::HandoffCancel::default()).await?;
    let invalid = Refusal(Code::InvalidArgument, "FIELD_INVALID");
    let answer = alice.say(bob.id(), &About::task(&whole, 1), &of(&another, "")).await;
    refused("a later request names another conversation", answer, invalid)?;
    let shown = answered("alice reads the part", alice.task(&part).await)?;
    same("alice reads the part", "conversation_id", &chat, &shown.conversation_id)?;
    let listed = async |who: &Actor, filter: v1::ListTasksRequest| {
        let client = &who.client;
        let listed = who.call(async { client.answer(client.tasks().list_tasks(filter).await) }).await;
        let tasks = answered("the tasks are listed", listed)?.tasks;
        Ok(tasks.into_iter().map(|task| task.task_id).collect::<Vec<_>>())
    };
    let by_chat = v1::ListTasksRequest { conversation_id: chat, ..Default::default() };
    let by_parent = v1::ListTasksRequest { parent_task_id: whole.clone(), ..by_chat.clone() };
    let by_update = v1::ListTasksRequest { order: v1::TaskOrder::Update.into(), ..by_chat.clone() };
    let mut checks = Checks::of("the tasks are listed");
    checks.same("by conversation", vec![part.clone(), whole.clone()], listed(&alice, by_chat.clone()).await?);
    checks.same("by conversation and parent", vec![part.clone()], listed(&alice, by_parent).await?);
    checks.same("by the latest update", vec![whole, part], listed(&alice, by_update).await?);
    let of_bob = v1::ListTasksRequest { owner_id: bob.id().to_owned(), ..by_chat };
    checks.same("by conversation and owner", Vec::<String>::new(), listed(&alice, of_bob).await?);
    checks.done()
}

async fn limits_are_lowered(world: World) -> Verdict {
    let (alice, bob) = (world.agent("alice").await?, world.agent("bob").await?);
    let task = world.id("task");
    give(&alice, &bob, &task, &a_request()).await?;
    let limits = v1::LoopLimits { max_handoffs: 1, ..Default::default() };
    let request = v1::HandoffRequest { loop_limits: Some(limits), ..a_request() };
    let answer = bob.say(alice.id(), &About::task(&task, 2), &request).await;
    refused("bob asks with a limit that is reached", answer, LOOP).map(drop)
}

fn a_task(summary: &str) -> v1::TaskCreate {
    v1::TaskCreate { task_type: "support".to_owned(), summary: summary.to_owned(), ..Default::default() }
}

async fn begins_without_handoff(world: World) -> Verdict {
    let (alice, bob) = (world.agent("alice").await?, world.agent("bob").await?);
    let [whole, part] = ["whole", "part"].map(|name| world.id(name));
    let receipt = alice.tell("", &About::task(&whole, 1), &a_task("it crashes")).await?;
    let mut checks = Checks::of("the receipt");
    checks.same("owner_id", alice.id(), receipt.owner_id.as_str());
    checks.same("epoch", 1, receipt.epoch);
    checks.same("task_status", v1::TaskStatus::Created, receipt.task_status());
    checks.same("handoff_id", "", receipt.handoff_id.as_str());
    checks.done()?;
    let of_part = v1::TaskCreate { parent_task_id: whole.clone(), conversation_id: "chat".to_owned(), ..a_task("") };
    alice.tell("", &About::task(&part, 1), &of_part).await?;
    let shown = answered("alice reads the task", alice.task(&whole).await)?;
    let mut checks = Checks::of("alice reads the task");
    checks.same("summary", "it crashes", shown.summary.as_str());
    checks.same("task_type", "support", shown.task_type.as_str());
    checks.same("open_handoff_id", "", shown.open_handoff_id.as_str());
    checks.same("part_task_ids", vec![part.clone()], shown.part_task_ids);
    checks.done()?;
    let shown = answered("alice reads the part", alice.task(&part).await)?;
    same("alice reads the part", "conversation_id", "chat", shown.conversation_id.as_str())?;
    let append = v1::WorkspaceAppend {
        workspace_id: format!("task:{whole}"),
        topic: "notes".to_owned(),
        entry: Some(v1::workspace_append::Entry::Json("{}".to_owned())),
        ..Default::default()
    };
    alice.tell("", &About::default(), &append).await?;
    let client = &alice.client;
    let own = v1::ListTasksRequest { owner_id: alice.id().to_owned(), ..Default::default() };
    let listed = alice.call(async { client.answer(client.tasks().list_tasks(own).await) }).await;
    let ids: Vec<_> = answered("alice lists her tasks", listed)?.tasks.into_iter().map(|task| task.task_id).collect();
    same("alice lists her tasks", "tasks", vec![part, whole.clone()], ids)?;
    give(&alice, &bob, &whole, &a_request()).await?;
    bob.owns("bob reads the task", &whole, bob.id(), 2).await
}

async fn id_in_use(world: World) -> Verdict {
    let (alice, bob) = (world.agent("alice").await?, world.agent("bob").await?);
    let task = world.id("task");
    let ahead = alice.say("", &About::task(&task, 2), &a_task("")).await;
    let mut checks = Checks::of("a task is created");
    checks.refused("at epoch 2", ahead, Refusal(Code::FailedPrecondition, "EPOCH_AHEAD"));
    alice.tell("", &About::task(&task, 1), &a_task("")).await?;
    let again = alice.say("", &About::task(&task, 1), &a_task("")).await;
    checks.refused("again", again, Refusal(Code::AlreadyExists, "TASK_EXISTS"));
    let by_bob = bob.say("", &About::task(&task, 1), &a_task("")).await;
    checks.refused("by another agent", by_bob, Refusal(Code::PermissionDenied, "NOT_OWNER"));
    let part = v1::TaskCreate { parent_task_id: task, ..a_task("") };
    let of_alice = bob.say("", &About::task(&world.id("part"), 1), &part).await;
    checks.refused("as a part of another's", of_alice, Refusal(Code::PermissionDenied, "NOT_OWNER"));
    checks.done()
}

async fn same_creation(world: World) -> Verdict {
    let (alice, bob) = (world.agent("alice").await?, world.agent("bob").await?);
    let task = world.id("task");
    let composed = alice.envelope("", &About::task(&task, 1), &a_task("once"));
    let first = answered("alice creates the task", alice.submit(&composed).await)?;
    give(&alice, &bob, &task, &a_request()).await?;
    let second = answered("alice creates it again", alice.submit(&composed).await)?;
    same("the second receipt", "receipt", first, second)
}
