//! Threads: one conversation whose persona changes at step boundaries.

use super::{Client, ClientError};
use crate::{
    ids::{IdSource, MessageId, ThreadId},
    proto::v1::{self, apply_handoff_action_request::Action},
    time::Clock,
};

/// A thread. Made by [`Client::thread`] or [`Client::create_thread`].
#[derive(Debug, Clone)]
pub struct Thread {
    client: Client,
    id: String,
}

/// An open run of a thread, which works one step after the other. Made by [`Thread::run`].
///
/// The lease of the run lasts 60 s from the begin of a step. A longer step calls [`ThreadRun::keep`] within it.
#[derive(Debug, Clone)]
pub struct ThreadRun {
    thread: Thread,
    id: String,
    step: Step,
}

/// A step of a run: what it runs with.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Step {
    /// The number, starting at 1.
    pub number: u64,
    /// The spec in force, for the whole step.
    pub spec: v1::AgentSpec,
    /// The spec of its model.
    pub model: v1::ModelSpec,
    /// Whether another spec or revision than before is in force.
    pub switched: bool,
    /// The plugins to turn off before the step.
    pub deactivate_plugin_ids: Vec<String>,
    /// The plugins to turn on before the step.
    pub activate_plugin_ids: Vec<String>,
    /// The request that ended at the begin of the step.
    pub request: Option<v1::ThreadRequestEnded>,
}

impl Client {
    /// The thread with this id, without asking the broker.
    pub fn thread(&self, id: &ThreadId) -> Thread {
        Thread { client: self.clone(), id: id.to_string() }
    }

    /// Creates a thread.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`], among others with HANDOFF_RESOLVE_FAILED if the base spec or its model is not there.
    pub async fn create_thread(&self, request: v1::CreateThreadRequest) -> Result<(Thread, v1::Thread), ClientError> {
        let thread = self.answer(self.threads().create_thread(request).await)?.thread.unwrap_or_default();
        Ok((Thread { client: self.clone(), id: thread.thread_id.clone() }, thread))
    }
}

impl Thread {
    /// The id of the thread.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The present state of the thread.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with THREAD_UNKNOWN.
    pub async fn state(&self) -> Result<v1::Thread, ClientError> {
        let request = v1::GetThreadRequest { thread_id: self.id.clone() };
        Ok(self.client.answer(self.client.threads().get_thread(request).await)?.thread.unwrap_or_default())
    }

    /// Requests another persona for the next boundary. A further request takes its place.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with HANDOFF_PLUGIN_MISSING if the spec in force does not permit actions.
    pub async fn request(
        &self,
        spec_id: &str,
        action_id: MessageId,
    ) -> Result<v1::ApplyHandoffActionResponse, ClientError> {
        self.act(Action::RequestSpecId(spec_id.to_owned()), action_id).await
    }

    /// Makes a spec active, which is in force from the next boundary on.
    ///
    /// # Errors
    ///
    /// As [`Self::request`], and HANDOFF_RESOLVE_FAILED if the spec or its model is not there.
    pub async fn activate(
        &self,
        spec_id: &str,
        action_id: MessageId,
    ) -> Result<v1::ApplyHandoffActionResponse, ClientError> {
        self.act(Action::ActivateSpecId(spec_id.to_owned()), action_id).await
    }

    /// Returns to the base spec from the next boundary on.
    ///
    /// # Errors
    ///
    /// As [`Self::request`].
    pub async fn clear(&self, action_id: MessageId) -> Result<v1::ApplyHandoffActionResponse, ClientError> {
        self.act(Action::Clear(true), action_id).await
    }

    async fn act(&self, action: Action, id: MessageId) -> Result<v1::ApplyHandoffActionResponse, ClientError> {
        let (thread_id, action_id) = (self.id.clone(), id.to_string());
        let request = v1::ApplyHandoffActionRequest { thread_id, action_id, action: Some(action) };
        self.client.answer(self.client.threads().apply_handoff_action(request).await)
    }

    /// Opens a run under a new id, with its first step.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with RUN_OPEN while another run holds its lease, at most 60 s after its last boundary.
    pub async fn run(&self, clock: &dyn Clock, ids: &dyn IdSource) -> Result<ThreadRun, ClientError> {
        self.run_as(ids.message_id(clock.now())).await
    }

    /// Opens a run under this id. The same id again, before its first step has ended, opens no second run.
    ///
    /// # Errors
    ///
    /// As [`Self::run`], and RUN_FINAL if the run with this id has ended.
    pub async fn run_as(&self, run_id: MessageId) -> Result<ThreadRun, ClientError> {
        let id = run_id.to_string();
        let request = v1::BeginRunRequest { thread_id: self.id.clone(), run_id: id.clone() };
        let begun = self.client.answer(self.client.threads().begin_run(request).await)?;
        let step = Step {
            number: begun.thread.map_or(1, |thread| thread.step),
            spec: begun.spec.unwrap_or_default(),
            model: begun.model.unwrap_or_default(),
            switched: begun.switched,
            deactivate_plugin_ids: begun.deactivate_plugin_ids,
            activate_plugin_ids: begun.activate_plugin_ids,
            request: begun.request,
        };
        Ok(ThreadRun { thread: self.clone(), id, step })
    }
}

impl ThreadRun {
    /// The id of the run.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The thread.
    pub fn thread(&self) -> &Thread {
        &self.thread
    }

    /// The present step.
    pub fn step(&self) -> &Step {
        &self.step
    }

    /// Ends the present step, and begins the next one. A call that failed on the way is repeated as it is.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with RUN_FINAL if the lease is over, or RUN_OPEN if another run has begun since.
    pub async fn next_step(&mut self) -> Result<&Step, ClientError> {
        self.step = self.end_step(self.step.number).await?;
        Ok(&self.step)
    }

    /// Renews the lease within a long step.
    ///
    /// # Errors
    ///
    /// As [`Self::next_step`].
    pub async fn keep(&self) -> Result<(), ClientError> {
        match self.step.number {
            0 | 1 => {
                let request = v1::BeginRunRequest { thread_id: self.thread.id.clone(), run_id: self.id.clone() };
                self.thread.client.answer(self.thread.client.threads().begin_run(request).await).map(drop)
            }
            step => self.end_step(step - 1).await.map(drop),
        }
    }

    async fn end_step(&self, step: u64) -> Result<Step, ClientError> {
        let request = v1::EndStepRequest { thread_id: self.thread.id.clone(), run_id: self.id.clone(), step };
        let ended = self.thread.client.answer(self.thread.client.threads().end_step(request).await)?;
        Ok(Step {
            number: step + 1,
            spec: ended.spec.unwrap_or_default(),
            model: ended.model.unwrap_or_default(),
            switched: ended.switched,
            deactivate_plugin_ids: ended.deactivate_plugin_ids,
            activate_plugin_ids: ended.activate_plugin_ids,
            request: ended.request,
        })
    }

    /// Ends the run. A call that failed on the way is repeated as it is.
    ///
    /// # Errors
    ///
    /// As [`Self::next_step`].
    pub async fn end(&self) -> Result<v1::Thread, ClientError> {
        let request = v1::EndRunRequest { thread_id: self.thread.id.clone(), run_id: self.id.clone() };
        let ended = self.thread.client.answer(self.thread.client.threads().end_run(request).await)?;
        Ok(ended.thread.unwrap_or_default())
    }
}
