//! `baton handoff list`: handoffs, with whose turn each is and how long that agent has.

use std::time::Duration;

use clap::{Args, ValueEnum};

use super::{
    Failure,
    connection::{ConnectionArgs, OptionalIdentityArgs},
    duration, handoff_show,
    output::{self, Output},
    resolve::{self, Prefix},
    table::Column,
    turn,
};
use baton_client::{
    proto::v1,
    time::{Clock as _, SystemClock},
};

/// List handoffs, newest first.
///
/// TURN is the agent that has the next step, and LEFT the time that it has. Below a handoff are the candidates that did
/// not take it, each with its words.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  baton handoff list --state requested --state accepted
  baton handoff list --agent alice --limit 10 -o json
  baton handoff list --open --to bob --due-within 30s
  baton handoff list --id bob --key bob.pem")]
pub(super) struct ListArgs {
    #[command(flatten)]
    identity: OptionalIdentityArgs,
    /// List only handoffs of this task: its id, or a unique prefix of it.
    #[arg(long, value_name = "TASK")]
    task: Option<Prefix>,
    /// List only handoffs with this agent as sender or candidate: its id, or a unique prefix of it.
    #[arg(long, value_name = "AGENT")]
    agent: Option<Prefix>,
    /// List only handoffs with this agent as sender: its id, or a unique prefix of it.
    #[arg(long, value_name = "AGENT")]
    from: Option<Prefix>,
    /// List only handoffs with this agent as present or last candidate: its id, or a unique prefix of it.
    #[arg(long, value_name = "AGENT")]
    to: Option<Prefix>,
    /// List only handoffs of this task type.
    #[arg(long, value_name = "TYPE")]
    task_type: Option<String>,
    /// List only handoffs in this state. May be repeated.
    #[arg(long = "state", value_name = "STATE", ignore_case = true)]
    states: Vec<StateArg>,
    /// List only handoffs that have not ended.
    #[arg(long)]
    open: bool,
    /// List only open handoffs whose next deadline is at most this far away, for example 30s.
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    due_within: Option<Duration>,
    /// The most handoffs to list.
    #[arg(long, default_value_t = 50)]
    limit: u32,
}

/// A state of a handoff.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum StateArg {
    Requested,
    Deciding,
    Accepted,
    #[value(alias = "context_sent")]
    ContextSent,
    Completed,
    Rejected,
    Failed,
    Cancelled,
}

pub(super) async fn run(args: ListArgs, connection: &ConnectionArgs, output: &Output) -> Result<(), Failure> {
    let states: Vec<i32> = args.states.iter().map(|state| state.to_proto().into()).collect();
    let client = args.identity.client(connection).await?;
    let task_id = resolve::task_filter(args.task.as_ref(), &client).await?;
    let agent_id = resolve::agent_filter(args.agent.as_ref(), &client).await?;
    let sender_id = resolve::agent_filter(args.from.as_ref(), &client).await?;
    let candidate_id = resolve::agent_filter(args.to.as_ref(), &client).await?;
    // One time for all pages: a page token continues a list with the same filters.
    let deadline_before = args.due_within.map(|span| SystemClock.now().plus(span).into());
    let handoffs = output::pages(args.limit, async |page_size, page_token| {
        let request = v1::ListHandoffsRequest {
            page_size,
            page_token,
            task_id: task_id.clone(),
            agent_id: agent_id.clone(),
            sender_id: sender_id.clone(),
            candidate_id: candidate_id.clone(),
            task_type: args.task_type.clone().unwrap_or_default(),
            states: Vec::clone(&states),
            open_only: args.open,
            deadline_before,
        };
        let page = client.answer(client.handoffs().list_handoffs(request).await)?;
        Ok((page.handoffs, page.next_page_token))
    })
    .await?;
    let columns = [
        Column::Id("HANDOFF"),
        Column::Id("TASK"),
        Column::Id("FROM"),
        Column::Id("TO"),
        Column::Whole("STATE"),
        Column::Id("TURN"),
        Column::Whole("LEFT"),
    ];
    let now = SystemClock.now();
    let row = |handoff: &v1::Handoff| {
        vec![
            handoff.handoff_id.clone(),
            handoff.task_id.clone(),
            handoff.sender_id.clone(),
            handoff.candidate_id.clone(),
            output::short(handoff.state().as_str_name(), "HANDOFF_STATE_"),
            turn::turn(handoff).to_owned(),
            // An ended handoff has no time left, even if its deadlines are still known.
            match turn::turn(handoff) {
                "" => String::new(),
                _ => turn::left(handoff, now).map(turn::brief).unwrap_or_default(),
            },
        ]
    };
    output.list_with(&columns, &handoffs, row, |handoff| handoff_show::refusals(handoff, now))
}

impl StateArg {
    fn to_proto(self) -> v1::HandoffState {
        match self {
            Self::Requested => v1::HandoffState::Requested,
            Self::Deciding => v1::HandoffState::Deciding,
            Self::Accepted => v1::HandoffState::Accepted,
            Self::ContextSent => v1::HandoffState::ContextSent,
            Self::Completed => v1::HandoffState::Completed,
            Self::Rejected => v1::HandoffState::Rejected,
            Self::Failed => v1::HandoffState::Failed,
            Self::Cancelled => v1::HandoffState::Cancelled,
        }
    }
}
