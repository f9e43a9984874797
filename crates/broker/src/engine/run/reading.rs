//! What a step reads: the open transaction, and what the engine keeps in memory.

use crate::{
    BrokerError,
    domain::{
        Entity, EntityId, ReadError, Reader,
        negotiation::{Mandate, WaitingMail},
        plan::Report,
        workspace::{Entry, WorkspaceId},
    },
    engine::{Engine, authorization::Work, transaction::Transaction},
    ids::{AgentId, AgentType, MessageId, TaskId},
    records::{List, NotFree, TaskRecord},
    store::Order,
    time::Timestamp,
};

/// The open transaction as the reader of a step.
pub(in crate::engine) struct OpenTransaction<'a> {
    engine: &'a mut Engine,
    transaction: &'a mut Transaction,
    now: Timestamp,
    /// The handoff that the step is about.
    pub(super) handoff: Option<MessageId>,
    /// The agents that the step asked about and that are gone or full, for the custody log.
    pub(super) not_free: NotFree,
    /// The cause of the last failed read.
    pub(super) failure: Option<BrokerError>,
}

impl<'a> OpenTransaction<'a> {
    pub(in crate::engine) fn new(engine: &'a mut Engine, transaction: &'a mut Transaction, now: Timestamp) -> Self {
        Self { engine, transaction, now, handoff: None, not_free: NotFree::default(), failure: None }
    }

    /// The cause of a failed read.
    pub(in crate::engine) fn failure(self) -> BrokerError {
        self.failure.unwrap_or(BrokerError::Internal)
    }
}

impl Reader for OpenTransaction<'_> {
    fn entity(&mut self, id: &EntityId) -> Result<Option<Entity>, ReadError> {
        let found = self.engine.entity_record(self.transaction, id).map_err(|error| {
            self.failure = Some(error);
            ReadError
        })?;
        Ok(found.map(|record| record.entity()))
    }

    fn is_gone(&mut self, agent: &AgentId) -> bool {
        // The custody entry records the gone agents: a replay has no directory, and must give the same answer.
        let directory = &self.engine.env.directory;
        let is_gone = directory.is_gone(agent, self.now) || directory.has_left(agent);
        if is_gone {
            self.not_free.absent.push(agent.clone());
        }
        is_gone
    }

    fn is_full(&mut self, agent: &AgentId) -> bool {
        let is_full = self.engine.has_no_room(agent, self.handoff, self.now);
        if is_full {
            self.not_free.full.push(agent.clone());
        }
        is_full
    }

    fn entry(&mut self, workspace: &WorkspaceId, sequence: u64) -> Result<Option<Entry>, ReadError> {
        self.engine.workspace_entry(self.transaction, workspace, sequence).map_err(|error| {
            self.failure = Some(error);
            ReadError
        })
    }

    fn parts(&mut self, parent: &TaskId, after: u64, most: usize) -> Result<Vec<(u64, TaskId)>, ReadError> {
        self.engine.parts_after(parent, after, most).map_err(|error| {
            self.failure = Some(error);
            ReadError
        })
    }

    fn waiting_mail(&mut self, negotiation: MessageId, agent: &AgentId) -> Result<WaitingMail, ReadError> {
        self.engine.waiting_request(self.transaction, negotiation, agent).map_err(|error| {
            self.failure = Some(error);
            ReadError
        })
    }

    fn load(&mut self, agent: &AgentId) -> u32 {
        self.engine.env.directory.load(agent, self.now)
    }

    fn is_of_type(&mut self, agent: &AgentId, kind: &AgentType) -> bool {
        self.engine.env.directory.get(agent).is_some_and(|entry| entry.types.contains(kind))
    }

    fn may_hand_off(&mut self, from: &AgentId, to: &AgentId, mandate: Option<&Mandate>) -> bool {
        match mandate {
            Some(mandate) => self.engine.may_hand_off(&Work::of_mandate(from, mandate), to),
            None => self.engine.env.directory.is_registered(to),
        }
    }

    fn report(&mut self, message: MessageId) -> Result<Option<Report>, ReadError> {
        Ok(self.engine.report(self.transaction, message))
    }
}

impl Engine {
    /// The stored parts of a task behind this place in their list, each with its place.
    fn parts_after(&self, parent: &TaskId, after: u64, most: usize) -> Result<Vec<(u64, TaskId)>, BrokerError> {
        let list = List::of_parts(parent);
        let found = self.env.store.scan(list.table, list.range_after(after), Order::Ascending, most)?;
        found.iter().map(|(key, part)| Ok((list.number(key)?, TaskRecord::listed(&part.value)?))).collect()
    }
}
