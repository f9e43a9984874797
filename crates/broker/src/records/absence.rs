//! The absences of owners, in table listings: an agent that is gone and owns tasks, from the notices about its tasks
//! until its next sign of life.

use bytes::Bytes;

use super::{DecodeError, List, Reader, number_of};
use crate::{ids::AgentId, store::Key};

/// An absence as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AbsenceRecord {
    /// The number of the absence, which no other absence has.
    pub number: u64,
    /// The agent that is gone.
    pub agent: AgentId,
    /// Whether the notices about all tasks that the agent owned at the beginning are stored.
    pub is_told: bool,
}

impl AbsenceRecord {
    /// The key of the record.
    pub fn key(&self) -> Key {
        List::of_absences().place(self.number)
    }

    /// Encodes the record.
    pub fn encode(&self) -> Bytes {
        [&[u8::from(self.is_told)], self.agent.as_str().as_bytes()].concat().into()
    }

    /// Decodes the record.
    pub fn decode(key: &[u8], value: &[u8]) -> Result<Self, DecodeError> {
        let reader = Reader("listings");
        let (is_told, agent) = value.split_first().ok_or_else(|| reader.error("a value is empty"))?;
        let agent = std::str::from_utf8(agent).map_err(|error| reader.error(error.to_string()))?;
        let is_told = reader.some(
            match is_told {
                0 => Some(false),
                1 => Some(true),
                _ => None,
            },
            "the state of an absence",
        )?;
        Ok(Self { number: number_of(&reader, key)?, agent: reader.agent(agent)?, is_told })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absence_reads_as_it_was_written_and_a_damaged_one_is_refused() {
        for is_told in [false, true] {
            let record = AbsenceRecord { number: 7, agent: AgentId::parse("bob").unwrap(), is_told };
            let key = record.key();
            assert_eq!(AbsenceRecord::decode(&key.key, &record.encode()), Ok(record));
            for damaged in [&b""[..], b"\x02bob", b"\x01", b"\x01\xff"] {
                assert!(AbsenceRecord::decode(&key.key, damaged).is_err());
            }
        }
    }
}
