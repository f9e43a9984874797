//! A webhook without content: it tells the receiver how much waits for its agent.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use baton_client::{Identity, Options, time::Moment};
use baton_faces::Face;
use serde_json::json;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::{Hook, answers};
use crate::gateway::sender::Delivered;

/// How often the broker is asked for new entries.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How often a receiver is reminded of entries that still wait: it may have lost the first request.
const REMIND_EVERY: Duration = Duration::from_secs(5 * 60);

/// Wakes the receiver until `stop`.
pub(super) async fn serve(hook: Arc<Hook>, identity: &Identity, options: &Options, stop: &CancellationToken) {
    let face = Face::registered(options.clone(), identity.clone());
    stop.run_until_cancelled(watch(&hook, &face)).await;
}

/// What the receiver was told of last, and when.
#[derive(Default)]
struct Told {
    waiting: BTreeSet<String>,
    at: Option<Moment>,
}

impl Told {
    /// Whether the receiver is to be told of what waits now.
    fn is_due(&self, waiting: &BTreeSet<String>) -> bool {
        let is_late = self.at.is_none_or(|at| at.elapsed() >= REMIND_EVERY);
        !waiting.is_empty() && (is_late || !waiting.is_subset(&self.waiting))
    }
}

async fn watch(hook: &Hook, face: &Face) {
    let mut told = Told::default();
    loop {
        match face.waiting().await {
            Ok(waiting) if told.is_due(&waiting) => {
                if !wake(hook, waiting.len()).await {
                    return;
                }
                told = Told { waiting, at: Some(Moment::now()) };
            }
            Ok(_) => {}
            Err(problem) => tracing::debug!(agent_id = face.id(), %problem, "what waits is not known"),
        }
        sleep(LOOK_EVERY).await;
    }
}

/// Wakes the receiver. Returns false if it wants no more.
async fn wake(hook: &Hook, depth: usize) -> bool {
    let now = hook.now().to_string();
    let id = hook.id_of(&["wake", &now]);
    let data = json!({"agent_id": hook.agent(), "depth": depth});
    let body = hook.body("wake", &data.to_string());
    // A request that was given up counts as told: the next reminder repeats it.
    !matches!(hook.post(&id, body, answers::woken).await, Delivered::Off)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receiver_is_told_of_what_is_new_and_of_nothing_else() {
        let of = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<BTreeSet<_>>();
        let told = Told { waiting: of(&["a", "b"]), at: Some(Moment::now()) };
        for (waiting, is_due) in [
            (of(&[]), false),
            (of(&["a"]), false),
            (of(&["a", "b"]), false),
            (of(&["a", "b", "c"]), true),
            (of(&["c"]), true),
        ] {
            assert_eq!(told.is_due(&waiting), is_due, "{waiting:?}");
        }
        assert!(Told::default().is_due(&of(&["a"])) && !Told::default().is_due(&of(&[])));
    }
}
