//! The statements of docs/signing.md for authors of clients.

use baton_broker_core::{
    envelope::signing,
    proto::v1::{self, MessageType, TaskStatus, custody_entry::Event},
};

use crate::world::{Session, World};

#[test]
fn content_digest_is_the_sha256_of_what_is_signed() {
    let mut world = World::with(&["a", "b"]);
    let mut envelope = world.request("a", "b", 1);
    world.sign(&mut envelope);
    world.send_signed(&envelope).unwrap();
    let entry = world.custody("t").remove(0).entry.unwrap();
    let Some(Event::Accepted(accepted)) = entry.event else { panic!("the first entry is the request") };
    let signed = signing::envelope_input(&envelope);
    assert_eq!(accepted.content_digest[..], signing::sha256(&[&signed]));
}

/// Acks every delivery of a session, and returns the message types.
fn taken(world: &mut World, session: &mut Session) -> Vec<MessageType> {
    let deliveries = session.deliveries();
    deliveries.iter().for_each(|(delivery, _)| world.ack(session, delivery));
    deliveries.iter().map(|(_, envelope)| envelope.message_type()).collect()
}

#[test]
fn each_message_reaches_the_side_that_the_table_names() {
    let mut world = World::with(&["a", "b", "w"]);
    let (mut a, mut b, mut w) = (world.connect("a"), world.connect("b"), world.connect("w"));
    let id = world.send(world.request("a", "b", 1)).unwrap().handoff_id;
    assert_eq!(taken(&mut world, &mut b), [MessageType::HandoffRequest]);
    world.send(world.accept("b", "a", &id, 1)).unwrap();
    assert_eq!(taken(&mut world, &mut a), [MessageType::HandoffAccept]);
    world.send(world.context("a", "b", &id, 1)).unwrap();
    assert_eq!(taken(&mut world, &mut b), [MessageType::TaskContextTransfer]);
    world.send(world.complete("b", "a", &id, 1)).unwrap();
    assert_eq!(taken(&mut world, &mut a), [MessageType::HandoffComplete]);
    world.send(world.status("b", "", 2, TaskStatus::InProgress)).unwrap();
    world.send(world.status("b", "w", 2, TaskStatus::InProgress)).unwrap();
    assert_eq!(taken(&mut world, &mut w), [MessageType::TaskStatusUpdate], "only the one that names it");
    assert_eq!((taken(&mut world, &mut a), taken(&mut world, &mut b)), (vec![], vec![]));
}

#[test]
fn a_cancel_names_the_present_candidate_and_reaches_it() {
    let mut world = World::with(&["a", "b", "c"]);
    let (mut b, mut c) = (world.connect("b"), world.connect("c"));
    let payload =
        v1::HandoffRequest { task_type: "support".into(), fallback_candidates: vec!["c".into()], ..Default::default() };
    let id = world.send(world.request_with("a", "b", 1, &payload)).unwrap().handoff_id;
    assert_eq!(taken(&mut world, &mut b), [MessageType::HandoffRequest]);
    world.send(world.reject("b", "a", &id, &[])).unwrap();
    assert_eq!(taken(&mut world, &mut c), [MessageType::HandoffRequest]);
    world.send(world.cancel("a", "c", &id, 1)).unwrap();
    assert_eq!(taken(&mut world, &mut c), [MessageType::HandoffCancel]);
    assert_eq!(taken(&mut world, &mut b), []);
}
