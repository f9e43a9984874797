//! The coordinator: its entry in the directory, the messages that it sends, and reassignments by operators.
//!
//! The machines say which message the coordinator sends ([`Order`]). This module composes the message, has it signed,
//! and applies it in the transaction of the step that ordered it, by the same way as the message of any agent.

use bytes::Bytes;
use prost::Message as _;

use super::{
    Engine,
    last_request::request_of,
    resolution::Candidates,
    run::{Cause, Origin, RunError, ThisMessage},
    transaction::Transaction,
};
use crate::{
    BrokerError, Reassigned, Refused,
    access::Caller,
    directory::Entry,
    domain::{
        EntityId, Input, MessageType, Receiver,
        admission::AdmissionError,
        coordinator::{Order, RequestOrder},
        handoff,
        mailbox::EnvelopeOwner,
    },
    envelope::{self, Body, EnvelopeError, Resolved, UnverifiedEnvelope, VerifiedEnvelope},
    ids::{AgentId, MessageId, TaskId},
    policy::{Action, Resource, Shared},
    proto::v1::{self, AuditAction},
    records::{AgentRecord, AuditAct, CustodyEvent, EntityRecord, EnvelopeFacts},
    refused,
    time::Timestamp,
};

/// The caller's wishes for a reassignment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reassignment {
    /// The task to take from its owner.
    pub task: TaskId,
    /// The task's epoch in the caller's view.
    pub expected_epoch: u64,
    /// The next owner: an agent, or any able agent of a type.
    pub to: Receiver,
    /// The reason in the caller's words, or an empty string.
    pub reason_text: String,
}

impl Engine {
    /// Registers the coordinator at the first start, and adds its key to the card after the key file was replaced.
    pub(super) fn register_coordinator(&mut self, now: Timestamp) -> Result<(), BrokerError> {
        let id = AgentId::coordinator();
        let mut transaction = self.transaction();
        let key = self.env.identity.coordinator.public_key();
        let (record, stored) = match self.agent_record(&mut transaction, &id)? {
            Some((record, _)) if record.card.keys.iter().any(|known| known.key_id == key.key_id) => return Ok(()),
            Some((mut record, stored)) => {
                let details = format!("key {} {}", key.key_id, hex::encode(&key.public_key));
                // Former keys stay on the card as long as they fit, since receivers verify old messages with them.
                super::keys::make_room(&mut record.card.keys)?;
                record.card.keys.push(key);
                record.updated_at = now;
                record.changed = self.new_sequence(&mut transaction);
                let (actor, subject) = ("the broker".to_owned(), id.to_string());
                let act = AuditAct { actor, action: AuditAction::KeyAdded, subject, details };
                self.record(&mut transaction, act, now)?;
                (record, Some(stored))
            }
            None => {
                let card = v1::AgentCard {
                    agent_id: id.to_string(),
                    description:
                        "The coordinator, which the broker runs: it owns tasks that an operator has taken from \
                                  their owners, and hands them on."
                            .to_owned(),
                    keys: vec![key],
                    ..Default::default()
                };
                (AgentRecord { changed: self.new_sequence(&mut transaction), ..AgentRecord::new(card, now) }, None)
            }
        };
        transaction.put(AgentRecord::key(&id), record.encode(), stored.as_ref());
        // The directory has the coordinator at once: the first command may need its key. A failed commit ends with a
        // recovery, which fills the directory and registers the coordinator again.
        self.env.directory.put(Entry::parse(record)?);
        self.stage(transaction);
        self.end_unanswered();
        Ok(())
    }

    /// Takes a task from its owner for an operator: the coordinator owns it, and hands it on in the same commit.
    pub(super) fn reassign(
        &mut self,
        wanted: &Reassignment,
        caller: &Caller,
        now: Timestamp,
    ) -> Result<Reassigned, Refused> {
        if self.batch.failed {
            return Err(refused(BrokerError::StoreUnavailable));
        }
        self.check_reassignment(wanted, caller, now).map_err(refused)?;
        let Reassignment { task, expected_epoch, to, reason_text } = wanted;
        // First the deadlines: an overdue loan goes back to its delegator, and the caller's epoch is then the wrong
        // one.
        self.settle_overdue(Some(task), now).map_err(refused)?;
        let handoff = self.env.ids.message_id(now);
        let seize = handoff::Seize {
            expected_epoch: *expected_epoch,
            submitter: caller.as_submitter(),
            receiver: to.to_string(),
            reason_text: reason_text.clone(),
            handoff,
        };
        let mut transaction = self.transaction();
        let event = CustodyEvent::Reassigned(&seize);
        let cause = Cause { origin: Origin::Broker, event: Some(&event) };
        let input = Input::Handoff { task: task.clone(), input: handoff::Input::Seize(seize.clone()) };
        self.run(&mut transaction, &EntityId::Task(task.clone()), &input, cause, now)
            .map_err(RunError::into_refusal)?;
        let written = |id: EntityId| transaction.written(&id).cloned().ok_or_else(|| refused(BrokerError::Internal));
        let made = written(EntityId::Handoff(handoff))?;
        let record = written(EntityId::Task(task.clone()))?;
        let (Some(made), Some(record)) = (made.as_handoff(), record.as_task()) else {
            return Err(refused(BrokerError::Internal));
        };
        let answer = Reassigned { task: record.clone(), handoff: made.handoff.clone() };
        let details = format!("to {to}, epoch {}, handoff {handoff}: {reason_text}", record.task.epoch);
        let (actor, subject) = (caller.to_string(), task.to_string());
        let act = AuditAct { actor, action: AuditAction::TaskReassigned, subject, details };
        self.record(&mut transaction, act, now).map_err(refused)?;
        self.stage(transaction);
        tracing::warn!(%task, by = %caller, %to, %handoff, "took a task from its owner and hand it on");
        Ok(answer)
    }

    /// Checks the caller's right, and that the new receiver can take the task.
    fn check_reassignment(
        &mut self,
        wanted: &Reassignment,
        caller: &Caller,
        now: Timestamp,
    ) -> Result<(), BrokerError> {
        let stored = self.entity_record(&mut self.transaction(), &EntityId::Task(wanted.task.clone()))?;
        let task = stored.as_deref().and_then(EntityRecord::as_task).map(|record| record.task.clone());
        let participants: Vec<&str> = task.iter().flat_map(|task| task.owners()).map(AgentId::as_str).collect();
        let shared = Shared { id: wanted.task.as_str(), participants: &participants };
        // The right comes first: a caller without it does not learn whether the task exists.
        self.access().check(caller, Action::ReassignTask, Resource::Task(shared))?;
        let Some(task) = task else {
            // A task that has ended stays known by its remains.
            let removed = self.removed_task(&mut self.transaction(), &wanted.task)?;
            return Err(match removed {
                Some(removed) => AdmissionError::from(handoff::Rejection::TaskFinal { status: removed.status }).into(),
                None => BrokerError::TaskUnknown { task: wanted.task.to_string() },
            });
        };
        if let Some(refusal) = super::plans::of_plan(&task) {
            return Err(refusal);
        }
        let of_type;
        let asked: &[AgentId] = match &wanted.to {
            Receiver::Agent(agent) => {
                self.registered(agent)?;
                // The owner has shown that it does not work, or it would not lose the task.
                if *agent == task.owner {
                    let problem = "it owns the task already".to_owned();
                    return Err(AdmissionError::ReceiverInvalid { receiver: agent.to_string(), problem }.into());
                }
                // The request would pass the agent over after the task has left its owner.
                let last = self.last_request(&mut self.transaction(), &wanted.task)?;
                if let Some(problem) = last.and_then(|last| self.lacks(agent, &last)) {
                    return Err(AdmissionError::ReceiverInvalid { receiver: agent.to_string(), problem }.into());
                }
                // A full mailbox would refuse the request after the task has left its owner.
                self.check_mailbox(agent)?;
                std::slice::from_ref(agent)
            }
            Receiver::AnyOf(agent_type) => {
                of_type = self.best_of(agent_type, now);
                &of_type
            }
            Receiver::AllOf(_) | Receiver::Absent => {
                let problem = "a task is reassigned to one agent, or to type:NAME".to_owned();
                return Err(AdmissionError::ReceiverInvalid { receiver: wanted.to.to_string(), problem }.into());
            }
        };
        // The request of a reassignment would wait for an absent agent, and the task with it.
        if !asked.is_empty() && asked.iter().all(|agent| self.env.directory.is_gone(agent, now)) {
            return Err(BrokerError::AgentGone { agent: wanted.to.to_string() });
        }
        Ok(())
    }

    /// Composes, signs and applies a message of the coordinator, as a part of the transaction that ordered it.
    pub(super) fn carry_out(
        &mut self,
        transaction: &mut Transaction,
        order: &Order,
        now: Timestamp,
    ) -> Result<(), RunError> {
        transaction.order_depth += 1;
        let done = self.carry_out_one(transaction, order, now);
        transaction.order_depth -= 1;
        done
    }

    fn carry_out_one(&mut self, transaction: &mut Transaction, order: &Order, now: Timestamp) -> Result<(), RunError> {
        match order {
            Order::Subtask(order) => return self.start_subtask(transaction, order, now),
            Order::Append { .. } => return self.append_result(transaction, order, now),
            Order::Tell(message) => return self.tell_thread(transaction, message, now),
            Order::Cancel { .. } | Order::Recall { .. } | Order::Status { .. } => {
                let Some(envelope) = self.plan_order_envelope(transaction, order, now)? else { return Ok(()) };
                let envelope = self.signed_by_coordinator(transaction, envelope, now)?;
                return self.send_as_coordinator(transaction, &envelope, Resolved::default(), now);
            }
            Order::Request(_) | Order::Context { .. } => {}
        }
        let envelope = self.composed(transaction, order, now)?;
        let header = envelope.header();
        let (Candidates { agents, passed_over, .. }, terms) = match (order, envelope.body()) {
            (Order::Request(order), Body::Request(request)) => {
                let mut candidates = self.candidates(header, request, now)?;
                // A type may include the former owner, which must not get the task back by its rank.
                candidates.agents.retain(|candidate| *candidate != order.former_owner);
                if candidates.agents.is_empty() {
                    let receiver = order.receiver.clone();
                    return Err(BrokerError::from(AdmissionError::ReceiverUnknown { receiver }).into());
                }
                let terms = self.terms_with(self.terms(request)?, request, &candidates.agents);
                (candidates, Some(terms))
            }
            _ => (Candidates::default(), None),
        };
        let resolved = Resolved { agents: &agents, passed_over: &passed_over, terms };
        self.send_as_coordinator(transaction, &envelope, resolved, now)
    }

    /// Applies a message of the coordinator, as a part of the transaction that ordered it.
    pub(super) fn send_as_coordinator(
        &mut self,
        transaction: &mut Transaction,
        envelope: &VerifiedEnvelope,
        resolved: Resolved<'_>,
        now: Timestamp,
    ) -> Result<(), RunError> {
        let header = envelope.header();
        let task = header.task.clone().ok_or(BrokerError::Internal)?;
        let input = envelope::input_of(header, envelope.body(), resolved).ok_or(BrokerError::Internal)?;
        let about = header.handoff().map_or(EntityId::Task(task.clone()), EntityId::Handoff);
        let sequence = self.new_sequence(transaction);
        let this = ThisMessage { envelope, sequence, owner: EnvelopeOwner::Log, copy: None };
        let event = CustodyEvent::Accepted(EnvelopeFacts { envelope, sequence: this.sequence, resolved });
        // The message that ordered this one has its own entry, which is stored with it later.
        let of_ordering = transaction.logged.take();
        let cause = Cause { origin: Origin::Message(this), event: Some(&event) };
        if !self.run(transaction, &about, &Input::Handoff { task, input }, cause, now)? {
            return Err(BrokerError::Internal.into());
        }
        self.store_message(transaction, this, now, None);
        transaction.logged = of_ordering;
        transaction.has_orders = true;
        Ok(())
    }

    /// The signed envelope of an order. The broker verifies its own signature too: a revoked key of the coordinator must
    /// not get past the broker.
    fn composed(
        &mut self,
        transaction: &mut Transaction,
        order: &Order,
        now: Timestamp,
    ) -> Result<VerifiedEnvelope, RunError> {
        let envelope = match order {
            Order::Request(order) => {
                let last = self.last_request(transaction, &order.task)?;
                request_envelope(order, last)
            }
            Order::Context { handoff, task, epoch, to, wanted_sections } => {
                let record = self.entity_record(transaction, &EntityId::Task(task.clone()))?;
                let known = record.as_deref().and_then(EntityRecord::as_task).ok_or(BrokerError::Internal)?;
                let context = match &known.task.plan {
                    Some(_) => self.plan_context(transaction, &known.task)?,
                    None => {
                        self.last_context(transaction, task)?.map_or_else(no_context, envelope::context_of_sections)
                    }
                };
                v1::Envelope {
                    message_id: self.env.ids.message_id(now).to_string(),
                    receiver_id: to.to_string(),
                    message_type: MessageType::TaskContextTransfer.number(),
                    correlation_id: handoff.to_string(),
                    task_id: task.to_string(),
                    epoch: *epoch,
                    payload: Some(envelope::payload_of(&envelope::only_sections(context, wanted_sections))),
                    ..Default::default()
                }
            }
            Order::Subtask(_)
            | Order::Cancel { .. }
            | Order::Recall { .. }
            | Order::Status { .. }
            | Order::Append { .. } => return Err(BrokerError::Internal.into()), // composed with the plan
            Order::Tell(_) => return Err(BrokerError::Internal.into()), // composed in `delegations`
        };
        self.signed_by_coordinator(transaction, envelope, now)
    }

    /// Completes, signs and verifies a message of the coordinator. The error is a refusal if the message does not fit: the
    /// agents choose its content, and the same message would not fit again.
    pub(super) fn signed_by_coordinator(
        &mut self,
        transaction: &mut Transaction,
        mut envelope: v1::Envelope,
        now: Timestamp,
    ) -> Result<VerifiedEnvelope, RunError> {
        if envelope.trace_context.is_none() {
            let about = MessageId::parse(&envelope.correlation_id).ok();
            let task = TaskId::parse(&envelope.task_id).ok();
            envelope.trace_context =
                self.trace_of_cause(transaction, None, about, task.as_ref()).as_deref().map(Into::into);
        }
        envelope.sender_id = AgentId::coordinator().to_string();
        envelope.timestamp = Some(now.into());
        self.env.identity.coordinator.sign(&mut envelope);
        let raw: Bytes = envelope.encode_to_vec().into();
        let verified =
            UnverifiedEnvelope::parse(raw).and_then(|parsed| parsed.verify(&*self.env.directory, now, false));
        verified.map_err(|error| match error {
            EnvelopeError::SignatureVersionUnknown { .. }
            | EnvelopeError::SignatureMissing
            | EnvelopeError::SignatureInvalid { .. }
            | EnvelopeError::KeyUnknown { .. }
            | EnvelopeError::KeyNotValid { .. } => {
                tracing::error!(%error, "the coordinator's own message is not valid");
                BrokerError::CoordinatorKey { problem: error.to_string() }.into()
            }
            EnvelopeError::Malformed { .. }
            | EnvelopeError::Fields { .. }
            | EnvelopeError::NotSupported { .. }
            | EnvelopeError::PayloadTypeMismatch { .. }
            | EnvelopeError::PayloadTooLarge { .. }
            | EnvelopeError::EntryTooLarge { .. }
            | EnvelopeError::FrameTooLarge { .. }
            | EnvelopeError::UnpacksTooLarge
            | EnvelopeError::ContextDigestMismatch { .. } => {
                tracing::warn!(%error, "a message of the coordinator does not fit");
                RunError::Refused(refused(error))
            }
        })
    }
}

fn request_envelope(order: &RequestOrder, last: Option<v1::HandoffRequest>) -> v1::Envelope {
    let payload = request_of(order, last);
    v1::Envelope {
        message_id: order.id.to_string(),
        receiver_id: order.receiver.clone(),
        message_type: MessageType::HandoffRequest.number(),
        task_id: order.task.to_string(),
        epoch: order.epoch,
        payload: Some(envelope::payload_of(&payload)),
        ..Default::default()
    }
}

/// The context of a task of which no agent has sent one.
fn no_context() -> v1::TaskContextTransfer {
    let json =
        r#"{"context":"none","explanation":"no agent has sent a context of this task to the broker"}"#.to_owned();
    let section = v1::ContextSection {
        name: "current_status".to_owned(),
        content: Some(v1::context_section::Content::Json(json)),
        ..Default::default()
    };
    envelope::context_of_sections(vec![section])
}
