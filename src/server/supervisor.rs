//! What a service manager such as systemd is told: that the broker is ready, that it lives, that it stops. Without
//! NOTIFY_SOCKET in the environment nothing is told. Must not know what "ready" takes.

use std::{net::SocketAddr, time::Duration};

use sd_notify::NotifyState;
use tokio::{sync::watch, time::MissedTickBehavior};

use crate::broker::Broker;

/// Says what the broker does before it is ready.
pub(super) fn starting(what: &str) {
    tell(&[NotifyState::Status(what)]);
}

/// Says that the broker accepts connections.
pub(super) fn ready(address: SocketAddr) {
    tell(&[NotifyState::Ready, NotifyState::Status(&format!("ready on {address}"))]);
}

/// Says that the broker stops.
pub(super) fn stopping() {
    tell(&[NotifyState::Stopping, NotifyState::Status("stopping")]);
}

/// Gives a sign of life for as long as the engine answers, if the service manager asks for one (WATCHDOG_USEC). A store that
/// refuses writes is no reason for silence: the engine answers, and a restart would not help.
/// In a cluster a broker without an engine gives signs of life, too.
pub(super) async fn watch_engine(running: watch::Receiver<Option<Broker>>) {
    let Some(within) = sd_notify::watchdog_enabled() else { return };
    let answers = || {
        let running = running.clone();
        async move {
            let Some(broker) = running.borrow().clone() else { return true };
            // Whether it takes messages does not matter here, only that it has seen this command.
            drop(broker.settle().await);
            // An engine that ends with its term is replaced soon.
            !broker.has_ended() || running.has_changed().unwrap_or(false) || running.borrow().is_none()
        }
    };
    // Half of the time, as sd_watchdog_enabled(3) recommends: one late answer is no failure.
    keep_alive(within / 2, answers, || tell(&[NotifyState::Watchdog])).await;
}

/// Calls `ping` in intervals, each time after an answer. Ends when there is none any more.
async fn keep_alive<F: Future<Output = bool>>(
    interval: Duration,
    mut answers: impl FnMut() -> F,
    mut ping: impl FnMut(),
) {
    let mut moments = tokio::time::interval(interval.max(Duration::from_millis(1)));
    moments.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        moments.tick().await;
        if !answers().await {
            return;
        }
        ping();
    }
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, ?states, "failed to tell the service manager");
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, future};

    use super::*;

    #[tokio::test]
    async fn an_engine_that_hangs_gives_no_sign_of_life() {
        let (asked, pings) = (Cell::new(0), Cell::new(0));
        let (hangs, seen) = tokio::sync::oneshot::channel();
        let mut hangs = Some(hangs);
        let answers = || {
            asked.set(asked.get() + 1);
            let hangs = hangs.take_if(|_| asked.get() == 3);
            async {
                if let Some(hangs) = hangs {
                    hangs.send(()).unwrap();
                    future::pending::<()>().await;
                }
                true
            }
        };
        tokio::select! {
            () = keep_alive(Duration::from_millis(1), answers, || pings.set(pings.get() + 1)) => panic!("it goes on"),
            seen = seen => seen.unwrap(),
        }
        assert_eq!(pings.get(), 2, "one for each answer");
    }

    #[tokio::test]
    async fn an_engine_that_has_ended_gives_none_either() {
        let mut left = 2;
        let mut pings = 0;
        let answers = || {
            left -= 1;
            future::ready(left > 0)
        };
        keep_alive(Duration::from_millis(1), answers, || pings += 1).await;
        assert_eq!(pings, 1);
    }
}
