//! Table timers: what happens by itself, and when. The keys say what; each kind lies together. Those of mailboxes lie by
//! time: one says that some mail there may have expired. Those of handoffs lie by handoff, since all of them are in memory;
//! the value is a time before which nothing happens to the handoff by itself, and its sender.

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

/// The timer of an open handoff: where it lies, and its value. It may be earlier than the handoff's next deadline, which is
/// looked up when it fires, and never later: so a deadline that moves away costs no write.
pub fn handoff_timer(at: Timestamp, handoff: MessageId, sender: &AgentId) -> (Key, Bytes) {
    let value = [&at.unix_nanoseconds().to_be_bytes(), sender.as_str().as_bytes()].concat();
    (handoff_timer_key(handoff), value.into())
}

/// Where the timer of a handoff lies.
pub fn handoff_timer_key(handoff: MessageId) -> Key {
    Key { table: Table::Timers, key: [&[HANDOFF], handoff.as_bytes().as_slice()].into() }
}

/// The key of a mailbox's timer: no message in it expires before that, unless the mailbox has another one that is earlier.
pub fn mail_timer_key(at: Timestamp, agent: &AgentId) -> Key {
    let at = at.unix_nanoseconds().cast_unsigned().to_be_bytes();
    Key { table: Table::Timers, key: [&[MAIL], at.as_slice(), agent.as_str().as_bytes()].into() }
}

/// All timers of handoffs.
pub fn handoff_timers() -> KeyRange {
    (Bound::Included((&[HANDOFF]).into()), Bound::Excluded((&[HANDOFF + 1]).into()))
}

/// All timers of mailboxes.
pub fn mail_timers() -> KeyRange {
    (Bound::Included((&[MAIL]).into()), Bound::Excluded((&[MAIL + 1]).into()))
}

/// The time, the handoff and its sender, from a handoff's timer.
pub fn parse_handoff_timer(key: &[u8], value: &[u8]) -> Result<((Timestamp, MessageId), AgentId), DecodeError> {
    let (reader, handoff) = split(key, HANDOFF)?;
    let (at, sender) = value.split_first_chunk().ok_or_else(|| reader.error("a value is too short"))?;
    let sender = std::str::from_utf8(sender).map_err(|_| reader.error("an agent id is not text"))?;
    Ok(((moment(i64::from_be_bytes(*at)), reader.message_id(handoff)?), reader.agent(sender)?))
}

/// The time and the agent in the key of a mailbox's timer.
pub fn parse_mail_timer(key: &[u8]) -> Result<(Timestamp, AgentId), DecodeError> {
    let (reader, rest) = split(key, MAIL)?;
    let (at, agent) = rest.split_first_chunk().ok_or_else(|| reader.error("a key is too short"))?;
    let agent = std::str::from_utf8(agent).map_err(|_| reader.error("an agent id is not text"))?;
    Ok((moment(u64::from_be_bytes(*at).cast_signed()), reader.agent(agent)?))
}

/// The rest of a key of this kind.
fn split(key: &[u8], kind: u8) -> Result<(Reader, &[u8]), DecodeError> {
    let reader = Reader("timers");
    match key.split_first() {
        Some((found, rest)) if *found == kind => Ok((reader, rest)),
        Some(_) | None => Err(reader.error("a key is of no known kind")),
    }
}
