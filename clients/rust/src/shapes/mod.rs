//! Histories from and to the shapes of models: `OpenAI`, Anthropic, Gemini and `LangChain`.
//!
//! A history is a list of entries of `baton.history` version 1 ([`history`]). Each `from_` function takes anything that serde
//! writes as the JSON of its shape, so the types of any SDK will do. It refuses what the shape has no form for, with the
//! place, and drops reasoning, the ids of messages, and the calls of tools that the provider runs by itself. Each `to_`
//! function refuses a part that the interface does not take in that place. `vectors/history-v1.json` has examples.
//!
//! ```
//! use baton_client::shapes;
//! use serde_json::json;
//!
//! let history = shapes::from_openai_chat(&json!([
//!     {"role": "system", "content": "Be brief."},
//!     {"role": "user", "content": "Where is order 7?"},
//! ]))?;
//! let prompted = shapes::to_anthropic(&history)?;
//! assert_eq!(prompted.system, "Be brief.");
//! assert_eq!(prompted.messages, [json!({"role": "user", "content": "Where is order 7?"})]);
//! # Ok::<_, shapes::HistoryError>(())
//! ```

mod read;
#[cfg(test)]
mod tests;
mod write;

use serde_json::Value;

pub use read::{from_anthropic, from_gemini, from_langchain, from_openai_chat, from_openai_responses};
pub use write::{Prompted, to_anthropic, to_gemini, to_langchain, to_openai_chat, to_openai_responses};

use crate::{
    envelope::history::{self, NoHistory},
    json_section,
    proto::v1,
};

/// A value is no history, or has no form in the other shape.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{pointer:?} {problem}")]
pub struct HistoryError {
    /// The JSON Pointer of the part that does not fit, in the value that was read.
    pub pointer: String,
    /// The problem, as a continuation of "the value".
    pub problem: String,
}

impl From<NoHistory> for HistoryError {
    fn from(NoHistory { pointer, problem }: NoHistory) -> Self {
        Self { pointer, problem: problem.to_owned() }
    }
}

/// A section with a history, marked as one of `baton.history`.
///
/// # Errors
///
/// The first value of the entries that does not fit.
pub fn history_section(name: &str, entries: Vec<Value>) -> Result<v1::ContextSection, HistoryError> {
    let section = json_section(name, history::entries(Value::Array(entries))?);
    let (schema_id, schema_version) = (history::SCHEMA_ID.to_owned(), history::SCHEMA_VERSION.to_owned());
    Ok(v1::ContextSection { schema_id, schema_version, ..section })
}
