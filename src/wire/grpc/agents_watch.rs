//! The stream of `WatchAgents`: the agents of the directory, then each change.
//!
//! A watcher reads the directory at its own pace, so no change waits for it in a queue. Of several changes of one agent
//! between two reads it gets the last.

use std::collections::HashMap;

use tonic::Status;

use super::{
    call::Call,
    refuse, refuse_shared,
    responses::{self, Responses, Taker},
};
use crate::{
    broker::{
        BrokerError,
        directory::{Busy, Filter},
        refused,
    },
    ids::AgentId,
    proto::v1::{self, watch_agents_response::Event},
    wire::to_proto,
};

/// The most agents that one read of the directory returns, and the most in one message about presence and load. After
/// each read the watcher gives way to other calls.
const AGENTS_AT_ONCE: usize = 256;

/// Starts a watch.
pub(super) fn stream(call: Call, request: v1::WatchAgentsRequest) -> Responses<v1::WatchAgentsResponse> {
    let skills = if request.skill.is_empty() { Vec::new() } else { vec![request.skill] };
    responses::stream(async move |taker| {
        let mut watcher = Watcher {
            call,
            agent_type: request.agent_type,
            skills,
            with_activity: !request.cards_only,
            cursor: request.after_cursor,
            is_new: request.after_cursor == 0,
            is_resumed: request.after_cursor != 0,
            sent: HashMap::new(),
            taker,
        };
        watcher.follow().await
    })
}

struct Watcher {
    call: Call,
    agent_type: String,
    skills: Vec<String>,
    with_activity: bool,
    /// The change up to which everything is sent.
    cursor: u64,
    /// Whether the watcher knew no agent before this call, and has not caught up.
    is_new: bool,
    /// Whether the watcher knew agents before this call, and has not caught up.
    is_resumed: bool,
    /// The agents that the watcher knows and that match, with the presence and the load that were sent last. `None`: none
    /// were sent in this call.
    sent: HashMap<AgentId, Option<(v1::Presence, Busy)>>,
    taker: Taker<v1::WatchAgentsResponse>,
}

impl Watcher {
    async fn follow(&mut self) -> Result<(), Status> {
        let mut changes = self.call.broker.directory().changes();
        let there = *changes.borrow_and_update();
        if self.is_resumed {
            self.note_unchanged().await;
        }
        self.send_changes().await;
        self.is_resumed = false;
        self.cursor = self.cursor.max(there);
        self.send(Event::CaughtUp(true)).await;
        let mut interval = tokio::time::interval(self.call.broker.settings().heartbeat_interval);
        // One look is enough after a time in which the client took nothing.
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        interval.reset();
        loop {
            tokio::select! {
                changed = changes.changed() => match changed {
                    Ok(()) => self.send_changes().await,
                    Err(_) => return Err(refuse(BrokerError::ShuttingDown)),
                },
                _ = interval.tick() => self.send_activities().await,
                () = self.call.broker.draining() => return Err(refuse_shared(refused(BrokerError::ShuttingDown))),
            }
            // The policies may have changed since the watch began.
            self.call.broker.access().may_see_directory(&self.call.caller).map_err(refuse)?;
        }
    }

    /// Notes the agents that match and have not changed since the cursor: an earlier call has sent them.
    async fn note_unchanged(&mut self) {
        let mut after = None;
        loop {
            let (entries, last) = self.call.broker.directory().lookup(self.filter(), after.as_ref(), AGENTS_AT_ONCE);
            let unchanged: Vec<_> = entries.iter().filter(|entry| entry.record.changed <= self.cursor).collect();
            self.sent.extend(unchanged.iter().map(|entry| (entry.id(), None)));
            match last {
                Some(last) => after = Some(last),
                None => return,
            }
            tokio::task::yield_now().await;
        }
    }

    /// Sends the agents that have changed since the cursor.
    async fn send_changes(&mut self) {
        loop {
            let changed = self.call.broker.directory().changed_after(self.cursor, AGENTS_AT_ONCE);
            let is_last = changed.len() < AGENTS_AT_ONCE;
            for entry in changed {
                let (id, now) = (entry.id(), self.call.broker.now());
                self.cursor = entry.record.changed;
                let directory = self.call.broker.directory();
                let is_whole = self.agent_type.is_empty() && self.skills.is_empty();
                let shows = match entry.is_registered() {
                    true => is_whole || directory.matches(&id, self.filter()),
                    // A watcher that begins needs no former agents; any other one has to learn that the agent left.
                    false => is_whole && !self.is_new,
                };
                if shows {
                    let shown = to_proto::agent(directory, &entry, now);
                    self.sent.insert(id, Some((shown.presence(), directory.busy(&entry, now))));
                    self.send(Event::Agent(shown)).await;
                // What an agent was that has changed since an earlier call is not known.
                } else if self.sent.remove(&id).is_some() || self.is_resumed {
                    self.send(Event::LeftAgentId(id.to_string())).await;
                }
            }
            if is_last {
                self.is_new = false;
                return;
            }
            tokio::task::yield_now().await;
        }
    }

    /// Sends the presence and the load of the agents for which they have changed.
    async fn send_activities(&mut self) {
        if !self.with_activity {
            return;
        }
        let mut after = None;
        loop {
            let (entries, last) = self.call.broker.directory().lookup(self.filter(), after.as_ref(), AGENTS_AT_ONCE);
            let (directory, now) = (self.call.broker.directory(), self.call.broker.now());
            let mut activities = Vec::new();
            for entry in &entries {
                let id = entry.id();
                let presence = to_proto::presence(directory.presence_state(&id, now));
                let busy = directory.busy(entry, now);
                if self.sent.get(&id) != Some(&Some((presence, busy))) {
                    let load = Some(to_proto::load(busy));
                    activities.push(v1::AgentActivity { agent_id: id.to_string(), presence: presence.into(), load });
                    self.sent.insert(id, Some((presence, busy)));
                }
            }
            if !activities.is_empty() {
                self.send(Event::Activities(v1::AgentActivities { activities })).await;
            }
            match last {
                Some(last) => after = Some(last),
                None => return,
            }
            tokio::task::yield_now().await;
        }
    }

    fn filter(&self) -> Filter<'_> {
        Filter { agent_type: &self.agent_type, skills: &self.skills, ..Filter::default() }
    }

    async fn send(&self, event: Event) {
        self.taker.send(v1::WatchAgentsResponse { event: Some(event), cursor: self.cursor }).await;
    }
}
