//! The course of one task: the message to the remote agent, its events, its questions, and its end.
//!
//! Each step that must not be done twice is in a report to the broker: the message before it goes out, the task and the
//! answers once the remote agent has them. A later process goes on from there.

use std::{fmt, time::Duration};

use a2a::{Message, SendMessageResponse, StreamResponse, TaskState, error_code::TASK_NOT_FOUND};
use baton_client::{
    Answer, Asked, ClientError, Link, OwnedTask,
    ids::{IdSource as _, SystemIds, WorkspaceId},
    proto::v1::{self, TaskStatus},
    time::{Clock as _, Moment, SystemClock},
};
use serde_json::json;
use tokio::{sync::watch, time::sleep};

use super::{
    http::Problem,
    parts,
    past::{Note, Past},
    remote::{self, Events},
    view::{self, View},
    work::Connector,
};
use crate::runner::{End, Input, RESULT_MAX, Reporter, insist};

/// The pauses between looks at a task without a stream, and between tries of what has failed.
const LOOK_FIRST: Duration = Duration::from_millis(500);
const LOOK_LAST: Duration = Duration::from_secs(10);
const TRY_LAST: Duration = Duration::from_secs(30);
/// How long tries are repeated.
const GIVE_UP_AFTER: Duration = Duration::from_secs(3600);
/// How often a remote task is looked at while its question waits for an answer.
const LOOK_WHILE_ASKING: Duration = Duration::from_secs(10);
/// How often an answered question is seen again before it counts as asked again.
const REPEATS_MAX: u32 = 3;
/// The longest words of the remote agent in a report, in bytes.
const WORDS_MAX: usize = 4096;
/// The pause before the broker is asked again.
const BROKER_AGAIN: Duration = Duration::from_secs(2);

/// Why the work cannot go on.
#[derive(Debug)]
pub(super) enum Trouble {
    Remote(Problem),
    Broker(ClientError),
    Here(String),
}

impl fmt::Display for Trouble {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Remote(problem) => problem.fmt(formatter),
            Self::Broker(error) => error.fmt(formatter),
            Self::Here(words) => formatter.write_str(words),
        }
    }
}

impl From<Problem> for Trouble {
    fn from(problem: Problem) -> Self {
        Self::Remote(problem)
    }
}

impl From<ClientError> for Trouble {
    fn from(error: ClientError) -> Self {
        Self::Broker(error)
    }
}

/// The next step.
enum Step {
    Send(Box<Message>),
    /// The message with the answer of this id.
    Answer(Box<Message>, String),
    Follow,
}

/// The work on one task.
pub(super) struct Course<'a> {
    connector: &'a Connector,
    link: &'a Link,
    task: &'a OwnedTask,
    input: &'a Input,
    opening: Message,
    past: Past,
    view: View,
    /// The question that was answered last.
    answered: Option<view::Asked>,
    /// Whether the remote agent has the message of the present step.
    is_heard: bool,
    /// Whether the remote agent has said that it has no streams.
    is_without_stream: bool,
}

impl<'a> Course<'a> {
    pub(super) async fn begin(
        connector: &'a Connector,
        link: &'a Link,
        task: &'a OwnedTask,
        input: &'a Input,
    ) -> Result<Self, Trouble> {
        let log = patiently(|| link.verify_custody(&task.task_id)).await?;
        let past = Past::of(&log.entries, link.id().as_str(), u64::MAX);
        // Reports of an earlier time as the owner belong to another message.
        let is_of_now = |message: &String| input.handoff_id.is_empty() || *message == input.handoff_id;
        let past = if past.message.as_ref().is_some_and(is_of_now) { past } else { Past::default() };
        let record = record_of(link, task).await?;
        let message_id = match (&past.message, input.handoff_id.as_str()) {
            (Some(id), _) => id.clone(),
            // The broker has the handoff no more. The id is reported before its use.
            (None, "") => SystemIds.message_id(SystemClock.now()).to_string(),
            (None, handoff) => handoff.to_owned(),
        };
        let opening = parts::opening(&connector.card, input, &message_id, &record.conversation_id);
        let view = past.task.clone().map(View::known).unwrap_or_default();
        Ok(Self {
            connector,
            link,
            task,
            input,
            opening,
            past,
            view,
            answered: None,
            is_heard: false,
            is_without_stream: false,
        })
    }

    /// The remote task, if it has not ended.
    pub(super) fn open_remote_task(&self) -> Option<String> {
        (!self.view.task_id.is_empty() && !self.view.state().is_terminal()).then(|| self.view.task_id.clone())
    }

    pub(super) async fn run(&mut self) -> Result<End, Trouble> {
        let mut reporter = Reporter::of(self.task);
        let mut step = match &self.past.task {
            Some(_) => Step::Follow,
            None => Step::Send(Box::new(self.opening.clone())),
        };
        if self.past.message.is_none() {
            let id = Some(self.opening.message_id.clone());
            self.report(Note { remote_message_id: id, ..Note::default() }).await?;
        }
        self.connector.begin(&self.task.task_id, &self.opening, self.past.task.as_deref());
        loop {
            self.follow(step, &mut reporter).await?;
            step = match self.view.state() {
                TaskState::Completed => return self.done().await,
                TaskState::InputRequired => self.ask(false).await?,
                TaskState::AuthRequired => self.ask(true).await?,
                state => return Ok(End::Failed(words_of(&state, &self.view.words()))),
            };
        }
    }

    async fn report(&mut self, note: Note) -> Result<(), Trouble> {
        let (status, details) = (TaskStatus::InProgress.into(), note.details());
        insist(self.task, &v1::TaskStatusUpdate { status, details, ..Default::default() }).await?;
        self.past.note(note);
        Ok(())
    }

    /// Goes on until the remote task has ended or asks, and reports its progress.
    async fn follow(&mut self, step: Step, reporter: &mut Reporter<'_>) -> Result<(), Trouble> {
        let (progress, lines) = watch::channel(String::new());
        let following = async move {
            let ended = self.repeat(step, &progress).await;
            // Ends the lines.
            drop(progress);
            ended
        };
        let (ended, ()) = tokio::join!(following, reporter.pass_on(lines));
        ended
    }

    async fn repeat(&mut self, mut step: Step, progress: &watch::Sender<String>) -> Result<(), Trouble> {
        let (mut failing, mut pause, mut look, mut repeats) = (None, LOOK_FIRST, LOOK_FIRST, 0);
        self.is_heard = false;
        self.is_without_stream = false;
        loop {
            let tried = self.attempt(&step, progress).await;
            if self.is_heard {
                step = Step::Follow;
                (failing, pause) = (None, LOOK_FIRST);
            }
            match tried {
                Ok(()) => {}
                Err(Trouble::Remote(problem)) if problem.is_passing() => {
                    let since = *failing.get_or_insert_with(Moment::now);
                    if since.elapsed() > GIVE_UP_AFTER {
                        return Err(Trouble::Here(format!("the remote agent cannot be reached: {problem}")));
                    }
                    tracing::warn!(task_id = %self.task.task_id, %problem, ?pause, "a request to the remote agent has failed");
                    sleep(pause).await;
                    pause = (pause * 2).min(TRY_LAST);
                    self.is_heard = false;
                    continue;
                }
                Err(trouble) => return Err(trouble),
            }
            if self.view.is_settled(self.answered.as_ref()) {
                return Ok(());
            }
            if self.view.is_asking() {
                repeats += 1;
                if repeats == REPEATS_MAX {
                    return Ok(());
                }
            }
            sleep(look).await;
            look = (look * 2).min(LOOK_LAST);
        }
    }

    /// Makes the step once, and reads its events until the task is settled or they end.
    async fn attempt(&mut self, step: &Step, progress: &watch::Sender<String>) -> Result<(), Trouble> {
        let remote = &self.connector.remote;
        let streams = remote.place.streams && !self.is_without_stream;
        let opened = match step {
            Step::Send(message) | Step::Answer(message, _) if streams => remote.send_streaming(message).await,
            Step::Send(message) | Step::Answer(message, _) => remote.send(message).await.map(|answer| {
                Events::one(match answer {
                    SendMessageResponse::Task(task) => StreamResponse::Task(task),
                    SendMessageResponse::Message(message) => StreamResponse::Message(message),
                })
            }),
            Step::Follow if streams => remote.subscribe(&self.view.task_id).await,
            Step::Follow => remote.get(&self.view.task_id).await.map(|task| Events::one(StreamResponse::Task(task))),
        };
        let mut events = match opened {
            Err(problem) if streams && remote::is_without_stream(&problem) => {
                self.is_without_stream = true;
                return Box::pin(self.attempt(step, progress)).await;
            }
            opened => opened?,
        };
        let mut is_first = true;
        while let Some(event) = events.next().await? {
            let words = self.view.apply(event).map_err(Problem::Invalid)?;
            if std::mem::take(&mut is_first) {
                self.heard(step).await?;
            }
            if !words.is_empty() && !self.view.is_asking() && !self.view.state().is_terminal() {
                progress.send_replace(cut(&words).to_owned());
            }
            if self.view.is_settled(self.answered.as_ref()) {
                break;
            }
        }
        Ok(())
    }

    /// Notes that the remote agent has the message of this step.
    async fn heard(&mut self, step: &Step) -> Result<(), Trouble> {
        match step {
            Step::Send(_) if !self.view.task_id.is_empty() => {
                let id = self.view.task_id.clone();
                self.connector.begin(&self.task.task_id, &self.opening, Some(&id));
                self.report(Note { remote_task_id: Some(id), ..Note::default() }).await?;
            }
            Step::Answer(_, id) => {
                self.report(Note { remote_answer_id: Some(id.clone()), ..Note::default() }).await?;
            }
            Step::Send(_) | Step::Follow => {}
        }
        // Not before the report: a process that ends between the two repeats the message.
        self.is_heard = true;
        Ok(())
    }

    /// Passes the question of the remote agent on, and its answer back.
    async fn ask(&mut self, is_text_alone: bool) -> Result<Step, Trouble> {
        let asked = self.view.asked();
        let prompt = parts::prompt(self.view.message(), &self.input.from, is_text_alone);
        let (connector, remote_task) = (self.connector, self.view.task_id.clone());
        loop {
            // One look for both: an answer that comes after it is found by the wait.
            let record = record_of(self.link, self.task).await?;
            if let Some((id, answer)) = self.answer_in(&record) {
                let (context, task) = (&self.view.context_id, &self.view.task_id);
                let message = parts::reply(&answer, &id, context, task, is_text_alone);
                self.answered = asked;
                return Ok(Step::Answer(Box::new(message), id));
            }
            let moved = tokio::select! {
                ended = self.wait_for_answer(&record, &prompt) => {
                    ended?;
                    continue;
                }
                moved = moves_on(connector, &remote_task, asked.as_ref()) => moved?,
            };
            self.view.apply(StreamResponse::Task(moved)).map_err(Problem::Invalid)?;
            // Withdraws the question.
            let (status, details) = (TaskStatus::InProgress.into(), "the remote agent goes on by itself".to_owned());
            insist(self.task, &v1::TaskStatusUpdate { status, details, ..Default::default() }).await?;
            return Ok(Step::Follow);
        }
    }

    /// The answer that the remote agent does not have yet, with its id.
    fn answer_in(&self, record: &v1::Task) -> Option<(String, Answer)> {
        let last = record.last_answer.as_ref()?;
        let (question, input) = (last.question.as_ref()?, last.answer.as_ref()?);
        if self.past.answers.contains(&last.answer_id) || !self.past.questions.contains(&question.message_id) {
            return None;
        }
        let (text, data) = (input.text.clone(), serde_json::from_str(&input.data_json).ok());
        Some((last.answer_id.clone(), Answer { agent_id: question.asked_agent_id.clone(), text, data }))
    }

    /// Asks, or goes on waiting for the answer to what an earlier process has asked.
    async fn wait_for_answer(&mut self, record: &v1::Task, prompt: &v1::TaskPrompt) -> Result<(), Trouble> {
        let ended = match &record.open_prompt {
            Some(open) => {
                self.past.questions.insert(open.message_id.clone());
                self.link.resume_ask(&self.task.task_id).await
            }
            None => self.task.ask(prompt.clone(), "").await,
        };
        match ended {
            Ok(Asked::Answered(_)) => {
                let record = record_of(self.link, self.task).await?;
                let question = record.last_answer.and_then(|last| last.question);
                self.past.questions.extend(question.map(|question| question.message_id));
                Ok(())
            }
            // It has no deadline, so another process of this agent has asked anew.
            Ok(Asked::Expired | Asked::Withdrawn) => {
                sleep(BROKER_AGAIN).await;
                Ok(())
            }
            Err(error) if error.is_passing() => {
                sleep(BROKER_AGAIN).await;
                Ok(())
            }
            Err(error) => {
                let (question, from) = (cut(&prompt.question), &self.input.from);
                Err(Trouble::Here(format!("the remote agent asks {question:?}, and {from} cannot be asked: {error}")))
            }
        }
    }

    /// The result of a completed task.
    async fn done(&mut self) -> Result<End, Trouble> {
        // A stream that was cut may have lost them.
        if !self.view.has_artifacts() && !self.view.task_id.is_empty() {
            match self.connector.remote.get(&self.view.task_id).await {
                Ok(task) => drop(self.view.apply(StreamResponse::Task(task)).map_err(Problem::Invalid)?),
                Err(problem) => tracing::debug!(%problem, "a remote task that is done cannot be read"),
            }
        }
        let result = self.view.result();
        match result.len() > RESULT_MAX {
            true => self.store(&result).await.map(End::Done),
            false => Ok(End::Done(result)),
        }
    }

    /// Stores a large result as a blob of the task. Returns the result that refers to it.
    async fn store(&self, result: &str) -> Result<String, Trouble> {
        let here =
            |problem: String| Trouble::Here(format!("a result of {} bytes is not stored: {problem}", result.len()));
        let mut file = tempfile::NamedTempFile::new().map_err(|problem| here(problem.to_string()))?;
        std::io::Write::write_all(&mut file, result.as_bytes()).map_err(|problem| here(problem.to_string()))?;
        let workspace = WorkspaceId::parse(&format!("task:{}", self.task.task_id));
        let workspace = workspace.map_err(|problem| here(problem.to_string()))?;
        let client = self.link.client().await?;
        let blob = client.put_blob(file.path(), "application/json", &workspace, &|_, _| {}).await;
        let blob = blob.map_err(|problem| here(problem.to_string()))?;
        let sha256 = hex::encode(&blob.sha256);
        let (uri, size) = (format!("baton:blob/{sha256}"), blob.size_bytes);
        let shown = json!({"uri": uri, "sha256": sha256, "size_bytes": size, "media_type": "application/json"});
        Ok(json!({ "blob": shown }).to_string())
    }
}

/// Completes when the remote task no longer asks this.
async fn moves_on(connector: &Connector, id: &str, asked: Option<&view::Asked>) -> Result<a2a::Task, Trouble> {
    loop {
        sleep(LOOK_WHILE_ASKING).await;
        let task = match connector.remote.get(id).await {
            Ok(task) => task,
            Err(problem @ Problem::Refused { code: TASK_NOT_FOUND, .. }) => return Err(problem.into()),
            // The question stays open: the answer tells more than a look.
            Err(problem) => {
                tracing::debug!(remote_task = id, %problem, "a remote task that asks cannot be looked at");
                continue;
            }
        };
        let mut view = View::known(id.to_owned());
        view.apply(StreamResponse::Task(task.clone())).map_err(Problem::Invalid)?;
        if view.asked().as_ref() != asked {
            return Ok(task);
        }
    }
}

async fn record_of(link: &Link, task: &OwnedTask) -> Result<v1::Task, ClientError> {
    patiently(|| link.get_task(&task.task_id)).await
}

/// Asks the broker until it answers.
async fn patiently<T, F: Future<Output = Result<T, ClientError>>>(ask: impl Fn() -> F) -> Result<T, ClientError> {
    loop {
        match ask().await {
            Err(error) if error.is_passing() => sleep(BROKER_AGAIN).await,
            answer => return answer,
        }
    }
}

fn cut(words: &str) -> &str {
    &words[..words.floor_char_boundary(WORDS_MAX)]
}

/// Why the remote agent has not done its task.
fn words_of(state: &TaskState, words: &str) -> String {
    let how = match state {
        TaskState::Failed => "the remote agent has failed",
        TaskState::Rejected => "the remote agent has rejected the task",
        TaskState::Canceled => "the task was canceled at the remote agent",
        _ => "the remote agent has left the task in an unknown state",
    };
    match cut(words) {
        "" => how.to_owned(),
        words => format!("{how}: {words}"),
    }
}
