//! Plans: many agents, one result (SPEC 9).
//!
//! This module owns the checks of a plan, the number in a response, and the machine of a plan: which subtask starts
//! when, what follows from the end of an attempt, and when the plan ends. It must not know the content of a result, nor
//! how the coordinator's messages are composed.

mod condition;
#[cfg(test)]
mod examples;
mod links;
mod machine;
mod numeric;
mod problems;
mod run;
mod spec;

pub use condition::{CONDITION_BYTES_MAX, Comparison, Condition, ForEach};
pub use links::Links;
pub(super) use machine::step;
pub use numeric::numeric_value;
pub use problems::{Problem, ProblemCode, Severity};
pub use run::{
    CompensationRun, ElementRun, Event, Extended, Extension, Input, Plan, PlanEntry, PlanRef, PlanSignal, PlanState,
    Rejection, Report, SUMMARY_BYTES_MAX, Submission, SubtaskChange, SubtaskRun, SubtaskState,
};
pub use spec::{
    ATTEMPTS_MAX, CONCURRENCY_MAX, DESCRIPTION_BYTES_MAX, DataFlowCheck, EDGES_MAX, ELEMENTS_MAX, INPUT_BYTES_MAX,
    LISTS_MAX, MODES, Mode, PLAN_ID_LENGTH_MAX, ROLE_BYTES_MAX, ROUNDS_MAX, SKILLS_MAX, SUBTASK_ID_LENGTH_MAX,
    SUBTASKS_MAX, Spec, Subtask, TIMEOUTS, Terms, TopicSchema, WHOLE_TIMEOUT_MAX,
};
