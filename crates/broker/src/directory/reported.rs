//! What the processes of an agent say about their work.

use crate::proto::v1;

/// What heartbeats say about work and room.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reported {
    /// The active and queued tasks.
    pub in_use: u32,
    /// The number of tasks at a time. 0: not stated.
    pub capacity: u32,
}

impl Reported {
    /// What one heartbeat says.
    pub(crate) fn of(heartbeat: &v1::Heartbeat) -> Self {
        let in_use = heartbeat.active_tasks.saturating_add(heartbeat.queue_length);
        Self { in_use, capacity: heartbeat.capacity }
    }

    /// What two processes say together.
    pub(crate) fn and(self, other: Self) -> Self {
        let in_use = self.in_use.saturating_add(other.in_use);
        Self { in_use, capacity: self.capacity.saturating_add(other.capacity) }
    }
}
