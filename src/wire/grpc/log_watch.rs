//! Watches of logs: the loop that all of them share.
//!
//! A watcher reads the log from the store at its own pace, so no entry waits for it in a queue. A watch of the entity
//! wakes it; the update itself is not used.

use prost::Message;
use tokio::sync::watch;
use tonic::Status;

use super::{
    call::Call,
    refuse, refuse_shared,
    responses::{self, Responses, Taker},
};
use crate::{
    broker::{
        Broker, BrokerError, Refused, Update, Updates,
        queries::{LogPage, NumberedEntry, View},
    },
    domain::EntityId,
    proto::v1,
    wire::to_proto,
};

/// The most entries that one read of a watcher returns. An entry may have some hundred KiB.
pub(super) const ENTRIES_MAX: usize = 4;
/// The bytes of entries that a watcher holds after a read, or one entry of any size.
const HELD_BYTES_MAX: usize = 16 * 1024;

/// The latest update of a watched entity. `None`: none since the watch began.
pub(super) type Latest = watch::Receiver<Option<Result<Update, Refused>>>;

/// What follows after all entries are sent.
pub(super) enum Next {
    /// Further entries may come.
    Wait,
    /// The log is complete.
    End,
}

/// A reader of one log for one client.
pub(super) trait LogWatcher {
    /// Sends all entries that the client has not got yet. Fails with the status that ends the watch.
    async fn send_entries(&mut self) -> Result<Next, Status>;

    /// Waits until the log may have grown. Fails with the status that ends the watch.
    async fn grown(&mut self) -> Result<(), Status>;
}

/// Sends the entries of a log until it is complete or the broker stops.
pub(super) async fn follow(mut watcher: impl LogWatcher, broker: Broker) -> Result<(), Status> {
    loop {
        match watcher.send_entries().await? {
            Next::Wait => {}
            Next::End => return Ok(()),
        }
        tokio::select! {
            grown = watcher.grown() => grown?,
            () = broker.draining() => return Err(refuse(BrokerError::ShuttingDown)),
        }
    }
}

/// Keeps the first entries of a read, so that a watcher whose client stops reading holds few bytes. The rest is read
/// again.
pub(super) fn keep_first<E: Message>(entries: &mut Vec<E>) {
    keep_first_of(entries, E::encoded_len);
}

/// As [`keep_first`], of entries that have this many bytes.
pub(super) fn keep_first_of<E>(entries: &mut Vec<E>, bytes_of: impl Fn(&E) -> usize) {
    let mut bytes = 0;
    let over = entries.iter().position(|entry| {
        bytes += bytes_of(entry);
        bytes > HELD_BYTES_MAX
    });
    entries.truncate(over.map_or(entries.len(), |over| over.max(1)));
}

/// Waits for the next update of an entity. Fails with the status that ends the watch.
pub(super) async fn changed(latest: &mut Latest) -> Result<(), Status> {
    // The sender is gone, so the entity is removed. The client learns this when it watches again after its last entry.
    latest.changed().await.map_err(|_| refuse(BrokerError::StoreUnavailable))?;
    let refusal = latest.borrow_and_update().as_ref().and_then(|update| update.as_ref().err().cloned());
    refusal.map_or(Ok(()), |refusal| Err(refuse_shared(refusal)))
}

/// What a watch of the log of a run, a thread or a plan sends.
pub(super) enum LogUpdate<E> {
    /// The next entry.
    Entry(E),
    /// Entries that do not exist; the next entry follows them.
    Gap(v1::WatchGap),
    /// All entries up to this number, which were there at the start, are sent.
    CaughtUp(u64),
}

/// A watch of the log of a run, a thread or a plan, as a client asks for it.
pub(super) struct LogWatch<F, R, E> {
    /// The entity of the log. The caller may see it.
    pub(super) entity: EntityId,
    /// The client has the entries up to this number.
    pub(super) after: u64,
    /// Reads the entries after a number, at most [`ENTRIES_MAX`].
    pub(super) read: F,
    /// The response for an update.
    pub(super) respond: fn(LogUpdate<E>) -> R,
}

/// Begins a watch of the log of a run, a thread or a plan.
pub(super) async fn open<F, R, E>(call: Call, asked: LogWatch<F, R, E>) -> Result<Responses<R>, Status>
where
    F: Fn(View<'_>, u64) -> Result<LogPage<E>, BrokerError> + Clone + Send + Sync + 'static,
    R: Send + 'static,
    E: NumberedEntry + Message + 'static,
{
    let LogWatch { entity, after, read, respond } = asked;
    let (updates, latest) = Updates::latest();
    // Subscribes before the first page is read: an entry written between the two is announced, not lost.
    let watch = call.broker.watch(entity, updates).await.map_err(refuse_shared)?;
    let broker = call.broker.clone();
    Ok(responses::stream(async move |taker| {
        let _watch = watch;
        let watcher = EntryWatcher { call, after, is_caught_up: false, read, respond, latest, taker };
        follow(watcher, broker).await
    }))
}

struct EntryWatcher<F, R, E> {
    call: Call,
    /// The number of the last entry that was sent or is missing.
    after: u64,
    is_caught_up: bool,
    read: F,
    respond: fn(LogUpdate<E>) -> R,
    latest: Latest,
    taker: Taker<R>,
}

impl<F, R, E> LogWatcher for EntryWatcher<F, R, E>
where
    F: Fn(View<'_>, u64) -> Result<LogPage<E>, BrokerError> + Clone + Send + Sync + 'static,
    R: Send + 'static,
    E: NumberedEntry + Message + 'static,
{
    async fn send_entries(&mut self) -> Result<Next, Status> {
        loop {
            self.taker.demand().await;
            let (read, after) = (self.read.clone(), self.after);
            let page = self.call.read_small(move |view| {
                let mut page = read(view, after)?;
                keep_first(&mut page.entries);
                Ok(page)
            });
            let page = page.await?;
            // These entries are removed, or the watcher comes from a longer log: one before the broker was restored.
            if let Some(gap) = page.gap {
                self.after = if page.entries.is_empty() { page.length } else { gap.1 };
                self.send(LogUpdate::Gap(to_proto::gap(gap))).await;
            }
            for entry in page.entries {
                self.after = entry.number();
                self.send(LogUpdate::Entry(entry)).await;
            }
            if self.after >= page.length {
                if !std::mem::replace(&mut self.is_caught_up, true) {
                    self.send(LogUpdate::CaughtUp(self.after)).await;
                }
                return Ok(if page.is_final { Next::End } else { Next::Wait });
            }
        }
    }

    async fn grown(&mut self) -> Result<(), Status> {
        changed(&mut self.latest).await
    }
}

impl<F, R, E> EntryWatcher<F, R, E> {
    async fn send(&self, update: LogUpdate<E>) {
        self.taker.send((self.respond)(update)).await;
    }
}
