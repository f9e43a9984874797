//! Negotiations as calls. The requester asks agents for offers, counters them and awards one; a bidder answers by its
//! handler, or later.

use std::{
    collections::{HashSet, VecDeque},
    time::Duration,
};

use tokio::time;
use tokio_stream::StreamExt as _;

use super::{
    About, Client, ClientError, Delivered, HandOverError, HandedOver, Handler, Link, NotTaken, Returned,
    error::Refused,
    handoffs::{UNCLAIMED_AFTER, name_of},
    link::Looks,
    loans,
    waiting::{Conversation, Letter, Subject},
};
use crate::{
    codes::ErrorCode,
    ids::AgentId,
    proto::v1::{self, BidState, MessageType, NegotiationState},
};

/// After the close, the time without mail after which an offer that stood is taken from the negotiation itself.
const STRAY_OFFER_WAIT: Duration = Duration::from_secs(2);
/// The most negotiations of one page.
const PAGE_MAX: usize = 1000;

/// An offer of a bidder.
#[derive(Debug, Clone, PartialEq)]
pub struct StandingOffer {
    /// The bidder.
    pub agent_id: String,
    /// The message_id of the offer.
    pub offer_id: String,
    /// The content. Without `conditions` if an earlier process of this agent has acked the message.
    pub terms: v1::TaskOffer,
}

/// An answer that the requester of a negotiation gets.
#[derive(Debug, Clone, PartialEq)]
pub enum Heard {
    /// The first offer of a bidder, or one that replaces the bidder's earlier one.
    Offer(StandingOffer),
    /// An agent that was asked has declined: the request, or to offer further.
    Declined {
        /// The agent.
        agent_id: String,
        /// The reason as a code.
        reason: v1::RejectReason,
        /// The reason as text; may be empty.
        text: String,
    },
    /// A bidder has withdrawn its offer.
    Withdrawn {
        /// The bidder.
        agent_id: String,
    },
}

/// What a handler answers to a request for offers, or to a counter-offer.
#[derive(Debug, Clone, PartialEq)]
pub enum Bid {
    /// An offer. The link sets its `round`.
    Offer(v1::TaskOffer),
    /// No offer. It ends the agent's part.
    Decline(v1::TaskDecline),
    /// No answer yet: [`Link::offer`] or [`Link::decline`] answers later. The message is acked, so the handler keeps what
    /// it needs for the answer.
    Later,
}

/// How an agent's part in a negotiation has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BidEnd {
    /// The negotiation.
    pub negotiation_id: String,
    /// The end.
    pub outcome: BidOutcome,
    /// The agent that has the work; empty if none has, or if the agent's part ended earlier.
    pub winner_id: String,
    /// The reason as text: of a decline, or the stable code of a failure. May be empty.
    pub text: String,
}

/// The end of an agent's part in a negotiation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BidOutcome {
    /// This agent has the work, which is no task. A task comes as a handoff: see [`Handler::handle`].
    Won,
    /// Another agent has the work.
    Lost,
    /// The requester has declined the agent's offer.
    Declined,
    /// No agent has the work.
    Failed,
    /// The requester has cancelled.
    Cancelled,
}

/// A negotiation of this agent, as its requester. Made by [`Link::negotiate`] or [`Link::resume_negotiation`]. Dropping
/// it leaves the negotiation open; its mail then goes to the handler.
pub struct Negotiation {
    link: Link,
    id: String,
    mail: Conversation,
    /// Answers that [`Self::next`] has not returned.
    heard: VecDeque<Heard>,
    /// The ids of the offers that were heard.
    known: HashSet<String>,
    /// Whether the broker has told the close.
    is_told: bool,
    /// The negotiation as first read after the close.
    closed: Option<v1::Negotiation>,
    /// The offers that stood at the close and have not arrived as mail.
    missing: Vec<StandingOffer>,
    looks: Looks,
}

impl std::fmt::Debug for Negotiation {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Negotiation")
            .field("id", &self.id)
            .field("closed", &self.closed)
            .finish_non_exhaustive()
    }
}

impl Link {
    /// Asks agents for offers: `to` is an agent, `type:NAME` or `all:NAME`. `about` names the task and the epoch at which
    /// this agent owns it, or nothing (the default value) for work that is no task. Needs [`Link::serve`] to run
    /// meanwhile.
    ///
    /// Without an award rule the requester decides, by [`Negotiation::award`], [`Negotiation::hand_over`] or
    /// [`Negotiation::delegate`]. With one the broker does, at the close: see [`Negotiation::hand_over_to_winner`].
    ///
    /// ```no_run
    /// # async fn example(link: baton_client::Link) -> Result<(), Box<dyn std::error::Error>> {
    /// use baton_client::{About, context_of, proto::v1};
    ///
    /// let about = About::task("ticket-7", 1);
    /// let request = v1::TaskRequest { description: "the sums of march".to_owned(), ..Default::default() };
    /// let mut negotiation = link.negotiate("all:analyst", &about, &request).await?;
    /// let mut best = None;
    /// while let Some(offer) = negotiation.next_offer().await? {
    ///     println!("{}: {}", offer.agent_id, offer.terms.cost);
    ///     best = Some(offer);
    /// }
    /// if let Some(offer) = best {
    ///     let terms = v1::HandoffRequest { task_type: "report".to_owned(), ..Default::default() };
    ///     let context = context_of([("goals", r#"["the sums"]"#.to_owned())]);
    ///     let handed = negotiation.hand_over(&offer, &about, &terms, context.sections).await?;
    ///     println!("{} owns it", handed.owner_id);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Link::send`]; `RECEIVER_UNKNOWN` if no agent can be asked, `RECEIVER_INVALID` for over 1,000 agents,
    /// `FIELD_INVALID` for a deadline in the past or over one hour, `STALE_EPOCH` or `NOT_OWNER` for a mandate that this
    /// agent cannot give.
    pub async fn negotiate(
        &self,
        to: &str,
        about: &About,
        request: &v1::TaskRequest,
    ) -> Result<Negotiation, ClientError> {
        let envelope = self.composer().compose(to, MessageType::TaskRequest, about, request);
        // Wait before sending: an offer can arrive ahead of the receipt.
        let negotiation = self.negotiation(&envelope.message_id);
        self.send_composed(envelope).await?;
        Ok(negotiation)
    }

    /// Continues a negotiation that an earlier process of this agent opened. The offers that stand are heard again.
    ///
    /// # Errors
    ///
    /// As [`Link::get_negotiation`]; `NOT_ASKED` if another agent is the requester.
    pub async fn resume_negotiation(&self, negotiation_id: &str) -> Result<Negotiation, ClientError> {
        // Wait before reading the state, so that no message is missed in between.
        let mut negotiation = self.negotiation(negotiation_id);
        let state = self.get_negotiation(negotiation_id).await?;
        if state.requester_id != self.id().as_str() {
            let text = format!("negotiation {negotiation_id} is of {}, not of this agent", state.requester_id);
            return Err(Refused::of_client(ErrorCode::NotAsked, text).into());
        }
        for offer in standing(&state) {
            negotiation.hear_offer(offer);
        }
        if state.state() != NegotiationState::Open {
            negotiation.close(state);
        }
        Ok(negotiation)
    }

    /// Reads a negotiation: its state, the agents that were asked, their offers and the award. A bidder sees its own
    /// entry alone.
    ///
    /// # Errors
    ///
    /// As [`Link::owned_tasks`]; `NEGOTIATION_UNKNOWN`, or `PERMISSION_DENIED` for an agent that was not asked.
    pub async fn get_negotiation(&self, negotiation_id: &str) -> Result<v1::Negotiation, ClientError> {
        self.ask(|client| async move { client.get_negotiation(negotiation_id).await }).await
    }

    /// Offers to do the work of a request that was delivered to this agent, or answers a counter-offer. The link sets the
    /// `round`.
    ///
    /// # Errors
    ///
    /// As [`Link::send`]; `OFFER_NOT_STANDING` out of turn and after a decline, `NEGOTIATION_CLOSED` after the close,
    /// `FIELD_INVALID` for a confidence outside of 0 to 1.
    pub async fn offer(&self, asked: &Delivered, offer: &v1::TaskOffer) -> Result<v1::Receipt, ClientError> {
        let round = match asked.kind() {
            MessageType::TaskOffer => asked.payload::<v1::TaskOffer>().round,
            _ => 0,
        };
        self.answer_request(asked, MessageType::TaskOffer, &v1::TaskOffer { round, ..offer.clone() }).await
    }

    /// Declines a request for offers, or a counter-offer. This ends the agent's part.
    ///
    /// # Errors
    ///
    /// As [`Self::offer`].
    pub async fn decline(&self, asked: &Delivered, decline: &v1::TaskDecline) -> Result<v1::Receipt, ClientError> {
        self.answer_request(asked, MessageType::TaskDecline, decline).await
    }

    /// Withdraws the offer that stands. This ends the agent's part.
    ///
    /// # Errors
    ///
    /// As [`Self::offer`].
    pub async fn withdraw(&self, asked: &Delivered) -> Result<v1::Receipt, ClientError> {
        let withdrawal = v1::TaskOffer { withdrawn: true, ..Default::default() };
        self.answer_request(asked, MessageType::TaskOffer, &withdrawal).await
    }

    async fn answer_request<M: prost::Message + prost::Name>(
        &self,
        asked: &Delivered,
        kind: MessageType,
        payload: &M,
    ) -> Result<v1::Receipt, ClientError> {
        let about = About::handoff("", 0, asked.negotiation_id());
        self.send(&asked.envelope.sender_id, kind, &about, payload).await
    }

    fn negotiation(&self, id: &str) -> Negotiation {
        Negotiation {
            link: self.clone(),
            id: id.to_owned(),
            mail: self.inner.waiting.wait(Subject::Negotiation(id.to_owned())),
            heard: VecDeque::new(),
            known: HashSet::new(),
            is_told: false,
            closed: None,
            missing: Vec::new(),
            looks: self.looks(),
        }
    }
}

impl Negotiation {
    /// The id: the message_id of the request.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The next answer; `None` once no further offers are taken and all offers that stood were heard. Cancel-safe.
    ///
    /// # Errors
    ///
    /// As [`Link::get_negotiation`]. The negotiation goes on at the broker: see [`Link::resume_negotiation`].
    pub async fn next(&mut self) -> Result<Option<Heard>, ClientError> {
        loop {
            if let Some(heard) = self.heard.pop_front() {
                return Ok(Some(heard));
            }
            if self.closed.is_some() && self.missing.is_empty() {
                return Ok(None);
            }
            self.hear().await?;
        }
    }

    /// The next offer: [`Self::next`] without the declines and withdrawals. Cancel-safe.
    ///
    /// # Errors
    ///
    /// As [`Self::next`].
    pub async fn next_offer(&mut self) -> Result<Option<StandingOffer>, ClientError> {
        loop {
            match self.next().await? {
                Some(Heard::Offer(offer)) => return Ok(Some(offer)),
                Some(Heard::Declined { .. } | Heard::Withdrawn { .. }) => {}
                None => return Ok(None),
            }
        }
    }

    /// Waits until no further offers are taken. Returns the negotiation: DECIDING if the requester is to decide, AWARDED
    /// or SETTLED if the broker has awarded it by a rule, FAILED with NO_OFFER or another reason, or CANCELLED. Answers
    /// that were not heard stay with [`Self::next`]. Cancel-safe.
    ///
    /// # Errors
    ///
    /// As [`Self::next`].
    pub async fn closed(&mut self) -> Result<&v1::Negotiation, ClientError> {
        while self.closed.is_none() {
            self.hear().await?;
        }
        Ok(self.closed.as_ref().expect("the loop ends with the close"))
    }

    /// Waits for the final state: an agent has the work (SETTLED), or none has it (FAILED, CANCELLED).
    ///
    /// # Errors
    ///
    /// As [`Self::next`].
    pub async fn finished(&self) -> Result<v1::Negotiation, ClientError> {
        let id = self.id.as_str();
        // A watch that broke off begins again, at the present state.
        let last = self.link.ask(|client| async move { client.watch_negotiation(id, |_| {}).await }).await?;
        last.ok_or_else(|| ClientError::Answer("there is no negotiation in it".to_owned()))
    }

    /// The present state.
    ///
    /// # Errors
    ///
    /// As [`Link::get_negotiation`].
    pub async fn state(&self) -> Result<v1::Negotiation, ClientError> {
        self.link.get_negotiation(&self.id).await
    }

    /// Counters an offer, which begins the next round: at most three. The offer stands until the bidder replaces it. The
    /// link sets the `round`.
    ///
    /// # Errors
    ///
    /// As [`Link::send`]; `ROUND_LIMIT` after the third round, `OFFER_NOT_STANDING` while the bidder is on turn,
    /// `NEGOTIATION_CLOSED` after the close.
    pub async fn counter(&self, offer: &StandingOffer, counter: &v1::TaskOffer) -> Result<v1::Receipt, ClientError> {
        let counter = v1::TaskOffer { round: offer.terms.round + 1, ..counter.clone() };
        self.link.send(&offer.agent_id, MessageType::TaskOffer, &self.about(), &counter).await
    }

    /// Declines an offer, which ends the bidder's part.
    ///
    /// # Errors
    ///
    /// As [`Self::counter`].
    pub async fn decline(&self, offer: &StandingOffer, decline: &v1::TaskDecline) -> Result<v1::Receipt, ClientError> {
        self.link.send(&offer.agent_id, MessageType::TaskDecline, &self.about(), decline).await
    }

    /// Awards work that is no task. `details` has at most 4096 bytes. The bidder gets the award as mail.
    ///
    /// # Errors
    ///
    /// As [`Link::send`]; `OFFER_NOT_STANDING` if the bidder has replaced or withdrawn the offer, `NEGOTIATION_CLOSED`
    /// after the time for the decision.
    pub async fn award(&self, offer: &StandingOffer, details: &str) -> Result<v1::Receipt, ClientError> {
        let accept = v1::TaskAccept { offer_id: offer.offer_id.clone(), details: details.to_owned(), handoff: None };
        self.link.send(&offer.agent_id, MessageType::TaskAccept, &self.about(), &accept).await
    }

    /// Awards a task: hands it over to the bidder as [`Link::hand_over`] does, then to the `fallback_candidates` of the
    /// terms. `about` names the task and the epoch at which this agent owns it.
    ///
    /// # Errors
    ///
    /// As [`Link::hand_over`] and [`Self::award`].
    pub async fn hand_over(
        &self,
        offer: &StandingOffer,
        about: &About,
        terms: &v1::HandoffRequest,
        sections: Vec<v1::ContextSection>,
    ) -> Result<HandedOver, HandOverError> {
        self.link.hand_over_by(&self.award_of(offer, about, terms), sections).await
    }

    /// As [`Self::hand_over`], with a limit for the whole call: see [`Link::hand_over_within`].
    ///
    /// # Errors
    ///
    /// As [`Link::hand_over_within`] and [`Self::award`].
    pub async fn hand_over_within(
        &self,
        limit: Duration,
        offer: &StandingOffer,
        about: &About,
        terms: &v1::HandoffRequest,
        sections: Vec<v1::ContextSection>,
    ) -> Result<HandedOver, HandOverError> {
        self.link.hand_over_by_within(limit, &self.award_of(offer, about, terms), sections).await
    }

    /// Awards a task for a time: lends it to the bidder as [`Link::delegate`] does, and waits for its return.
    ///
    /// # Errors
    ///
    /// As [`Link::delegate`] and [`Self::award`].
    pub async fn delegate(
        &self,
        offer: &StandingOffer,
        about: &About,
        terms: &v1::HandoffRequest,
        sections: Vec<v1::ContextSection>,
        limit: Option<Duration>,
    ) -> Result<Returned, HandOverError> {
        let (lent, until) = loans::loan_of(terms, limit);
        let is_one_time = terms.loan_timeout.is_none() && limit.is_some();
        self.link.delegate_by(self.award_of(offer, about, &lent), sections, until, is_one_time).await
    }

    /// Waits for the broker's award by the rule of the request, sends the context to the agent that accepts, and waits
    /// for the end of the handoff. The broker asks the offers that count, in the order of the rule. In mode DELEGATE the
    /// final status reaches the handler as a [`v1::TaskStatusUpdate`].
    ///
    /// # Errors
    ///
    /// [`HandOverError::Failed`] if no agent took the task: `NO_OFFER`, `NO_CANDIDATE` after rejections, or the reason why
    /// the handoff could not be opened. Others as [`Link::resume_hand_over`].
    pub async fn hand_over_to_winner(mut self, sections: Vec<v1::ContextSection>) -> Result<HandedOver, HandOverError> {
        let closed = self.closed().await?.clone();
        let failed = HandOverError::Failed {
            handoff_id: closed.handoff_id.clone(),
            reason: match closed.state() {
                NegotiationState::Failed => name_of(closed.error_code()),
                NegotiationState::Cancelled => "NEGOTIATION_CANCELLED".to_owned(),
                _ => "NO_AWARD".to_owned(),
            },
            message: match closed.error_message.is_empty() {
                true => "the negotiation opened no handoff".to_owned(),
                false => closed.error_message.clone(),
            },
            rejections: Vec::new(),
        };
        if closed.handoff_id.is_empty() {
            return Err(failed);
        }
        // The handoff is read first, so an accept that arrived before this call is answered at once.
        match self.link.resume_hand_over(&closed.handoff_id, sections).await {
            // The award failed before its handoff was opened.
            Err(HandOverError::Client(ClientError::Refused(_))) if closed.state() == NegotiationState::Failed => {
                Err(failed)
            }
            ended => ended,
        }
    }

    /// Cancels the negotiation. The bidders are told.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with `NEGOTIATION_CLOSED` after an award or the end.
    pub async fn cancel(&self) -> Result<v1::Negotiation, ClientError> {
        self.link.live().await?.call(|client| async move { client.cancel_negotiation(&self.id).await }).await
    }

    fn about(&self) -> About {
        About::handoff("", 0, &self.id)
    }

    /// The award of a task, which is the request of its handoff.
    fn award_of(&self, offer: &StandingOffer, about: &About, terms: &v1::HandoffRequest) -> v1::Envelope {
        let about = About { correlation_id: self.id.clone(), ..about.clone() };
        let terms = self.link.as_part(&about, terms);
        let accept = v1::TaskAccept { offer_id: offer.offer_id.clone(), details: String::new(), handoff: Some(terms) };
        self.link.composer().compose(&offer.agent_id, MessageType::TaskAccept, &about, &accept)
    }

    /// Takes one letter, or looks at the negotiation. Changes nothing before its last wait.
    async fn hear(&mut self) -> Result<(), ClientError> {
        if self.is_told && self.closed.is_none() {
            let state = self.state().await?;
            self.close(state);
            return Ok(());
        }
        let is_closed = self.closed.is_some();
        let letter = tokio::select! {
            biased;
            letter = self.link.next_letter(&mut self.mail) => Some(letter),
            () = time::sleep(STRAY_OFFER_WAIT), if is_closed => None,
            () = self.looks.due(), if !is_closed => None,
        };
        match letter {
            Some(Ok(letter)) => self.take(letter),
            Some(Err(HandOverError::Client(error))) => return Err(error),
            Some(Err(other)) => return Err(ClientError::SessionEnded(other.to_string())),
            // The mail may have gone to another process of this agent.
            None if is_closed => {
                for offer in std::mem::take(&mut self.missing) {
                    self.hear_offer(offer);
                }
            }
            None => {
                let state = self.state().await?;
                match state.state() {
                    NegotiationState::Open => self.look_at_offers(&state),
                    _ => self.close(state),
                }
            }
        }
        Ok(())
    }

    fn take(&mut self, letter: Letter) {
        let delivered = &letter.delivered;
        let agent_id = delivered.envelope.sender_id.clone();
        match delivered.kind() {
            MessageType::TaskOffer => {
                let terms: v1::TaskOffer = delivered.payload();
                if terms.withdrawn {
                    self.heard.push_back(Heard::Withdrawn { agent_id });
                } else {
                    self.hear_offer(StandingOffer { agent_id, offer_id: delivered.envelope.message_id.clone(), terms });
                }
            }
            MessageType::TaskDecline => {
                let decline: v1::TaskDecline = delivered.payload();
                let (reason, text) = (decline.reason(), decline.reason_text);
                self.heard.push_back(Heard::Declined { agent_id, reason, text });
            }
            // The broker's notice of the close or of a failure.
            _ => self.is_told = true,
        }
        letter.answer(Ok(()));
    }

    fn hear_offer(&mut self, offer: StandingOffer) {
        self.missing.retain(|missing| missing.offer_id != offer.offer_id);
        if self.known.insert(offer.offer_id.clone()) {
            self.heard.push_back(Heard::Offer(offer));
        }
    }

    /// Hears the offers that were missing at the last look already; their mail is not on its way any more.
    fn look_at_offers(&mut self, state: &v1::Negotiation) {
        let was_missing = std::mem::take(&mut self.missing);
        for offer in standing(state) {
            match was_missing.iter().any(|missing| missing.offer_id == offer.offer_id) {
                true => self.hear_offer(offer),
                false if self.known.contains(&offer.offer_id) => {}
                false => self.missing.push(offer),
            }
        }
    }

    fn close(&mut self, state: v1::Negotiation) {
        // Handlers run side by side, so the notice can overtake the last offers. A decision needs them.
        if state.state() == NegotiationState::Deciding {
            self.missing = standing(&state).filter(|offer| !self.known.contains(&offer.offer_id)).collect();
        }
        self.is_told = true;
        self.closed = Some(state);
    }
}

/// The offers that stand, without their conditions.
fn standing(state: &v1::Negotiation) -> impl Iterator<Item = StandingOffer> {
    let stands = |bid: &&v1::NegotiationBid| matches!(bid.state(), BidState::Offered | BidState::Countered);
    state.bids.iter().filter(stands).map(|bid| StandingOffer {
        agent_id: bid.agent_id.clone(),
        offer_id: bid.offer_id.clone(),
        terms: v1::TaskOffer {
            confidence: bid.confidence,
            estimated_duration: bid.estimated_duration,
            cost: bid.cost,
            round: bid.round,
            valid_until: bid.valid_until,
            ..Default::default()
        },
    })
}

impl Client {
    /// Reads a negotiation.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with `NEGOTIATION_UNKNOWN`, or `PERMISSION_DENIED` for a caller that may not read it.
    pub async fn get_negotiation(&self, negotiation_id: &str) -> Result<v1::Negotiation, ClientError> {
        let request = v1::GetNegotiationRequest { negotiation_id: negotiation_id.to_owned() };
        let answer = self.answer(self.negotiations().get_negotiation(request).await)?;
        answer.negotiation.ok_or_else(|| ClientError::Answer("there is no negotiation in it".to_owned()))
    }

    /// Lists negotiations without their bids, newest first, at most `limit`. The paging fields of the request are set
    /// here.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with `FIELD_INVALID` for a filter without meaning.
    pub async fn list_negotiations(
        &self,
        mut request: v1::ListNegotiationsRequest,
        limit: usize,
    ) -> Result<Vec<v1::Negotiation>, ClientError> {
        let mut found = Vec::new();
        request.page_token = String::new();
        while found.len() < limit {
            request.page_size = u32::try_from((limit - found.len()).min(PAGE_MAX)).unwrap_or(u32::MAX);
            let page = self.answer(self.negotiations().list_negotiations(request.clone()).await)?;
            found.extend(page.negotiations);
            request.page_token = page.next_page_token;
            if request.page_token.is_empty() {
                break;
            }
        }
        Ok(found)
    }

    /// Passes the state of a negotiation to `change`: the present one, then each later one, until it is final. Returns
    /// the last state.
    ///
    /// # Errors
    ///
    /// As [`Self::get_negotiation`], and the error that ends the stream: `LIMIT_EXCEEDED` for a caller that falls behind.
    pub async fn watch_negotiation(
        &self,
        negotiation_id: &str,
        mut change: impl FnMut(&v1::Negotiation),
    ) -> Result<Option<v1::Negotiation>, ClientError> {
        let request = v1::WatchNegotiationRequest { negotiation_id: negotiation_id.to_owned() };
        let mut updates = self.answer(self.negotiations().watch_negotiation(request).await)?;
        let mut last = None;
        while let Some(update) = updates.next().await {
            let update = self.answer(update.map(tonic::Response::new))?;
            if let Some(negotiation) = update.negotiation {
                change(&negotiation);
                last = Some(negotiation);
            }
        }
        Ok(last)
    }

    /// Cancels a negotiation of this agent in state OPEN or DECIDING. Returns it.
    ///
    /// # Errors
    ///
    /// [`ClientError::Refused`] with `NEGOTIATION_CLOSED` after an award or the end, `NOT_ASKED` for a bidder.
    pub async fn cancel_negotiation(&self, negotiation_id: &str) -> Result<v1::Negotiation, ClientError> {
        let request = v1::CancelNegotiationRequest { negotiation_id: negotiation_id.to_owned() };
        let answer = self.answer(self.negotiations().cancel_negotiation(request).await)?;
        answer.negotiation.ok_or_else(|| ClientError::Answer("there is no negotiation in it".to_owned()))
    }
}

/// Passes a message of a negotiation, for which no call waits, to the handler: a request or a counter-offer to
/// [`Handler::bid`], the end of the agent's part to [`Handler::bid_ended`], and the rest to [`Handler::handle`].
pub(super) async fn give(handler: &impl Handler, link: Link, delivered: Delivered) -> Result<(), NotTaken> {
    let is_of_bidder = match delivered.kind() {
        MessageType::TaskRequest => true,
        // The request of a handoff, which the handler answers as any other.
        _ if delivered.opens_handoff() => false,
        MessageType::TaskAccept => true,
        // A bidder's first offer. Counter-offers begin with round 1.
        MessageType::TaskOffer if delivered.payload::<v1::TaskOffer>().round == 0 => false,
        _ => link.is_bidder(&delivered).await?,
    };
    if !is_of_bidder {
        return handler.handle(link, delivered).await;
    }
    if let Some(end) = end_of(&delivered, link.id()) {
        return handler.bid_ended(link, delivered, end).await;
    }
    match handler.bid(link.clone(), delivered.clone()).await? {
        Bid::Offer(offer) => link.offer(&delivered, &offer).await?,
        Bid::Decline(decline) => link.decline(&delivered, &decline).await?,
        Bid::Later => return Ok(()),
    };
    Ok(())
}

/// The end of the agent's part that this message tells; `None` for a request or a counter-offer.
fn end_of(delivered: &Delivered, own_id: &AgentId) -> Option<BidEnd> {
    let end = |outcome, winner_id: String, text: String| {
        Some(BidEnd { negotiation_id: delivered.negotiation_id().to_owned(), outcome, winner_id, text })
    };
    match delivered.kind() {
        MessageType::TaskAccept => {
            end(BidOutcome::Won, own_id.to_string(), delivered.payload::<v1::TaskAccept>().details)
        }
        MessageType::TaskDecline => {
            end(BidOutcome::Declined, String::new(), delivered.payload::<v1::TaskDecline>().reason_text)
        }
        MessageType::NegotiationClosed => {
            let closed: v1::NegotiationClosed = delivered.payload();
            let outcome = match closed.state() {
                NegotiationState::Cancelled => BidOutcome::Cancelled,
                NegotiationState::Failed => BidOutcome::Failed,
                _ if closed.winner_id == own_id.as_str() => BidOutcome::Won,
                _ => BidOutcome::Lost,
            };
            let text = if closed.error_code == 0 { String::new() } else { name_of(closed.error_code()) };
            end(outcome, closed.winner_id, text)
        }
        _ => None,
    }
}

impl Link {
    /// Whether another agent is the requester of the message's negotiation.
    async fn is_bidder(&self, delivered: &Delivered) -> Result<bool, NotTaken> {
        match self.get_negotiation(delivered.negotiation_id()).await {
            Ok(negotiation) => Ok(negotiation.requester_id != self.id().as_str()),
            // Retention has removed the negotiation.
            Err(ClientError::Refused(_)) => Ok(false),
            Err(error) => Err(NotTaken::GivenBack(UNCLAIMED_AFTER, error.to_string())),
        }
    }
}
