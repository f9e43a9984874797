//! The negotiation machine behind the common interface of [`crate::step`].

use std::sync::Arc;

use super::{Effect, Input, Mandate, Negotiation, Surroundings, Transition, WaitingMail, step};
use crate::{
    Answered, Entity, EntityId, Mail, ReadError, Reader, Signal, StepError,
    handoff::{Acked, Priority},
    ids::{AgentId, MessageId},
    time::Timestamp,
};

/// The reader of a step as the surroundings of the machine.
struct Read<'a>(&'a mut dyn Reader);

impl Surroundings for Read<'_> {
    fn waiting_mail(&mut self, negotiation: MessageId, agent: &AgentId) -> Result<WaitingMail, ReadError> {
        self.0.waiting_mail(negotiation, agent)
    }

    fn load(&mut self, agent: &AgentId) -> u32 {
        self.0.load(agent)
    }

    fn is_gone(&mut self, agent: &AgentId) -> bool {
        self.0.is_gone(agent)
    }

    fn may_hand_off(&mut self, from: &AgentId, to: &AgentId, mandate: Option<&Mandate>) -> bool {
        self.0.may_hand_off(from, to, mandate)
    }
}

/// Applies one input to a negotiation. An event about an unknown negotiation changes nothing; a message about it is
/// rejected.
pub(crate) fn step_entity(
    id: MessageId,
    input: &crate::Input,
    read: &mut dyn Reader,
    now: Timestamp,
) -> Result<crate::Transition, StepError> {
    let before = match read.entity(&EntityId::Negotiation(id))? {
        Some(Entity::Negotiation(before)) => Some(before),
        Some(_) | None => None,
    };
    let around = &mut Read(read);
    let made = match (input, before.as_deref()) {
        (crate::Input::Negotiation(input), before) => Some(step::step(before, input, around, now)?),
        (crate::Input::Time, Some(before)) => step::pass_time(before, around, now)?,
        (crate::Input::Undeliverable { to, .. }, Some(before)) => step::give_up(before, to, around, now)?,
        (crate::Input::Signal(Signal::Negotiation(signal)), Some(before)) => {
            step::on_signal(before, signal, around, now)?
        }
        // An ack of the request is no answer to it.
        (crate::Input::Acked { .. } | crate::Input::AgentGone, _) => None,
        (
            crate::Input::Handoff { .. }
            | crate::Input::Append { .. }
            | crate::Input::Routing(_)
            | crate::Input::Thread(_)
            | crate::Input::Plan(_)
            | crate::Input::Signal(_),
            _,
        )
        | (crate::Input::Time | crate::Input::Undeliverable { .. }, None) => None,
    };
    // Only the first step has the request itself as its message.
    let request = match &before {
        None => Mail::ThisMessage,
        Some(_) => Mail::Opening { entity: EntityId::Negotiation(id), expires: true },
    };
    let mut moved = made.map(|made| of_entities(made, &request)).unwrap_or_default();
    moved.effects.extend(settled(id, before.as_deref(), input));
    Ok(moved)
}

/// An agent that offers or declines has read the request for offers.
fn settled(id: MessageId, before: Option<&Negotiation>, input: &crate::Input) -> Option<crate::Effect> {
    let crate::Input::Negotiation(Input::Offer { from, .. } | Input::Decline { from, .. }) = input else {
        return None;
    };
    let is_bidder = before.is_some_and(|before| before.requester != *from);
    // A counter-offer is an offer too, but its sender, the requester, has no request in its mailbox.
    is_bidder.then(|| crate::Effect::Settle { of: from.clone(), answered: Answered::Message(id) })
}

fn of_entities(made: Transition, request: &Mail) -> crate::Transition {
    let Transition { negotiation, effects } = made;
    let effects = effects.into_iter().map(|effect| effect_on(effect, &negotiation, request)).collect();
    crate::Transition { writes: vec![Entity::Negotiation(Arc::new(negotiation))], effects }
}

fn effect_on(effect: Effect, negotiation: &Negotiation, request: &Mail) -> crate::Effect {
    let id = EntityId::Negotiation(negotiation.id);
    let priority = negotiation.mandate.as_ref().map_or(Priority::default(), |mandate| mandate.priority);
    let deliver = |to, mail, report_to| crate::Effect::Deliver { to, mail, priority, report_to };
    match effect {
        Effect::Ask(to) => deliver(to, request.clone(), Some((id, Acked::Request))),
        Effect::Forward(to) => deliver(to, Mail::ThisMessage, None),
        Effect::Tell { to, closed } => deliver(to, Mail::Closed(closed), None),
        Effect::Notify(notice) => {
            let about = Some(negotiation.id);
            let mail = Mail::Notice { notice, about, task: negotiation.task.clone() };
            deliver(negotiation.requester.clone(), mail, None)
        }
        Effect::Withdraw(from) => crate::Effect::Withdraw { entity: id, from },
        Effect::Open(award) => {
            crate::Effect::Send { to: EntityId::Handoff(award.negotiation), signal: Signal::Handoff(award) }
        }
    }
}
