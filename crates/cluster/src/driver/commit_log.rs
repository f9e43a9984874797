//! The log of a term, for the engine's thread.

use baton_store::{AppendError, CommitLog, Mark, Position};
use bytes::Bytes;
use tokio::sync::mpsc;

use super::Input;

/// Gives groups to the thread of the lease, and waits for their outcome. The wait ends with the term.
pub(super) struct TermLog {
    pub(super) number: u64,
    pub(super) end: Mark,
    pub(super) entry_bytes_max: usize,
    pub(super) inputs: mpsc::UnboundedSender<Input>,
}

impl CommitLog for TermLog {
    fn append(&mut self, after: Position, entry: &[u8]) -> Result<Mark, AppendError> {
        if after != self.end.position {
            return Err(AppendError::Fenced { after, end: self.end.position });
        }
        let (answer, outcome) = std::sync::mpsc::channel();
        let group = Input::Propose { term: self.number, group: Bytes::copy_from_slice(entry), answer };
        self.inputs.send(group).map_err(|_| AppendError::Deposed)?;
        // A wait of the thread itself, which runs inside a runtime of its own and must not block on another.
        self.end = outcome.recv().unwrap_or(Err(AppendError::Deposed))?;
        Ok(self.end)
    }

    fn end(&self) -> Mark {
        self.end
    }

    fn entry_bytes_max(&self) -> usize {
        self.entry_bytes_max
    }
}
