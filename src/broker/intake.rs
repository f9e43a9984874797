//! The way in: what arrives from agents goes to the engine in the order it came, signatures checked many at a time.
//!
//! Owns the thread between the sessions and the engine. It takes what is there, checks all signatures of that together,
//! and never waits for more: while it is at work the next batch comes together by itself, the larger the higher the load.
//! Must not know what an envelope is for.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio_util::sync::CancellationToken;

use super::{Refused, Reply, engine::Command, limits::Rates, refused};
use crate::{
    envelope::{self, SignedEnvelope, VerifiedEnvelope, Verifier},
    ids::AgentId,
};

/// Arrivals that are taken at a time: enough that what a batch shares is shared by many.
const BATCH_MAX: usize = 128;

/// What has arrived.
#[derive(Debug)]
pub enum Arrival {
    /// An envelope, of which the signature is still to be checked.
    Envelope {
        /// The envelope.
        envelope: Box<SignedEnvelope>,
        /// Its size, to be counted when it is known who sent it; `None` if it has been.
        uncounted_bytes: Option<usize>,
        /// Who waits for the receipt.
        reply: Reply,
    },
    /// Anything else: it keeps its place between the envelopes.
    Command(Command),
}

/// Something in a queue, with the room that its bytes take until the engine is done with it.
#[derive(Debug)]
pub(super) struct Queued<T> {
    pub(super) what: T,
    pub(super) room: Option<OwnedSemaphorePermit>,
}

impl From<Command> for Arrival {
    fn from(command: Command) -> Self {
        Self::Command(command)
    }
}

/// Until the broker stops, and what had arrived by then is handed on; or until the engine has ended.
pub(super) async fn run(
    mut arrivals: mpsc::Receiver<Queued<Arrival>>,
    commands: mpsc::Sender<Queued<Command>>,
    rates: Arc<Rates>,
    stopping: CancellationToken,
) {
    let mut batch = Vec::with_capacity(BATCH_MAX);
    let mut verifier = Verifier::default();
    loop {
        tokio::select! {
            biased;
            () = stopping.cancelled(), if !arrivals.is_closed() => arrivals.close(),
            received = arrivals.recv_many(&mut batch, BATCH_MAX) => if received == 0 { return },
        }
        for command in check(&mut batch, &mut verifier, &rates) {
            if commands.send(command).await.is_err() {
                return;
            }
        }
    }
}

/// The batch as commands. Envelopes that are refused are answered here.
fn check(batch: &mut Vec<Queued<Arrival>>, verifier: &mut Verifier, rates: &Rates) -> Vec<Queued<Command>> {
    let mut signed = Vec::with_capacity(batch.len());
    let mut waiting = Vec::with_capacity(batch.len());
    for Queued { what, room } in batch.drain(..) {
        let what = match what {
            Arrival::Envelope { envelope, uncounted_bytes, reply } => {
                signed.push(*envelope);
                Waiting::Envelope(uncounted_bytes, reply)
            }
            Arrival::Command(command) => Waiting::Command(command),
        };
        waiting.push(Queued { what, room });
    }
    let mut verified = envelope::verify_all(signed, verifier);
    let mut commands = Vec::with_capacity(waiting.len());
    for Queued { what, room } in waiting {
        let (uncounted_bytes, reply) = match what {
            Waiting::Command(what) => {
                commands.push(Queued { what, room });
                continue;
            }
            Waiting::Envelope(uncounted_bytes, reply) => (uncounted_bytes, reply),
        };
        let outcome = verified.next().expect("there is an answer for each").map_err(refused);
        match outcome.and_then(|envelope| count(envelope, uncounted_bytes, rates)) {
            Ok(envelope) => {
                let what = Command::Submit { envelope: Box::new(envelope), reply };
                commands.push(Queued { what, room });
            }
            Err(refusal) => {
                log(&refusal);
                reply.send(Err(refusal));
            }
        }
    }
    commands
}

enum Waiting {
    Envelope(Option<usize>, Reply),
    Command(Command),
}

fn count(envelope: VerifiedEnvelope, bytes: Option<usize>, rates: &Rates) -> Result<VerifiedEnvelope, Refused> {
    let sender: &AgentId = &envelope.header().sender;
    bytes.map_or(Ok(()), |bytes| rates.check(sender, bytes)).map_err(refused)?;
    Ok(envelope)
}

/// The line about an envelope of which nobody knows who sent it. Anybody can cause this at will: not for the usual log.
pub(super) fn log(refusal: &Refused) {
    tracing::debug!(reason = refusal.code().name(), "an envelope was not verified: {refusal}");
}
