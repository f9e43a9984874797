//! The stored form of the test machine.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use super::{DecodeError, LogClock, Reader, by_name};
use crate::{
    domain::probe::{Probe, ProbeId, ProbeSignal},
    ids::AgentId,
    store::{Key, Table},
    time::Timestamp,
};

/// A probe as stored.
#[derive(Debug, Clone, PartialEq)]
pub struct ProbeRecord {
    pub probe: Arc<Probe>,
    pub log_clock: LogClock,
}

fn text(numbers: &[u32]) -> String {
    numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

fn numbers(text: &str) -> Option<Vec<u32>> {
    text.split(',').filter(|text| !text.is_empty()).map(|number| number.parse().ok()).collect()
}

impl ProbeRecord {
    pub fn key(id: ProbeId) -> Key {
        by_name(Table::Meta, &format!("probe/{}", id.0))
    }

    pub fn encode(&self) -> Bytes {
        let Probe { id, heard, answers, acks, deadline, woken } = &*self.probe;
        let deadline = deadline.map(|at| at.unix_nanoseconds().to_string()).unwrap_or_default();
        let log_clock = (self.log_clock.logged_at.unix_nanoseconds(), self.log_clock.set_back.as_nanos());
        let (heard, answers) = (text(heard), text(answers));
        format!("{};{heard};{answers};{acks};{deadline};{woken};{};{}", id.0, log_clock.0, log_clock.1).into()
    }

    pub fn decode(value: &Bytes) -> Result<Self, DecodeError> {
        let parse = || -> Option<Self> {
            let text = std::str::from_utf8(value).ok()?;
            let parts: Vec<&str> = text.split(';').collect();
            let [id, heard, answers, acks, deadline, woken, logged_at, set_back] = parts[..] else { return None };
            let deadline = match deadline {
                "" => None,
                at => Some(Timestamp::from_unix_nanoseconds(at.parse().ok()?)),
            };
            let probe = Probe {
                id: ProbeId(id.parse().ok()?),
                heard: numbers(heard)?,
                answers: numbers(answers)?,
                acks: acks.parse().ok()?,
                deadline,
                woken: woken.parse().ok()?,
            };
            let logged_at = Timestamp::from_unix_nanoseconds(logged_at.parse().ok()?);
            let log_clock = LogClock { logged_at, set_back: Duration::from_nanos(set_back.parse().ok()?) };
            Some(Self { probe: Arc::new(probe), log_clock })
        };
        parse().ok_or_else(|| Reader("probes").error("not a probe"))
    }
}

pub(super) fn encode_signal(signal: &ProbeSignal) -> Vec<u8> {
    match signal {
        ProbeSignal::Begin { other, from, to, agent, wake_at } => {
            format!("begin {} {from} {to} {agent} {}", other.0, wake_at.unix_nanoseconds())
        }
        ProbeSignal::Say { number, from } => format!("say {number} {}", from.0),
        ProbeSignal::Answer { number } => format!("answer {number}"),
    }
    .into_bytes()
}

pub(super) fn decode_signal(bytes: &[u8]) -> Option<ProbeSignal> {
    let parts: Vec<&str> = std::str::from_utf8(bytes).ok()?.split(' ').collect();
    Some(match parts[..] {
        ["begin", other, from, to, agent, wake_at] => ProbeSignal::Begin {
            other: ProbeId(other.parse().ok()?),
            from: from.parse().ok()?,
            to: to.parse().ok()?,
            agent: AgentId::parse(agent).ok()?,
            wake_at: Timestamp::from_unix_nanoseconds(wake_at.parse().ok()?),
        },
        ["say", number, from] => ProbeSignal::Say { number: number.parse().ok()?, from: ProbeId(from.parse().ok()?) },
        ["answer", number] => ProbeSignal::Answer { number: number.parse().ok()? },
        _ => return None,
    })
}
