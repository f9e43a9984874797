//! Contexts end to end: a large context whose changes go as deltas, over kills and over the command line.

use baton::{
    envelope::{context_of_sections, sections, signing},
    proto::v1::{self, MessageType, context_section::Content, get_context_section_response::Content as Answer},
};
use baton_client::{About, ClientError, Link, session::Agent, want, want_last};
use prost::Message as _;
use serde_json::{Value, json};

use crate::broker::{Broker, a_request, composer, identity, new_task};

/// A section of about 900 KiB: a thousand members, of which `changed` have another text.
fn large(changed: usize) -> String {
    let text = |number: usize| {
        let word = if number < changed { "changed" } else { "as before" };
        format!("{number:04} {word} {}", "x".repeat(890))
    };
    let members = (0..1000).map(|number| (format!("m{number:04}"), Value::String(text(number))));
    sections::canonical(&Value::Object(members.collect()))
}

fn section(name: &str, text: String) -> v1::ContextSection {
    v1::ContextSection { name: name.into(), content: Some(Content::Json(text)), ..Default::default() }
}

/// A task that alice owns, not offered yet.
async fn a_task_of(alice: &Agent, bob: &Agent) -> String {
    let task = new_task();
    alice.request(bob.id().as_str(), &task, 1, &a_request()).await.unwrap();
    let request = bob.take().await.unwrap();
    let reject = v1::HandoffReject { reason: v1::RejectReason::Other.into(), ..Default::default() };
    bob.send("alice", MessageType::HandoffReject, &request.about(), &reject).await.unwrap();
    for _ in 0..2 {
        alice.take().await.unwrap();
    }
    task
}

fn checkpoint(task: &str, sections: Vec<v1::ContextSection>) -> bytes::Bytes {
    let context = context_of_sections(sections);
    composer("alice").encode("", MessageType::ContextCheckpoint, &About::task(task, 1), &context)
}

fn get(task: &str, have: Option<&str>) -> v1::GetContextSectionRequest {
    let have_sha256 = have.map(|text| signing::sha256(&[text.as_bytes()]).to_vec().into()).unwrap_or_default();
    v1::GetContextSectionRequest { task_id: task.into(), name: "notes".into(), have_sha256, ..Default::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_percent_of_900_kib_goes_as_a_delta_of_less_than_10_kib_over_kills() {
    let broker = Broker::start();
    let (alice, bob) = (broker.agent("alice").await, broker.agent("bob").await);
    let task = a_task_of(&alice, &bob).await;
    let (first, second, third) = (large(0), large(10), large(20));
    assert!((880 * 1024..1024 * 1024).contains(&first.len()), "{}", first.len());
    let whole = checkpoint(&task, vec![section("notes", first.clone())]);
    let client = broker.client_of("alice").await;
    let receipt = client.send(whole.clone()).await.unwrap();

    let delta_of = |base: &str, target: &str| {
        let (delta, result) = sections::delta(base, target).unwrap();
        assert_eq!(result, target);
        let content = Some(Content::Delta(delta));
        v1::ContextSection { name: "notes".into(), content, ..Default::default() }
    };
    let short = checkpoint(&task, vec![delta_of(&first, &second)]);
    assert!(short.len() < 10 * 1024, "the delta takes {} bytes", short.len());
    // The broker dies after the receipt, and the delta's base is in the store alone.
    let broker = Broker::start_in(broker.kill(), &[]);
    let client = broker.client_of("alice").await;
    assert_eq!(client.send(whole).await.unwrap(), receipt, "the first receipt again");
    let receipt = client.send(short.clone()).await.unwrap();
    let broker = Broker::start_in(broker.kill(), &[]);
    let client = broker.client_of("alice").await;
    assert_eq!(client.send(short).await.unwrap(), receipt, "a repeat makes no version");
    client.send(checkpoint(&task, vec![delta_of(&second, &third)])).await.unwrap();

    let answer = client.answer(client.contexts().get_context_section(get(&task, None)).await).unwrap();
    assert_eq!((answer.version, answer.content), (3, Some(Answer::Json(third.clone()))));
    let answer = client.answer(client.contexts().get_context_section(get(&task, Some(&second))).await).unwrap();
    assert!(answer.encoded_len() < 10 * 1024, "the answer takes {} bytes", answer.encoded_len());
    let Some(Answer::Delta(delta)) = answer.content else { panic!("expected a delta") };
    assert_eq!(sections::apply(&second, &delta.merge_patch).unwrap(), third);
    let answer = client.answer(client.contexts().get_context_section(get(&task, Some(&third))).await).unwrap();
    assert_eq!(answer.content, Some(Answer::NotModified(true)));
}

/// The checks of a context run beside the engine, over what the last commit has left. A delta that follows its base at once
/// waits for the commit of the base.
#[tokio::test(flavor = "multi_thread")]
async fn a_delta_may_follow_its_base_in_the_same_burst() {
    let broker = Broker::start();
    let (alice, bob) = (broker.agent("alice").await, broker.agent("bob").await);
    let task = a_task_of(&alice, &bob).await;
    for round in 0..20 {
        let of = |number: u32| format!(r#"{{"round":{round},"step":{number}}}"#);
        let change = |from: u32| {
            let (delta, _) = sections::delta(&of(from), &of(from + 1)).unwrap();
            let section =
                v1::ContextSection { name: "notes".into(), content: Some(Content::Delta(delta)), ..Default::default() };
            context_of_sections(vec![section])
        };
        let whole = context_of_sections(vec![section("notes", of(0))]);
        let about = About::task(&task, 1);
        let send = |context| {
            let alice = &alice;
            let about = &about;
            async move { alice.send("", MessageType::ContextCheckpoint, about, &context).await }
        };
        let (first, second, third) = tokio::join!(send(whole), send(change(0)), send(change(1)));
        let (first, second, third) = (first.unwrap(), second.unwrap(), third.unwrap());
        assert!(first.sequence < second.sequence && second.sequence < third.sequence);
    }
}

/// Passes received contexts on.
struct Contexts(tokio::sync::mpsc::UnboundedSender<baton_client::Delivered>, v1::HandoffAccept);

impl baton_client::Handler for Contexts {
    async fn handle(&self, link: Link, delivered: baton_client::Delivered) -> Result<(), baton_client::NotTaken> {
        match delivered.kind() {
            MessageType::HandoffRequest => link.accept(&delivered, &self.1).await?,
            MessageType::TaskContextTransfer => drop(self.0.send(delivered)),
            _ => {}
        }
        Ok(())
    }
}

fn serve(link: Link, handler: Contexts, stop: tokio_util::sync::CancellationToken) -> tokio::task::JoinHandle<()> {
    tokio::spawn(async move { link.serve(handler, stop).await.unwrap() })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_makes_deltas_by_itself_and_fetches_what_is_missing() {
    let broker = Broker::start();
    drop((broker.agent("alice").await, broker.agent("bob").await));
    let (alice, bob) = (broker.link("alice").await, broker.link("bob").await);
    let stop = tokio_util::sync::CancellationToken::new();
    let (contexts, mut received) = tokio::sync::mpsc::unbounded_channel();
    let accept = v1::HandoffAccept { wishes: vec![want("notes"), want_last("history_log", 1)], ..Default::default() };
    let (other, mut others) = tokio::sync::mpsc::unbounded_channel();
    let serving = [
        serve(bob.clone(), Contexts(contexts, accept), stop.clone()),
        serve(alice.clone(), Contexts(other, v1::HandoffAccept::default()), stop.clone()),
    ];
    let task = new_task();
    let history = json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]).to_string();
    let sections = vec![section("notes", large(0)), section("history_log", history), section("goals", "[]".into())];
    let (from, about) = (alice.clone(), About::task(&task, 1));
    let handed = tokio::spawn(async move { from.hand_over("bob", &about, &a_request(), sections).await });
    let delivered = received.recv().await.unwrap();
    let takeover = bob.takeover(&delivered);
    let names: Vec<_> = takeover.context().sections.iter().map(|section| section.name.as_str()).collect();
    assert_eq!(names, ["notes", "history_log"], "only what was asked for");
    let Some(Content::Json(part)) = takeover.section("history_log").await.unwrap() else { panic!("expected JSON") };
    assert_eq!(part, r#"[{"content":"yes","role":"assistant"}]"#);
    let owned = bob.complete(&delivered).await.unwrap();
    handed.await.unwrap().unwrap();

    // bob has received the base, so its checkpoint is a delta; a new process has none, and sends the whole.
    owned.checkpoint(vec![section("notes", large(10))]).await.unwrap();
    let origins = async |number| {
        let version = bob.context(&task, number).await.unwrap();
        version.sections.iter().map(v1::SectionInfo::origin).collect::<Vec<_>>()
    };
    assert_eq!(origins(2).await, [v1::SectionOrigin::Delta]);
    owned.checkpoint(vec![section("goals", "[1]".into())]).await.unwrap();
    let Some(Content::Json(goals)) = takeover.section("goals").await.unwrap() else { panic!("expected JSON") };
    assert_eq!(goals, "[1]", "what the message lacks comes from the latest version that has it");
    assert_eq!(takeover.section("nothing").await.unwrap(), None);

    let refusal = alice.context(&task, 3).await.unwrap_err();
    assert_eq!(refusal.reason(), Some("PERMISSION_DENIED"), "a former owner reads no later version");
    let (from, about) = (bob.clone(), About::task(&task, owned.epoch()));
    let sections = vec![section("notes", large(10))];
    let handed = tokio::spawn(async move { from.hand_over("alice", &about, &a_request(), sections).await });
    let delivered = others.recv().await.unwrap();
    let takeover = alice.takeover(&delivered);
    let Some(Content::Json(notes)) = takeover.section("notes").await.unwrap() else { panic!("expected JSON") };
    assert_eq!(notes, large(10));
    alice.complete(&delivered).await.unwrap();
    handed.await.unwrap().unwrap();
    stop.cancel();
    for one in serving {
        one.await.unwrap();
    }
}

#[tokio::test]
async fn requests_out_of_their_bounds_are_refused() {
    let broker = Broker::start();
    let (alice, bob) = (broker.agent("alice").await, broker.agent("bob").await);
    let task = a_task_of(&alice, &bob).await;
    let client = broker.client_of("alice").await;
    let request = v1::CheckpointContextRequest { envelope: checkpoint(&task, vec![section("notes", "[1]".into())]) };
    let answer = client.answer(client.contexts().checkpoint_context(request.clone()).await).unwrap();
    assert_eq!(answer.version.as_ref().unwrap().version, 1);
    let again = client.answer(client.contexts().checkpoint_context(request).await).unwrap();
    assert_eq!(again, answer);
    let info = composer("alice").encode("bob", MessageType::Info, &About::default(), &v1::Info::default());
    let request = v1::CheckpointContextRequest { envelope: info };
    let refusal = client.answer(client.contexts().checkpoint_context(request).await).unwrap_err();
    assert_eq!(refusal.reason(), Some("FIELD_INVALID"));
    type Change = fn(&mut v1::GetContextSectionRequest);
    let refused: [(&str, Change); 4] = [
        ("task_id", |request| request.task_id.clear()),
        ("name", |request| request.name = "a b".into()),
        ("have_sha256", |request| request.have_sha256 = vec![1; 31].into()),
        ("filter", |request| request.filter = Some(v1::ContextFilter::default())),
    ];
    for (path, change) in refused {
        let mut request = get(&task, None);
        change(&mut request);
        match client.answer(client.contexts().get_context_section(request).await) {
            Err(ClientError::Refused(refusal)) => assert_eq!(refusal.violations[0].0, path, "{refusal}"),
            other => panic!("expected a refusal of {path}, not {other:?}"),
        }
    }
    for (version, reason) in [(2, "CONTEXT_VERSION_UNKNOWN"), (u64::MAX, "CONTEXT_VERSION_UNKNOWN")] {
        let request = v1::GetContextRequest { task_id: task.clone(), version };
        let refusal = client.answer(client.contexts().get_context(request).await).unwrap_err();
        assert_eq!(refusal.reason(), Some(reason));
    }
}

#[tokio::test]
async fn the_command_line_stores_shows_and_compares_contexts() {
    let broker = Broker::start();
    let (alice, bob) = (broker.agent("alice").await, broker.agent("bob").await);
    let task = a_task_of(&alice, &bob).await;
    let path = |name: &str| broker.folder.path().join(name).to_str().unwrap().to_owned();
    identity("alice").key.write(path("alice.pem").as_ref()).unwrap();
    let context = |changed| {
        let notes: Value = serde_json::from_str(&large(changed)).unwrap();
        let history = json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]);
        json!({"notes": notes, "keys": ["hunter2"], "history_log": history}).to_string()
    };
    std::fs::write(path("first.json"), context(0)).unwrap();
    std::fs::write(path("second.json"), context(10)).unwrap();
    let (first, second, pem, out) = (path("first.json"), path("second.json"), path("alice.pem"), path("out.json"));
    let as_alice = ["--id", "alice", "--key", &pem];
    let store = |file: &str, more: &[&str]| {
        let arguments = [&["context", "checkpoint", &task, "--file", file][..], more, &as_alice].concat();
        let mut command = broker.command(&arguments);
        let done = command.output().unwrap();
        let said = String::from_utf8(done.stderr).unwrap();
        assert!(done.status.success(), "{said}");
        let words: Vec<&str> = said.split_whitespace().collect();
        let at = words.iter().position(|word| *word == "takes").expect("the command says the bytes");
        words[at + 1].parse::<usize>().unwrap()
    };
    assert!(store(&first, &["--secret", "keys"]) > 880 * 1024);
    let sent = store(&second, &["--secret", "keys", "--base", &first]);
    assert!(sent < 10 * 1024, "the change takes {sent} bytes");

    let versions = broker.lines(&["context", "versions", &task]);
    let text = serde_json::to_string(&versions).unwrap();
    assert!(text.contains("SECTION_ORIGIN_DELTA") && !text.contains("hunter2"), "{text}");
    let shown = broker.lines(&["context", "show", &task, "--version", "1"]);
    assert_eq!(shown[0]["authorId"], "alice");
    let mut written = broker.command(&["context", "get", &task, "notes", "--out", &out]);
    assert!(written.status().unwrap().success());
    assert_eq!(std::fs::read_to_string(&out).unwrap(), large(10));
    let last = broker.lines(&["context", "get", &task, "history_log", "--last", "1"]);
    assert_eq!(last[0], json!([{"role": "assistant", "content": "yes"}]));
    let difference = broker.lines(&["context", "diff", &task, "1", "2"]);
    assert_eq!(difference[0]["notes"]["merge_patch"].as_object().unwrap().len(), 10);
    assert_eq!(difference[0].as_object().unwrap().len(), 1, "the others are the same");
    // The operator may read the context, and not what is secret in it; the owner may.
    let (code, said) = crate::broker::exit_of(&mut broker.command(&["context", "get", &task, "keys"]));
    assert_eq!(code, Some(8));
    assert!(said.contains("PERMISSION_DENIED"), "{said}");
    let keys = broker.lines(&[&["context", "get", &task, "keys"][..], &as_alice].concat());
    assert_eq!(keys[0], json!(["hunter2"]));
    let client = broker.client_of("alice").await;
    let request = v1::GetCustodyLogRequest { task_id: task, include_envelopes: true, ..Default::default() };
    let log = client.answer(client.tasks().get_custody_log(request).await).unwrap();
    assert!(log.entries.iter().all(|entry| !String::from_utf8_lossy(&entry.envelope).contains("hunter2")));
    assert!(!broker.log().contains("hunter2"));
}
