//! The shared state of a running bench: phase, ctrl-C and progress bar.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use indicatif::{ProgressBar, ProgressStyle};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::Failure;

/// The redraw interval of the bar.
const BAR_INTERVAL: Duration = Duration::from_millis(200);

/// The state that workers and the measurement share. Clones share it.
#[derive(Clone, Default)]
pub(super) struct Run {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    measures: AtomicBool,
    done: AtomicU64,
    stop: CancellationToken,
    interrupt: CancellationToken,
}

impl Run {
    /// Starts to listen for SIGINT and SIGTERM.
    pub(super) fn begin() -> Result<Self, Failure> {
        let run = Self::default();
        let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        let interrupted = run.shared.interrupt.clone();
        tokio::spawn(async move {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            interrupted.cancel();
        });
        Ok(run)
    }

    /// Whether the run is in its measurement phase.
    pub(super) fn measures(&self) -> bool {
        self.shared.measures.load(Ordering::Relaxed)
    }

    pub(super) fn set_measures(&self, measures: bool) {
        self.shared.measures.store(measures, Ordering::Relaxed);
    }

    /// Counts one finished unit of work.
    pub(super) fn done_one(&self) {
        self.shared.done.fetch_add(1, Ordering::Relaxed);
    }

    /// The number of finished units of work.
    pub(super) fn done(&self) -> u64 {
        self.shared.done.load(Ordering::Relaxed)
    }

    /// Tells the workers to begin nothing new.
    pub(super) fn stop(&self) {
        self.shared.stop.cancel();
    }

    /// Waits until the workers must begin nothing new.
    pub(super) async fn stopped(&self) {
        self.shared.stop.cancelled().await;
    }

    /// Whether SIGINT or SIGTERM has arrived.
    pub(super) fn is_interrupted(&self) -> bool {
        self.shared.interrupt.is_cancelled()
    }

    /// Waits for this time, or until an interrupt.
    pub(super) async fn wait(&self, span: Duration) {
        tokio::select! {
            () = tokio::time::sleep(span) => {}
            () = self.shared.interrupt.cancelled() => {}
        }
    }

    /// Runs `act`, and abandons it on an interrupt.
    pub(super) async fn unless_interrupted<T>(
        &self,
        act: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        tokio::select! {
            outcome = act => outcome,
            () = self.shared.interrupt.cancelled() => Err(Failure::failed("interrupted before the first result")),
        }
    }

    /// Runs `act` with a progress bar on stderr, if stderr is a terminal.
    pub(super) async fn show<T>(&self, what: &'static str, goal: Goal, act: impl Future<Output = T>) -> T {
        let (bar, before) = (goal.bar(what), self.done());
        let mut turns = tokio::time::interval(BAR_INTERVAL);
        tokio::pin!(act);
        loop {
            tokio::select! {
                biased;
                outcome = &mut act => {
                    bar.finish_and_clear();
                    return outcome;
                }
                _ = turns.tick() => goal.advance(&bar, self.done() - before),
            }
        }
    }
}

/// The end of a progress bar.
#[derive(Debug, Clone, Copy)]
pub(super) enum Goal {
    /// This number of finished units.
    Count(u64),
    /// This much time.
    Time(Duration),
}

impl Goal {
    fn bar(self, what: &'static str) -> ProgressBar {
        let (length, template) = match self {
            Self::Count(count) => (count, "{msg:<12} {wide_bar} {pos}/{len} {per_sec} {eta}"),
            Self::Time(span) => (milliseconds(span), "{prefix:<12} {wide_bar} {msg} {elapsed}"),
        };
        let bar = ProgressBar::new(length); // drawn on stderr, and only if that is a terminal
        bar.set_style(ProgressStyle::with_template(template).expect("the template is well-formed"));
        match self {
            Self::Count(_) => bar.set_message(what),
            Self::Time(_) => bar.set_prefix(what),
        }
        bar
    }

    fn advance(self, bar: &ProgressBar, done: u64) {
        match self {
            Self::Count(_) => bar.set_position(done),
            Self::Time(span) => {
                bar.set_position(milliseconds(bar.elapsed()).min(milliseconds(span)));
                let seconds = bar.elapsed().as_secs_f64().max(0.001);
                bar.set_message(format!("{:.0}/s", done as f64 / seconds));
            }
        }
    }
}

fn milliseconds(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
