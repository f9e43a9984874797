//! What the lists share: why a list is empty, and texts of a bounded length.

use crate::{
    broker::{
        BrokerError,
        access::{Purpose, Reach},
        queries::View,
    },
    time::Timestamp,
};

/// The most bytes of a content that a page shows.
const CONTENT_BYTES_MAX: usize = 4096;

/// Checks that the caller may read some entries of a list, as a call for one of them would. `no_such` is the answer of
/// that call for an unknown entry.
pub(super) fn check_list(
    view: View<'_>,
    purpose: Purpose,
    is_empty: bool,
    no_such: impl FnOnce() -> BrokerError,
) -> Result<(), BrokerError> {
    match view.access.reach(view.caller, purpose)? {
        Reach::Nothing => Err(no_such()),
        Reach::Own(_) | Reach::Everything if is_empty => super::why_empty(no_such()),
        Reach::Own(_) | Reach::Everything => Ok(()),
    }
}

/// A content that an agent wrote, shortened.
pub(super) struct Content {
    pub(super) text: String,
    /// The bytes of the whole content, if it is shortened.
    pub(super) cut_from: Option<usize>,
}

impl Content {
    pub(super) fn new(text: &str) -> Self {
        Self::of_at_most(text, CONTENT_BYTES_MAX)
    }

    /// The content with at most this many bytes.
    pub(super) fn of_at_most(text: &str, bytes: usize) -> Self {
        if text.len() <= bytes {
            return Self { text: text.to_owned(), cut_from: None };
        }
        let end = (0..=bytes).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        Self { text: text[..end].to_owned(), cut_from: Some(text.len()) }
    }

    /// The text, and an ellipsis if it is shortened.
    pub(super) fn with_ellipsis(self) -> String {
        self.text + if self.cut_from.is_some() { "…" } else { "" }
    }
}

/// The time as a text. Empty: there is none.
pub(super) fn text_of(at: Option<&prost_types::Timestamp>) -> String {
    let at = at.and_then(|at| Timestamp::from_parts(at.seconds, at.nanos));
    at.map(|at| at.to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_content_is_cut_between_letters() {
        let short = Content::new("ä");
        assert_eq!((&*short.text, short.cut_from), ("ä", None));
        let long = Content::new(&format!("x{}", "ä".repeat(4096)));
        assert_eq!((long.text.len(), long.cut_from), (4095, Some(8193)));
    }
}
