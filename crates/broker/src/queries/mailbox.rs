//! A look into an agent's own mailbox, which takes nothing out of it and counts no attempt.

use std::ops::Bound;

use bytes::Bytes;

use super::{PAGE_BYTES_MAX, READ_AT_A_TIME, View};
use crate::{
    BrokerError,
    domain::{handoff::Priority, mailbox::Letter},
    ids::AgentId,
    records::{decode_letter, letter_key, mailbox_range, read_envelope},
    store::{Key, Order},
    time::Timestamp,
};

/// The letters of one priority, in their order.
#[derive(Debug, Default)]
pub struct MailPage {
    /// The letters, each with its envelope.
    pub letters: Vec<(Letter, Bytes)>,
    /// The place behind which the next page begins. `None`: no further letter has this priority.
    pub next: Option<u64>,
}

impl View<'_> {
    /// The letters of this priority that wait in the mailbox of an agent behind this place, oldest first, at most `most`.
    /// The caller is that agent.
    pub fn mail(
        &self,
        agent: &AgentId,
        priority: Priority,
        after: u64,
        most: usize,
        now: Timestamp,
    ) -> Result<MailPage, BrokerError> {
        let range = (Bound::Excluded(letter_key(agent, after).key), mailbox_range(agent).1);
        let table = letter_key(agent, 0).table;
        let stored = self.store.scan(table, range, Order::Ascending, READ_AT_A_TIME)?;
        let is_last = stored.len() < READ_AT_A_TIME;
        let (mut page, mut bytes, mut place) = (MailPage::default(), 0, after);
        for (key, record) in stored {
            let letter = decode_letter(&key, &record.value)?;
            if page.letters.len() == most || bytes > PAGE_BYTES_MAX {
                page.next = Some(place);
                return Ok(page);
            }
            place = letter.sequence;
            // A letter that was never delivered and is not to be delivered yet does not wait.
            let is_held = letter.handouts == 0 && letter.not_before > now;
            if letter.priority != priority || is_held || letter.is_expired(now) {
                continue;
            }
            let read = |key: &Key| Ok::<_, BrokerError>(self.store.get(key)?);
            // An ack between the two reads removes the envelope.
            if let Some(envelope) = read_envelope(letter.bytes_at(), read)? {
                bytes += envelope.len();
                page.letters.push((letter, envelope));
            }
        }
        page.next = (!is_last).then_some(place);
        Ok(page)
    }
}
