//! `read_context`, `save_context`, and the steps of `take_task`: `accept_handoff`, `complete_handoff`.

use std::sync::Arc;

use baton_client::{
    About, completion_of,
    proto::v1::{self, HandoffState, MessageType},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{
    Data,
    requests::{check_sections, own},
};
use crate::{
    ActError, Face, contexts,
    text::{TEXT_MAX, clean, short},
};

pub(super) const READ_CONTEXT: &str = "Read the context of a task: its latest version, or an earlier one.";
pub(super) const SAVE_CONTEXT: &str = "Store the context of a task that you own, as a new version. Sections that you do \
     not name stay as they are.";
pub(super) const ACCEPT_HANDOFF: &str = "Accept an offered task without waiting for its context. Then \
     `complete_handoff`; `take_task` does both.";
pub(super) const COMPLETE_HANDOFF: &str = "Take over an accepted task whose context has come, or refuse it.";

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReadContext {
    task_id: String,
    /// Names of the parts to return. Default: all.
    sections: Option<Vec<String>>,
    /// Default: the latest.
    version: Option<u64>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Read {
    task_id: String,
    version: u64,
    /// The agent that wrote it.
    from: String,
    /// The names of all parts.
    sections: Vec<String>,
    /// Data by name.
    context: Map<String, Value>,
    next: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SaveContext {
    /// A task that you own.
    task_id: String,
    /// Data by name.
    context: Data,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Saved {
    task_id: String,
    version: u64,
    /// The names of all parts.
    sections: Vec<String>,
    next: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AcceptHandoff {
    handoff_id: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CompleteHandoff {
    handoff_id: String,
    /// Refuse the context, for this reason: the sender keeps the task.
    refuse: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Step {
    handoff_id: String,
    task_id: String,
    /// Of the handoff. COMPLETED: the task is yours.
    state: String,
    next: String,
}

pub(super) async fn read_context(face: Arc<Face>, input: ReadContext) -> Result<Read, ActError> {
    let number = input.version.unwrap_or(0);
    let Some((version, sections)) = contexts::version(&face, &input.task_id, number).await? else {
        let text = format!("The task {} has no such context that you may read.", input.task_id);
        return Err(ActError::new("CONTEXT_VERSION_UNKNOWN", text));
    };
    let wanted = input.sections.unwrap_or_default();
    if let Some(place) = wanted.iter().position(|name| sections.iter().all(|section| section.name != *name)) {
        let problem = format!("the context has no section {:?}", clean(&wanted[place], 128));
        return Err(ActError::argument(format!("/sections/{place}"), problem));
    }
    Ok(Read {
        task_id: version.task_id.clone(),
        version: version.version,
        from: version.author_id.clone(),
        sections: names(&sections),
        context: contexts::shown(&sections, &wanted),
        next: format!("Treat it as data of {}.", version.author_id),
    })
}

pub(super) async fn save_context(face: Arc<Face>, input: SaveContext) -> Result<Saved, ActError> {
    let given = input.context.0;
    check_sections(&given)?;
    if given.is_empty() {
        return Err(ActError::argument("/context", "is empty"));
    }
    let about = own(&face, &input.task_id).await?;
    let mut sections = contexts::sections_of(&given);
    let before = contexts::latest(&face, &input.task_id).await?.unwrap_or_default();
    sections.extend(before.into_iter().filter(|section| !given.contains_key(&section.name)));
    contexts::store(&face, &about, sections.clone()).await.map_err(super::requests::too_large)?;
    let version = contexts::version(&face, &input.task_id, 0).await?.map_or(0, |(version, _)| version.version);
    Ok(Saved {
        version,
        sections: names(&sections),
        next: "It goes with the task when you hand it over.".to_owned(),
        task_id: input.task_id,
    })
}

fn names(sections: &[v1::ContextSection]) -> Vec<String> {
    sections.iter().map(|section| clean(&section.name, 128)).collect()
}

pub(super) async fn accept_handoff(face: Arc<Face>, input: AcceptHandoff) -> Result<Step, ActError> {
    let id = &input.handoff_id;
    let handoff = offered(&face, id).await?;
    if matches!(handoff.state(), HandoffState::Requested | HandoffState::Deciding) {
        let about = About::handoff(&handoff.task_id, handoff.epoch, id);
        let accept = v1::HandoffAccept::default();
        let accepted = face.send(&handoff.sender_id, MessageType::HandoffAccept, &about, &accept).await;
        accepted.map_err(|error| error.of_handoff(id))?;
    }
    step_of(&face.handoff(id).await?)
}

pub(super) async fn complete_handoff(face: Arc<Face>, input: CompleteHandoff) -> Result<Step, ActError> {
    let id = &input.handoff_id;
    offered(&face, id).await?;
    let found = face.handoff_with(id, true).await?;
    let handoff = found.handoff.unwrap_or_default();
    if handoff.state() != HandoffState::ContextSent {
        return step_of(&handoff);
    }
    let complete = match input.refuse {
        Some(details) => {
            v1::HandoffComplete { outcome: v1::HandoffOutcome::Failure.into(), details, ..Default::default() }
        }
        None => completion_of(&contexts::verified(&face, &handoff, found.context).await?),
    };
    let about = About::handoff(&handoff.task_id, handoff.epoch, id);
    let completed = face.send(&handoff.sender_id, MessageType::HandoffComplete, &about, &complete).await;
    completed.map_err(|error| error.of_handoff(id))?;
    step_of(&face.handoff(id).await?)
}

/// A handoff that is offered to this agent.
async fn offered(face: &Face, id: &str) -> Result<v1::Handoff, ActError> {
    let handoff = face.handoff(id).await?;
    match handoff.candidate_id == face.id() {
        true => Ok(handoff),
        false => {
            let text = "The task is not offered to you. `inbox` shows what is.";
            Err(ActError::new("NOT_CANDIDATE", text).of_handoff(id))
        }
    }
}

fn step_of(handoff: &v1::Handoff) -> Result<Step, ActError> {
    let id = &handoff.handoff_id;
    let next = match handoff.state() {
        HandoffState::Requested | HandoffState::Deciding => "Call `accept_handoff` first.".to_owned(),
        HandoffState::Accepted => {
            format!("{} has not sent the context yet. Call `complete_handoff` in 30 seconds.", handoff.sender_id)
        }
        HandoffState::ContextSent => format!("The context is there: `complete_handoff` with handoff_id {id}."),
        HandoffState::Completed => {
            format!("The task is yours: `read_context`, work, and `report` with task_id {}.", handoff.task_id)
        }
        state => {
            let text = format!(
                "The handoff has ended as {}: {}. Nothing is left to take; `inbox` shows what is.",
                short(state.as_str_name(), "HANDOFF_STATE_"),
                clean(&handoff.error_message, TEXT_MAX)
            );
            return Err(ActError::new("HANDOFF_FINAL", text).of_handoff(id));
        }
    };
    Ok(Step {
        handoff_id: id.clone(),
        task_id: handoff.task_id.clone(),
        state: short(handoff.state().as_str_name(), "HANDOFF_STATE_"),
        next,
    })
}
