//! The stream of `WatchHandoffs`: the open handoffs, then each change.
//!
//! A watcher reads the changes at its own pace, so no change waits for it in a queue. Of several changes of one handoff
//! between two reads it gets the last. One that falls behind the changes in memory reads the stored handoffs again.

use std::{pin::Pin, time::Duration};

use tokio::sync::mpsc;
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tonic::Status;

use super::{look, refuse};
use crate::{
    broker::{
        Broker, BrokerError,
        access::Caller,
        queries::{Backlog, HandoffFilter},
    },
    domain::handoff::Handoff,
    proto::v1::{self, watch_handoffs_response::Event},
    wire::to_proto,
};

/// The most responses that wait to be sent to one watcher.
const RESPONSES_MAX: usize = 16;
/// The most handoffs or changes that one read examines.
const LOOKED_AT_ONCE: usize = 256;
/// The time between two reads of a watcher that has caught up. It bounds the cost of a watcher of a busy broker.
const PAUSE: Duration = Duration::from_millis(50);

pub(super) type Responses = Pin<Box<dyn Stream<Item = Result<v1::WatchHandoffsResponse, Status>> + Send>>;

/// Starts a watch after this cursor. 0: with all open handoffs.
pub(super) fn stream(broker: Broker, caller: Caller, filter: HandoffFilter, after_cursor: u64) -> Responses {
    let (responses, receiver) = mpsc::channel(RESPONSES_MAX);
    let watcher = Watcher { broker, caller, filter, cursor: after_cursor, responses };
    tokio::spawn(watcher.run());
    Box::pin(ReceiverStream::new(receiver))
}

struct Watcher {
    broker: Broker,
    caller: Caller,
    filter: HandoffFilter,
    /// The change up to which everything is sent.
    cursor: u64,
    responses: mpsc::Sender<Result<v1::WatchHandoffsResponse, Status>>,
}

/// The watcher has gone, or gets the status that ends its watch.
struct Ended(Option<Status>);

impl From<BrokerError> for Ended {
    fn from(error: BrokerError) -> Self {
        Self(Some(refuse(error)))
    }
}

impl Watcher {
    async fn run(mut self) {
        if let Err(Ended(Some(status))) = self.follow().await {
            drop(self.responses.send(Err(status)).await);
        }
    }

    async fn follow(&mut self) -> Result<(), Ended> {
        let broker = self.broker.clone();
        let mut latest = broker.handoff_changes().latest();
        let there = *latest.borrow_and_update();
        self.send_gap(there).await?;
        self.send_all(self.cursor == 0).await?;
        self.send(Event::CaughtUp(true)).await?;
        loop {
            tokio::select! {
                changed = latest.changed() => changed.map_err(|_| BrokerError::ShuttingDown)?,
                () = self.responses.closed() => return Err(Ended(None)),
                () = broker.draining() => return Err(BrokerError::ShuttingDown.into()),
            }
            tokio::time::sleep(PAUSE).await;
            self.send_all(false).await?;
        }
    }

    /// Tells a resumed watcher of the changes that it cannot get: those of removed handoffs, or those after the last
    /// change of a broker that was restored to an earlier state. In the second case the watcher begins again.
    async fn send_gap(&mut self, latest: u64) -> Result<(), Ended> {
        if self.cursor == 0 {
            return Ok(());
        }
        let removed = look(&self.broker, &self.caller, |view| view.removed_handoff_changes()).await?;
        let gap = if self.cursor > latest { (latest + 1, self.cursor) } else { (self.cursor + 1, removed) };
        if self.cursor > latest {
            self.cursor = 0;
        }
        if gap.0 <= gap.1 {
            self.send(Event::Gap(to_proto::gap(gap))).await?;
        }
        Ok(())
    }

    /// Sends what the watcher lacks: a new one gets the open handoffs, any other one the changes after its cursor.
    async fn send_all(&mut self, mut is_new: bool) -> Result<(), Ended> {
        loop {
            // A change while the backlog is sent is after this one, and follows.
            let latest = *self.broker.handoff_changes().latest().borrow();
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

    async fn send_backlog(&self, backlog: Backlog, mut place: u64) -> Result<(), Ended> {
        let changed_after = self.cursor;
        loop {
            let filter = self.filter.clone();
            let page = look(&self.broker, &self.caller, move |view| {
                view.backlog(backlog, &filter, changed_after, place, LOOKED_AT_ONCE)
            });
            let page = page.await?;
            for handoff in page.handoffs {
                self.send(event(&handoff)).await?;
            }
            match page.next {
                Some(next) => place = next,
                None => return Ok(()),
            }
        }
    }

    /// Sends the changes after the cursor that memory has. Returns false if memory does not have all of them.
    async fn send_kept(&mut self) -> Result<bool, Ended> {
        loop {
            let Some(changes) = self.broker.handoff_changes().after(self.cursor, LOOKED_AT_ONCE) else {
                return Ok(false);
            };
            if changes.is_empty() {
                return Ok(true);
            }
            let filter = self.filter.clone();
            let read = look(&self.broker, &self.caller, move |view| {
                let shown = changes.iter().map(|change| Ok((change.number, view.changed(change, &filter)?)));
                shown.collect::<Result<Vec<_>, BrokerError>>()
            });
            for (number, handoff) in read.await? {
                self.cursor = number;
                if let Some(handoff) = handoff {
                    self.send(event(&handoff)).await?;
                }
            }
        }
    }

    async fn send(&self, event: Event) -> Result<(), Ended> {
        let response = v1::WatchHandoffsResponse { event: Some(event), cursor: self.cursor };
        self.responses.send(Ok(response)).await.map_err(|_| Ended(None))
    }
}

fn event(handoff: &Handoff) -> Event {
    Event::Handoff(Box::new(to_proto::handoff(handoff)))
}
