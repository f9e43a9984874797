//! `find_agents`.

use std::sync::Arc;

use baton_client::proto::v1::{self, Presence};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    ActError, Face,
    text::{DESCRIPTION_MAX, clean, short},
};

pub(super) const DESCRIPTION: &str = "List agents that can take a task, best first.";

/// The most agents of an answer, and their number by default.
const LIMIT_MAX: u32 = 50;
const LIMIT: u32 = 10;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct FindAgents {
    /// Type that the agents have.
    agent_type: Option<String>,
    /// Skills that they have.
    skills: Option<Vec<String>>,
    /// Kind of work.
    task_type: Option<String>,
    languages: Option<Vec<String>>,
    limit: Option<u32>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Found {
    agents: Vec<FoundAgent>,
    next: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct FoundAgent {
    agent_id: String,
    types: Vec<String>,
    skills: Vec<String>,
    /// In the agent's own words.
    own_description: String,
    /// ALIVE, SUSPECT, GONE or UNSEEN.
    presence: String,
    is_full: bool,
    /// Why it has this rank.
    reasons: Vec<String>,
}

pub(super) async fn find_agents(face: Arc<Face>, input: FindAgents) -> Result<Found, ActError> {
    let limit = input.limit.unwrap_or(LIMIT);
    if !(1..=LIMIT_MAX).contains(&limit) {
        return Err(ActError::argument("/limit", format!("must be 1 to {LIMIT_MAX}")));
    }
    let client = face.client().await?;
    let request = v1::FindAgentsRequest {
        agent_type: input.agent_type.unwrap_or_default(),
        required_skills: input.skills.unwrap_or_default(),
        task_type: input.task_type.unwrap_or_default(),
        languages: input.languages.unwrap_or_default(),
        page_size: limit,
        ..Default::default()
    };
    let found = client.answer(client.agents().find_agents(request).await)?;
    let mut agents = Vec::new();
    for found in found.matches.into_iter().filter(|found| found.agent_id != face.id()).take(limit as usize) {
        let card = match client.get_agent(&found.agent_id).await {
            Ok(agent) => agent.card.unwrap_or_default(),
            Err(error) if error.reason().is_some() => v1::AgentCard::default(),
            Err(error) => return Err(error.into()),
        };
        agents.push(FoundAgent {
            types: names(&card.agent_types),
            skills: skills(&card),
            own_description: clean(&card.description, DESCRIPTION_MAX),
            presence: short(Presence::try_from(found.presence).unwrap_or_default().as_str_name(), "PRESENCE_"),
            is_full: found.load.is_some_and(|load| load.is_full),
            reasons: found.factors.iter().map(|factor| format!("{}: {}", factor.name, factor.text)).collect(),
            agent_id: found.agent_id,
        });
    }
    let next = match agents.is_empty() {
        true => "No agent fits. Ask for less, or tell the user.",
        false => "Lend a task with `delegate`, or give one away with `hand_over`.",
    };
    Ok(Found { agents, next: next.to_owned() })
}

pub(crate) fn names(names: &[String]) -> Vec<String> {
    names.iter().map(|name| clean(name, 128)).collect()
}

/// The names of the first skills of a card.
pub(crate) fn skills(card: &v1::AgentCard) -> Vec<String> {
    card.skills.iter().take(16).map(|skill| clean(&skill.name, 128)).collect()
}
