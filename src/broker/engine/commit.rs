//! Committing the batch, and what follows once it is durable.

use std::collections::BTreeSet;

use super::{Engine, open::sequence_key, timers::Timer, transaction::PostCommit};
use crate::{
    broker::{BrokerError, Output, Update, refused},
    domain::{EntityId, handoff::Handoff},
    ids::AgentId,
    records::Expiration,
    time::Timestamp,
};

impl Engine {
    /// Commits the batch, then acts. Nothing is answered or delivered before the commit is synced. What is to be sent then is
    /// there to be polled: [`Engine::poll_output`].
    pub fn finish(&mut self, now: Timestamp) {
        let now = self.keep_time(now);
        let accepted = self.expire_accepted(now);
        let mut batch = self.batch.take();
        if let Some((key, ids)) = &accepted {
            batch.put_unconditionally(key.clone(), ids.clone());
        }
        if !batch.changes.is_empty() {
            batch.put_unconditionally(sequence_key(), self.sequence_value());
        }
        let committed = if batch.changes.is_empty() {
            Ok(Vec::new())
        } else {
            self.env.store.commit(std::mem::take(&mut batch.changes))
        };
        let applied = match committed {
            Ok(applied) => applied,
            Err(error) => {
                self.batch.failed = true;
                return self.outputs.extend(batch.refusals(&refused(BrokerError::from(error))));
            }
        };
        if let Some((key, _)) = accepted {
            self.expiration_stored(Expiration::Messages, key, now);
        }
        let mut touched = batch.touched;
        for pending in batch.replies {
            let conflict = pending.changes.clone().find_map(|index| applied[index].as_ref().err());
            if let Some(conflict) = conflict {
                tracing::error!(%conflict, "a change was computed from something that has changed");
                self.entities.clear();
                self.outputs.extend(pending.refusal(&refused(BrokerError::Conflict)));
                continue;
            }
            for act in pending.post_commit {
                self.post_commit(act, &mut touched, now);
            }
            self.outputs.extend(pending.answer.map(Output::Reply));
        }
        for (entity, watcher) in batch.watches {
            self.watch(entity, watcher);
        }
        self.outputs.dispatch_later(touched);
    }

    fn post_commit(&mut self, act: PostCommit, touched: &mut BTreeSet<AgentId>, now: Timestamp) {
        match act {
            PostCommit::LetterStored { agent, letter } => {
                if let Some(depth) = self.delivery.depths.get_mut(&agent) {
                    depth.one_more();
                }
                let is_to_be_loaded = self.delivery.loading.get(&agent).is_some_and(|next| *next <= letter.sequence);
                if let Some(mailbox) = self.delivery.mailboxes.get_mut(&agent).filter(|_| !is_to_be_loaded) {
                    mailbox.add(letter);
                    touched.insert(agent);
                }
            }
            PostCommit::LetterRemoved { agent, place } => {
                if let Some(depth) = self.delivery.depths.get_mut(&agent) {
                    depth.one_less(place);
                }
                let ended = self.delivery.mailboxes.get_mut(&agent).and_then(|mailbox| mailbox.remove(place));
                self.lease_ended(ended);
                touched.insert(agent);
            }
            PostCommit::LetterRequeued { agent, letter } => {
                let ended = self.delivery.mailboxes.get_mut(&agent).and_then(|mailbox| mailbox.requeue(letter));
                self.lease_ended(ended);
                touched.insert(agent);
            }
            PostCommit::MailTimer { agent, at: Some(at) } => {
                self.delivery.mail_timer_of.insert(agent, at);
                self.timers.bring_forward(Timer::MailExpiry, at);
            }
            PostCommit::MailTimer { agent, at: None } => drop(self.delivery.mail_timer_of.remove(&agent)),
            PostCommit::EntityTimer { entity, counts_for, before, after } => {
                if let Some(agent) = counts_for {
                    match (before, after) {
                        (None, Some(_)) => *self.entities.open_of.entry(agent).or_default() += 1,
                        (Some(_), None) => self.one_less_open(&agent),
                        (None, None) | (Some(_), Some(_)) => {}
                    }
                }
                match after {
                    Some(at) => self.timers.set(Timer::Entity(entity), at),
                    None => self.timers.clear(Timer::Entity(entity)),
                }
            }
            PostCommit::EntityMoved(record) => {
                if let Some(handoff) = record.as_handoff() {
                    log_move(&handoff.handoff);
                }
                self.outputs.update(&record.entity().id(), &Update(record));
            }
            PostCommit::OutboxWritten(sequence) => {
                self.entities.outbox_written(sequence);
                self.timers.set_at_once(Timer::Outbox);
            }
            PostCommit::TaskRemoved(task) => self.outputs.watchers.remove_all_of(&EntityId::Task(task)),
            PostCommit::ExpirationStored { kind, key, since } => self.expiration_stored(kind, key, since),
            PostCommit::OnRecord { at } => self.act_recorded(at),
            PostCommit::AgentStored(entry) => self.env.directory.put(*entry),
            PostCommit::KeyRevoked(agent) => self.send_away(|consumer| consumer.is_of(&agent), now),
        }
    }
}

/// The line about a handoff that has ended; its other steps are for those who look closely.
fn log_move(handoff: &Handoff) {
    let Handoff { id, task, sender, candidate, state, .. } = handoff;
    let state = state.name();
    if handoff.state.is_final() && !handoff.let_go {
        tracing::info!(handoff = %id, %task, %sender, %candidate, state, "a handoff has ended");
    } else {
        tracing::debug!(handoff = %id, %task, %sender, %candidate, state, "a handoff has moved");
    }
}
