//! A machine that exists in builds with debug assertions only, for tests. It shows that the engine is general: the engine does
//! not name it.
//!
//! A test uses two probes. The first sends numbers to the second in one transaction, and the second answers each. Both
//! send mail to their agent and set a deadline.

use std::sync::Arc;

use super::{
    Effect, Entity, EntityId, Input, Mail, Reader, Signal, StepError, Transition,
    handoff::{Acked, Advice, Notice, Priority},
};
use crate::{codes::ErrorCode, ids::AgentId, time::Timestamp};

/// The id of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProbeId(pub u64);

/// The state of a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// The id.
    pub id: ProbeId,
    /// The received numbers, in order.
    pub heard: Vec<u32>,
    /// The received answers, in order.
    pub answers: Vec<u32>,
    /// The number of acks of its mail.
    pub acks: u32,
    /// The time at which the probe wakes up.
    pub deadline: Option<Timestamp>,
    /// The number of times it woke up.
    pub woken: u32,
}

/// An input of a probe from another entity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProbeSignal {
    /// Send the numbers of `from..to` to `other`, notify `agent`, and wake up at `wake_at`.
    Begin {
        /// The receiver of the numbers.
        other: ProbeId,
        /// The first number.
        from: u32,
        /// The end of the numbers, exclusive.
        to: u32,
        /// The notified agent.
        agent: AgentId,
        /// The time to wake up.
        wake_at: Timestamp,
    },
    /// Receive a number, and answer it.
    Say {
        /// The number.
        number: u32,
        /// The sender, which gets the answer.
        from: ProbeId,
    },
    /// Receive an answer.
    Answer {
        /// The answered number.
        number: u32,
    },
}

pub(super) fn step(id: ProbeId, input: &Input, read: &mut dyn Reader, now: Timestamp) -> Result<Transition, StepError> {
    let fresh = Probe { id, heard: Vec::new(), answers: Vec::new(), acks: 0, deadline: None, woken: 0 };
    let mut probe = match read.entity(&EntityId::Probe(id))? {
        Some(Entity::Probe(probe)) => Probe::clone(&probe),
        Some(_) | None => fresh,
    };
    let mut effects = Vec::new();
    match input {
        Input::Signal(Signal::Probe(ProbeSignal::Begin { other, from, to, agent, wake_at })) => {
            probe.deadline = Some(*wake_at);
            effects.extend((*from..*to).map(|number| Effect::Send {
                to: EntityId::Probe(*other),
                signal: Signal::Probe(ProbeSignal::Say { number, from: id }),
            }));
            let notice = Notice {
                code: ErrorCode::HandoffRedriven,
                message: "begun".to_owned(),
                advice: Advice::None,
                is_critical: false,
            };
            effects.push(Effect::Deliver {
                to: agent.clone(),
                mail: Mail::Notice { notice, about: None, task: None },
                priority: Priority::default(),
                report_to: Some((EntityId::Probe(id), Acked::Request)),
            });
        }
        Input::Signal(Signal::Probe(ProbeSignal::Say { number, from })) => {
            probe.heard.push(*number);
            effects.push(Effect::Send {
                to: EntityId::Probe(*from),
                signal: Signal::Probe(ProbeSignal::Answer { number: *number }),
            });
        }
        Input::Signal(Signal::Probe(ProbeSignal::Answer { number })) => probe.answers.push(*number),
        Input::Acked { .. } => probe.acks += 1,
        Input::Time => {
            if probe.deadline.is_none_or(|at| now < at) {
                return Ok(Transition::default());
            }
            probe.deadline = None;
            probe.woken += 1;
        }
        Input::Handoff { .. }
        | Input::Append { .. }
        | Input::Routing(_)
        | Input::Thread(_)
        | Input::Plan(_)
        | Input::Undeliverable { .. }
        | Input::AgentGone
        | Input::Negotiation(_)
        | Input::Signal(
            Signal::Run(_) | Signal::Handoff(_) | Signal::Task(_) | Signal::Negotiation(_) | Signal::Plan(_),
        ) => {
            return Ok(Transition::default());
        }
    }
    Ok(Transition { writes: vec![Entity::Probe(Arc::new(probe))], effects })
}
