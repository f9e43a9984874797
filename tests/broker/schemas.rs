//! Schemas: registration, and the check of a context against the schemas that it names.

use baton_broker_core::{
    Reply, Settings,
    access::Caller,
    codes::ErrorCode,
    domain::handoff::State,
    engine::Command,
    envelope::signing,
    ids::{AgentId, TaskId},
    proto::v1::{self, context_section::Content, get_context_section_response::Content as Answer},
    queries::SectionQuery,
};

use crate::world::{Refusal, World, assert_refused, operator};

const SCHEMA: &str = r#"{"type": "object", "required": ["crash"], "properties": {"crash": {"type": "string"}}}"#;

fn schema(id: &str, version: &str, text: &str) -> Box<v1::Schema> {
    Box::new(v1::Schema {
        schema_id: id.into(),
        schema_version: version.into(),
        schema_json: text.into(),
        ..Default::default()
    })
}

fn register(world: &mut World, id: &str, version: &str, text: &str) -> Result<v1::Schema, Refusal> {
    let schema = schema(id, version, text);
    let (caller, etag) = (operator(), String::new());
    let stored = world.ask(|reply| Command::RegisterSchema { schema, caller, etag, reply });
    stored.map(|(schema, _)| schema)
}

/// A context of one section in JSON.
fn context(json: &str, schema: (&str, &str), whole: (&str, &str)) -> v1::TaskContextTransfer {
    let section = v1::ContextSection {
        name: "collected_data".into(),
        schema_id: schema.0.into(),
        schema_version: schema.1.into(),
        content: Some(Content::Json(json.into())),
        ..Default::default()
    };
    let digest = signing::context_digest([("collected_data", signing::sha256(&[json.as_bytes()]))]);
    v1::TaskContextTransfer {
        sections: vec![section],
        context_digest: digest.to_vec().into(),
        schema_id: whole.0.into(),
        schema_version: whole.1.into(),
    }
}

/// A world in which `b` has accepted a task of `a`. Returns the handoff.
fn accepted(world: &mut World) -> String {
    let id = world.send(world.request("a", "b", 1)).unwrap().handoff_id;
    world.send(world.accept("b", "a", &id, 1)).unwrap();
    id
}

fn transfer(world: &World, from: &str, id: &str, payload: &v1::TaskContextTransfer) -> v1::Envelope {
    v1::Envelope { payload: Some(baton_broker_core::envelope::payload_of(payload)), ..world.context(from, "b", id, 1) }
}

#[test]
fn a_schema_is_registered_once_and_never_changes() {
    let mut world = World::with(&["a"]);
    let first = register(&mut world, "log", "1", SCHEMA).unwrap();
    assert_eq!((first.size_bytes, first.sha256.len(), first.schema_json.as_str()), (SCHEMA.len() as u64, 32, ""));
    assert_eq!(register(&mut world, "log", "1", SCHEMA).unwrap(), first, "the same text again");
    assert_refused(register(&mut world, "log", "1", "{}"), ErrorCode::SchemaExists);
    register(&mut world, "log", "2", "{}").unwrap();
    world.restart();
    assert_refused(register(&mut world, "log", "1", "{}"), ErrorCode::SchemaExists);
    let caller = crate::world::operator();
    assert_eq!(world.view(&caller).schema("log", "1").unwrap().schema_json, SCHEMA);
    let page = world.view(&caller).schemas("", 1, "").unwrap();
    assert_eq!(page.entries[0].schema_version, "2", "the latest first");
    let rest = world.view(&caller).schemas("", 1, &page.next_token).unwrap();
    assert_eq!(rest.entries[0].schema_version, "1");
    assert_eq!(world.view(&caller).schemas("other", 10, "").unwrap().entries, []);
    assert_eq!(
        world.view(&caller).schema("log", "3").unwrap_err().to_string(),
        r#"schema "log" has no registered version "3""#
    );
}

#[test]
fn the_registry_has_at_most_4096_schemas() {
    let mut world = World::with(&["a"]);
    for number in 0..4096 {
        let schema = schema("log", &number.to_string(), "{}");
        let (caller, etag, reply) = (operator(), String::new(), Reply::once().0);
        world.engine.handle(Command::RegisterSchema { schema, caller, etag, reply }, world.now);
    }
    world.settle();
    assert_refused(register(&mut world, "log", "one-more", "{}"), ErrorCode::LimitExceeded);
    register(&mut world, "log", "7", "{}").expect("a repeat");
}

#[test]
fn a_context_that_does_not_fit_is_refused_with_each_pointer() {
    let mut world = World::with(&["a", "b"]);
    register(&mut world, "crash", "1", SCHEMA).unwrap();
    let whole = r#"{"properties": {"collected_data": {"properties": {"lines": {"items": {"type": "integer"}}}}}}"#;
    register(&mut world, "ticket", "1", whole).unwrap();
    let id = accepted(&mut world);
    let lines: Vec<String> = (0..70).map(|line| format!("\"{line}\"")).collect();
    let wrong = context(&format!(r#"{{"lines": [{}]}}"#, lines.join(",")), ("crash", "1"), ("ticket", "1"));
    let refusal = assert_refused(world.send(transfer(&world, "a", &id, &wrong)), ErrorCode::ContextSchemaViolation);
    let paths: Vec<&str> = refusal.violations().iter().map(|found| found.path.as_str()).collect();
    assert_eq!(paths.len(), 64, "the list is bounded");
    assert_eq!(paths[0], "envelope.payload.sections[0].json/crash", "the member that is missing");
    assert_eq!(paths[1], "envelope.payload.sections/collected_data/lines/0");
    assert_eq!(world.handoff(&id).state, State::Accepted, "the handoff waits as before");

    let right = context(r#"{"crash": "segfault"}"#, ("crash", "1"), ("ticket", "1"));
    world.send(transfer(&world, "a", &id, &right)).unwrap();
    assert_eq!(world.handoff(&id).state, State::ContextSent);
    world.audit("t");
}

#[test]
fn the_schema_of_histories_is_there_without_a_registration() {
    let mut world = World::with(&["a", "b"]);
    let id = accepted(&mut world);
    let history = |json: &str| context(json, ("baton.history", "1"), ("", ""));
    let call = r#"{"role":"assistant","content":"","tool_calls":[{"id":"c","name":"find","arguments":{}}]}"#;
    for (json, pointer) in [
        (r#"[{"role":"agent","content":"a"}]"#, "/0/role"),
        (r#"[{"role":"user","content":"a"},{"role":"tool","content":"a"}]"#, "/1"),
        (&*format!("[{call}]"), "/0/tool_calls/0/arguments"),
    ] {
        let sent = world.send(transfer(&world, "a", &id, &history(json)));
        let refusal = assert_refused(sent, ErrorCode::ContextSchemaViolation);
        let path = &refusal.violations()[0].path;
        assert!(path.strip_prefix("envelope.payload.sections[0].json").unwrap().starts_with(pointer), "{path}");
    }
    let fits = r#"[{"role":"user","content":[{"type":"image","url":"https://example.com/a.png"}]}]"#;
    world.send(transfer(&world, "a", &id, &history(fits))).unwrap();
    let (caller, task) = (Caller::Agent(AgentId::parse("a").unwrap()), TaskId::parse("t").unwrap());
    let view = world.view(&caller);
    assert!(view.context(&task, 1).unwrap().version.sections[0].is_checked);
    assert!(view.schema("baton.history", "1").unwrap().schema_json.contains("tool_call_id"));
    assert!(view.schema("baton.history", "2").is_err());
}

#[test]
fn the_result_of_a_delta_is_checked_with_its_schema_and_stored() {
    let mut world = World::with(&["a", "b"]);
    register(&mut world, "crash", "1", SCHEMA).unwrap();
    let id = accepted(&mut world);
    let base = r#"{"crash":"segfault","lines":1}"#;
    let mut checkpoint =
        world.envelope("a", "", v1::MessageType::ContextCheckpoint, &context(base, ("", ""), ("", "")));
    (checkpoint.task_id, checkpoint.epoch) = ("t".into(), 1);
    world.send(checkpoint).unwrap();

    // The patch alone fits the schema in neither case.
    let changed = |patch: &str, result: &str| {
        let mut changed = context(result, ("crash", "1"), ("", ""));
        let [base_sha256, result_sha256] =
            [base, result].map(|text| signing::sha256(&[text.as_bytes()]).to_vec().into());
        let delta = v1::ContextDelta { base_sha256, merge_patch: patch.into(), result_sha256 };
        changed.sections[0].content = Some(Content::Delta(delta));
        changed
    };
    let wrong = changed(r#"{"crash":null}"#, r#"{"lines":1}"#);
    let refusal = assert_refused(world.send(transfer(&world, "a", &id, &wrong)), ErrorCode::ContextSchemaViolation);
    assert_eq!(refusal.violations()[0].path, "envelope.payload.sections[0].json/crash");

    let result = r#"{"crash":"segfault","lines":2}"#;
    world.send(transfer(&world, "a", &id, &changed(r#"{"lines":2}"#, result))).unwrap();
    let (caller, task) = (Caller::Agent(AgentId::parse("a").unwrap()), TaskId::parse("t").unwrap());
    let view = world.view(&caller);
    assert!(view.context(&task, 2).unwrap().version.sections[0].is_checked);
    let query = SectionQuery { task, name: "collected_data".into(), version: 2, have: None, filter: None };
    assert_eq!(view.context_section(&query).unwrap().content, Some(Answer::Json(result.into())));
}

#[test]
fn an_unregistered_schema_leaves_the_context_unchecked_unless_registration_is_required() {
    for required in [false, true] {
        let settings = Settings { require_registered_schemas: required, ..Settings::default() };
        let mut world = World::with_settings(&["a", "b"], settings);
        let id = accepted(&mut world);
        let payload = context(r#"{"other": 1}"#, ("crash", "1"), ("", ""));
        let answer = world.send(transfer(&world, "a", &id, &payload));
        if required {
            let refusal = assert_refused(answer, ErrorCode::SchemaUnknown);
            assert_eq!(refusal.violations()[0].path, "envelope.payload.sections[0].schema_id");
            let none = context(r#"{"other": 1}"#, ("", ""), ("", ""));
            world.send(transfer(&world, "a", &id, &none)).unwrap();
        } else {
            answer.unwrap();
        }
    }
}

#[test]
fn a_repeat_of_an_accepted_context_gets_its_receipt_although_its_schema_came_later() {
    let mut world = World::with(&["a", "b"]);
    let id = accepted(&mut world);
    let mut envelope = transfer(&world, "a", &id, &context(r#"{"other": 1}"#, ("crash", "1"), ("", "")));
    world.sign(&mut envelope);
    let receipt = world.send_signed(&envelope).unwrap();
    register(&mut world, "crash", "1", SCHEMA).unwrap();
    assert_eq!(world.send_signed(&envelope).unwrap(), receipt);
}

#[test]
fn data_that_is_nested_too_deep_fits_no_schema() {
    let mut world = World::with(&["a", "b"]);
    register(&mut world, "any", "1", "true").unwrap();
    let id = accepted(&mut world);
    let deep = [vec!['['; 100_000], vec![']'; 100_000]].concat().into_iter().collect::<String>();
    let payload = context(&deep, ("any", "1"), ("", ""));
    assert_refused(world.send(transfer(&world, "a", &id, &payload)), ErrorCode::FieldInvalid);
}

#[test]
fn a_stranger_learns_nothing_about_schemas() {
    let mut world = World::with(&["a", "b", "c"]);
    register(&mut world, "crash", "1", SCHEMA).unwrap();
    let id = accepted(&mut world);
    let wrong = transfer(&world, "c", &id, &context(r#"{"other": 1}"#, ("crash", "1"), ("", "")));
    let right = transfer(&world, "c", &id, &context(r#"{"crash": "x"}"#, ("crash", "1"), ("", "")));
    let codes = [wrong, right].map(|envelope| world.send(envelope).unwrap_err().0);
    assert_eq!(codes[0], codes[1]);
}

/// A schema with a pattern that needs thousands of steps for each byte of a text that nearly fits.
const SLOW: &str = r#"{"properties": {"notes": {"pattern": "a[ab]{3000}[^ab]"}}}"#;

#[test]
fn a_context_whose_check_would_take_too_much_work_is_refused() {
    let mut world = World::with(&["a", "b"]);
    register(&mut world, "slow", "1", SLOW).unwrap();
    let id = accepted(&mut world);
    let notes = |bytes: usize| format!(r#"{{"notes": "{}"}}"#, "ab".repeat(bytes / 2));
    let mut refusal = |json: &str| {
        let context = context(json, ("slow", "1"), ("", ""));
        let refusal =
            assert_refused(world.send(transfer(&world, "a", &id, &context)), ErrorCode::ContextSchemaViolation);
        refusal.violations()[0].problem.clone()
    };
    assert!(refusal(&notes(1000)).contains("does not match"));
    assert!(refusal(&notes(900_000)).contains("too long texts"));
    let long = format!(r#"{{"notes": "a{}c", "more": "{}"}}"#, "b".repeat(3000), "ab".repeat(400_000));
    let right = context(&long, ("slow", "1"), ("", ""));
    world.send(transfer(&world, "a", &id, &right)).expect("a text without a pattern may be long");
}

#[test]
fn all_sections_of_a_context_share_the_work_of_one_message() {
    let mut world = World::with(&["a", "b"]);
    register(&mut world, "slow", "1", SLOW).unwrap();
    let id = accepted(&mut world);
    let json = format!(r#"{{"notes": "{}"}}"#, "ab".repeat(1500));
    let of_sections = |count: usize| {
        let sections: Vec<v1::ContextSection> = (0..count)
            .map(|number| v1::ContextSection {
                name: format!("part{number:02}"),
                ..context(&json, ("slow", "1"), ("", "")).sections.remove(0)
            })
            .collect();
        let digests = sections.iter().map(|section| (&*section.name, signing::sha256(&[json.as_bytes()])));
        let context_digest = signing::context_digest(digests).to_vec().into();
        v1::TaskContextTransfer { sections, context_digest, ..Default::default() }
    };
    let mut problems = |count: usize| {
        let sent = world.send(transfer(&world, "a", &id, &of_sections(count)));
        let refusal = assert_refused(sent, ErrorCode::ContextSchemaViolation);
        refusal.violations().iter().map(|found| found.problem.contains("too long texts")).collect::<Vec<_>>()
    };
    assert_eq!(problems(2), [false; 2]);
    let of_many = problems(20);
    assert!(!of_many[0] && of_many[19], "{of_many:?}");
}

#[test]
fn a_message_that_was_prepared_before_its_task_came_to_its_sender_is_to_be_sent_again() {
    let mut world = World::with(&["a", "b"]);
    register(&mut world, "crash", "1", SCHEMA).unwrap();
    let checkpoint = |world: &World, epoch| {
        let payload = context(r#"{"crash": "segfault"}"#, ("crash", "1"), ("", ""));
        let envelope = world.envelope("a", "", v1::MessageType::ContextCheckpoint, &payload);
        v1::Envelope { task_id: "t".into(), epoch, ..envelope }
    };
    let early = world.prepared(checkpoint(&world, 1)).unwrap();
    world.send(world.request("a", "b", 1)).unwrap();
    let sent = world.ask(|reply| Command::Submit { message: early, is_from_sender: true, reply });
    assert_refused(sent, ErrorCode::Conflict);
    world.send(checkpoint(&world, 1)).unwrap();
}
