//! The signals that stop a command which runs until it is stopped.

use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// A token that SIGINT or SIGTERM cancels. A second signal ends the process at once.
///
/// # Errors
///
/// The operating system refuses a handler.
pub fn stop_on_signal() -> io::Result<CancellationToken> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let stop = CancellationToken::new();
    let stop_on_signal = stop.clone();
    tokio::spawn(async move {
        for first in [true, false] {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            if first {
                tracing::info!("stopping; a second signal stops at once");
                stop_on_signal.cancel();
            } else {
                std::process::exit(1);
            }
        }
    });
    Ok(stop)
}
