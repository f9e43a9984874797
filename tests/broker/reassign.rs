//! Reassignment: an operator takes a task from its owner, and the coordinator hands it on.

use std::{sync::Arc, time::Duration};

use baton_broker_core::{
    Reassigned,
    access::Caller,
    codes::ErrorCode,
    domain::{
        Receiver,
        dead_letter::ParkReason,
        handoff::{Cause, OfferOutcome, SenderView, State, TaskStatus},
    },
    engine::Reassignment,
    envelope::{UnverifiedEnvelope, signing},
    ids::{AgentId, TaskId},
    policy::{Policies, Source},
    proto::v1,
};
use prost::Message as _;

use crate::world::{Refusal, Session, World, assert_refused, context_payload, operator};

const LEASE: Duration = Duration::from_secs(61);

impl World {
    /// Reassigns task "t" for an operator.
    pub(crate) fn reassign(&mut self, to: &str, expected_epoch: u64) -> Result<Reassigned, Refusal> {
        self.reassign_as(operator(), "t", to, expected_epoch)
    }

    fn reassign_as(&mut self, caller: Caller, task: &str, to: &str, epoch: u64) -> Result<Reassigned, Refusal> {
        let wanted = Reassignment {
            task: TaskId::parse(task).unwrap(),
            expected_epoch: epoch,
            to: Receiver::parse(to).unwrap(),
            reason_text: "bob is gone".into(),
        };
        self.ask(|reply| baton_broker_core::engine::Command::Reassign { wanted, caller, reply })
    }

    fn owned_by(&self) -> (String, u64) {
        let task = self.task("t").task;
        (task.owner.to_string(), task.epoch)
    }
}

fn notice(session: &mut Session) -> (v1::ErrorCode, v1::NextStep) {
    let (_, envelope) = session.delivery();
    let notice = v1::ErrorNotification::decode(envelope.payload.unwrap().value).unwrap();
    (notice.error_code(), notice.next_step())
}

/// Agents a and b of which b owns task "t" at epoch 2 with a's context, and c that has no task.
fn of_bob() -> (World, Session, Session, Session) {
    let mut world = World::with(&["a", "b", "c"]);
    let (mut a, mut b) = (world.connect("a"), world.connect("b"));
    let c = world.connect("c");
    world.hand_over(&mut a, &mut b, 1);
    (world, a, b, c)
}

#[test]
fn an_operator_moves_a_task_to_another_agent_with_the_last_context() {
    let (mut world, mut a, mut b, mut c) = of_bob();
    let made = world.reassign("c", 2).unwrap();
    assert_eq!((made.task.task.owner.as_str(), made.task.task.epoch), ("baton.coordinator", 3));
    assert_eq!(notice(&mut b), (v1::ErrorCode::TaskReassigned, v1::NextStep::DropTask));
    assert!(a.deliveries().is_empty(), "an earlier owner has nothing to drop");

    // The request is signed with the coordinator's key, as every receiver can verify.
    let (delivery, request) = c.delivery();
    assert_eq!(request.sender_id, "baton.coordinator");
    let raw = request.encode_to_vec().into();
    UnverifiedEnvelope::parse(raw).unwrap().verify(&**world.engine.directory(), world.now, false).unwrap();
    let payload = v1::HandoffRequest::decode(request.payload.unwrap().value).unwrap();
    assert_eq!(payload.on_behalf_of.unwrap().submitter_id, "operator:olga");
    assert!(payload.initial_context_summary.contains("b, at epoch 2"), "{}", payload.initial_context_summary);
    world.ack(&c, &delivery);

    // The accept is answered in its own commit.
    let handoff = made.handoff.id.to_string();
    let commits = world.disk.commits.load(std::sync::atomic::Ordering::Relaxed);
    let receipt = world.send(world.accept("c", "baton.coordinator", &handoff, 3)).unwrap();
    assert_eq!(world.disk.commits.load(std::sync::atomic::Ordering::Relaxed), commits + 1);
    assert_eq!(receipt.handoff_state(), v1::HandoffState::Accepted, "the receipt is that of the accept");
    let context = world.take_and_ack(&mut c);
    assert_eq!(context.sender_id, "baton.coordinator");
    let context = v1::TaskContextTransfer::decode(context.payload.unwrap().value).unwrap();
    assert_eq!(context, context_payload());

    world.send(world.complete("c", "baton.coordinator", &handoff, 3)).unwrap();
    assert_eq!(world.owned_by(), ("c".into(), 4));
    assert_eq!(world.handoff(&handoff).sender_view(), SenderView::TaskFinished, "the coordinator needs no ack");
    world.send(world.status("c", "", 4, v1::TaskStatus::Completed)).unwrap();
    world.audit("t");
}

#[test]
fn late_words_of_the_former_owner_are_stale_and_recorded() {
    let (mut world, _a, _b, _c) = of_bob();
    world.reassign("c", 2).unwrap();
    assert_refused(world.send(world.status("b", "", 2, v1::TaskStatus::Completed)), ErrorCode::StaleEpoch);
    assert_refused(world.send(world.request("b", "a", 2)), ErrorCode::StaleEpoch);
    assert_eq!(world.audit("t").refusals(), 2);
}

#[test]
fn the_first_owner_of_a_task_is_a_former_owner_after_a_reassignment() {
    let mut world = World::with(&["a", "b", "c"]);
    let (_a, mut b, mut c) = (world.connect("a"), world.connect("b"), world.connect("c"));
    let open = world.send(world.request("a", "b", 1)).unwrap().handoff_id;
    world.take_and_ack(&mut b);
    world.reassign("c", 1).unwrap();
    // The open handoff is cancelled, and its candidate drops the task.
    let handoff = world.handoff(&open);
    assert_eq!((handoff.state, handoff.steps.last().unwrap().cause), (State::Cancelled, Cause::Reassigned));
    assert_eq!(notice(&mut b), (v1::ErrorCode::TaskReassigned, v1::NextStep::DropTask));
    assert_refused(world.send(world.context("a", "b", &open, 1)), ErrorCode::StaleEpoch);
    let task = world.task("t").task;
    assert_eq!((task.creator().as_str(), task.seizures.len()), ("a", 1));
    world.take_and_ack(&mut c);
    world.audit("t");
}

#[test]
fn a_task_without_a_context_comes_with_one_that_says_so() {
    let mut world = World::with(&["a", "b", "c"]);
    let mut c = world.connect("c");
    world.send(world.request("a", "b", 1)).unwrap();
    let handoff = world.reassign("c", 1).unwrap().handoff.id.to_string();
    world.take_and_ack(&mut c);
    world.send(world.accept("c", "baton.coordinator", &handoff, 2)).unwrap();
    let (_, envelope) = c.delivery();
    let context = v1::TaskContextTransfer::decode(envelope.payload.unwrap().value).unwrap();
    match context.sections[0].content.as_ref().unwrap() {
        v1::context_section::Content::Json(json) => assert!(json.contains("no agent has sent a context"), "{json}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_candidate_gets_only_the_sections_that_it_asks_for() {
    let (mut world, mut a, _b, mut c) = of_bob();
    let handoff = world.reassign("c", 2).unwrap().handoff.id.to_string();
    world.take_and_ack(&mut c);
    let wanted = v1::HandoffAccept { wanted_sections: vec!["nothing".into()], ..Default::default() };
    let accept = world.accept("c", "baton.coordinator", &handoff, 3);
    let payload = Some(baton_broker_core::envelope::payload_of(&wanted));
    world.send(v1::Envelope { payload, ..accept }).unwrap();
    let (_, envelope) = c.delivery();
    let context = v1::TaskContextTransfer::decode(envelope.payload.unwrap().value).unwrap();
    assert_eq!((context.sections.len(), context.context_digest), (0, signing::context_digest([]).to_vec().into()));
    // The next successor still gets the whole context.
    let handoff = world.reassign("a", 3).unwrap().handoff.id.to_string();
    world.take_and_ack(&mut a);
    world.send(world.accept("a", "baton.coordinator", &handoff, 4)).unwrap();
    let (_, envelope) = a.delivery();
    let context = v1::TaskContextTransfer::decode(envelope.payload.unwrap().value).unwrap();
    assert_eq!(context, context_payload());
    world.audit("t");
}

#[test]
fn loans_end_with_a_reassignment() {
    let mut world = World::with(&["a", "b", "c"]);
    let (mut a, mut b) = (world.connect("a"), world.connect("b"));
    let loan = v1::HandoffRequest {
        task_type: "support".into(),
        mode: v1::HandoffMode::Delegate.into(),
        loan_timeout: Some(prost_types::Duration { seconds: 3600, nanos: 0 }),
        ..Default::default()
    };
    let request = world.request_with("a", "b", 1, &loan);
    world.hand_over_with(&mut a, &mut b, 1, request);
    world.reassign("c", 2).unwrap();
    assert_eq!(world.task("t").task.loans, []);
    let told = (v1::ErrorCode::TaskReassigned, v1::NextStep::DropTask);
    assert_eq!((notice(&mut a), notice(&mut b)), (told, told));
    world.pass(Duration::from_secs(2 * 3600));
    assert_eq!(world.owned_by(), ("baton.coordinator".into(), 3), "no loan is left that could come due");
    world.audit("t");
}

#[test]
fn a_task_that_all_reject_stays_with_the_coordinator_and_can_be_redriven() {
    let (mut world, mut a, _b, mut c) = of_bob();
    let handoff = world.reassign("c", 2).unwrap().handoff.id.to_string();
    world.take_and_ack(&mut c);
    world.send(v1::Envelope { epoch: 3, ..world.reject("c", "baton.coordinator", &handoff, &[]) }).unwrap();
    assert_eq!(world.owned_by(), ("baton.coordinator".into(), 3));
    let dead = world.dead_letters();
    assert_eq!((dead.len(), dead[0].reason), (1, ParkReason::NoCandidate));
    // The operator finds the task among those of the coordinator.
    let caller = operator();
    let owner = Some(AgentId::coordinator());
    let filter = baton_broker_core::queries::TaskFilter { owner, ..Default::default() };
    assert_eq!(world.view(&caller).tasks(&filter, 10, "").unwrap().entries.len(), 1);

    let redriven =
        world.redrive(dead[0].number, Some("a")).unwrap().settlement.unwrap().redriven_handoff.unwrap().to_string();
    world.take_and_ack(&mut a);
    world.send(world.accept("a", "baton.coordinator", &redriven, 3)).unwrap();
    world.take_and_ack(&mut a);
    world.send(world.complete("a", "baton.coordinator", &redriven, 3)).unwrap();
    assert_eq!(world.owned_by(), ("a".into(), 4));
    world.audit("t");
}

#[test]
fn a_takeover_that_fails_after_the_accept_is_a_dead_letter_too() {
    let (mut world, _a, _b, mut c) = of_bob();
    let handoff = world.reassign("c", 2).unwrap().handoff.id.to_string();
    world.take_and_ack(&mut c);
    world.send(world.accept("c", "baton.coordinator", &handoff, 3)).unwrap();
    world.take_and_ack(&mut c);
    world.pass(Duration::from_secs(400));
    assert_eq!(world.handoff(&handoff).state, State::Failed);
    let of_request = |dead: &&baton_broker_core::records::DeadLetterRecord| {
        dead.summary.message_type == i32::from(v1::MessageType::HandoffRequest)
    };
    assert_eq!(world.dead_letters().iter().filter(of_request).count(), 1);
    assert_eq!(world.owned_by(), ("baton.coordinator".into(), 3));
    world.audit("t");
}

#[test]
fn a_task_of_the_coordinator_can_be_reassigned_again() {
    let (mut world, mut a, _b, mut c) = of_bob();
    let first = world.reassign("c", 2).unwrap().handoff.id.to_string();
    world.take_and_ack(&mut c);
    world.reassign("a", 3).unwrap();
    assert_eq!(world.handoff(&first).state, State::Cancelled);
    assert_eq!(world.handoff(&first).offers[0].outcome, OfferOutcome::Withdrawn);
    assert_eq!(notice(&mut c), (v1::ErrorCode::TaskReassigned, v1::NextStep::DropTask));
    assert_eq!(a.delivery().1.sender_id, "baton.coordinator");
    assert_refused(world.send(world.accept("c", "baton.coordinator", &first, 3)), ErrorCode::HandoffFinal);
    world.audit("t");
}

#[test]
fn the_loop_guard_leaves_the_coordinator_alone() {
    let mut world = World::with(&["a", "b"]);
    let mut sessions = [world.connect("a"), world.connect("b")];
    for hop in 0..8_u64 {
        let [a, b] = &mut sessions;
        let (from, to) = if hop % 2 == 0 { (a, b) } else { (b, a) };
        world.hand_over(from, to, hop + 1);
    }
    assert_refused(world.send(world.request("a", "b", 9)), ErrorCode::LoopLimit);
    world.reassign("b", 9).expect("an operator decides");
    world.audit("t");
}

#[test]
fn a_reassignment_names_the_present_epoch() {
    let (mut world, ..) = of_bob();
    assert_refused(world.reassign("c", 1), ErrorCode::StaleEpoch);
    assert_refused(world.reassign("c", 3), ErrorCode::EpochAhead);
    assert_eq!(world.owned_by(), ("b".into(), 2));
    world.reassign("c", 2).unwrap();
    assert_refused(world.reassign("c", 2), ErrorCode::StaleEpoch);
}

#[test]
fn a_reassignment_names_an_agent_that_can_take_the_task() {
    let mut world = World::with(&["a", "b", "c:night"]);
    let (mut a, mut b) = (world.connect("a"), world.connect("b"));
    let c = world.connect("c");
    world.hand_over(&mut a, &mut b, 1);
    assert_refused(world.reassign("b", 2), ErrorCode::ReceiverInvalid);
    assert_refused(world.reassign("baton.coordinator", 2), ErrorCode::ReceiverInvalid);
    assert_refused(world.reassign("baton", 2), ErrorCode::ReceiverInvalid);
    assert_refused(world.reassign("all:night", 2), ErrorCode::ReceiverInvalid);
    assert_refused(world.reassign("unknown", 2), ErrorCode::ReceiverUnknown);
    assert_refused(world.reassign("type:nothing", 2), ErrorCode::ReceiverUnknown);
    world.disconnect(c);
    world.pass(LEASE);
    assert_refused(world.reassign("c", 2), ErrorCode::AgentGone);
    assert_refused(world.reassign("type:night", 2), ErrorCode::AgentGone);
    assert_eq!(world.owned_by(), ("b".into(), 2), "a refusal changes nothing");
    let _back = world.connect("c");
    world.reassign("type:night", 2).unwrap();
}

#[test]
fn a_type_does_not_stand_for_the_present_owner() {
    let mut world = World::with(&["a", "b:night"]);
    let (mut a, mut b) = (world.connect("a"), world.connect("b"));
    world.hand_over(&mut a, &mut b, 1);
    assert_refused(world.reassign("type:night", 2), ErrorCode::ReceiverUnknown);
    assert_eq!(world.owned_by(), ("b".into(), 2));
    world.audit("t");
}

#[test]
fn a_final_or_unknown_task_is_not_reassigned() {
    let (mut world, _a, _b, _c) = of_bob();
    assert_refused(world.reassign_as(operator(), "other", "c", 1), ErrorCode::TaskUnknown);
    world.send(world.status("b", "", 2, v1::TaskStatus::Completed)).unwrap();
    assert_refused(world.reassign("c", 2), ErrorCode::TaskFinal);
    assert_eq!(world.task("t").task.status, TaskStatus::Completed);
}

#[test]
fn a_reassignment_needs_the_right_and_the_denial_names_it() {
    let (mut world, _a, _b, _c) = of_bob();
    let agent = Caller::Agent(AgentId::parse("b").unwrap());
    for task in ["t", "other"] {
        let refusal = assert_refused(world.reassign_as(agent.clone(), task, "c", 2), ErrorCode::PermissionDenied);
        assert!(refusal.metadata().contains(&("action", "reassignTask".to_owned())), "{refusal}");
    }
    assert_refused(world.reassign_as(Caller::Anonymous, "t", "c", 2), ErrorCode::IdentityMissing);
    assert_eq!(world.owned_by(), ("b".into(), 2));
}

#[test]
fn the_coordinator_has_no_more_rights_than_the_operator() {
    let text = "permit(principal is Agent, action, resource);
                permit(principal is Operator, action, resource);
                @id(\"not-to-c\") forbid(principal is Operator, action == Action::\"handOff\",
                                         resource == Agent::\"c\");";
    let policies = Policies::parse(&[Source::new("test.cedar", text)]).unwrap();
    let mut world = World::with(&["a", "b", "c"]);
    world.resources.policies.store(Arc::new(policies));
    let (mut a, mut b, _c) = (world.connect("a"), world.connect("b"), world.connect("c"));
    world.hand_over(&mut a, &mut b, 1);
    let refusal = assert_refused(world.reassign("c", 2), ErrorCode::PermissionDenied);
    assert!(refusal.metadata().contains(&("rules", "not-to-c".to_owned())), "{refusal}");
    assert_eq!(world.owned_by(), ("b".into(), 2));
    // A redrive to another agent asks with the same right.
    let handoff = world.reassign("a", 2).unwrap().handoff.id.to_string();
    world.take_and_ack(&mut a);
    world.send(v1::Envelope { epoch: 3, ..world.reject("a", "baton.coordinator", &handoff, &["c"]) }).unwrap();
    assert_eq!(world.handoff(&handoff).state, State::Rejected, "a suggestion gives no right");
    let dead = world.dead_letters()[0].number;
    assert_refused(world.redrive(dead, Some("c")), ErrorCode::PermissionDenied);
}

#[test]
fn a_reassignment_survives_a_crash_at_any_later_moment() {
    let (mut world, _a, _b, _c) = of_bob();
    let handoff = world.reassign("c", 2).unwrap().handoff.id.to_string();
    world.restart();
    let mut c = world.connect("c");
    let request = c.deliveries();
    world.ack(&c, &request.last().unwrap().0);
    world.restart();
    let mut c = world.connect("c");
    world.send(world.accept("c", "baton.coordinator", &handoff, 3)).unwrap();
    world.restart();
    let mut again = world.connect("c");
    assert!(c.deliveries().len() <= 1);
    let (delivery, context) = again.delivery();
    assert_eq!(context.message_type(), v1::MessageType::TaskContextTransfer);
    world.ack(&again, &delivery);
    world.send(world.complete("c", "baton.coordinator", &handoff, 3)).unwrap();
    assert_eq!(world.owned_by(), ("c".into(), 4));
    world.audit("t");
}

#[test]
fn nothing_of_a_reassignment_happens_when_its_commit_fails() {
    let (mut world, _a, _b, _c) = of_bob();
    world.disk.full.store(true, std::sync::atomic::Ordering::Relaxed);
    assert_refused(world.reassign("c", 2), ErrorCode::StoreUnavailable);
    world.disk.full.store(false, std::sync::atomic::Ordering::Relaxed);
    world.recover();
    assert_eq!(world.owned_by(), ("b".into(), 2));
    world.reassign("c", 2).unwrap();
}

#[test]
fn reserved_ids_are_not_registered_and_take_no_mail() {
    let mut world = World::with(&["a", "b"]);
    let mut card = world.engine.directory().get(&AgentId::parse("a").unwrap()).unwrap().record.clone();
    for id in ["baton.coordinator", "baton.other"] {
        card.card.agent_id = id.to_owned();
        let entry = baton_broker_core::directory::Entry::parse(card.clone()).unwrap();
        assert_refused(world.register_as(operator(), entry, ""), ErrorCode::FieldInvalid);
    }
    assert_refused(world.send(world.info("a", "baton.coordinator", "hello")), ErrorCode::ReceiverInvalid);
    assert_refused(world.send(world.request("a", "baton.coordinator", 1)), ErrorCode::ReceiverInvalid);
    let mut request = v1::HandoffRequest { task_type: "x".into(), ..Default::default() };
    request.on_behalf_of = Some(v1::OnBehalfOf { submitter_id: "operator:olga".into(), ..Default::default() });
    assert_refused(world.send(world.request_with("a", "b", 1, &request)), ErrorCode::FieldInvalid);
}

#[test]
fn the_coordinator_is_in_the_directory_and_does_not_count_as_an_agent() {
    let mut world = World::with(&["a"]);
    let directory = world.engine.directory().clone();
    assert!(directory.get(&AgentId::coordinator()).is_some());
    assert_eq!((directory.count(), directory.registered_count()), (1, 1));
    world.restart();
    assert!(world.engine.directory().get(&AgentId::coordinator()).is_some());
}

#[test]
fn a_revoked_key_of_the_coordinator_signs_nothing() {
    let (mut world, _a, _b, _c) = of_bob();
    let coordinator = AgentId::coordinator();
    let key = world.engine.directory().get(&coordinator).unwrap().record.card.keys[0].key_id.clone();
    let key_id = baton_broker_core::ids::KeyId::parse(&key).unwrap();
    let change = baton_broker_core::engine::KeyChange::Revoke { key_id, reason_text: "stolen".into() };
    world
        .ask(|reply| baton_broker_core::engine::Command::ChangeKeys {
            agent: coordinator,
            change,
            caller: operator(),
            reply,
        })
        .unwrap();
    assert_refused(world.reassign("c", 2), ErrorCode::KeyNotValid);
    assert_eq!(world.owned_by(), ("b".into(), 2));
}

/// Task "t" of "b", with a request that demands a skill and has words, and an agent "c" that has the skill.
fn with_words() -> (World, Session) {
    let mut world = World::with(&["a", "b2:support", "c:support", "d"]);
    world.equip("b2", &["tax.de"], 8);
    world.equip("c", &["tax.de"], 8);
    let (mut a, mut b2) = (world.connect("a"), world.connect("b2"));
    let request = v1::HandoffRequest {
        task_type: "support".into(),
        reason: v1::HandoffReason::Skill.into(),
        reason_text: "a question of tax law".into(),
        initial_context_summary: "the customer asks for a refund".into(),
        required_skills: vec!["tax".into()],
        desired_agent_type: "support".into(),
        ..Default::default()
    };
    let request = world.request_with("a", "b2", 1, &request);
    world.hand_over_with(&mut a, &mut b2, 1, request);
    let c = world.connect("c");
    (world, c)
}

#[test]
fn a_reassigned_task_keeps_the_words_and_demands_of_its_last_request() {
    let (mut world, mut c) = with_words();
    let made = world.reassign("c", 2).unwrap();
    let check = |request: v1::Envelope, former: &str| {
        let payload = v1::HandoffRequest::decode(request.payload.unwrap().value).unwrap();
        assert_eq!(payload.reason(), v1::HandoffReason::Skill);
        assert_eq!(payload.reason_text, "bob is gone; the last request says: a question of tax law");
        assert!(payload.initial_context_summary.contains(former), "{}", payload.initial_context_summary);
        assert!(payload.initial_context_summary.ends_with("\n\nthe customer asks for a refund"));
        assert_eq!(payload.required_skills, ["tax"]);
        assert_eq!(payload.desired_agent_type, "support");
    };
    let first = world.take_and_ack(&mut c);
    check(first, "b2, at epoch 2");
    // A second reassignment keeps those of the agent, and not those of the coordinator.
    assert_eq!(made.handoff.state, State::Requested);
    world.reassign("c", 3).unwrap();
    let withdrawn = world.take_and_ack(&mut c);
    assert_eq!(withdrawn.message_type(), v1::MessageType::ErrorNotification);
    let second = world.take_and_ack(&mut c);
    check(second, "baton.coordinator, at epoch 3");
    world.audit("t");
}

#[test]
fn a_task_is_not_reassigned_to_an_agent_that_lacks_what_its_request_demands() {
    let (mut world, _c) = with_words();
    let refusal = assert_refused(world.reassign("d", 2), ErrorCode::ReceiverInvalid);
    assert!(refusal.to_string().contains("tax") || refusal.to_string().contains("support"), "{refusal}");
    assert_eq!(world.owned_by(), ("b2".into(), 2), "the task stays with its owner");
}
