//! The id of an outer conversation.

use std::{fmt, sync::Arc};

use super::{IdError, NAME_LENGTH_MAX};

/// A conversation outside the broker that a task belongs to, for example the context of an A2A client. Its maker chooses
/// the text, so it has no grammar.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConversationId(Arc<str>);

impl ConversationId {
    /// Parses the text: 1 to 128 characters without control characters.
    pub fn parse(text: &str) -> Result<Self, IdError> {
        if text.is_empty() {
            return Err(IdError::Empty);
        }
        if text.chars().count() > NAME_LENGTH_MAX {
            return Err(IdError::TooLong);
        }
        if text.contains(char::is_control) {
            return Err(IdError::Control);
        }
        Ok(Self(text.into()))
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ConversationId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl fmt::Debug for ConversationId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?}", &*self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conversation_has_any_text_of_1_to_128_characters() {
        for text in ["thread_1", "a b/c:d", &"ä".repeat(128)] {
            assert_eq!(ConversationId::parse(text).unwrap().as_str(), text);
        }
        assert_eq!(ConversationId::parse(""), Err(IdError::Empty));
        assert_eq!(ConversationId::parse(&"x".repeat(129)), Err(IdError::TooLong));
        assert_eq!(ConversationId::parse("a\0b"), Err(IdError::Control));
    }
}
