//! Pages of lists, with their tokens.

use std::ops::Bound;

use bytes::Bytes;

use super::View;
use crate::{
    BrokerError,
    records::List,
    store::{KeyBytes, KeyRange, Order, Record, Table},
};

/// The most entries that one page examines. A page whose filter matches little ends early, with a token for the next
/// one.
pub const LOOKED_AT_MAX: usize = 1024;
/// The most entries of a list that one scan reads.
pub(super) const READ_AT_A_TIME: usize = 256;
/// The most dead letters that one scan reads. Each may hold a whole frame.
const DEAD_LETTERS_AT_A_TIME: usize = 8;

/// A page of a list.
#[derive(Debug, Clone, PartialEq)]
pub struct Page<T> {
    /// The entries, at most as many as asked for.
    pub entries: Vec<T>,
    /// The token of the next page; empty on the last page.
    pub next_token: String,
}

impl View<'_> {
    /// A page of a list, newest first. The token names the last examined entry, the list and the filter. A page ends
    /// early after [`LOOKED_AT_MAX`] entries.
    pub(super) fn page<T>(
        &self,
        list: Option<&List>,
        filter: &str,
        size: usize,
        token: &str,
        wanted: impl Fn(u64, &Bytes) -> Result<Option<T>, BrokerError>,
    ) -> Result<Page<T>, BrokerError> {
        let entries = |list, before| self.newest_first(list, before, size, |_, value| Ok(value));
        self.page_of(list, entries, filter, size, token, |number, value| wanted(number, &value))
    }

    /// Like [`Self::page`], of these entries before a number, newest first. The list gives the page its name.
    pub(super) fn page_of<'a, E, T, I: Iterator<Item = Result<(u64, E), BrokerError>>>(
        &self,
        list: Option<&'a List>,
        entries: impl FnOnce(&'a List, Option<u64>) -> I,
        filter: &str,
        size: usize,
        token: &str,
        wanted: impl Fn(u64, E) -> Result<Option<T>, BrokerError>,
    ) -> Result<Page<T>, BrokerError> {
        let mut page = Page { entries: Vec::new(), next_token: String::new() };
        let name = format!("{list:?} {filter}");
        let before = if token.is_empty() { None } else { Some(parse_token(token, &name)?) };
        // The token is checked first, so that a wrong token is refused even where the caller sees nothing.
        let Some(list) = list else { return Ok(page) };
        let mut entries = entries(list, before).peekable();
        let mut looked_at = 0;
        while let Some(entry) = entries.next() {
            let (number, entry) = entry?;
            looked_at += 1;
            page.entries.extend(wanted(number, entry)?);
            if page.entries.len() == size || looked_at == LOOKED_AT_MAX {
                if entries.peek().is_some() {
                    page.next_token = make_token(number, &name);
                }
                break;
            }
        }
        Ok(page)
    }

    /// The entries of a list before a number, newest first, read for a page of this size.
    pub(super) fn newest_first<E>(
        &self,
        list: &List,
        before: Option<u64>,
        size: usize,
        parse: impl Fn(u64, Bytes) -> Result<E, BrokerError>,
    ) -> impl Iterator<Item = Result<(u64, E), BrokerError>> {
        // One entry more than a page, so that the last page is known as the last.
        let entries = self.entries(list, list.range_before(before), Order::Descending, size + 1);
        entries.map(move |entry| {
            let (number, record) = entry?;
            Ok((number, parse(number, record.value)?))
        })
    }

    pub(super) fn entries(&self, list: &List, range: KeyRange, order: Order, wanted: usize) -> Entries<'_> {
        let most = if list.table == Table::DeadLetters { DEAD_LETTERS_AT_A_TIME } else { READ_AT_A_TIME };
        let (at_a_time, read) = (wanted.clamp(1, most), Vec::new().into_iter());
        Entries { view: *self, list: list.clone(), range, order, at_a_time, read, is_over: false }
    }
}

/// The entries of both lists, each of which begins with its greatest number. An entry with a number that both have comes
/// once.
pub(super) fn merged<E>(
    one: impl Iterator<Item = Result<(u64, E), BrokerError>>,
    other: impl Iterator<Item = Result<(u64, E), BrokerError>>,
) -> impl Iterator<Item = Result<(u64, E), BrokerError>> {
    // A failed read goes first: no entry behind it is known.
    let next = |entry: &Result<(u64, E), BrokerError>| entry.as_ref().map_or(u64::MAX, |(number, _)| *number);
    let (mut one, mut other) = (one.peekable(), other.peekable());
    std::iter::from_fn(move || {
        let (of_one, of_other) = (one.peek().map(next), other.peek().map(next));
        if of_one == of_other {
            other.next();
        }
        if of_one >= of_other { one.next() } else { other.next() }
    })
}

/// The entries of a range, read a few at a time.
pub(super) struct Entries<'a> {
    view: View<'a>,
    list: List,
    /// The part of the range not read yet.
    range: KeyRange,
    order: Order,
    at_a_time: usize,
    read: std::vec::IntoIter<(KeyBytes, Record)>,
    is_over: bool,
}

impl Entries<'_> {
    fn read_more(&mut self) -> Result<(), BrokerError> {
        let entries = self.view.store.scan(self.list.table, self.range.clone(), self.order, self.at_a_time)?;
        // A full read may be the last one, too. Then the next finds nothing.
        self.is_over = entries.len() < self.at_a_time;
        self.read = entries.into_iter();
        Ok(())
    }
}

impl Iterator for Entries<'_> {
    type Item = Result<(u64, Record), BrokerError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.read.len() == 0
            && !self.is_over
            && let Err(error) = self.read_more()
        {
            return Some(Err(error));
        }
        let (key, record) = self.read.next()?;
        let number = self.list.number(&key).map_err(BrokerError::from);
        match self.order {
            Order::Ascending => self.range.0 = Bound::Excluded(key),
            Order::Descending => self.range.1 = Bound::Excluded(key),
        }
        Some(number.map(|number| (number, record)))
    }
}

/// The token of the page after this number of a list.
pub fn make_token(number: u64, list: &str) -> String {
    format!("{number:016x}{:08x}", crc32c::crc32c(list.as_bytes()))
}

/// The number in a page token of this list.
///
/// # Errors
///
/// PAGE_TOKEN_INVALID: the token is of another list, or was never made.
pub fn parse_token(token: &str, list: &str) -> Result<u64, BrokerError> {
    let number = token.get(..16).and_then(|key| u64::from_str_radix(key, 16).ok());
    // Only a token made here passes: no sign, no capital letters, no other list.
    let is_given = |number: &u64| make_token(*number, list) == token;
    number.filter(is_given).ok_or(BrokerError::PageTokenInvalid)
}
