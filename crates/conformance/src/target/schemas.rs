//! SPEC 7: the schemas of contexts.

use tonic::Code;

use super::{
    check::{Answer, Checks, Refusal, Verdict, answered, refused},
    story::{Stage, Story},
    world::{Actor, World},
};
use baton_client::{
    context_of,
    proto::v1::{self, MessageType},
};

cases! {
    "schema.registered-never-changes" "7"
        "A schema is registered once under its id and version: the same text again changes nothing, another text is refused with SCHEMA_EXISTS."
        never_changes;
    "schema.outside-the-bounds-is-rejected" "7"
        "A text that is no schema of draft 2020-12, refers to another document or to itself, has a pattern that explodes, or is too large is refused with SCHEMA_REJECTED."
        rejected;
    "schema.context-is-checked" "7"
        "A context that does not fit the registered schema of a section is refused with CONTEXT_SCHEMA_VIOLATION and the JSON pointer of each error; the handoff waits as before, and a context that fits is accepted."
        context_is_checked;
    "schema.data-is-checked-on-request" "7"
        "CheckSchema names each error of the data by its JSON pointer; an unregistered version is refused with SCHEMA_UNKNOWN."
        checked_on_request;
}

const TEXT: &str = r#"{"type": "object", "properties": {"lines": {"type": "array", "items": {"type": "integer"}}}}"#;

async fn register(who: &Actor, id: &str, version: &str, text: &str) -> Answer<v1::Schema> {
    who.call(who.client.register_schema(id, version, text)).await
}

async fn never_changes(world: World) -> Verdict {
    let alice = world.agent("alice").await?;
    let id = world.id("schema");
    let first = answered("a schema is registered", register(&alice, &id, "1", TEXT).await)?;
    let again = answered("the same again", register(&alice, &id, "1", TEXT).await)?;
    let mut checks = Checks::of("a schema is registered again");
    checks.same("schema", &first, &again);
    let exists = Refusal(Code::AlreadyExists, "SCHEMA_EXISTS");
    checks.refused("another text", register(&alice, &id, "1", "{}").await, exists);
    let read = answered("it is read", alice.call(alice.client.schema(&id, "1")).await)?;
    checks.same("schema_json", TEXT, read.schema_json.as_str());
    checks.done()
}

async fn rejected(world: World) -> Verdict {
    let alice = world.agent("alice").await?;
    let id = world.id("schema");
    let deep = format!("{}true{}", "{\"not\":".repeat(70), "}".repeat(70));
    let large = format!("{{\"description\": \"{}\"}}", "x".repeat(256 * 1024));
    let texts = [
        ("no JSON", "{"),
        ("a list", "[]"),
        ("an unknown type", r#"{"type": "nothing"}"#),
        ("another draft", r#"{"$schema": "http://json-schema.org/draft-07/schema#"}"#),
        ("a remote reference", r#"{"$ref": "https://example.com/schema.json"}"#),
        ("a reference to itself", r##"{"not": {"$ref": "#"}}"##),
        ("a back-reference", r#"{"pattern": "(a+)+\\1"}"#),
        ("a pattern that explodes", r#"{"pattern": "(((a{100}){100}){100}){100}"}"#),
        ("70 levels", &deep),
        ("too many bytes", &large),
    ];
    let mut checks = Checks::of("a schema is registered");
    for (what, text) in texts {
        let answer = register(&alice, &id, "1", text).await;
        checks.refused(what, answer, Refusal(Code::InvalidArgument, "SCHEMA_REJECTED"));
    }
    let read = alice.call(alice.client.schema(&id, "1")).await;
    checks.refused("it is read", read, Refusal(Code::NotFound, "SCHEMA_UNKNOWN"));
    checks.done()
}

async fn context_is_checked(world: World) -> Verdict {
    let story = Story::at(&world, Stage::Accepted).await?;
    let id = world.id("schema");
    answered("a schema is registered", register(&story.alice, &id, "1", TEXT).await)?;
    let context = |json: &str| {
        let mut context = context_of([("collected_data", json.to_owned())]);
        context.sections[0].schema_id.clone_from(&id);
        context.sections[0].schema_version = "1".to_owned();
        context
    };
    let send = async |context: v1::TaskContextTransfer| {
        let to = story.bob.identity.agent.as_str();
        let about = story.about();
        story.alice.call(story.alice.agent.send(to, MessageType::TaskContextTransfer, &about, &context)).await
    };
    let violation = Refusal(Code::InvalidArgument, "CONTEXT_SCHEMA_VIOLATION");
    let step = "a context that does not fit";
    let refusal = refused(step, send(context(r#"{"lines": [1, "two", 3, "four"]}"#)).await, violation)?;
    let mut checks = Checks::of(step);
    let paths: Vec<&str> = refusal.violations.iter().map(|(path, _)| path.as_str()).collect();
    let expected = ["envelope.payload.sections[0].json/lines/1", "envelope.payload.sections[0].json/lines/3"];
    checks.same("paths", &expected[..], &paths);
    checks.done()?;
    answered("a context that fits", send(context(r#"{"lines": [1, 2]}"#)).await).map(drop)
}

async fn checked_on_request(world: World) -> Verdict {
    let alice = world.agent("alice").await?;
    let id = world.id("schema");
    answered("a schema is registered", register(&alice, &id, "1", TEXT).await)?;
    let check = async |version: &str, data: &str| alice.call(alice.client.check_schema(&id, version, data)).await;
    let found = answered("data is checked", check("1", r#"{"lines": ["one"]}"#).await)?;
    let mut checks = Checks::of("data is checked");
    let pointers: Vec<&str> = found.iter().map(|violation| violation.json_pointer.as_str()).collect();
    checks.same("pointers", &["/lines/0"][..], &pointers);
    checks.same("violations", &Vec::new(), &answered("data that fits", check("1", r#"{"lines": []}"#).await)?);
    checks.refused("an unknown version", check("2", "{}").await, Refusal(Code::NotFound, "SCHEMA_UNKNOWN"));
    checks.refused("no JSON", check("1", "{").await, Refusal(Code::InvalidArgument, "FIELD_INVALID"));
    checks.done()
}
