//! SPEC 11: the form of a refusal.

use prost::Message as _;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

use super::{
    check::{Checks, Refusal, Verdict, answered, fail},
    story::{Stage, Story, a_request},
    world::{Actor, World},
};
use baton_client::{About, codes::ErrorCode, proto::v1};

cases! {
    "error.has-error-info" "11"
        "A refusal has google.rpc.ErrorInfo with domain baton and a stable code as its reason."
        has_error_info;
    "error.on-a-session-has-the-same" "11"
        "A refusal on a session is a google.rpc.Status with the same details as that of a call, and the session goes on."
        same_on_a_session;
    "error.bad-request-names-each-field" "11"
        "A request with several wrong fields is told of all of them, by path." names_each_field;
    "error.precondition-says-the-state" "11"
        "FAILED_PRECONDITION says in ErrorInfo what the state is." says_the_state;
    "error.epochs-are-told" "11"
        "STALE_EPOCH and EPOCH_AHEAD say the epoch that was claimed and the present one." epochs_are_told;
    "error.unknown-is-not-found" "11"
        "A missing object is NOT_FOUND with its reason, or PERMISSION_DENIED to a caller that may read only its own." not_found;
    "error.page-token-is-checked" "11"
        "A page token of another list is refused with PAGE_TOKEN_INVALID." page_token;
    "error.page-size-is-bounded" "11"
        "A page_size over 1000 is not answered with more than that." page_size;
}

/// Calls Send, and returns the unconverted status.
async fn send(by: &Actor, envelope: &v1::Envelope) -> Result<(), Status> {
    let request = v1::SendRequest { envelope: envelope.encode_to_vec().into(), ..Default::default() };
    by.client.messages().send(request).await.map(drop)
}

/// Three refusals of different kinds, as unconverted statuses.
async fn refusals(world: &World, alice: &Actor) -> Verdict<Vec<(&'static str, Status)>> {
    let mut forged = alice.info(alice.id(), "");
    forged.signature = vec![0; 64].into();
    let mut malformed = alice.info(alice.id(), "");
    malformed.message_id.clear();
    let envelopes = [
        ("a forged envelope", forged),
        ("an envelope without an id", malformed),
        ("an envelope to an unregistered agent", alice.info(&world.id("unknown"), "")),
    ];
    let mut seen = Vec::new();
    for (name, envelope) in envelopes {
        match send(alice, &envelope).await {
            Ok(()) => return fail(name, "answer", "a refusal", "taken"),
            Err(status) => seen.push((name, status)),
        }
    }
    Ok(seen)
}

fn check_details(checks: &mut Checks, name: &str, details: &ErrorDetails, code: Code) {
    let Some(info) = details.error_info() else { return checks.differs(name, "ErrorInfo", "none") };
    checks.same(&format!("{name}: ErrorInfo.domain"), "baton", info.domain.as_str());
    let known = ErrorCode::ALL.iter().any(|code| code.name() == info.reason);
    checks.holds(&format!("{name}: ErrorInfo.reason"), known, "a stable code", &info.reason);
    let has_fields = details.bad_request().is_some_and(|bad| !bad.field_violations.is_empty());
    let needs_fields = info.reason == "FIELD_INVALID";
    checks.holds(&format!("{name}: BadRequest"), has_fields || !needs_fields, "with field paths", code);
}

async fn has_error_info(world: World) -> Verdict {
    let alice = world.agent("alice").await?;
    let mut checks = Checks::of("alice sends what is refused");
    for (name, status) in refusals(&world, &alice).await? {
        check_details(&mut checks, name, &status.get_error_details(), status.code());
        checks.holds(&format!("{name}: message"), !status.message().is_empty(), "words", status.message());
    }
    checks.done()
}

async fn same_on_a_session(world: World) -> Verdict {
    let alice = world.agent("alice").await?;
    let by_call = refusals(&world, &alice).await?;
    let envelope = alice.info(&world.id("unknown"), "");
    let mut checks = Checks::of("alice sends to an unregistered agent, by a call and on a session");
    let Err(super::check::NoAnswer::Refused(on_session)) = alice.submit(&envelope).await else {
        return fail("alice sends to an unknown agent on her session", "answer", "a refusal", "something else");
    };
    // The refusal of an unregistered receiver, as on the session.
    let (_, status) = &by_call[2];
    let details = status.get_error_details();
    checks.same("code", status.code(), on_session.code);
    let reason = details.error_info().map(|info| info.reason.clone()).unwrap_or_default();
    checks.same("reason", &reason, &on_session.reason);
    checks.done()?;
    alice.tell("", &About::default(), &v1::Heartbeat::default()).await.map(drop)
}

async fn names_each_field(world: World) -> Verdict {
    let alice = world.agent("alice").await?;
    let mut envelope = alice.envelope(alice.id(), &About::task("a b", 1), &a_request());
    envelope.message_id = "x".to_owned();
    envelope.correlation_id = "y".to_owned();
    alice.sign(&mut envelope);
    let step = "alice sends an envelope with three fields that cannot be";
    let Err(status) = send(&alice, &envelope).await else { return fail(step, "answer", "a refusal", "taken") };
    let violations =
        status.get_error_details().bad_request().map(|bad| bad.field_violations.clone()).unwrap_or_default();
    let paths: Vec<&str> = violations.iter().map(|violation| violation.field.as_str()).collect();
    let mut checks = Checks::of(step);
    for path in ["envelope.message_id", "envelope.correlation_id", "envelope.task_id"] {
        checks.holds("BadRequest", paths.contains(&path), path, &paths);
    }
    let described = violations.iter().all(|violation| !violation.description.is_empty());
    checks.holds("BadRequest descriptions", described, "each in words", &violations);
    checks.done()
}

/// Expects a refusal for this reason, and returns the metadata of its ErrorInfo.
async fn metadata(
    step: &str,
    answer: super::check::Answer<v1::Receipt>,
    reason: &'static str,
) -> Verdict<std::collections::BTreeMap<String, String>> {
    let refusal = Refusal(Code::FailedPrecondition, reason);
    super::check::refused(step, answer, refusal).map(|refused| refused.metadata)
}

async fn says_the_state(world: World) -> Verdict {
    let story = Story::at(&world, Stage::Accepted).await?;
    let step = "bob accepts twice";
    let seen = metadata(step, story.accept().await, "HANDOFF_STATE").await?;
    super::check::same(step, "metadata.state", Some("ACCEPTED"), seen.get("state").map(String::as_str))
}

async fn epochs_are_told(world: World) -> Verdict {
    let story = Story::at(&world, Stage::Completed).await?;
    let update = v1::TaskStatusUpdate { status: v1::TaskStatus::InProgress.into(), ..Default::default() };
    let mut checks = Checks::of("messages of epochs 1 and 3 about a task at epoch 2");
    for (who, epoch, reason) in [(&story.alice, 1, "STALE_EPOCH"), (&story.bob, 3, "EPOCH_AHEAD")] {
        let answer = who.say("", &About::task(&story.task, epoch), &update).await;
        let seen = metadata(reason, answer, reason).await?;
        let expected = Some(epoch.to_string());
        checks.same(&format!("{reason}: metadata.claimed_epoch"), expected.as_ref(), seen.get("claimed_epoch"));
        checks.same(&format!("{reason}: metadata.current_epoch"), Some(&"2".to_owned()), seen.get("current_epoch"));
    }
    checks.done()
}

async fn not_found(world: World) -> Verdict {
    let alice = world.agent("alice").await?;
    let client = &alice.client;
    let mut checks = Checks::of("alice asks for what is not there");
    let unknown = |reason| Refusal(Code::NotFound, reason);
    let agent = v1::GetAgentRequest { agent_id: world.id("unknown") };
    let agent = alice.call(async { client.answer(client.agents().get_agent(agent).await) }).await;
    checks.refused("GetAgent", agent, unknown("AGENT_UNKNOWN"));
    checks.refused_as_absent("GetTask", alice.task(&world.id("none")).await, unknown("TASK_UNKNOWN"));
    let handoff_id = alice.info(alice.id(), "").message_id;
    checks.refused_as_absent("GetHandoff", alice.handoff(&handoff_id).await, unknown("HANDOFF_UNKNOWN"));
    let watch = v1::WatchHandoffRequest { handoff_id };
    let watch = alice.call(async { client.answer(client.handoffs().watch_handoff(watch).await).map(drop) }).await;
    checks.refused_as_absent("WatchHandoff", watch, unknown("HANDOFF_UNKNOWN"));
    let dead = v1::GetDeadLetterRequest { dead_letter_id: u64::MAX.to_string() };
    let dead = alice.call(async { client.answer(client.dead_letters().get_dead_letter(dead).await) }).await;
    checks.refused_as_absent("GetDeadLetter", dead, unknown("DEAD_LETTER_UNKNOWN"));
    checks.done()
}

async fn page_token(world: World) -> Verdict {
    let alice = world.agent("alice").await?;
    let client = &alice.client;
    let invalid = Refusal(Code::InvalidArgument, "PAGE_TOKEN_INVALID");
    let page_token = "made-up".to_owned();
    let mut checks = Checks::of("alice asks for a page by a made-up token");
    let handoffs = v1::ListHandoffsRequest { page_token: page_token.clone(), ..Default::default() };
    let handoffs = alice.call(async { client.answer(client.handoffs().list_handoffs(handoffs).await) }).await;
    checks.refused("ListHandoffs", handoffs, invalid);
    let tasks = v1::ListTasksRequest { page_token: page_token.clone(), ..Default::default() };
    let tasks = alice.call(async { client.answer(client.tasks().list_tasks(tasks).await) }).await;
    checks.refused("ListTasks", tasks, invalid);
    let dead = v1::ListDeadLettersRequest { page_token, ..Default::default() };
    let dead = alice.call(async { client.answer(client.dead_letters().list_dead_letters(dead).await) }).await;
    checks.refused("ListDeadLetters", dead, invalid);
    checks.done()
}

async fn page_size(world: World) -> Verdict {
    let alice = world.agent("alice").await?;
    let client = &alice.client;
    let request = v1::ListAgentsRequest { page_size: 5000, ..Default::default() };
    let answer = alice.call(async { client.answer(client.agents().list_agents(request).await) }).await;
    // A broker may refuse the size, or answer with a smaller page (SPEC 11).
    match answer {
        Err(super::check::NoAnswer::Refused(refused)) => {
            super::check::same("a page of 5000 agents", "reason", "FIELD_INVALID", &refused.reason)
        }
        answer => {
            let many = answered("a page of 5000 agents", answer)?.agents.len();
            let mut checks = Checks::of("a page of 5000 agents");
            checks.holds("agents", many <= 1000, "at most 1000", many);
            checks.done()
        }
    }
}
