//! The signs of work that agents give in heartbeats (SPEC 3): which process works on which task, in memory alone.
//!
//! A task whose request has a `silence_timeout` has a timer. When it fires, this module says whether the owner has been
//! silent; the rule about what then becomes of the task is in `domain::handoff`. After a start of the broker the time
//! begins anew, because no agent could be heard meanwhile.

use std::{collections::BTreeSet, time::Duration};

use super::{Engine, timers::Timer};
use crate::{
    BrokerError,
    domain::{
        Entity, EntityId, Input,
        handoff::{self, Task},
        mailbox::ConsumerId,
    },
    ids::{AgentId, IdMap, InstanceId, TaskId},
    proto::v1,
    records::{CustodyEvent, EntityRecord},
    time::Timestamp,
};

/// The most tasks of an agent whose last sign is remembered after its processes have stopped to list them.
const PAST_MAX: usize = 4096;

/// The signs of work of all agents. All times are running times.
#[derive(Debug)]
pub(super) struct Liveness {
    /// The start of the broker. Before it no agent could be heard.
    began: Timestamp,
    agents: IdMap<AgentId, Signs>,
}

/// The signs of one agent.
#[derive(Debug, Default)]
struct Signs {
    /// The sessions that tell their work.
    processes: IdMap<ConsumerId, Process>,
    /// When the last process has stopped to work on a task.
    past: IdMap<TaskId, Timestamp>,
    /// Whether the latest session said that it tells its work.
    tells_work: bool,
}

/// A session that tells its work.
#[derive(Debug)]
struct Process {
    heard_at: Timestamp,
    works_on: BTreeSet<TaskId>,
}

impl Signs {
    fn stopped(&mut self, tasks: impl IntoIterator<Item = TaskId>, at: Timestamp) {
        self.past.extend(tasks.into_iter().map(|task| (task, at)));
        if self.past.len() > PAST_MAX {
            let mut times: Vec<Timestamp> = self.past.values().copied().collect();
            times.sort_unstable();
            let oldest_kept = times[times.len() - PAST_MAX / 2];
            self.past.retain(|_, at| *at >= oldest_kept);
        }
    }

    /// The latest sign of work on the task. A process that was heard within `heard_within` works on what it listed last.
    fn last_sign(&self, task: &TaskId, now: Timestamp, heard_within: Duration) -> Option<Timestamp> {
        let works_on_it = self.processes.values().filter(|process| process.works_on.contains(task));
        let signs = works_on_it.map(|process| match now.since(process.heard_at) <= heard_within {
            true => now,
            false => process.heard_at,
        });
        signs.chain(self.past.get(task).copied()).max()
    }
}

impl Liveness {
    /// No signs yet, at the start of the broker.
    pub(super) fn beginning(now: Timestamp) -> Self {
        Self { began: now, agents: IdMap::default() }
    }

    /// Notes whether a new session tells its work.
    pub(super) fn opened(&mut self, consumer: ConsumerId, agent: &AgentId, tells_work: bool, now: Timestamp) {
        let signs = self.agents.entry(agent.clone()).or_default();
        // A process that takes mail beside one that tells its work says nothing about the work.
        signs.tells_work |= tells_work;
        if tells_work {
            signs.processes.insert(consumer, Process { heard_at: now, works_on: BTreeSet::new() });
        }
    }

    /// Notes the tasks that a session lists in a heartbeat.
    pub(super) fn heard(&mut self, consumer: ConsumerId, agent: &AgentId, tasks: BTreeSet<TaskId>, now: Timestamp) {
        let Some(signs) = self.agents.get_mut(agent) else { return };
        let Some(process) = signs.processes.get_mut(&consumer) else { return };
        process.heard_at = now;
        let before = std::mem::replace(&mut process.works_on, tasks);
        if before != process.works_on {
            let stopped: Vec<_> = before.difference(&process.works_on).cloned().collect();
            signs.stopped(stopped, now);
        }
    }

    /// Notes the tasks that an agent lists in a signed heartbeat, which belongs to no session.
    fn heard_apart(&mut self, agent: &AgentId, tasks: BTreeSet<TaskId>, now: Timestamp) {
        if let Some(signs) = self.agents.get_mut(agent) {
            signs.stopped(tasks, now);
        }
    }

    /// Whether a connected process of the agent works on the task.
    fn is_worked_on(&self, agent: &AgentId, task: &TaskId) -> bool {
        let signs = self.agents.get(agent);
        signs.is_some_and(|signs| signs.processes.values().any(|process| process.works_on.contains(task)))
    }

    /// The tasks that a session lists. `None`: it does not tell its work.
    pub(super) fn works_on(&self, consumer: ConsumerId, agent: &AgentId) -> Option<Vec<TaskId>> {
        let process = self.agents.get(agent)?.processes.get(&consumer)?;
        Some(process.works_on.iter().cloned().collect())
    }

    /// Counts these tasks as listed by the session until its next heartbeat.
    fn claim(&mut self, consumer: ConsumerId, agent: &AgentId, tasks: &[TaskId], now: Timestamp) {
        let signs = self.agents.entry(agent.clone()).or_default();
        let process = signs.processes.entry(consumer);
        let process = process.or_insert_with(|| Process { heard_at: now, works_on: BTreeSet::new() });
        process.works_on.extend(tasks.iter().cloned());
    }

    /// Notes the end of a session.
    pub(super) fn closed(&mut self, consumer: ConsumerId, agent: &AgentId, now: Timestamp) {
        let Some(signs) = self.agents.get_mut(agent) else { return };
        if let Some(process) = signs.processes.remove(&consumer) {
            signs.stopped(process.works_on, now);
        }
    }

    /// Forgets an agent that is gone. A session of it that is still open may be heard again.
    pub(super) fn forget(&mut self, agent: &AgentId) {
        let Some(signs) = self.agents.get_mut(agent) else { return };
        signs.past.clear();
        if signs.processes.is_empty() {
            self.agents.remove(agent);
        }
    }
}

impl Engine {
    /// Takes the signs of work in a heartbeat of this session, or in a signed one without a session. Its ids are checked.
    pub(super) fn hear_of_work(&mut self, consumer: Option<ConsumerId>, agent: &AgentId, heartbeat: &v1::Heartbeat) {
        let tasks = heartbeat.working_on.iter().filter_map(|id| TaskId::parse(id).ok()).collect();
        let now = self.timers.clock.running();
        if let Some(consumer) = consumer {
            self.hear_of_room(consumer, heartbeat);
        }
        match consumer {
            Some(consumer) => self.liveness.heard(consumer, agent, tasks, now),
            None => self.liveness.heard_apart(agent, tasks, now),
        }
    }

    /// Gives a process the first of these tasks of its agent that no connected process works on.
    pub(super) fn resume(
        &mut self,
        agent: &AgentId,
        instance: InstanceId,
        tasks: Vec<TaskId>,
        tasks_max: usize,
    ) -> Result<Vec<TaskId>, BrokerError> {
        let Some(consumer) = self.session_of(agent, instance) else {
            let problem = "must be a process with an open session that has said Hello".to_owned();
            return Err(BrokerError::Fields {
                violations: vec![crate::codes::FieldViolation { path: "instance_id".into(), problem }],
            });
        };
        let mut given = Vec::new();
        for task in tasks {
            if given.len() == tasks_max {
                break;
            }
            if self.liveness.is_worked_on(agent, &task) {
                continue;
            }
            let mut transaction = self.transaction();
            let record = self.entity_record(&mut transaction, &EntityId::Task(task.clone()))?;
            // The task may have moved since the caller has read it.
            let is_idle = record.as_deref().and_then(EntityRecord::as_task).is_some_and(|r| r.is_left_by(agent));
            if is_idle && !given.contains(&task) {
                given.push(task);
            }
        }
        let now = self.timers.clock.running();
        self.liveness.claim(consumer, agent, &given, now);
        Ok(given)
    }

    /// Decides about a task whose owner may be silent. Returns whether the task has changed; if not, its timer is set to
    /// the next time at which to look.
    pub(super) fn judge_silence(&mut self, task: &TaskId, now: Timestamp) -> Result<bool, BrokerError> {
        let entity = EntityId::Task(task.clone());
        let mut transaction = self.transaction();
        let record = self.entity_record(&mut transaction, &entity)?;
        let Some(state) = record.as_deref().and_then(EntityRecord::as_task).map(|record| record.task.clone()) else {
            return Ok(false);
        };
        let (Some(timeout), Some(_)) = (state.silence_timeout(), state.silent_at()) else { return Ok(false) };
        let running = self.timers.clock.running();
        let of_task = |of: fn(&Task) -> Option<Timestamp>| {
            move |entity: &Entity| match entity {
                Entity::Task(task) => of(task),
                _ => None,
            }
        };
        // The timer may be early, and then it is set anew.
        if self.time_of(&entity, of_task(Task::silent_at))?.is_none_or(|at| at > running) {
            return Ok(false);
        }
        let due = self.time_of(&entity, of_task(Task::due))?;
        let is_gone = self.env.directory.is_gone(&state.owner, now);
        if !is_gone {
            let heard_within = self.env.settings.heartbeat_interval * 3;
            let next = match self.liveness.agents.get(&state.owner) {
                // A process on plain stubs says nothing of its work, and an agent that has not come back since the start
                // cannot: only their absence counts.
                None => Some(running.plus(timeout)),
                Some(signs) if !signs.tells_work => Some(running.plus(timeout)),
                Some(signs) => {
                    let sign = signs.last_sign(task, running, heard_within);
                    // A process that came back after the start has the whole time to tell its work, too.
                    Some(sign.unwrap_or_default().max(self.liveness.began).plus(timeout))
                }
            };
            if let Some(next) = next.filter(|next| *next > running) {
                // A loan or a question may be due before that.
                self.timers.set(Timer::Entity(entity), due.map_or(next, |due| due.min(next)));
                return Ok(true);
            }
        }
        let input = Input::Handoff { task: task.clone(), input: handoff::Input::Silent };
        let has_changed = self.run_unasked(&mut transaction, &entity, &input, &CustodyEvent::Silent, now)?;
        if has_changed {
            tracing::warn!(%task, owner = %state.owner, ?timeout, is_gone, "the owner of a task gives no sign of work");
            self.stage(transaction);
            self.end_unanswered();
        }
        Ok(has_changed)
    }
}
