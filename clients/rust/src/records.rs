//! What the broker keeps beside handoffs: dead letters, graphs and specs, and tasks that operators move.

use tokio_stream::StreamExt as _;
use tonic::Streaming;

use super::{Client, ClientError};
use crate::proto::v1;

/// The answers of a call, one after the other. Its drop ends the call.
#[derive(Debug)]
pub struct Answers<T> {
    client: Client,
    stream: Streaming<T>,
}

impl<T> Answers<T> {
    /// The next answer; `None` at the end. Cancel safe: an answer is not lost.
    ///
    /// # Errors
    ///
    /// [`ClientError`] if the call fails, or the connection is lost.
    pub async fn next(&mut self) -> Result<Option<T>, ClientError> {
        self.stream.next().await.transpose().map_err(|status| self.client.failure(&status))
    }
}

/// The value of an answer that must have one.
fn found<T>(value: Option<T>, what: &str) -> Result<T, ClientError> {
    value.ok_or_else(|| ClientError::Answer(format!("there is no {what} in it")))
}

impl Client {
    /// A dead letter with its envelope.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with `DEAD_LETTER_UNKNOWN`.
    pub async fn get_dead_letter(&self, id: &str) -> Result<v1::DeadLetter, ClientError> {
        let request = v1::GetDeadLetterRequest { dead_letter_id: id.to_owned() };
        found(self.answer(self.dead_letters().get_dead_letter(request).await)?.dead_letter, "dead letter")
    }

    /// Puts a dead letter on its way again, to its agent or, if not empty, to this one.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`], among others with `DEAD_LETTER_SETTLED`.
    pub async fn redrive_dead_letter(&self, id: &str, to_agent_id: &str) -> Result<v1::DeadLetter, ClientError> {
        let (dead_letter_id, to_agent_id) = (id.to_owned(), to_agent_id.to_owned());
        let request = v1::RedriveDeadLetterRequest { dead_letter_id, to_agent_id };
        found(self.answer(self.dead_letters().redrive_dead_letter(request).await)?.dead_letter, "dead letter")
    }

    /// The dead letters that match, by default all PARKED ones, the oldest first, with their envelopes.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with `FIELD_INVALID`.
    pub async fn export_dead_letters(
        &self,
        filter: v1::DeadLetterFilter,
    ) -> Result<Answers<v1::ExportDeadLettersResponse>, ClientError> {
        let request = v1::ExportDeadLettersRequest { filter: Some(filter) };
        let stream = self.answer(self.dead_letters().export_dead_letters(request).await)?;
        Ok(Answers { client: self.clone(), stream })
    }

    /// Redrives the PARKED dead letters that match the filter of the request, the oldest first. An answer has the `error` of
    /// a dead letter that could not be redriven, and the call goes on. The drop of the answers stops it; the same call again
    /// continues with the rest.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`], among others with `NOTHING_MATCHES` and `FIELD_INVALID`.
    pub async fn redrive_dead_letters(
        &self,
        request: v1::RedriveDeadLettersRequest,
    ) -> Result<Answers<v1::RedriveDeadLettersResponse>, ClientError> {
        let stream = self.answer(self.dead_letters().redrive_dead_letters(request).await)?;
        Ok(Answers { client: self.clone(), stream })
    }

    /// Gives a dead letter up for good, for this reason, for people.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`], among others with `DEAD_LETTER_SETTLED`.
    pub async fn discard_dead_letter(&self, id: &str, reason: &str) -> Result<v1::DeadLetter, ClientError> {
        let (dead_letter_id, reason_text) = (id.to_owned(), reason.to_owned());
        let request = v1::DiscardDeadLetterRequest { dead_letter_id, reason_text };
        found(self.answer(self.dead_letters().discard_dead_letter(request).await)?.dead_letter, "dead letter")
    }

    /// Takes a task from its owner and hands it to another agent or `type:NAME`; for operators. Returns the task, which
    /// `baton.coordinator` owns until the new agent takes it.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`], among others with `STALE_EPOCH` and `PERMISSION_DENIED`.
    pub async fn reassign_task(
        &self,
        task_id: &str,
        expected_epoch: u64,
        to: &str,
        reason: &str,
    ) -> Result<v1::Task, ClientError> {
        let (task_id, to, reason_text) = (task_id.to_owned(), to.to_owned(), reason.to_owned());
        let request = v1::ReassignTaskRequest { task_id, expected_epoch, to, reason_text };
        found(self.answer(self.tasks().reassign_task(request).await)?.task, "task")
    }

    /// Registers a graph, or its next revision: with the `etag` of the revision that was read, or an empty one for any.
    /// Returns the graph and its warnings.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`], among others with `GRAPH_INVALID`, which names each problem, and `CONFLICT`.
    pub async fn register_graph(
        &self,
        graph: v1::Graph,
        etag: &str,
    ) -> Result<(v1::Graph, Vec<v1::GraphProblem>), ClientError> {
        let request = v1::RegisterGraphRequest { graph: Some(graph), etag: etag.to_owned() };
        let answer = self.answer(self.routing().register_graph(request).await)?;
        Ok((found(answer.graph, "graph")?, answer.problems))
    }

    /// All problems of a graph. Without an error among them it can be registered.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with `FIELD_INVALID` if a field has no meaning.
    pub async fn validate_graph(&self, graph: v1::Graph) -> Result<Vec<v1::GraphProblem>, ClientError> {
        let request = v1::ValidateGraphRequest { graph: Some(graph) };
        Ok(self.answer(self.routing().validate_graph(request).await)?.problems)
    }

    /// A graph, in its present revision.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with `GRAPH_UNKNOWN`.
    pub async fn get_graph(&self, graph_id: &str) -> Result<v1::Graph, ClientError> {
        let request = v1::GetGraphRequest { graph_id: graph_id.to_owned() };
        found(self.answer(self.routing().get_graph(request).await)?.graph, "graph")
    }

    /// Stores an agent spec, or its next revision: with the `etag` of the revision that was read, or an empty one for any.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`], among others with `CONFLICT` and `HANDOFF_RESOLVE_FAILED`.
    pub async fn put_agent_spec(&self, spec: v1::AgentSpec, etag: &str) -> Result<v1::AgentSpec, ClientError> {
        let request = v1::PutAgentSpecRequest { spec: Some(spec), etag: etag.to_owned() };
        found(self.answer(self.threads().put_agent_spec(request).await)?.spec, "spec")
    }

    /// A revision of an agent spec; 0: the present one. The prompt is empty where the caller may not read it.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with `SPEC_UNKNOWN`.
    pub async fn get_agent_spec(&self, spec_id: &str, revision: u64) -> Result<v1::AgentSpec, ClientError> {
        let request = v1::GetAgentSpecRequest { spec_id: spec_id.to_owned(), revision };
        found(self.answer(self.threads().get_agent_spec(request).await)?.spec, "spec")
    }

    /// Stores a model spec, or its next revision: see [`Self::put_agent_spec`].
    ///
    /// # Errors
    ///
    /// As [`Self::put_agent_spec`].
    pub async fn put_model_spec(&self, spec: v1::ModelSpec, etag: &str) -> Result<v1::ModelSpec, ClientError> {
        let request = v1::PutModelSpecRequest { spec: Some(spec), etag: etag.to_owned() };
        found(self.answer(self.threads().put_model_spec(request).await)?.spec, "spec")
    }

    /// Those of these blobs that the broker does not have, by their SHA-256.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with `FIELD_INVALID`.
    pub async fn missing_blobs(&self, sha256s: &[[u8; 32]]) -> Result<Vec<bytes::Bytes>, ClientError> {
        let sha256s = sha256s.iter().map(|sha256| sha256.to_vec().into()).collect();
        let request = v1::FindMissingBlobsRequest { sha256s };
        Ok(self.answer(self.blobs().find_missing_blobs(request).await)?.sha256s)
    }

    /// Deletes a blob of a workspace.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with `BLOB_UNKNOWN` or `PERMISSION_DENIED`.
    pub async fn delete_blob(&self, sha256: &[u8; 32], workspace_id: &str) -> Result<(), ClientError> {
        let request = v1::DeleteBlobRequest { sha256: sha256.to_vec().into(), workspace_id: workspace_id.to_owned() };
        self.answer(self.blobs().delete_blob(request).await).map(drop)
    }
}
