//! The cost of a negotiation with 1,000 agents in the engine, beside that of 1,000 pieces of mail. The store is in memory,
//! nothing is signed by agents, and every message is delivered and acked.

use std::{sync::Arc, time::Duration};

use baton::{
    broker::{
        BrokerIdentity, Event, Events, Reply, Retention, Settings, Signer,
        access::Caller,
        directory::Entry,
        engine::{Command, ConsumerKind, Engine, Fate},
        send_outputs,
    },
    domain::mailbox::ConsumerId,
    envelope::{self, UnverifiedEnvelope, keys::PrivateKey},
    ids::{AgentId, IdSource as _, KeyId, SystemIds},
    proto::v1::{self, MessageType as T},
    records::AgentRecord,
    store::MemoryStore,
    time::Timestamp,
};
use bytes::Bytes;
use prost::{Message, Name};
use tokio::sync::mpsc;

use super::Part;

const BIDDERS: usize = 1000;
const REQUESTER: &str = "alice";
/// The commands of one commit batch.
const BATCH: usize = 256;

pub(crate) fn parts() -> Vec<Part> {
    // Made at the first turn, so that other parts need not wait for it.
    let (mut mail, mut asked, mut offered) = (None, None, None);
    let all = BIDDERS as u64;
    vec![
        Part::many("negotiation/1000-pieces-of-mail", all, move || mail.get_or_insert_with(Room::new).send_mail()),
        Part::many("negotiation/1000-asked", all, move || asked.get_or_insert_with(Room::new).negotiate(1)),
        Part::many("negotiation/1000-offers", all, move || offered.get_or_insert_with(Room::new).negotiate(BIDDERS)),
    ]
}

/// An engine with a requester and bidders, all of which have a session.
struct Room {
    engine: Engine,
    now: Timestamp,
    sessions: Vec<(AgentId, mpsc::UnboundedReceiver<Event>)>,
}

fn bidder(number: usize) -> String {
    format!("bidder-{number}")
}

impl Room {
    fn new() -> Self {
        let identity = BrokerIdentity {
            key_id: KeyId::parse("b").expect("it is a name"),
            key: PrivateKey::from_seed(&[1; 32]),
            coordinator: Signer::new(PrivateKey::from_seed(&[2; 32])),
        };
        // Short periods, so that a turn does not depend on the number of turns before it.
        let short = Duration::from_secs(1);
        let retention = Retention { message_ids: short, ended_tasks: Some(short), ..Retention::default() };
        let settings = Arc::new(Settings { unsigned_allowed: true, retention, ..Settings::default() });
        let now = Timestamp::from_parts(1_700_000_000, 0).expect("it is a time");
        let store = Arc::new(MemoryStore::default());
        let engine = Engine::open(store, identity, settings, Arc::new(SystemIds), now).expect("an empty store opens");
        let mut room = Self { engine, now, sessions: Vec::new() };
        room.enter(REQUESTER, "customer");
        (0..BIDDERS).for_each(|number| room.enter(&bidder(number), "bidder"));
        room.finish();
        room
    }

    /// Registers an agent, and opens its session.
    fn enter(&mut self, name: &str, agent_type: &str) {
        let agent = AgentId::parse(name).expect("it is a name");
        let card =
            v1::AgentCard { agent_id: name.to_owned(), agent_types: vec![agent_type.to_owned()], ..Default::default() };
        let entry = Box::new(Entry::parse(AgentRecord::new(card, self.now)).expect("the card is valid"));
        let caller = Caller::Operator("bench".to_owned());
        let register = Command::Register { entry, caller, invitation: String::new(), reply: Reply::once().0 };
        self.engine.handle(register, self.now);
        self.finish();
        let consumer = ConsumerId(self.sessions.len() as u64 + 1);
        let (sender, events) = Events::channel();
        let kind = ConsumerKind::Session;
        self.engine.handle(Command::Open { consumer, agent: agent.clone(), kind, events: sender }, self.now);
        self.engine.handle(Command::Credit { consumer, outstanding_max: 4096, reply: None }, self.now);
        self.sessions.push((agent, events));
    }

    fn finish(&mut self) {
        self.now = self.now.plus(Duration::from_millis(2));
        self.engine.tick(self.now);
        self.engine.finish(self.now);
        send_outputs(&mut self.engine);
    }

    fn submit<M: Message + Name>(&mut self, from: &str, to: &str, kind: T, about: &str, payload: &M) -> String {
        let (seconds, nanos) = self.now.to_parts();
        let message_id = SystemIds.message_id(self.now).to_string();
        let envelope = v1::Envelope {
            message_id: message_id.clone(),
            sender_id: from.to_owned(),
            receiver_id: to.to_owned(),
            timestamp: Some(prost_types::Timestamp { seconds, nanos }),
            message_type: kind.into(),
            correlation_id: about.to_owned(),
            payload: Some(envelope::payload_of(payload)),
            ..Default::default()
        };
        let parsed = UnverifiedEnvelope::parse(Bytes::from(envelope.encode_to_vec())).expect("the envelope is valid");
        let directory = self.engine.directory().clone();
        let envelope = Box::new(parsed.verify(&*directory, self.now, true).expect("nothing is signed"));
        self.engine.handle(Command::Submit { envelope, reply: Reply::once().0 }, self.now);
        message_id
    }

    /// Acks all deliveries. Returns their number.
    fn ack(&mut self) -> usize {
        let mut delivered = Vec::new();
        for (agent, events) in &mut self.sessions {
            while let Ok(event) = events.try_recv() {
                if let Event::Delivery(delivery) = event {
                    delivered.push((agent.clone(), delivery.delivery_id));
                }
            }
        }
        let many = delivered.len();
        for (place, (agent, delivery_id)) in delivered.into_iter().enumerate() {
            let ack = Command::Acknowledge { agent, delivery_id, fate: Fate::Acked, reply: Reply::once().0 };
            self.engine.handle(ack, self.now);
            if place % BATCH == BATCH - 1 {
                self.finish();
            }
        }
        self.finish();
        many
    }

    fn send_mail(&mut self) {
        for number in 0..BIDDERS {
            self.submit(REQUESTER, &bidder(number), T::Info, "", &v1::Info::default());
            if number % BATCH == BATCH - 1 {
                self.finish();
            }
        }
        self.finish();
        assert_eq!(self.ack(), BIDDERS);
    }

    /// A negotiation with 1,000 agents asked, of which this many offer. The first offer is awarded.
    fn negotiate(&mut self, offers: usize) {
        let request =
            v1::TaskRequest { offers_wanted: u32::try_from(offers).expect("it is small"), ..Default::default() };
        let id = self.submit(REQUESTER, "all:bidder", T::TaskRequest, "", &request);
        self.finish();
        assert_eq!(self.ack(), BIDDERS);
        let mut first = None;
        for number in 0..offers {
            let offer = v1::TaskOffer { confidence: 0.5, cost: 1.0, ..Default::default() };
            let offer_id = self.submit(&bidder(number), REQUESTER, T::TaskOffer, &id, &offer);
            first.get_or_insert(offer_id);
            if number % BATCH == BATCH - 1 {
                self.finish();
            }
        }
        self.finish();
        assert_eq!(self.ack(), offers + 1, "the offers and the close");
        let accept = v1::TaskAccept { offer_id: first.unwrap_or_default(), ..Default::default() };
        self.submit(REQUESTER, &bidder(0), T::TaskAccept, &id, &accept);
        self.finish();
        // The bidders are told over several steps.
        let mut told = 0;
        while told < offers {
            let more = self.ack();
            assert!(more > 0, "{told} of {offers} bidders were told");
            told += more;
        }
    }
}
