//! The page of a handoff: its steps with the time between them, its deadlines as bars, and its offers, with the reason
//! for the place of each candidate.

use std::{collections::HashMap, time::Duration};

use askama::Template;
use axum::{
    Extension,
    extract::{Path, State},
    response::Response,
};

use super::{
    acts::{self, Offered},
    parsed,
    rows::{self, HandoffRow},
    shown,
};
use crate::{
    broker::{Broker, BrokerError, access::Caller, queries::View},
    domain::{
        Receiver,
        handoff::{Handoff, Offer, OfferOutcome, State as HandoffState, Step},
        matching::{self, Wanted},
    },
    ids::{AgentId, MessageId},
    time::Timestamp,
    wire::console::{Console, show},
};

/// The most agents whose places are explained.
const EXPLAINED_MAX: usize = 64;
/// The most steps of the page, the latest ones.
const STEPS_MAX: usize = 200;

#[derive(Template)]
#[template(path = "handoff.html")]
struct HandoffPage {
    who: String,
    row: HandoffRow,
    /// The whole summary.
    summary: String,
    epoch: u64,
    mode: String,
    whole_deadline: String,
    failure: Option<(&'static str, String)>,
    bars: Vec<Bar>,
    offers: Vec<OfferRow>,
    steps: Vec<StepRow>,
    /// The steps before those of the page.
    left_out: usize,
    next: Vec<NextRow>,
    acts: Vec<Offered>,
    /// The sender of an open handoff, which alone may cancel it.
    canceller: String,
}

/// A deadline as a bar of 100 units.
struct Bar {
    name: &'static str,
    /// The units that have passed.
    part: u128,
    class: &'static str,
    text: String,
    /// The deadline of the step that runs now. Empty: the step has ended.
    until: String,
}

struct OfferRow {
    candidate: String,
    offered_at: String,
    outcome: String,
    reason_text: String,
    /// The time from the offer to its end. Empty: not ended.
    took: String,
    why: String,
}

struct NextRow {
    candidate: String,
    why: String,
}

struct StepRow {
    at: String,
    after: String,
    cause: String,
    state: &'static str,
    sender_view: String,
    receiver_view: String,
    candidate: String,
}

pub(super) async fn show(
    State(console): State<Console>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Response {
    let (broker, who) = (console.broker.clone(), caller.to_string());
    let show = move |view: View<'_>| {
        let id = parsed("handoff_id", &id, MessageId::parse)?;
        let handoff = view.handoff(id)?;
        let now = broker.now();
        let is_final = handoff.state.is_final();
        let places = Places::of(&broker, view.caller, &handoff);
        let left_out = handoff.steps.len().saturating_sub(STEPS_MAX);
        Ok(HandoffPage {
            who,
            row: HandoffRow::new(view, &handoff)?,
            summary: view.summary_of(&handoff)?,
            epoch: handoff.epoch,
            mode: rows::words(&handoff.mode),
            whole_deadline: handoff.whole_deadline.to_string(),
            failure: handoff.failure.as_ref().map(|failure| (failure.code.name(), failure.message.clone())),
            bars: bars(&handoff, now),
            offers: offers(&handoff, &places),
            steps: StepRow::all(&handoff.steps).split_off(left_out),
            left_out,
            next: handoff
                .next_candidates
                .iter()
                .map(|agent| NextRow { candidate: agent.to_string(), why: places.why(agent) })
                .collect(),
            acts: if is_final { Vec::new() } else { of_task(view, &handoff)? },
            canceller: if is_final { String::new() } else { handoff.sender.to_string() },
        })
    };
    shown(&console, &caller, show).await
}

/// The acts on the task of an open handoff. A caller may see a handoff and not its task.
fn of_task(view: View<'_>, handoff: &Handoff) -> Result<Vec<Offered>, BrokerError> {
    match view.task(&handoff.task) {
        Ok(record) => Ok(acts::of_task(view, &record.task)),
        Err(BrokerError::PermissionDenied(_) | BrokerError::TaskUnknown { .. }) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// The time of each step against the time that it has. A step that has not begun has no bar.
fn bars(handoff: &Handoff, now: Timestamp) -> Vec<Bar> {
    let end = if handoff.state.is_final() { handoff.updated_at } else { now };
    let mut bars = Vec::new();
    let timeouts = handoff.timeouts;
    for (state, name, most) in [
        (HandoffState::Deciding, "Decision", timeouts.accept),
        (HandoffState::Accepted, "Context", timeouts.context),
        (HandoffState::ContextSent, "Completion", timeouts.complete),
    ] {
        // The latest time that the handoff entered the state: an earlier candidate may have had it, too.
        let entered = handoff
            .steps
            .iter()
            .enumerate()
            .rev()
            .find(|(place, step)| step.state == state && (*place == 0 || handoff.steps[*place - 1].state != state));
        let Some((place, step)) = entered else { continue };
        let left = handoff.steps[place..].iter().find(|later| later.state != state).map(|later| later.at);
        let is_running = left.is_none() && !handoff.state.is_final();
        // A candidate may have asked for more time.
        let most = match handoff.step_deadline.filter(|_| is_running) {
            Some(deadline) => deadline.since(step.at),
            None => most,
        };
        let until = if is_running { step.at.plus(most).to_string() } else { String::new() };
        bars.push(Bar::new(name, left.unwrap_or(end).since(step.at), most, until));
    }
    let until = if handoff.state.is_final() { String::new() } else { handoff.whole_deadline.to_string() };
    let most = handoff.whole_deadline.since(handoff.created_at);
    bars.push(Bar::new("The whole handoff", end.since(handoff.created_at), most, until));
    bars
}

impl Bar {
    fn new(name: &'static str, took: Duration, most: Duration, until: String) -> Self {
        let part = (took.as_millis() * 100 / most.as_millis().max(1)).min(100);
        let class = match (part, until.is_empty()) {
            (100, _) => "bad",
            (80.., false) => "warn",
            (_, false) => "run",
            (_, true) => "off",
        };
        let text = format!("{} of {}", rows::seconds(took), rows::seconds(most));
        Self { name, part, class, text, until }
    }
}

/// Why the candidates are asked in their order.
struct Places {
    receiver: String,
    /// The agent that the request names.
    named: Option<AgentId>,
    /// Of the agents of the type that the request names: the rank now, from 1, and its reasons.
    ranked: HashMap<AgentId, String>,
}

impl Places {
    fn of(broker: &Broker, caller: &Caller, handoff: &Handoff) -> Self {
        let receiver = Receiver::parse(&handoff.receiver).ok();
        let named = match &receiver {
            Some(Receiver::Agent(agent)) => Some(agent.clone()),
            _ => None,
        };
        let agent_type = match &receiver {
            Some(Receiver::AnyOf(agent_type)) => Some(agent_type),
            _ => None,
        };
        let mut ranked = HashMap::new();
        if let Some(agent_type) = agent_type.filter(|_| !handoff.state.is_final()) {
            let wanted = Wanted {
                agent_type: Some(agent_type),
                required_skills: &[],
                preferred_skills: &[],
                task_type: "",
                languages: &[],
                tags: &[],
                priority: handoff.priority,
                accept_timeout: handoff.timeouts.accept,
            };
            // A caller without the right to the directory does not learn the reasons.
            if let Ok(found) = broker.find_agents(caller, &wanted, None, true) {
                let many = found.len();
                for (place, (facts, score, _)) in found.from(0).take(EXPLAINED_MAX).enumerate() {
                    let mut factors = matching::explain(&wanted, &facts);
                    factors.sort_by(|one, other| (other.value * other.weight).total_cmp(&(one.value * one.weight)));
                    let reasons: Vec<String> = factors.into_iter().map(|factor| factor.text).collect();
                    let why = format!("now {} of {many}, score {score:.2}: {}", place + 1, reasons.join("; "));
                    ranked.insert(facts.agent.clone(), why);
                }
            }
        }
        Self { receiver: handoff.receiver.clone(), named, ranked }
    }

    fn why(&self, agent: &AgentId) -> String {
        match self.ranked.get(agent) {
            Some(why) => format!("{}; {why}", self.receiver),
            None if self.named.as_ref() == Some(agent) => "the receiver of the request".to_owned(),
            None if self.named.is_some() => "a fallback of the request, or suggested by a candidate".to_owned(),
            None => self.receiver.clone(),
        }
    }
}

fn offers(handoff: &Handoff, places: &Places) -> Vec<OfferRow> {
    let row = |(place, offer): (usize, &Offer)| {
        let end = match offer.outcome {
            OfferOutcome::Pending => None,
            _ if offer.passed_over => Some(offer.offered_at),
            OfferOutcome::Accepted => {
                let accepted = |step: &&Step| step.state == HandoffState::Accepted && step.at >= offer.offered_at;
                handoff.steps.iter().find(accepted).map(|step| step.at)
            }
            _ => Some(handoff.offers.get(place + 1).map_or(handoff.updated_at, |next| next.offered_at)),
        };
        OfferRow {
            candidate: offer.candidate.to_string(),
            offered_at: offer.offered_at.to_string(),
            outcome: if offer.passed_over { "passed over".to_owned() } else { rows::words(&offer.outcome) },
            reason_text: offer.reason_text.clone(),
            took: end.map(|end| rows::seconds(end.since(offer.offered_at))).unwrap_or_default(),
            why: places.why(&offer.candidate),
        }
    };
    handoff.offers.iter().enumerate().map(row).collect()
}

impl StepRow {
    /// The rows, each with the time since the step before it.
    fn all(steps: &[Step]) -> Vec<Self> {
        let before = std::iter::once(None).chain(steps.iter().map(|step| Some(step.at)));
        let row = |(step, before): (&Step, Option<Timestamp>)| Self {
            at: step.at.to_string(),
            after: before.map(|before| format!("{:.3} s", step.at.since(before).as_secs_f64())).unwrap_or_default(),
            cause: show::words(rows::words(&step.cause)),
            state: step.state.name(),
            sender_view: rows::words(&step.sender_view),
            receiver_view: rows::words(&step.receiver_view),
            candidate: step.candidate.to_string(),
        };
        steps.iter().zip(before).map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_shows_the_part_of_the_time_that_has_passed() {
        let bar = |took, most, until: &str| {
            let bar = Bar::new("Decision", Duration::from_secs(took), Duration::from_secs(most), until.to_owned());
            (bar.part, bar.class)
        };
        assert_eq!(bar(15, 60, "later"), (25, "run"));
        assert_eq!(bar(50, 60, "later"), (83, "warn"));
        assert_eq!(bar(90, 60, "later"), (100, "bad"));
        assert_eq!(bar(15, 60, ""), (25, "off"), "the step has ended");
        assert_eq!(bar(1, 0, ""), (100, "bad"), "no division by 0");
    }
}
