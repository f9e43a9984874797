//! The schemas of a plan's topics: of the plan itself, and the results that are to fit them.

use super::{Findings, Interrupted, Preparation};
use crate::{
    BrokerError,
    codes::FieldViolation,
    contexts::payload_in,
    domain::plan::{Problem, ProblemCode, Severity, Spec},
    envelope::{JsonError, VerifiedEnvelope, read_json},
    json_schema::{CompiledSchemas, LISTED_MAX, SCHEMA_BYTES_MAX, Work},
    proto::v1,
    records::{PlanSpecRecord, TaskRecord},
};

/// The path of a result in its report.
const PATH: &str = "envelope.payload.result_json";

/// The topics whose schemas are none, as problems of the plan.
pub fn topic_problems(schemas: &CompiledSchemas, spec: &Spec) -> Vec<Problem> {
    let problem_of = |text: &str| match text.len() > SCHEMA_BYTES_MAX {
        true => Some(format!("has more than {SCHEMA_BYTES_MAX} bytes")),
        false => schemas.get(text).err(),
    };
    let problems = spec.topic_schemas.iter().enumerate().filter_map(|(place, of)| {
        Some(Problem {
            severity: Severity::Error,
            code: ProblemCode::FieldInvalid,
            path: format!("topic_schemas[{place}].schema_json"),
            subtasks: Vec::new(),
            topic: of.topic.clone(),
            message: problem_of(&of.schema)?,
        })
    });
    problems.collect()
}

impl Preparation<'_> {
    /// Checks the result of a subtask against the schemas of the topics that it goes to.
    pub(super) fn result(&self, envelope: &VerifiedEnvelope, is_last: bool) -> Result<Findings, Interrupted> {
        let header = envelope.header();
        let stored = match &header.task {
            Some(task) => self.store.get(&TaskRecord::key(task))?,
            None => None,
        };
        let record = stored.map(|stored| TaskRecord::decode(&stored.value)).transpose()?;
        // The machine refuses the report of another agent.
        let Some(record) = record.filter(|record| record.task.owner == header.sender) else {
            return Self::missing(is_last, Findings::None);
        };
        let Some(of) = &record.task.plan else { return Ok(Findings::Result(Vec::new())) };
        let Some(stored) = self.store.get(&PlanSpecRecord::key(&of.plan))? else {
            return Ok(Findings::Result(Vec::new()));
        };
        let spec = PlanSpecRecord::decode(&stored.value)?.0;
        let subtask = spec.place(&of.subtask).map(|place| &spec.subtasks[place]).ok_or(BrokerError::Internal)?;
        let schemas: Vec<_> = spec.topic_schemas.iter().filter(|of| subtask.produces.contains(&of.topic)).collect();
        if schemas.is_empty() {
            return Ok(Findings::Result(Vec::new()));
        }
        let update: v1::TaskStatusUpdate = payload_in(envelope.raw()).ok_or(BrokerError::Internal)?;
        let wrong = |problem: String| FieldViolation { path: PATH.to_owned(), problem };
        if update.result_json.is_empty() {
            let problem = format!("must be set: topic '{}' has a schema", schemas[0].topic);
            return Ok(Findings::Result(vec![wrong(problem)]));
        }
        let result = match read_json(&update.result_json) {
            Ok(result) => result,
            Err(JsonError { problem, .. }) => return Ok(Findings::Result(vec![wrong(problem)])),
        };
        let mut work = Work::new();
        let mut violations = Vec::new();
        for of in schemas {
            match self.schemas.get(&of.schema) {
                Ok(schema) => violations.extend(schema.misfits(&result, PATH, LISTED_MAX, &mut work)),
                Err(problem) => violations.push(wrong(format!("cannot be checked: {problem}"))),
            }
        }
        violations.truncate(LISTED_MAX);
        Ok(Findings::Result(violations))
    }
}
