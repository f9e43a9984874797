//! A client as one writes it in an hour: the bare session, and an ack for whatever comes.

use std::sync::Arc;

use baton::{
    client::{About, Client, Composer, Delivered, Session},
    ids::SystemIds,
    proto::v1::{self, MessageType},
    time::SystemClock,
};
use prost::Message as _;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::{
    agent::{Manners, kind_name, say_handling},
    done, options,
};

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
                say_handling(&delivered);
                tokio::spawn(ack_in_the_end(Arc::clone(&session), Arc::clone(&manners), delivered));
            }
        }
    }
}

async fn ack_in_the_end(session: Arc<Session>, manners: Arc<Manners>, delivered: Delivered) {
    let _ = manners.obey(&kind_name(delivered.kind())).await;
    let _ = session.ack(&delivered.delivery.delivery_id).await;
}
