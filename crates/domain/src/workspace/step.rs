//! The step of a workspace.

use std::{sync::Arc, time::Duration};

use super::{Append, Entry, Limits, Rejection, TopicState, Workspace, WorkspaceId, owner};
use crate::{Effect, Entity, EntityId, Input, ReadError, Reader, StepError, Transition, time::Timestamp};

/// The most entries that one step removes. More of them expire in further steps.
pub(crate) const EXPIRED_A_STEP: u64 = 64;
/// The least time after which a refused append is worth a repeat.
const RETRY_MIN: Duration = Duration::from_secs(1);

/// Applies one input to a workspace. A workspace without a record is empty: it exists with its owner.
pub(crate) fn step(
    id: &WorkspaceId,
    input: &Input,
    read: &mut dyn Reader,
    now: Timestamp,
) -> Result<Transition, StepError> {
    match input {
        Input::Append { append, limits, is_result } => {
            // The owner is read in the same transaction, so no entry follows its end.
            let Some(owner) = owner(id, read)? else {
                return Err(Rejection::Unknown { workspace: id.clone() }.into());
            };
            // A result is appended in the step that may end its plan, so it alone may follow the end.
            if !owner.is_open && !is_result {
                return Err(Rejection::Closed { workspace: id.clone() }.into());
            }
            let workspace = stored(id, read)?.unwrap_or_else(|| Workspace::empty(id.clone()));
            Ok(append_to(workspace, append, limits, now)?)
        }
        Input::Time => match stored(id, read)? {
            Some(workspace) => Ok(expire(workspace, read, now)?),
            None => Ok(Transition::default()),
        },
        // No delivery reports to a workspace, no call is its input, and no machine sends it one.
        Input::Handoff { .. }
        | Input::Routing(_)
        | Input::Thread(_)
        | Input::Negotiation(_)
        | Input::Plan(_)
        | Input::Acked { .. }
        | Input::Undeliverable { .. }
        | Input::AgentGone
        | Input::Signal(_) => Ok(Transition::default()),
    }
}

fn stored(id: &WorkspaceId, read: &mut dyn Reader) -> Result<Option<Workspace>, ReadError> {
    Ok(match read.entity(&EntityId::Workspace(id.clone()))? {
        Some(Entity::Workspace(workspace)) => Some(Workspace::clone(&workspace)),
        Some(_) | None => None,
    })
}

fn append_to(
    mut workspace: Workspace,
    append: &Append,
    limits: &Limits,
    now: Timestamp,
) -> Result<Transition, Rejection> {
    let last = workspace.last_sequence;
    // Before the quota: an author whose view is old has to read first, and may then append nothing.
    if let Some(expected) = append.expected_last.filter(|expected| *expected != last) {
        return Err(Rejection::SequenceConflict { expected, last });
    }
    check_quota(&workspace, append, limits, now)?;
    let sequence = last + 1;
    let expires_at = now.plus(limits.entry_lifetime);
    workspace.last_sequence = sequence;
    workspace.bytes += append.size;
    // Entries expire in their order, so the oldest one has the next expiry.
    workspace.next_expiry.get_or_insert(expires_at);
    let topic = workspace.topics.entry(append.topic.clone()).or_insert(TopicState {
        entries: 0,
        bytes: 0,
        first_sequence: sequence,
        last_sequence: sequence,
        updated_at: now,
    });
    topic.entries += 1;
    topic.bytes += append.size;
    (topic.last_sequence, topic.updated_at) = (sequence, now);
    let entry = Entry {
        workspace: workspace.id.clone(),
        sequence,
        topic: append.topic.clone(),
        size: append.size,
        created_at: now,
        expires_at,
    };
    Ok(Transition { writes: vec![Entity::Workspace(Arc::new(workspace))], effects: vec![Effect::KeepEntry(entry)] })
}

fn check_quota(workspace: &Workspace, append: &Append, limits: &Limits, now: Timestamp) -> Result<(), Rejection> {
    // Nothing but the expiry of an entry frees a quota.
    let retry_after = workspace.next_expiry.map_or(limits.entry_lifetime, |at| at.since(now)).max(RETRY_MIN);
    // 0 means no limit.
    let check = |what, limit: u64, used: u64| match limit {
        0 => Ok(()),
        limit if used <= limit => Ok(()),
        limit => Err(Rejection::QuotaExceeded { what, limit, retry_after }),
    };
    // An append to a known topic needs no room for another one.
    let new_topic = u64::from(!workspace.topics.contains_key(&append.topic));
    check("bytes", limits.bytes_max, workspace.bytes + append.size)?;
    check("entries", limits.entries_max, workspace.entries() + 1)?;
    check("topics", limits.topics_max, workspace.topics.len() as u64 + new_topic)
}

/// Removes the entries that are due, the oldest first, at most [`EXPIRED_A_STEP`].
fn expire(mut workspace: Workspace, read: &mut dyn Reader, now: Timestamp) -> Result<Transition, ReadError> {
    let first = workspace.first_sequence;
    let mut next = read_entry(&workspace, read)?;
    while workspace.entries() > 0 && workspace.first_sequence - first < EXPIRED_A_STEP {
        match &next {
            Some(entry) if entry.expires_at > now => break,
            Some(entry) => remove(&mut workspace, entry),
            // A missing entry must not stop the expiry of all later ones.
            None => {}
        }
        workspace.first_sequence += 1;
        next = read_entry(&workspace, read)?;
    }
    workspace.next_expiry = match (workspace.entries(), next) {
        (0, _) => None,
        (_, Some(entry)) => Some(entry.expires_at),
        // The entry is missing. The next step passes over it at once.
        (_, None) => Some(now),
    };
    if workspace.entries() == 0 {
        // The counts of missing entries go with the last entry.
        workspace.topics.clear();
        workspace.bytes = 0;
    }
    // The timer fired early, as after a change of the clock.
    if workspace.first_sequence == first {
        return Ok(Transition::default());
    }
    let removed = Effect::RemoveEntries {
        workspace: workspace.id.clone(),
        first_sequence: first,
        last_sequence: workspace.first_sequence - 1,
    };
    Ok(Transition { writes: vec![Entity::Workspace(Arc::new(workspace))], effects: vec![removed] })
}

fn read_entry(workspace: &Workspace, read: &mut dyn Reader) -> Result<Option<Entry>, ReadError> {
    read.entry(&workspace.id, workspace.first_sequence)
}

/// Takes an expired entry out of the counts.
fn remove(workspace: &mut Workspace, entry: &Entry) {
    workspace.bytes = workspace.bytes.saturating_sub(entry.size);
    let Some(topic) = workspace.topics.get_mut(&entry.topic) else { return };
    topic.entries = topic.entries.saturating_sub(1);
    topic.bytes = topic.bytes.saturating_sub(entry.size);
    // A lower bound: the next entry may belong to another topic, and a search for it would read the whole workspace.
    topic.first_sequence = entry.sequence + 1;
    if topic.entries == 0 {
        workspace.topics.remove(&entry.topic);
    }
}
