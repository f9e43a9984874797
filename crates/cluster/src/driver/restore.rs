//! RESTORING: the checkpoint of a peer, from the choice of the peer to a whole copy beside the own tables.
//!
//! Owns the order in which peers are tried, and the limits of time. Must not know how a peer is reached, nor how the copy
//! takes the place of the tables.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use baton_store::{CheckpointHead, CutOff, Incoming, Replica, Whole};
use tokio::{task::spawn_blocking, time::timeout};

use super::{CheckpointPieces, PEERS_MAX, Peers, names::Names};
use crate::{entry::Position, member_value::MemberValue, view::Role};

/// The longest wait for the first bytes of a peer, which gives its files second names before, and for each further piece.
const SILENT_MAX: Duration = Duration::from_secs(20);

/// The whole files of the last attempt, if that was cut off.
pub(super) type Left = Arc<Mutex<Option<CutOff>>>;

/// Receives the checkpoint of a peer, which has all entries in front of the log's first one. `None`: no peer has one now.
pub(super) async fn receive(
    names: &Names,
    peers: &dyn Peers,
    replica: &Arc<Replica>,
    left: &Left,
    first: Position,
) -> Option<Whole> {
    let values = timeout(PEERS_MAX, names.others()).await.unwrap_or_default();
    for MemberValue { broker, peer_address, .. } in in_order(values) {
        tracing::info!(peer = broker, log_begins = first, "receiving the checkpoint of another broker");
        match receive_from(peers, &peer_address, replica, left, first).await {
            Ok(whole) => {
                tracing::info!(
                    peer = broker,
                    position = whole.mark().position,
                    "received the checkpoint of another broker"
                );
                return Some(whole);
            }
            Err(error) => tracing::warn!(peer = broker, error, "failed to receive the checkpoint of another broker"),
        }
    }
    None
}

/// The peers to ask: those with the newest checkpoint first, and of these a follower before the leader, which has other work.
fn in_order(mut values: Vec<MemberValue>) -> Vec<MemberValue> {
    let leads = |value: &MemberValue| Role::named(&value.role).is_some_and(Role::serves_clients);
    values.retain(|value| !value.forgotten && value.role != Role::Leaving.name());
    values.sort_by_key(|value| (std::cmp::Reverse(value.flushed_upto), leads(value)));
    values
}

async fn receive_from(
    peers: &dyn Peers,
    address: &str,
    replica: &Arc<Replica>,
    left: &Left,
    first: Position,
) -> Result<Whole, String> {
    let has = left.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(CutOff::files).unwrap_or_default();
    let silent = |_| format!("it said nothing for {} seconds", SILENT_MAX.as_secs());
    let begun = timeout(SILENT_MAX, peers.checkpoint(address, first.saturating_sub(1), &has)).await;
    let (head, mut pieces): (CheckpointHead, Box<dyn CheckpointPieces>) = begun.map_err(silent)??;
    let (tables, taken) = (replica.clone(), left.clone());
    let received = on_disk(move || {
        let mut left = taken.lock().unwrap_or_else(PoisonError::into_inner);
        tables.receive(&head, first, &mut left)
    });
    let mut incoming = received.await?;
    loop {
        match timeout(SILENT_MAX, pieces.next()).await.map_err(silent).flatten() {
            Ok(Some(piece)) => incoming = on_disk(move || incoming.add(&piece).map(|()| incoming)).await?,
            Ok(None) => return on_disk(move || incoming.finish()).await,
            Err(error) => {
                keep(left, incoming).await?;
                return Err(error);
            }
        }
    }
}

/// Keeps the whole files of an attempt whose peer is gone.
async fn keep(left: &Left, incoming: Incoming) -> Result<(), String> {
    let whole = on_disk(move || incoming.cut_off()).await?;
    *left.lock().unwrap_or_else(PoisonError::into_inner) = Some(whole);
    Ok(())
}

/// Runs work that waits for the disk.
async fn on_disk<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, baton_store::RestoreError> + Send + 'static,
) -> Result<T, String> {
    let done = spawn_blocking(work).await;
    done.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_checkpoint_is_asked_for_first_and_the_leader_after_its_followers() {
        let value = |broker: &str, role: Role, flushed_upto| MemberValue {
            broker: broker.into(),
            role: role.name().into(),
            flushed_upto,
            ..MemberValue::default()
        };
        let forgotten = MemberValue { forgotten: true, ..value("b5", Role::Following, 99) };
        let values = vec![
            value("b1", Role::Leading, 20),
            value("b2", Role::Following, 10),
            value("b3", Role::Following, 20),
            value("b4", Role::Leaving, 30),
            forgotten,
        ];
        let order: Vec<_> = in_order(values).into_iter().map(|value| value.broker).collect();
        assert_eq!(order, ["b3", "b1", "b2"]);
    }
}
