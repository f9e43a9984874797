//! What the engine is told to do.

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

/// Something to be done.
#[derive(Debug)]
pub enum Command {
    /// Take an envelope.
    Submit {
        /// The envelope.
        envelope: Box<VerifiedEnvelope>,
        /// Where the receipt goes.
        reply: Reply<v1::Receipt>,
    },
    /// Say what became of a delivery.
    Acknowledge {
        /// Whose mailbox.
        agent: AgentId,
        /// Which delivery.
        delivery_id: String,
        /// What became of it.
        fate: Fate,
        /// Where the answer goes.
        reply: Reply<Acknowledged>,
    },
    /// Begin to hand out an agent's mail. With no credit yet.
    Open {
        /// The new consumer's id, never used before.
        consumer: ConsumerId,
        /// Whose mail.
        agent: AgentId,
        /// How its leases end.
        kind: ConsumerKind,
        /// Where deliveries go.
        events: Events,
    },
    /// Set how many deliveries a consumer takes at a time.
    Credit {
        /// Which consumer.
        consumer: ConsumerId,
        /// The most that are handed out and not acknowledged.
        outstanding_max: u32,
        /// Where the answer goes.
        reply: Option<Reply<Credited>>,
    },
    /// Stop handing out to this consumer.
    Close {
        /// Which consumer.
        consumer: ConsumerId,
    },
    /// An agent says how it is.
    Heartbeat {
        /// On which session.
        consumer: ConsumerId,
        /// Who.
        agent: AgentId,
        /// What it says.
        heartbeat: v1::Heartbeat,
        /// Where the answer goes.
        reply: Option<Reply<Credited>>,
    },
    /// Register an agent, or change its card.
    Register {
        /// The agent.
        entry: Box<Entry>,
        /// Who wants it.
        caller: Caller,
        /// The invitation that it comes with, or nothing.
        invitation: String,
        /// Where the answer goes.
        reply: Reply<()>,
    },
    /// Let somebody register once.
    Invite {
        /// The invitation.
        invitation: String,
        /// What it is good for.
        record: InvitationRecord,
        /// Who wants it.
        caller: Caller,
        /// Where the answer goes.
        reply: Reply<()>,
    },
    /// Change an agent's keys.
    ChangeKeys {
        /// Whose.
        agent: AgentId,
        /// How.
        change: KeyChange,
        /// Who wants it.
        caller: Caller,
        /// Where the answer goes.
        reply: Reply<()>,
    },
    /// Put an act on record that changes nothing that is stored.
    Note {
        /// The act.
        act: AuditAct,
    },
    /// Send an entity as it is now, and each update of it until the last.
    Watch {
        /// The new watcher's id, never used before.
        watcher: WatcherId,
        /// The entity.
        entity: EntityId,
        /// Where the updates go.
        updates: Updates,
    },
    /// Send no more updates to this watcher.
    Unwatch {
        /// The watcher.
        watcher: WatcherId,
    },
    /// Put a dead letter on its way again.
    Redrive {
        /// Which.
        dead_letter: u64,
        /// To whom, if not to whom it was to go.
        to: Option<AgentId>,
        /// Who wants it.
        caller: Caller,
        /// Where the answer goes.
        reply: Reply<DeadLetterRecord>,
    },
    /// Give a dead letter up for good.
    Discard {
        /// Which.
        dead_letter: u64,
        /// Who wants it.
        caller: Caller,
        /// Why.
        reason_text: String,
        /// Where the answer goes.
        reply: Reply<DeadLetterRecord>,
    },
    /// Keep what an agent that has proven who it is sent, and was refused.
    KeepRefused {
        /// Who sent it.
        agent: AgentId,
        /// What it sent.
        raw: Bytes,
        /// Why it was refused.
        reason: ParkReason,
        /// In words.
        text: String,
    },
    /// Tell every session and every watcher that the broker is about to stop.
    GoAway,
}

/// How the leases of a consumer end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConsumerKind {
    /// A session: they end with it.
    Session,
    /// One call of `Receive`: they outlive it, since the acks come by other calls.
    Receive {
        /// After so many deliveries the call is done; `None`: never.
        deliveries_max: Option<u32>,
    },
}
