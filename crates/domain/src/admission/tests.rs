use super::*;
use crate::{
    MessageType,
    handoff::{Hop, LoopLimits, Mode, Offer, OfferOutcome, Priority, State, TaskStatus, Timeouts},
};

const TASK: &str = "task-1";
const WINDOW: Duration = Duration::from_secs(300);

fn agent(name: &str) -> AgentId {
    AgentId::parse(name).unwrap()
}

fn agents<const N: usize>(names: [&str; N]) -> Vec<AgentId> {
    names.map(agent).to_vec()
}

fn task_id(name: &str) -> TaskId {
    TaskId::parse(name).unwrap()
}

fn id(number: u8) -> MessageId {
    MessageId::from_bytes([number; 16])
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_parts(1_000_000 + seconds, 0).unwrap()
}

/// A message of epoch 2 about the task and its open handoff.
fn message(message_type: MessageType, from: &str, to: &str) -> Header {
    Header {
        message_id: id(9),
        sender: agent(from),
        receiver: Receiver::parse(to).unwrap(),
        timestamp: at(0),
        message_type,
        correlation: Some(id(1)),
        task: Some(task_id(TASK)),
        epoch: 2,
        expires_at: None,
        trace: None,
    }
}

/// A task of epoch 2: olga handed it to alice, who offers it to bob, and then to carol.
fn task() -> Task {
    Task {
        id: task_id(TASK),
        task_type: "support".into(),
        owner: agent("alice"),
        epoch: 2,
        status: TaskStatus::InProgress,
        progress: None,
        details: String::new(),
        result: None,
        prompts: Vec::new(),
        parent: None,
        conversation: None,
        created_by: None,
        plan: None,
        open_handoff: Some(id(1)),
        hops: vec![Hop { handoff: id(0), sender: agent("olga"), receiver: agent("alice"), epoch: 2 }],
        loans: Vec::new(),
        transfer: None,
        seizures: Vec::new(),
        loop_limits: LoopLimits::default(),
        created_at: at(-10),
        updated_at: at(-10),
    }
}

fn handoff() -> Handoff {
    let offer = |name: &str, outcome| Offer {
        candidate: agent(name),
        offered_at: at(-5),
        outcome,
        reject_reason: 0,
        reason_text: String::new(),
        retry_at: None,
        until_room: false,
        repeats: 0,
        passed_over: false,
        decides_within: None,
    };
    Handoff {
        waiting: None,
        wait_for_agent: false,
        thread: None,
        negotiation: None,
        id: id(1),
        redrive_of: None,
        task: task_id(TASK),
        epoch: 2,
        sender: agent("alice"),
        receiver: "bob".into(),
        candidate: agent("carol"),
        next_candidates: Vec::new(),
        offers: vec![offer("bob", OfferOutcome::Rejected), offer("carol", OfferOutcome::Pending)],
        state: State::Deciding,
        mode: Mode::Transfer,
        loan_timeout: None,
        work: crate::handoff::WorkTerms::default(),
        submitter: None,
        routing: None,
        priority: Priority::Medium,
        fairness_key: None,
        task_type: "support".into(),
        reason: 0,
        timeouts: Timeouts::default(),
        step_deadline: None,
        whole_deadline: at(100),
        wanted_sections: Vec::new(),
        estimate: None,
        context_digest: None,
        context_delivered: false,
        let_go: false,
        failure: None,
        steps: Vec::new(),
        created_at: at(-5),
        updated_at: at(-5),
    }
}

fn removed() -> RemovedTask {
    RemovedTask::of(&Task { status: TaskStatus::Completed, open_handoff: None, ..task() })
}

/// The standing, or the code of the refusal.
fn outcome(result: Result<Standing, AdmissionError>) -> String {
    match result {
        Ok(standing) => format!("{standing:?}"),
        Err(error) => error.code().name().to_owned(),
    }
}

fn of_known(header: &Header) -> String {
    let (task, handoff) = (task(), handoff());
    let named = header.handoff().or(header.correlation).filter(|named| *named == handoff.id).map(|_| &handoff);
    let open = deciding_handoff(&task, named, &header.sender).map(|_| &handoff);
    outcome(admit(header, &task.id, KnownTask::Known(&task, open), named))
}

fn of_removed(header: &Header) -> String {
    outcome(admit(header, &task_id(TASK), KnownTask::Removed(&removed()), None))
}

fn of_unknown(header: &Header) -> String {
    outcome(admit(header, &task_id(TASK), KnownTask::Unknown, None))
}

// ------------------------------------------------------------------------------------------------- repeats and time

#[test]
fn a_repeat_is_recognised_by_its_content() {
    assert_eq!(check_repeat(id(1), &[7; 32], &[7; 32]), Ok(()));
    let reused = AdmissionError::MessageIdReused { message_id: id(1) };
    assert_eq!(check_repeat(id(1), &[7; 32], &[8; 32]), Err(reused));
}

#[test]
fn a_timestamp_is_taken_up_to_the_edge_of_the_window_either_way() {
    let header = message(MessageType::Info, "alice", "bob");
    let check = |now| check_timestamp(&header, WINDOW, Timestamp::default(), now);
    assert_eq!((check(at(300)), check(at(-300))), (Ok(()), Ok(())));
    let off_by = Duration::from_secs(301);
    let outside = AdmissionError::TimestampOutsideWindow { off_by, window: WINDOW };
    assert_eq!((check(at(301)), check(at(-301))), (Err(outside.clone()), Err(outside)));
}

#[test]
fn a_timestamp_whose_ids_are_forgotten_is_refused_inside_the_window() {
    let header = message(MessageType::Info, "alice", "bob");
    let check = |forgotten| check_timestamp(&header, WINDOW, forgotten, at(1));
    assert_eq!(check(at(-1)), Ok(()));
    assert_eq!(check(at(0)), Err(AdmissionError::TimestampForgotten { upto: at(0) }));
}

#[test]
fn a_message_expires_at_its_expires_at() {
    let header = Header { expires_at: Some(at(5)), ..message(MessageType::Info, "alice", "bob") };
    assert_eq!(check_expiry(&header, at(4)), Ok(()));
    assert_eq!(check_expiry(&header, at(5)), Err(AdmissionError::MessageExpired { expired_at: at(5) }));
    assert_eq!(check_expiry(&Header { expires_at: None, ..header }, at(1_000_000)), Ok(()));
}

// --------------------------------------------------------------------------------------------------------- the task

#[test]
fn owners_and_candidates_take_part_former_ones_too() {
    let (task, handoff) = (task(), handoff());
    let part = |name| takes_part(&task, None, Some(&handoff), &agent(name));
    assert_eq!(["alice", "olga", "bob", "carol", "mallory"].map(part), [true, true, true, true, false]);
    assert!(!takes_part(&task, None, None, &agent("carol")), "no handoff says that carol is a candidate");
    let of_another = Handoff { task: task_id("task-2"), ..handoff.clone() };
    assert!(!takes_part(&task, Some(&of_another), None, &agent("carol")), "another task's handoff says nothing");
    assert!(takes_part(&task, Some(&of_another), Some(&handoff), &agent("carol")), "the open one does");
}

#[test]
fn the_open_handoff_is_looked_up_only_where_it_decides() {
    let (task, handoff) = (task(), handoff());
    let of_another = Handoff { task: task_id("task-2"), ..handoff.clone() };
    assert_eq!(deciding_handoff(&task, None, &agent("alice")), None);
    assert_eq!(deciding_handoff(&task, Some(&handoff), &agent("bob")), None);
    assert_eq!(deciding_handoff(&task, None, &agent("bob")), Some(id(1)));
    assert_eq!(deciding_handoff(&task, Some(&of_another), &agent("bob")), Some(id(1)));
}

/// Each type from an outsider, about a known, a removed and an unknown task.
#[test]
fn an_outsider_is_answered_as_if_there_were_no_such_task() {
    // Each of these may be about a new task.
    let requests = [MessageType::HandoffRequest, MessageType::TaskAccept];
    let types = (1..=21).filter_map(MessageType::from_number).filter(|kind| !requests.contains(kind));
    for kind in types {
        let header = message(kind, "mallory", "alice");
        let expected = match kind {
            MessageType::HandoffAccept | MessageType::HandoffReject | MessageType::HandoffComplete => "NOT_CANDIDATE",
            MessageType::TaskRequest
            | MessageType::TaskOffer
            | MessageType::TaskDecline
            | MessageType::NegotiationClosed
            | MessageType::Heartbeat => "Carried",
            MessageType::TaskInput => "NOT_ASKED",
            _ => "NOT_OWNER",
        };
        assert_eq!([of_known(&header), of_removed(&header), of_unknown(&header)], [expected; 3], "{kind:?}");
    }
}

#[test]
fn a_request_makes_a_task_that_is_not_known() {
    let header = message(MessageType::HandoffRequest, "mallory", "bob");
    assert_eq!([of_known(&header), of_removed(&header)], ["NOT_OWNER"; 2]);
    assert_eq!(of_unknown(&header), "OnRecord");
}

#[test]
fn a_request_under_the_id_of_another_tasks_handoff_is_refused() {
    let header = message(MessageType::HandoffRequest, "alice", "bob");
    let of_another = Handoff { id: header.message_id, task: task_id("task-2"), ..handoff() };
    let task = task();
    for known in [KnownTask::Known(&task, None), KnownTask::Unknown] {
        assert_eq!(outcome(admit(&header, &task.id, known, Some(&of_another))), "HANDOFF_UNKNOWN");
    }
}

#[test]
fn a_removed_task_has_ended_and_only_its_owners_learn_that() {
    for owner in ["alice", "olga"] {
        let update = message(MessageType::TaskStatusUpdate, owner, "");
        assert_eq!(of_removed(&update), "TASK_FINAL");
        assert_eq!(of_removed(&Header { epoch: 1, ..update }), "STALE_EPOCH");
        let mail = message(MessageType::Info, owner, "bob");
        assert_eq!(of_removed(&mail), "Carried");
        assert_eq!(of_removed(&Header { epoch: 1, ..mail.clone() }), "STALE_EPOCH");
        assert_eq!(of_removed(&Header { epoch: 0, ..mail }), "Carried");
    }
    let stale = Header { epoch: 1, ..message(MessageType::Info, "carol", "alice") };
    assert_eq!(of_removed(&stale), "NOT_OWNER", "a candidate was no owner");
}

#[test]
fn mail_is_fenced_where_it_says_an_epoch_and_its_sender_takes_part() {
    let mail = |from, epoch| Header { epoch, ..message(MessageType::Delegation, from, "zoe") };
    for from in ["alice", "olga", "bob", "carol"] {
        assert_eq!(of_known(&mail(from, 0)), "OnRecord");
        assert_eq!(of_known(&mail(from, 1)), "STALE_EPOCH");
        assert_eq!(of_known(&mail(from, 2)), "OnRecord");
        assert_eq!(of_known(&mail(from, 3)), "OnRecord", "an epoch ahead is no harm to mail");
    }
    assert_eq!(of_known(&mail("mallory", 1)), "NOT_OWNER");
}

#[test]
fn the_correlation_of_mail_may_be_any_message() {
    let mail = Header { correlation: Some(id(77)), ..message(MessageType::Info, "alice", "zoe") };
    assert_eq!(of_known(&mail), "OnRecord");
}

#[test]
fn a_correlation_that_is_to_be_a_handoff_must_be_one_of_the_task() {
    let kinds = [MessageType::HandoffCancel, MessageType::TaskContextTransfer, MessageType::TaskStatusUpdate];
    let (task, of_another) = (task(), Handoff { task: task_id("task-2"), ..handoff() });
    for kind in kinds {
        let header = message(kind, "alice", "carol");
        assert_eq!(of_known(&header), "OnRecord");
        assert_eq!(of_known(&Header { correlation: Some(id(77)), ..header.clone() }), "HANDOFF_UNKNOWN");
        let result = admit(&header, &task.id, KnownTask::Known(&task, None), Some(&of_another));
        assert_eq!(outcome(result), "HANDOFF_UNKNOWN");
    }
    let update = Header { correlation: None, ..message(MessageType::TaskStatusUpdate, "alice", "") };
    assert_eq!(of_known(&update), "OnRecord", "a status update need not name a handoff");
}

#[test]
fn the_receiver_is_the_other_side_of_the_handoff() {
    use MessageType as T;
    for kind in [T::HandoffAccept, T::HandoffReject, T::HandoffComplete] {
        assert_eq!(of_known(&message(kind, "carol", "alice")), "OnRecord");
        assert_eq!(of_known(&message(kind, "carol", "bob")), "RECEIVER_INVALID");
    }
    for kind in [T::TaskContextTransfer, T::HandoffCancel] {
        assert_eq!(of_known(&message(kind, "alice", "carol")), "OnRecord");
        assert_eq!(of_known(&message(kind, "alice", "bob")), "RECEIVER_INVALID");
    }
    for to in ["", "bob", "type:legal", "all:legal"] {
        assert_eq!(of_known(&message(T::TaskStatusUpdate, "alice", to)), "OnRecord");
    }
}

#[test]
fn a_cancel_of_another_agent_does_not_learn_the_candidate() {
    assert_eq!(of_known(&message(MessageType::HandoffCancel, "bob", "alice")), "OnRecord", "the machine refuses it");
}

#[test]
fn a_cancel_of_an_ended_handoff_need_not_name_its_last_candidate() {
    let (task, ended) = (task(), Handoff { state: State::Failed, ..handoff() });
    let header = message(MessageType::HandoffCancel, "alice", "bob");
    assert_eq!(outcome(admit(&header, &task.id, KnownTask::Known(&task, None), Some(&ended))), "OnRecord");
}

#[test]
fn only_what_came_too_late_is_recorded() {
    let late = AdmissionError::from(Rejection::StaleEpoch { claimed: 1, current: 2 });
    assert_eq!(late.recorded(), Some(&Rejection::StaleEpoch { claimed: 1, current: 2 }));
    assert_eq!(AdmissionError::from(Rejection::HandoffUnknown).recorded(), None);
    assert_eq!(AdmissionError::MessageIdReused { message_id: id(1) }.recorded(), None);
}

#[test]
fn candidates_leave_half_of_the_recorded_refusals_to_owners() {
    let of = |name, most| refusals_of(&task(), &agent(name), most);
    assert_eq!((of("alice", 9), of("olga", 9), of("carol", 9), of("carol", 0)), (9, 9, 5, 0));
}

#[test]
fn mail_is_about_no_handoff_and_a_request_about_its_own() {
    let about = |kind| message(kind, "alice", "bob").handoff();
    assert_eq!(about(MessageType::HandoffRequest), Some(id(9)));
    assert_eq!(about(MessageType::HandoffAccept), Some(id(1)));
    assert_eq!(about(MessageType::TaskStatusUpdate), Some(id(1)));
    assert_eq!(about(MessageType::Info), None);
}

// -------------------------------------------------------------------------------------------------------- receivers

#[test]
fn the_broker_and_unknown_agents_cannot_be_named() {
    assert_eq!(check_named(&agent("bob"), true), Ok(()));
    let code = |result: Result<(), AdmissionError>| result.unwrap_err().code();
    assert_eq!(code(check_named(&agent("bob"), false)), ErrorCode::ReceiverUnknown);
    assert_eq!(code(check_named(&AgentId::broker(), true)), ErrorCode::ReceiverInvalid);
}

#[test]
fn an_agent_cannot_hand_a_task_to_itself() {
    let check = |to| check_not_own(&message(MessageType::HandoffRequest, "alice", to));
    assert_eq!((check("bob"), check("type:support")), (Ok(()), Ok(())));
    assert_eq!(check("alice").unwrap_err().code(), ErrorCode::ReceiverInvalid);
}

#[test]
fn candidates_are_asked_once_and_in_order_and_never_the_sender() {
    let header = message(MessageType::HandoffRequest, "alice", "type:support");
    let of_type = agents(["bob", "carol", "alice", "bob"]);
    let found = candidates(&header, [of_type, agents(["dave", "carol", "alice", "erin"])].concat(), true);
    assert_eq!(found, Ok(agents(["bob", "carol", "dave", "erin"])));
}

#[test]
fn a_request_has_no_more_candidates_than_a_handoff_has_offers() {
    let header = message(MessageType::HandoffRequest, "alice", "type:support");
    let many: Vec<AgentId> = (0..OFFERS_MAX + 5).map(|number| agent(&format!("agent-{number}"))).collect();
    assert_eq!(candidates(&header, many.clone(), true), Ok(many[..OFFERS_MAX].to_vec()));
}

#[test]
fn a_type_without_another_agent_is_an_unknown_receiver() {
    let unknown = || AdmissionError::ReceiverUnknown { receiver: "type:support".into() };
    let request = message(MessageType::HandoffRequest, "alice", "type:support");
    assert_eq!(candidates(&request, agents(["alice"]), true), Err(unknown()));
    assert_eq!(candidates(&request, agents(["alice"]), false), Ok(Vec::new()));
    let mail = message(MessageType::Info, "alice", "type:support");
    assert_eq!(receivers_of_type(&mail, others(&mail, agents(["alice"]))), Err(unknown()));
}

#[test]
fn mail_for_a_type_goes_to_the_best_of_it_or_to_all() {
    let able = agents(["bob", "alice", "carol"]);
    let receivers = |to| {
        let mail = message(MessageType::Info, "alice", to);
        receivers_of_type(&mail, others(&mail, able.clone()))
    };
    assert_eq!(receivers("type:support"), Ok(agents(["bob"])));
    assert_eq!(receivers("all:support"), Ok(agents(["bob", "carol"])));
}
