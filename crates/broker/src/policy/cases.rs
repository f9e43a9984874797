//! Policy questions as text, to test a policy and to explain a decision.

use serde::Deserialize;

use super::{
    Decision, PARSED_SCHEMA, Policies,
    question::{Action, Agent, Operator, Principal, Question, Resource, Shared},
};
use crate::ids::{AgentId, AgentType};

/// A file of cases.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cases {
    /// The cases, in the order of the file.
    #[serde(rename = "case")]
    pub cases: Vec<Case>,
}

/// A question with its expected decision.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// The name, for reports; may be empty.
    #[serde(default)]
    pub name: String,
    /// The question.
    #[serde(flatten)]
    pub asked: Asked,
    /// The expected decision.
    pub expect: Expected,
    /// The rule that must decide, if given.
    pub rule: Option<String>,
}

/// The expected decision of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Expected {
    /// The policy permits it.
    Allow,
    /// The policy denies it.
    Deny,
}

/// A question in writing.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Asked {
    /// The caller: agent:ID, operator:NAME, or anonymous.
    pub principal: String,
    /// A type of the calling agent. May be repeated.
    #[serde(default)]
    pub principal_types: Vec<AgentType>,
    /// A group of the calling operator. May be repeated.
    #[serde(default)]
    pub principal_groups: Vec<String>,
    /// The action, for example handOff. `baton policy show schema` lists all actions.
    pub action: String,
    /// The object of the action: agent:ID, type:NAME, task:ID, handoff:ID, negotiation:ID, dead-letter:ID,
    /// workspace:ID, run:ID, thread:ID, plan:ID, registration:KIND:NAME (KIND is graph, schema, agent-spec or
    /// model-spec), or broker.
    pub resource: String,
    /// A type of the agent that is the resource. May be repeated.
    #[serde(default)]
    pub resource_types: Vec<AgentType>,
    /// A participant of the task, handoff or workspace, or the owner of the registration, an agent's id. May be repeated.
    #[serde(default)]
    pub participants: Vec<AgentId>,
    /// For handOff: the task's type.
    #[serde(default)]
    pub task_type: String,
    /// For handOff: the mode, TRANSFER or DELEGATE.
    #[serde(default = "transfer")]
    pub mode: String,
    /// For send and sendToAll: the message type, for example INFO.
    #[serde(default = "info")]
    pub message_type: String,
    /// For appendWorkspace and readWorkspace: the topic, normalised.
    #[serde(default)]
    pub topic: String,
    /// For deregister: whether the agent may have open tasks and offers.
    #[serde(default)]
    pub force: bool,
    /// For assignType: the id of the agent that gets the type.
    pub agent: Option<AgentId>,
    /// For registerGraph and startRun: the id of the graph.
    #[serde(default)]
    pub graph_id: String,
    /// For registerSchema: the id of the schema.
    #[serde(default)]
    pub schema_id: String,
    /// For manageSpecs and readSpec: the id of the spec.
    #[serde(default)]
    pub spec_id: String,
    /// For submitPlan: the id of the plan.
    #[serde(default)]
    pub plan_id: String,
}

fn transfer() -> String {
    "TRANSFER".to_owned()
}

fn info() -> String {
    "INFO".to_owned()
}

/// The reason why a question is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CaseError {
    /// The text is not a principal.
    #[error("{0:?} is not a principal; a principal is agent:ID, operator:NAME or anonymous")]
    Principal(String),
    /// The text is not a resource.
    #[error(
        "{0:?} is not a resource; a resource is agent:ID, type:NAME, task:ID, handoff:ID, negotiation:ID, dead-letter:ID, \
         workspace:ID, run:ID, thread:ID, plan:ID, registration:KIND:NAME or broker"
    )]
    Resource(String),
    /// The text is not an action.
    #[error("{0:?} is not an action; the actions are {known}", known = Action::NAMES.join(", "))]
    Action(String),
    /// `assignType` without its agent.
    #[error("the action assignType needs `agent`, the agent that gets the type")]
    AgentMissing,
    /// The schema does not allow this principal, action and resource together.
    #[error("the schema does not allow this request: {0}")]
    NotInSchema(String),
}

/// The result of a case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    /// The actual decision.
    pub decision: Decision,
    /// The difference from the expectation, if any.
    pub problem: Option<String>,
}

impl Asked {
    /// Decides the question by these policies.
    ///
    /// # Errors
    /// Fails if the schema does not know the question.
    pub fn decide(&self, policies: &Policies) -> Result<Decision, CaseError> {
        let participants: Vec<&str> = self.participants.iter().map(AgentId::as_str).collect();
        let principal = match self.principal.split_once(':') {
            Some(("agent", id)) => Principal::Agent(Agent { id, types: &self.principal_types }),
            Some(("operator", name)) => Principal::Operator(Operator { name, groups: &self.principal_groups }),
            None if self.principal == "anonymous" => Principal::Anonymous,
            Some(_) | None => return Err(CaseError::Principal(self.principal.clone())),
        };
        let shared = |id| Shared { id, participants: &participants };
        let resource = match self.resource.split_once(':') {
            Some(("agent", id)) => Resource::Agent(Agent { id, types: &self.resource_types }),
            Some(("type", name)) => Resource::Type(name),
            Some(("task", id)) => Resource::Task(shared(id)),
            Some(("handoff", id)) => Resource::Handoff(shared(id)),
            Some(("negotiation", id)) => Resource::Negotiation(shared(id)),
            Some(("dead-letter", id)) => Resource::DeadLetter(shared(id)),
            Some(("workspace", id)) => Resource::Workspace(shared(id)),
            Some(("run", id)) => Resource::Run(shared(id)),
            Some(("thread", id)) => Resource::Thread(shared(id)),
            Some(("plan", id)) => Resource::Plan(shared(id)),
            Some(("registration", name)) => Resource::Registration(shared(name)),
            None if self.resource == "broker" => Resource::Broker,
            Some(_) | None => return Err(CaseError::Resource(self.resource.clone())),
        };
        let question = Question { principal, action: self.action()?, resource };
        question.check(&PARSED_SCHEMA).map_err(CaseError::NotInSchema)?;
        Ok(policies.decide(&question).as_ref().clone())
    }

    fn action(&self) -> Result<Action<'_>, CaseError> {
        let Self { task_type, mode, message_type, topic, graph_id, schema_id, spec_id, plan_id, .. } = self;
        let agent = || {
            let id = self.agent.as_ref().ok_or(CaseError::AgentMissing)?.as_str();
            Ok(Agent { id, types: &[] })
        };
        Ok(match self.action.as_str() {
            "handOff" => Action::HandOff { task_type, mode },
            "send" => Action::Send { message_type },
            "sendToAll" => Action::SendToAll { message_type },
            "readTask" => Action::ReadTask,
            "reassignTask" => Action::ReassignTask,
            "readContext" => Action::ReadContext,
            "readHandoff" => Action::ReadHandoff,
            "readNegotiation" => Action::ReadNegotiation,
            "readDeadLetter" => Action::ReadDeadLetter,
            "settleDeadLetter" => Action::SettleDeadLetter,
            "readDirectory" => Action::ReadDirectory,
            "enroll" => Action::Enroll,
            "invite" => Action::Invite,
            "changeCard" => Action::ChangeCard,
            "assignType" => Action::AssignType { agent: agent()? },
            "manageKeys" => Action::ManageKeys,
            "deregister" => Action::Deregister { force: self.force },
            "readAuditLog" => Action::ReadAuditLog,
            "appendWorkspace" => Action::AppendWorkspace { topic },
            "readWorkspace" => Action::ReadWorkspace { topic },
            "registerGraph" => Action::RegisterGraph { graph: graph_id },
            "startRun" => Action::StartRun { graph: graph_id },
            "writeBlob" => Action::WriteBlob,
            "readBlob" => Action::ReadBlob,
            "registerSchema" => Action::RegisterSchema { schema: schema_id },
            "recordTurn" => Action::RecordTurn,
            "readRun" => Action::ReadRun,
            "manageSpecs" => Action::ManageSpecs { spec: spec_id },
            "readSpec" => Action::ReadSpec { spec: spec_id },
            "useThread" => Action::UseThread,
            "readThread" => Action::ReadThread,
            "submitPlan" => Action::SubmitPlan { plan: plan_id },
            "readPlan" => Action::ReadPlan,
            "cancelPlan" => Action::CancelPlan,
            unknown => return Err(CaseError::Action(unknown.to_owned())),
        })
    }
}

impl Case {
    /// Decides the question, and compares with the expectation.
    ///
    /// # Errors
    /// Fails if the schema does not know the question.
    pub fn check(&self, policies: &Policies) -> Result<Checked, CaseError> {
        let decision = self.asked.decide(policies)?;
        let expected = self.expect == Expected::Allow;
        let other_rule = self.rule.as_ref().filter(|rule| !decision.rules.contains(rule));
        let problem = match other_rule {
            // A wrong decision comes first: the deciding rule matters only for a right one.
            _ if decision.is_allowed != expected => Some(format!("expected {:?}: {decision}", self.expect)),
            Some(rule) => Some(format!("expected rule {rule} to decide: {decision}")),
            None => None,
        };
        Ok(Checked { decision, problem })
    }

    /// The name, or the question itself for a case without a name.
    pub fn title(&self) -> String {
        match self.name.as_str() {
            "" => format!("{} {} {}", self.asked.principal, self.asked.action, self.asked.resource),
            name => name.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cases(text: &str) -> Result<Cases, toml::de::Error> {
        toml::from_str(text)
    }

    fn problem(text: &str) -> Option<String> {
        let cases = cases(&format!("[[case]]\n{text}")).unwrap();
        cases.cases[0].check(&Policies::built_in()).unwrap().problem
    }

    #[test]
    fn a_case_says_what_is_not_as_expected() {
        let asked = "principal = \"agent:a\"\naction = \"readTask\"\nresource = \"task:t\"\n";
        assert_eq!(problem(&format!("{asked}expect = \"deny\"")), None);
        let denied = problem(&format!("{asked}expect = \"allow\""));
        assert_eq!(denied.as_deref(), Some("expected Allow: no policy permits it"));
        assert_eq!(problem(&format!("{asked}participants = [\"a\"]\nexpect = \"allow\"")), None);
        let rule = |rule: &str| problem(&format!("{asked}participants = [\"a\"]\nexpect = \"allow\"\nrule = {rule:?}"));
        assert_eq!(rule("participants-read"), None);
        assert_eq!(rule("operators").unwrap(), "expected rule operators to decide: permitted by participants-read");
    }

    #[test]
    fn every_action_can_be_asked_in_writing() {
        for name in Action::NAMES {
            let (principal, resource) = match *name {
                "sendToAll" | "assignType" => ("agent:a", "type:t"),
                "readTask" | "reassignTask" | "readContext" => ("anonymous", "task:t"),
                "readHandoff" => ("anonymous", "handoff:h"),
                "readNegotiation" => ("anonymous", "negotiation:n"),
                "readDeadLetter" | "settleDeadLetter" => ("operator:o", "dead-letter:1"),
                "appendWorkspace" | "readWorkspace" | "writeBlob" | "readBlob" => ("agent:a", "workspace:task:t"),
                "readDirectory" | "invite" | "readAuditLog" | "startRun" => ("operator:o", "broker"),
                "registerGraph" | "registerSchema" => ("agent:a", "registration:graph:g"),
                "manageSpecs" | "readSpec" => ("operator:o", "registration:agent-spec:s"),
                "useThread" | "readThread" => ("agent:a", "thread:t"),
                "submitPlan" => ("operator:o", "broker"),
                "recordTurn" | "readRun" => ("agent:a", "run:r"),
                "readPlan" | "cancelPlan" => ("agent:a", "plan:p"),
                _ => ("agent:a", "agent:b"),
            };
            let text = format!(
                "[[case]]\nprincipal = {principal:?}\naction = {name:?}\nresource = {resource:?}\nagent = \"x\"\n\
                 expect = \"allow\"\n"
            );
            cases(&text).unwrap().cases[0].check(&Policies::built_in()).unwrap_or_else(|error| panic!("{error}"));
        }
    }

    #[test]
    fn what_cannot_be_asked_is_told() {
        let ask = |principal: &str, action: &str, resource: &str| {
            let text = format!(
                "[[case]]\nprincipal = {principal:?}\naction = {action:?}\nresource = {resource:?}\nexpect = \"deny\"\n"
            );
            cases(&text).unwrap().cases[0].check(&Policies::built_in()).unwrap_err().to_string()
        };
        assert!(ask("robot:a", "send", "agent:b").contains("robot:a"));
        assert!(ask("agent:a", "fly", "agent:b").contains("readTask"));
        assert!(ask("agent:a", "send", "planet:b").contains("planet:b"));
        assert!(ask("agent:a", "send", "broker").contains("schema"));
        assert!(ask("agent:a", "assignType", "type:b").contains("agent"));
        assert!(cases("[[case]]\nexpect = \"maybe\"").is_err());
    }
}
