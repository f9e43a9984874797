//! SPEC 2: questions and answers, results, parts, and the fields of an accept and a reject that have an effect.

use std::time::Duration;

use serde_json::{Value, json};
use tonic::Code;

use super::{
    check::{Checks, Refusal, Verdict, answered, refused, same},
    story::{Stage, Story, a_request, with_timeouts},
    world::{Actor, World},
};
use baton_client::{
    About,
    proto::v1::{self, HandoffState, MessageType, TaskStatus},
    time::{Clock as _, SystemClock},
};

cases! {
    "question.reaches-its-agent-and-the-answer-its-owner" "2"
        "A prompt is delivered to the agent that is to answer, shown by the task, and its answer goes to the owner."
        question_and_answer;
    "question.first-answer-counts" "2"
        "A second answer to a question is refused with INPUT_TAKEN." first_answer_counts;
    "question.only-the-agent-that-was-asked" "2"
        "An answer of an agent that was not asked is refused with NOT_ASKED." only_the_asked;
    "question.is-withdrawn-by-a-later-status" "2"
        "A later status of the owner withdraws the question: an answer is refused with INPUT_EXPIRED." withdrawn;
    "question.expires" "2"
        "After its deadline a question is closed: the owner is told INPUT_EXPIRED, and an answer is refused with it."
        expires;
    "question.last-answer-is-shown" "2"
        "GetTask shows the latest question that was answered with its answer, also after a later question."
        last_answer_is_shown;
    "question.answer-fits-its-schema" "2"
        "An answer that does not fit the prompt's JSON Schema is refused with the place; one that fits is taken."
        fits_its_schema;
    "question.needs-an-agent-to-ask" "2"
        "A prompt to an unknown agent or type is refused with RECEIVER_UNKNOWN, one with another status with FIELD_INVALID."
        needs_an_agent;
    "result.of-a-final-status-is-kept" "2"
        "GetTask shows the result of the final status, and of a delegate that returned the task." result_is_kept;
    "result.is-bounded" "2"
        "A result of more than 256 KiB as JSON is refused with FIELD_INVALID." result_is_bounded;
    "result.exact-numbers" "2"
        "GetTask and the message show a result as it was sent: 64-bit integers, 42, 42.0 and spaces." exact_result;
    "answer.exact-numbers" "2"
        "The message and the task show the data of an answer as it was sent." exact_answer;
    "result.duplicate-name" "2"
        "A result with a name twice, NaN or half a surrogate pair is refused with FIELD_INVALID and the JSON pointer."
        two_readings;
    "result.deep" "2"
        "A result of 128 levels is taken, and one of 129 is refused with FIELD_INVALID." deep_result;
    "part.is-listed-with-its-parent" "2"
        "A task with a parent_task_id is listed with its parent." part_is_listed;
    "part.parent-is-the-senders" "2"
        "A parent that another agent owns is refused with NOT_OWNER, the task itself with FIELD_INVALID." parent_of_another;
    "handoff.shows-the-words-of-its-request" "2"
        "GetHandoff shows summary, reason text, desired type and the estimate of the accept." words_of_the_request;
    "handoff.rejecter-is-asked-again" "2"
        "A candidate that rejects with retry_after is asked again, after all others and not before that time."
        asked_again;
}

/// A task of alice, who can ask bob about it.
async fn alone(world: &World) -> Verdict<(Actor, Actor, String)> {
    let story = Story::at(world, Stage::Deciding).await?;
    answered("alice cancels", story.cancel().await)?;
    story.bob.take(MessageType::HandoffCancel).await?;
    let Story { alice, bob, task, .. } = story;
    Ok((alice, bob, task))
}

fn asking(prompt: v1::TaskPrompt) -> v1::TaskStatusUpdate {
    let status = TaskStatus::WaitingForInput.into();
    v1::TaskStatusUpdate { status, prompt: Some(prompt), ..Default::default() }
}

fn question(answer_by: &str) -> v1::TaskPrompt {
    v1::TaskPrompt { question: "which colour?".to_owned(), answer_by: answer_by.to_owned(), ..Default::default() }
}

fn answer(text: &str) -> v1::TaskInput {
    v1::TaskInput { text: text.to_owned(), ..Default::default() }
}

/// Alice asks with this prompt, and bob takes the question. Returns what an answer is about.
async fn ask(alice: &Actor, bob: &Actor, task: &str, prompt: v1::TaskPrompt) -> Verdict<About> {
    let asked = alice.tell("", &About::task(task, 1), &asking(prompt)).await?;
    let delivered = bob.take(MessageType::TaskStatusUpdate).await?;
    same("bob takes the question", "message_id", &asked.message_id, &delivered.envelope.message_id)?;
    Ok(About::handoff(task, 1, &asked.message_id))
}

async fn question_and_answer(world: World) -> Verdict {
    let (alice, bob, task) = alone(&world).await?;
    let about = ask(&alice, &bob, &task, question(bob.id())).await?;
    let open = answered("alice reads the task", alice.task(&task).await)?.open_prompt.unwrap_or_default();
    let mut checks = Checks::of("alice reads the task");
    checks.same("open_prompt.message_id", &about.correlation_id, &open.message_id);
    checks.same("open_prompt.asked_agent_id", bob.id(), &open.asked_agent_id);
    checks.same("open_prompt.prompt", Some(question(bob.id())), open.prompt);
    checks.done()?;
    bob.tell("", &about, &answer("blue")).await?;
    let delivered = alice.take(MessageType::TaskInput).await?;
    same("alice takes the answer", "payload", answer("blue"), delivered.payload())?;
    let task = answered("alice reads the task", alice.task(&task).await)?;
    same("alice reads the task", "open_prompt", None, task.open_prompt)
}

async fn first_answer_counts(world: World) -> Verdict {
    let (alice, bob, task) = alone(&world).await?;
    let about = ask(&alice, &bob, &task, question(bob.id())).await?;
    bob.tell("", &about, &answer("blue")).await?;
    let second = bob.say("", &about, &answer("green")).await;
    refused("bob answers again", second, Refusal(Code::AlreadyExists, "INPUT_TAKEN"))?;
    let delivered = alice.take(MessageType::TaskInput).await?;
    same("alice takes the answer", "payload", answer("blue"), delivered.payload())
}

async fn only_the_asked(world: World) -> Verdict {
    let (alice, bob, task) = alone(&world).await?;
    let stranger = world.agent("stranger").await?;
    let about = ask(&alice, &bob, &task, question(bob.id())).await?;
    let mut checks = Checks::of("other agents answer");
    for (name, by) in [("the owner", &alice), ("a stranger", &stranger)] {
        let answered = by.say("", &about, &answer("blue")).await;
        checks.refused(name, answered, Refusal(Code::PermissionDenied, "NOT_ASKED"));
    }
    checks.done()
}

const EXPIRED: Refusal = Refusal(Code::FailedPrecondition, "INPUT_EXPIRED");

async fn withdrawn(world: World) -> Verdict {
    let (alice, bob, task) = alone(&world).await?;
    let about = ask(&alice, &bob, &task, question(bob.id())).await?;
    let status = v1::TaskStatusUpdate { status: TaskStatus::InProgress.into(), ..Default::default() };
    alice.tell("", &About::task(&task, 1), &status).await?;
    refused("bob answers", bob.say("", &about, &answer("blue")).await, EXPIRED).map(drop)
}

async fn expires(world: World) -> Verdict {
    let (alice, bob, task) = alone(&world).await?;
    let answer_before = Some(SystemClock.now().plus(Duration::from_secs(2)).into());
    let about = ask(&alice, &bob, &task, v1::TaskPrompt { answer_before, ..question(bob.id()) }).await?;
    let told = alice.take_within(MessageType::ErrorNotification, Duration::from_secs(2)).await?;
    let mut checks = Checks::of("alice takes the notice");
    let notice: v1::ErrorNotification = told.payload();
    checks.same("error_code", v1::ErrorCode::InputExpired, notice.error_code());
    checks.same("correlation_id", &about.correlation_id, &told.envelope.correlation_id);
    checks.done()?;
    refused("bob answers", bob.say("", &about, &answer("blue")).await, EXPIRED).map(drop)
}

async fn fits_its_schema(world: World) -> Verdict {
    let (alice, bob, task) = alone(&world).await?;
    let answer_schema_json = r#"{"required": ["count"], "properties": {"count": {"type": "integer"}}}"#.to_owned();
    let about = ask(&alice, &bob, &task, v1::TaskPrompt { answer_schema_json, ..question(bob.id()) }).await?;
    let with = |count: Value| v1::TaskInput { data_json: json!({"count": count}).to_string(), ..Default::default() };
    let wrong = bob.say("", &about, &with(json!("three"))).await;
    let refusal = refused("bob answers with a text", wrong, Refusal(Code::InvalidArgument, "FIELD_INVALID"))?;
    let fields: Vec<_> = refusal.violations.iter().map(|(path, _)| path.as_str()).collect();
    same("bob answers with a text", "fields", vec!["envelope.payload.data_json/count"], fields)?;
    bob.tell("", &about, &with(json!(3))).await?;
    alice.take(MessageType::TaskInput).await.map(drop)
}

async fn needs_an_agent(world: World) -> Verdict {
    let (alice, bob, task) = alone(&world).await?;
    let (about, unknown) = (About::task(&task, 1), world.id("unknown"));
    let mut checks = Checks::of("alice asks");
    for answer_by in [unknown.clone(), format!("type:{unknown}")] {
        let asked = alice.say("", &about, &asking(question(&answer_by))).await;
        checks.refused("of an agent that is not there", asked, Refusal(Code::NotFound, "RECEIVER_UNKNOWN"));
    }
    let in_progress = v1::TaskStatusUpdate { status: TaskStatus::InProgress.into(), ..asking(question(bob.id())) };
    let asked = alice.say("", &about, &in_progress).await;
    checks.refused("with IN_PROGRESS", asked, Refusal(Code::InvalidArgument, "FIELD_INVALID"));
    checks.done()
}

fn completed(result_json: &str) -> v1::TaskStatusUpdate {
    let result_json = result_json.to_owned();
    v1::TaskStatusUpdate { status: TaskStatus::Completed.into(), result_json, ..Default::default() }
}

async fn result_is_kept(world: World) -> Verdict {
    let request = v1::HandoffRequest { mode: v1::HandoffMode::Delegate.into(), ..a_request() };
    let story = Story::with(&world, request, Stage::Completed).await?;
    let Story { alice, bob, task, .. } = &story;
    let (of_bob, of_alice) = (r#"{"by":"bob"}"#, r#"{"by": true}"#);
    bob.tell("", &About::task(task, 2), &completed(of_bob)).await?;
    let shown = answered("alice reads the task", alice.task(task).await)?;
    same("alice reads the task", "result_json", of_bob, &shown.result_json)?;
    alice.tell("", &About::task(task, 3), &completed(of_alice)).await?;
    let shown = answered("alice reads the final task", alice.task(task).await)?;
    same("alice reads the final task", "result_json", of_alice, &shown.result_json)
}

async fn result_is_bounded(world: World) -> Verdict {
    let (alice, _, task) = alone(&world).await?;
    let result = json!({"text": "x".repeat(256 * 1024)}).to_string();
    let sent = alice.say("", &About::task(&task, 1), &completed(&result)).await;
    refused("alice sends a result of over 256 KiB", sent, Refusal(Code::InvalidArgument, "FIELD_INVALID")).map(drop)
}

/// A JSON text that a reader of doubles, or a writer of JSON, would change.
const EXACT: &str = r#" {"id": 1234567890123456789, "n": 42, "f": 42.0, "e": 4.20e1, "none": null, "a": [ ]} "#;

async fn exact_result(world: World) -> Verdict {
    let (alice, bob, task) = alone(&world).await?;
    alice.tell(bob.id(), &About::task(&task, 1), &completed(EXACT)).await?;
    let delivered: v1::TaskStatusUpdate = bob.take(MessageType::TaskStatusUpdate).await?.payload();
    same("bob takes the status", "result_json", EXACT, &delivered.result_json)?;
    let shown = answered("alice reads the task", alice.task(&task).await)?;
    same("alice reads the task", "result_json", EXACT, &shown.result_json)
}

async fn exact_answer(world: World) -> Verdict {
    let (alice, bob, task) = alone(&world).await?;
    let answer_schema_json =
        r#"{"properties": {"id": {"const": 1234567890123456789}, "n": {"type": "integer"}}}"#.to_owned();
    let prompt = v1::TaskPrompt { answer_schema_json, ..question(bob.id()) };
    let about = ask(&alice, &bob, &task, prompt).await?;
    let with = |text: &str| v1::TaskInput { data_json: text.to_owned(), ..Default::default() };
    let near = bob.say("", &about, &with(r#"{"id": 1234567890123456788}"#)).await;
    let refusal = refused("bob answers with another id", near, Refusal(Code::InvalidArgument, "FIELD_INVALID"))?;
    let fields: Vec<_> = refusal.violations.iter().map(|(path, _)| path.as_str()).collect();
    same("bob answers with another id", "fields", vec!["envelope.payload.data_json/id"], fields)?;
    bob.tell("", &about, &with(EXACT)).await?;
    let delivered: v1::TaskInput = alice.take(MessageType::TaskInput).await?.payload();
    same("alice takes the answer", "data_json", EXACT, &delivered.data_json)?;
    let shown = answered("alice reads the task", alice.task(&task).await)?;
    let answer = shown.last_answer.and_then(|last| last.answer).unwrap_or_default();
    same("alice reads the task", "last_answer.answer.data_json", EXACT, &answer.data_json)
}

async fn two_readings(world: World) -> Verdict {
    let (alice, _, task) = alone(&world).await?;
    for (what, text, pointer) in [
        ("a name twice", r#"{"a": {"b": 1, "b": 2}}"#, "/a/b"),
        ("NaN", r#"{"a": [1, NaN]}"#, "/a/1"),
        ("half a surrogate pair", r#"{"a": "\ud800"}"#, "/a"),
        ("a list", "[1]", ""),
    ] {
        let step = format!("alice sends {what}");
        let sent = alice.say("", &About::task(&task, 1), &completed(text)).await;
        let refusal = refused(&step, sent, Refusal(Code::InvalidArgument, "FIELD_INVALID"))?;
        let fields: Vec<_> = refusal.violations.iter().map(|(path, _)| path.clone()).collect();
        same(&step, "fields", vec![format!("envelope.payload.result_json{pointer}")], fields)?;
    }
    Ok(())
}

async fn deep_result(world: World) -> Verdict {
    let (alice, _, task) = alone(&world).await?;
    let deep = |levels: usize| format!(r#"{{"deep":{}{}}}"#, "[".repeat(levels - 1), "]".repeat(levels - 1));
    let sent = alice.say("", &About::task(&task, 1), &completed(&deep(129))).await;
    refused("alice sends 129 levels", sent, Refusal(Code::InvalidArgument, "FIELD_INVALID"))?;
    alice.tell("", &About::task(&task, 1), &completed(&deep(128))).await?;
    let shown = answered("alice reads the task", alice.task(&task).await)?;
    same("alice reads the task", "result_json", &deep(128), &shown.result_json)
}

async fn part_is_listed(world: World) -> Verdict {
    let (alice, bob, task) = alone(&world).await?;
    let part = world.id("part");
    let request = v1::HandoffRequest { parent_task_id: task.clone(), ..a_request() };
    alice.tell(bob.id(), &About::task(&part, 1), &request).await?;
    let shown = answered("alice reads the task", alice.task(&task).await)?;
    same("alice reads the task", "part_task_ids", vec![part.clone()], shown.part_task_ids)?;
    let shown = answered("alice reads the part", alice.task(&part).await)?;
    same("alice reads the part", "parent_task_id", &task, &shown.parent_task_id)?;
    let filter = v1::ListTasksRequest { parent_task_id: task, ..Default::default() };
    let client = &alice.client;
    let listed = alice.call(async { client.answer(client.tasks().list_tasks(filter).await) }).await;
    let listed = answered("alice lists the parts", listed)?.tasks;
    let ids: Vec<_> = listed.iter().map(|task| task.task_id.clone()).collect();
    same("alice lists the parts", "tasks", vec![part], ids)
}

async fn parent_of_another(world: World) -> Verdict {
    let (alice, bob, task) = alone(&world).await?;
    let part = world.id("part");
    let of = |parent: &str| v1::HandoffRequest { parent_task_id: parent.to_owned(), ..a_request() };
    let mut checks = Checks::of("a part is requested");
    let by_bob = bob.say(alice.id(), &About::task(&part, 1), &of(&task)).await;
    checks.refused("of a task of another agent", by_bob, Refusal(Code::PermissionDenied, "NOT_OWNER"));
    let own = alice.say(bob.id(), &About::task(&part, 1), &of(&part)).await;
    checks.refused("of itself", own, Refusal(Code::InvalidArgument, "FIELD_INVALID"));
    checks.done()
}

async fn words_of_the_request(world: World) -> Verdict {
    let request = v1::HandoffRequest {
        reason_text: "too hard".to_owned(),
        initial_context_summary: "it crashes".to_owned(),
        ..a_request()
    };
    let story = Story::with(&world, request, Stage::Deciding).await?;
    let estimated_handoff_time = Some(prost_types::Duration { seconds: 7, nanos: 0 });
    let accept = v1::HandoffAccept { estimated_handoff_time, ..Default::default() };
    story.bob.tell(story.alice.id(), &story.about(), &accept).await?;
    let seen = story.look("alice reads the handoff").await?;
    let mut checks = Checks::of("alice reads the handoff");
    checks.same("reason_text", "too hard", &seen.reason_text);
    checks.same("initial_context_summary", "it crashes", &seen.initial_context_summary);
    checks.same("estimated_handoff_time", estimated_handoff_time, seen.estimated_handoff_time);
    checks.done()
}

async fn asked_again(world: World) -> Verdict {
    let story = Story::with(&world, with_timeouts(1_000, 20_000, 20_000, 30_000), Stage::Deciding).await?;
    let retry_after = Some(prost_types::Duration { seconds: 2, nanos: 0 });
    let reject = v1::HandoffReject { retry_after, ..Default::default() };
    story.bob.tell(story.alice.id(), &story.about(), &reject).await?;
    same("alice reads the handoff", "state", HandoffState::Requested, story.state("alice reads the handoff").await?)?;
    let early = story.accept().await;
    refused("bob accepts early", early, Refusal(Code::FailedPrecondition, "HANDOFF_STATE"))?;
    story.bob.take_within(MessageType::HandoffRequest, Duration::from_secs(2)).await?;
    answered("bob accepts", story.accept().await).map(drop)
}

async fn last_answer_is_shown(world: World) -> Verdict {
    let (alice, bob, task) = alone(&world).await?;
    let about = ask(&alice, &bob, &task, question(bob.id())).await?;
    let receipt = bob.tell("", &about, &answer("blue")).await?;
    ask(&alice, &bob, &task, question(bob.id())).await?;
    let shown = answered("alice reads the task", alice.task(&task).await)?;
    let last = shown.last_answer.unwrap_or_default();
    let put = last.question.unwrap_or_default();
    let mut checks = Checks::of("alice reads the task");
    checks.same("last_answer.question.message_id", &about.correlation_id, &put.message_id);
    checks.same("last_answer.question.asked_agent_id", bob.id(), &put.asked_agent_id);
    checks.same("last_answer.question.prompt", Some(question(bob.id())), put.prompt);
    checks.same("last_answer.answer_id", &receipt.message_id, &last.answer_id);
    checks.same("last_answer.answer", Some(answer("blue")), last.answer);
    checks.holds("last_answer.answer_time", last.answer_time.is_some(), "set", last.answer_time);
    checks.done()
}
