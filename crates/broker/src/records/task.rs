//! Table tasks. Lists find tasks by the index entries of their handoffs and by their latest changes, and the parts of a
//! task, all in table listings.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use prost::Message;

use super::{
    ChangePlace, CustodyLink, DecodeError, HandoffPlace, HandoffRecord, List, LogClock, LogItem, LogPage, Reader,
    by_name,
    handoff::{nanoseconds, span_unless_zero},
    id_bytes,
    letter::{process_bytes, process_from},
    moment, texts,
};
use crate::{
    domain::{
        handoff::{Answer, Hop, Loan, LoopLimits, Prompt, PromptState, Seizure, Task, TaskStatus, TransferTerms},
        plan::PlanRef,
        routing::RunId,
    },
    ids::{AgentId, InstanceId, MessageId, PlanId, TaskId},
    proto::storage,
    store::{Key, Table},
    time::Timestamp,
};

/// A task as stored: its state, and the head of its custody log.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskRecord {
    /// The state of the task.
    pub task: Arc<Task>,
    /// The head of the custody log.
    pub custody: CustodyLink,
    /// The latest items of the custody log, fewer than [`LogPage::ITEMS`]. The others are in pages.
    pub log_tail: Vec<LogItem>,
    /// The task's latest handoff that a request began, open or ended: one record serves both, since each step of the
    /// handoff also changes the log of the task.
    pub handoff: Option<HandoffRecord>,
    /// The number of the latest version of the task's context; 0: none exists.
    pub context_versions: u64,
    /// The number of the latest version that is not the coordinator's; 0: none exists.
    pub last_context: u64,
    /// The number of refusals in the log. Bounded, because a former owner could send late messages for ever.
    pub refusals_recorded: u32,
    /// The number of pieces of plain mail in the log. Bounded, because mail changes no state of the task.
    pub mail_recorded: u32,
    /// The number of pieces of plain mail that were delivered after the log had no room for them.
    pub mail_unrecorded: u64,
    /// The number of the owner's absence that an agent was told of last; 0: none.
    pub told_absence: u64,
    /// The agents that a participant has asked about the task: the receivers of its `TaskRequest`s, at most
    /// [`Self::ASKED_MAX`].
    pub asked: Vec<AgentId>,
    /// The latest question, with the process that asked it. `None`: none was asked, or the process has not said.
    pub asking: Option<(MessageId, InstanceId)>,
    /// The runs over the task that have not ended, at most [`Self::OPEN_RUNS_MAX`]. They follow its moves.
    pub open_runs: Vec<RunId>,
    /// The sequence of the message or award that created the task. The first handoff of a task that began with it has the
    /// same.
    pub sequence: u64,
    /// The sequence of the latest change of [`Self::task`], its place in the list by update.
    pub updated: u64,
    /// The time of the last entry of the custody log. Never goes back.
    pub logged_at: Timestamp,
    /// The part of the set-backs of the broker's clock that the log's time has followed. It stays constant while a
    /// handoff is open, so that the log's time advances evenly.
    pub set_back: Duration,
}

impl TaskRecord {
    /// The most asked agents that the record keeps.
    pub const ASKED_MAX: usize = 256;
    /// The most open runs over one task.
    pub const OPEN_RUNS_MAX: usize = 16;

    /// Whether a list of all tasks shows the task at this entry: at its creation.
    pub fn is_shown_at(&self, place: &HandoffPlace) -> bool {
        place.sequence == self.sequence
    }

    /// Whether a list of one agent's tasks shows the task at this entry: at the handoff that created the task, for its
    /// creator, or at the one by which the agent first became its owner. An agent that never owned the task does not
    /// list it.
    pub fn is_shown_to_at(&self, agent: &AgentId, place: &HandoffPlace) -> bool {
        // The creator lists the task at its creation, even if it got the task back later.
        if self.task.creator() == agent {
            return self.is_shown_at(place);
        }
        // The coordinator came to own the task at the seizure before its own first handoff.
        if agent.is_coordinator() {
            return self.task.seizures.first().is_some_and(|seizure| seizure.handoff == place.handoff);
        }
        match self.task.hops.iter().find(|hop| hop.receiver == *agent) {
            Some(hop) => hop.handoff == place.handoff,
            None => false,
        }
    }

    /// Whether a process of the agent may resume the task: the agent owns it and got it by a handoff, it has not ended,
    /// and nobody is asked to take it.
    pub fn is_left_by(&self, agent: &AgentId) -> bool {
        let task = &self.task;
        task.owner == *agent
            && !task.status.is_final()
            && task.open_handoff.is_none()
            && task.hops.iter().any(|hop| hop.receiver == *agent)
    }

    /// The log's time at this time of the broker's clock, after set-backs with the sum `set_back`. It never goes back,
    /// and advances evenly while a handoff is open or a loan has a timeout. Otherwise it is the clock's time.
    pub fn log_time(&self, now: Timestamp, set_back: Duration) -> Timestamp {
        let has_deadline = self.task.open_handoff.is_some() || self.task.next_deadline().is_some();
        self.log_clock().log_time(has_deadline, now, set_back)
    }

    /// The pace of the custody log.
    pub fn log_clock(&self) -> LogClock {
        LogClock { logged_at: self.logged_at, set_back: self.set_back }
    }

    /// The number of entries of the custody log that are in pages.
    pub fn paged(&self) -> u64 {
        self.custody.length - self.log_tail.len() as u64
    }

    /// Appends an item to the custody log, of which it is the latest entry already counted. Returns the page that it
    /// completes.
    pub fn append(&mut self, item: LogItem) -> Option<(Key, Bytes)> {
        self.log_tail.push(item);
        if self.log_tail.len() < LogPage::ITEMS {
            return None;
        }
        let key = LogPage::key(self.sequence, &self.task.id, self.paged() + 1);
        Some((key, LogPage::encode(&std::mem::take(&mut self.log_tail))))
    }

    /// The index entry of a task that is a part of another one.
    pub(super) fn part_entry(&self) -> Option<(Key, Bytes)> {
        let parent = self.task.parent.as_ref()?;
        let id = Bytes::copy_from_slice(self.task.id.as_str().as_bytes());
        Some((List::of_parts(parent).place(self.sequence), id))
    }

    /// The index entries of a task that began without a handoff: its place in the list of all handoffs and in that of
    /// its creator. No handoff has the id that they name, so only lists of tasks show them.
    pub fn creation_entries(&self) -> Vec<(Key, Bytes)> {
        let Some(handoff) = self.task.created_by else { return Vec::new() };
        let place = HandoffPlace { sequence: self.sequence, handoff, task: self.task.id.clone() };
        let lists = [List::of_handoffs(None), List::of_handoffs(Some(self.task.creator()))];
        lists.iter().map(|list| (list.place(self.sequence), place.encode())).collect()
    }

    /// The index entry of a task of an outer conversation.
    pub(super) fn conversation_entry(&self) -> Option<(Key, Bytes)> {
        let list = List::of_conversation(self.task.conversation.as_ref()?);
        let id = Bytes::copy_from_slice(self.task.id.as_str().as_bytes());
        Some((list.place(self.sequence), id))
    }

    /// The task of an entry in a list of parts, of a conversation or of questions.
    pub fn listed(value: &[u8]) -> Result<TaskId, DecodeError> {
        let reader = Reader("listings");
        let id = std::str::from_utf8(value).map_err(|error| reader.error(error.to_string()))?;
        reader.task(id)
    }

    /// The index entry of the open question.
    pub(super) fn question_entry(&self) -> Option<(Key, Bytes)> {
        let list = List::of_questions(&self.task.open_prompt()?.asked);
        let id = Bytes::copy_from_slice(self.task.id.as_str().as_bytes());
        Some((list.place(self.sequence), id))
    }

    /// The entry of the latest update in the list of changes. `None`: the update was the beginning or the end of the handoff
    /// in the record. Then the entry of the handoff, among the open ones or the changes, is also that of the task.
    pub fn update_entry(&self) -> Option<(Key, Bytes)> {
        let of_handoff = self.handoff.as_ref().map(|last| match last.handoff.state.is_final() {
            true => last.changed,
            false => last.sequence,
        });
        if of_handoff == Some(self.updated) {
            return None;
        }
        let place = ChangePlace { task: self.task.id.clone(), ended: None };
        Some((List::changes().place(self.updated), place.encode()))
    }

    /// The key of the record.
    pub fn key(task: &TaskId) -> Key {
        by_name(Table::Tasks, task.as_str())
    }

    /// Encodes the record.
    pub fn encode(&self) -> Bytes {
        let task = &self.task;
        storage::TaskRecord {
            task_id: task.id.to_string(),
            task_type: task.task_type.clone(),
            owner_id: task.owner.to_string(),
            epoch: task.epoch,
            status: task.status.number(),
            progress: task.progress,
            details: task.details.clone(),
            open_handoff_id: task.open_handoff.map(id_bytes).unwrap_or_default(),
            hops: task.hops.iter().map(hop_to_storage).collect(),
            loans: task.loans.iter().map(loan_to_storage).collect(),
            transfer: task.transfer.as_ref().map(transfer_to_storage),
            handoffs_max: task.loop_limits.handoffs_max,
            handoffs_per_pair_max: task.loop_limits.handoffs_per_pair_max,
            created_at: task.created_at.unix_nanoseconds(),
            updated_at: task.updated_at.unix_nanoseconds(),
            custody_length: self.custody.length,
            custody_hash: Bytes::copy_from_slice(&self.custody.hash),
            refusals_recorded: self.refusals_recorded,
            sequence: self.sequence,
            logged_at: self.logged_at.unix_nanoseconds(),
            set_back: u64::try_from(self.set_back.as_nanos()).unwrap_or(u64::MAX),
            log_tail: LogItem::to_storage(&self.log_tail),
            handoff: self.handoff.as_ref().map(HandoffRecord::to_storage),
            creation_message_id: task.created_by.map(id_bytes).unwrap_or_default(),
            result_message_id: task.result.map(id_bytes).unwrap_or_default(),
            prompts: task.prompts.iter().map(prompt_to_storage).collect(),
            parent_task_id: task.parent.as_ref().map(ToString::to_string).unwrap_or_default(),
            conversation_id: task.conversation.as_ref().map(ToString::to_string).unwrap_or_default(),
            seizures: task.seizures.iter().map(seizure_to_storage).collect(),
            mail_recorded: self.mail_recorded,
            mail_unrecorded: self.mail_unrecorded,
            told_absence: self.told_absence,
            updated: self.updated,
            asked_agent_ids: texts(&self.asked),
            open_run_ids: self.open_runs.iter().map(|run| id_bytes(run.0)).collect(),
            asking_message_id: self.asking.map(|(asked, _)| id_bytes(asked)).unwrap_or_default(),
            asking_process: process_bytes(self.asking.map(|(_, process)| process)),
            context_versions: self.context_versions,
            last_context_version: self.last_context,
            plan_id: task.plan.as_ref().map(|plan| plan.plan.to_string()).unwrap_or_default(),
            subtask_id: task.plan.as_ref().map(|plan| plan.subtask.clone()).unwrap_or_default(),
            plan_submitter_id: task
                .plan
                .as_ref()
                .and_then(|plan| plan.submitter.as_ref())
                .map(ToString::to_string)
                .unwrap_or_default(),
        }
        .encode_to_vec()
        .into()
    }

    /// Decodes the record.
    pub fn decode(value: &Bytes) -> Result<Self, DecodeError> {
        let reader = Reader("tasks");
        let mut stored: storage::TaskRecord = reader.message(value)?;
        let log_tail = LogItem::from_storage(&reader, std::mem::take(&mut stored.log_tail))?;
        let handoff = stored.handoff.take().map(|handoff| HandoffRecord::from_storage(&reader, handoff)).transpose()?;
        // `append` moves a full tail into a page, so a longer one is damage.
        if log_tail.len() >= LogPage::ITEMS || log_tail.len() as u64 > stored.custody_length {
            return Err(reader.error("the custody log has too many entries"));
        }
        Ok(Self {
            custody: CustodyLink { length: stored.custody_length, hash: reader.digest(&stored.custody_hash)? },
            log_tail,
            handoff,
            context_versions: stored.context_versions,
            last_context: stored.last_context_version,
            refusals_recorded: stored.refusals_recorded,
            mail_recorded: stored.mail_recorded,
            mail_unrecorded: stored.mail_unrecorded,
            told_absence: stored.told_absence,
            asked: stored.asked_agent_ids.iter().map(|id| reader.agent(id)).collect::<Result<_, _>>()?,
            open_runs: stored
                .open_run_ids
                .iter()
                .map(|id| Ok(RunId(reader.message_id(id)?)))
                .collect::<Result<_, DecodeError>>()?,
            asking: reader
                .optional_message_id(&stored.asking_message_id)?
                .zip(process_from(&reader, &stored.asking_process)?),
            sequence: stored.sequence,
            updated: stored.updated,
            // A record older than this field has nearly the same time in its task.
            logged_at: moment(stored.logged_at.max(stored.updated_at)),
            set_back: Duration::from_nanos(stored.set_back),
            task: Arc::new(Task {
                id: reader.task(&stored.task_id)?,
                task_type: stored.task_type,
                owner: reader.agent(&stored.owner_id)?,
                epoch: stored.epoch,
                status: reader.some(TaskStatus::from_number(stored.status), "status")?,
                progress: stored.progress,
                details: stored.details,
                result: reader.optional_message_id(&stored.result_message_id)?,
                prompts: stored
                    .prompts
                    .iter()
                    .map(|prompt| prompt_from_storage(&reader, prompt))
                    .collect::<Result<_, _>>()?,
                // No task id is empty, so an empty field means that the task is no part.
                parent: match stored.parent_task_id.as_str() {
                    "" => None,
                    parent => Some(reader.task(parent)?),
                },
                conversation: reader.optional_conversation(&stored.conversation_id)?,
                created_by: reader.optional_message_id(&stored.creation_message_id)?,
                plan: match stored.plan_id.as_str() {
                    "" => None,
                    plan => {
                        let plan = PlanId::parse(plan).map_err(|error| reader.error(error.to_string()))?;
                        let submitter = match stored.plan_submitter_id.as_str() {
                            "" => None,
                            submitter => Some(reader.agent(submitter)?),
                        };
                        Some(PlanRef { plan, subtask: stored.subtask_id, submitter })
                    }
                },
                open_handoff: reader.optional_message_id(&stored.open_handoff_id)?,
                hops: stored.hops.iter().map(|hop| hop_from_storage(&reader, hop)).collect::<Result<_, _>>()?,
                loans: stored.loans.iter().map(|loan| loan_from_storage(&reader, loan)).collect::<Result<_, _>>()?,
                transfer: stored
                    .transfer
                    .as_ref()
                    .map(|transfer| transfer_from_storage(&reader, transfer))
                    .transpose()?,
                seizures: stored
                    .seizures
                    .iter()
                    .map(|seizure| seizure_from_storage(&reader, seizure))
                    .collect::<Result<_, _>>()?,
                loop_limits: LoopLimits {
                    handoffs_max: stored.handoffs_max,
                    handoffs_per_pair_max: stored.handoffs_per_pair_max,
                },
                created_at: moment(stored.created_at),
                updated_at: moment(stored.updated_at),
            }),
        })
    }
}

fn loan_to_storage(loan: &Loan) -> storage::LoanRecord {
    storage::LoanRecord {
        delegator_id: loan.delegator.to_string(),
        handoff_id: id_bytes(loan.handoff),
        due: loan.due.map(Timestamp::unix_nanoseconds),
        due_max: loan.due_max.map(Timestamp::unix_nanoseconds),
        silence_timeout: loan.silence_timeout.map_or(0, nanoseconds),
        thread_id: loan.thread.as_ref().map(ToString::to_string).unwrap_or_default(),
    }
}

fn transfer_to_storage(transfer: &TransferTerms) -> storage::TransferTermsRecord {
    storage::TransferTermsRecord {
        former_id: transfer.former.to_string(),
        handoff_id: id_bytes(transfer.handoff),
        silence_timeout: nanoseconds(transfer.silence_timeout),
        returns: transfer.returns,
        is_told: transfer.is_told,
    }
}

fn transfer_from_storage(reader: &Reader, stored: &storage::TransferTermsRecord) -> Result<TransferTerms, DecodeError> {
    Ok(TransferTerms {
        former: reader.agent(&stored.former_id)?,
        handoff: reader.message_id(&stored.handoff_id)?,
        silence_timeout: Duration::from_nanos(stored.silence_timeout),
        returns: stored.returns,
        is_told: stored.is_told,
    })
}

fn loan_from_storage(reader: &Reader, stored: &storage::LoanRecord) -> Result<Loan, DecodeError> {
    Ok(Loan {
        delegator: reader.agent(&stored.delegator_id)?,
        handoff: reader.message_id(&stored.handoff_id)?,
        due: stored.due.map(moment),
        due_max: stored.due_max.map(moment),
        silence_timeout: span_unless_zero(stored.silence_timeout),
        thread: reader.optional_thread(&stored.thread_id)?,
    })
}

fn seizure_to_storage(seizure: &Seizure) -> storage::SeizureRecord {
    storage::SeizureRecord {
        owner_id: seizure.from.to_string(),
        epoch: seizure.epoch,
        handoff_id: id_bytes(seizure.handoff),
    }
}

fn seizure_from_storage(reader: &Reader, stored: &storage::SeizureRecord) -> Result<Seizure, DecodeError> {
    Ok(Seizure {
        from: reader.agent(&stored.owner_id)?,
        epoch: stored.epoch,
        handoff: reader.message_id(&stored.handoff_id)?,
    })
}

fn prompt_to_storage(prompt: &Prompt) -> storage::PromptRecord {
    storage::PromptRecord {
        message_id: id_bytes(prompt.id),
        asked_id: prompt.asked.to_string(),
        due: prompt.due.map(Timestamp::unix_nanoseconds),
        state: prompt.state.number(),
        asked_at: prompt.asked_at.unix_nanoseconds(),
        answer_message_id: prompt.answer.map(|answer| id_bytes(answer.id)).unwrap_or_default(),
        answered_at: prompt.answer.map_or(0, |answer| answer.at.unix_nanoseconds()),
    }
}

fn prompt_from_storage(reader: &Reader, stored: &storage::PromptRecord) -> Result<Prompt, DecodeError> {
    Ok(Prompt {
        id: reader.message_id(&stored.message_id)?,
        asked: reader.agent(&stored.asked_id)?,
        asked_at: moment(stored.asked_at),
        due: stored.due.map(moment),
        state: reader.some(PromptState::from_number(stored.state), "state of a question")?,
        answer: reader
            .optional_message_id(&stored.answer_message_id)?
            .map(|id| Answer { id, at: moment(stored.answered_at) }),
    })
}

fn hop_to_storage(hop: &Hop) -> storage::HopRecord {
    storage::HopRecord {
        handoff_id: id_bytes(hop.handoff),
        sender_id: hop.sender.to_string(),
        receiver_id: hop.receiver.to_string(),
        epoch: hop.epoch,
    }
}

fn hop_from_storage(reader: &Reader, stored: &storage::HopRecord) -> Result<Hop, DecodeError> {
    Ok(Hop {
        handoff: reader.message_id(&stored.handoff_id)?,
        sender: reader.agent(&stored.sender_id)?,
        receiver: reader.agent(&stored.receiver_id)?,
        epoch: stored.epoch,
    })
}
