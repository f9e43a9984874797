//! Explains decisions of the policies that are in force.

use super::{
    BrokerError,
    access::{Access, Caller},
};
use crate::{
    codes::FieldViolation,
    ids::{AgentId, AgentType},
    policy::{Action, Asked},
};

/// A question in writing, as `baton policy explain` takes it. The types of registered agents come from the directory.
#[derive(Debug, Clone, Default)]
pub struct AskedPolicy {
    /// The caller: agent:ID, operator:NAME, or anonymous.
    pub principal: String,
    /// The action, for example handOff.
    pub action: String,
    /// The object of the action, for example task:ID.
    pub resource: String,
    /// The participants of the object, ids with commas between them.
    pub participants: String,
    /// For handOff: the task's type.
    pub task_type: String,
}

/// A decision, and the rules that made it.
#[derive(Debug, Clone)]
pub struct ExplainedPolicy {
    /// Whether the policies permit it.
    pub is_allowed: bool,
    /// The decision in words.
    pub why: String,
    /// Each rule with its text.
    pub rules: Vec<(String, String)>,
}

/// The names of all actions.
pub fn actions() -> &'static [&'static str] {
    Action::NAMES
}

impl Access<'_> {
    /// Decides a question by the policies that are in force now.
    ///
    /// # Errors
    /// PERMISSION_DENIED for a caller that may not read the audit log, because an answer shows rules. FIELD_INVALID for a
    /// question that the schema of the policies does not know.
    pub fn explain(self, caller: &Caller, asked: &AskedPolicy) -> Result<ExplainedPolicy, BrokerError> {
        self.check_broker(caller, Action::ReadAuditLog)?;
        let invalid = |path: &str, problem: String| BrokerError::Fields {
            violations: vec![FieldViolation { path: path.to_owned(), problem }],
        };
        let ids = asked.participants.split(',').map(str::trim).filter(|id| !id.is_empty()).map(AgentId::parse);
        let participants = ids.collect::<Result<Vec<_>, _>>();
        let question = Asked {
            principal: asked.principal.clone(),
            principal_types: self.types_of(&asked.principal),
            // Groups are in tokens alone, which the broker does not keep.
            principal_groups: Vec::new(),
            action: asked.action.clone(),
            resource: asked.resource.clone(),
            resource_types: self.types_of(&asked.resource),
            participants: participants.map_err(|error| invalid("participants", error.to_string()))?,
            task_type: asked.task_type.clone(),
            mode: "TRANSFER".to_owned(),
            message_type: "INFO".to_owned(),
            topic: String::new(),
            force: false,
            agent: None,
            graph_id: String::new(),
            schema_id: String::new(),
            spec_id: String::new(),
            plan_id: String::new(),
        };
        let policies = self.policies.load();
        let decision = question.decide(&policies).map_err(|error| invalid("question", error.to_string()))?;
        let text = |rule: &String| (rule.clone(), policies.rule(rule).unwrap_or_default().trim().to_owned());
        Ok(ExplainedPolicy {
            is_allowed: decision.is_allowed,
            why: decision.to_string(),
            rules: decision.rules.iter().map(text).collect(),
        })
    }

    /// The types of the agent that a text names. None for other texts and for agents that are not registered.
    fn types_of(self, text: &str) -> Vec<AgentType> {
        let id = text.strip_prefix("agent:").and_then(|id| AgentId::parse(id).ok());
        id.and_then(|id| self.directory.get(&id)).map(|entry| entry.types.clone()).unwrap_or_default()
    }
}
