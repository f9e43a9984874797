//! `baton dlq`: lists, shows, redrives and discards dead letters.

use std::borrow::Cow;

use clap::{Args, Subcommand, ValueEnum};
use prost::Message as _;
use serde_json::{Value, json};
use tokio_stream::StreamExt as _;

use super::{
    Failure,
    connection::{ConnectionArgs, OptionalIdentityArgs},
    exit, json,
    output::{self, Output},
    progress,
    resolve::{self, Prefix},
    span_of_time::SpanArgs,
    table::Column,
};
use baton_client::{
    ids::AgentId,
    proto::v1,
    time::{Clock as _, SystemClock},
    {Client, ClientError},
};

#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:
  baton dlq list
  baton dlq show 17
  baton dlq redrive 17")]
pub(super) enum DlqCommand {
    /// List dead letters, newest first.
    #[command(after_help = "Examples:
  baton dlq list
  baton dlq list --reason poison --agent bob
  baton dlq list --state all --within 3600 -o json
  baton dlq list --id bob --key bob.pem")]
    List {
        #[command(flatten)]
        filter: FilterArgs,
        /// Select only dead letters in this state.
        #[arg(long = "state", value_name = "STATE", default_value = "parked")]
        state: StateArg,
        /// The most dead letters to list.
        #[arg(long, default_value_t = 50)]
        limit: u32,
        #[command(flatten)]
        identity: OptionalIdentityArgs,
    },
    /// Show one dead letter: its reason, each delivery attempt, and the envelope.
    #[command(after_help = "Examples:
  baton dlq show 17")]
    Show {
        /// The dead letter's number, from `baton dlq list`.
        id: String,
        #[command(flatten)]
        identity: OptionalIdentityArgs,
    },
    Redrive(RedriveArgs),
    /// Discard dead letters, so that they are not delivered again. The broker keeps them, marked as discarded, until
    /// retention removes them.
    #[command(after_help = "Examples:
  baton dlq discard 17 18 --reason 'sent by a test'")]
    Discard {
        /// The numbers of the dead letters, from `baton dlq list`.
        #[arg(required = true)]
        ids: Vec<String>,
        /// The reason, recorded with the dead letter.
        #[arg(long, default_value = "", hide_default_value = true)]
        reason: String,
        #[command(flatten)]
        identity: OptionalIdentityArgs,
    },
    /// Write the selected dead letters and their envelopes to stdout as JSON lines, oldest first.
    #[command(after_help = "Examples:
  baton dlq export --state parked > dead-letters.jsonl
  baton dlq export --since 2026-11-01 --until 2026-12-01 > november.jsonl")]
    Export {
        #[command(flatten)]
        filter: FilterArgs,
        /// Select only dead letters in this state.
        #[arg(long = "state", value_name = "STATE", default_value = "all")]
        state: StateArg,
        #[command(flatten)]
        identity: OptionalIdentityArgs,
    },
}

/// Deliver dead letters again: the named ones, or all parked ones that match a filter.
///
/// A redriven handoff request starts a new handoff with the same terms, because the old handoff has ended. The broker
/// queues each message and marks its dead letter in one commit. If the command is interrupted, run it again: it
/// continues with the rest and repeats nothing.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  baton dlq redrive 17
  baton dlq redrive 17 --to bob
  baton dlq redrive --reason poison --agent support --dry-run
  baton dlq redrive --reason poison --agent support --rate 10")]
pub(super) struct RedriveArgs {
    /// The numbers of the dead letters, from `baton dlq list`. Default: the parked ones that match the filters.
    ids: Vec<String>,
    #[command(flatten)]
    filter: FilterArgs,
    /// Redrive all parked dead letters. Needed if neither numbers nor filters are given.
    #[arg(long)]
    all: bool,
    /// Deliver to this agent instead of the original receiver.
    #[arg(long, value_name = "AGENT")]
    to: Option<AgentId>,
    /// The most redrives per second. Default: no limit.
    #[arg(long, value_name = "PER_SECOND")]
    rate: Option<f64>,
    /// Only list and count the parked dead letters that match the filters. Changes nothing.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    identity: OptionalIdentityArgs,
}

/// Filters of dead letters. A dead letter must match each given filter.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct FilterArgs {
    /// Select only dead letters with this reason. May be repeated.
    #[arg(long = "reason", value_name = "REASON")]
    reasons: Vec<ReasonArg>,
    /// Select only dead letters from this agent's mailbox: its id, or a unique prefix of it.
    #[arg(long, value_name = "AGENT")]
    agent: Option<Prefix>,
    /// Select only dead letters from this sender: its id, or a unique prefix of it.
    #[arg(long, value_name = "AGENT")]
    sender: Option<Prefix>,
    /// Select only dead letters of this task: its id, or a unique prefix of it.
    #[arg(long, value_name = "TASK")]
    task: Option<Prefix>,
    /// Select only dead letters that were parked in the last SECONDS seconds.
    #[arg(long, value_name = "SECONDS", conflicts_with = "since")]
    within: Option<u32>,
    /// The time at which the dead letters were parked.
    #[command(flatten)]
    span: SpanArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum ReasonArg {
    DeliveryAttemptsExhausted,
    Poison,
    Expired,
    AcceptTimeout,
    NoCandidate,
    Malformed,
    SchemaInvalid,
    ReceiverGone,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum StateArg {
    Parked,
    Redriven,
    Discarded,
    All,
}

pub(super) async fn run(command: DlqCommand, connection: &ConnectionArgs, output: &Output) -> Result<(), Failure> {
    match command {
        DlqCommand::List { filter, state, limit, identity } => {
            list(&identity.client(connection).await?, &filter, state, limit, output).await
        }
        DlqCommand::Show { id, identity } => show(&identity.client(connection).await?, id, output).await,
        DlqCommand::Redrive(args) => redrive(&args.identity.client(connection).await?, args, *output).await,
        DlqCommand::Discard { ids, reason, identity } => {
            discard(&identity.client(connection).await?, ids, reason, *output).await
        }
        DlqCommand::Export { filter, state, identity } => {
            export(&identity.client(connection).await?, &filter, state).await
        }
    }
}

async fn list(
    client: &Client,
    filter: &FilterArgs,
    state: StateArg,
    limit: u32,
    output: &Output,
) -> Result<(), Failure> {
    let filter = Some(v1::DeadLetterFilter { states: state.to_proto(), ..filter.to_proto(client).await? });
    let dead_letters = output::pages(limit, async |page_size, page_token| {
        let request = v1::ListDeadLettersRequest { page_size, page_token, filter: filter.clone() };
        let page = client.answer(client.dead_letters().list_dead_letters(request).await)?;
        Ok((page.dead_letters, page.next_page_token))
    })
    .await?;
    let columns = [
        Column::Whole("ID"),
        Column::Whole("REASON"),
        Column::Whole("STATE"),
        Column::Id("FOR"),
        Column::Id("TASK"),
        Column::Whole("PARKED"),
    ];
    let now = SystemClock.now();
    output.list(&columns, &dead_letters, |dead| {
        vec![
            dead.dead_letter_id.clone(),
            output::short(dead.reason().as_str_name(), "DEAD_LETTER_REASON_"),
            output::short(dead.state().as_str_name(), "DEAD_LETTER_STATE_"),
            dead.agent_id.clone(),
            dead.task_id.clone(),
            output::brief(dead.park_time.as_ref(), now),
        ]
    })
}

async fn show(client: &Client, id: String, output: &Output) -> Result<(), Failure> {
    let request = v1::GetDeadLetterRequest { dead_letter_id: id };
    let dead = client.answer(client.dead_letters().get_dead_letter(request).await)?.dead_letter.unwrap_or_default();
    if output.is_table() { output.one(&dead, lines) } else { output.value(&whole(&dead)?) }
}

fn lines(dead: &v1::DeadLetter) -> Vec<(Cow<'static, str>, String)> {
    let or_none = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
    let mut lines = vec![
        ("dead letter".into(), dead.dead_letter_id.clone()),
        ("reason".into(), output::short(dead.reason().as_str_name(), "DEAD_LETTER_REASON_")),
        ("details".into(), or_none(&dead.reason_text)),
        ("state".into(), output::short(dead.state().as_str_name(), "DEAD_LETTER_STATE_")),
        ("parked".into(), output::time(dead.park_time.as_ref())),
        ("for".into(), dead.agent_id.clone()),
        ("from".into(), or_none(&dead.sender_id)),
        ("type".into(), output::short(dead.message_type().as_str_name(), "MESSAGE_TYPE_")),
        ("message".into(), or_none(&dead.message_id)),
        ("task".into(), or_none(&dead.task_id)),
        ("handoff".into(), or_none(&dead.handoff_id)),
        ("trace".into(), or_none(&dead.traceparent)),
        ("delivered".into(), format!("{} times, of which {} failed", dead.handout_count, dead.failure_count)),
    ];
    lines.extend(dead.attempts.iter().map(|attempt| ("attempt".into(), attempt_line(attempt))));
    if dead.settle_time.is_some() {
        lines.push(("settled".into(), format!("{} by {}", output::time(dead.settle_time.as_ref()), dead.settle_text)));
    }
    if !dead.redriven_to_agent_id.is_empty() {
        lines.push(("redriven to".into(), dead.redriven_to_agent_id.clone()));
    }
    if !dead.redriven_handoff_id.is_empty() {
        lines.push(("redriven as".into(), format!("handoff {}", dead.redriven_handoff_id)));
    }
    lines.push(("envelope".into(), format!("{} bytes; see -o json, or baton dlq export", dead.envelope_bytes.len())));
    lines
}

fn attempt_line(attempt: &v1::DeliveryAttempt) -> String {
    format!(
        "{} to {}: {} at {}{}{}",
        output::time(attempt.handout_time.as_ref()),
        attempt.agent_id,
        output::short(attempt.end().as_str_name(), "DELIVERY_END_"),
        output::time(attempt.end_time.as_ref()),
        if attempt.reason_text.is_empty() { "" } else { ": " },
        attempt.reason_text,
    )
}

/// The dead letter as JSON, with its envelope decoded beside the bytes if the bytes decode.
fn whole(dead: &v1::DeadLetter) -> Result<Value, Failure> {
    let mut value = json::of(dead)?;
    if v1::Envelope::decode(dead.envelope_bytes.clone()).is_ok() {
        value["envelope"] = json::of_bytes("baton.v1.Envelope", &dead.envelope_bytes)?;
    }
    Ok(value)
}

async fn redrive(client: &Client, args: RedriveArgs, output: Output) -> Result<(), Failure> {
    let to_agent_id = args.to.map(|agent| agent.to_string()).unwrap_or_default();
    if !args.ids.is_empty() {
        if args.dry_run {
            return Err(Failure::usage("--dry-run needs filters or --all; baton dlq show tells about one dead letter"));
        }
        if args.filter.is_set() || args.all {
            return Err(Failure::usage("give either numbers of dead letters or filters, not both"));
        }
        for dead_letter_id in args.ids {
            let request = v1::RedriveDeadLetterRequest { dead_letter_id, to_agent_id: to_agent_id.clone() };
            let answer = client.answer(client.dead_letters().redrive_dead_letter(request).await)?;
            say_redriven(&answer.dead_letter.unwrap_or_default(), output)?;
        }
        return Ok(());
    }
    if !args.filter.is_set() && !args.all {
        return Err(Failure::usage("select dead letters by number, by a filter, or with --all"));
    }
    let filter = Some(args.filter.to_proto(client).await?);
    let max_per_second = args.rate.unwrap_or_default();
    let request = v1::RedriveDeadLettersRequest { filter, to_agent_id, max_per_second, dry_run: args.dry_run };
    redrive_all(client, request, output).await
}

/// Redrives until none is left, or until ctrl-C.
async fn redrive_all(client: &Client, request: v1::RedriveDeadLettersRequest, output: Output) -> Result<(), Failure> {
    let is_dry = request.dry_run;
    let mut answers = client.answer(client.dead_letters().redrive_dead_letters(request).await)?;
    let (mut redriven, mut stayed) = (0u64, 0u64);
    let bar = progress::beside_output("dead letters");
    loop {
        let answer = tokio::select! {
            answer = answers.next() => answer,
            // The end of the stream ends the redrive at the broker. The rest stays parked.
            _ = tokio::signal::ctrl_c() => {
                bar.suspend(|| tell!("interrupted; run the same command again to continue"));
                break;
            }
        };
        let Some(answer) = answer else { break };
        let answer = client.answer(answer.map(tonic::Response::new))?;
        let dead = answer.dead_letter.unwrap_or_default();
        bar.inc(1);
        match answer.error {
            None => {
                redriven += 1;
                if is_dry { say_parked(&dead, output)? } else { say_redriven(&dead, output)? }
            }
            Some(error) => {
                stayed += 1;
                let refused = ClientError::of_message(&error);
                let (id, why) = (output::line(&dead.dead_letter_id), exit::describe(&refused));
                bar.suspend(|| tell!("dead letter {id} stays parked: {why}"));
            }
        }
    }
    bar.finish_and_clear();
    if is_dry {
        tell!("{redriven} would be redriven, {stayed} would stay parked; nothing is changed");
        return Ok(());
    }
    tell!("{redriven} redriven, {stayed} stay parked");
    if stayed == 0 { Ok(()) } else { Err(Failure::failed("some dead letters were not redriven")) }
}

fn say_parked(dead: &v1::DeadLetter, output: Output) -> Result<(), Failure> {
    let (id, agent) = (&dead.dead_letter_id, &dead.agent_id);
    let reason = output::short(dead.reason().as_str_name(), "DEAD_LETTER_REASON_");
    if output.is_table() {
        say!("{id} for {agent}: {reason}");
        return Ok(());
    }
    output.next(&json!({"deadLetterId": id, "agentId": agent, "reason": reason}))
}

fn say_redriven(dead: &v1::DeadLetter, output: Output) -> Result<(), Failure> {
    let (id, to, handoff) = (&dead.dead_letter_id, &dead.redriven_to_agent_id, &dead.redriven_handoff_id);
    if output.is_table() {
        say!("{id} redriven to {to}{}{handoff}", if handoff.is_empty() { "" } else { ", as handoff " });
        return Ok(());
    }
    output.next(&json!({"deadLetterId": id, "redrivenTo": to, "handoffId": handoff}))
}

async fn discard(client: &Client, ids: Vec<String>, reason_text: String, output: Output) -> Result<(), Failure> {
    for dead_letter_id in ids {
        let request = v1::DiscardDeadLetterRequest { dead_letter_id, reason_text: reason_text.clone() };
        let answer = client.answer(client.dead_letters().discard_dead_letter(request).await)?;
        let id = answer.dead_letter.unwrap_or_default().dead_letter_id;
        match output.is_table() {
            true => say!("{id} discarded"),
            false => output.next(&json!({"deadLetterId": id, "discarded": true}))?,
        }
    }
    Ok(())
}

async fn export(client: &Client, filter: &FilterArgs, state: StateArg) -> Result<(), Failure> {
    let filter = Some(v1::DeadLetterFilter { states: state.to_proto(), ..filter.to_proto(client).await? });
    let request = v1::ExportDeadLettersRequest { filter };
    let mut entries = client.answer(client.dead_letters().export_dead_letters(request).await)?;
    let bar = progress::beside_output("dead letters");
    while let Some(entry) = entries.next().await {
        let entry = client.answer(entry.map(tonic::Response::new))?;
        let whole = whole(&entry.dead_letter.unwrap_or_default())?;
        bar.inc(1);
        output::say_json(&whole);
    }
    bar.finish_and_clear();
    Ok(())
}

impl FilterArgs {
    fn is_set(&self) -> bool {
        !self.reasons.is_empty()
            || self.agent.is_some()
            || self.sender.is_some()
            || self.task.is_some()
            || self.within.is_some()
            || self.span.since.is_some()
            || self.span.until.is_some()
    }

    async fn to_proto(&self, client: &Client) -> Result<v1::DeadLetterFilter, Failure> {
        let (now, nanos) = SystemClock.now().to_parts();
        let span = self.span.checked()?;
        Ok(v1::DeadLetterFilter {
            reasons: self.reasons.iter().map(|reason| reason.to_proto().into()).collect(),
            agent_id: resolve::agent_filter(self.agent.as_ref(), client).await?,
            sender_id: resolve::agent_filter(self.sender.as_ref(), client).await?,
            task_id: resolve::task_filter(self.task.as_ref(), client).await?,
            park_time_from: self
                .within
                .map(|seconds| prost_types::Timestamp { seconds: now - i64::from(seconds), nanos })
                .or(span.since),
            park_time_before: span.until,
            ..Default::default()
        })
    }
}

impl ReasonArg {
    fn to_proto(self) -> v1::DeadLetterReason {
        match self {
            Self::DeliveryAttemptsExhausted => v1::DeadLetterReason::DeliveryAttemptsExhausted,
            Self::Poison => v1::DeadLetterReason::Poison,
            Self::Expired => v1::DeadLetterReason::Expired,
            Self::AcceptTimeout => v1::DeadLetterReason::AcceptTimeout,
            Self::NoCandidate => v1::DeadLetterReason::NoCandidate,
            Self::Malformed => v1::DeadLetterReason::Malformed,
            Self::SchemaInvalid => v1::DeadLetterReason::SchemaInvalid,
            Self::ReceiverGone => v1::DeadLetterReason::ReceiverGone,
        }
    }
}

impl StateArg {
    fn to_proto(self) -> Vec<i32> {
        use v1::DeadLetterState as S;
        let states: &[S] = match self {
            Self::Parked => &[S::Parked],
            Self::Redriven => &[S::Redriven],
            Self::Discarded => &[S::Discarded],
            Self::All => &[S::Parked, S::Redriven, S::Discarded],
        };
        states.iter().map(|state| i32::from(*state)).collect()
    }
}
