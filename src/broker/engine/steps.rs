//! Running the state machine: what it reads, what it writes, and what its effects become.

mod faults;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use prost::Message as _;

use super::{
    Engine,
    entities::{EntityCache, Stored, Versions},
    transaction::{PostCommit, Transaction},
};
use crate::{
    broker::BrokerError,
    domain::{
        MessageType,
        handoff::{
            Acked, Advice, Effect, Handoff, Input, Mail, Message, Notice, Outcome, Priority, Rejection, Situation,
            Task, Transition, step,
        },
        mailbox::{Keeper, Letter},
    },
    envelope::{self, VerifiedEnvelope},
    faults::{Fault, is_on},
    ids::{AgentId, MessageId, TaskId},
    proto::v1,
    records::{
        CustodyEvent, CustodyLink, DecodeError, HandoffPlace, HandoffRecord, Kept, MessageRecord, RequestPlace,
        TaskRecord, custody_entry, encode_letter, handoff_timer, handoff_timer_key, letter_key, mail_timer_key,
    },
    store::Key,
    time::Timestamp,
};

/// What is stored about a task and the handoff in question.
#[derive(Default)]
pub(super) struct Known {
    pub(super) task: Option<Stored<TaskRecord>>,
    pub(super) handoff: Option<Stored<HandoffRecord>>,
}

impl Known {
    fn situation<'a>(&'a self, gone: &'a [AgentId]) -> Situation<'a> {
        Situation { task: self.task.as_ref().map(|stored| &stored.value.task), handoff: self.handoff(), gone }
    }

    pub(super) fn handoff(&self) -> Option<&Handoff> {
        self.handoff.as_ref().map(|stored| &*stored.value.handoff)
    }

    /// The request of this handoff, if it is the one that is known.
    fn request_of(&self, handoff: MessageId) -> Option<RequestPlace> {
        let known = self.handoff.as_ref().filter(|stored| stored.value.handoff.id == handoff);
        known.map(|stored| stored.value.request)
    }
}

/// Where a step comes from: the message that is its input, or the dead request that it tries again.
#[derive(Clone, Copy)]
pub(super) enum Origin<'a> {
    Message(ThisMessage<'a>),
    DeadRequest(RequestPlace),
    Broker,
}

impl<'a> Origin<'a> {
    fn message(self) -> Option<ThisMessage<'a>> {
        match self {
            Self::Message(this) => Some(this),
            Self::DeadRequest(_) | Self::Broker => None,
        }
    }

    /// The request of a handoff that begins with this step.
    fn request(self) -> Option<RequestPlace> {
        match self {
            Self::Message(this) => {
                let header = this.envelope.header();
                let (message, expires_at) = (header.message_id, header.expires_at);
                Some(RequestPlace { message, sequence: this.sequence, expires_at })
            }
            Self::DeadRequest(request) => Some(request),
            Self::Broker => None,
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
    pub(super) task: Arc<TaskRecord>,
    pub(super) handoff: Option<Arc<Handoff>>,
}

impl Engine {
    pub(super) fn known(
        &mut self,
        transaction: &mut Transaction,
        task: &TaskId,
        handoff: Option<MessageId>,
    ) -> Result<Known, BrokerError> {
        let task = self.known_task(transaction, task)?;
        let handoff = handoff.map(|id| self.known_handoff(transaction, id)).transpose()?.flatten();
        Ok(Known { task, handoff })
    }

    pub(super) fn known_task(
        &mut self,
        transaction: &mut Transaction,
        id: &TaskId,
    ) -> Result<Option<Stored<TaskRecord>>, BrokerError> {
        self.cached_version(transaction, TaskRecord::key(id), |cache| &mut cache.tasks, TaskRecord::decode)
    }

    pub(super) fn known_handoff(
        &mut self,
        transaction: &mut Transaction,
        id: MessageId,
    ) -> Result<Option<Stored<HandoffRecord>>, BrokerError> {
        self.cached_version(transaction, HandoffRecord::key(id), |cache| &mut cache.handoffs, HandoffRecord::decode)
    }

    /// As [`Engine::read`], decoded, and once for all who ask.
    fn cached_version<T>(
        &mut self,
        transaction: &mut Transaction,
        key: Key,
        among: impl Fn(&mut EntityCache) -> &mut Versions<T>,
        decode: impl FnOnce(&Bytes) -> Result<T, DecodeError>,
    ) -> Result<Option<Stored<T>>, BrokerError> {
        if let Some(cached) = among(&mut self.entities).get(&key.key) {
            transaction.expect(&key, Some(cached.revision));
            return Ok(Some(cached.clone()));
        }
        let Some(record) = self.read(transaction, &key)? else { return Ok(None) };
        let stored = Stored { value: Arc::new(decode(&record.value)?), revision: record.revision };
        among(&mut self.entities).insert(key.key, stored.clone());
        Ok(Some(stored))
    }

    /// Makes one step and writes all of it into the transaction. `None`: nothing has changed.
    pub(super) fn step(
        &mut self,
        transaction: &mut Transaction,
        known: &Known,
        input: &Input,
        event: &CustodyEvent<'_>,
        origin: Origin<'_>,
        now: Timestamp,
    ) -> Result<Option<Stepped>, StepError> {
        let absent = self.absent(known, input, now);
        let input = &*faults::input(known, input);
        let at = self.log_time(known, now);
        let transition = match step(known.situation(&absent), input, at) {
            Ok(Outcome::Moved(transition)) => transition,
            Ok(Outcome::Unchanged) => return Ok(None),
            Err(rejection) => return Err(StepError::Rejected(rejection)),
        };
        let Transition { task, handoff, effects } = faults::transition(*transition);
        let handoff = handoff.map(Arc::new);
        let request = handoff.as_ref().and_then(|handoff| known.request_of(handoff.id).or(origin.request()));
        if let Some(handoff) = &handoff {
            self.write_handoff(transaction, known, handoff, request, origin, self.followed(at, now));
        }
        for effect in effects {
            match effect {
                Effect::Deliver { to, mail } => {
                    let about = About { task: &task, handoff: handoff.as_deref(), request };
                    self.deliver(transaction, to, mail, &about, origin.message(), now)?;
                }
                Effect::ParkRequest(why) => {
                    let request = request.expect("only a handoff has a request");
                    self.park_request(transaction, handoff.as_ref().expect("it is parked with it"), request, why, now);
                }
            }
        }
        let sequence = origin.message().map_or(0, |this| this.sequence);
        let record = TaskRecord {
            custody: known.task.as_ref().map_or_else(CustodyLink::default, |stored| stored.value.custody),
            refusals_recorded: known.task.as_ref().map_or(0, |stored| stored.value.refusals_recorded),
            sequence: known.task.as_ref().map_or(sequence, |stored| stored.value.sequence),
            logged_at: at,
            set_back: self.followed(at, now),
            task,
        };
        let was_final = known.task.as_ref().is_some_and(|stored| stored.value.task.status.is_final());
        if record.task.status.is_final() && !was_final {
            transaction.keep(Kept::Task, now, record.task.id.as_str().as_bytes());
        }
        let task = self.write_task(transaction, known, record, event, handoff.as_deref(), &absent, now);
        Ok(Some(Stepped { task, handoff }))
    }

    /// Who is gone among those that this step may ask.
    fn absent(&self, known: &Known, input: &Input, now: Timestamp) -> Vec<AgentId> {
        let next =
            known.handoff.as_ref().map(|stored| &stored.value.handoff).filter(|handoff| !handoff.state.is_final());
        let next = next.map_or(&[][..], |handoff| &handoff.next_candidates);
        let new: &[AgentId] = match input {
            Input::Request(request) => &request.candidates,
            Input::Redrive { candidates, .. } => candidates,
            Input::Message { message: Message::Reject { suggestions, .. }, .. } => suggestions,
            Input::Message { .. } | Input::Acked { .. } => return Vec::new(),
            Input::Undeliverable { .. } | Input::Time | Input::CandidateGone => &[],
        };
        let mut absent: Vec<AgentId> =
            next.iter().chain(new).filter(|agent| self.env.directory.is_gone(agent, now)).cloned().collect();
        absent.sort();
        absent.dedup();
        absent
    }

    /// The time of the task's log.
    fn log_time(&self, known: &Known, now: Timestamp) -> Timestamp {
        known.task.as_ref().map_or(now, |stored| stored.value.log_time(now, self.timers.clock.set_back))
    }

    /// How much of what the clock was set back in all a log has followed whose time is this one now.
    fn followed(&self, log_time: Timestamp, now: Timestamp) -> Duration {
        self.timers.clock.set_back.saturating_sub(log_time.since(now))
    }

    /// Writes the task with one more entry in its custody log.
    #[expect(clippy::too_many_arguments, reason = "the parts of one entry, named one by one")]
    pub(super) fn write_task(
        &self,
        transaction: &mut Transaction,
        known: &Known,
        mut record: TaskRecord,
        event: &CustodyEvent<'_>,
        handoff: Option<&Handoff>,
        absent: &[AgentId],
        now: Timestamp,
    ) -> Arc<TaskRecord> {
        let number = record.custody.length + 1;
        record.logged_at = self.log_time(known, now);
        record.set_back = self.followed(record.logged_at, now);
        let entry = custody_entry(number, record.logged_at, event, &record.task, handoff, absent);
        record.custody = record.custody.followed_by(&entry);
        transaction.put_new(CustodyLink::key(record.sequence, &record.task.id, number), record.custody.encode(&entry));
        transaction.post_commit.push(PostCommit::TaskMoved { task: record.task.id.clone(), length: number });
        let record = Arc::new(record);
        transaction.put_task(record.clone(), known.task.as_ref());
        record
    }

    fn write_handoff(
        &mut self,
        transaction: &mut Transaction,
        known: &Known,
        handoff: &Arc<Handoff>,
        request: Option<RequestPlace>,
        origin: Origin<'_>,
        followed: Duration,
    ) {
        let request = request.expect("a handoff begins with a request");
        let before = known.handoff.as_ref().filter(|stored| stored.value.handoff.id == handoff.id);
        let sequence = match before {
            Some(stored) => stored.value.sequence,
            None => {
                let sequence = origin.message().map_or_else(|| self.new_sequence(), |this| this.sequence);
                let place = HandoffPlace { sequence, handoff: handoff.id, task: handoff.task.clone() };
                transaction.put_new(HandoffRecord::index_key(sequence), place.encode());
                sequence
            }
        };
        let listed = before.map(|stored| HandoffRecord::participants(&stored.value.handoff)).unwrap_or_default();
        for agent in HandoffRecord::participants(handoff).difference(&listed) {
            let place = HandoffPlace { sequence, handoff: handoff.id, task: handoff.task.clone() };
            transaction.put_new(HandoffRecord::agent_index_key(agent, sequence), place.encode());
        }
        transaction.put_handoff(Arc::new(HandoffRecord { handoff: handoff.clone(), sequence, request }), before);
        // Deadlines are by the log's time, timers by the running time.
        let followed_before = known.task.as_ref().map_or(Duration::ZERO, |stored| stored.value.set_back);
        let was_due = before.and_then(|stored| stored.value.handoff.next_deadline()).map(|at| at.plus(followed_before));
        let due = handoff.next_deadline().map(|at| at.plus(followed));
        if was_due != due {
            let sender = handoff.sender.clone();
            match due {
                // Its owner is in it, so that a start need not read the handoffs to know how many each has open.
                Some(at) if was_due.is_none_or(|before| at < before) => {
                    let (key, value) = handoff_timer(at, handoff.id, &sender);
                    match was_due {
                        None => transaction.put_new(key, value),
                        Some(_) => transaction.put_over(key, value),
                    }
                }
                Some(_) => {} // what is stored fires too early, and the deadline is looked up then
                None => transaction.delete(handoff_timer_key(handoff.id)),
            }
            transaction.post_commit.push(PostCommit::Timer {
                handoff: handoff.id,
                sender,
                before: was_due,
                after: due,
            });
        }
        transaction.post_commit.push(PostCommit::HandoffMoved(handoff.clone()));
    }

    fn deliver(
        &mut self,
        transaction: &mut Transaction,
        to: AgentId,
        mail: Mail,
        about: &About<'_>,
        this: Option<ThisMessage<'_>>,
        now: Timestamp,
    ) -> Result<(), BrokerError> {
        let handoff = about.handoff;
        let priority = handoff.map_or(Priority::default(), |handoff| handoff.priority);
        match mail {
            Mail::ThisMessage => {
                let this = this.expect("only a message is delivered as this message");
                let about = handoff.and_then(|handoff| Some((handoff.id, this.envelope.header().rules().reports?)));
                self.deliver_this(transaction, &to, this, (Keeper::Log, about), priority, now);
            }
            Mail::RequestAgain => {
                let handoff = handoff.expect("only a handoff has a request");
                let request = about.request.expect("only a handoff has a request");
                // One that was redriven has outlived its own expires_at by somebody's will.
                let expires_at = request.expires_at.filter(|_| handoff.redrive_of.is_none());
                let bytes = self.envelope_bytes(request.sequence).ok_or(BrokerError::Internal)?;
                let sequence = self.new_sequence();
                transaction.put_new(MessageRecord::envelope_key(sequence), bytes);
                let letter = Letter {
                    sequence,
                    message_sequence: request.sequence,
                    message: request.message,
                    task: Some(about.task.id.clone()),
                    priority,
                    expires_at: self.mail_expiry(expires_at, now),
                    handouts: 0,
                    failures: 0,
                    not_before: now,
                    handoff: Some((handoff.id, Acked::Request)),
                    attempts: Vec::new(),
                    keeper: Keeper::Letter,
                };
                self.store_letter(transaction, to, letter);
            }
            Mail::Notice(notice) => {
                let handoff = handoff.expect("notices are about a handoff");
                self.deliver_notice(transaction, to, &notice, handoff, about.task, now);
            }
        }
        Ok(())
    }

    /// Puts the message in hand into a mailbox.
    pub(super) fn deliver_this(
        &self,
        transaction: &mut Transaction,
        to: &AgentId,
        this: ThisMessage<'_>,
        (keeper, handoff): (Keeper, Option<(MessageId, Acked)>),
        priority: Priority,
        now: Timestamp,
    ) {
        let header = this.envelope.header();
        let priority = if is_on(Fault::IgnoresPriority) { Priority::default() } else { priority };
        let letter = Letter {
            sequence: this.sequence,
            message_sequence: this.sequence,
            message: header.message_id,
            // What has no task waits for nothing.
            task: header.task.clone().filter(|_| !is_on(Fault::DeliversOutOfOrder)),
            priority,
            expires_at: self.mail_expiry(header.expires_at, now),
            handouts: 0,
            failures: 0,
            not_before: now,
            handoff,
            attempts: Vec::new(),
            keeper,
        };
        self.store_letter(transaction, to.clone(), letter);
    }

    /// The broker's own message to an agent.
    fn deliver_notice(
        &mut self,
        transaction: &mut Transaction,
        to: AgentId,
        notice: &Notice,
        handoff: &Handoff,
        task: &Task,
        now: Timestamp,
    ) {
        let message = self.env.ids.message_id(now);
        let sequence = self.new_sequence();
        let envelope = self.notice_envelope(message, &to, notice, handoff, task, now);
        transaction.put_new(MessageRecord::envelope_key(sequence), envelope.encode_to_vec().into());
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
            attempts: Vec::new(),
            keeper: Keeper::Letter,
        };
        self.store_letter(transaction, to, letter);
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
        let (severity, next_step, next_step_text) = match notice.advice {
            Advice::KeepTask => (
                v1::Severity::Warning,
                v1::NextStep::KeepTask,
                "you still own the task: try another handoff or go on with it",
            ),
            Advice::DropTask => (
                v1::Severity::Warning,
                v1::NextStep::DropTask,
                "drop what you received for this handoff and do not work on the task",
            ),
            Advice::None => {
                (v1::Severity::Info, v1::NextStep::Unspecified, "nothing to do: answer what comes as with any handoff")
            }
        };
        let payload = v1::ErrorNotification {
            error_code: notice.code.number(),
            error_message: notice.message.clone(),
            severity: severity.into(),
            origin_agent_id: AgentId::broker().to_string(),
            next_step: next_step.into(),
            next_step_text: next_step_text.to_owned(),
        };
        let (seconds, nanos) = now.to_parts();
        let mut envelope = v1::Envelope {
            message_id: message.to_string(),
            sender_id: AgentId::broker().to_string(),
            receiver_id: to.to_string(),
            timestamp: Some(prost_types::Timestamp { seconds, nanos }),
            message_type: MessageType::ErrorNotification.number(),
            correlation_id: handoff.id.to_string(),
            task_id: task.id.to_string(),
            epoch: task.epoch,
            payload: Some(envelope::payload_of(&payload)),
            ..Default::default()
        };
        envelope::sign(&mut envelope, &self.env.identity.key_id, &self.env.identity.key);
        envelope
    }

    /// A step that nobody waits for, about a handoff that may be gone. True if something has changed.
    pub(super) fn step_if_known(
        &mut self,
        transaction: &mut Transaction,
        handoff: MessageId,
        input: &Input,
        event: &CustodyEvent<'_>,
        now: Timestamp,
    ) -> Result<bool, BrokerError> {
        let Some(stored) = self.known_handoff(transaction, handoff)? else { return Ok(false) };
        let Known { task, .. } = self.known(transaction, &stored.value.handoff.task, None)?;
        let known = Known { task, handoff: Some(stored) };
        match self.step(transaction, &known, input, event, Origin::Broker, now) {
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
        let mut transaction = self.transaction();
        let moved = self.step_if_known(&mut transaction, handoff, &Input::Time, &CustodyEvent::Time, now)?;
        if moved {
            self.stage(transaction);
            self.end_unanswered();
        }
        Ok(moved)
    }

    pub(super) fn new_sequence(&mut self) -> u64 {
        let sequence = self.batch.head.next_sequence;
        self.batch.head.next_sequence += 1;
        sequence
    }

    /// Puts a letter into a mailbox; and a timer, if none of that mailbox fires soon enough.
    pub(super) fn store_letter(&self, transaction: &mut Transaction, agent: AgentId, letter: Letter) {
        transaction.put_new(letter_key(&agent, letter.sequence), encode_letter(&letter));
        let at = letter.expires_at;
        if self.mail_timer(&agent).is_none_or(|timer| at < timer) {
            transaction.put_over(mail_timer_key(at, &agent), Bytes::new());
            transaction.post_commit.push(PostCommit::MailTimer { agent: agent.clone(), at: Some(at) });
        }
        transaction.post_commit.push(PostCommit::LetterStored { agent, letter });
    }

    /// The running time at which mail of now expires.
    pub(super) fn mail_expiry(&self, expires_at: Option<Timestamp>, now: Timestamp) -> Timestamp {
        let lifetime = now.plus(self.env.settings.mail_lifetime);
        expires_at.map_or(lifetime, |at| at.min(lifetime)).plus(self.timers.clock.set_back)
    }
}

/// What a delivery is about.
struct About<'a> {
    task: &'a Task,
    handoff: Option<&'a Handoff>,
    request: Option<RequestPlace>,
}
