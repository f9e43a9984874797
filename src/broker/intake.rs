//! The way in: what arrives from agents goes to the engine in the order it came, signatures checked many at a time.
//!
//! Owns the queue between the sessions and the engine. A batch comes together by itself while the engine is busy with a
//! group: whoever brings what makes it a full one checks it, all signatures together, unless somebody is at it already. What
//! is left when the engine wants the next group the engine checks itself. So no message waits for others, no batch that
//! could have been full is not, and at low load a message goes from its session to the engine without a thread between.
//! Must not know what an envelope is for.

use std::{
    collections::VecDeque,
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::{Notify, OwnedSemaphorePermit};

use super::{Refused, Reply, engine::Command, limits::Rates, refused};
use crate::{
    envelope::{self, SignedEnvelope, VerifiedEnvelope, Verifier},
    ids::AgentId,
};

/// Signatures that are a full batch: so many lanes has what checks them.
const BATCH_FULL: usize = 8;
/// Signatures that are checked at a time, so that nobody else who wants the desk waits long.
const BATCH_MAX: usize = 16;
/// Arrivals after which one goes on with something else: it is back within 1 ms.
const TURN_MAX: usize = 64;

/// What has arrived.
#[derive(Debug)]
pub enum Arrival {
    /// An envelope, of which the signature is still to be checked.
    Envelope {
        /// The envelope.
        envelope: SignedEnvelope,
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

/// The queue, and the desk at which one at a time checks what is in it. Where both are locked, the desk is first.
pub(super) struct Intake {
    queue: Mutex<Queue>,
    desk: Mutex<Desk>,
    /// For the engine: there may be something.
    arrived: Notify,
    rates: Arc<Rates>,
}

#[derive(Default)]
struct Queue {
    arrivals: VecDeque<Queued<Arrival>>,
    /// How many of them have a signature.
    signed: usize,
    is_closed: bool,
}

struct Desk {
    verifier: Verifier,
    batch: Vec<Queued<Arrival>>,
    /// What came before all that is in the queue, and only waits for the engine.
    checked: Vec<Queued<Command>>,
}

impl Intake {
    pub(super) fn new(rates: Arc<Rates>) -> Self {
        let desk = Desk { verifier: Verifier::default(), batch: Vec::new(), checked: Vec::new() };
        Self { queue: Mutex::default(), desk: Mutex::new(desk), arrived: Notify::new(), rates }
    }

    /// Takes arrivals, unless nothing is taken any more.
    pub(super) fn put(&self, arrivals: impl IntoIterator<Item = Queued<Arrival>>) -> Result<(), Closed> {
        {
            let mut queue = self.queue();
            if queue.is_closed {
                return Err(Closed);
            }
            let before = queue.arrivals.len();
            queue.arrivals.extend(arrivals);
            let signed = queue.arrivals.range(before..).filter(|queued| is_signed(queued)).count();
            queue.signed += signed;
        }
        self.check_what_need_not_wait();
        self.arrived.notify_one();
        Ok(())
    }

    /// Takes nothing any more. What has come the engine still gets.
    pub(super) fn close(&self) {
        self.queue().is_closed = true;
        self.arrived.notify_one();
    }

    /// For the engine, so that it can end in any way: who waits for an answer then hears that the broker stops.
    pub(super) fn close_on_drop(&self) -> impl Drop {
        CloseOnDrop(self)
    }

    /// Whether a check has panicked.
    pub(super) fn has_failed(&self) -> bool {
        self.desk.is_poisoned()
    }

    /// For the engine: waits until there is something, and takes it, at most so many. It checks what makes no full batch;
    /// of more than that, which came while it was at the desk, only one, since others then have time for it. No more comes
    /// after an `Err`. Can be dropped while it waits.
    pub(super) async fn take(&self, commands: &mut Vec<Queued<Command>>, most: usize) -> Result<(), Closed> {
        while !self.take_what_is_there(commands, most)? {
            self.arrived.notified().await;
        }
        Ok(())
    }

    /// False: there is nothing yet.
    fn take_what_is_there(&self, commands: &mut Vec<Queued<Command>>, most: usize) -> Result<bool, Closed> {
        let is_closed = self.queue().is_closed; // asked first: what came before is still taken
        // A check that panicked: nobody knows what has become of its batch.
        let mut desk = self.desk.lock().map_err(|_| Closed)?;
        if desk.checked.len() < most {
            self.check(&mut desk, |signed| signed.min(BATCH_FULL));
        }
        let count = desk.checked.len().min(most);
        commands.extend(desk.checked.drain(..count));
        let is_empty = desk.checked.is_empty() && self.queue().arrivals.is_empty();
        if !is_empty {
            self.arrived.notify_one();
        }
        if count == 0 && is_empty && is_closed { Err(Closed) } else { Ok(count > 0) }
    }

    /// How many arrivals wait for the engine.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.queue().arrivals.len() + self.desk.lock().unwrap().checked.len()
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().expect("no holder panics")
    }

    /// Checks what makes full batches, or has no signature, unless somebody is at it, who then does. What is left over is for
    /// the engine.
    fn check_what_need_not_wait(&self) {
        let mut taken = 0;
        // Looked at again after the desk was left: who came meanwhile found it taken.
        while taken < TURN_MAX && self.queue().need_not_wait() {
            let Ok(mut desk) = self.desk.try_lock() else { return }; // and that a check has panicked the engine finds
            taken += self.check(&mut desk, |signed| signed - signed % BATCH_FULL);
        }
    }

    /// Checks as many signatures as `most` says of those that are there, and takes what is before and between them. Returns
    /// how many arrivals those were.
    fn check(&self, desk: &mut Desk, most: impl Fn(usize) -> usize) -> usize {
        let Desk { verifier, batch, checked } = desk;
        {
            let mut queue = self.queue();
            let signed = most(queue.signed).min(BATCH_MAX);
            queue.move_to(batch, signed);
        }
        let taken = batch.len();
        check(batch, verifier, &self.rates, checked);
        taken
    }
}

impl Queue {
    /// Whether there is a full batch of signatures, or only what has none.
    fn need_not_wait(&self) -> bool {
        self.signed >= BATCH_FULL || self.signed == 0 && !self.arrivals.is_empty()
    }

    /// Moves as many arrivals as have so many signatures, and what is behind them and has none.
    fn move_to(&mut self, batch: &mut Vec<Queued<Arrival>>, signed: usize) {
        let mut left = signed;
        self.signed -= signed;
        while let Some(first) = self.arrivals.front() {
            if is_signed(first) {
                if left == 0 {
                    return;
                }
                left -= 1;
            }
            batch.extend(self.arrivals.pop_front());
        }
    }
}

struct CloseOnDrop<'a>(&'a Intake);

impl Drop for CloseOnDrop<'_> {
    fn drop(&mut self) {
        let arrivals = {
            let mut queue = self.0.queue();
            queue.is_closed = true;
            mem::take(&mut queue.arrivals)
        };
        drop(arrivals);
        // Also after a check that panicked: who waits is not to wait for ever.
        self.0.desk.lock().unwrap_or_else(PoisonError::into_inner).checked.clear();
    }
}

fn is_signed(queued: &Queued<Arrival>) -> bool {
    matches!(&queued.what, Arrival::Envelope { envelope, .. } if envelope.is_signed())
}

/// The broker stops: nothing is taken any more.
#[derive(Debug)]
pub(super) struct Closed;

/// The batch as commands, behind those that are there. Envelopes that are refused are answered here.
fn check(
    batch: &mut Vec<Queued<Arrival>>,
    verifier: &mut Verifier,
    rates: &Rates,
    commands: &mut Vec<Queued<Command>>,
) {
    let mut signed = Vec::with_capacity(batch.len());
    let mut waiting = Vec::with_capacity(batch.len());
    for Queued { what, room } in batch.drain(..) {
        let what = match what {
            Arrival::Envelope { envelope, uncounted_bytes, reply } => {
                signed.push(envelope);
                Waiting::Envelope(uncounted_bytes, reply)
            }
            Arrival::Command(command) => Waiting::Command(command),
        };
        waiting.push(Queued { what, room });
    }
    let mut verified = envelope::verify_all(signed, verifier);
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
                let what = Command::Submit { envelope, reply };
                commands.push(Queued { what, room });
            }
            Err(refusal) => {
                log(&refusal);
                reply.send(Err(refusal));
            }
        }
    }
}

enum Waiting {
    Envelope(Option<usize>, Reply),
    Command(Command),
}

fn count(
    envelope: Box<VerifiedEnvelope>,
    bytes: Option<usize>,
    rates: &Rates,
) -> Result<Box<VerifiedEnvelope>, Refused> {
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
    use prost::Message as _;
    use tokio::sync::oneshot;

    use super::*;
    use crate::{
        broker::{Outcome, Settings},
        codes::ErrorCode,
        domain::mailbox::HolderId,
        envelope::{
            KeyRing, KeyRingError, UnverifiedEnvelope,
            keys::{PrivateKey, PublicKey},
        },
        ids::{IdSource as _, KeyId, SystemIds},
        proto::v1::{self, MessageType},
        time::{Clock as _, SystemClock, Timestamp},
    };

    fn intake() -> Arc<Intake> {
        Arc::new(Intake::new(Arc::new(Rates::new(&Settings::default().limits))))
    }

    fn command(number: u64) -> Queued<Arrival> {
        Queued { what: Arrival::Command(Command::Close { holder: HolderId(number) }), room: None }
    }

    fn put(intake: &Intake, number: u64) -> Result<(), Closed> {
        intake.put([command(number)])
    }

    /// What is taken: the numbers of commands, and the epochs of envelopes.
    async fn take(intake: &Intake, most: usize) -> Result<Vec<u64>, Closed> {
        let mut commands = Vec::new();
        intake.take(&mut commands, most).await?;
        let number = |command: Queued<Command>| match command.what {
            Command::Close { holder } => holder.0,
            Command::Submit { envelope, .. } => envelope.header().epoch,
            other => panic!("{other:?}"),
        };
        Ok(commands.into_iter().map(number).collect())
    }

    struct OneKey(PublicKey);

    impl KeyRing for OneKey {
        fn key(&self, _: &AgentId, _: &KeyId, _: Timestamp) -> Result<PublicKey, KeyRingError> {
            Ok(self.0.clone())
        }
    }

    /// An envelope of this epoch, by its sender or by somebody else, and what comes back.
    fn envelope(epoch: u64, is_good: bool) -> (Queued<Arrival>, oneshot::Receiver<Outcome>) {
        let now = SystemClock.now();
        let (seconds, nanos) = now.to_parts();
        let mut envelope = v1::Envelope {
            message_id: SystemIds.message_id(now).to_string(),
            sender_id: "one".to_owned(),
            receiver_id: "two".to_owned(),
            timestamp: Some(prost_types::Timestamp { seconds, nanos }),
            message_type: MessageType::Info.into(),
            task_id: "task".to_owned(),
            epoch,
            payload: Some(envelope::payload_of(&v1::Info::default())),
            ..Default::default()
        };
        let (key, other) = (PrivateKey::from_seed(&[1; 32]), PrivateKey::from_seed(&[2; 32]));
        envelope::sign(&mut envelope, &KeyId::parse("key").unwrap(), if is_good { &key } else { &other });
        let parsed = UnverifiedEnvelope::parse(envelope.encode_to_vec().into()).unwrap();
        let signed = parsed.with_key(&OneKey(key.public()), now, false).unwrap();
        let (reply, outcome) = oneshot::channel();
        let what = Arrival::Envelope { envelope: signed, uncounted_bytes: None, reply: Reply::Once(reply) };
        (Queued { what, room: None }, outcome)
    }

    /// Whether one who waits has heard that there will be no answer.
    fn has_closed(outcome: &mut oneshot::Receiver<Outcome>) -> bool {
        matches!(outcome.try_recv(), Err(oneshot::error::TryRecvError::Closed))
    }

    #[tokio::test]
    async fn what_many_bring_at_a_time_is_taken_once_and_in_the_order_of_each() {
        const EACH: u64 = 2000;
        let intake = intake();
        let bring = |who: u64| {
            let intake = intake.clone();
            move || {
                for number in who * EACH..(who + 1) * EACH {
                    let arrival = if number % 3 == 0 { envelope(number, true).0 } else { command(number) };
                    intake.put([arrival]).unwrap();
                }
            }
        };
        let threads: Vec<_> = (0..4).map(|who| std::thread::spawn(bring(who))).collect();
        let mut next = [0, 1, 2, 3].map(|who| who * EACH);
        while next != [1, 2, 3, 4].map(|who| who * EACH) {
            let taken = take(&intake, 100).await.unwrap();
            assert!((1..=100).contains(&taken.len()));
            for number in taken {
                let next = &mut next[usize::try_from(number / EACH).unwrap()];
                assert_eq!(number, *next);
                *next += 1;
            }
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        intake.close();
        assert!(take(&intake, 100).await.is_err(), "nothing twice");
    }

    #[tokio::test]
    async fn whoever_makes_a_batch_full_checks_it_and_the_engine_checks_what_is_left() {
        let intake = intake();
        let checked = || intake.desk.lock().unwrap().checked.len();
        for number in 0..7 {
            intake.put([envelope(number, true).0, command(100 + number)]).unwrap();
            assert_eq!(checked(), 0, "it may still become one with others");
        }
        intake.put([7, 8].map(|number| envelope(number, true).0)).unwrap();
        assert_eq!((checked(), intake.queue().signed), (15, 1));
        intake.put((9..109).map(|number| envelope(number, true).0)).unwrap();
        assert_eq!((checked(), intake.queue().signed), (79, 37), "nobody is kept for long");
        let mut wanted: Vec<u64> = (0..7).flat_map(|number| [number, 100 + number]).collect();
        wanted.extend(7..109);
        let mut taken = take(&intake, 80).await.unwrap();
        assert_eq!((taken.len(), checked(), intake.queue().signed), (80, 7, 29), "one batch");
        while taken.len() < wanted.len() {
            taken.extend(take(&intake, 80).await.unwrap());
        }
        assert_eq!(taken, wanted);
        put(&intake, 1).unwrap();
        assert_eq!(checked(), 1, "there is nothing to be checked");
    }

    #[tokio::test]
    async fn a_bad_signature_is_refused_alone_wherever_it_is_checked() {
        for many in [1, 2, 7, 8, 19] {
            for bad in [0, many / 2, many - 1] {
                let intake = intake();
                let (arrivals, mut outcomes): (Vec<_>, Vec<_>) =
                    (0..many).map(|number| envelope(number, number != bad)).unzip();
                intake.put(arrivals.into_iter().chain([command(99)])).unwrap();
                let wanted: Vec<u64> = (0..many).filter(|number| *number != bad).chain([99]).collect();
                assert_eq!(take(&intake, 64).await.unwrap(), wanted);
                let refusal = outcomes.remove(usize::try_from(bad).unwrap()).try_recv().unwrap().unwrap_err();
                assert_eq!(refusal.code(), ErrorCode::SignatureInvalid);
            }
        }
    }

    #[tokio::test]
    async fn nothing_is_taken_where_all_is_refused_until_something_good_comes() {
        let intake = intake();
        intake.put([envelope(1, false).0]).unwrap();
        let taking = tokio::spawn({
            let intake = intake.clone();
            async move { take(&intake, 64).await.unwrap() }
        });
        while !intake.queue().arrivals.is_empty() {
            tokio::task::yield_now().await;
        }
        put(&intake, 2).unwrap();
        assert_eq!(taking.await.unwrap(), [2]);
    }

    #[tokio::test]
    async fn what_came_before_the_end_is_taken_and_what_comes_later_is_refused() {
        let intake = intake();
        (0..200).for_each(|number| put(&intake, number).unwrap());
        intake.close();
        assert!(put(&intake, 200).is_err());
        let first = take(&intake, 150).await.unwrap();
        let all: Vec<u64> = first.into_iter().chain(take(&intake, 150).await.unwrap()).collect();
        assert_eq!(all, (0..200).collect::<Vec<_>>());
        assert!(take(&intake, 150).await.is_err());
        assert!(!intake.has_failed());
    }

    #[tokio::test]
    async fn when_the_engine_has_ended_nobody_is_left_waiting() {
        let intake = intake();
        let (arrivals, mut outcomes): (Vec<_>, Vec<_>) = (0..11).map(|number| envelope(number, true)).unzip();
        intake.put(arrivals).unwrap(); // some are checked, and some are not
        drop(intake.close_on_drop());
        assert!(put(&intake, 1).is_err());
        assert!(outcomes.iter_mut().all(has_closed));
    }

    #[tokio::test]
    async fn a_check_that_panics_ends_the_engine_and_leaves_nobody_waiting() {
        let intake = intake();
        let (arrivals, mut outcomes): (Vec<_>, Vec<_>) = (0..11).map(|number| envelope(number, true)).unzip();
        intake.put(arrivals).unwrap(); // some are checked, and some are not
        let panicking = intake.clone();
        let checked = std::thread::spawn(move || {
            let _desk = panicking.desk.lock().unwrap();
            panic!("a check has panicked");
        });
        assert!(checked.join().is_err());
        put(&intake, 1).unwrap();
        assert!(take(&intake, 64).await.is_err());
        assert!(intake.has_failed());
        drop(intake.close_on_drop());
        assert!(put(&intake, 2).is_err());
        assert!(intake.queue().arrivals.is_empty() && outcomes.iter_mut().all(has_closed));
    }
}
