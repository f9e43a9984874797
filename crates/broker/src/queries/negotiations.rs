//! Queries of negotiations.

use std::sync::Arc;

use bytes::Bytes;

use super::{Page, View};
use crate::{
    BrokerError,
    access::Purpose,
    domain::negotiation::{self, Negotiation},
    ids::{AgentId, MessageId},
    records::{List, NegotiationRecord},
};

/// A filter of negotiations. All conditions that are set must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NegotiationFilter {
    /// The requester or a bidder.
    pub agent: Option<AgentId>,
    /// The permitted states. Empty: all.
    pub states: Vec<negotiation::State>,
}

impl View<'_> {
    /// One negotiation that the caller may see.
    pub fn negotiation(&self, id: MessageId) -> Result<Arc<Negotiation>, BrokerError> {
        let seen = self.stored_negotiation(id)?.filter(|found| self.access.may_see_negotiation(self.caller, found));
        seen.ok_or_else(|| self.access.no_such_negotiation(self.caller, id))
    }

    fn stored_negotiation(&self, id: MessageId) -> Result<Option<Arc<Negotiation>>, BrokerError> {
        let key = NegotiationRecord::key(id);
        let mut stored = self.store.get(&key)?;
        loop {
            let Some(found) = stored else { return Ok(None) };
            let record = NegotiationRecord::decode(&found.value)?;
            let rows = record.bids_keys().map(|key| self.store.get(&key)).collect::<Result<Vec<_>, _>>()?;
            // A step between two reads would mix two states. Steps are rare beside a read.
            stored = self.store.get(&key)?;
            if stored.as_ref().is_some_and(|again| again.revision == found.revision) {
                let rows: Vec<_> = rows.into_iter().flatten().map(|row| row.value).collect();
                return Ok(Some(record.with_bids(&rows)?.negotiation));
            }
        }
    }

    /// The negotiations that the caller may see, newest first.
    pub fn negotiations(
        &self,
        filter: &NegotiationFilter,
        size: usize,
        token: &str,
    ) -> Result<Page<Arc<Negotiation>>, BrokerError> {
        let list = self.list(Purpose::ReadNegotiations, List::of_negotiations, filter.agent.as_ref())?;
        let wanted = |found: &Arc<Negotiation>| {
            filter.agent.as_ref().is_none_or(|agent| found.parties().any(|party| party == agent))
                && (filter.states.is_empty() || filter.states.contains(&found.state))
                && self.access.may_see_negotiation(self.caller, found)
        };
        let read = |_, value: &Bytes| Ok(self.stored_negotiation(NegotiationRecord::listed(value)?)?.filter(wanted));
        self.page(list.as_ref(), &format!("{filter:?}"), size, token, read)
    }
}
