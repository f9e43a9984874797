//! The revisions of graphs that runs name, each once (table graph_revisions), and the number of runs that name them.
//!
//! The key begins with the place of the graph in lists, which no other graph ever has, and the revision: so a run keeps its
//! graph when the graph gets a further revision, or is removed and registered again with another content.

use std::sync::Arc;

use bytes::Bytes;
use prost::Message as _;

use super::{
    DecodeError, Reader,
    routing::{graph_from_v1, graph_to_v1},
};
use crate::{
    domain::routing::Graph,
    store::{Key, Table},
};

/// The bytes of a key of a content. The key of a number of runs has one more.
const KEY_BYTES: usize = 16;

/// The place of a revision of a graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GraphRevision {
    /// The sequence of the graph's first registration.
    pub graph: u64,
    /// The revision, from 1 on.
    pub revision: u64,
}

impl GraphRevision {
    /// The key of the content.
    pub fn key(self) -> Key {
        let key = [self.graph.to_be_bytes(), self.revision.to_be_bytes()].concat();
        Key { table: Table::GraphRevisions, key: key[..].into() }
    }

    /// The key of the number of runs.
    pub fn runs_key(self) -> Key {
        let key = [&self.graph.to_be_bytes()[..], &self.revision.to_be_bytes(), &[1]].concat();
        Key { table: Table::GraphRevisions, key: key[..].into() }
    }

    /// Encodes the content: a `baton.v1.Graph`.
    pub fn encode(graph: &Graph) -> Bytes {
        graph_to_v1(graph).encode_to_vec().into()
    }

    /// Decodes the content.
    pub fn decode(value: &Bytes) -> Result<Arc<Graph>, DecodeError> {
        graph_from_v1(&Reader("graph_revisions"), value).map(Arc::new)
    }

    /// Encodes the number of runs that name the revision.
    pub fn encode_runs(runs: u64) -> Bytes {
        Bytes::copy_from_slice(&runs.to_be_bytes())
    }

    /// Decodes the number of runs that name the revision.
    pub fn decode_runs(value: &Bytes) -> Result<u64, DecodeError> {
        let reader = Reader("graph_revisions");
        let bytes = value[..].try_into().map_err(|_| reader.error("a number of runs has not 8 bytes"))?;
        Ok(u64::from_be_bytes(bytes))
    }
}

/// Checks that a row decodes.
pub(super) fn check(key: &[u8], value: &Bytes) -> Result<(), DecodeError> {
    match key.len() {
        KEY_BYTES => GraphRevision::decode(value).map(drop),
        _ => GraphRevision::decode_runs(value).map(drop),
    }
}
