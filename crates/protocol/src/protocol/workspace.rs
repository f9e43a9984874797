//! What an append to a workspace says.

use crate::ids::{Topic, WorkspaceId};

/// The largest entry, in bytes of its content.
pub const ENTRY_BYTES_MAX: usize = 1024 * 1024;

/// What an append asks for, beside the content of the entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Append {
    /// The workspace.
    pub workspace: WorkspaceId,
    /// The topic of the entry.
    pub topic: Topic,
    /// The size of the content in bytes, at most [`ENTRY_BYTES_MAX`].
    pub size: u64,
    /// The number that the workspace's last entry must have. `None`: any.
    pub expected_last: Option<u64>,
}
