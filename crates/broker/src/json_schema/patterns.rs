//! The patterns of a schema: what a match costs, and the budget that pays for it.
//!
//! A regular expression without look-around takes at most its states times the bytes of the text. This module counts the
//! states when it compiles a pattern, and takes that product from the budget of the check before it matches. The library
//! calls a keyword with the value alone, so the budget is that of the thread.

use std::cell::Cell;

use jsonschema::{Keyword, ValidationError};
use regex_automata::{meta, nfa::thompson, util::syntax};
use serde_json::Value;

/// The largest compiled pattern, in bytes.
const PATTERN_BYTES_MAX: usize = 256 * 1024;
/// The most bytes that one thread keeps for the matches of one pattern.
const CACHE_BYTES_MAX: usize = 64 * 1024;

/// The most characters of a text in the description of a violation.
const SHOWN_MAX: usize = 64;

thread_local! {
    /// The work that is left to the check on this thread. `None`: the check has asked for more.
    static LEFT: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Runs a check that may match patterns for at most this much work, and returns what is left. `None`: the check has asked
/// for more; its outcome means nothing.
pub(super) fn within<T>(work: u64, check: impl FnOnce() -> T) -> (T, Option<u64>) {
    LEFT.set(Some(work));
    let outcome = check();
    (outcome, LEFT.take())
}

fn take(units: u64) -> bool {
    let left = LEFT.get().and_then(|left| left.checked_sub(units));
    LEFT.set(left);
    left.is_some()
}

/// A compiled pattern.
#[derive(Debug)]
pub(super) struct Pattern {
    text: String,
    /// All of them match where the pattern does: the look-aheads at its start, and the rest.
    parts: Vec<meta::Regex>,
    states: u64,
    bytes: usize,
}

impl Pattern {
    /// Compiles a pattern of ECMA 262. `None`: it is none, is larger than [`PATTERN_BYTES_MAX`], or needs look-around or
    /// back-references.
    pub(super) fn compile(text: &str) -> Option<Self> {
        let mut pattern = Self { text: text.to_owned(), parts: Vec::new(), states: 0, bytes: 0 };
        if pattern.add(text).is_none() {
            (pattern.states, pattern.bytes) = (0, 0);
            pattern.parts.clear();
            for part in jsonschema_regex::split_leading_lookaheads(text)? {
                pattern.add(&part)?;
            }
        }
        Some(pattern)
    }

    fn add(&mut self, part: &str) -> Option<()> {
        let part = jsonschema_regex::to_rust_regex(part).ok()?;
        let config = thompson::Config::new().nfa_size_limit(Some(PATTERN_BYTES_MAX));
        let nfa = thompson::Compiler::new()
            .configure(config.which_captures(thompson::WhichCaptures::None))
            .syntax(syntax::Config::new())
            .build(&part)
            .ok()?;
        let config = meta::Config::new().nfa_size_limit(Some(PATTERN_BYTES_MAX)).hybrid_cache_capacity(CACHE_BYTES_MAX);
        let config = config.which_captures(thompson::WhichCaptures::Implicit);
        self.parts.push(meta::Builder::new().configure(config).build(&part).ok()?);
        self.states += nfa.states().len() as u64;
        self.bytes += nfa.memory_usage();
        Some(())
    }

    /// The work of a match for each byte of the text.
    pub(super) fn states(&self) -> u64 {
        self.states
    }

    /// The memory of the pattern, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes + self.parts.len() * CACHE_BYTES_MAX
    }

    /// Whether the pattern matches somewhere in the text. True without a match where the budget is used up.
    fn matches(&self, text: &str) -> bool {
        // The end of the text is a step, too.
        !take((text.len() as u64 + 1).saturating_mul(self.states)) || self.parts.iter().all(|part| part.is_match(text))
    }
}

impl<'i> Keyword<'i> for Pattern {
    fn validate(&self, instance: &'i Value) -> Result<(), ValidationError<'i>> {
        match Keyword::is_valid(self, instance) {
            true => Ok(()),
            false => Err(ValidationError::custom(format!("{} does not match {:?}", start_of(instance), self.text))),
        }
    }

    fn is_valid(&self, instance: &'i Value) -> bool {
        instance.as_str().is_none_or(|text| self.matches(text))
    }
}

/// The start of a text, for the description of a violation.
fn start_of(instance: &Value) -> String {
    let text = instance.as_str().unwrap_or_default();
    match text.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_match_takes_its_states_times_the_bytes_of_the_text() {
        let pattern = Pattern::compile("a[ab]{3000}[^ab]").unwrap();
        assert!(pattern.states() > 3000, "{}", pattern.states());
        let of = |work: u64, text: &str| within(work, || pattern.matches(text));
        let cost = 4 * pattern.states();
        assert_eq!(of(cost, "aba"), (false, Some(0)));
        assert_eq!(of(cost - 1, "aba").1, None);
        assert_eq!(of(u64::MAX, &"ab".repeat(5)).1, Some(u64::MAX - 11 * pattern.states()));
    }

    #[test]
    fn patterns_have_the_syntax_of_ecma_262() {
        for (pattern, fits, fits_not) in [
            ("^\\d{2}$", "42", "٤٢"),
            ("^(?=.*[A-Z])(?=.*[0-9]).{4,}$", "Ab12", "ab12"),
            ("^\\p{Lu}", "Éa", "éa"),
            ("^[\\w.]+$", "a.b_1", "a b"),
        ] {
            let compiled = Pattern::compile(pattern).unwrap_or_else(|| panic!("{pattern}"));
            assert!(within(u64::MAX, || compiled.matches(fits)).0, "{pattern} {fits}");
            assert!(!within(u64::MAX, || compiled.matches(fits_not)).0, "{pattern} {fits_not}");
        }
        for pattern in ["(a)\\1", "(?<!a)b", "(((a{100}){100}){100}){100}", "("] {
            assert!(Pattern::compile(pattern).is_none(), "{pattern}");
        }
    }
}
