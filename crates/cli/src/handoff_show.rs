//! A handoff for people: its state, its offers with the words of each refusal, and its steps.

use std::borrow::Cow;

use unicode_width::UnicodeWidthStr as _;

use super::{
    Failure,
    output::{self, Output},
    turn,
};
use baton_client::{
    proto::v1,
    time::{Clock as _, SystemClock, Timestamp},
};

/// The width of the words of a refusal, so that they fit a line of 80 columns behind their name.
const WORDS_WIDTH: usize = 66;

pub(super) fn show(handoff: &v1::Handoff, output: &Output) -> Result<(), Failure> {
    output.one(handoff, |handoff| lines(handoff, SystemClock.now()))?;
    if output.is_table() {
        handoff.transitions.iter().for_each(say_step);
    }
    Ok(())
}

fn lines(handoff: &v1::Handoff, now: Timestamp) -> Vec<(Cow<'static, str>, String)> {
    let error = match handoff.error_code() {
        v1::ErrorCode::Unspecified => String::new(),
        code => format!("{} ({})", handoff.error_message, output::short(code.as_str_name(), "ERROR_CODE_")),
    };
    let reason = match handoff.reason() {
        v1::HandoffReason::Unspecified => handoff.reason_text.clone(),
        reason => with_words(output::short(reason.as_str_name(), "HANDOFF_REASON_"), &handoff.reason_text),
    };
    let turn = turn::turn(handoff).to_owned();
    let is_open = !turn.is_empty();
    let left = turn::left(handoff, now).filter(|_| is_open).map(turn::brief).unwrap_or_default();
    let deadline = turn::deadline(handoff).filter(|_| is_open);
    let mut lines: Vec<(Cow<'static, str>, String)> = vec![
        ("handoff".into(), handoff.handoff_id.clone()),
        ("task".into(), format!("{} at epoch {}", handoff.task_id, handoff.epoch)),
        ("from".into(), handoff.sender_id.clone()),
        ("to".into(), handoff.candidate_id.clone()),
        ("waits for".into(), waits_for(handoff.waiting_for()).to_owned()),
        ("asked for".into(), handoff.receiver_id.clone()),
        ("thread".into(), handoff.thread_id.clone()),
        ("summary".into(), handoff.initial_context_summary.clone()),
        ("reason".into(), reason),
        ("wanted type".into(), handoff.desired_agent_type.clone()),
        (
            "estimate".into(),
            handoff.estimated_handoff_time.map(|span| format!("{} s", span.seconds)).unwrap_or_default(),
        ),
        ("state".into(), output::short(handoff.state().as_str_name(), "HANDOFF_STATE_")),
        ("turn".into(), turn),
        ("time left".into(), left),
        ("deadline".into(), output::time(deadline.as_ref())),
        ("sender sees".into(), output::short(handoff.sender_view().as_str_name(), "SENDER_VIEW_")),
        ("receiver sees".into(), output::short(handoff.receiver_view().as_str_name(), "RECEIVER_VIEW_")),
        ("error".into(), error),
        ("next".into(), handoff.next_candidates.join(", ")),
    ];
    for offer in &handoff.offers {
        lines.push((
            "offer".into(),
            format!(
                "{} at {}: {}",
                offer.candidate_id,
                output::brief(offer.offer_time.as_ref(), now),
                outcome(offer, now)
            ),
        ));
        lines.extend(wrapped(&offer.reason_text, WORDS_WIDTH).into_iter().map(|line| ("".into(), line)));
    }
    lines
}

/// The offers that no candidate took, the latest of each candidate, each with the words of its refusal.
pub(super) fn refusals(handoff: &v1::Handoff, now: Timestamp) -> Vec<String> {
    let is_refusal = |offer: &&v1::HandoffOffer| {
        !matches!(
            offer.outcome(),
            v1::OfferOutcome::Unspecified | v1::OfferOutcome::Pending | v1::OfferOutcome::Accepted
        )
    };
    let latest = |(at, offer): &(usize, &v1::HandoffOffer)| {
        !handoff.offers.iter().skip(at + 1).any(|later| later.candidate_id == offer.candidate_id)
    };
    let offers = handoff.offers.iter().enumerate().filter(latest).map(|(_, offer)| offer).filter(is_refusal);
    offers
        .map(|offer| with_words(format!("{} {}", offer.candidate_id, outcome(offer, now)), &offer.reason_text))
        .collect()
}

/// The outcome of an offer, and the reason of a reject.
fn outcome(offer: &v1::HandoffOffer, now: Timestamp) -> String {
    let mut text = match offer.passed_over {
        true => "PASSED_OVER".to_owned(),
        false => output::short(offer.outcome().as_str_name(), "OFFER_OUTCOME_"),
    };
    if offer.reject_reason() != v1::RejectReason::Unspecified {
        text.push_str(&format!(", {}", output::short(offer.reject_reason().as_str_name(), "REJECT_REASON_")));
    }
    if offer.retry_time.is_some() {
        text.push_str(&format!(", asked again at {}", output::brief(offer.retry_time.as_ref(), now)));
    }
    text
}

fn with_words(what: String, words: &str) -> String {
    if words.is_empty() { what } else { format!("{what}: {words}") }
}

/// A text in lines of at most this many characters, broken at spaces. A longer word has a line of its own.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    // Escaped first: a line feed of an agent begins no line here.
    for word in output::line(text).split(' ').filter(|word| !word.is_empty()) {
        match lines.last_mut() {
            Some(line) if line.width() + 1 + word.width() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Prints a step on two lines: time, cause and state, then both views.
pub(super) fn say_step(step: &v1::HandoffTransition) {
    let candidate = if step.candidate_id.is_empty() { "" } else { ", candidate " };
    say!(
        "{:<24}  {:<13} {}{candidate}{}",
        output::moment(step.transition_time.as_ref()),
        output::short(step.state().as_str_name(), "HANDOFF_STATE_"),
        output::short(step.cause().as_str_name(), "HANDOFF_CAUSE_"),
        step.candidate_id,
    );
    say!(
        "    sender {:<23}  receiver {}",
        output::short(step.sender_view().as_str_name(), "SENDER_VIEW_"),
        output::short(step.receiver_view().as_str_name(), "RECEIVER_VIEW_"),
    );
}

/// What an open handoff waits for while no agent has the offer. Empty: an agent has it.
fn waits_for(waiting: v1::WaitingFor) -> &'static str {
    match waiting {
        v1::WaitingFor::Unspecified => "",
        v1::WaitingFor::Capacity => "an agent with room",
        v1::WaitingFor::RetryTime => "the time to ask an agent again",
        v1::WaitingFor::Agent => "an agent that registers",
        v1::WaitingFor::DeliverAfter => "the time of the request",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(candidate: &str, outcome: v1::OfferOutcome, words: &str) -> v1::HandoffOffer {
        let reject_reason = match outcome {
            v1::OfferOutcome::Rejected => v1::RejectReason::Overloaded.into(),
            _ => v1::RejectReason::Unspecified.into(),
        };
        let offer_time = Some(prost_types::Timestamp { seconds: 1_800_000_000, nanos: 0 });
        v1::HandoffOffer {
            candidate_id: candidate.into(),
            offer_time,
            outcome: outcome.into(),
            reject_reason,
            reason_text: words.into(),
            ..Default::default()
        }
    }

    fn a_handoff() -> v1::Handoff {
        let mut again = offer("bob", v1::OfferOutcome::Rejected, "too much work until noon");
        again.retry_time = Some(prost_types::Timestamp { seconds: 1_800_000_060, nanos: 0 });
        let mut passed = offer("eve", v1::OfferOutcome::Rejected, "lacks the skill law");
        (passed.passed_over, passed.reject_reason) = (true, v1::RejectReason::NoSkill.into());
        v1::Handoff {
            candidate_id: "carol".into(),
            sender_id: "alice".into(),
            state: v1::HandoffState::Deciding.into(),
            reason: v1::HandoffReason::Load.into(),
            reason_text: "a busy day".into(),
            deadline: Some(prost_types::Timestamp { seconds: 1_800_000_030, nanos: 0 }),
            offers: vec![
                offer("bob", v1::OfferOutcome::Rejected, "no"),
                passed,
                again,
                offer("dan", v1::OfferOutcome::TimedOut, ""),
                offer("carol", v1::OfferOutcome::Pending, ""),
            ],
            ..Default::default()
        }
    }

    #[test]
    fn a_handoff_shows_each_offer_the_words_of_each_refusal_the_turn_and_the_time_left() {
        let now = Timestamp::from_parts(1_800_000_000, 0).unwrap();
        let text: Vec<String> =
            lines(&a_handoff(), now).into_iter().map(|(name, value)| format!("{name:<14}{value}")).collect();
        for line in [
            "reason        LOAD: a busy day",
            "turn          carol",
            "time left     30 s",
            "offer         bob at 08:00:00Z: REJECTED, OVERLOADED",
            "              no",
            "offer         eve at 08:00:00Z: PASSED_OVER, NO_SKILL",
            "              lacks the skill law",
            "offer         bob at 08:00:00Z: REJECTED, OVERLOADED, asked again at 08:01:00Z",
            "              too much work until noon",
            "offer         dan at 08:00:00Z: TIMED_OUT",
            "offer         carol at 08:00:00Z: PENDING",
        ] {
            assert!(text.iter().any(|shown| shown == line), "{line:?} in {text:#?}");
        }
    }

    #[test]
    fn an_ended_handoff_is_nobodys_turn_and_has_no_time_left() {
        let ended = v1::Handoff { state: v1::HandoffState::Rejected.into(), ..a_handoff() };
        let lines = lines(&ended, Timestamp::from_parts(1_800_000_000, 0).unwrap());
        let of = |name: &str| lines.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str());
        assert_eq!((of("turn"), of("time left"), of("deadline")), (Some(""), Some(""), Some("")));
    }

    #[test]
    fn a_list_shows_the_latest_refusal_of_each_candidate() {
        let now = Timestamp::from_parts(1_800_000_000, 0).unwrap();
        assert_eq!(
            refusals(&a_handoff(), now),
            [
                "eve PASSED_OVER, NO_SKILL: lacks the skill law",
                "bob REJECTED, OVERLOADED, asked again at 08:01:00Z: too much work until noon",
                "dan TIMED_OUT",
            ]
        );
    }

    #[test]
    fn words_are_broken_at_spaces_and_never_at_a_line_feed_of_an_agent() {
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(wrapped("", 7), Vec::<String>::new());
        assert_eq!(wrapped("extraordinarily so", 7), ["extraordinarily", "so"]);
        assert_eq!(wrapped("a\nforged", 20).len(), 1);
    }
}
