//! Workspaces end to end: writers, readers and watchers over kills and lost connections, and the command line.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use baton::proto::v1::{self, MessageType, watch_entries_response::Update, workspace_append::Entry, workspace_entry};
use baton_client::{About, Client, ClientError, Options, Workspace, WorkspaceUpdate, session::Agent};
use prost::Message as _;
use serde_json::Value;
use tokio_stream::StreamExt as _;

use crate::broker::{Broker, PATIENCE, composer, eventually, identity, new_task};

/// The entries of each writer.
const ENTRIES: u64 = 400;
/// One topic, as each writer spells it.
const SPELLINGS: [(&str, &str); 3] =
    [("alice", "Growth Metrics"), ("bob", " growth_metrics"), ("carol", "GROWTH\tmetrics ")];

fn lend() -> v1::HandoffRequest {
    v1::HandoffRequest { task_type: "support".into(), mode: v1::HandoffMode::Delegate.into(), ..Default::default() }
}

/// Lends a task from one agent to the next.
async fn hand_on(from: &Agent, to: &Agent, task: &str, epoch: u64) {
    from.request(to.id().as_str(), task, epoch, &lend()).await.unwrap();
    to.accept(&to.take().await.unwrap()).await.unwrap();
    let accept = from.take().await.unwrap();
    let context = baton_client::context_of([("goals", "[]".to_owned())]);
    from.send_context(&accept, &context).await.unwrap();
    to.complete(&to.take().await.unwrap()).await.unwrap();
    from.take().await.unwrap();
}

/// A task of which alice, bob and carol are participants: alice has lent it to bob, and bob to carol.
async fn a_shared_task(broker: &Broker) -> String {
    let (alice, bob, carol) = (broker.agent("alice").await, broker.agent("bob").await, broker.agent("carol").await);
    let task = new_task();
    hand_on(&alice, &bob, &task, 1).await;
    hand_on(&bob, &carol, &task, 2).await;
    task
}

fn append(task: &str, topic: &str, json: &str) -> v1::WorkspaceAppend {
    v1::WorkspaceAppend {
        workspace_id: format!("task:{task}"),
        topic: topic.into(),
        entry: Some(Entry::Json(json.into())),
        ..Default::default()
    }
}

/// The places in which the tests find the broker, which gets another port when it starts again.
#[derive(Clone)]
struct Place(Arc<std::sync::Mutex<Options>>);

impl Place {
    fn of(broker: &Broker) -> Self {
        Self(Arc::new(std::sync::Mutex::new(Self::options(broker))))
    }

    fn options(broker: &Broker) -> Options {
        Options { server: broker.address.clone(), ca: Some(broker.ca()), ..Default::default() }
    }

    fn moves_to(&self, broker: &Broker) {
        *self.0.lock().unwrap() = Self::options(broker);
    }

    async fn client_of(&self, name: &str) -> Result<Client, ClientError> {
        let options = self.0.lock().unwrap().clone();
        let client = Client::connect(&options).await?;
        let token = client.prove(&identity(name)).await?;
        client.with_token(&token)
    }

    fn caller(&self, name: &'static str) -> Caller {
        Caller { place: self.clone(), name, client: None }
    }
}

/// An agent that makes calls until they are answered, over one connection while it lasts.
struct Caller {
    place: Place,
    name: &'static str,
    client: Option<Client>,
}

impl Caller {
    async fn call<T, F>(&mut self, call: impl Fn(Client) -> F) -> T
    where
        F: Future<Output = Result<T, ClientError>>,
    {
        loop {
            let connected = match self.client.take() {
                Some(client) => Ok(client),
                None => self.place.client_of(self.name).await,
            };
            let answer = match connected {
                Ok(client) => call(client.clone()).await.inspect(|_| self.client = Some(client)),
                Err(error) => Err(error),
            };
            match answer {
                Ok(answer) => return answer,
                Err(error) if error.is_passing() => tokio::time::sleep(Duration::from_millis(50)).await,
                Err(error) => panic!("{} is refused: {error}", self.name),
            }
        }
    }
}

/// Appends the entries of one writer, each sent twice. Returns the numbers of their receipts.
async fn write(
    place: Place,
    task: String,
    name: &'static str,
    topic: &'static str,
    written: Arc<AtomicU64>,
) -> Vec<u64> {
    let (composer, mut caller) = (composer(name), place.caller(name));
    let mut numbers = Vec::new();
    for number in 0..ENTRIES {
        let payload = append(&task, topic, &format!("\"{name} {number}\""));
        let envelope: bytes::Bytes = composer.encode("", MessageType::WorkspaceAppend, &About::default(), &payload);
        let send = |client: Client| {
            let envelope = envelope.clone();
            async move { client.send(envelope).await }
        };
        let (first, again) = (caller.call(&send).await, caller.call(&send).await);
        assert_eq!(first, again, "a repeat gets the first receipt");
        numbers.push(first.resource_sequence);
        written.fetch_add(1, Ordering::Relaxed);
    }
    numbers
}

/// Reads in pages of 7, until the last entry. Returns the entries as number and text.
async fn read_slowly(place: Place, task: String) -> Vec<(u64, String)> {
    let (mut seen, mut caller) = (Vec::new(), place.caller("alice"));
    let mut after_sequence = 0;
    while after_sequence < ENTRIES * 3 {
        let request = v1::ListEntriesRequest {
            workspace_id: format!("task:{task}"),
            topics: vec!["growth metrics".into()],
            after_sequence,
            page_size: 7,
            wait: Some(prost_types::Duration { seconds: 2, nanos: 0 }),
            ..Default::default()
        };
        let list = |client: Client| {
            let request = request.clone();
            async move { client.answer(client.workspaces().list_entries(request).await) }
        };
        let page = caller.call(list).await;
        assert_eq!(page.gap, None);
        assert!(page.entries.len() <= 7);
        seen.extend(page.entries.iter().map(text_of));
        after_sequence = page.next_after_sequence;
    }
    seen
}

/// Watches until the last entry, and cuts its connection five times. Returns the entries as number and text.
async fn watch_with_cuts(place: Place, task: String) -> Vec<(u64, String)> {
    let mut seen: Vec<(u64, String)> = Vec::new();
    let mut cuts = 0;
    // Each watch has a connection of its own, which ends with it.
    while (seen.len() as u64) < ENTRIES * 3 {
        let request = v1::WatchEntriesRequest {
            workspace_id: format!("task:{task}"),
            after_sequence: seen.last().map_or(0, |(sequence, _)| *sequence),
            ..Default::default()
        };
        let watch = |client: Client| {
            let request = request.clone();
            async move { client.answer(client.workspaces().watch_entries(request).await) }
        };
        let mut updates = place.caller("bob").call(watch).await;
        let until = if cuts < 5 { seen.len() + 150 } else { usize::MAX };
        cuts += 1;
        // An error ends this watch, and the next one goes on after the last entry.
        while let Some(Ok(update)) = updates.next().await {
            match update.update {
                Some(Update::Entry(entry)) => seen.push(text_of(&entry)),
                Some(Update::CaughtUp(_)) => {}
                other => panic!("nothing has expired, and the task is open: {other:?}"),
            }
            if seen.len() >= until || seen.len() as u64 == ENTRIES * 3 {
                break;
            }
        }
    }
    assert!(cuts > 5);
    seen
}

fn text_of(entry: &v1::WorkspaceEntry) -> (u64, String) {
    assert_eq!(entry.topic, "growth_metrics");
    match &entry.entry {
        Some(workspace_entry::Entry::Json(json)) => (entry.sequence, json.clone()),
        other => panic!("expected JSON, not {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn three_writers_share_one_numbering_over_a_kill_and_every_reader_sees_each_entry_once() {
    let broker = Broker::start();
    let task = a_shared_task(&broker).await;
    let place = Place::of(&broker);
    let written = Arc::new(AtomicU64::new(0));
    let writers: Vec<_> = SPELLINGS
        .into_iter()
        .map(|(name, topic)| tokio::spawn(write(place.clone(), task.clone(), name, topic, written.clone())))
        .collect();
    let reader = tokio::spawn(read_slowly(place.clone(), task.clone()));
    let watcher = tokio::spawn(watch_with_cuts(place.clone(), task.clone()));
    eventually("half of the entries", async || written.load(Ordering::Relaxed) > ENTRIES * 3 / 2).await;
    let broker = Broker::start_in(broker.kill(), &[]);
    place.moves_to(&broker);

    let mut numbers = BTreeSet::new();
    for writer in writers {
        let of_one = tokio::time::timeout(PATIENCE, writer).await.expect("the writers end").unwrap();
        assert!(of_one.is_sorted(), "the entries of one writer are in its order");
        numbers.extend(of_one);
    }
    assert!(numbers.into_iter().eq(1..=ENTRIES * 3), "each receipt has a number of its own, and none is missing");
    let read = tokio::time::timeout(PATIENCE, reader).await.expect("the reader ends").unwrap();
    let watched = tokio::time::timeout(PATIENCE, watcher).await.expect("the watcher ends").unwrap();
    assert!(read.iter().map(|(number, _)| *number).eq(1..=ENTRIES * 3), "each once and in order");
    assert_eq!(read, watched);
    let texts: BTreeSet<_> = read.into_iter().map(|(_, text)| text).collect();
    assert_eq!(texts.len() as u64, ENTRIES * 3, "no entry is there twice");
}

fn json(text: &str) -> Entry {
    Entry::Json(text.to_owned())
}

async fn workspace(broker: &Broker, name: &str, task: &str) -> Workspace {
    broker.link(name).await.workspace(&format!("task:{task}")).unwrap().verifying()
}

#[tokio::test]
async fn the_client_appends_lists_watches_and_waits_for_topics() {
    let broker = Broker::start();
    let task = a_shared_task(&broker).await;
    let (alice, bob) = (workspace(&broker, "alice", &task).await, workspace(&broker, "bob", &task).await);
    assert_eq!(alice.append("A", json("1")).await.unwrap(), 1);
    let mut updates = bob.watch(&["a", "b"], 0);
    let mut next = async || match tokio::time::timeout(PATIENCE, updates.next()).await.expect("an update") {
        Some(Ok(WorkspaceUpdate::Entry(entry))) => format!("{} {}", entry.sequence, entry.topic),
        Some(Ok(other)) => format!("{other:?}"),
        other => panic!("expected an update, not {other:?}"),
    };
    assert_eq!([next().await, next().await], ["1 a", "CaughtUp(1)"]);
    assert_eq!(alice.append("c", json("2")).await.unwrap(), 2);
    let waits = alice.clone();
    let waited = tokio::spawn(async move { waits.wait_for(&["B", "a"], PATIENCE).await.unwrap() });
    let conflict = bob.append_after(1, "b", json("3")).await.unwrap_err();
    assert_eq!(conflict.reason(), Some("SEQUENCE_CONFLICT"));
    assert_eq!(bob.append_after(2, "b", json("3")).await.unwrap(), 3);
    assert_eq!(next().await, "3 b");
    let found = waited.await.unwrap();
    assert_eq!(
        found.iter().map(|(topic, entry)| (topic.as_str(), entry.sequence)).collect::<Vec<_>>(),
        [("a", 1), ("b", 3)]
    );
    let missing = alice.wait_for(&["a", "never"], Duration::from_millis(100)).await.unwrap();
    assert_eq!(missing.into_keys().collect::<Vec<_>>(), ["a"]);

    let page = alice.list(&[], 0, 2, Duration::ZERO).await.unwrap();
    assert_eq!((page.entries.len(), page.has_more, page.next_after_sequence), (2, true, 2));
    let waits = alice.clone();
    let waiting = tokio::spawn(async move { waits.list(&["later"], 3, 0, Duration::from_secs(60)).await.unwrap() });
    bob.append("b", json("4")).await.unwrap();
    assert_eq!(next().await, "4 b");
    bob.append("later", json("5")).await.unwrap();
    let page = tokio::time::timeout(PATIENCE, waiting).await.expect("the wait ends").unwrap();
    assert_eq!(page.entries.iter().map(|entry| entry.sequence).collect::<Vec<_>>(), [5]);
    assert_eq!(bob.topics().await.unwrap().len(), 4);
    assert_eq!(bob.show().await.unwrap().last_sequence, 5);

    // The end of the task closes the workspace, for a call that waits too.
    let waits = alice.clone();
    let waiting = tokio::spawn(async move { waits.list(&[], 5, 0, Duration::from_secs(60)).await.unwrap() });
    let carol = broker.agent_session("carol").await;
    for (agent, epoch) in [(carol, 3), (broker.agent_session("bob").await, 4), (broker.agent_session("alice").await, 5)]
    {
        let update = v1::TaskStatusUpdate { status: v1::TaskStatus::Completed.into(), ..Default::default() };
        agent.report(&About::task(&task, epoch), &update).await.unwrap();
    }
    let page = tokio::time::timeout(PATIENCE, waiting).await.expect("the wait ends").unwrap();
    assert!(page.closed && page.entries.is_empty());
    let refusal = alice.append("a", json("6")).await.unwrap_err();
    assert_eq!(refusal.reason(), Some("WORKSPACE_CLOSED"));
    // bob takes no part in the task any more, which ends its watch.
    // The watch may see the end of the workspace first: both follow from the same commits.
    let end = tokio::time::timeout(PATIENCE, updates.next()).await.expect("the watch ends");
    match end.unwrap() {
        Ok(last) => assert_eq!(last, WorkspaceUpdate::Closed(5)),
        Err(refusal) => assert_eq!(refusal.reason(), Some("PERMISSION_DENIED")),
    }
    let mut all: Vec<_> = alice.watch(&[], 3).map(Result::unwrap).collect().await;
    assert_eq!(all.pop(), Some(WorkspaceUpdate::Closed(5)));
    assert_eq!(all.pop(), Some(WorkspaceUpdate::CaughtUp(5)));
    assert_eq!(all.len(), 2);
}

#[tokio::test]
async fn requests_out_of_their_bounds_are_refused() {
    let broker = Broker::start();
    let task = a_shared_task(&broker).await;
    let client = Place::of(&broker).client_of("alice").await.unwrap();
    let list = |change: fn(&mut v1::ListEntriesRequest)| {
        let mut request = v1::ListEntriesRequest { workspace_id: format!("task:{task}"), ..Default::default() };
        change(&mut request);
        let client = client.clone();
        async move { client.answer(client.workspaces().list_entries(request).await) }
    };
    type Change = fn(&mut v1::ListEntriesRequest);
    let refused: [(&str, Change); 4] = [
        ("wait", |request| request.wait = Some(prost_types::Duration { seconds: 60, nanos: 1 })),
        ("workspace_id", |request| request.workspace_id = "task".into()),
        ("topics[0]", |request| request.topics = vec![" ".into()]),
        ("topics", |request| request.topics = vec!["t".into(); 65]),
    ];
    for (path, change) in refused {
        match list(change).await {
            Err(ClientError::Refused(refusal)) => assert_eq!(refusal.violations[0].0, path, "{refusal}"),
            other => panic!("expected a refusal of {path}, not {other:?}"),
        }
    }
    list(|request| request.page_size = u32::MAX).await.expect("a larger page is capped");
    let beyond = list(|request| request.after_sequence = 9).await.unwrap();
    assert_eq!(beyond.gap, Some(v1::WatchGap { first_number: 1, last_number: 9 }));
    assert_eq!((beyond.next_after_sequence, beyond.has_more), (0, false));
    let unknown = list(|request| request.workspace_id = "plan:q3".into()).await.unwrap_err();
    assert_eq!(unknown.reason(), Some("WORKSPACE_UNKNOWN"));

    // A watch from the future begins with a gap, and then waits.
    let request =
        v1::WatchEntriesRequest { workspace_id: format!("task:{task}"), after_sequence: 9, ..Default::default() };
    let mut updates = client.answer(client.workspaces().watch_entries(request).await).unwrap();
    let mut next = async || updates.next().await.unwrap().unwrap().update.unwrap();
    assert!(matches!(next().await, Update::Gap(v1::WatchGap { first_number: 1, last_number: 9 })));
    assert!(matches!(next().await, Update::CaughtUp(v1::CaughtUp { last_sequence: 0 })));
    let composed = |payload: &v1::WorkspaceAppend| {
        composer("alice").compose("", MessageType::WorkspaceAppend, &About::default(), payload).encode_to_vec().into()
    };
    let request = v1::AppendEntryRequest { envelope: composed(&append(&task, "T", "1")) };
    let answer = client.answer(client.workspaces().append_entry(request.clone()).await).unwrap();
    let (receipt, entry) = (answer.receipt.unwrap(), answer.entry.unwrap());
    assert_eq!((receipt.resource_sequence, entry.sequence, entry.topic.as_str()), (1, 1, "t"));
    let again = client.answer(client.workspaces().append_entry(request).await).unwrap();
    assert_eq!((again.receipt.unwrap(), again.entry.unwrap()), (receipt, entry.clone()));
    assert!(matches!(next().await, Update::Entry(seen) if *seen == entry));
    let info = composer("alice").compose("bob", MessageType::Info, &About::default(), &v1::Info::default());
    let request = v1::AppendEntryRequest { envelope: info.encode_to_vec().into() };
    let refusal = client.answer(client.workspaces().append_entry(request).await).unwrap_err();
    assert_eq!(refusal.reason(), Some("FIELD_INVALID"));
}

#[tokio::test]
async fn the_command_line_appends_lists_watches_and_shows() {
    let broker = Broker::start();
    let task = a_shared_task(&broker).await;
    let id = format!("task:{task}");
    let pem = broker.folder.path().join("alice.pem");
    identity("alice").key.write(&pem).unwrap();
    let pem = pem.to_str().unwrap();
    let as_alice =
        |arguments: &[&str]| broker.lines(&[&["workspace"], arguments, &["--id", "alice", "--key", pem]].concat());
    let appended = as_alice(&["append", &id, "My Topic", "--json", "{\"a\": 1}"]);
    assert_eq!(
        (appended[0]["resource"].as_str(), appended[0]["resourceSequence"].as_str()),
        (Some(&*format!("workspace:{id}")), Some("1"))
    );
    let file = broker.folder.path().join("trace.txt");
    std::fs::write(&file, "a trace").unwrap();
    as_alice(&["append", &id, "trace", "--file", file.to_str().unwrap(), "--media-type", "text/plain"]);
    let topics: Vec<Value> = as_alice(&["topics", &id]);
    assert_eq!(names(&topics, "name"), ["my_topic", "trace"]);
    let listed = as_alice(&["list", &id, "--topic", "MY topic"]);
    assert_eq!(names(&listed, "json"), ["{\"a\": 1}"]);
    let shown = broker.lines(&["workspace", "show", &id]);
    assert_eq!(shown[0]["lastSequence"].as_str(), Some("2"), "the operator sees it too");
    let (code, stderr) = crate::broker::exit_of(&mut broker.command(&[
        "workspace",
        "append",
        &id,
        "t",
        "--json",
        "1",
        "--expect-last",
        "7",
        "--id",
        "alice",
        "--key",
        pem,
    ]));
    assert_eq!(code, Some(8));
    assert!(stderr.contains("SEQUENCE_CONFLICT") && stderr.contains('2'), "{stderr}");
}

/// The values of a member of the listed objects.
fn names(listed: &[Value], member: &str) -> Vec<String> {
    let all = listed.iter().flat_map(|value| match value.as_array() {
        Some(values) => values.clone(),
        None => vec![value.clone()],
    });
    all.map(|value| value[member].as_str().unwrap_or_default().to_owned()).collect()
}
