//! Following what a broker shows, over its restarts.

use super::Failure;
use baton_client::{Client, Watch, Watched};

/// Opens a watch. It says once on stderr when the broker is lost, and goes on when it is back.
pub(super) async fn open<R: Watched>(client: &Client, request: R) -> Result<Watch<R>, Failure> {
    let mut said_at = None;
    let watch = Watch::open(client.clone(), request).await?;
    Ok(watch.on_interruption(move |problem, place| {
        if said_at.replace(place) == Some(place) {
            return;
        }
        match place {
            Some(place) => tell!("{problem}\nthe watch waits for the broker, and goes on after {place}"),
            None => tell!("{problem}\nthe watch waits for the broker"),
        }
    }))
}
