//! `baton handoff`: request, answer, show. The list and the watch are in files of their own.

use std::{
    io::{self, BufRead as _, IsTerminal as _},
    time::Duration,
};

use clap::{Args, Subcommand, ValueEnum};
use prost::{Message, Name};

use super::{
    Failure,
    connection::{ConnectionArgs, IdentityArgs, OptionalIdentityArgs},
    context::{ContextArgs, Want},
    duration, handoffs_list, handoffs_watch,
    output::{self, Output},
    resolve::Prefix,
};
use baton_client::{
    ids::{AgentId, FairnessKey, IdSource as _, MessageId, SystemIds, TaskId},
    proto::v1::{self, MessageType, context_section::Content},
    time::{Clock as _, SystemClock},
    {About, Client, Composer, Trust, completion_of},
};
use baton_protocol::escape;

#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  baton handoff request --id alice --key alice.pem --to bob --task crash-7
  baton handoff accept crash-7 --id bob --key bob.pem
  baton handoff context crash-7 --id alice --key alice.pem --file context.json
  baton handoff complete crash-7 --id bob --key bob.pem
  baton handoff show crash-7")]
pub(super) enum HandoffCommand {
    Request(RequestArgs),
    /// Accept a handoff that is offered to this agent. The sender then sends the context.
    #[command(after_help = "Examples:
  baton handoff accept crash-7 --id bob --key bob.pem
  baton handoff accept crash-7 --id bob --key bob.pem --want goals --want history_log:last=5")]
    Accept {
        #[command(flatten)]
        answer: AnswerArgs,
        /// The time that the takeover will take. A longer time than the timeout of the completion replaces it.
        #[arg(long, value_name = "TIME", value_parser = duration::parse)]
        estimate: Option<Duration>,
        /// A section of the context that this agent wants: NAME, NAME:last=NUMBER, NAME:without-tool-calls or
        /// NAME:summary. May be repeated. Default: all sections.
        #[arg(long = "want", value_name = "SECTION")]
        wants: Vec<Want>,
    },
    /// Reject a handoff that is offered to this agent. The broker then asks the next candidate.
    #[command(after_help = "Examples:
  baton handoff reject crash-7 --id bob --key bob.pem --reason overloaded --suggest carol")]
    Reject {
        #[command(flatten)]
        answer: AnswerArgs,
        /// The reason.
        #[arg(long, default_value = "other", value_name = "REASON")]
        reason: Reason,
        /// An explanation for people.
        #[arg(long, default_value = "", hide_default_value = true)]
        text: String,
        /// An agent that may be better suited. May be repeated.
        #[arg(long = "suggest", value_name = "AGENT")]
        suggestions: Vec<AgentId>,
        /// The time after which the broker may ask this agent once more, if no other candidate is left.
        #[arg(long, value_name = "TIME", value_parser = duration::parse)]
        retry_after: Option<Duration>,
    },
    /// Send the context of an accepted handoff.
    #[command(after_help = "Examples:
  echo '{\"collected_data\": {\"log\": [\"panicked at sync.rs:118\"]}}' > context.json
  baton handoff context crash-7 --id alice --key alice.pem --file context.json")]
    Context {
        #[command(flatten)]
        answer: AnswerArgs,
        #[command(flatten)]
        context: ContextArgs,
    },
    /// Complete a handoff. This agent then owns the task.
    ///
    /// Fetches the context, verifies the signature of the owner and the digest, and shows the context on stderr. On a
    /// terminal it asks before it signs; elsewhere it needs --yes.
    #[command(after_help = "Examples:
  baton handoff complete crash-7 --id bob --key bob.pem
  baton handoff complete crash-7 --id bob --key bob.pem --yes
  baton handoff complete crash-7 --id bob --key bob.pem --failed --details 'the log is cut off'")]
    Complete {
        #[command(flatten)]
        answer: AnswerArgs,
        /// Take the task over without a question.
        #[arg(long)]
        yes: bool,
        /// Report that the task could not be taken over. The sender keeps it.
        #[arg(long)]
        failed: bool,
        /// An explanation for people, for example what failed.
        #[arg(long, default_value = "", hide_default_value = true)]
        details: String,
    },
    /// Cancel a handoff that this agent requested.
    #[command(after_help = "Examples:
  baton handoff cancel crash-7 --id alice --key alice.pem")]
    Cancel(AnswerArgs),
    List(handoffs_list::ListArgs),
    /// Show one handoff: its state, the views of both sides, each step and the deadline.
    #[command(after_help = "Examples:
  baton handoff show crash-7
  baton handoff show 0198c0de -o json")]
    Show {
        /// The handoff's id, or a unique prefix of it, or a task id for that task's latest handoff.
        id: Prefix,
        #[command(flatten)]
        identity: OptionalIdentityArgs,
    },
    Watch(handoffs_watch::WatchArgs),
}

/// Request a handoff: ask another agent to take a task.
///
/// If no task has this id, the request also creates it, owned by the requesting agent at epoch 1.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  baton handoff request --id alice --key alice.pem --to bob --summary 'crash on start'
  baton handoff request --id alice --key alice.pem --to type:expert --task ticket-7 --epoch 2 --priority high
  baton handoff request --id alice --key alice.pem --to bob --delegate --loan-timeout 2h --accept-timeout 10s")]
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
    /// The priority of delivery.
    #[arg(long, default_value = "medium")]
    priority: Priority,
    /// The part of the sender's requests that this one belongs to, for example a customer. The parts take turns at the
    /// receiver.
    #[arg(long, value_name = "KEY")]
    fairness_key: Option<FairnessKey>,
    /// An agent to ask if the receiver does not take the task. May be repeated; asked in this order.
    #[arg(long = "fallback", value_name = "AGENT")]
    fallbacks: Vec<AgentId>,
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
    /// The time without a sign of work after which the task counts as abandoned, from 5s to 1d. A delegated task then
    /// returns. Default: silence is not judged.
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    silence_timeout: Option<Duration>,
    /// Whether an abandoned task returns to the sender.
    #[arg(long, requires = "silence_timeout", conflicts_with = "delegate")]
    return_when_abandoned: bool,
    /// The task that the new task is a part of.
    #[arg(long, value_name = "TASK")]
    parent: Option<TaskId>,
    /// The time from now before which no agent is asked, at most 30d. The timeouts begin then. Default: none.
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    after: Option<Duration>,
    /// Wait for an agent that is not registered yet: the receiver, or the first of its type.
    #[arg(long)]
    wait_for_agent: bool,
    #[command(flatten)]
    timeouts: TimeoutArgs,
}

/// The timeouts of a handoff.
#[derive(Debug, Args)]
#[command(next_help_heading = "Timeouts")]
pub(super) struct TimeoutArgs {
    /// The time for the candidate's decision, from the delivery of the request. Default: the broker's, 30s.
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

/// The handoff and the agent that answers.
#[derive(Debug, Args)]
pub(super) struct AnswerArgs {
    /// The handoff's id, the id of its task, or a prefix of either that is unique among the agent's handoffs.
    handoff: Prefix,
    #[command(flatten)]
    identity: IdentityArgs,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum Priority {
    Low,
    Medium,
    High,
    Critical,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum Reason {
    NoSkill,
    Overloaded,
    NoPermission,
    WrongTaskType,
    Shutdown,
    TooLittleTime,
    Other,
}

pub(super) async fn run(command: HandoffCommand, connection: &ConnectionArgs, output: &Output) -> Result<(), Failure> {
    match command {
        HandoffCommand::Request(args) => request(args, connection, output).await,
        HandoffCommand::Accept { answer: args, estimate, wants } => {
            let payload = v1::HandoffAccept {
                estimated_handoff_time: span(estimate)?,
                wishes: wants.into_iter().map(Into::into).collect(),
                ..Default::default()
            };
            answer(&args, connection, output, MessageType::HandoffAccept, |_| payload).await
        }
        HandoffCommand::Reject { answer: args, reason, text, suggestions, retry_after } => {
            let payload = v1::HandoffReject {
                reason: reason.to_proto().into(),
                reason_text: text,
                retry_after: span(retry_after)?,
                alternative_agent_suggestions: suggestions.iter().map(ToString::to_string).collect(),
            };
            answer(&args, connection, output, MessageType::HandoffReject, |_| payload).await
        }
        HandoffCommand::Context { answer: args, context } => {
            let payload = context.read()?;
            answer(&args, connection, output, MessageType::TaskContextTransfer, |_| payload).await
        }
        HandoffCommand::Complete { answer: args, failed: true, details, yes: _ } => {
            let payload =
                v1::HandoffComplete { outcome: v1::HandoffOutcome::Failure.into(), details, ..Default::default() };
            answer(&args, connection, output, MessageType::HandoffComplete, |_| payload).await
        }
        HandoffCommand::Complete { answer: args, failed: false, details, yes } => {
            complete(&args, (&details, yes), connection, output).await
        }
        HandoffCommand::Cancel(args) => {
            let payload = v1::HandoffCancel::default();
            answer(&args, connection, output, MessageType::HandoffCancel, |_| payload).await
        }
        HandoffCommand::List(args) => handoffs_list::run(args, connection, output).await,
        HandoffCommand::Show { id, identity } => {
            let client = identity.client(connection).await?;
            let handoff = get(&client, &id.handoff(&client).await?).await?;
            show(&handoff, output)
        }
        HandoffCommand::Watch(args) => handoffs_watch::run(args, connection, output).await,
    }
}

async fn request(args: RequestArgs, connection: &ConnectionArgs, output: &Output) -> Result<(), Failure> {
    let (client, composer) = as_agent(&args.identity, connection).await?;
    let mode = if args.delegate { v1::HandoffMode::Delegate } else { v1::HandoffMode::Transfer };
    let payload = v1::HandoffRequest {
        task_type: args.task_type,
        priority: args.priority.to_proto().into(),
        fairness_key: args.fairness_key.map(|key| key.to_string()).unwrap_or_default(),
        initial_context_summary: args.summary,
        fallback_candidates: args.fallbacks.iter().map(ToString::to_string).collect(),
        mode: mode.into(),
        loan_timeout: span(args.loan_timeout)?,
        loan_timeout_max: span(args.loan_timeout_max)?,
        silence_timeout: span(args.silence_timeout)?,
        return_when_abandoned: args.return_when_abandoned,
        timeouts: Some(args.timeouts.to_proto()?),
        parent_task_id: args.parent.map(|parent| parent.to_string()).unwrap_or_default(),
        deliver_after: args.after.map(|span| SystemClock.now().plus(span).into()),
        wait_for_agent: args.wait_for_agent,
        ..Default::default()
    };
    let task = args.task.map_or_else(|| SystemIds.message_id(SystemClock.now()).to_string(), |task| task.to_string());
    let about = About::task(&task, args.epoch);
    // The broker does not know the handoff before its request is stored, so only the sender can show this view.
    let view = output::short(v1::SenderView::HandoffInitiated.as_str_name(), "SENDER_VIEW_");
    tell!("{view}: {} asks {} to take task {}", composer.identity.agent, escape::line(&args.to), escape::line(&task));
    send(&client, &composer, &args.to, MessageType::HandoffRequest, &about, &payload, output).await
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

pub(super) fn span(span: Option<Duration>) -> Result<Option<prost_types::Duration>, Failure> {
    let to_proto = |span: Duration| {
        prost_types::Duration::try_from(span).map_err(|_| Failure::usage(format!("{span:?} is too long a time")))
    };
    span.map(to_proto).transpose()
}

/// Sends an answer to the other side of a handoff.
async fn answer<M: Message + Name>(
    args: &AnswerArgs,
    connection: &ConnectionArgs,
    output: &Output,
    kind: MessageType,
    payload: impl FnOnce(&v1::Handoff) -> M,
) -> Result<(), Failure> {
    let (client, composer) = as_agent(&args.identity, connection).await?;
    let handoff = get(&client, &args.handoff.handoff(&client).await?).await?;
    // The receiver is the other side of the handoff, else the broker refuses the message (SPEC 2).
    let to = match kind {
        MessageType::HandoffCancel | MessageType::TaskContextTransfer => &handoff.candidate_id,
        _ => &handoff.sender_id,
    };
    let about = About::handoff(&handoff.task_id, handoff.epoch, &handoff.handoff_id);
    send(&client, &composer, to, kind, &about, &payload(&handoff), output).await
}

/// Takes a task over: verifies its context, shows it, and asks before it signs.
async fn complete(
    args: &AnswerArgs,
    (details, yes): (&str, bool),
    connection: &ConnectionArgs,
    output: &Output,
) -> Result<(), Failure> {
    if !yes && !io::stdin().is_terminal() {
        return Err(Failure::usage("without a terminal to ask on, --yes is needed to take the task over"));
    }
    let (client, composer) = as_agent(&args.identity, connection).await?;
    let handoff_id = args.handoff.handoff(&client).await?.to_string();
    let request = v1::GetHandoffRequest { handoff_id, include_context: true };
    let found = client.answer(client.handoffs().get_handoff(request).await)?;
    let handoff = found.handoff.unwrap_or_default();
    // The broker refuses a completion in any other state, and its refusal names the state.
    let mut payload = v1::HandoffComplete { outcome: v1::HandoffOutcome::Success.into(), ..Default::default() };
    if handoff.state() == v1::HandoffState::ContextSent {
        let context = verified_context(&client, &handoff, found.context).await?;
        payload = completion_of(&context);
        show_context(&handoff, &context);
        if !yes && !is_wanted(&handoff)? {
            return Err(Failure::failed("nothing was signed, and the task stays with its owner"));
        }
    }
    details.clone_into(&mut payload.details);
    let about = About::handoff(&handoff.task_id, handoff.epoch, &handoff.handoff_id);
    send(&client, &composer, &handoff.sender_id, MessageType::HandoffComplete, &about, &payload, output).await
}

/// The context of a handoff, after its signature and its digest are verified.
pub(super) async fn verified_context(
    client: &Client,
    handoff: &v1::Handoff,
    envelope: bytes::Bytes,
) -> Result<v1::TaskContextTransfer, Failure> {
    let wrong = |problem: &str| {
        Failure::refused("SIGNATURE_INVALID", format!("the context is not what the owner has sent: {problem}"))
    };
    if envelope.is_empty() {
        return Err(wrong("the broker shows none"));
    }
    let envelope = client.verified(envelope, &Trust::Broker, SystemClock.now()).await?;
    // The signature covers these fields, so the owner has sent this context for this handoff.
    let is_of_handoff = envelope.sender_id == handoff.sender_id
        && envelope.message_type() == MessageType::TaskContextTransfer
        && (envelope.task_id.as_str(), envelope.epoch) == (handoff.task_id.as_str(), handoff.epoch)
        && envelope.correlation_id == handoff.handoff_id;
    if !is_of_handoff {
        return Err(wrong("the broker shows a message of another agent or handoff"));
    }
    let payload = envelope.payload.unwrap_or_default();
    let context = v1::TaskContextTransfer::decode(payload.value).map_err(|error| wrong(&error.to_string()))?;
    let digest = completion_of(&context).context_digest;
    if digest != context.context_digest || digest != handoff.context_digest {
        return Err(wrong("its digest is another one"));
    }
    Ok(context)
}

fn show_context(handoff: &v1::Handoff, context: &v1::TaskContextTransfer) {
    tell!("context of task {} from {}, signature and digest verified", handoff.task_id, handoff.sender_id);
    for section in &context.sections {
        tell!("  {}: {}", output::line(&section.name), output::line(&content_of(section)));
    }
}

/// The content of a section in words.
pub(super) fn content_of(section: &v1::ContextSection) -> String {
    match &section.content {
        Some(Content::Json(json)) => json.clone(),
        Some(Content::Delta(_)) => "a change to an earlier version".to_owned(),
        Some(Content::Bytes(bytes)) => format!("{} bytes of {}", bytes.data.len(), bytes.media_type),
        Some(Content::Reference(reference)) => format!("see {}", reference.uri),
        None => String::new(),
    }
}

/// Asks the person at the terminal.
fn is_wanted(handoff: &v1::Handoff) -> Result<bool, Failure> {
    tell!("take over task {} from {}? [y/N]", handoff.task_id, handoff.sender_id);
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    Ok(matches!(line.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}

pub(super) async fn send<M: Message + Name>(
    client: &Client,
    composer: &Composer,
    to: &str,
    kind: MessageType,
    about: &About,
    payload: &M,
    output: &Output,
) -> Result<(), Failure> {
    let receipt = client.send(composer.encode(to, kind, about, payload)).await?;
    output.one(&receipt, |receipt| {
        vec![
            ("handoff".into(), receipt.handoff_id.clone()),
            ("state".into(), output::short(receipt.handoff_state().as_str_name(), "HANDOFF_STATE_")),
            ("task".into(), receipt.task_id.clone()),
            ("owner".into(), receipt.owner_id.clone()),
            ("epoch".into(), receipt.epoch.to_string()),
            ("custody".into(), hex::encode(&receipt.custody_hash)),
        ]
    })
}

pub(super) async fn as_agent(
    identity: &IdentityArgs,
    connection: &ConnectionArgs,
) -> Result<(Client, Composer), Failure> {
    let (client, identity) = identity.sign_in(connection).await?;
    let composer = Composer { identity, clock: std::sync::Arc::new(SystemClock), ids: std::sync::Arc::new(SystemIds) };
    Ok((client, composer))
}

async fn get(client: &Client, id: &MessageId) -> Result<v1::Handoff, Failure> {
    let request = v1::GetHandoffRequest { handoff_id: id.to_string(), ..Default::default() };
    Ok(client.answer(client.handoffs().get_handoff(request).await)?.handoff.unwrap_or_default())
}

fn show(handoff: &v1::Handoff, output: &Output) -> Result<(), Failure> {
    output.one(handoff, |handoff| {
        let deadline = handoff.deadline.as_ref().or(handoff.whole_deadline.as_ref());
        let open = handoff.state() as i32 <= v1::HandoffState::ContextSent as i32;
        let error = match handoff.error_code() {
            v1::ErrorCode::Unspecified => String::new(),
            code => format!("{} ({})", handoff.error_message, output::short(code.as_str_name(), "ERROR_CODE_")),
        };
        vec![
            ("handoff".into(), handoff.handoff_id.clone()),
            ("task".into(), format!("{} at epoch {}", handoff.task_id, handoff.epoch)),
            ("from".into(), handoff.sender_id.clone()),
            ("to".into(), handoff.candidate_id.clone()),
            ("waits for".into(), waits_for(handoff.waiting_for()).to_owned()),
            ("asked for".into(), handoff.receiver_id.clone()),
            ("summary".into(), handoff.initial_context_summary.clone()),
            ("reason".into(), handoff.reason_text.clone()),
            ("wanted type".into(), handoff.desired_agent_type.clone()),
            (
                "estimate".into(),
                handoff.estimated_handoff_time.map(|span| format!("{} s", span.seconds)).unwrap_or_default(),
            ),
            ("state".into(), output::short(handoff.state().as_str_name(), "HANDOFF_STATE_")),
            ("sender sees".into(), output::short(handoff.sender_view().as_str_name(), "SENDER_VIEW_")),
            ("receiver sees".into(), output::short(handoff.receiver_view().as_str_name(), "RECEIVER_VIEW_")),
            ("deadline".into(), if open { output::time(deadline) } else { String::new() }),
            ("error".into(), error),
        ]
    })?;
    if output.is_table() {
        handoff.transitions.iter().for_each(say_step);
    }
    Ok(())
}

/// Prints a step on two lines: time, cause and state, then both views.
pub(super) fn say_step(step: &v1::HandoffTransition) {
    let candidate = if step.candidate_id.is_empty() { "" } else { ", candidate " };
    say!(
        "{:<24}  {:<13} {}{candidate}{}",
        output::moment(step.transition_time.as_ref()),
        output::short(step.state().as_str_name(), "HANDOFF_STATE_"),
        output::short(step.cause().as_str_name(), "HANDOFF_CAUSE_"),
        step.candidate_id,
    );
    say!(
        "    sender {:<23}  receiver {}",
        output::short(step.sender_view().as_str_name(), "SENDER_VIEW_"),
        output::short(step.receiver_view().as_str_name(), "RECEIVER_VIEW_"),
    );
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

impl Reason {
    fn to_proto(self) -> v1::RejectReason {
        match self {
            Self::NoSkill => v1::RejectReason::NoSkill,
            Self::Overloaded => v1::RejectReason::Overloaded,
            Self::NoPermission => v1::RejectReason::NoPermission,
            Self::WrongTaskType => v1::RejectReason::WrongTaskType,
            Self::Shutdown => v1::RejectReason::Shutdown,
            Self::TooLittleTime => v1::RejectReason::TooLittleTime,
            Self::Other => v1::RejectReason::Other,
        }
    }
}

/// What an open handoff waits for while no agent has the offer. Empty: an agent has it.
fn waits_for(waiting: v1::WaitingFor) -> &'static str {
    match waiting {
        v1::WaitingFor::Unspecified => "",
        v1::WaitingFor::Capacity => "an agent with room",
        v1::WaitingFor::RetryTime => "the time to ask an agent again",
        v1::WaitingFor::Agent => "an agent that registers",
        v1::WaitingFor::DeliverAfter => "the time of the request",
    }
}
