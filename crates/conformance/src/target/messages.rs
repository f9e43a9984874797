//! SPEC 2: receivers, receipts, repeats, and messages outside a handoff.

use tonic::Code;

use super::{
    check::{Checks, Refusal, Verdict, answered, fail, refused, same},
    story::{Stage, Story, a_request},
    world::{Actor, World},
};
use baton_client::{
    About,
    envelope::{keys::PublicKey, signing},
    ids::TaskId,
    proto::v1::{self, MessageType, TaskStatus},
};

cases! {
    "receipt.is-signed-by-the-broker" "2"
        "A receipt is signed by a key of the agent baton, over everything it says." receipt_is_signed;
    "receipt.says-what-has-become" "2"
        "A receipt has the message's id, a sequence that rises, the task's state and epoch, and the custody hash."
        receipt_says_what_has_become;
    "receipt.custody-log-explains-the-task" "2"
        "The custody log is chained by hashes, its receipts are signed, and replayed from empty it gives the task's state."
        custody_log;
    "repeat.same-receipt" "2"
        "The same envelope again gets the first receipt again, byte for byte, in another session too, and is delivered once."
        repeat_gets_the_same_receipt;
    "repeat.another-message-is-refused" "4"
        "Another message under an id that was used is refused with MESSAGE_ID_REUSED." another_message_is_refused;
    "receiver.unknown-is-refused" "2"
        "An unregistered receiver, or a type without an agent, is refused with RECEIVER_UNKNOWN." unknown_receiver;
    "receiver.oneself-is-refused" "2"
        "A handoff to oneself, or to the broker, is refused." to_oneself;
    "receiver.all-gets-no-handoff" "2"
        "A handoff to all:NAME is refused: a task has one owner." all_gets_no_handoff;
    "receiver.type-is-one-able-agent" "2"
        "type:NAME is one agent of the type; one that lacks a required skill is not asked." type_is_one_able_agent;
    "receiver.all-is-everybody-of-the-type" "2"
        "all:NAME is every agent of the type, and no other agent." all_is_everybody;
    "message.mail-is-carried" "2"
        "Info, Delegation and ErrorNotification go from agent to agent as they are."
        mail_is_carried;
    "message.heartbeat-is-not-stored" "2"
        "A heartbeat is answered with sequence 0, and its load is on view." heartbeat_is_not_stored;
    "status.only-the-owner" "2"
        "A status is accepted only from the owner at the present epoch." status_only_of_the_owner;
    "status.final-never-changes" "2"
        "A final status never changes: a later one is refused with TASK_FINAL." final_status_stays;
    "status.goes-to-its-receiver" "2"
        "A status update goes to the receiver that it names." status_goes_to_its_receiver;
    "status.watchers-see-it" "2"
        "Who watches the task sees each update, from any entry on, until the final one." watchers_see_it;
    "status.progress-is-checked" "2"
        "A progress outside 0 to 1 is refused." progress_is_checked;
    "message.stale-epoch-is-refused-and-recorded" "1"
        "A message of an older epoch is refused with STALE_EPOCH, changes nothing, and is in the custody log."
        stale_epoch;
}

async fn receipt_is_signed(world: World) -> Verdict {
    let story = Story::at(&world, Stage::Requested).await?;
    // The session has checked the receipt with the key of its welcome. This check uses the key of the directory.
    let receipt = answered("bob accepts", story.accept().await)?;
    let keys = broker_keys(&story.alice).await?;
    let input = signing::receipt_input(&receipt);
    let is_signed = keys.iter().any(|(id, key)| *id == receipt.key_id && key.verifies(&input, &receipt.signature));
    let mut checks = Checks::of("bob's receipt is checked by the keys of the agent baton");
    checks.holds("signature", is_signed, "by one of its keys", &receipt.key_id);
    let changed = signing::receipt_input(&v1::Receipt { epoch: receipt.epoch + 1, ..receipt.clone() });
    let is_lax = keys.iter().any(|(_, key)| key.verifies(&changed, &receipt.signature));
    checks.holds("signature over a changed receipt", !is_lax, "not valid", is_lax);
    checks.done()
}

/// The broker's keys, as listed in the directory.
async fn broker_keys(by: &Actor) -> Verdict<Vec<(String, PublicKey)>> {
    let request = v1::GetAgentRequest { agent_id: "baton".to_owned() };
    let found = by.call(async { by.client.answer(by.client.agents().get_agent(request).await) }).await;
    let found = answered("the agent baton is looked up", found)?;
    let keys = found.agent.and_then(|agent| agent.card).unwrap_or_default().keys;
    Ok(keys.into_iter().filter_map(|key| Some((key.key_id, PublicKey::parse(&key.public_key).ok()?))).collect())
}

async fn receipt_says_what_has_become(world: World) -> Verdict {
    let (alice, bob) = (world.agent("alice").await?, world.agent("bob").await?);
    let task = world.id("task");
    let envelope = alice.envelope(bob.id(), &About::task(&task, 1), &a_request());
    let receipt = answered("alice asks bob", alice.submit(&envelope).await)?;
    let shown = answered("alice reads the task", alice.task(&task).await)?;
    let mut checks = Checks::of("alice's receipt");
    checks.same("message_id", &envelope.message_id, &receipt.message_id);
    checks.same("task_id", &task, &receipt.task_id);
    checks.same("task_status", TaskStatus::Created, receipt.task_status());
    checks.same("owner_id", alice.id(), &receipt.owner_id);
    checks.same("epoch", 1, receipt.epoch);
    checks.same("handoff_id", &envelope.message_id, &receipt.handoff_id);
    checks.same("handoff_state", v1::HandoffState::Requested, receipt.handoff_state());
    checks.same("custody_hash", hex::encode(&shown.custody_hash), hex::encode(&receipt.custody_hash));
    checks.holds("custody_hash", receipt.custody_hash.len() == 32, "32 bytes", receipt.custody_hash.len());
    checks.holds("accept_time", receipt.accept_time.is_some(), "set", receipt.accept_time);
    let second = alice.tell(bob.id(), &About::default(), &v1::Info::default()).await?;
    checks.holds("sequence", second.sequence > receipt.sequence, "rising", (receipt.sequence, second.sequence));
    checks.done()
}

async fn custody_log(world: World) -> Verdict {
    let story = Story::at(&world, Stage::Completed).await?;
    let step = "alice replays the custody log";
    let request = v1::GetCustodyLogRequest {
        task_id: story.task.clone(),
        page_size: 1000,
        include_envelopes: true,
        ..Default::default()
    };
    let client = &story.alice.client;
    let log = story.alice.call(async { client.answer(client.tasks().get_custody_log(request).await) }).await;
    let log = answered(step, log)?;
    let (_, key) = broker_keys(&story.alice)
        .await?
        .pop()
        .map_or_else(|| fail(step, "the broker's key", "one in the directory", "none"), Ok)?;
    let task = answered(step, story.alice.task(&story.task).await)?;
    let id = TaskId::parse(&story.task).expect("ids of cases follow the grammar");
    let replayed = (world.target.replay)(&id, key, &log.entries);
    let replayed = replayed.or_else(|problem| fail(step, "custody log", "it holds", problem))?;
    let mut checks = Checks::of(step);
    checks.same("length", task.custody_length, log.entries.len() as u64);
    checks.same("head", hex::encode(&task.custody_hash), hex::encode(replayed.head));
    checks.same("owner and epoch", Some((task.owner_id, task.epoch)), replayed.owner_and_epoch);
    // Of the request, the accept, the context and the completion.
    checks.same("receipts", 4, replayed.receipts);
    checks.done()
}

async fn repeat_gets_the_same_receipt(world: World) -> Verdict {
    let (alice, bob) = (world.agent("alice").await?, world.agent("bob").await?);
    let envelope = alice.info(bob.id(), "once");
    let first = answered("alice sends it", alice.submit(&envelope).await)?;
    let again = answered("alice sends it again", alice.submit(&envelope).await)?;
    same("alice sends it again", "receipt", &first, &again)?;
    let other = world.connect(&alice.identity, 0).await?;
    let again = answered("alice sends it again in another session", other.submit(&envelope).await)?;
    same("alice sends it again in another session", "receipt", &first, &again)?;
    alice.tell(bob.id(), &About::default(), &v1::Info { text: "last".to_owned(), ..Default::default() }).await?;
    let texts = [bob.take(MessageType::Info).await?, bob.take(MessageType::Info).await?];
    let texts = texts.map(|delivered| delivered.payload::<v1::Info>().text);
    same("bob takes two deliveries", "texts", ["once", "last"].map(str::to_owned), texts)
}

async fn another_message_is_refused(world: World) -> Verdict {
    let (alice, bob) = (world.agent("alice").await?, world.agent("bob").await?);
    let envelope = alice.info(bob.id(), "first");
    answered("alice sends a message", alice.submit(&envelope).await)?;
    let mut other = alice.info(bob.id(), "second");
    other.message_id.clone_from(&envelope.message_id);
    alice.sign(&mut other);
    let reused = Refusal(Code::AlreadyExists, "MESSAGE_ID_REUSED");
    refused("alice sends another message under its id", alice.submit(&other).await, reused)?;
    let mut theirs = bob.info(alice.id(), "third");
    theirs.message_id = envelope.message_id;
    bob.sign(&mut theirs);
    refused("bob sends a message under alice's id", bob.submit(&theirs).await, reused).map(drop)
}

const UNKNOWN: Refusal = Refusal(Code::NotFound, "RECEIVER_UNKNOWN");

async fn unknown_receiver(world: World) -> Verdict {
    let alice = world.agent("alice").await?;
    let unknown = world.id("unknown");
    let mut checks = Checks::of("alice sends to an unregistered agent");
    for to in [unknown.clone(), format!("type:{unknown}")] {
        let info = alice.say(&to, &About::default(), &v1::Info::default()).await;
        checks.refused(&format!("Info to {to}"), info, UNKNOWN);
        let request = alice.say(&to, &About::task(&world.id("task"), 1), &a_request()).await;
        checks.refused(&format!("HandoffRequest to {to}"), request, UNKNOWN);
    }
    checks.done()
}

async fn to_oneself(world: World) -> Verdict {
    let alice = world.agent("alice").await?;
    let about = About::task(&world.id("task"), 1);
    let invalid = Refusal(Code::InvalidArgument, "RECEIVER_INVALID");
    refused("alice hands a task to herself", alice.say(alice.id(), &about, &a_request()).await, invalid)?;
    refused("alice hands a task to the broker", alice.say("baton", &about, &a_request()).await, invalid).map(drop)
}

async fn all_gets_no_handoff(world: World) -> Verdict {
    let types = [world.id("billing")];
    let (alice, _bob) = (world.agent("alice").await?, world.enrol("bob", &types).await?);
    let to = format!("all:{}", types[0]);
    let answer = alice.say(&to, &About::task(&world.id("task"), 1), &a_request()).await;
    let field = Refusal(Code::InvalidArgument, "FIELD_INVALID");
    refused("alice asks all of a type to take a task", answer, field).map(drop)
}

async fn type_is_one_able_agent(world: World) -> Verdict {
    let types = [world.id("support")];
    let alice = world.agent("alice").await?;
    let unable = world.enrol("unable", &types).await?;
    let able = world.identity("able");
    let skill = v1::AgentSkill { name: "routers".to_owned(), ..Default::default() };
    let card = v1::AgentCard { skills: vec![skill], ..super::world::card(&able, &types) };
    answered("an agent with a skill is registered", world.register(&world.registrar(), card).await)?;
    let able = world.connect(&able, 1).await?;
    let request = v1::HandoffRequest { required_skills: vec!["routers".to_owned()], ..a_request() };
    let to = format!("type:{}", types[0]);
    let receipt = alice.tell(&to, &About::task(&world.id("task"), 1), &request).await?;
    able.take(MessageType::HandoffRequest).await?;
    let handoff = answered("alice reads the handoff", alice.handoff(&receipt.handoff_id).await)?;
    let mut checks = Checks::of("alice asks any one agent of a type with a skill");
    checks.same("candidate_id", able.id(), handoff.candidate_id.as_str());
    let asks_unable = handoff.next_candidates.contains(&unable.agent.to_string());
    checks.holds("next_candidates", !asks_unable, "not the one without the skill", &handoff.next_candidates);
    checks.done()
}

async fn all_is_everybody(world: World) -> Verdict {
    let types = [world.id("billing")];
    let (alice, bob) = (world.agent_of("alice", &types, 4).await?, world.agent("bob").await?);
    let (carol, dave) = (world.agent_of("carol", &types, 4).await?, world.agent_of("dave", &types, 4).await?);
    let news = v1::Info { topic: "prices".to_owned(), ..Default::default() };
    alice.tell(&format!("all:{}", types[0]), &About::default(), &news).await?;
    for one in [&carol, &dave] {
        one.take(MessageType::Info).await?;
    }
    // Bob lacks the type, and a sender never receives its own message: the next delivery of each is this one.
    for one in [&alice, &bob] {
        carol.tell(one.id(), &About::default(), &v1::Delegation::default()).await?;
        one.take(MessageType::Delegation).await?;
    }
    Ok(())
}

async fn mail_is_carried(world: World) -> Verdict {
    let (alice, bob) = (world.agent("alice").await?, world.agent("bob").await?);
    let (to, about) = (bob.id(), About::default());
    let error = v1::ErrorNotification { error_code: v1::ErrorCode::AgentError.into(), ..Default::default() };
    let envelopes = [
        alice.envelope(to, &about, &v1::Info { text: "news".to_owned(), ..Default::default() }),
        alice.envelope(to, &about, &v1::Delegation { description: "part".to_owned(), ..Default::default() }),
        alice.envelope(to, &about, &error),
    ];
    for envelope in envelopes {
        let step = format!("alice sends {:?}", envelope.message_type());
        answered(&step, alice.submit(&envelope).await)?;
        let delivered = bob.take(envelope.message_type()).await?;
        same(&step, "envelope", &envelope, &delivered.envelope)?;
    }
    Ok(())
}

async fn heartbeat_is_not_stored(world: World) -> Verdict {
    let alice = world.agent("alice").await?;
    let heartbeat = v1::Heartbeat { status: "busy".to_owned(), active_tasks: 3, capacity: 4, ..Default::default() };
    let mut agent = v1::Agent::default();
    // The session sends heartbeats of its own, and one of them may come between the two calls.
    for _ in 0..3 {
        let receipt = alice.tell("", &About::default(), &heartbeat).await?;
        same("alice sends a heartbeat", "receipt.sequence", 0, receipt.sequence)?;
        let request = v1::GetAgentRequest { agent_id: alice.id().to_owned() };
        let found = alice.call(async { alice.client.answer(alice.client.agents().get_agent(request).await) }).await;
        agent = answered("alice is looked up", found)?.agent.unwrap_or_default();
        if agent.last_heartbeat.as_ref() == Some(&heartbeat) {
            break;
        }
    }
    let mut checks = Checks::of("alice is looked up");
    checks.same("last_heartbeat", Some(heartbeat), agent.last_heartbeat.clone());
    checks.same("presence", v1::Presence::Alive, agent.presence());
    checks.done()
}

fn status(status: TaskStatus) -> v1::TaskStatusUpdate {
    v1::TaskStatusUpdate { status: status.into(), ..Default::default() }
}

async fn status_only_of_the_owner(world: World) -> Verdict {
    let story = Story::at(&world, Stage::Completed).await?;
    let Story { alice, bob, task, .. } = &story;
    let say = async |who: &Actor, epoch| who.say("", &About::task(task, epoch), &status(TaskStatus::InProgress)).await;
    let mut checks = Checks::of("bob owns the task at epoch 2, and a status comes");
    let not_owner = Refusal(Code::PermissionDenied, "NOT_OWNER");
    checks.refused("from alice at epoch 2", say(alice, 2).await, not_owner);
    checks.refused("from alice at epoch 1", say(alice, 1).await, Refusal(Code::FailedPrecondition, "STALE_EPOCH"));
    checks.refused("from bob at epoch 3", say(bob, 3).await, Refusal(Code::FailedPrecondition, "EPOCH_AHEAD"));
    checks.done()?;
    let receipt = answered("bob says IN_PROGRESS at epoch 2", say(bob, 2).await)?;
    same("bob says IN_PROGRESS at epoch 2", "task_status", TaskStatus::InProgress, receipt.task_status())
}

async fn final_status_stays(world: World) -> Verdict {
    let finals = [TaskStatus::Completed, TaskStatus::Failed, TaskStatus::Canceled];
    let story = Story::at(&world, Stage::Requested).await?;
    answered("alice cancels the handoff", story.cancel().await)?;
    let (alice, bob) = (&story.alice, &story.bob);
    for (number, last) in finals.into_iter().enumerate() {
        let task = world.id(&format!("final-{number}"));
        let about = About::task(&task, 1);
        let receipt = alice.tell(bob.id(), &about, &a_request()).await?;
        let about_handoff = About::handoff(&task, 1, &receipt.handoff_id);
        alice.tell(bob.id(), &about_handoff, &v1::HandoffCancel::default()).await?;
        let receipt = alice.tell("", &about, &status(last)).await?;
        same("alice says a final status", "task_status", last, receipt.task_status())?;
        let mut checks = Checks::of(format!("the task is {last:?}, and alice says more"));
        let is_final = Refusal(Code::FailedPrecondition, "TASK_FINAL");
        for next in [TaskStatus::InProgress, TaskStatus::Completed, TaskStatus::Failed] {
            checks.refused(&format!("{next:?}"), alice.say("", &about, &status(next)).await, is_final);
        }
        checks.refused("HandoffRequest", alice.say(bob.id(), &about, &a_request()).await, is_final);
        checks.done()?;
        let shown = answered("alice reads the task", alice.task(&task).await)?;
        same("alice reads the task", "status", last, shown.status())?;
    }
    Ok(())
}

async fn status_goes_to_its_receiver(world: World) -> Verdict {
    let story = Story::at(&world, Stage::Deciding).await?;
    let carol = world.agent("carol").await?;
    let update =
        v1::TaskStatusUpdate { progress: Some(0.5), details: "half".to_owned(), ..status(TaskStatus::InProgress) };
    let envelope = story.alice.envelope(carol.id(), &About::task(&story.task, 1), &update);
    answered("alice tells carol how the task is doing", story.alice.submit(&envelope).await)?;
    let delivered = carol.take(MessageType::TaskStatusUpdate).await?;
    same("carol takes it", "envelope", &envelope, &delivered.envelope)?;
    let task = answered("alice reads the task", story.alice.task(&story.task).await)?;
    let mut checks = Checks::of("alice reads the task");
    checks.same("status", TaskStatus::InProgress, task.status());
    checks.same("progress", Some(0.5), task.progress);
    checks.same("details", "half", &task.details);
    checks.done()
}

async fn watchers_see_it(world: World) -> Verdict {
    let story = Story::at(&world, Stage::Completed).await?;
    let Story { alice, bob, task, .. } = &story;
    let before = answered("alice reads the task", alice.task(task).await)?;
    let request = v1::WatchTaskRequest { task_id: task.clone(), after_number: before.custody_length };
    let watch = alice.call(async { alice.client.answer(alice.client.tasks().watch_task(request).await) }).await;
    let mut watch = answered("alice watches the task", watch)?;
    for next in [TaskStatus::WaitingForInput, TaskStatus::Completed] {
        bob.tell("", &About::task(task, 2), &status(next)).await?;
        let step = format!("bob says {next:?}, and alice watches");
        loop {
            let update = answered(&step, alice.call(async { Ok(watch.message().await) }).await)?;
            let Ok(Some(update)) = update else { return fail(&step, "watch", "an entry", format!("{update:?}")) };
            let Some(v1::watch_task_response::Update::Entry(entry)) = update.update else { continue };
            let status = entry.entry.unwrap_or_default();
            if matches!(status.event, Some(v1::custody_entry::Event::Accepted(_))) {
                same(&step, "task_status", next, status.task_status())?;
                break;
            }
        }
    }
    let ended = alice.call(async { Ok(watch.message().await) }).await;
    let ended = answered("the watch after the final status", ended)?;
    same("the watch after the final status", "end", true, matches!(ended, Ok(None)))
}

async fn progress_is_checked(world: World) -> Verdict {
    let story = Story::at(&world, Stage::Requested).await?;
    let mut checks = Checks::of("alice says how far she is");
    for progress in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
        let update = v1::TaskStatusUpdate { progress: Some(progress), ..status(TaskStatus::InProgress) };
        let answer = story.alice.say("", &About::task(&story.task, 1), &update).await;
        checks.refused(&progress.to_string(), answer, Refusal(Code::InvalidArgument, "FIELD_INVALID"));
    }
    checks.done()
}

async fn stale_epoch(world: World) -> Verdict {
    let story = Story::at(&world, Stage::Completed).await?;
    let Story { alice, bob, task, .. } = &story;
    let about = About::task(task, 1);
    let stale = Refusal(Code::FailedPrecondition, "STALE_EPOCH");
    let mut checks = Checks::of("bob owns the task at epoch 2, and alice believes in epoch 1");
    let envelope = alice.envelope("", &about, &status(TaskStatus::Completed));
    checks.refused("TaskStatusUpdate", alice.submit(&envelope).await, stale);
    checks.refused("HandoffRequest", alice.say(bob.id(), &about, &a_request()).await, stale);
    checks.refused("Info", alice.say(bob.id(), &about, &v1::Info::default()).await, stale);
    checks.done()?;
    alice.owns("alice reads the task", task, bob.id(), 2).await?;
    let refusals = super::times::refusals_of(alice, task).await?;
    let is_there = refusals.contains(&(envelope.message_id.clone(), v1::ErrorCode::StaleEpoch));
    let mut checks = Checks::of("alice reads the custody log");
    checks.holds("refused entries", is_there, "the status update, with STALE_EPOCH", refusals);
    checks.done()
}
