//! Agents without a session: a gateway posts to an address what waits for its agent.
//!
//! Owns the webhooks that run, each with the key of a grant of its agent. `tasks` and `wake` are the two kinds. Must not
//! keep the state of a task, which the broker has.

mod answers;
pub(super) mod command;
mod signature;
mod store;
mod tasks;
mod wake;

use std::{collections::HashMap, sync::Arc, time::Duration};

use baton_client::{
    Identity, Options,
    envelope::signing,
    time::{Clock as _, SystemClock, Timestamp},
};
use bytes::Bytes;
use tokio::{sync::Mutex, task::JoinHandle, time::sleep};
use tokio_util::sync::CancellationToken;

use self::store::{Kind, Store, Webhook};
use super::{
    files,
    grants::Folder,
    sender::{Answer, Delivered, Post, Sender, Verdict},
};
use crate::{Failure, outgoing::Target};

/// How often the folder is looked at for webhooks that were added or removed.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The pause before an agent connects again that the broker has not admitted.
const CONNECT_AGAIN: Duration = Duration::from_secs(10);

/// A webhook that runs.
struct Hook {
    webhook: Webhook,
    target: Target,
    sender: Arc<Sender>,
    store: Store,
    /// Locked while the state is written.
    writing: Mutex<()>,
}

impl Hook {
    fn agent(&self) -> &str {
        self.webhook.agent.as_str()
    }

    fn now(&self) -> Timestamp {
        SystemClock.now()
    }

    /// The id of a request about this: its repeats have the same, also those of a later process.
    fn id_of(&self, about: &[&str]) -> String {
        let parts = serde_json::json!([self.webhook.id, about]).to_string();
        format!("msg_{}", hex::encode(&signing::sha256(&[b"baton.gateway.webhook", parts.as_bytes()])[..16]))
    }

    /// Posts until the receiver has answered, and notes where it does not.
    async fn post<T>(&self, id: &str, body: Bytes, judge: impl Fn(&Answer) -> Verdict<T>) -> Delivered<T> {
        let head = || self.webhook.secret.head(id, self.now().to_parts().0, &body);
        let delivered = self.sender.deliver(&self.target, &Post { id, head: &head, body: body.clone() }, judge).await;
        match &delivered {
            Delivered::Done(_) => {}
            Delivered::Off => {
                tracing::warn!(agent_id = self.agent(), "the webhook has answered with status 410, and is off");
                let now = self.now();
                self.note(move |store, webhook| store.turn_off(webhook, now)).await;
            }
            Delivered::GivenUp(_) => self.note(Store::count_given_up).await,
        }
        delivered
    }

    async fn note(&self, change: impl FnOnce(&Store, &Webhook) -> Result<(), Failure> + Send + 'static) {
        let _writing = self.writing.lock().await;
        let (store, webhook) = (self.store.clone(), self.webhook.clone());
        let changed = files::on_thread(move || change(&store, &webhook).map_err(|problem| problem.to_string()));
        if let Err(problem) = changed.await {
            tracing::error!(agent_id = self.agent(), problem, "the state of a webhook is not written");
        }
    }
}

/// A webhook that runs under this key.
struct Running {
    identity: Identity,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

/// Runs the webhooks of the folder, until `stop`.
pub(super) async fn keep(folder: Folder, options: Options, sender: Arc<Sender>, stop: CancellationToken) {
    let store = Store::within(folder.path());
    let mut running: HashMap<String, Running> = HashMap::new();
    loop {
        let (folder, reading) = (folder.clone(), store.clone());
        match files::on_thread(move || wanted(&folder, &reading).map_err(|problem| problem.to_string())).await {
            Ok(wanted) => {
                running.retain(|id, running| {
                    let is_wanted = wanted
                        .iter()
                        .any(|(webhook, identity)| webhook.id == *id && identity.key_id == running.identity.key_id);
                    if !is_wanted {
                        running.stop.cancel();
                    }
                    is_wanted
                });
                for (webhook, identity) in wanted {
                    let (sender, store, options) = (Arc::clone(&sender), store.clone(), options.clone());
                    running.entry(webhook.id.clone()).or_insert_with(|| {
                        let (stop, signer) = (stop.child_token(), identity.clone());
                        let task = tokio::spawn(run(webhook, sender, store, signer, options, stop.clone()));
                        Running { identity, stop, task }
                    });
                }
            }
            Err(problem) => tracing::error!(problem, "the webhooks are not readable"),
        }
        tokio::select! {
            () = sleep(LOOK_EVERY) => {}
            () = stop.cancelled() => break,
        }
    }
    for running in running.into_values() {
        // Ends with the signal. A panic has its own log line.
        drop(running.task.await);
    }
}

/// The webhooks that are to run, each with a lent key of its agent.
fn wanted(folder: &Folder, store: &Store) -> Result<Vec<(Webhook, Identity)>, Failure> {
    let mut on = store.all()?;
    on.retain(|(_, state)| state.off_time.is_none());
    if on.is_empty() {
        return Ok(Vec::new());
    }
    let identities = folder.identities(SystemClock.now())?;
    let granted = on.into_iter().filter_map(|(webhook, _)| {
        let identity = identities.get(&webhook.agent)?.clone();
        Some((webhook, identity))
    });
    Ok(granted.collect())
}

async fn run(
    webhook: Webhook,
    sender: Arc<Sender>,
    store: Store,
    identity: Identity,
    options: Options,
    stop: CancellationToken,
) {
    let target = match sender.target(&webhook.url) {
        Ok(target) => target,
        Err(problem) => {
            tracing::error!(agent_id = %webhook.agent, "the address of the webhook {problem}");
            return stop.cancelled().await;
        }
    };
    let hook = Arc::new(Hook { webhook, target, sender, store, writing: Mutex::default() });
    match hook.webhook.kind {
        Kind::Wake => wake::serve(hook, &identity, &options, &stop).await,
        Kind::Tasks => {
            while !stop.is_cancelled() {
                if let Err(problem) = tasks::serve(Arc::clone(&hook), &identity, &options, &stop).await {
                    tracing::warn!(agent_id = hook.agent(), %problem, "the agent of a webhook connects again");
                }
                stop.run_until_cancelled(sleep(CONNECT_AGAIN)).await;
            }
        }
    }
}
