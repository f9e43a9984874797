//! Table agent_statistics: how the latest offers of each agent ended.

use std::time::Duration;

use bytes::Bytes;
use prost::Message;

use super::{DecodeError, Reader, by_name};
use crate::{
    domain::matching::{OfferResult, Statistics},
    ids::AgentId,
    proto::storage,
    store::{Key, Table},
    time::Timestamp,
};

const NANOSECONDS: i64 = 1_000_000;

/// The record of an agent's statistics. Times have milliseconds: a record is written with most handoffs, so it is small.
#[derive(Debug, Clone, Copy)]
pub struct StatisticsRecord;

impl StatisticsRecord {
    /// The key of the record.
    pub fn key(agent: &AgentId) -> Key {
        by_name(Table::AgentStatistics, agent.as_str())
    }

    /// The agent of a key.
    pub fn agent(key: &[u8]) -> Result<AgentId, DecodeError> {
        let reader = Reader(Table::AgentStatistics.name());
        let text = std::str::from_utf8(key).map_err(|error| reader.error(error.to_string()))?;
        reader.agent(text)
    }

    /// The value of the record.
    pub fn encode(statistics: &Statistics) -> Bytes {
        let results = statistics.results();
        let at = |result: &OfferResult| result.at.unix_milliseconds();
        let first_at = results.first().map_or(0, at);
        // The log's time of one task may be before that of another one.
        let later = results.windows(2).map(|pair| u64::try_from(at(&pair[1]) - at(&pair[0])).unwrap_or(0));
        let decision = |result: &OfferResult| result.decision.map_or(0, |time| milliseconds(time) + 1);
        let bit = |(place, result): (usize, &OfferResult)| u64::from(result.completed) << place;
        storage::AgentStatisticsRecord {
            first_at,
            later_by: results.first().map(|_| 0).into_iter().chain(later).collect(),
            decisions: results.iter().map(decision).collect(),
            completed: results.iter().enumerate().map(bit).sum(),
        }
        .encode_to_vec()
        .into()
    }

    /// Parses the value of the record. Fails if the bytes are damaged.
    pub fn decode(value: &Bytes) -> Result<Statistics, DecodeError> {
        let reader = Reader(Table::AgentStatistics.name());
        let stored: storage::AgentStatisticsRecord = reader.message(value)?;
        if stored.later_by.len() != stored.decisions.len() || stored.later_by.len() > 64 {
            return Err(reader.error("the lists of offers do not agree"));
        }
        let mut at = Timestamp::from_unix_nanoseconds(stored.first_at.saturating_mul(NANOSECONDS));
        let mut results = Vec::with_capacity(stored.decisions.len());
        for (place, (later, decision)) in stored.later_by.iter().zip(&stored.decisions).enumerate() {
            at = at.plus(Duration::from_millis(*later));
            let completed = stored.completed >> place & 1 == 1;
            results.push(OfferResult { at, completed, decision: decision.checked_sub(1).map(Duration::from_millis) });
        }
        Ok(Statistics::of(results))
    }
}

fn milliseconds(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_read_as_they_were_written() {
        let at = |milliseconds: i64| Timestamp::from_unix_nanoseconds(milliseconds * NANOSECONDS);
        let decisions = [None, Some(0), Some(1500)];
        let result = |place: usize| OfferResult {
            at: at(1_700_000_000_000 + place as i64 * 70),
            completed: place.is_multiple_of(3),
            decision: decisions[place % 3].map(Duration::from_millis),
        };
        for length in [0, 1, 50] {
            let statistics = Statistics::of((0..length).map(result).collect());
            let bytes = StatisticsRecord::encode(&statistics);
            assert_eq!(StatisticsRecord::decode(&bytes), Ok(statistics));
            assert!(bytes.len() < 400, "{} bytes", bytes.len());
        }
    }

    #[test]
    fn a_damaged_record_is_refused() {
        let damaged = storage::AgentStatisticsRecord { later_by: vec![0; 2], decisions: vec![0], ..Default::default() };
        assert!(StatisticsRecord::decode(&damaged.encode_to_vec().into()).is_err());
        assert!(StatisticsRecord::decode(&Bytes::from_static(b"\xff")).is_err());
    }
}
