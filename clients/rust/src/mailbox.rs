//! A look at an agent's mailbox.

use std::{collections::BTreeSet, time::Duration};

use prost::Message as _;
use tokio_stream::StreamExt as _;

use super::{Client, ClientError, Delivered, Link};
use crate::proto::v1::{self, acknowledgement::Outcome};

/// How long the broker may take for the next message of a mailbox.
const NEXT_TIME: Duration = Duration::from_secs(5);
/// The most deliveries that a call takes to ack the ones that it names.
const TAKEN_MAX: usize = 1024;

impl Link {
    /// Returns the mail that waits for this agent, in order: nothing is taken, and no attempt counts. A delivery of it has no
    /// id, and cannot be acked. A message that does not verify is left out.
    ///
    /// # Errors
    ///
    /// As [`Link::owned_tasks`].
    pub async fn peek(&self) -> Result<Vec<Delivered>, ClientError> {
        let instance_id = self.instance_id();
        let waiting = self.ask(|client| async move { client.peek(instance_id).await }).await?;
        let agent = self.live().await?;
        let mut verified = Vec::with_capacity(waiting.len());
        for delivery in waiting {
            match agent.check(delivery).await {
                Ok(delivered) => verified.push(delivered),
                Err(problem @ ClientError::Unverified { .. }) => {
                    tracing::warn!(%problem, "a message in the mailbox does not verify");
                }
                Err(problem) => return Err(problem),
            }
        }
        Ok(verified)
    }

    /// The present connection, as this agent, for the calls of [`Client`]. Waits for the next session if none is open.
    ///
    /// # Errors
    ///
    /// [`ClientError::SessionEnded`] if the link has ended.
    pub async fn client(&self) -> Result<Client, ClientError> {
        Ok(self.live().await?.client.clone())
    }
}

impl Client {
    /// The mail that waits for this agent, in order: nothing is taken, no attempt counts, and nothing is verified. A process
    /// sees also what is for it alone; an empty id is no process.
    ///
    /// # Errors
    ///
    /// [`ClientError`] if the broker refuses the call or cannot be reached.
    pub async fn peek(&self, instance_id: &str) -> Result<Vec<v1::Delivery>, ClientError> {
        let request =
            v1::ReceiveRequest { peek: true, instance_id: instance_id.to_owned(), ..v1::ReceiveRequest::default() };
        let mut stream = self.answer(self.messages().receive(request).await)?;
        let mut waiting = Vec::new();
        while let Some(response) = stream.next().await {
            waiting.extend(self.answer(response.map(tonic::Response::new))?.delivery);
        }
        Ok(waiting)
    }

    /// Acks the messages of these message_ids that wait in this agent's mailbox, and returns how many there were. All
    /// before the last of them is delivered too, at most 1,024 messages, and goes back; its attempt does not count.
    ///
    /// # Errors
    ///
    /// As [`Self::peek`].
    pub async fn ack_mail(&self, message_ids: &BTreeSet<String>) -> Result<usize, ClientError> {
        let id_of = |delivery: &v1::Delivery| {
            v1::Envelope::decode(delivery.envelope.clone()).map(|envelope| envelope.message_id).unwrap_or_default()
        };
        let waiting = self.peek("").await?;
        let Some(last) = waiting.iter().rposition(|delivery| message_ids.contains(&id_of(delivery))) else {
            return Ok(0);
        };
        let count = u32::try_from((last + 1).min(TAKEN_MAX)).unwrap_or(u32::MAX);
        let request = v1::ReceiveRequest { max_outstanding: count, max_deliveries: count, ..Default::default() };
        let mut stream = self.answer(self.messages().receive(request).await)?;
        let mut taken = Vec::new();
        // Another process may have taken some of them: then fewer come.
        while let Ok(Some(response)) = tokio::time::timeout(NEXT_TIME, stream.next()).await {
            let delivery = self.answer(response.map(tonic::Response::new))?.delivery.unwrap_or_default();
            taken.push((message_ids.contains(&id_of(&delivery)), delivery.delivery_id));
        }
        drop(stream);
        let acked = taken.iter().filter(|(is_named, _)| *is_named).count();
        for (is_named, delivery_id) in taken {
            let outcome = match is_named {
                true => Outcome::Ack(v1::Ack {}),
                false => Outcome::Nack(v1::Nack { cause: v1::NackCause::Shutdown.into(), ..Default::default() }),
            };
            let acknowledgement = Some(v1::Acknowledgement { delivery_id, outcome: Some(outcome) });
            self.answer(self.messages().ack(v1::AckRequest { acknowledgement }).await)?;
        }
        Ok(acked)
    }
}
