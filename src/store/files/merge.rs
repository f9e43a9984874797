//! Several sources of entries as one: of each key the newest entry, in the order of the keys.

use std::{cmp::Reverse, collections::BinaryHeap, path::Path, sync::Arc};

use bytes::Bytes;

use super::Damage;

/// A key, and what it was set to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) struct Entry {
    pub(in super::super) key: Bytes,
    /// The higher, the newer.
    pub(in super::super) seqno: u64,
    /// `None`: the key is deleted.
    pub(in super::super) value: Option<Bytes>,
    /// The file it is in.
    pub(in super::super) path: Arc<Path>,
}

/// Entries in the order of their keys, newest first, and the places where there were some.
pub(in super::super) type Source = Box<dyn Iterator<Item = Result<Entry, Damage>>>;

/// The newest entry of each key, also if it says that the key is deleted.
pub(in super::super) struct Newest {
    sources: Vec<Source>,
    /// The next entry of each source, by key and age.
    heads: BinaryHeap<Reverse<(Bytes, Reverse<u64>, usize)>>,
    next: Vec<Option<Entry>>,
    /// Sources that are to be asked for their next entry.
    asked: Vec<usize>,
    last: Option<Bytes>,
}

impl Newest {
    pub(in super::super) fn of(sources: Vec<Source>) -> Self {
        let asked = (0..sources.len()).collect();
        let next = sources.iter().map(|_| None).collect();
        Self { sources, heads: BinaryHeap::new(), next, asked, last: None }
    }
}

impl Iterator for Newest {
    type Item = Result<Entry, Damage>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            while let Some(&source) = self.asked.last() {
                match self.sources[source].next() {
                    Some(Err(damage)) => return Some(Err(damage)), // and ask it again
                    Some(Ok(entry)) => {
                        self.heads.push(Reverse((entry.key.clone(), Reverse(entry.seqno), source)));
                        self.next[source] = Some(entry);
                    }
                    None => {}
                }
                self.asked.pop();
            }
            let Reverse((key, _, source)) = self.heads.pop()?;
            self.asked.push(source);
            let entry = self.next[source].take().expect("every head has its entry");
            if self.last.as_ref() != Some(&key) {
                self.last = Some(key);
                return Some(Ok(entry));
            }
        }
    }
}
