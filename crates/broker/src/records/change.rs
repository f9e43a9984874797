//! The list of changes, in table listings: the ended handoffs by their ends, and the tasks by their latest updates. The
//! end of a handoff is an update of its task, and one entry is that of both. The beginning of one is an update, too: that
//! of the task is its entry among the open handoffs then.

use bytes::Bytes;

use super::{DecodeError, Reader};
use crate::ids::{MessageId, TaskId};

/// An entry of the list of changes. It is that of the task's latest update only if the task has the same number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangePlace {
    /// The task that changed.
    pub task: TaskId,
    /// The handoff of the task that ended. `None`: none did.
    pub ended: Option<MessageId>,
}

impl ChangePlace {
    /// Encodes the value of the entry: the task's id, and for an end a zero byte and the handoff's id, 16 bytes.
    pub fn encode(&self) -> Bytes {
        let task = self.task.as_str().as_bytes();
        match &self.ended {
            Some(handoff) => [task, &[0], &handoff.as_bytes()[..]].concat().into(),
            None => Bytes::copy_from_slice(task),
        }
    }

    /// Decodes the value of an entry.
    pub fn decode(value: &[u8]) -> Result<Self, DecodeError> {
        let reader = Reader("listings");
        // No id of a task has a zero byte.
        let mut parts = value.splitn(2, |byte| *byte == 0);
        let task = std::str::from_utf8(parts.next().unwrap_or_default());
        let task = reader.task(task.map_err(|error| reader.error(error.to_string()))?)?;
        Ok(Self { task, ended: parts.next().map(|id| reader.message_id(id)).transpose()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_comes_back() {
        let task = TaskId::parse("t-1").unwrap();
        for ended in [None, Some(MessageId::from_bytes([0; 16])), Some(MessageId::from_bytes([7; 16]))] {
            let place = ChangePlace { task: task.clone(), ended };
            assert_eq!(ChangePlace::decode(&place.encode()), Ok(place));
        }
        for bad in [&b""[..], b"\0", b"t-1\0", b"t-1\0short", b"\xff"] {
            assert!(ChangePlace::decode(bad).is_err(), "{bad:?}");
        }
    }
}
