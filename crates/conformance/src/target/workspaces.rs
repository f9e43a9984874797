//! SPEC 8: appends to the workspace of a task, lists, watches, and its end.

use prost_types::Duration as Span;
use tokio_stream::StreamExt as _;
use tonic::Code;

use super::{
    check::{Answer, Checks, Refusal, Verdict, answered, fail, same},
    story::{Stage, Story},
    world::{Actor, World},
};
use baton_client::{
    About,
    proto::v1::{self, watch_entries_response::Update, workspace_append::Entry, workspace_entry},
};

cases! {
    "workspace.numbers-are-dense" "8"
        "The entries of a workspace are numbered from 1 over all topics, and names that normalise alike are one topic."
        numbers_are_dense;
    "workspace.repeat-is-one-entry" "8"
        "The same append again gets the first receipt again, and is one entry." repeat_is_one_entry;
    "workspace.compare-and-append" "8"
        "An append with a wrong expected_last_sequence is refused with SEQUENCE_CONFLICT and the right number."
        compare_and_append;
    "workspace.only-participants-append" "8"
        "The owner and the candidate that has accepted append; a candidate before that, and an agent without a part, may not."
        only_participants;
    "workspace.bounds-are-checked" "8"
        "An entry over 1,048,576 bytes, a topic that normalises to nothing, a task_id or a receiver is refused." bounds;
    "workspace.list-makes-progress" "8"
        "A list names the last number that it looked at, of any topic, and has_more until the end." list_makes_progress;
    "workspace.watch-shows-each-entry-once" "8"
        "A watch from a number shows each later entry once and in order, and caught_up where the present ends."
        watch_shows_each_once;
    "workspace.wait-is-answered" "8"
        "A list that waits is answered when an entry of its topic is appended." wait_is_answered;
    "workspace.closes-with-its-task" "8"
        "After the end of the task an append is refused with WORKSPACE_CLOSED, and the entries can be read."
        closes_with_its_task;
}

const DENIED: Refusal = Refusal(Code::PermissionDenied, "PERMISSION_DENIED");
const INVALID: Refusal = Refusal(Code::InvalidArgument, "FIELD_INVALID");

fn payload(task: &str, topic: &str, json: &str) -> v1::WorkspaceAppend {
    v1::WorkspaceAppend {
        workspace_id: format!("task:{task}"),
        topic: topic.to_owned(),
        entry: Some(Entry::Json(json.to_owned())),
        ..Default::default()
    }
}

async fn append(by: &Actor, task: &str, topic: &str, json: &str) -> Answer<v1::Receipt> {
    by.say("", &About::default(), &payload(task, topic, json)).await
}

/// Appends an entry, which must be taken. Returns its number.
async fn appended(by: &Actor, task: &str, topic: &str, json: &str) -> Verdict<u64> {
    let step = format!("{} appends {json} to {topic:?}", by.id());
    let receipt = answered(&step, append(by, task, topic, json).await)?;
    same(&step, "resource", format!("workspace:task:{task}"), receipt.resource)?;
    Ok(receipt.resource_sequence)
}

async fn list(by: &Actor, request: v1::ListEntriesRequest) -> Answer<v1::ListEntriesResponse> {
    by.call(async { by.client.answer(by.client.workspaces().list_entries(request).await) }).await
}

fn all(task: &str) -> v1::ListEntriesRequest {
    v1::ListEntriesRequest { workspace_id: format!("task:{task}"), ..Default::default() }
}

fn texts(entries: &[v1::WorkspaceEntry]) -> Vec<(u64, String, String)> {
    let text = |entry: &v1::WorkspaceEntry| match &entry.entry {
        Some(workspace_entry::Entry::Json(json)) => json.clone(),
        other => format!("{other:?}"),
    };
    entries.iter().map(|entry| (entry.sequence, entry.topic.clone(), text(entry))).collect()
}

fn text(sequence: u64, topic: &str, json: &str) -> (u64, String, String) {
    (sequence, topic.to_owned(), json.to_owned())
}

async fn numbers_are_dense(world: World) -> Verdict {
    let Story { alice, bob, task, .. } = Story::at(&world, Stage::Accepted).await?;
    let numbers = [
        appended(&alice, &task, "Growth Metrics", "1").await?,
        appended(&bob, &task, "charts", "2").await?,
        appended(&bob, &task, "  growth \t METRICS ", "3").await?,
    ];
    same("three appends", "resource_sequence", [1, 2, 3], numbers)?;
    let page = answered("alice lists the entries", list(&alice, all(&task)).await)?;
    let expected = vec![text(1, "growth_metrics", "1"), text(2, "charts", "2"), text(3, "growth_metrics", "3")];
    let mut checks = Checks::of("alice lists the entries");
    checks.same("entries", expected, texts(&page.entries));
    checks.same("last_sequence", 3, page.last_sequence);
    checks.same("author_id", bob.id(), page.entries.last().map_or("", |entry| entry.author_id.as_str()));
    checks.done()
}

async fn repeat_is_one_entry(world: World) -> Verdict {
    let Story { alice, task, .. } = Story::at(&world, Stage::Accepted).await?;
    let envelope = alice.envelope("", &About::default(), &payload(&task, "t", "1"));
    let first = answered("alice appends", alice.submit(&envelope).await)?;
    appended(&alice, &task, "t", "2").await?;
    let again = answered("alice sends the first append again", alice.submit(&envelope).await)?;
    same("alice sends the first append again", "receipt", first, again)?;
    let page = answered("alice lists the entries", list(&alice, all(&task)).await)?;
    same("alice lists the entries", "entries", vec![text(1, "t", "1"), text(2, "t", "2")], texts(&page.entries))
}

async fn compare_and_append(world: World) -> Verdict {
    let Story { alice, task, .. } = Story::at(&world, Stage::Accepted).await?;
    let after = async |last: u64| {
        let payload = v1::WorkspaceAppend { expected_last_sequence: Some(last), ..payload(&task, "t", "1") };
        alice.say("", &About::default(), &payload).await
    };
    let first = answered("alice appends after nothing", after(0).await)?;
    same("alice appends after nothing", "resource_sequence", 1, first.resource_sequence)?;
    let conflict = Refusal(Code::Aborted, "SEQUENCE_CONFLICT");
    let refusal = super::check::refused("alice appends after nothing again", after(0).await, conflict)?;
    let last = refusal.metadata.get("last_sequence").cloned().unwrap_or_default();
    same("alice appends after nothing again", "metadata last_sequence", "1".to_owned(), last)?;
    answered("alice appends after the first", after(1).await).map(drop)
}

async fn only_participants(world: World) -> Verdict {
    let story = Story::at(&world, Stage::Deciding).await?;
    let stranger = world.agent("stranger").await?;
    let task = &story.task;
    let mut checks = Checks::of("before bob accepts");
    checks.refused("bob appends", append(&story.bob, task, "t", "1").await, DENIED);
    checks.refused("a stranger appends", append(&stranger, task, "t", "1").await, DENIED);
    let absent = world.id("no-such-task");
    checks.refused("a stranger appends to an unknown task", append(&stranger, &absent, "t", "1").await, DENIED);
    checks.done()?;
    answered("bob accepts", story.accept().await)?;
    appended(&story.bob, task, "t", "1").await?;
    appended(&story.alice, task, "t", "2").await.map(drop)
}

async fn bounds(world: World) -> Verdict {
    let Story { alice, task, .. } = Story::at(&world, Stage::Accepted).await?;
    let about = About::default();
    let bytes = |length: usize| {
        let data = vec![0; length].into();
        let entry = Some(Entry::Bytes(v1::ContextBytes { data, ..Default::default() }));
        v1::WorkspaceAppend { entry, ..payload(&task, "t", "") }
    };
    let too_large = Refusal(Code::InvalidArgument, "ENTRY_TOO_LARGE");
    let mut checks = Checks::of("alice appends");
    let largest = alice.say("", &about, &bytes(1024 * 1024)).await;
    checks.holds("an entry of 1,048,576 bytes", largest.is_ok(), "taken", largest.err());
    checks.refused("an entry of 1,048,577 bytes", alice.say("", &about, &bytes(1024 * 1024 + 1)).await, too_large);
    for topic in ["", " \t", "a/b", &"a".repeat(129)] {
        checks.refused(&format!("topic {topic:?}"), append(&alice, &task, topic, "1").await, INVALID);
    }
    checks.refused("content that is no JSON", append(&alice, &task, "t", "{").await, INVALID);
    let with_task = alice.say("", &About::task(&task, 1), &payload(&task, "t", "1")).await;
    checks.refused("with a task_id", with_task, INVALID);
    checks.refused("with a receiver", alice.say(alice.id(), &about, &payload(&task, "t", "1")).await, INVALID);
    checks.done()
}

async fn list_makes_progress(world: World) -> Verdict {
    let Story { alice, bob, task, .. } = Story::at(&world, Stage::Accepted).await?;
    for number in 1..=5 {
        appended(&alice, &task, if number == 4 { "rare" } else { "often" }, &number.to_string()).await?;
    }
    let mut seen = Vec::new();
    let mut request = v1::ListEntriesRequest { page_size: 2, ..all(&task) };
    loop {
        let page = answered("bob lists two entries at a time", list(&bob, request.clone()).await)?;
        seen.extend(page.entries.iter().map(|entry| entry.sequence));
        if page.next_after_sequence <= request.after_sequence && page.has_more {
            return fail("bob lists two entries at a time", "next_after_sequence", "progress", "none");
        }
        request.after_sequence = page.next_after_sequence;
        if !page.has_more {
            break;
        }
    }
    same("bob lists two entries at a time", "sequences", vec![1, 2, 3, 4, 5], seen)?;
    let request = v1::ListEntriesRequest { topics: vec!["RARE".to_owned()], ..all(&task) };
    let page = answered("bob lists one topic", list(&bob, request).await)?;
    let mut checks = Checks::of("bob lists one topic");
    checks.same("entries", vec![text(4, "rare", "4")], texts(&page.entries));
    checks.same("next_after_sequence", 5, page.next_after_sequence);
    let request = v1::ListEntriesRequest { after_sequence: 9, ..all(&task) };
    let beyond = answered("bob lists beyond the end", list(&bob, request).await)?;
    checks.same("gap beyond the end", Some(v1::WatchGap { first_number: 6, last_number: 9 }), beyond.gap);
    let too_many = v1::ListEntriesRequest { page_size: 1001, ..all(&task) };
    answered("a page of 1001, which is capped", list(&bob, too_many).await)?;
    checks.done()
}

async fn watch_shows_each_once(world: World) -> Verdict {
    let Story { alice, bob, task, .. } = Story::at(&world, Stage::Accepted).await?;
    for number in 1..=3 {
        appended(&alice, &task, "t", &number.to_string()).await?;
    }
    let request =
        v1::WatchEntriesRequest { workspace_id: format!("task:{task}"), after_sequence: 1, ..Default::default() };
    let opened = bob.call(async { bob.client.answer(bob.client.workspaces().watch_entries(request).await) }).await;
    let mut updates = answered("bob watches after entry 1", opened)?;
    let mut seen = Vec::new();
    let mut next = async || -> Verdict<String> {
        let update = bob.call(async { Ok(updates.next().await) }).await;
        Ok(match answered("bob waits for an update", update)? {
            Some(Ok(v1::WatchEntriesResponse { update: Some(Update::Entry(entry)) })) => entry.sequence.to_string(),
            Some(Ok(v1::WatchEntriesResponse { update: Some(Update::CaughtUp(caught_up)) })) => {
                format!("caught up at {}", caught_up.last_sequence)
            }
            other => format!("{other:?}"),
        })
    };
    for _ in 0..3 {
        seen.push(next().await?);
    }
    appended(&alice, &task, "other", "4").await?;
    seen.push(next().await?);
    same(
        "bob watches after entry 1",
        "updates",
        vec!["2", "3", "caught up at 3", "4"],
        seen.iter().map(String::as_str).collect(),
    )
}

async fn wait_is_answered(world: World) -> Verdict {
    let Story { alice, bob, task, .. } = Story::at(&world, Stage::Accepted).await?;
    appended(&alice, &task, "other", "1").await?;
    let wait = Some(Span { seconds: 60, nanos: 0 });
    let request = v1::ListEntriesRequest { topics: vec!["t".to_owned()], wait, ..all(&task) };
    let (listed, appended) = tokio::join!(list(&bob, request), append(&alice, &task, "t", "2"));
    answered("alice appends while bob waits", appended)?;
    let page = answered("bob waits for an entry of topic t", listed)?;
    same("bob waits for an entry of topic t", "entries", vec![text(2, "t", "2")], texts(&page.entries))?;
    let too_long = Some(Span { seconds: 61, nanos: 0 });
    let request = v1::ListEntriesRequest { wait: too_long, ..all(&task) };
    let mut checks = Checks::of("bob waits for 61 seconds");
    checks.refused("the list", list(&bob, request).await, INVALID);
    checks.done()
}

async fn closes_with_its_task(world: World) -> Verdict {
    let Story { bob, task, .. } = Story::at(&world, Stage::Completed).await?;
    appended(&bob, &task, "t", "1").await?;
    let done = v1::TaskStatusUpdate { status: v1::TaskStatus::Completed.into(), ..Default::default() };
    let ended = bob.agent.report(&About::task(&task, 2), &done).await;
    if let Err(error) = ended {
        return fail("bob ends the task", "answer", "taken", error.to_string());
    }
    let mut checks = Checks::of("after the end of the task");
    let closed = Refusal(Code::FailedPrecondition, "WORKSPACE_CLOSED");
    checks.refused("bob appends", append(&bob, &task, "t", "2").await, closed);
    checks.done()?;
    let page = answered("bob lists the entries", list(&bob, all(&task)).await)?;
    let mut checks = Checks::of("bob lists the entries");
    checks.same("entries", vec![text(1, "t", "1")], texts(&page.entries));
    checks.same("closed", true, page.closed);
    checks.done()
}
