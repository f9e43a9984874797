//! A naive client: the bare session, in which every delivery is accepted and acked.

use std::sync::Arc;

use baton_client::{About, Client, Composer, Delivered, Session};
use baton_client::{
    ids::SystemIds,
    proto::v1::{self, MessageType},
    time::SystemClock,
};
use prost::Message as _;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::{agent::Manners, done, options};

pub(super) async fn run(mut commands: mpsc::UnboundedReceiver<Value>) -> Result<(), Box<dyn std::error::Error>> {
    let Some(connect) = commands.recv().await else { return Ok(()) };
    let options = options(&connect)?;
    let client = Client::connect(&options.broker).await?;
    let client = client.with_token(&client.prove(&options.identity).await?)?;
    let session = Arc::new(Session::open(&client).await?);
    session.credit(options.credit).await?;
    done(&connect, json!({}));
    let composer = Composer { identity: options.identity, clock: Arc::new(SystemClock), ids: Arc::new(SystemIds) };
    let manners = Manners::new(None);
    loop {
        tokio::select! {
            Some(command) = commands.recv() => match command["command"].as_str() {
                Some("handle") => manners.set(&command),
                Some("release") => manners.release(&command),
                Some("close") => return Ok(()),
                _ => {
                    let info = v1::Info::default();
                    let to = command["to"].as_str().unwrap_or_default();
                    session.send(composer.encode(to, MessageType::Info, &About::default(), &info)).await?;
                    done(&command, json!({}));
                }
            },
            delivery = session.next_delivery() => {
                let delivery = delivery?;
                let envelope = v1::Envelope::decode(delivery.envelope.clone())?;
                let delivered = Delivered { delivery, envelope };
                tokio::spawn(take(Arc::clone(&session), composer.clone(), Arc::clone(&manners), delivered));
            }
        }
    }
}

async fn take(session: Arc<Session>, composer: Composer, manners: Arc<Manners>, delivered: Delivered) {
    let _ = manners.obey(&delivered).await;
    let (sender, about) = (&delivered.envelope.sender_id, delivered.about());
    let answer = match delivered.kind() {
        MessageType::HandoffRequest => {
            Some(composer.encode(sender, MessageType::HandoffAccept, &about, &v1::HandoffAccept::default()))
        }
        MessageType::TaskContextTransfer => {
            let context_digest = delivered.payload::<v1::TaskContextTransfer>().context_digest;
            let outcome = v1::HandoffOutcome::Success.into();
            let complete = v1::HandoffComplete { outcome, context_digest, ..Default::default() };
            Some(composer.encode(sender, MessageType::HandoffComplete, &about, &complete))
        }
        _ => None,
    };
    if let Some(answer) = answer {
        let _ = session.send(answer).await;
    }
    let _ = session.ack(&delivered.delivery.delivery_id).await;
}
