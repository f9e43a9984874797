//! Table timers: the deadlines of mailboxes and entities, sorted by kind. A mailbox's key has its time: some mail there
//! may expire then. An entity's key has the entity, because memory holds all timers of entities. Its value is a time
//! that is not after the entity's next deadline, the bytes of the entity, and the agent whose limits it counts against. A handoff has a
//! timer as long as it is open, so the timers of handoffs are the list of open handoffs: their keys have the sequence.

use std::ops::Bound;

use bytes::Bytes;

use super::{
    DecodeError, EntityRecord, HandoffPlace, HandoffRecord, List, Reader, decode_entity_id, encode_entity_id, moment,
    number_of,
};
use crate::{
    domain::EntityId,
    ids::AgentId,
    store::{Key, KeyRange, Table},
    time::Timestamp,
};

const ENTITY: u8 = 1;
const OPEN_HANDOFF: u8 = 2;
const MAIL: u8 = 3;

impl List {
    /// The open handoffs, by sequence. A value is a [`HandoffPlace`] with the timer of the handoff.
    pub fn open_handoffs() -> Self {
        Self { table: Table::Timers, prefix: (&[OPEN_HANDOFF]).into() }
    }

    /// The place in an entry of any list of handoffs but that of changes, from its number and its value.
    pub fn handoff_place(&self, number: u64, value: &[u8]) -> Result<HandoffPlace, DecodeError> {
        match self.table {
            Table::Timers => Ok(split_open_handoff(number, value)?.0),
            _ => HandoffPlace::decode(number, value),
        }
    }
}

/// Splits the value of an open handoff's entry into its place and its timer.
fn split_open_handoff(sequence: u64, value: &[u8]) -> Result<(HandoffPlace, &[u8]), DecodeError> {
    let reader = Reader("timers");
    // The id of the handoff is 16 bytes of any value; the id of the task behind it has no zero byte.
    let task = value.get(16..).unwrap_or_default();
    let length = task.iter().position(|byte| *byte == 0).ok_or_else(|| reader.error("a value has no timer"))?;
    let (place, timer) = value.split_at(16 + length);
    Ok((HandoffPlace::decode(sequence, place)?, &timer[1..]))
}

/// The key and value of an entity's timer. The time may be before the entity's next deadline, which is read when the
/// timer fires, but never after it: so a deadline that moves away costs no write.
pub fn entity_timer(
    at: Timestamp,
    entity: &EntityRecord,
    (counts_for, bytes): (Option<&AgentId>, u32),
) -> (Key, Bytes) {
    let agent = counts_for.map_or("", AgentId::as_str);
    let timer = [&at.unix_nanoseconds().to_be_bytes()[..], &bytes.to_be_bytes(), agent.as_bytes()].concat();
    let value = match entity.as_handoff() {
        Some(handoff) => [&handoff.place().encode()[..], &[0], &timer].concat(),
        None => timer,
    };
    (entity_timer_key(entity), value.into())
}

/// The key of an entity's timer.
pub fn entity_timer_key(entity: &EntityRecord) -> Key {
    match entity {
        EntityRecord::Handoff(HandoffRecord { sequence, .. }) => List::open_handoffs().place(*sequence),
        other => {
            let id = encode_entity_id(&other.entity().id());
            Key { table: Table::Timers, key: [&[ENTITY], id.as_slice()].into() }
        }
    }
}

/// The key of a mailbox's timer. No message in the mailbox expires before this time, unless the mailbox has an earlier
/// timer.
pub fn mail_timer_key(at: Timestamp, agent: &AgentId) -> Key {
    let at = at.unix_nanoseconds().cast_unsigned().to_be_bytes();
    Key { table: Table::Timers, key: [&[MAIL], at.as_slice(), agent.as_str().as_bytes()].into() }
}

/// The range of all timers of entities.
pub fn entity_timers() -> KeyRange {
    (Bound::Included((&[ENTITY]).into()), Bound::Excluded((&[OPEN_HANDOFF + 1]).into()))
}

/// The range of all timers of mailboxes.
pub fn mail_timers() -> KeyRange {
    (Bound::Included((&[MAIL]).into()), Bound::Excluded((&[MAIL + 1]).into()))
}

/// An entity's timer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntityTimer {
    /// A running time that is not after the entity's next deadline.
    pub at: Timestamp,
    /// The entity.
    pub entity: EntityId,
    /// The agent whose limits the entity counts against.
    pub counts_for: Option<AgentId>,
    /// The bytes that the entity counts.
    pub bytes: u32,
}

/// Parses an entity's timer.
pub fn parse_entity_timer(key: &[u8], value: &[u8]) -> Result<EntityTimer, DecodeError> {
    let reader = Reader("timers");
    let (entity, timer) = if key.first() == Some(&OPEN_HANDOFF) {
        let (place, timer) = split_open_handoff(number_of(&reader, key)?, value)?;
        (EntityId::Handoff(place.handoff), timer)
    } else {
        (decode_entity_id(Table::Timers, split(key, ENTITY)?.1)?, value)
    };
    let short = || reader.error("a value is too short");
    let (at, rest) = timer.split_first_chunk().ok_or_else(short)?;
    let (bytes, agent) = rest.split_first_chunk().ok_or_else(short)?;
    let agent = std::str::from_utf8(agent).map_err(|_| reader.error("an agent id is not text"))?;
    // No agent id is empty, so an empty one means that the entity counts against no limit.
    let counts_for = if agent.is_empty() { None } else { Some(reader.agent(agent)?) };
    Ok(EntityTimer { at: moment(i64::from_be_bytes(*at)), entity, counts_for, bytes: u32::from_be_bytes(*bytes) })
}

/// Parses the key of a mailbox's timer to the time and the agent.
pub fn parse_mail_timer(key: &[u8]) -> Result<(Timestamp, AgentId), DecodeError> {
    let (reader, rest) = split(key, MAIL)?;
    let (at, agent) = rest.split_first_chunk().ok_or_else(|| reader.error("a key is too short"))?;
    let agent = std::str::from_utf8(agent).map_err(|_| reader.error("an agent id is not text"))?;
    Ok((moment(u64::from_be_bytes(*at).cast_signed()), reader.agent(agent)?))
}

/// The part of a key after the kind. Fails if the key is of another kind.
fn split(key: &[u8], kind: u8) -> Result<(Reader, &[u8]), DecodeError> {
    let reader = Reader("timers");
    match key.split_first() {
        Some((found, rest)) if *found == kind => Ok((reader, rest)),
        Some(_) | None => Err(reader.error("a key is of no known kind")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{MessageId, TaskId};

    #[test]
    fn the_timer_of_an_open_handoff_is_behind_its_place_and_no_other_place_has_one() {
        let place =
            HandoffPlace { sequence: 7, handoff: MessageId::from_bytes([0; 16]), task: TaskId::parse("t-1").unwrap() };
        let list = List::open_handoffs();
        let timer = [&moment(9).unix_nanoseconds().to_be_bytes()[..], &7_u32.to_be_bytes(), b"a"].concat();
        let value = [&place.encode()[..], &[0], &timer].concat();
        let counts_for = Some(AgentId::parse("a").unwrap());
        let parsed = EntityTimer { at: moment(9), entity: EntityId::Handoff(place.handoff), counts_for, bytes: 7 };
        assert_eq!(parse_entity_timer(&list.key(7), &value), Ok(parsed));
        assert_eq!(list.handoff_place(7, &value), Ok(place.clone()));
        assert_eq!(HandoffPlace::decode(7, &place.encode()), Ok(place.clone()));
        assert!(HandoffPlace::decode(7, &value).is_err(), "a place of another list ends with the task");
        for bad in [&b""[..], &place.encode(), &value[..24], &value[..value.len() - 2]] {
            assert!(parse_entity_timer(&list.key(7), bad).is_err(), "{bad:?}");
        }
    }
}
