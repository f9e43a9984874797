//! The entry of a shared log, and the chain of hashes that joins the entries.
//!
//! Owns the bytes of an entry, which are the same in every engine. Must not know where they are kept.
//!
//! ```text
//! head     format 1 (u8), kind (u8), level (u16), zeros (u32), term (u64), position (u64), hash of the entry before (32 bytes)
//! payload  kind 1 takeover: a message Takeover
//!          kind 2 group: the writes of a commit, as the store encodes them
//!          kind 3 confirmation: empty
//!          kind 4 foundation: a message Foundation; only as the first entry
//! hash     HMAC-SHA-256 of head and payload; not stored: the next head has it
//! ```
//!
//! All numbers are big-endian. A changed, lost or foreign entry shows at the next one. The last entry of a log has no
//! successor yet, so a change of its payload shows once another follows.

use std::fmt;

use aws_lc_rs::hmac;
use bytes::{BufMut as _, Bytes, BytesMut};
use prost::Message as _;

/// The place of an entry in a log: 1 for the first, then without gaps. 0 is the place before the first entry.
pub type Position = u64;

/// The bytes of a head.
pub const HEAD_BYTES: usize = 56;
/// The most bytes of a takeover's payload.
pub const TAKEOVER_BYTES_MAX: usize = 4096;
/// The largest entry that this program reads, in bytes. Engines may have a lower limit.
pub const ENTRY_BYTES_MAX: usize = 64 * 1024 * 1024;

const FORMAT: u8 = 1;

/// The hash of an entry, or zeros before the first one.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Hash(pub [u8; 32]);

impl Hash {
    /// The hash before the first entry.
    pub const NONE: Self = Self([0; 32]);
}

impl fmt::Debug for Hash {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}…", hex::encode(&self.0[..4]))
    }
}

/// The key of the chain. All brokers of a cluster have the same.
#[derive(Clone)]
pub struct ChainKey(hmac::Key);

impl ChainKey {
    /// Derives the key from a secret of the cluster, for example the private key of its brokers.
    pub fn derive(secret: &[u8]) -> Self {
        let of_secret = hmac::Key::new(hmac::HMAC_SHA256, secret);
        let derived = hmac::sign(&of_secret, b"baton cluster log, chain of entries, 1");
        Self(hmac::Key::new(hmac::HMAC_SHA256, derived.as_ref()))
    }

    /// The hash of an entry.
    pub fn hash(&self, entry: &[u8]) -> Hash {
        let mut hash = [0; 32];
        hash.copy_from_slice(hmac::sign(&self.0, entry).as_ref());
        Hash(hash)
    }
}

impl fmt::Debug for ChainKey {
    /// Omits the key.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("ChainKey")
    }
}

/// The payload of a takeover: a broker leads from this entry on.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct Takeover {
    /// The cluster's id, 16 bytes.
    #[prost(bytes = "bytes", tag = "1")]
    pub cluster: Bytes,
    /// The broker's name in the cluster.
    #[prost(string, tag = "2")]
    pub broker: String,
    /// The id of the broker's process, 16 random bytes drawn at its start.
    #[prost(bytes = "bytes", tag = "3")]
    pub process: Bytes,
    /// The address at which other brokers reach it.
    #[prost(string, tag = "4")]
    pub peer_address: String,
    /// The version of its program.
    #[prost(string, tag = "5")]
    pub version: String,
    /// The ids of the cluster's keys, in a fixed order.
    #[prost(bytes = "bytes", repeated, tag = "6")]
    pub keys: Vec<Bytes>,
}

/// The payload of a foundation: the log begins behind what the store of a broker alone has. A broker with an empty store cannot
/// follow from here, and receives the checkpoint of another one.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct Foundation {
    /// The cluster's id, 16 bytes.
    #[prost(bytes = "bytes", tag = "1")]
    pub cluster: Bytes,
    /// The broker's name in the cluster.
    #[prost(string, tag = "2")]
    pub broker: String,
    /// 16 random bytes, so that no two foundations are equal.
    #[prost(bytes = "bytes", tag = "3")]
    pub id: Bytes,
    /// The version of the program.
    #[prost(string, tag = "4")]
    pub version: String,
    /// The ids of the cluster's keys, in a fixed order.
    #[prost(bytes = "bytes", repeated, tag = "5")]
    pub keys: Vec<Bytes>,
}

/// The content of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Payload {
    /// A broker leads from here on.
    Takeover(Takeover),
    /// The writes of a commit.
    Group(Bytes),
    /// Makes the entries before it durable.
    Confirmation,
    /// The log begins behind a store with content.
    Foundation(Foundation),
}

impl Payload {
    fn kind(&self) -> u8 {
        match self {
            Self::Takeover(_) => 1,
            Self::Group(_) => 2,
            Self::Confirmation => 3,
            Self::Foundation(_) => 4,
        }
    }

    fn encoded(&self) -> Bytes {
        match self {
            Self::Takeover(takeover) => takeover.encode_to_vec().into(),
            Self::Group(writes) => writes.clone(),
            Self::Confirmation => Bytes::new(),
            Self::Foundation(foundation) => foundation.encode_to_vec().into(),
        }
    }

    /// Whether it begins the next term.
    fn begins_term(&self) -> bool {
        matches!(self, Self::Takeover(_) | Self::Foundation(_))
    }
}

/// An entry that was parsed. Its place in a chain is not checked: [`Chain::follow`] does that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The format level of the program that wrote it.
    pub level: u16,
    /// The number of takeovers up to this entry.
    pub term: u64,
    /// Its place in the log.
    pub position: Position,
    /// The hash of the entry before.
    pub previous: Hash,
    /// Its content.
    pub payload: Payload,
}

/// Failed to make an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an entry of {bytes} bytes is too large: the limit is {bytes_max}")]
pub struct TooLarge {
    /// The bytes of the entry.
    pub bytes: usize,
    /// The most that are permitted.
    pub bytes_max: usize,
}

/// The reason why bytes are not the next entry of a log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EntryError {
    /// Fewer bytes than a head has.
    #[error("the entry has {bytes} bytes, fewer than its head of {HEAD_BYTES}")]
    Torn {
        /// The bytes of the entry.
        bytes: usize,
    },
    /// More bytes than any engine accepts.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    /// A format that this program does not know.
    #[error("the entry has format {format}, and this program reads format {FORMAT}")]
    Format {
        /// The format of the entry.
        format: u8,
    },
    /// A kind that this program does not know.
    #[error("the entry has the unknown kind {kind}")]
    Kind {
        /// The kind of the entry.
        kind: u8,
    },
    /// The reserved bytes of the head are not zeros.
    #[error("the reserved bytes of the entry's head are not zeros")]
    Reserved,
    /// The payload is not one of its kind.
    #[error("the payload of the entry is damaged: {0}")]
    Payload(&'static str),
    /// A newer program wrote it.
    #[error("the entry has level {level}, and this program reads up to level {known}: install a newer version")]
    Newer {
        /// The level of the entry.
        level: u16,
        /// The highest level that this program knows.
        known: u16,
    },
    /// The entry belongs elsewhere in the log.
    #[error("the entry says that it is at position {found}, and it was read at {expected}")]
    Position {
        /// The position in the head.
        found: Position,
        /// The position that follows the last entry.
        expected: Position,
    },
    /// The entry follows another one than the last known.
    #[error("the entry at {position} follows another entry than the one that is known at {}", position - 1)]
    Chain {
        /// The position of the entry.
        position: Position,
    },
    /// The entry has another term than the takeover before it, or a takeover does not begin the next term.
    #[error("the entry at {position} has term {found}, and term {expected} was expected")]
    Term {
        /// The position of the entry.
        position: Position,
        /// The term in the head.
        found: u64,
        /// The term that follows.
        expected: u64,
    },
    /// A foundation behind other entries.
    #[error("the entry at {position} is a foundation, and only the first entry of a log can be one")]
    Foundation {
        /// The position of the entry.
        position: Position,
    },
    /// The log is that of another cluster.
    #[error("the log is that of another cluster: the takeover at {position} has its id")]
    ForeignCluster {
        /// The position of the takeover.
        position: Position,
    },
    /// The leader has other keys.
    #[error("broker {broker}, which took over at {position}, has other keys: give each broker the same folder of keys")]
    ForeignKeys {
        /// The position of the takeover.
        position: Position,
        /// The name of the broker.
        broker: String,
    },
}

/// Parses an entry without its place in a chain.
pub fn parse(bytes: &Bytes) -> Result<Entry, EntryError> {
    if bytes.len() > ENTRY_BYTES_MAX {
        return Err(TooLarge { bytes: bytes.len(), bytes_max: ENTRY_BYTES_MAX }.into());
    }
    let Some((head, _)) = bytes.split_first_chunk::<HEAD_BYTES>() else {
        return Err(EntryError::Torn { bytes: bytes.len() });
    };
    let [format, kind, level_high, level_low, zeros @ ..] = head;
    if *format != FORMAT {
        return Err(EntryError::Format { format: *format });
    }
    if zeros[..4] != [0; 4] {
        return Err(EntryError::Reserved);
    }
    let number = |at: usize| head[at..at + 8].iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
    let mut previous = [0; 32];
    previous.copy_from_slice(&head[24..]);
    Ok(Entry {
        level: u16::from_be_bytes([*level_high, *level_low]),
        term: number(8),
        position: number(16),
        previous: Hash(previous),
        payload: parse_payload(*kind, bytes.slice(HEAD_BYTES..))?,
    })
}

fn parse_payload(kind: u8, payload: Bytes) -> Result<Payload, EntryError> {
    match kind {
        1 if payload.len() > TAKEOVER_BYTES_MAX => Err(EntryError::Payload("a takeover has at most 4096 bytes")),
        1 => {
            let takeover = Takeover::decode(payload).map_err(|_| EntryError::Payload("it is no takeover"))?;
            match takeover.cluster.len() == 16 && takeover.process.len() == 16 && !takeover.broker.is_empty() {
                true => Ok(Payload::Takeover(takeover)),
                false => Err(EntryError::Payload("a takeover names its cluster, broker and process")),
            }
        }
        2 => Ok(Payload::Group(payload)),
        3 if payload.is_empty() => Ok(Payload::Confirmation),
        3 => Err(EntryError::Payload("a confirmation is empty")),
        4 if payload.len() > TAKEOVER_BYTES_MAX => Err(EntryError::Payload("a foundation has at most 4096 bytes")),
        4 => {
            let foundation = Foundation::decode(payload).map_err(|_| EntryError::Payload("it is no foundation"))?;
            match foundation.cluster.len() == 16 && foundation.id.len() == 16 && !foundation.broker.is_empty() {
                true => Ok(Payload::Foundation(foundation)),
                false => Err(EntryError::Payload("a foundation names its cluster, its broker and itself")),
            }
        }
        _ => Err(EntryError::Kind { kind }),
    }
}

/// What a broker expects of the log that it reads.
#[derive(Debug, Clone)]
pub struct Expected {
    /// The key of the chain.
    pub key: ChainKey,
    /// The cluster's id.
    pub cluster: Bytes,
    /// The ids of the cluster's keys.
    pub keys: Vec<Bytes>,
    /// The highest level that this program reads, and the one that it writes.
    pub level: u16,
}

/// The end of a log as a broker knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chain {
    /// The position of the last entry.
    pub position: Position,
    /// The hash of the last entry.
    pub hash: Hash,
    /// The term of the last entry.
    pub term: u64,
    /// The level of the last takeover.
    pub level: u16,
}

impl Chain {
    /// A log without an entry.
    pub const EMPTY: Self = Self { position: 0, hash: Hash::NONE, term: 0, level: 0 };

    /// Makes the entry that follows. A takeover begins the next term.
    pub fn next(&self, payload: &Payload, expected: &Expected, bytes_max: usize) -> Result<Bytes, TooLarge> {
        let content = payload.encoded();
        let bytes = HEAD_BYTES.saturating_add(content.len());
        let bytes_max = match payload {
            Payload::Takeover(_) | Payload::Foundation(_) => bytes_max.min(HEAD_BYTES + TAKEOVER_BYTES_MAX),
            Payload::Group(_) | Payload::Confirmation => bytes_max.min(ENTRY_BYTES_MAX),
        };
        if bytes > bytes_max {
            return Err(TooLarge { bytes, bytes_max });
        }
        let mut entry = BytesMut::with_capacity(bytes);
        entry.put_u8(FORMAT);
        entry.put_u8(payload.kind());
        entry.put_u16(expected.level);
        entry.put_u32(0);
        entry.put_u64(self.term + u64::from(payload.begins_term()));
        entry.put_u64(self.position + 1);
        entry.put_slice(&self.hash.0);
        entry.put_slice(&content);
        Ok(entry.freeze())
    }

    /// Checks that an entry follows this end, and moves the end to it. On an error the end stays.
    pub fn follow(&mut self, bytes: &Bytes, expected: &Expected) -> Result<Entry, EntryError> {
        // A newer program may have kinds and payloads that this one does not know: so its level is read first.
        if let Some(level) = level_of(bytes).filter(|level| *level > expected.level) {
            return Err(EntryError::Newer { level, known: expected.level });
        }
        let entry = parse(bytes)?;
        let position = self.position + 1;
        if entry.position != position {
            return Err(EntryError::Position { found: entry.position, expected: position });
        }
        if entry.previous != self.hash {
            return Err(EntryError::Chain { position });
        }
        let term = self.term + u64::from(entry.payload.begins_term());
        // The first entry of all is a takeover, or a foundation.
        if entry.term != term || term == 0 {
            return Err(EntryError::Term { position, found: entry.term, expected: term.max(1) });
        }
        let of_broker = match &entry.payload {
            Payload::Takeover(Takeover { cluster, keys, broker, .. }) => Some((cluster, keys, broker)),
            Payload::Foundation(_) if position > 1 => return Err(EntryError::Foundation { position }),
            Payload::Foundation(Foundation { cluster, keys, broker, .. }) => Some((cluster, keys, broker)),
            Payload::Group(_) | Payload::Confirmation => None,
        };
        if let Some((cluster, keys, broker)) = of_broker {
            if *cluster != expected.cluster {
                return Err(EntryError::ForeignCluster { position });
            }
            if *keys != expected.keys {
                return Err(EntryError::ForeignKeys { position, broker: broker.clone() });
            }
            self.level = entry.level;
        }
        *self = Self { position, hash: expected.key.hash(bytes), term, level: self.level };
        Ok(entry)
    }
}

/// The level of an entry of this format.
fn level_of(bytes: &[u8]) -> Option<u16> {
    match bytes {
        [FORMAT, _, high, low, ..] => Some(u16::from_be_bytes([*high, *low])),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn expected() -> Expected {
        let keys = vec![Bytes::from_static(b"broker"), Bytes::from_static(b"coordinator")];
        Expected { key: ChainKey::derive(b"secret"), cluster: Bytes::from_static(&[7; 16]), keys, level: 3 }
    }

    fn takeover() -> Payload {
        let expected = expected();
        Payload::Takeover(Takeover {
            cluster: expected.cluster,
            broker: "b1".into(),
            process: Bytes::from_static(&[1; 16]),
            peer_address: "b1.internal:22867".into(),
            version: "0.1.0".into(),
            keys: expected.keys,
        })
    }

    /// The entries of a log with these payloads.
    fn written(payloads: &[Payload]) -> Vec<Bytes> {
        let (expected, mut chain) = (expected(), Chain::EMPTY);
        let write = |payload| {
            let entry = chain.next(payload, &expected, ENTRY_BYTES_MAX).unwrap();
            chain.follow(&entry, &expected).unwrap();
            entry
        };
        payloads.iter().map(write).collect()
    }

    fn read(entries: &[Bytes]) -> Result<Vec<Payload>, EntryError> {
        let (expected, mut chain) = (expected(), Chain::EMPTY);
        entries.iter().map(|entry| Ok(chain.follow(entry, &expected)?.payload)).collect()
    }

    fn group(text: &'static str) -> Payload {
        Payload::Group(Bytes::from_static(text.as_bytes()))
    }

    /// What reading says of a log with a takeover and two groups, once its bytes were changed.
    fn refusal(change: impl Fn(&mut Vec<Vec<u8>>)) -> EntryError {
        let mut entries: Vec<Vec<u8>> =
            written(&[takeover(), group("one"), group("two")]).iter().map(|entry| entry.to_vec()).collect();
        change(&mut entries);
        let entries: Vec<Bytes> = entries.into_iter().map(Bytes::from).collect();
        read(&entries).unwrap_err()
    }

    #[test]
    fn a_damaged_entry_is_refused_by_name() {
        assert_eq!(refusal(|log| log[1].truncate(55)), EntryError::Torn { bytes: 55 });
        assert_eq!(refusal(|log| log[1][0] = 2), EntryError::Format { format: 2 });
        assert_eq!(refusal(|log| log[1][1] = 5), EntryError::Kind { kind: 5 });
        assert_eq!(refusal(|log| log[1][7] = 1), EntryError::Reserved);
        assert_eq!(refusal(|log| log[1][1] = 3), EntryError::Payload("a confirmation is empty"));
        assert_eq!(refusal(|log| log[0][HEAD_BYTES] = 0xff), EntryError::Payload("it is no takeover"));
        assert_eq!(refusal(|log| log[1][3] = 4), EntryError::Newer { level: 4, known: 3 });
        assert_eq!(refusal(|log| log[1][15] = 9), EntryError::Term { position: 2, found: 9, expected: 1 });
        assert_eq!(refusal(|log| drop(log.remove(1))), EntryError::Position { found: 3, expected: 2 });
        assert_eq!(refusal(|log| drop(log.remove(0))), EntryError::Position { found: 2, expected: 1 });
        assert_eq!(refusal(|log| log.swap(1, 2)), EntryError::Position { found: 3, expected: 2 });
        assert_eq!(refusal(|log| log[1][HEAD_BYTES] ^= 1), EntryError::Chain { position: 3 });
        assert_eq!(refusal(|log| log[2][24] ^= 1), EntryError::Chain { position: 3 });
    }

    #[test]
    fn a_log_begins_with_a_takeover() {
        let entry = Chain::EMPTY.next(&group("one"), &expected(), ENTRY_BYTES_MAX).unwrap();
        assert_eq!(read(&[entry]), Err(EntryError::Term { position: 1, found: 0, expected: 1 }));
    }

    #[test]
    fn another_cluster_and_other_keys_are_refused() {
        let log = written(&[takeover(), group("one")]);
        let check = |expected: &Expected| {
            let mut chain = Chain::EMPTY;
            log.iter().try_for_each(|entry| chain.follow(entry, expected).map(drop))
        };
        let foreign = Expected { cluster: Bytes::from_static(&[8; 16]), ..expected() };
        assert_eq!(check(&foreign), Err(EntryError::ForeignCluster { position: 1 }));
        let foreign = Expected { keys: vec![], ..expected() };
        assert_eq!(check(&foreign), Err(EntryError::ForeignKeys { position: 1, broker: "b1".into() }));
        let foreign = Expected { key: ChainKey::derive(b"another secret"), ..expected() };
        assert_eq!(check(&foreign), Err(EntryError::Chain { position: 2 }));
        assert_eq!(check(&expected()), Ok(()));
    }

    #[test]
    fn an_entry_has_a_limit_and_a_takeover_a_lower_one() {
        let chain = Chain::EMPTY;
        let at_limit = chain.next(&group("eight by"), &expected(), HEAD_BYTES + 8);
        assert_eq!(at_limit.unwrap().len(), HEAD_BYTES + 8);
        let over = chain.next(&group("nine byte"), &expected(), HEAD_BYTES + 8);
        assert_eq!(over, Err(TooLarge { bytes: HEAD_BYTES + 9, bytes_max: HEAD_BYTES + 8 }));
        let Payload::Takeover(mut large) = takeover() else { unreachable!("it is one") };
        large.version = "1".repeat(TAKEOVER_BYTES_MAX);
        assert!(chain.next(&Payload::Takeover(large), &expected(), ENTRY_BYTES_MAX).is_err());
    }

    #[test]
    fn a_failed_check_leaves_the_end_where_it_was() {
        let log = written(&[takeover(), group("one"), group("two")]);
        let (expected, mut chain) = (expected(), Chain::EMPTY);
        chain.follow(&log[0], &expected).unwrap();
        let before = chain;
        chain.follow(&log[2], &expected).unwrap_err();
        assert_eq!(chain, before);
        chain.follow(&log[1], &expected).unwrap();
    }

    fn payloads() -> impl Strategy<Value = Vec<Payload>> {
        let group = prop::collection::vec(any::<u8>(), 0..200).prop_map(|bytes| Payload::Group(bytes.into()));
        let payload = prop_oneof![4 => group, 1 => Just(Payload::Confirmation), 1 => Just(takeover())];
        prop::collection::vec(payload, 1..12).prop_map(|mut payloads| {
            payloads.insert(0, takeover());
            payloads
        })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(payloads in payloads()) {
            prop_assert_eq!(read(&written(&payloads)), Ok(payloads));
        }

        #[test]
        fn a_flipped_bit_shows_at_the_next_entry_at_the_latest(
            payloads in payloads(), at in any::<prop::sample::Index>(), bit in any::<prop::sample::Index>(),
        ) {
            let mut log = written(&payloads);
            let at = at.index(log.len() - 1); // the last one has no successor
            let bit = bit.index(log[at].len() * 8);
            let mut changed = log[at].to_vec();
            changed[bit / 8] ^= 1 << (bit % 8);
            log[at] = changed.into();
            prop_assert!(read(&log[..at + 2]).is_err());
        }

        #[test]
        fn any_bytes_are_parsed_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let bytes = Bytes::from(bytes);
            drop(parse(&bytes));
            let mut chain = Chain::EMPTY;
            prop_assert!(chain.follow(&bytes, &expected()).is_err());
        }
    }
}
