//! `BrokerService`: send, receive, acknowledge.

use bytes::Bytes;
use tokio_stream::StreamExt;
use tonic::Status;

use super::{
    call::Call,
    field,
    frames::Requests,
    outgoing::{Outgoing, Ready},
    refuse, refuse_shared,
    responses::{self, Responses, Taker},
    session,
};
use crate::{
    broker::{
        Acknowledged, Away, BrokerError, Events,
        engine::{Command, ConsumerKind, Fate},
    },
    domain::{
        EntityId,
        handoff::{Acked, Priority},
        mailbox::Letter,
    },
    envelope::{Checks, EnvelopeError},
    proto::v1::{self, acknowledgement},
};

/// The most unacknowledged deliveries that one session or call of `Receive` may have.
pub(super) const OUTSTANDING_MAX: u32 = 4096;
// The same where the request sets none.
const OUTSTANDING_DEFAULT: u32 = 16;

pub(super) async fn connect(
    call: Call,
    frames: Requests<v1::ConnectRequest>,
) -> Result<Responses<v1::ConnectResponse>, Status> {
    Ok(Box::pin(session::open(call, frames).await?))
}

pub(super) async fn send(call: Call, request: v1::SendRequest) -> Result<v1::SendResponse, Status> {
    let process = super::instance(&request.instance_id)?;
    if process.is_some() && call.caller.as_agent().is_none() {
        return Err(refuse(BrokerError::IdentityMissing));
    }
    let receipt = super::submit(&call, request.envelope, process).await?;
    Ok(v1::SendResponse { receipt: Some(receipt) })
}

pub(super) async fn receive(call: Call, request: v1::ReceiveRequest) -> Result<Responses<v1::ReceiveResponse>, Status> {
    let process = super::instance(&request.instance_id)?;
    if request.peek {
        let most = request.max_deliveries;
        return Ok(responses::stream(async move |taker| peek(&call, most, &taker).await));
    }
    let outstanding_max = match request.max_outstanding {
        0 => OUTSTANDING_DEFAULT,
        wanted => check_outstanding("max_outstanding", wanted).map_err(refuse)?,
    };
    let agent = call.agent()?.clone();
    // Checked before the queue, so that an agent over its limit of sessions costs the engine nothing.
    call.broker.may_open(&agent).map_err(refuse)?;
    let deliveries_max = Some(request.max_deliveries).filter(|most| *most > 0);
    let (events, receiver) = Events::channel();
    let kind = ConsumerKind::Receive { deliveries_max };
    let consumer = call.broker.open(agent.clone(), kind, events).await.map_err(refuse_shared)?;
    if let Some(instance) = process {
        let (consumer, tells_work) = (consumer.id(), false);
        let hello = Command::Hello { consumer, instance, tells_work, reply: None };
        call.broker.send(hello).await.map_err(refuse_shared)?;
    }
    // A call grants its credit once; a session changes it by frames.
    let credit = Command::Credit { consumer: consumer.id(), outstanding_max, reply: None };
    call.broker.send(credit).await.map_err(refuse_shared)?;
    let responses = Outgoing::new(call.broker.clone(), agent, receiver).filter_map(move |outgoing| {
        let _open_until_the_stream_ends = &consumer;
        match outgoing {
            Ready::Delivery(delivery) => Some(Ok(v1::ReceiveResponse { delivery: Some(*delivery) })),
            Ready::GoAway(why) => Some(Err(refuse(end_of_call(why)))),
            // A call of Receive sends no requests, so it has no answers.
            Ready::Answer { .. } => None,
        }
    });
    Ok(Box::pin(responses))
}

pub(super) async fn ack(call: Call, request: v1::AckRequest) -> Result<v1::AckResponse, Status> {
    let acknowledgement = request.acknowledgement.ok_or_else(|| refuse(field("acknowledgement", "must be set")))?;
    let (delivery_id, fate) = fate(acknowledgement).map_err(refuse)?;
    let agent = call.agent()?.clone();
    let answer = call.ask(|_, reply| Command::Acknowledge { agent, delivery_id, fate, reply }).await?;
    Ok(v1::AckResponse { acknowledged: Some(acknowledged(answer)) })
}

/// Shows the deliveries that wait for the agent, at most `most` of them; 0: all. Higher priorities go first, and within one
/// the oldest.
async fn peek(call: &Call, most: u32, taker: &Taker<v1::ReceiveResponse>) -> Result<(), Status> {
    let mut left = if most == 0 { usize::MAX } else { most as usize };
    for priority in [Priority::Critical, Priority::High, Priority::Medium, Priority::Low] {
        let mut after = Some(0);
        while let Some(place) = after.filter(|_| left > 0) {
            taker.demand().await;
            let (agent, now) = (call.agent()?.clone(), call.broker.now());
            let page = call.read_large(move |view| view.mail(&agent, priority, place, left, now)).await?;
            after = page.next;
            left -= page.letters.len();
            for (letter, envelope) in page.letters {
                taker.send(v1::ReceiveResponse { delivery: Some(shown(&letter, envelope)) }).await;
            }
        }
    }
    Ok(())
}

/// A letter as a delivery that needs no acknowledgement.
fn shown(letter: &Letter, envelope: Bytes) -> v1::Delivery {
    v1::Delivery {
        delivery_id: String::new(),
        envelope,
        attempt: letter.handouts + 1,
        sequence: letter.message_sequence,
        ack_deadline: None,
        handoff_id: match letter.report_to {
            Some((EntityId::Handoff(handoff), Acked::Request)) => handoff.to_string(),
            _ => String::new(),
        },
        trace_context: letter.trace.as_deref().map(Into::into),
    }
}

/// The error that ends a call of `Receive`.
fn end_of_call(why: Away) -> BrokerError {
    match why {
        Away::Stopping => BrokerError::ShuttingDown,
        Away::BeginsAgain => BrokerError::StoreUnavailable,
        Away::KeyRevoked | Away::Deregistered => BrokerError::IdentityEnded { why },
    }
}

pub(super) fn acknowledged(answer: Acknowledged) -> v1::Acknowledged {
    let Acknowledged { delivery_id, ack_deadline } = answer;
    v1::Acknowledged { delivery_id, ack_deadline: ack_deadline.map(Into::into) }
}

pub(super) fn check_outstanding(path: &str, wanted: u32) -> Result<u32, BrokerError> {
    if wanted <= OUTSTANDING_MAX { Ok(wanted) } else { Err(field(path, "must be at most 4096")) }
}

/// Parses an acknowledgement into the delivery's id and its fate.
pub(crate) fn fate(acknowledgement: v1::Acknowledgement) -> Result<(String, Fate), EnvelopeError> {
    let mut checks = Checks::default();
    let fate = match acknowledgement.outcome {
        None => {
            checks.wrong("acknowledgement.outcome", "must be ack, nack or extend");
            None
        }
        Some(acknowledgement::Outcome::Ack(v1::Ack {})) => Some(Fate::Acked),
        Some(acknowledgement::Outcome::Nack(nack)) => nack_fate(&mut checks, nack),
        Some(acknowledgement::Outcome::Extend(extend)) => {
            let extension = checks.span("acknowledgement.extend.extension", extend.extension.as_ref());
            Some(Fate::Extend { extension })
        }
    };
    Ok((acknowledgement.delivery_id, checks.finish_with(fate)?))
}

fn nack_fate(checks: &mut Checks, nack: v1::Nack) -> Option<Fate> {
    checks.text("acknowledgement.nack.reason_text", &nack.reason_text, 4096);
    let retry_after = checks.span("acknowledgement.nack.retry_after", nack.retry_after.as_ref());
    match checks.known("acknowledgement.nack.cause", nack.cause)? {
        v1::NackCause::Poison => Some(Fate::Poison { text: nack.reason_text }),
        v1::NackCause::Failure => Some(Fate::Failed { text: nack.reason_text, retry_after }),
        v1::NackCause::Shutdown => Some(Fate::Shutdown { text: nack.reason_text, retry_after }),
        // `known` refuses 0 already; the arm is here because the match is exhaustive.
        v1::NackCause::Unspecified => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::codes::Refusal as _;

    fn nack(seconds: i64, nanos: i32) -> v1::Acknowledgement {
        let retry_after = Some(prost_types::Duration { seconds, nanos });
        let nack = v1::Nack { cause: v1::NackCause::Failure.into(), retry_after, ..Default::default() };
        v1::Acknowledgement { delivery_id: "1-1".into(), outcome: Some(acknowledgement::Outcome::Nack(nack)) }
    }

    fn extend(seconds: i64, nanos: i32) -> v1::Acknowledgement {
        let extend = v1::Extend { extension: Some(prost_types::Duration { seconds, nanos }) };
        v1::Acknowledgement { delivery_id: "1-1".into(), outcome: Some(acknowledgement::Outcome::Extend(extend)) }
    }

    #[test]
    fn a_span_that_is_no_duration_is_refused_by_its_path() {
        let (_, taken) = fate(nack(1, 500_000_000)).unwrap();
        let retry_after = Some(Duration::from_millis(1500));
        assert_eq!(taken, Fate::Failed { text: String::new(), retry_after });
        for (seconds, nanos) in [(i64::MAX, 0), (1, -1), (-1, 1), (0, 2_000_000_000), (0, -1), (315_576_000_001, 0)] {
            for (acknowledgement, path) in [
                (nack(seconds, nanos), "acknowledgement.nack.retry_after"),
                (extend(seconds, nanos), "acknowledgement.extend.extension"),
            ] {
                let refusal = fate(acknowledgement).unwrap_err();
                let paths: Vec<_> = refusal.violations().iter().map(|violation| violation.path.as_str()).collect();
                assert_eq!(paths, [path], "{seconds} s and {nanos} ns");
            }
        }
    }
}
