//! The states of a plan. A receipt says that a message is stored; the plan follows in a later commit.

use super::{
    check::{Checks, Verdict, same},
    plans::Cast,
};
use baton_client::{
    proto::v1::{self, PlanState, SubtaskState},
    time::Moment,
};

impl Cast {
    /// Waits until the plan is as wanted, and returns it.
    pub(super) async fn once(&self, is_wanted: impl Fn(&v1::PlanRun) -> bool) -> Verdict<v1::PlanRun> {
        let (began, mut run) = (Moment::now(), self.run().await?);
        while !is_wanted(&run) && self.alice.looks_again(began).await {
            run = self.run().await?;
        }
        Ok(run)
    }

    /// Waits until this many subtasks are in one of these states.
    pub(super) async fn count_is(&self, step: &str, states: &[SubtaskState], expected: usize) -> Verdict {
        let count = |run: &v1::PlanRun| run.subtasks.iter().filter(|subtask| states.contains(&subtask.state())).count();
        let run = self.once(|run| count(run) == expected).await?;
        same(step, "active subtasks", expected, count(&run))
    }

    /// Waits until the plan and its subtasks are in these states.
    pub(super) async fn is(&self, step: &str, plan: PlanState, subtasks: &[SubtaskState]) -> Verdict<v1::PlanRun> {
        let are = |run: &v1::PlanRun| run.subtasks.iter().map(v1::SubtaskStatus::state).eq(subtasks.iter().copied());
        let run = self.once(|run| run.state() == plan && are(run)).await?;
        let mut checks = Checks::of(step);
        checks.same("plan.state", plan, run.state());
        checks.same("subtasks", subtasks.to_vec(), run.subtasks.iter().map(v1::SubtaskStatus::state).collect());
        checks.done().map(|()| run)
    }
}
