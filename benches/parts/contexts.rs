//! The cost of a large context of which little has changed: sent whole, and as a delta.

use std::sync::Arc;

use baton::{
    envelope::signing,
    proto::v1::{self, MessageType, context_section::Content},
    store::MemoryStore,
};

use super::{
    Part,
    room::{ALICE, About, BOB, Room},
};

/// The members of the section, of 900 bytes each.
const MEMBERS: usize = 1000;
/// The members that a change replaces.
const CHANGED: usize = 10;
const TASK: &str = "task-0";

pub(crate) fn parts() -> Vec<Part> {
    let (mut whole, mut delta, mut turn) = (None, None, 0);
    vec![
        Part::one("context/900-kib-whole", move || {
            let room = whole.get_or_insert_with(room);
            turn += 1;
            checkpoint(room, Content::Json(section(turn % 2)));
        }),
        Part::one("context/900-kib-as-a-delta", move || {
            let (room, deltas, turn) = delta.get_or_insert_with(|| (room(), [0, 1].map(delta_to), 0));
            *turn += 1;
            checkpoint(room, Content::Delta(deltas[*turn % 2].clone()));
        }),
    ]
}

/// A room with a task of alice, whose context is the section in its state 0.
fn room() -> Room {
    let mut room = Room::over(Arc::new(MemoryStore::default()));
    let request = v1::HandoffRequest { task_type: "report".to_owned(), ..Default::default() };
    room.submit(ALICE, BOB, MessageType::HandoffRequest, About { task: TASK, epoch: 1, ..About::default() }, &request);
    room.finish();
    checkpoint(&mut room, Content::Json(section(0)));
    room
}

/// A member in this state.
fn member(number: usize, state: usize) -> String {
    let letter = if number < CHANGED { ["a", "b"][state] } else { "x" };
    format!("\"member-{number:04}\":\"{}\"", letter.repeat(900))
}

/// The section in this state, in canonical JSON.
fn section(state: usize) -> String {
    let members: Vec<String> = (0..MEMBERS).map(|number| member(number, state)).collect();
    format!("{{{}}}", members.join(","))
}

/// The change to this state from the other one.
fn delta_to(state: usize) -> v1::ContextDelta {
    let members: Vec<String> = (0..CHANGED).map(|number| member(number, state)).collect();
    let digest = |state| signing::sha256(&[section(state).as_bytes()]).to_vec().into();
    let delta = v1::ContextDelta {
        base_sha256: digest(1 - state),
        merge_patch: format!("{{{}}}", members.join(",")),
        result_sha256: digest(state),
    };
    assert!(prost::Message::encoded_len(&delta) < 10 * 1024, "1 % of 900 KiB");
    delta
}

fn checkpoint(room: &mut Room, content: Content) {
    let section = v1::ContextSection { name: "notes".to_owned(), content: Some(content), ..Default::default() };
    let context = baton_client::context_of_sections(vec![section]);
    let about = About { task: TASK, epoch: 1, ..About::default() };
    let mut receipt = room.submit(ALICE, "", MessageType::ContextCheckpoint, about, &context).1;
    room.finish();
    assert!(receipt.try_recv().expect("the batch is committed").is_ok(), "the context is a version");
}
