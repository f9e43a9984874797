//! Plans: accepting a submission, sending the coordinator's request for a subtask, keeping results in the workspace, and
//! removing ended plans.
//!
//! The machine of plans decides; this module resolves agents, composes what the coordinator says, and tells the plan of
//! each request that could not be sent.

use prost::Message as _;

use super::{
    Engine,
    batch::PostCommit,
    open_counts::Counted,
    plan_reports::{report_of, result_text, wrong_keys},
    resolution::Candidates,
    retention::Removal,
    run::{Cause, Origin, RunError, ThisMessage},
    services::NO_WORKSPACES,
    transaction::Transaction,
    workspaces::append_receipt,
};
use crate::{
    BrokerError, Refused,
    access::Caller,
    codes::FieldViolation,
    contexts::payload_in,
    domain::{
        EntityId, Input, MessageType, Receiver, Signal,
        admission::AdmissionError,
        coordinator::{Order, SubtaskOrder},
        handoff::{State as HandoffState, Task, TaskStatus},
        mailbox::{EnvelopeOwner, EnvelopePlace},
        matching::Wanted,
        plan::{self, Extension, Plan, PlanSignal, Report, Spec, Submission, Subtask},
    },
    envelope::{self, Body, Resolved, VerifiedEnvelope, signing},
    ids::{AgentId, MessageId, PlanId, TaskId, WorkspaceId, WorkspaceOwner},
    policy::{Action, Resource},
    preparation::{Findings, PreparedMessage, extension_digest},
    proto::v1,
    records::{EntityRecord, MessageRecord, PlanEntryRecord, PlanRecord, PlanSpecRecord},
    refused,
    store::{Key, Order as ScanOrder, Table},
    time::Timestamp,
};

/// The most entries of a log that one commit removes.
const ENTRIES_AT_ONCE: usize = 64;
/// The time by which the log of a plan may be ahead of the broker's clock when the plan ends.
const SET_BACK_MAX: std::time::Duration = std::time::Duration::from_secs(3600);
/// The most agents that a request for a subtask names after the first.
const FALLBACKS_MAX: usize = 16;

impl Engine {
    /// Accepts the submission of a plan.
    pub(super) fn submit_plan(
        &mut self,
        mut transaction: Transaction,
        message: &PreparedMessage,
        plan: &v1::Plan,
        now: Timestamp,
    ) -> Result<v1::Receipt, Refused> {
        let envelope = message.envelope();
        let sender = envelope.header().sender.clone();
        if !self.env.settings.plans_enabled {
            return Err(refused(BrokerError::NotSupported {
                what: "plans, which [plan] of the configuration switches off",
            }));
        }
        let action = Action::SubmitPlan { plan: &plan.plan_id };
        self.access().check(&Caller::Agent(sender.clone()), action, Resource::Broker).map_err(refused)?;
        let spec = match message.findings() {
            Findings::Plan(Ok(spec)) => spec.clone(),
            Findings::Plan(Err(violations)) => {
                return Err(refused(BrokerError::PlanInvalid { violations: violations.clone() }));
            }
            // The policy has begun to permit the plan after its preparation.
            _ => return Err(refused(BrokerError::Conflict)),
        };
        let about = EntityId::Plan(spec.id.clone());
        let known = self.entity_record(&mut transaction, &about).map_err(refused)?;
        let is_own =
            |known: &EntityRecord| matches!(known, EntityRecord::Plan(known) if known.plan.submitter == sender);
        // The same plan again opens none. For a plan of another submitter the answer is as for a new one.
        if !known.as_deref().is_some_and(is_own) {
            self.check_open(Counted::Plan, &sender, envelope.raw().len()).map_err(refused)?;
        }
        let submission = Submission {
            spec,
            by: sender,
            message: envelope.header().message_id,
            digest: *envelope.content_digest(),
            // Over the plan alone: the same plan under another message id is a repeat.
            content_digest: signing::sha256(&[&plan.encode_to_vec()]),
        };
        let sequence = self.new_sequence(&mut transaction);
        let this = ThisMessage { envelope, sequence, owner: EnvelopeOwner::Letter, copy: None };
        let input = Input::Plan(plan::Input::Submit(Box::new(submission)));
        let cause = Cause { origin: Origin::Message(this), event: None };
        match self.run(&mut transaction, &about, &input, cause, now) {
            // The same plan in another message changes nothing, and is accepted.
            Ok(_) => Ok(self.accept(transaction, this, now)),
            Err(error) => Err(error.into_refusal()),
        }
    }

    /// Accepts further subtasks of a running plan.
    pub(super) fn extend_plan(
        &mut self,
        mut transaction: Transaction,
        message: &PreparedMessage,
        extension: &v1::PlanExtension,
        now: Timestamp,
    ) -> Result<v1::Receipt, Refused> {
        let envelope = message.envelope();
        let sender = envelope.header().sender.clone();
        let id = PlanId::parse(&extension.plan_id).map_err(|error| {
            let (path, problem) = ("extension.plan_id".to_owned(), error.to_string());
            refused(BrokerError::Fields { violations: vec![FieldViolation { path, problem }] })
        })?;
        let caller = Caller::Agent(sender.clone());
        self.access().check(&caller, Action::SubmitPlan { plan: id.as_str() }, Resource::Broker).map_err(refused)?;
        let about = EntityId::Plan(id.clone());
        let known = self.entity_record(&mut transaction, &about).map_err(refused)?;
        let known = known.as_deref().and_then(EntityRecord::as_plan).map(|record| record.plan.clone());
        let Some(known) = known.filter(|known| self.access().may_see_plan(&caller, known)) else {
            return Err(refused(self.access().no_such_plan(&caller, &id)));
        };
        let content_digest = extension_digest(extension);
        let sequence = self.new_sequence(&mut transaction);
        let this = ThisMessage { envelope, sequence, owner: EnvelopeOwner::Letter, copy: None };
        if !known.takes_extension(&sender, &content_digest).map_err(refused)? {
            return Ok(self.accept(transaction, this, now));
        }
        self.check_open_bytes(&sender, envelope.raw().len()).map_err(refused)?;
        let (from, spec) = match message.findings() {
            Findings::Extension { from, plan: Ok(spec) } => (*from, spec.clone()),
            Findings::Extension { from, plan: Err(_) } if *from != known.subtasks.len() => {
                return Err(refused(plan::Rejection::ExtendedMeanwhile));
            }
            Findings::Extension { plan: Err(violations), .. } => {
                return Err(refused(BrokerError::PlanInvalid { violations: violations.clone() }));
            }
            // The plan takes extensions since the preparation.
            _ => return Err(refused(BrokerError::Conflict)),
        };
        let (by, message) = (sender, envelope.header().message_id);
        let digest = *envelope.content_digest();
        let extension = Extension { spec, from, by, message, digest, content_digest, sequence };
        let input = Input::Plan(plan::Input::Extend(Box::new(extension)));
        let cause = Cause { origin: Origin::Message(this), event: None };
        match self.run(&mut transaction, &about, &input, cause, now) {
            Ok(_) => Ok(self.accept(transaction, this, now)),
            Err(error) => Err(error.into_refusal()),
        }
    }

    /// Checks before the retry of a plan that its submitter may run another one.
    pub(super) fn check_retry(&mut self, about: &EntityId, input: &Input) -> Result<(), Refused> {
        let Input::Plan(plan::Input::Retry { .. }) = input else { return Ok(()) };
        let known = self.entity_record(&mut self.transaction(), about).map_err(refused)?;
        match known.as_deref() {
            Some(EntityRecord::Plan(known)) if known.plan.state.is_final() => {
                self.check_open(Counted::Plan, &known.plan.submitter, 0).map_err(refused)
            }
            // The step refuses it.
            Some(_) | None => Ok(()),
        }
    }

    /// Checks before a subtask is given to another agent that this agent can take it.
    pub(super) fn check_subtask_receiver(
        &mut self,
        about: &EntityId,
        input: &Input,
        now: Timestamp,
    ) -> Result<(), Refused> {
        let (EntityId::Plan(id), Input::Plan(plan::Input::ReassignSubtask { subtask, to, .. })) = (about, input) else {
            return Ok(());
        };
        let stored = self.entity_record(&mut self.transaction(), &EntityId::PlanSpec(id.clone())).map_err(refused)?;
        let Some(EntityRecord::PlanSpec(spec)) = stored.as_deref() else { return Ok(()) };
        // The step refuses an unknown subtask.
        let Some(place) = spec.0.place(subtask) else { return Ok(()) };
        self.check_receiver_of(&spec.0.subtasks[place], to, now).map_err(refused)
    }

    fn check_receiver_of(&mut self, subtask: &Subtask, to: &str, now: Timestamp) -> Result<(), BrokerError> {
        let invalid = |problem: String| AdmissionError::ReceiverInvalid { receiver: to.to_owned(), problem };
        let asked: Vec<AgentId> = match Receiver::parse(to).map_err(|error| invalid(error.to_string()))? {
            Receiver::Agent(agent) => {
                let agent = self.registered(&agent)?;
                let request = v1::HandoffRequest {
                    desired_agent_type: subtask.agent_type.clone(),
                    required_skills: subtask.required_skills.clone(),
                    ..Default::default()
                };
                if let Some(problem) = self.lacks(&agent, &request) {
                    return Err(invalid(problem).into());
                }
                // A full mailbox would refuse the request after the subtask has left its agent.
                self.check_mailbox(&agent)?;
                vec![agent]
            }
            Receiver::AnyOf(agent_type) => {
                let of_type = self.best_of(&agent_type, now);
                if of_type.is_empty() {
                    return Err(AdmissionError::ReceiverUnknown { receiver: to.to_owned() }.into());
                }
                of_type
            }
            Receiver::AllOf(_) | Receiver::Absent => {
                return Err(invalid("a subtask is given to one agent, or to type:NAME".to_owned()).into());
            }
        };
        if asked.iter().all(|agent| self.env.directory.is_gone(agent, now)) {
            return Err(BrokerError::AgentGone { agent: to.to_owned() });
        }
        Ok(())
    }

    /// The plan and its subtasks, of a task of a plan.
    pub(super) fn plan_of_task(
        &mut self,
        transaction: &mut Transaction,
        id: &PlanId,
    ) -> Result<(std::sync::Arc<Plan>, std::sync::Arc<Spec>), BrokerError> {
        let plan = self.entity_record(transaction, &EntityId::Plan(id.clone()))?;
        let spec = self.entity_record(transaction, &EntityId::PlanSpec(id.clone()))?;
        match (plan.as_deref(), spec.as_deref()) {
            (Some(EntityRecord::Plan(plan)), Some(EntityRecord::PlanSpec(spec))) => {
                Ok((plan.plan.clone(), spec.0.clone()))
            }
            _ => Err(BrokerError::Internal),
        }
    }

    /// Sends the coordinator's request for a subtask. The plan learns of a refusal in a later commit.
    pub(super) fn start_subtask(
        &mut self,
        transaction: &mut Transaction,
        order: &SubtaskOrder,
        now: Timestamp,
    ) -> Result<(), RunError> {
        let (_, spec) = self.plan_of_task(transaction, &order.plan)?;
        // The ranking counts the offers of earlier changes. Those of this transaction are added while it is asked, so that
        // subtasks that start together go to different agents.
        let offered = offers_of(transaction);
        self.count_offers(&offered, |open| open + 1);
        let sent = self.attempt(transaction, |engine, transaction| engine.send_request(transaction, order, &spec, now));
        self.count_offers(&offered, |open| open.saturating_sub(1));
        let (code, text) = match sent {
            Ok(()) => return Ok(()),
            Err(RunError::Broker(
                error @ (BrokerError::StoreUnavailable | BrokerError::Internal | BrokerError::CoordinatorKey { .. }),
                // These are failures of the broker and no answer to the request, so the whole transaction fails.
            )) => return Err(error.into()),
            Err(error) => {
                let refusal = error.into_refusal();
                (refusal.code(), refusal.to_string())
            }
        };
        // The refused request has left nothing behind, and the message that led to it keeps its entry in the custody log.
        let (subtask, handoff) = (spec.subtasks[order.place].id.clone(), order.id);
        tracing::info!(plan = %order.plan, %subtask, reason = code.name(), "could not hand off a subtask: {text}");
        let signal = PlanSignal::NotStarted { subtask, handoff, code, text };
        // The plan may then start other subtasks, whose requests may be refused too: not one within the other.
        self.put_outbox(transaction, EntityId::Plan(order.plan.clone()), Signal::Plan(signal));
        Ok(())
    }

    fn count_offers(&self, candidates: &[AgentId], count: impl Fn(u32) -> u32) {
        for candidate in candidates {
            self.env.directory.change_activity(candidate, |activity| activity.offers = count(activity.offers));
        }
    }

    fn send_request(
        &mut self,
        transaction: &mut Transaction,
        order: &SubtaskOrder,
        spec: &Spec,
        now: Timestamp,
    ) -> Result<(), RunError> {
        let subtask = spec.work(order.place, order.is_compensation);
        let (digest, id) = (&order.submission_digest, &subtask.id);
        let (task, what) = match order.element {
            _ if order.is_compensation => {
                (TaskId::of_compensation(digest, id, order.round), "compensation of subtask".to_owned())
            }
            Some(index) => (TaskId::of_element(digest, id, order.round, index), format!("element {index} of subtask")),
            None => (TaskId::of_subtask(digest, id, order.round), "subtask".to_owned()),
        };
        let (receiver, fallbacks) = self.receivers_of_subtask(order, spec, now)?;
        let payload = v1::HandoffRequest {
            task_type: subtask.task_type.clone(),
            reason: v1::HandoffReason::Workflow.into(),
            reason_text: format!("{what} {} of plan {}, attempt {}", subtask.id, spec.id, order.attempt),
            desired_agent_type: subtask.agent_type.clone(),
            priority: spec.priority.number(),
            initial_context_summary: subtask.description.clone(),
            required_skills: subtask.required_skills.clone(),
            fallback_candidates: fallbacks,
            timeouts: envelope::timeouts_to_v1(subtask),
            mode: v1::HandoffMode::Delegate.into(),
            loan_timeout: prost_types::Duration::try_from(subtask.timeout).ok(),
            silence_timeout: prost_types::Duration::try_from(subtask.silence_timeout).ok(),
            on_behalf_of: Some(v1::OnBehalfOf {
                submitter_id: order.submitter.to_string(),
                plan_id: order.plan.to_string(),
                subtask_id: subtask.id.clone(),
                submission_sha256: order.signed_digest.to_vec().into(),
            }),
            ..Default::default()
        };
        let plan = self.entity_record(transaction, &EntityId::Plan(order.plan.clone()))?;
        let envelope = v1::Envelope {
            trace_context: plan.as_ref().and_then(|plan| plan.trace()).map(|place| (&place.continued).into()),
            message_id: order.id.to_string(),
            receiver_id: receiver,
            message_type: MessageType::HandoffRequest.number(),
            task_id: task.to_string(),
            epoch: order.epoch,
            payload: Some(envelope::payload_of(&payload)),
            ..Default::default()
        };
        let envelope = self.signed_by_coordinator(transaction, envelope, now)?;
        let Body::Request(request) = envelope.body() else { return Err(BrokerError::Internal.into()) };
        let Candidates { mut agents, passed_over, .. } = self.candidates(envelope.header(), request, now)?;
        // The agents of earlier attempts are asked after all others, but before those that are gone: one that has failed once
        // answers at least. The first attempt keeps the order in which the plan names the agents.
        let is_again = order.attempt > 1 || order.round > 1;
        let directory = &self.env.directory;
        agents.sort_by_key(|agent| (is_again && directory.is_gone(agent, now), order.tried.contains(agent)));
        let terms = Some(self.terms_with(self.terms(request)?, request, &agents));
        let resolved = Resolved { agents: &agents, passed_over: &passed_over, terms };
        self.send_as_coordinator(transaction, &envelope, resolved, now)
    }

    /// The receiver and the fallback candidates of a subtask: as the plan names them, or by skills the best agents.
    fn receivers_of_subtask(
        &self,
        order: &SubtaskOrder,
        spec: &Spec,
        now: Timestamp,
    ) -> Result<(String, Vec<String>), BrokerError> {
        let subtask = spec.work(order.place, order.is_compensation);
        if let Some(receiver) = &order.assigned_to {
            return Ok((receiver.clone(), Vec::new()));
        }
        // The most exact wish decides: an agent, then a type, then skills.
        if !subtask.agent.is_empty() {
            return Ok((subtask.agent.clone(), subtask.fallback_candidates.clone()));
        }
        if !subtask.agent_type.is_empty() {
            return Ok((format!("type:{}", subtask.agent_type), subtask.fallback_candidates.clone()));
        }
        let wanted = Wanted {
            agent_type: None,
            required_skills: &subtask.required_skills,
            preferred_skills: &[],
            task_type: "",
            languages: &[],
            tags: &[],
            priority: spec.priority,
            accept_timeout: subtask.timeouts.accept.unwrap_or(self.env.settings.timeouts.accept),
        };
        let may_take = |agent: &AgentId| {
            let entry = self.env.directory.get(agent);
            let submitter = order.submitter.as_str();
            !agent.is_reserved()
                && entry.is_some_and(|entry| {
                    self.access().may_hand_off_for(submitter, &entry, &subtask.task_type, "DELEGATE").is_ok()
                })
        };
        let ranking = self.env.directory.rank(&wanted, now, may_take);
        let mut able: Vec<AgentId> = ranking.agents().cloned().collect();
        able.sort_by_key(|agent| order.tried.contains(agent));
        let mut names = able.iter().map(ToString::to_string);
        // No agent at this moment. The plan tries again after a pause, like after any refusal.
        let Some(first) = names.next() else {
            let receiver = format!("an agent with {}", subtask.required_skills.join(", "));
            return Err(AdmissionError::ReceiverUnknown { receiver }.into());
        };
        Ok((first, names.chain(subtask.fallback_candidates.iter().cloned()).take(FALLBACKS_MAX).collect()))
    }

    /// The envelope of an order about a task of a plan. `None`: it needs none any more.
    pub(super) fn plan_order_envelope(
        &mut self,
        transaction: &mut Transaction,
        order: &Order,
        now: Timestamp,
    ) -> Result<Option<v1::Envelope>, RunError> {
        let id = self.env.ids.message_id(now).to_string();
        let of = |kind: MessageType, task: &TaskId, epoch: u64, payload| v1::Envelope {
            message_id: id,
            message_type: kind.number(),
            task_id: task.to_string(),
            epoch,
            payload: Some(payload),
            ..Default::default()
        };
        Ok(Some(match order {
            Order::Cancel { handoff, task, epoch, to, reason_text } => {
                // An overdue handoff ends by its own time.
                let about = EntityId::Handoff(*handoff);
                let event = crate::records::CustodyEvent::Time(&about);
                let cause = Cause { origin: Origin::Broker, event: Some(&event) };
                self.run(transaction, &about, &Input::Time, cause, now)?;
                let known = self.entity_record(transaction, &about)?;
                let known = known.as_deref().and_then(EntityRecord::as_handoff);
                let Some(open) = known.filter(|record| !record.handoff.state.is_final()) else { return Ok(None) };
                // The time may have moved the handoff to another candidate just now.
                let to = if open.handoff.candidate == *to { to } else { &open.handoff.candidate };
                let payload = envelope::payload_of(&v1::HandoffCancel { reason_text: reason_text.clone() });
                v1::Envelope {
                    receiver_id: to.to_string(),
                    correlation_id: handoff.to_string(),
                    ..of(MessageType::HandoffCancel, task, *epoch, payload)
                }
            }
            Order::Recall { handoff, task, epoch, reason_text } => {
                let payload = envelope::payload_of(&v1::TaskRecall { reason_text: reason_text.clone() });
                v1::Envelope {
                    correlation_id: handoff.to_string(),
                    ..of(MessageType::TaskRecall, task, *epoch, payload)
                }
            }
            Order::Status { task, epoch, status, details } => {
                let (status, details) = (status.number(), details.clone());
                let payload = envelope::payload_of(&v1::TaskStatusUpdate { status, details, ..Default::default() });
                of(MessageType::TaskStatusUpdate, task, *epoch, payload)
            }
            Order::Request(_) | Order::Subtask(_) | Order::Context { .. } | Order::Append { .. } | Order::Tell(_) => {
                return Ok(None);
            }
        }))
    }

    /// Appends the result of a subtask to a topic. The log of the plan records a refusal.
    pub(super) fn append_result(
        &mut self,
        transaction: &mut Transaction,
        order: &Order,
        now: Timestamp,
    ) -> Result<(), RunError> {
        let Order::Append { plan, subtask, element, topic, report } = order else { return Ok(()) };
        let workspace = WorkspaceId::of(WorkspaceOwner::Plan, plan.as_str()).map_err(|_| BrokerError::Internal)?;
        let entry = result_text(report, Some((subtask.as_str(), *element)));
        let appended = self.attempt(transaction, |engine, transaction| {
            engine.append_as_coordinator(transaction, workspace, (topic.as_str(), entry, true), now)
        });
        let refusal = match appended {
            Ok(()) => return Ok(()),
            Err(error) => error.by_machine()?,
        };
        let (code, text) = (refusal.code(), refusal.to_string());
        let (subtask, topic) = (subtask.clone(), topic.as_str().to_owned());
        let signal = Input::Signal(Signal::Plan(PlanSignal::NotAppended { subtask, topic, code, text }));
        self.run(transaction, &EntityId::Plan(plan.clone()), &signal, Cause::SIGNAL, now).map(drop)
    }

    /// Appends an entry of the coordinator, a JSON text, to a topic. `is_result`: also if the owner of the workspace ends in
    /// this transaction.
    pub(super) fn append_as_coordinator(
        &mut self,
        transaction: &mut Transaction,
        workspace: WorkspaceId,
        (topic, entry, is_result): (&str, String, bool),
        now: Timestamp,
    ) -> Result<(), RunError> {
        if !self.env.settings.services.workspace {
            return Err(RunError::Refused(refused(NO_WORKSPACES)));
        }
        let payload = v1::WorkspaceAppend {
            workspace_id: workspace.to_string(),
            topic: topic.to_owned(),
            entry: Some(v1::workspace_append::Entry::Json(entry)),
            ..Default::default()
        };
        let envelope = v1::Envelope {
            message_id: self.env.ids.message_id(now).to_string(),
            message_type: MessageType::WorkspaceAppend.number(),
            payload: Some(envelope::payload_of(&payload)),
            ..Default::default()
        };
        let envelope = self.signed_by_coordinator(transaction, envelope, now)?;
        let Body::Append(append) = envelope.body() else { return Err(BrokerError::Internal.into()) };
        let (append, limits) = (append.clone(), self.env.settings.workspace);
        let sequence = self.new_sequence(transaction);
        let this = ThisMessage { envelope: &envelope, sequence, owner: EnvelopeOwner::Letter, copy: None };
        let input = Input::Append { append, limits, is_result };
        let cause = Cause { origin: Origin::Message(this), event: None };
        let about = EntityId::Workspace(workspace);
        self.run(transaction, &about, &input, cause, now)?;
        let of_ordering = transaction.logged.take();
        let written =
            transaction.written(&about).and_then(|record| record.as_workspace()).ok_or(BrokerError::Internal)?;
        let receipt = append_receipt(envelope.header(), sequence, written);
        self.store_message(transaction, this, now, Some(&receipt));
        transaction.logged = of_ordering;
        transaction.has_orders = true;
        Ok(())
    }

    /// The report in a status update: the message in hand, or a stored one.
    pub(super) fn report(&self, transaction: &Transaction, message: MessageId) -> Option<Report> {
        let raw = match &transaction.in_hand {
            Some((id, raw)) if *id == message => raw.clone(),
            _ => self.envelope_bytes(EnvelopePlace::Message(message))?,
        };
        Some(report_of(payload_in(&raw)?))
    }

    /// Checks the well-known keys in the result of a subtask.
    pub(super) fn check_report(&mut self, envelope: &VerifiedEnvelope, status: TaskStatus) -> Result<(), BrokerError> {
        let Some(task) = envelope.header().task.clone().filter(|_| status.is_final()) else { return Ok(()) };
        let known = self.entity_record(&mut self.transaction(), &EntityId::Task(task))?;
        if known.as_deref().and_then(EntityRecord::as_task).is_none_or(|record| record.task.plan.is_none()) {
            return Ok(());
        }
        let update: Option<v1::TaskStatusUpdate> = payload_in(envelope.raw());
        let violations = update.map(|update| wrong_keys(&update.result_json)).unwrap_or_default();
        if violations.is_empty() { Ok(()) } else { Err(BrokerError::Fields { violations }) }
    }

    /// Removes an ended plan with its log, its workspace and its submission, a part a commit.
    pub(super) fn remove_plan(
        &mut self,
        entry: Key,
        plan: &[u8],
        since: Timestamp,
        now: Timestamp,
        budget: &mut usize,
    ) -> Result<Removal, BrokerError> {
        let id = PlanRecord::listed(plan)?;
        let key = PlanRecord::key(&id);
        if self.is_written_in_batch(&key) {
            return Ok(Removal::PutOff);
        }
        let mut transaction = self.transaction();
        let stored = self.read(&mut transaction, &key)?;
        let record = stored.map(|stored| PlanRecord::decode(&stored.value)).transpose()?;
        // A retry has started the plan again, and its next end has an entry of its own.
        if let Some(record) = &record
            && record.plan.ended_at.is_none_or(|ended| ended > since.plus(SET_BACK_MAX))
        {
            transaction.delete(entry);
            return Ok(self.stage_removal(transaction, budget));
        }
        transaction.payer = record.as_ref().map(|record| record.plan.submitter.clone());
        let range = PlanEntryRecord::range_after(&id, 0);
        let found = self.env.store.scan(Table::PlanLog, range, ScanOrder::Ascending, ENTRIES_AT_ONCE)?;
        for (key, _) in &found {
            transaction.delete(Key { table: Table::PlanLog, key: key.clone() });
        }
        let is_last = found.len() < ENTRIES_AT_ONCE;
        if is_last {
            if let Some(record) = record {
                record.listings().into_iter().for_each(|key| transaction.delete(key));
                transaction.delete(MessageRecord::envelope_key(record.sequence));
                for extension in &record.plan.extensions {
                    transaction.delete(MessageRecord::envelope_key(extension.sequence));
                }
                transaction.delete(PlanSpecRecord::key(&id));
                transaction.delete(key);
                if let Ok(workspace) = WorkspaceId::of(WorkspaceOwner::Plan, id.as_str()) {
                    self.remove_workspace(&mut transaction, &workspace, now)?;
                }
            }
            transaction.delete(entry);
            transaction.post_commit.push(PostCommit::EntityRemoved(EntityId::Plan(id)));
        }
        let removal = self.stage_removal(transaction, budget);
        Ok(if is_last { removal } else { Removal::Unfinished })
    }
}

/// The candidates of the handoffs that the coordinator has requested in this transaction.
fn offers_of(transaction: &Transaction) -> Vec<AgentId> {
    let handoffs = transaction.all_written().filter_map(|record| record.as_handoff());
    let requested = handoffs.map(|record| &record.handoff).filter(|handoff| {
        let is_first = handoff.made_offers().count() == 1;
        handoff.sender.is_coordinator() && handoff.state == HandoffState::Requested && handoff.has_offer() && is_first
    });
    requested.map(|handoff| handoff.candidate.clone()).collect()
}

/// The refusal of a reassignment: a plan decides about its tasks.
pub(super) fn of_plan(task: &Task) -> Option<BrokerError> {
    let plan = task.plan.as_ref()?;
    let problem = format!("the task carries out a subtask of plan {}: cancel or retry the plan", plan.plan);
    let violations = vec![FieldViolation { path: "task_id".to_owned(), problem }];
    Some(BrokerError::Fields { violations })
}
