//! Matching: the agents that fit a piece of work, best first, and the reasons (SPEC 6).
//!
//! This module owns the gate, the order, the score with its words, and the statistics that the score uses. It must not
//! know how the facts about an agent are found or kept. Requests, `FindAgents`, fallbacks and suggestions share
//! [`rank`].

mod statistics;

use std::{cmp::Ordering, time::Duration};

pub use self::statistics::{DECIDED_WITHIN, OFFERS_KEPT, OfferResult, Statistics, Summary, ended_offer};
use super::{handoff::Priority, presence::Liveness};
pub use baton_protocol::protocol::Skill;

use crate::ids::{AgentId, AgentType};

/// The number of factors of a score.
pub const FACTORS: usize = 4;

/// What an agent must have, should have, and how its score is weighted.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// The type that the agent must have. `None`: any type.
    pub agent_type: Option<&'a AgentType>,
    /// The skills that the agent must have, as dotted names.
    pub required_skills: &'a [String],
    /// The skills that raise the score of an agent, as dotted names.
    pub preferred_skills: &'a [String],
    /// The task type that a skill of the agent must list. Empty: any.
    pub task_type: &'a str,
    /// The languages that the skills of the agent must list.
    pub languages: &'a [String],
    /// The tags that the skills of the agent must list.
    pub tags: &'a [String],
    /// The priority, which decides the weights of the factors.
    pub priority: Priority,
    /// The time that a candidate has to decide. A median decision time of this length scores 0.
    pub accept_timeout: Duration,
}

/// The facts about an agent that matching uses.
#[derive(Debug, Clone)]
pub struct Facts<'a, S> {
    /// The id of the agent.
    pub agent: &'a AgentId,
    /// The types of the agent.
    pub types: &'a [AgentType],
    /// The skills on its card.
    pub skills: &'a [S],
    /// Its liveness at this moment.
    pub liveness: Liveness,
    /// Its load at this moment.
    pub load: Load,
    /// The outcomes of its offers, and its time to decide.
    pub record: Summary,
    /// The number of the latest offer to the agent; later offers have higher numbers. 0: never asked.
    pub asked: u64,
}

/// The load of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Load {
    /// The tasks and offers that the agent has: the greater of its own report and of the broker's count.
    pub in_use: u32,
    /// The number of tasks that the agent works on at a time. 0: not stated.
    pub capacity: u32,
    /// Whether the agent has said that it takes no more for now.
    pub is_overloaded: bool,
}

impl Load {
    /// The load of an agent. `reported`: active and queued tasks, and the capacity, of its latest heartbeat; `known`: the
    /// tasks that it owns and its open offers; `stated`: the capacity on its card.
    pub fn new(reported: Option<(u32, u32, u32)>, known: u32, stated: u32, is_overloaded: bool) -> Self {
        let (active, queued, capacity) = reported.unwrap_or_default();
        // A report is newer than the card, but an agent may report without a capacity.
        let capacity = if capacity == 0 { stated } else { capacity };
        Self { in_use: active.saturating_add(queued).max(known), capacity, is_overloaded }
    }

    /// Whether the agent is asked only after all agents with room.
    pub fn is_full(self) -> bool {
        self.is_overloaded || (self.capacity > 0 && self.in_use >= self.capacity)
    }

    /// The load in permille of the capacity. Without a capacity: the free part is at most a half, as for the score.
    pub fn permille(self) -> u32 {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 1000")]
        let permille = ((1.0 - self.free()) * 1000.0).round() as u32;
        permille
    }

    /// The part of the capacity that is in use; over 1 for an agent with more than its capacity. `None`: no capacity is
    /// stated.
    pub fn ratio(self) -> Option<f64> {
        (self.capacity > 0).then(|| f64::from(self.in_use) / f64::from(self.capacity))
    }

    /// The free part of the capacity, from 0 to 1. Without a capacity: a half, and less with each task in use, so that
    /// equal agents share a burst of requests.
    fn free(self) -> f64 {
        match self.capacity {
            0 => 0.5 / (1.0 + f64::from(self.in_use)),
            capacity => 1.0 - (f64::from(self.in_use) / f64::from(capacity)).min(1.0),
        }
    }
}

/// One factor of a score.
#[derive(Debug, Clone, PartialEq)]
pub struct Factor {
    /// The name of the factor.
    pub name: &'static str,
    /// The value, from 0 to 1.
    pub value: f64,
    /// The weight, from 0 to 1. The weights of all factors add up to 1.
    pub weight: f64,
    /// The reason for the value, for a person to read.
    pub text: String,
}

/// An agent that passes the gate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Match {
    /// The index of the agent in the list of candidates.
    pub place: usize,
    /// The sum of the weighted values of all factors, from 0 to 1.
    pub score: f64,
}

/// Whether an agent with the skill `has` meets a demand for `wanted`: the same name, or a more specific one.
pub fn meets(has: &str, wanted: &str) -> bool {
    // A whole part must match: `code.rust` meets `code`, and `coder` does not.
    has.strip_prefix(wanted).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// The wanted skills that none of these skills meets, in the order of `wanted`.
pub fn missing<'a, S: Skill>(skills: &[S], wanted: &'a [String]) -> Vec<&'a str> {
    let is_met = |name: &str| skills.iter().any(|skill| meets(skill.name(), name));
    wanted.iter().map(String::as_str).filter(|name| !is_met(name)).collect()
}

/// The reason why an agent does not pass the gate, for a person to read. `None`: it passes.
pub fn unfit<S: Skill>(wanted: &Wanted<'_>, types: &[AgentType], skills: &[S]) -> Option<String> {
    if let Some(agent_type) = wanted.agent_type.filter(|agent_type| !types.contains(agent_type)) {
        return Some(format!("is not of type {agent_type}"));
    }
    let missing = missing(skills, wanted.required_skills);
    if !missing.is_empty() {
        return Some(format!("lacks {}", missing.join(", ")));
    }
    let lists = |name: &String, list: fn(&S) -> &[String]| skills.iter().any(|skill| list(skill).contains(name));
    if let Some(tag) = wanted.tags.iter().find(|tag| !lists(tag, S::tags)) {
        return Some(format!("has no skill with tag {tag}"));
    }
    if let Some(language) = wanted.languages.iter().find(|language| !lists(language, S::languages)) {
        return Some(format!("has no skill in language {language}"));
    }
    let knows = |skill: &S| skill.task_types().iter().any(|name| name == wanted.task_type);
    if !wanted.task_type.is_empty() && !skills.iter().any(knows) {
        return Some(format!("has no skill for task type {}", wanted.task_type));
    }
    None
}

/// The agents that pass the gate, best first: present before absent, with room before full, then by score; on a tie the
/// agent that was not asked for the longest time, then by id. `permits` is the policy, asked last.
pub fn rank<S: Skill>(
    wanted: &Wanted<'_>,
    candidates: &[Facts<'_, S>],
    mut permits: impl FnMut(&AgentId) -> bool,
) -> Vec<Match> {
    let fits = |facts: &Facts<'_, S>| unfit(wanted, facts.types, facts.skills).is_none();
    let mut matches: Vec<Match> = candidates
        .iter()
        .enumerate()
        // The policy is the dearest check, so it sees only agents that fit.
        .filter(|(_, facts)| fits(facts) && permits(facts.agent))
        .map(|(place, facts)| Match { place, score: score(wanted, facts) })
        .collect();
    matches.sort_by(|one, other| order(one, &candidates[one.place], other, &candidates[other.place]));
    matches
}

fn order<S>(one: &Match, of_one: &Facts<'_, S>, other: &Match, of_other: &Facts<'_, S>) -> Ordering {
    let before = |facts: &Facts<'_, S>| (facts.liveness, facts.load.is_full());
    let after = |facts: &Facts<'_, S>| facts.asked;
    // Ends with the id, so that equal agents have the same order in each replay.
    before(of_one)
        .cmp(&before(of_other))
        .then_with(|| other.score.total_cmp(&one.score))
        .then_with(|| after(of_one).cmp(&after(of_other)))
        .then_with(|| of_one.agent.cmp(of_other.agent))
}

/// The weights of the factors, in the order of [`explain`] (SPEC 6).
pub const fn weights(priority: Priority) -> [f64; FACTORS] {
    match priority {
        Priority::Low | Priority::Medium => [0.40, 0.25, 0.25, 0.10],
        Priority::High | Priority::Critical => [0.40, 0.10, 0.35, 0.15],
    }
}

/// The values of the factors, each from 0 to 1, in the order of [`explain`].
fn values<S: Skill>(wanted: &Wanted<'_>, facts: &Facts<'_, S>) -> [f64; FACTORS] {
    let (met, asked_for) = covered(wanted, facts);
    // A request without skills treats all agents alike, rather than as if they lacked all.
    let cover = if asked_for == 0 { 1.0 } else { f64::from(met) / f64::from(asked_for) };
    let Summary { offers, completed, median_decision } = facts.record;
    // One success and one failure are assumed beside the known ones: a new agent scores a half, and one offer does not
    // decide everything.
    let outcome = f64::from(completed + 1) / f64::from(offers + 2);
    let speed = match median_decision {
        // An agent without a decision is neither quick nor slow.
        None => 0.5,
        Some(median) => 1.0 - share(median, wanted.accept_timeout).min(1.0),
    };
    [cover, facts.load.free(), outcome, speed]
}

fn share(part: Duration, whole: Duration) -> f64 {
    // Division by zero would give NaN, which sorts as the best score.
    if whole.is_zero() { 1.0 } else { part.as_secs_f64() / whole.as_secs_f64() }
}

/// The number of required and preferred skills that the agent has, and the number of all of them.
fn covered<S: Skill>(wanted: &Wanted<'_>, facts: &Facts<'_, S>) -> (u32, u32) {
    let all = wanted.required_skills.len() + wanted.preferred_skills.len();
    let lacking =
        missing(facts.skills, wanted.required_skills).len() + missing(facts.skills, wanted.preferred_skills).len();
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    (count(all - lacking), count(all))
}

fn score<S: Skill>(wanted: &Wanted<'_>, facts: &Facts<'_, S>) -> f64 {
    values(wanted, facts).iter().zip(weights(wanted.priority)).map(|(value, weight)| value * weight).sum()
}

/// The factors of an agent's score, with their words. Their weighted values add up to the score.
pub fn explain<S: Skill>(wanted: &Wanted<'_>, facts: &Facts<'_, S>) -> [Factor; FACTORS] {
    let [cover, free, outcome, speed] = values(wanted, facts);
    let [of_cover, of_free, of_outcome, of_speed] = weights(wanted.priority);
    let factor = |name, value, weight, text| Factor { name, value, weight, text };
    [
        factor("skill cover", cover, of_cover, words_of_cover(wanted, facts)),
        factor("free capacity", free, of_free, words_of_load(facts.load)),
        factor("outcome", outcome, of_outcome, words_of_outcome(facts.record)),
        factor("speed", speed, of_speed, words_of_speed(facts.record, wanted.accept_timeout)),
    ]
}

fn words_of_cover<S: Skill>(wanted: &Wanted<'_>, facts: &Facts<'_, S>) -> String {
    let (met, asked_for) = covered(wanted, facts);
    let lacking = missing(facts.skills, wanted.preferred_skills);
    match (asked_for, lacking.is_empty()) {
        (0, _) => "no skill asked for".to_owned(),
        (_, true) => format!("{met} of {asked_for} skills"),
        (_, false) => format!("{met} of {asked_for} skills, without {}", lacking.join(", ")),
    }
}

fn words_of_load(load: Load) -> String {
    let Load { in_use, capacity, is_overloaded } = load;
    let of = match capacity {
        0 => format!("{in_use} in use, no capacity stated"),
        _ => format!("{in_use} of {capacity} in use"),
    };
    if is_overloaded { format!("{of}, said to be overloaded") } else { of }
}

fn words_of_outcome(record: Summary) -> String {
    match record.offers {
        0 => "no offer in 7 days".to_owned(),
        offers => format!("{} of the last {offers} offers completed", record.completed),
    }
}

fn words_of_speed(record: Summary, accept_timeout: Duration) -> String {
    match record.median_decision {
        None => "no decision in 7 days".to_owned(),
        Some(median) => {
            format!("decides in {:.3} s of {:.0} s", median.as_secs_f64(), accept_timeout.as_secs_f64())
        }
    }
}

#[cfg(test)]
mod tests;
