//! The commands that the engine executes.

use std::sync::Arc;

use bytes::Bytes;

use super::{CardUpdate, KeyChange, NameChange, NewBlob, Reassignment, Revision};
use crate::{
    Acknowledged, Credited, Events, Reassigned, Reply, RunningProcess, Updates, WatcherId,
    access::Caller,
    blobs::BlobPlace,
    directory::Entry,
    domain::{
        EntityId, Input,
        dead_letter::ParkReason,
        mailbox::{ConsumerId, Fate},
        negotiation::Negotiation,
    },
    ids::{AgentId, InstanceId, MessageId, TaskId, WorkspaceId},
    preparation::PreparedMessage,
    proto::v1,
    records::{AuditAct, BlobRecord, DeadLetterRecord, InvitationRecord, RegistrationName, RegistrationRecord},
};

/// A command to the engine.
#[derive(Debug)]
pub enum Command {
    /// Accepts or refuses an envelope, and runs the step that it causes.
    Submit {
        /// The message: a verified envelope with the outcome of its longer checks.
        message: PreparedMessage,
        /// Whether the caller has proven to be the sender, by a session or a token. Any other caller may send a copy of an
        /// envelope that it once received.
        is_from_sender: bool,
        /// Receives the unsigned receipt after the commit, or the refusal.
        reply: Reply<v1::Receipt>,
    },
    /// Runs the step that a call asks for, of an entity without a custody log.
    Apply {
        /// The entity to step.
        about: EntityId,
        /// The input, of the entity's kind.
        input: Box<Input>,
        /// The caller that asks for the step, with the right to it.
        caller: Caller,
        /// Receives the answer once the step is stored, or the refusal. `false`: the step changes nothing, a repeat.
        reply: Reply<bool>,
    },
    /// Reports the fate of a delivery.
    Acknowledge {
        /// The agent that owns the mailbox.
        agent: AgentId,
        /// The id of the delivery.
        delivery_id: String,
        /// The fate of the delivery.
        fate: Fate,
        /// Receives the new deadline of an extension, or the refusal.
        reply: Reply<Acknowledged>,
    },
    /// Opens a consumer of an agent's mail. The consumer starts without credit.
    Open {
        /// The new consumer's id, never used before.
        consumer: ConsumerId,
        /// The agent whose mail the consumer takes.
        agent: AgentId,
        /// The kind of the consumer, which decides how its leases end.
        kind: ConsumerKind,
        /// Receives the deliveries and the go-away.
        events: Events,
    },
    /// Sets the credit of a consumer.
    Credit {
        /// The consumer. An unknown one has no credit.
        consumer: ConsumerId,
        /// The most deliveries that are dispatched to the consumer and not acked.
        outstanding_max: u32,
        /// Receives the credit in force. `None`: no answer.
        reply: Option<Reply<Credited>>,
    },
    /// Closes a consumer. The leases of a session end with it.
    Close {
        /// The consumer. A closed or unknown one is ignored.
        consumer: ConsumerId,
    },
    /// Names the process behind a session.
    Hello {
        /// The consumer of the session.
        consumer: ConsumerId,
        /// The process.
        instance: InstanceId,
        /// Whether each heartbeat of the process lists all tasks that it works on.
        tells_work: bool,
        /// Receives the credit in force. `None`: no answer.
        reply: Option<Reply<Credited>>,
    },
    /// Gives a process tasks of its agent that no connected process works on.
    Resume {
        /// The agent.
        agent: AgentId,
        /// The process. It has an open session.
        instance: InstanceId,
        /// The tasks that the process may get, in order. One that the agent no longer owns, that has ended or that is
        /// being handed over is left out.
        tasks: Vec<TaskId>,
        /// The most tasks that the process gets.
        tasks_max: usize,
        /// Receives the tasks that the process gets.
        reply: Reply<Vec<TaskId>>,
    },
    /// Names the processes of an agent with an open session.
    Processes {
        /// The agent.
        agent: AgentId,
        /// Receives the processes in the order in which they came, at most [`crate::PROCESSES_SHOWN`].
        reply: Reply<Vec<RunningProcess>>,
    },
    /// Records a heartbeat of an agent.
    Heartbeat {
        /// The consumer of the session that carries the heartbeat.
        consumer: ConsumerId,
        /// The agent that sends the heartbeat.
        agent: AgentId,
        /// The agent's report of its capacity and load.
        heartbeat: v1::Heartbeat,
        /// Receives the credit in force. `None`: no answer.
        reply: Option<Reply<Credited>>,
    },
    /// Registers an agent, or changes its card.
    Register {
        /// The agent with its parsed card and keys.
        entry: Box<Entry>,
        /// The caller that asks for the registration.
        caller: Caller,
        /// The invitation that the caller presents, or an empty string.
        invitation: String,
        /// Receives the answer once the agent is stored, or the refusal.
        reply: Reply<()>,
    },
    /// Changes fields of a card.
    Update {
        /// The agent and the changed fields.
        update: Box<CardUpdate>,
        /// The caller that asks for the change.
        caller: Caller,
        /// Receives the answer once the card is stored, or the refusal.
        reply: Reply<()>,
    },
    /// Deregisters an agent for good.
    Deregister {
        /// The agent to deregister.
        agent: AgentId,
        /// Whether an agent with open tasks or offers is deregistered too.
        force: bool,
        /// The reason in the caller's words, or an empty string.
        reason_text: String,
        /// The caller that asks for it.
        caller: Caller,
        /// Receives the answer once the change is stored, or the refusal.
        reply: Reply<()>,
    },
    /// Creates an invitation, with which one agent may register once.
    Invite {
        /// The secret text of the invitation. The store has only its digest.
        invitation: String,
        /// The terms of the invitation.
        record: InvitationRecord,
        /// The caller that asks for the invitation.
        caller: Caller,
        /// Receives the answer once the invitation is stored, or the refusal.
        reply: Reply<()>,
    },
    /// Changes an agent's keys.
    ChangeKeys {
        /// The agent whose keys are changed.
        agent: AgentId,
        /// The key to add, to revoke or to vouch for.
        change: KeyChange,
        /// The caller that asks for the change.
        caller: Caller,
        /// Receives the answer once the keys are stored, or the refusal.
        reply: Reply<()>,
    },
    /// Answers once all commands before it are committed.
    Settle {
        /// Receives the answer after the commit.
        reply: Reply<()>,
    },
    /// Writes an act that changes no other record into the audit log.
    Note {
        /// The act, with its caller and its object.
        act: AuditAct,
    },
    /// Sends the current state of an entity, and then each update until the last one.
    Watch {
        /// The new watcher's id, never used before.
        watcher: WatcherId,
        /// The entity to watch. An unknown one ends the watcher with an error.
        entity: EntityId,
        /// Receives the updates, after the commit of each.
        updates: Updates,
    },
    /// Ends a watcher: it gets no further update.
    Unwatch {
        /// The watcher. One that has ended already is ignored.
        watcher: WatcherId,
    },
    /// Ends an open negotiation without an award.
    CancelNegotiation {
        /// The id of the request that opened the negotiation.
        negotiation: MessageId,
        /// The caller, which must be the requester.
        caller: Caller,
        /// Receives the negotiation after the commit, or the refusal.
        reply: Reply<Arc<Negotiation>>,
    },
    /// Redrives a dead letter.
    Redrive {
        /// The number of the dead letter.
        dead_letter: u64,
        /// The new receiver. `None`: the receiver of the dead letter.
        to: Option<AgentId>,
        /// The caller that asks for the redrive.
        caller: Caller,
        /// Receives the dead letter as it is stored after the redrive.
        reply: Reply<DeadLetterRecord>,
    },
    /// Begins or continues the upload of a blob.
    BeginUpload {
        /// The agent that writes.
        agent: AgentId,
        /// The blob, and the workspace that is to hold it.
        blob: Box<NewBlob>,
        /// Receives the blob if the agent may read it already, or nothing.
        reply: Reply<Option<BlobRecord>>,
    },
    /// Makes the record of a blob whose file is complete.
    FinishUpload {
        /// The agent that has written.
        agent: AgentId,
        /// The blob, and where its bytes are.
        place: BlobPlace,
        /// Receives the blob once it is stored, or the refusal. A blob that was known already keeps its place.
        reply: Reply<BlobRecord>,
    },
    /// Ends an upload whose bytes have another digest.
    DropUpload {
        /// The agent that has written.
        agent: AgentId,
        /// The digest that the bytes do not have.
        digest: [u8; 32],
        /// Receives the answer once the upload is removed.
        reply: Reply<()>,
    },
    /// Ends the hold of a workspace on a blob.
    DeleteBlob {
        /// The digest of the blob.
        digest: [u8; 32],
        /// The workspace whose hold ends.
        workspace: WorkspaceId,
        /// The caller that asks for it.
        caller: Caller,
        /// Receives the answer once the hold has ended, or the refusal.
        reply: Reply<()>,
    },
    /// Registers a graph or a spec, or a further revision of it.
    RegisterRevision {
        /// The graph or the spec.
        revision: Box<Revision>,
        /// The caller that asks for it.
        caller: Caller,
        /// The etag of the name that the registration is based on. Empty: any.
        etag: String,
        /// Receives the name once the revision is stored, or the refusal.
        reply: Reply<RegistrationRecord>,
    },
    /// Registers a version of a schema.
    RegisterSchema {
        /// The schema: a text that passes the checks.
        schema: Box<v1::Schema>,
        /// The caller that asks for it.
        caller: Caller,
        /// The etag of the name that the registration is based on. Empty: any.
        etag: String,
        /// Receives the schema as it is registered and its name, or the refusal.
        reply: Reply<(v1::Schema, RegistrationRecord)>,
    },
    /// Hands a name in a registry over, retires it or removes it.
    ChangeName {
        /// The name.
        name: RegistrationName,
        /// The change.
        change: NameChange,
        /// The caller that asks for it.
        caller: Caller,
        /// The etag that the change is based on. Empty: any.
        etag: String,
        /// Receives the name once the change is stored, or the refusal.
        reply: Reply<RegistrationRecord>,
    },
    /// Takes a task from its owner and has the coordinator hand it on.
    Reassign {
        /// The task, its epoch, and the new receiver.
        wanted: Reassignment,
        /// The caller that asks for it.
        caller: Caller,
        /// Receives the task and the coordinator's handoff as they are stored.
        reply: Reply<Reassigned>,
    },
    /// Discards a dead letter for good.
    Discard {
        /// The number of the dead letter.
        dead_letter: u64,
        /// The caller that asks for it.
        caller: Caller,
        /// The reason in the caller's words, or an empty string.
        reason_text: String,
        /// Receives the dead letter as it is stored after the decision.
        reply: Reply<DeadLetterRecord>,
    },
    /// Keeps a refused envelope of an authenticated agent as a dead letter.
    KeepRefused {
        /// The agent that sent the envelope.
        agent: AgentId,
        /// The bytes of the envelope.
        raw: Bytes,
        /// The reason for the refusal.
        reason: ParkReason,
        /// The reason as a text.
        text: String,
    },
    /// Tells every consumer to come back later, and ends every watcher: the broker is about to stop.
    GoAway,
}

impl Command {
    /// The caller that asks for a change, if the command has one. Each act of an operator comes with one.
    pub fn caller(&self) -> Option<&Caller> {
        match self {
            Self::Apply { caller, .. }
            | Self::Register { caller, .. }
            | Self::Update { caller, .. }
            | Self::Deregister { caller, .. }
            | Self::Invite { caller, .. }
            | Self::ChangeKeys { caller, .. }
            | Self::CancelNegotiation { caller, .. }
            | Self::Redrive { caller, .. }
            | Self::DeleteBlob { caller, .. }
            | Self::RegisterRevision { caller, .. }
            | Self::RegisterSchema { caller, .. }
            | Self::ChangeName { caller, .. }
            | Self::Reassign { caller, .. }
            | Self::Discard { caller, .. } => Some(caller),
            Self::Submit { .. }
            | Self::Acknowledge { .. }
            | Self::Open { .. }
            | Self::Credit { .. }
            | Self::Close { .. }
            | Self::Hello { .. }
            | Self::Resume { .. }
            | Self::Processes { .. }
            | Self::Heartbeat { .. }
            | Self::Settle { .. }
            | Self::Note { .. }
            | Self::Watch { .. }
            | Self::Unwatch { .. }
            | Self::BeginUpload { .. }
            | Self::FinishUpload { .. }
            | Self::DropUpload { .. }
            | Self::KeepRefused { .. }
            | Self::GoAway => None,
        }
    }
}

/// The kind of a consumer, which decides how its leases end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConsumerKind {
    /// A session. Its leases end with the session.
    Session,
    /// One call of `Receive`. Its leases outlive the call, because the acks come in other calls.
    Receive {
        /// The number of deliveries after which the call ends. `None`: no limit.
        deliveries_max: Option<u32>,
    },
}
