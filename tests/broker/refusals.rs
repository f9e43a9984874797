//! Invalid input: each case is refused with its code, and no record changes.

use baton_broker_core::{
    BrokerLimits, Settings,
    codes::ErrorCode,
    directory::Entry,
    envelope::{self, keys::PrivateKey},
    ids::KeyId,
    proto::v1,
    records::AgentRecord,
};

use crate::world::{World, assert_refused, context_payload, operator};

/// Sends the envelope. It must be refused with this code, and no record may change.
#[track_caller]
fn check(world: &mut World, envelope: v1::Envelope, code: ErrorCode) {
    let before = world.snapshot();
    assert_refused(world.send(envelope), code);
    assert_eq!(world.snapshot(), before, "nothing has changed");
}

#[track_caller]
fn check_field(change: impl FnOnce(&mut v1::Envelope), path: &str) {
    let mut world = World::with(&["a", "b"]);
    let mut envelope = world.request("a", "b", 1);
    change(&mut envelope);
    world.sign(&mut envelope);
    let before = world.snapshot();
    let refusal = assert_refused(world.send_signed(&envelope), ErrorCode::FieldInvalid);
    let paths: Vec<_> = refusal.violations().iter().map(|violation| violation.path.as_str()).collect();
    assert_eq!(paths, [path], "{refusal}");
    assert_eq!(world.snapshot(), before);
}

#[test]
fn missing_and_malformed_fields_are_named() {
    check_field(|envelope| envelope.message_id.clear(), "envelope.message_id");
    check_field(|envelope| envelope.message_id = "17".into(), "envelope.message_id");
    check_field(|envelope| envelope.task_id.clear(), "envelope.task_id");
    check_field(|envelope| envelope.task_id = "a b".into(), "envelope.task_id");
    check_field(|envelope| envelope.task_id = "x".repeat(129), "envelope.task_id");
    check_field(|envelope| envelope.receiver_id.clear(), "envelope.receiver_id");
    check_field(|envelope| envelope.receiver_id = "all:team".into(), "envelope.receiver_id");
    check_field(|envelope| envelope.receiver_id = "kind:team".into(), "envelope.receiver_id");
    check_field(|envelope| envelope.correlation_id = "17".into(), "envelope.correlation_id");
    check_field(|envelope| envelope.epoch = 0, "envelope.epoch");
    check_field(|envelope| envelope.timestamp = None, "envelope.timestamp");
    check_field(|envelope| envelope.timestamp.as_mut().unwrap().nanos = -1, "envelope.timestamp");
    check_field(|envelope| envelope.message_type = 0, "envelope.message_type");
    check_field(|envelope| envelope.message_type = 99, "envelope.message_type");
    check_field(|envelope| envelope.payload = None, "envelope.payload");
    let with = |payload: v1::HandoffRequest| {
        move |envelope: &mut v1::Envelope| envelope.payload = Some(envelope::payload_of(&payload))
    };
    let good = v1::HandoffRequest { task_type: "support".into(), ..Default::default() };
    check_field(with(v1::HandoffRequest { task_type: String::new(), ..good.clone() }), "envelope.payload.task_type");
    check_field(with(v1::HandoffRequest { priority: 9, ..good.clone() }), "envelope.payload.priority");
    let timeouts =
        v1::HandoffTimeouts { accept: Some(prost_types::Duration { seconds: 0, nanos: 1 }), ..Default::default() };
    let payload = v1::HandoffRequest { timeouts: Some(timeouts), ..good.clone() };
    check_field(with(payload), "envelope.payload.timeouts.accept");
    for (seconds, nanos) in [(1, -1), (-1, 1), (0, 2_000_000_000), (i64::MAX, 0)] {
        let whole = Some(prost_types::Duration { seconds, nanos });
        let timeouts = Some(v1::HandoffTimeouts { whole, ..Default::default() });
        check_field(with(v1::HandoffRequest { timeouts, ..good.clone() }), "envelope.payload.timeouts.whole");
    }
    check_field(|envelope| envelope.timestamp.as_mut().unwrap().nanos = 2_000_000_000, "envelope.timestamp");
    check_field(
        |envelope| envelope.expires_at = Some(prost_types::Timestamp { seconds: i64::MAX, nanos: 0 }),
        "envelope.expires_at",
    );
    let payload = v1::HandoffRequest { initial_context_summary: "x".repeat(17_000), ..good };
    check_field(with(payload), "envelope.payload.initial_context_summary");
}

#[test]
fn an_unsigned_envelope_is_refused() {
    let mut world = World::with(&["a", "b"]);
    let envelope = world.request("a", "b", 1);
    assert_refused(world.send_signed(&envelope), ErrorCode::SignatureMissing);
}

#[test]
fn a_wrongly_signed_envelope_is_refused() {
    let mut world = World::with(&["a", "b"]);
    let mut envelope = world.request("a", "b", 1);
    envelope::sign(&mut envelope, &KeyId::parse("k1").unwrap(), &PrivateKey::from_seed(&[7; 32]));
    assert_refused(world.send_signed(&envelope), ErrorCode::SignatureInvalid);
}

#[test]
fn every_change_of_a_signed_field_breaks_the_signature() {
    let changes: [fn(&mut v1::Envelope); 8] = [
        |envelope| envelope.message_id = "0198c0de-0000-7000-8000-000000000001".into(),
        |envelope| envelope.receiver_id = "c".into(),
        |envelope| envelope.timestamp.as_mut().unwrap().nanos += 1,
        |envelope| envelope.correlation_id = "0198c0de-0000-7000-8000-000000000001".into(),
        |envelope| envelope.task_id = "u".into(),
        |envelope| envelope.epoch = 2,
        |envelope| envelope.expires_at = envelope.timestamp,
        |envelope| {
            let payload = v1::HandoffRequest { task_type: "other".into(), ..Default::default() };
            envelope.payload = Some(envelope::payload_of(&payload));
        },
    ];
    for (place, change) in changes.iter().enumerate() {
        let mut world = World::with(&["a", "b", "c"]);
        let mut envelope = world.request("a", "b", 1);
        world.sign(&mut envelope);
        change(&mut envelope);
        let (code, _) = world.send_signed(&envelope).unwrap_err();
        assert_eq!(code, ErrorCode::SignatureInvalid, "change {place}");
    }
}

#[test]
fn an_unknown_key_and_an_unknown_signature_version_are_refused() {
    let mut world = World::with(&["a", "b"]);
    let mut envelope = world.request("a", "b", 1);
    world.sign(&mut envelope);
    let mut with_other_key = envelope.clone();
    with_other_key.key_id = "k2".into();
    assert_refused(world.send_signed(&with_other_key), ErrorCode::KeyUnknown);
    envelope.signature_version = 2;
    assert_refused(world.send_signed(&envelope), ErrorCode::SignatureVersionUnknown);
}

#[test]
fn a_payload_that_is_not_what_its_type_says_is_refused() {
    let mut world = World::with(&["a", "b"]);
    let mut envelope = world.request("a", "b", 1);
    envelope.payload = Some(envelope::payload_of(&v1::Info::default()));
    check(&mut world, envelope, ErrorCode::PayloadTypeMismatch);
    let mut envelope = world.request("a", "b", 1);
    envelope.payload.as_mut().unwrap().value = bytes::Bytes::from_static(b"\xff\xff\xff");
    check(&mut world, envelope, ErrorCode::Malformed);
}

#[test]
fn an_oversized_payload_is_refused() {
    let mut world = World::with(&["a", "b"]);
    let mut envelope = world.info("a", "b", "");
    envelope.payload.as_mut().unwrap().value = vec![0; 1024 * 1024 + 1].into();
    check(&mut world, envelope, ErrorCode::PayloadTooLarge);
}

#[test]
fn unknown_and_impossible_receivers_are_refused() {
    let mut world = World::with(&["a", "b"]);
    let envelope = world.request("a", "unknown", 1);
    check(&mut world, envelope, ErrorCode::ReceiverUnknown);
    let envelope = world.request("a", "type:unknown", 1);
    check(&mut world, envelope, ErrorCode::ReceiverUnknown);
    let envelope = world.info("a", "all:unknown", "hello");
    check(&mut world, envelope, ErrorCode::ReceiverUnknown);
    let envelope = world.request("a", "a", 1);
    check(&mut world, envelope, ErrorCode::ReceiverInvalid);
    let envelope = world.info("a", "baton", "hello");
    check(&mut world, envelope, ErrorCode::ReceiverInvalid);
}

#[test]
fn envelopes_outside_the_clock_window_are_refused() {
    for (seconds, taken) in [(300, true), (301, false), (-300, true), (-301, false)] {
        let mut world = World::with(&["a", "b"]);
        let mut envelope = world.info("a", "b", "hello");
        envelope.timestamp.as_mut().unwrap().seconds += seconds;
        world.sign(&mut envelope);
        match world.send_signed(&envelope) {
            Ok(_) => assert!(taken, "{seconds} s off"),
            Err((code, _)) => {
                assert!(!taken, "{seconds} s off");
                assert_eq!(code, ErrorCode::TimestampOutsideWindow);
            }
        }
    }
    let mut world = World::with(&["a", "b"]);
    let mut envelope = world.info("a", "b", "hello");
    envelope.expires_at = envelope.timestamp;
    check(&mut world, envelope, ErrorCode::MessageExpired);
}

#[test]
fn the_same_id_with_other_content_is_refused() {
    let mut world = World::with(&["a", "b"]);
    let first = world.info("a", "b", "one");
    world.send(first.clone()).unwrap();
    let mut second = world.info("a", "b", "two");
    second.message_id = first.message_id;
    check(&mut world, second, ErrorCode::MessageIdReused);
}

#[test]
fn a_second_handoff_while_one_is_open_is_refused() {
    let mut world = World::with(&["a", "b", "c"]);
    world.send(world.request("a", "b", 1)).unwrap();
    let envelope = world.request("a", "c", 1);
    check(&mut world, envelope, ErrorCode::HandoffOpen);
}

#[test]
fn who_is_not_asked_cannot_answer() {
    let mut world = World::with(&["a", "b", "c"]);
    let id = world.send(world.request("a", "b", 1)).unwrap().handoff_id;
    let envelope = world.accept("c", "a", &id, 1);
    check(&mut world, envelope, ErrorCode::NotCandidate);
    let envelope = world.accept("b", "c", &id, 1);
    check(&mut world, envelope, ErrorCode::ReceiverInvalid);
    let envelope = world.accept("b", "a", "0198c0de-0000-7000-8000-000000000001", 1);
    check(&mut world, envelope, ErrorCode::HandoffUnknown);
    let envelope = world.cancel("c", "b", &id, 1);
    check(&mut world, envelope, ErrorCode::NotOwner);
}

#[test]
fn a_cancel_names_the_present_candidate() {
    let mut world = World::with(&["a", "b", "c", "d"]);
    let payload =
        v1::HandoffRequest { task_type: "support".into(), fallback_candidates: vec!["c".into()], ..Default::default() };
    let id = world.send(world.request_with("a", "b", 1, &payload)).unwrap().handoff_id;
    for other in ["c", "d", "a"] {
        let envelope = world.cancel("a", other, &id, 1);
        check(&mut world, envelope, ErrorCode::ReceiverInvalid);
    }
    // An agent that is not the owner gets the same refusal for every receiver, so it cannot find the candidate.
    for receiver in ["b", "c"] {
        let envelope = world.cancel("d", receiver, &id, 1);
        check(&mut world, envelope, ErrorCode::NotOwner);
    }
    world.send(world.reject("b", "a", &id, &[])).unwrap();
    let envelope = world.cancel("a", "b", &id, 1);
    check(&mut world, envelope, ErrorCode::ReceiverInvalid);
    world.send(world.cancel("a", "c", &id, 1)).unwrap();
    for receiver in ["b", "c"] {
        let envelope = world.cancel("a", receiver, &id, 1);
        check(&mut world, envelope, ErrorCode::HandoffFinal);
    }
}

#[test]
fn a_sender_cannot_be_its_own_fallback() {
    let mut world = World::with(&["a:team", "b:team", "c"]);
    let fallback_candidates = vec!["c".to_owned(), "a".to_owned()];
    let payload = v1::HandoffRequest { task_type: "support".into(), fallback_candidates, ..Default::default() };
    for receiver in ["b", "type:team"] {
        let before = world.snapshot();
        let envelope = world.request_with("a", receiver, 1, &payload);
        let refusal = assert_refused(world.send(envelope), ErrorCode::FieldInvalid);
        assert_eq!(refusal.violations()[0].path, "envelope.payload.fallback_candidates[1]");
        assert_eq!(world.snapshot(), before, "nothing has changed");
    }
}

#[test]
fn a_sender_is_not_asked_by_its_type_or_by_a_suggestion() {
    let mut world = World::with(&["a:team", "b:team", "c"]);
    let id = world.send(world.request("a", "type:team", 1)).unwrap().handoff_id;
    let handoff = world.handoff(&id);
    assert_eq!((handoff.candidate.as_str(), handoff.next_candidates.len()), ("b", 0));
    world.send(world.reject("b", "a", &id, &["a", "c"])).unwrap();
    assert_eq!(world.handoff(&id).candidate.as_str(), "c");
    world.send(world.reject("c", "a", &id, &["a"])).unwrap();
    let handoff = world.handoff(&id);
    assert_eq!(handoff.state, baton_broker_core::domain::handoff::State::Rejected);
    assert!(handoff.offers.iter().all(|offer| offer.candidate.as_str() != "a"));
}

#[test]
fn a_delivery_has_one_name() {
    use baton_broker_core::engine::Fate;
    let mut world = World::with(&["a", "b"]);
    let mut b = world.connect("b");
    world.send(world.info("a", "b", "hello")).unwrap();
    let (mut delivery, _) = b.delivery();
    let name = delivery.delivery_id.clone();
    let (place, attempt) = name.split_once('-').unwrap();
    for other in [
        format!("{place}-+{attempt}"),
        format!("+{place}-{attempt}"),
        format!("0{place}-{attempt}"),
        format!("{place}-0{attempt}"),
        format!(" {name}"),
        format!("{name} "),
        format!("{name}-1"),
    ] {
        delivery.delivery_id = other;
        assert_refused(world.acknowledge(&b, &delivery, Fate::Acked), ErrorCode::DeliveryUnknown);
    }
    delivery.delivery_id = name;
    world.ack(&b, &delivery);
}

#[test]
fn steps_out_of_turn_are_refused() {
    let mut world = World::with(&["a", "b"]);
    let id = world.send(world.request("a", "b", 1)).unwrap().handoff_id;
    let envelope = world.context("a", "b", &id, 1);
    check(&mut world, envelope, ErrorCode::HandoffState);
    let envelope = world.complete("b", "a", &id, 1);
    check(&mut world, envelope, ErrorCode::HandoffState);
    world.send(world.accept("b", "a", &id, 1)).unwrap();
    let envelope = world.complete("b", "a", &id, 1);
    check(&mut world, envelope, ErrorCode::HandoffState);
    let envelope = world.accept("b", "a", &id, 1);
    check(&mut world, envelope, ErrorCode::HandoffState);
}

#[test]
fn a_second_final_word_is_refused() {
    let mut world = World::with(&["a", "b"]);
    let (mut a, mut b) = (world.connect("a"), world.connect("b"));
    let id = world.hand_over(&mut a, &mut b, 1);
    let envelope = world.complete("b", "a", &id, 1);
    check(&mut world, envelope, ErrorCode::HandoffFinal);
}

#[test]
fn a_former_owner_is_fenced_off_and_that_is_on_record() {
    let mut world = World::with(&["a", "b"]);
    let (mut a, mut b) = (world.connect("a"), world.connect("b"));
    let id = world.hand_over(&mut a, &mut b, 1);
    for (count, envelope) in [
        world.request("a", "b", 1),
        world.cancel("a", "b", &id, 1),
        world.status("a", "", 1, v1::TaskStatus::Completed),
        v1::Envelope { task_id: "t".into(), epoch: 1, ..world.info("a", "b", "by the way") },
    ]
    .into_iter()
    .enumerate()
    {
        let before = world.task("t");
        assert_refused(world.send(envelope), ErrorCode::StaleEpoch);
        let after = world.task("t");
        assert_eq!(after.task, before.task, "nothing but the record has changed");
        assert_eq!(after.refusals_recorded as usize, count + 1);
        assert_eq!(after.custody.length, before.custody.length + 1);
    }
    let envelope = world.request("b", "a", 3);
    check(&mut world, envelope, ErrorCode::EpochAhead);
    let envelope = world.status("a", "", 2, v1::TaskStatus::Completed);
    check(&mut world, envelope, ErrorCode::NotOwner);
}

#[test]
fn recorded_refusals_are_bounded() {
    let settings = baton_broker_core::Settings { refusals_recorded_max: 3, ..Default::default() };
    let mut world = World::with_settings(&["a", "b"], settings);
    let (mut a, mut b) = (world.connect("a"), world.connect("b"));
    world.hand_over(&mut a, &mut b, 1);
    for _ in 0..10 {
        assert_refused(world.send(world.request("a", "b", 1)), ErrorCode::StaleEpoch);
    }
    assert_eq!(world.task("t").refusals_recorded, 3);
}

#[test]
fn a_context_must_have_the_digest_of_its_sections() {
    let mut world = World::with(&["a", "b"]);
    let id = world.send(world.request("a", "b", 1)).unwrap().handoff_id;
    world.send(world.accept("b", "a", &id, 1)).unwrap();
    let mut payload = context_payload();
    payload.context_digest = vec![0; 32].into();
    let mut envelope = world.context("a", "b", &id, 1);
    envelope.payload = Some(envelope::payload_of(&payload));
    check(&mut world, envelope, ErrorCode::ContextDigestMismatch);
    world.send(world.context("a", "b", &id, 1)).unwrap();
    let payload = v1::HandoffComplete {
        outcome: v1::HandoffOutcome::Success.into(),
        context_digest: vec![0; 32].into(),
        ..Default::default()
    };
    let mut envelope = world.complete("b", "a", &id, 1);
    envelope.payload = Some(envelope::payload_of(&payload));
    check(&mut world, envelope, ErrorCode::ContextDigestMismatch);
}

#[test]
fn a_final_status_never_changes() {
    let mut world = World::with(&["a", "b"]);
    let (mut a, mut b) = (world.connect("a"), world.connect("b"));
    world.hand_over(&mut a, &mut b, 1);
    world.send(world.status("b", "", 2, v1::TaskStatus::Completed)).unwrap();
    let envelope = world.status("b", "", 2, v1::TaskStatus::Failed);
    check(&mut world, envelope, ErrorCode::TaskFinal);
    let envelope = world.request("b", "a", 2);
    check(&mut world, envelope, ErrorCode::TaskFinal);
}

/// A card of 4,000 bytes.
fn large_card(world: &World) -> Entry {
    let card = v1::AgentCard {
        agent_id: "c".into(),
        description: "x".repeat(4000),
        keys: vec![v1::AgentKey {
            key_id: "k1".into(),
            public_key: PrivateKey::from_seed(&[3; 32]).public().as_bytes().to_vec().into(),
            ..Default::default()
        }],
        ..Default::default()
    };
    Entry::parse(AgentRecord::new(card, world.now)).unwrap()
}

#[test]
fn a_refused_command_leaves_no_gap_in_the_sequence() {
    let broker_limits = BrokerLimits { card_bytes_max: 2000, ..BrokerLimits::default() };
    let mut world = World::with_settings(&["a", "b"], Settings { broker_limits, ..Settings::default() });
    let handoff = world.send(world.request("a", "b", 1)).unwrap().handoff_id;
    let last = world.send(world.info("a", "b", "one")).unwrap().sequence;
    // Each is refused after it has taken a sequence.
    let too_large = large_card(&world);
    assert_refused(world.register_as(operator(), too_large, ""), ErrorCode::LimitExceeded);
    assert_refused(world.send(world.accept("b", "a", &handoff, 2)), ErrorCode::EpochAhead);
    assert_refused(world.send(world.complete("b", "a", &handoff, 1)), ErrorCode::HandoffState);
    let append = v1::WorkspaceAppend {
        workspace_id: "task:t".into(),
        topic: "notes".into(),
        entry: Some(v1::workspace_append::Entry::Json("1".into())),
        expected_last_sequence: Some(7),
        ..Default::default()
    };
    let append = world.envelope("a", "", v1::MessageType::WorkspaceAppend, &append);
    assert_refused(world.send(append), ErrorCode::SequenceConflict);
    assert_eq!(world.send(world.info("a", "b", "two")).unwrap().sequence, last + 1);
}
