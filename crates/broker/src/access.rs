//! Authorization: turns calls into questions for the policies, and decisions into answers.
//!
//! This module must not know how a caller has authenticated.

use std::sync::Arc;

use arc_swap::ArcSwap;

use super::{
    BrokerError,
    directory::{Directory, Entry},
};
use crate::{
    domain::{
        handoff::{Handoff, Task},
        plan::Plan,
        routing::{Run, RunId},
    },
    ids::{AgentId, AgentType, GraphId, MessageId, PlanId, TaskId, ThreadId, WorkspaceId},
    policy::{self, Action, Agent, Decision, Policies, Principal, Question, Resource, Shared},
    records::{DeadLetterRecord, RegistrationName, Registry},
};

/// The name of the operator whose token is in the broker's data folder. No other token can have this name.
pub const LOCAL_OPERATOR: &str = "operator.token";

/// An operator, with the groups of its token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operator {
    /// The name: the `sub` of the token, or [`LOCAL_OPERATOR`].
    pub name: String,
    /// The groups that policies know. None for the token of the data folder.
    pub groups: Arc<[String]>,
}

impl Operator {
    /// An operator without groups.
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), groups: Arc::default() }
    }
}

/// The caller of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Caller {
    /// A caller without an identity.
    Anonymous,
    /// An authenticated agent.
    Agent(AgentId),
    /// An operator.
    Operator(Operator),
}

impl Caller {
    /// The agent. Fails for any other caller.
    pub fn agent(&self) -> Result<&AgentId, BrokerError> {
        match self {
            Self::Agent(agent) => Ok(agent),
            Self::Anonymous => Err(BrokerError::IdentityMissing),
            Self::Operator(_) => Err(BrokerError::AgentsOnly { caller: self.to_string() }),
        }
    }

    /// The agent. `None`: an operator, or a caller without an identity.
    pub fn as_agent(&self) -> Option<&AgentId> {
        match self {
            Self::Agent(agent) => Some(agent),
            Self::Operator(_) | Self::Anonymous => None,
        }
    }

    /// The caller as the one for whom the coordinator acts: an agent's id, or `operator:NAME`. No agent's id contains a
    /// colon.
    pub fn as_submitter(&self) -> String {
        match self {
            Self::Anonymous => "anonymous:".to_owned(),
            Self::Agent(agent) => agent.to_string(),
            Self::Operator(operator) => format!("operator:{}", operator.name),
        }
    }

    /// The caller of this text. `None`: no caller has it. An operator has none of the groups of its token: they hold for
    /// the calls with the token, and not for what the coordinator does later.
    fn of_submitter(text: &str) -> Option<Self> {
        match text.split_once(':') {
            Some(("operator", name)) => Some(Self::Operator(Operator::named(name))),
            Some(_) => None,
            None => AgentId::parse(text).ok().map(Self::Agent),
        }
    }
}

/// The text for the audit log and for errors.
impl std::fmt::Display for Caller {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Anonymous => formatter.write_str("a caller without an identity"),
            Self::Agent(agent) => write!(formatter, "agent {agent}"),
            Self::Operator(operator) => write!(formatter, "operator {}", operator.name),
        }
    }
}

/// A denial, with its principal, action, resource and rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denied {
    /// The refused caller, as policies name it.
    pub principal: String,
    /// The action with its context, as a text.
    pub action: String,
    /// The name of the action.
    pub action_name: &'static str,
    /// The object of the action, as policies name it.
    pub resource: String,
    /// The decision with its reasons.
    pub decision: Arc<Decision>,
}

impl std::fmt::Display for Denied {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { principal, action, resource, decision, .. } = self;
        write!(formatter, "{principal} may not {action} on {resource}: {decision}")
    }
}

/// The purpose of a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is an action of the policies' schema, which describes it")]
pub enum Purpose {
    ReadTasks,
    ReassignTasks,
    ReadHandoffs,
    ReadNegotiations,
    ReadDeadLetters,
    SettleDeadLetters,
    ReadAuditLog,
    ReadWorkspaces,
    ReadContexts,
    Enroll,
    Invite,
    ManageKeys,
    ChangeCards,
    Deregister,
    ReadRuns,
    ReadPlans,
    SubmitPlan,
    CancelPlans,
    ReadGraphs,
    RegisterGraph,
    StartRun,
    ReadBlobs,
    WriteBlobs,
    ReadRegistrations,
    ReadSchemas,
    RegisterSchema,
    RecordTurn,
    ReadSpecs,
    ManageSpecs,
    UseThreads,
    ReadThreads,
}

impl Purpose {
    /// The purpose of registering in a registry.
    pub fn of_registering(registry: Registry) -> Self {
        match registry {
            Registry::Graphs => Self::RegisterGraph,
            Registry::Schemas => Self::RegisterSchema,
            Registry::AgentSpecs | Registry::ModelSpecs => Self::ManageSpecs,
        }
    }

    /// The name of its action in policies.
    pub fn action_name(self) -> &'static str {
        self.action().name()
    }

    fn action(self) -> Action<'static> {
        match self {
            Self::ReadTasks => Action::ReadTask,
            Self::ReassignTasks => Action::ReassignTask,
            Self::ReadHandoffs => Action::ReadHandoff,
            Self::ReadNegotiations => Action::ReadNegotiation,
            Self::ReadDeadLetters => Action::ReadDeadLetter,
            Self::SettleDeadLetters => Action::SettleDeadLetter,
            Self::ReadAuditLog => Action::ReadAuditLog,
            Self::ReadContexts => Action::ReadContext,
            Self::ReadWorkspaces => Action::ReadWorkspace { topic: "" },
            Self::Enroll => Action::Enroll,
            Self::Invite => Action::Invite,
            Self::ManageKeys => Action::ManageKeys,
            Self::ChangeCards => Action::ChangeCard,
            Self::Deregister => Action::Deregister { force: false },
            Self::ReadRuns => Action::ReadRun,
            Self::ReadPlans => Action::ReadPlan,
            Self::SubmitPlan => Action::SubmitPlan { plan: "" },
            Self::CancelPlans => Action::CancelPlan,
            Self::ReadGraphs => Action::ReadDirectory,
            Self::RegisterGraph => Action::RegisterGraph { graph: "" },
            Self::StartRun => Action::StartRun { graph: "" },
            Self::ReadBlobs => Action::ReadBlob,
            Self::WriteBlobs => Action::WriteBlob,
            Self::ReadRegistrations | Self::ReadSchemas => Action::ReadDirectory,
            Self::RegisterSchema => Action::RegisterSchema { schema: "" },
            Self::RecordTurn => Action::RecordTurn,
            Self::ReadSpecs => Action::ReadDirectory,
            Self::ManageSpecs => Action::ManageSpecs { spec: "" },
            Self::UseThreads => Action::UseThread,
            Self::ReadThreads => Action::ReadThread,
        }
    }
}

/// The start of a run through this graph, for [`Access::check_broker`].
pub fn run_start(graph: &GraphId) -> Action<'_> {
    Action::StartRun { graph: graph.as_str() }
}

/// The action of registering under a name, and of changing it.
fn registering(name: &RegistrationName) -> Action<'_> {
    let id = name.name.as_str();
    match name.registry {
        Registry::Graphs => Action::RegisterGraph { graph: id },
        Registry::Schemas => Action::RegisterSchema { schema: id },
        Registry::AgentSpecs | Registry::ModelSpecs => Action::ManageSpecs { spec: id },
    }
}

/// The most that a caller may see. Within it, the policies decide about each record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach<'a> {
    /// No record at all.
    Nothing,
    /// The records in which this agent is a participant.
    Own(&'a AgentId),
    /// The records of all agents.
    Everything,
}

/// The authorization of this broker over its registered agents.
#[derive(Clone, Copy)]
pub struct Access<'a> {
    /// The policies. They may change between two questions.
    pub policies: &'a ArcSwap<Policies>,
    /// The registered agents, with the types that policies ask about.
    pub directory: &'a Directory,
}

impl Access<'_> {
    /// Checks that the caller may do this to the resource.
    pub fn check(self, caller: &Caller, action: Action<'_>, resource: Resource<'_>) -> Result<(), BrokerError> {
        self.with_principal(caller, |principal| self.decide(principal, action, resource))
    }

    fn with_principal<T>(self, caller: &Caller, ask: impl FnOnce(Principal<'_>) -> T) -> T {
        match caller {
            Caller::Anonymous => ask(Principal::Anonymous),
            Caller::Operator(Operator { name, groups }) => ask(Principal::Operator(policy::Operator { name, groups })),
            Caller::Agent(id) => {
                let entry = self.directory.get(id);
                let types = entry.as_ref().map_or(&[][..], |entry| &entry.types);
                ask(Principal::Agent(Agent { id: id.as_str(), types }))
            }
        }
    }

    /// The most that the caller may see for this purpose.
    ///
    /// # Errors
    /// IDENTITY_MISSING if no policy permits this to a caller without an identity for any resource.
    pub fn reach<'c>(self, caller: &'c Caller, purpose: Purpose) -> Result<Reach<'c>, BrokerError> {
        let policies = self.policies.load();
        let is_beyond = |principal: Principal<'_>| policies.may_reach_beyond_participation(principal, purpose.action());
        match (self.with_principal(caller, is_beyond), caller) {
            // A policy for one record beyond participation is enough: each record is still asked about.
            (true, _) => Ok(Reach::Everything),
            (false, Caller::Anonymous) => Err(BrokerError::IdentityMissing),
            // An operator takes part in no task, handoff or dead letter of its own.
            (false, Caller::Operator(_)) => Ok(Reach::Nothing),
            (false, Caller::Agent(agent)) => Ok(Reach::Own(agent)),
        }
    }

    /// Checks that one agent may hand a task of this type to another.
    pub fn may_hand_off(
        self,
        from: &Entry,
        to: &Entry,
        task_type: &str,
        mode: &'static str,
    ) -> Result<(), BrokerError> {
        self.decide(from.principal(), Action::HandOff { task_type, mode }, Resource::Agent(to.as_asked()))
    }

    /// Checks that the coordinator may hand a task of this type to an agent for this submitter: the submitter has to be
    /// permitted to do so itself.
    pub fn may_hand_off_for(
        self,
        submitter: &str,
        to: &Entry,
        task_type: &str,
        mode: &'static str,
    ) -> Result<(), BrokerError> {
        let action = Action::HandOff { task_type, mode };
        // A text that names no caller has no rights of its own.
        let caller = Caller::of_submitter(submitter).unwrap_or(Caller::Anonymous);
        self.check(&caller, action, Resource::Agent(to.as_asked()))
    }

    /// Checks that one agent may write to another.
    pub fn may_send(self, from: &Entry, to: &Entry, message_type: &str) -> Result<(), BrokerError> {
        self.decide(from.principal(), Action::Send { message_type }, Resource::Agent(to.as_asked()))
    }

    /// Checks that an agent may write to all agents of a type.
    pub fn may_send_to_all(self, from: &Entry, to: &AgentType, message_type: &str) -> Result<(), BrokerError> {
        self.decide(from.principal(), Action::SendToAll { message_type }, Resource::Type(to.as_str()))
    }

    /// Checks that the caller may read the directory.
    pub fn may_see_directory(self, caller: &Caller) -> Result<(), BrokerError> {
        self.check(caller, Action::ReadDirectory, Resource::Broker)
    }

    /// Whether the caller may see this handoff.
    pub fn may_see_handoff(self, caller: &Caller, handoff: &Handoff) -> bool {
        // An agent that was passed over was never asked, and must not learn of the handoff.
        let offers = handoff.offers.iter().filter(|offer| !offer.passed_over);
        let offered = offers.map(|offer| offer.candidate.as_str());
        // The agent for which the coordinator asks: the submitter of the plan, or the agent that had the task reassigned. An
        // operator's text is no agent's id.
        let submitter = handoff.submitter.as_deref();
        let participants: Vec<&str> =
            std::iter::once(handoff.sender.as_str()).chain(offered).chain(submitter).collect();
        let id = handoff.id.to_string();
        let shared = Shared { id: &id, participants: &participants };
        self.check(caller, Action::ReadHandoff, Resource::Handoff(shared)).is_ok()
    }

    /// Whether the caller may see this negotiation.
    pub fn may_see_negotiation(self, caller: &Caller, negotiation: &crate::domain::negotiation::Negotiation) -> bool {
        let asked = negotiation.threads.iter().map(|thread| thread.agent.as_str());
        let participants: Vec<&str> = std::iter::once(negotiation.requester.as_str()).chain(asked).collect();
        let id = negotiation.id.to_string();
        let shared = Shared { id: &id, participants: &participants };
        self.check(caller, Action::ReadNegotiation, Resource::Negotiation(shared)).is_ok()
    }

    /// Whether the caller may see this task.
    pub fn may_see_task(self, caller: &Caller, task: &Task) -> bool {
        // The coordinator works on the task of a subtask for the submitter of the plan.
        let submitter = task.plan.as_ref().and_then(|plan| plan.submitter.as_ref());
        let participants: Vec<&str> = task.owners().chain(submitter).map(AgentId::as_str).collect();
        let shared = Shared { id: task.id.as_str(), participants: &participants };
        self.check(caller, Action::ReadTask, Resource::Task(shared)).is_ok()
    }

    /// Checks that the caller may append to a workspace with these participants, or read it.
    pub fn about_workspace(
        self,
        caller: &Caller,
        action: Action<'_>,
        id: &WorkspaceId,
        participants: &[AgentId],
    ) -> Result<(), BrokerError> {
        let participants: Vec<&str> = participants.iter().map(AgentId::as_str).collect();
        let shared = Shared { id: id.as_str(), participants: &participants };
        self.check(caller, action, Resource::Workspace(shared))
    }
    /// Whether the caller may read the contexts of a task without being a party to them. `None`: the task is removed.
    pub fn may_read_contexts(self, caller: &Caller, id: &str, task: Option<&Task>) -> bool {
        self.check_contexts(caller, id, task).is_ok()
    }

    /// Checks that the caller may read the contexts of a task without being a party to them.
    pub fn check_contexts(self, caller: &Caller, id: &str, task: Option<&Task>) -> Result<(), BrokerError> {
        let participants: Vec<&str> = task.iter().flat_map(|task| task.owners()).map(AgentId::as_str).collect();
        let shared = Shared { id, participants: &participants };
        self.check(caller, Action::ReadContext, Resource::Task(shared))
    }

    /// Checks that the caller may register something new under a name, which is then its own.
    pub fn may_register(self, caller: &Caller, name: &RegistrationName) -> Result<(), BrokerError> {
        // The name has no owner yet, so its future owner is asked about as its participant.
        self.about_name(caller, registering(name), name, caller.agent().ok().map(AgentId::as_str))
    }

    /// Checks that the caller may add revisions to a name of this owner, hand it over, retire and remove it. `None`: no
    /// agent owns it, or it is not registered.
    pub fn may_change_name(
        self,
        caller: &Caller,
        name: &RegistrationName,
        owner: Option<&str>,
    ) -> Result<(), BrokerError> {
        self.about_name(caller, registering(name), name, owner)
    }

    /// Whether the caller may read the system prompt, the sections and the overlay of a persona's spec.
    pub fn may_read_spec(self, caller: &Caller, name: &RegistrationName, owner: Option<&str>) -> bool {
        self.about_name(caller, Action::ReadSpec { spec: &name.name }, name, owner).is_ok()
    }

    fn about_name(
        self,
        caller: &Caller,
        action: Action<'_>,
        name: &RegistrationName,
        owner: Option<&str>,
    ) -> Result<(), BrokerError> {
        let (id, participants) = (name.to_string(), owner.as_slice());
        self.check(caller, action, Resource::Registration(Shared { id: &id, participants }))
    }

    /// Checks that the caller may do this to the broker itself.
    pub fn check_broker(self, caller: &Caller, action: Action<'_>) -> Result<(), BrokerError> {
        self.check(caller, action, Resource::Broker)
    }

    /// Whether the caller may see this run.
    pub fn may_see_run(self, caller: &Caller, run: &Run) -> bool {
        self.about_run(caller, Action::ReadRun, run).is_ok()
    }

    /// Checks that the caller may report turns of this run, or cancel it.
    pub fn may_record_turn(self, caller: &Caller, run: &Run) -> Result<(), BrokerError> {
        self.about_run(caller, Action::RecordTurn, run)
    }

    fn about_run(self, caller: &Caller, action: Action<'_>, run: &Run) -> Result<(), BrokerError> {
        let mut participants: Vec<&str> = run.participants.iter().map(AgentId::as_str).collect();
        if let Caller::Agent(agent) = caller
            && self.takes_part_in_run(agent, run)
        {
            participants.push(agent.as_str());
        }
        let id = run.id.to_string();
        self.check(caller, action, Resource::Run(Shared { id: &id, participants: &participants }))
    }

    /// Whether the agent takes part in this run, also by its type: a node may name the type alone.
    pub fn takes_part_in_run(self, agent: &AgentId, run: &Run) -> bool {
        run.participants.contains(agent)
            || self.directory.get(agent).is_some_and(|entry| {
                let mut types = run.graph.nodes.iter().filter_map(|node| node.agent_type.as_ref());
                types.any(|kind| entry.types.contains(kind))
            })
    }

    /// The error for a run that does not exist or that the caller may not see.
    pub fn no_such_run(self, caller: &Caller, id: RunId) -> BrokerError {
        let run = id.to_string();
        let resource = Resource::Run(Shared { id: &run, participants: &[] });
        // Asked about a run without participants: a caller that may read no run at all learns this, and not whether the
        // run exists.
        let denied = self.check(caller, Action::ReadRun, resource).err();
        denied.unwrap_or(BrokerError::RunUnknown { run })
    }

    /// Checks that the caller may do this to a thread with these participants.
    pub fn about_thread(
        self,
        caller: &Caller,
        action: Action<'_>,
        id: &ThreadId,
        participants: &[AgentId],
    ) -> Result<(), BrokerError> {
        let participants: Vec<&str> = participants.iter().map(AgentId::as_str).collect();
        self.check(caller, action, Resource::Thread(Shared { id: id.as_str(), participants: &participants }))
    }

    /// Checks that the caller may create this thread, with itself as a participant.
    pub fn may_create_thread(self, caller: &Caller, id: &ThreadId) -> Result<(), BrokerError> {
        // The thread does not exist yet, so its future creator is asked about as its participant.
        let participants: Vec<AgentId> = caller.agent().ok().cloned().into_iter().collect();
        self.about_thread(caller, Action::UseThread, id, &participants)
    }

    /// The error for a thread that does not exist or that the caller may not see.
    pub fn no_such_thread(self, caller: &Caller, id: &ThreadId) -> BrokerError {
        let denied = self.about_thread(caller, Action::ReadThread, id, &[]).err();
        denied.unwrap_or_else(|| BrokerError::ThreadUnknown { thread: id.to_string() })
    }

    /// Whether the caller may see this plan.
    pub fn may_see_plan(self, caller: &Caller, plan: &Plan) -> bool {
        let agents = plan.participants();
        let participants: Vec<&str> = agents.iter().map(AgentId::as_str).collect();
        let shared = Shared { id: plan.id.as_str(), participants: &participants };
        self.check(caller, Action::ReadPlan, Resource::Plan(shared)).is_ok()
    }

    /// Checks that the caller may cancel or retry this plan or a subtask of it, or give one to another agent. Only its submitter
    /// takes part in that.
    pub fn may_cancel_plan(self, caller: &Caller, plan: &Plan) -> Result<(), BrokerError> {
        let shared = Shared { id: plan.id.as_str(), participants: &[plan.submitter.as_str()] };
        self.check(caller, Action::CancelPlan, Resource::Plan(shared))
    }

    /// The error for a plan that does not exist or that the caller may not see.
    pub fn no_such_plan(self, caller: &Caller, id: &PlanId) -> BrokerError {
        let resource = Resource::Plan(Shared { id: id.as_str(), participants: &[] });
        let denied = self.check(caller, Action::ReadPlan, resource).err();
        denied.unwrap_or_else(|| BrokerError::PlanUnknown { plan: id.to_string() })
    }

    /// Whether the caller may see this dead letter.
    pub fn may_see_dead_letter(self, caller: &Caller, dead: &DeadLetterRecord) -> bool {
        self.about_dead_letter(caller, Action::ReadDeadLetter, dead).is_ok()
    }

    /// Checks that the caller may decide about this dead letter.
    pub fn may_settle_dead_letter(self, caller: &Caller, dead: &DeadLetterRecord) -> Result<(), BrokerError> {
        self.about_dead_letter(caller, Action::SettleDeadLetter, dead)
    }

    fn about_dead_letter(
        self,
        caller: &Caller,
        action: Action<'_>,
        dead: &DeadLetterRecord,
    ) -> Result<(), BrokerError> {
        let id = dead.number.to_string();
        let participants: Vec<&str> = dead.participants().collect();
        let shared = Shared { id: &id, participants: &participants };
        self.check(caller, action, Resource::DeadLetter(shared))
    }

    /// Checks that the caller may take this task from its owner.
    pub fn may_reassign(self, caller: &Caller, task: &Task) -> Result<(), BrokerError> {
        let participants: Vec<&str> = task.owners().map(AgentId::as_str).collect();
        let shared = Shared { id: task.id.as_str(), participants: &participants };
        self.check(caller, Action::ReassignTask, Resource::Task(shared))
    }

    /// Checks that the caller may change the keys of this agent.
    pub fn may_manage_keys(self, caller: &Caller, agent: &Entry) -> Result<(), BrokerError> {
        self.check(caller, Action::ManageKeys, Resource::Agent(agent.as_asked()))
    }

    /// Checks that the caller may deregister this agent, with `force` also while it has open work.
    pub fn may_deregister(self, caller: &Caller, agent: &Entry, force: bool) -> Result<(), BrokerError> {
        self.check(caller, Action::Deregister { force }, Resource::Agent(agent.as_asked()))
    }

    /// Checks that the caller may invite agents.
    pub fn may_invite(self, caller: &Caller) -> Result<(), BrokerError> {
        self.check_broker(caller, Action::Invite)
    }

    /// The error for a task that does not exist or that the caller may not see. It does not reveal which of the two
    /// holds.
    pub fn no_such_task(self, caller: &Caller, id: &TaskId) -> BrokerError {
        // Without participants the policies decide as for a task in which the caller takes no part.
        let resource = Resource::Task(Shared { id: id.as_str(), participants: &[] });
        let denied = self.check(caller, Action::ReadTask, resource).err();
        denied.unwrap_or_else(|| BrokerError::TaskUnknown { task: id.to_string() })
    }

    /// The same error for a handoff.
    pub fn no_such_handoff(self, caller: &Caller, id: MessageId) -> BrokerError {
        let handoff = id.to_string();
        let resource = Resource::Handoff(Shared { id: &handoff, participants: &[] });
        let denied = self.check(caller, Action::ReadHandoff, resource).err();
        denied.unwrap_or(BrokerError::HandoffUnknown { handoff })
    }

    /// The same error for a workspace to be read or appended to.
    pub fn no_such_workspace(self, caller: &Caller, action: Action<'_>, id: &WorkspaceId) -> BrokerError {
        let denied = self.about_workspace(caller, action, id, &[]).err();
        denied.unwrap_or_else(|| BrokerError::WorkspaceUnknown { workspace: id.to_string() })
    }

    /// The same error for a negotiation.
    pub fn no_such_negotiation(self, caller: &Caller, id: MessageId) -> BrokerError {
        let negotiation = id.to_string();
        let resource = Resource::Negotiation(Shared { id: &negotiation, participants: &[] });
        let denied = self.check(caller, Action::ReadNegotiation, resource).err();
        denied.unwrap_or(BrokerError::NegotiationUnknown { negotiation })
    }

    /// The same error for a dead letter to be read.
    pub fn no_such_dead_letter(self, caller: &Caller, number: u64) -> BrokerError {
        self.no_dead_letter_for(caller, Action::ReadDeadLetter, number)
    }

    /// The same error for a dead letter to be redriven or discarded.
    pub fn no_such_dead_letter_to_settle(self, caller: &Caller, number: u64) -> BrokerError {
        self.no_dead_letter_for(caller, Action::SettleDeadLetter, number)
    }

    fn no_dead_letter_for(self, caller: &Caller, action: Action<'_>, number: u64) -> BrokerError {
        let dead_letter = number.to_string();
        let resource = Resource::DeadLetter(Shared { id: &dead_letter, participants: &[] });
        let denied = self.check(caller, action, resource).err();
        denied.unwrap_or(BrokerError::DeadLetterUnknown { dead_letter })
    }

    /// The same error for an agent whose keys are to be changed.
    pub fn no_such_agent_to_manage(self, caller: &Caller, id: &AgentId) -> BrokerError {
        let resource = Resource::Agent(Agent { id: id.as_str(), types: &[] });
        let denied = self.check(caller, Action::ManageKeys, resource).err();
        denied.unwrap_or_else(|| BrokerError::AgentUnknown { agent: id.to_string() })
    }

    fn decide(self, principal: Principal<'_>, action: Action<'_>, resource: Resource<'_>) -> Result<(), BrokerError> {
        let decision = self.policies.load().decide(&Question { principal, action, resource });
        if decision.is_allowed {
            return Ok(());
        }
        // The same caller may be permitted once it has authenticated, so it is asked for an identity.
        if principal == Principal::Anonymous {
            return Err(BrokerError::IdentityMissing);
        }
        Err(BrokerError::PermissionDenied(Box::new(Denied {
            principal: principal.to_string(),
            action: action.to_string(),
            action_name: action.name(),
            resource: resource.to_string(),
            decision,
        })))
    }
}

impl Entry {
    /// The agent as policies see it.
    pub fn as_asked(&self) -> Agent<'_> {
        Agent { id: &self.record.card.agent_id, types: &self.types }
    }

    fn principal(&self) -> Principal<'_> {
        Principal::Agent(self.as_asked())
    }
}

impl std::fmt::Debug for Access<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "access by {:?}", self.policies.load())
    }
}
