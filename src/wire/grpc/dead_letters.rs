//! `DeadLetterService`.

use std::time::Duration;

use tonic::{Request, Response, Status};

use super::{
    auth, checked, field, numbered, page_size, read_large, read_small, refuse, refuse_shared,
    responses::{self, Responses, Taker},
    run_large,
};
use crate::{
    broker::{
        Broker, BrokerError, Reply,
        access::{Caller, Purpose},
        engine::Command,
        queries::{DeadBytes, DeadLetterFilter, View},
        refused,
    },
    domain::dead_letter::{DeadState, ParkReason},
    envelope::Checks,
    ids::{AgentId, TaskId, parse_number},
    proto::v1::{self, dead_letter_service_server::DeadLetterService},
    records::DeadLetterRecord,
    wire::{status, to_proto},
};

/// The number of dead letters that one read of the store returns at most.
const READ_AT_A_TIME: usize = 16;

pub(super) struct DeadLetters {
    broker: Broker,
}

impl DeadLetters {
    pub(super) fn new(broker: Broker) -> Self {
        Self { broker }
    }

    async fn settle(&self, command: impl FnOnce(Reply<DeadLetterRecord>) -> Command) -> Result<v1::DeadLetter, Status> {
        let dead = self.broker.ask(command).await.map_err(refuse_shared)?;
        Ok(to_proto::dead_letter(&dead))
    }
}

#[tonic::async_trait]
impl DeadLetterService for DeadLetters {
    async fn get_dead_letter(
        &self,
        request: Request<v1::GetDeadLetterRequest>,
    ) -> Result<Response<v1::GetDeadLetterResponse>, Status> {
        let caller = auth::admitted(&self.broker, &request, Purpose::ReadDeadLetters)?;
        let number = number(&request.get_ref().dead_letter_id)?;
        let dead_letter = read_small(&self.broker, &caller, move |view| whole(view, number)).await.map_err(refuse)?;
        let dead_letter = Some(dead_letter);
        Ok(Response::new(v1::GetDeadLetterResponse { dead_letter }))
    }

    async fn list_dead_letters(
        &self,
        request: Request<v1::ListDeadLettersRequest>,
    ) -> Result<Response<v1::ListDeadLettersResponse>, Status> {
        let caller = auth::admitted(&self.broker, &request, Purpose::ReadDeadLetters)?;
        run_large(&self.broker, &caller, move |broker, caller| list(broker, caller, request.into_inner()))
            .await
            .map(Response::new)
    }

    type ExportDeadLettersStream = Responses<v1::ExportDeadLettersResponse>;

    async fn export_dead_letters(
        &self,
        request: Request<v1::ExportDeadLettersRequest>,
    ) -> Result<Response<Self::ExportDeadLettersStream>, Status> {
        let caller = auth::admitted(&self.broker, &request, Purpose::ReadDeadLetters)?;
        let filter = filter(request.into_inner().filter.unwrap_or_default())?;
        let broker = self.broker.clone();
        // Letters that are parked during the export are left out, so that it has an end.
        let last = read_small(&broker, &caller, |view| view.last_dead_letter()).await.map_err(refuse)?;
        Ok(Response::new(responses::stream(async move |taker| {
            export(&broker, &caller, &filter, last, &taker).await.map_err(refuse)
        })))
    }

    async fn redrive_dead_letter(
        &self,
        request: Request<v1::RedriveDeadLetterRequest>,
    ) -> Result<Response<v1::RedriveDeadLetterResponse>, Status> {
        let caller = auth::admitted(&self.broker, &request, Purpose::SettleDeadLetters)?;
        let request = request.into_inner();
        let dead_letter = number(&request.dead_letter_id)?;
        let to = receiver(&request.to_agent_id)?;
        let dead_letter = self.settle(|reply| Command::Redrive { dead_letter, to, caller, reply }).await?;
        Ok(Response::new(v1::RedriveDeadLetterResponse { dead_letter: Some(dead_letter) }))
    }

    type RedriveDeadLettersStream = Responses<v1::RedriveDeadLettersResponse>;

    async fn redrive_dead_letters(
        &self,
        request: Request<v1::RedriveDeadLettersRequest>,
    ) -> Result<Response<Self::RedriveDeadLettersStream>, Status> {
        let caller = auth::admitted(&self.broker, &request, Purpose::SettleDeadLetters)?;
        let request = request.into_inner();
        let wanted = request.filter.unwrap_or_default();
        if !wanted.states.is_empty() {
            return Err(refuse(field("filter.states", "must be empty: only parked dead letters can be redriven")));
        }
        let filter = filter(wanted)?;
        let to = receiver(&request.to_agent_id)?;
        let pause = pause(request.max_per_second)?;
        let last = read_small(&self.broker, &caller, |view| view.last_dead_letter()).await.map_err(refuse)?;
        let first = find_first(&self.broker, &caller, &filter, last).await.map_err(refuse)?;
        // A caller that may not settle the first dead letter is refused at once; refusals of later ones are in the stream.
        let first = first.ok_or_else(|| refuse(BrokerError::NothingMatches))?;
        self.broker.access().may_settle_dead_letter(&caller, &first).map_err(refuse)?;
        let (broker, is_dry) = (self.broker.clone(), request.dry_run);
        Ok(Response::new(responses::stream(async move |taker| {
            let redrive = Redrive { broker, caller, filter, to, pause, is_dry, last, taker };
            redrive.run().await.map_err(refuse)
        })))
    }

    async fn discard_dead_letter(
        &self,
        request: Request<v1::DiscardDeadLetterRequest>,
    ) -> Result<Response<v1::DiscardDeadLetterResponse>, Status> {
        let caller = auth::admitted(&self.broker, &request, Purpose::SettleDeadLetters)?;
        let request = request.into_inner();
        let dead_letter = number(&request.dead_letter_id)?;
        let mut checks = Checks::default();
        checks.text("reason_text", &request.reason_text, 4096);
        checked(checks)?;
        let reason_text = request.reason_text;
        let dead_letter = self.settle(|reply| Command::Discard { dead_letter, caller, reason_text, reply }).await?;
        Ok(Response::new(v1::DiscardDeadLetterResponse { dead_letter: Some(dead_letter) }))
    }
}

/// Redrives the matching dead letters one by one, until the caller closes the stream.
struct Redrive {
    broker: Broker,
    caller: Caller,
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
    async fn run(&self) -> Result<(), BrokerError> {
        // The first tick is immediate, so the pause is only between two redrives.
        let mut turns = self.pause.map(|pause| {
            let mut turns = tokio::time::interval(pause);
            // A caller that read nothing for a while gets no burst of redrives.
            turns.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            turns
        });
        let mut after = Some(0);
        while let Some(from) = after {
            let (found, next) = find(&self.broker, &self.caller, &self.filter, from, self.last).await?;
            for dead in found {
                tokio::select! {
                    () = self.broker.draining() => return Err(BrokerError::ShuttingDown),
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
            let refused = self.broker.access().may_settle_dead_letter(&self.caller, dead).err();
            let error = refused.as_ref().map(|error| status::message_of(error));
            return v1::RedriveDeadLettersResponse { dead_letter: Some(to_proto::dead_letter(dead)), error };
        }
        let (dead_letter, to, caller) = (dead.number, self.to.clone(), self.caller.clone());
        // In a task of its own: a stream that its client does not read is not polled, and would keep a place that it gets
        // in the engine's queue.
        let broker = self.broker.clone();
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
    broker: &Broker,
    caller: &Caller,
    filter: &DeadLetterFilter,
    after: u64,
    last: u64,
) -> Result<(Vec<DeadLetterRecord>, Option<u64>), BrokerError> {
    let filter = filter.clone();
    read_large(broker, caller, move |view| view.dead_letters_after(&filter, after, last, READ_AT_A_TIME)).await
}

/// The oldest matching dead letter.
async fn find_first(
    broker: &Broker,
    caller: &Caller,
    filter: &DeadLetterFilter,
    last: u64,
) -> Result<Option<DeadLetterRecord>, BrokerError> {
    let mut after = Some(0);
    while let Some(from) = after {
        let (found, next) = find(broker, caller, filter, from, last).await?;
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
    broker: &Broker,
    caller: &Caller,
    filter: &DeadLetterFilter,
    last: u64,
    taker: &Taker<v1::ExportDeadLettersResponse>,
) -> Result<(), BrokerError> {
    let mut after = Some(0);
    while let Some(from) = after {
        let (found, next) = find(broker, caller, filter, from, last).await?;
        for dead in found {
            taker.demand().await;
            let dead_letter = match read_small(broker, caller, move |view| whole(view, dead.number)).await {
                // It was removed since it was found.
                Err(BrokerError::DeadLetterUnknown { .. }) => continue,
                whole => Some(whole?),
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
