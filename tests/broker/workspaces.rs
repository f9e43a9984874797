//! Workspaces: appends, pages, the rights of participants, quotas, expiry, and the removal with the task.

use std::{sync::Arc, time::Duration};

use baton_broker_core::{
    BrokerError, Retention, Settings, Update, Updates, WatcherId,
    access::Caller,
    codes::{ErrorCode, Refusal as _},
    domain::{
        EntityId,
        workspace::{Limits, Topic, WorkspaceId},
    },
    engine::Command,
    envelope::signing,
    ids::AgentId,
    policy::{Policies, Source},
    proto::v1::{self, MessageType, workspace_append::Entry, workspace_entry},
    queries::{EntryPage, EntryQuery},
    store::Table,
};
use bytes::Bytes;
use prost::Message as _;

use crate::world::{Refusal, Session, World, assert_refused, operator};

const HOUR: Duration = Duration::from_secs(3600);
const MIB: usize = 1024 * 1024;

fn id() -> WorkspaceId {
    WorkspaceId::parse("task:t").unwrap()
}

fn agent(name: &str) -> Caller {
    Caller::Agent(AgentId::parse(name).unwrap())
}

fn json(text: &str) -> Entry {
    Entry::Json(text.to_owned())
}

fn payload(topic: &str, entry: Entry) -> v1::WorkspaceAppend {
    v1::WorkspaceAppend { workspace_id: "task:t".into(), topic: topic.into(), entry: Some(entry), ..Default::default() }
}

fn all(after: u64) -> EntryQuery {
    EntryQuery { workspace: id(), topics: vec![], after, limit: 1000, envelopes: false }
}

fn only(topic: &str, after: u64) -> EntryQuery {
    EntryQuery { topics: vec![Topic::parse(topic).unwrap()], ..all(after) }
}

fn sequences(page: &EntryPage) -> Vec<u64> {
    page.entries.iter().map(|entry| entry.sequence).collect()
}

impl World {
    /// A world in which a owns task "t", which it has not offered yet.
    fn of_workspace(settings: Settings) -> (Self, Session, Session) {
        let mut world = Self::with_settings(&["a", "b", "c"], settings);
        let (mut a, mut b) = (world.connect("a"), world.connect("b"));
        let handoff = world.send(world.request("a", "b", 1)).unwrap().handoff_id;
        world.take_and_ack(&mut b);
        world.send(world.reject("b", "a", &handoff, &[])).unwrap();
        // The notice of the failure waits for the ack of the reject.
        for _ in 0..3 {
            for session in [&mut a, &mut b] {
                for (delivery, _) in session.deliveries() {
                    world.ack(session, &delivery);
                }
            }
        }
        (world, a, b)
    }

    fn append_with(&self, from: &str, payload: &v1::WorkspaceAppend) -> v1::Envelope {
        self.envelope(from, "", MessageType::WorkspaceAppend, payload)
    }

    fn append(&mut self, from: &str, topic: &str, entry: Entry) -> Result<u64, Refusal> {
        let receipt = self.send(self.append_with(from, &payload(topic, entry)))?;
        assert_eq!(receipt.resource, "workspace:task:t");
        Ok(receipt.resource_sequence)
    }

    fn page(&self, caller: &Caller, query: &EntryQuery) -> Result<EntryPage, BrokerError> {
        self.view(caller).workspace_entries(query)
    }

    pub(crate) fn rows(&self, table: Table) -> usize {
        self.snapshot().iter().filter(|(of, ..)| *of == table).count()
    }

    fn end_task(&mut self, owner: &str, epoch: u64) {
        self.send(self.status(owner, "", epoch, v1::TaskStatus::Completed)).unwrap();
    }
}

#[test]
fn appends_are_numbered_over_all_topics_and_read_back() {
    let (mut world, ..) = World::of_workspace(Settings::default());
    let source_time = Some(prost_types::Timestamp { seconds: 1_600_000_000, nanos: 7 });
    let first = v1::WorkspaceAppend { source_time, ..payload("Growth  Metrics", json("{\"rate\":1.5}")) };
    let envelope = world.append_with("a", &first);
    let receipt = world.send(envelope.clone()).unwrap();
    assert_eq!((receipt.resource.as_str(), receipt.resource_sequence), ("workspace:task:t", 1));
    assert_eq!((receipt.task_id.as_str(), receipt.epoch, receipt.custody_hash.len()), ("", 0, 0));
    let bytes = v1::ContextBytes { media_type: "image/png".into(), data: vec![1, 2, 3].into() };
    assert_eq!(world.append("a", "charts", Entry::Bytes(bytes.clone())).unwrap(), 2);
    let uri = "https://files.example/1".to_owned();
    let reference = v1::ContextReference { uri, sha256: vec![7; 32].into(), ..Default::default() };
    assert_eq!(world.append("a", " growth_METRICS", Entry::Reference(reference.clone())).unwrap(), 3);
    assert_eq!(world.append("a", "growth_metrics", json("7")).unwrap(), 4, "any JSON value is an entry");

    let page = world.page(&agent("a"), &all(0)).unwrap();
    assert_eq!(
        (page.next_after, page.last_sequence, page.has_more(), page.gap, page.is_closed),
        (4, 4, false, None, false)
    );
    let topics: Vec<_> = page.entries.iter().map(|entry| entry.topic.as_str()).collect();
    assert_eq!(topics, ["growth_metrics", "charts", "growth_metrics", "growth_metrics"]);
    let one = &page.entries[0];
    assert_eq!(one.entry, Some(workspace_entry::Entry::Json("{\"rate\":1.5}".into())));
    assert_eq!((one.author_id.as_str(), &one.message_id, one.source_time), ("a", &envelope.message_id, source_time));
    assert_eq!(one.create_time, receipt.accept_time);
    assert!(one.envelope.is_empty(), "it was not asked for");
    assert_eq!(page.entries[1].entry, Some(workspace_entry::Entry::Bytes(bytes)));
    assert_eq!(page.entries[2].entry, Some(workspace_entry::Entry::Reference(reference)));

    let page = world.page(&agent("a"), &only("Growth Metrics", 1)).unwrap();
    assert_eq!((sequences(&page), page.next_after), (vec![3, 4], 4));
    let page = world.page(&agent("a"), &EntryQuery { limit: 1, ..only("charts", 0) }).unwrap();
    assert_eq!((sequences(&page), page.next_after, page.has_more()), (vec![2], 2, true));
    let page = world.page(&agent("a"), &only("nothing", 0)).unwrap();
    assert_eq!((sequences(&page), page.next_after, page.gap), (vec![], 4, None), "the others were looked at");
    let owner = agent("a");
    let (topics, last) = world.view(&owner).workspace_topics(&id()).unwrap();
    let counts: Vec<_> =
        topics.iter().map(|topic| (topic.name.as_str(), topic.entry_count, topic.last_sequence)).collect();
    assert_eq!((counts, last), (vec![("charts", 1, 2), ("growth_metrics", 3, 4)], 4));
}

#[test]
fn an_entry_shows_its_envelope_and_the_chain_covers_it() {
    let (mut world, ..) = World::of_workspace(Settings::default());
    for number in 0..5 {
        world.append("a", "t", json(&number.to_string())).unwrap();
    }
    let page = world.page(&agent("a"), &EntryQuery { envelopes: true, ..all(0) }).unwrap();
    let mut hash = [0; 32];
    for entry in &page.entries {
        let envelope = v1::Envelope::decode(entry.envelope.clone()).unwrap();
        let signed = signing::sha256(&[&signing::envelope_input(&envelope)]);
        hash = signing::workspace_hash(&hash, entry.sequence, entry.create_time.as_ref(), &signed);
        assert_eq!(entry.chain_hash[..], hash);
    }
    let owner = agent("a");
    let shown = world.view(&owner).workspace(&id()).unwrap();
    assert_eq!((shown.record.chain_hash, shown.record.workspace.last_sequence), (hash, 5));
}

#[test]
fn a_repeated_append_gets_its_first_receipt_also_after_a_restart() {
    let (mut world, ..) = World::of_workspace(Settings::default());
    let mut envelope = world.append_with("a", &payload("t", json("1")));
    world.sign(&mut envelope);
    let first = world.send_signed(&envelope).unwrap();
    assert_eq!(world.append("a", "t", json("2")).unwrap(), 2);
    assert_eq!(world.send_signed(&envelope).unwrap(), first);
    world.restart();
    assert_eq!(world.send_signed(&envelope).unwrap(), first);
    let other = v1::Envelope { message_id: envelope.message_id, ..world.append_with("a", &payload("t", json("3"))) };
    assert_refused(world.send(other), ErrorCode::MessageIdReused);
    assert_eq!(sequences(&world.page(&agent("a"), &all(0)).unwrap()), [1, 2]);
    assert_eq!(world.append("a", "t", json("3")).unwrap(), 3, "the numbers go on after the restart");
}

#[test]
fn an_append_that_was_not_committed_leaves_no_entry() {
    let (mut world, ..) = World::of_workspace(Settings::default());
    world.append("a", "t", json("1")).unwrap();
    let mut envelope = world.append_with("a", &payload("t", json("2")));
    world.sign(&mut envelope);
    world.disk.full.store(true, std::sync::atomic::Ordering::Relaxed);
    assert_refused(world.send_signed(&envelope), ErrorCode::StoreUnavailable);
    world.disk.full.store(false, std::sync::atomic::Ordering::Relaxed);
    world.recover();
    assert_eq!(sequences(&world.page(&agent("a"), &all(0)).unwrap()), [1]);
    assert_eq!(world.send_signed(&envelope).unwrap().resource_sequence, 2, "the number was not used up");
}

#[test]
fn an_append_costs_no_more_records_than_plain_mail() {
    let (mut world, ..) = World::of_workspace(Settings::default());
    let _c = world.connect("c");
    let written = |world: &World| world.disk.written.lock().unwrap().last().unwrap().len();
    world.append("a", "t", json("1")).unwrap();
    world.append("a", "t", json("2")).unwrap();
    let of_append = written(&world);
    world.send(world.info("b", "c", "hello")).unwrap();
    let of_mail = written(&world);
    // Beside the sequence and the ids of the batch: the message, its envelope, and the entry and the workspace here, the
    // letter and its removal after the ack there.
    assert!(of_append <= of_mail + 1, "{of_append} records for an append, {of_mail} for mail that is not acked yet");
}

#[test]
fn compare_and_append_is_refused_with_the_right_number() {
    let (mut world, ..) = World::of_workspace(Settings::default());
    let mut append = |expected| {
        let payload = v1::WorkspaceAppend { expected_last_sequence: Some(expected), ..payload("t", json("1")) };
        world.send(world.append_with("a", &payload)).map(|receipt| receipt.resource_sequence)
    };
    assert_eq!(append(0).unwrap(), 1);
    let refusal = assert_refused(append(0), ErrorCode::SequenceConflict);
    assert_eq!(refusal.metadata(), [("last_sequence", "1".to_owned())]);
    assert_refused(append(7), ErrorCode::SequenceConflict);
    assert_eq!(append(1).unwrap(), 2);
}

#[test]
fn the_bounds_of_an_append_are_checked() {
    let (mut world, ..) = World::of_workspace(Settings::default());
    assert_eq!(world.append("a", "t", json(&format!("\"{}\"", "x".repeat(MIB - 2)))).unwrap(), 1);
    for too_large in [MIB - 1, 2 * MIB] {
        let refusal = assert_refused(
            world.append("a", "t", json(&format!("\"{}\"", "x".repeat(too_large)))),
            ErrorCode::EntryTooLarge,
        );
        assert!(refusal.to_string().contains("append a reference"), "{refusal}");
    }
    let bytes = |length| Entry::Bytes(v1::ContextBytes { media_type: String::new(), data: vec![0; length].into() });
    assert_eq!(world.append("a", &"é".repeat(128), bytes(MIB)).unwrap(), 2);
    assert_refused(world.append("a", "t", bytes(MIB + 1)), ErrorCode::EntryTooLarge);
    let field = |world: &mut World, payload: &v1::WorkspaceAppend, path: &str| {
        let refusal = assert_refused(world.send(world.append_with("a", payload)), ErrorCode::FieldInvalid);
        let paths: Vec<_> = refusal.violations().iter().map(|violation| violation.path.clone()).collect();
        assert_eq!(paths, [path]);
    };
    for topic in ["", " \t ", "a/b", "a\0", "a\u{200b}", &"a".repeat(129)] {
        field(&mut world, &payload(topic, json("1")), "envelope.payload.topic");
    }
    for workspace_id in ["", "t", "task:", "team:t", "task:-"] {
        let payload = v1::WorkspaceAppend { workspace_id: workspace_id.into(), ..payload("t", json("1")) };
        field(&mut world, &payload, "envelope.payload.workspace_id");
    }
    for text in ["", "{", "{\"a\":1,}", "NaN"] {
        field(&mut world, &payload("t", json(text)), "envelope.payload.json");
    }
    field(&mut world, &v1::WorkspaceAppend { entry: None, ..payload("t", json("1")) }, "envelope.payload.entry");
    let uri = Entry::Reference(v1::ContextReference { sha256: vec![7; 32].into(), ..Default::default() });
    field(&mut world, &payload("t", uri), "envelope.payload.reference.uri");
    for (path, envelope) in [
        ("envelope.task_id", v1::Envelope { task_id: "t".into(), ..world.append_with("a", &payload("t", json("1"))) }),
        ("envelope.epoch", v1::Envelope { epoch: 1, ..world.append_with("a", &payload("t", json("1"))) }),
        (
            "envelope.receiver_id",
            v1::Envelope { receiver_id: "b".into(), ..world.append_with("a", &payload("t", json("1"))) },
        ),
    ] {
        let refusal = assert_refused(world.send(envelope), ErrorCode::FieldInvalid);
        assert_eq!(refusal.violations()[0].path, path);
    }
    assert_eq!(world.append("a", "t", json("1")).unwrap(), 3, "nothing refused used up a number");
}

#[test]
fn the_owner_its_delegators_and_the_candidate_that_accepted_take_part() {
    let (mut world, mut a, mut b) = World::of_workspace(Settings::default());
    let _c = world.connect("c");
    world.append("a", "t", json("1")).unwrap();
    assert_refused(world.append("b", "t", json("2")), ErrorCode::PermissionDenied);
    let lend = v1::HandoffRequest {
        task_type: "support".into(),
        mode: v1::HandoffMode::Delegate.into(),
        ..Default::default()
    };
    let handoff = world.send(world.request_with("a", "b", 1, &lend)).unwrap().handoff_id;
    world.take_and_ack(&mut b);
    assert_refused(world.append("b", "t", json("2")), ErrorCode::PermissionDenied);
    assert_eq!(world.page(&agent("b"), &all(0)).unwrap_err().code(), ErrorCode::PermissionDenied);
    world.send(world.accept("b", "a", &handoff, 1)).unwrap();
    world.take_and_ack(&mut a);
    assert_eq!(world.append("b", "t", json("2")).unwrap(), 2, "from ACCEPTED on");
    assert_eq!(sequences(&world.page(&agent("b"), &all(0)).unwrap()), [1, 2]);
    world.send(world.context("a", "b", &handoff, 1)).unwrap();
    world.take_and_ack(&mut b);
    world.send(world.complete("b", "a", &handoff, 1)).unwrap();
    world.take_and_ack(&mut a);
    assert_eq!(world.append("a", "t", json("3")).unwrap(), 3, "the delegator");
    assert_eq!(world.append("b", "t", json("4")).unwrap(), 4, "the owner");
    assert_refused(world.append("c", "t", json("5")), ErrorCode::PermissionDenied);
    assert_eq!(world.page(&agent("c"), &all(0)).unwrap_err().code(), ErrorCode::PermissionDenied);
    // The end of the loan ends the part of the delegate.
    world.send(world.status("b", "", 2, v1::TaskStatus::Completed)).unwrap();
    assert_refused(world.append("b", "t", json("5")), ErrorCode::PermissionDenied);
    assert_eq!(sequences(&world.page(&operator(), &all(2)).unwrap()), [3, 4]);
}

#[test]
fn a_workspace_that_does_not_exist_is_unknown_to_those_that_may_read_all() {
    let (mut world, ..) = World::of_workspace(Settings::default());
    let caller = operator();
    for unknown in ["task:other", "plan:t", "thread:t", "run:t"] {
        let query = EntryQuery { workspace: WorkspaceId::parse(unknown).unwrap(), ..all(0) };
        assert_eq!(world.page(&caller, &query).unwrap_err().code(), ErrorCode::WorkspaceUnknown);
        assert_eq!(world.page(&agent("a"), &query).unwrap_err().code(), ErrorCode::PermissionDenied);
        let payload = v1::WorkspaceAppend { workspace_id: unknown.into(), ..payload("t", json("1")) };
        assert_refused(world.send(world.append_with("a", &payload)), ErrorCode::PermissionDenied);
    }
    let empty = world.page(&agent("a"), &all(0)).unwrap();
    assert_eq!(empty, EntryPage::default(), "a workspace without entries exists with its task");
    let beyond = world.page(&agent("a"), &all(7)).unwrap();
    assert_eq!((beyond.gap, beyond.next_after), (Some((1, 7)), 0));
}

#[test]
fn a_policy_decides_by_topic() {
    let text = "@id(\"all\") permit(principal, action, resource);
        @id(\"b-reads-no-plans\") forbid(principal == Agent::\"a\", action == Action::\"readWorkspace\", resource)
        when { context.topic == \"secret\" };
        @id(\"a-writes-no-notes\") forbid(principal == Agent::\"a\", action == Action::\"appendWorkspace\", resource)
        when { context.topic == \"notes\" };";
    let (mut world, ..) = World::of_workspace(Settings::default());
    world.resources.policies.store(Arc::new(Policies::parse(&[Source::new("test.cedar", text)]).unwrap()));
    let refusal = assert_refused(world.append("a", "Notes", json("1")), ErrorCode::PermissionDenied);
    assert!(refusal.to_string().contains("a-writes-no-notes"), "{refusal}");
    world.append("b", "notes", json("1")).unwrap();
    world.append("a", "secret", json("2")).unwrap();
    world.append("a", "open", json("3")).unwrap();
    let page = world.page(&agent("a"), &all(0)).unwrap();
    assert_eq!((sequences(&page), page.gap, page.next_after), (vec![1, 3], None, 3));
    assert_eq!(world.page(&agent("a"), &only("secret", 0)).unwrap_err().code(), ErrorCode::PermissionDenied);
    assert_eq!(sequences(&world.page(&agent("b"), &only("secret", 0)).unwrap()), [2]);
    let caller = agent("a");
    let (topics, _) = world.view(&caller).workspace_topics(&id()).unwrap();
    assert_eq!(topics.iter().map(|topic| topic.name.as_str()).collect::<Vec<_>>(), ["notes", "open"]);
}

#[test]
fn quotas_refuse_with_the_time_to_wait() {
    let limits = Limits { topics_max: 256, bytes_max: 2 * MIB as u64, ..Limits::default() };
    let (mut world, ..) = World::of_workspace(Settings { workspace: limits, ..Settings::default() });
    for number in 0..256 {
        world.append("a", &format!("topic {number}"), json("1")).unwrap();
    }
    world.pass(HOUR);
    let refusal = assert_refused(world.append("a", "one more", json("1")), ErrorCode::QuotaExceeded);
    assert_eq!(refusal.retry_after(), Some(47 * HOUR));
    world
        .append("a", "topic 0", Entry::Bytes(v1::ContextBytes { data: vec![0; MIB].into(), ..Default::default() }))
        .unwrap();
    let large = Entry::Bytes(v1::ContextBytes { data: vec![0; MIB].into(), ..Default::default() });
    assert_refused(world.append("a", "topic 0", large.clone()), ErrorCode::QuotaExceeded);
    world.pass(47 * HOUR);
    world.append("a", "one more", large).unwrap();
}

#[test]
fn each_entry_expires_48_hours_after_its_append_and_leaves_a_gap() {
    let (mut world, ..) = World::of_workspace(Settings::default());
    for (number, pause) in [(1, 1), (2, 1), (3, 2)] {
        world.append("a", "t", json(&number.to_string())).unwrap();
        world.pass(pause * HOUR);
    }
    assert_eq!(world.rows(Table::WorkspaceEntries), 3);
    let envelopes = world.rows(Table::Envelopes);
    world.pass(44 * HOUR - Duration::from_secs(1));
    assert_eq!(sequences(&world.page(&agent("a"), &all(0)).unwrap()), [1, 2, 3]);
    world.pass(Duration::from_secs(1));
    let page = world.page(&agent("a"), &all(0)).unwrap();
    assert_eq!((sequences(&page), page.gap), (vec![2, 3], Some((1, 1))));
    world.restart();
    world.pass(HOUR);
    let page = world.page(&agent("a"), &all(0)).unwrap();
    assert_eq!((sequences(&page), page.gap), (vec![3], Some((1, 2))), "the timer survives a restart");
    world.pass(HOUR);
    let page = world.page(&agent("a"), &all(1)).unwrap();
    assert_eq!((sequences(&page), page.gap, page.next_after), (vec![], Some((2, 3)), 3));
    assert_eq!(world.rows(Table::WorkspaceEntries), 0);
    assert_eq!(world.rows(Table::Envelopes), envelopes - 3, "the content goes with the entries");
    assert_eq!(world.append("a", "t", json("4")).unwrap(), 4);
    let owner = agent("a");
    assert_eq!(world.view(&owner).workspace(&id()).unwrap().record.workspace.bytes, 1);
}

#[test]
fn many_entries_that_expire_together_go_a_bounded_part_a_tick() {
    let (mut world, ..) = World::of_workspace(Settings::default());
    for _ in 0..300 {
        world.append("a", "t", json("1")).unwrap();
    }
    world.now = world.now.plus(48 * HOUR);
    world.finish();
    let left = world.rows(Table::WorkspaceEntries);
    assert!((200..300).contains(&left), "{left} are left after one tick");
    world.settle();
    assert_eq!(world.rows(Table::WorkspaceEntries), 0);
}

#[test]
fn a_page_ends_where_a_frame_is_full() {
    let (mut world, ..) = World::of_workspace(Settings::default());
    for _ in 0..4 {
        let data = Bytes::from(vec![0; 900_000]);
        world.append("a", "t", Entry::Bytes(v1::ContextBytes { data, ..Default::default() })).unwrap();
    }
    let mut after = 0;
    let mut seen = Vec::new();
    while seen.len() < 4 {
        let page = world.page(&agent("a"), &EntryQuery { envelopes: true, ..all(after) }).unwrap();
        let bytes: usize = page.entries.iter().map(prost::Message::encoded_len).sum();
        assert!(!page.entries.is_empty() && bytes < 4 * MIB);
        seen.extend(sequences(&page));
        assert_eq!(page.has_more(), seen.len() < 4);
        after = page.next_after;
    }
    assert_eq!(seen, [1, 2, 3, 4]);
}

#[test]
fn a_reader_of_one_topic_passes_over_the_others() {
    let (mut world, ..) = World::of_workspace(Settings::default());
    for _ in 0..2500 {
        world.append("a", "noise", json("1")).unwrap();
    }
    world.append("a", "signal", json("2")).unwrap();
    let (mut after, mut pages) = (0, 0);
    let found = loop {
        let page = world.page(&agent("a"), &only("signal", after)).unwrap();
        pages += 1;
        assert!(page.next_after > after, "every page makes progress");
        after = page.next_after;
        if !page.entries.is_empty() {
            break sequences(&page);
        }
    };
    assert_eq!((found, pages), (vec![2501], 3));
    let before = world.disk.reads.load(std::sync::atomic::Ordering::Relaxed);
    world.page(&agent("a"), &all(2500)).unwrap();
    let reads = world.disk.reads.load(std::sync::atomic::Ordering::Relaxed) - before;
    assert!(reads < 10, "a list after a number does not read what lies before it: {reads} reads");
}

#[test]
fn a_workspace_closes_with_its_task_and_is_read_until_the_retention() {
    let retention = Retention { ended_tasks: Some(10 * HOUR), entries_a_step: 2, ..Retention::default() };
    let (mut world, ..) = World::of_workspace(Settings { retention, ..Settings::default() });
    let before = [Table::Envelopes, Table::Timers].map(|table| world.rows(table));
    for number in 0..9 {
        world.append("a", "t", json(&number.to_string())).unwrap();
    }
    world.end_task("a", 1);
    assert_refused(world.append("a", "t", json("9")), ErrorCode::WorkspaceClosed);
    world.pass(9 * HOUR);
    let page = world.page(&agent("a"), &all(0)).unwrap();
    assert_eq!((page.entries.len(), page.is_closed), (9, true));
    let (updates, mut watched) = Updates::each(4);
    world
        .engine
        .handle(Command::Watch { watcher: WatcherId(1), entity: EntityId::Workspace(id()), updates }, world.now);
    world.settle();
    assert!(matches!(watched.try_recv(), Ok(Ok(Update(_)))));
    world.pass(HOUR);
    assert_eq!([Table::Workspaces, Table::WorkspaceEntries].map(|table| world.rows(table)), [0, 0]);
    assert_eq!(
        [Table::Envelopes, Table::Timers].map(|table| world.rows(table)),
        before,
        "the rest is of the dead letter"
    );
    assert!(watched.try_recv().is_err_and(|end| end == tokio::sync::mpsc::error::TryRecvError::Disconnected));
    assert_eq!(world.page(&operator(), &all(0)).unwrap_err().code(), ErrorCode::WorkspaceUnknown);
    assert_refused(world.append("a", "t", json("9")), ErrorCode::PermissionDenied);
}

#[test]
fn the_removal_of_a_long_workspace_goes_on_after_a_restart() {
    let retention = Retention { ended_tasks: Some(HOUR), entries_a_step: 2, ..Retention::default() };
    let (mut world, ..) = World::of_workspace(Settings { retention, ..Settings::default() });
    let before = [Table::Envelopes, Table::Timers].map(|table| world.rows(table));
    for number in 0..9 {
        world.append("a", "t", json(&number.to_string())).unwrap();
    }
    world.end_task("a", 1);
    world.now = world.now.plus(HOUR);
    for _ in 0..200 {
        world.finish();
        if world.rows(Table::Workspaces) == 0 {
            break;
        }
    }
    assert!(world.rows(Table::WorkspaceEntries) > 0, "the entries follow in later commits");
    world.restart();
    world.settle();
    assert_eq!(world.rows(Table::WorkspaceEntries), 0);
    assert_eq!([Table::Envelopes, Table::Timers].map(|table| world.rows(table)), before);
}

#[test]
fn a_watcher_of_an_empty_workspace_gets_its_first_entry() {
    let (mut world, ..) = World::of_workspace(Settings::default());
    let (updates, mut watched) = Updates::each(4);
    let entity = EntityId::Workspace(id());
    world.engine.handle(Command::Watch { watcher: WatcherId(1), entity, updates }, world.now);
    world.settle();
    world.append("a", "t", json("1")).unwrap();
    let mut last = || match watched.try_recv() {
        Ok(Ok(Update(record))) => record.as_workspace().expect("a workspace is watched").workspace.last_sequence,
        other => panic!("expected an update, not {other:?}"),
    };
    assert_eq!((last(), last()), (0, 1));
}

#[test]
fn a_clock_that_is_set_back_never_makes_the_times_of_entries_go_back() {
    let (mut world, ..) = World::of_workspace(Settings::default());
    world.append("a", "t", json("1")).unwrap();
    let (seconds, nanos) = world.now.to_parts();
    world.now = baton_broker_core::time::Timestamp::from_parts(seconds - 7200, nanos).unwrap();
    world.settle();
    world.append("a", "t", json("2")).unwrap();
    world.pass(Duration::from_secs(60));
    world.append("a", "t", json("3")).unwrap();
    let page = world.page(&agent("a"), &all(0)).unwrap();
    let times: Vec<_> = page.entries.iter().map(|entry| entry.create_time.unwrap()).collect();
    assert!(times.is_sorted_by_key(|time| (time.seconds, time.nanos)), "{times:?}");
    world.pass(48 * HOUR);
    assert_eq!(world.rows(Table::WorkspaceEntries), 0, "and none of them stays longer");
}

#[test]
fn an_appended_entry_is_shown_to_its_author_alone() {
    let (mut world, ..) = World::of_workspace(Settings::default());
    let sequence = world.append("a", "notes", json("1")).unwrap();
    let shown = |caller: &Caller| world.view(caller).appended_entry(&id(), sequence);
    assert_eq!(shown(&agent("a")).unwrap().expect("a is its author").author_id, "a");
    assert_eq!(shown(&agent("b")).unwrap(), None, "as if it had expired");
    assert_eq!(shown(&Caller::Anonymous).unwrap_err().code(), ErrorCode::IdentityMissing);
    assert_eq!(shown(&operator()).unwrap_err(), BrokerError::AgentsOnly { caller: operator().to_string() });
}
