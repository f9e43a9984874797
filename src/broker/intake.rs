//! The way in: what arrives from agents goes to the engine in the order it came, signatures checked many at a time.
//!
//! Owns the queue between the sessions and the engine. Whoever puts something into it checks what is there, all signatures
//! of that together, unless somebody is at it already, who then goes on: so at low load a message goes from its session to
//! the engine without a thread between, and under load a batch comes together by itself while the one before is checked,
//! the larger the higher the load. Nobody waits for more. Must not know what an envelope is for.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, TryLockError},
};

use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::{Refused, Reply, engine::Command, limits::Rates, refused};
use crate::{
    envelope::{self, SignedEnvelope, VerifiedEnvelope, Verifier},
    ids::AgentId,
};

/// Arrivals that are taken at a time: enough that what a batch shares is shared by many, and few enough that a runtime's
/// thread is back soon: 1 ms.
const BATCH_MAX: usize = 64;

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

/// The queue, and the desk at which one at a time checks what is in it.
pub(super) struct Intake {
    queue: Mutex<Queue>,
    desk: Mutex<Desk>,
    rates: Arc<Rates>,
}

#[derive(Default)]
struct Queue {
    arrivals: VecDeque<Queued<Arrival>>,
    is_closed: bool,
}

struct Desk {
    verifier: Verifier,
    /// `None`: nothing goes to the engine any more.
    commands: Option<mpsc::UnboundedSender<Queued<Command>>>,
    batch: Vec<Queued<Arrival>>,
}

impl Intake {
    pub(super) fn new(commands: mpsc::UnboundedSender<Queued<Command>>, rates: Arc<Rates>) -> Arc<Self> {
        let desk = Desk { verifier: Verifier::default(), commands: Some(commands), batch: Vec::new() };
        Arc::new(Self { queue: Mutex::default(), desk: Mutex::new(desk), rates })
    }

    /// Takes arrivals, unless nothing is taken any more.
    pub(super) fn put(self: &Arc<Self>, arrivals: impl IntoIterator<Item = Queued<Arrival>>) -> Result<(), Closed> {
        {
            let mut queue = self.queue();
            if queue.is_closed {
                return Err(Closed);
            }
            queue.arrivals.extend(arrivals);
        }
        self.work();
        Ok(())
    }

    /// Takes nothing any more. What has come is handed on, and when the engine has taken that, its queue ends.
    pub(super) fn close(&self) {
        self.queue().is_closed = true;
        if let Ok(mut desk) = self.desk.lock() {
            while !self.queue().arrivals.is_empty() {
                self.check_batch(&mut desk);
            }
            desk.commands = None;
        }
    }

    /// Whether a check has panicked.
    pub(super) fn has_failed(&self) -> bool {
        self.desk.is_poisoned()
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().expect("no holder panics")
    }

    /// Checks what is there and hands it on, unless somebody is at it.
    fn work(self: &Arc<Self>) {
        // Looked at again after the desk was left: who came meanwhile found it taken.
        while !self.queue().arrivals.is_empty() {
            match self.desk.try_lock() {
                Ok(mut desk) => self.check_batch(&mut desk),
                Err(TryLockError::WouldBlock) => return,
                Err(TryLockError::Poisoned(_)) => return self.give_up(),
            }
            if let Ok(runtime) = tokio::runtime::Handle::try_current()
                && !self.queue().arrivals.is_empty()
            {
                // Whoever brought one of these is not kept for the next.
                let intake = self.clone();
                runtime.spawn(async move { intake.work() });
                return;
            }
        }
    }

    fn check_batch(&self, desk: &mut Desk) {
        // Is dropped if a check panics, and with it the engine's queue ends.
        let Some(commands) = desk.commands.take() else { return self.give_up() };
        {
            let mut queue = self.queue();
            let count = queue.arrivals.len().min(BATCH_MAX);
            desk.batch.extend(queue.arrivals.drain(..count));
        }
        let checked = check(&mut desk.batch, &mut desk.verifier, &self.rates);
        if checked.into_iter().all(|command| commands.send(command).is_ok()) {
            desk.commands = Some(commands);
        } else {
            self.give_up(); // the engine has ended
        }
    }

    /// Nobody takes anything any more: who waits for an answer hears that the broker stops.
    fn give_up(&self) {
        let arrivals = {
            let mut queue = self.queue();
            queue.is_closed = true;
            std::mem::take(&mut queue.arrivals)
        };
        drop(arrivals);
    }
}

/// The broker stops: nothing is taken any more.
#[derive(Debug)]
pub(super) struct Closed;

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::mailbox::HolderId;

    fn intake() -> (Arc<Intake>, mpsc::UnboundedReceiver<Queued<Command>>) {
        let (commands, queue) = mpsc::unbounded_channel();
        (Intake::new(commands, Arc::new(Rates::new(&Default::default()))), queue)
    }

    fn put(intake: &Arc<Intake>, number: u64) -> Result<(), Closed> {
        let close = Command::Close { holder: HolderId(number) };
        intake.put([Queued { what: Arrival::Command(close), room: None }])
    }

    fn number(command: Queued<Command>) -> u64 {
        match command.what {
            Command::Close { holder } => holder.0,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn what_many_bring_at_a_time_is_handed_on_once_and_in_the_order_of_each() {
        const EACH: u64 = 5000;
        let (intake, mut queue) = intake();
        let bring = |who: u64| {
            let intake = intake.clone();
            move || (0..EACH).for_each(|number| put(&intake, who * EACH + number).unwrap())
        };
        // On the runtime's threads, where another task goes on with what is left, and on others, where nobody can.
        let tasks: Vec<_> = (0..3).map(&bring).map(|bring| tokio::spawn(async move { bring() })).collect();
        let threads: Vec<_> = (3..6).map(|who| std::thread::spawn(bring(who))).collect();
        let mut next = [0, 1, 2, 3, 4, 5].map(|who| who * EACH);
        for _ in 0..6 * EACH {
            let number = number(queue.recv().await.unwrap());
            let next = &mut next[usize::try_from(number / EACH).unwrap()];
            assert_eq!(number, *next);
            *next += 1;
        }
        for task in tasks {
            task.await.unwrap();
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        intake.close();
        assert!(queue.recv().await.is_none(), "nothing twice");
    }

    #[tokio::test]
    async fn what_came_before_the_end_is_handed_on_and_what_comes_later_is_refused() {
        let (intake, mut queue) = intake();
        let desk = intake.desk.lock().unwrap();
        (0..200).for_each(|number| put(&intake, number).unwrap());
        drop(desk);
        intake.close();
        assert!(put(&intake, 200).is_err());
        for wanted in 0..200 {
            assert_eq!(number(queue.recv().await.unwrap()), wanted);
        }
        assert!(queue.recv().await.is_none());
        assert!(!intake.has_failed());
    }

    #[test]
    fn nothing_is_taken_once_the_engine_has_ended() {
        let (intake, queue) = intake();
        drop(queue);
        let _ = put(&intake, 1);
        assert!(put(&intake, 2).is_err());
        assert!(intake.queue().arrivals.is_empty());
    }

    #[test]
    fn a_check_that_panics_ends_the_engines_queue_and_leaves_nobody_waiting() {
        let (intake, mut queue) = intake();
        let panicking = intake.clone();
        let checked = std::thread::spawn(move || {
            let mut desk = panicking.desk.lock().unwrap();
            let _commands = desk.commands.take();
            panic!("a check has panicked");
        });
        assert!(checked.join().is_err());
        let _ = put(&intake, 1);
        assert!(put(&intake, 2).is_err());
        assert!(intake.queue().arrivals.is_empty());
        assert!(intake.has_failed());
        assert!(queue.try_recv().is_err() && queue.is_closed());
    }
}
