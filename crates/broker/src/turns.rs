//! The turns of the waiting commands.
//!
//! This module owns the commands that were taken out of the queue and are not executed yet. The commands of one agent
//! stay in their order. The agents take turns, so that the heavy commands of one do not stand before those of another.
//! It must not know what a command does, or how much work fits into a batch.

use std::collections::VecDeque;

use super::{access::Caller, engine::Command, queue::Queued};
use crate::{
    domain::mailbox::ConsumerId,
    ids::{AgentId, IdMap},
};

/// The waiting commands of each agent. Those of no agent, for example of operators, have one flow for all.
#[derive(Default)]
pub(super) struct Turns {
    flows: IdMap<Option<AgentId>, VecDeque<Queued>>,
    /// The flows with commands, the one on turn first.
    order: VecDeque<Option<AgentId>>,
    /// The agent of each open consumer, for the commands that name a consumer alone.
    agents: IdMap<ConsumerId, AgentId>,
    /// A command that [waits for all](waits_for_all), and every command behind it.
    later: VecDeque<Queued>,
}

impl Turns {
    /// Adds a command behind those of the same agent.
    pub(super) fn push(&mut self, queued: Queued) {
        if !self.later.is_empty() || (waits_for_all(&queued.command) && !self.order.is_empty()) {
            self.later.push_back(queued);
        } else {
            self.put(queued);
        }
    }

    fn put(&mut self, queued: Queued) {
        let flow = self.flow_of(&queued.command);
        let waiting = self.flows.entry(flow.clone()).or_default();
        if waiting.is_empty() {
            self.order.push_back(flow);
        }
        waiting.push_back(queued);
    }

    /// Takes the first command of the flow on turn, and ends the turn.
    pub(super) fn pop(&mut self) -> Option<Queued> {
        let flow = self.order.pop_front()?;
        let waiting = self.flows.get_mut(&flow)?;
        let queued = waiting.pop_front();
        if waiting.is_empty() {
            self.flows.remove(&flow);
        } else {
            self.order.push_back(flow);
        }
        if self.order.is_empty()
            && let Some(first) = self.later.pop_front()
        {
            // The command that has waited is put first, so it is executed before the ones behind it.
            self.put(first);
            while self.later.front().is_some_and(|next| !waits_for_all(&next.command)) {
                self.later.pop_front().into_iter().for_each(|next| self.put(next));
            }
        }
        queued
    }

    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// The agent that causes a command. Also keeps the agents of consumers.
    fn flow_of(&mut self, command: &Command) -> Option<AgentId> {
        match command {
            Command::Submit { message, .. } => Some(message.envelope().header().sender.clone()),
            Command::Open { consumer, agent, .. } => {
                self.agents.insert(*consumer, agent.clone());
                Some(agent.clone())
            }
            Command::Close { consumer } => self.agents.remove(consumer),
            Command::Credit { consumer, .. } | Command::Hello { consumer, .. } => self.agents.get(consumer).cloned(),
            Command::Acknowledge { agent, .. }
            | Command::Resume { agent, .. }
            | Command::Heartbeat { agent, .. }
            | Command::BeginUpload { agent, .. }
            | Command::FinishUpload { agent, .. }
            | Command::DropUpload { agent, .. }
            | Command::KeepRefused { agent, .. } => Some(agent.clone()),
            Command::Register { caller, .. }
            | Command::Update { caller, .. }
            | Command::Deregister { caller, .. }
            | Command::Invite { caller, .. }
            | Command::ChangeKeys { caller, .. }
            | Command::CancelNegotiation { caller, .. }
            | Command::Redrive { caller, .. }
            | Command::DeleteBlob { caller, .. }
            | Command::RegisterRevision { caller, .. }
            | Command::RegisterSchema { caller, .. }
            | Command::ChangeName { caller, .. }
            | Command::Reassign { caller, .. }
            | Command::Discard { caller, .. } => match caller {
                Caller::Agent(agent) => Some(agent.clone()),
                Caller::Anonymous | Caller::Operator(_) => None,
            },
            // A watcher and its end stay in one order.
            Command::Apply { .. }
            | Command::Settle { .. }
            | Command::Processes { .. }
            | Command::Note { .. }
            | Command::Watch { .. }
            | Command::Unwatch { .. }
            | Command::GoAway => None,
        }
    }
}

/// Whether a command is executed only after every earlier command, of any agent.
fn waits_for_all(command: &Command) -> bool {
    matches!(command, Command::Settle { .. } | Command::GoAway)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::{Events, domain::dead_letter::ParkReason, engine::ConsumerKind};

    fn agent(name: &str) -> AgentId {
        AgentId::parse(name).unwrap()
    }

    fn queued(command: Command) -> Queued {
        Queued { command, permit: None }
    }

    fn refused(name: &str, text: &str) -> Queued {
        let (reason, text) = (ParkReason::Malformed, text.to_owned());
        queued(Command::KeepRefused { agent: agent(name), raw: Bytes::new(), reason, text })
    }

    /// The commands in the order in which they are taken.
    fn taken(turns: &mut Turns) -> Vec<String> {
        let text = |queued: Queued| match queued.command {
            Command::KeepRefused { text, .. } => text,
            Command::Open { .. } => "open".to_owned(),
            Command::Credit { .. } => "credit".to_owned(),
            Command::Close { .. } => "close".to_owned(),
            Command::GoAway => "go away".to_owned(),
            other => format!("{other:?}"),
        };
        std::iter::from_fn(|| turns.pop()).map(text).collect()
    }

    #[test]
    fn agents_take_turns_and_each_keeps_its_order() {
        let mut turns = Turns::default();
        for number in 0..4 {
            turns.push(refused("noisy", &format!("n{number}")));
        }
        turns.push(refused("quiet", "q0"));
        turns.push(refused("quiet", "q1"));
        assert_eq!(taken(&mut turns), ["n0", "q0", "n1", "q1", "n2", "n3"]);
        assert!(turns.is_empty() && turns.flows.is_empty());
    }

    #[test]
    fn commands_of_a_consumer_stay_in_the_order_of_its_agent() {
        let mut turns = Turns::default();
        let consumer = ConsumerId(1);
        let (events, _) = Events::channel();
        turns.push(queued(Command::Open { consumer, agent: agent("quiet"), kind: ConsumerKind::Session, events }));
        turns.push(queued(Command::Credit { consumer, outstanding_max: 1, reply: None }));
        turns.push(refused("noisy", "n"));
        turns.push(refused("quiet", "q"));
        turns.push(queued(Command::Close { consumer }));
        assert_eq!(taken(&mut turns), ["open", "n", "credit", "q", "close"]);
        assert!(turns.agents.is_empty());
    }

    #[test]
    fn a_command_that_waits_for_all_is_taken_behind_them_and_before_later_ones() {
        let mut turns = Turns::default();
        turns.push(refused("noisy", "n0"));
        turns.push(refused("noisy", "n1"));
        turns.push(queued(Command::GoAway));
        turns.push(refused("quiet", "q0"));
        turns.push(queued(Command::GoAway));
        turns.push(refused("quiet", "q1"));
        assert_eq!(taken(&mut turns), ["n0", "n1", "go away", "q0", "go away", "q1"]);
        assert!(turns.is_empty());
    }
}
