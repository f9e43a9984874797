//! The well-behaved agent: a message to itself and a list, again and again.

use std::time::Duration;

use baton::{
    proto::v1::{self, MessageType},
    time::Moment,
};
use baton_client::{About, Client, session::Agent};

use super::{Broker, Failure};

/// The pause between two rounds of work.
const PAUSE: Duration = Duration::from_millis(5);

pub(crate) struct Quiet {
    agent: Agent,
    client: Client,
}

/// The 99th percentiles of both kinds of work, in milliseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Waits {
    /// From the send of a message to its delivery.
    pub(crate) message: f64,
    /// From the call of a list to its answer.
    pub(crate) list: f64,
}

impl Quiet {
    pub(crate) async fn connect(broker: &Broker) -> Result<Self, Failure> {
        Ok(Self { agent: broker.agent("quiet").await?, client: broker.client_of("quiet").await? })
    }

    pub(crate) async fn work(&self, span: Duration) -> Result<Waits, Failure> {
        let (began, mut messages, mut lists) = (Moment::now(), Vec::new(), Vec::new());
        while Moment::now().since(began) < span {
            let at = Moment::now();
            let text = v1::Info { text: "still here".into(), ..Default::default() };
            self.agent.send("quiet", MessageType::Info, &About::default(), &text).await?;
            let delivery = self.agent.next().await?;
            messages.push(Moment::now().since(at));
            self.agent.session.ack(&delivery.delivery.delivery_id).await?;
            let at = Moment::now();
            let request = v1::ListTasksRequest { page_size: 10, ..Default::default() };
            self.client.answer(self.client.tasks().list_tasks(request).await)?;
            lists.push(Moment::now().since(at));
            tokio::time::sleep(PAUSE).await;
        }
        Ok(Waits { message: percentile(messages), list: percentile(lists) })
    }
}

fn percentile(mut waits: Vec<Duration>) -> f64 {
    waits.sort();
    let place = (waits.len() * 99).div_ceil(100).saturating_sub(1);
    waits.get(place).map_or(0.0, |wait| wait.as_secs_f64() * 1000.0)
}
