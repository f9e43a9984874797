//! Services that the operator has switched off, and the times of negotiations as settings.

use std::time::Duration;

use baton_broker_core::{
    NegotiationTimes, Services, Settings,
    codes::ErrorCode,
    ids::MessageId,
    proto::v1::{self, MessageType as T},
    time::Timestamp,
};

use crate::world::{Refusal, World, assert_refused, operator};

/// A broker without these services.
fn without(services: Services) -> World {
    World::with_settings(&["alice", "bob:worker"], Settings { services, ..Settings::default() })
}

fn say(world: &mut World, to: &str, kind: T, payload: &impl prost::Name) -> Result<v1::Receipt, Refusal> {
    world.send(world.envelope("alice", to, kind, payload))
}

#[test]
fn negotiations_can_be_switched_off() {
    let mut world = without(Services { negotiation: false, ..Services::default() });
    let request = v1::TaskRequest::default();
    assert_refused(say(&mut world, "type:worker", T::TaskRequest, &request), ErrorCode::NotSupported);
    let about = uuid();
    for envelope in [
        world.envelope("bob", "alice", T::TaskOffer, &v1::TaskOffer::default()),
        world.envelope("bob", "alice", T::TaskDecline, &v1::TaskDecline::default()),
        world.envelope("alice", "bob", T::TaskAccept, &v1::TaskAccept { offer_id: uuid(), ..Default::default() }),
    ] {
        let answer = world.send(v1::Envelope { correlation_id: about.clone(), ..envelope });
        assert_refused(answer, ErrorCode::NotSupported);
    }
    say(&mut world, "bob", T::Info, &v1::Info::default()).unwrap();
}

#[test]
fn mail_can_be_switched_off() {
    let mut world = without(Services { mail: false, ..Services::default() });
    assert_refused(say(&mut world, "bob", T::Info, &v1::Info::default()), ErrorCode::NotSupported);
    assert_refused(say(&mut world, "bob", T::Delegation, &v1::Delegation::default()), ErrorCode::NotSupported);
    world.send(world.request("alice", "bob", 1)).expect("handoffs are no mail");
}

#[test]
fn workspaces_can_be_switched_off() {
    let mut world = without(Services { workspace: false, ..Services::default() });
    world.send(world.request("alice", "bob", 1)).unwrap();
    let append = v1::WorkspaceAppend {
        workspace_id: "task:t".to_owned(),
        topic: "notes".to_owned(),
        entry: Some(v1::workspace_append::Entry::Json("1".to_owned())),
        ..Default::default()
    };
    assert_refused(say(&mut world, "", T::WorkspaceAppend, &append), ErrorCode::NotSupported);
}

#[test]
fn a_request_without_times_gets_those_of_the_configuration() {
    let times = NegotiationTimes { offers: Duration::from_secs(5), decision: Duration::from_secs(7) };
    let mut world =
        World::with_settings(&["alice", "bob:worker"], Settings { negotiation_times: times, ..Settings::default() });
    let receipt = say(&mut world, "type:worker", T::TaskRequest, &v1::TaskRequest::default()).unwrap();
    let known = world.view(&operator()).negotiation(MessageId::parse(&receipt.message_id).unwrap()).unwrap();
    let begun = receipt.accept_time.unwrap();
    let begun = Timestamp::from_parts(begun.seconds, begun.nanos).unwrap();
    assert_eq!((known.offers_deadline.since(begun), known.decision_timeout), (times.offers, times.decision));
}

fn uuid() -> String {
    "0197a000-0000-7000-8000-000000000001".to_owned()
}
