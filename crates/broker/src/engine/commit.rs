//! The commit of the batch, and the actions after it.

use std::collections::BTreeSet;

use super::{Engine, batch::PostCommit, log, open::sequence_key, open_counts::Counted, timers::Timer};
use crate::{
    BrokerError, Output, Update,
    changes::Change,
    ids::AgentId,
    records::{EntityRecord, Expiration},
    refused,
    time::Timestamp,
};

impl Engine {
    /// Commits the batch, then acts. No answer and no delivery leaves the engine before the commit is synced.
    /// [`Engine::poll_output`] yields the outputs.
    pub fn finish(&mut self, now: Timestamp) {
        let now = self.keep_time(now);
        // The ids are taken out of the batch before the batch is replaced by an empty one.
        let accepted = self.expire_accepted(now);
        let mut batch = self.batch.take();
        if let Some((key, ids)) = &accepted {
            batch.put_unconditionally(key.clone(), ids.clone());
        }
        let (usage, counts) = self.changed_usage(&batch.stored);
        if !usage.writes.is_empty() {
            batch.put_all_unconditionally(usage);
        }
        // A batch that changes nothing needs no sync: its answers only report stored state.
        if !batch.changes.is_empty() {
            // Each commit stores the sequence and the clock, so that a restart gives no sequence twice and no earlier
            // running time.
            batch.put_unconditionally(sequence_key(), self.sequence_value());
        }
        let committed = if batch.changes.is_empty() {
            Ok(Vec::new())
        } else {
            self.env.store.commit(std::mem::take(&mut batch.changes))
        };
        let applied = match committed {
            Ok(applied) => {
                if !applied.is_empty() {
                    self.env.resources.metrics.group_committed(applied.len());
                }
                applied
            }
            Err(error) => {
                // The changes may be on disk in whole, in part or not at all, so no post-commit action runs. The
                // recovery reads the state again.
                self.batch.failed = true;
                return self.outputs.extend(batch.refusals(&refused(BrokerError::from(error))));
            }
        };
        self.usage_stored(counts);
        if let Some((key, _)) = accepted {
            self.expiration_stored(Expiration::Messages, key, now);
        }
        #[cfg(debug_assertions)]
        let changed = super::invariants::Touched::of(&batch.replies, &applied);
        let mut touched = batch.touched;
        let mut conflicts = false;
        self.outputs.changes.clear();
        for pending in batch.replies {
            let conflict = pending.changes.clone().find_map(|index| applied[index].as_ref().err());
            if let Some(conflict) = conflict {
                tracing::error!(%conflict, "a change was computed from an outdated revision");
                // The cache may hold the version that caused the conflict.
                self.entities.clear();
                conflicts = true;
                self.outputs.extend(pending.refusal(&refused(BrokerError::Conflict)));
                continue;
            }
            for act in pending.post_commit {
                self.post_commit(act, &mut touched, now);
            }
            self.outputs.extend(pending.answer.map(Output::Reply));
        }
        self.env.handoff_changes.add(std::mem::take(&mut self.outputs.changes));
        // The replies go first: a watcher gets the state after this commit, and no update of it twice.
        for (entity, watcher) in batch.watches {
            self.watch(entity, watcher);
        }
        self.outputs.dispatch_later(touched);
        if conflicts {
            self.count_again();
        }
        self.count_some();
        #[cfg(debug_assertions)]
        self.assert_invariants(&changed);
        self.note_failure_of_store();
    }

    /// Ends the use of a store that cannot be read. A part of the engine may have taken a failed read for the end of its
    /// work, and the recovery begins all of it again.
    fn note_failure_of_store(&mut self) {
        self.batch.failed |= self.env.store.has_failed();
    }

    fn post_commit(&mut self, act: PostCommit, touched: &mut BTreeSet<AgentId>, now: Timestamp) {
        match act {
            PostCommit::LetterStored { agent, letter } => {
                // A notice of the broker may go to an agent that has left, which never fetches it.
                if self.env.directory.has_left(&agent) {
                    self.has_left(agent.clone());
                }
                self.count_letter(&agent, letter.sequence, true);
                if self.delivery.letter_stored(&agent, letter) {
                    touched.insert(agent);
                }
            }
            PostCommit::LetterRemoved { agent, place } => {
                // The end of the lease gives credit back, and the next letter of the same task may be ready: the
                // mailbox is dispatched again.
                self.count_letter(&agent, place, false);
                self.delivery.letter_removed(&agent, place, &self.env.resources.metrics.deliveries_in_flight);
                touched.insert(agent);
            }
            PostCommit::AttemptsEnded { agent, letter } => {
                let lease = self.delivery.lease(&agent, letter.sequence);
                if let Some(traces) = &self.env.resources.traces {
                    traces.letter_removed(&agent, &letter, lease.as_ref(), now);
                }
            }
            PostCommit::LetterRequeued { agent, letter } => {
                self.delivery.letter_requeued(&agent, letter, &self.env.resources.metrics.deliveries_in_flight);
                touched.insert(agent);
            }
            PostCommit::MailTimer { agent, at } => {
                if let Some(at) = at {
                    // Never put off: this one timer serves all mailboxes, and mail of another one may expire earlier.
                    self.timers.bring_forward(Timer::MailExpiry, at);
                }
                self.delivery.set_mail_timer(agent, at);
            }
            PostCommit::EntityTimer { entity, counts_for, bytes, before, after } => {
                // An entity that counts for an agent has a deadline while it is open: the first timer opens it, and a
                // removed timer ends it.
                if let (Some(agent), Some(kind)) = (counts_for, Counted::of(&entity)) {
                    match (before, after) {
                        (None, Some(_)) => self.entities.open.one_more((kind, agent), &entity, bytes),
                        (Some(_), None) => self.entities.open.one_less((kind, agent), &entity),
                        (None, None) | (Some(_), Some(_)) => {}
                    }
                }
                match after {
                    Some(at) => self.timers.set(Timer::Entity(entity), at),
                    None => self.timers.clear(Timer::Entity(entity)),
                }
            }
            PostCommit::EntityMoved { before, after } => {
                if let Some(record) = after.as_handoff()
                    && before.as_deref().and_then(EntityRecord::as_handoff).map(|before| before.changed)
                        != Some(record.changed)
                {
                    let (handoff, task) = (record.handoff.id, record.handoff.task.clone());
                    self.outputs.changes.push(Change { number: record.changed, handoff, task });
                }
                if let Some(record) = after.as_handoff() {
                    self.follow_held(record);
                }
                log::moved(before.as_deref(), &after);
                if let Some(traces) = &self.env.resources.traces {
                    traces.entity_moved(before.as_deref(), &after);
                }
                let before = before.map(|record| record.entity());
                let trace = after.trace().map(|place| &place.continued).filter(|trace| trace.is_sampled());
                self.env.resources.metrics.entity_moved(before.as_ref(), &after.entity(), trace);
                self.outputs.update(&after.entity().id(), &Update(after));
            }
            PostCommit::Count(event) => self.env.resources.metrics.count(event),
            PostCommit::LogAccepted(header, trace) => log::accepted(&header, trace.as_deref()),
            PostCommit::OutboxWritten(sequence) => {
                self.entities.outbox_written(sequence);
                self.timers.set_at_once(Timer::Outbox);
            }
            // The removal drops the watchers' channels, which ends their calls: no further update of the entity can
            // follow.
            PostCommit::EntityRemoved(entity) => self.outputs.watchers.remove_all_of(&entity),
            PostCommit::ExpirationStored { kind, key, since } => self.expiration_stored(kind, key, since),
            PostCommit::OnRecord { at } => self.act_recorded(at),
            PostCommit::FileRemoved(removed) => {
                if let Some(files) = &self.env.resources.blob_files {
                    files.note_removed(removed);
                }
            }
            PostCommit::AgentStored(entry) => {
                let (agent, types) = (entry.id(), entry.types.clone());
                self.env.directory.put(*entry);
                self.note_registered(&agent, &types);
            }
            PostCommit::AgentLeft(agent) => self.has_left(agent),
            PostCommit::StatisticsStored { agent, statistics } => {
                self.env.directory.set_statistics(&agent, *statistics);
            }
            // The agent's sessions may have been opened with a key that is revoked now. They come back and authenticate
            // with a key that is valid (SPEC 5).
            PostCommit::SessionsEnded(agent, why) => self.send_away(why, |consumer| consumer.is_of(&agent), now),
        }
    }
}
