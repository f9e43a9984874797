//! The engine: takes commands, commits their changes durably, and then executes what follows from them.
//!
//! The engine owns the mailboxes, the consumers and the timers in memory, the sequence, and the order of all changes.
//! It has no clock, thread, socket or channel: each call passes the time, the id source supplies randomness, and the
//! driver sends the outputs. A test or a simulator drives it as the broker's thread does:
//!
//! 1. [`Engine::handle`] for each command: computes a change from the stored records and from the changes of the batch;
//! 2. [`Engine::tick`]: does the same for each timer that is due;
//! 3. [`Engine::finish`]: commits the batch with one sync, and only then answers, sets timers and moves mail;
//! 4. [`Engine::poll_output`] until it returns `None`, as [`super::send_outputs`] does.

mod absences;
mod audit;
mod authorization;
mod batch;
mod blobs;
mod clock;
mod command;
mod commit;
mod contexts;
mod coordinator;
mod dead_letters;
mod delegations;
mod delivery;
mod deregistration;
mod enrollment;
mod entities;
#[cfg(all(test, debug_assertions))]
mod generality;
mod graphs;
mod held;
mod idle_tasks;
#[cfg(debug_assertions)]
mod invariants;
mod keys;
mod last_request;
mod liveness;
mod loads;
mod log;
mod mail;
mod messages;
mod negotiations;
mod open;
mod open_counts;
mod outputs;
mod participants;
mod plan_context;
mod plan_reports;
mod plans;
mod presence;
mod questions;
mod registries;
mod resolution;
mod retention;
mod run;
mod schemas;
mod services;
mod stored_bytes;
mod task_removal;
mod timers;
mod topics;
mod traces;
mod transaction;
mod watchers;
mod workspaces;

use std::{sync::Arc, time::Duration};

use self::{
    absences::Absences,
    batch::CommitBatch,
    delivery::Delivery,
    entities::Entities,
    held::Held,
    liveness::Liveness,
    loads::Loads,
    messages::Accepted,
    outputs::Outputs,
    presence::Presence,
    retention::Retention,
    stored_bytes::StoredBytes,
    timers::{Timer, Timers},
    watchers::Watcher,
};
use super::{
    Away, BrokerError, BrokerIdentity, Refused, Resources, Settings,
    access::{Access, Caller},
    changes::HandoffChanges,
    directory::Directory,
    refused,
};
use crate::{
    domain::EntityId,
    envelope::VerifiedEnvelope,
    ids::IdSource,
    metrics::Metrics,
    preparation::{Preparation, Prepared, PreparedMessage},
    proto::v1,
    store::{OpenError, Store},
    time::Timestamp,
};

pub use self::{
    blobs::NewBlob,
    command::{Command, ConsumerKind},
    coordinator::Reassignment,
    enrollment::{CardField, CardUpdate},
    keys::KeyChange,
    registries::{NameChange, Revision},
    services::NO_WORKSPACES,
};
pub use crate::domain::mailbox::Fate;

/// The most timers that one tick looks at. Many are due at once after a long downtime of the broker.
const TIMERS_A_TICK: usize = 1024;
/// The most work of the deadlines and leases that one tick ends, in the unit of [`CommitBatch::work`], unless the first
/// one alone has more. The rest waits for the next tick, so that the commands of agents go in between.
const WORK_A_TICK: usize = 512;
/// The work of the commands in one batch, in the same unit, unless the last one has more. Later commands wait for the next
/// batch, and the agents take turns.
const WORK_A_BATCH: usize = 2048;
/// The bytes that the commands of one batch write, unless the last one has more. A disk that syncs 300 MB a second takes 7 ms.
const BYTES_A_BATCH: usize = 2 * 1024 * 1024;
/// A batch takes commands up to this part of the largest group that the store takes, and the work of timers up to the same.
/// So there is room for the last command and the last timer, which may be over.
const PARTS_OF_A_GROUP: usize = 4;
/// The delay before a timer fires again after its work has failed with an error.
const TRY_AGAIN: Duration = Duration::from_secs(60);
/// The `retry_after` of an exceeded limit that time or other callers bring down again.
const LIMIT_RETRY: Duration = Duration::from_secs(5);
/// The most records that one scan loads, where the range may hold very many.
const LOADED_AT_ONCE: usize = 2048;

/// The reasons why an engine cannot resume after a failed commit.
#[derive(Debug, thiserror::Error)]
pub enum RecoverError {
    /// The store cannot be opened again.
    #[error(transparent)]
    Store(#[from] OpenError),
    /// A stored record cannot be read.
    #[error("failed to read the store: {0}")]
    Read(#[from] BrokerError),
}

/// The engine. See the module.
pub struct Engine {
    env: Environment,
    batch: CommitBatch,
    /// The bytes that the commands of one batch write, unless the last one has more; the timers of a tick as well.
    batch_bytes_max: usize,
    entities: Entities,
    delivery: Delivery,
    timers: Timers,
    outputs: Outputs,
    presence: Presence,
    absences: Absences,
    liveness: Liveness,
    retention: Retention,
    loads: Loads,
    held: Held,
    stored: StoredBytes,
    #[cfg(debug_assertions)]
    second_counts: invariants::SecondCounts,
}

/// The engine's dependencies. They stay the same for the life of the engine.
#[derive(Clone)]
struct Environment {
    store: Arc<dyn Store>,
    directory: Arc<Directory>,
    handoff_changes: Arc<HandoffChanges>,
    identity: BrokerIdentity,
    settings: Arc<Settings>,
    resources: Resources,
    ids: Arc<dyn IdSource>,
}

impl Environment {
    fn preparation(&self) -> Preparation<'_> {
        let access = Access { policies: &self.resources.policies, directory: &self.directory };
        Preparation { store: &*self.store, settings: &self.settings, schemas: &self.resources.schemas, access }
    }
}

impl Engine {
    /// Whether a commit or a read has failed. If so, the engine refuses all changes until [`Self::recover`] succeeds.
    pub fn has_failed(&self) -> bool {
        self.batch.failed
    }

    /// Resumes after a failed commit or read from the records on disk, as after a restart. Every consumer gets a go-away, and
    /// every watcher ends with an error.
    pub fn recover(&mut self, now: Timestamp) -> Result<(), RecoverError> {
        self.env.store.recover()?;
        self.begin_again(now)?;
        self.end_all_watchers(&refused(BrokerError::StoreUnavailable));
        Ok(())
    }

    fn access(&self) -> Access<'_> {
        Access { policies: &self.env.resources.policies, directory: &self.env.directory }
    }

    /// Makes the checks of a message, on the caller's thread, over what the last commit has left. For a driver without
    /// threads: the broker prepares messages beside the engine.
    pub fn prepare(&self, envelope: Box<VerifiedEnvelope>, is_last: bool) -> Result<Prepared, BrokerError> {
        match PreparedMessage::of_short(envelope) {
            Ok(message) => Ok(Prepared::Ready(message)),
            Err(envelope) => self.env.preparation().prepare(envelope, is_last),
        }
    }

    /// The registered agents and their presence.
    pub fn directory(&self) -> &Arc<Directory> {
        &self.env.directory
    }

    /// The latest changes of handoffs.
    pub fn handoff_changes(&self) -> &Arc<HandoffChanges> {
        &self.env.handoff_changes
    }

    /// Whether the batch in hand changes a record.
    pub fn has_changes(&self) -> bool {
        !self.batch.changes.is_empty()
    }

    /// The broker's figures.
    pub fn metrics(&self) -> &Metrics {
        &self.env.resources.metrics
    }

    /// The number of open handoffs.
    pub fn open_handoffs(&self) -> usize {
        self.entities.open.handoffs()
    }

    /// Whether the batch in hand takes a further command.
    pub fn has_room(&self) -> bool {
        self.batch.work < WORK_A_BATCH && self.batch.bytes < self.batch_bytes_max
    }

    /// Executes one command: adds its changes and its answer to the batch.
    pub fn handle(&mut self, command: Command, now: Timestamp) {
        let now = self.keep_time(now);
        self.batch.is_of_operator = matches!(command.caller(), Some(Caller::Operator(_)));
        match command {
            Command::Submit { message, is_from_sender, reply } => {
                let envelope = message.envelope();
                let sender = &envelope.header().sender;
                if is_from_sender {
                    // Each frame is a sign of life, also that of a message which is then refused (SPEC 6).
                    self.seen(sender, now);
                }
                let accepted = self.submit(&message, now);
                // Without a session only a new message shows that its sender lives: each receiver of an old one could send a
                // copy.
                let shows_life = !is_from_sender && matches!(accepted, Ok(Accepted::New(_)));
                let outcome = accepted.map(|(Accepted::New(receipt) | Accepted::Repeat(receipt))| receipt);
                if let Err(refusal) = &outcome {
                    self.env.resources.metrics.refused(envelope.header().message_type, &**refusal);
                }
                log_refusal(envelope, &outcome);
                self.batch.answer(reply, outcome);
                // After the answer, because the end of an absence is a change of its own.
                if shows_life {
                    self.seen(sender, now);
                }
            }
            Command::Apply { about, input, caller, reply } => {
                let outcome = self.apply(&about, &input, &caller, now);
                self.batch.answer(reply, outcome);
            }
            Command::Acknowledge { agent, delivery_id, fate, reply } => {
                self.seen(&agent, now);
                let outcome = self.acknowledge(&agent, &delivery_id, &fate, now);
                self.batch.answer(reply, outcome);
            }
            Command::Register { entry, caller, invitation, reply } => {
                let outcome = self.register(*entry, &caller, &invitation, now);
                self.batch.answer(reply, outcome);
            }
            Command::Invite { invitation, record, caller, reply } => {
                let outcome = self.invite(&invitation, &record, &caller, now);
                self.batch.answer(reply, outcome);
            }
            Command::ChangeKeys { agent, change, caller, reply } => {
                let outcome = self.change_keys(&agent, &change, &caller, now);
                self.batch.answer(reply, outcome);
            }
            Command::Update { update, caller, reply } => {
                let outcome = self.update(&update, &caller, now);
                self.batch.answer(reply, outcome);
            }
            Command::Deregister { agent, force, reason_text, caller, reply } => {
                let outcome = self.deregister(&agent, force, &reason_text, &caller, now).map_err(refused);
                self.batch.answer(reply, outcome);
            }
            Command::Note { act } => self.note(act, now),
            Command::Settle { reply } => self.batch.answer(reply, Ok(())),
            Command::Open { consumer, agent, kind, events } => {
                self.open_consumer(consumer, &agent, kind, events);
                self.seen(&agent, now);
            }
            Command::Credit { consumer, outstanding_max, reply } => {
                self.credit(consumer, outstanding_max, now);
                self.answer_credit(consumer, reply);
            }
            Command::Hello { consumer, instance, tells_work, reply } => {
                self.hello(consumer, instance, tells_work);
                self.answer_credit(consumer, reply);
            }
            Command::Resume { agent, instance, tasks, tasks_max, reply } => {
                let outcome = self.resume(&agent, instance, tasks, tasks_max).map_err(refused);
                self.batch.answer(reply, outcome);
            }
            Command::Processes { agent, reply } => {
                let processes = self.processes(&agent);
                self.batch.answer(reply, Ok(processes));
            }
            Command::Close { consumer } => self.close_consumer(consumer, now),
            Command::Heartbeat { consumer, agent, heartbeat, reply } => {
                self.take_heartbeat(Some(consumer), &agent, heartbeat, now);
                self.answer_credit(consumer, reply);
            }
            // The commit registers the watcher, whose first update then shows the state that this batch leaves.
            Command::Watch { watcher, entity, updates } => {
                self.batch.watches.push((entity, Watcher { id: watcher, updates }));
            }
            Command::Unwatch { watcher } => self.unwatch(watcher),
            Command::CancelNegotiation { negotiation, caller, reply } => {
                let outcome = self.cancel_negotiation(negotiation, &caller, now);
                self.batch.answer(reply, outcome);
            }
            Command::Redrive { dead_letter, to, caller, reply } => {
                let outcome = self.redrive(dead_letter, to.as_ref(), &caller, now);
                self.batch.answer(reply, outcome);
            }
            Command::Reassign { wanted, caller, reply } => {
                let outcome = self.reassign(&wanted, &caller, now);
                self.batch.answer(reply, outcome);
            }
            Command::BeginUpload { agent, blob, reply } => {
                let outcome = self.begin_upload(&agent, &blob, now).map_err(refused);
                self.batch.answer(reply, outcome);
            }
            Command::FinishUpload { agent, place, reply } => {
                let outcome = self.finish_upload(&agent, &place, now).map_err(refused);
                self.batch.answer(reply, outcome);
            }
            Command::DropUpload { agent, digest, reply } => {
                let outcome = self.drop_upload(&agent, &digest).map_err(refused);
                self.batch.answer(reply, outcome);
            }
            Command::DeleteBlob { digest, workspace, caller, reply } => {
                let outcome = self.delete_blob(&caller, &digest, &workspace, now).map_err(refused);
                self.batch.answer(reply, outcome);
            }
            Command::RegisterRevision { revision, caller, etag, reply } => {
                let outcome = self.register_revision(*revision, &caller, &etag, now);
                self.batch.answer(reply, outcome);
            }
            Command::RegisterSchema { schema, caller, etag, reply } => {
                let outcome = self.register_schema(*schema, &caller, &etag, now).map_err(refused);
                self.batch.answer(reply, outcome);
            }
            Command::ChangeName { name, change, caller, etag, reply } => {
                let outcome = self.change_name(&name, &change, &caller, &etag, now).map_err(refused);
                self.batch.answer(reply, outcome);
            }
            Command::Discard { dead_letter, caller, reason_text, reply } => {
                let outcome = self.discard(dead_letter, &caller, &reason_text, now);
                self.batch.answer(reply, outcome);
            }
            Command::KeepRefused { agent, raw, reason, text } => self.keep_refused(&agent, raw, (reason, &text), now),
            Command::GoAway => {
                self.send_away(Away::Stopping, |_| true, now);
                // Open watch streams would keep their connections open, and the stop would wait for them.
                self.end_all_watchers(&refused(BrokerError::ShuttingDown));
            }
        }
    }

    /// Fires the timers that are due, the longest overdue first, within [`TIMERS_A_TICK`] and [`WORK_A_TICK`], and adds
    /// their changes to the batch. The rest stays due.
    pub fn tick(&mut self, now: Timestamp) {
        let now = self.keep_time(now);
        if self.batch.failed {
            return;
        }
        // The budget grows with the commands of the batch, and is computed before the timers add changes of their own.
        let mut removals = self.removals_of_tick();
        let mut room = WORK_A_TICK;
        let bytes_max = self.batch.bytes.saturating_add(self.batch_bytes_max);
        for timer in self.timers.due(TIMERS_A_TICK) {
            let before = self.batch.work;
            match timer {
                // The other timers have bounds of their own, and are few.
                Timer::Entity(_) | Timer::Mailbox(_) if room == 0 || self.batch.bytes >= bytes_max => {}
                Timer::Entity(entity) => {
                    self.let_time_pass(entity, now);
                    room = room.saturating_sub(self.batch.work - before);
                }
                Timer::Mailbox(agent) => {
                    self.look_at_mailbox(agent, now);
                    room = room.saturating_sub(self.batch.work - before);
                }
                Timer::Outbox => self.send_outbox(now),
                Timer::LoadMail => self.load_more(),
                Timer::LeasesOfClosed => self.end_leases_of_closed(now),
                Timer::ExpiredAtDispatch => self.park_expired_at_dispatch(now),
                Timer::MailExpiry => self.park_expired(now),
                Timer::Presence(agent) => self.look_at_presence(agent, now),
                Timer::Loads => self.count_soon(),
                Timer::MailOfLeft => self.park_mail_of_left(now),
                Timer::Unseen => self.look_at_the_unseen(now),
                Timer::OffersOfGone => self.move_next_offers_on(now),
                Timer::TasksOfGone => self.tell_of_tasks_of_gone(now),
                Timer::Held => self.look_for_candidates(now),
                Timer::Room(agent) => self.end_overload(agent, now),
                Timer::StoreSize => self.check_size(now),
                Timer::IdleTasks => self.end_idle_tasks(now),
                Timer::AuditLog => self.remove_acts_that_are_over(&mut removals, now),
                Timer::Retention(kind) => self.remove_what_is_over(kind, &mut removals, now),
            }
        }
    }

    /// Handles a fired entity timer. If a step follows, its commit moves the timer.
    fn let_time_pass(&mut self, entity: EntityId, now: Timestamp) {
        self.batch.work += 1;
        let moved = self.pass_time(&entity, now).and_then(|moved| match (moved, &entity) {
            (true, _) => Ok(()),
            (false, EntityId::Task(task)) => match self.judge_silence(task, now)? {
                true => Ok(()),
                false => self.set_timer_anew(&entity),
            },
            (false, _) => self.set_timer_anew(&entity),
        });
        if let Err(error) = moved {
            tracing::error!(%entity, %error, "failed to apply a deadline to an entity");
            self.timers.set_after(Timer::Entity(entity), TRY_AGAIN);
        }
    }

    /// Moves a timer that has fired too early. A timer loaded at a start may be early, and a command of the batch in
    /// hand may have moved the deadline.
    fn set_timer_anew(&mut self, entity: &EntityId) -> Result<(), BrokerError> {
        let timer = Timer::Entity(entity.clone());
        match self.deadline_of(entity)? {
            Some(due) if due > self.timers.clock.running() => self.timers.set(timer, due),
            Some(_) => {
                // The deadline is due, but the machine changed nothing, which is a bug. A timer that is not cleared
                // would fire in every tick.
                tracing::error!(%entity, "a timer fired for an entity without a deadline");
                self.timers.clear(timer);
            }
            None => self.timers.clear(timer), // the batch in hand has ended the entity
        }
        Ok(())
    }

    /// The time of the clock at which [`Self::tick`] has work next. `None`: no timer is set, or a commit has failed.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        if self.batch.failed {
            // The driver times the recovery by itself; no timer can do its work before that.
            return None;
        }
        self.timers.next().map(|at| self.timers.clock.shows(at))
    }
}

/// Writes the only log line about an envelope that was verified and then refused.
fn log_refusal(envelope: &VerifiedEnvelope, outcome: &Result<v1::Receipt, Refused>) {
    let Err(refusal) = outcome else { return };
    let header = envelope.header();
    let (task, handoff) = (header.task.as_ref().map(|task| task.as_str()), header.correlation.map(|id| id.to_string()));
    tracing::info!(
        reason = refusal.code().name(), agent = %header.sender, message_id = %header.message_id, task, handoff,
        "refused an envelope: {refusal}"
    );
}
