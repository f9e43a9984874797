//! The watchers of entities: one registry for all kinds of entities.
//!
//! The engine registers a watcher after the commit of the batch that has its command. The watcher gets the entity as
//! stored then, and each later update. Three events remove it: the last update, a drop of the receiving end
//! ([`Command::Unwatch`]), and a full channel ([`Engine::unwatch`]). So the registry never holds more watchers than
//! receiving ends exist.
//!
//! [`Command::Unwatch`]: super::Command::Unwatch

use std::sync::Arc;

use super::Engine;
use crate::{
    BrokerError, Output, Refused, Update, Updates, WatcherId, domain::EntityId, ids::IdMap, records::EntityRecord,
    refused, stored,
};

/// A watcher and the handle that sends its updates.
#[derive(Debug, Clone)]
pub(super) struct Watcher {
    pub(super) id: WatcherId,
    pub(super) updates: Updates,
}

impl Watcher {
    /// An output with one update for this watcher.
    pub(super) fn output(self, update: Result<Update, Refused>) -> Output {
        Output::Update { watcher: self.id, to: self.updates, update }
    }
}

/// The registry of watchers, by entity and by id.
#[derive(Debug, Default)]
pub(super) struct Watchers {
    /// Each list has at least one watcher.
    of_entity: IdMap<EntityId, Vec<Watcher>>,
    entity_of: IdMap<WatcherId, EntityId>,
}

impl Watchers {
    fn add(&mut self, entity: EntityId, watcher: Watcher) {
        self.entity_of.insert(watcher.id, entity.clone());
        self.of_entity.entry(entity).or_default().push(watcher);
    }

    pub(super) fn of(&self, entity: &EntityId) -> &[Watcher] {
        self.of_entity.get(entity).map_or(&[], Vec::as_slice)
    }

    fn remove(&mut self, id: WatcherId) {
        // The last update may have removed the watcher already.
        let Some(entity) = self.entity_of.remove(&id) else { return };
        let Some(watchers) = self.of_entity.get_mut(&entity) else { return };
        watchers.retain(|watcher| watcher.id != id);
        if watchers.is_empty() {
            self.of_entity.remove(&entity);
        }
    }

    pub(super) fn remove_all_of(&mut self, entity: &EntityId) {
        for watcher in self.of_entity.remove(entity).into_iter().flatten() {
            self.entity_of.remove(&watcher.id);
        }
    }
}

impl Engine {
    /// Registers a watcher, and sends it the entity as stored. A watcher of an ended entity is not registered.
    pub(super) fn watch(&mut self, entity: EntityId, watcher: Watcher) {
        let update = self.stored_update(&entity);
        // No later update would remove a watcher of an ended or unknown entity from the registry.
        if update.as_ref().is_ok_and(|update| !update.is_last()) {
            self.outputs.watchers.add(entity, watcher.clone());
        }
        self.outputs.push(watcher.output(update.map_err(refused)));
    }

    fn stored_update(&self, entity: &EntityId) -> Result<Update, BrokerError> {
        let stored = stored::entity(&*self.env.store, entity)?;
        let stored = stored.or_else(|| EntityRecord::before_first_step(entity));
        let stored = stored.ok_or_else(|| BrokerError::unknown(entity))?;
        Ok(Update(Arc::new(stored)))
    }

    /// Removes the watcher and drops its handle.
    pub fn unwatch(&mut self, watcher: WatcherId) {
        // The batch in hand may not have registered the watcher yet.
        self.batch.watches.retain(|(_, new)| new.id != watcher);
        self.outputs.watchers.remove(watcher);
    }

    /// Ends all watchers with this error.
    pub(super) fn end_all_watchers(&mut self, error: &Refused) {
        let watchers = std::mem::take(&mut self.outputs.watchers).of_entity.into_values().flatten();
        self.outputs.extend(watchers.map(|watcher| watcher.output(Err(error.clone()))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::TaskId;

    #[test]
    fn a_watcher_that_is_removed_leaves_nothing_in_the_registry() {
        let task = |number: u64| EntityId::Task(TaskId::parse(&format!("t{number}")).unwrap());
        let mut watchers = Watchers::default();
        for number in 0..100 {
            let (updates, _) = Updates::each(1);
            watchers.add(task(number % 10), Watcher { id: WatcherId(number), updates });
        }
        (0..50).for_each(|number| watchers.remove(WatcherId(number)));
        watchers.remove(WatcherId(7));
        assert_eq!(watchers.of(&task(3)).len(), 5);
        (0..5).for_each(|number| watchers.remove_all_of(&task(number)));
        (50..100).for_each(|number| watchers.remove(WatcherId(number)));
        assert!(watchers.of_entity.is_empty() && watchers.entity_of.is_empty());
    }
}
