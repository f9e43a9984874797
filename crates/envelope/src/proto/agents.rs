//! What the schema's messages about agents say in other forms: a skill for matching, a found agent for a person.

use std::fmt::Write as _;

use baton_protocol::protocol::Skill;

use super::v1;

impl Skill for v1::AgentSkill {
    fn name(&self) -> &str {
        &self.name
    }

    fn tags(&self) -> &[String] {
        &self.tags
    }

    fn languages(&self) -> &[String] {
        &self.languages
    }

    fn task_types(&self) -> &[String] {
        &self.task_types
    }
}

impl v1::AgentMatch {
    /// The reasons for the rank, for a person to read: one line for the agent, and one for each factor of its score.
    pub fn explain(&self) -> String {
        let presence = self.presence().as_str_name().trim_start_matches("PRESENCE_");
        let full = if self.load.as_ref().is_some_and(|load| load.is_full) { ", full" } else { "" };
        let mut text = format!("{}. {}: {:.3}, {presence}{full}", self.rank, self.agent_id, self.score);
        for v1::MatchFactor { name, value, weight, text: reason } in &self.factors {
            let part = value * weight;
            let written = write!(text, "\n   {name:<14} {value:.2} x {weight:.2} = {part:.3}  {reason}");
            written.expect("a write to a string does not fail");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_explanation_has_a_line_for_each_factor() {
        let factor = |name: &str, value, weight, text: &str| v1::MatchFactor {
            name: name.to_owned(),
            value,
            weight,
            text: text.to_owned(),
        };
        let found = v1::AgentMatch {
            agent_id: "bob".into(),
            rank: 1,
            score: 0.5875,
            presence: v1::Presence::Alive.into(),
            factors: vec![
                factor("skill cover", 1.0, 0.4, "1 of 1 skills"),
                factor("free capacity", 0.75, 0.25, "1 of 4 in use"),
            ],
            load: Some(v1::AgentLoad { is_full: true, ..Default::default() }),
            ..Default::default()
        };
        let expected = "1. bob: 0.588, ALIVE, full\n   \
                        skill cover    1.00 x 0.40 = 0.400  1 of 1 skills\n   \
                        free capacity  0.75 x 0.25 = 0.188  1 of 4 in use";
        assert_eq!(found.explain(), expected);
    }
}
