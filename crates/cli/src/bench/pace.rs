//! The start times of handoffs at a fixed rate, independent of the broker's speed.
//!
//! The pacer has its own thread, because tokio's timers have a resolution of a millisecond, which would add to every
//! latency.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use tokio::sync::mpsc;

use baton_client::time::Moment;

/// Sends the start times. Its drop ends the thread.
pub(super) struct Pacer {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Pacer {
    /// Starts a pacer of `per_second` times a second, dealt to the pairs in turn.
    pub(super) fn start(per_second: f64, pairs: usize) -> (Self, Vec<mpsc::UnboundedReceiver<Moment>>) {
        let (senders, receivers): (Vec<_>, _) = (0..pairs).map(|_| mpsc::unbounded_channel()).unzip();
        let over = Arc::new(AtomicBool::new(false));
        let stop = over.clone();
        let thread = std::thread::spawn(move || deal(Duration::from_secs_f64(1.0 / per_second), &senders, &stop));
        (Self { over, thread: Some(thread) }, receivers)
    }
}

#[expect(clippy::disallowed_methods, reason = "a thread of its own, which has nothing else to do")]
fn deal(interval: Duration, pairs: &[mpsc::UnboundedSender<Moment>], over: &AtomicBool) {
    /// Bounds the delay between the drop of the pacer and the end of its thread.
    const NAP_MAX: Duration = Duration::from_millis(50);
    let mut at = Moment::now();
    for pair in pairs.iter().cycle() {
        loop {
            let wait = at.since(Moment::now());
            // Checked while waiting and before each start, so that a high rate ends as soon as a low one.
            if over.load(Ordering::Relaxed) {
                return;
            }
            if wait.is_zero() {
                break;
            }
            std::thread::sleep(wait.min(NAP_MAX));
        }
        let _ = pair.send(at); // fails if the pair has ended
        // From the schedule, not from now: a late start does not move the later ones.
        at = at.plus(interval);
    }
}

impl Drop for Pacer {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}
