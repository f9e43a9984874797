//! Handoffs as they were decoded or written last: each is looked at again soon, by the next message about it.
//!
//! Owns nothing that counts. What is stored is asked first, always; this only saves decoding bytes that were decoded before.

use bytes::Bytes;
use quick_cache::unsync::Cache;

use crate::{
    ids::MessageId,
    records::{DecodeError, HandoffRecord},
};

/// Each takes a few KiB.
const HANDOFFS_MAX: usize = 2048;

/// Handoffs, each with the very bytes that it was decoded from.
pub(super) struct Decoded(Cache<MessageId, (Bytes, HandoffRecord)>);

impl Default for Decoded {
    fn default() -> Self {
        Self(Cache::new(HANDOFFS_MAX))
    }
}

impl Decoded {
    /// Takes in what was decoded from these bytes, or encoded into them.
    pub(super) fn put(&mut self, value: Bytes, record: HandoffRecord) {
        self.0.insert(record.handoff.id, (value, record));
    }

    /// What [`HandoffRecord::decode`] says of these bytes.
    pub(super) fn decode(&mut self, id: MessageId, value: &Bytes) -> Result<HandoffRecord, DecodeError> {
        // Bytes that are held here are nobody else's: the same place has the same content.
        if let Some((_, known)) = self.0.get(&id).filter(|(known, _)| is_same(known, value)) {
            return Ok(known.clone());
        }
        let record = HandoffRecord::decode(value)?;
        self.put(value.clone(), record.clone());
        Ok(record)
    }
}

fn is_same(one: &Bytes, other: &Bytes) -> bool {
    std::ptr::eq(one.as_ptr(), other.as_ptr()) && one.len() == other.len()
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;
    use crate::proto::storage;

    #[test]
    fn only_the_very_bytes_are_not_decoded_again() {
        let id = MessageId::parse("01a1fd0c-5acd-7000-8000-000000000001").unwrap();
        let stored = |epoch| -> Bytes {
            let record = storage::HandoffRecord {
                handoff_id: id.as_bytes().to_vec().into(),
                task_id: "task".to_owned(),
                sender_id: "a".to_owned(),
                candidate_id: "b".to_owned(),
                epoch,
                state: 1,
                mode: 1,
                priority: 1,
                timeouts: vec![1; 4],
                request_message_id: id.as_bytes().to_vec().into(),
                ..Default::default()
            };
            record.encode_to_vec().into()
        };
        let (value, mut decoded) = (stored(1), Decoded::default());
        let record = decoded.decode(id, &value).unwrap();
        assert_eq!((record.handoff.epoch, &decoded.decode(id, &value).unwrap()), (1, &record));
        assert_eq!(decoded.decode(id, &stored(2)).unwrap().handoff.epoch, 2, "another version, just as long");
        assert_eq!(decoded.decode(id, &value).unwrap().handoff.epoch, 1);
        assert!(decoded.decode(id, &value.slice(1..)).is_err(), "bytes that are no record");
    }
}
