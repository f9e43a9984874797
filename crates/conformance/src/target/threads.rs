//! SPEC 10: specs and threads.

use serde_json::Value;
use tonic::Code;

use super::{
    check::{Answer, Checks, Refusal, Verdict, answered, refused, same},
    story::{a_request, give},
    world::{Actor, World},
};
use baton_client::{
    About, Client, Thread,
    ids::{IdSource as _, MessageId, SystemIds},
    proto::v1::{self, ThreadRequestOutcome},
    time::{Clock as _, SystemClock},
};

cases! {
    "threads.spec-in-force-changes-at-boundaries" "10"
        "A requested spec is in force from the next boundary on, with the plugins to turn off and on; the same boundary again gets the same answer."
        boundaries;
    "threads.unresolved-request-fails" "10"
        "A request for an unknown spec, or for one without its model, fails at the boundary with HANDOFF_RESOLVE_FAILED and with what is missing, and the active spec stays; its activation is refused."
        unresolved;
    "threads.actions-need-the-plugin" "10"
        "While the spec in force has no agent_handoff in plugin_ids, or none in its hook filter, an action is refused with HANDOFF_PLUGIN_MISSING, which names the list."
        plugin;
    "threads.one-runner" "10"
        "While a run is open, another one is refused with RUN_OPEN; a step of an ended run is refused with RUN_FINAL, and one out of order with SEQUENCE_CONFLICT."
        one_runner;
    "threads.invalid-specs-are-refused" "10"
        "A spec with a doubled plugin, a bad name, bad sections or without a model is refused with FIELD_INVALID, and an agent may not manage specs."
        invalid_specs;
    "threads.delegation-ends-in-its-thread" "10"
        "A delegation with thread_id ends with one message of the broker in the topic messages of its thread, a history entry with task_id, outcome and result; the same report again appends nothing; a transfer with it is FIELD_INVALID, a stranger to the thread PERMISSION_DENIED."
        delegation;
}

fn new_id() -> MessageId {
    SystemIds.message_id(SystemClock.now())
}

/// Registers a spec of a persona, and its model, as the operator.
async fn put(world: &World, name: &str, plugins: &[&str], hook_filter: &[&str]) -> Verdict<String> {
    let operator = world.operator()?;
    let texts = |names: &[&str]| names.iter().map(ToString::to_string).collect();
    let model_id = world.id("model");
    let model = v1::ModelSpec { model_id: model_id.clone(), model_name: "large".to_owned(), ..Default::default() };
    let request = v1::PutModelSpecRequest { spec: Some(model), ..Default::default() };
    answered(
        "a model is registered",
        world.call(async { operator.answer(operator.threads().put_model_spec(request).await) }).await,
    )?;
    let spec_id = world.id(name);
    let spec = v1::AgentSpec {
        spec_id: spec_id.clone(),
        model_id,
        system_prompt: format!("You are the {name}."),
        plugin_ids: texts(plugins),
        hook_filter: texts(hook_filter),
        ..Default::default()
    };
    answered("a spec is registered", put_spec(world, &operator, spec).await)?;
    Ok(spec_id)
}

async fn put_spec(world: &World, client: &Client, spec: v1::AgentSpec) -> Answer<v1::PutAgentSpecResponse> {
    let request = v1::PutAgentSpecRequest { spec: Some(spec), ..Default::default() };
    world.call(async { client.answer(client.threads().put_agent_spec(request).await) }).await
}

/// A thread of alice with the base `concierge`, which has the plugins `agent_handoff` and `notes`.
async fn a_thread(world: &World) -> Verdict<(Actor, Thread)> {
    let base_spec_id = put(world, "concierge", &["agent_handoff", "notes"], &[]).await?;
    let alice = world.agent("alice").await?;
    let create = v1::CreateThreadRequest { base_spec_id, thread_id: world.id("thread"), ..Default::default() };
    let made = answered("alice creates a thread", alice.call(alice.client.create_thread(create)).await)?;
    Ok((alice, made.0))
}

async fn boundaries(world: World) -> Verdict {
    let (alice, thread) = a_thread(&world).await?;
    let researcher = put(&world, "researcher", &["agent_handoff", "search"], &[]).await?;
    let mut run = answered("a run begins", alice.call(thread.run_as(new_id())).await)?;
    let asked = answered("the researcher is requested", alice.call(thread.request(&researcher, new_id())).await)?;
    let shown = asked.thread.unwrap_or_default();
    let mut checks = Checks::of("before the boundary");
    checks.same("requested_agent", researcher.as_str(), shown.requested_agent.as_str());
    checks.same("in_force_spec_id", run.step().spec.spec_id.as_str(), shown.in_force_spec_id.as_str());
    let first = run.clone();
    let step = answered("the step ends", alice.call(run.next_step()).await)?.clone();
    checks.same("spec", researcher.as_str(), step.spec.spec_id.as_str());
    checks.same("switched", true, step.switched);
    checks.same("deactivate_plugin_ids", vec!["notes".to_owned()], step.deactivate_plugin_ids.clone());
    checks.same("activate_plugin_ids", vec!["search".to_owned()], step.activate_plugin_ids.clone());
    let outcome = step.request.as_ref().map(v1::ThreadRequestEnded::outcome);
    checks.same("request", Some(ThreadRequestOutcome::Promoted), outcome);
    let mut again = first;
    let again = answered("the same step ends again", alice.call(again.next_step()).await)?.clone();
    checks.same("the second answer", step, again);
    checks.done()
}

async fn unresolved(world: World) -> Verdict {
    let (alice, thread) = a_thread(&world).await?;
    let unknown = world.id("unknown");
    let asked = answered("an unknown spec is requested", alice.call(thread.request(&unknown, new_id())).await)?;
    let mut checks = Checks::of("an unknown spec");
    checks.holds("warning", asked.warning.contains("no spec"), "the reason", &asked.warning);
    let run = answered("a run begins", alice.call(thread.run_as(new_id())).await)?;
    let request = run.step().request.clone().unwrap_or_default();
    checks.same("request", ThreadRequestOutcome::Failed, request.outcome());
    let message = format!("handoff resolve failed: {unknown} (no spec)");
    checks.same("error_message", message.as_str(), request.error_message.as_str());
    checks.same("error_code", v1::ErrorCode::HandoffResolveFailed, request.error_code());
    checks.same("unresolved", v1::ThreadUnresolved::NoSpec, request.unresolved());
    checks.same("switched", false, run.step().switched);
    let nameless = world.id("nameless");
    let spec = v1::AgentSpec { spec_id: nameless.clone(), model_id: world.id("gone"), ..Default::default() };
    let operator = world.operator()?;
    answered("a spec without its model is registered", put_spec(&world, &operator, spec).await)?;
    answered("it is requested", alice.call(thread.request(&nameless, new_id())).await)?;
    let mut run = run;
    let step = answered("the step ends", alice.call(run.next_step()).await)?;
    let request = step.request.clone().unwrap_or_default();
    checks.same("error_code", v1::ErrorCode::HandoffResolveFailed, request.error_code());
    checks.same("unresolved", v1::ThreadUnresolved::NoModel, request.unresolved());
    let refusal = Refusal(Code::FailedPrecondition, "HANDOFF_RESOLVE_FAILED");
    checks.refused("its activation", alice.call(thread.activate(&unknown, new_id())).await, refusal);
    checks.done()
}

async fn plugin(world: World) -> Verdict {
    let (alice, thread) = a_thread(&world).await?;
    let writer = put(&world, "writer", &["spelling"], &[]).await?;
    let mut run = answered("a run begins", alice.call(thread.run_as(new_id())).await)?;
    answered("the writer is requested", alice.call(thread.request(&writer, new_id())).await)?;
    answered("the step ends", alice.call(run.next_step()).await)?;
    let missing = Refusal(Code::FailedPrecondition, "HANDOFF_PLUGIN_MISSING");
    let step = "a persona without the plugin clears";
    let first = refused(step, alice.call(thread.clear(new_id())).await, missing)?;
    same(step, "metadata list", Some("plugin_ids"), first.metadata.get("list").map(String::as_str))?;
    put(&world, "writer", &["agent_handoff"], &["spelling"]).await?;
    answered("the step ends", alice.call(run.next_step()).await)?;
    let step = "a persona clears whose hook filter lacks the plugin";
    let second = refused(step, alice.call(thread.clear(new_id())).await, missing)?;
    same(step, "metadata list", Some("hook_filter"), second.metadata.get("list").map(String::as_str))
}

async fn one_runner(world: World) -> Verdict {
    let (alice, thread) = a_thread(&world).await?;
    let run = answered("a run begins", alice.call(thread.run_as(new_id())).await)?;
    let mut checks = Checks::of("while a run is open");
    let open = Refusal(Code::Aborted, "RUN_OPEN");
    checks.refused("another run", alice.call(thread.run_as(new_id())).await, open);
    let end = |run_id: &str, step: u64| {
        let (client, thread_id, run_id) = (alice.client.clone(), thread.id().to_owned(), run_id.to_owned());
        let request = v1::EndStepRequest { thread_id, run_id, step };
        async move { client.answer(client.threads().end_step(request).await) }
    };
    checks.refused("a step of another run", alice.call(end(&new_id().to_string(), 1)).await, open);
    let conflict = Refusal(Code::Aborted, "SEQUENCE_CONFLICT");
    checks.refused("a step out of order", alice.call(end(run.id(), 7)).await, conflict);
    answered("the run ends", alice.call(run.end()).await)?;
    answered("the run ends again", alice.call(run.end()).await)?;
    let ended = Refusal(Code::FailedPrecondition, "RUN_FINAL");
    checks.refused("a step of the ended run", alice.call(end(run.id(), 1)).await, ended);
    checks.done()
}

async fn invalid_specs(world: World) -> Verdict {
    let operator = world.operator()?;
    let good = v1::AgentSpec { spec_id: world.id("spec"), model_id: world.id("model"), ..Default::default() };
    let mut checks = Checks::of("a spec that is not valid");
    let invalid = Refusal(Code::InvalidArgument, "FIELD_INVALID");
    let doubled = v1::AgentSpec { plugin_ids: vec!["notes".to_owned(), "notes".to_owned()], ..good.clone() };
    checks.refused("a doubled plugin", put_spec(&world, &operator, doubled).await, invalid);
    let named = v1::AgentSpec { spec_id: "no name".to_owned(), ..good.clone() };
    checks.refused("a bad name", put_spec(&world, &operator, named).await, invalid);
    let without = v1::AgentSpec { model_id: String::new(), ..good.clone() };
    checks.refused("no model", put_spec(&world, &operator, without).await, invalid);
    for sections in [r#"{"rules": "short"}"#, r#"{"rules": {"a": 1, "a": 2}}"#, "[]"] {
        let wrong = v1::AgentSpec { sections_json: sections.to_owned(), ..good.clone() };
        checks.refused(&format!("the sections {sections}"), put_spec(&world, &operator, wrong).await, invalid);
    }
    let overlay = Some(v1::AgentOverlay { settings_json: r#"{"n": NaN}"#.to_owned() });
    let wrong = v1::AgentSpec { overlay, ..good.clone() };
    checks.refused("NaN in the overlay", put_spec(&world, &operator, wrong).await, invalid);
    let alice = world.agent("alice").await?;
    let denied = Refusal(Code::PermissionDenied, "PERMISSION_DENIED");
    checks.refused("by an agent", put_spec(&world, &alice.client, good).await, denied);
    checks.done()
}

async fn delegation(world: World) -> Verdict {
    let (alice, thread) = a_thread(&world).await?;
    let (bob, task) = (world.agent("bob").await?, world.id("task"));
    let thread_id = thread.id().to_owned();
    let lent = v1::HandoffRequest { mode: v1::HandoffMode::Delegate.into(), thread_id, ..a_request() };
    let transfer = v1::HandoffRequest { mode: v1::HandoffMode::Transfer.into(), ..lent.clone() };
    let mut checks = Checks::of("a request in a thread");
    let about = About::task(&task, 1);
    let invalid = Refusal(Code::InvalidArgument, "FIELD_INVALID");
    checks.refused("a transfer", alice.say(bob.id(), &about, &transfer).await, invalid);
    let denied = Refusal(Code::PermissionDenied, "PERMISSION_DENIED");
    checks.refused("by a stranger", bob.say(alice.id(), &About::task(&world.id("other"), 1), &lent).await, denied);
    checks.done()?;
    let handoff = give(&alice, &bob, &task, &lent).await?;
    let report = v1::TaskStatusUpdate {
        status: v1::TaskStatus::Completed.into(),
        details: "the line is up".to_owned(),
        result_json: r#"{"minutes": 42}"#.to_owned(),
        ..Default::default()
    };
    let report = bob.envelope("", &About::task(&task, 2), &report);
    let first = answered("bob ends the loan", bob.submit(&report).await)?;
    let second = answered("bob ends the loan again", bob.submit(&report).await)?;
    same("the second receipt", "receipt", first, second)?;
    let request = v1::ListEntriesRequest {
        workspace_id: format!("thread:{}", thread.id()),
        topics: vec!["messages".to_owned()],
        ..Default::default()
    };
    let client = &alice.client;
    let page = alice.call(async { client.answer(client.workspaces().list_entries(request).await) }).await;
    let entries = answered("alice reads the history", page)?.entries;
    let mut checks = Checks::of("the history of the thread");
    checks.same("its messages", 1, entries.len());
    let entry = entries.first().cloned().unwrap_or_default();
    let Some(v1::workspace_entry::Entry::Json(text)) = entry.entry else {
        checks.holds("the message", false, "JSON", &entry.entry);
        return checks.done();
    };
    let message: Value = serde_json::from_str(&text).unwrap_or_default();
    let data = &message["content"][1]["data"];
    checks.same("author_id", "baton.coordinator", entry.author_id.as_str());
    checks.same("role", Some("user"), message["role"].as_str());
    checks.same("agent_id", Some(bob.id()), message["agent_id"].as_str());
    checks.same("text", Some("the line is up"), message["content"][0]["text"].as_str());
    checks.same("task_id", Some(task.as_str()), data["task_id"].as_str());
    checks.same("handoff_id", Some(handoff.as_str()), data["handoff_id"].as_str());
    checks.same("outcome", Some("COMPLETED"), data["outcome"].as_str());
    checks.same("result", Some(42), data["result"]["minutes"].as_i64());
    checks.done()
}
