//! Reading stored entities beside the pipeline.

use super::BrokerError;
use crate::{domain::EntityId, records::EntityRecord, store::Store};

/// The stored record of an entity: that in its host, or its own.
pub(super) fn entity(store: &dyn Store, id: &EntityId) -> Result<Option<EntityRecord>, BrokerError> {
    let named = EntityRecord::host_key(id).map(|key| store.get(&key)).transpose()?.flatten();
    let host = named.map(|stored| EntityRecord::host_named_in(&stored.value)).transpose()?.flatten();
    match host {
        Some(host) => entity_in(store, id, &host),
        None => own(store, id),
    }
}

/// Like [`entity`], for an entity whose host can only be this one.
pub(super) fn entity_in(
    store: &dyn Store,
    id: &EntityId,
    host: &EntityId,
) -> Result<Option<EntityRecord>, BrokerError> {
    // The host is read first: an entity that has left it by then has its own record.
    match own(store, host)?.and_then(|record| record.hosted(id)) {
        Some(hosted) => Ok(Some(hosted)),
        None => own(store, id),
    }
}

/// The record that an entity has of its own.
pub(super) fn own(store: &dyn Store, id: &EntityId) -> Result<Option<EntityRecord>, BrokerError> {
    let stored = store.get(&EntityRecord::key(id))?;
    Ok(stored.map(|record| EntityRecord::decode(id, &record.value)).transpose()?)
}
