//! SPEC 4: what is delivered later, and what is withdrawn before it is fetched.

use std::time::Duration;

use tonic::Code;

use super::{
    check::{Checks, Refusal, Verdict, answered, same},
    negotiations::in_seconds,
    story::a_request,
    world::{CREDIT, World},
};
use baton_client::{
    About,
    proto::v1::{self, MessageType, WaitingFor},
    time::{Clock as _, SystemClock},
};

cases! {
    "delivery.after" "4"
        "A request and mail with deliver_after are held until then, behind what is sent later; the request is shown as waiting_for DELIVER_AFTER."
        held_until_then;
    "delivery.after-is-bounded" "4"
        "A deliver_after more than 30 days ahead is refused with FIELD_INVALID, for mail and for requests." bounded;
    "delivery.what-has-ended-is-withdrawn" "4"
        "A request that has ended before its receiver fetched it is withdrawn from the mailbox, and is no dead letter."
        withdrawn;
}

/// The time from now to `deliver_after`.
const LATER: i64 = 3;

fn info(text: &str, deliver_after: Option<prost_types::Timestamp>) -> v1::Info {
    v1::Info { text: text.to_owned(), deliver_after, ..Default::default() }
}

async fn held_until_then(world: World) -> Verdict {
    let (alice, bob) = (world.agent("alice").await?, world.agent("bob").await?);
    let due = in_seconds(LATER);
    alice.tell(bob.id(), &About::default(), &info("later", due)).await?;
    let request = v1::HandoffRequest { deliver_after: due, ..a_request() };
    let handoff = alice.tell(bob.id(), &About::task(&world.id("task"), 1), &request).await?.handoff_id;
    let seen = answered("alice reads the handoff", alice.handoff(&handoff).await)?;
    same("alice reads the handoff", "waiting_for", WaitingFor::DeliverAfter, seen.waiting_for())?;
    alice.tell(bob.id(), &About::default(), &info("now", None)).await?;
    let first = bob.take(MessageType::Info).await?;
    same("bob takes its mail", "text", "now", &first.payload::<v1::Info>().text)?;
    let mut kinds = Vec::new();
    for _ in 0..2 {
        let delivered = bob.next_within("bob takes what was held", Duration::from_secs(3)).await?;
        let (seconds, nanos) = SystemClock.now().to_parts();
        let is_due = due.is_some_and(|due| (due.seconds, due.nanos) <= (seconds, nanos));
        let mut checks = Checks::of("bob takes what was held");
        checks.holds("time", is_due, "not before deliver_after", (due, seconds, nanos));
        checks.done()?;
        kinds.push(delivered.kind().as_str_name());
        bob.ack(&delivered).await?;
    }
    kinds.sort_unstable();
    let expected = [MessageType::HandoffRequest, MessageType::Info].map(|kind| kind.as_str_name()).to_vec();
    same("bob takes what was held", "message_types", expected, kinds)
}

async fn bounded(world: World) -> Verdict {
    let (alice, bob) = (world.agent("alice").await?, world.agent("bob").await?);
    // An hour beyond the bound: the clocks of the suite and the broker may differ.
    let too_late = in_seconds(30 * 86_400 + 3600);
    let invalid = Refusal(Code::InvalidArgument, "FIELD_INVALID");
    let mut checks = Checks::of("alice sends something for in 30 days and an hour");
    let mail = alice.say(bob.id(), &About::default(), &info("later", too_late)).await;
    checks.refused("mail", mail, invalid);
    let request = v1::HandoffRequest { deliver_after: too_late, ..a_request() };
    checks.refused("a request", alice.say(bob.id(), &About::task(&world.id("task"), 1), &request).await, invalid);
    checks.done()
}

async fn withdrawn(world: World) -> Verdict {
    let (alice, identity) = (world.agent("alice").await?, world.enrol("bob", &[]).await?);
    let bob = identity.agent.to_string();
    for number in 0..5 {
        let task = world.id(&format!("task-{number}"));
        let handoff = alice.tell(&bob, &About::task(&task, 1), &a_request()).await?.handoff_id;
        alice.tell(&bob, &About::handoff(&task, 1, &handoff), &v1::HandoffCancel::default()).await?;
    }
    alice.tell(&bob, &About::default(), &info("marker", None)).await?;
    let bob = world.connect(&identity, CREDIT).await?;
    let first = bob.take(MessageType::Info).await?;
    same("bob comes back", "text", "marker", &first.payload::<v1::Info>().text)
}
