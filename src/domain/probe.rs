//! A machine that exists in tests only. It shows that the engine is general: nothing in the engine names it.
//!
//! Two probes play: one is told to say so many words to the other in one transaction, the other answers each word, and
//! either sends mail to its agent and sets a deadline.

use std::sync::Arc;

use super::{
    Effect, Entity, EntityId, Input, Mail, Reader, StepError, Told, Transition,
    handoff::{Acked, Advice, Notice, Priority},
};
use crate::{codes::ErrorCode, ids::AgentId, time::Timestamp};

/// Names a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProbeId(pub u64);

/// The state of a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// Its id.
    pub id: ProbeId,
    /// The words that it heard, in order.
    pub heard: Vec<u32>,
    /// The answers that it got, in order.
    pub answers: Vec<u32>,
    /// How often its agent acked its mail.
    pub acks: u32,
    /// When it wakes up by itself.
    pub deadline: Option<Timestamp>,
    /// How often it woke up.
    pub woken: u32,
}

/// What a probe is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Word {
    /// Say the numbers from `from` to before `to` to `other`, tell `agent`, and wake up at `wake_at`.
    Begin { other: ProbeId, from: u32, to: u32, agent: AgentId, wake_at: Timestamp },
    /// Hear a number, and answer it.
    Say { number: u32, from: ProbeId },
    /// Hear an answer.
    Answer { number: u32 },
}

pub(super) fn step(id: ProbeId, input: &Input, read: &mut dyn Reader, now: Timestamp) -> Result<Transition, StepError> {
    let fresh = Probe { id, heard: Vec::new(), answers: Vec::new(), acks: 0, deadline: None, woken: 0 };
    let mut probe = match read.entity(&EntityId::Probe(id))? {
        Some(Entity::Probe(probe)) => Probe::clone(&probe),
        Some(_) | None => fresh,
    };
    let mut effects = Vec::new();
    match input {
        Input::Told(Told::Probe(Word::Begin { other, from, to, agent, wake_at })) => {
            probe.deadline = Some(*wake_at);
            effects.extend((*from..*to).map(|number| Effect::Send {
                to: EntityId::Probe(*other),
                told: Told::Probe(Word::Say { number, from: id }),
            }));
            let notice = Notice { code: ErrorCode::HandoffRedriven, message: "begun".to_owned(), advice: Advice::None };
            effects.push(Effect::Deliver {
                to: agent.clone(),
                mail: Mail::Notice { notice, about: None, task: None },
                priority: Priority::default(),
                report_to: Some((EntityId::Probe(id), Acked::Request)),
            });
        }
        Input::Told(Told::Probe(Word::Say { number, from })) => {
            probe.heard.push(*number);
            effects
                .push(Effect::Send { to: EntityId::Probe(*from), told: Told::Probe(Word::Answer { number: *number }) });
        }
        Input::Told(Told::Probe(Word::Answer { number })) => probe.answers.push(*number),
        Input::Acked { .. } => probe.acks += 1,
        Input::Time => {
            if probe.deadline.is_none_or(|at| now < at) {
                return Ok(Transition::default());
            }
            probe.deadline = None;
            probe.woken += 1;
        }
        Input::Handoff { .. } | Input::Undeliverable { .. } | Input::AgentGone => return Ok(Transition::default()),
    }
    Ok(Transition { writes: vec![Entity::Probe(Arc::new(probe))], effects })
}
