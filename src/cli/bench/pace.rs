//! The moments at which handoffs are to begin, whether or not the broker keeps up.
//!
//! A thread of its own, since tokio's timers are exact to a millisecond only, and that would be in every latency.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use tokio::sync::mpsc;

use crate::time::Moment;

/// Hands out the moments until it is dropped.
pub(super) struct Pacer {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Pacer {
    /// So many moments a second, dealt to so many pairs in turn.
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
    /// So that it ends soon once it is told to.
    const NAP_MAX: Duration = Duration::from_millis(50);
    let mut at = Moment::now();
    for pair in pairs.iter().cycle() {
        loop {
            let wait = at.since(Moment::now());
            if over.load(Ordering::Relaxed) {
                return;
            }
            if wait.is_zero() {
                break;
            }
            std::thread::sleep(wait.min(NAP_MAX));
        }
        let _ = pair.send(at); // a pair that has ended takes none
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
