//! Replays a task's custody log from empty. The hash chain must hold, the broker must have signed the receipts, and the
//! log must give the state that the broker shows (SPEC 12, law 7).
//!
//! Owns this check only. It reads data that any client can read, and trusts the broker for nothing but its log.

use std::{collections::BTreeMap, time::Duration};

use prost::Message as _;

use crate::{
    domain::{
        Entity, EntityId, Input, ReadError, Reader,
        handoff::{self, Acked, Handoff, LoopLimits, PassedOver, Task, Timeouts},
        step,
    },
    envelope::{Resolved, UnverifiedEnvelope, input_of, keys::PublicKey, mandated_request_of, signing},
    ids::{AgentId, MessageId, TaskId},
    proto::v1::{self, custody_entry::Event},
    time::{Timestamp, span_from_parts},
};

/// The first inconsistency of a log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("entry {number}: {problem}")]
pub struct ReplayError {
    /// The number of the entry; if the log ends early, the number after the last entry.
    pub number: u64,
    /// A description of the inconsistency.
    pub problem: String,
}

/// A replay in progress. Feed it the entries in order with [`Replay::take`], then call [`Replay::compare`].
#[derive(Debug)]
pub struct Replay {
    task_id: TaskId,
    broker_key: Option<PublicKey>,
    length: u64,
    hash: signing::Digest32,
    /// The task and its handoffs, as the entries so far produce them.
    entities: BTreeMap<EntityId, Entity>,
    /// The number of receipts with a verified signature.
    receipts: u64,
    /// The number of refusals in the log.
    refusals: u64,
    /// The number of contexts that the reader of the log may not read.
    withheld: u64,
}

impl Replay {
    /// Starts the replay of a task's log. With the broker's key, the replay also verifies receipts.
    pub fn new(task_id: TaskId, broker_key: Option<PublicKey>) -> Self {
        Self {
            task_id,
            broker_key,
            length: 0,
            hash: [0; 32],
            entities: BTreeMap::new(),
            receipts: 0,
            refusals: 0,
            withheld: 0,
        }
    }

    /// The task, as the entries so far produce it.
    pub fn task(&self) -> Option<&Task> {
        match self.entities.get(&EntityId::Task(self.task_id.clone())) {
            Some(Entity::Task(task)) => Some(task),
            Some(_) | None => None,
        }
    }

    /// The task's handoffs.
    pub fn handoffs(&self) -> impl Iterator<Item = &Handoff> {
        self.entities.values().filter_map(|entity| match entity {
            Entity::Handoff(handoff) => Some(&**handoff),
            _ => None,
        })
    }

    /// The number of replayed entries.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The custody hash of the last replayed entry; 32 zero bytes before the first.
    pub fn hash(&self) -> &signing::Digest32 {
        &self.hash
    }

    /// The number of verified receipts.
    pub fn receipts(&self) -> u64 {
        self.receipts
    }

    /// The number of refusals in the log.
    pub fn refusals(&self) -> u64 {
        self.refusals
    }

    /// The number of contexts that the log shows by their digests only.
    pub fn withheld(&self) -> u64 {
        self.withheld
    }

    /// Replays the next entry. Accepted entries must include their envelope, unless it is a context that the reader may
    /// not read.
    pub fn take(&mut self, shown: &v1::CustodyLogEntry) -> Result<(), ReplayError> {
        let number = self.length + 1;
        self.take_entry(number, shown).map_err(|problem| ReplayError { number, problem })
    }

    fn take_entry(&mut self, number: u64, shown: &v1::CustodyLogEntry) -> Result<(), String> {
        let entry = v1::CustodyEntry::decode(shown.entry_bytes.clone())
            .map_err(|error| format!("its bytes cannot be decoded: {error}"))?;
        // The chain covers only the bytes, so the readable form must agree with them.
        if shown.entry.as_ref().is_some_and(|readable| *readable != entry) {
            return Err("the shown entry differs from the hashed bytes".to_owned());
        }
        // A number out of order shows that an entry is missing or repeated.
        if entry.number != number {
            return Err(format!("its number is {}", entry.number));
        }
        let hash = signing::custody_hash(&self.hash, &shown.entry_bytes);
        if shown.custody_hash != hash[..] {
            return Err("the hash chain is broken: its hash does not match the entry and the previous hash".to_owned());
        }
        self.check_receipt(&entry, shown, &hash)?;
        self.replay(&entry, shown)?;
        self.check_state(&entry)?;
        (self.length, self.hash) = (number, hash);
        Ok(())
    }

    fn check_receipt(
        &mut self,
        entry: &v1::CustodyEntry,
        shown: &v1::CustodyLogEntry,
        hash: &[u8],
    ) -> Result<(), String> {
        let Some(Event::Accepted(accepted)) = &entry.event else { return Ok(()) };
        let Some(key) = &self.broker_key else { return Ok(()) };
        let receipt = shown.receipt.as_ref().ok_or("it has no receipt")?;
        // The signature covers the hash of the log, so with each receipt the broker vouches for all entries up to here.
        let same = receipt.message_id == accepted.message_id
            && receipt.sequence == accepted.sequence
            && receipt.task_id == self.task_id.as_str()
            && receipt.custody_hash == *hash;
        if !same {
            return Err("its receipt belongs to another message".to_owned());
        }
        if !key.verifies(&signing::receipt_input(receipt), &receipt.signature) {
            return Err("its receipt is not signed with the broker's key".to_owned());
        }
        self.receipts += 1;
        Ok(())
    }

    fn replay(&mut self, entry: &v1::CustodyEntry, shown: &v1::CustodyLogEntry) -> Result<(), String> {
        let at = entry.entry_time.as_ref().and_then(|time| Timestamp::from_parts(time.seconds, time.nanos));
        let at = at.ok_or("it has no time")?;
        let (absent, full) = (agents(&entry.absent_agent_ids)?, agents(&entry.full_agent_ids)?);
        let handoff = || message_id(&entry.handoff_id).map(EntityId::Handoff);
        let (about, input) = match entry.event.as_ref().ok_or("its event is missing")? {
            // A refusal is on record, but no state machine accepted it.
            Event::Refused(_) => {
                self.refusals += 1;
                return Ok(());
            }
            // It says that mail is missing, and changes no entity.
            Event::MailOmitted(_) => return Ok(()),
            Event::Accepted(accepted) if is_withheld(accepted, shown) => {
                self.withheld += 1;
                let task = self.task_id.clone();
                let digest = accepted.context_digest[..].try_into().map_err(|_| "its context has no digest")?;
                let (about, message) = match accepted.message_type() {
                    v1::MessageType::ContextCheckpoint => {
                        (EntityId::Task(task.clone()), handoff::Message::Checkpoint { digest })
                    }
                    _ => (handoff()?, handoff::Message::Context { digest }),
                };
                // The broker accepts a context at the present epoch only, and a context does not change the epoch.
                let input = handoff::Input::Message { from: agent(&accepted.sender_id)?, epoch: entry.epoch, message };
                (about, Input::Handoff { task, input })
            }
            Event::Accepted(accepted) => match self.accepted(accepted, shown)? {
                Some(accepted) => accepted,
                None => return Ok(()),
            },
            Event::Acked(delivery) => {
                let (by, role) = (agent(&delivery.agent_id)?, mail(delivery.mail)?);
                let decides_within = delivery.decides_within.as_ref().map(span).transpose()?;
                (handoff()?, Input::Acked { by, role, decides_within })
            }
            Event::GivenUp(delivery) => {
                (handoff()?, Input::Undeliverable { to: agent(&delivery.agent_id)?, role: mail(delivery.mail)? })
            }
            Event::Time(time) if time.of_task => (EntityId::Task(self.task_id.clone()), Input::Time),
            Event::Time(_) => (handoff()?, Input::Time),
            Event::Gone(_) => (handoff()?, Input::AgentGone),
            Event::Looked(look) => {
                let input = handoff::Input::Look { found: agents(&look.agent_ids)? };
                (handoff()?, Input::Handoff { task: self.task_id.clone(), input })
            }
            Event::Reassigned(reassigned) => {
                let task = self.task().ok_or("no entry has created the task")?;
                let seize = handoff::Seize {
                    // The broker takes a reassignment at the present epoch only.
                    expected_epoch: task.epoch,
                    submitter: reassigned.submitter_id.clone(),
                    receiver: reassigned.receiver_id.clone(),
                    reason_text: reassigned.reason_text.clone(),
                    handoff: message_id(&reassigned.handoff_id)?,
                };
                let task = self.task_id.clone();
                (EntityId::Task(task.clone()), Input::Handoff { task, input: handoff::Input::Seize(seize) })
            }
            Event::Awarded(award) => self.awarded(award)?,
            Event::Silent(_) => (
                EntityId::Task(self.task_id.clone()),
                Input::Handoff { task: self.task_id.clone(), input: handoff::Input::Silent },
            ),
            Event::Cancelled(cancelled) => {
                let why = match cancelled.parent_task_id.as_str() {
                    "" => handoff::Cancellation::Idle,
                    parent => handoff::Cancellation::WithParent(task_id(parent)?),
                };
                let task = self.task_id.clone();
                (EntityId::Task(task.clone()), Input::Handoff { task, input: handoff::Input::CancelTask(why) })
            }
            Event::Redriven(redrive) => {
                let (id, candidates) = (message_id(&redrive.handoff_id)?, agents(&redrive.candidate_ids)?);
                let input = handoff::Input::Redrive { id, candidates };
                let about = EntityId::Handoff(message_id(&redrive.former_handoff_id)?);
                (about, Input::Handoff { task: self.task_id.clone(), input })
            }
        };
        match step(&about, &input, &mut Replayed { entities: &self.entities, absent: &absent, full: &full }, at) {
            // The broker logs an input only if it changes an entity, so an entry without effect is false.
            Ok(transition) if transition.is_empty() => {
                Err("the replay changes no state, so the entry should not exist".to_owned())
            }
            Ok(transition) => {
                self.entities.extend(transition.writes.into_iter().map(|entity| (entity.id(), entity)));
                Ok(())
            }
            Err(error) => Err(match error.into_refusal() {
                Ok(refusal) => format!("the replay refuses it with {}: {refusal}", refusal.code().name()),
                Err(error) => error.to_string(),
            }),
        }
    }

    /// The entity that an accepted envelope concerns, and the input for its state machine. `None`: the envelope is
    /// plain mail and changes no entity.
    fn accepted(
        &self,
        accepted: &v1::CustodyEnvelope,
        shown: &v1::CustodyLogEntry,
    ) -> Result<Option<(EntityId, Input)>, String> {
        let envelope = v1::Envelope::decode(shown.envelope.clone()).map_err(|error| error.to_string())?;
        // The chain covers the digest only, so the shown envelope must have that digest.
        if signing::sha256(&[&signing::envelope_input(&envelope)]) != accepted.content_digest[..] {
            return Err("its envelope differs from the accepted one".to_owned());
        }
        let parsed = UnverifiedEnvelope::parse(shown.envelope.clone()).map_err(|error| error.to_string())?;
        let resolved = agents(&accepted.resolved_agent_ids)?;
        let terms = accepted.terms.as_ref().map(terms).transpose()?;
        let passed_over = accepted.passed_over.iter().map(passed_over).collect::<Result<Vec<_>, _>>()?;
        let header = parsed.header();
        // Otherwise a valid entry of another task could be shown in this log.
        if header.task.as_ref() != Some(&self.task_id) {
            return Err("its envelope names another task".to_owned());
        }
        let task = self.task_id.clone();
        let about = header.handoff().map_or(EntityId::Task(task.clone()), EntityId::Handoff);
        let input = input_of(header, parsed.body(), Resolved { agents: &resolved, passed_over: &passed_over, terms });
        if let Some(handoff::Input::Message { message, .. }) = &input
            && let handoff::Message::Context { digest } | handoff::Message::Checkpoint { digest } = message
            && accepted.context_digest != digest[..]
        {
            return Err("its context has another digest than the log states".to_owned());
        }
        Ok(input.map(|input| (about, Input::Handoff { task, input })))
    }

    /// The input that opens the handoff of an award. The log has the requester's signed mandate.
    fn awarded(&self, award: &v1::CustodyAward) -> Result<(EntityId, Input), String> {
        let parsed = UnverifiedEnvelope::parse(award.task_request.clone()).map_err(|error| error.to_string())?;
        let header = parsed.header();
        if header.task.as_ref() != Some(&self.task_id) {
            return Err("its mandate names another task".to_owned());
        }
        let candidates = agents(&award.candidate_ids)?;
        let terms = award.terms.as_ref().map(terms).transpose()?;
        let resolved = Resolved { agents: &candidates, passed_over: &[], terms };
        let input = mandated_request_of(header, parsed.body(), resolved).ok_or("its envelope gives no mandate")?;
        Ok((EntityId::Handoff(header.message_id), Input::Handoff { task: self.task_id.clone(), input }))
    }

    fn check_state(&self, entry: &v1::CustodyEntry) -> Result<(), String> {
        let task = self.task().ok_or("no entry has created the task")?;
        let same = |what: &str, logged: &dyn std::fmt::Display, replayed: &dyn std::fmt::Display| {
            let (logged, replayed) = (logged.to_string(), replayed.to_string());
            if logged == replayed {
                Ok(())
            } else {
                Err(format!("the log states {what} {logged}, the replay gives {replayed}"))
            }
        };
        same("owner", &entry.owner_id, &task.owner)?;
        same("epoch", &entry.epoch, &task.epoch)?;
        same("status", &entry.task_status, &task.status.number())?;
        // The entry concerns the task only, so no handoff's state is to be compared.
        if entry.handoff_id.is_empty() {
            return Ok(());
        }
        let id = message_id(&entry.handoff_id)?;
        let handoff = self.handoffs().find(|handoff| handoff.id == id).ok_or("no entry has requested its handoff")?;
        same("handoff state", &entry.handoff_state, &handoff.state.number())
    }

    /// Compares the replayed state with the task that the broker shows.
    pub fn compare(&self, shown: &v1::Task) -> Result<(), ReplayError> {
        let fail = |problem: String| Err(ReplayError { number: self.length + 1, problem });
        let Some(task) = self.task() else { return fail("the log is empty".to_owned()) };
        // The first part of a log has a valid chain too, so the log must end at the head that the broker states.
        if shown.custody_length != self.length || shown.custody_hash != self.hash[..] {
            return fail(format!("the broker states {} entries, the log has {}", shown.custody_length, self.length));
        }
        let open = task.open_handoff.map(|id| id.to_string()).unwrap_or_default();
        let same = shown.owner_id == task.owner.as_str()
            && shown.epoch == task.epoch
            && shown.status == task.status.number()
            && shown.hops.len() == task.hops.len()
            && shown.open_handoff_id == open
            && shown.details == task.details;
        if same { Ok(()) } else { fail("the task that the broker reports differs from the replayed one".to_owned()) }
    }
}

/// The state that a step reads: the entities so far, and the agents that the next entry records as absent or full.
struct Replayed<'a> {
    entities: &'a BTreeMap<EntityId, Entity>,
    absent: &'a [AgentId],
    full: &'a [AgentId],
}

impl Reader for Replayed<'_> {
    fn entity(&mut self, id: &EntityId) -> Result<Option<Entity>, ReadError> {
        Ok(self.entities.get(id).cloned())
    }

    fn is_full(&mut self, agent: &AgentId) -> bool {
        self.full.contains(agent)
    }

    fn is_gone(&mut self, agent: &AgentId) -> bool {
        self.absent.contains(agent)
    }
}

/// Whether the entry is that of a context that the reader may not read.
fn is_withheld(accepted: &v1::CustodyEnvelope, shown: &v1::CustodyLogEntry) -> bool {
    let is_context =
        matches!(accepted.message_type(), v1::MessageType::TaskContextTransfer | v1::MessageType::ContextCheckpoint);
    shown.envelope.is_empty() && is_context
}

fn agent(text: &str) -> Result<AgentId, String> {
    AgentId::parse(text).map_err(|error| format!("agent id {text:?} {error}"))
}

fn agents(texts: &[String]) -> Result<Vec<AgentId>, String> {
    texts.iter().map(|text| agent(text)).collect()
}

fn message_id(text: &str) -> Result<MessageId, String> {
    MessageId::parse(text).map_err(|error| format!("id {text:?} {error}"))
}

fn task_id(text: &str) -> Result<TaskId, String> {
    TaskId::parse(text).map_err(|error| format!("task id {text:?} {error}"))
}

fn mail(number: i32) -> Result<Acked, String> {
    Acked::from_number(number).ok_or_else(|| format!("mail {number} is unknown"))
}

fn span(given: &prost_types::Duration) -> Result<Duration, String> {
    span_from_parts(given.seconds, given.nanos).ok_or_else(|| "a span of time is out of bounds".to_owned())
}

fn passed_over(logged: &v1::CustodyPassedOver) -> Result<PassedOver, String> {
    Ok(PassedOver { agent: agent(&logged.agent_id)?, reason_text: logged.reason_text.clone() })
}

fn terms(terms: &v1::CustodyTerms) -> Result<(Timeouts, LoopLimits), String> {
    let timeouts = terms.timeouts.as_ref().ok_or("the timeouts are missing")?;
    let span = |given: Option<prost_types::Duration>| span(&given.ok_or("a timeout is missing")?);
    let limits = terms.loop_limits.as_ref().ok_or("the loop limits are missing")?;
    Ok((
        Timeouts {
            accept: span(timeouts.accept)?,
            context: span(timeouts.context)?,
            complete: span(timeouts.complete)?,
            whole: span(timeouts.whole)?,
        },
        LoopLimits { handoffs_max: limits.max_handoffs, handoffs_per_pair_max: limits.max_handoffs_per_pair },
    ))
}
