//! `baton handoff request`, and the wait for its end.

use std::{path::PathBuf, time::Duration};

use clap::{Args, ValueEnum};

use super::{
    Failure,
    connection::{ConnectionArgs, IdentityArgs},
    context, duration,
    handoff::{as_agent, send, span},
    handoff_show,
    output::{self, Output},
    task,
    task_watch::status_update,
};
use baton_client::{
    ids::{FairnessKey, IdSource as _, SystemIds, TaskId, ThreadId},
    proto::v1::{self, MessageType, watch_task_response::Update},
    time::{Clock as _, SystemClock},
    {About, Client, Composer},
};
use baton_protocol::escape;

/// Request a handoff: ask another agent to take a task.
///
/// If no task has this id, the request also creates it, owned by the requesting agent at epoch 1.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  baton handoff request --id alice --key alice.pem --to bob --summary 'crash on start'
  baton handoff request --id alice --key alice.pem --to type:expert --task ticket-7 --epoch 2 --priority high
  baton handoff request --id alice --key alice.pem --to bob --delegate --loan-timeout 2h --accept-timeout 10s
  baton handoff request --id alice --key alice.pem --to bob --context context.json --wait")]
pub(super) struct RequestArgs {
    #[command(flatten)]
    identity: IdentityArgs,
    /// The receiver: an agent's id, or type:NAME for any agent of that type.
    #[arg(long, value_name = "RECEIVER")]
    to: String,
    /// The task's id. Default: a new random id.
    #[arg(long, value_name = "TASK")]
    task: Option<TaskId>,
    /// The task's current epoch, as the latest receipt or `baton task show` states it.
    #[arg(long, default_value_t = 1)]
    epoch: u64,
    /// The kind of work. Policies can depend on it.
    #[arg(long, default_value = "task", value_name = "TYPE")]
    task_type: String,
    /// A short summary of the task for the receiver.
    #[arg(long, default_value = "", hide_default_value = true)]
    summary: String,
    /// The reason of the handoff. Shown to the receiver.
    #[arg(long, value_name = "REASON")]
    reason: Option<Reason>,
    /// The reason in words, for people.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    reason_text: String,
    /// The type that every candidate must have. Default: any type.
    #[arg(long, value_name = "TYPE")]
    desired_type: Option<String>,
    /// A skill that every candidate must have. May be repeated.
    #[arg(long = "skill", value_name = "SKILL")]
    skills: Vec<String>,
    /// The priority of delivery.
    #[arg(long, default_value = "medium")]
    priority: Priority,
    /// The part of the sender's requests that this one belongs to, for example a customer. The parts take turns at the
    /// receiver.
    #[arg(long, value_name = "KEY")]
    fairness_key: Option<FairnessKey>,
    /// An agent, or type:NAME, to ask if the receiver does not take the task. May be repeated; asked in this order.
    #[arg(long = "fallback", value_name = "RECEIVER")]
    fallbacks: Vec<String>,
    #[command(flatten)]
    loop_limits: LoopLimitArgs,
    /// Delegate the task instead of transferring it: it returns with the delegate's final status, or by a recall.
    #[arg(long)]
    delegate: bool,
    /// The time after which the broker recalls a delegated task, from 1s to 30d. It starts with the completion. Default:
    /// no timeout.
    #[arg(long, value_name = "TIME", value_parser = duration::parse, requires = "delegate")]
    loan_timeout: Option<Duration>,
    /// The longest time of the loan that its delegate can ask for by `extend_by`, up to 30d. Default: the loan
    /// cannot be extended.
    #[arg(long, value_name = "TIME", value_parser = duration::parse, requires = "loan_timeout")]
    loan_timeout_max: Option<Duration>,
    /// A thread in which the sender takes part. When the delegation ends, the broker appends one message to its history.
    #[arg(long, value_name = "THREAD", requires = "delegate")]
    thread: Option<ThreadId>,
    /// The time without a sign of work after which the task counts as abandoned, from 5s to 1d. A delegated task then
    /// returns. Default: silence is not judged.
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    silence_timeout: Option<Duration>,
    /// Return an abandoned task to the sender. Needs --silence-timeout. Default: the sender is told.
    #[arg(long, requires = "silence_timeout", conflicts_with = "delegate")]
    return_when_abandoned: bool,
    /// The task that the new task is a part of.
    #[arg(long, value_name = "TASK")]
    parent: Option<TaskId>,
    /// The outer conversation that the new task belongs to, for example the id of a chat. Lists of tasks filter by it.
    #[arg(long, value_name = "CONVERSATION")]
    conversation: Option<String>,
    /// The time from now before which no agent is asked, at most 30d. The timeouts begin then. Default: none.
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    after: Option<Duration>,
    /// Wait for an agent that is not registered yet: the receiver, or the first of its type.
    #[arg(long)]
    wait_for_agent: bool,
    /// A JSON file with one object, the context: each member becomes a section. The command waits for the accept and
    /// sends it. Default: the context is sent with `baton handoff context`.
    #[arg(long, value_name = "FILE")]
    context: Option<PathBuf>,
    /// A section of the context that only its parties may see. May be repeated.
    #[arg(long = "secret", value_name = "SECTION", requires = "context")]
    secrets: Vec<String>,
    /// Wait until the handoff has ended, and print it. With --delegate: wait until the task has returned, and print the
    /// task. Exit code 1 if the task was not taken, or was not completed.
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    timeouts: TimeoutArgs,
}

/// The timeouts of a handoff.
#[derive(Debug, Args)]
#[command(next_help_heading = "Timeouts")]
struct TimeoutArgs {
    /// The time for the candidate's decision, from the ack of the request. Default: the broker's, 30s.
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    accept_timeout: Option<Duration>,
    /// The time for the context, from the accept. Default: the broker's, 60s.
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    context_timeout: Option<Duration>,
    /// The time for the completion, from the context. Default: the broker's, 120s.
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    complete_timeout: Option<Duration>,
    /// The time for the whole handoff, over all candidates. Default: the broker's, 360s.
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    whole_timeout: Option<Duration>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Priority {
    Low,
    Medium,
    High,
    Critical,
}

/// The limits of a task's handoffs.
#[derive(Debug, Args)]
pub(super) struct LoopLimitArgs {
    /// The most completed handoffs of the task. Only a number below the broker's limit has an effect.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    max_handoffs: Option<u32>,
    /// The most completed handoffs of the task from one agent to the same other one. Only a number below the broker's
    /// limit has an effect.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    max_handoffs_per_pair: Option<u32>,
}

impl LoopLimitArgs {
    /// `None`: no flag is given.
    pub(super) fn to_proto(&self) -> Option<v1::LoopLimits> {
        let Self { max_handoffs, max_handoffs_per_pair } = *self;
        (max_handoffs.is_some() || max_handoffs_per_pair.is_some()).then(|| v1::LoopLimits {
            max_handoffs: max_handoffs.unwrap_or_default(),
            max_handoffs_per_pair: max_handoffs_per_pair.unwrap_or_default(),
        })
    }
}

pub(super) async fn run(args: RequestArgs, connection: &ConnectionArgs, output: &Output) -> Result<(), Failure> {
    // Read first: a context that cannot be read must not leave a request without one.
    let context = args.context.as_ref().map(|path| context::of_file(path, None, &args.secrets)).transpose()?;
    let (client, composer) = as_agent(&args.identity, connection).await?;
    let mode = if args.delegate { v1::HandoffMode::Delegate } else { v1::HandoffMode::Transfer };
    let payload = v1::HandoffRequest {
        task_type: args.task_type,
        reason: args.reason.map_or(v1::HandoffReason::Unspecified, Reason::to_proto).into(),
        reason_text: args.reason_text,
        desired_agent_type: args.desired_type.unwrap_or_default(),
        required_skills: args.skills,
        loop_limits: args.loop_limits.to_proto(),
        priority: args.priority.to_proto().into(),
        fairness_key: args.fairness_key.map(|key| key.to_string()).unwrap_or_default(),
        initial_context_summary: args.summary,
        fallback_candidates: args.fallbacks,
        mode: mode.into(),
        loan_timeout: span(args.loan_timeout)?,
        loan_timeout_max: span(args.loan_timeout_max)?,
        silence_timeout: span(args.silence_timeout)?,
        return_when_abandoned: args.return_when_abandoned,
        timeouts: Some(args.timeouts.to_proto()?),
        parent_task_id: args.parent.map(|parent| parent.to_string()).unwrap_or_default(),
        conversation_id: args.conversation.unwrap_or_default(),
        deliver_after: args.after.map(|span| SystemClock.now().plus(span).into()),
        wait_for_agent: args.wait_for_agent,
        thread_id: args.thread.map(|thread| thread.to_string()).unwrap_or_default(),
        ..Default::default()
    };
    let task = args.task.map_or_else(|| SystemIds.message_id(SystemClock.now()).to_string(), |task| task.to_string());
    let about = About::task(&task, args.epoch);
    // The broker does not know the handoff before its request is stored, so only the sender can show this view.
    let view = output::short(v1::SenderView::HandoffInitiated.as_str_name(), "SENDER_VIEW_");
    tell!("{view}: {} asks {} to take task {}", composer.identity.agent, escape::line(&args.to), escape::line(&task));
    if context.is_none() && !args.wait {
        return send(&client, &composer, &args.to, MessageType::HandoffRequest, &about, &payload, output).await;
    }
    let receipt = client.send(composer.encode(&args.to, MessageType::HandoffRequest, &about, &payload)).await?;
    tell!("handoff {} of task {} is requested", receipt.handoff_id, escape::line(&task));
    let waiting = Waiting { client: &client, composer: &composer, handoff_id: &receipt.handoff_id };
    let until = if args.wait { Until::Ended } else { Until::ContextSent };
    let handoff = waiting.for_handoff(context, until).await?;
    if args.wait && args.delegate && handoff.state() == v1::HandoffState::Completed {
        return waiting.for_return(&handoff, output).await;
    }
    handoff_show::show(&handoff, output)?;
    check_taken(&handoff)
}

/// When the wait for a handoff is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Until {
    ContextSent,
    Ended,
}

/// A handoff that this command has requested.
struct Waiting<'a> {
    client: &'a Client,
    composer: &'a Composer,
    handoff_id: &'a str,
}

impl Waiting<'_> {
    /// Tells the steps of the handoff, and sends the context after the accept. Returns the handoff as it is then.
    async fn for_handoff(
        &self,
        context: Option<v1::TaskContextTransfer>,
        until: Until,
    ) -> Result<v1::Handoff, Failure> {
        let request = v1::WatchHandoffRequest { handoff_id: self.handoff_id.to_owned() };
        let mut updates = super::watching::open(self.client, request).await?;
        let (mut handoff, mut told) = (v1::Handoff::default(), 0);
        while let Some(update) = updates.next().await? {
            handoff = update.handoff.unwrap_or_default();
            handoff.transitions.iter().skip(told).for_each(tell_step);
            told = handoff.transitions.len();
            // Only ACCEPTED waits for the context, so it is sent once, also after an interruption of the watch.
            if let (v1::HandoffState::Accepted, Some(context)) = (handoff.state(), &context) {
                let about = About::handoff(&handoff.task_id, handoff.epoch, &handoff.handoff_id);
                let (to, kind) = (&handoff.candidate_id, MessageType::TaskContextTransfer);
                self.client.send(self.composer.encode(to, kind, &about, context)).await?;
                if until == Until::ContextSent {
                    let id = v1::GetHandoffRequest { handoff_id: self.handoff_id.to_owned(), ..Default::default() };
                    let answer = self.client.answer(self.client.handoffs().get_handoff(id).await)?;
                    return Ok(answer.handoff.unwrap_or_default());
                }
            }
        }
        Ok(handoff)
    }

    /// Waits until this agent owns the lent task again, or the task has ended, and prints the task.
    async fn for_return(&self, handoff: &v1::Handoff, output: &Output) -> Result<(), Failure> {
        let task_id = handoff.task_id.clone();
        let request = v1::WatchTaskRequest { task_id: task_id.clone(), after_number: 0 };
        let mut updates = super::watching::open(self.client, request).await?;
        let mut reported = None;
        while let Some(update) = updates.next().await? {
            let Some(Update::Entry(entry)) = update.update else { continue };
            let event = entry.entry.clone().unwrap_or_default();
            if event.owner_id == handoff.sender_id && event.epoch > handoff.epoch {
                // A final status of the delegate ends its loan in the same entry; a recall or a timeout has none.
                reported = status_update(&entry).map(|update| update.status());
                break;
            }
        }
        let request = v1::GetTaskRequest { task_id: task_id.clone() };
        let task = self.client.answer(self.client.tasks().get_task(request).await)?.task.unwrap_or_default();
        output.one(&task, task::lines)?;
        match reported {
            Some(v1::TaskStatus::Completed) => Ok(()),
            Some(status) => {
                let status = output::short(status.as_str_name(), "TASK_STATUS_");
                Err(Failure::failed(format!("task {task_id} has returned with the status {status}")))
            }
            None => Err(Failure::failed(format!("task {task_id} has come back without a result"))),
        }
    }
}

/// Fails with the broker's code if the handoff has ended and no agent has taken the task.
fn check_taken(handoff: &v1::Handoff) -> Result<(), Failure> {
    let state = match handoff.state() {
        v1::HandoffState::Rejected | v1::HandoffState::Failed | v1::HandoffState::Cancelled => handoff.state(),
        _ => return Ok(()),
    };
    let state = output::short(state.as_str_name(), "HANDOFF_STATE_");
    let mut problem = format!("handoff {} is {state}, and {} keeps the task", handoff.handoff_id, handoff.sender_id);
    if !handoff.error_message.is_empty() {
        problem.push_str(&format!(": {}", output::line(&handoff.error_message)));
    }
    let failure = Failure::failed(problem);
    Err(match handoff.error_code() {
        v1::ErrorCode::Unspecified => failure,
        code => failure.named(output::short(code.as_str_name(), "ERROR_CODE_")),
    })
}

fn tell_step(step: &v1::HandoffTransition) {
    let state = output::short(step.state().as_str_name(), "HANDOFF_STATE_");
    let cause = output::short(step.cause().as_str_name(), "HANDOFF_CAUSE_");
    let candidate = match step.candidate_id.as_str() {
        "" => String::new(),
        candidate => format!(", candidate {candidate}"),
    };
    tell!("{} {cause}{candidate}: {state}", output::moment(step.transition_time.as_ref()));
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Reason {
    Skill,
    Load,
    Escalation,
    Workflow,
    UserRequest,
    Shutdown,
    Permission,
    Other,
}

impl Reason {
    fn to_proto(self) -> v1::HandoffReason {
        match self {
            Self::Skill => v1::HandoffReason::Skill,
            Self::Load => v1::HandoffReason::Load,
            Self::Escalation => v1::HandoffReason::Escalation,
            Self::Workflow => v1::HandoffReason::Workflow,
            Self::UserRequest => v1::HandoffReason::UserRequest,
            Self::Shutdown => v1::HandoffReason::Shutdown,
            Self::Permission => v1::HandoffReason::Permission,
            Self::Other => v1::HandoffReason::Other,
        }
    }
}

impl TimeoutArgs {
    fn to_proto(&self) -> Result<v1::HandoffTimeouts, Failure> {
        Ok(v1::HandoffTimeouts {
            accept: span(self.accept_timeout)?,
            context: span(self.context_timeout)?,
            complete: span(self.complete_timeout)?,
            whole: span(self.whole_timeout)?,
        })
    }
}

impl Priority {
    fn to_proto(self) -> v1::Priority {
        match self {
            Self::Low => v1::Priority::Low,
            Self::Medium => v1::Priority::Medium,
            Self::High => v1::Priority::High,
            Self::Critical => v1::Priority::Critical,
        }
    }
}
