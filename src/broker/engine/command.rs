//! What the engine is told to do.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::sync::{mpsc, watch};

use super::KeyChange;
use crate::{
    broker::{Event, Refused, Reply, access::Caller, directory::Entry},
    domain::{handoff::Handoff, mailbox::ConsumerId},
    envelope::VerifiedEnvelope,
    ids::{AgentId, MessageId, TaskId},
    proto::v1,
    records::{AuditAct, InvitationRecord, ParkReason},
};

/// Where a watcher's updates go. One who lets them pile up until the channel is full is not told any more: the channel
/// closes before the handoff is final.
pub type Updates = mpsc::Sender<Result<Arc<Handoff>, Refused>>;

/// Something to be done.
#[derive(Debug)]
pub enum Command {
    /// Take an envelope.
    Submit {
        /// The envelope.
        envelope: Box<VerifiedEnvelope>,
        /// Who waits for the receipt.
        reply: Reply,
    },
    /// Say what became of a delivery.
    Acknowledge {
        /// Whose mailbox.
        agent: AgentId,
        /// Which delivery.
        delivery_id: String,
        /// What became of it.
        fate: Fate,
        /// Who waits for the answer.
        reply: Reply,
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
        events: mpsc::UnboundedSender<Event>,
    },
    /// Set how many deliveries a consumer takes at a time.
    Credit {
        /// Which consumer.
        consumer: ConsumerId,
        /// The most that are handed out and not acknowledged.
        outstanding_max: u32,
        /// Who waits for the answer.
        reply: Option<Reply>,
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
        /// Who waits for the answer.
        reply: Option<Reply>,
    },
    /// Register an agent, or change its card.
    Register {
        /// The agent.
        entry: Box<Entry>,
        /// Who wants it.
        caller: Caller,
        /// The invitation that it comes with, or nothing.
        invitation: String,
        /// Who waits for the answer.
        reply: Reply,
    },
    /// Let somebody register once.
    Invite {
        /// The invitation.
        invitation: String,
        /// What it is good for.
        record: InvitationRecord,
        /// Who wants it.
        caller: Caller,
        /// Who waits for the answer.
        reply: Reply,
    },
    /// Change an agent's keys.
    ChangeKeys {
        /// Whose.
        agent: AgentId,
        /// How.
        change: KeyChange,
        /// Who wants it.
        caller: Caller,
        /// Who waits for the answer.
        reply: Reply,
    },
    /// Put an act on record that changes nothing that is stored.
    Note {
        /// The act.
        act: AuditAct,
    },
    /// Send a handoff as it is now, and after each step until it is final.
    Watch {
        /// Which handoff.
        handoff: MessageId,
        /// Where to.
        updates: Updates,
    },
    /// Follow the length of a task's custody log.
    WatchTask {
        /// Which task.
        task: TaskId,
        /// Where the length goes. Whoever is slow sees the latest, and reads the entries from the store.
        lengths: watch::Sender<u64>,
    },
    /// Put a dead letter on its way again.
    Redrive {
        /// Which.
        dead_letter: u64,
        /// To whom, if not to whom it was to go.
        to: Option<AgentId>,
        /// Who wants it.
        caller: Caller,
        /// Who waits for the answer.
        reply: Reply,
    },
    /// Give a dead letter up for good.
    Discard {
        /// Which.
        dead_letter: u64,
        /// Who wants it.
        caller: Caller,
        /// Why.
        reason_text: String,
        /// Who waits for the answer.
        reply: Reply,
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
    /// Tell every session that the broker is about to stop.
    GoAway,
}

/// What became of a delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// It is taken.
    Acked,
    /// It can never be taken.
    Poison {
        /// In words.
        text: String,
    },
    /// It could not be taken this time.
    Failed {
        /// In words.
        text: String,
        /// When to deliver it again, if the agent says.
        retry_after: Option<Duration>,
    },
    /// The agent is about to stop.
    Shutdown {
        /// In words.
        text: String,
        /// When to deliver it again, if the agent says.
        retry_after: Option<Duration>,
    },
    /// It needs more time.
    Extend {
        /// How much, from now; the ack wait if the agent does not say.
        extension: Option<Duration>,
    },
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
