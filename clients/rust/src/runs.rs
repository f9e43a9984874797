//! Runs through graphs: the tools of a node, and the turns of its model.

use super::{Client, ClientError, ModelTurn};
use crate::{
    ids::{IdSource, MessageId},
    proto::v1::{self, ToolShape},
    time::Clock,
};

/// A run. Made by [`Client::run`] or [`Client::start_run`].
#[derive(Debug, Clone)]
pub struct Run {
    client: Client,
    id: String,
}

/// A turn of a node's model, to be reported by [`Run::turn`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Turn {
    /// The id of the turn, a UUID: the idempotency key. A report that is repeated keeps it.
    pub id: String,
    /// All tool calls of the turn, at most 128.
    pub calls: Vec<v1::ToolCall>,
    /// Whether the model has finished.
    pub finished: bool,
    /// The output of the node for the nodes that follow, at most 65,536 bytes.
    pub output: String,
    /// The error that ended the node's work. Not together with a transfer call.
    pub error: String,
}

impl Turn {
    /// A turn without tool calls, under a new id.
    pub fn new(clock: &dyn Clock, ids: &dyn IdSource) -> Self {
        Self { id: ids.message_id(clock.now()).to_string(), ..Self::default() }
    }

    /// The turn with this tool call.
    #[must_use]
    pub fn call(mut self, call_id: &str, name: &str, arguments_json: &str) -> Self {
        let (call_id, name, arguments_json) = (call_id.to_owned(), name.to_owned(), arguments_json.to_owned());
        self.calls.push(v1::ToolCall { call_id, name, arguments_json });
        self
    }

    /// The turn with the calls of a model's response, and finished with its text if the model has ended by itself:
    ///
    /// ```ignore
    /// let read = ModelTurn::read(&response)?;
    /// let answer = run.turn("triage", &Turn::new(&clock, &ids).response(&read)).await?;
    /// history.extend(read.messages(&answer.tool_results));
    /// ```
    #[must_use]
    pub fn response(mut self, read: &ModelTurn) -> Self {
        self.calls.extend(read.calls.iter().cloned());
        if read.finished { self.finish(&read.output) } else { self }
    }

    /// The turn as the last one of its node, with this output.
    #[must_use]
    pub fn finish(self, output: &str) -> Self {
        Self { finished: true, output: output.to_owned(), ..self }
    }
}

impl Client {
    /// The run with this id, without asking the broker.
    pub fn run(&self, id: MessageId) -> Run {
        Run { client: self.clone(), id: id.to_string() }
    }

    /// Starts a run.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`], among others with GRAPH_UNKNOWN, and NOT_OWNER if the caller does not own the task.
    pub async fn start_run(&self, request: v1::StartRunRequest) -> Result<(Run, v1::Run), ClientError> {
        let run = self.answer(self.routing().start_run(request).await)?.run.unwrap_or_default();
        Ok((Run { client: self.clone(), id: run.run_id.clone() }, run))
    }
}

impl Run {
    /// The id of the run.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The tools that the node's model may call in its next turn, in this shape, and what the nodes before it gave.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with NODE_NOT_ACTIVE if the node is not active, and RUN_FINAL once the run has ended.
    pub async fn tools(&self, node_id: &str, shape: ToolShape) -> Result<v1::GetNodeToolsResponse, ClientError> {
        let (run_id, node_id) = (self.id.clone(), node_id.to_owned());
        let request = v1::GetNodeToolsRequest { run_id, node_id, shape: shape.into() };
        self.client.answer(self.client.routing().get_node_tools(request).await)
    }

    /// Reports a turn of the node's model. The same turn again gets its first answer, so a report whose answer was lost
    /// is repeated as it is.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with NODE_NOT_ACTIVE, NOT_OWNER, RUN_FINAL or MESSAGE_ID_REUSED. A wrong transfer is no
    /// error: the answer's `error_code` names the rule, and its tool results are for the model.
    pub async fn turn(&self, node_id: &str, turn: &Turn) -> Result<v1::RecordTurnResponse, ClientError> {
        let Turn { id, calls, finished, output, error } = turn.clone();
        let request = v1::RecordTurnRequest {
            run_id: self.id.clone(),
            node_id: node_id.to_owned(),
            turn_id: id,
            calls,
            finished,
            output,
            error,
        };
        self.client.answer(self.client.routing().record_turn(request).await)
    }

    /// The present state of the run.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with RUN_UNKNOWN.
    pub async fn state(&self) -> Result<v1::Run, ClientError> {
        let request = v1::GetRunRequest { run_id: self.id.clone() };
        Ok(self.client.answer(self.client.routing().get_run(request).await)?.run.unwrap_or_default())
    }

    /// Cancels the run.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with RUN_FINAL if the run has ended otherwise.
    pub async fn cancel(&self, reason_text: &str) -> Result<v1::Run, ClientError> {
        let request = v1::CancelRunRequest { run_id: self.id.clone(), reason_text: reason_text.to_owned() };
        Ok(self.client.answer(self.client.routing().cancel_run(request).await)?.run.unwrap_or_default())
    }
}
