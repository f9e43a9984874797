//! Queries of plans, their results and their logs.

use std::sync::Arc;

use bytes::Bytes;
use prost::Message as _;

use super::{
    PAGE_BYTES_MAX, Page, View,
    logs::{Log, LogPage},
};
use crate::{
    BrokerError,
    access::Purpose,
    codes::FieldViolation,
    domain::plan::{Plan, PlanState, Spec},
    ids::{MessageId, PlanId},
    proto::v1::{self, plan_entry::Event},
    records::{List, MessageRecord, PlanEntryRecord, PlanRecord, PlanSpecRecord},
    store::Table,
};

impl View<'_> {
    /// One plan that the caller may see, with its subtasks.
    pub fn plan(&self, id: &PlanId) -> Result<(Arc<Plan>, Arc<Spec>), BrokerError> {
        let record = self.plan_record(id)?;
        Ok((record.plan, self.plan_spec(id)?))
    }

    fn plan_record(&self, id: &PlanId) -> Result<PlanRecord, BrokerError> {
        let seen = self.stored_plan(id)?.filter(|record| self.access.may_see_plan(self.caller, &record.plan));
        seen.ok_or_else(|| self.access.no_such_plan(self.caller, id))
    }

    fn stored_plan(&self, id: &PlanId) -> Result<Option<PlanRecord>, BrokerError> {
        let stored = self.store.get(&PlanRecord::key(id))?;
        Ok(stored.map(|record| PlanRecord::decode(&record.value)).transpose()?)
    }

    fn plan_spec(&self, id: &PlanId) -> Result<Arc<Spec>, BrokerError> {
        let stored = self.store.get(&PlanSpecRecord::key(id))?;
        let stored = stored.map(|record| PlanSpecRecord::decode(&record.value)).transpose()?;
        stored.map(|record| record.0).ok_or_else(|| BrokerError::PlanUnknown { plan: id.to_string() })
    }

    /// The signed submission of a plan that the caller may see, or the signed extension with this message id.
    pub fn plan_submission(&self, id: &PlanId, extension: Option<MessageId>) -> Result<Bytes, BrokerError> {
        let record = self.plan_record(id)?;
        let sequence = match extension {
            None => record.sequence,
            Some(message) => {
                let known = record.plan.extensions.iter().find(|known| known.message == message);
                let problem = || FieldViolation {
                    path: "extension_id".to_owned(),
                    problem: format!("is no extension of plan {id}"),
                };
                known.ok_or_else(|| BrokerError::Fields { violations: vec![problem()] })?.sequence
            }
        };
        let stored = self.store.get(&MessageRecord::envelope_key(sequence))?;
        stored.map(|record| record.value).ok_or(BrokerError::Internal)
    }

    /// The plans that the caller may see, newest first.
    pub fn plans(&self, states: &[PlanState], size: usize, token: &str) -> Result<Page<Arc<Plan>>, BrokerError> {
        let list = self.list(Purpose::ReadPlans, List::of_plans, None)?;
        let wanted = |plan: &Arc<Plan>| {
            (states.is_empty() || states.contains(&plan.state)) && self.access.may_see_plan(self.caller, plan)
        };
        let read = |_, value: &Bytes| {
            Ok(self.stored_plan(&PlanRecord::listed(value)?)?.map(|record| record.plan).filter(wanted))
        };
        self.page(list.as_ref(), &format!("{states:?}"), size, token, read)
    }

    /// The results of a plan from this place in its list on, and the place at which the next page begins.
    pub fn plan_results(
        &self,
        id: &PlanId,
        from: usize,
        limit: usize,
    ) -> Result<(Vec<v1::SubtaskResult>, Option<usize>), BrokerError> {
        let plan = self.plan_record(id)?.plan;
        let (mut results, mut bytes) = (Vec::new(), 0);
        for (place, subtask) in plan.subtasks.iter().enumerate().skip(from) {
            let Some(number) = subtask.result else { continue };
            let Some(entry) = self.store.get(&PlanEntryRecord::key(id, number))? else { continue };
            let Some(Event::Subtask(change)) = PlanEntryRecord::message(&entry.value)?.event else { continue };
            let Some(result) = change.result else { continue };
            bytes += result.encoded_len();
            if results.len() == limit || (bytes > PAGE_BYTES_MAX && !results.is_empty()) {
                return Ok((results, Some(place)));
            }
            results.push(result);
        }
        Ok((results, None))
    }

    /// The entries of a plan's log after this number, oldest first.
    pub fn plan_log(&self, id: &PlanId, after: u64, limit: usize) -> Result<LogPage<v1::PlanEntry>, BrokerError> {
        let plan = self.plan_record(id)?.plan;
        let log = Log {
            table: Table::PlanLog,
            range: PlanEntryRecord::range_after(id, after),
            after,
            decode: PlanEntryRecord::message,
            length: plan.log_length,
            is_final: plan.state.is_final(),
        };
        self.log_page(log, limit)
    }
}
