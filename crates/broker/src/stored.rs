//! Reading stored entities beside the pipeline.

use super::BrokerError;
use crate::{domain::EntityId, records::EntityRecord, store::Store};

/// The stored record of an entity: that in its container, or its own.
pub(super) fn entity(store: &dyn Store, id: &EntityId) -> Result<Option<EntityRecord>, BrokerError> {
    let named = EntityRecord::container_key(id).map(|key| store.get(&key)).transpose()?.flatten();
    let container = named.map(|stored| EntityRecord::container_named_in(&stored.value)).transpose()?.flatten();
    match container {
        Some(container) => entity_in(store, id, &container),
        None => own(store, id),
    }
}

/// Like [`entity`], for an entity whose container can only be this one.
pub(super) fn entity_in(
    store: &dyn Store,
    id: &EntityId,
    container: &EntityId,
) -> Result<Option<EntityRecord>, BrokerError> {
    // The container is read first: an entity that has left it by then has its own record.
    match own(store, container)?.and_then(|record| record.embedded(id)) {
        Some(embedded) => Ok(Some(embedded)),
        None => own(store, id),
    }
}

/// The record that an entity has of its own.
pub(super) fn own(store: &dyn Store, id: &EntityId) -> Result<Option<EntityRecord>, BrokerError> {
    let stored = store.get(&EntityRecord::key(id))?;
    Ok(stored.map(|record| EntityRecord::decode(id, &record.value)).transpose()?)
}
