//! The stream of `WatchHandoffs`: the open handoffs, then each change.
//!
//! A watcher reads the changes at its own pace, so no change waits for it in a queue. Of several changes of one handoff
//! between two reads it gets the last. One that falls behind the changes in memory reads the stored handoffs again.

use std::time::Duration;

use prost::Message as _;
use tonic::Status;

use super::{
    call::Call,
    log_watch, refuse,
    responses::{self, Responses, Taker},
};
use crate::{
    broker::{
        BrokerError,
        queries::{Backlog, HandoffFilter, View},
    },
    proto::v1::{self, watch_handoffs_response::Event},
    wire::to_proto,
};

/// The most handoffs that one read returns. Their watcher holds them until its client takes them.
const HANDOFFS_AT_ONCE: usize = 32;
/// The time between two reads of a watcher that has caught up. It bounds the cost of a watcher of a busy broker.
const PAUSE: Duration = Duration::from_millis(50);

/// Starts a watch after this cursor. 0: with all open handoffs.
pub(super) fn stream(call: Call, filter: HandoffFilter, after_cursor: u64) -> Responses<v1::WatchHandoffsResponse> {
    responses::stream(async move |taker| Watcher { call, filter, cursor: after_cursor, taker }.follow().await)
}

struct Watcher {
    call: Call,
    filter: HandoffFilter,
    /// The change up to which everything is sent.
    cursor: u64,
    taker: Taker<v1::WatchHandoffsResponse>,
}

impl Watcher {
    async fn follow(&mut self) -> Result<(), Status> {
        let broker = self.call.broker.clone();
        let mut latest = broker.handoff_changes().latest();
        let there = *latest.borrow_and_update();
        self.send_gap(there).await?;
        self.send_all(self.cursor == 0).await?;
        self.send(Event::CaughtUp(true)).await;
        loop {
            tokio::select! {
                changed = latest.changed() => changed.map_err(|_| refuse(BrokerError::ShuttingDown))?,
                () = broker.draining() => return Err(refuse(BrokerError::ShuttingDown)),
            }
            tokio::time::sleep(PAUSE).await;
            self.send_all(false).await?;
        }
    }

    /// Tells a resumed watcher of the changes that it cannot get: those of removed handoffs, or those after the last
    /// change of a broker that was restored to an earlier state. In the second case the watcher begins again.
    async fn send_gap(&mut self, latest: u64) -> Result<(), Status> {
        if self.cursor == 0 {
            return Ok(());
        }
        let removed = self.call.read_small(|view| view.removed_handoff_changes()).await?;
        let gap = if self.cursor > latest { (latest + 1, self.cursor) } else { (self.cursor + 1, removed) };
        if self.cursor > latest {
            self.cursor = 0;
        }
        if gap.0 <= gap.1 {
            self.send(Event::Gap(to_proto::gap(gap))).await;
        }
        Ok(())
    }

    /// Sends what the watcher lacks: a new one gets the open handoffs, any other one the changes after its cursor.
    async fn send_all(&mut self, mut is_new: bool) -> Result<(), Status> {
        loop {
            // A change while the backlog is sent is after this one, and follows.
            let latest = *self.call.broker.handoff_changes().latest().borrow();
            if !is_new && self.send_kept().await? {
                return Ok(());
            }
            // An open handoff that ends meanwhile changes, so it is not lost between the two lists.
            self.send_backlog(Backlog::Open, 0).await?;
            if !is_new {
                self.send_backlog(Backlog::Ended, self.cursor).await?;
            }
            self.cursor = latest;
            is_new = false;
        }
    }

    async fn send_backlog(&self, backlog: Backlog, mut place: u64) -> Result<(), Status> {
        let changed_after = self.cursor;
        loop {
            self.taker.demand().await;
            let filter = self.filter.clone();
            let read = move |view: View<'_>| {
                let page = view.backlog(backlog, &filter, changed_after, place, HANDOFFS_AT_ONCE)?;
                let mut shown: Vec<_> =
                    page.handoffs.iter().map(|(place, handoff)| (*place, to_proto::handoff(handoff))).collect();
                log_watch::keep_first_of(&mut shown, |(_, handoff)| handoff.encoded_len());
                let next = match shown.last() {
                    Some((last, _)) if shown.len() < page.handoffs.len() => Some(*last),
                    _ => page.next,
                };
                Ok((shown, next))
            };
            let (shown, next) = tokio::select! {
                // The read waits while the caller's CPU time is used up.
                () = self.call.broker.draining() => return Err(refuse(BrokerError::ShuttingDown)),
                read = self.call.read_small(read) => read?,
            };
            for (_, handoff) in shown {
                self.send(event(handoff)).await;
            }
            match next {
                Some(next) => place = next,
                None => return Ok(()),
            }
        }
    }

    /// Sends the changes after the cursor that memory has. Returns false if memory does not have all of them.
    async fn send_kept(&mut self) -> Result<bool, Status> {
        loop {
            self.taker.demand().await;
            let Some(changes) = self.call.broker.handoff_changes().after(self.cursor, HANDOFFS_AT_ONCE) else {
                return Ok(false);
            };
            if changes.is_empty() {
                return Ok(true);
            }
            let filter = self.filter.clone();
            let read = self.call.read_small(move |view| {
                let shown = changes.iter().map(|change| {
                    let handoff = view.changed(change, &filter)?;
                    Ok((change.number, handoff.map(|handoff| to_proto::handoff(&handoff))))
                });
                let mut shown = shown.collect::<Result<Vec<_>, BrokerError>>()?;
                log_watch::keep_first_of(&mut shown, |(_, handoff)| {
                    handoff.as_ref().map_or(0, v1::Handoff::encoded_len)
                });
                Ok(shown)
            });
            for (number, handoff) in read.await? {
                self.cursor = number;
                if let Some(handoff) = handoff {
                    self.send(event(handoff)).await;
                }
            }
        }
    }

    async fn send(&self, event: Event) {
        self.taker.send(v1::WatchHandoffsResponse { event: Some(event), cursor: self.cursor }).await;
    }
}

fn event(handoff: v1::Handoff) -> Event {
    Event::Handoff(Box::new(handoff))
}
