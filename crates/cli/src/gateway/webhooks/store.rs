//! The webhooks of a gateway: a file for each agent, which the commands write, and beside it the state, which the gateway
//! writes.

use std::{
    fs,
    path::{Path, PathBuf},
};

use baton_client::{
    ids::{AgentId, IdSource as _, SystemIds},
    time::Timestamp,
};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::{
    super::{super::Failure, files},
    signature::Secret,
};

/// The folder within that of the gateway.
const FOLDER: &str = "webhooks";
const EXTENSION: &str = "json";
const STATE_EXTENSION: &str = "state";
/// The largest file, in bytes.
const FILE_BYTES_MAX: u64 = 16 * 1024;

/// What a webhook is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(in super::super) enum Kind {
    /// Offers and tasks with their content. The answers decide.
    Tasks,
    /// A wake-up: the agent's id and the number of entries that wait.
    Wake,
}

/// A webhook, as its file has it.
#[derive(Debug, Clone)]
pub(super) struct Webhook {
    /// Drawn for each `webhook add`: the state of an earlier webhook of the agent is not that of this one.
    pub(super) id: String,
    pub(super) agent: AgentId,
    pub(super) url: String,
    pub(super) kind: Kind,
    pub(super) secret: Secret,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    id: String,
    agent_id: String,
    url: String,
    kind: Kind,
    secret: String,
}

/// What the gateway knows of a webhook.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct State {
    /// The webhook's id.
    id: String,
    /// When the receiver has answered with status 410, RFC 3339. `None`: it takes requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) off_time: Option<String>,
    /// The number of requests that were given up.
    #[serde(default)]
    pub(super) given_up: u64,
}

impl Webhook {
    pub(super) fn new(agent: AgentId, url: String, kind: Kind, secret: Secret) -> Self {
        Self { id: hex::encode(&SystemIds.random()[..8]), agent, url, kind, secret }
    }
}

/// The folder of webhooks.
#[derive(Debug, Clone)]
pub(super) struct Store(PathBuf);

impl Store {
    /// The folder within that of the gateway. It may be absent, which is one without webhooks.
    pub(super) fn within(gateway: &Path) -> Self {
        Self(gateway.join(FOLDER))
    }

    fn file(&self, agent: &AgentId) -> PathBuf {
        self.0.join(format!("{agent}.{EXTENSION}"))
    }

    fn state_file(&self, agent: &AgentId) -> PathBuf {
        self.0.join(format!("{agent}.{STATE_EXTENSION}"))
    }

    /// Writes a new webhook. Returns false if the agent has one.
    pub(super) fn add(&self, webhook: &Webhook) -> Result<bool, Failure> {
        files::make_folder(&self.0)?;
        files::check_folder(&self.0, "baton gateway webhook add")?;
        let document = Document {
            id: webhook.id.clone(),
            agent_id: webhook.agent.to_string(),
            url: webhook.url.clone(),
            kind: webhook.kind,
            secret: webhook.secret.text(),
        };
        let text = serde_json::to_string(&document).map_err(|error| Failure::failed(error.to_string()))?;
        let file = self.file(&webhook.agent);
        match files::write_new(&file, &text) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(false),
            written => written.map(|()| true).map_err(|error| Failure::writing(&file, &error)),
        }
    }

    /// Removes the agent's webhook. Returns false if it has none.
    pub(super) fn remove(&self, agent: &AgentId) -> Result<bool, Failure> {
        let remove = |file: PathBuf| files::remove(&file).map_err(|error| Failure::writing(&file, &error));
        let was_there = remove(self.file(agent))?;
        remove(self.state_file(agent))?;
        Ok(was_there)
    }

    /// All webhooks with their states, by agent.
    pub(super) fn all(&self) -> Result<Vec<(Webhook, State)>, Failure> {
        let entries = match fs::read_dir(&self.0) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(|error| Failure::file(&self.0, error))?,
        };
        files::check_folder(&self.0, "baton gateway webhook add")?;
        let mut all = Vec::new();
        for entry in entries {
            let name = entry.map_err(|error| Failure::file(&self.0, error))?.file_name();
            let named = name.to_str().and_then(|name| name.strip_suffix(EXTENSION)?.strip_suffix('.'));
            let Some(agent) = named.and_then(|name| AgentId::parse(name).ok()) else { continue };
            let path = self.file(&agent);
            let text = files::read(&path, FILE_BYTES_MAX).map_err(|error| Failure::file(&path, error))?;
            // Another command has removed it meanwhile.
            let Some(text) = text else { continue };
            let webhook = parse(agent, &text).map_err(|problem| Failure::file(&path, problem))?;
            let state = self.state(&webhook)?;
            all.push((webhook, state));
        }
        all.sort_by(|(one, _), (other, _)| one.agent.cmp(&other.agent));
        Ok(all)
    }

    fn state(&self, webhook: &Webhook) -> Result<State, Failure> {
        let path = self.state_file(&webhook.agent);
        let unused = State { id: webhook.id.clone(), ..State::default() };
        let text = files::read(&path, FILE_BYTES_MAX).map_err(|error| Failure::file(&path, error))?;
        let Some(text) = text else { return Ok(unused) };
        let state: State = serde_json::from_str(&text).map_err(|problem| Failure::file(&path, problem))?;
        Ok(if state.id == webhook.id { state } else { unused })
    }

    /// Notes that the receiver wants no more requests.
    pub(super) fn turn_off(&self, webhook: &Webhook, now: Timestamp) -> Result<(), Failure> {
        self.change(webhook, |state| state.off_time = Some(now.to_string()))
    }

    /// Notes that a request was given up.
    pub(super) fn count_given_up(&self, webhook: &Webhook) -> Result<(), Failure> {
        self.change(webhook, |state| state.given_up += 1)
    }

    fn change(&self, webhook: &Webhook, change: impl FnOnce(&mut State)) -> Result<(), Failure> {
        let mut state = self.state(webhook)?;
        change(&mut state);
        let text = serde_json::to_string(&state).map_err(|error| Failure::failed(error.to_string()))?;
        let path = self.state_file(&webhook.agent);
        files::replace(&path, &text).map_err(|error| Failure::writing(&path, &error))
    }
}

fn parse(agent: AgentId, text: &str) -> Result<Webhook, String> {
    let document: Document = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if document.agent_id != agent.as_str() {
        return Err(format!("agent_id is {}, and the name of the file {agent}", document.agent_id));
    }
    let secret = Secret::parse(&document.secret)?;
    Ok(Webhook { id: document.id, agent, url: document.url, kind: document.kind, secret })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use baton_client::time::{Clock as _, SystemClock};

    use super::*;

    fn webhook(agent: &str) -> Webhook {
        Webhook::new(AgentId::parse(agent).unwrap(), "https://a.example/".to_owned(), Kind::Tasks, Secret::draw())
    }

    #[test]
    fn a_webhook_is_there_until_it_is_removed_and_its_state_goes_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::within(folder.path());
        assert!(store.all().unwrap().is_empty() && !store.remove(&webhook("bob").agent).unwrap());
        let (bob, second) = (webhook("bob"), webhook("bob"));
        assert!(store.add(&bob).unwrap() && !store.add(&second).unwrap());
        let file = store.file(&bob.agent);
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(&file), mode(file.parent().unwrap())), (0o600, 0o700));

        store.count_given_up(&bob).unwrap();
        store.turn_off(&bob, SystemClock.now()).unwrap();
        let (found, state) = store.all().unwrap().remove(0);
        assert_eq!((&found.id, &found.url, &found.secret), (&bob.id, &bob.url, &bob.secret));
        assert_eq!((state.given_up, state.off_time.is_some(), mode(&store.state_file(&bob.agent))), (1, true, 0o600));

        // What the gateway notes of a webhook that was removed meanwhile is not about the next one.
        assert!(store.remove(&bob.agent).unwrap());
        store.turn_off(&bob, SystemClock.now()).unwrap();
        assert!(store.add(&second).unwrap());
        let (found, state) = store.all().unwrap().remove(0);
        assert_eq!((found.id, state.off_time, state.given_up), (second.id, None, 0));
    }

    #[test]
    fn a_damaged_file_and_a_readable_folder_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::within(folder.path());
        store.add(&webhook("bob")).unwrap();
        fs::copy(store.file(&webhook("bob").agent), store.file(&webhook("eve").agent)).unwrap();
        assert!(store.all().unwrap_err().to_string().contains("agent_id is bob"));
        fs::write(store.file(&webhook("eve").agent), "{").unwrap();
        assert_eq!(store.all().unwrap_err().code, crate::exit::CONFIGURATION);
        fs::set_permissions(&store.0, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        assert!(store.all().unwrap_err().to_string().contains("chmod 700"));
    }
}
