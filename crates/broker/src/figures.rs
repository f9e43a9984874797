//! The figures that are read when they are asked for, and not counted as they change: presence, sessions, and the
//! numbers of stored letters and dead letters.

use std::{ops::Bound, sync::Arc};

use super::{Broker, BrokerError, directory::Entry};
use crate::{
    domain::presence::PresenceState,
    ids::AgentId,
    records::{DeadLetterRecord, decode_letter, mailbox_range},
    store::{KeyBytes, Order, Record, Store, Table},
    time::Timestamp,
};

/// The most agents or records that one read takes.
const READ_AT_ONCE: usize = 2048;

impl Broker {
    /// Sets the figures of agents, sessions and the store's size.
    pub fn measure(&self) {
        let metrics = &self.resources().metrics;
        let now = self.now();
        let mut by_presence = [0; PresenceState::ALL.len()];
        let mut sessions = 0;
        let mut loads = Vec::new();
        self.each_registered(|agent| {
            let id = agent.id();
            loads.extend(self.directory().busy(agent, now).load.ratio());
            by_presence[self.directory().presence_state(&id, now) as usize] += 1;
            let signs = self.directory().presence(&id).signs;
            sessions += i64::from(signs.sessions) + i64::from(signs.receives);
        });
        for state in PresenceState::ALL {
            metrics.set_agents(state, by_presence[state as usize]);
        }
        metrics.set_loads(loads);
        metrics.sessions.set(sessions);
        // The size is unknown during a compaction. The former one stays then.
        if let Some(size) = self.store().size_bytes() {
            metrics.store_bytes.set(i64::try_from(size).unwrap_or(i64::MAX));
        }
    }

    /// Passes each registered agent to `each`. Holds no lock of the directory meanwhile.
    pub fn each_registered(&self, mut each: impl FnMut(&Arc<Entry>)) {
        let mut after: Option<AgentId> = None;
        loop {
            let agents = self.directory().list(after.as_ref(), READ_AT_ONCE);
            let Some(last) = agents.last() else { break };
            after = Some(last.id());
            agents.iter().filter(|agent| self.directory().is_registered(&agent.id())).for_each(&mut each);
        }
    }

    /// The time at which the oldest letter of an agent's mailbox was stored. May wait for the disk.
    pub fn oldest_letter(&self, agent: &AgentId) -> Result<Option<Timestamp>, BrokerError> {
        let first = self.store().scan(Table::Mailbox, mailbox_range(agent), Order::Ascending, 1)?;
        let letter = first.first().map(|(key, record)| decode_letter(key, &record.value)).transpose()?;
        Ok(letter.map(|letter| letter.stored_at))
    }

    /// Counts the stored letters and the parked dead letters. Reads both tables, so it may wait for the disk: at most
    /// some seconds for a million letters.
    pub fn survey(&self) -> Result<(), BrokerError> {
        let metrics = &self.resources().metrics;
        let now = self.now();
        let mut letters = 0;
        let mut first_expiry = self.settings().mail_lifetime;
        read_all(self.store(), Table::Mailbox, |key, record| {
            letters += 1;
            first_expiry = first_expiry.min(decode_letter(key, &record.value)?.expires_at.since(now));
            Ok(())
        })?;
        let mut parked = 0;
        read_all(self.store(), Table::DeadLetters, |key, record| {
            parked += i64::from(!DeadLetterRecord::decode(key, &record.value)?.state.is_final());
            Ok(())
        })?;
        metrics.mailbox_letters.set(letters);
        metrics.mailbox_first_expiry.set(i64::try_from(first_expiry.as_secs()).unwrap_or(i64::MAX));
        metrics.dead_letters_parked.set(parked);
        metrics.surveyed();
        Ok(())
    }
}

/// Passes all records of a table to `each`, in parts, so that no read holds more than one part in memory.
fn read_all(
    store: &dyn Store,
    table: Table,
    mut each: impl FnMut(&KeyBytes, &Record) -> Result<(), BrokerError>,
) -> Result<(), BrokerError> {
    let mut from = Bound::Unbounded;
    loop {
        let found = store.scan(table, (from, Bound::Unbounded), Order::Ascending, READ_AT_ONCE)?;
        for (key, record) in &found {
            each(key, record)?;
        }
        match found.last() {
            Some((last, _)) if found.len() == READ_AT_ONCE => from = Bound::Excluded(last.clone()),
            Some(_) | None => return Ok(()),
        }
    }
}
