//! What every state machine has in common: an id, inputs, transitions, effects, and the one [`step`] over all of them.
//!
//! A machine is a variant of [`EntityId`] and of [`Entity`], an arm in each match below, and a function from an input to a
//! [`Transition`]. Must not know how entities are stored, or who delivers what an effect asks for.

use std::{fmt, sync::Arc};

use super::handoff::{self, Acked, Handoff, Notice, Priority, Rejection, Task, Untaken};
#[cfg(test)]
use super::probe::{self, Probe, ProbeId};
use crate::{
    ids::{AgentId, MessageId, TaskId},
    time::Timestamp,
};

/// Names one entity: a thing with a state machine of its own. One variant for each machine.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EntityId {
    /// A task.
    Task(TaskId),
    /// One attempt to move a task.
    Handoff(MessageId),
    /// The machine that shows that the engine is general.
    #[cfg(test)]
    Probe(ProbeId),
}

/// The state of an entity. A clone costs a reference count.
#[derive(Debug, Clone, PartialEq)]
pub enum Entity {
    /// A task.
    Task(Arc<Task>),
    /// One attempt to move a task.
    Handoff(Arc<Handoff>),
    /// The machine that shows that the engine is general.
    #[cfg(test)]
    Probe(Arc<Probe>),
}

/// What a step may read. In the broker it is the open transaction; in replays and tests it is a map.
pub trait Reader {
    /// The entity as it is now, with everything that this transaction has written. `None`: there is none.
    fn entity(&mut self, id: &EntityId) -> Result<Option<Entity>, ReadError>;

    /// Whether the agent's presence lease is over. An agent that is gone is asked only if no other can be.
    fn is_gone(&mut self, agent: &AgentId) -> bool;
}

/// A reader failed to read what is stored. The reader keeps the cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("failed to read what is stored")]
pub struct ReadError;

/// What can happen to an entity.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(not(test), expect(clippy::large_enum_variant, reason = "an input lives on the stack, for one step"))]
pub enum Input {
    /// A request, a message or a redrive, about a handoff or its task.
    Handoff {
        /// The task that it names.
        task: TaskId,
        /// What it says.
        input: handoff::Input,
    },
    /// An agent acked a delivery that reports to this entity.
    Acked {
        /// The agent.
        by: AgentId,
        /// What the delivery is to the entity.
        role: Acked,
    },
    /// A delivery that reports to this entity became a dead letter.
    Undeliverable {
        /// The agent that did not get it.
        to: AgentId,
        /// What the delivery was to the entity.
        role: Acked,
    },
    /// The agent with an open delivery that reports to this entity is gone.
    AgentGone,
    /// Time has passed. What is overdue happens; nothing else does.
    Time,
    /// Another entity tells this one something.
    Told(Told),
}

/// What one entity tells another ([`Effect::Send`]). One variant for each machine that is told something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    /// To the machine that shows that the engine is general.
    #[cfg(test)]
    Probe(probe::Word),
}

/// The entities after a step, and what is to be done. All of it is one commit, or none of it is.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Transition {
    /// The entities that the step has changed, each once.
    pub writes: Vec<Entity>,
    /// What is to be done, in this order.
    pub effects: Vec<Effect>,
}

impl Transition {
    /// Whether nothing has changed: a repeat, or a timer before its time.
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty() && self.effects.is_empty()
    }
}

/// Something to be done in the commit of a step.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Put mail into an agent's mailbox.
    Deliver {
        /// The agent.
        to: AgentId,
        /// The mail.
        mail: Mail,
        /// The order among other mail.
        priority: Priority,
        /// The entity that learns of the ack or of the failure, and what the delivery is to it.
        report_to: Option<(EntityId, Acked)>,
    },
    /// Keep the message that began this entity as a dead letter.
    Park {
        /// The entity.
        entity: EntityId,
        /// Why no agent took it.
        why: Untaken,
    },
    /// Tell another entity something: in the same transaction, or in a later one where a transaction tells too much.
    Send {
        /// The entity.
        to: EntityId,
        /// What it is told.
        told: Told,
    },
}

/// What is put into a mailbox.
#[derive(Debug, Clone, PartialEq)]
pub enum Mail {
    /// The message that is the input of this step.
    ThisMessage,
    /// The message that began the entity, once more.
    Opening {
        /// The entity.
        entity: EntityId,
        /// Whether the message's own expiry still holds. It does not for one that was redriven after it.
        expires: bool,
    },
    /// The broker's own `ErrorNotification` about an entity.
    Notice {
        /// What it says.
        notice: Notice,
        /// The message that began the entity.
        about: Option<MessageId>,
        /// The entity's task, and its epoch.
        task: Option<(TaskId, u64)>,
    },
}

/// Why a step was not made.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum StepError {
    /// A rule of the protocol forbids it. Nothing has changed.
    #[error(transparent)]
    Rejected(#[from] Rejection),
    /// What is stored cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// Takes one input of one entity, at this time of the entity's log.
pub fn step(about: &EntityId, input: &Input, read: &mut dyn Reader, now: Timestamp) -> Result<Transition, StepError> {
    match about {
        EntityId::Task(_) | EntityId::Handoff(_) => handoff::step_entity(about, input, read, now),
        #[cfg(test)]
        EntityId::Probe(id) => probe::step(*id, input, read, now),
    }
}

impl Entity {
    /// Its id.
    pub fn id(&self) -> EntityId {
        match self {
            Self::Task(task) => EntityId::Task(task.id.clone()),
            Self::Handoff(handoff) => EntityId::Handoff(handoff.id),
            #[cfg(test)]
            Self::Probe(probe) => EntityId::Probe(probe.id),
        }
    }

    /// The task whose custody log records its steps and gives them their time. `None`: it has no custody log.
    pub fn task(&self) -> Option<&TaskId> {
        match self {
            Self::Task(task) => Some(&task.id),
            Self::Handoff(handoff) => Some(&handoff.task),
            #[cfg(test)]
            Self::Probe(_) => None,
        }
    }

    /// When something happens to it by itself next. `None`: nothing does.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        match self {
            Self::Task(_) => None,
            Self::Handoff(handoff) => handoff.next_deadline(),
            #[cfg(test)]
            Self::Probe(probe) => probe.deadline,
        }
    }

    /// Whether it never changes again.
    pub fn has_ended(&self) -> bool {
        match self {
            Self::Task(task) => task.status.is_final(),
            Self::Handoff(handoff) => handoff.state.is_final(),
            #[cfg(test)]
            Self::Probe(_) => false,
        }
    }

    /// The agent whose limit of open entities it counts against while it has a deadline.
    pub fn counts_for(&self) -> Option<&AgentId> {
        match self {
            Self::Task(_) => None,
            Self::Handoff(handoff) => Some(&handoff.sender),
            #[cfg(test)]
            Self::Probe(_) => None,
        }
    }
}

impl fmt::Display for EntityId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Task(id) => write!(formatter, "task {id}"),
            Self::Handoff(id) => write!(formatter, "handoff {id}"),
            #[cfg(test)]
            Self::Probe(id) => write!(formatter, "probe {}", id.0),
        }
    }
}
