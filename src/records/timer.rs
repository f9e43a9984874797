//! Table timers: what happens by itself, and when. The keys say what; each kind lies together, first by time. The value
//! of a handoff's timer is its sender.

use std::ops::Bound;

use bytes::Bytes;

use super::{DecodeError, Reader, moment};
use crate::{
    ids::{AgentId, MessageId},
    store::{Key, KeyRange, Table},
    time::Timestamp,
};

const HANDOFF: u8 = 1;
const MAIL: u8 = 2;

/// The end of a message's time in a mailbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MailTimer {
    /// When.
    pub at: Timestamp,
    /// The message's place in the mailbox.
    pub place: u64,
    /// Whose mailbox.
    pub agent: AgentId,
}

/// The key of a handoff's timer.
pub fn handoff_timer_key(at: Timestamp, handoff: MessageId) -> Key {
    key(HANDOFF, at, &[handoff.as_bytes()])
}

/// The key of the end of a message's time.
pub fn mail_timer_key(at: Timestamp, agent: &AgentId, place: u64) -> Key {
    key(MAIL, at, &[&place.to_be_bytes(), agent.as_str().as_bytes()])
}

/// All timers of handoffs.
pub fn handoff_timers() -> KeyRange {
    (Bound::Included(Bytes::from_static(&[HANDOFF])), Bound::Excluded(Bytes::from_static(&[HANDOFF + 1])))
}

/// All timers of mail.
pub fn mail_timers() -> KeyRange {
    (Bound::Included(Bytes::from_static(&[MAIL])), Bound::Excluded(Bytes::from_static(&[MAIL + 1])))
}

/// The time and the handoff in a key; and whose handoff it is, from the value.
pub fn parse_handoff_timer(key: &[u8], value: &[u8]) -> Result<((Timestamp, MessageId), AgentId), DecodeError> {
    let (reader, at, rest) = split(key, HANDOFF)?;
    let sender = std::str::from_utf8(value).map_err(|_| reader.error("an agent id is not text"))?;
    Ok(((at, reader.message_id(rest)?), reader.agent(sender)?))
}

/// What is in the key of a message's timer.
pub fn parse_mail_timer(key: &[u8]) -> Result<MailTimer, DecodeError> {
    let (reader, at, rest) = split(key, MAIL)?;
    let (place, agent) = rest.split_first_chunk().ok_or_else(|| reader.error("a key is too short"))?;
    let agent = std::str::from_utf8(agent).map_err(|_| reader.error("an agent id is not text"))?;
    Ok(MailTimer { at, place: u64::from_be_bytes(*place), agent: reader.agent(agent)? })
}

fn key(kind: u8, at: Timestamp, rest: &[&[u8]]) -> Key {
    let mut key = vec![kind];
    key.extend_from_slice(&at.unix_nanoseconds().cast_unsigned().to_be_bytes());
    rest.iter().for_each(|part| key.extend_from_slice(part));
    Key { table: Table::Timers, key: key.into() }
}

fn split(key: &[u8], kind: u8) -> Result<(Reader, Timestamp, &[u8]), DecodeError> {
    let reader = Reader("timers");
    match key.split_first() {
        Some((found, rest)) if *found == kind => {
            let (at, rest) = rest.split_first_chunk().ok_or_else(|| reader.error("a key is too short"))?;
            Ok((reader, moment(u64::from_be_bytes(*at).cast_signed()), rest))
        }
        Some(_) | None => Err(reader.error("a key is of no known kind")),
    }
}
