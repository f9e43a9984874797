//! The work on tasks that were lent in a thread: a delegate reports how it ended, hands the task back, or dies.

use baton_broker_core::{
    proto::v1::{self, MessageType as T},
    time::Timestamp,
};
use prost::Message as _;

use super::{Action, Agent, Manner};
use crate::rng::Ids;

impl Agent {
    /// Notes a request that lends a task in a thread.
    pub(super) fn note_errand(&mut self, handoff: &str, request: &v1::Envelope) {
        let value = request.payload.clone().unwrap_or_default().value;
        let request = v1::HandoffRequest::decode(value).unwrap_or_default();
        if request.mode() == v1::HandoffMode::Delegate && !request.thread_id.is_empty() {
            self.errands.insert(handoff.to_owned());
        }
    }

    /// Works on a task whose context has just come. Some delegates die: the timeout of the loan, their silence, or the
    /// delegator ends it.
    pub(super) fn run_errand(
        &mut self,
        handoff: &str,
        context: &v1::Envelope,
        ids: &Ids,
        now: Timestamp,
    ) -> Option<Action> {
        if !self.errands.remove(handoff) || self.rng.once_in(6) {
            return None;
        }
        // The takeover, which the context leads to, adds 1 to the epoch.
        let (task, epoch) = (&context.task_id, context.epoch + 1);
        let bytes = if self.rng.once_in(2) {
            let back = v1::HandoffRequest { task_type: "x".into(), ..Default::default() };
            self.make(&context.sender_id, T::HandoffRequest, task, "", epoch, &back, ids, now)
        } else {
            let ends = [v1::TaskStatus::Completed, v1::TaskStatus::Failed, v1::TaskStatus::Canceled];
            let status = self.rng.pick(&ends).into();
            let update = v1::TaskStatusUpdate { status, result_json: "{}".into(), ..Default::default() };
            self.make("", T::TaskStatusUpdate, task, "", epoch, &update, ids, now)
        };
        let late = if self.manner == Manner::Slow { 60_000 } else { 4_000 };
        Some(Action::Later(100 + self.rng.roll(late), Box::new(Action::Send(bytes))))
    }
}
