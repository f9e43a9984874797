//! The resources of a broker that are not settings: what it reads, counts and writes while it runs.

use std::sync::Arc;

use arc_swap::ArcSwap;

use crate::{blobs::BlobFiles, json_schema::CompiledSchemas, metrics::Metrics, policy::Policies, traces::Traces};

/// The resources that a broker shares with the rest of the program. A clone shares the same ones.
#[derive(Debug, Clone)]
pub struct Resources {
    /// The policies. They may change while the broker runs.
    pub policies: Arc<ArcSwap<Policies>>,
    /// The figures of this broker, for all its parts.
    pub metrics: Arc<Metrics>,
    /// The spans of this broker. `None`: off.
    pub traces: Option<Arc<Traces>>,
    /// The files of blobs. `None`: the broker keeps no blobs.
    pub blob_files: Option<Arc<BlobFiles>>,
    /// The compiled schemas, for all checks.
    pub schemas: Arc<CompiledSchemas>,
}

impl Resources {
    /// Resources with these policies, new figures, and neither spans nor blobs.
    pub fn new(policies: Arc<Policies>) -> Self {
        let policies = Arc::new(ArcSwap::new(policies));
        Self { policies, metrics: Arc::default(), traces: None, blob_files: None, schemas: Arc::default() }
    }
}

impl Default for Resources {
    fn default() -> Self {
        Self::new(Policies::built_in())
    }
}
