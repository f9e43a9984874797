//! Law 16: what belongs to something that a process has begun goes to that process while it takes mail, and to another
//! process of its agent otherwise. That none of it is acked unread, law 2 checks: an ack is sent for what was read.

use std::collections::{BTreeMap, HashMap, HashSet};

use baton_broker_core::{
    domain::mailbox::ConsumerId,
    ids::{AgentId, InstanceId, MessageId},
    proto::v1::{self, MessageType as T},
};

/// The message that began something: its type, and the process that sent it.
#[derive(Debug, Clone)]
struct Begun {
    kind: T,
    agent: AgentId,
    process: Option<InstanceId>,
}

/// The bookkeeping of law 16.
#[derive(Debug, Default)]
pub(crate) struct Processes {
    /// Every message that was sent. The broker may not have accepted it.
    begun: HashMap<String, Begun>,
    /// The processes that have made an offer for their agent, by the negotiation.
    bids: HashMap<(String, AgentId), HashSet<Option<InstanceId>>>,
    /// The accept of each handoff, by the handoff.
    accepts: HashMap<String, String>,
    /// The loan that a final status has ended, by the message.
    ended_loans: HashMap<String, MessageId>,
    /// The open consumers.
    open: BTreeMap<ConsumerId, (AgentId, Option<InstanceId>)>,
}

impl Processes {
    /// Notes a message that a process sends, again or for the first time.
    pub(crate) fn sends(&mut self, agent: &AgentId, process: Option<InstanceId>, said: &v1::Envelope) {
        let begun = || Begun { kind: said.message_type(), agent: agent.clone(), process };
        self.begun.entry(said.message_id.clone()).or_insert_with(begun);
        if said.message_type() == T::TaskOffer {
            let process = self.begun[&said.message_id].process;
            self.bids.entry((said.correlation_id.clone(), agent.clone())).or_default().insert(process);
        }
    }

    /// The process that has sent a message.
    pub(crate) fn sender(&self, message: &str) -> Option<InstanceId> {
        self.begun.get(message)?.process
    }

    pub(crate) fn opens(&mut self, consumer: ConsumerId, agent: &AgentId, process: Option<InstanceId>) {
        self.open.insert(consumer, (agent.clone(), process));
    }

    pub(crate) fn closes(&mut self, consumer: ConsumerId) {
        self.open.remove(&consumer);
    }

    /// The broker has died, or begins again.
    pub(crate) fn close_all(&mut self) {
        self.open.clear();
    }

    /// Notes a message in the log of a task.
    pub(crate) fn see_accepted(&mut self, said: &v1::Envelope) {
        if said.message_type() == T::HandoffAccept {
            self.accepts.insert(said.correlation_id.clone(), said.message_id.clone());
        }
    }

    /// Notes the loan that a message has ended.
    pub(crate) fn see_end_of_loan(&mut self, message: &str, loan: MessageId) {
        self.ended_loans.insert(message.to_owned(), loan);
    }

    /// Checks a delivery. Returns whether it went to the process that it belongs to.
    pub(crate) fn see_delivery(&self, consumer: ConsumerId, agent: &AgentId, envelope: &v1::Envelope) -> bool {
        let Some(process) = self.of(agent, envelope) else { return false };
        let is_its = |of: &(AgentId, Option<InstanceId>)| of.0 == *agent && of.1 == Some(process);
        if self.open.get(&consumer).is_some_and(is_its) {
            return true;
        }
        let open = self.open.values().any(is_its);
        let (kind, id) = (envelope.message_type(), &envelope.message_id);
        let got = self.open.get(&consumer).and_then(|(_, process)| *process);
        assert!(
            !open,
            "law 16: a {kind:?}, {id}, belongs to process {process} of {agent}, and went to {got:?}, both open"
        );
        false
    }

    /// The process of this agent that has made all its offers in a negotiation.
    fn bidder(&self, agent: &AgentId, negotiation: &str) -> Option<InstanceId> {
        let processes = self.bids.get(&(negotiation.to_owned(), agent.clone()))?;
        // The latest offer counts that the broker has taken, and this module does not know which of several that is.
        processes.iter().next().copied().flatten().filter(|_| processes.len() == 1)
    }

    /// The process of this agent that has begun what the message belongs to, or has accepted it. `None`: any may get it.
    fn of(&self, agent: &AgentId, envelope: &v1::Envelope) -> Option<InstanceId> {
        let begun = |id: &str| self.begun.get(id).filter(|begun| begun.agent == *agent);
        match envelope.message_type() {
            T::HandoffAccept | T::HandoffReject | T::HandoffComplete => {
                let handoff = begun(&envelope.correlation_id)?;
                handoff.process.filter(|_| handoff.kind == T::HandoffRequest)
            }
            T::TaskContextTransfer => begun(self.accepts.get(&envelope.correlation_id)?)?.process,
            T::TaskInput => begun(&envelope.correlation_id)?.process,
            T::TaskOffer | T::TaskDecline | T::NegotiationClosed => match begun(&envelope.correlation_id) {
                Some(negotiation) => negotiation.process.filter(|_| negotiation.kind == T::TaskRequest),
                None => self.bidder(agent, &envelope.correlation_id),
            },
            // A redriven award comes long after its negotiation, which may be removed.
            T::TaskAccept if envelope.task_id.is_empty() => self.bidder(agent, &envelope.correlation_id),
            T::ErrorNotification => {
                let plan = begun(&envelope.correlation_id)?;
                plan.process.filter(|_| plan.kind == T::PlanSubmission)
            }
            T::TaskStatusUpdate => {
                let loan = self.ended_loans.get(&envelope.message_id)?.to_string();
                let handoff = begun(&loan)?;
                handoff.process.filter(|_| handoff.kind == T::HandoffRequest)
            }
            _ => None,
        }
    }
}
