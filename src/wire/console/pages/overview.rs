//! The overview: how many handoffs, agents and dead letters there are, what is due next, and the latest of each.

use askama::Template;
use axum::{Extension, extract::State, response::Response};

use super::{
    PAGE_SIZE,
    lists::may_read_some,
    no_handoff,
    rows::{DeadLetterRow, HandoffRow},
    shown,
};
use crate::{
    broker::{
        Broker, BrokerError,
        access::{Caller, Purpose},
        queries::{DeadLetterFilter, HandoffFilter, View},
    },
    domain::{
        handoff::{Handoff, State as HandoffState},
        presence::PresenceState,
    },
    time::Timestamp,
    wire::console::Console,
};

/// The entries of each list of the overview.
const LISTED: usize = 10;

#[derive(Template)]
#[template(path = "overview.html")]
struct OverviewPage {
    who: String,
    // Each part is shown to a caller with its right, and left out for others.
    agents: Option<[(&'static str, usize); PresenceState::ALL.len()]>,
    open_handoffs: Option<Vec<(&'static str, i64)>>,
    /// `None`: the caller may not read all dead letters, or none were counted.
    parked: Option<i64>,
    handoffs: Option<Vec<HandoffRow>>,
    due: Vec<HandoffRow>,
    /// Whether there are open handoffs that are not among those whose deadlines are shown.
    has_more_open: bool,
    dead_letters: Option<Vec<DeadLetterRow>>,
}

pub(super) async fn show(State(console): State<Console>, Extension(caller): Extension<Caller>) -> Response {
    let (broker, reader) = (console.broker.clone(), caller.clone());
    let show = move |view: View<'_>| OverviewPage::read(view, &broker, &reader);
    shown(&console, &caller, show).await
}

impl OverviewPage {
    fn read(view: View<'_>, broker: &Broker, caller: &Caller) -> Result<Self, BrokerError> {
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
            agents: view.access.may_see_directory(caller).ok().map(|()| agents(broker, now)),
            open_handoffs: reads_all_handoffs
                .then(|| open_states.map(|state| (state.name(), metrics.open_handoffs(state))).collect()),
            parked: metrics.parked_dead_letters().filter(|_| reads_all_dead_letters),
            handoffs: None,
            due: Vec::new(),
            has_more_open: false,
            dead_letters: None,
        };
        if may_read_some(view, Purpose::ReadHandoffs) {
            let open = HandoffFilter { open_only: true, ..HandoffFilter::default() };
            // The deadlines of all open handoffs are in no index, so those of the latest ones are compared.
            let found = view.handoffs(&open, PAGE_SIZE, "")?;
            page.has_more_open = !found.next_token.is_empty();
            let row = |handoff: &std::sync::Arc<Handoff>| HandoffRow::new(handoff, now);
            page.handoffs = Some(found.entries.iter().take(LISTED).map(row).collect());
            let mut due = found.entries;
            due.retain(|handoff| handoff.next_deadline().is_some());
            due.sort_by_key(|handoff| handoff.next_deadline());
            page.due = due.iter().take(LISTED).map(row).collect();
        }
        if may_read_some(view, Purpose::ReadDeadLetters) {
            let found = view.dead_letters(&DeadLetterFilter::default(), LISTED, "")?;
            page.dead_letters = Some(found.entries.iter().map(DeadLetterRow::new).collect());
        }
        Ok(page)
    }
}

/// The registered agents by presence.
fn agents(broker: &Broker, now: Timestamp) -> [(&'static str, usize); PresenceState::ALL.len()] {
    let mut counts = PresenceState::ALL.map(|state| (state.name(), 0));
    broker.each_registered(|agent| counts[broker.directory().presence_state(&agent.id(), now) as usize].1 += 1);
    counts
}
