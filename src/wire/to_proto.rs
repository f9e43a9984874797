//! Converts the broker's types to `baton.v1` messages.

use std::sync::Arc;

use crate::{
    broker::{
        RunningProcess,
        access::Caller,
        directory::{Busy, Directory, Entry, PresenceState},
        queries::{ContextView, ShownHandoff, ShownTask, View, WorkspaceView, section_info},
    },
    domain::{
        handoff::{Handoff, Hop, Loan, Offer, Seizure, Step, Waiting},
        mailbox::Attempt,
        matching::Factor,
        negotiation::{AwardRule, Negotiation, Thread},
        workspace,
    },
    ids::AgentId,
    proto::v1,
    records::{DeadEnvelope, DeadLetterRecord, TaskRecord},
    time::Timestamp,
};

pub(super) fn span(span: std::time::Duration) -> prost_types::Duration {
    prost_types::Duration::try_from(span).unwrap_or_default()
}

/// The time of a field. `None`: it is not set, or is no time.
pub(super) fn time_of(at: Option<&prost_types::Timestamp>) -> Option<Timestamp> {
    at.and_then(|at| Timestamp::from_parts(at.seconds, at.nanos))
}

/// The same as a text. Empty: there is none.
pub(super) fn time_text(at: Option<&prost_types::Timestamp>) -> String {
    time_of(at).map(|at| at.to_string()).unwrap_or_default()
}

pub(super) fn context_version(view: &ContextView) -> v1::ContextVersion {
    let version = &view.version;
    v1::ContextVersion {
        task_id: version.task.to_string(),
        version: version.number,
        epoch: version.epoch,
        author_id: version.author.to_string(),
        handoff_id: version.handoff.map(|id| id.to_string()).unwrap_or_default(),
        message_id: version.message.to_string(),
        context_digest: version.digest.to_vec().into(),
        sections: version.sections.iter().map(section_info).collect(),
        create_time: Some(version.created_at.into()),
        receiver_id: version.receiver.as_ref().map(ToString::to_string).unwrap_or_default(),
        digests_only: !view.has_contents,
    }
}

pub(super) fn workspace(view: &WorkspaceView, limits: &workspace::Limits) -> v1::Workspace {
    let workspace = &view.record.workspace;
    v1::Workspace {
        workspace_id: workspace.id.to_string(),
        last_sequence: workspace.last_sequence,
        first_sequence: workspace.first_sequence,
        topic_count: u32::try_from(workspace.topics.len()).unwrap_or(u32::MAX),
        size_bytes: workspace.bytes,
        closed: !view.owner.is_open,
        chain_hash: view.record.chain_hash.to_vec().into(),
        size_bytes_max: limits.bytes_max,
        entries_max: limits.entries_max,
        topics_max: u32::try_from(limits.topics_max).unwrap_or(u32::MAX),
    }
}

/// A handoff with what its request says of it.
pub(super) fn shown_handoff(shown: &ShownHandoff) -> v1::Handoff {
    with_request(handoff(&shown.handoff), &shown.request)
}

/// Adds what the request says to a handoff.
pub(super) fn with_request(handoff: v1::Handoff, request: &v1::HandoffRequest) -> v1::Handoff {
    v1::Handoff {
        initial_context_summary: request.initial_context_summary.clone(),
        reason_text: request.reason_text.clone(),
        desired_agent_type: request.desired_agent_type.clone(),
        ..handoff
    }
}

/// A handoff without what its request says of it.
pub(super) fn handoff(handoff: &Handoff) -> v1::Handoff {
    let failure = handoff.failure.as_ref();
    let open = !handoff.state.is_final();
    v1::Handoff {
        handoff_id: handoff.id.to_string(),
        task_id: handoff.task.to_string(),
        epoch: handoff.epoch,
        sender_id: handoff.sender.to_string(),
        receiver_id: handoff.receiver.clone(),
        candidate_id: handoff.shown_candidate().map(ToString::to_string).unwrap_or_default(),
        state: handoff.state.number(),
        sender_view: handoff.sender_view().number(),
        receiver_view: handoff.receiver_view().number(),
        mode: handoff.mode.number(),
        priority: handoff.priority.number(),
        task_type: handoff.task_type.clone(),
        reason: handoff.reason,
        deadline: handoff.step_deadline.filter(|_| open).map(Into::into),
        whole_deadline: Some(handoff.whole_deadline.into()),
        create_time: Some(handoff.created_at.into()),
        update_time: Some(handoff.updated_at.into()),
        offers: handoff.offers.iter().map(offer).collect(),
        next_candidates: handoff.next_candidates.iter().map(ToString::to_string).collect(),
        transitions: handoff.steps.iter().map(|step| transition(step, &handoff.sender)).collect(),
        wanted_sections: handoff.wanted_sections.clone(),
        context_digest: handoff.context_digest.map(|digest| digest.to_vec().into()).unwrap_or_default(),
        error_code: failure.map_or(0, |failure| failure.code.number()),
        error_message: failure.map(|failure| failure.message.clone()).unwrap_or_default(),
        redrive_of_handoff_id: handoff.redrive_of.map(|id| id.to_string()).unwrap_or_default(),
        loan_timeout: handoff.loan_timeout.map(span),
        submitter_id: handoff.submitter.clone().unwrap_or_default(),
        estimated_handoff_time: handoff.estimate.map(span),
        routing: handoff
            .routing
            .map(|routing| v1::RoutingRef { run_id: routing.run.to_string(), choice_id: routing.choice.to_string() }),
        waiting_for: handoff.waiting.map_or(0, Waiting::number),
        thread_id: handoff.thread.as_ref().map(ToString::to_string).unwrap_or_default(),
        ..Default::default()
    }
}

pub(super) fn negotiation(negotiation: &Negotiation) -> v1::Negotiation {
    let (award, failure) = (negotiation.award.as_ref(), negotiation.failure.as_ref());
    let winner = negotiation.winner.as_ref().or(award.map(|award| &award.bidder)).filter(|_| failure.is_none());
    v1::Negotiation {
        negotiation_id: negotiation.id.to_string(),
        requester_id: negotiation.requester.to_string(),
        receiver_id: negotiation.receiver.clone(),
        state: negotiation.state.number(),
        task_type: negotiation.task_type.clone(),
        task_id: negotiation.task.as_ref().map(|(task, _)| task.to_string()).unwrap_or_default(),
        award_rule: negotiation.rule.map_or(0, AwardRule::number),
        offers_wanted: negotiation.offers_wanted,
        offers_deadline: Some(negotiation.offers_deadline.into()),
        decision_deadline: negotiation.decision_deadline.map(Into::into),
        bids: negotiation.threads.iter().map(|thread| bid(thread)).collect(),
        asked: u32::try_from(negotiation.threads.len()).unwrap_or(u32::MAX),
        offer_id: award.map(|award| award.offer.to_string()).unwrap_or_default(),
        winner_id: winner.map(ToString::to_string).unwrap_or_default(),
        handoff_id: award.and_then(|award| award.handoff).map(|handoff| handoff.to_string()).unwrap_or_default(),
        error_code: failure.map_or(0, |failure| failure.code.number()),
        error_message: failure.map(|failure| failure.message.clone()).unwrap_or_default(),
        create_time: Some(negotiation.created_at.into()),
        close_time: negotiation.closed_at.map(Into::into),
        update_time: Some(negotiation.updated_at.into()),
    }
}

/// The negotiation as the caller sees it. A bidder does not see the other bids.
pub(super) fn negotiation_for(negotiation: &Negotiation, caller: &Caller) -> v1::Negotiation {
    let mut shown = self::negotiation(negotiation);
    if let Caller::Agent(agent) = caller
        && *agent != negotiation.requester
    {
        shown.bids.retain(|bid| bid.agent_id == agent.as_str());
    }
    shown
}

fn bid(thread: &Thread) -> v1::NegotiationBid {
    let offer = thread.offer.as_ref();
    v1::NegotiationBid {
        agent_id: thread.agent.to_string(),
        state: thread.state.number(),
        offer_id: offer.map(|offer| offer.id.to_string()).unwrap_or_default(),
        confidence: offer.map_or(0.0, |offer| offer.confidence),
        estimated_duration: offer.and_then(|offer| offer.estimated_duration).map(span),
        cost: offer.map_or(0.0, |offer| offer.cost),
        round: thread.round,
        valid_until: offer.and_then(|offer| offer.valid_until).map(Into::into),
        offer_time: offer.map(|offer| offer.offered_at.into()),
        counter_offer_id: thread.counter.map(|id| id.to_string()).unwrap_or_default(),
    }
}

fn offer(offer: &Offer) -> v1::HandoffOffer {
    v1::HandoffOffer {
        candidate_id: offer.candidate.to_string(),
        offer_time: Some(offer.offered_at.into()),
        outcome: offer.outcome.number(),
        reject_reason: offer.reject_reason,
        reason_text: offer.reason_text.clone(),
        retry_time: offer.retry_at.map(Into::into),
        passed_over: offer.passed_over,
    }
}

fn transition(step: &Step, sender: &AgentId) -> v1::HandoffTransition {
    v1::HandoffTransition {
        transition_time: Some(step.at.into()),
        cause: step.cause.number(),
        state: step.state.number(),
        sender_view: step.sender_view.number(),
        receiver_view: step.receiver_view.number(),
        // Before its first offer a handoff may have no candidate.
        candidate_id: if step.candidate == *sender { String::new() } else { step.candidate.to_string() },
    }
}

/// A task with its result, its open question and its parts, as far as the caller may see them.
pub(super) fn shown_task(shown: &ShownTask) -> v1::Task {
    let task = &shown.record.task;
    let open_prompt = task.open_prompt().map(|prompt| v1::OpenPrompt {
        message_id: prompt.id.to_string(),
        asked_agent_id: prompt.asked.to_string(),
        prompt: shown.prompt.as_ref().and_then(|status| status.prompt.clone()),
        ask_time: Some(prompt.asked_at.into()),
    });
    if shown.is_asked_only {
        return v1::Task {
            task_id: task.id.to_string(),
            task_type: task.task_type.clone(),
            owner_id: task.owner.to_string(),
            epoch: task.epoch,
            status: task.status.number(),
            open_prompt,
            ..Default::default()
        };
    }
    let last_answer =
        task.last_answered().zip(shown.answered.as_ref()).map(|((prompt, answer), (asked, said))| v1::AnsweredPrompt {
            question: Some(v1::OpenPrompt {
                message_id: prompt.id.to_string(),
                asked_agent_id: prompt.asked.to_string(),
                prompt: asked.prompt.clone(),
                ask_time: Some(prompt.asked_at.into()),
            }),
            answer_id: answer.id.to_string(),
            answer: Some(said.clone()),
            answer_time: Some(answer.at.into()),
        });
    v1::Task {
        last_answer,
        summary: shown.creation.as_ref().map(|created| created.summary.clone()).unwrap_or_default(),
        result_json: shown.result.as_ref().map(|status| status.result_json.clone()).unwrap_or_default(),
        open_prompt,
        part_task_ids: shown.parts.iter().map(ToString::to_string).collect(),
        ..self::task(&shown.record)
    }
}

/// A task without what its messages say of it.
pub(super) fn task(record: &TaskRecord) -> v1::Task {
    let task = &record.task;
    v1::Task {
        task_id: task.id.to_string(),
        task_type: task.task_type.clone(),
        owner_id: task.owner.to_string(),
        epoch: task.epoch,
        status: task.status.number(),
        progress: task.progress,
        details: task.details.clone(),
        open_handoff_id: task.open_handoff.map(|id| id.to_string()).unwrap_or_default(),
        hops: task.hops.iter().map(hop).collect(),
        delegator_ids: task.loans.iter().map(|loan| loan.delegator.to_string()).collect(),
        loans: task.loans.iter().map(loan).collect(),
        silence_timeout: task.silence_timeout().map(span),
        seizures: task.seizures.iter().map(seizure).collect(),
        unrecorded_mail_count: record.mail_unrecorded,
        custody_length: record.custody.length,
        custody_hash: record.custody.hash.to_vec().into(),
        create_time: Some(task.created_at.into()),
        update_time: Some(task.updated_at.into()),
        parent_task_id: task.parent.as_ref().map(ToString::to_string).unwrap_or_default(),
        conversation_id: task.conversation.as_ref().map(ToString::to_string).unwrap_or_default(),
        ..Default::default()
    }
}

fn loan(loan: &Loan) -> v1::TaskLoan {
    v1::TaskLoan {
        delegator_id: loan.delegator.to_string(),
        handoff_id: loan.handoff.to_string(),
        due_time: loan.due.map(Into::into),
        latest_due_time: loan.due_max.map(Into::into),
    }
}

fn seizure(seizure: &Seizure) -> v1::TaskSeizure {
    v1::TaskSeizure {
        owner_id: seizure.from.to_string(),
        epoch: seizure.epoch,
        handoff_id: seizure.handoff.to_string(),
    }
}

fn hop(hop: &Hop) -> v1::TaskHop {
    v1::TaskHop {
        handoff_id: hop.handoff.to_string(),
        sender_id: hop.sender.to_string(),
        receiver_id: hop.receiver.to_string(),
        epoch: hop.epoch,
    }
}

/// The presence of an agent.
pub(super) const fn presence(state: PresenceState) -> v1::Presence {
    match state {
        PresenceState::Alive => v1::Presence::Alive,
        PresenceState::Suspect => v1::Presence::Suspect,
        PresenceState::Gone => v1::Presence::Gone,
        PresenceState::Unseen => v1::Presence::Unseen,
    }
}

/// One factor of a score.
pub(super) fn factor(factor: Factor) -> v1::MatchFactor {
    let Factor { name, value, weight, text } = factor;
    v1::MatchFactor { name: name.to_owned(), value, weight, text }
}

/// The load of an agent.
pub(super) fn load(busy: Busy) -> v1::AgentLoad {
    v1::AgentLoad {
        in_use: busy.load.in_use,
        capacity: busy.load.capacity,
        owned_tasks: busy.owned,
        open_offers: busy.offers,
        is_full: busy.load.is_full(),
    }
}

/// The most tasks of a process that the broker names.
const PROCESS_TASKS_MAX: usize = 20;

/// A process as this caller may see it.
pub(super) fn process(view: View<'_>, process: &RunningProcess) -> v1::Process {
    let listed = process.works_on.as_deref().unwrap_or_default();
    // A process may list any id, also that of a task which the caller may not see, or which does not exist.
    let seen = listed.iter().take(PROCESS_TASKS_MAX).filter(|task| view.task(task).is_ok());
    v1::Process {
        instance_id: process.instance.map(|instance| instance.to_string()).unwrap_or_default(),
        connect_time: Some(process.since.into()),
        lists_work: process.works_on.is_some(),
        task_ids: seen.map(ToString::to_string).collect(),
        task_count: u32::try_from(listed.len()).unwrap_or(u32::MAX),
    }
}

pub(super) fn agent(directory: &Directory, entry: &Arc<Entry>, now: Timestamp) -> v1::Agent {
    let id = entry.id();
    // The coordinator is a part of the broker, and has no session to show that it is there.
    let is_broker = id == AgentId::broker() || id.is_coordinator();
    let presence = directory.presence(&id);
    let is_there = match is_broker {
        true => v1::Presence::Alive,
        false => self::presence(directory.presence_state(&id, now)),
    };
    let statistics = directory.statistics(&id, now);
    v1::Agent {
        card: Some(entry.record.card.clone()),
        presence: is_there.into(),
        session_count: presence.signs.sessions,
        last_heartbeat: presence.heartbeat.as_ref().map(|(heartbeat, _)| heartbeat.clone()),
        last_heartbeat_time: presence.heartbeat.as_ref().map(|(_, at)| (*at).into()),
        create_time: Some(entry.record.created_at.into()).filter(|_| !is_broker),
        update_time: Some(entry.record.updated_at.into()).filter(|_| !is_broker),
        load: Some(load(directory.busy(entry, now))).filter(|_| !is_broker),
        statistics: (statistics.offers > 0).then(|| v1::AgentStatistics {
            offers: statistics.offers,
            completed: statistics.completed,
            median_decision_time: statistics.median_decision.map(span),
        }),
        etag: if is_broker { String::new() } else { entry.etag() },
        deregister_time: entry.record.deregistered_at.map(Into::into),
        mailbox: None,
        usage: None,
    }
}

pub(super) fn dead_letter(dead: &DeadLetterRecord) -> v1::DeadLetter {
    let letter = dead.letter.as_ref();
    let settlement = dead.settlement.as_ref();
    v1::DeadLetter {
        dead_letter_id: dead.number.to_string(),
        reason: dead.reason.number(),
        reason_text: dead.reason_text.clone(),
        state: dead.state.number(),
        park_time: Some(dead.parked_at.into()),
        agent_id: dead.agent.to_string(),
        message_id: dead.summary.message_id.clone(),
        sender_id: dead.summary.sender_id.clone(),
        message_type: dead.summary.message_type,
        task_id: dead.summary.task_id.clone(),
        handoff_id: dead.handoff.map(|id| id.to_string()).unwrap_or_default(),
        sequence: match dead.envelope {
            DeadEnvelope::Accepted(sequence) => sequence,
            DeadEnvelope::Refused(_) => 0,
        },
        traceparent: dead.summary.traceparent.clone(),
        attempts: dead.attempts.iter().map(delivery_attempt).collect(),
        handout_count: letter.map_or(0, |letter| letter.handouts),
        failure_count: letter.map_or(0, |letter| letter.failures),
        settle_time: settlement.map(|settlement| settlement.at.into()),
        settle_text: settlement.map(|settlement| settlement.text.clone()).unwrap_or_default(),
        redriven_to_agent_id: settlement
            .and_then(|settlement| settlement.redriven_to.as_ref())
            .map(ToString::to_string)
            .unwrap_or_default(),
        redriven_handoff_id: settlement
            .and_then(|settlement| settlement.redriven_handoff)
            .map(|id| id.to_string())
            .unwrap_or_default(),
        envelope_bytes: bytes::Bytes::new(),
        context_digest: bytes::Bytes::new(),
    }
}

fn delivery_attempt((agent, attempt): &(AgentId, Attempt)) -> v1::DeliveryAttempt {
    v1::DeliveryAttempt {
        handout_time: Some(attempt.handed_out_at.into()),
        end_time: Some(attempt.ended_at.into()),
        end: attempt.end.number(),
        reason_text: attempt.text.clone(),
        agent_id: agent.to_string(),
    }
}

pub(super) fn gap((first_number, last_number): (u64, u64)) -> v1::WatchGap {
    v1::WatchGap { first_number, last_number }
}

#[cfg(test)]
mod tests {
    use crate::{
        domain::{
            MessageType,
            dead_letter::{DeadState, ParkReason},
            handoff::{
                Acked, Cause, Mode, OfferOutcome, Priority, ReceiverView, SenderView, State,
                TaskStatus as DomainStatus, Waiting,
            },
            mailbox::AttemptEnd,
            plan::{DataFlowCheck, Mode as PlanMode, PlanState, Severity as PlanSeverity, SubtaskState},
            routing::RunState,
        },
        proto::v1,
    };

    /// Asserts, for each enum, that every number of the schema has a value of the same name.
    macro_rules! assert_same_numbers {
        ($domain:ident, $schema:ident, $prefix:literal, except: [$($except:ident),*]) => {
            for number in 1..100 {
                let of_schema = v1::$schema::try_from(number).ok();
                if [$(Some(v1::$schema::$except)),*].contains(&of_schema) { continue; }
                let ours = $domain::from_number(number).map(|value| format!("{value:?}").to_uppercase());
                let theirs = of_schema.map(|value| value.as_str_name().replace($prefix, "").replace('_', ""));
                assert_eq!(ours, theirs, "{} {number}", $prefix);
            }
        };
    }

    #[test]
    fn the_numbers_of_enums_are_those_of_the_schema() {
        assert_same_numbers!(State, HandoffState, "HANDOFF_STATE_", except: []);
        assert_same_numbers!(DomainStatus, TaskStatus, "TASK_STATUS_", except: []);
        assert_same_numbers!(Mode, HandoffMode, "HANDOFF_MODE_", except: []);
        assert_same_numbers!(Priority, Priority, "PRIORITY_", except: []);
        assert_same_numbers!(OfferOutcome, OfferOutcome, "OFFER_OUTCOME_", except: []);
        assert_same_numbers!(SenderView, SenderView, "SENDER_VIEW_", except: [HandoffInitiated]);
        assert_same_numbers!(ReceiverView, ReceiverView, "RECEIVER_VIEW_", except: []);
        assert_same_numbers!(Cause, HandoffCause, "HANDOFF_CAUSE_", except: []);
        assert_same_numbers!(Waiting, WaitingFor, "WAITING_FOR_", except: []);
        assert_same_numbers!(RunState, RunState, "RUN_STATE_", except: []);
        assert_same_numbers!(PlanSeverity, ProblemSeverity, "PROBLEM_SEVERITY_", except: []);
        assert_same_numbers!(PlanMode, PlanMode, "PLAN_MODE_", except: []);
        assert_same_numbers!(PlanState, PlanState, "PLAN_STATE_", except: []);
        assert_same_numbers!(SubtaskState, SubtaskState, "SUBTASK_STATE_", except: []);
        assert_same_numbers!(DataFlowCheck, DataFlowCheck, "DATA_FLOW_CHECK_", except: []);
        assert_same_numbers!(Acked, HandoffMail, "HANDOFF_MAIL_", except: []);
        assert_same_numbers!(ParkReason, DeadLetterReason, "DEAD_LETTER_REASON_", except: []);
        assert_same_numbers!(DeadState, DeadLetterState, "DEAD_LETTER_STATE_", except: []);
        assert_same_numbers!(AttemptEnd, DeliveryEnd, "DELIVERY_END_", except: []);
        assert_same_numbers!(MessageType, MessageType, "MESSAGE_TYPE_", except: []);
    }

    #[test]
    fn policies_name_message_types_as_the_schema_does() {
        for kind in (1..).map_while(MessageType::from_number) {
            let of_schema = v1::MessageType::try_from(kind.number()).unwrap().as_str_name();
            assert_eq!(Some(kind.name()), of_schema.strip_prefix("MESSAGE_TYPE_"));
        }
    }
}
