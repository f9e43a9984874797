//! Routing by a model: graphs of nodes, and runs that move through them (SPEC 10).
//!
//! This module owns the validation of graphs, the tools of a node, and the machine of a run: super-steps, choices and
//! their counters, turns and their results. It must not know a model, nor the JSON of a tool or of its arguments.

mod graph;
mod handoffs;
mod machine;
mod run;
mod tools;

pub use graph::{
    DESCRIPTION_BYTES_MAX, END, GRAPHS_MAX, Graph, HANDOFFS_MAX, NODES_MAX, Node, OUTPUTS_MAX, Problem, ProblemCode,
    STEPS_DEFAULT, STEPS_MAX, Severity, is_end,
};
pub use handoffs::check_handoff;
pub(super) use machine::{step_graph, step_run};
pub use run::{
    CALLS_MAX, Call, CallResult, Choice, Event, Failure, HandoffRef, Input, NodeLetter, NodeRun, NodeState,
    OUTPUT_BYTES_MAX, Proposal, REFUSALS_MAX, Rejection, Run, RunEntry, RunId, RunSignal, RunState, RunTurn, Start,
    TURNS_MAX, Turn, TurnId, TurnOutcome, TurnRecord, WHOLE_TIMEOUT_DEFAULT, WHOLE_TIMEOUT_MAX,
};
pub use tools::{TOOL_NAME_LENGTH_MAX, TRANSFER_PREFIX, Tool, may_route};
