//! The steps of an act that waits, for a host that wants to hear of them while its call is open.

use std::pin::pin;

use tokio::sync::mpsc;

tokio::task_local! {
    static TOLD: mpsc::UnboundedSender<String>;
}

/// The last step that an act has told, so that each is told once.
#[derive(Default)]
pub(crate) struct Steps(String);

impl Steps {
    /// Tells the step, unless it is the last one, or nobody hears.
    pub(crate) fn tell(&mut self, step: impl FnOnce() -> String) {
        // Without a host that hears, the words are not made.
        let _ = TOLD.try_with(|told| {
            let step = step();
            if step != self.0 {
                // A call that was cut hears no more.
                let _ = told.send(step.clone());
                self.0 = step;
            }
        });
    }
}

/// Runs `work`, and passes each step that it tells to `hear`, in order, all of them before this returns.
pub(crate) async fn heard<T, H>(work: impl Future<Output = T>, hear: impl Fn(String) -> H) -> T
where
    H: Future<Output = ()>,
{
    let (told, mut steps) = mpsc::unbounded_channel();
    let mut work = pin!(TOLD.scope(told, work));
    loop {
        tokio::select! {
            biased;
            Some(step) = steps.recv() => hear(step).await,
            output = &mut work => {
                while let Ok(step) = steps.try_recv() {
                    hear(step).await;
                }
                return output;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[tokio::test]
    async fn each_step_is_told_once_and_in_order() {
        let seen = RefCell::new(Vec::new());
        let work = async {
            let mut steps = Steps::default();
            for step in ["a", "a", "b", "a"] {
                steps.tell(|| step.to_owned());
                tokio::task::yield_now().await;
            }
            7
        };
        let hear = |step| {
            seen.borrow_mut().push(step);
            std::future::ready(())
        };
        let output = heard(work, hear).await;
        assert_eq!((output, seen.into_inner()), (7, ["a", "b", "a"].map(str::to_owned).to_vec()));
    }

    #[tokio::test]
    async fn nothing_is_made_where_nobody_hears() {
        Steps::default().tell(|| unreachable!("nobody hears"));
    }
}
