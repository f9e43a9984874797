//! The state machine, and the records of its decisions.

use std::hint::black_box;

use baton::{
    domain::handoff::{
        Handoff, Input, LoopLimits, Message, Mode, Outcome, Priority, Request, Snapshot, Task, Timeouts, Unavailable,
        step,
    },
    ids::{AgentId, MessageId, TaskId},
    records::{HandoffRecord, RequestPlace},
    time::Timestamp,
};

use super::Part;

const DIGEST: [u8; 32] = [7; 32];

fn agent(name: &str) -> AgentId {
    AgentId::parse(name).unwrap()
}

fn now() -> Timestamp {
    Timestamp::from_parts(1_700_000_000, 0).unwrap()
}

fn said(from: &str, message: Message) -> Input {
    Input::Message { from: agent(from), epoch: 1, message }
}

/// The four messages of a handoff, in order.
fn inputs() -> [Input; 4] {
    let request = Input::Request(Request {
        plan: None,
        id: MessageId::from_bytes([1; 16]),
        task: TaskId::parse("bench-task").unwrap(),
        from: agent("giver"),
        epoch: 1,
        receiver: "taker".into(),
        candidates: vec![agent("taker")],
        passed_over: Vec::new(),
        task_type: "bench".into(),
        reason: 0,
        mode: Mode::Transfer,
        loan_timeout: None,
        work: baton::domain::handoff::WorkTerms::default(),
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
    });
    let accept = said("taker", Message::Accept { wanted_sections: vec![], estimate: None });
    let context = said("giver", Message::Context { digest: DIGEST });
    let complete = Message::Complete { success: true, digest: Some(DIGEST), details: String::new() };
    [request, accept, context, said("taker", complete)]
}

fn take(known: Option<&(Task, Handoff)>, input: &Input) -> (Task, Handoff) {
    let (task, handoff) = known.map(|(task, handoff)| (task, handoff)).unzip();
    match step(Snapshot { task, handoff, unavailable: Unavailable::default() }, input, now()).unwrap() {
        Outcome::Moved(transition) => (transition.task, transition.handoff.unwrap()),
        Outcome::Unchanged => unreachable!("each of the four moves it"),
    }
}

pub(crate) fn parts() -> Vec<Part> {
    let inputs = inputs();
    let ended = inputs.iter().fold(None, |known, input| Some(take(known.as_ref(), input)));
    let (_, handoff) = ended.expect("four were taken");
    let place = RequestPlace { message: handoff.id, sequence: 1, expires_at: None };
    let record = HandoffRecord {
        handoff: handoff.into(),
        sequence: 1,
        changed: 1,
        request: place,
        trace: None,
        latest_letter: 0,
        sender_process: None,
        candidate_process: None,
    };
    let stored = record.encode();
    vec![
        Part::many("step/whole handoff", 4, move || {
            let ended = inputs.iter().fold(None, |known, input| Some(take(known.as_ref(), input)));
            drop(black_box(ended));
        }),
        Part::one("codec/handoff record, write", move || drop(black_box(record.encode()))),
        Part::one("codec/handoff record, read", move || drop(black_box(HandoffRecord::decode(&stored).unwrap()))),
    ]
}
