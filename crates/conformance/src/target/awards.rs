//! SPEC 6: awards of negotiations, by the requester, and by the broker under the requester's mandate.

use tonic::Code;

use super::{
    check::{Checks, Refusal, Verdict, answered, fail, refused, same},
    negotiations::{
        Asked, CLOSED, INVALID, NOT_ASKED, NOT_STANDING, UNKNOWN, about, award, by_rule, closed_of, costs, mandate,
    },
    story::a_request,
    world::World,
};
use baton_client::{
    About, completion_of, context_of,
    proto::v1::{self, AwardRule, ErrorCode, HandoffState, MessageType, NegotiationState as State},
};

cases! {
    "negotiation.award-without-a-task-is-mail" "6"
        "A TaskAccept without a task goes to the bidder as mail, the others are told the winner once, and a second award is refused."
        award_by_mail;
    "negotiation.award-is-checked" "6"
        "An award by a stranger, of an unknown or a replaced offer, or with a task and no terms is refused; nothing changes."
        award_is_checked;
    "negotiation.award-with-a-task-is-a-handoff" "6"
        "A TaskAccept with a task is the request of a handoff: the bidder rejects it, and the fallback candidate is asked."
        award_with_task;
    "negotiation.rule-awards-under-the-mandate" "6"
        "At the close the broker opens the handoff by the rule and shows the signed TaskRequest to the candidate; after a reject the next offer is asked, and the others are told once."
        rule_awards;
    "negotiation.ties-go-to-the-next-rule" "6"
        "Equal offers are decided by the next rules in their order." ties;
    "negotiation.mandate-needs-the-task-at-the-close" "6"
        "If the task has an open handoff at the close, the negotiation fails with HANDOFF_OPEN, and bidders are told." task_is_busy;
}

async fn award_by_mail(world: World) -> Verdict {
    let asked = Asked::new(&world, &["bob", "carol", "dave"], &v1::TaskRequest::default()).await?;
    let offer = asked.offers(0, &costs(1.0)).await?;
    let other = asked.offers(1, &costs(2.0)).await?;
    answered("alice awards bob's offer", asked.to(0, &award(&offer)).await)?;
    asked.bidders[0].take(MessageType::TaskAccept).await?;
    let winner = asked.bidders[0].id();
    asked.told(&asked.bidders[1], State::Settled, winner).await?;
    asked.is("after the award", State::Settled, winner).await?;
    refused("alice awards carol's offer too", asked.to(1, &award(&other)).await, CLOSED)?;
    refused("dave offers after the award", asked.answer(2, &costs(0.5)).await, CLOSED)?;
    // A second notice would come before this mail.
    for bidder in &asked.bidders {
        let info = asked.alice.info(bidder.id(), "the last message");
        answered("alice writes to the bidders", asked.alice.submit(&info).await)?;
        bidder.take(MessageType::Info).await?;
    }
    Ok(())
}

async fn award_is_checked(world: World) -> Verdict {
    let asked = Asked::new(&world, &["bob", "carol"], &v1::TaskRequest::default()).await?;
    let mallory = world.agent("mallory").await?;
    let offer = asked.offers(0, &costs(1.0)).await?;
    let before = asked.look().await?;
    let (bob, carol) = (&asked.bidders[0], &asked.bidders[1]);
    let mut checks = Checks::of("an award");
    checks.refused("by mallory", asked.say(&mallory, bob, &award(&offer)).await, NOT_ASKED);
    checks.refused("by a bidder", asked.say(carol, bob, &award(&offer)).await, NOT_ASKED);
    let unknown = Refusal(Code::NotFound, "OFFER_UNKNOWN");
    checks.refused("to carol, who made no offer", asked.to(1, &award(&offer)).await, unknown);
    let nothing = "0198c0de-0000-7000-8000-000000000001";
    checks.refused("of an offer that bob did not make", asked.to(0, &award(nothing)).await, NOT_STANDING);
    checks.refused("of no offer", asked.to(0, &award("")).await, INVALID);
    let elsewhere = asked.alice.say(bob.id(), &about(nothing), &award(&offer)).await;
    checks.refused("in no negotiation", elsewhere, UNKNOWN);
    let task = About { task_id: world.id("task"), epoch: 1, ..about(&asked.id) };
    checks.refused("with a task and no terms", asked.alice.say(bob.id(), &task, &award(&offer)).await, INVALID);
    let with_terms = v1::TaskAccept { handoff: Some(a_request()), ..award(&offer) };
    checks.refused("with terms and no task", asked.to(0, &with_terms).await, INVALID);
    checks.done()?;
    same("after the refused awards", "the negotiation", before, asked.look().await?)
}

async fn award_with_task(world: World) -> Verdict {
    let task = world.id("task");
    let asked = Asked::new(&world, &["bob", "carol"], &v1::TaskRequest::default()).await?;
    let offer = asked.offers(0, &costs(1.0)).await?;
    asked.offers(1, &costs(2.0)).await?;
    let (bob, carol) = (&asked.bidders[0], &asked.bidders[1]);
    let terms = v1::HandoffRequest { fallback_candidates: vec![carol.id().to_owned()], ..a_request() };
    let accept = v1::TaskAccept { handoff: Some(terms), ..award(&offer) };
    let of_task = About { task_id: task.clone(), epoch: 1, ..about(&asked.id) };
    let receipt = asked.alice.tell(bob.id(), &of_task, &accept).await?;
    let mut checks = Checks::of("the receipt of the award");
    checks.same("handoff_id", receipt.message_id.as_str(), receipt.handoff_id.as_str());
    checks.same("handoff_state", HandoffState::Requested, receipt.handoff_state());
    checks.done()?;
    asked.is("after the award", State::Awarded, bob.id()).await?;
    let request = bob.take(MessageType::TaskAccept).await?;
    same("bob gets the award", "handoff_id", receipt.handoff_id.as_str(), request.delivery.handoff_id.as_str())?;
    asked.decide(0, &task, &receipt.handoff_id, &v1::HandoffReject::default()).await?;
    carol.take(MessageType::TaskAccept).await?;
    asked.decide(1, &task, &receipt.handoff_id, &v1::HandoffAccept::default()).await?;
    asked.is("after carol's accept", State::Settled, carol.id()).await
}

async fn rule_awards(world: World) -> Verdict {
    let task = world.id("task");
    let request = v1::TaskRequest { max_cost: 5.0, min_confidence: 0.5, ..mandate(AwardRule::LowestCost) };
    let names = ["bob", "carol", "dave", "erin", "frank"];
    let asked = Asked::about(&world, &names, &request, &task).await?;
    // Dave costs too much, and erin is too unsure.
    let unsure = v1::TaskOffer { confidence: 0.4, ..costs(0.5) };
    for (bidder, offer) in [costs(2.0), costs(1.0), costs(6.0), unsure, costs(3.0)].iter().enumerate() {
        asked.offers(bidder, offer).await?;
        asked.alice.take(MessageType::TaskOffer).await?;
    }
    let [bob, carol, dave, erin, frank] = &asked.bidders[..] else { return fail("the case", "bidders", "5", "others") };
    asked.told(&asked.alice, State::Awarded, carol.id()).await?;
    // The client verifies the requester's signature of the mandate.
    let shown = carol.take(MessageType::NegotiationClosed).await?;
    let closed = closed_of(&shown);
    let mut checks = Checks::of("carol gets the award");
    checks.same("winner_id", carol.id(), closed.winner_id.as_str());
    checks.same("handoff_id", asked.id.as_str(), closed.handoff_id.as_str());
    checks.same("task_id", task.as_str(), shown.envelope.task_id.as_str());
    checks.same("the mandate's sender", asked.alice.id(), shown.counterpart().as_str());
    checks.done()?;
    asked.decide(1, &task, &asked.id, &v1::HandoffReject::default()).await?;
    let shown = closed_of(&bob.take(MessageType::NegotiationClosed).await?);
    same("bob gets the award", "winner_id", bob.id(), shown.winner_id.as_str())?;
    asked.decide(0, &task, &asked.id, &v1::HandoffAccept::default()).await?;
    asked.is("after bob's accept", State::Settled, bob.id()).await?;
    for other in [dave, erin, frank] {
        asked.told(other, State::Settled, bob.id()).await?;
    }
    asked.alice.take(MessageType::HandoffReject).await?;
    let accept = asked.alice.take(MessageType::HandoffAccept).await?;
    let context = context_of([("goals", "[]".to_owned())]);
    asked.alice.tell(bob.id(), &accept.about(), &context).await?;
    let context = bob.take(MessageType::TaskContextTransfer).await?;
    bob.tell(asked.alice.id(), &context.about(), &completion_of(&context.payload())).await?;
    asked.alice.owns("after the handoff", &task, bob.id(), 2).await
}

async fn ties(world: World) -> Verdict {
    let asked = Asked::new(&world, &["bob", "carol", "dave"], &by_rule(AwardRule::HighestConfidence)).await?;
    let hours = |hours: i64| Some(prost_types::Duration { seconds: hours * 3600, nanos: 0 });
    let takes = |span, cost| v1::TaskOffer { estimated_duration: span, ..costs(cost) };
    // All are as sure. An offer without a duration comes last.
    for (bidder, offer) in [takes(None, 1.0), takes(hours(2), 1.0), takes(hours(1), 9.0)].iter().enumerate() {
        asked.offers(bidder, offer).await?;
        asked.alice.take(MessageType::TaskOffer).await?;
    }
    asked.told(&asked.alice, State::Settled, asked.bidders[2].id()).await?;
    asked.is("after the close", State::Settled, asked.bidders[2].id()).await
}

async fn task_is_busy(world: World) -> Verdict {
    let task = world.id("task");
    let asked = Asked::about(&world, &["bob", "carol"], &mandate(AwardRule::LowestCost), &task).await?;
    let eve = world.agent("eve").await?;
    asked.offers(0, &costs(1.0)).await?;
    asked.alice.take(MessageType::TaskOffer).await?;
    asked.alice.tell(eve.id(), &About::task(&task, 1), &a_request()).await?;
    asked.offers(1, &costs(2.0)).await?;
    let mut failed = false;
    // The offer, the close and the notice.
    for _ in 0..3 {
        let delivered = asked.alice.next("alice takes her mail").await?;
        asked.alice.ack(&delivered).await?;
        failed |= delivered.kind() == MessageType::ErrorNotification
            && delivered.payload::<v1::ErrorNotification>().error_code() == ErrorCode::HandoffOpen;
    }
    same("alice takes her mail", "a notice of HANDOFF_OPEN", true, failed)?;
    same("after the close", "state", State::Failed, asked.look().await?.state())?;
    for bidder in &asked.bidders {
        let closed = closed_of(&bidder.take(MessageType::NegotiationClosed).await?);
        same("a bidder is told", "state", State::Failed, closed.state())?;
    }
    Ok(())
}
