//! The plans that agents submit, and how they carry out subtasks.

use baton_broker_core::{
    proto::v1::{self, MessageType as T},
    time::Timestamp,
};
use prost::Message as _;
use serde_json::{Value, json};

use super::{Action, Agent, Manner};
use crate::rng::Ids;

/// The number of plan ids.
const PLANS: u64 = 3;

fn span(seconds: u64) -> Option<prost_types::Duration> {
    Some(prost_types::Duration { seconds: i64::try_from(seconds).unwrap(), nanos: 0 })
}

impl Agent {
    /// Submits a plan with a random graph, which is not always valid.
    pub(super) fn submit_plan(&mut self, others: &[String], ids: &Ids, now: Timestamp) -> Option<Action> {
        let plan_id = format!("plan-{}", self.rng.roll(PLANS));
        if self.rng.once_in(3) {
            return Some(self.extend_plan(plan_id, others, ids, now));
        }
        let many = 1 + self.rng.roll(7);
        let mode = self.rng.pick(&[v1::PlanMode::Hybrid, v1::PlanMode::Hybrid, v1::PlanMode::Sequential]);
        let subtasks = (0..many).map(|place| self.subtask(place, others)).collect();
        let plan = v1::Plan {
            plan_id,
            subtasks,
            mode: mode.into(),
            max_concurrency: u32::try_from(1 + self.rng.roll(3)).unwrap(),
            dependency_timeout: span(10 + self.rng.roll(200)),
            whole_timeout: span(20 + self.rng.roll(300)),
            ..Default::default()
        };
        let payload = v1::PlanSubmission { plan: Some(plan), ..Default::default() };
        Some(Action::Send(self.make("", T::PlanSubmission, "", "", 0, &payload, ids, now)))
    }

    /// Adds subtasks to a plan, which may be that of another agent, or have ended.
    fn extend_plan(&mut self, plan_id: String, others: &[String], ids: &Ids, now: Timestamp) -> Action {
        let from = 7 + self.rng.roll(9);
        let many = 1 + self.rng.roll(2);
        let mut subtasks: Vec<v1::Subtask> = (from..from + many).map(|place| self.subtask(place, others)).collect();
        for subtask in &mut subtasks {
            // Few plans have many subtasks.
            subtask.dependencies.retain(|need| need.len() == 2 && need.as_str() < "s3" || self.rng.once_in(20));
            subtask.when = None;
            subtask.for_each = None;
        }
        let extension = Some(v1::PlanExtension { plan_id, subtasks, ..Default::default() });
        let payload = v1::PlanSubmission { plan: None, extension };
        Action::Send(self.make("", T::PlanSubmission, "", "", 0, &payload, ids, now))
    }

    fn subtask(&mut self, place: u64, others: &[String]) -> v1::Subtask {
        let mut dependencies: Vec<String> =
            (0..place).filter(|_| self.rng.once_in(3)).map(|need| format!("s{need}")).collect();
        if self.rng.once_in(30) {
            // It waits for itself, or for no subtask of the plan.
            dependencies.push(format!("s{}", place + self.rng.roll(2) * 100));
        }
        let named = others[usize::try_from(self.rng.roll(others.len() as u64)).unwrap()].clone();
        let (agent_id, agent_type) =
            if self.rng.once_in(3) { (named, String::new()) } else { (String::new(), "worker".to_owned()) };
        // Most responses are 15.3 %, so it holds or not.
        let when = dependencies.first().filter(|_| self.rng.once_in(3)).map(|need| v1::Condition {
            subtask_id: need.clone(),
            pointer: "/numeric_value".to_owned(),
            comparison: Some(v1::condition::Comparison::Less(if self.rng.once_in(2) { 10.0 } else { 20.0 })),
            negate: self.rng.once_in(2),
        });
        let for_each = dependencies.last().filter(|_| self.rng.once_in(4)).map(|need| {
            // A response is no list.
            let pointer = if self.rng.once_in(8) { "/response" } else { "/tools_used" };
            v1::ForEach { subtask_id: need.clone(), pointer: pointer.to_owned() }
        });
        v1::Subtask {
            id: format!("s{place}"),
            when,
            for_each,
            agent_id,
            agent_type,
            dependencies,
            timeout: span(2 + self.rng.roll(60)),
            attempts_max: u32::try_from(1 + self.rng.roll(3)).unwrap(),
            optional: self.rng.once_in(4),
            compensate: self.rng.once_in(2).then(|| self.compensation()),
            ..Default::default()
        }
    }

    fn compensation(&mut self) -> v1::Compensation {
        v1::Compensation {
            agent_type: "worker".to_owned(),
            timeout: span(2 + self.rng.roll(60)),
            attempts_max: u32::try_from(1 + self.rng.roll(3)).unwrap(),
            ..Default::default()
        }
    }

    /// Works on a subtask: reports a result, late or twice, or never.
    pub(super) fn carry_out(&mut self, context: &v1::Envelope, ids: &Ids, now: Timestamp) -> Vec<Action> {
        if self.manner == Manner::Silent || self.manner != Manner::Diligent && self.rng.once_in(6) {
            return Vec::new(); // it has died
        }
        let mut actions = Vec::new();
        if self.manner == Manner::Liar {
            actions.push(self.report_subtask(context, &json!({"numeric_value": "many"}), 100, ids, now));
        }
        let late = if self.manner == Manner::Slow { 120_000 } else { 4_000 };
        let after = 100 + self.rng.roll(late);
        let tools = vec!["tool"; usize::try_from(self.rng.roll(4)).unwrap()];
        let result = json!({"response": "15.3%", "tokens": self.rng.roll(9), "tools_used": tools});
        actions.push(self.report_subtask(context, &result, after, ids, now));
        if self.manner == Manner::Double {
            // Another message with another result.
            actions.push(self.report_subtask(context, &json!({"response": "7.2%"}), after + 50, ids, now));
        }
        actions
    }

    fn report_subtask(
        &mut self,
        context: &v1::Envelope,
        result: &Value,
        after: u64,
        ids: &Ids,
        now: Timestamp,
    ) -> Action {
        let failed = self.manner != Manner::Diligent && self.rng.once_in(5);
        let status = if failed { v1::TaskStatus::Failed } else { v1::TaskStatus::Completed };
        let update =
            v1::TaskStatusUpdate { status: status.into(), result_json: result.to_string(), ..Default::default() };
        // The takeover, which the context leads to, adds 1 to the epoch.
        let (task, epoch) = (&context.task_id, context.epoch + 1);
        let bytes = self.make("", T::TaskStatusUpdate, task, "", epoch, &update, ids, now);
        Action::Later(after, Box::new(Action::Send(bytes)))
    }
}

/// The digest of the context in this envelope.
pub(super) fn digest_in(envelope: &v1::Envelope) -> bytes::Bytes {
    let value = envelope.payload.clone().unwrap_or_default().value;
    let context = v1::TaskContextTransfer::decode(value).unwrap_or_default();
    baton_broker_core::envelope::digest_of(&context.sections).to_vec().into()
}
