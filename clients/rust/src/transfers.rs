//! Handing a task over within a time.

use std::time::Duration;

use tokio::time;

use super::{
    About, ClientError, HandOverError, HandedOver, Link,
    error::Refused,
    handoffs::{End, end_of},
    loans::{ATTEMPT_WAIT, ATTEMPTS_MAX, TAKE_BACK_TIME},
};
use crate::{
    codes::ErrorCode,
    proto::v1::{self, MessageType},
};

impl Link {
    /// As [`Self::hand_over`], with a limit for the whole call. At the limit the link cancels the handoff, for at most 10 s:
    /// the task stays with this agent, unless it has moved just before.
    ///
    /// # Errors
    ///
    /// As [`Self::hand_over`]: [`HandOverError::Failed`] with `HANDOFF_CANCELLED` at the limit; `STORE_UNAVAILABLE` if the
    /// handoff could not be cancelled. Its timeouts end it then.
    pub async fn hand_over_within(
        &self,
        limit: Duration,
        to: &str,
        about: &About,
        request: &v1::HandoffRequest,
        sections: Vec<v1::ContextSection>,
    ) -> Result<HandedOver, HandOverError> {
        let request = self.as_part(about, request);
        let envelope = self.composer().compose(to, MessageType::HandoffRequest, about, &request);
        self.hand_over_by_within(limit, &envelope, sections).await
    }

    /// Hands a task over by this signed request within a time, unless another call does.
    pub(super) async fn hand_over_by_within(
        &self,
        limit: Duration,
        request: &v1::Envelope,
        sections: Vec<v1::ContextSection>,
    ) -> End {
        let _hand = self.inner.waiting.hand(&request.task_id, request.epoch)?;
        match time::timeout(limit, self.move_by(request, sections)).await {
            Ok(end) => end,
            Err(_) => self.end_at_the_limit(request).await,
        }
    }

    /// Cancels the handoff of this request at the time limit of its call. `Ok`: the task has moved before.
    async fn end_at_the_limit(&self, request: &v1::Envelope) -> End {
        let text = "the time limit of the call passed";
        let still_open = || {
            let text =
                format!("{text}, and handoff {} could not be cancelled; its timeouts end it", request.message_id);
            Err(ClientError::from(Refused::of_client(ErrorCode::StoreUnavailable, text)).into())
        };
        let about = About::handoff(&request.task_id, request.epoch, &request.message_id);
        let attempts = async {
            let mut is_stored = false;
            for _ in 0..ATTEMPTS_MAX {
                let cancelled = match self.get_handoff(&request.message_id).await {
                    Ok(handoff) => {
                        is_stored = true;
                        if let Some(end) = end_of(&handoff) {
                            return self.noted(end, &request.message_id, request.epoch);
                        }
                        let cancel = v1::HandoffCancel { reason_text: text.to_owned() };
                        self.send(&handoff.candidate_id, MessageType::HandoffCancel, &about, &cancel).await.map(drop)
                    }
                    Err(error) => Err(error),
                };
                match cancelled {
                    Ok(()) => {} // the next look shows the end
                    // The request may still be on its way, or the handoff has moved on since the look.
                    Err(ClientError::Refused(_)) => time::sleep(ATTEMPT_WAIT).await,
                    Err(error) => return Err(error.into()),
                }
            }
            match is_stored {
                true => still_open(),
                false => Err(HandOverError::Failed {
                    handoff_id: request.message_id.clone(),
                    reason: "HANDOFF_CANCELLED".to_owned(),
                    message: text.to_owned(),
                    rejections: Vec::new(),
                }),
            }
        };
        time::timeout(TAKE_BACK_TIME, attempts).await.unwrap_or_else(|_| still_open())
    }
}
