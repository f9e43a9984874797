//! The audit log of administrative acts: written in the same commit as the act, and bounded by age and by number.
//!
//! The oldest entries are removed first. The head keeps the hash of the last removed entry, so that the chain can be
//! checked from there.

use super::{Engine, batch::PostCommit, transaction::Transaction};
use crate::{
    BrokerError,
    access::Caller,
    domain::{EntityId, Input, plan, routing, threads},
    ids::{WorkspaceId, WorkspaceOwner},
    proto::v1::AuditAction,
    records::{AuditAct, AuditHead, EntityRecord, audit_entry},
    time::Timestamp,
};

/// The most entries that one change removes.
const REMOVED_AT_ONCE: usize = 64;
/// The most entries that an act removes while it writes one, so that a log over its bound becomes shorter.
const REMOVED_AN_ACT: usize = 2;

impl Engine {
    /// Appends an entry to the audit log, as a part of the transaction.
    pub(super) fn record(
        &self,
        transaction: &mut Transaction,
        act: AuditAct,
        now: Timestamp,
    ) -> Result<(), BrokerError> {
        let stored = self.read(transaction, &AuditHead::key())?;
        let head = stored.as_ref().map(|record| AuditHead::decode(&record.value)).transpose()?.unwrap_or_default();
        let number = head.length + 1;
        // The times of the log never go back, even where the clock was set back.
        let at = match self.read(transaction, &AuditHead::entry_key(head.length))? {
            Some(last) => now.max(AuditHead::entry_time(&last.value)?),
            None => now,
        };
        let entry = audit_entry(number, at, act);
        let mut head = head.followed_by(&entry);
        transaction.put_new(AuditHead::entry_key(number), head.encode_entry(&entry));
        for _ in 0..REMOVED_AN_ACT {
            if self.has_too_many_acts(&head) {
                head = self.remove_first_act(transaction, &head)?;
            }
        }
        transaction.put(AuditHead::key(), head.encode(), stored.as_ref());
        transaction.post_commit.push(PostCommit::OnRecord { at });
        Ok(())
    }

    /// The entry for a step that a call asks for, as things are before the step. `None`: the step is the caller's own
    /// work. It is written with the step, and not for a repeat that changes nothing.
    pub(super) fn act_of(
        &mut self,
        transaction: &mut Transaction,
        about: &EntityId,
        input: &Input,
        caller: &Caller,
        now: Timestamp,
    ) -> Result<Option<AuditAct>, BrokerError> {
        let Some((action, subject, details)) = described(about, input) else { return Ok(None) };
        let is_own = match caller {
            Caller::Operator(_) | Caller::Anonymous => false,
            Caller::Agent(_) => self.takes_part(transaction, about, caller, now)?,
        };
        Ok((!is_own).then(|| AuditAct { actor: caller.to_string(), action, subject, details }))
    }

    /// Whether an agent acts on what is its own: a plan that it has submitted, a run or a thread that it takes part in,
    /// or one that does not exist before the step.
    fn takes_part(
        &mut self,
        transaction: &mut Transaction,
        about: &EntityId,
        caller: &Caller,
        now: Timestamp,
    ) -> Result<bool, BrokerError> {
        let Some(agent) = caller.as_agent() else { return Ok(false) };
        let Some(known) = self.entity_record(transaction, about)? else { return Ok(true) };
        Ok(match &*known {
            EntityRecord::Plan(known) => known.plan.submitter == *agent,
            EntityRecord::Run(known) => self.access().takes_part_in_run(agent, &known.run),
            EntityRecord::Thread(known) if known.thread.participants.contains(agent) => true,
            EntityRecord::Thread(known) => {
                let workspace = WorkspaceId::of(WorkspaceOwner::Thread, known.thread.id.as_str());
                let workspace = workspace.map_err(|_| BrokerError::Internal)?;
                let owner = self.owner_of(transaction, &workspace, now)?;
                owner.is_some_and(|owner| owner.participants.contains(agent))
            }
            // No call asks for a step of another machine.
            _ => false,
        })
    }

    /// Records an act that changes no other record.
    pub(super) fn note(&mut self, act: AuditAct, now: Timestamp) {
        let mut transaction = self.transaction();
        match self.record(&mut transaction, act, now) {
            Ok(()) => self.stage(transaction),
            Err(error) => tracing::error!(%error, "failed to write the audit log"),
        }
        self.end_unanswered();
    }

    /// The time at which an act of `at` is removed for its age. `None`: never.
    pub(super) fn act_is_over_at(&self, at: Timestamp) -> Option<Timestamp> {
        self.env.settings.retention.audit.map(|span| at.plus(span))
    }

    /// Removes entries that are too old or too many. Returns the time of the next check. `None`: after the next act.
    pub(super) fn remove_old_acts(
        &mut self,
        budget: &mut usize,
        now: Timestamp,
    ) -> Result<Option<Timestamp>, BrokerError> {
        let mut transaction = self.transaction();
        let Some(stored) = self.read(&mut transaction, &AuditHead::key())? else { return Ok(None) };
        let before = AuditHead::decode(&stored.value)?;
        let mut head = before;
        let mut next = None;
        while head.kept() > 0 {
            let entry = self.read(&mut transaction, &AuditHead::entry_key(head.first))?.ok_or_else(missing)?;
            let is_over = |at: &Timestamp| *at <= now;
            let due = match self.has_too_many_acts(&head) {
                true => Some(now),
                false => self.act_is_over_at(AuditHead::entry_time(&entry.value)?),
            };
            if !due.as_ref().is_some_and(is_over) || head.first - before.first == REMOVED_AT_ONCE as u64 {
                // A due entry that is left over makes the timer fire again in the next tick.
                next = due;
                break;
            }
            head = self.remove_first_act(&mut transaction, &head)?;
        }
        if head != before {
            transaction.put(AuditHead::key(), head.encode(), Some(&stored));
            self.stage_removal(transaction, budget);
        }
        Ok(next)
    }

    fn has_too_many_acts(&self, head: &AuditHead) -> bool {
        self.env.settings.retention.audit_entries_max.is_some_and(|most| head.kept() > most)
    }

    fn remove_first_act(&self, transaction: &mut Transaction, head: &AuditHead) -> Result<AuditHead, BrokerError> {
        let key = AuditHead::entry_key(head.first);
        let entry = self.read(transaction, &key)?.ok_or_else(missing)?;
        transaction.delete(key);
        Ok(head.without_first(AuditHead::decode_entry(&entry.value)?.0))
    }
}

/// The action, the object and the details of a step that a call can ask for. `None`: no call asks for it, but a message,
/// which its agent signs, or a registration, which has an entry of its own.
fn described(about: &EntityId, input: &Input) -> Option<(AuditAction, String, String)> {
    let (action, subject, details) = match (about, input) {
        (EntityId::Plan(id), Input::Plan(input)) => {
            let of = |subtask: &str| format!("{id}/{subtask}");
            match input {
                plan::Input::Cancel { by: _, reason } => (AuditAction::PlanCancelled, id.to_string(), reason.clone()),
                plan::Input::Retry { by: _ } => (AuditAction::PlanRetried, id.to_string(), String::new()),
                plan::Input::CancelSubtask { subtask, by: _, reason } => {
                    (AuditAction::SubtaskCancelled, of(subtask), reason.clone())
                }
                plan::Input::RetrySubtask { subtask, by: _ } => {
                    (AuditAction::SubtaskRetried, of(subtask), String::new())
                }
                plan::Input::ReassignSubtask { subtask, to, by: _, reason } => {
                    (AuditAction::SubtaskReassigned, of(subtask), format!("to {to}: {reason}"))
                }
                plan::Input::Submit(_) | plan::Input::Extend(_) => return None,
            }
        }
        (EntityId::Run(id), Input::Routing(input)) => {
            let (action, details) = match input {
                routing::Input::Start(start) => {
                    let task = start.task.as_ref().map(|task| format!(", over task {task}")).unwrap_or_default();
                    (AuditAction::RunStarted, format!("graph {}{task}", start.graph))
                }
                routing::Input::Turn(turn) => {
                    (AuditAction::TurnRecorded, format!("node {}, turn {}", turn.node, turn.id))
                }
                routing::Input::Cancel { by: _, reason } => (AuditAction::RunCancelled, reason.clone()),
                routing::Input::Register { .. } => return None,
            };
            (action, id.to_string(), details)
        }
        (EntityId::Thread(id), Input::Thread(input)) => {
            let (action, details) = match input {
                threads::Input::Create(create) => (AuditAction::ThreadCreated, format!("spec {}", create.base)),
                threads::Input::Act { id: _, action, by: _ } => (
                    AuditAction::ThreadChanged,
                    match action {
                        threads::Action::Request(spec) => format!("request {spec}"),
                        threads::Action::Activate(spec) => format!("activate {spec}"),
                        threads::Action::Clear => "clear".to_owned(),
                    },
                ),
                threads::Input::BeginRun { run, runner: _ } => (AuditAction::ThreadChanged, format!("begin run {run}")),
                threads::Input::EndStep { run, runner: _, step } => {
                    (AuditAction::ThreadChanged, format!("end step {step} of run {run}"))
                }
                threads::Input::EndRun { run, runner: _ } => (AuditAction::ThreadChanged, format!("end run {run}")),
                threads::Input::PutSpec { .. } => return None,
            };
            (action, id.to_string(), details)
        }
        _ => return None,
    };
    Some((action, subject, details))
}

fn missing() -> BrokerError {
    tracing::error!("an entry of the audit log is not in the store");
    BrokerError::Internal
}
