//! Authorization questions, and their form in Cedar.

use std::{
    collections::{HashMap, HashSet},
    str::FromStr as _,
    sync::LazyLock,
};

use cedar_policy::{
    Context, Entities, Entity, EntityId, EntityTypeName, EntityUid, Request, RestrictedExpression, Schema,
};

use crate::ids::AgentType;

/// A question: may this principal do this action to this resource?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Question<'a> {
    /// The caller that acts.
    pub principal: Principal<'a>,
    /// The action, with the context that rules may ask for.
    pub action: Action<'a>,
    /// The resource. The schema says which kinds go with which action.
    pub resource: Resource<'a>,
}

/// An agent, as policies see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Agent<'a> {
    /// The agent's id.
    pub id: &'a str,
    /// The types on the agent's card.
    pub types: &'a [AgentType],
}

/// An operator, as policies see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operator<'a> {
    /// The operator's name.
    pub name: &'a str,
    /// The groups of the operator's token.
    pub groups: &'a [String],
}

/// The caller, as policies see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Principal<'a> {
    /// An agent, with its types.
    Agent(Agent<'a>),
    /// An operator, with its groups.
    Operator(Operator<'a>),
    /// A caller without an identity.
    Anonymous,
}

macro_rules! actions {
    ($($variant:ident $({ $($field:ident: $kind:ty),* })? = $name:literal,)*) => {
        /// An action with its context. The schema describes each.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[expect(missing_docs, reason = "described in the schema")]
        pub enum Action<'a> { $($variant $({ $($field: $kind),* })?,)* }

        impl Action<'_> {
            /// The names of all actions.
            pub const NAMES: &'static [&'static str] = &[$($name,)*];

            /// The action's name in policies.
            pub const fn name(&self) -> &'static str {
                match self { $(Self::$variant { .. } => $name,)* }
            }
        }
    };
}

actions! {
    HandOff { task_type: &'a str, mode: &'a str } = "handOff",
    Send { message_type: &'a str } = "send",
    SendToAll { message_type: &'a str } = "sendToAll",
    ReadTask = "readTask",
    ReadContext = "readContext",
    ReassignTask = "reassignTask",
    ReadHandoff = "readHandoff",
    ReadNegotiation = "readNegotiation",
    ReadDeadLetter = "readDeadLetter",
    SettleDeadLetter = "settleDeadLetter",
    ReadDirectory = "readDirectory",
    Enroll = "enroll",
    Invite = "invite",
    ChangeCard = "changeCard",
    AssignType { agent: Agent<'a> } = "assignType",
    ManageKeys = "manageKeys",
    Deregister { force: bool } = "deregister",
    ReadAuditLog = "readAuditLog",
    AppendWorkspace { topic: &'a str } = "appendWorkspace",
    ReadWorkspace { topic: &'a str } = "readWorkspace",
    RegisterGraph { graph: &'a str } = "registerGraph",
    StartRun { graph: &'a str } = "startRun",
    WriteBlob = "writeBlob",
    ReadBlob = "readBlob",
    RegisterSchema { schema: &'a str } = "registerSchema",
    RecordTurn = "recordTurn",
    ReadRun = "readRun",
    ManageSpecs { spec: &'a str } = "manageSpecs",
    ReadSpec { spec: &'a str } = "readSpec",
    UseThread = "useThread",
    ReadThread = "readThread",
    SubmitPlan { plan: &'a str } = "submitPlan",
    ReadPlan = "readPlan",
    CancelPlan = "cancelPlan",
}

/// The object of an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource<'a> {
    /// An agent, with its types.
    Agent(Agent<'a>),
    /// A type of agents.
    Type(&'a str),
    /// A task, with its participants.
    Task(Shared<'a>),
    /// A handoff, with its participants.
    Handoff(Shared<'a>),
    /// A negotiation, with its participants.
    Negotiation(Shared<'a>),
    /// A dead letter, with its participants.
    DeadLetter(Shared<'a>),
    /// A workspace, with its participants.
    Workspace(Shared<'a>),
    /// A run, with its participants.
    Run(Shared<'a>),
    /// A thread, with its participants.
    Thread(Shared<'a>),
    /// A plan, with its participants.
    Plan(Shared<'a>),
    /// A name in a registry. Its owner is its participant, if the owner is an agent.
    Registration(Shared<'a>),
    /// The broker itself.
    Broker,
}

/// An entity with participants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shared<'a> {
    /// The entity's id.
    pub id: &'a str,
    /// The ids of the participating agents.
    pub participants: &'a [&'a str],
}

struct Kinds {
    agent: EntityTypeName,
    kind: EntityTypeName,
    group: EntityTypeName,
    operator: EntityTypeName,
    anonymous: EntityTypeName,
    broker: EntityTypeName,
    task: EntityTypeName,
    handoff: EntityTypeName,
    negotiation: EntityTypeName,
    dead_letter: EntityTypeName,
    workspace: EntityTypeName,
    run: EntityTypeName,
    thread: EntityTypeName,
    plan: EntityTypeName,
    registration: EntityTypeName,
    action: EntityTypeName,
}

static KINDS: LazyLock<Kinds> = LazyLock::new(|| {
    let kind = |name| EntityTypeName::from_str(name).expect("a name of the schema");
    Kinds {
        agent: kind("Agent"),
        kind: kind("Type"),
        group: kind("Group"),
        operator: kind("Operator"),
        anonymous: kind("Anonymous"),
        broker: kind("Broker"),
        task: kind("Task"),
        handoff: kind("Handoff"),
        negotiation: kind("Negotiation"),
        dead_letter: kind("DeadLetter"),
        workspace: kind("Workspace"),
        run: kind("Run"),
        thread: kind("Thread"),
        plan: kind("Plan"),
        registration: kind("Registration"),
        action: kind("Action"),
    }
});

fn uid(kind: &EntityTypeName, id: &str) -> EntityUid {
    EntityUid::from_type_name_and_id(kind.clone(), EntityId::new(id))
}

fn entity(uid: EntityUid, attributes: HashMap<String, RestrictedExpression>, parents: HashSet<EntityUid>) -> Entity {
    Entity::new(uid, attributes, parents).expect("the attributes are literals")
}

fn text(value: &str) -> RestrictedExpression {
    RestrictedExpression::new_string(value.to_owned())
}

impl Agent<'_> {
    fn write(&self, key: &mut String) {
        key.extend([self.id, "\n"]);
        self.types.iter().for_each(|name| key.extend([name.as_str(), " "]));
        key.push('\n');
    }

    fn entity(&self) -> Entity {
        let parents = self.types.iter().map(|name| uid(&KINDS.kind, name.as_str())).collect();
        entity(uid(&KINDS.agent, self.id), HashMap::from([("id".to_owned(), text(self.id))]), parents)
    }
}

impl Principal<'_> {
    pub(super) fn uid(&self) -> EntityUid {
        match self {
            Self::Agent(agent) => uid(&KINDS.agent, agent.id),
            Self::Operator(operator) => uid(&KINDS.operator, operator.name),
            Self::Anonymous => uid(&KINDS.anonymous, "anonymous"),
        }
    }

    /// The types of an agent and the groups of an operator, as Cedar groups.
    pub(super) fn groups(&self) -> Vec<EntityUid> {
        match self {
            Self::Agent(agent) => agent.types.iter().map(|name| uid(&KINDS.kind, name.as_str())).collect(),
            Self::Operator(operator) => operator.groups.iter().map(|name| uid(&KINDS.group, name)).collect(),
            Self::Anonymous => Vec::new(),
        }
    }

    fn entity(&self) -> Entity {
        match self {
            Self::Agent(agent) => agent.entity(),
            Self::Operator(operator) => {
                let attributes = HashMap::from([("name".to_owned(), text(operator.name))]);
                entity(self.uid(), attributes, self.groups().into_iter().collect())
            }
            Self::Anonymous => Entity::with_uid(self.uid()),
        }
    }
}

impl Resource<'_> {
    fn entity(&self) -> Entity {
        match self {
            Self::Agent(agent) => agent.entity(),
            Self::Type(name) => Entity::with_uid(uid(&KINDS.kind, name)),
            Self::Task(shared) => shared.entity(&KINDS.task),
            Self::Handoff(shared) => shared.entity(&KINDS.handoff),
            Self::Negotiation(shared) => shared.entity(&KINDS.negotiation),
            Self::DeadLetter(shared) => shared.entity(&KINDS.dead_letter),
            Self::Workspace(shared) => shared.entity(&KINDS.workspace),
            Self::Run(shared) => shared.entity(&KINDS.run),
            Self::Thread(shared) => shared.entity(&KINDS.thread),
            Self::Plan(shared) => shared.entity(&KINDS.plan),
            Self::Registration(shared) => shared.entity(&KINDS.registration),
            Self::Broker => Entity::with_uid(uid(&KINDS.broker, "broker")),
        }
    }
}

impl Shared<'_> {
    fn entity(&self, kind: &EntityTypeName) -> Entity {
        let agents = self.participants.iter().map(|id| RestrictedExpression::new_entity_uid(uid(&KINDS.agent, id)));
        let attributes = HashMap::from([("participants".to_owned(), RestrictedExpression::new_set(agents))]);
        entity(uid(kind, self.id), attributes, HashSet::new())
    }
}

impl Action<'_> {
    pub(super) fn uid(&self) -> EntityUid {
        uid(&KINDS.action, self.name())
    }

    fn context(&self) -> Context {
        let pairs: Vec<(String, RestrictedExpression)> = match self {
            Self::HandOff { task_type, mode } => {
                vec![("taskType".to_owned(), text(task_type)), ("mode".to_owned(), text(mode))]
            }
            Self::Send { message_type } | Self::SendToAll { message_type } => {
                vec![("messageType".to_owned(), text(message_type))]
            }
            Self::AssignType { agent } => {
                vec![("agent".to_owned(), RestrictedExpression::new_entity_uid(uid(&KINDS.agent, agent.id)))]
            }
            Self::AppendWorkspace { topic } | Self::ReadWorkspace { topic } => {
                vec![("topic".to_owned(), text(topic))]
            }
            Self::Deregister { force } => {
                vec![("force".to_owned(), RestrictedExpression::new_bool(*force))]
            }
            Self::RegisterGraph { graph } | Self::StartRun { graph } => vec![("graphId".to_owned(), text(graph))],
            Self::RegisterSchema { schema } => vec![("schemaId".to_owned(), text(schema))],
            Self::ManageSpecs { spec } | Self::ReadSpec { spec } => vec![("specId".to_owned(), text(spec))],
            Self::SubmitPlan { plan } => vec![("planId".to_owned(), text(plan))],
            Self::RecordTurn
            | Self::WriteBlob
            | Self::ReadBlob
            | Self::ReadRun
            | Self::UseThread
            | Self::ReadThread
            | Self::ReadPlan
            | Self::CancelPlan
            | Self::ReadTask
            | Self::ReadContext
            | Self::ReassignTask
            | Self::ReadHandoff
            | Self::ReadNegotiation
            | Self::ReadDeadLetter
            | Self::SettleDeadLetter
            | Self::ReadDirectory
            | Self::Enroll
            | Self::Invite
            | Self::ChangeCard
            | Self::ManageKeys
            | Self::ReadAuditLog => Vec::new(),
        };
        Context::from_pairs(pairs).expect("the names differ, and the values are literals")
    }

    /// Appends the context as text. Returns whether the decision is cached: only for the actions that are asked for
    /// each message and each entry.
    fn write_context(&self, key: &mut String) -> bool {
        match self {
            Self::HandOff { task_type, mode } => key.extend([mode, "\n", task_type]),
            Self::Send { message_type } | Self::SendToAll { message_type } => key.push_str(message_type),
            Self::AppendWorkspace { topic } | Self::ReadWorkspace { topic } => key.push_str(topic),
            _ => return false,
        }
        true
    }
}

impl Question<'_> {
    pub(super) fn to_cedar(self) -> (Request, Entities) {
        let (request, entities) = self.parts(None);
        (request.expect("only a schema refuses a request"), entities.expect("no two differ under one name"))
    }

    fn parts(self, schema: Option<&Schema>) -> (Result<Request, String>, Result<Entities, String>) {
        let (principal, resource) = (self.principal.entity(), self.resource.entity());
        let action = self.action.uid();
        let request = Request::new(principal.uid(), action, resource.uid(), self.action.context(), schema);
        let mut all = vec![principal, resource];
        if let Action::AssignType { agent } = &self.action {
            all.push(agent.entity());
        }
        // The principal can also be the resource or the agent of the action, and an entity occurs once.
        let mut seen = HashSet::new();
        all.retain(|entity| seen.insert(entity.uid()));
        let entities = Entities::from_entities(all, schema);
        (request.map_err(|error| error.to_string()), entities.map_err(|error| error.to_string()))
    }

    /// Checks the question against the schema.
    pub(super) fn check(self, schema: &Schema) -> Result<(), String> {
        let (request, entities) = self.parts(Some(schema));
        request.map(drop).and_then(|()| entities.map(drop))
    }

    /// The cache key: every input of the decision except the policies, so that a cached decision is never stale.
    /// `None`: the decision is not cached.
    pub(super) fn cache_key(&self) -> Option<String> {
        let Principal::Agent(principal) = self.principal else { return None };
        let mut key = String::with_capacity(128);
        // Names contain no line break, and free text comes last, so no two questions share a key.
        principal.write(&mut key);
        key.push_str(self.action.name());
        match self.resource {
            Resource::Agent(agent) => agent.write(&mut key),
            Resource::Type(name) => key.extend(["type\n", name, "\n"]),
            Resource::Workspace(shared) => {
                key.extend(["workspace\n", shared.id, "\n"]);
                shared.participants.iter().for_each(|agent| key.extend([agent, " "]));
                key.push('\n');
            }
            Resource::Task(_)
            | Resource::Handoff(_)
            | Resource::DeadLetter(_)
            | Resource::Broker
            | Resource::Run(_)
            | Resource::Plan(_)
            | Resource::Registration(_)
            | Resource::Thread(_)
            | Resource::Negotiation(_) => return None,
        }
        self.action.write_context(&mut key).then_some(key)
    }
}

/// As text, for example "agent alice".
impl std::fmt::Display for Principal<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Agent(agent) => write!(formatter, "agent {}", agent.id),
            Self::Operator(operator) => write!(formatter, "operator {}", operator.name),
            Self::Anonymous => formatter.write_str("a caller without an identity"),
        }
    }
}

/// The action's name with its context.
impl std::fmt::Display for Action<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.name())?;
        match self {
            Self::HandOff { task_type, mode } => write!(formatter, " (taskType {task_type:?}, mode {mode:?})"),
            Self::Send { message_type } | Self::SendToAll { message_type } => {
                write!(formatter, " (messageType {message_type:?})")
            }
            Self::AppendWorkspace { topic } | Self::ReadWorkspace { topic } => write!(formatter, " (topic {topic:?})"),
            Self::Deregister { force } => write!(formatter, " (force {force})"),
            Self::SubmitPlan { plan } => write!(formatter, " (planId {plan:?})"),
            Self::RegisterGraph { graph } | Self::StartRun { graph } => write!(formatter, " (graphId {graph:?})"),
            Self::RegisterSchema { schema } => write!(formatter, " (schemaId {schema:?})"),
            Self::ManageSpecs { spec } | Self::ReadSpec { spec } => write!(formatter, " (specId {spec:?})"),
            _ => Ok(()),
        }
    }
}

/// The resource's name in policies.
impl std::fmt::Display for Resource<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}", self.entity().uid())
    }
}

/// One question of each kind.
#[cfg(test)]
pub(super) fn examples() -> Vec<Question<'static>> {
    let agent = Agent { id: "a", types: &[] };
    let shared = Shared { id: "x", participants: &["a", "b"] };
    let to_agent = Resource::Agent(Agent { id: "b", types: &[] });
    let by_all =
        [Principal::Agent(agent), Principal::Operator(Operator { name: "olga", groups: &[] }), Principal::Anonymous];
    let mut all = vec![
        (by_all[0], Action::HandOff { task_type: "t", mode: "TRANSFER" }, to_agent),
        (by_all[1], Action::HandOff { task_type: "t", mode: "TRANSFER" }, to_agent),
        (by_all[0], Action::Send { message_type: "INFO" }, to_agent),
        (by_all[0], Action::SendToAll { message_type: "INFO" }, Resource::Type("t")),
        (by_all[0], Action::AppendWorkspace { topic: "t" }, Resource::Workspace(shared)),
    ];
    for principal in by_all {
        all.extend([
            (principal, Action::ReadTask, Resource::Task(shared)),
            (principal, Action::ReassignTask, Resource::Task(shared)),
            (principal, Action::ReadContext, Resource::Task(shared)),
            (principal, Action::ReadHandoff, Resource::Handoff(shared)),
            (principal, Action::ReadNegotiation, Resource::Negotiation(shared)),
            (principal, Action::ReadDeadLetter, Resource::DeadLetter(shared)),
            (principal, Action::SettleDeadLetter, Resource::DeadLetter(shared)),
            (principal, Action::ReadDirectory, Resource::Broker),
            (principal, Action::Enroll, to_agent),
            (principal, Action::Invite, Resource::Broker),
            (principal, Action::ChangeCard, to_agent),
            (principal, Action::AssignType { agent }, Resource::Type("t")),
            (principal, Action::ManageKeys, to_agent),
            (principal, Action::Deregister { force: false }, to_agent),
            (principal, Action::ReadAuditLog, Resource::Broker),
            (principal, Action::ReadWorkspace { topic: "t" }, Resource::Workspace(shared)),
            (principal, Action::RegisterGraph { graph: "g" }, Resource::Registration(shared)),
            (principal, Action::StartRun { graph: "g" }, Resource::Broker),
            (principal, Action::WriteBlob, Resource::Workspace(shared)),
            (principal, Action::ReadBlob, Resource::Workspace(shared)),
            (principal, Action::RegisterSchema { schema: "s" }, Resource::Registration(shared)),
            (principal, Action::RecordTurn, Resource::Run(shared)),
            (principal, Action::ReadRun, Resource::Run(shared)),
            (principal, Action::ManageSpecs { spec: "s" }, Resource::Registration(shared)),
            (principal, Action::ReadSpec { spec: "s" }, Resource::Registration(shared)),
            (principal, Action::UseThread, Resource::Thread(shared)),
            (principal, Action::ReadThread, Resource::Thread(shared)),
            (principal, Action::SubmitPlan { plan: "p" }, Resource::Broker),
            (principal, Action::ReadPlan, Resource::Plan(shared)),
            (principal, Action::CancelPlan, Resource::Plan(shared)),
        ]);
    }
    all.into_iter().map(|(principal, action, resource)| Question { principal, action, resource }).collect()
}
