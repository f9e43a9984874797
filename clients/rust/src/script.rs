//! The broker's end of a session, for tests of the client's parts.

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::Status;

use super::{Client, Composer, Identity, Session, session::Agent, work::Work};
use crate::{
    envelope::keys::PrivateKey,
    ids::{AgentId, KeyId, SystemIds},
    proto::v1::{self, connect_request::Request, connect_response::Response},
    time::SystemClock,
};

/// The broker of one session. The session ends when it is dropped.
pub(super) struct Script {
    /// The broker's key of the session.
    pub key: PrivateKey,
    frames: mpsc::Receiver<v1::ConnectRequest>,
    responses: mpsc::UnboundedSender<Result<v1::ConnectResponse, Status>>,
}

impl Script {
    /// Opens a session without a connection, and without heartbeats at intervals.
    pub(super) fn open() -> (Session, Self) {
        Self::open_with(v1::Welcome::default(), None)
    }

    /// Opens a session with this welcome, of a process with this work.
    pub(super) fn open_with(welcome: v1::Welcome, work: Option<Arc<Work>>) -> (Session, Self) {
        let key = PrivateKey::generate(&SystemIds);
        let (sender, frames) = mpsc::channel(64);
        let (responses, receiver) = mpsc::unbounded_channel();
        let receiver = UnboundedReceiverStream::new(receiver);
        let session = Session::begun(welcome, key.public(), sender, receiver, work);
        (session, Self { key, frames, responses })
    }

    /// Opens such a session of an agent. Calls outside of the session fail.
    pub(super) fn open_agent() -> (Agent, Self) {
        let (session, script) = Self::open();
        (Agent::on(session, Client::of_no_server(), composer()), script)
    }

    /// The next request on the session, with its id.
    pub(super) async fn hear(&mut self) -> (u64, Request) {
        let frame = self.frames.recv().await.expect("the session is open");
        (frame.request_id, frame.request.expect("a frame has a request"))
    }

    /// Sends a response; `request_id` 0 marks an unsolicited one.
    pub(super) fn say(&self, request_id: u64, response: Response) {
        self.send(Ok(v1::ConnectResponse { request_id, response: Some(response) }));
    }

    /// Ends the session with this status.
    pub(super) fn end(self, status: Status) {
        self.send(Err(status));
    }

    fn send(&self, response: Result<v1::ConnectResponse, Status>) {
        self.responses.send(response).expect("the session is open");
    }
}

/// The composer of an agent.
pub(super) fn composer() -> Composer {
    let (agent, key_id) = (AgentId::parse("bob").unwrap(), KeyId::parse("k1").unwrap());
    let identity = Identity { agent, key_id, key: PrivateKey::generate(&SystemIds) };
    Composer { identity, clock: Arc::new(SystemClock), ids: Arc::new(SystemIds) }
}
