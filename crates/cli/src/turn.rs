//! Whose turn an open handoff is, and how long that agent has.

use std::time::Duration;

use baton_client::{
    proto::v1::{self, HandoffState},
    time::Timestamp,
};

/// The agent that has the next step. Empty: the handoff has ended.
pub(super) fn turn(handoff: &v1::Handoff) -> &str {
    match handoff.state() {
        HandoffState::Requested | HandoffState::Deciding | HandoffState::ContextSent => &handoff.candidate_id,
        HandoffState::Accepted => &handoff.sender_id,
        HandoffState::Unspecified
        | HandoffState::Completed
        | HandoffState::Rejected
        | HandoffState::Failed
        | HandoffState::Cancelled => "",
    }
}

pub(super) fn deadline(handoff: &v1::Handoff) -> Option<prost_types::Timestamp> {
    handoff.deadline.or(handoff.whole_deadline)
}

/// The time until the deadline of an open handoff.
pub(super) fn left(handoff: &v1::Handoff, now: Timestamp) -> Option<Duration> {
    Some(time_of(deadline(handoff)?)?.since(now))
}

/// The cell of a column LEFT: the time until this deadline. Empty: there is no deadline.
pub(super) fn left_until(deadline: Option<&prost_types::Timestamp>, now: Timestamp) -> String {
    let time = deadline.copied().and_then(time_of);
    time.map(|time| brief(time.since(now))).unwrap_or_default()
}

/// Whose turn an open task is, and until when: the agent that is asked, else the side of its open handoff that has the
/// next step, else the owner, until its loan ends. `handoffs` has the open handoffs of the owner.
pub(super) fn of_task<'a>(
    task: &'a v1::Task,
    handoffs: &'a [v1::Handoff],
) -> (&'a str, Option<prost_types::Timestamp>) {
    if let Some(open) = &task.open_prompt {
        return (&open.asked_agent_id, open.prompt.as_ref().and_then(|prompt| prompt.answer_before));
    }
    match handoffs.iter().find(|handoff| handoff.handoff_id == task.open_handoff_id) {
        Some(handoff) => (turn(handoff), deadline(handoff)),
        None => {
            let loans = task.loans.iter().filter_map(|loan| loan.due_time);
            (&task.owner_id, loans.min_by_key(|due| (due.seconds, due.nanos)))
        }
    }
}

pub(super) fn time_of(time: prost_types::Timestamp) -> Option<Timestamp> {
    Timestamp::from_parts(time.seconds, time.nanos)
}

/// A span in its largest unit: 42 s, 7 min, 3 h, 2 d.
pub(super) fn brief(span: Duration) -> String {
    match span.as_secs() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds @ 7200..172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_task_is_the_turn_of_the_asked_agent_then_of_the_handoff_then_of_its_owner() {
        let at = |seconds| Some(prost_types::Timestamp { seconds, nanos: 0 });
        let loan = |seconds| v1::TaskLoan { due_time: at(seconds), ..Default::default() };
        let mut task = v1::Task { owner_id: "bob".into(), loans: vec![loan(9), loan(4)], ..Default::default() };
        assert_eq!(of_task(&task, &[]), ("bob", at(4)));
        let state = HandoffState::Requested.into();
        let (handoff_id, candidate_id) = ("h1".to_owned(), "carol".to_owned());
        let handoffs = [v1::Handoff { handoff_id, candidate_id, state, whole_deadline: at(7), ..Default::default() }];
        assert_eq!(of_task(&task, &handoffs), ("bob", at(4)), "another task's handoff");
        task.open_handoff_id = "h1".into();
        assert_eq!(of_task(&task, &handoffs), ("carol", at(7)));
        let prompt = Some(v1::TaskPrompt { answer_before: at(5), ..Default::default() });
        task.open_prompt = Some(v1::OpenPrompt { asked_agent_id: "dave".into(), prompt, ..Default::default() });
        assert_eq!(of_task(&task, &handoffs), ("dave", at(5)));
        assert_eq!(left_until(at(90).as_ref(), Timestamp::from_parts(60, 0).unwrap()), "30 s");
        assert_eq!(left_until(None, Timestamp::from_parts(60, 0).unwrap()), "");
    }

    #[test]
    fn spans_are_short() {
        let shown = [0, 119, 120, 7199, 7200, 172_799, 172_800].map(|seconds| brief(Duration::from_secs(seconds)));
        assert_eq!(shown, ["0 s", "119 s", "2 min", "119 min", "2 h", "47 h", "2 d"]);
    }
}
