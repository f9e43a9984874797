//! Push notifications: each change of a task, posted to the addresses that its client has named.
//!
//! Owns the configurations, which are kept by the host of the gateway ([`Outbox`]), and the state that each receiver has seen
//! last: another process goes on from there. Must not know how a request is sent.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use a2a::{
    AuthenticationInfo, DeleteTaskPushNotificationConfigRequest, GetTaskPushNotificationConfigRequest,
    ListTaskPushNotificationConfigsRequest, StreamResponse, TaskPushNotificationConfig, error_code::INTERNAL_ERROR,
};
use baton_client::{
    ids::check_name,
    time::{Clock as _, SystemClock},
};
use http::HeaderValue;
use serde::{Deserialize, Serialize};
use tokio::{
    sync::{Mutex, MutexGuard, Notify},
    time::sleep,
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::{Failure, Modes, Published, Reached, digest_of, following::News, records::Seen, uuid_of};
use crate::Face;

/// The most configurations of a task.
const CONFIGS_MAX: usize = 8;
/// The longest token, scheme and credentials, in bytes.
const HEADER_MAX: usize = 4096;
/// How long a task's configurations are kept after its end, and where its end is not known: after their beginning.
const KEPT_AFTER_END: i64 = 7 * 24 * 60 * 60;
const KEPT_WITHOUT_END: i64 = 30 * 24 * 60 * 60;
/// How often grants are looked up for the agents of tasks, and old configurations are removed.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The pause before a task is read again that could not be read.
const AGAIN_AFTER: Duration = Duration::from_secs(5);

type Waiting<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A request to the address of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notification {
    /// What a log calls it.
    pub id: String,
    /// The address, as [`Outbox::check`] has taken it.
    pub url: String,
    /// The headers by name.
    pub head: Vec<(&'static str, HeaderValue)>,
    /// JSON.
    pub body: String,
}

/// The end of a notification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Posted {
    /// The receiver has it.
    Taken,
    /// The receiver wants no more, or has not answered within the time.
    Ended,
}

/// Keeps the configurations of tasks, and posts to their addresses.
pub trait Outbox: fmt::Debug + Send + Sync {
    /// Checks an address. `Err`: the problem in words.
    ///
    /// # Errors
    ///
    /// No request may go to it.
    fn check(&self, url: &str) -> Result<(), String>;

    /// The texts of all tasks, by task id.
    fn all(&self) -> Waiting<'_, Result<Vec<(String, String)>, String>>;

    /// Keeps the text of a task in the place of an earlier one. `None` removes it.
    fn keep<'a>(&'a self, task_id: &'a str, text: Option<String>) -> Waiting<'a, Result<(), String>>;

    /// Posts until the receiver has it, wants no more, or is given up.
    fn post(&self, notification: Notification) -> Waiting<'_, Posted>;
}

/// The configurations of a task.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    /// The agent that has begun the task.
    agent_id: String,
    /// The published agent or type, as the operator names it.
    receiver: String,
    /// In seconds of Unix time.
    create_time: i64,
    /// When the last receiver was told of the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    end_time: Option<i64>,
    configs: BTreeMap<String, Config>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    url: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    token: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    authentication: Option<AuthenticationInfo>,
    modes: Modes,
    /// What the receiver was told last. `None`: nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    seen: Option<Seen>,
}

impl Config {
    /// A configuration as a client wants it.
    fn of(given: &TaskPushNotificationConfig, modes: Modes, outbox: &dyn Outbox) -> Result<Self, Failure> {
        outbox.check(&given.url).map_err(|problem| Failure::invalid("url", problem))?;
        let config = Self {
            url: given.url.clone(),
            token: given.token.clone().filter(|token| !token.is_empty()),
            authentication: given.authentication.clone(),
            modes,
            seen: None,
        };
        let header = |field: &str, text: String| match HeaderValue::try_from(&text) {
            Ok(_) if text.len() <= HEADER_MAX => Ok(()),
            _ => Err(Failure::invalid(field, format!("must fit into a header of {HEADER_MAX} bytes"))),
        };
        header("token", config.token.clone().unwrap_or_default())?;
        header("authentication", config.authorization().unwrap_or_default())?;
        Ok(config)
    }

    fn authorization(&self) -> Option<String> {
        let given = self.authentication.as_ref()?;
        Some(format!("{} {}", given.scheme, given.credentials.as_deref()?))
    }

    fn head(&self) -> Vec<(&'static str, HeaderValue)> {
        let token = self.token.clone().map(|token| ("x-a2a-notification-token", token));
        let authorization = self.authorization().map(|text| ("authorization", text));
        let texts = [Some(("content-type", "application/a2a+json".to_owned())), token, authorization];
        let values = texts.into_iter().flatten();
        values.filter_map(|(name, text)| Some((name, HeaderValue::try_from(text).ok()?))).collect()
    }

    /// Whether the other one goes to the same receiver in the same way.
    fn is_like(&self, other: &Self) -> bool {
        let of = |config: &Self| (config.url.clone(), config.token.clone(), config.authorization(), config.modes);
        of(self) == of(other)
    }

    fn is_over(&self) -> bool {
        self.seen.as_ref().is_some_and(|seen| seen.state.is_terminal())
    }

    fn shown(&self, task_id: &str, id: &str) -> TaskPushNotificationConfig {
        TaskPushNotificationConfig {
            url: self.url.clone(),
            id: Some(id.to_owned()),
            task_id: task_id.to_owned(),
            token: self.token.clone(),
            authentication: self.authentication.clone(),
            tenant: None,
        }
    }
}

/// One receiver of one task, in one configuration: a changed one is another.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Line {
    task_id: String,
    config_id: String,
    digest: [u8; 32],
}

impl Line {
    fn of(task_id: &str, config_id: &str, config: &Config) -> Self {
        let parts =
            [Some(config.url.clone()), config.token.clone(), config.authorization()].map(Option::unwrap_or_default);
        let digest = digest_of(&["push", &parts[0], &parts[1], &parts[2]]);
        Self { task_id: task_id.to_owned(), config_id: config_id.to_owned(), digest }
    }
}

/// The push notifications of a gateway.
#[derive(Debug)]
pub(crate) struct Pushes {
    outbox: Arc<dyn Outbox>,
    /// By task id. `None`: not read yet.
    kept: Mutex<Option<HashMap<String, Kept>>>,
    changed: Notify,
}

impl Pushes {
    pub(crate) fn new(outbox: Arc<dyn Outbox>) -> Self {
        Self { outbox, kept: Mutex::new(None), changed: Notify::new() }
    }

    /// Checks what a client wants beside a message.
    pub(crate) fn check(&self, given: &TaskPushNotificationConfig, modes: Modes) -> Result<(), Failure> {
        Config::of(given, modes, &*self.outbox).map(drop)
    }

    /// Adds a configuration to a task of this caller, or changes the one of this id. Its receiver is told of the task as it
    /// is, and then of each change.
    pub(crate) async fn create(
        &self,
        reached: &Reached,
        task_id: &str,
        given: &TaskPushNotificationConfig,
        modes: Modes,
    ) -> Result<TaskPushNotificationConfig, Failure> {
        let config = Config::of(given, modes, &*self.outbox)?;
        let id = match given.id.as_deref().filter(|id| !id.is_empty()) {
            Some(id) => check_name(id).map(|()| id.to_owned()).map_err(|problem| Failure::invalid("id", problem))?,
            None => uuid_of(&["push", task_id, &config.url]),
        };
        let shown = config.shown(task_id, &id);
        let fresh = || Kept {
            agent_id: reached.face.id().to_owned(),
            receiver: reached.published.receiver(),
            create_time: now(),
            end_time: None,
            configs: BTreeMap::new(),
        };
        let mut all = self.kept().await?;
        let mut kept = all.get(task_id).cloned().unwrap_or_else(fresh);
        if kept.configs.len() >= CONFIGS_MAX && !kept.configs.contains_key(&id) {
            return Err(Failure::invalid("taskId", format!("the task has {CONFIGS_MAX} configurations")));
        }
        // A repeat changes nothing, and its receiver is not told again.
        if kept.configs.get(&id).is_some_and(|known| known.is_like(&config)) {
            return Ok(shown);
        }
        kept.configs.insert(id, config);
        kept.end_time = None;
        self.keep(&mut all, task_id, Some(kept)).await?;
        self.changed.notify_one();
        Ok(shown)
    }

    pub(crate) async fn get(
        &self,
        request: &GetTaskPushNotificationConfigRequest,
    ) -> Result<TaskPushNotificationConfig, Failure> {
        let all = self.kept().await?;
        let found = all.get(&request.task_id).and_then(|kept| kept.configs.get(&request.id));
        Ok(found.ok_or_else(Failure::task_not_found)?.shown(&request.task_id, &request.id))
    }

    /// The configurations of a task in the order of their ids.
    pub(crate) async fn list(
        &self,
        request: &ListTaskPushNotificationConfigsRequest,
    ) -> Result<Vec<TaskPushNotificationConfig>, Failure> {
        if request.page_size.is_some_and(|size| size < 0) {
            return Err(Failure::invalid("pageSize", "must be 0 or more"));
        }
        // All fit on one page.
        if request.page_token.as_deref().is_some_and(|token| !token.is_empty()) {
            return Err(Failure::invalid("pageToken", "there is no further page"));
        }
        let all = self.kept().await?;
        let configs = all.get(&request.task_id).into_iter().flat_map(|kept| &kept.configs);
        Ok(configs.map(|(id, config)| config.shown(&request.task_id, id)).collect())
    }

    /// Removes a configuration. An absent one is removed already.
    pub(crate) async fn delete(&self, request: &DeleteTaskPushNotificationConfigRequest) -> Result<(), Failure> {
        self.drop_config(&request.task_id, &request.id).await?;
        self.changed.notify_one();
        Ok(())
    }

    async fn kept(&self) -> Result<MappedKept<'_>, Failure> {
        let mut kept = self.kept.lock().await;
        if kept.is_none() {
            let mut read = HashMap::new();
            for (task_id, text) in self.outbox.all().await.map_err(|problem| not_kept(&problem))? {
                match serde_json::from_str(&text) {
                    Ok(found) => drop(read.insert(task_id, found)),
                    Err(problem) => tracing::error!(task_id, %problem, "push notifications are not readable"),
                }
            }
            *kept = Some(read);
        }
        Ok(MutexGuard::map(kept, |kept| kept.get_or_insert_default()))
    }

    /// Changes the files first, and the memory after them.
    async fn keep(&self, all: &mut HashMap<String, Kept>, task_id: &str, changed: Option<Kept>) -> Result<(), Failure> {
        let text = changed.as_ref().map(serde_json::to_string).transpose();
        let text = text.map_err(|problem| not_kept(&problem.to_string()))?;
        self.outbox.keep(task_id, text).await.map_err(|problem| not_kept(&problem))?;
        match changed {
            Some(kept) => drop(all.insert(task_id.to_owned(), kept)),
            None => drop(all.remove(task_id)),
        }
        Ok(())
    }

    async fn drop_config(&self, task_id: &str, id: &str) -> Result<(), Failure> {
        let mut all = self.kept().await?;
        let Some(mut kept) = all.get(task_id).cloned() else { return Ok(()) };
        kept.configs.remove(id);
        let left = (!kept.configs.is_empty()).then_some(kept);
        self.keep(&mut all, task_id, left).await
    }

    /// Notes what a receiver was told.
    async fn note(&self, line: &Line, seen: Seen) -> Result<(), Failure> {
        let mut all = self.kept().await?;
        let Some(mut kept) = all.get(&line.task_id).cloned() else { return Ok(()) };
        let Some(config) = kept.configs.get_mut(&line.config_id) else { return Ok(()) };
        if Line::of(&line.task_id, &line.config_id, config) != *line || config.seen.as_ref() == Some(&seen) {
            return Ok(());
        }
        config.seen = Some(seen);
        if kept.configs.values().all(Config::is_over) {
            kept.end_time = Some(now());
        }
        self.keep(&mut all, &line.task_id, Some(kept)).await
    }

    /// Follows each task that has a configuration, as its agent, until `stop`.
    pub(crate) async fn follow_all(
        self: &Arc<Self>,
        face_of: impl Fn(&str) -> Option<Arc<Face>>,
        published: &[Published],
        stop: &CancellationToken,
    ) {
        let mut running: HashMap<Line, AbortOnDropHandle<()>> = HashMap::new();
        loop {
            match self.due().await {
                Ok(due) => {
                    let mut lines = HashMap::new();
                    for (line, agent_id, receiver) in due {
                        let published = published.iter().find(|published| published.receiver() == receiver);
                        if let (Some(face), Some(published)) = (face_of(&agent_id), published) {
                            lines.insert(line, Reached { face, published: published.clone() });
                        }
                    }
                    running.retain(|line, following| lines.contains_key(line) && !following.is_finished());
                    for (line, reached) in lines {
                        let (pushes, key) = (Arc::clone(self), line.clone());
                        running.entry(key).or_insert_with(|| {
                            AbortOnDropHandle::new(tokio::spawn(async move { pushes.follow(&reached, &line).await }))
                        });
                    }
                }
                Err(failure) => tracing::error!(problem = failure.message, "push notifications wait"),
            }
            tokio::select! {
                () = self.changed.notified() => {}
                () = sleep(LOOK_EVERY) => {}
                () = stop.cancelled() => return,
            }
        }
    }

    /// The open lines, each with its agent and the receiver of its handoff. Removes old configurations.
    async fn due(&self) -> Result<Vec<(Line, String, String)>, Failure> {
        let mut all = self.kept().await?;
        let is_old = |kept: &Kept| match kept.end_time {
            Some(end) => end + KEPT_AFTER_END < now(),
            None => kept.create_time + KEPT_WITHOUT_END < now(),
        };
        let old: Vec<String> =
            all.iter().filter(|(_, kept)| is_old(kept)).map(|(task_id, _)| task_id.clone()).collect();
        for task_id in old {
            self.keep(&mut all, &task_id, None).await?;
        }
        let mut due = Vec::new();
        for (task_id, kept) in all.iter() {
            let open = kept.configs.iter().filter(|(_, config)| !config.is_over());
            due.extend(
                open.map(|(id, config)| (Line::of(task_id, id, config), kept.agent_id.clone(), kept.receiver.clone())),
            );
        }
        Ok(due)
    }

    /// Tells a receiver of a task until its end. What fails begins again with the next look.
    async fn follow(&self, reached: &Reached, line: &Line) {
        let mut news = None;
        loop {
            let config = match self.kept().await {
                Ok(all) => all.get(&line.task_id).and_then(|kept| kept.configs.get(&line.config_id)).cloned(),
                Err(_) => return,
            };
            let Some(config) = config else { return };
            let view = match reached.get(&line.task_id).await {
                Ok(view) => view,
                Err(failure) if failure == Failure::task_not_found() => {
                    // Retention has removed its record.
                    drop(self.drop_config(&line.task_id, &line.config_id).await);
                    return;
                }
                Err(failure) => {
                    tracing::debug!(task_id = line.task_id, problem = failure.message, "a task is read again");
                    sleep(AGAIN_AFTER).await;
                    continue;
                }
            };
            let events = match &config.seen {
                None => vec![StreamResponse::Task(view.task(config.modes))],
                Some(seen) => view.events_since(seen, config.modes),
            };
            for event in events {
                if self.post(line, &config, &event).await == Posted::Ended {
                    drop(self.drop_config(&line.task_id, &line.config_id).await);
                    return;
                }
            }
            if let Err(failure) = self.note(line, view.seen(config.modes)).await {
                tracing::error!(task_id = line.task_id, problem = failure.message, "what was told is not noted");
                return;
            }
            if view.state.is_terminal() {
                return;
            }
            let news = news.get_or_insert_with(|| News::after(&view.task));
            news.next(&reached.face, &line.task_id).await;
        }
    }

    async fn post(&self, line: &Line, config: &Config, event: &StreamResponse) -> Posted {
        let body = serde_json::to_string(event).unwrap_or_default();
        let (id, url) = (line.task_id.clone(), config.url.clone());
        self.outbox.post(Notification { id, url, head: config.head(), body }).await
    }
}

type MappedKept<'a> = tokio::sync::MappedMutexGuard<'a, HashMap<String, Kept>>;

fn not_kept(problem: &str) -> Failure {
    tracing::error!(problem, "push notifications are not kept");
    Failure::new(INTERNAL_ERROR, "the gateway cannot keep push notifications now")
}

fn now() -> i64 {
    SystemClock.now().to_parts().0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An outbox in memory, which takes each address but one.
    #[derive(Debug, Default)]
    struct Memory(std::sync::Mutex<BTreeMap<String, String>>);

    impl Outbox for Memory {
        fn check(&self, url: &str) -> Result<(), String> {
            if url == "http://inside/" { Err("is inside".to_owned()) } else { Ok(()) }
        }

        fn all(&self) -> Waiting<'_, Result<Vec<(String, String)>, String>> {
            Box::pin(async { Ok(self.0.lock().unwrap().clone().into_iter().collect()) })
        }

        fn keep<'a>(&'a self, task_id: &'a str, text: Option<String>) -> Waiting<'a, Result<(), String>> {
            Box::pin(async move {
                let mut all = self.0.lock().unwrap();
                match text {
                    Some(text) => drop(all.insert(task_id.to_owned(), text)),
                    None => drop(all.remove(task_id)),
                }
                Ok(())
            })
        }

        fn post(&self, _: Notification) -> Waiting<'_, Posted> {
            Box::pin(async { Posted::Taken })
        }
    }

    fn given(url: &str) -> TaskPushNotificationConfig {
        let authentication = AuthenticationInfo { scheme: "Bearer".to_owned(), credentials: Some("abc".to_owned()) };
        TaskPushNotificationConfig {
            url: url.to_owned(),
            id: None,
            task_id: String::new(),
            token: Some("t0".to_owned()),
            authentication: Some(authentication),
            tenant: None,
        }
    }

    #[test]
    fn a_configuration_is_checked_and_becomes_headers() {
        let outbox = Memory::default();
        let of = |given: &TaskPushNotificationConfig| Config::of(given, Modes::ALL, &outbox);
        let head = of(&given("https://a.example/")).unwrap().head();
        let head: Vec<(&str, &str)> = head.iter().map(|(name, value)| (*name, value.to_str().unwrap())).collect();
        let expected = [
            ("content-type", "application/a2a+json"),
            ("x-a2a-notification-token", "t0"),
            ("authorization", "Bearer abc"),
        ];
        assert_eq!(head, expected);
        for (wrong, field) in [
            (given("http://inside/"), "url"),
            (TaskPushNotificationConfig { token: Some("a\nb".to_owned()), ..given("https://a.example/") }, "token"),
            (
                TaskPushNotificationConfig { token: Some("x".repeat(HEADER_MAX + 1)), ..given("https://a.example/") },
                "token",
            ),
        ] {
            let failure = of(&wrong).unwrap_err();
            assert!(failure.code == -32602 && failure.message.starts_with(field), "{failure:?}");
        }
    }

    #[tokio::test]
    async fn what_is_kept_is_read_again_and_goes_after_its_time() {
        let outbox = Arc::new(Memory::default());
        let config = |seen: Option<Seen>| Config {
            seen,
            ..Config::of(&given("https://a.example/"), Modes::ALL, &*outbox).unwrap()
        };
        let kept = |age: i64, end_time: Option<i64>| Kept {
            agent_id: "alice".to_owned(),
            receiver: "bob".to_owned(),
            create_time: now() - age,
            end_time,
            configs: BTreeMap::from([("c".to_owned(), config(None))]),
        };
        for (task_id, kept) in [
            ("open", kept(60, None)),
            ("ended", kept(60, Some(now() - KEPT_AFTER_END + 60))),
            ("old", kept(60, Some(now() - KEPT_AFTER_END - 60))),
            ("lost", kept(KEPT_WITHOUT_END + 60, None)),
        ] {
            outbox.keep(task_id, Some(serde_json::to_string(&kept).unwrap())).await.unwrap();
        }
        outbox.keep("damaged", Some("{".to_owned())).await.unwrap();
        let pushes = Pushes::new(outbox.clone());
        let mut due: Vec<String> = pushes.due().await.unwrap().into_iter().map(|(line, ..)| line.task_id).collect();
        due.sort();
        assert_eq!(due, ["ended", "open"]);
        let left: Vec<String> = outbox.0.lock().unwrap().keys().cloned().collect();
        assert_eq!(left, ["damaged", "ended", "open"]);

        let get =
            |id: &str| GetTaskPushNotificationConfigRequest { task_id: "open".into(), id: id.into(), tenant: None };
        assert_eq!(pushes.get(&get("c")).await.unwrap().token.as_deref(), Some("t0"));
        assert_eq!(pushes.get(&get("d")).await.unwrap_err(), Failure::task_not_found());
        let delete = DeleteTaskPushNotificationConfigRequest { task_id: "open".into(), id: "c".into(), tenant: None };
        pushes.delete(&delete).await.unwrap();
        pushes.delete(&delete).await.unwrap();
        assert!(!outbox.0.lock().unwrap().contains_key("open"), "without a configuration there is nothing to keep");
    }
}
