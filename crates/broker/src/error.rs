//! The errors of the pipeline, beside those of the envelope and the state machine.

use std::time::Duration;

use super::{access::Denied, jwt::TokenFault};
use crate::{
    codes::{ErrorCode, FieldViolation, Refusal},
    domain::{EntityId, admission::AdmissionError, context, threads::SpecKind},
    ids::AgentId,
    records::{RegistrationName, Registry},
    store::{CommitError, ReadError},
};

/// A refusal of the pipeline.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BrokerError {
    /// Fields with values that are wrong in view of the broker's state.
    #[error("{}", violations.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Fields {
        /// The violations; never empty.
        violations: Vec<FieldViolation>,
    },
    /// The message is not admitted.
    #[error(transparent)]
    NotAdmitted(#[from] AdmissionError),
    /// The sender is not the session's agent.
    #[error("the envelope's sender_id is {sender}, but the session belongs to {agent}")]
    SenderMismatch {
        /// The agent that the envelope names as its sender.
        sender: AgentId,
        /// The agent that the session belongs to.
        agent: AgentId,
    },
    /// The caller is not an agent, and so cannot be the sender.
    #[error(
        "{caller} is not an agent and may not send envelopes; send the envelope without a token, or with its sender's token"
    )]
    SenderNoAgent {
        /// The caller, as a text.
        caller: String,
    },
    /// The agent is not registered.
    #[error("agent {agent} is not registered")]
    AgentUnknown {
        /// The id that the call names.
        agent: String,
    },
    /// The id belongs to a registered agent.
    #[error(
        "agent {agent} is already registered with another card; only this agent or an operator may change the card"
    )]
    AgentExists {
        /// The id on the card.
        agent: AgentId,
    },
    /// The invitation is not valid.
    #[error("the invitation is unknown, used, expired, or for another agent; ask an operator for a new one")]
    InvitationInvalid,
    /// The key belongs to another agent.
    #[error("the public key of {key_id} belongs to another agent; generate one key per agent")]
    KeyTaken {
        /// The id of the key on the card.
        key_id: String,
    },
    /// The agent has no key with this id.
    #[error("agent {agent} has no key {key_id}")]
    AgentKeyUnknown {
        /// The agent that the call names.
        agent: AgentId,
        /// The id that no key of the agent has.
        key_id: String,
    },
    /// The agent has this key, or this key id, already.
    #[error("agent {agent} already uses key_id {key_id} for another key, or this key under another key_id")]
    KeyExists {
        /// The agent that already has the key.
        agent: AgentId,
        /// The id of the existing key.
        key_id: String,
    },
    /// The key was revoked and must not come back.
    #[error("key {key_id} is revoked, permanently; add a new key under a new key_id")]
    KeyRevoked {
        /// The id of the revoked key.
        key_id: String,
    },
    /// The key is weak.
    #[error("key {key_id} {problem}")]
    KeyWeak {
        /// The id of the weak key.
        key_id: String,
        /// The reason for the refusal.
        problem: String,
    },
    /// The agent has work, and may not be deregistered without force.
    #[error(
        "agent {agent} owns {tasks} open tasks and has {offers} open offers; wait until they end, or let an operator use force"
    )]
    AgentBusy {
        /// The id that the call names.
        agent: AgentId,
        /// The number of tasks without a final status that the agent owns.
        tasks: u32,
        /// The number of open handoffs in which the agent is the current candidate.
        offers: u32,
    },
    /// The task does not exist.
    #[error("task {task} does not exist")]
    TaskUnknown {
        /// The id that the call names.
        task: String,
    },
    /// The handoff does not exist.
    #[error("handoff {handoff} does not exist")]
    HandoffUnknown {
        /// The id that the call names.
        handoff: String,
    },
    /// The workspace does not exist.
    #[error("workspace {workspace} does not exist: a workspace exists with its task, plan, thread or run")]
    WorkspaceUnknown {
        /// The id that the call names.
        workspace: String,
    },
    /// A rule about versions of contexts refuses the input.
    #[error(transparent)]
    Context(#[from] context::Rejection),
    /// The section is secret, and the caller is no party of the context.
    #[error("{caller} may not read a secret section: it is for the parties of the context only")]
    SectionSecret {
        /// The caller, as a text.
        caller: String,
    },
    /// The graph does not exist.
    #[error("graph {graph} does not exist")]
    GraphUnknown {
        /// The id that the call names.
        graph: String,
    },
    /// The run does not exist.
    #[error("run {run} does not exist")]
    RunUnknown {
        /// The id that the call names.
        run: String,
    },
    /// The spec or the revision does not exist.
    #[error("{kind} spec {spec} does not exist{}", if *revision == 0 { String::new() } else { format!(" at revision {revision}") })]
    SpecUnknown {
        /// The kind of the spec: agent or model.
        kind: &'static str,
        /// The id that the call names.
        spec: String,
        /// The revision that the call names. 0: the latest.
        revision: u64,
    },
    /// The thread does not exist.
    #[error("thread {thread} does not exist")]
    ThreadUnknown {
        /// The id that the call names.
        thread: String,
    },
    /// The plan does not exist.
    #[error("plan {plan} does not exist")]
    PlanUnknown {
        /// The id that the call names.
        plan: String,
    },
    /// The plan has errors.
    #[error("the plan is not valid: {}", violations.iter().map(|violation| &*violation.problem).collect::<Vec<_>>().join("; "))]
    PlanInvalid {
        /// The problems; never empty.
        violations: Vec<FieldViolation>,
    },
    /// The graph has errors.
    #[error("the graph is not valid: {}", violations.iter().map(|violation| &*violation.problem).collect::<Vec<_>>().join("; "))]
    GraphInvalid {
        /// The problems; never empty.
        violations: Vec<FieldViolation>,
    },
    /// The caller knows no blob with this digest.
    #[error("blob {blob} does not exist")]
    BlobUnknown {
        /// The digest in hex.
        blob: String,
    },
    /// The caller has no unfinished upload of this blob.
    #[error("there is no unfinished upload of blob {blob}")]
    UploadUnknown {
        /// The digest in hex.
        blob: String,
    },
    /// A message refers to a blob that its sender has not completely written.
    #[error("blob {blob} is not completely written")]
    BlobIncomplete {
        /// The digest in hex.
        blob: String,
    },
    /// The bytes of an upload have another digest.
    #[error("the written bytes have the SHA-256 {found}, and are dropped")]
    BlobDigestMismatch {
        /// The digest of the bytes in hex.
        found: String,
    },
    /// The bytes of a stored blob are lost.
    #[error(
        "the stored bytes of blob {blob} are damaged or missing; write them again, or have them restored from a backup"
    )]
    BlobDamaged {
        /// The digest in hex.
        blob: String,
    },
    /// An offset or a range is beyond the bytes that there are.
    #[error("the range is beyond the {committed} bytes that there are")]
    BlobOutOfRange {
        /// The number of bytes that there are.
        committed: u64,
    },
    /// A quota of blobs is used up.
    #[error("the limit of {limit} {what} is reached")]
    BlobQuota {
        /// The counted objects.
        what: &'static str,
        /// The value of the limit.
        limit: u64,
    },
    /// The workspace that is to hold a blob is closed.
    #[error("workspace {workspace} is closed: its owner has ended, and it holds no further blob")]
    BlobHolderClosed {
        /// The id of the workspace.
        workspace: String,
    },
    /// No schema is registered under this id and version.
    #[error("schema {schema:?} has no registered version {version:?}")]
    SchemaUnknown {
        /// The id of the schema.
        schema: String,
        /// The version of the schema, as registered or asked for.
        version: String,
        /// The field of a context that names the schema; empty for a call about the schema.
        violations: Vec<FieldViolation>,
    },
    /// No version of a schema is registered under this id.
    #[error("schema {schema:?} has no registered version")]
    SchemaNameUnknown {
        /// The id of the schema.
        schema: String,
    },
    /// The id and version belong to another schema.
    #[error("version {version:?} of schema {schema:?} is registered with another text, and never changes")]
    SchemaExists {
        /// The id of the schema.
        schema: String,
        /// The version of the schema, as registered or asked for.
        version: String,
    },
    /// A filter does not fit a section.
    #[error("the filter does not fit section {section:?}: {problem}")]
    FilterNotApplicable {
        /// The name of the section.
        section: String,
        /// The reason.
        problem: String,
    },
    /// The text is no schema that the broker checks with.
    #[error("the schema {problem}")]
    SchemaRejected {
        /// The first problem of the text.
        problem: String,
    },
    /// The name is retired.
    #[error("{name} is retired by its owner {owner}: it takes no change and no new use")]
    NameRetired {
        /// The name in its registry, as a text.
        name: String,
        /// The owner: an agent's id, or `operator:NAME`.
        owner: String,
    },
    /// A context does not fit its schemas.
    #[error("the context does not fit: {}", violations.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    ContextSchemaViolation {
        /// The problems; never empty.
        violations: Vec<FieldViolation>,
    },
    /// The negotiation does not exist.
    #[error("negotiation {negotiation} does not exist")]
    NegotiationUnknown {
        /// The id that the call names.
        negotiation: String,
    },
    /// The delivery does not exist or has ended.
    #[error("delivery {delivery:?} is not leased to this agent: it was acknowledged, or its lease expired")]
    DeliveryUnknown {
        /// The id that the call names, at most 64 characters of it.
        delivery: String,
    },
    /// The dead letter does not exist.
    #[error("dead letter {dead_letter} does not exist")]
    DeadLetterUnknown {
        /// The id that the call names.
        dead_letter: String,
    },
    /// The dead letter has been decided about before.
    #[error("dead letter {dead_letter} is already {state}")]
    DeadLetterSettled {
        /// The number of the dead letter.
        dead_letter: u64,
        /// The state after that decision.
        state: &'static str,
    },
    /// The dead letter is a refused envelope, which cannot be delivered.
    #[error("dead letter {dead_letter} is a refused envelope and cannot be delivered")]
    DeadLetterNotAMessage {
        /// The number of the dead letter.
        dead_letter: u64,
    },
    /// The filter of an action matches nothing.
    #[error("no dead letter matches the filter")]
    NothingMatches,
    /// The agent that a reassignment names is gone.
    #[error("{agent} is gone: it gave no sign of life for the length of its lease, and would not take the task over")]
    AgentGone {
        /// The receiver that the call names.
        agent: String,
    },
    /// The coordinator's key cannot sign.
    #[error("the coordinator cannot send the message: {problem}")]
    CoordinatorKey {
        /// The reason, for a person to read.
        problem: String,
    },
    /// The call needs an identity.
    #[error("the call needs an authenticated caller: send a token as \"authorization: Bearer TOKEN\"")]
    IdentityMissing,
    /// The token and the client certificate name different agents.
    #[error("the token belongs to {agent}, but the client certificate to {certified}")]
    IdentityConflict {
        /// The agent of the token.
        agent: AgentId,
        /// The agent of the certificate.
        certified: AgentId,
    },
    /// The token is unknown or expired.
    #[error("the token is unknown or expired; authenticate again")]
    TokenInvalid,
    /// A JSON Web Token is refused.
    #[error("the token {fault}; get a new one from its issuer")]
    JwtInvalid {
        /// The reason.
        fault: TokenFault,
    },
    /// The caller has not answered the challenge. The error does not say which check failed.
    #[error(
        "the challenge is unknown, used or expired, the agent is not registered, or the signature was not made with a valid \
         key of the agent"
    )]
    ChallengeFailed,
    /// The policies do not permit the call.
    #[error("{0}")]
    PermissionDenied(Box<Denied>),
    /// The call is for agents only.
    #[error("{caller} is not an agent; make this call with an agent's token or certificate")]
    AgentsOnly {
        /// The caller, as a text.
        caller: String,
    },
    /// The page token belongs to another list or filter.
    #[error("the page token belongs to another list or other filters; start again without a page token")]
    PageTokenInvalid,
    /// Another change came first.
    #[error("another request changed the same object first; try again")]
    Conflict,
    /// The request names an etag that the object does not have.
    #[error("the object has another etag: it was changed or removed meanwhile. Read it, and change what is there now")]
    EtagChanged,
    /// The connection is not encrypted.
    #[error("this port accepts only TLS connections")]
    TlsRequired,
    /// A limit is exceeded.
    #[error("{what}; try again later")]
    LimitExceeded {
        /// A description of the exceeded limit.
        what: &'static str,
        /// The time until a further attempt may succeed.
        retry_after: Duration,
    },
    /// The broker is about to stop.
    #[error("the broker is stopping; connect again later")]
    ShuttingDown,
    /// The identity of an open call has ended: a key of the agent was revoked, or the agent was deregistered.
    #[error("the call has ended: {why}")]
    IdentityEnded {
        /// The reason for people to read.
        why: super::Away,
    },
    /// The store refuses writes.
    #[error("the broker cannot write to its store; send the same message with the same message_id again later")]
    StoreUnavailable,
    /// This version, or this broker with its configuration, does not support the call.
    #[error("not supported by this broker: {what}")]
    NotSupported {
        /// The feature that the call asks for.
        what: &'static str,
    },
    /// A fault of the broker. Its log has the cause.
    #[error("internal error of the broker; its log has the details")]
    Internal,
}

impl BrokerError {
    /// The error for an entity that does not exist.
    pub fn unknown(entity: &EntityId) -> Self {
        match entity {
            EntityId::Task(id) => Self::TaskUnknown { task: id.to_string() },
            EntityId::Handoff(id) => Self::HandoffUnknown { handoff: id.to_string() },
            EntityId::Workspace(id) => Self::WorkspaceUnknown { workspace: id.to_string() },
            EntityId::Graph(id) => Self::GraphUnknown { graph: id.to_string() },
            EntityId::Run(run) | EntityId::RunEntry(run, _) | EntityId::RunTurn(run, _) => {
                Self::RunUnknown { run: run.to_string() }
            }
            EntityId::Spec(kind, id) => Self::SpecUnknown { kind: kind.name(), spec: id.to_string(), revision: 0 },
            EntityId::SpecRevision(kind, id, revision) => {
                Self::SpecUnknown { kind: kind.name(), spec: id.to_string(), revision: *revision }
            }
            EntityId::Thread(id) | EntityId::ThreadEntry(id, _) => Self::ThreadUnknown { thread: id.to_string() },
            EntityId::Negotiation(id) => Self::NegotiationUnknown { negotiation: id.to_string() },
            EntityId::Plan(plan) | EntityId::PlanSpec(plan) | EntityId::PlanEntry(plan, _) => {
                Self::PlanUnknown { plan: plan.to_string() }
            }
            #[cfg(debug_assertions)]
            EntityId::Probe(_) => Self::Internal,
        }
    }

    /// The error for a name that no registry has.
    pub fn unknown_name(name: &RegistrationName) -> Self {
        let id = name.name.clone();
        match name.registry {
            Registry::Graphs => Self::GraphUnknown { graph: id },
            Registry::Schemas => Self::SchemaNameUnknown { schema: id },
            Registry::AgentSpecs => Self::SpecUnknown { kind: SpecKind::Agent.name(), spec: id, revision: 0 },
            Registry::ModelSpecs => Self::SpecUnknown { kind: SpecKind::Model.name(), spec: id, revision: 0 },
        }
    }
}

impl Refusal for BrokerError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Fields { .. } => ErrorCode::FieldInvalid,
            Self::NotAdmitted(error) => error.code(),
            Self::SenderMismatch { .. } | Self::SenderNoAgent { .. } | Self::IdentityConflict { .. } => {
                ErrorCode::SenderMismatch
            }
            Self::AgentUnknown { .. } => ErrorCode::AgentUnknown,
            Self::AgentExists { .. } => ErrorCode::AgentExists,
            Self::AgentBusy { .. } => ErrorCode::AgentBusy,
            Self::InvitationInvalid => ErrorCode::InvitationInvalid,
            Self::KeyTaken { .. } => ErrorCode::KeyTaken,
            Self::KeyWeak { .. } => ErrorCode::KeyWeak,
            Self::AgentKeyUnknown { .. } => ErrorCode::AgentKeyUnknown,
            Self::KeyExists { .. } => ErrorCode::KeyExists,
            Self::KeyRevoked { .. } => ErrorCode::KeyRevoked,
            Self::TaskUnknown { .. } => ErrorCode::TaskUnknown,
            Self::HandoffUnknown { .. } => ErrorCode::HandoffUnknown,
            Self::WorkspaceUnknown { .. } => ErrorCode::WorkspaceUnknown,
            Self::Context(rejection) => rejection.code(),
            Self::GraphUnknown { .. } => ErrorCode::GraphUnknown,
            Self::RunUnknown { .. } => ErrorCode::RunUnknown,
            Self::SpecUnknown { .. } => ErrorCode::SpecUnknown,
            Self::ThreadUnknown { .. } => ErrorCode::ThreadUnknown,
            Self::GraphInvalid { .. } => ErrorCode::GraphInvalid,
            Self::BlobUnknown { .. } => ErrorCode::BlobUnknown,
            Self::UploadUnknown { .. } => ErrorCode::UploadUnknown,
            Self::BlobIncomplete { .. } => ErrorCode::BlobIncomplete,
            Self::BlobDigestMismatch { .. } => ErrorCode::BlobDigestMismatch,
            Self::BlobDamaged { .. } => ErrorCode::BlobDamaged,
            Self::BlobOutOfRange { .. } => ErrorCode::BlobOutOfRange,
            Self::BlobQuota { .. } => ErrorCode::QuotaExceeded,
            Self::BlobHolderClosed { .. } => ErrorCode::WorkspaceClosed,
            Self::SchemaUnknown { .. } | Self::SchemaNameUnknown { .. } => ErrorCode::SchemaUnknown,
            Self::SchemaExists { .. } => ErrorCode::SchemaExists,
            Self::FilterNotApplicable { .. } => ErrorCode::FilterNotApplicable,
            Self::SchemaRejected { .. } => ErrorCode::SchemaRejected,
            Self::NameRetired { .. } => ErrorCode::NameRetired,
            Self::ContextSchemaViolation { .. } => ErrorCode::ContextSchemaViolation,
            Self::NegotiationUnknown { .. } => ErrorCode::NegotiationUnknown,
            Self::PlanUnknown { .. } => ErrorCode::PlanUnknown,
            Self::PlanInvalid { .. } => ErrorCode::PlanInvalid,
            Self::DeliveryUnknown { .. } => ErrorCode::DeliveryUnknown,
            Self::DeadLetterUnknown { .. } => ErrorCode::DeadLetterUnknown,
            Self::DeadLetterSettled { .. } => ErrorCode::DeadLetterSettled,
            Self::DeadLetterNotAMessage { .. } => ErrorCode::DeadLetterNotAMessage,
            Self::NothingMatches => ErrorCode::NothingMatches,
            Self::AgentGone { .. } => ErrorCode::AgentGone,
            Self::CoordinatorKey { .. } => ErrorCode::KeyNotValid,
            Self::IdentityMissing => ErrorCode::IdentityMissing,
            Self::TokenInvalid | Self::JwtInvalid { .. } => ErrorCode::TokenInvalid,
            Self::ChallengeFailed => ErrorCode::ChallengeFailed,
            Self::PermissionDenied(_) | Self::AgentsOnly { .. } | Self::SectionSecret { .. } => {
                ErrorCode::PermissionDenied
            }
            Self::PageTokenInvalid => ErrorCode::PageTokenInvalid,
            Self::Conflict | Self::EtagChanged => ErrorCode::Conflict,
            Self::TlsRequired => ErrorCode::TlsRequired,
            Self::LimitExceeded { .. } => ErrorCode::LimitExceeded,
            Self::ShuttingDown => ErrorCode::ShuttingDown,
            Self::IdentityEnded { .. } => ErrorCode::KeyNotValid,
            Self::StoreUnavailable => ErrorCode::StoreUnavailable,
            Self::NotSupported { .. } => ErrorCode::NotSupported,
            Self::Internal => ErrorCode::Internal,
        }
    }

    fn metadata(&self) -> Vec<(&'static str, String)> {
        match self {
            Self::NotAdmitted(error) => error.metadata(),
            Self::AgentBusy { tasks, offers, .. } => {
                vec![("owned_tasks", tasks.to_string()), ("open_offers", offers.to_string())]
            }
            Self::Context(rejection) => rejection.metadata(),
            Self::BlobOutOfRange { committed } => vec![("committed_bytes", committed.to_string())],
            Self::BlobQuota { what, limit } => vec![("quota", (*what).to_owned()), ("limit", limit.to_string())],
            Self::NameRetired { owner, .. } => vec![("owner_id", owner.clone())],
            Self::DeadLetterSettled { state, .. } => vec![("state", (*state).to_owned())],
            Self::PermissionDenied(denied) => vec![
                ("action", denied.action_name.to_owned()),
                ("resource", denied.resource.clone()),
                ("rules", denied.decision.rules.join(", ")),
            ],
            _ => Vec::new(),
        }
    }

    fn violations(&self) -> &[FieldViolation] {
        match self {
            Self::Fields { violations }
            | Self::GraphInvalid { violations }
            | Self::PlanInvalid { violations }
            | Self::SchemaUnknown { violations, .. }
            | Self::ContextSchemaViolation { violations } => violations,
            Self::NotAdmitted(error) => error.violations(),
            _ => &[],
        }
    }

    fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::LimitExceeded { retry_after, .. } => Some(*retry_after),
            Self::ShuttingDown | Self::StoreUnavailable | Self::Conflict => Some(Duration::from_secs(1)),
            _ => None,
        }
    }
}

/// A damaged or unreadable store is the broker's fault to a caller; the log has the cause.
impl From<ReadError> for BrokerError {
    fn from(error: ReadError) -> Self {
        tracing::error!(%error, "failed to read from the store");
        // The engine begins again from the disk, or the broker stops if the store is damaged.
        Self::StoreUnavailable
    }
}

impl From<crate::records::DecodeError> for BrokerError {
    fn from(error: crate::records::DecodeError) -> Self {
        tracing::error!(%error, "failed to decode a record");
        Self::Internal
    }
}

impl From<CommitError> for BrokerError {
    fn from(error: CommitError) -> Self {
        tracing::error!(%error, "failed to commit");
        Self::StoreUnavailable
    }
}
