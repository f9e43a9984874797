//! SPEC 7: versions of a context, deltas, parts of sections, checkpoints and rights.

use tonic::Code;

use super::{
    check::{Answer, Checks, Refusal, Verdict, answered, same},
    story::{Stage, Story},
    world::{Actor, World},
};
use baton_client::{
    About, context_of_sections,
    envelope::{sections, signing},
    proto::v1::{
        self, HistoryFilter, MessageType, context_section::Content, get_context_section_response::Content as Shown,
    },
};

cases! {
    "context.checkpoint-makes-a-version" "7"
        "A CONTEXT_CHECKPOINT of the owner makes a version without a handoff, and the same one again makes no other."
        checkpoint_makes_a_version;
    "context.only-the-owner-checkpoints" "7"
        "A checkpoint of another agent, of an older epoch, or with a receiver is refused." only_the_owner;
    "context.delta-is-applied" "7"
        "A delta on a stored section makes a version with its result in canonical JSON." delta_is_applied;
    "context.delta-is-checked" "7"
        "A delta on an unknown base is CONTEXT_BASE_UNKNOWN with known_sha256; another result is CONTEXT_DELTA_INVALID with expected_sha256."
        delta_is_checked;
    "context.section-on-demand" "7"
        "A section comes whole, as not_modified, as a delta, or filtered and marked as derived." section_on_demand;
    "context.rights-hold-per-version" "7"
        "A former owner reads the versions that it has written, and no later one; an agent without a part reads none."
        rights_per_version;
}

const JSON: &str = r#"{"n":1,"text":"a text that is longer than the patch that changes the number beside it"}"#;
const NEWER: &str = r#"{"n":2,"text":"a text that is longer than the patch that changes the number beside it"}"#;
const PATCH: &str = r#"{"n":2}"#;

fn json(name: &str, text: &str) -> v1::ContextSection {
    let content = Some(Content::Json(text.to_owned()));
    v1::ContextSection { name: name.to_owned(), content, ..Default::default() }
}

fn delta(base: &str, patch: &str, result: &str) -> v1::ContextSection {
    let delta = v1::ContextDelta {
        base_sha256: signing::sha256(&[base.as_bytes()]).to_vec().into(),
        merge_patch: patch.to_owned(),
        result_sha256: signing::sha256(&[result.as_bytes()]).to_vec().into(),
    };
    v1::ContextSection { name: "notes".to_owned(), content: Some(Content::Delta(delta)), ..Default::default() }
}

/// A signed checkpoint.
fn composed(by: &Actor, to: &str, about: &About, sections: Vec<v1::ContextSection>) -> v1::Envelope {
    let context = context_of_sections(sections);
    let mut envelope = by.envelope(to, about, &context);
    envelope.message_type = MessageType::ContextCheckpoint.into();
    by.sign(&mut envelope);
    envelope
}

async fn checkpoint(by: &Actor, task: &str, epoch: u64, sections: Vec<v1::ContextSection>) -> Answer<v1::Receipt> {
    by.submit(&composed(by, "", &About::task(task, epoch), sections)).await
}

async fn version(by: &Actor, task: &str, version: u64) -> Answer<v1::GetContextResponse> {
    let request = v1::GetContextRequest { task_id: task.to_owned(), version };
    by.call(async { by.client.answer(by.client.contexts().get_context(request).await) }).await
}

fn section(task: &str) -> v1::GetContextSectionRequest {
    v1::GetContextSectionRequest { task_id: task.to_owned(), name: "notes".to_owned(), ..Default::default() }
}

async fn get(by: &Actor, request: v1::GetContextSectionRequest) -> Answer<v1::GetContextSectionResponse> {
    by.call(async { by.client.answer(by.client.contexts().get_context_section(request).await) }).await
}

fn text(answer: &v1::GetContextSectionResponse) -> String {
    match &answer.content {
        Some(Shown::Json(text)) => text.clone(),
        other => format!("{other:?}"),
    }
}

async fn checkpoint_makes_a_version(world: World) -> Verdict {
    let Story { alice, task, .. } = Story::at(&world, Stage::Deciding).await?;
    let envelope = composed(&alice, "", &About::task(&task, 1), vec![json("notes", JSON)]);
    let first = answered("alice stores a checkpoint", alice.submit(&envelope).await)?;
    let again = answered("alice sends it again", alice.submit(&envelope).await)?;
    same("alice sends it again", "receipt", first, again)?;
    let shown = answered("alice gets the latest version", version(&alice, &task, 0).await)?;
    let shown = shown.version.unwrap_or_default();
    let mut checks = Checks::of("alice gets the latest version");
    checks.same("version", 1, shown.version);
    checks.same("author_id", alice.id(), shown.author_id.as_str());
    checks.same("handoff_id", "", shown.handoff_id.as_str());
    let digest = context_of_sections(vec![json("notes", JSON)]).context_digest;
    checks.same("context_digest", hex::encode(digest), hex::encode(&shown.context_digest));
    checks.done()
}

async fn only_the_owner(world: World) -> Verdict {
    let Story { alice, bob, task, .. } = Story::at(&world, Stage::Completed).await?;
    let mut checks = Checks::of("checkpoints that are refused");
    let stale = Refusal(Code::FailedPrecondition, "STALE_EPOCH");
    checks.refused("the former owner", checkpoint(&alice, &task, 1, vec![json("notes", JSON)]).await, stale);
    let not_owner = Refusal(Code::PermissionDenied, "NOT_OWNER");
    checks.refused("at the present epoch", checkpoint(&alice, &task, 2, vec![json("notes", JSON)]).await, not_owner);
    let with_receiver = composed(&bob, alice.id(), &About::task(&task, 2), vec![json("notes", JSON)]);
    let invalid = Refusal(Code::InvalidArgument, "FIELD_INVALID");
    checks.refused("with a receiver", bob.submit(&with_receiver).await, invalid);
    checks.done()
}

async fn delta_is_applied(world: World) -> Verdict {
    let Story { alice, task, .. } = Story::at(&world, Stage::Deciding).await?;
    answered("alice stores a checkpoint", checkpoint(&alice, &task, 1, vec![json("notes", JSON)]).await)?;
    let sent = checkpoint(&alice, &task, 1, vec![delta(JSON, PATCH, NEWER)]).await;
    answered("alice sends a delta", sent)?;
    let found = answered("alice gets the section", get(&alice, section(&task)).await)?;
    let mut checks = Checks::of("alice gets the section");
    checks.same("json", NEWER, &text(&found));
    checks.same("version", 2, found.version);
    let shown = found.section.unwrap_or_default();
    checks.same("origin", v1::SectionOrigin::Delta, shown.origin());
    checks.same("sha256", hex::encode(signing::sha256(&[NEWER.as_bytes()])), hex::encode(&shown.sha256));
    checks.done()
}

async fn delta_is_checked(world: World) -> Verdict {
    let Story { alice, task, .. } = Story::at(&world, Stage::Deciding).await?;
    answered("alice stores a checkpoint", checkpoint(&alice, &task, 1, vec![json("notes", JSON)]).await)?;
    let mut checks = Checks::of("deltas that do not fit");
    let unknown = Refusal(Code::FailedPrecondition, "CONTEXT_BASE_UNKNOWN");
    let invalid = Refusal(Code::InvalidArgument, "CONTEXT_DELTA_INVALID");
    let field = Refusal(Code::InvalidArgument, "FIELD_INVALID");
    let sent = checkpoint(&alice, &task, 1, vec![delta("{}", PATCH, PATCH)]).await;
    checks.refused("an unknown base", sent, unknown);
    let sent = checkpoint(&alice, &task, 1, vec![delta(JSON, PATCH, JSON)]).await;
    checks.refused("another result", sent, invalid);
    let sent = checkpoint(&alice, &task, 1, vec![delta(JSON, r#"{"n":1,"n":2}"#, NEWER)]).await;
    checks.refused("a name twice", sent, field);
    checks.done()
}

async fn section_on_demand(world: World) -> Verdict {
    let Story { alice, task, .. } = Story::at(&world, Stage::Deciding).await?;
    let history = r#"[{"content":"hi","role":"user"},{"content":"42","role":"tool","tool_call_id":"c"}]"#;
    let other = r#"[{"role":"model","parts":[{"functionCall":{"name":"find"}}]}]"#;
    let first = vec![json("notes", JSON), json("history_log", history), json("other", other)];
    answered("alice stores a checkpoint", checkpoint(&alice, &task, 1, first).await)?;
    let second = vec![json("notes", NEWER), json("history_log", history), json("other", other)];
    answered("alice stores another", checkpoint(&alice, &task, 1, second).await)?;
    let have = |text: &str| v1::GetContextSectionRequest {
        have_sha256: signing::sha256(&[text.as_bytes()]).to_vec().into(),
        ..section(&task)
    };
    let same_one = answered("alice has the latest", get(&alice, have(NEWER)).await)?;
    same("alice has the latest", "content", Some(Shown::NotModified(true)), same_one.content)?;
    let changed = answered("alice has the one before", get(&alice, have(JSON)).await)?;
    let result = match changed.content {
        Some(Shown::Delta(delta)) => sections::apply(JSON, &delta.merge_patch).unwrap_or_default(),
        // A broker may send a small section whole.
        Some(Shown::Json(text)) => text,
        other => format!("{other:?}"),
    };
    same("alice has the one before", "the result", NEWER.to_owned(), result)?;
    let filter = v1::ContextFilter { history: HistoryFilter::WithoutToolCalls.into(), ..Default::default() };
    let name = "history_log".to_owned();
    let request = v1::GetContextSectionRequest { name, filter: Some(filter.clone()), ..section(&task) };
    let part = answered("alice gets a part", get(&alice, request).await)?;
    let mut checks = Checks::of("alice gets a part");
    checks.same("json", r#"[{"content":"hi","role":"user"}]"#, &text(&part));
    checks.same("derived", true, part.derived);
    let digest = hex::encode(part.section.unwrap_or_default().sha256);
    checks.same("sha256 of the whole", hex::encode(signing::sha256(&[history.as_bytes()])), digest);
    let request = v1::GetContextSectionRequest { name: "other".into(), filter: Some(filter), ..section(&task) };
    let refusal = Refusal(Code::FailedPrecondition, "FILTER_NOT_APPLICABLE");
    checks.refused("a list that is no history", get(&alice, request).await, refusal);
    checks.done()
}

async fn rights_per_version(world: World) -> Verdict {
    let Story { alice, bob, task, .. } = Story::at(&world, Stage::Completed).await?;
    answered("bob stores a checkpoint", checkpoint(&bob, &task, 2, vec![json("notes", JSON)]).await)?;
    let denied = Refusal(Code::PermissionDenied, "PERMISSION_DENIED");
    answered("alice gets the version that she has sent", version(&alice, &task, 1).await)?;
    let carol = world.agent("carol").await?;
    let mut checks = Checks::of("versions of others");
    checks.refused("alice gets that of bob", version(&alice, &task, 2).await, denied);
    checks.refused("alice gets a section of it", get(&alice, section(&task)).await, denied);
    checks.refused("carol gets the first", version(&carol, &task, 1).await, denied);
    checks.done()?;
    answered("bob gets the first", version(&bob, &task, 1).await)?;
    Ok(())
}
