//! Composes and signs envelopes.

use std::sync::Arc;

use bytes::Bytes;
use prost::{Message, Name};

use super::Identity;
use crate::{
    envelope::{self, context_of_sections, digest_of, read_checked_json},
    ids::IdSource,
    proto::v1::{self, MessageType, context_section::Content},
    time::Clock,
    trace::current_trace,
};

/// The task, epoch and correlation that an envelope refers to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct About {
    /// The task id; empty for mail that refers to no task.
    pub task_id: String,
    /// The epoch of the task as known to the sender.
    pub epoch: u64,
    /// The handoff id, or the id of the message that this one answers; may be empty.
    pub correlation_id: String,
}

impl About {
    /// Refers to a handoff of a task.
    pub fn handoff(task_id: &str, epoch: u64, handoff_id: &str) -> Self {
        Self { task_id: task_id.to_owned(), epoch, correlation_id: handoff_id.to_owned() }
    }

    /// Refers to a task.
    pub fn task(task_id: &str, epoch: u64) -> Self {
        Self::handoff(task_id, epoch, "")
    }
}

/// Composes and signs the envelopes of one agent.
#[derive(Clone)]
pub struct Composer {
    /// The sender, and the key it signs with.
    pub identity: Identity,
    /// The source of envelope timestamps.
    pub clock: Arc<dyn Clock>,
    /// The source of message ids.
    pub ids: Arc<dyn IdSource>,
}

impl Composer {
    /// Composes a signed envelope with a new message id, the current time and the present trace context
    /// ([`current_trace`](crate::current_trace)).
    pub fn compose<M: Message + Name>(&self, to: &str, kind: MessageType, about: &About, payload: &M) -> v1::Envelope {
        let mut envelope = self.draft(to, kind, about, payload);
        envelope::sign(&mut envelope, &self.identity.key_id, &self.identity.key);
        envelope
    }

    /// The same as [`Self::compose`] without a signature. Only a broker in development mode accepts it.
    pub fn draft<M: Message + Name>(&self, to: &str, kind: MessageType, about: &About, payload: &M) -> v1::Envelope {
        let now = self.clock.now();
        v1::Envelope {
            message_id: self.ids.message_id(now).to_string(),
            sender_id: self.identity.agent.to_string(),
            receiver_id: to.to_owned(),
            timestamp: Some(now.into()),
            message_type: kind.into(),
            correlation_id: about.correlation_id.clone(),
            task_id: about.task_id.clone(),
            epoch: about.epoch,
            payload: Some(envelope::payload_of(payload)),
            trace_context: current_trace().as_ref().map(Into::into),
            ..Default::default()
        }
    }

    /// Composes a signed envelope and encodes it for sending.
    pub fn encode<M: Message + Name>(&self, to: &str, kind: MessageType, about: &About, payload: &M) -> Bytes {
        self.compose(to, kind, about, payload).encode_to_vec().into()
    }
}

/// A context of these sections, each a name and its JSON text, with its digest.
pub fn context_of<'a>(sections: impl IntoIterator<Item = (&'a str, String)>) -> v1::TaskContextTransfer {
    let section = |(name, json): (&str, String)| v1::ContextSection {
        name: name.to_owned(),
        content: Some(Content::Json(json)),
        ..Default::default()
    };
    context_of_sections(sections.into_iter().map(section).collect())
}

/// A JSON section of a context. The broker takes an object or a list.
///
/// ```
/// let section = baton_client::json_section("goals", ["find the cause", "call back"]);
/// assert_eq!(section.name, "goals");
/// ```
pub fn json_section(name: &str, value: impl Into<serde_json::Value>) -> v1::ContextSection {
    let content = Some(Content::Json(value.into().to_string()));
    v1::ContextSection { name: name.to_owned(), content, ..Default::default() }
}

/// These names and values as the result of a task. A value of any type that can be serialized is a result, too:
/// `serde_json::to_value(&report)?`. 64-bit integers are exact.
pub fn result_of<K: Into<String>, V: Into<serde_json::Value>>(
    values: impl IntoIterator<Item = (K, V)>,
) -> serde_json::Value {
    let object = values.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
    serde_json::Value::Object(object)
}

/// The value of a text that the broker has checked. `None`: the text is empty.
pub(crate) fn value_in(text: &str) -> Option<serde_json::Value> {
    read_checked_json(text).ok()
}

/// The message that reports a successful takeover, with the digest computed from the received sections.
pub fn completion_of(context: &v1::TaskContextTransfer) -> v1::HandoffComplete {
    v1::HandoffComplete {
        outcome: v1::HandoffOutcome::Success.into(),
        context_digest: digest_of(&context.sections).to_vec().into(),
        ..Default::default()
    }
}
