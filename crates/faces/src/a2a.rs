//! Agents of baton as agents of A2A 1.0: what an A2A client may reach. Must not know HTTP.

pub(crate) mod cards;

use baton_client::ids::check_name;

/// What is published to A2A clients: an agent, or the agents of a type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Published {
    /// The name in the address.
    name: String,
    is_type: bool,
}

impl Published {
    /// Reads an agent's id, or `type:NAME`.
    ///
    /// # Errors
    ///
    /// The problem in words.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (name, is_type) = text.strip_prefix("type:").map_or((text, false), |name| (name, true));
        check_name(name).map_err(|problem| problem.to_string())?;
        Ok(Self { name: name.to_owned(), is_type })
    }

    /// The name in the address: the agent's id, or that of the type.
    pub fn name(&self) -> &str {
        &self.name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_published_name_is_an_agent_or_a_type() {
        assert_eq!(Published::parse("type:billing").unwrap().name(), "billing");
        assert_eq!(Published::parse("alice").unwrap().name(), "alice");
        for wrong in ["", "type:", "a/b", "type:a b", "all:billing"] {
            assert!(Published::parse(wrong).is_err(), "{wrong}");
        }
    }
}
