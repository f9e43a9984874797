//! The end of the tasks of a pair: a broker that outlives the bench keeps no open task of it.

use prost::Message as _;

use super::{Pair, RECEIVER, SENDER};
use crate::Failure;
use baton_client::{
    About, ClientError,
    proto::v1::{self, MessageType, connect_request::Request, connect_response::Response},
};

/// The request id of the messages that end tasks; no message of a handoff uses it.
const END_REQUEST_ID: u64 = u64::MAX - 1;
/// The most messages without an answer.
const WINDOW: usize = 256;

impl Pair {
    /// Ends each task: the receiver those that it has taken over, the sender the others. A task whose handoff is still open
    /// is refused, and is left to the retention of idle tasks.
    pub(super) async fn end_tasks(&mut self) -> Result<(), Failure> {
        let (taken, given_up) = (std::mem::take(&mut self.taken), std::mem::take(&mut self.given_up));
        self.end_as(RECEIVER, 2, v1::TaskStatus::Completed, &taken).await?;
        self.end_as(SENDER, 1, v1::TaskStatus::Canceled, &given_up).await
    }

    async fn end_as(&mut self, side: usize, epoch: u64, status: v1::TaskStatus, tasks: &[u64]) -> Result<(), Failure> {
        let (kind, update) =
            (MessageType::TaskStatusUpdate, v1::TaskStatusUpdate { status: status.into(), ..Default::default() });
        for some in tasks.chunks(WINDOW) {
            for number in some {
                let about = About::task(&format!("{}{number}", self.task_prefix), epoch);
                let composer = &self.sides[side].composer;
                let envelope = match self.work.signed {
                    true => composer.encode("", kind, &about, &update),
                    false => composer.draft("", kind, &about, &update).encode_to_vec().into(),
                };
                self.sides[side].session.push(END_REQUEST_ID, Request::Envelope(envelope));
            }
            self.sides[side].session.flush();
            let mut left = some.len();
            while left > 0 {
                let answer = self.sides[side].session.next().await?;
                if let Some(Response::GoAway(go_away)) = answer.response {
                    return Err(ClientError::SessionEnded(go_away.reason_text).into());
                }
                left -= usize::from(answer.request_id == END_REQUEST_ID);
            }
        }
        Ok(())
    }
}
