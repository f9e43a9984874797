//! The key of a record: a table, and bytes in it.

use std::{fmt, ops::Deref};

use smallvec::SmallVec;

use super::Table;

/// The key of a record.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The table that holds the record.
    pub table: Table,
    /// The key within the table, at most 64 KiB.
    pub key: KeyBytes,
}

/// A map of keys. The hash is fast, and seeded at random because agents choose ids.
pub type KeyMap<V> = std::collections::HashMap<Key, V, foldhash::quality::RandomState>;

/// The bytes that a key holds without heap memory: enough for a table's keys when ids are UUIDs.
const INLINE: usize = 56;

/// The bytes of a key. Maps copy and compare keys very often, so short keys are stored inline.
#[derive(PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct KeyBytes(SmallVec<[u8; INLINE]>);

impl Clone for KeyBytes {
    fn clone(&self) -> Self {
        Self::from(&**self)
    }
}

impl Deref for KeyBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for KeyBytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for KeyBytes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "b\"{}\"", self.escape_ascii())
    }
}

impl From<&[u8]> for KeyBytes {
    fn from(bytes: &[u8]) -> Self {
        Self(SmallVec::from_slice(bytes))
    }
}

impl<const N: usize> From<&[u8; N]> for KeyBytes {
    fn from(bytes: &[u8; N]) -> Self {
        Self::from(bytes.as_slice())
    }
}

impl From<&str> for KeyBytes {
    fn from(text: &str) -> Self {
        Self::from(text.as_bytes())
    }
}

impl<const N: usize> From<[&[u8]; N]> for KeyBytes {
    /// Concatenates the parts.
    fn from(parts: [&[u8]; N]) -> Self {
        let mut bytes = SmallVec::new();
        parts.iter().for_each(|part| bytes.extend_from_slice(part));
        Self(bytes)
    }
}
