//! Merges sources of entries: the newest entry of each key, in the order of the keys.

use std::{cmp::Reverse, collections::BinaryHeap, path::Path, sync::Arc};

use bytes::Bytes;

use super::Damage;

/// A version of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) struct Entry {
    pub(in super::super) key: Bytes,
    /// The higher seqno is the newer entry.
    pub(in super::super) seqno: u64,
    /// `None`: the key is deleted.
    pub(in super::super) value: Option<Bytes>,
    /// The file that holds the entry.
    pub(in super::super) path: Arc<Path>,
}

/// Entries in the order of their keys, newest first, with an error for each damaged place.
pub(in super::super) type Source = Box<dyn Iterator<Item = Result<Entry, Damage>>>;

/// The newest entry of each key, also where that entry deletes the key.
pub(in super::super) struct Newest {
    sources: Vec<Source>,
    /// The next entry of each source, by key and age.
    heads: BinaryHeap<Reverse<(Bytes, Reverse<u64>, usize)>>,
    next: Vec<Option<Entry>>,
    /// The sources whose next entry is not read yet.
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
                    Some(Err(damage)) => return Some(Err(damage)), // the source stays in `asked`, to be read on
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
