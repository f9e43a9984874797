//! A look at an agent's mailbox.

use tokio_stream::StreamExt as _;

use super::{Client, ClientError, Delivered, Link};
use crate::proto::v1;

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
    async fn peek(&self, instance_id: &str) -> Result<Vec<v1::Delivery>, ClientError> {
        let request =
            v1::ReceiveRequest { peek: true, instance_id: instance_id.to_owned(), ..v1::ReceiveRequest::default() };
        let mut stream = self.answer(self.messages().receive(request).await)?;
        let mut waiting = Vec::new();
        while let Some(response) = stream.next().await {
            waiting.extend(self.answer(response.map(tonic::Response::new))?.delivery);
        }
        Ok(waiting)
    }
}
