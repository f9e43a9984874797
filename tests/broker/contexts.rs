//! Contexts: versions of transfers and checkpoints, deltas, rights, secret sections, and the removal with the task.

use std::time::Duration;

use baton_broker_core::{
    BrokerError, Retention, Settings,
    access::{Caller, Operator},
    codes::{ErrorCode, Refusal as _},
    domain::{
        Receiver,
        context::{BASES_MAX, VERSIONS_MAX},
    },
    engine::{Command, Fate, Reassignment},
    envelope::{context_of_sections, sections, signing},
    ids::{AgentId, MessageId, TaskId},
    proto::v1::{
        self, HistoryFilter, MessageType, context_section::Content, custody_entry::Event,
        get_context_section_response::Content as Answer,
    },
    queries::{SectionQuery, section_info},
    store::Table,
};
use prost::Message as _;

use crate::world::{Refusal, Session, World, assert_refused, operator};

fn task() -> TaskId {
    TaskId::parse("t").unwrap()
}

fn agent(name: &str) -> Caller {
    Caller::Agent(AgentId::parse(name).unwrap())
}

fn json(name: &str, text: &str) -> v1::ContextSection {
    v1::ContextSection { name: name.into(), content: Some(Content::Json(text.into())), ..Default::default() }
}

fn bytes(name: &str, data: &'static [u8]) -> v1::ContextSection {
    let bytes = v1::ContextBytes { media_type: "text/plain".into(), data: data.into() };
    v1::ContextSection { name: name.into(), content: Some(Content::Bytes(bytes)), ..Default::default() }
}

/// A delta on a base, with the digest of this result.
fn delta(name: &str, base: &[u8], patch: &str, result: &str) -> v1::ContextSection {
    let delta = v1::ContextDelta {
        base_sha256: signing::sha256(&[base]).to_vec().into(),
        merge_patch: patch.into(),
        result_sha256: signing::sha256(&[result.as_bytes()]).to_vec().into(),
    };
    v1::ContextSection { name: name.into(), content: Some(Content::Delta(delta)), ..Default::default() }
}

fn of(name: &str) -> SectionQuery {
    SectionQuery { task: task(), name: name.into(), version: 0, have: None, filter: None }
}

impl World {
    /// A world in which a owns task "t", which b and c may take.
    fn of_contexts(settings: Settings) -> (Self, Session, Session) {
        let mut world = Self::with_settings(&["a", "b", "c"], settings);
        let (mut a, mut b) = (world.connect("a"), world.connect("b"));
        let handoff = world.send(world.request("a", "b", 1)).unwrap().handoff_id;
        world.take_and_ack(&mut b);
        world.send(world.reject("b", "a", &handoff, &[])).unwrap();
        for _ in 0..3 {
            for session in [&mut a, &mut b] {
                for (delivery, _) in session.deliveries() {
                    world.ack(session, &delivery);
                }
            }
        }
        (world, a, b)
    }

    fn checkpoint_of(&self, from: &str, epoch: u64, sections: Vec<v1::ContextSection>) -> v1::Envelope {
        let envelope = self.envelope(from, "", MessageType::ContextCheckpoint, &context_of_sections(sections));
        v1::Envelope { task_id: "t".into(), epoch, ..envelope }
    }

    fn checkpoint(
        &mut self,
        from: &str,
        epoch: u64,
        sections: Vec<v1::ContextSection>,
    ) -> Result<v1::Receipt, Refusal> {
        self.send(self.checkpoint_of(from, epoch, sections))
    }

    fn section(&self, caller: &Caller, query: &SectionQuery) -> Result<Answer, BrokerError> {
        self.view(caller).context_section(query).map(|answer| answer.content.unwrap())
    }

    fn text(&self, caller: &str, name: &str, version: u64) -> String {
        match self.section(&agent(caller), &SectionQuery { version, ..of(name) }).unwrap() {
            Answer::Json(text) => text,
            other => panic!("expected JSON, not {other:?}"),
        }
    }

    fn rows_of_contexts(&self) -> usize {
        let tables = [Table::ContextVersions, Table::ContextSections];
        self.snapshot().iter().filter(|(of, ..)| tables.contains(of)).count()
    }

    /// Each stored version has the digest of its sections, and each content that of its section (SPEC 12, law 11).
    fn versions_recompute(&self) {
        let owner = Caller::Agent(self.task("t").task.owner.clone());
        let mut token = String::new();
        loop {
            let page = self.view(&owner).context_versions(&task(), 100, &token).unwrap();
            for view in &page.entries {
                let version = &view.version;
                let digests = version.sections.iter().map(|section| (section.name.as_str(), section.sha256));
                assert_eq!(signing::context_digest(digests), version.digest);
                for section in version.sections.iter().filter(|_| view.has_contents) {
                    let query = SectionQuery { version: version.number, ..of(&section.name) };
                    let found = match self.section(&owner, &query).unwrap() {
                        Answer::Json(text) => signing::sha256(&[text.as_bytes()]),
                        Answer::Bytes(bytes) => signing::sha256(&[&bytes.data]),
                        Answer::Reference(reference) => reference.sha256[..].try_into().unwrap(),
                        other => panic!("{other:?}"),
                    };
                    assert_eq!(found, section.sha256, "{} of version {}", section.name, version.number);
                }
            }
            token = page.next_token;
            if token.is_empty() {
                return;
            }
        }
    }
}

fn denied<T: std::fmt::Debug>(outcome: Result<T, BrokerError>, code: ErrorCode) {
    assert_eq!(outcome.unwrap_err().code(), code);
}

#[test]
fn transfers_and_checkpoints_make_versions_that_recompute() {
    let (mut world, mut a, mut b) = World::of_contexts(Settings::default());
    let uri = "https://files.example/1".to_owned();
    let reference = v1::ContextReference { uri, sha256: vec![7; 32].into(), size_bytes: 9, ..Default::default() };
    let referred = v1::ContextSection {
        name: "resources".into(),
        content: Some(Content::Reference(reference)),
        ..Default::default()
    };
    let envelope = world.checkpoint_of("a", 1, vec![json("goals", "[ 1 ]"), bytes("trace", b"abc"), referred]);
    let receipt = world.send(envelope.clone()).unwrap();
    assert_eq!((receipt.task_id.as_str(), receipt.epoch, receipt.custody_hash.len()), ("t", 1, 32));
    assert_eq!(world.send(envelope).unwrap(), receipt, "a repeat gets the first receipt, and makes no version");
    world.checkpoint("a", 1, vec![delta("goals", b"[ 1 ]", "[1,2]", "[1,2]"), json("goals_2", "{}")]).unwrap();
    let handoff = world.hand_over(&mut a, &mut b, 1);
    world.restart();

    let view = world.view(&Caller::Operator(Operator::named("olga"))).context_versions(&task(), 2, "").unwrap();
    let numbers: Vec<u64> = view.entries.iter().map(|view| view.version.number).collect();
    assert_eq!((numbers, view.next_token.is_empty()), (vec![3, 2], false));
    let owner = agent("b");
    let version = world.view(&owner).context(&task(), 0).unwrap().version;
    assert_eq!((version.number, version.epoch, version.author.as_str()), (3, 1, "a"));
    assert_eq!(version.handoff.map(|id| id.to_string()), Some(handoff.clone()));
    assert_eq!(
        Some(version.digest),
        world.handoff(&handoff).context_digest,
        "a completed handoff's digest is a version"
    );
    assert_eq!(world.text("b", "goals", 1), "[ 1 ]", "a value is served as it was signed");
    assert_eq!(world.text("b", "goals", 2), "[1,2]");
    world.versions_recompute();
    world.audit("t");
    let replayed = world.custody("t").len();
    assert!(replayed > 3);
}

#[test]
fn only_the_owner_stores_a_context_and_only_while_the_task_is_open() {
    let (mut world, mut a, mut b) = World::of_contexts(Settings::default());
    assert_refused(world.checkpoint("b", 1, vec![json("goals", "[]")]), ErrorCode::NotOwner);
    assert_refused(world.checkpoint("a", 2, vec![json("goals", "[]")]), ErrorCode::EpochAhead);
    let before = world.snapshot();
    let mut wrong = context_of_sections(vec![json("goals", "[]")]);
    wrong.context_digest = vec![1; 32].into();
    let envelope = world.envelope("a", "", MessageType::ContextCheckpoint, &wrong);
    let envelope = v1::Envelope { task_id: "t".into(), epoch: 1, ..envelope };
    assert_refused(world.send(envelope), ErrorCode::ContextDigestMismatch);
    let with_receiver = v1::Envelope { receiver_id: "b".into(), ..world.checkpoint_of("a", 1, vec![]) };
    assert_refused(world.send(with_receiver), ErrorCode::FieldInvalid);
    assert_eq!(world.snapshot(), before, "a refusal stores nothing");
    world.hand_over(&mut a, &mut b, 1);
    assert_refused(world.checkpoint("a", 1, vec![json("goals", "[]")]), ErrorCode::StaleEpoch);
    world.checkpoint("b", 2, vec![json("goals", "[]")]).unwrap();
    world.send(world.status("b", "", 2, v1::TaskStatus::Completed)).unwrap();
    assert_refused(world.checkpoint("b", 2, vec![json("goals", "[]")]), ErrorCode::TaskFinal);
    assert_eq!(world.audit("t").refusals(), 1);
}

#[test]
fn a_delta_that_does_not_fit_is_refused_with_the_right_digest() {
    let (mut world, ..) = World::of_contexts(Settings::default());
    let base = r#"{"a":1,"b":"x"}"#;
    let odd = [json("large", r#"{"n":9007199254740993}"#)];
    let first = [json("notes", base), bytes("trace", b"abc")].into_iter().chain(odd).collect();
    world.checkpoint("a", 1, first).unwrap();
    // Another task of the same owner has this base.
    let other = world.envelope(
        "a",
        "b",
        MessageType::HandoffRequest,
        &v1::HandoffRequest { task_type: "x".into(), ..Default::default() },
    );
    world.send(v1::Envelope { task_id: "other".into(), epoch: 1, ..other }).unwrap();
    let foreign = world.checkpoint_of("a", 1, vec![json("notes", r#"{"of":"other"}"#)]);
    world.send(v1::Envelope { task_id: "other".into(), ..foreign }).unwrap();

    let before = world.snapshot();
    let mut refused = |section: v1::ContextSection, code| {
        let refusal = assert_refused(world.checkpoint("a", 1, vec![section]), code);
        assert_eq!(world.snapshot(), before, "a refusal stores nothing");
        refusal.metadata().into_iter().collect::<std::collections::BTreeMap<_, _>>()
    };
    let known = hex::encode(signing::sha256(&[base.as_bytes()]));
    let right = hex::encode(signing::sha256(&[br#"{"a":2,"b":"x"}"#]));
    use ErrorCode::{ContextBaseUnknown, ContextDeltaInvalid, FieldInvalid};
    let found = refused(delta("notes", b"{}", r#"{"a":2}"#, "{}"), ContextBaseUnknown);
    assert_eq!(found["known_sha256"], known, "an unknown base");
    let found = refused(delta("notes", br#"{"of":"other"}"#, r#"{"a":2}"#, "{}"), ContextBaseUnknown);
    assert_eq!(found["known_sha256"], known, "the base of another task");
    let found = refused(delta("goals", base.as_bytes(), r#"{"a":2}"#, "{}"), ContextBaseUnknown);
    assert!(!found.contains_key("known_sha256"), "the base of another section");
    let found = refused(delta("notes", base.as_bytes(), r#"{"a":2}"#, "{}"), ContextDeltaInvalid);
    assert_eq!(found["expected_sha256"], right, "another result");
    refused(delta("trace", b"abc", r#"{"a":2}"#, "{}"), ContextDeltaInvalid);
    refused(delta("large", br#"{"n":9007199254740993}"#, r#"{"b":2}"#, "{}"), ContextDeltaInvalid);
    refused(delta("notes", base.as_bytes(), r#""text""#, r#""text""#), ContextDeltaInvalid);
    // These patches are refused before anything is looked up.
    let deep = format!("{}1{}", r#"{"a":"#.repeat(100_000), "}".repeat(100_000));
    for patch in [&*deep, r#"{"a":1,"a":2}"#, r#"{"a":NaN}"#, r#"{"a":9007199254740992}"#, "{"] {
        refused(delta("notes", base.as_bytes(), patch, "{}"), FieldInvalid);
    }
    // A patch of many small members and a large base may give more than a payload.
    world.checkpoint("a", 1, vec![json("notes", &format!(r#"{{"a":"{}"}}"#, "x".repeat(600_000)))]).unwrap();
    let large = format!(r#"{{"a":"{}"}}"#, "x".repeat(600_000));
    let patch = format!(r#"{{"b":"{}"}}"#, "y".repeat(600_000));
    let result = sections::apply(&large, &patch).unwrap();
    let too_large = vec![delta("notes", large.as_bytes(), &patch, &result)];
    assert_refused(world.checkpoint("a", 1, too_large), ErrorCode::ContextDeltaInvalid);
    world.versions_recompute();
}

#[test]
fn the_deltas_of_one_message_have_bases_of_at_most_four_payloads() {
    let (mut world, ..) = World::of_contexts(Settings::default());
    let text = |number: usize| format!(r#"{{"a":"{}"}}"#, format!("{number}").repeat(700_000));
    for number in 0..8 {
        world.checkpoint("a", 1, vec![json(&format!("part{number}"), &text(number))]).unwrap();
    }
    // Each delta leaves a small section.
    let small = |number: usize| delta(&format!("part{number}"), text(number).as_bytes(), r#"{"a":1}"#, r#"{"a":1}"#);
    let refusal = assert_refused(world.checkpoint("a", 1, (0..8).map(small).collect()), ErrorCode::ContextDeltaInvalid);
    assert!(refusal.to_string().contains("the bases of all deltas"), "{refusal}");
    world.checkpoint("a", 1, (0..5).map(small).collect()).unwrap();
    world.versions_recompute();
}

#[test]
fn an_unknown_base_is_found_before_a_delta_is_applied() {
    let (mut world, ..) = World::of_contexts(Settings::default());
    world.checkpoint("a", 1, vec![json("notes", r#"{"a":1}"#)]).unwrap();
    // The first delta states a wrong result, which only its application shows.
    let wrong = delta("notes", br#"{"a":1}"#, r#"{"a":2}"#, "{}");
    let unknown = delta("goals", b"{}", r#"{"a":2}"#, "{}");
    assert_refused(world.checkpoint("a", 1, vec![wrong, unknown]), ErrorCode::ContextBaseUnknown);
}

#[test]
fn a_delta_that_was_prepared_before_its_base_fell_out_is_refused() {
    let (mut world, ..) = World::of_contexts(Settings::default());
    world.checkpoint("a", 1, vec![json("notes", r#"{"a":1}"#)]).unwrap();
    let change = delta("notes", br#"{"a":1}"#, r#"{"a":2}"#, r#"{"a":2}"#);
    let early = world.prepared(world.checkpoint_of("a", 1, vec![change])).unwrap();
    for number in 0..64 {
        world.checkpoint("a", 1, vec![json("goals", &format!(r#"{{"n":{number}}}"#))]).unwrap();
    }
    let sent = world.ask(|reply| Command::Submit { message: early, is_from_sender: true, reply });
    assert_refused(sent, ErrorCode::ContextBaseUnknown);
    world.versions_recompute();
}

#[test]
fn versions_are_read_by_their_parties_only() {
    let (mut world, mut a, mut b) = World::of_contexts(Settings::default());
    let mut c = world.connect("c");
    let context = |world: &World, caller: &str, number| world.view(&agent(caller)).context(&task(), number).map(drop);
    world.checkpoint("a", 1, vec![json("goals", "[1]")]).unwrap();
    // The candidate of an open handoff reads from its accept on.
    let handoff = world.send(world.request("a", "b", 1)).unwrap().handoff_id;
    world.take_and_ack(&mut b);
    denied(context(&world, "b", 1), ErrorCode::PermissionDenied);
    denied(context(&world, "c", 1), ErrorCode::PermissionDenied);
    world.send(world.accept("b", "a", &handoff, 1)).unwrap();
    world.take_and_ack(&mut a);
    context(&world, "b", 1).unwrap();
    denied(context(&world, "b", 9), ErrorCode::ContextVersionUnknown);
    denied(context(&world, "c", 9), ErrorCode::PermissionDenied);
    world.send(world.context("a", "b", &handoff, 1)).unwrap();
    world.take_and_ack(&mut b);
    world.send(world.cancel("a", "b", &handoff, 1)).unwrap();
    for (delivery, _) in b.deliveries() {
        world.ack(&b, &delivery);
    }
    // It keeps the version that it has received, and no other.
    context(&world, "b", 2).unwrap();
    denied(context(&world, "b", 1), ErrorCode::PermissionDenied);
    let seen = world.view(&agent("b")).context_versions(&task(), 10, "").unwrap().entries;
    assert_eq!(seen.iter().map(|view| view.version.number).collect::<Vec<_>>(), [2]);

    // A former owner reads what it has written, and nothing later.
    world.hand_over(&mut a, &mut c, 1);
    world.checkpoint("c", 2, vec![json("goals", "[2]")]).unwrap();
    for number in 1..=3 {
        context(&world, "a", number).unwrap();
    }
    for number in [0, 4, 5] {
        denied(context(&world, "a", number), ErrorCode::PermissionDenied);
    }
    denied(world.section(&agent("a"), &of("goals")), ErrorCode::PermissionDenied);
    context(&world, "c", 1).unwrap();
    assert_eq!(world.view(&operator()).context(&task(), 4).unwrap().version.author.as_str(), "c");
    denied(world.view(&Caller::Anonymous).context(&task(), 4).map(drop), ErrorCode::IdentityMissing);
}

#[test]
fn a_section_comes_whole_as_a_change_or_as_a_part() {
    let (mut world, ..) = World::of_contexts(Settings::default());
    let entries = r#"[{"role":"user","content":"hi"},{"role":"assistant","content":"42"}]"#;
    let long = format!(r#"{{"n":1,"text":"{}"}}"#, "x".repeat(300));
    let newer = long.replace("\"n\":1", "\"n\":2");
    let history = v1::ContextSection { summary: "a number".into(), ..json("history_log", entries) };
    world.checkpoint("a", 1, vec![json("notes", &long), history.clone(), bytes("trace", b"abc")]).unwrap();
    world.checkpoint("a", 1, vec![delta("notes", long.as_bytes(), r#"{"n":2}"#, &newer), history]).unwrap();
    let owner = agent("a");
    let sha = |text: &str| Some(signing::sha256(&[text.as_bytes()]));
    let answer = |query: &SectionQuery| world.view(&owner).context_section(query);

    let whole = answer(&of("notes")).unwrap();
    assert_eq!((whole.content, whole.version, whole.derived), (Some(Answer::Json(newer.clone())), 2, false));
    let same = answer(&SectionQuery { have: sha(&newer), ..of("notes") }).unwrap();
    assert_eq!(same.content, Some(Answer::NotModified(true)));
    let changed = answer(&SectionQuery { have: sha(&long), ..of("notes") }).unwrap();
    let Some(Answer::Delta(delta)) = changed.content else { panic!("expected a delta") };
    assert_eq!((delta.merge_patch.as_str(), &delta.base_sha256[..]), (r#"{"n":2}"#, &sha(&long).unwrap()[..]));
    assert_eq!(sections::apply(&long, &delta.merge_patch).unwrap(), newer);
    let unknown = answer(&SectionQuery { have: Some([1; 32]), ..of("notes") }).unwrap();
    assert_eq!(unknown.content, Some(Answer::Json(newer)), "an unknown base gets the whole");

    let part = |history: HistoryFilter, last| {
        let filter = v1::ContextFilter { history: history.into(), last, ..Default::default() };
        answer(&SectionQuery { filter: Some(filter), ..of("history_log") }).unwrap()
    };
    let last = part(HistoryFilter::Last, 1);
    assert!(last.derived);
    assert_eq!(last.section.unwrap().sha256, sha(entries).unwrap()[..], "the digest is that of the whole");
    assert_eq!(last.content, Some(Answer::Json(r#"[{"content":"42","role":"assistant"}]"#.into())));
    let summary = Some(Answer::Json(r#"{"entries":2,"summary":"a number"}"#.into()));
    assert_eq!(part(HistoryFilter::Summary, 0).content, summary);
    let filter = v1::ContextFilter { history: HistoryFilter::Full.into(), ..Default::default() };
    denied(answer(&SectionQuery { filter: Some(filter.clone()), ..of("notes") }), ErrorCode::FilterNotApplicable);
    let trace = SectionQuery { version: 1, ..of("trace") };
    denied(answer(&SectionQuery { filter: Some(filter), ..trace.clone() }), ErrorCode::FilterNotApplicable);
    assert!(matches!(answer(&trace).unwrap().content, Some(Answer::Bytes(bytes)) if bytes.data == b"abc"[..]));
    denied(answer(&of("trace")), ErrorCode::ContextVersionUnknown);
}

#[test]
fn a_secret_section_is_shown_to_its_parties_only() {
    let (mut world, mut a, mut b) = World::of_contexts(Settings::default());
    let secret = v1::ContextSection { secret: true, ..json("session_variables", r#"{"token":"hunter2"}"#) };
    world.checkpoint("a", 1, vec![secret.clone(), json("goals", "[]")]).unwrap();
    let handoff = world.send(world.request("a", "b", 1)).unwrap().handoff_id;
    world.take_and_ack(&mut b);
    world.send(world.accept("b", "a", &handoff, 1)).unwrap();
    world.take_and_ack(&mut a);
    let transfer = world.envelope("a", "b", MessageType::TaskContextTransfer, &context_of_sections(vec![secret]));
    let transfer = v1::Envelope { task_id: "t".into(), correlation_id: handoff.clone(), epoch: 1, ..transfer };
    world.send(transfer.clone()).unwrap();
    world.restart();
    for party in ["a", "b"] {
        assert!(world.text(party, "session_variables", 1).contains("hunter2"));
    }
    let olga = operator();
    assert!(world.view(&olga).context(&task(), 1).is_ok(), "that there is a secret is no secret");
    let refusal = world.section(&olga, &of("session_variables")).unwrap_err();
    assert_eq!(refusal.code(), ErrorCode::PermissionDenied);
    assert!(world.section(&olga, &SectionQuery { version: 1, ..of("goals") }).is_ok());
    // The envelope is in no custody log, for no caller, and the log replays.
    for caller in [agent("a"), olga.clone()] {
        let page = world.view(&caller).custody(&task(), 0, 1000, true).unwrap();
        let mut replay = baton_broker_core::replay::Replay::new(task(), None);
        for shown in &page.entries {
            replay.take(shown).unwrap();
            assert!(!String::from_utf8_lossy(&shown.envelope).contains("hunter2"));
            if let Some(Event::Accepted(accepted)) = &shown.entry.as_ref().unwrap().event
                && [MessageType::TaskContextTransfer, MessageType::ContextCheckpoint].contains(&accepted.message_type())
            {
                assert_eq!((shown.envelope.len(), accepted.context_digest.len()), (0, 32));
            }
        }
        assert_eq!(replay.task(), Some(&*world.task("t").task));
    }
    // The undeliverable context is a dead letter without its bytes.
    let mut b = world.connect("b");
    let (delivery, _) = b.delivery();
    world.acknowledge(&b, &delivery, Fate::Poison { text: String::new() }).unwrap();
    let dead = world.dead_letters().pop().expect("the context is a dead letter");
    for caller in [agent("b"), olga] {
        let shown = world.view(&caller).dead_bytes(&dead).unwrap();
        assert_eq!((shown.envelope.len(), shown.context_digest.len()), (0, 32));
    }
}

#[test]
fn neither_summary_nor_address_of_a_secret_section_is_shown_to_an_operator() {
    let (mut world, ..) = World::of_contexts(Settings::default());
    let uri = "https://store.example/keys?signature=hunter2".to_owned();
    let address =
        v1::ContextReference { uri: uri.clone(), sha256: vec![7; 32].into(), size_bytes: 9, ..Default::default() };
    let named = |section: v1::ContextSection| v1::ContextSection { summary: "the word is hunter2".into(), ..section };
    let keys = v1::ContextSection {
        name: "keys".into(),
        content: Some(Content::Reference(address)),
        secret: true,
        ..Default::default()
    };
    let words = v1::ContextSection { secret: true, ..json("words", "{}") };
    let receipt = world.checkpoint("a", 1, vec![named(keys), named(words), named(json("goals", "[]"))]).unwrap();
    let shown = |world: &World, caller: &Caller| {
        let view = world.view(caller);
        let of_message = MessageId::parse(&receipt.message_id).unwrap();
        let one = view.context(&task(), 1).unwrap();
        assert_eq!(view.context_versions(&task(), 10, "").unwrap().entries, std::slice::from_ref(&one));
        assert_eq!(view.context_of_message(&task(), of_message).unwrap().as_ref(), Some(&one));
        let sections = one.version.sections.iter().map(section_info);
        sections.map(|section| (section.secret, section.summary, section.uri)).collect::<Vec<_>>()
    };
    let (none, summary) = (String::new(), "the word is hunter2".to_owned());
    for _ in 0..2 {
        let of_party = [(true, summary.clone(), uri.clone()), (true, summary.clone(), none.clone())];
        let of_all = (false, summary.clone(), none.clone());
        assert_eq!(shown(&world, &agent("a")), [&of_party[..], std::slice::from_ref(&of_all)].concat());
        let of_operator = [(true, none.clone(), none.clone()), (true, none.clone(), none.clone()), of_all];
        assert_eq!(shown(&world, &operator()), of_operator);
        world.restart();
    }
}

#[test]
fn a_change_names_no_member_of_a_version_that_the_caller_may_not_read() {
    let (mut world, ..) = World::of_contexts(Settings::default());
    let text = "x".repeat(100);
    let before = format!(r#"{{"salary_of_bob":1,"text":"{text}"}}"#);
    let [public, latest] = [format!(r#"{{"text":"{text}"}}"#), format!(r#"{{"text":"{text}","year":2026}}"#)];
    let secret = v1::ContextSection { secret: true, ..json("collected_data", &before) };
    world.checkpoint("a", 1, vec![secret]).unwrap();
    for text in [&public, &latest] {
        world.checkpoint("a", 1, vec![json("collected_data", text)]).unwrap();
    }
    let on = |base: &str| SectionQuery { have: Some(signing::sha256(&[base.as_bytes()])), ..of("collected_data") };
    let olga = operator();
    assert_eq!(world.section(&olga, &on(&before)).unwrap(), Answer::Json(latest));
    assert!(matches!(world.section(&olga, &on(&public)).unwrap(), Answer::Delta(_)));
    assert!(matches!(world.section(&agent("a"), &on(&before)).unwrap(), Answer::Delta(_)), "a is its party");
}

#[test]
fn old_versions_keep_their_digests_only() {
    let (mut world, ..) = World::of_contexts(Settings::default());
    for number in 1..=VERSIONS_MAX + 5 {
        let lasting = json("lasting", "[]");
        world.checkpoint("a", 1, vec![json("goals", &format!("[{number}]")), lasting]).unwrap();
    }
    let owner = agent("a");
    for number in 1..=5 {
        let view = world.view(&owner).context(&task(), number).unwrap();
        assert!(!view.has_contents);
        denied(
            world.section(&owner, &SectionQuery { version: number, ..of("goals") }),
            ErrorCode::ContextVersionUnknown,
        );
    }
    assert_eq!(world.text("a", "goals", 6), "[6]");
    assert_eq!(world.text("a", "lasting", 6), "[]");
    assert_eq!(world.rows_of_contexts() as u64, VERSIONS_MAX + 5, "one record each");
    world.versions_recompute();
}

#[test]
fn old_results_of_deltas_go_unless_a_later_version_has_them() {
    let (mut world, ..) = World::of_contexts(Settings::default());
    world.checkpoint("a", 1, vec![json("goals", "[0]"), json("lasting", "[0]")]).unwrap();
    for number in 1..=VERSIONS_MAX + 5 {
        let (base, next) = (format!("[{}]", number - 1), format!("[{number}]"));
        let lasting = if number == 1 { "[0]" } else { "[]" };
        let goals = delta("goals", base.as_bytes(), &next, &next);
        world.checkpoint("a", 1, vec![goals, delta("lasting", lasting.as_bytes(), "[]", "[]")]).unwrap();
    }
    assert_eq!(world.rows_of_contexts() as u64, VERSIONS_MAX + 6 + VERSIONS_MAX + 1);
    assert_eq!(world.text("a", "goals", 7), "[6]");
    assert_eq!(world.text("a", "lasting", 7), "[]");
    world.versions_recompute();
}

#[test]
fn a_delta_has_its_base_in_one_of_the_latest_versions() {
    let (mut world, ..) = World::of_contexts(Settings::default());
    world.checkpoint("a", 1, vec![json("goals", "[0]"), json("notes", "[1]")]).unwrap();
    world.checkpoint("a", 1, vec![delta("notes", b"[1]", "[2]", "[2]")]).unwrap();
    for _ in 2..BASES_MAX {
        world.checkpoint("a", 1, vec![json("other", "[]")]).unwrap();
    }
    world.restart();
    world.checkpoint("a", 1, vec![delta("goals", b"[0]", "[3]", "[3]")]).unwrap();
    let refusal = assert_refused(
        world.checkpoint("a", 1, vec![delta("notes", b"[1]", "[4]", "[4]")]),
        ErrorCode::ContextBaseUnknown,
    );
    let known = refusal.metadata().into_iter().collect::<std::collections::BTreeMap<_, _>>();
    assert_eq!(known["known_sha256"], hex::encode(signing::sha256(&[b"[2]"])));
    world.checkpoint("a", 1, vec![delta("notes", b"[2]", "[4]", "[4]")]).unwrap();
    let late = vec![delta("notes", b"[2]", "[5]", "[5]")];
    assert_refused(world.checkpoint("a", 1, late), ErrorCode::ContextBaseUnknown);
    world.versions_recompute();
}

#[test]
fn the_coordinator_hands_on_the_last_checkpoint_whole() {
    let (mut world, mut a, mut b) = World::of_contexts(Settings::default());
    let mut c = world.connect("c");
    world.hand_over(&mut a, &mut b, 1);
    world.checkpoint("b", 2, vec![json("notes", r#"{"n":1}"#), bytes("trace", b"abc")]).unwrap();
    let secret = v1::ContextSection { secret: true, summary: "s".into(), ..json("keys", "[1]") };
    let newer = delta("notes", br#"{"n":1}"#, r#"{"n":2}"#, r#"{"n":2}"#);
    world.checkpoint("b", 2, vec![newer, bytes("trace", b"abc"), secret.clone()]).unwrap();
    let wanted =
        Reassignment { task: task(), expected_epoch: 2, to: Receiver::parse("c").unwrap(), reason_text: String::new() };
    let made = world.ask(|reply| Command::Reassign { wanted, caller: operator(), reply }).unwrap();
    world.take_and_ack(&mut c);
    let handoff = made.handoff.id.to_string();
    world.send(world.accept("c", "baton.coordinator", &handoff, 3)).unwrap();
    let context = world.take_and_ack(&mut c);
    let context = v1::TaskContextTransfer::decode(context.payload.unwrap().value).unwrap();
    assert_eq!(context.sections, [json("notes", r#"{"n":2}"#), bytes("trace", b"abc"), secret]);
    let complete = v1::HandoffComplete {
        outcome: v1::HandoffOutcome::Success.into(),
        context_digest: context.context_digest,
        ..Default::default()
    };
    let complete = world.envelope("c", "baton.coordinator", MessageType::HandoffComplete, &complete);
    world.send(v1::Envelope { task_id: "t".into(), correlation_id: handoff, epoch: 3, ..complete }).unwrap();
    assert_eq!(world.view(&agent("c")).context(&task(), 0).unwrap().version.author.as_str(), "baton.coordinator");
    world.versions_recompute();
    world.audit("t");
}

#[test]
fn an_accept_names_its_wishes_once_and_in_form() {
    let (mut world, _a, mut b) = World::of_contexts(Settings::default());
    let handoff = world.send(world.request("a", "b", 1)).unwrap().handoff_id;
    world.take_and_ack(&mut b);
    let wish = |name: &str| v1::SectionWish { name: name.into(), ..Default::default() };
    let mut accept = |wanted: &[&str], wishes: Vec<v1::SectionWish>| {
        let wanted_sections = wanted.iter().map(ToString::to_string).collect();
        let payload = v1::HandoffAccept { wanted_sections, wishes, ..Default::default() };
        let envelope = world.envelope("b", "a", MessageType::HandoffAccept, &payload);
        world.send(v1::Envelope { task_id: "t".into(), correlation_id: handoff.clone(), epoch: 1, ..envelope })
    };
    let filter = Some(v1::ContextFilter { history: HistoryFilter::Last.into(), ..Default::default() });
    let versions = vec!["1".to_owned(); 17];
    for (wanted, wish) in [
        (&["goals"][..], wish("goals")),
        (&[], wish("")),
        (&[], v1::SectionWish { have_sha256: vec![1; 31].into(), ..wish("goals") }),
        (&[], v1::SectionWish { filter, ..wish("goals") }),
        (&[], v1::SectionWish { schema_versions: versions, ..wish("goals") }),
    ] {
        assert_refused(accept(wanted, vec![wish]), ErrorCode::FieldInvalid);
    }
    let many = (0..65).map(|number| wish(&format!("s{number}"))).collect();
    assert_refused(accept(&[], many), ErrorCode::FieldInvalid);
    accept(&["goals"], vec![wish("notes")]).unwrap();
    assert_eq!(world.handoff(&handoff).wanted_sections, ["goals", "notes"]);
}

#[test]
fn the_versions_go_with_their_task() {
    let hour = Duration::from_secs(3600);
    let retention = Retention { ended_tasks: Some(hour), entries_a_step: 2, ..Retention::default() };
    let (mut world, mut a, mut b) = World::of_contexts(Settings { retention, ..Settings::default() });
    world.checkpoint("a", 1, vec![json("goals", "[0]")]).unwrap();
    for number in 1..7 {
        let (base, next) = (format!("[{}]", number - 1), format!("[{number}]"));
        world.checkpoint("a", 1, vec![delta("goals", base.as_bytes(), &next, &next)]).unwrap();
    }
    world.hand_over(&mut a, &mut b, 1);
    world.send(world.status("b", "", 2, v1::TaskStatus::Completed)).unwrap();
    assert_eq!(world.rows_of_contexts(), 8 + 6);
    world.pass(2 * hour);
    world.restart();
    for _ in 0..20 {
        world.pass(Duration::from_secs(60));
    }
    assert_eq!(world.rows_of_contexts(), 0);
    denied(world.view(&operator()).context(&task(), 1).map(drop), ErrorCode::TaskUnknown);
}

#[test]
fn the_version_of_a_message_is_shown_to_its_parties_and_holders() {
    let (mut world, ..) = World::of_contexts(Settings::default());
    let envelope = world.checkpoint_of("a", 1, vec![json("goals", "[1]")]);
    world.send(envelope.clone()).unwrap();
    let message = MessageId::parse(&envelope.message_id).unwrap();
    let shown = |caller: &Caller| world.view(caller).context_of_message(&task(), message);
    assert_eq!(shown(&agent("a")).unwrap().expect("a is its author").version.number, 1);
    assert_eq!(shown(&agent("c")).unwrap(), None);
    denied(shown(&Caller::Anonymous).map(drop), ErrorCode::IdentityMissing);
}

#[test]
fn json_by_value_that_two_readers_read_otherwise_is_refused_with_its_place() {
    let (mut world, ..) = World::of_contexts(Settings::default());
    for (text, place, problem) in [
        (r#"{"amount": 1, "amount": 1000}"#, "/amount", "occurs twice"),
        (r#"{"a": [{"b": 1, "\u0062": 2}]}"#, "/a/0/b", "occurs twice"),
        (r#"{"x": NaN}"#, "/x", "JSON has no such number"),
        (r#"{"x": 1e999}"#, "/x", "out of range"),
        (r#"{"x": "\ud800"}"#, "/x", "is not JSON"),
        (r#""just a text""#, "", "must be a JSON object or list"),
    ] {
        let refused = world.checkpoint("a", 1, vec![json("notes", text)]).unwrap_err();
        let found = refused.1.violations();
        assert_eq!(found[0].path, format!("envelope.payload.sections[0].json{place}"), "{text}");
        assert!(found[0].problem.contains(problem), "{text}: {}", found[0].problem);
    }
    world.checkpoint("a", 1, vec![json("notes", r#"  {"x": 12345678901234567890}  "#)]).unwrap();
}
