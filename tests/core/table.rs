//! Every state with every input from the entitled party: the protocol on one page. `=` means no change, and a text in
//! brackets is the code of a refusal.

use std::time::Duration;

use baton_domain::handoff::{
    Acked, Cancellation, Handoff, Input, LoopLimits, Message, Mode, NewTask, Outcome, Priority, Request, Seize,
    Snapshot, State, Task, TaskStatus, Timeouts, Unavailable, step,
};
use baton_protocol::{
    codes::Refusal as _,
    ids::{AgentId, MessageId, TaskId},
    time::Timestamp,
};

const DIGEST: [u8; 32] = [7; 32];

fn agent(name: &str) -> AgentId {
    AgentId::parse(name).unwrap()
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_parts(1_000_000 + seconds, 0).unwrap()
}

fn said(from: &str, epoch: u64, message: Message) -> Input {
    Input::Message { from: agent(from), epoch, message }
}

fn status(from: &str, epoch: u64, status: TaskStatus) -> Input {
    let message = Message::Status {
        id: MessageId::from_bytes([9; 16]),
        status,
        progress: None,
        details: String::new(),
        receivers: vec![],
        has_result: false,
        prompt: None,
        keep_parts: false,
        extend_by: None,
    };
    said(from, epoch, message)
}

fn request(number: u8) -> Input {
    Input::Request(Request {
        plan: None,
        id: MessageId::from_bytes([number; 16]),
        task: TaskId::parse("t").unwrap(),
        from: agent("a"),
        epoch: 1,
        receiver: "b".into(),
        candidates: vec![agent("b")],
        passed_over: Vec::new(),
        task_type: "support".into(),
        reason: 0,
        mode: Mode::Transfer,
        loan_timeout: None,
        work: baton_domain::handoff::WorkTerms::default(),
        submitter: None,
        routing: None,
        priority: Priority::Medium,
        fairness_key: None,
        timeouts: Timeouts::default(),
        loop_limits: LoopLimits::default(),
        parent: None,
        conversation: None,
        wait_for_agent: false,
        thread: None,
        deliver_after: None,
        negotiation: None,
    })
}

fn seize(expected_epoch: u64) -> Input {
    Input::Seize(Seize {
        expected_epoch,
        submitter: "operator:olga".into(),
        receiver: "c".into(),
        reason_text: String::new(),
        handoff: MessageId::from_bytes([3; 16]),
    })
}

fn accept() -> Message {
    Message::Accept { wanted_sections: vec![], estimate: None }
}

fn reject() -> Message {
    Message::Reject { reason: 1, text: String::new(), suggestions: vec![], retry_after: None, passed_over: vec![] }
}

fn complete(success: bool) -> Message {
    Message::Complete { success, digest: success.then_some(DIGEST), details: String::new() }
}

fn acked(by: &str, mail: Acked) -> Input {
    Input::Acked { by: agent(by), mail, decides_within: None }
}

/// A task whose only handoff is in this state.
fn in_state(state: State) -> (Task, Handoff) {
    let context = said("a", 1, Message::Context { digest: DIGEST });
    let taken = vec![acked("b", Acked::Request), said("b", 1, accept()), context];
    let path = match state {
        State::Requested => vec![],
        State::Deciding => taken[..1].to_vec(),
        State::Accepted => taken[..2].to_vec(),
        State::ContextSent => taken,
        State::Completed => [taken, vec![said("b", 1, complete(true))]].concat(),
        State::Rejected => vec![said("b", 1, reject())],
        State::Failed => [taken, vec![said("b", 1, complete(false))]].concat(),
        State::Cancelled => vec![said("a", 1, Message::Cancel)],
    };
    let Ok(Outcome::Moved(first)) = step(Snapshot::default(), &request(1), at(0)) else { panic!("a good request") };
    let (mut task, mut handoff) = (first.task, first.handoff.unwrap());
    for input in path {
        match step(
            Snapshot { task: Some(&task), handoff: Some(&handoff), unavailable: Unavailable::default() },
            &input,
            at(1),
        ) {
            Ok(Outcome::Moved(next)) => (task, handoff) = (next.task, next.handoff.unwrap_or(handoff)),
            other => panic!("on the way to {state:?}: {other:?}"),
        }
    }
    assert_eq!(handoff.state, state);
    (task, handoff)
}

fn outcome(state: State, input: &Input, now: Timestamp) -> String {
    let (task, handoff) = in_state(state);
    match step(Snapshot { task: Some(&task), handoff: Some(&handoff), unavailable: Unavailable::default() }, input, now)
    {
        Ok(Outcome::Unchanged) => "=".into(),
        Ok(Outcome::Moved(next)) => {
            let state = next.handoff.map_or("TASK", |handoff| handoff.state.name());
            match next.task.epoch == task.epoch {
                true => state.into(),
                false => format!("{state} owner {}", next.task.owner),
            }
        }
        Err(rejection) => format!("[{}]", rejection.code().name()),
    }
}

#[test]
fn the_whole_table() {
    let inputs: Vec<(&str, Input, i64)> = vec![
        ("accept by candidate", said("b", 1, accept()), 1),
        ("accept by stranger", said("c", 1, accept()), 1),
        ("accept, old epoch", said("b", 0, accept()), 1),
        ("accept, epoch ahead", said("b", 2, accept()), 1),
        ("reject by candidate", said("b", 1, reject()), 1),
        ("cancel by sender", said("a", 1, Message::Cancel), 1),
        ("cancel by candidate", said("b", 1, Message::Cancel), 1),
        ("recall by sender", said("a", 1, Message::Recall { loan: MessageId::from_bytes([1; 16]) }), 1),
        ("context by sender", said("a", 1, Message::Context { digest: DIGEST }), 1),
        ("context by stranger", said("c", 1, Message::Context { digest: DIGEST }), 1),
        ("complete, success", said("b", 1, complete(true)), 1),
        ("complete, failure", said("b", 1, complete(false)), 1),
        ("candidate is busy", status("b", 1, TaskStatus::InProgress), 1),
        ("sender is busy", status("a", 1, TaskStatus::InProgress), 1),
        ("sender ends the task", status("a", 1, TaskStatus::Completed), 1),
        ("request acked", acked("b", Acked::Request), 1),
        ("context acked", acked("b", Acked::Context), 1),
        ("completion acked", acked("a", Acked::Completion), 1),
        ("request undeliverable", Input::Undeliverable { to: agent("b"), mail: Acked::Request }, 1),
        ("context undeliverable", Input::Undeliverable { to: agent("b"), mail: Acked::Context }, 1),
        ("candidate is gone", Input::CandidateGone, 2),
        ("candidate has room", Input::Look { found: vec![agent("c")] }, 2),
        ("redrive", Input::Redrive { id: MessageId::from_bytes([2; 16]), candidates: vec![agent("c")] }, 2),
        ("reassigned", seize(1), 2),
        ("reassigned, old epoch", seize(0), 2),
        ("cancelled by broker", Input::CancelTask(Cancellation::Idle), 2),
        ("time: no loan due", Input::TaskDue, 360),
        ("time: nothing due", Input::Time, 2),
        ("time: step due", Input::Time, 200),
        ("time: whole due", Input::Time, 360),
        ("accept, too late", said("b", 1, accept()), 360),
    ];
    let mut table = String::new();
    for (name, input, seconds) in &inputs {
        let cells: Vec<String> = State::ALL.iter().map(|state| outcome(*state, input, at(*seconds))).collect();
        table.push_str(&format!("{name:<22}| {}\n", cells.join(" | ")));
    }
    let expected = include_str!("table.txt");
    let body: String = expected.lines().skip(2).map(|line| format!("{line}\n")).collect();
    assert_eq!(table, body, "\n{table}");
}

#[test]
fn timeouts_are_the_specified_ones() {
    let seconds = |span: Duration| span.as_secs();
    let Timeouts { accept, context, complete, whole } = Timeouts::default();
    assert_eq!([accept, context, complete, whole].map(seconds), [30, 60, 120, 360]);
}

#[test]
fn a_creation_makes_a_task_without_a_handoff_and_is_refused_of_a_known_task() {
    let new = |epoch| {
        Input::Create(NewTask {
            id: MessageId::from_bytes([3; 16]),
            task: TaskId::parse("t").unwrap(),
            from: agent("a"),
            epoch,
            task_type: "x".into(),
            parent: None,
            conversation: None,
            loop_limits: LoopLimits::default(),
        })
    };
    let Ok(Outcome::Moved(made)) = step(Snapshot::default(), &new(1), at(0)) else { panic!("a good creation") };
    assert_eq!((made.handoff, made.effects.len()), (None, 0));
    assert_eq!((made.task.owner, made.task.epoch, made.task.status), (agent("a"), 1, TaskStatus::Created));
    let ahead = step(Snapshot::default(), &new(2), at(0)).unwrap_err();
    assert_eq!(ahead.code().name(), "EPOCH_AHEAD");
    for state in State::ALL {
        assert_eq!(outcome(state, &new(1), at(1)), "[TASK_EXISTS]", "{state:?}");
    }
}
