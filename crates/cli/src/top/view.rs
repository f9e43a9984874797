//! What `baton top` shows: its content, its lines and its document.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use serde_json::{Value, json};

use crate::{
    Failure, find, json,
    output::short,
    table::{self, Column},
    turn::{brief, deadline, left, time_of, turn},
};
use baton_client::{
    proto::v1::{self, HandoffState, Presence, watch_handoffs_response::Event},
    time::{Moment, Timestamp},
};

/// The time that rates are of.
const RATES_OF: Duration = Duration::from_secs(60);
/// The states of an open handoff, in their order.
const OPEN: [HandoffState; 4] =
    [HandoffState::Requested, HandoffState::Deciding, HandoffState::Accepted, HandoffState::ContextSent];
/// The final states.
const ENDED: [HandoffState; 4] =
    [HandoffState::Completed, HandoffState::Rejected, HandoffState::Failed, HandoffState::Cancelled];

/// What `baton top` knows.
#[derive(Debug, Default)]
pub(super) struct View {
    /// The open handoffs, by id.
    open: BTreeMap<String, v1::Handoff>,
    /// The agents at the latest refresh.
    pub(super) agents: Vec<v1::Agent>,
    /// The place after which a watch continues.
    pub(super) cursor: u64,
    pub(super) has_caught_up: bool,
    pub(super) is_connected: bool,
    /// Since when changes are counted. `None`: not all handoffs are known yet.
    since: Option<Moment>,
    /// The beginnings and ends of the last minute, oldest first. A beginning has no final state.
    events: VecDeque<(Moment, Option<HandoffState>)>,
}

impl View {
    /// Follows an update of the watch.
    pub(super) fn take(&mut self, update: v1::WatchHandoffsResponse, now: Moment) {
        self.cursor = update.cursor;
        match update.event {
            Some(Event::Handoff(handoff)) => self.take_handoff(*handoff, now),
            // The handoffs that are there follow a gap. Those of before may not exist.
            Some(Event::Gap(_)) => self.open.clear(),
            Some(Event::CaughtUp(_)) => {
                self.has_caught_up = true;
                self.since.get_or_insert(now);
            }
            None => {}
        }
    }

    fn take_handoff(&mut self, handoff: v1::Handoff, now: Moment) {
        let state = handoff.state();
        let is_final = ENDED.contains(&state);
        let known = match is_final {
            true => self.open.remove(&handoff.handoff_id),
            false => self.open.insert(handoff.handoff_id.clone(), handoff),
        };
        // A watch that goes on gets the ends of a time in which nothing was counted, too. They count as of now.
        if self.since.is_some() {
            if known.is_none() {
                self.events.push_back((now, None));
            }
            if is_final {
                self.events.push_back((now, Some(state)));
            }
        }
        while self.events.front().is_some_and(|(at, _)| now.since(*at) > RATES_OF) {
            self.events.pop_front();
        }
    }

    /// The counts of the last minute, or of the time since the view began: beginnings, then each final state. `None`:
    /// the view has just begun.
    fn rates(&self, now: Moment) -> Option<(Duration, usize, [usize; 4])> {
        let counted = now.since(self.since?).min(RATES_OF);
        if counted < Duration::from_secs(1) {
            return None;
        }
        let recent = || self.events.iter().filter(|(at, _)| now.since(*at) <= RATES_OF);
        let begun = recent().filter(|(_, end)| end.is_none()).count();
        Some((counted, begun, ENDED.map(|state| recent().filter(|(_, end)| *end == Some(state)).count())))
    }

    /// The open handoffs, those with the least time left first.
    fn by_time_left(&self) -> Vec<&v1::Handoff> {
        let mut open: Vec<_> = self.open.values().collect();
        open.sort_by_key(|handoff| deadline(handoff).map_or((i64::MAX, 0), |at| (at.seconds, at.nanos)));
        open
    }

    /// The agents, those with the most mail first, then by load.
    fn by_mail(&self) -> Vec<&v1::Agent> {
        let mut agents: Vec<_> = self.agents.iter().collect();
        let in_use = |agent: &v1::Agent| agent.load.map_or(0, |load| load.in_use);
        agents.sort_by_key(|agent| std::cmp::Reverse((letters(agent).unwrap_or(0), in_use(agent))));
        agents
    }

    fn present(&self, presence: Presence) -> usize {
        self.agents.iter().filter(|agent| agent.presence() == presence).count()
    }

    /// The lines for a screen of this size, with at most `limit` handoffs and agents.
    pub(super) fn lines(
        &self,
        columns: usize,
        rows: usize,
        limit: usize,
        (now, moment): (Timestamp, Moment),
    ) -> Vec<String> {
        let mut lines: Vec<String> = self.summary(moment).into_iter().map(|line| cut(line, columns)).collect();
        // Two empty lines and two headers are not rows.
        let room = rows.saturating_sub(lines.len() + 4);
        let (handoffs, agents) = (self.by_time_left(), self.by_mail());
        let of_agents = agents.len().min(limit).min((room / 2).max(room.saturating_sub(handoffs.len())));
        let of_handoffs = handoffs.len().min(limit).min(room.saturating_sub(of_agents));
        lines.push(String::new());
        lines.extend(handoff_lines(handoffs.iter().take(of_handoffs), columns, now));
        lines.push(String::new());
        lines.extend(agent_lines(agents.iter().take(of_agents), columns, now));
        lines
    }

    fn summary(&self, now: Moment) -> Vec<String> {
        let in_state = |state: HandoffState| self.open.values().filter(|handoff| handoff.state() == state).count();
        let states: Vec<_> = OPEN.map(|state| format!("{} {}", in_state(state), name(state))).into();
        let letters: u64 = self.agents.iter().filter_map(letters).sum();
        let rates = self.rates(now).map_or_else(String::new, |(counted, begun, ended)| {
            let ends: Vec<_> =
                ENDED.iter().zip(ended).map(|(state, many)| format!("{many} {}", name(*state))).collect();
            format!("last {:>2} s   {begun} begun, {}", counted.as_secs(), ends.join(", "))
        });
        let present = |presence| format!("{} {}", self.present(presence), find::presence(presence));
        let agents = [Presence::Alive, Presence::Suspect, Presence::Gone, Presence::Unseen].map(present).join(", ");
        // At the begin of a line, so that no narrow terminal cuts it off. Without a broker there are no rates.
        let rates = if self.is_connected { rates } else { "THE BROKER DOES NOT ANSWER".to_owned() };
        vec![
            format!("handoffs    {} open: {}", self.open.len(), states.join(", ")),
            rates,
            format!("agents      {}: {agents}; {letters} letters wait", self.agents.len()),
        ]
    }

    /// The view as a document for programs.
    pub(super) fn document(&self, limit: usize, (now, moment): (Timestamp, Moment)) -> Result<Value, Failure> {
        let in_state = |state: &HandoffState| self.open.values().filter(|handoff| handoff.state() == *state).count();
        let by_state: BTreeMap<_, _> = OPEN.iter().map(|state| (name(*state), in_state(state))).collect();
        let rates = self.rates(moment).map(|(counted, begun, ended)| {
            let ends: BTreeMap<_, _> = ENDED.iter().zip(ended).map(|(state, many)| (name(*state), many)).collect();
            json!({ "seconds": counted.as_secs(), "begun": begun, "ended": ends })
        });
        let handoff = |handoff: &&v1::Handoff| {
            let mut shown = json::of(*handoff)?;
            shown["turn"] = json!(turn(handoff));
            shown["secondsLeft"] = json!(left(handoff, now).map(|left| left.as_secs()));
            Ok(shown)
        };
        let handoffs: Vec<Value> =
            self.by_time_left().iter().take(limit).map(handoff).collect::<Result<_, Failure>>()?;
        let agents: Vec<Value> =
            self.by_mail().iter().take(limit).map(|agent| json::of(*agent)).collect::<Result<_, Failure>>()?;
        Ok(json!({
            "open": self.open.len(), "openByState": by_state, "rates": rates, "agentCount": self.agents.len(),
            "connected": self.is_connected, "handoffs": handoffs, "agents": agents,
        }))
    }
}

fn handoff_lines<'a>(
    handoffs: impl Iterator<Item = &'a &'a v1::Handoff>,
    columns: usize,
    now: Timestamp,
) -> Vec<String> {
    let titles = [
        Column::Id("HANDOFF"),
        Column::Id("TASK"),
        Column::Id("FROM"),
        Column::Id("TO"),
        Column::Whole("STATE"),
        Column::Id("TURN"),
        Column::Whole("LEFT"),
    ];
    let row = |handoff: &&v1::Handoff| {
        vec![
            handoff.handoff_id.clone(),
            handoff.task_id.clone(),
            handoff.sender_id.clone(),
            handoff.candidate_id.clone(),
            name(handoff.state()),
            turn(handoff).to_owned(),
            left(handoff, now).map(brief).unwrap_or_default(),
        ]
    };
    table::lines(&titles, handoffs.map(row), columns)
}

fn agent_lines<'a>(agents: impl Iterator<Item = &'a &'a v1::Agent>, columns: usize, now: Timestamp) -> Vec<String> {
    let titles = [
        Column::Id("AGENT"),
        Column::Whole("PRESENCE"),
        Column::Text("LOAD"),
        Column::Whole("TASKS"),
        Column::Whole("OFFERS"),
        Column::Whole("MAIL"),
        Column::Whole("OLDEST"),
    ];
    let row = |agent: &&v1::Agent| {
        let load = agent.load.unwrap_or_default();
        let oldest = agent.mailbox.and_then(|mailbox| mailbox.oldest_letter_time).and_then(time_of);
        vec![
            agent.card.as_ref().map(|card| card.agent_id.clone()).unwrap_or_default(),
            find::presence(agent.presence()),
            find::load(agent.load.as_ref()),
            load.owned_tasks.to_string(),
            load.open_offers.to_string(),
            letters(agent).map_or_else(|| "?".to_owned(), |letters| letters.to_string()),
            oldest.map(|at| brief(now.since(at))).unwrap_or_default(),
        ]
    };
    table::lines(&titles, agents.map(row), columns)
}

fn letters(agent: &v1::Agent) -> Option<u64> {
    // The broker itself has no mailbox.
    agent.mailbox.map_or(Some(0), |mailbox| mailbox.letter_count)
}

fn name(state: HandoffState) -> String {
    short(state.as_str_name(), "HANDOFF_STATE_")
}

/// The first part of a line of plain characters.
fn cut(line: String, columns: usize) -> String {
    if line.chars().count() <= columns { line } else { line.chars().take(columns).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn update(id: &str, state: HandoffState, cursor: u64) -> v1::WatchHandoffsResponse {
        let handoff = v1::Handoff {
            handoff_id: id.into(),
            sender_id: "alice".into(),
            candidate_id: "bob".into(),
            state: state.into(),
            deadline: Some(prost_types::Timestamp { seconds: 100, nanos: 0 }),
            ..Default::default()
        };
        v1::WatchHandoffsResponse { event: Some(Event::Handoff(Box::new(handoff))), cursor }
    }

    #[test]
    fn the_view_follows_the_watch_and_counts_only_what_happens_after_its_beginning() {
        let (mut view, begin) = (View::default(), Moment::now());
        view.take(update("h1", HandoffState::Accepted, 0), begin);
        view.take(v1::WatchHandoffsResponse { event: Some(Event::CaughtUp(true)), cursor: 5 }, begin);
        view.take(update("h2", HandoffState::Requested, 6), begin);
        view.take(update("h1", HandoffState::Completed, 7), begin);
        // A handoff that began and ended between two reads.
        view.take(update("h3", HandoffState::Failed, 8), begin);
        assert_eq!(view.cursor, 8);
        let later = begin.plus(Duration::from_secs(10));
        assert_eq!(view.rates(begin), None, "too early to tell");
        assert_eq!(view.rates(later), Some((Duration::from_secs(10), 2, [1, 0, 1, 0])));
        let much_later = begin.plus(Duration::from_secs(70));
        assert_eq!(view.rates(much_later), Some((RATES_OF, 0, [0; 4])));
        let now = Timestamp::from_parts(58, 0).unwrap();
        let document = view.document(9, (now, later)).unwrap();
        assert_eq!((&document["open"], &document["openByState"]["REQUESTED"]), (&json!(1), &json!(1)));
        assert_eq!(
            (&document["handoffs"][0]["turn"], &document["handoffs"][0]["secondsLeft"]),
            (&json!("bob"), &json!(42))
        );
        view.take(v1::WatchHandoffsResponse { event: Some(Event::Gap(v1::WatchGap::default())), cursor: 0 }, later);
        assert!(view.open.is_empty());
    }

    #[test]
    fn the_sender_has_the_next_step_of_an_accepted_handoff_and_the_candidate_of_any_other() {
        let turn_in = |state| match update("h", state, 0).event {
            Some(Event::Handoff(handoff)) => turn(&handoff).to_owned(),
            _ => unreachable!(),
        };
        assert_eq!(OPEN.map(turn_in), ["bob", "bob", "alice", "bob"]);
        assert_eq!(turn_in(HandoffState::Completed), "");
    }
}
