//! Tests that the engine is general: a machine that the engine does not name ([`crate::domain::probe`]) gets
//! transactions, timers, mail with acks, watchers, inputs from other entities, and recovery.

use std::sync::Arc;

use super::{Command, ConsumerKind, Engine, Fate, run::Cause};
use crate::{
    BrokerIdentity, Event, Events, Reply, Resources, Settings, Update, Updates, WatcherId,
    directory::Entry,
    domain::{
        EntityId, Input, Signal,
        mailbox::ConsumerId,
        probe::{Probe, ProbeId, ProbeSignal},
    },
    envelope::keys::PrivateKey,
    ids::{AgentId, KeyId, SystemIds},
    proto::v1,
    records::{AgentRecord, EntityRecord},
    send_outputs,
    store::{MemoryStore, Store, Table},
    time::Timestamp,
};

const ONE: ProbeId = ProbeId(1);
const OTHER: ProbeId = ProbeId(2);

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_parts(seconds, 0).unwrap()
}

fn agent() -> AgentId {
    AgentId::parse("a").unwrap()
}

fn engine(store: &Arc<MemoryStore>, now: Timestamp) -> Engine {
    let identity = BrokerIdentity {
        key_id: KeyId::parse("k1").unwrap(),
        key: PrivateKey::from_seed(&[1; 32]),
        coordinator: crate::Signer::new(PrivateKey::from_seed(&[77; 32])),
    };
    let (settings, resources) = (Arc::new(Settings::default()), Resources::default());
    let engine = Engine::open(store.clone(), identity, settings, resources, Arc::new(SystemIds), now).unwrap();
    // Mail goes to registered agents only.
    let key = v1::AgentKey {
        key_id: "k1".to_owned(),
        public_key: PrivateKey::from_seed(&[2; 32]).public().as_bytes().to_vec().into(),
        ..Default::default()
    };
    let card = v1::AgentCard { agent_id: agent().to_string(), keys: vec![key], ..Default::default() };
    engine.directory().put(Entry::parse(AgentRecord::new(card, now)).unwrap());
    engine
}

/// Makes the first probe send `words` inputs to the other one.
fn begin(engine: &mut Engine, signals: u32, now: Timestamp) {
    let signal = ProbeSignal::Begin { other: OTHER, from: 0, to: signals, agent: agent(), wake_at: at(2000) };
    let mut transaction = engine.transaction();
    let input = Input::Signal(Signal::Probe(signal));
    engine.run(&mut transaction, &EntityId::Probe(ONE), &input, Cause::SIGNAL, now).unwrap();
    engine.stage(transaction);
    engine.end_unanswered();
}

fn commit(engine: &mut Engine, now: Timestamp) {
    engine.tick(now);
    engine.finish(now);
    send_outputs(engine);
}

fn probe(store: &MemoryStore, id: ProbeId) -> Probe {
    let id = EntityId::Probe(id);
    let stored = store.get(&EntityRecord::key(&id)).unwrap().expect("the probe is stored");
    match EntityRecord::decode(&id, &stored.value).unwrap() {
        EntityRecord::Probe(record) => Probe::clone(&record.probe),
        other => panic!("expected a probe, not {other:?}"),
    }
}

fn numbers(to: u32) -> Vec<u32> {
    (0..to).collect()
}

fn rows(store: &MemoryStore, table: Table) -> usize {
    use std::ops::Bound::Unbounded;
    store.scan(table, (Unbounded, Unbounded), crate::store::Order::Ascending, usize::MAX).unwrap().len()
}

#[test]
fn two_entities_tell_each_other_in_one_transaction() {
    let store = Arc::new(MemoryStore::default());
    let mut engine = engine(&store, at(1000));
    begin(&mut engine, 8, at(1000));
    engine.finish(at(1000));
    assert_eq!(rows(&store, Table::Outbox), 0, "sixteen signals fit into the transaction");
    assert_eq!(probe(&store, OTHER).heard, numbers(8));
    assert_eq!(probe(&store, ONE).answers, numbers(8));
}

#[test]
fn words_that_overflow_a_transaction_arrive_once_and_in_order_over_crashes() {
    let store = Arc::new(MemoryStore::default());
    let mut first = engine(&store, at(1000));
    begin(&mut first, 40, at(1000));
    first.finish(at(1000));
    assert_eq!(probe(&store, OTHER).heard, numbers(16));
    assert!(rows(&store, Table::Outbox) > 0, "the rest waits");
    // The broker dies after the rest was sent and before the commit.
    first.tick(at(1001));
    drop(first);
    assert_eq!(probe(&store, OTHER).heard, numbers(16));
    let mut second = engine(&store, at(1002));
    assert!(second.next_deadline().is_some_and(|at| at <= self::at(1002)), "the outbox is due at once");
    commit(&mut second, at(1002));
    drop(second); // the broker dies again, with answers in the outbox
    let mut third = engine(&store, at(1003));
    for second in 1003..1010 {
        commit(&mut third, at(second));
    }
    assert_eq!(probe(&store, OTHER).heard, numbers(40));
    assert_eq!(probe(&store, ONE).answers, numbers(40));
    assert_eq!(rows(&store, Table::Outbox), 0);
}

#[test]
fn words_that_wait_are_not_overtaken_by_later_ones() {
    let store = Arc::new(MemoryStore::default());
    let mut engine = engine(&store, at(1000));
    begin(&mut engine, 20, at(1000));
    begin(&mut engine, 3, at(1000));
    (1000..1010).for_each(|second| commit(&mut engine, at(second)));
    assert_eq!(probe(&store, OTHER).heard, [numbers(20), numbers(3)].concat());
}

#[test]
fn an_entity_wakes_up_by_its_timer_also_after_a_restart() {
    let store = Arc::new(MemoryStore::default());
    let mut first = engine(&store, at(1000));
    begin(&mut first, 1, at(1000));
    first.finish(at(1000));
    drop(first);
    let mut second = engine(&store, at(1001));
    commit(&mut second, at(1999));
    assert_eq!(probe(&store, ONE).woken, 0);
    commit(&mut second, at(2000));
    commit(&mut second, at(3000));
    let woken = probe(&store, ONE);
    assert_eq!((woken.woken, woken.deadline), (1, None));
    assert_eq!(
        store.scan(Table::Timers, crate::records::entity_timers(), crate::store::Order::Ascending, 9).unwrap(),
        []
    );
}

#[test]
fn an_entity_learns_of_the_ack_of_its_mail_and_its_watchers_see_it() {
    let store = Arc::new(MemoryStore::default());
    let mut engine = engine(&store, at(1000));
    begin(&mut engine, 1, at(1000));
    engine.finish(at(1000));
    let (updates, mut watched) = Updates::each(16);
    engine.handle(Command::Watch { entity: EntityId::Probe(ONE), watcher: WatcherId(1), updates }, at(1001));
    let (events, mut received) = Events::channel();
    let consumer = ConsumerId(1);
    engine.handle(Command::Open { consumer, agent: agent(), kind: ConsumerKind::Session, events }, at(1001));
    engine.handle(Command::Credit { consumer, outstanding_max: 1, reply: None }, at(1001));
    commit(&mut engine, at(1001));
    let delivery_id = delivery(|| received.try_recv().ok());
    let (reply, _) = Reply::once();
    engine.handle(Command::Acknowledge { agent: agent(), delivery_id, fate: Fate::Acked, reply }, at(1002));
    commit(&mut engine, at(1002));
    assert_eq!(probe(&store, ONE).acks, 1);
    let mut acks = Vec::new();
    while let Ok(update) = watched.try_recv() {
        match update.unwrap() {
            Update(record) => acks.push(record.entity()),
        }
    }
    assert_eq!(acks.len(), 2, "as it was, and after the ack");
}

fn delivery(mut next: impl FnMut() -> Option<Event>) -> String {
    loop {
        match next().expect("a delivery") {
            Event::Delivery(delivery) => return delivery.delivery_id,
            Event::Answer { .. } | Event::GoAway(_) => {}
        }
    }
}
