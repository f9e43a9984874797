//! The commands that the engine executes.

use bytes::Bytes;

use super::KeyChange;
use crate::{
    broker::{Acknowledged, Credited, Events, Reply, Updates, WatcherId, access::Caller, directory::Entry},
    domain::{
        EntityId,
        dead_letter::ParkReason,
        mailbox::{ConsumerId, Fate},
    },
    envelope::VerifiedEnvelope,
    ids::AgentId,
    proto::v1,
    records::{AuditAct, DeadLetterRecord, InvitationRecord},
};

/// A command to the engine.
#[derive(Debug)]
pub enum Command {
    /// Accepts an envelope.
    Submit {
        /// The envelope.
        envelope: Box<VerifiedEnvelope>,
        /// Receives the receipt.
        reply: Reply<v1::Receipt>,
    },
    /// Reports the fate of a delivery.
    Acknowledge {
        /// The agent that owns the mailbox.
        agent: AgentId,
        /// The id of the delivery.
        delivery_id: String,
        /// The fate of the delivery.
        fate: Fate,
        /// Receives the answer.
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
        /// Receives the deliveries.
        events: Events,
    },
    /// Sets the credit of a consumer.
    Credit {
        /// The consumer.
        consumer: ConsumerId,
        /// The most deliveries that are dispatched to the consumer and not acked.
        outstanding_max: u32,
        /// Receives the answer.
        reply: Option<Reply<Credited>>,
    },
    /// Closes a consumer.
    Close {
        /// The consumer.
        consumer: ConsumerId,
    },
    /// Records a heartbeat of an agent.
    Heartbeat {
        /// The consumer of the session that carries the heartbeat.
        consumer: ConsumerId,
        /// The agent.
        agent: AgentId,
        /// The heartbeat.
        heartbeat: v1::Heartbeat,
        /// Receives the answer.
        reply: Option<Reply<Credited>>,
    },
    /// Registers an agent, or changes its card.
    Register {
        /// The agent.
        entry: Box<Entry>,
        /// The caller that asks for the registration.
        caller: Caller,
        /// The invitation that the caller presents, or an empty string.
        invitation: String,
        /// Receives the answer.
        reply: Reply<()>,
    },
    /// Creates an invitation, with which one agent may register once.
    Invite {
        /// The invitation.
        invitation: String,
        /// The terms of the invitation.
        record: InvitationRecord,
        /// The caller that asks for the invitation.
        caller: Caller,
        /// Receives the answer.
        reply: Reply<()>,
    },
    /// Changes an agent's keys.
    ChangeKeys {
        /// The agent.
        agent: AgentId,
        /// The change.
        change: KeyChange,
        /// The caller that asks for the change.
        caller: Caller,
        /// Receives the answer.
        reply: Reply<()>,
    },
    /// Writes an act that changes no other record into the audit log.
    Note {
        /// The act.
        act: AuditAct,
    },
    /// Sends the current state of an entity, and then each update until the last one.
    Watch {
        /// The new watcher's id, never used before.
        watcher: WatcherId,
        /// The entity.
        entity: EntityId,
        /// Receives the updates.
        updates: Updates,
    },
    /// Ends a watcher: it gets no further update.
    Unwatch {
        /// The watcher.
        watcher: WatcherId,
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
