//! Running the state machine: what it reads, what it writes, and what its effects become.

use std::sync::Arc;

use prost::Message as _;

use super::{
    Engine,
    drafts::{Act, Draft},
};
use crate::{
    broker::BrokerError,
    domain::{
        handoff::{
            Acked, Effect, Handoff, Input, Mail, Notice, Outcome, Priority, Rejection, Situation, Task, Transition,
            step,
        },
        mailbox::Letter,
    },
    envelope::{self, VerifiedEnvelope},
    ids::{AgentId, MessageId, TaskId},
    proto::v1::{self, MessageType},
    records::{
        CustodyEvent, CustodyLink, HandoffRecord, MessageRecord, TaskRecord, custody_entry, encode_letter, letter_key,
        timer_key,
    },
    store::Record,
    time::Timestamp,
};

/// A record with the revision it was read at.
pub(super) struct Stored<T> {
    pub(super) value: T,
    record: Record,
}

/// What is stored about a task and the handoff in question.
#[derive(Default)]
pub(super) struct Known {
    pub(super) task: Option<Stored<TaskRecord>>,
    pub(super) handoff: Option<Stored<HandoffRecord>>,
}

impl Known {
    fn situation(&self) -> Situation<'_> {
        Situation {
            task: self.task.as_ref().map(|stored| &stored.value.task),
            handoff: self.handoff.as_ref().map(|stored| &stored.value.handoff),
        }
    }
}

/// Why a step was not made.
#[derive(Debug)]
pub(super) enum StepError {
    Rejected(Rejection),
    Broker(BrokerError),
}

impl<E: Into<BrokerError>> From<E> for StepError {
    fn from(error: E) -> Self {
        Self::Broker(error.into())
    }
}

/// The envelope that is the input of a step, and its sequence.
#[derive(Clone, Copy)]
pub(super) struct ThisMessage<'a> {
    pub(super) envelope: &'a VerifiedEnvelope,
    pub(super) sequence: u64,
}

/// What a step left behind.
pub(super) struct Stepped {
    pub(super) task: TaskRecord,
    pub(super) handoff: Option<Handoff>,
}

impl Engine {
    pub(super) fn known(
        &self,
        draft: &mut Draft,
        task: &TaskId,
        handoff: Option<MessageId>,
    ) -> Result<Known, BrokerError> {
        let task = self.read(draft, &TaskRecord::key(task))?;
        let handoff = handoff.map(|id| self.read(draft, &HandoffRecord::key(id))).transpose()?.flatten();
        Ok(Known {
            task: task
                .map(|record| Ok::<_, BrokerError>(Stored { value: TaskRecord::decode(&record.value)?, record }))
                .transpose()?,
            handoff: handoff
                .map(|record| Ok::<_, BrokerError>(Stored { value: HandoffRecord::decode(&record.value)?, record }))
                .transpose()?,
        })
    }

    /// Makes one step and writes all of it into the draft. `None`: nothing has changed.
    pub(super) fn step(
        &mut self,
        draft: &mut Draft,
        known: &Known,
        input: &Input,
        event: &CustodyEvent<'_>,
        this: Option<ThisMessage<'_>>,
        now: Timestamp,
    ) -> Result<Option<Stepped>, StepError> {
        let transition = match step(known.situation(), input, now) {
            Ok(Outcome::Moved(transition)) => transition,
            Ok(Outcome::Unchanged) => return Ok(None),
            Err(rejection) => return Err(StepError::Rejected(rejection)),
        };
        let Transition { task, handoff, effects } = *transition;
        let sequence = this.map_or(0, |this| this.sequence);
        if let Some(handoff) = &handoff {
            self.write_handoff(draft, known, handoff, this);
        }
        for effect in effects {
            self.carry_out(draft, known, effect, handoff.as_ref(), &task, this, now);
        }
        let record = TaskRecord {
            custody: known.task.as_ref().map_or_else(CustodyLink::default, |stored| stored.value.custody),
            refusals_recorded: known.task.as_ref().map_or(0, |stored| stored.value.refusals_recorded),
            sequence: known.task.as_ref().map_or(sequence, |stored| stored.value.sequence),
            task,
        };
        if known.task.is_none() {
            draft.put_new(TaskRecord::index_key(sequence), record.task.id.as_str().as_bytes().to_vec().into());
        }
        let task = self.write_task(draft, known, record, event, handoff.as_ref(), now);
        Ok(Some(Stepped { task, handoff }))
    }

    /// Writes the task with one more entry in its custody log.
    pub(super) fn write_task(
        &self,
        draft: &mut Draft,
        known: &Known,
        mut record: TaskRecord,
        event: &CustodyEvent<'_>,
        handoff: Option<&Handoff>,
        now: Timestamp,
    ) -> TaskRecord {
        let number = record.custody.length + 1;
        let entry = custody_entry(number, now, event, &record.task, handoff);
        record.custody = record.custody.followed_by(&entry);
        draft.put_new(CustodyLink::key(&record.task.id, number), entry);
        let before = known.task.as_ref().map(|stored| &stored.record);
        draft.put(TaskRecord::key(&record.task.id), record.encode(), before);
        record
    }

    fn write_handoff(&self, draft: &mut Draft, known: &Known, handoff: &Handoff, this: Option<ThisMessage<'_>>) {
        let before = known.handoff.as_ref();
        let record = match before {
            Some(stored) => HandoffRecord {
                handoff: handoff.clone(),
                sequence: stored.value.sequence,
                expires_at: stored.value.expires_at,
            },
            None => {
                let this = this.expect("only a request makes a handoff");
                draft.put_new(HandoffRecord::index_key(this.sequence), handoff.id.as_bytes().to_vec().into());
                let expires_at = this.envelope.header().expires_at;
                HandoffRecord { handoff: handoff.clone(), sequence: this.sequence, expires_at }
            }
        };
        draft.put(HandoffRecord::key(handoff.id), record.encode(), before.map(|stored| &stored.record));
        let was_due = before.and_then(|stored| stored.value.handoff.next_deadline());
        let due = handoff.next_deadline();
        if was_due != due {
            was_due.into_iter().for_each(|at| draft.delete(timer_key(at, handoff.id)));
            due.into_iter().for_each(|at| draft.put_new(timer_key(at, handoff.id), bytes::Bytes::new()));
            draft.acts.push(Act::Timer { handoff: handoff.id, before: was_due, after: due });
        }
        draft.acts.push(Act::HandoffMoved(Arc::new(handoff.clone())));
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of one step, named one by one")]
    fn carry_out(
        &mut self,
        draft: &mut Draft,
        known: &Known,
        effect: Effect,
        handoff: Option<&Handoff>,
        task: &Task,
        this: Option<ThisMessage<'_>>,
        now: Timestamp,
    ) {
        let Effect::Deliver { to, mail } = effect;
        let priority = handoff.map_or(Priority::default(), |handoff| handoff.priority);
        match mail {
            Mail::ThisMessage => {
                let this = this.expect("only a message is delivered as this message");
                let about = handoff.and_then(|handoff| Some((handoff.id, fate_of(this.envelope)?)));
                self.deliver_this(draft, &to, this, priority, about, now);
            }
            Mail::RequestAgain => {
                let handoff = handoff.expect("only a handoff has a request");
                let request = known.handoff.as_ref().expect("it was asked for before");
                let letter = Letter {
                    sequence: self.new_sequence(),
                    message_sequence: request.value.sequence,
                    message: handoff.id,
                    task: Some(task.id.clone()),
                    priority,
                    expires_at: self.mail_expiry(request.value.expires_at, now),
                    handouts: 0,
                    failures: 0,
                    not_before: now,
                    handoff: Some((handoff.id, Acked::Request)),
                };
                store_letter(draft, to, letter);
            }
            Mail::Notice(notice) => {
                let handoff = handoff.expect("notices are about a handoff");
                self.deliver_notice(draft, to, &notice, handoff, task, now);
            }
        }
    }

    /// Puts the message in hand into a mailbox.
    pub(super) fn deliver_this(
        &self,
        draft: &mut Draft,
        to: &AgentId,
        this: ThisMessage<'_>,
        priority: Priority,
        handoff: Option<(MessageId, Acked)>,
        now: Timestamp,
    ) {
        let header = this.envelope.header();
        let letter = Letter {
            sequence: this.sequence,
            message_sequence: this.sequence,
            message: header.message_id,
            task: header.task.clone(),
            priority,
            expires_at: self.mail_expiry(header.expires_at, now),
            handouts: 0,
            failures: 0,
            not_before: now,
            handoff,
        };
        store_letter(draft, to.clone(), letter);
    }

    /// The broker's own message to an agent.
    fn deliver_notice(
        &mut self,
        draft: &mut Draft,
        to: AgentId,
        notice: &Notice,
        handoff: &Handoff,
        task: &Task,
        now: Timestamp,
    ) {
        let message = self.ids.message_id(now);
        let sequence = self.new_sequence();
        let envelope = self.notice_envelope(message, &to, notice, handoff, task, now);
        draft.put_new(MessageRecord::envelope_key(sequence), envelope.encode_to_vec().into());
        let letter = Letter {
            sequence,
            message_sequence: sequence,
            message,
            task: Some(task.id.clone()),
            priority: handoff.priority,
            expires_at: self.mail_expiry(None, now),
            handouts: 0,
            failures: 0,
            not_before: now,
            handoff: None,
        };
        store_letter(draft, to, letter);
    }

    fn notice_envelope(
        &self,
        message: MessageId,
        to: &AgentId,
        notice: &Notice,
        handoff: &Handoff,
        task: &Task,
        now: Timestamp,
    ) -> v1::Envelope {
        let next_step = if notice.drop_task { v1::NextStep::DropTask } else { v1::NextStep::KeepTask };
        let payload = v1::ErrorNotification {
            error_code: notice.code.number(),
            error_message: notice.message.clone(),
            severity: v1::Severity::Warning.into(),
            origin_agent_id: AgentId::broker().to_string(),
            next_step: next_step.into(),
            next_step_text: if notice.drop_task {
                "drop what you received for this handoff and do not work on the task".to_owned()
            } else {
                "you still own the task: try another handoff or go on with it".to_owned()
            },
        };
        let (seconds, nanos) = now.to_parts();
        let mut envelope = v1::Envelope {
            message_id: message.to_string(),
            sender_id: AgentId::broker().to_string(),
            receiver_id: to.to_string(),
            timestamp: Some(prost_types::Timestamp { seconds, nanos }),
            message_type: MessageType::ErrorNotification.into(),
            correlation_id: handoff.id.to_string(),
            task_id: task.id.to_string(),
            epoch: task.epoch,
            payload: Some(envelope::payload_of(&payload)),
            ..Default::default()
        };
        envelope::sign(&mut envelope, &self.identity.key_id, &self.identity.key);
        envelope
    }

    /// A step that nobody waits for, about a handoff that may be gone. True if something has changed.
    pub(super) fn step_if_known(
        &mut self,
        draft: &mut Draft,
        handoff: MessageId,
        input: &Input,
        event: &CustodyEvent<'_>,
        now: Timestamp,
    ) -> Result<bool, BrokerError> {
        let Some(record) = self.read(draft, &HandoffRecord::key(handoff))? else { return Ok(false) };
        let task = HandoffRecord::decode(&record.value)?.handoff.task;
        let known = self.known(draft, &task, Some(handoff))?;
        match self.step(draft, &known, input, event, None, now) {
            Ok(stepped) => Ok(stepped.is_some()),
            Err(StepError::Broker(error)) => Err(error),
            Err(StepError::Rejected(rejection)) => {
                tracing::error!(%handoff, %rejection, "the state machine rejected what it must always take");
                Err(BrokerError::Internal)
            }
        }
    }

    /// Lets time pass for a handoff, as a change of its own. True if something has changed.
    pub(super) fn pass_time(&mut self, handoff: MessageId, now: Timestamp) -> Result<bool, BrokerError> {
        let mut draft = self.draft();
        let moved = self.step_if_known(&mut draft, handoff, &Input::Time, &CustodyEvent::Time, now)?;
        if moved {
            self.seal(draft);
            self.end_unanswered();
        }
        Ok(moved)
    }

    pub(super) fn new_sequence(&mut self) -> u64 {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        sequence
    }

    fn mail_expiry(&self, expires_at: Option<Timestamp>, now: Timestamp) -> Timestamp {
        let lifetime = now.plus(self.settings.mail_lifetime);
        expires_at.map_or(lifetime, |at| at.min(lifetime))
    }
}

fn store_letter(draft: &mut Draft, agent: AgentId, letter: Letter) {
    draft.put_new(letter_key(&agent, letter.sequence), encode_letter(&letter));
    draft.acts.push(Act::LetterStored { agent, letter });
}

/// What the handoff wants to know of this message's delivery.
fn fate_of(envelope: &VerifiedEnvelope) -> Option<Acked> {
    match envelope.header().message_type {
        MessageType::HandoffRequest => Some(Acked::Request),
        MessageType::TaskContextTransfer => Some(Acked::Context),
        MessageType::HandoffComplete => Some(Acked::Completion),
        MessageType::Unspecified
        | MessageType::HandoffAccept
        | MessageType::HandoffReject
        | MessageType::HandoffCancel
        | MessageType::TaskStatusUpdate
        | MessageType::ErrorNotification
        | MessageType::Heartbeat
        | MessageType::TaskRequest
        | MessageType::TaskOffer
        | MessageType::TaskAccept
        | MessageType::Delegation
        | MessageType::Info => None,
    }
}
