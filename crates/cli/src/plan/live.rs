//! `baton plan watch` on a terminal: a line for each subtask and a bar, drawn again at each change.

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::{output, state, status_text, subtask_state, work};
use crate::Failure;
use baton_client::{
    Client,
    ids::PlanId,
    proto::v1::{self, PlanState, SubtaskState, plan_entry::Event, watch_plan_response::Update},
};

/// The most lines of subtasks. Of a larger plan, those that run come first, then those that failed.
const LINES_MAX: usize = 40;
const TICK: std::time::Duration = std::time::Duration::from_secs(1);
/// The pause between two looks at the progress of the subtasks.
const REFRESH: std::time::Duration = std::time::Duration::from_secs(2);

/// Follows the plan until it has ended. Returns its final state.
pub(super) async fn follow(client: &Client, plan: &PlanId) -> Result<PlanState, Failure> {
    let mut run = get(client, plan).await?;
    let view = View::new(&run);
    while run.end_time.is_none() {
        let request = v1::WatchPlanRequest { plan_id: plan.to_string(), after_number: run.log_length };
        let mut updates = crate::watching::open(client, request).await?;
        let mut refresh = tokio::time::interval(REFRESH);
        loop {
            tokio::select! {
                update = updates.next() => match update? {
                    Some(v1::WatchPlanResponse { update: Some(Update::Entry(entry)) }) => {
                        if changes_plan(&entry) {
                            run = get(client, plan).await?;
                        } else if entry.number > run.log_length {
                            apply(&mut run, &entry);
                        }
                    }
                    Some(v1::WatchPlanResponse { update: Some(Update::Gap(_)) }) => run = get(client, plan).await?,
                    Some(_) => {}
                    None => break,
                },
                // The log of a plan does not have the progress that agents report.
                _ = refresh.tick() => {
                    // The stream of the log says it if the broker is away.
                    if let Ok(now) = get(client, plan).await {
                        take_work(&mut run, &now);
                    }
                }
            }
            view.draw(&run);
        }
        // The log ends with the plan, which may have been retried since.
        run = get(client, plan).await?;
    }
    view.end(&run);
    Ok(run.state())
}

async fn get(client: &Client, plan: &PlanId) -> Result<v1::PlanRun, Failure> {
    let request = v1::GetPlanRequest { plan_id: plan.to_string(), ..Default::default() };
    Ok(client.answer(client.plans().get_plan(request).await)?.plan.unwrap_or_default())
}

/// Takes over what the subtasks say of their work, where both views are of the same attempt.
fn take_work(run: &mut v1::PlanRun, now: &v1::PlanRun) {
    for subtask in &mut run.subtasks {
        let same = |other: &&v1::SubtaskStatus| {
            (&other.id, other.state, other.attempts) == (&subtask.id, subtask.state, subtask.attempts)
        };
        let Some(now) = now.subtasks.iter().find(same) else { continue };
        subtask.progress = now.progress;
        subtask.details.clone_from(&now.details);
        subtask.turn_agent_id.clone_from(&now.turn_agent_id);
        subtask.turn_deadline = now.turn_deadline;
        subtask.elements.clone_from(&now.elements);
        subtask.assigned_to.clone_from(&now.assigned_to);
    }
}

/// Whether the entry says too little of its effect on the other subtasks.
fn changes_plan(entry: &v1::PlanEntry) -> bool {
    match &entry.event {
        Some(Event::Extended(_) | Event::Reassigned(_)) => true,
        Some(Event::Retried(retried)) => !retried.subtask_id.is_empty(),
        Some(
            Event::Submitted(_)
            | Event::Subtask(_)
            | Event::Element(_)
            | Event::Compensation(_)
            | Event::NotAppended(_)
            | Event::Ended(_),
        )
        | None => false,
    }
}

/// Follows an entry of the log.
fn apply(run: &mut v1::PlanRun, entry: &v1::PlanEntry) {
    run.log_length = entry.number;
    match &entry.event {
        Some(Event::Subtask(change)) => {
            let is_final = is_final(change.state());
            for subtask in &mut run.subtasks {
                if subtask.id == change.subtask_id {
                    subtask.state = change.state;
                    subtask.attempts = change.attempt;
                    subtask.agent_id.clone_from(&change.agent_id);
                    subtask.error_code = change.error_code;
                    subtask.cause.clone_from(&change.cause);
                    subtask.numeric_value = change.result.as_ref().and_then(|result| result.numeric_value);
                    subtask.waiting_for.clear();
                    (subtask.progress, subtask.turn_deadline) = (None, None);
                    subtask.details.clear();
                    subtask.turn_agent_id.clear();
                    subtask.end_time = entry.time.filter(|_| is_final);
                } else if is_final {
                    subtask.waiting_for.retain(|need| *need != change.subtask_id);
                }
            }
        }
        Some(Event::Compensation(change)) => {
            if let Some(subtask) = run.subtasks.iter_mut().find(|subtask| subtask.id == change.subtask_id) {
                subtask.compensation = Some(Box::new(v1::SubtaskStatus {
                    id: change.subtask_id.clone(),
                    state: change.state,
                    attempts: change.attempt,
                    agent_id: change.agent_id.clone(),
                    error_code: change.error_code,
                    cause: change.cause.clone(),
                    end_time: entry.time.filter(|_| is_final(change.state())),
                    ..Default::default()
                }));
            }
        }
        Some(Event::Ended(ended)) => {
            (run.state, run.end_time) = (ended.state, entry.time);
            run.reason.clone_from(&ended.reason);
        }
        Some(Event::Retried(retried)) => {
            run.round = retried.round;
            // What a compensation has undone starts again.
            let is_undone = |subtask: &v1::SubtaskStatus| {
                subtask.compensation.as_ref().is_some_and(|known| known.state() == SubtaskState::Completed)
            };
            for subtask in &mut run.subtasks {
                if subtask.state() == SubtaskState::Completed && !is_undone(subtask) {
                    subtask.compensation = None;
                    continue;
                }
                *subtask = v1::SubtaskStatus {
                    id: std::mem::take(&mut subtask.id),
                    state: SubtaskState::Pending.into(),
                    ..Default::default()
                };
            }
        }
        Some(
            Event::Submitted(_) | Event::NotAppended(_) | Event::Element(_) | Event::Extended(_) | Event::Reassigned(_),
        )
        | None => {}
    }
}

fn is_final(state: SubtaskState) -> bool {
    match state {
        SubtaskState::Unspecified
        | SubtaskState::Pending
        | SubtaskState::Ready
        | SubtaskState::HandingOff
        | SubtaskState::Running => false,
        SubtaskState::Completed
        | SubtaskState::Failed
        | SubtaskState::TimedOut
        | SubtaskState::Skipped
        | SubtaskState::Cancelled => true,
    }
}

/// The place of a state among the lines of a large plan.
fn weight(state: SubtaskState) -> u8 {
    match state {
        SubtaskState::Running | SubtaskState::HandingOff => 0,
        SubtaskState::Failed | SubtaskState::TimedOut => 1,
        SubtaskState::Ready => 2,
        SubtaskState::Unspecified | SubtaskState::Pending => 3,
        SubtaskState::Skipped | SubtaskState::Cancelled => 4,
        SubtaskState::Completed => 5,
    }
}

/// The lines of the subtasks, at most `most`, and the number of those without a line.
fn rows(run: &v1::PlanRun, most: usize) -> (Vec<String>, usize) {
    let mut subtasks: Vec<&v1::SubtaskStatus> = run.subtasks.iter().collect();
    if subtasks.len() > most {
        subtasks.sort_by_key(|subtask| weight(subtask.state()));
    }
    let width = subtasks.iter().take(most).map(|subtask| subtask.id.len()).max().unwrap_or(0);
    let row = |subtask: &&v1::SubtaskStatus| {
        let mut text = format!("{:<width$}  {:<11}", subtask.id, subtask_state(subtask.state()));
        if !subtask.agent_id.is_empty() {
            text.push_str(&format!("  {}", subtask.agent_id));
        }
        if subtask.attempts > 1 {
            text.push_str(&format!("  attempt {}", subtask.attempts));
        }
        if let Some(number) = subtask.numeric_value {
            text.push_str(&format!("  = {number}"));
        }
        if let Some(work) = work(subtask) {
            text.push_str(&format!("  {work}"));
        }
        if !subtask.waiting_for.is_empty() {
            text.push_str(&format!("  waits for {}", subtask.waiting_for.join(", ")));
        }
        if !subtask.cause.is_empty() {
            text.push_str(&format!("  {}", subtask.cause));
        }
        if let Some(compensation) = &subtask.compensation {
            text.push_str(&format!("  compensation {}", status_text(compensation)));
        }
        output::line(&text).trim_end().to_owned()
    };
    (subtasks.iter().take(most).map(row).collect(), subtasks.len().saturating_sub(most))
}

/// The words beside the bar.
fn words(run: &v1::PlanRun, without_line: usize) -> String {
    let round = if run.round > 1 { format!(", round {}", run.round) } else { String::new() };
    let more = if without_line > 0 { format!(", {without_line} without a line") } else { String::new() };
    let reason = if run.reason.is_empty() { String::new() } else { format!(": {}", run.reason) };
    output::line(&format!("{} {}{round}{more}{reason}", run.plan_id, state(run.state()))).into_owned()
}

/// The drawn lines, and the bar below them.
struct View {
    /// Keeps the lines together.
    _all: MultiProgress,
    lines: Vec<ProgressBar>,
    bar: ProgressBar,
}

impl View {
    fn new(run: &v1::PlanRun) -> Self {
        let all = MultiProgress::with_draw_target(ProgressDrawTarget::stdout());
        let style = |template: &str| ProgressStyle::with_template(template).expect("the template is well-formed");
        let line = |_| all.add(ProgressBar::new_spinner().with_style(style("{wide_msg}")));
        let lines: Vec<ProgressBar> = (0..run.subtasks.len().min(LINES_MAX)).map(line).collect();
        let bar = all.add(ProgressBar::new(run.subtasks.len() as u64));
        bar.set_style(style("{bar:24} {pos}/{len} {elapsed} {wide_msg}"));
        // The elapsed time goes on between two changes.
        bar.enable_steady_tick(TICK);
        let view = Self { _all: all, lines, bar };
        view.draw(run);
        view
    }

    fn draw(&self, run: &v1::PlanRun) {
        let (rows, without_line) = rows(run, LINES_MAX);
        for (line, row) in self.lines.iter().zip(rows) {
            line.set_message(row);
        }
        self.bar.set_position(run.subtasks.iter().filter(|subtask| is_final(subtask.state())).count() as u64);
        self.bar.set_message(words(run, without_line));
    }

    /// Leaves the last view on the terminal.
    fn end(&self, run: &v1::PlanRun) {
        self.draw(run);
        self.lines.iter().for_each(ProgressBar::abandon);
        self.bar.abandon();
        // The library leaves the cursor behind the bar.
        say!("");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> v1::PlanRun {
        let status = |id: &str, state: SubtaskState, waiting_for: &[&str]| v1::SubtaskStatus {
            id: id.to_owned(),
            state: state.into(),
            waiting_for: waiting_for.iter().map(ToString::to_string).collect(),
            ..Default::default()
        };
        v1::PlanRun {
            plan_id: "q3".to_owned(),
            state: PlanState::Running.into(),
            round: 1,
            subtasks: vec![
                status("growth", SubtaskState::Running, &[]),
                status("synthesis", SubtaskState::Pending, &["growth", "margin"]),
            ],
            ..Default::default()
        }
    }

    fn changed(number: u64, change: v1::SubtaskChanged) -> v1::PlanEntry {
        let time = Some(prost_types::Timestamp { seconds: 7, nanos: 0 });
        v1::PlanEntry { number, time, event: Some(Event::Subtask(change)) }
    }

    #[test]
    fn the_lines_follow_the_log() {
        let mut run = plan();
        let result = Some(v1::SubtaskResult { numeric_value: Some(15.3), ..Default::default() });
        let state = SubtaskState::Completed.into();
        let agent_id = "guo".to_owned();
        let subtask_id = "growth".to_owned();
        let change = v1::SubtaskChanged { subtask_id, state, attempt: 2, agent_id, result, ..Default::default() };
        apply(&mut run, &changed(5, change));
        let expected = ["growth     COMPLETED    guo  attempt 2  = 15.3", "synthesis  PENDING      waits for margin"];
        assert_eq!(rows(&run, 40), (expected.map(str::to_owned).to_vec(), 0));
        assert_eq!((run.log_length, words(&run, 0)), (5, "q3 RUNNING".to_owned()));
        let ended = v1::PlanEnded { state: PlanState::Failed.into(), reason: "not completed: synthesis".to_owned() };
        apply(&mut run, &v1::PlanEntry { number: 6, time: None, event: Some(Event::Ended(ended)) });
        assert_eq!(words(&run, 0), "q3 FAILED: not completed: synthesis");
        let retried = v1::PlanRetried { round: 2, caller: "alice".to_owned(), ..Default::default() };
        apply(&mut run, &v1::PlanEntry { number: 7, time: None, event: Some(Event::Retried(retried)) });
        assert_eq!(rows(&run, 40).0[1], "synthesis  PENDING");
        let change = |state: SubtaskState| v1::SubtaskChanged {
            subtask_id: "growth".to_owned(),
            state: state.into(),
            agent_id: "guo".to_owned(),
            ..Default::default()
        };
        let compensated = |state| v1::PlanEntry {
            event: Some(Event::Compensation(change(state))),
            ..changed(8, v1::SubtaskChanged::default())
        };
        apply(&mut run, &compensated(SubtaskState::Running));
        assert_eq!(rows(&run, 40).0[0], "growth     COMPLETED    guo  attempt 2  = 15.3  compensation RUNNING by guo");
        apply(&mut run, &compensated(SubtaskState::Completed));
        let retried = v1::PlanRetried { round: 3, caller: "alice".to_owned(), ..Default::default() };
        apply(&mut run, &v1::PlanEntry { number: 9, time: None, event: Some(Event::Retried(retried)) });
        assert_eq!(rows(&run, 40).0[0], "growth     PENDING", "what is undone starts again");
    }

    #[test]
    fn the_lines_show_the_progress_of_the_same_attempt_and_whose_turn_it_is() {
        let mut run = plan();
        let mut now = run.clone();
        now.subtasks[0].progress = Some(0.4);
        now.subtasks[0].details = "third of seven files".to_owned();
        now.subtasks[0].turn_agent_id = "hua".to_owned();
        take_work(&mut run, &now);
        assert_eq!(rows(&run, 40).0[0], "growth     RUNNING      40 %, turn of hua, third of seven files");
        let change = v1::SubtaskChanged {
            subtask_id: "growth".to_owned(),
            state: SubtaskState::Ready.into(),
            attempt: 1,
            ..Default::default()
        };
        apply(&mut run, &changed(5, change));
        assert_eq!(rows(&run, 40).0[0], "growth     READY");
        take_work(&mut run, &now);
        assert_eq!(rows(&run, 40).0[0], "growth     READY", "the progress is of an earlier state");
    }

    #[test]
    fn a_large_plan_shows_what_runs_first_and_text_of_agents_draws_nothing() {
        let mut run = plan();
        run.subtasks.insert(
            0,
            v1::SubtaskStatus { id: "done".to_owned(), state: SubtaskState::Completed.into(), ..Default::default() },
        );
        let (lines, without) = rows(&run, 1);
        assert!(lines[0].starts_with("growth") && without == 2, "{lines:?}");
        run.subtasks[1].cause = "\u{1b}[2J\nowned".to_owned();
        assert!(!rows(&run, 9).0[1].contains(['\u{1b}', '\n']));
    }
}
