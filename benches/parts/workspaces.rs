//! The cost of appends to a workspace, beside that of mail with the same content, and of a list far behind the first entry.

use std::{rc::Rc, sync::Arc};

use baton::{
    broker::queries::EntryQuery,
    ids::WorkspaceId,
    proto::v1::{self, MessageType, workspace_append::Entry},
    store::{EmbeddedStore, MemoryStore},
};

use super::{
    Part,
    room::{ALICE, About, BATCH, BOB, Room},
    size,
};

const MANY: u64 = 1000;
const PAGE: usize = 200;

pub(crate) fn parts() -> Vec<Part> {
    let (mut mail, mut appends, mut number) = (None, None, 0);
    let mut parts = vec![
        Part::many("workspace/1000-pieces-of-mail", MANY, move || send_mail(mail.get_or_insert_with(in_memory))),
        Part::many("workspace/1000-appends", MANY, move || {
            let room = appends.get_or_insert_with(in_memory);
            number += 1;
            append(room, &format!("task-{number}"), MANY);
        }),
    ];
    for (name, before) in [("workspace/list-after-1000", 1_000), ("workspace/list-after-100000", size(100_000, 2_000))]
    {
        let mut full = None;
        parts.push(Part::one(name, move || {
            let (room, _) = full.get_or_insert_with(|| on_disk(before));
            list(room, before);
        }));
    }
    parts
}

fn in_memory() -> Room {
    Room::over(Arc::new(MemoryStore::default()))
}

/// A workspace with this number of entries and a page more, in a store on disk.
fn on_disk(before: u64) -> (Room, Rc<tempfile::TempDir>) {
    let folder = tempfile::tempdir().unwrap();
    let mut room = Room::over(Arc::new(EmbeddedStore::open(&folder.path().join("store")).unwrap()));
    append(&mut room, "task-0", before + PAGE as u64);
    (room, Rc::new(folder))
}

fn content(number: u64) -> String {
    format!("{{\"number\":{number},\"text\":\"{}\"}}", "x".repeat(200))
}

fn send_mail(room: &mut Room) {
    let mut last = None;
    for number in 0..MANY {
        let info = v1::Info { text: content(number), ..Default::default() };
        last = Some(room.submit(ALICE, BOB, MessageType::Info, About::default(), &info).1);
        if number % BATCH as u64 == BATCH as u64 - 1 {
            room.finish();
        }
    }
    room.finish();
    assert!(last.expect("there are some").try_recv().expect("the batch is committed").is_ok());
}

/// Appends this number of entries to the workspace of a new task.
fn append(room: &mut Room, task: &str, many: u64) {
    let about = About { task, epoch: 1, ..About::default() };
    let request = v1::HandoffRequest { task_type: "report".to_owned(), ..Default::default() };
    room.submit(ALICE, BOB, MessageType::HandoffRequest, about, &request);
    let mut last = None;
    for number in 0..many {
        let entry = v1::WorkspaceAppend {
            workspace_id: format!("task:{task}"),
            topic: "numbers".to_owned(),
            entry: Some(Entry::Json(content(number))),
            ..Default::default()
        };
        last = Some(room.submit(ALICE, "", MessageType::WorkspaceAppend, About::default(), &entry).1);
        if number % BATCH as u64 == BATCH as u64 - 1 {
            room.finish();
        }
    }
    room.finish();
    let receipt = last.expect("there are some").try_recv().expect("the batch is committed");
    assert_eq!(receipt.map(|receipt| receipt.resource_sequence).ok(), Some(many));
}

fn list(room: &Room, after: u64) {
    let workspace = WorkspaceId::parse("task:task-0").expect("it is an id");
    let query = EntryQuery { workspace, topics: Vec::new(), after, limit: PAGE, envelopes: false };
    let page = room.look(|view| view.workspace_entries(&query)).expect("the workspace exists");
    assert_eq!((page.entries.len(), page.entries[0].sequence), (PAGE, after + 1));
}
