//! The nodes of other agents in a run over a task: the handoffs to their agents, and the letters about nodes.

use std::collections::BTreeSet;

use sha2::{Digest as _, Sha256};

use super::{TransitionBuilder, read_task};
use crate::{
    Effect, Mail, ReadError, Reader,
    handoff::Priority,
    ids::{AgentId, AgentType, MessageId, NodeId},
    routing::{Choice, Event, Node, NodeLetter, NodeState, Proposal, Run, TurnId},
};

/// The owner of a run's task, with its types as far as the graph names them.
#[derive(Debug, Clone)]
pub(super) struct Owner {
    id: AgentId,
    types: BTreeSet<AgentType>,
}

impl Owner {
    /// This agent as the owner of the run's task. `None`: the run is over no task.
    pub(super) fn of(run: &Run, id: &AgentId, read: &mut dyn Reader) -> Option<Self> {
        run.task.as_ref()?;
        let named: BTreeSet<&AgentType> = run.graph.nodes.iter().filter_map(|node| node.agent_type.as_ref()).collect();
        let types = named.into_iter().filter(|kind| read.is_of_type(id, kind)).cloned().collect();
        Some(Self { id: id.clone(), types })
    }

    /// The present owner of the run's task.
    pub(super) fn of_task(run: &Run, read: &mut dyn Reader) -> Result<Option<Self>, ReadError> {
        let Some(task) = &run.task else { return Ok(None) };
        let task = read_task(read, task)?;
        Ok(task.and_then(|task| Self::of(run, &task.owner, read)))
    }

    fn works_at(&self, node: &Node) -> bool {
        match (&node.agent, &node.agent_type) {
            (Some(agent), _) => self.id == *agent,
            (None, Some(kind)) => self.types.contains(kind),
            (None, None) => true,
        }
    }
}

/// The receiver of a handoff to the agent of a node. `None`: any agent works there.
pub(super) fn receiver_of(node: &Node) -> Option<String> {
    match (&node.agent, &node.agent_type) {
        (Some(agent), _) => Some(agent.to_string()),
        (None, Some(kind)) => Some(format!("type:{kind}")),
        (None, None) => None,
    }
}

impl TransitionBuilder {
    pub(super) fn called_by(self, caller: Option<AgentId>) -> Self {
        Self { caller, ..self }
    }

    pub(super) fn of(self, owner: Option<Owner>) -> Self {
        Self { owner, ..self }
    }

    /// Proposes a handoff for each active node at which the owner of the task does not work.
    pub(super) fn propose(&mut self) {
        let Some(owner) = self.owner.clone() else { return };
        let graph = self.run.graph.clone();
        for node in self.run.active() {
            let Some(of_graph) = graph.node(&node).filter(|of_graph| !owner.works_at(of_graph)) else { continue };
            let Some(receiver) = receiver_of(of_graph) else { continue };
            if !self.node(&node).for_agent {
                continue;
            }
            let id = proposal_id(&self.run);
            let entry = self.node(&node).inputs.last().copied().unwrap_or(0);
            let target = node.clone();
            let choice = Choice { id, entry, target, is_edge: true, receiver: receiver.clone(), handoff: None };
            self.node(&node).state = NodeState::Moving(choice);
            self.touched.insert(node.clone());
            self.log(Event::HandoffProposed(Proposal { node, choice: id, receiver }));
        }
    }

    /// Makes a node active whose handoff is completed.
    pub(super) fn arrive(&mut self, node: &NodeId) {
        // An agent may have lost the type that the receiver named. The node is not proposed again then.
        let graph = self.run.graph.clone();
        let is_at = |owner: &Owner| graph.node(node).is_some_and(|node| owner.works_at(node));
        let for_agent = self.owner.as_ref().is_some_and(is_at);
        let of_run = self.node(node);
        (of_run.state, of_run.for_agent) = (NodeState::Active, for_agent);
        self.touched.insert(node.clone());
    }

    /// Makes the nodes active that wait for a handoff to the agent that a handoff for another node has brought the task to.
    pub(super) fn arrive_with(&mut self, handoff: MessageId, owner: &AgentId) {
        let graph = self.run.graph.clone();
        let Some(present) = self.owner.clone() else { return };
        let waits = |(id, state): (&NodeId, &NodeState)| match state {
            NodeState::Moving(Choice { id: choice, is_edge: true, handoff: None, .. })
                if graph.node(id).is_some_and(|node| present.works_at(node)) =>
            {
                Some((id.clone(), *choice))
            }
            NodeState::Moving(_) | NodeState::Idle | NodeState::Active | NodeState::Done => None,
        };
        let waiting: Vec<(NodeId, TurnId)> =
            self.run.nodes.iter().map(|(id, node)| (id, &node.state)).filter_map(waits).collect();
        for (node, choice) in waiting {
            self.arrive(&node);
            self.log(Event::HandoffEnded { node, choice, handoff, owner: Some(owner.clone()) });
        }
    }

    /// Makes a node active again whose handoff has failed or is given up. A node that waited for its own handoff is with the
    /// present owner: otherwise the run would propose the same handoff for ever.
    pub(super) fn take_back(&mut self, node: &NodeId) {
        let of_run = self.node(node);
        if let NodeState::Moving(Choice { is_edge: true, .. }) = &of_run.state {
            of_run.for_agent = false;
        }
        of_run.state = NodeState::Active;
        self.touched.insert(node.clone());
    }

    /// Leaves the active nodes with the owner that the task has got outside the run.
    pub(super) fn leave_with_owner(&mut self) {
        for node in self.run.active() {
            self.node(&node).for_agent = false;
            self.touched.insert(node);
        }
    }

    /// The first handoff that the run proposes for a node of another agent.
    pub(super) fn next_proposal(&self) -> Option<Proposal> {
        self.run.nodes.iter().find_map(|(node, of_run)| proposal(node, &of_run.state))
    }

    /// Writes to the agents of the nodes that have become active, and to the owner whose task a node needs elsewhere. The
    /// caller knows it from its answer.
    pub(super) fn write_letters(&mut self) {
        if self.run.state.is_final() {
            return;
        }
        for node in std::mem::take(&mut self.touched) {
            let Some(of_run) = self.run.nodes.get(&node) else { continue };
            let proposal = proposal(&node, &of_run.state);
            if of_run.state != NodeState::Active && proposal.is_none() {
                continue;
            }
            let to = match &self.owner {
                Some(owner) => Some(owner.id.clone()),
                None if self.run.task.is_some() => None,
                None => self.run.graph.node(&node).and_then(|node| node.agent.clone()),
            };
            let Some(to) = to.filter(|to| Some(to) != self.caller.as_ref() && !to.is_coordinator()) else { continue };
            let letter = NodeLetter {
                run: self.run.id,
                graph: self.run.graph.id.clone(),
                task: self.run.task.clone(),
                step: self.run.step,
                inputs: of_run.inputs.clone(),
                node,
                proposal,
            };
            let priority = Priority::default();
            self.effects.push(Effect::Deliver { to, mail: Mail::Node(letter), priority, report_to: None });
        }
    }
}

/// The handoff that a node waits for because the run has come to it.
fn proposal(node: &NodeId, state: &NodeState) -> Option<Proposal> {
    match state {
        NodeState::Moving(Choice { id, is_edge: true, handoff: None, receiver, .. }) => {
            Some(Proposal { node: node.clone(), choice: *id, receiver: receiver.clone() })
        }
        NodeState::Moving(_) | NodeState::Idle | NodeState::Active | NodeState::Done => None,
    }
}

/// The id of the proposal that the next entry of the log records: the run and the number, hashed to a UUID of version 8.
fn proposal_id(run: &Run) -> TurnId {
    let mut hash = Sha256::new();
    hash.update(run.id.0.as_bytes());
    hash.update((run.log_length + 1).to_be_bytes());
    let hash = hash.finalize();
    let mut id = [0; 16];
    id.copy_from_slice(&hash[..16]);
    (id[6], id[8]) = (id[6] & 0x0f | 0x80, id[8] & 0x3f | 0x80);
    TurnId(MessageId::from_bytes(id))
}
