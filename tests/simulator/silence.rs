//! Law 17: no task is owned by an agent that is silent about it for longer than its `silence_timeout` plus one tick. And
//! the other way round: no owner is called silent while a process of it lists the task, or without a process that tells
//! its work.
//!
//! Times are the running time as this module can know it, which is the real time without what the broker's clock has
//! hidden; beside it stands what the broker's clock has shown, where a jump of it may make an agent GONE.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    time::Duration,
};

use baton_broker_core::{
    domain::{handoff::Task, mailbox::ConsumerId},
    ids::{AgentId, MessageId, TaskId},
    time::Timestamp,
};

/// The time after a heartbeat in which a process counts as working on what it listed: three intervals.
const HEARD: Duration = Duration::from_secs(30);
/// The time without a sign of life after which an agent is GONE.
const LEASE: Duration = Duration::from_secs(60);
/// The broker's timers fire in the step after their time.
const TICK: Duration = Duration::from_millis(1);

/// A task whose silence is judged.
#[derive(Debug)]
struct Watched {
    owner: AgentId,
    timeout: Duration,
    /// The last change of the task, in the record and by this module's time.
    updated: (Timestamp, Timestamp),
}

/// A session that tells its work.
#[derive(Debug)]
struct Process {
    agent: AgentId,
    heard_at: Timestamp,
    /// The time that the broker's clock showed at its last heartbeat. `None`: it has sent none.
    shown_at: Option<Timestamp>,
    works_on: BTreeSet<String>,
}

/// The bookkeeping of law 17.
#[derive(Debug, Default)]
pub(crate) struct Silence {
    /// The silence timeout of each handoff that has one.
    terms: HashMap<MessageId, Duration>,
    watched: BTreeMap<TaskId, Watched>,
    processes: BTreeMap<ConsumerId, Process>,
    /// All open sessions.
    sessions: BTreeMap<ConsumerId, AgentId>,
    /// When the last process has stopped to list a task.
    past: HashMap<(AgentId, String), Timestamp>,
    /// The agents with a session that tells its work since they were last absent, and since when.
    tells: HashMap<AgentId, Timestamp>,
    /// The agents of which a process has told its work since the start.
    told: HashSet<AgentId>,
    /// The last sign of life of each agent, with the time that the broker's clock has shown.
    seen: HashMap<AgentId, (Timestamp, Timestamp)>,
    /// The start of the broker, the same.
    began: (Timestamp, Timestamp),
}

impl Silence {
    /// The broker starts, or begins again: it knows of no signs.
    pub(crate) fn begins(&mut self, now: (Timestamp, Timestamp)) {
        let (terms, watched) = (std::mem::take(&mut self.terms), std::mem::take(&mut self.watched));
        *self = Self { terms, watched, began: now, ..Self::default() };
    }

    pub(crate) fn opens(&mut self, consumer: ConsumerId, agent: &AgentId, tells_work: bool, now: Timestamp) {
        // An agent that was absent may have been GONE, and then its silence is not judged until it tells its work.
        if !self.sessions.values().any(|open| open == agent) {
            self.tells.remove(agent);
        }
        self.sessions.insert(consumer, agent.clone());
        if tells_work {
            self.tells.entry(agent.clone()).or_insert(now);
            self.told.insert(agent.clone());
            let process = Process { agent: agent.clone(), heard_at: now, shown_at: None, works_on: BTreeSet::new() };
            self.processes.insert(consumer, process);
        }
    }

    pub(crate) fn hears(&mut self, consumer: ConsumerId, tasks: &[String], (now, shown): (Timestamp, Timestamp)) {
        let Some(process) = self.processes.get_mut(&consumer) else { return };
        let before = std::mem::replace(&mut process.works_on, tasks.iter().cloned().collect());
        (process.heard_at, process.shown_at) = (now, Some(shown));
        let stopped = before.into_iter().map(|task| ((process.agent.clone(), task), now));
        self.past.extend(stopped);
    }

    pub(crate) fn closes(&mut self, consumer: ConsumerId, (now, shown): (Timestamp, Timestamp)) {
        if let Some(agent) = self.sessions.remove(&consumer) {
            self.seen.insert(agent, (now, shown));
        }
        if let Some(process) = self.processes.remove(&consumer) {
            self.past.extend(process.works_on.into_iter().map(|task| ((process.agent.clone(), task), now)));
        }
    }

    /// Checks that a task that a process resumes is given to it alone: no connected process of the agent has it. It counts as
    /// one that the process lists, until its next heartbeat.
    pub(crate) fn resumes(&mut self, consumer: ConsumerId, agent: &AgentId, task: &TaskId) {
        let has_it = |process: &Process| process.agent == *agent && process.works_on.contains(task.as_str());
        let twice = self.processes.values().any(has_it);
        assert!(!twice, "SPEC 3: {task} is given to a process of {agent}, and a connected one has it");
        if let Some(process) = self.processes.get_mut(&consumer) {
            process.works_on.insert(task.to_string());
        }
    }

    /// Notes a frame of an agent.
    pub(crate) fn sees(&mut self, agent: &AgentId, now: (Timestamp, Timestamp)) {
        let former = self.seen.insert(agent.clone(), now);
        let was_gone = former.is_some_and(|(_, shown)| now.1.since(shown) >= LEASE);
        // It was GONE, and no open session has told its work.
        if was_gone && !self.processes.values().any(|process| process.agent == *agent) {
            self.tells.remove(agent);
        }
    }

    pub(crate) fn see_terms(&mut self, handoff: MessageId, silence_timeout: Option<Duration>) {
        self.terms.extend(silence_timeout.map(|timeout| (handoff, timeout)));
    }

    /// Follows a task, as a change leaves it.
    pub(crate) fn see_task(&mut self, task: &Task, now: Timestamp) {
        let timeout = task.silence_timeout();
        // The owner got the task by the innermost loan.
        let is_last = |loan: &MessageId| task.hops.last().is_some_and(|hop| hop.handoff == *loan);
        if let Some(loan) = task.loans.last().map(|loan| loan.handoff).filter(is_last)
            && let Some(expected) = self.terms.get(&loan)
            && !task.status.is_final()
            && !task.owner.is_coordinator()
        {
            assert_eq!(timeout, Some(*expected), "law 17: the terms of the loan of {}", task.id);
        }
        let Some(timeout) = timeout.filter(|_| !task.waits_for_answer()) else {
            self.watched.remove(&task.id);
            return;
        };
        let former = self.watched.get(&task.id).filter(|former| {
            former.owner == task.owner && former.timeout == timeout && former.updated.0 == task.updated_at
        });
        let updated = former.map_or((task.updated_at, now), |former| former.updated);
        self.watched.insert(task.id.clone(), Watched { owner: task.owner.clone(), timeout, updated });
    }

    /// Checks that the owner of a task was silent, where the broker says so. `shown` is the time of the broker's clock.
    pub(crate) fn see_silence(&self, task: &TaskId, owner: &AgentId, shown: Timestamp) {
        let is_open = self.sessions.values().any(|agent| agent == owner);
        let lists = |process: &Process| {
            let is_heard = process.shown_at.is_some_and(|at| at <= shown && shown.since(at) < HEARD / 2);
            process.agent == *owner && is_heard && process.works_on.contains(task.as_str())
        };
        assert!(!self.processes.values().any(lists), "law 17: {owner} lists {task}, and is called silent about it");
        // By a clock that jumps an agent with a session may be GONE.
        let is_near = self.seen.get(owner).is_some_and(|seen| shown.since(self.began.1.max(seen.1)) < LEASE / 2);
        let is_judged = self.told.contains(owner) || !is_open || !is_near;
        assert!(is_judged, "law 17: {owner} never told its work, and is called silent about {task}");
    }

    /// Checks the watched tasks after the broker has processed all deadlines.
    pub(crate) fn see_time(&self, now: Timestamp) {
        for (task, watched) in &self.watched {
            let Some(sign) = self.last_sign(task, watched, now) else { continue };
            let due = sign.max(self.began.0).plus(watched.timeout).plus(TICK);
            let owner = &watched.owner;
            assert!(now <= due, "law 17: {owner} owns {task}, and is silent about it since {sign}");
        }
    }

    /// The latest time at which the broker may have seen a sign of work on the task. `None`: silence is not judged.
    fn last_sign(&self, task: &TaskId, watched: &Watched, now: Timestamp) -> Option<Timestamp> {
        let owner = &watched.owner;
        if let Some(since) = self.tells.get(owner) {
            let of_owner = self.processes.values().filter(|process| process.agent == *owner);
            let listing = of_owner.filter(|process| process.works_on.contains(task.as_str()));
            let listed = listing.map(|process| process.heard_at.plus(HEARD).min(now));
            let past = self.past.get(&(owner.clone(), task.to_string())).copied();
            return listed.chain(past).chain([*since, watched.updated.1]).max();
        }
        if self.sessions.values().any(|agent| agent == owner) {
            return None;
        }
        // A look at a task finds its agent GONE, or is repeated after the timeout.
        let seen = self.seen.get(owner).copied().unwrap_or_default();
        Some(seen.0.max(self.began.0).plus(LEASE).max(watched.updated.1))
    }
}
