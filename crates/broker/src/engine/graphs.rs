//! The graphs of runs: each revision that a run names is stored once, from the first such run to the removal of the last.

use super::{Engine, transaction::Transaction};
use crate::{
    BrokerError,
    domain::{EntityId, routing::Graph},
    records::{EntityRecord, GraphRevision},
};

impl Engine {
    /// Stores the revision of a graph for a run that begins, unless another run has it already.
    pub(super) fn hold_graph(
        &mut self,
        transaction: &mut Transaction,
        graph: &std::sync::Arc<Graph>,
    ) -> Result<GraphRevision, BrokerError> {
        let known = self.entity_record(transaction, &EntityId::Graph(graph.id.clone()))?;
        let Some(EntityRecord::Graph(known)) = known.as_deref() else { return Err(BrokerError::Internal) };
        let revision = GraphRevision { graph: known.sequence, revision: graph.revision };
        let stored = self.read(transaction, &revision.runs_key())?;
        let runs = stored.as_ref().map(|stored| GraphRevision::decode_runs(&stored.value)).transpose()?;
        if runs.is_none() {
            transaction.put_over(revision.key(), GraphRevision::encode(graph));
        }
        let runs = GraphRevision::encode_runs(runs.unwrap_or(0) + 1);
        transaction.put(revision.runs_key(), runs, stored.as_ref());
        self.entities.keep_graph(revision, graph);
        Ok(revision)
    }

    /// Counts a run less that names the revision. The last one takes it along.
    pub(super) fn release_graph(
        &mut self,
        transaction: &mut Transaction,
        revision: GraphRevision,
    ) -> Result<(), BrokerError> {
        let Some(stored) = self.read(transaction, &revision.runs_key())? else { return Ok(()) };
        match GraphRevision::decode_runs(&stored.value)? {
            0 | 1 => {
                transaction.delete(revision.runs_key());
                transaction.delete(revision.key());
            }
            runs => transaction.put(revision.runs_key(), GraphRevision::encode_runs(runs - 1), Some(&stored)),
        }
        Ok(())
    }
}
