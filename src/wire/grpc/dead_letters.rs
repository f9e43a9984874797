//! `DeadLetterService`.

use std::time::Duration;

use tonic::Status;

use super::{
    call::Call,
    checked, field, numbered, page_size, refuse,
    responses::{self, Responses, Taker},
};
use crate::{
    broker::{
        Broker, BrokerError,
        access::Caller,
        engine::Command,
        places::WorkSize,
        queries::{DeadBytes, DeadLetterFilter, View},
        refused,
    },
    domain::dead_letter::{DeadState, ParkReason},
    envelope::Checks,
    ids::{AgentId, TaskId, parse_number},
    proto::v1,
    records::DeadLetterRecord,
    wire::{status, to_proto},
};

/// The number of dead letters that one read of the store returns at most.
const READ_AT_A_TIME: usize = 16;

pub(super) async fn get_dead_letter(
    call: Call,
    request: v1::GetDeadLetterRequest,
) -> Result<v1::GetDeadLetterResponse, Status> {
    let number = number(&request.dead_letter_id)?;
    let dead_letter = call.read_small(move |view| whole(view, number)).await?;
    let dead_letter = Some(dead_letter);
    Ok(v1::GetDeadLetterResponse { dead_letter })
}

pub(super) async fn list_dead_letters(
    call: Call,
    request: v1::ListDeadLettersRequest,
) -> Result<v1::ListDeadLettersResponse, Status> {
    call.run_large(move |broker, caller| list(broker, caller, request)).await
}

pub(super) async fn export_dead_letters(
    call: Call,
    request: v1::ExportDeadLettersRequest,
) -> Result<Responses<v1::ExportDeadLettersResponse>, Status> {
    let filter = filter(request.filter.unwrap_or_default())?;
    // Letters that are parked during the export are left out, so that it has an end.
    let last = call.read_small(|view| view.last_dead_letter()).await?;
    Ok(responses::stream(async move |taker| export(&call, &filter, last, &taker).await))
}

pub(super) async fn redrive_dead_letter(
    call: Call,
    request: v1::RedriveDeadLetterRequest,
) -> Result<v1::RedriveDeadLetterResponse, Status> {
    let dead_letter = number(&request.dead_letter_id)?;
    let to = receiver(&request.to_agent_id)?;
    let dead = call.ask(|caller, reply| Command::Redrive { dead_letter, to, caller, reply }).await?;
    Ok(v1::RedriveDeadLetterResponse { dead_letter: Some(to_proto::dead_letter(&dead)) })
}

pub(super) async fn redrive_dead_letters(
    call: Call,
    request: v1::RedriveDeadLettersRequest,
) -> Result<Responses<v1::RedriveDeadLettersResponse>, Status> {
    let wanted = request.filter.unwrap_or_default();
    if !wanted.states.is_empty() {
        return Err(refuse(field("filter.states", "must be empty: only parked dead letters can be redriven")));
    }
    let filter = filter(wanted)?;
    let to = receiver(&request.to_agent_id)?;
    let pause = pause(request.max_per_second)?;
    let last = call.read_small(|view| view.last_dead_letter()).await?;
    let first = find_first(&call, &filter, last).await?;
    // A caller that may not settle the first dead letter is refused at once; refusals of later ones are in the stream.
    let first = first.ok_or_else(|| refuse(BrokerError::NothingMatches))?;
    call.broker.access().may_settle_dead_letter(&call.caller, &first).map_err(refuse)?;
    let is_dry = request.dry_run;
    Ok(responses::stream(async move |taker| Redrive { call, filter, to, pause, is_dry, last, taker }.run().await))
}

pub(super) async fn discard_dead_letter(
    call: Call,
    request: v1::DiscardDeadLetterRequest,
) -> Result<v1::DiscardDeadLetterResponse, Status> {
    let dead_letter = number(&request.dead_letter_id)?;
    let mut checks = Checks::default();
    checks.text("reason_text", &request.reason_text, 4096);
    checked(checks)?;
    let reason_text = request.reason_text;
    let dead = call.ask(|caller, reply| Command::Discard { dead_letter, caller, reason_text, reply }).await?;
    Ok(v1::DiscardDeadLetterResponse { dead_letter: Some(to_proto::dead_letter(&dead)) })
}

/// Redrives the matching dead letters one by one, until the caller closes the stream.
struct Redrive {
    call: Call,
    filter: DeadLetterFilter,
    to: Option<AgentId>,
    pause: Option<Duration>,
    /// Whether nothing is changed.
    is_dry: bool,
    /// The number of the last dead letter parked before the call. A letter that the redrive parks again is not redriven
    /// again.
    last: u64,
    taker: Taker<v1::RedriveDeadLettersResponse>,
}

impl Redrive {
    async fn run(&self) -> Result<(), Status> {
        // The first tick is immediate, so the pause is only between two redrives.
        let mut turns = self.pause.map(|pause| {
            let mut turns = tokio::time::interval(pause);
            // A caller that read nothing for a while gets no burst of redrives.
            turns.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            turns
        });
        let mut after = Some(0);
        while let Some(from) = after {
            let (found, next) = find(&self.call, &self.filter, from, self.last).await?;
            for dead in found {
                tokio::select! {
                    () = self.call.broker.draining() => return Err(refuse(BrokerError::ShuttingDown)),
                    () = turn(turns.as_mut()) => {}
                }
                let answer = self.redrive(&dead).await;
                self.taker.send(answer).await;
            }
            after = next;
        }
        Ok(())
    }

    async fn redrive(&self, dead: &DeadLetterRecord) -> v1::RedriveDeadLettersResponse {
        if self.is_dry {
            let refused = self.call.broker.access().may_settle_dead_letter(&self.call.caller, dead).err();
            let error = refused.as_ref().map(|error| status::message_of(error));
            return v1::RedriveDeadLettersResponse { dead_letter: Some(to_proto::dead_letter(dead)), error };
        }
        let (dead_letter, to, caller) = (dead.number, self.to.clone(), self.call.caller.clone());
        // In a task of its own: a stream that its client does not read is not polled, and would keep a place that it gets
        // in the engine's queue.
        let broker = self.call.broker.clone();
        let redriven =
            tokio::spawn(async move { broker.ask(|reply| Command::Redrive { dead_letter, to, caller, reply }).await });
        match redriven.await.unwrap_or_else(|_| Err(refused(BrokerError::Internal))) {
            Ok(dead) => v1::RedriveDeadLettersResponse { dead_letter: Some(to_proto::dead_letter(&dead)), error: None },
            // The refusal of one letter does not end the redrive of the rest.
            Err(error) => v1::RedriveDeadLettersResponse {
                dead_letter: Some(to_proto::dead_letter(dead)),
                error: Some(status::message_of(&*error)),
            },
        }
    }
}

async fn turn(turns: Option<&mut tokio::time::Interval>) {
    if let Some(turns) = turns {
        turns.tick().await;
    }
}

/// Reads the next matching dead letters, on a thread that may wait for the disk. Also returns where the next read continues; `None`: the end.
async fn find(
    call: &Call,
    filter: &DeadLetterFilter,
    after: u64,
    last: u64,
) -> Result<(Vec<DeadLetterRecord>, Option<u64>), Status> {
    let filter = filter.clone();
    call.read_large(move |view| view.dead_letters_after(&filter, after, last, READ_AT_A_TIME)).await
}

/// The oldest matching dead letter.
async fn find_first(call: &Call, filter: &DeadLetterFilter, last: u64) -> Result<Option<DeadLetterRecord>, Status> {
    let mut after = Some(0);
    while let Some(from) = after {
        let (found, next) = find(call, filter, from, last).await?;
        if let Some(first) = found.into_iter().next() {
            return Ok(Some(first));
        }
        after = next;
    }
    Ok(None)
}

/// A dead letter with its bytes.
fn whole(view: View<'_>, number: u64) -> Result<v1::DeadLetter, BrokerError> {
    let dead = view.dead_letter(number)?;
    let DeadBytes { envelope, context_digest } = view.dead_bytes(&dead)?;
    Ok(v1::DeadLetter { envelope_bytes: envelope, context_digest, ..to_proto::dead_letter(&dead) })
}

/// Sends the matching dead letters with their envelopes, as fast as the caller takes them.
async fn export(
    call: &Call,
    filter: &DeadLetterFilter,
    last: u64,
    taker: &Taker<v1::ExportDeadLettersResponse>,
) -> Result<(), Status> {
    let mut after = Some(0);
    while let Some(from) = after {
        let (found, next) = find(call, filter, from, last).await?;
        for dead in found {
            taker.demand().await;
            let dead_letter = match call.read(WorkSize::Small, move |view| whole(view, dead.number)).await {
                // It was removed since it was found.
                Err(BrokerError::DeadLetterUnknown { .. }) => continue,
                whole => Some(whole.map_err(refuse)?),
            };
            taker.send(v1::ExportDeadLettersResponse { dead_letter }).await;
        }
        after = next;
    }
    Ok(())
}

fn list(
    broker: &Broker,
    caller: &Caller,
    request: v1::ListDeadLettersRequest,
) -> Result<v1::ListDeadLettersResponse, Status> {
    let size = page_size(request.page_size);
    let filter = filter(request.filter.unwrap_or_default())?;
    let page = broker.view(caller).dead_letters(&filter, size, &request.page_token).map_err(refuse)?;
    Ok(v1::ListDeadLettersResponse {
        dead_letters: page.entries.iter().map(to_proto::dead_letter).collect(),
        next_page_token: page.next_token,
    })
}

fn number(id: &str) -> Result<u64, Status> {
    parse_number(id).ok_or_else(|| refuse(field("dead_letter_id", "must be a decimal number without leading zeros")))
}

fn receiver(text: &str) -> Result<Option<AgentId>, Status> {
    let mut checks = Checks::default();
    let receiver = checks.optional_id("to_agent_id", text, AgentId::parse);
    checked(checks)?;
    Ok(receiver)
}

/// The time between two redrives. `None`: no limit.
fn pause(per_second: f64) -> Result<Option<Duration>, Status> {
    match per_second {
        0.0 => Ok(None),
        rate if (0.001..=1_000_000.0).contains(&rate) => Ok(Some(Duration::from_secs_f64(1.0 / rate))),
        _ => Err(refuse(field("max_per_second", "must be from 0.001 to 1000000, or 0 for no limit"))),
    }
}

fn filter(wanted: v1::DeadLetterFilter) -> Result<DeadLetterFilter, Status> {
    let mut checks = Checks::default();
    checks.at_most("filter.states", wanted.states.len(), 16, "entries");
    checks.at_most("filter.reasons", wanted.reasons.len(), 16, "entries");
    checks.at_most("filter.message_types", wanted.message_types.len(), 32, "entries");
    let states = numbered(&mut checks, "filter.states", "known", &wanted.states, DeadState::from_number);
    let reasons = numbered(&mut checks, "filter.reasons", "known", &wanted.reasons, ParkReason::from_number);
    let known_type = |number| v1::MessageType::try_from(number).ok().filter(|kind| *kind as i32 != 0).map(|_| number);
    let message_types = numbered(&mut checks, "filter.message_types", "known", &wanted.message_types, known_type);
    let filter = DeadLetterFilter {
        states,
        reasons,
        agent: checks.optional_id("filter.agent_id", &wanted.agent_id, AgentId::parse),
        sender: checks.optional_id("filter.sender_id", &wanted.sender_id, AgentId::parse),
        task: checks.optional_id("filter.task_id", &wanted.task_id, TaskId::parse),
        message_types,
        parked_from: checks.time("filter.park_time_from", wanted.park_time_from.as_ref()),
        parked_before: checks.time("filter.park_time_before", wanted.park_time_before.as_ref()),
    };
    checked(checks)?;
    Ok(filter)
}
