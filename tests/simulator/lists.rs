//! The lists of tasks and handoffs: each is found where readers look for it, and no entry is of none.

use std::{collections::HashMap, ops::Bound::Unbounded};

use baton_broker_core::{
    ids::{MessageId, TaskId},
    records::{ChangePlace, HandoffRecord, List, TaskRecord},
    store::{Key, Order, Store, Table},
};

/// Checks the lists of all tasks and handoffs of a store.
pub(crate) fn see_lists(store: &dyn Store) {
    let rows = |table, range| store.scan(table, range, Order::Ascending, usize::MAX).unwrap();
    let all = |table| rows(table, (Unbounded, Unbounded));
    let is_there = |key: &Key| store.get(key).unwrap().is_some();
    let is_at = |list: &List, number| is_there(&Key { table: list.table, key: list.key(number) });
    let (open, changes) = (List::open_handoffs(), List::changes());

    let decode = |record: baton_broker_core::store::Record| TaskRecord::decode(&record.value).unwrap();
    let tasks: HashMap<TaskId, TaskRecord> = all(Table::Tasks)
        .into_iter()
        .map(|(_, record)| decode(record))
        .map(|task| (task.task.id.clone(), task))
        .collect();
    let own = all(Table::Handoffs).into_iter().map(|(_, record)| HandoffRecord::decode(&record.value).unwrap());
    let own: Vec<HandoffRecord> = own.collect();
    let hosted = tasks.values().filter_map(|task| task.handoff.clone());
    let handoffs: HashMap<MessageId, HandoffRecord> =
        own.iter().cloned().chain(hosted).map(|record| (record.handoff.id, record)).collect();

    for task in tasks.values() {
        let list = if task.task.open_handoff.is_some() && !is_at(&changes, task.updated) { &open } else { &changes };
        assert!(is_at(list, task.updated), "{} is not among the updates", task.task.id);
        assert!(task.update_entry().is_none_or(|(key, _)| is_there(&key)));
        let listed = rows(Table::Listings, List::handoffs_of_task(&task.task.id).range());
        let of_task = |record: &&HandoffRecord| record.handoff.task == task.task.id;
        assert_eq!(listed.len(), own.iter().filter(of_task).count(), "the handoffs of {}", task.task.id);
    }
    for record in &own {
        assert!(is_there(&record.task_entry().0), "{} is not among those of its task", record.handoff.id);
    }
    for record in handoffs.values() {
        let is_open = !record.handoff.state.is_final();
        assert_eq!(is_at(&open, record.sequence), is_open, "{} among the open ones", record.handoff.id);
        assert!(record.end_entry().is_none_or(|(key, _)| is_there(&key)), "the end of {}", record.handoff.id);
    }
    for (key, record) in rows(open.table, open.range()) {
        let place = open.handoff_place(open.number(&key).unwrap(), &record.value).unwrap();
        assert!(handoffs.contains_key(&place.handoff), "{place:?} is of none");
    }
    for (key, record) in rows(changes.table, changes.range()) {
        let (number, place) = (changes.number(&key).unwrap(), ChangePlace::decode(&record.value).unwrap());
        let is_of_end = place.ended.and_then(|id| handoffs.get(&id)).is_some_and(|ended| ended.changed == number);
        let is_of_update = tasks.get(&place.task).is_some_and(|task| task.updated == number);
        assert!(is_of_end || (place.ended.is_none() && is_of_update), "{place:?} at {number} is of none");
    }
}
