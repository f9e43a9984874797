//! A skill on an agent's card, as matching reads it.

/// A skill on an agent's card.
pub trait Skill {
    /// The dotted name, most general part first.
    fn name(&self) -> &str;
    /// The search terms of the skill.
    fn tags(&self) -> &[String];
    /// The languages that the agent uses for the skill.
    fn languages(&self) -> &[String];
    /// The task types that the skill is for.
    fn task_types(&self) -> &[String];
}
