//! The outgoing events of a consumer, each delivery with its envelope.
//!
//! Owns reading envelopes just before they are sent. An envelope in memory is used directly. An envelope only on disk
//! is read on a thread for such work, together with those of the deliveries behind it. So a slow disk delays this consumer
//! and no other, and a long backlog costs one thread switch for many deliveries. Must not know the frames that carry
//! the events.

use std::{
    collections::VecDeque,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio_stream::Stream;

use crate::{
    broker::{Answer, Away, Broker, BrokerError, Event, OutgoingDelivery, Refused, access::Caller, places::WorkSize},
    ids::AgentId,
    proto::v1,
};

/// The most events that one read takes ahead, and the bytes of envelopes after which it reads no more.
const AHEAD_MAX: usize = 64;
const AHEAD_BYTES_MAX: usize = 64 * 1024;

/// An event ready to be sent.
pub(super) enum Ready {
    /// The answer to a request of the session.
    Answer { request_id: u64, outcome: Result<Answer, Refused> },
    /// A delivery for the agent, with its envelope.
    Delivery(Box<v1::Delivery>),
    /// The session is about to end.
    GoAway(Away),
}

/// The stream of ready events, in their order. Ends when every sender of events is dropped.
pub(super) struct Outgoing {
    broker: Broker,
    /// The agent whose mail it is.
    agent: Caller,
    events: mpsc::UnboundedReceiver<Event>,
    /// Events taken from `events` and not sent yet; they precede all events still there.
    ahead: VecDeque<Next>,
    reading: Option<Reading>,
}

type Reading = Pin<Box<dyn Future<Output = Result<VecDeque<Next>, BrokerError>> + Send>>;

enum Next {
    Read(Box<v1::Delivery>),
    NotRead(Event),
}

impl Outgoing {
    pub(super) fn new(broker: Broker, agent: AgentId, events: mpsc::UnboundedReceiver<Event>) -> Self {
        Self { broker, agent: Caller::Agent(agent), events, ahead: VecDeque::new(), reading: None }
    }

    /// Starts to read the envelope of a delivery, and those of the deliveries already queued behind it.
    fn read(&mut self, first: OutgoingDelivery) {
        // Events already taken keep their place behind this delivery, ahead of those in the channel.
        let mut events = std::mem::take(&mut self.ahead);
        events.push_front(Next::NotRead(Event::Delivery(first)));
        while events.len() < AHEAD_MAX {
            let Ok(event) = self.events.try_recv() else { break };
            events.push_back(Next::NotRead(event));
        }
        let (broker, agent) = (self.broker.clone(), self.agent.clone());
        self.reading = Some(Box::pin(async move {
            let reader = broker.clone();
            broker.workers().run(&agent, WorkSize::Mail, move || read(&reader, events)).await
        }));
    }
}

/// Reads the envelopes of the deliveries, until [`AHEAD_BYTES_MAX`] is reached. Drops deliveries whose envelope is
/// gone.
fn read(broker: &Broker, events: VecDeque<Next>) -> VecDeque<Next> {
    let mut bytes = 0;
    let with_envelope = |next| match next {
        Next::NotRead(Event::Delivery(outgoing)) if bytes < AHEAD_BYTES_MAX => {
            let envelope = broker.envelope(&outgoing)?;
            bytes += envelope.len();
            Some(Next::Read(delivery(outgoing, envelope)))
        }
        other => Some(other),
    };
    events.into_iter().filter_map(with_envelope).collect()
}

impl Stream for Outgoing {
    type Item = Ready;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Ready>> {
        let this = &mut *self;
        loop {
            if let Some(reading) = &mut this.reading {
                let read = ready!(reading.as_mut().poll(context));
                this.reading = None;
                match read {
                    Ok(read) => this.ahead = read,
                    // The read panicked, or the process ends. Another session delivers the unsent messages again.
                    Err(problem) => {
                        tracing::error!(%problem, "failed to read envelopes");
                        return Poll::Ready(None);
                    }
                }
            }
            let event = match this.ahead.pop_front() {
                Some(Next::Read(delivery)) => return Poll::Ready(Some(Ready::Delivery(delivery))),
                Some(Next::NotRead(event)) => event,
                None => match ready!(this.events.poll_recv(context)) {
                    Some(event) => event,
                    None => return Poll::Ready(None),
                },
            };
            match event {
                Event::Answer { request_id, outcome, permit } => {
                    // The answer leaves the session's budget of frames: the agent takes its answers, so more may be
                    // read.
                    drop(permit);
                    return Poll::Ready(Some(Ready::Answer { request_id, outcome }));
                }
                Event::GoAway(why) => return Poll::Ready(Some(Ready::GoAway(why))),
                Event::Delivery(outgoing) => match this.broker.envelope_in_memory(&outgoing) {
                    Some(Some(envelope)) => return Poll::Ready(Some(Ready::Delivery(delivery(outgoing, envelope)))),
                    Some(None) => {} // another consumer has settled the message, so no delivery is sent
                    None => this.read(outgoing),
                },
            }
        }
    }
}

fn delivery(outgoing: OutgoingDelivery, envelope: Bytes) -> Box<v1::Delivery> {
    Box::new(v1::Delivery {
        envelope,
        delivery_id: outgoing.delivery_id,
        attempt: outgoing.attempt,
        sequence: outgoing.sequence,
        ack_deadline: Some(outgoing.ack_deadline.into()),
        handoff_id: outgoing.handoff.map(|id| id.to_string()).unwrap_or_default(),
        trace_context: outgoing.trace.as_deref().map(Into::into),
    })
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use tokio_stream::StreamExt as _;

    use super::*;
    use crate::{
        broker::{BrokerIdentity, Resources, Settings, identity::Identities},
        domain::mailbox::EnvelopePlace,
        envelope::keys::PrivateKey,
        ids::{KeyId, SystemIds},
        records::MessageRecord,
        store::{Change, Key, Record, Store, Write, gated::GatedStore},
        time::{SystemClock, Timestamp},
    };

    /// The sequence of an envelope that only the slow disk has.
    const SLOW: u64 = 1;

    fn is_slow(key: &Key) -> bool {
        *key == MessageRecord::envelope_key(SLOW)
    }

    fn broker(store: Arc<GatedStore>) -> Broker {
        let identity = BrokerIdentity {
            key_id: KeyId::parse("k1").unwrap(),
            key: PrivateKey::from_seed(&[1; 32]),
            coordinator: crate::broker::Signer::new(PrivateKey::from_seed(&[77; 32])),
        };
        let identities = Identities::new("token", None);
        let (ids, clock) = (Arc::new(SystemIds), Arc::new(SystemClock));
        Broker::start(store, identity, Settings::default(), Resources::default(), identities, ids, clock).unwrap()
    }

    fn stored(store: &dyn Store, sequence: u64) {
        let value = Bytes::copy_from_slice(&sequence.to_be_bytes());
        let record = Some(Record { revision: 1, value });
        let write = Write { key: MessageRecord::envelope_key(sequence), record, is_new: true };
        store.commit(vec![Change { expectations: Vec::new(), writes: vec![write] }]).unwrap();
    }

    fn event(sequence: u64) -> Event {
        Event::Delivery(OutgoingDelivery {
            delivery_id: format!("{sequence}-1"),
            attempt: 1,
            sequence,
            bytes_at: EnvelopePlace::Sequence(sequence),
            ack_deadline: Timestamp::default(),
            handoff: None,
            trace: None,
        })
    }

    /// A consumer's stream of these deliveries.
    fn outgoing(broker: &Broker, sequences: &[u64]) -> Outgoing {
        let (events, receiver) = mpsc::unbounded_channel();
        sequences.iter().for_each(|sequence| events.send(event(*sequence)).unwrap());
        Outgoing::new(broker.clone(), AgentId::parse("agent").unwrap(), receiver)
    }

    async fn sequences(outgoing: &mut Outgoing) -> Vec<u64> {
        let mut sequences = Vec::new();
        while let Some(ready) = outgoing.next().await {
            let Ready::Delivery(delivery) = ready else { panic!("expected a delivery") };
            assert_eq!(*delivery.envelope, delivery.sequence.to_be_bytes());
            sequences.push(delivery.sequence);
        }
        sequences
    }

    // The test runs on one thread, so a blocking read on it would delay the other consumer forever.
    #[tokio::test]
    async fn an_envelope_that_the_disk_is_slow_to_give_holds_up_no_other_holder() {
        let store = Arc::new(GatedStore::new(is_slow));
        (1..=200).for_each(|sequence| stored(&*store, sequence));
        let broker = broker(store.clone());
        let all: Vec<u64> = (2..=80).chain([SLOW]).chain(81..=200).collect();
        let mut slow = outgoing(&broker, &all);
        for sequence in 2..=80 {
            assert!(matches!(slow.next().await, Some(Ready::Delivery(delivery)) if delivery.sequence == sequence));
        }
        assert!(tokio::time::timeout(Duration::ZERO, slow.next()).await.is_err(), "it waits for the disk");
        let mut other = outgoing(&broker, &[7, 300, 8]);
        assert_eq!(sequences(&mut other).await, [7, 8], "what is not there any more is left out");
        store.open();
        let rest: Vec<u64> = [SLOW].into_iter().chain(81..=200).collect();
        assert_eq!(sequences(&mut slow).await, rest, "in its order");
        broker.stop().await.unwrap();
    }
}
