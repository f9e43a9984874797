//! Collects all violations in the fields of a request, so that a caller gets all of them at once.

use std::time::Duration;

use super::EnvelopeError;
use crate::{
    codes::FieldViolation,
    ids::IdError,
    time::{Timestamp, span_from_parts},
};

/// Field checks that collect violations. A value that does not parse becomes `None` and a violation.
#[derive(Debug, Default)]
pub struct Checks {
    violations: Vec<FieldViolation>,
    unsupported: Option<String>,
}

impl Checks {
    /// Records a violation.
    pub fn wrong(&mut self, path: impl Into<String>, problem: impl Into<String>) {
        self.violations.push(FieldViolation { path: path.into(), problem: problem.into() });
    }

    /// Records a field that asks for a feature which does not exist yet. Violations go first.
    pub fn not_supported(&mut self, path: impl Into<String>) {
        self.unsupported = Some(path.into());
    }

    /// Parses an id.
    pub fn id<T>(&mut self, path: &str, text: &str, parse: fn(&str) -> Result<T, IdError>) -> Option<T> {
        parse(text).map_err(|error| self.wrong(path, error.to_string())).ok()
    }

    /// Parses an id that may be absent.
    pub fn optional_id<T>(&mut self, path: &str, text: &str, parse: fn(&str) -> Result<T, IdError>) -> Option<T> {
        if text.is_empty() { None } else { self.id(path, text, parse) }
    }

    /// Parses a list of at most `most` ids.
    pub fn ids<T>(
        &mut self,
        path: &str,
        texts: &[String],
        most: usize,
        parse: fn(&str) -> Result<T, IdError>,
    ) -> Vec<T> {
        self.at_most(path, texts.len(), most, "entries");
        // The entries over the bound are not parsed: the violation of the bound covers them.
        let parse_one = |(index, text): (usize, &String)| self.id(&format!("{path}[{index}]"), text, parse);
        texts.iter().take(most).enumerate().filter_map(parse_one).collect()
    }

    /// Bounds a text, in bytes.
    pub fn text(&mut self, path: &str, text: &str, most: usize) {
        self.at_most(path, text.len(), most, "bytes");
    }

    /// Bounds a count.
    pub fn at_most(&mut self, path: &str, count: usize, most: usize, unit: &str) {
        if count > most {
            self.wrong(path, format!("has {count} {unit}, over the limit of {most}"));
        }
    }

    /// Parses a time that may be absent.
    pub fn time(&mut self, path: &str, time: Option<&prost_types::Timestamp>) -> Option<Timestamp> {
        let time = time?;
        let parsed = Timestamp::from_parts(time.seconds, time.nanos);
        if parsed.is_none() {
            self.wrong(path, "must be a time from 1970 to 2262 with 0 to 999999999 nanos");
        }
        parsed
    }

    /// Parses a span that may be absent.
    pub fn span(&mut self, path: &str, span: Option<&prost_types::Duration>) -> Option<Duration> {
        let span = span?;
        let parsed = span_from_parts(span.seconds, span.nanos);
        if parsed.is_none() {
            self.wrong(path, "must be from 0 to 315576000000 seconds with 0 to 999999999 nanos");
        }
        parsed
    }

    /// Parses a digest.
    pub fn digest(&mut self, path: &str, bytes: &[u8]) -> Option<[u8; 32]> {
        let parsed = bytes.try_into().ok();
        if parsed.is_none() {
            self.wrong(path, format!("must be a SHA-256 digest of 32 bytes, not {}", bytes.len()));
        }
        parsed
    }

    /// Checks that an enum's number is known and not the unspecified one.
    pub fn known<E: TryFrom<i32>>(&mut self, path: &str, number: i32) -> Option<E> {
        self.number(path, number, |number| if number == 0 { None } else { E::try_from(number).ok() })
    }

    /// As [`Checks::known`], for an enum of the domain.
    pub fn number<E>(&mut self, path: &str, number: i32, from_number: impl Fn(i32) -> Option<E>) -> Option<E> {
        let parsed = from_number(number);
        if parsed.is_none() {
            self.wrong(path, format!("must be set to a known value, not {number}"));
        }
        parsed
    }

    /// Takes over the violations of a message that is the field `name` of the payload.
    pub(super) fn nested(&mut self, name: &str, checks: Self) {
        for FieldViolation { path, problem } in checks.violations {
            let path = path.replacen("envelope.payload.", &format!("envelope.payload.{name}."), 1);
            self.violations.push(FieldViolation { path, problem });
        }
    }

    /// Fails with the violations so far, if any exist.
    pub fn finish(self) -> Result<(), EnvelopeError> {
        if !self.violations.is_empty() {
            return Err(EnvelopeError::Fields { violations: self.violations });
        }
        self.unsupported.map_or(Ok(()), |path| Err(EnvelopeError::NotSupported { path }))
    }

    /// Ends the checks with the values that they have parsed. Fails as [`Self::finish`] does. A value is absent only where
    /// its check has recorded a violation: a field that may be absent does not belong here.
    pub fn finish_with<P: Parsed>(self, parsed: P) -> Result<P::Values, EnvelopeError> {
        let Some(values) = parsed.values() else {
            debug_assert!(!self.violations.is_empty(), "a required field is absent without a violation");
            return Err(EnvelopeError::Fields { violations: self.violations });
        };
        self.finish().map(|()| values)
    }
}

/// The results of checks: one value, or a tuple of values. Each is `None` if its check has failed.
pub trait Parsed {
    /// The values, where all are present.
    type Values;

    /// All values, or `None` if one of them is absent.
    fn values(self) -> Option<Self::Values>;
}

impl<T> Parsed for Option<T> {
    type Values = T;

    fn values(self) -> Self {
        self
    }
}

macro_rules! parsed_tuple {
    ($($value:ident),+) => {
        impl<$($value),+> Parsed for ($(Option<$value>,)+) {
            type Values = ($($value,)+);

            #[expect(non_snake_case, reason = "the name of a type parameter is that of its value, too")]
            fn values(self) -> Option<Self::Values> {
                let ($($value,)+) = self;
                Some(($($value?,)+))
            }
        }
    };
}

parsed_tuple!(A, B);
parsed_tuple!(A, B, C);
parsed_tuple!(A, B, C, D);
parsed_tuple!(A, B, C, D, E);
parsed_tuple!(A, B, C, D, E, F);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{AgentId, KeyId, MessageId};

    #[test]
    fn all_violations_come_in_the_order_of_their_checks_and_no_value_comes_with_them() {
        let mut checks = Checks::default();
        let agent = checks.id("agent", "", AgentId::parse);
        let key = checks.id("key", "k1", KeyId::parse);
        checks.text("text", "too long", 3);
        let message = checks.id("message", "no id", MessageId::parse);
        let Err(EnvelopeError::Fields { violations }) = checks.finish_with((agent, key, message)) else {
            panic!("the checks have found nothing");
        };
        let paths: Vec<&str> = violations.iter().map(|violation| violation.path.as_str()).collect();
        assert_eq!(paths, ["agent", "text", "message"]);
    }

    #[test]
    fn checks_without_a_violation_give_their_values() {
        let mut checks = Checks::default();
        let (agent, key) = (checks.id("agent", "a", AgentId::parse), checks.id("key", "k1", KeyId::parse));
        let (agent, key) = checks.finish_with((agent, key)).unwrap();
        assert_eq!((agent.as_str(), key.as_str()), ("a", "k1"));
    }

    #[test]
    fn a_violation_beside_the_values_withholds_them() {
        let mut checks = Checks::default();
        let agent = checks.id("agent", "a", AgentId::parse);
        checks.wrong("other", "is wrong");
        assert!(
            matches!(checks.finish_with(agent), Err(EnvelopeError::Fields { violations }) if violations.len() == 1)
        );
    }
}
