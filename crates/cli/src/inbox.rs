//! `baton inbox`: what an agent, or the person behind it, has to do.
//!
//! Reads the state of handoffs and tasks, and receives no mail: the messages stay for the agent's sessions.

use std::collections::BTreeSet;

use clap::Args;
use serde_json::{Value, json};

use super::{
    Failure,
    connection::{ConnectionArgs, IdentityArgs},
    handoff::as_agent,
    json,
    output::{self, Output},
    table::{self, Column},
    turn,
};
use baton_client::{
    Client,
    proto::v1::{self, BidState, HandoffState, NegotiationState, TaskStatus},
    time::{Clock as _, SystemClock, Timestamp},
};

/// Show what waits for this agent: offers, contexts, negotiations, questions, and the tasks that it owns.
///
/// TURN is the agent that has the next step, and LEFT the time that it has. Each part names the command for the next
/// step. The messages stay in the agent's mailbox: only an act
/// (accept, reject, complete, input, status) changes anything.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  baton inbox --id carol --key carol.pem
  baton profile use carol && baton inbox
  baton inbox -o json | jq .questions
  PS1='[$(baton inbox --count)] $ '   # the offers that wait, in a prompt of a shell")]
pub(super) struct InboxArgs {
    #[command(flatten)]
    identity: IdentityArgs,
    /// The most entries of each kind.
    #[arg(long, default_value_t = 50)]
    limit: u32,
    /// Print the number of offers that wait for a decision of this agent, and nothing else.
    #[arg(long, conflicts_with = "limit")]
    count: bool,
}

/// The entries of an inbox.
pub(super) struct Inbox {
    /// The open handoffs of this agent, whosever turn they are.
    pub(super) handoffs: Vec<v1::Handoff>,
    /// Handoffs that this agent may accept or reject.
    pub(super) offers: Vec<v1::Handoff>,
    /// Handoffs whose context this agent may take over.
    pub(super) contexts: Vec<v1::Handoff>,
    /// Handoffs that wait for a context of this agent.
    pub(super) contexts_to_send: Vec<v1::Handoff>,
    /// Negotiations in which this agent may make an offer or answer a counter-offer.
    pub(super) asked: Vec<v1::Negotiation>,
    /// Negotiations of this agent with an offer that it may accept.
    pub(super) offered: Vec<v1::Negotiation>,
    /// Tasks with a question to this agent.
    pub(super) questions: Vec<v1::Task>,
    /// The open tasks of this agent.
    pub(super) tasks: Vec<v1::Task>,
    /// Whether a kind has as many entries as the limit allows: more may exist.
    pub(super) has_more: bool,
}

pub(super) async fn run(args: InboxArgs, connection: &ConnectionArgs, output: &Output) -> Result<(), Failure> {
    let (client, composer) = as_agent(&args.identity, connection).await?;
    let agent = composer.identity.agent.to_string();
    if args.count {
        let open = open_handoffs(&client, &agent, u32::MAX).await?;
        say!("{}", open.iter().filter(|handoff| is_offer(handoff, &agent)).count());
        return Ok(());
    }
    let inbox = read(&client, &agent, args.limit).await?;
    if output.is_table() {
        show(&agent, &inbox);
        return Ok(());
    }
    let handoffs = |list: &[v1::Handoff]| list.iter().map(json::of).collect::<Result<Value, _>>();
    let tasks = |list: &[v1::Task]| list.iter().map(json::of).collect::<Result<Value, _>>();
    let negotiations = |list: &[v1::Negotiation]| list.iter().map(json::of).collect::<Result<Value, _>>();
    output.value(&json!({
        "agentId": agent, "offers": handoffs(&inbox.offers)?, "contexts": handoffs(&inbox.contexts)?,
        "contextsToSend": handoffs(&inbox.contexts_to_send)?, "negotiationsAsked": negotiations(&inbox.asked)?,
        "negotiationsOffered": negotiations(&inbox.offered)?, "questions": tasks(&inbox.questions)?,
        "tasks": tasks(&inbox.tasks)?, "mayHaveMore": inbox.has_more,
    }))
}

pub(super) async fn read(client: &Client, agent: &str, limit: u32) -> Result<Inbox, Failure> {
    let handoffs = open_handoffs(client, agent, limit).await?;
    let open = [TaskStatus::Created, TaskStatus::InProgress, TaskStatus::WaitingForInput];
    let owned = v1::ListTasksRequest {
        owner_id: agent.to_owned(),
        statuses: open.map(i32::from).to_vec(),
        ..Default::default()
    };
    let asked = v1::ListTasksRequest { asked_agent_id: agent.to_owned(), ..Default::default() };
    let mut tasks = all_tasks(client, owned, limit).await?;
    // A list does not show the answer that a task has waited for.
    for task in tasks.iter_mut().filter(|task| task.status() == TaskStatus::WaitingForInput) {
        *task = whole_task(client, task).await?;
    }
    let questions = all_tasks(client, asked, limit).await?;
    let is_full = |many: usize| many >= limit as usize;
    let negotiations = open_negotiations(client, agent, limit).await?;
    let has_more = [handoffs.len(), tasks.len(), questions.len(), negotiations.len()].into_iter().any(is_full);
    let mut inbox = Inbox {
        handoffs: handoffs.clone(),
        offers: vec![],
        contexts: vec![],
        contexts_to_send: vec![],
        asked: vec![],
        offered: vec![],
        questions,
        tasks,
        has_more,
    };
    for negotiation in negotiations {
        let has = |states: &[BidState]| negotiation.bids.iter().any(|bid| states.contains(&bid.state()));
        let may_bid = negotiation.state() == NegotiationState::Open;
        if negotiation.requester_id != agent {
            // A bidder sees its own bid alone.
            if may_bid && has(&[BidState::Asked, BidState::Countered]) {
                inbox.asked.push(negotiation);
            }
        } else if has(&[BidState::Offered]) {
            inbox.offered.push(negotiation);
        }
    }
    for handoff in handoffs {
        let is_candidate = handoff.candidate_id == agent;
        match handoff.state() {
            _ if is_offer(&handoff, agent) => {
                // A list does not show the words of a request, and an offer cannot be decided without them.
                inbox.offers.push(whole(client, handoff).await?);
            }
            HandoffState::ContextSent if is_candidate => inbox.contexts.push(handoff),
            HandoffState::Accepted if handoff.sender_id == agent => inbox.contexts_to_send.push(handoff),
            _ => {} // the other side has the next step
        }
    }
    Ok(inbox)
}

/// Whether the agent may accept or reject this handoff now.
fn is_offer(handoff: &v1::Handoff, agent: &str) -> bool {
    handoff.candidate_id == agent && matches!(handoff.state(), HandoffState::Requested | HandoffState::Deciding)
}

async fn open_handoffs(client: &Client, agent: &str, limit: u32) -> Result<Vec<v1::Handoff>, Failure> {
    output::pages(limit, async |page_size, page_token| {
        let agent_id = agent.to_owned();
        let request =
            v1::ListHandoffsRequest { page_size, page_token, agent_id, open_only: true, ..Default::default() };
        let page = client.answer(client.handoffs().list_handoffs(request).await)?;
        Ok((page.handoffs, page.next_page_token))
    })
    .await
}

/// The negotiations that may wait for this agent, with their bids, newest first.
async fn open_negotiations(client: &Client, agent: &str, limit: u32) -> Result<Vec<v1::Negotiation>, Failure> {
    let mut ids = BTreeSet::new();
    // The list of an agent has its requests and its bids. Where it was asked and has not answered, only the list of all
    // has it. Offers are taken for an hour at most, so the latest ones are enough.
    for agent_id in [agent.to_owned(), String::new()] {
        let states = [NegotiationState::Open, NegotiationState::Deciding].map(i32::from).to_vec();
        let request = v1::ListNegotiationsRequest { page_size: limit, agent_id, states, ..Default::default() };
        let page = client.answer(client.negotiations().list_negotiations(request).await)?;
        ids.extend(page.negotiations.into_iter().map(|listed| listed.negotiation_id));
    }
    let mut whole = Vec::with_capacity(ids.len());
    // Ids are in the order of time.
    for negotiation_id in ids.into_iter().rev() {
        // A list does not show the bids, which say whose turn it is.
        let request = v1::GetNegotiationRequest { negotiation_id };
        let answer = client.answer(client.negotiations().get_negotiation(request).await)?;
        whole.extend(answer.negotiation);
    }
    Ok(whole)
}

async fn all_tasks(client: &Client, filter: v1::ListTasksRequest, limit: u32) -> Result<Vec<v1::Task>, Failure> {
    output::pages(limit, async |page_size, page_token| {
        let request = v1::ListTasksRequest { page_size, page_token, ..filter.clone() };
        let page = client.answer(client.tasks().list_tasks(request).await)?;
        Ok((page.tasks, page.next_page_token))
    })
    .await
}

async fn whole(client: &Client, handoff: v1::Handoff) -> Result<v1::Handoff, Failure> {
    let request = v1::GetHandoffRequest { handoff_id: handoff.handoff_id.clone(), ..Default::default() };
    Ok(client.answer(client.handoffs().get_handoff(request).await)?.handoff.unwrap_or(handoff))
}

async fn whole_task(client: &Client, task: &v1::Task) -> Result<v1::Task, Failure> {
    let request = v1::GetTaskRequest { task_id: task.task_id.clone() };
    Ok(client.answer(client.tasks().get_task(request).await)?.task.unwrap_or_default())
}

fn show(agent: &str, inbox: &Inbox) {
    let now = SystemClock.now();
    let of_handoff = |handoff: &v1::Handoff, other: &str, what: &str| {
        let left = turn::left_until(turn::deadline(handoff).as_ref(), now);
        vec![handoff.task_id.clone(), other.to_owned(), turn::turn(handoff).to_owned(), left, what.to_owned()]
    };
    let columns = |other, what| {
        [Column::Id("TASK"), Column::Id(other), Column::Id("TURN"), Column::Whole("LEFT"), Column::Text(what)]
    };
    let offer = |handoff: &v1::Handoff| of_handoff(handoff, &handoff.sender_id, &handoff.initial_context_summary);
    section(
        ("offers to decide", "baton handoff accept TASK, or baton handoff reject TASK"),
        &columns("FROM", "SUMMARY"),
        inbox.offers.iter().map(offer).collect(),
    );
    let context = |handoff: &v1::Handoff| of_handoff(handoff, &handoff.sender_id, &handoff.task_type);
    section(
        ("contexts to take over", "baton handoff complete TASK"),
        &columns("FROM", "TYPE"),
        inbox.contexts.iter().map(context).collect(),
    );
    let context = |handoff: &v1::Handoff| of_handoff(handoff, &handoff.candidate_id, &handoff.task_type);
    section(
        ("contexts to send", "baton handoff context TASK --file FILE"),
        &columns("TO", "TYPE"),
        inbox.contexts_to_send.iter().map(context).collect(),
    );
    section(
        (
            "requests for offers",
            "baton mail receive shows the work; baton negotiation offer NEGOTIATION, or decline NEGOTIATION",
        ),
        &[
            Column::Whole("NEGOTIATION"),
            Column::Id("FROM"),
            Column::Id("TURN"),
            Column::Whole("LEFT"),
            Column::Text("TYPE"),
        ],
        inbox
            .asked
            .iter()
            .map(|asked| {
                let left = turn::left_until(asked.offers_deadline.as_ref(), now);
                let (id, requester) = (asked.negotiation_id.clone(), asked.requester_id.clone());
                vec![id, requester, agent.to_owned(), left, asked.task_type.clone()]
            })
            .collect(),
    );
    section(
        (
            "negotiations with offers",
            "baton negotiation show NEGOTIATION, baton negotiation accept NEGOTIATION --to AGENT",
        ),
        &[
            Column::Whole("NEGOTIATION"),
            Column::Whole("STATE"),
            Column::Id("TURN"),
            Column::Whole("LEFT"),
            Column::Whole("OFFERS"),
            Column::Text("TYPE"),
        ],
        inbox.offered.iter().map(|mine| offered_row(mine, now)).collect(),
    );
    section(
        ("questions to answer", "baton task input TASK --text ANSWER"),
        &[
            // The agent that is asked may not list the task, so that a prefix of its id would not be found.
            Column::Whole("TASK"),
            Column::Id("FROM"),
            Column::Id("TURN"),
            Column::Whole("LEFT"),
            Column::Text("QUESTION"),
        ],
        inbox
            .questions
            .iter()
            .map(|task| {
                let open = task.open_prompt.clone().unwrap_or_default();
                let prompt = open.prompt.unwrap_or_default();
                let left = turn::left_until(prompt.answer_before.as_ref(), now);
                vec![task.task_id.clone(), task.owner_id.clone(), open.asked_agent_id, left, prompt.question]
            })
            .collect(),
    );
    section(
        ("tasks that you own", "baton task status TASK completed, or baton handoff request --task TASK --to AGENT"),
        &[
            Column::Id("TASK"),
            Column::Text("TYPE"),
            Column::Whole("EPOCH"),
            Column::Whole("STATUS"),
            Column::Id("TURN"),
            Column::Whole("LEFT"),
            Column::Text("DETAILS"),
        ],
        inbox
            .tasks
            .iter()
            .map(|task| {
                let (turn, deadline) = turn::of_task(task, &inbox.handoffs);
                let status = output::short(task.status().as_str_name(), "TASK_STATUS_");
                let details = [task.details.clone(), answered(task)];
                let details = details.into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join("; ");
                vec![
                    task.task_id.clone(),
                    task.task_type.clone(),
                    task.epoch.to_string(),
                    status,
                    turn.to_owned(),
                    turn::left_until(deadline.as_ref(), now),
                    details,
                ]
            })
            .collect(),
    );
    let is_empty = inbox.offers.is_empty() && inbox.contexts.is_empty() && inbox.contexts_to_send.is_empty();
    let is_empty = is_empty && inbox.asked.is_empty() && inbox.offered.is_empty();
    if is_empty && inbox.questions.is_empty() && inbox.tasks.is_empty() {
        say!("nothing waits for {agent}, and it owns no open task");
    }
    if inbox.has_more {
        say!("there may be more; --limit NUMBER shows it");
    }
}

/// The answer that a task has got to its last question, or an empty text.
pub(super) fn answered(task: &v1::Task) -> String {
    let Some(last) = &task.last_answer else { return String::new() };
    let question = last.question.clone().unwrap_or_default();
    let answer = super::task::answer_text(&last.answer.clone().unwrap_or_default());
    format!("{} has answered: {answer}", question.asked_agent_id)
}

fn offered_row(negotiation: &v1::Negotiation, now: Timestamp) -> Vec<String> {
    let standing = negotiation.bids.iter().filter(|bid| bid.state() == BidState::Offered).count();
    let deadline = negotiation.decision_deadline.as_ref().or(negotiation.offers_deadline.as_ref());
    vec![
        negotiation.negotiation_id.clone(),
        output::short(negotiation.state().as_str_name(), "NEGOTIATION_STATE_"),
        negotiation.requester_id.clone(),
        turn::left_until(deadline, now),
        standing.to_string(),
        negotiation.task_type.clone(),
    ]
}

/// Prints one kind of entries, with the command for the next step.
fn section((title, next): (&str, &str), columns: &[Column], rows: Vec<Vec<String>>) {
    if rows.is_empty() {
        return;
    }
    say!("{} {title}: {next}", rows.len());
    table::print(columns, rows);
    say!("");
}
