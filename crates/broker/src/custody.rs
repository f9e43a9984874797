//! Reading the custody logs of tasks.

use super::BrokerError;
use crate::{
    records::{LogEntry, LogItem, LogPage, MessageRecord, TaskRecord},
    store::{Order, Store, Table},
};

/// An entry of a log. The entry of a message comes with the record of the message.
#[derive(Debug)]
pub(super) struct Logged {
    pub(super) entry: LogEntry,
    pub(super) message: Option<MessageRecord>,
}

/// The items of a task's log with numbers after `after`, oldest first and each with its number; at most `limit`.
pub(super) fn items(
    store: &dyn Store,
    record: &TaskRecord,
    after: u64,
    limit: usize,
) -> Result<Vec<(u64, LogItem)>, BrokerError> {
    let paged = record.paged();
    let mut items = Vec::new();
    // The latest items are in the task's record, so a reader at the end of the log needs no scan.
    if after < paged {
        let range = LogPage::range(record.sequence, &record.task.id, LogPage::first_of(after + 1));
        // The first page may have only one wanted item.
        let pages = limit / LogPage::ITEMS + 2;
        for (key, page) in store.scan(Table::Custody, range, Order::Ascending, pages)? {
            let (first, page) = LogPage::decode(&key, &page.value)?;
            items.extend((first..).zip(page));
        }
    }
    // A later page than the task's record was read, and repeats items of the record's tail.
    items.retain(|(number, _)| *number <= paged);
    items.extend((paged + 1..).zip(record.log_tail.iter().cloned()));
    // The first page begins at its own first item, which may be before the wanted one.
    items.retain(|(number, _)| *number > after);
    items.truncate(limit);
    Ok(items)
}

/// The entry of an item.
pub(super) fn entry(store: &dyn Store, item: LogItem) -> Result<Logged, BrokerError> {
    let message = match item {
        LogItem::Entry(entry) => return Ok(Logged { entry, message: None }),
        LogItem::Message(message) => message,
    };
    let stored = store.get(&MessageRecord::key(message))?;
    let record = stored.map(|record| MessageRecord::decode(&record.value)).transpose()?;
    let logged = record.and_then(|record| Some((record.logged()?.entry.clone(), record)));
    let (entry, record) = logged.ok_or_else(|| {
        tracing::error!(%message, "a message of a custody log is missing in the store");
        BrokerError::Internal
    })?;
    Ok(Logged { entry, message: Some(record) })
}
