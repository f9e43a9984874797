//! A plan as its submitter writes it, with the defaults of the fields that it leaves out.

use std::{ops::RangeInclusive, time::Duration};

use super::{Condition, ForEach, Links};
use crate::{RequestedTimeouts, handoff::Priority, ids::PlanId, numbered};

/// The most subtasks of a plan.
pub const SUBTASKS_MAX: usize = 256;
/// The most characters of a plan's id. The ids of its tasks begin with it.
pub const PLAN_ID_LENGTH_MAX: usize = 63;
/// The most characters of a subtask's id.
pub const SUBTASK_ID_LENGTH_MAX: usize = 60;
/// The most dependencies, produced topics and consumed topics of a subtask, each.
pub const EDGES_MAX: usize = 64;
/// The most required skills and fallback candidates of a subtask, each.
pub const SKILLS_MAX: usize = 16;
/// The most bytes of the description of a plan or of a subtask.
pub const DESCRIPTION_BYTES_MAX: usize = 16 * 1024;
/// The most bytes of a role.
pub const ROLE_BYTES_MAX: usize = 256;
/// The most bytes of the input of a plan or of a subtask: those of a section of a context, which it becomes.
pub const INPUT_BYTES_MAX: usize = 256 * 1024;
/// The most elements of the list of a subtask.
pub const ELEMENTS_MAX: usize = 256;
/// The most lists of a plan that are worked on at once.
pub const LISTS_MAX: usize = 4;
/// The most subtasks that may run at once.
pub const CONCURRENCY_MAX: u32 = 64;
/// The most attempts of a subtask in one round.
pub const ATTEMPTS_MAX: u32 = 4;
/// The most rounds of a plan: its submission, and its retries.
pub const ROUNDS_MAX: u32 = 99;
/// The times that a subtask may have: those of a loan (SPEC 3).
pub const TIMEOUTS: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(30 * 24 * 60 * 60);
/// The longest time of a round.
pub const WHOLE_TIMEOUT_MAX: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// The order of a plan's subtasks, and the results that they get.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// One after another, in the order of the list. Each gets the results of all earlier ones.
    Sequential,
    /// All at once. None gets a result.
    Parallel,
    /// As the dependencies and the topics demand. Each gets the results of its ancestors.
    Hybrid,
}

/// All modes.
pub const MODES: [Mode; 3] = [Mode::Sequential, Mode::Parallel, Mode::Hybrid];

/// The treatment of a consumed topic without a producer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DataFlowCheck {
    /// The plan is invalid.
    Strict,
    /// The plan gets a warning, and no subtask waits for the topic.
    Lenient,
}

numbered! {
    Mode { Sequential = 1, Parallel = 2, Hybrid = 3, }
    DataFlowCheck { Strict = 1, Lenient = 2, }
}

/// The terms of a plan, where it names none: the operator's configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// The most subtasks that run at once, 1 to [`CONCURRENCY_MAX`].
    pub max_concurrency: u32,
    /// The time that a subtask waits while none of its ancestors changes state.
    pub dependency_timeout: Duration,
    /// The time of a round, at most [`WHOLE_TIMEOUT_MAX`].
    pub whole_timeout: Duration,
    /// Whether subtasks get `previous_results`.
    pub pass_results: bool,
    /// Whether subtasks get `dependency_results`.
    pub pass_dependency_results: bool,
    /// Whether the broker looks for the number in a response.
    pub extract_numeric: bool,
    /// The treatment of a consumed topic without a producer.
    pub data_flow_check: DataFlowCheck,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            max_concurrency: 5,
            dependency_timeout: Duration::from_secs(360),
            whole_timeout: Duration::from_secs(3600),
            pass_results: true,
            pass_dependency_results: true,
            extract_numeric: true,
            data_flow_check: DataFlowCheck::Strict,
        }
    }
}

/// A plan: its subtasks and its terms. It never changes after its submission.
#[derive(Debug, Clone, PartialEq)]
pub struct Spec {
    /// The id, chosen by the submitter; at most [`PLAN_ID_LENGTH_MAX`] characters.
    pub id: PlanId,
    /// The purpose of the plan, for people to read.
    pub description: String,
    /// The subtasks in their order, 1 to [`SUBTASKS_MAX`] in a valid plan.
    pub subtasks: Vec<Subtask>,
    /// The order of the subtasks.
    pub mode: Mode,
    /// The limits, timeouts and results, with the defaults filled in.
    pub terms: Terms,
    /// The priority of all handoffs of the plan.
    pub priority: Priority,
    /// What every subtask gets, a JSON object as text. Empty: nothing.
    pub input: String,
    /// The schemas of topics.
    pub topic_schemas: Vec<TopicSchema>,
    /// Which subtask waits for which. Derived from the other fields.
    pub links: Links,
}

/// The schema of the results that are appended to a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicSchema {
    /// The topic, normalised where it is one.
    pub topic: String,
    /// The JSON Schema, as text.
    pub schema: String,
}

/// A subtask. Its texts are as written, and [`Spec::problems`] names the invalid ones.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Subtask {
    /// The id, unique in the plan.
    pub id: String,
    /// The work, for the agent to read.
    pub description: String,
    /// The role of the agent, in the words of the plan.
    pub role: String,
    /// The agent to ask. Empty: none is named.
    pub agent: String,
    /// The type of the agents to ask. Empty: none is named.
    pub agent_type: String,
    /// The skills that the agent must have.
    pub required_skills: Vec<String>,
    /// The ids of the subtasks that must have completed before.
    pub dependencies: Vec<String>,
    /// The topics to which the result is appended, normalised where they are topics.
    pub produces: Vec<String>,
    /// The topics whose producers must have completed before, normalised where they are topics.
    pub consumes: Vec<String>,
    /// What the subtask gets, a JSON object as text. Empty: nothing.
    pub input: String,
    /// The kind of work, for policies and agents.
    pub task_type: String,
    /// The time from the takeover until the subtask is taken back.
    pub timeout: Duration,
    /// The time without a sign of work after which the attempt ends, 5 s to 1 day.
    pub silence_timeout: Duration,
    /// The most attempts in one round, 1 to [`ATTEMPTS_MAX`].
    pub attempts_max: u32,
    /// Whether dependents run although this subtask did not complete.
    pub is_optional: bool,
    /// The timeouts of its handoffs.
    pub timeouts: RequestedTimeouts,
    /// The agents and types to ask after the named one.
    pub fallback_candidates: Vec<String>,
    /// The work that undoes the subtask, with the id of the subtask. It has no dependencies and no topics.
    pub compensate: Option<Box<Self>>,
    /// What must hold for the subtask to run. `None`: it runs.
    pub when: Option<Condition>,
    /// The list of which each element is a part of the subtask. `None`: the subtask is one task.
    pub for_each: Option<ForEach>,
}

impl Spec {
    /// The plan with its links, which follow from the other fields.
    pub fn linked(mut self) -> Self {
        // The one place where links are made. A changed subtask needs this call again.
        self.links = Links::of(&self);
        self
    }

    /// The work of a subtask, or that of its compensation.
    ///
    /// # Panics
    /// If the subtask has no compensation.
    pub fn work(&self, place: usize, is_compensation: bool) -> &Subtask {
        let subtask = &self.subtasks[place];
        match is_compensation {
            true => subtask.compensate.as_deref().expect("only a subtask with a compensation is undone"),
            false => subtask,
        }
    }

    /// The place of the subtask with this id.
    pub fn place(&self, id: &str) -> Option<usize> {
        self.subtasks.iter().position(|subtask| subtask.id == id)
    }
}
