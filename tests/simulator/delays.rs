//! SPEC 4: a request or mail with a `deliver_after` is not delivered before that time. A clock that is set back hides time
//! from the broker, so the law counts each step that the clock has made forward: no log and no clock of the broker is ahead
//! of their sum.

use std::collections::HashMap;

use baton_broker_core::{
    ids::MessageId,
    proto::v1::{self, MessageType as T},
    time::Timestamp,
};
use prost::Message as _;

/// The bookkeeping of the law.
#[derive(Debug, Default)]
pub(crate) struct Delays {
    /// What the broker's clock has shown last, and the latest time that any log of the broker can have.
    shown: Option<(Timestamp, Timestamp)>,
    /// The time before which each message is not to be delivered; 0 if there is none.
    held: HashMap<MessageId, Timestamp>,
}

impl Delays {
    /// Notes what the broker's clock shows.
    pub(crate) fn see_clock(&mut self, now: Timestamp) {
        let (last, latest) = self.shown.unwrap_or((now, now));
        self.shown = Some((now, latest.plus(now.since(last))));
    }

    /// Notes a message that an agent sends.
    pub(crate) fn sends(&mut self, said: &v1::Envelope) {
        let Some(payload) = said.payload.as_ref().map(|payload| &*payload.value) else { return };
        let at = match said.message_type() {
            T::HandoffRequest => v1::HandoffRequest::decode(payload).ok().and_then(|request| request.deliver_after),
            T::Info => v1::Info::decode(payload).ok().and_then(|info| info.deliver_after),
            _ => None,
        };
        // Others may be delivered at once: also another message of a liar under the same id.
        let at = at.map_or(Timestamp::default(), |at| Timestamp::from_parts(at.seconds, at.nanos).unwrap());
        if let Ok(id) = MessageId::parse(&said.message_id) {
            self.held.entry(id).and_modify(|former| *former = (*former).min(at)).or_insert(at);
        }
    }

    /// The time before which this message is not to be delivered.
    pub(crate) fn of(&self, message: MessageId) -> Option<Timestamp> {
        self.held.get(&message).copied().filter(|at| *at > Timestamp::default())
    }

    /// Checks a delivery. Returns whether it was held.
    pub(crate) fn see_delivery(&self, envelope: &v1::Envelope) -> bool {
        let held = MessageId::parse(&envelope.message_id).ok().and_then(|id| self.of(id));
        let (Some(at), Some((_, latest))) = (held, self.shown) else { return false };
        let (kind, id) = (envelope.message_type(), &envelope.message_id);
        assert!(latest >= at, "SPEC 4: a {kind:?}, {id}, is delivered at {latest}, and not after {at}");
        true
    }
}
