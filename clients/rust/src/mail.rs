//! The mail of an [`Agent`](crate::Agent), passed to the functions of its builder.

use std::{error::Error, pin::Pin, time::Duration};

use super::{
    Bid, ClientError, Delivered, HandOverError, Handler, Link, NotTaken, Offer, OwnedTask, Question, Recalled,
    offers::OpenLetter,
};
use crate::{
    ids::AgentId,
    proto::v1::{self, MessageType},
};

/// When mail without a handler is offered again: to another process of the agent, or to one with the handler.
const WITHOUT_HANDLER: Duration = Duration::from_secs(10);

/// What a function of an [`Agent`](crate::Agent) returns. `?` works on every error of this crate, on errors of other
/// crates, and on texts. A [`NotTaken`] keeps its meaning.
pub type HandlerResult = Result<(), Failure>;

type Failure = Box<dyn Error + Send + Sync>;
type Function<A, R = ()> = Box<dyn Fn(A) -> Pin<Box<dyn Future<Output = Result<R, Failure>> + Send>> + Send + Sync>;

/// The functions of an agent.
#[derive(Default)]
pub(super) struct Mail {
    pub handoff: Option<Function<Offer>>,
    pub question: Option<Function<Question>>,
    pub recalled: Option<Function<Recalled>>,
    pub bid: Option<Function<Delivered, Bid>>,
    pub message: Option<Function<Delivered>>,
    pub context: Option<Function<Delivered, Vec<v1::ContextSection>>>,
}

impl Mail {
    /// Passes an offer to its function, until the task is taken from the agent.
    async fn take(&self, offer: Offer) -> Result<(), NotTaken> {
        let Some(handler) = &self.handoff else { return Err(without_handler("handoffs")) };
        let (letter, recalled) = (offer.letter(), offer.recalled());
        let verdict = tokio::select! {
            biased;
            recalled = recalled => {
                tracing::info!(task_id = %recalled.task_id, reason = %recalled.message, "a handler ends with its task");
                return Ok(());
            }
            done = handler(offer) => done.map_err(not_taken),
        };
        let verdict = match verdict {
            Ok(()) if !letter.is_decided() => {
                Err(NotTaken::Failure("the handler has neither accepted nor rejected the offer".to_owned()))
            }
            verdict => verdict,
        };
        if let Err(problem) = &verdict {
            give_context_back(&letter, problem);
        }
        verdict
    }
}

/// The context of a takeover that was not completed comes again, as the message of a handler that fails.
fn give_context_back(letter: &OpenLetter, problem: &NotTaken) {
    letter.answer(Err(problem.clone()));
}

impl Handler for Mail {
    async fn handle(&self, link: Link, delivered: Delivered) -> Result<(), NotTaken> {
        match delivered.kind() {
            _ if delivered.opens_handoff() => return self.take(Offer::of(link, delivered)).await,
            MessageType::TaskContextTransfer => return self.take(Offer::of(link, delivered)).await,
            MessageType::TaskStatusUpdate => {
                if let (Some(handler), Some(question)) = (&self.question, Question::of(&link, &delivered)) {
                    return handler(question).await.map_err(not_taken);
                }
            }
            _ => {}
        }
        match &self.message {
            Some(handler) => handler(delivered).await.map_err(not_taken),
            None if is_for_reading(&link, &delivered) => Err(without_handler("such mail")),
            // What the broker shows in the state of the handoff, the task or the negotiation.
            None => Ok(()),
        }
    }

    async fn recalled(&self, link: Link, delivered: Delivered, recalled: Recalled) -> Result<(), NotTaken> {
        match &self.recalled {
            Some(handler) => handler(recalled).await.map_err(not_taken),
            None => self.handle(link, delivered).await,
        }
    }

    async fn resumed(&self, link: Link, task: OwnedTask, context: v1::TaskContextTransfer) -> Result<(), NotTaken> {
        self.take(Offer::resumed(link, task, context)).await
    }

    async fn bid(&self, _: Link, asked: Delivered) -> Result<Bid, NotTaken> {
        match &self.bid {
            Some(handler) => handler(asked).await.map_err(not_taken),
            None => {
                let reason = v1::RejectReason::NoSkill.into();
                Ok(Bid::Decline(v1::TaskDecline { reason, ..Default::default() }))
            }
        }
    }

    async fn context(&self, _: Link, accept: Delivered) -> Result<Option<Vec<v1::ContextSection>>, NotTaken> {
        match &self.context {
            Some(provider) => provider(accept).await.map(Some).map_err(not_taken),
            None => Ok(None),
        }
    }
}

/// Whether the message has something that the broker shows nowhere else, or asks for an answer.
fn is_for_reading(link: &Link, delivered: &Delivered) -> bool {
    match delivered.kind() {
        MessageType::Info | MessageType::Delegation => delivered.envelope.sender_id != AgentId::broker().as_str(),
        MessageType::TaskStatusUpdate => Question::of(link, delivered).is_some(),
        _ => false,
    }
}

fn without_handler(what: &str) -> NotTaken {
    NotTaken::GivenBack(WITHOUT_HANDLER, format!("this process of the agent has no handler for {what}"))
}

/// The failure of a function, as the errors of this crate mean it.
fn not_taken(failure: Failure) -> NotTaken {
    let failure = match failure.downcast::<NotTaken>() {
        Ok(not_taken) => return *not_taken,
        Err(failure) => failure,
    };
    let failure = match failure.downcast::<ClientError>() {
        Ok(error) => return (*error).into(),
        Err(failure) => failure,
    };
    match failure.downcast::<HandOverError>() {
        Ok(error) => (*error).into(),
        Err(failure) => NotTaken::Failure(failure.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_failure_of_a_function_keeps_its_meaning() {
        let later = NotTaken::Later(Duration::from_secs(3), "full".to_owned());
        assert_eq!(not_taken(later.clone().into()), later);
        assert_eq!(not_taken("no paper".into()), NotTaken::Failure("no paper".to_owned()));
        let stale = crate::error::Refused::of_client(crate::codes::ErrorCode::StaleEpoch, "moved on".to_owned());
        let over: ClientError = stale.into();
        assert!(matches!(not_taken(HandOverError::from(over).into()), NotTaken::TooLate(_)));
    }
}
