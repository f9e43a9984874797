//! The client port of a broker that follows: each connection goes to the leader.
//!
//! Owns accepting for the relay, and the way of relayed connections into the edge of the leader. Must not know how a role is
//! reached: it reads the member's view.

use std::time::Duration;

use baton_peers::{
    port::Relayed,
    relay::{Ended, Relay, WAIT_MAX},
};
use tokio::{
    sync::{mpsc, watch},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use crate::wire::{
    bounds::Bounds,
    edge::{Arrival, Listener},
};

/// The pause in accepting while the machine lacks a resource, for example file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The file descriptors of a relayed connection: one for each side.
const SIDES: usize = 2;

/// Where connections go while this broker leads: into the edge of the present term. `None`: it does not lead.
pub(super) type Term = watch::Receiver<Option<mpsc::Sender<Arrival>>>;

/// Accepts connections and relays them until `until`. Connections that wait for a leader then are served by this broker, if it
/// leads; relayed ones end with the takeover.
pub(super) async fn follow(listener: Listener, relay: Relay, bounds: Bounds, term: Term, until: CancellationToken) {
    let mut is_failing = false;
    loop {
        let accepted = tokio::select! {
            () = until.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(problem) => {
                if !std::mem::replace(&mut is_failing, true) {
                    tracing::warn!(%problem, "failed to accept a connection; trying again");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        is_failing = false;
        // Over a quota, dropping the stream closes the connection. The quota counts the refusal.
        let Some(place) = bounds.connections.take(peer.ip(), SIDES) else { continue };
        let (relay, mut term) = (relay.clone(), term.clone());
        tokio::spawn(async move {
            match relay.carry(stream, peer).await {
                Ok(Ended::WithoutLeader) => tracing::debug!(%peer, "closed a connection: no broker leads"),
                Ok(Ended::ByTakeover) => tracing::debug!(%peer, "closed a relayed connection: another broker leads"),
                Ok(Ended::BySides) => {}
                Err(stream) => {
                    // The edge counts it anew.
                    drop(place);
                    let edge = timeout(WAIT_MAX, term.wait_for(Option::is_some)).await;
                    if let Ok(Ok(edge)) = edge.map(|found| found.map(|edge| edge.clone()))
                        && let Some(edge) = edge
                    {
                        pass(&edge, Arrival::over_tcp(stream, peer));
                    }
                }
            }
        });
    }
}

/// Passes relayed connections into the edge of the present term. While this broker does not lead they are closed, and their
/// clients connect again.
pub(super) async fn pass_on(mut relayed: mpsc::Receiver<Relayed>, term: Term) {
    while let Some(Relayed { stream, client }) = relayed.recv().await {
        let edge = term.borrow().clone();
        if let Some(edge) = edge {
            pass(&edge, Arrival::relayed(stream, client));
        }
    }
}

/// A full edge, behind with opening others, closes the connection.
fn pass(edge: &mpsc::Sender<Arrival>, arrival: Arrival) {
    if let Err(refused) = edge.try_send(arrival) {
        let (mpsc::error::TrySendError::Full(arrival) | mpsc::error::TrySendError::Closed(arrival)) = refused;
        tracing::debug!(peer = %arrival.peer, "closed a connection: this broker takes no more, or leads no longer");
    }
}
