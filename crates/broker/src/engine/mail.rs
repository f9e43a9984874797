//! Executing `Effect::Deliver`: a delivery becomes a letter in a mailbox, in the transaction of its step.

use bytes::Bytes;
use prost::Message as _;

use super::{Engine, batch::PostCommit, run::ThisMessage, transaction::Transaction};
use crate::{
    BrokerError,
    domain::{
        EntityId, Handling, Header, Mail, MessageType,
        handoff::{Acked, Advice, Notice, Priority},
        mailbox::{self, EnvelopeOwner, EnvelopePlace, Flow, Letter},
    },
    envelope::{self, Body},
    ids::{AgentId, InstanceId, MessageId, TaskId},
    proto::{Any, v1},
    records::{EntityRecord, HandoffRecord, MessageRecord, encode_letter, letter_key, mail_timer_key},
    time::Timestamp,
};

impl Engine {
    /// The process of this agent that has begun what the mail belongs to, or has taken it: the one that sent the request
    /// or the accept of the handoff, asked the question, opened the negotiation, made the offer, or submitted the plan.
    /// `None`: any process. `of` is the entity whose step sends the mail.
    pub(super) fn process_for(
        &mut self,
        transaction: &mut Transaction,
        of: &EntityId,
        to: &AgentId,
        mail: &Mail,
        message: Option<ThisMessage<'_>>,
    ) -> Result<Option<InstanceId>, BrokerError> {
        let (about, task) = match mail {
            Mail::ThisMessage => {
                let Some(this) = message else { return Ok(None) };
                let header = this.envelope.header();
                // A request for offers is new work.
                if header.message_type == MessageType::TaskRequest {
                    return Ok(None);
                }
                (header.correlation, header.task.clone())
            }
            Mail::Notice { .. } if matches!(of, EntityId::Plan(_)) => {
                let record = self.entity_record(transaction, of)?;
                let record = record.as_deref().and_then(EntityRecord::as_plan);
                return Ok(record.filter(|record| record.plan.submitter == *to).and_then(|of| of.submitter_process));
            }
            Mail::Notice { about, task, .. } => (*about, task.as_ref().map(|(task, _)| task.clone())),
            // The offer of a handoff is new work, except for the process that has bid for it.
            Mail::Opening { entity, .. } => {
                let record = self.entity_record(transaction, entity)?;
                let record = record.as_deref().and_then(EntityRecord::as_handoff);
                let Some(negotiation) = record.and_then(|record| record.handoff.negotiation) else { return Ok(None) };
                return self.process_in_negotiation(transaction, negotiation, to);
            }
            Mail::Closed(closed) => (Some(closed.negotiation), None),
            Mail::Node(letter) => (None, letter.task.clone()),
        };
        if let Some(about) = about {
            if let Some(process) = self.process_in_handoff(transaction, about, to)? {
                return Ok(process);
            }
            if self.entity_record(transaction, &EntityId::Negotiation(about))?.is_some() {
                return self.process_in_negotiation(transaction, about, to);
            }
        }
        // A word about a task that belongs to no open matter: the answer to a question, or the end of a loan.
        let Some(task) = task else { return Ok(None) };
        let Some(record) = self.entity_record(transaction, &EntityId::Task(task))? else { return Ok(None) };
        let Some(record) = record.as_task() else { return Ok(None) };
        if let Some((asked, process)) = record.asking
            && about == Some(asked)
        {
            return Ok(Some(process));
        }
        let hop = record.task.hops.iter().rev().find(|hop| hop.sender == *to || hop.receiver == *to);
        let Some(handoff) = hop.map(|hop| hop.handoff) else { return Ok(None) };
        Ok(self.process_in_handoff(transaction, handoff, to)?.flatten())
    }

    /// The process of an agent that takes part in a handoff, or in the negotiation that has opened it. The outer `None`:
    /// no such handoff is known.
    fn process_in_handoff(
        &mut self,
        transaction: &mut Transaction,
        handoff: MessageId,
        agent: &AgentId,
    ) -> Result<Option<Option<InstanceId>>, BrokerError> {
        let record = self.entity_record(transaction, &EntityId::Handoff(handoff))?;
        let Some(record) = record.as_deref().and_then(EntityRecord::as_handoff) else { return Ok(None) };
        Ok(Some(match (record.process_of(agent), record.handoff.negotiation) {
            (None, Some(negotiation)) => self.process_in_negotiation(transaction, negotiation, agent)?,
            (process, _) => process,
        }))
    }

    /// The process of an agent that has opened the negotiation, or has made the agent's latest offer in it.
    fn process_in_negotiation(
        &mut self,
        transaction: &mut Transaction,
        negotiation: MessageId,
        agent: &AgentId,
    ) -> Result<Option<InstanceId>, BrokerError> {
        let record = self.entity_record(transaction, &EntityId::Negotiation(negotiation))?;
        Ok(record.as_deref().and_then(EntityRecord::as_negotiation).and_then(|record| record.process_of(agent)))
    }

    /// Puts mail into an agent's mailbox. `message` is the input of the step, if the input is a message.
    pub(super) fn deliver(
        &mut self,
        transaction: &mut Transaction,
        to: AgentId,
        mail: Mail,
        (priority, report_to): (Priority, Option<(EntityId, Acked)>),
        message: Option<ThisMessage<'_>>,
        now: Timestamp,
    ) -> Result<(), BrokerError> {
        match mail {
            Mail::ThisMessage => {
                // Only the step of a message has this mail.
                let this = message.ok_or(BrokerError::Internal)?;
                let header = this.envelope.header();
                let flow = flow_of(transaction, &header.sender, header.handoff());
                self.deliver_this(transaction, &to, this, (this.owner, report_to), (priority, flow), now);
            }
            Mail::Closed(closed) => self.tell_closed(transaction, to, &closed, priority, now),
            Mail::Node(letter) => self.tell_of_node(transaction, to, &letter, priority, now)?,
            Mail::Opening { entity, expires } => {
                let record = self.entity_record(transaction, &entity)?.ok_or(BrokerError::Internal)?;
                if let Some(negotiation) = record.as_negotiation() {
                    return self.ask_next(transaction, to, negotiation, (priority, report_to), now);
                }
                if let Some(handoff) = record.as_handoff().filter(|handoff| handoff.is_under_mandate()) {
                    return self.tell_candidate(transaction, to, handoff, (priority, report_to), now);
                }
                let opening = record.opening().ok_or(BrokerError::Internal)?;
                let deadline = deadline_of(transaction, report_to.as_ref());
                let flow = Flow::of_handoff(&record.as_handoff().ok_or(BrokerError::Internal)?.handoff);
                // The custody log owns the original bytes; the letter gets its own copy, which goes with the letter.
                let bytes =
                    self.envelope_bytes(EnvelopePlace::Message(opening.message)).ok_or(BrokerError::Internal)?;
                let letter = Letter {
                    message_sequence: opening.sequence,
                    trace: record.trace().map(|place| Box::new(place.continued.clone())),
                    task: record.entity().task().cloned(),
                    priority,
                    expires_at: self.mail_expiry(opening.expires_at.filter(|_| expires), deadline, now),
                    report_to,
                    ..Letter::new(self.new_sequence(transaction), opening.message, flow, now)
                };
                transaction.put_new(MessageRecord::envelope_key(letter.sequence), bytes);
                self.store_letter(transaction, to, letter);
            }
            Mail::Notice { notice, about, task } => {
                let content = (MessageType::ErrorNotification, envelope::payload_of(&notice_payload(&notice)));
                self.write_to(transaction, to, content, (about, task), (priority, report_to), now);
            }
        }
        Ok(())
    }

    /// Puts a message of the broker into a mailbox.
    pub(super) fn write_to(
        &mut self,
        transaction: &mut Transaction,
        to: AgentId,
        (message_type, payload): (MessageType, Any),
        (about, task): (Option<MessageId>, Option<(TaskId, u64)>),
        (priority, report_to): (Priority, Option<(EntityId, Acked)>),
        now: Timestamp,
    ) {
        // No message record has this id. The letter owns the envelope alone, which is deleted with the letter.
        let message = self.env.ids.message_id(now);
        let sequence = self.new_sequence(transaction);
        let task_id = task.as_ref().map(|(task, _)| task.clone());
        let trace =
            self.trace_of_cause(transaction, report_to.as_ref().map(|(entity, _)| entity), about, task_id.as_ref());
        let mut envelope = v1::Envelope {
            trace_context: trace.as_deref().map(Into::into),
            message_id: message.to_string(),
            sender_id: AgentId::broker().to_string(),
            receiver_id: to.to_string(),
            timestamp: Some(now.into()),
            message_type: message_type.number(),
            correlation_id: about.map(|id| id.to_string()).unwrap_or_default(),
            task_id: task_id.as_ref().map(ToString::to_string).unwrap_or_default(),
            epoch: task.map_or(0, |(_, epoch)| epoch),
            payload: Some(payload),
            ..Default::default()
        };
        envelope::sign(&mut envelope, &self.env.identity.key_id, &self.env.identity.key);
        transaction.put_new(MessageRecord::envelope_key(sequence), envelope.encode_to_vec().into());
        let deadline = deadline_of(transaction, report_to.as_ref());
        let (flow, expires_at) =
            (flow_of(transaction, &AgentId::broker(), about), self.mail_expiry(None, deadline, now));
        let letter = Letter { trace, priority, expires_at, report_to, ..Letter::new(sequence, message, flow, now) };
        let letter = Letter { task: task_id, ..letter };
        self.store_letter(transaction, to, letter);
    }

    /// Puts the message in hand into a mailbox.
    pub(super) fn deliver_this(
        &mut self,
        transaction: &mut Transaction,
        to: &AgentId,
        this: ThisMessage<'_>,
        owner_and_report: (EnvelopeOwner, Option<(EntityId, Acked)>),
        order: (Priority, Flow),
        now: Timestamp,
    ) {
        let letter = self.letter_of(transaction, this, owner_and_report, order, now);
        self.store_letter(transaction, to.clone(), letter);
    }

    /// The letter with the message in hand.
    pub(super) fn letter_of(
        &mut self,
        transaction: &mut Transaction,
        this: ThisMessage<'_>,
        (envelope_owner, report_to): (EnvelopeOwner, Option<(EntityId, Acked)>),
        (priority, flow): (Priority, Flow),
        now: Timestamp,
    ) -> Letter {
        let header = this.envelope.header();
        let held_until = match this.envelope.body() {
            Body::Mail { deliver_after } => deliver_after.unwrap_or(now).max(now),
            _ => now,
        };
        let deadline = match this.envelope.body() {
            // The lifetime of mail that is held begins with its delivery.
            Body::Mail { deliver_after: Some(_) } => Some(held_until.plus(self.env.settings.mail_lifetime)),
            // The question is open for as long as its sender says.
            Body::Status { prompt: Some(prompt), .. } => prompt.answer_before,
            _ => deadline_of(transaction, report_to.as_ref()),
        };
        let letter = Letter {
            task: header.task.clone(),
            priority,
            expires_at: self.mail_expiry(header.expires_at, deadline, now),
            report_to,
            envelope_owner,
            trace: self.continued_by(transaction, header),
            not_before: held_until,
            ..Letter::new(this.sequence, header.message_id, flow, now)
        };
        Letter { task: letter.task.filter(|_| stands_in_order(header)), ..letter }
    }

    /// Stores a letter, and a mailbox timer if no known timer of the mailbox fires early enough.
    pub(super) fn store_letter(&self, transaction: &mut Transaction, agent: AgentId, letter: Letter) {
        let letter = Letter { process: transaction.preferred.take(), ..letter };
        if let Some((entity @ EntityId::Handoff(_), Acked::Request | Acked::Context)) = &letter.report_to
            && let Some(record) = transaction.written(entity).and_then(|record| record.as_handoff())
        {
            let record = HandoffRecord { latest_letter: letter.sequence, ..record.clone() };
            transaction.put_entity(EntityRecord::Handoff(record));
        }
        transaction.put_new(letter_key(&agent, letter.sequence), encode_letter(&letter));
        let at = letter.expires_at;
        if self.mail_timer(&agent).is_none_or(|timer| at < timer) {
            // The store may have a timer of this mailbox and time that memory does not know of.
            transaction.put_over(mail_timer_key(at, &agent), Bytes::new());
            transaction.post_commit.push(PostCommit::MailTimer { agent: agent.clone(), at: Some(at) });
        }
        transaction.post_commit.push(PostCommit::LetterStored { agent, letter });
    }

    /// The running time at which mail accepted now expires. `deadline` is that of what it carries.
    pub(super) fn mail_expiry(
        &self,
        expires_at: Option<Timestamp>,
        deadline: Option<Timestamp>,
        now: Timestamp,
    ) -> Timestamp {
        let lifetime = self.env.settings.mail_lifetime;
        mailbox::expires_at(expires_at, lifetime, deadline, now).plus(self.timers.clock.set_back)
    }
}

/// The deadline of the handoff that waits for the ack of a letter. An offer is open as long as its handoff, whether or not
/// its letter was fetched.
fn deadline_of(transaction: &Transaction, report_to: Option<&(EntityId, Acked)>) -> Option<Timestamp> {
    let (entity, _) = report_to?;
    let mut read = transaction.all_read().filter_map(|record| record.as_handoff());
    let handoff = read.find(|record| EntityId::Handoff(record.handoff.id) == *entity)?;
    Some(handoff.handoff.whole_deadline)
}

/// The flow of a message of this sender about a handoff that the step has read. The requester's messages are in that of its
/// request, and so are those of the broker: what 300 handoffs of one requester cause does not stand before what one of
/// another does.
fn flow_of(transaction: &Transaction, sender: &AgentId, handoff: Option<MessageId>) -> Flow {
    let mut read = transaction.all_read().filter_map(|record| record.as_handoff());
    match handoff.and_then(|id| read.find(|record| record.handoff.id == id)) {
        Some(record) if record.handoff.sender == *sender || *sender == AgentId::broker() => {
            Flow::of_handoff(&record.handoff)
        }
        Some(_) | None => Flow::of(sender.clone()),
    }
}

/// Whether the deliveries of a message stand in the order of its task. A message of a negotiation that moves no task holds
/// up no message that does: an agent may get the award of a task before it acks the request for offers.
fn stands_in_order(header: &Header) -> bool {
    match header.rules().handling {
        Handling::Mail => false,
        Handling::Negotiation => header.message_type == MessageType::TaskAccept,
        Handling::Request
        | Handling::Handoff
        | Handling::Status
        | Handling::Task
        | Handling::Workspace
        | Handling::Plan
        | Handling::Heartbeat => true,
    }
}

fn notice_payload(notice: &Notice) -> v1::ErrorNotification {
    let (severity, next_step, next_step_text) = match notice.advice {
        Advice::KeepTask => (
            v1::Severity::Warning,
            v1::NextStep::KeepTask,
            "you still own the task: try another handoff or go on with it",
        ),
        Advice::AskAgain => (
            v1::Severity::Warning,
            v1::NextStep::Unspecified,
            "no agent has the work: ask again, other agents or with other terms",
        ),
        Advice::DropTask => (
            v1::Severity::Warning,
            v1::NextStep::DropTask,
            "drop what you received for this handoff and do not work on the task",
        ),
        Advice::AskOperator => (
            v1::Severity::Warning,
            v1::NextStep::Unspecified,
            "ask an operator to reassign the task, unless its owner comes back",
        ),
        Advice::None => {
            (v1::Severity::Info, v1::NextStep::Unspecified, "nothing to do: answer what comes as with any handoff")
        }
    };
    let severity = if notice.is_critical { v1::Severity::Critical } else { severity };
    v1::ErrorNotification {
        error_code: notice.code.number(),
        error_message: notice.message.clone(),
        severity: severity.into(),
        origin_agent_id: AgentId::broker().to_string(),
        next_step: next_step.into(),
        next_step_text: next_step_text.to_owned(),
    }
}
