//! The story of a task, from top to bottom: the requests, the words of each agent, the questions with their answers, and
//! the end.

use std::sync::Arc;

use super::{
    lists::Content,
    rows::{turn, words},
    tasks::status_name,
};
use crate::{
    broker::{
        BrokerError,
        queries::{ShownTask, View},
    },
    domain::handoff::{Handoff, Offer, OfferOutcome, State},
    time::Timestamp,
    wire::console::show,
};

/// The most bytes of what an agent said. The page of the handoff has the whole.
const SAID_BYTES_MAX: usize = 1000;

/// One event, or the present turn.
pub(super) struct Moment {
    time: Timestamp,
    pub(super) at: String,
    /// The class of its dot.
    pub(super) tone: &'static str,
    pub(super) who: String,
    pub(super) what: String,
    /// What the agent said.
    pub(super) said: String,
    /// The handoff. Empty: none.
    pub(super) handoff: String,
    /// The deadline. Empty: none.
    pub(super) until: String,
}

impl Moment {
    fn new(time: Timestamp, tone: &'static str, who: impl ToString, what: impl Into<String>) -> Self {
        Self {
            time,
            at: time.to_string(),
            tone,
            who: who.to_string(),
            what: what.into(),
            said: String::new(),
            handoff: String::new(),
            until: String::new(),
        }
    }

    fn saying(self, said: impl AsRef<str>) -> Self {
        Self { said: Content::of_at_most(said.as_ref(), SAID_BYTES_MAX).with_ellipsis(), ..self }
    }

    fn of(self, handoff: &Handoff) -> Self {
        Self { handoff: handoff.id.to_string(), ..self }
    }
}

/// The story of a task that the caller may see, with these handoffs, oldest first.
pub(super) fn story(view: View<'_>, shown: &ShownTask, handoffs: &[Arc<Handoff>]) -> Result<Vec<Moment>, BrokerError> {
    let mut all = Vec::new();
    for handoff in handoffs.iter().rev() {
        of_handoff(handoff, view.summary_of(handoff)?, &mut all);
    }
    of_questions(shown, &mut all);
    let task = &shown.record.task;
    if task.status.is_final() {
        let name = status_name(task.status);
        let result = shown.result.as_ref().map(|report| report.result_json.clone()).unwrap_or_default();
        let said = [task.details.clone(), result].into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>();
        let what = format!("ends the task: {}", show::words(name).to_lowercase());
        all.push(Moment::new(task.updated_at, show::tone(name), &task.owner, what).saying(said.join("\n")));
    } else if task.open_handoff.is_none() && task.open_prompt().is_none() {
        let progress = task.progress.map(|part| format!(", {:.0} % done", part * 100.0)).unwrap_or_default();
        let now = Moment::new(task.updated_at, "run", &task.owner, format!("works on it now{progress}"));
        all.push(Moment { until: until(task.next_deadline()), ..now.saying(&task.details) });
    }
    // What happened at the same time stays in the order of the handoffs.
    all.sort_by_key(|moment| moment.time);
    Ok(all)
}

fn until(deadline: Option<Timestamp>) -> String {
    deadline.map(|deadline| deadline.to_string()).unwrap_or_default()
}

fn of_handoff(handoff: &Handoff, summary: String, all: &mut Vec<Moment>) {
    let asked = handoff.offers.first().map_or_else(|| handoff.receiver.clone(), |offer| offer.candidate.to_string());
    let what = format!("asks {asked} to take over");
    all.push(Moment::new(handoff.created_at, "wait", &handoff.sender, what).saying(summary).of(handoff));
    for (index, offer) in handoff.offers.iter().enumerate() {
        let next = handoff.offers.get(index + 1);
        if let Some((tone, what)) = outcome(offer, next) {
            // A refusal is followed by the next offer at once, or by the end.
            let time = match offer.passed_over {
                true => offer.offered_at,
                false => next.map_or(handoff.updated_at, |next| next.offered_at),
            };
            all.push(Moment::new(time, tone, &offer.candidate, what).saying(&offer.reason_text));
        }
    }
    for (state, who, what) in
        [(State::Accepted, &handoff.candidate, "accepts"), (State::ContextSent, &handoff.sender, "sends the context")]
    {
        // Only the latest of them: an earlier candidate may have failed after its accept.
        if let Some(step) = handoff.steps.iter().rev().find(|step| step.state == state) {
            all.push(Moment::new(step.at, "run", who, what));
        }
    }
    let ended = handoff.updated_at;
    let failed = |tone, what: &str| {
        let failure = handoff.failure.as_ref().map(|failure| failure.message.clone()).unwrap_or_default();
        Moment::new(ended, tone, "The handoff", what).saying(failure).of(handoff)
    };
    all.push(match handoff.state {
        State::Completed => {
            let what = format!("takes the task over, epoch {}", handoff.epoch + 1);
            Moment::new(ended, "good", &handoff.candidate, what).of(handoff)
        }
        State::Rejected => failed("bad", "ends: nobody takes it"),
        State::Failed => failed("bad", "fails"),
        State::Cancelled => failed("off", "is cancelled"),
        State::Requested | State::Deciding | State::Accepted | State::ContextSent => {
            let (who, does) = turn(handoff).unwrap_or_else(|| ("the broker".to_owned(), "waits"));
            Moment {
                until: until(handoff.next_deadline()),
                ..Moment::new(ended, "run", who, format!("{does}, now")).of(handoff)
            }
        }
    });
}

/// The end of an offer that was not taken.
fn outcome(offer: &Offer, next: Option<&Offer>) -> Option<(&'static str, String)> {
    let then = next.map(|next| format!("; {} is asked next", next.candidate)).unwrap_or_default();
    let what = match offer.outcome {
        _ if offer.passed_over => return Some(("off", format!("is passed over{then}"))),
        OfferOutcome::Rejected => "refuses",
        OfferOutcome::TimedOut => "does not decide in time",
        OfferOutcome::Undeliverable => "cannot be reached",
        OfferOutcome::Gone => "is gone",
        OfferOutcome::Pending | OfferOutcome::Accepted | OfferOutcome::Withdrawn => return None,
    };
    Some(("bad", format!("{what}{then}")))
}

fn of_questions(shown: &ShownTask, all: &mut Vec<Moment>) {
    let task = &shown.record.task;
    let answered = task.last_answered().zip(shown.answered.as_ref());
    for prompt in &task.prompts {
        let open = shown.prompt.as_ref().filter(|_| task.open_prompt().is_some_and(|open| open.id == prompt.id));
        let with_answer = answered.as_ref().filter(|((last, _), _)| last.id == prompt.id);
        let report = open.or(with_answer.map(|(_, (report, _))| report));
        let question = report.and_then(|report| report.prompt.as_ref()).map(|prompt| prompt.question.clone());
        let what = format!("asks {} a question: {}", prompt.asked, words(&prompt.state));
        let asks = Moment::new(prompt.asked_at, "ask", &task.owner, what).saying(question.unwrap_or_default());
        all.push(Moment { until: until(prompt.due.filter(|_| open.is_some())), ..asks });
        if let Some(answer) = prompt.answer {
            let said =
                with_answer.map(|(_, (_, input))| [&*input.text, &*input.data_json].concat()).unwrap_or_default();
            all.push(Moment::new(answer.at, "good", &prompt.asked, "answers").saying(said));
        }
    }
}
