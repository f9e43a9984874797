//! Negotiations by the calls of the Rust client: asking, countering and awarding on one side, bidding on the other.

use baton::proto::v1::{self, MessageType, NegotiationState};
use baton_client::{
    About, Bid, BidEnd, BidOutcome, Delivered, HandOverError, Handler, Heard, Link, Negotiation, NotTaken,
    StandingOffer, context_of,
};
use tokio::{sync::mpsc, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use crate::broker::{Broker, PATIENCE, card, new_task};

/// How an agent answers a request for offers.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Plan {
    /// It offers at this cost. It answers a counter-offer with one more than that asks, and takes the work over.
    Costs(f64),
    /// It offers at this cost, and rejects the handoff.
    Rejects(f64),
    Declines,
    /// The test answers.
    Waits,
}

/// What reached the handler.
#[derive(Debug)]
enum Seen {
    Asked(Delivered),
    Ended(BidEnd),
    Mail(Delivered),
}

struct Mail {
    plan: Plan,
    seen: mpsc::UnboundedSender<Seen>,
}

fn costs(cost: f64) -> v1::TaskOffer {
    v1::TaskOffer { confidence: 0.9, cost, conditions: "by noon".into(), ..Default::default() }
}

impl Handler for Mail {
    async fn handle(&self, link: Link, delivered: Delivered) -> Result<(), NotTaken> {
        drop(self.seen.send(Seen::Mail(delivered.clone())));
        if delivered.opens_handoff() && matches!(self.plan, Plan::Rejects(_)) {
            link.reject(&delivered, &v1::HandoffReject::default()).await?;
        } else if delivered.opens_handoff() {
            link.accept(&delivered, &v1::HandoffAccept::default()).await?;
        } else if delivered.kind() == MessageType::TaskContextTransfer {
            let task = link.complete(&delivered).await?;
            task.finish(None).await?;
        }
        Ok(())
    }

    async fn bid(&self, _: Link, asked: Delivered) -> Result<Bid, NotTaken> {
        drop(self.seen.send(Seen::Asked(asked.clone())));
        Ok(match (asked.kind(), self.plan) {
            (MessageType::TaskOffer, Plan::Costs(_)) => Bid::Offer(costs(asked.payload::<v1::TaskOffer>().cost + 1.0)),
            (_, Plan::Costs(cost) | Plan::Rejects(cost)) => Bid::Offer(costs(cost)),
            (_, Plan::Declines) => {
                Bid::Decline(v1::TaskDecline { reason: v1::RejectReason::Other.into(), reason_text: "busy".into() })
            }
            (_, Plan::Waits) => Bid::Later,
        })
    }

    async fn bid_ended(&self, _: Link, _: Delivered, end: BidEnd) -> Result<(), NotTaken> {
        drop(self.seen.send(Seen::Ended(end)));
        Ok(())
    }
}

/// One process of an agent.
struct Process {
    link: Link,
    seen: mpsc::UnboundedReceiver<Seen>,
    serving: JoinHandle<()>,
}

impl Process {
    async fn start(broker: &Broker, name: &str, plan: Plan) -> Self {
        let agent_type = if name == "alice" { "" } else { "analyst" };
        let client = broker.client().await;
        let request = v1::RegisterAgentRequest { card: Some(card(name, agent_type)), ..Default::default() };
        client.answer(client.agents().register_agent(request).await).unwrap();
        let link = broker.link(name).await;
        let (sender, seen) = mpsc::unbounded_channel();
        let serving = {
            let (link, mail) = (link.clone(), Mail { plan, seen: sender });
            tokio::spawn(async move { link.serve(mail, CancellationToken::new()).await.unwrap() })
        };
        Self { link, seen, serving }
    }

    async fn sees(&mut self) -> Seen {
        let seen = tokio::time::timeout(PATIENCE, self.seen.recv()).await;
        seen.expect("it comes in time").expect("the agent serves")
    }

    /// The next request or counter-offer.
    async fn is_asked(&mut self) -> Delivered {
        loop {
            if let Seen::Asked(asked) = self.sees().await {
                return asked;
            }
        }
    }

    /// The end of the agent's part.
    async fn ends(&mut self) -> (BidOutcome, String) {
        loop {
            if let Seen::Ended(end) = self.sees().await {
                return (end.outcome, end.winner_id);
            }
        }
    }

    /// Ends the process without acks for the deliveries in hand.
    async fn dies(self) {
        self.serving.abort();
        drop(self.serving.await);
    }

    async fn asks(&self, about: &About, request: v1::TaskRequest) -> Negotiation {
        self.link.negotiate("all:analyst", about, &request).await.unwrap()
    }
}

async fn offer(negotiation: &mut Negotiation) -> StandingOffer {
    let offer = tokio::time::timeout(PATIENCE, negotiation.next_offer()).await.expect("it comes in time");
    offer.unwrap().expect("an offer")
}

fn terms() -> v1::HandoffRequest {
    v1::HandoffRequest { task_type: "report".into(), ..Default::default() }
}

fn by_cost() -> v1::TaskRequest {
    let award_rule = v1::AwardRule::LowestCost.into();
    v1::TaskRequest { award_rule, handoff: Some(terms()), ..Default::default() }
}

fn context() -> Vec<v1::ContextSection> {
    context_of([("goals", "[\"the sums of march\"]".to_owned())]).sections
}

#[tokio::test]
async fn offers_are_countered_and_one_is_awarded_with_its_task() {
    let broker = Broker::start();
    let alice = Process::start(&broker, "alice", Plan::Waits).await;
    let _bob = Process::start(&broker, "bob", Plan::Costs(6.0)).await;
    let _carol = Process::start(&broker, "carol", Plan::Declines).await;
    let mut dave = Process::start(&broker, "dave", Plan::Waits).await;
    let about = About::task(&new_task(), 1);
    let mut negotiation = alice.asks(&about, v1::TaskRequest::default()).await;

    let first = offer(&mut negotiation).await;
    assert_eq!((&*first.agent_id, first.terms.cost, &*first.terms.conditions), ("bob", 6.0, "by noon"));
    negotiation.counter(&first, &costs(3.0)).await.unwrap();
    let second = offer(&mut negotiation).await;
    assert_eq!((second.terms.cost, second.terms.round), (4.0, 1));
    let replaced = negotiation.award(&first, "").await.unwrap_err();
    assert_eq!(replaced.reason(), Some("OFFER_NOT_STANDING"), "{replaced}");

    let asked = dave.is_asked().await;
    assert_eq!(asked.negotiation_id(), negotiation.id());
    let wrong = dave.link.offer(&asked, &v1::TaskOffer { confidence: 1.1, ..Default::default() }).await.unwrap_err();
    assert_eq!(wrong.reason(), Some("FIELD_INVALID"), "{wrong}");
    dave.link.offer(&asked, &costs(9.0)).await.unwrap();
    let mut rest = Vec::new();
    while let Some(heard) = negotiation.next().await.unwrap() {
        rest.push(match heard {
            Heard::Offer(offer) => offer.agent_id,
            Heard::Declined { agent_id, text, .. } => format!("{agent_id} is {text}"),
            Heard::Withdrawn { agent_id } => format!("{agent_id} withdraws"),
        });
    }
    // Carol may have declined before bob offered.
    assert_eq!(rest.last().map(String::as_str), Some("dave"), "{rest:?}");
    assert_eq!(negotiation.closed().await.unwrap().state(), NegotiationState::Deciding);
    let handed = negotiation.hand_over(&second, &about, &terms(), context()).await.unwrap();
    assert_eq!((&*handed.owner_id, handed.epoch), ("bob", 2));
    assert_eq!(dave.ends().await, (BidOutcome::Lost, "bob".to_owned()));

    let settled = negotiation.finished().await.unwrap();
    assert_eq!((settled.state(), &*settled.winner_id), (NegotiationState::Settled, "bob"));
    let client = broker.client_of("alice").await;
    let of_alice = v1::ListNegotiationsRequest { agent_id: "alice".into(), ..Default::default() };
    let listed = client.list_negotiations(of_alice, 10).await.unwrap();
    assert_eq!(listed.iter().map(|found| &*found.negotiation_id).collect::<Vec<_>>(), [negotiation.id()]);
    let mut states = Vec::new();
    client.watch_negotiation(negotiation.id(), |state| states.push(state.state())).await.unwrap();
    assert_eq!(states, [NegotiationState::Settled]);
    assert_eq!(negotiation.cancel().await.unwrap_err().reason(), Some("NEGOTIATION_CLOSED"));
}

#[tokio::test]
async fn a_rule_awards_and_the_next_bidder_takes_the_task_of_one_that_rejects() {
    let broker = Broker::start();
    let alice = Process::start(&broker, "alice", Plan::Waits).await;
    let mut bob = Process::start(&broker, "bob", Plan::Rejects(1.0)).await;
    let _carol = Process::start(&broker, "carol", Plan::Costs(2.0)).await;
    let mut dave = Process::start(&broker, "dave", Plan::Costs(3.0)).await;
    let task = new_task();
    let negotiation = alice.asks(&About::task(&task, 1), by_cost()).await;
    let handed = negotiation.hand_over_to_winner(context()).await.unwrap();
    assert_eq!((&*handed.owner_id, &*handed.task_id, handed.epoch), ("carol", &*task, 2));
    assert_eq!(handed.rejections.iter().map(|rejection| &*rejection.agent_id).collect::<Vec<_>>(), ["bob"]);
    assert_eq!(dave.ends().await, (BidOutcome::Lost, "carol".to_owned()));
    // The award shows alice's mandate, and an answer to it goes to her.
    loop {
        if let Seen::Mail(award) = bob.sees().await {
            assert_eq!((award.kind(), &*award.counterpart()), (MessageType::NegotiationClosed, "alice"));
            break;
        }
    }
}

#[tokio::test]
async fn a_lent_task_comes_back_from_the_bidder() {
    let broker = Broker::start();
    let alice = Process::start(&broker, "alice", Plan::Waits).await;
    let _bob = Process::start(&broker, "bob", Plan::Costs(1.0)).await;
    let about = About::task(&new_task(), 1);
    let mut negotiation = alice.asks(&about, v1::TaskRequest::default()).await;
    let of_bob = offer(&mut negotiation).await;
    let returned = negotiation.delegate(&of_bob, &about, &terms(), context(), None).await.unwrap();
    assert_eq!((returned.epoch, returned.status), (3, v1::TaskStatus::Completed));
}

#[tokio::test]
async fn a_negotiation_without_a_taker_ends_with_its_reason() {
    let broker = Broker::start();
    let alice = Process::start(&broker, "alice", Plan::Waits).await;
    let mut bob = Process::start(&broker, "bob", Plan::Waits).await;
    let nothing = About::default();

    let mut declined = alice.asks(&nothing, v1::TaskRequest::default()).await;
    let asked = bob.is_asked().await;
    bob.link.decline(&asked, &v1::TaskDecline::default()).await.unwrap();
    let closed = declined.closed().await.unwrap();
    assert_eq!((closed.state(), closed.error_code()), (NegotiationState::Failed, v1::ErrorCode::NoOffer));
    assert!(declined.next_offer().await.unwrap().is_none());

    let mandated = alice.asks(&About::task(&new_task(), 1), by_cost()).await;
    let asked = bob.is_asked().await;
    bob.link.decline(&asked, &v1::TaskDecline::default()).await.unwrap();
    let late = bob.link.offer(&asked, &costs(1.0)).await.unwrap_err();
    assert_eq!(late.reason(), Some("NEGOTIATION_CLOSED"), "{late}");
    let failed = mandated.hand_over_to_winner(context()).await.unwrap_err();
    assert!(matches!(&failed, HandOverError::Failed { reason, .. } if reason == "NO_OFFER"), "{failed}");

    // With a second agent on turn, the negotiation stays open.
    let mut carol = Process::start(&broker, "carol", Plan::Waits).await;
    let mut cancelled = alice.asks(&nothing, v1::TaskRequest::default()).await;
    let asked = bob.is_asked().await;
    bob.link.offer(&asked, &costs(1.0)).await.unwrap();
    offer(&mut cancelled).await;
    assert_eq!(bob.link.offer(&asked, &costs(2.0)).await.unwrap_err().reason(), Some("OFFER_NOT_STANDING"));
    cancelled.cancel().await.unwrap();
    assert_eq!(bob.ends().await, (BidOutcome::Cancelled, String::new()));
    assert_eq!(cancelled.finished().await.unwrap().state(), NegotiationState::Cancelled);

    let second = prost_types::Duration { seconds: 1, nanos: 0 };
    let quick = v1::TaskRequest { offers_wanted: 1, decision_timeout: Some(second), ..Default::default() };
    let mut expired = alice.asks(&nothing, quick).await;
    let asked = bob.is_asked().await;
    bob.link.offer(&asked, &costs(1.0)).await.unwrap();
    offer(&mut expired).await;
    let end = expired.finished().await.unwrap();
    assert_eq!((end.state(), end.error_code()), (NegotiationState::Failed, v1::ErrorCode::NegotiationExpired));
    assert_eq!(bob.ends().await, (BidOutcome::Failed, String::new()));

    let mut withdrawn = alice.asks(&nothing, v1::TaskRequest::default()).await;
    let (asked, of_carol) = (bob.is_asked().await, carol.is_asked().await);
    bob.link.offer(&asked, &costs(1.0)).await.unwrap();
    bob.link.withdraw(&asked).await.unwrap();
    // Handlers of two messages may run in either order.
    let mut heard = Vec::new();
    while heard.len() < 2 {
        heard.push(withdrawn.next().await.unwrap().expect("carol has not answered"));
    }
    assert!(heard.contains(&Heard::Withdrawn { agent_id: "bob".into() }), "{heard:?}");
    // Carol's first request is of an earlier negotiation, which is over.
    let over = carol.link.offer(&of_carol, &costs(1.0)).await.unwrap_err();
    assert_eq!(over.reason(), Some("NEGOTIATION_CLOSED"), "{over}");
}

#[tokio::test]
async fn an_award_without_a_task_is_mail_and_the_others_are_told() {
    let broker = Broker::start();
    let alice = Process::start(&broker, "alice", Plan::Waits).await;
    let mut bob = Process::start(&broker, "bob", Plan::Costs(1.0)).await;
    let mut carol = Process::start(&broker, "carol", Plan::Costs(2.0)).await;
    let mut negotiation = alice.asks(&About::default(), v1::TaskRequest::default()).await;
    let mut offers = Vec::new();
    while let Some(offer) = negotiation.next_offer().await.unwrap() {
        offers.push(offer);
    }
    offers.sort_by(|one, other| one.terms.cost.total_cmp(&other.terms.cost));
    assert_eq!(offers.iter().map(|offer| &*offer.agent_id).collect::<Vec<_>>(), ["bob", "carol"]);
    negotiation.award(&offers[0], "begin at nine").await.unwrap();
    assert_eq!(bob.ends().await, (BidOutcome::Won, "bob".to_owned()));
    assert_eq!(carol.ends().await, (BidOutcome::Lost, "bob".to_owned()));
}

#[tokio::test]
async fn a_requester_that_died_resumes_with_the_offers_that_stand() {
    let broker = Broker::start();
    let alice = Process::start(&broker, "alice", Plan::Waits).await;
    let mut bob = Process::start(&broker, "bob", Plan::Costs(1.0)).await;
    let mut carol = Process::start(&broker, "carol", Plan::Waits).await;
    let mut negotiation = alice.asks(&About::default(), v1::TaskRequest::default()).await;
    let before = offer(&mut negotiation).await;
    let id = negotiation.id().to_owned();
    drop(negotiation);
    alice.dies().await;
    let asked = carol.is_asked().await;
    carol.link.offer(&asked, &costs(2.0)).await.unwrap();

    let alice = Process::start(&broker, "alice", Plan::Waits).await;
    let mut negotiation = alice.link.resume_negotiation(&id).await.unwrap();
    let mut offers = Vec::new();
    while let Some(offer) = negotiation.next_offer().await.unwrap() {
        offers.push(offer.agent_id);
    }
    offers.sort();
    assert_eq!(offers, ["bob", "carol"]);
    let of_another = bob.link.resume_negotiation(&id).await.unwrap_err();
    assert_eq!(of_another.reason(), Some("NOT_ASKED"), "{of_another}");
    negotiation.award(&before, "").await.unwrap();
    assert_eq!(bob.ends().await.0, BidOutcome::Won);
    assert_eq!(carol.ends().await.0, BidOutcome::Lost);
}
