//! What the lists share: why a list is empty, and texts of a bounded length.

use super::PAGE_SIZE;
use crate::{
    broker::{
        BrokerError,
        access::{Purpose, Reach},
        queries::View,
    },
    ids::parse_number,
};

/// The most bytes of a content that a page shows.
const CONTENT_BYTES_MAX: usize = 4096;

/// Checks that the caller may read some entries of a list, as a call for one of them would. `no_such` is the answer of
/// that call for an unknown entry.
///
/// An empty list is refused if a rule forbids its caller such entries: a page that says so is clearer than an empty one.
/// A list with entries is never refused, because policies may permit some of the entries alone.
pub(super) fn check_list(
    view: View<'_>,
    purpose: Purpose,
    is_empty: bool,
    no_such: impl FnOnce() -> BrokerError,
) -> Result<(), BrokerError> {
    match view.access.reach(view.caller, purpose)? {
        Reach::Nothing => Err(no_such()),
        Reach::Own(_) | Reach::Everything if is_empty => match no_such() {
            BrokerError::PermissionDenied(denied) if !denied.decision.rules.is_empty() => {
                Err(BrokerError::PermissionDenied(denied))
            }
            _ => Ok(()),
        },
        Reach::Own(_) | Reach::Everything => Ok(()),
    }
}

/// Whether the caller may read some entries of this kind.
pub(super) fn may_read_some(view: View<'_>, purpose: Purpose) -> bool {
    view.access.reach(view.caller, purpose).is_ok_and(|reach| !matches!(reach, Reach::Nothing))
}

/// The place in a list that a page token names. Without one: the first.
pub(super) fn place(token: &str) -> Result<usize, BrokerError> {
    if token.is_empty() {
        return Ok(0);
    }
    parse_number(token).and_then(|place| usize::try_from(place).ok()).ok_or(BrokerError::PageTokenInvalid)
}

/// The part of a log that a page shows, whose latest entries come first.
pub(super) struct Window {
    /// The page begins after the entry with this number.
    pub(super) after: u64,
    pub(super) limit: usize,
}

impl Window {
    /// The number before which the entries of the page are. `None`: the page has the latest entries.
    pub(super) fn before(token: &str) -> Result<Option<u64>, BrokerError> {
        match token {
            "" => Ok(None),
            token => parse_number(token).map(Some).ok_or(BrokerError::PageTokenInvalid),
        }
    }

    pub(super) fn new(before: Option<u64>, length: u64) -> Self {
        // A page before an entry that the log does not have is that of the latest ones.
        let before = before.unwrap_or(u64::MAX).min(length.saturating_add(1));
        let after = before.saturating_sub(PAGE_SIZE as u64 + 1);
        Self { after, limit: usize::try_from(before.saturating_sub(after + 1)).unwrap_or(PAGE_SIZE) }
    }

    /// The token of the next page, of a log whose first entries may be removed.
    pub(super) fn next(&self, first: u64) -> Option<u64> {
        Some(self.after + 1).filter(|_| self.after > 0 && self.after >= first)
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

    #[test]
    fn the_pages_of_a_log_have_each_entry_once() {
        let all = |token: &str, length| {
            let window = Window::new(Window::before(token).unwrap(), length);
            (window.after, window.limit, window.next(1))
        };
        assert_eq!(all("", 0), (0, 0, None));
        assert_eq!(all("", 50), (0, 50, None));
        assert_eq!(all("", 120), (70, 50, Some(71)));
        assert_eq!(all("71", 120), (20, 50, Some(21)));
        assert_eq!(all("21", 120), (0, 20, None));
        assert_eq!((all("0", 120), all("999", 120)), ((0, 0, None), (70, 50, Some(71))));
        assert_eq!(Window::new(Some(71), 120).next(21), None, "the entries before are removed");
        assert!(Window::before("x").is_err());
    }
}
