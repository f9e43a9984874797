//! Consumers of mail: sessions and calls of `Receive`, with their credit.

use super::{Delivery, Engine};
use crate::{
    Away, Credited, Event, Events, OutgoingDelivery, Output, PROCESSES_SHOWN, Reply, RunningProcess,
    directory::Reported,
    domain::mailbox::{ConsumerId, Fate, Mailbox, PROCESS_GRACE},
    engine::{ConsumerKind, timers::Timer},
    ids::{AgentId, InstanceId},
    proto::v1,
    time::Timestamp,
};

/// The most leases of a closed session that one step ends.
const LEASES_AT_ONCE: usize = 64;

/// A consumer of one agent's mail.
#[derive(Debug)]
pub(in crate::engine) struct Consumer {
    agent: AgentId,
    kind: ConsumerKind,
    /// The process behind the session. `None`: it has not said.
    process: Option<InstanceId>,
    opened_at: Timestamp,
    /// The capacity and the tasks of its process, by its latest heartbeat. `None`: it states no capacity.
    slots: Option<(u32, u32)>,
    /// What its latest heartbeat says. `None`: it has sent none.
    reported: Option<Reported>,
    events: Events,
    /// The credit: the most deliveries that the consumer holds at a time.
    outstanding_max: u32,
    outstanding: u32,
    /// The number of deliveries since the consumer was opened.
    deliveries: u32,
}

impl Consumer {
    /// The process behind the consumer. `None`: it has not said.
    pub(super) fn process(&self) -> Option<InstanceId> {
        self.process
    }

    /// How many more tasks its process can take, by its latest heartbeat; without a capacity there, fewer deliveries in
    /// flight mean more room.
    pub(super) fn free_slots(&self) -> i64 {
        let reserved = i64::from(self.outstanding);
        self.slots.map_or(0, |(capacity, busy)| i64::from(capacity) - i64::from(busy)) - reserved
    }

    /// Whether the consumer takes one more delivery now.
    pub(super) fn has_room(&self) -> bool {
        self.outstanding < self.outstanding_max && !self.is_done()
    }

    /// The output that tells the consumer to come back later.
    pub(in crate::engine) fn go_away(&self, why: Away) -> Output {
        self.output(Event::GoAway(why))
    }

    fn output(&self, event: Event) -> Output {
        Output::Event { to: self.events.clone(), event }
    }

    pub(in crate::engine) fn is_of(&self, agent: &AgentId) -> bool {
        self.agent == *agent
    }

    /// Counts one more outstanding delivery.
    pub(super) fn lease_begun(&mut self) {
        self.outstanding += 1;
    }

    /// Counts one outstanding delivery less.
    pub(super) fn lease_ended(&mut self) {
        self.outstanding -= 1;
    }

    /// Counts a delivery and returns the output that sends it.
    pub(super) fn deliver(&mut self, delivery: OutgoingDelivery) -> Output {
        self.deliveries = self.deliveries.saturating_add(1);
        self.output(Event::Delivery(delivery))
    }

    /// Whether the consumer has had all the deliveries that it may ever take.
    pub(super) fn is_done(&self) -> bool {
        matches!(self.kind, ConsumerKind::Receive { deliveries_max: Some(most) } if self.deliveries >= most)
    }
}

impl Delivery {
    fn add_consumer(&mut self, id: ConsumerId, consumer: Consumer) {
        self.consumers_of.entry(consumer.agent.clone()).or_default().push(id);
        let former = self.consumers.insert(id, consumer);
        assert!(former.is_none(), "a consumer's id is used once");
    }

    /// The open consumers of an agent.
    fn open_of(&self, agent: &AgentId) -> impl Iterator<Item = (ConsumerId, &Consumer)> {
        self.consumers_of.get(agent).into_iter().flatten().map(|id| (*id, &self.consumers[id]))
    }

    /// An open consumer of this process of the agent.
    fn consumer_of(&self, agent: &AgentId, process: InstanceId) -> Option<ConsumerId> {
        self.open_of(agent).find(|(_, consumer)| consumer.process == Some(process)).map(|(id, _)| id)
    }

    /// The sum of what the processes of the agent have said, except the one of this session.
    pub(in crate::engine) fn reported_beside(&self, agent: &AgentId, id: Option<ConsumerId>) -> Reported {
        let process = id.and_then(|id| self.consumers.get(&id)).and_then(|consumer| consumer.process);
        // A former session of a process may still be open.
        let is_same = |other: &Consumer| process.is_some() && other.process == process;
        let others = self.open_of(agent).filter(|(other, consumer)| Some(*other) != id && !is_same(consumer));
        others.filter_map(|(_, other)| other.reported).fold(Reported::default(), Reported::and)
    }

    fn remove_consumer(&mut self, id: ConsumerId) -> Option<Consumer> {
        let consumer = self.consumers.remove(&id)?;
        let others = self.consumers_of.get_mut(&consumer.agent).expect("a consumer is among its agent's");
        others.retain(|other| *other != id);
        if others.is_empty() {
            self.consumers_of.remove(&consumer.agent);
        }
        Some(consumer)
    }
}

impl Engine {
    /// Registers a consumer and counts it as a sign of life. Loads the mailbox if it is not in memory.
    pub(in crate::engine) fn open_consumer(
        &mut self,
        id: ConsumerId,
        agent: &AgentId,
        kind: ConsumerKind,
        events: Events,
    ) {
        if !self.delivery.mailboxes.contains_key(agent) {
            // `load_some` loads nothing for an agent without a mailbox in memory.
            let mut mailbox = Mailbox::default();
            // After a start, or after all consumers of the agent were away, each process gets the time to come back.
            mailbox.wait_for_processes_until(self.timers.clock.now.plus(PROCESS_GRACE));
            self.delivery.mailboxes.insert(agent.clone(), mailbox);
            if let Err(error) = self.load_some(agent, 0) {
                self.delivery.mailboxes.remove(agent);
                // The consumer's stream of events ends without an error; the log has the cause.
                return tracing::error!(%agent, %error, "failed to load a mailbox");
            }
        }
        let consumer = Consumer {
            agent: agent.clone(),
            kind,
            process: None,
            opened_at: self.timers.clock.now,
            slots: None,
            reported: None,
            events,
            outstanding_max: 0,
            outstanding: 0,
            deliveries: 0,
        };
        self.delivery.add_consumer(id, consumer);
        let is_session = kind == ConsumerKind::Session;
        self.env.directory.change_presence(agent, |presence| {
            presence.signs.had_session |= is_session;
            if is_session { presence.signs.sessions += 1 } else { presence.signs.receives += 1 }
        });
    }

    /// Notes the process behind a session, and whether it tells its work. A closed consumer ignores it.
    pub(in crate::engine) fn hello(&mut self, id: ConsumerId, process: InstanceId, tells_work: bool) {
        if let Some(consumer) = self.delivery.consumers.get_mut(&id) {
            consumer.process = Some(process);
            if let Some(mailbox) = self.delivery.mailboxes.get_mut(&consumer.agent) {
                mailbox.process_opened(process);
            }
            let now = self.timers.clock.running();
            self.liveness.opened(id, &consumer.agent, tells_work, now);
        }
    }

    /// The processes of the agent with an open session, in the order in which they came.
    pub(in crate::engine) fn processes(&self, agent: &AgentId) -> Vec<RunningProcess> {
        let sessions = self.delivery.open_of(agent).filter(|(_, consumer)| consumer.kind == ConsumerKind::Session);
        let process = |(id, consumer): (ConsumerId, &Consumer)| RunningProcess {
            instance: consumer.process,
            since: consumer.opened_at,
            works_on: self.liveness.works_on(id, agent),
        };
        sessions.take(PROCESSES_SHOWN).map(process).collect()
    }

    /// An open session of this process of the agent.
    pub(in crate::engine) fn session_of(&self, agent: &AgentId, process: InstanceId) -> Option<ConsumerId> {
        self.delivery.consumer_of(agent, process)
    }

    /// Notes the room of the process behind a session, by its heartbeat. A closed consumer ignores it.
    pub(in crate::engine) fn hear_of_room(&mut self, id: ConsumerId, heartbeat: &v1::Heartbeat) {
        if let Some(consumer) = self.delivery.consumers.get_mut(&id) {
            consumer.reported = Some(Reported::of(heartbeat));
            let listed = u32::try_from(heartbeat.working_on.len()).unwrap_or(u32::MAX);
            let busy = heartbeat.active_tasks.max(listed);
            consumer.slots = Some((heartbeat.capacity, busy)).filter(|(capacity, _)| *capacity > 0);
        }
    }

    /// Sets a consumer's credit. A closed consumer ignores it.
    pub(in crate::engine) fn credit(&mut self, id: ConsumerId, outstanding_max: u32, now: Timestamp) {
        if let Some(consumer) = self.delivery.consumers.get_mut(&id) {
            consumer.outstanding_max = outstanding_max;
            let agent = consumer.agent.clone();
            // Mail may wait for this credit.
            self.batch.touched.insert(agent.clone());
            self.seen(&agent, now);
        }
    }

    pub(in crate::engine) fn answer_credit(&mut self, id: ConsumerId, reply: Option<Reply<Credited>>) {
        let outstanding_max = self.delivery.consumers.get(&id).map_or(0, |consumer| consumer.outstanding_max);
        if let Some(reply) = reply {
            self.batch.answer(reply, Ok(Credited { outstanding_max }));
        }
    }

    /// Removes a consumer. The end of a session requeues its deliveries.
    pub(in crate::engine) fn close_consumer(&mut self, id: ConsumerId, now: Timestamp) {
        let Some(consumer) = self.delivery.remove_consumer(id) else { return };
        self.liveness.closed(id, &consumer.agent, self.timers.clock.running());
        if let Some(process) = consumer.process
            && self.delivery.consumer_of(&consumer.agent, process).is_none()
            && let Some(mailbox) = self.delivery.mailboxes.get_mut(&consumer.agent)
        {
            mailbox.process_closed(process, now.plus(PROCESS_GRACE));
        }
        let is_session = consumer.kind == ConsumerKind::Session;
        let others = self.delivery.reported_beside(&consumer.agent, None);
        self.env.directory.change_presence(&consumer.agent, |presence| {
            // What the last process has said stays until another one says more.
            if consumer.reported.is_some() && others != Reported::default() {
                presence.reported = others;
            }
            if is_session { presence.signs.sessions -= 1 } else { presence.signs.receives -= 1 }
        });
        // The presence lease of the agent runs from the end of its last session (SPEC 6).
        self.seen(&consumer.agent, now);
        // The leases of a `Receive` outlive the call, so only a session requeues its deliveries here.
        if is_session {
            self.end_some_leases(consumer.agent.clone(), id, now);
        }
        self.batch.touched.insert(consumer.agent);
    }

    /// Ends leases of the session that was closed first, among those that still have leases.
    pub(in crate::engine) fn end_leases_of_closed(&mut self, now: Timestamp) {
        if let Some((agent, id)) = self.delivery.closed.pop_front() {
            self.end_some_leases(agent.clone(), id, now);
            self.batch.touched.insert(agent);
        }
        if self.delivery.closed.is_empty() {
            self.timers.clear(Timer::LeasesOfClosed);
        }
    }

    /// Ends leases of a session that is closed. The rest waits for the next tick.
    fn end_some_leases(&mut self, agent: AgentId, id: ConsumerId, now: Timestamp) {
        let held = self.delivery.held_by(&agent, id);
        let has_rest = held.len() > LEASES_AT_ONCE;
        for (letter, lease) in held.into_iter().take(LEASES_AT_ONCE) {
            self.end_lease(&agent, letter, lease, &Fate::SessionEnded, now);
        }
        if has_rest {
            self.delivery.closed.push_back((agent, id));
            self.timers.set_at_once(Timer::LeasesOfClosed);
        }
    }

    /// Tells these consumers to come back later, and closes those of `Receive` calls.
    pub(in crate::engine) fn send_away(&mut self, why: Away, is_meant: impl Fn(&Consumer) -> bool, now: Timestamp) {
        let mut receives = Vec::new();
        for (id, consumer) in self.delivery.consumers.iter().filter(|(_, consumer)| is_meant(consumer)) {
            self.outputs.push(consumer.go_away(why));
            if consumer.kind != ConsumerKind::Session {
                receives.push(*id); // the wire closes a session itself, a Receive only ends here
            }
        }
        receives.into_iter().for_each(|id| self.close_consumer(id, now));
    }
}
