//! Agents of baton as agents of A2A 1.0: what an A2A client may reach, and its messages as handoffs.
//!
//! An agent that speaks A2A calls the gateway with the token of a grant, and acts as the agent that granted it. It lends its
//! task to a published agent or type. Nothing is kept: each answer comes from the broker's records, and all ids are made of the
//! caller, the published name and the id of the client's message, so a repeat finds the first. Must not know HTTP.

pub(crate) mod cards;
pub(crate) mod closing;
mod failure;
pub(crate) mod following;
mod lists;
mod messages;
pub(crate) mod pushing;
mod records;
pub(crate) mod sending;

use std::sync::Arc;

use baton_client::{envelope::signing, ids::check_name, proto::v1};
use serde_json::json;

pub(crate) use self::{
    failure::Failure,
    records::{Modes, View},
};
use crate::{ActError, Face, transfers::uuid_of_digest};

/// The version of the protocol.
pub(crate) const VERSION: &str = "1.0";
/// The ids of tasks of A2A clients begin with it.
const TASK_PREFIX: &str = "a2a-";

/// An agent that A2A clients reach, or the agents of a type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Published {
    /// The name in the address.
    name: String,
    is_type: bool,
}

impl Published {
    /// Reads an agent's id, or `type:NAME`.
    ///
    /// # Errors
    ///
    /// The problem in words.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (name, is_type) = text.strip_prefix("type:").map_or((text, false), |name| (name, true));
        check_name(name).map_err(|problem| problem.to_string())?;
        Ok(Self { name: name.to_owned(), is_type })
    }

    /// The name in the address: the agent's id, or that of the type.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The receiver of its handoffs.
    pub(crate) fn receiver(&self) -> String {
        if self.is_type { format!("type:{}", self.name) } else { self.name.clone() }
    }
}

/// A published agent or type, as one caller reaches it.
#[derive(Debug, Clone)]
pub(crate) struct Reached {
    pub(crate) face: Arc<Face>,
    pub(crate) published: Published,
}

impl Reached {
    /// The id of a context at the broker. It begins with the scope: a context of one caller at one address is no other's,
    /// also if the client has chosen its id.
    fn conversation_of(&self, context_id: &str) -> String {
        let digest = digest_of(&["scope", self.face.id(), &self.published.name]);
        format!("{}:{context_id}", hex::encode(&digest[..6]))
    }

    /// Whether the caller has begun the task here.
    fn has(&self, task: &v1::Task) -> bool {
        task.task_id.starts_with(TASK_PREFIX) && task.conversation_id.starts_with(&self.conversation_of(""))
    }

    /// The record of a task of this caller.
    async fn find(&self, task_id: &str) -> Result<Option<v1::Task>, ActError> {
        // An id that no task here has is not asked for.
        if !task_id.starts_with(TASK_PREFIX) || check_name(task_id).is_err() {
            return Ok(None);
        }
        match self.face.task(task_id).await {
            Ok(task) => Ok(Some(task).filter(|task| self.has(task))),
            Err(error) if error.is_absent() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Where a task of this caller is.
    pub(crate) async fn get(&self, task_id: &str) -> Result<View, Failure> {
        let task = self.find(task_id).await?.ok_or_else(Failure::task_not_found)?;
        self.view(task).await
    }

    /// Where the task of this record is.
    pub(crate) async fn view(&self, task: v1::Task) -> Result<View, Failure> {
        Ok(records::view(&self.face, task).await?)
    }
}

/// The id of the handoff that lends this task.
fn handoff_id_of(task_id: &str) -> String {
    uuid_of(&["handoff", task_id])
}

fn digest_of(parts: &[&str]) -> [u8; 32] {
    signing::sha256(&[b"baton.faces.a2a", json!(parts).to_string().as_bytes()])
}

/// A UUID made of these texts.
fn uuid_of(parts: &[&str]) -> String {
    uuid_of_digest(&digest_of(parts))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_published_name_is_an_agent_or_a_type() {
        let billing = Published::parse("type:billing").unwrap();
        assert_eq!((billing.name(), billing.receiver().as_str()), ("billing", "type:billing"));
        let alice = Published::parse("alice").unwrap();
        assert_eq!((alice.name(), alice.receiver().as_str()), ("alice", "alice"));
        for wrong in ["", "type:", "a/b", "type:a b", "all:billing"] {
            assert!(Published::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_id_is_made_of_its_parts_and_of_nothing_else() {
        assert_eq!(uuid_of(&["a", "bc"]), uuid_of(&["a", "bc"]));
        assert_ne!(uuid_of(&["a", "bc"]), uuid_of(&["ab", "c"]));
    }
}
