//! The overview: the needs, worst first; the figures; and the latest moves.

use std::{collections::BTreeMap, time::Duration};

use askama::Template;
use axum::{Extension, extract::State, response::Response};

use super::{
    lists::{Content, may_read_some},
    no_handoff,
    rows::{self, HandoffRow, seconds, turn},
    shown,
    tasks::TaskRow,
};
use crate::{
    broker::{
        Broker, BrokerError,
        access::{Caller, Purpose},
        queries::{DeadLetterFilter, HandoffFilter, TaskFilter, View},
    },
    domain::{
        handoff::{Cause, Handoff, State as HandoffState, Step, TaskStatus},
        plan::PlanState,
        presence::PresenceState,
    },
    policy::Action,
    time::Timestamp,
    wire::console::{
        Console,
        history::{self, Chart, Minute},
        show,
    },
};

/// The latest moves that the page shows.
const MOVES: usize = 15;
/// The handoffs of which they are.
const MOVED: usize = 15;
/// The most needs of one kind.
const NEEDS_OF_A_KIND: usize = 5;
/// The dead letters whose reasons are counted.
const COUNTED_DEAD_LETTERS: usize = 100;
/// The handoffs by which the time to take over is judged.
const JUDGED: usize = 100;
/// A handoff is a need when its deadline is as near as this.
const NEAR: Duration = Duration::from_secs(5 * 60);
/// A failed plan is a need for this long.
const FAILED_LATELY: Duration = Duration::from_secs(24 * 3600);
/// The certificate is a need when it ends as soon as this.
const CERTIFICATE_ENDS: i64 = 14 * 86_400;

/// A need.
struct Need {
    /// The name of a state, which gives the chip its word and its colour.
    kind: &'static str,
    what: String,
    href: String,
    about: String,
    deadline: String,
}

#[derive(Template)]
#[template(path = "overview.html")]
struct OverviewPage {
    who: String,
    version: &'static str,
    /// Whether there is a page of the cluster that the caller may see.
    has_cluster: bool,
    // Each part is shown to a caller with its right, and left out for others.
    agents: Option<[(&'static str, usize); PresenceState::ALL.len()]>,
    open_handoffs: Option<Vec<(&'static str, i64)>>,
    /// `None`: the caller may not read all dead letters, or none were counted.
    parked: Option<i64>,
    chart: Option<Chart>,
    /// The median of the time to take over, and the time that one of a hundred exceeds.
    takeover: Option<(String, String)>,
    needs: Vec<Need>,
    /// `None`: the caller may read no handoff.
    moves: Option<Vec<Move>>,
}

pub(super) async fn show(State(console): State<Console>, Extension(caller): Extension<Caller>) -> Response {
    let (broker, reader) = (console.broker.clone(), caller.clone());
    let minutes = console.history.minutes(&broker);
    let has_cluster = console.cluster.is_some() && broker.access().check_broker(&caller, Action::ReadAuditLog).is_ok();
    let show = move |view: View<'_>| {
        OverviewPage::read(view, &broker, &reader, &minutes).map(|page| OverviewPage { has_cluster, ..page })
    };
    shown(&console, &caller, show).await
}

impl OverviewPage {
    fn read(view: View<'_>, broker: &Broker, caller: &Caller, minutes: &[Minute]) -> Result<Self, BrokerError> {
        let now = broker.now();
        let metrics = &broker.resources().metrics;
        // A count says something about handoffs of other agents, so it needs the right to read any handoff.
        let reads_all_handoffs =
            matches!(view.access.no_such_handoff(caller, no_handoff()), BrokerError::HandoffUnknown { .. });
        let reads_all_dead_letters =
            matches!(view.access.no_such_dead_letter(caller, 0), BrokerError::DeadLetterUnknown { .. });
        let open_states = HandoffState::ALL.into_iter().filter(|state| !state.is_final());
        let mut page = Self {
            who: caller.to_string(),
            version: env!("CARGO_PKG_VERSION"),
            has_cluster: false,
            agents: view.access.may_see_directory(caller).ok().map(|()| agents(broker, now)),
            open_handoffs: reads_all_handoffs
                .then(|| open_states.map(|state| (state.name(), metrics.open_handoffs(state))).collect()),
            parked: metrics.parked_dead_letters().filter(|_| reads_all_dead_letters),
            chart: reads_all_handoffs.then(|| history::chart(minutes)),
            takeover: None,
            needs: needs(view, broker, caller, now)?,
            moves: None,
        };
        if may_read_some(view, Purpose::ReadHandoffs) {
            page.moves = Some(moves(view, broker)?);
            page.takeover = takeover(view)?;
        }
        Ok(page)
    }
}

/// A step of a handoff.
struct Move {
    /// The handoff with the place of the step: the id of the row.
    id: String,
    at: String,
    state: &'static str,
    who: String,
    what: String,
    handoff: String,
    /// What the handoff is about.
    about: String,
}

/// The latest steps of the handoffs that the caller may see, latest first.
fn moves(view: View<'_>, broker: &Broker) -> Result<Vec<Move>, BrokerError> {
    let mut ids = broker.handoff_changes().last_changed(MOVED);
    // The changes in memory begin with the broker.
    if ids.is_empty() {
        ids = view.handoffs(&HandoffFilter::default(), MOVED, "")?.entries.iter().map(|handoff| handoff.id).collect();
    }
    let mut moves = Vec::new();
    for id in ids {
        let Ok(handoff) = view.handoff(id) else { continue };
        let row = HandoffRow::new(view, &handoff)?;
        for (place, step) in handoff.steps.iter().enumerate().rev().take(MOVES) {
            let (who, what) = told(&handoff, step);
            let made = Move {
                id: format!("{id}-{place}"),
                at: step.at.to_string(),
                state: step.state.name(),
                who,
                what,
                handoff: row.id.clone(),
                about: if row.summary.is_empty() { format!("{} handoff", row.task_type) } else { row.summary.clone() },
            };
            moves.push((step.at, place, made));
        }
    }
    moves.sort_by_key(|(at, place, _)| std::cmp::Reverse((*at, *place)));
    Ok(moves.into_iter().take(MOVES).map(|(_, _, made)| made).collect())
}

/// The agent of the step, and the step.
fn told(handoff: &Handoff, step: &Step) -> (String, String) {
    let (sender, candidate) = (handoff.sender.to_string(), step.candidate.to_string());
    match step.cause {
        Cause::Requested => (sender, format!("asks {candidate}")),
        Cause::Delivered => (candidate, "has the request".to_owned()),
        Cause::Accepted => (candidate, "accepts".to_owned()),
        Cause::Rejected => (candidate, "is asked after a refusal".to_owned()),
        Cause::ContextStored => (sender, format!("sends the context to {candidate}")),
        Cause::Completed => (candidate, "takes the task over".to_owned()),
        Cause::CompletedFailure => (candidate, "cannot take the task over".to_owned()),
        Cause::Cancelled => (sender, "cancels".to_owned()),
        Cause::Extended => (candidate, "asks for more time".to_owned()),
        other => (candidate, rows::words(&other)),
    }
}

/// The needs, worst first.
fn needs(view: View<'_>, broker: &Broker, caller: &Caller, now: Timestamp) -> Result<Vec<Need>, BrokerError> {
    let mut needs = Vec::new();
    let ends = broker.resources().metrics.certificate_expiry.get();
    if ends > 0 && ends - now.to_parts().0 < CERTIFICATE_ENDS {
        needs.push(Need {
            kind: "EXPIRED",
            what: "The certificate of the broker ends soon".to_owned(),
            href: "/audit".to_owned(),
            about: String::new(),
            deadline: Timestamp::from_parts(ends, 0).map(|ends| ends.to_string()).unwrap_or_default(),
        });
    }
    if may_read_some(view, Purpose::ReadHandoffs) {
        due_handoffs(view, now, &mut needs)?;
    }
    if view.access.may_see_directory(caller).is_ok() {
        gone_owners(broker, now, &mut needs);
    }
    failed_plans(view, now, &mut needs);
    if may_read_some(view, Purpose::ReadDeadLetters) {
        parked(view, &mut needs)?;
    }
    questions(view, &mut needs);
    Ok(needs)
}

fn due_handoffs(view: View<'_>, now: Timestamp, needs: &mut Vec<Need>) -> Result<(), BrokerError> {
    let near = HandoffFilter { deadline_before: Some(now.plus(NEAR)), ..HandoffFilter::default() };
    let mut due = view.handoffs(&near, JUDGED, "")?.entries;
    due.sort_by_key(|handoff| handoff.next_deadline());
    for handoff in due.iter().take(NEEDS_OF_A_KIND) {
        let row = HandoffRow::new(view, handoff)?;
        let is_over = handoff.next_deadline().is_some_and(|deadline| deadline <= now);
        needs.push(Need {
            kind: if is_over { "OVERDUE" } else { "DUE" },
            what: if row.summary.is_empty() { format!("{} handoff", row.task_type) } else { row.summary },
            href: format!("/handoffs/{}", row.id),
            about: turn(handoff).map(|(who, does)| format!("{who} {does}")).unwrap_or_default(),
            deadline: row.deadline.unwrap_or_default(),
        });
    }
    Ok(())
}

fn gone_owners(broker: &Broker, now: Timestamp, needs: &mut Vec<Need>) {
    let mut gone = Vec::new();
    broker.each_registered(|agent| {
        if broker.directory().presence_state(&agent.id(), now) == PresenceState::Gone {
            let owned = broker.directory().busy(agent, now).owned;
            gone.extend((owned > 0).then(|| (owned, agent.id().to_string())));
        }
    });
    gone.sort_by(|one, other| other.cmp(one));
    for (owned, agent) in gone.into_iter().take(NEEDS_OF_A_KIND) {
        needs.push(Need {
            kind: "GONE",
            href: format!("/tasks?state=open&owner={agent}"),
            what: format!("{agent} owns {owned} open task{}", if owned == 1 { "" } else { "s" }),
            about: "gives no sign of life".to_owned(),
            deadline: String::new(),
        });
    }
}

fn failed_plans(view: View<'_>, now: Timestamp, needs: &mut Vec<Need>) {
    // Callers without the right to read plans see none of them.
    let Ok(failed) = view.plans(&[PlanState::Failed], NEEDS_OF_A_KIND, "") else { return };
    let is_late = |ended: Timestamp| now.since(ended) < FAILED_LATELY;
    for plan in failed.entries.iter().filter(|plan| plan.ended_at.is_some_and(is_late)) {
        needs.push(Need {
            kind: "FAILED",
            what: format!("Plan {} failed", plan.id),
            href: format!("/plans/{}", plan.id),
            about: Content::of_at_most(&plan.reason, 200).with_ellipsis(),
            deadline: String::new(),
        });
    }
}

fn parked(view: View<'_>, needs: &mut Vec<Need>) -> Result<(), BrokerError> {
    let found = view.dead_letters(&DeadLetterFilter::default(), COUNTED_DEAD_LETTERS, "")?;
    let mut reasons: BTreeMap<&'static str, (usize, String)> = BTreeMap::new();
    for dead in &found.entries {
        let reason = reasons.entry(dead.reason.name()).or_insert((0, dead.reason_text.clone()));
        reason.0 += 1;
    }
    let more = if found.next_token.is_empty() { "" } else { " or more" };
    for (reason, (many, text)) in reasons {
        needs.push(Need {
            kind: "PARKED",
            what: format!(
                "{many}{more} dead letter{}: {}",
                if many == 1 { "" } else { "s" },
                show::words(reason).to_lowercase()
            ),
            href: format!("/dead-letters?reason={reason}"),
            about: Content::of_at_most(&text, 200).with_ellipsis(),
            deadline: String::new(),
        });
    }
    Ok(())
}

fn questions(view: View<'_>, needs: &mut Vec<Need>) {
    let waiting = TaskFilter { statuses: vec![TaskStatus::WaitingForInput], ..TaskFilter::default() };
    let Ok(found) = view.tasks(&waiting, NEEDS_OF_A_KIND, "") else { return };
    // A task whose question is answered waits for its owner.
    let open = found.entries.iter().filter(|record| record.task.open_prompt().is_some());
    for row in open.filter_map(|record| TaskRow::new(view, record).ok()) {
        needs.push(Need {
            kind: "QUESTION",
            what: if row.summary.is_empty() { format!("{} task {}", row.task_type, row.id) } else { row.summary },
            href: format!("/tasks/{}", row.id),
            about: row.turn,
            deadline: row.deadline,
        });
    }
}

/// The median and the 99th percentile of the time from the request to the takeover, of the latest completed handoffs.
fn takeover(view: View<'_>) -> Result<Option<(String, String)>, BrokerError> {
    let completed = HandoffFilter { states: vec![HandoffState::Completed], ..HandoffFilter::default() };
    let found = view.handoffs(&completed, JUDGED, "")?.entries;
    let mut times: Vec<Duration> = found.iter().map(|handoff| handoff.updated_at.since(handoff.created_at)).collect();
    times.sort();
    let at = |part: usize| times.get((times.len() * part / 100).min(times.len().saturating_sub(1)));
    Ok(at(50).zip(at(99)).map(|(median, most)| (seconds(*median), seconds(*most))))
}

/// The registered agents by presence.
fn agents(broker: &Broker, now: Timestamp) -> [(&'static str, usize); PresenceState::ALL.len()] {
    let mut counts = PresenceState::ALL.map(|state| (state.name(), 0));
    broker.each_registered(|agent| counts[broker.directory().presence_state(&agent.id(), now) as usize].1 += 1);
    counts
}
