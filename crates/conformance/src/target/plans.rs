//! SPEC 9: plans, and the subtasks that agents carry out.

use prost_types::Duration as Span;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio_stream::StreamExt as _;
use tonic::Code;

use super::{
    access::skip_if_open,
    check::{Answer, Checks, Refusal, Verdict, answered, fail, refused, same},
    world::{Actor, CREDIT, World},
};
use baton_client::{
    About, Delivered, SubtaskInputs, completion_of,
    proto::v1::{self, MessageType, PlanState, SubtaskState, TaskStatus, watch_plan_response::Update},
};

cases! {
    "plan.data-flows-to-dependents" "9"
        "A subtask starts when its dependencies have completed. Its context has their results with the number of each response, and the topics that it consumes; then the plan completes."
        data_flows;
    "plan.sequence-and-parallel" "9"
        "SEQUENTIAL runs one subtask after another with all earlier results, PARALLEL all at once without results."
        sequence_and_parallel;
    "plan.each-problem-has-its-code" "9"
        "ValidatePlan names each kind of problem by its code, and a plan without problems has none." each_problem;
    "plan.all-problems-at-once" "9"
        "A plan with several errors is refused with PLAN_INVALID, which names all of them, a cycle in its order; nothing is stored."
        all_problems;
    "plan.lenient-check-warns" "9"
        "With LENIENT a topic without a producer is a warning, and no subtask waits for it." lenient;
    "plan.same-plan-is-one-plan" "9"
        "The same plan in another message is the same plan; another plan, or another submitter, is refused with PLAN_EXISTS."
        same_plan;
    "plan.submission-is-signed" "9"
        "The coordinator's request names the plan, the subtask and the digest of the submission, which the agent of the subtask can read."
        submission_is_signed;
    "plan.failure-skips-and-retry-completes" "9"
        "A failed subtask makes its dependents SKIPPED with the cause and fails the plan; RetryPlan starts what did not complete, and is refused with PLAN_RUNNING meanwhile."
        failure_and_retry;
    "plan.optional-subtask-may-fail" "9"
        "The dependents of an optional subtask that failed run without its result, and the plan completes." optional;
    "plan.late-work-is-taken-back" "9"
        "A subtask that is not done within its timeout is TIMED_OUT: its agent is told to drop the task, and its late result is refused with STALE_EPOCH."
        late_work;
    "plan.cancel-takes-tasks-back" "9"
        "CancelPlan ends all subtasks and takes their tasks back; a second cancel changes nothing, and one of a completed plan is PLAN_FINAL."
        cancel;
    "plan.slots-are-bounded" "9"
        "At most max_concurrency subtasks are handed off or run; the next one starts when a slot is free." slots;
    "plan.exact-numbers" "9"
        "Inputs and results reach the next subtask and ListPlanResults as they were sent: 64-bit integers, 42 and 128 levels."
        exact_numbers;
    "plan.result-is-checked" "9"
        "A result whose well-known keys have other types is refused with FIELD_INVALID, as is one of more than 256 KiB; one of 2 MiB is refused with PAYLOAD_TOO_LARGE. A number that the agent states stands."
        result_is_checked;
    "plan.results-are-entries-of-topics" "9"
        "A result is an entry of each topic that its subtask produces, in the workspace of the plan." entries_of_topics;
    "plan.watch-is-resumed" "9"
        "WatchPlan from a number shows each later entry of the log once and in order, and ends with the plan."
        watch_is_resumed;
    "plan.belongs-to-its-submitter" "9"
        "A stranger gets the same answer for a plan as for an absent one, and the agent of a subtask may read but not cancel."
        belongs_to_its_submitter;
    "plan.coordinator-takes-no-mail" "9"
        "Mail and handoffs to baton.coordinator are refused." coordinator_takes_no_mail;
}

pub(super) const INVALID: Refusal = Refusal(Code::InvalidArgument, "FIELD_INVALID");
pub(super) const PLAN_INVALID: Refusal = Refusal(Code::InvalidArgument, "PLAN_INVALID");
const EXISTS: Refusal = Refusal(Code::AlreadyExists, "PLAN_EXISTS");
const FINAL: Refusal = Refusal(Code::FailedPrecondition, "PLAN_FINAL");

/// A case's submitter, and one agent that carries out its subtasks.
pub(super) struct Cast {
    pub(super) alice: Actor,
    pub(super) bob: Actor,
    pub(super) plan_id: String,
    pub(super) agent_type: String,
    /// Bob's mail that a step has passed over.
    waiting: Mutex<Vec<Delivered>>,
}

impl Cast {
    pub(super) async fn of(world: &World) -> Verdict<Self> {
        let agent_type = world.id("worker");
        let alice = world.agent("alice").await?;
        let bob = world.agent_of("bob", std::slice::from_ref(&agent_type), CREDIT).await?;
        Ok(Self { alice, bob, plan_id: world.id("plan"), agent_type, waiting: Mutex::default() })
    }

    pub(super) fn subtask(&self, id: &str, needs: &[&str]) -> v1::Subtask {
        v1::Subtask {
            id: id.to_owned(),
            agent_type: self.agent_type.clone(),
            dependencies: needs.iter().map(ToString::to_string).collect(),
            ..Default::default()
        }
    }

    pub(super) fn plan(&self, subtasks: Vec<v1::Subtask>) -> v1::Plan {
        v1::Plan { plan_id: self.plan_id.clone(), subtasks, ..Default::default() }
    }

    pub(super) async fn try_submit(&self, by: &Actor, plan: v1::Plan) -> Answer<v1::Receipt> {
        by.say("", &About::default(), &v1::PlanSubmission { plan: Some(plan), ..Default::default() }).await
    }

    pub(super) async fn submit(&self, plan: v1::Plan) -> Verdict {
        let receipt = answered("alice submits the plan", self.try_submit(&self.alice, plan).await)?;
        same("alice submits the plan", "resource", format!("plan:{}", self.plan_id), receipt.resource)
    }

    pub(super) async fn problems(&self, plan: v1::Plan) -> Verdict<Vec<v1::PlanProblem>> {
        let alice = &self.alice;
        answered("alice validates a plan", alice.call(alice.client.validate_plan(plan)).await)
    }

    pub(super) async fn get(&self, by: &Actor) -> Answer<v1::PlanRun> {
        by.call(by.client.plan(&self.plan_id).state()).await
    }

    pub(super) async fn run(&self) -> Verdict<v1::PlanRun> {
        answered("alice reads the plan", self.get(&self.alice).await)
    }

    /// Bob's next mail of this type. Other mail waits for its step.
    pub(super) async fn next(&self, wanted: MessageType) -> Verdict<Delivered> {
        let step = format!("{} waits for a {}", self.bob.id(), wanted.as_str_name());
        let mut waiting = self.waiting.lock().await;
        if let Some(place) = waiting.iter().position(|delivered| delivered.kind() == wanted) {
            return Ok(waiting.remove(place));
        }
        loop {
            let delivered = self.bob.next(&step).await?;
            self.bob.ack(&delivered).await?;
            if delivered.kind() == wanted {
                return Ok(delivered);
            }
            waiting.push(delivered);
        }
    }

    /// Bob takes the next subtask that he is offered.
    pub(super) async fn take(&self) -> Verdict<Taken> {
        let offer = self.next(MessageType::HandoffRequest).await?;
        self.bob.tell("baton.coordinator", &offer.about(), &v1::HandoffAccept::default()).await?;
        let context = self.next(MessageType::TaskContextTransfer).await?;
        let Some(inputs) = context.subtask() else {
            return fail("bob gets the context", "task_description", "plan_id and subtask_id", "none");
        };
        let complete = completion_of(&context.payload());
        let receipt = self.bob.tell("baton.coordinator", &context.about(), &complete).await?;
        Ok(Taken { inputs, context: context.payload(), about: About::task(&receipt.task_id, receipt.epoch) })
    }

    pub(super) async fn report(&self, taken: &Taken, status: TaskStatus, result: &Value) -> Answer<v1::Receipt> {
        let update =
            v1::TaskStatusUpdate { status: status.into(), result_json: result.to_string(), ..Default::default() };
        self.bob.say("", &taken.about, &update).await
    }

    /// Bob takes the next subtask and completes it. Returns what he got.
    pub(super) async fn complete(&self, response: &str) -> Verdict<SubtaskInputs> {
        let taken = self.take().await?;
        self.complete_taken(&taken, response).await?;
        Ok(taken.inputs)
    }

    pub(super) async fn complete_taken(&self, taken: &Taken, response: &str) -> Verdict {
        let reported = self.report(taken, TaskStatus::Completed, &json!({"response": response})).await;
        answered("bob reports a result", reported).map(drop)
    }
}

/// A subtask that bob has taken.
pub(super) struct Taken {
    pub(super) inputs: SubtaskInputs,
    /// The context as the agent got it.
    pub(super) context: v1::TaskContextTransfer,
    pub(super) about: About,
}

pub(super) fn names<T>(map: &std::collections::BTreeMap<String, T>) -> Vec<&str> {
    map.keys().map(String::as_str).collect()
}

async fn data_flows(world: World) -> Verdict {
    let cast = Cast::of(&world).await?;
    let topic = "Financial Data".to_owned();
    let fetch = v1::Subtask {
        produces: vec![topic.clone()],
        description: "获取数据".to_owned(),
        role: "fetcher".to_owned(),
        input_json: json!({"quarter": 3}).to_string(),
        ..cast.subtask("fetch", &[])
    };
    let growth = v1::Subtask { consumes: vec![topic], ..cast.subtask("growth", &[]) };
    cast.submit(cast.plan(vec![fetch, growth, cast.subtask("report", &["growth"])])).await?;
    let first = cast.complete("the data are there").await?;
    let mut checks = Checks::of("the context of the first subtask");
    checks.same("plan_id", cast.plan_id.as_str(), first.plan_id.as_str());
    checks.same("subtask_id", "fetch", first.subtask_id.as_str());
    checks.same("description, role", ("获取数据", "fetcher"), (&*first.description, &*first.role));
    checks.same("attempt", 1, first.attempt);
    checks.same("input", json!({"quarter": 3}), first.input);
    checks.same("previous_results", 0, first.previous_results.len());
    checks.done()?;
    let second = cast.complete("增长率为15.3%").await?;
    let consumed = second.consumed.get("financial_data").cloned().unwrap_or_default();
    same("the context of the second", "consumed", vec!["fetch"], names(&consumed))?;
    let third = cast.complete("done").await?;
    let mut checks = Checks::of("the context of the third");
    checks.same("dependency_results", vec!["growth"], names(&third.dependency_results));
    checks.same("previous_results", vec!["fetch", "growth"], names(&third.previous_results));
    let number = third.previous_results.get("growth").and_then(|result| result.numeric_value);
    checks.same("numeric_value", Some(15.3), number);
    checks.done()?;
    cast.is("after the last result", PlanState::Completed, &[SubtaskState::Completed; 3]).await.map(drop)
}

async fn exact_numbers(world: World) -> Verdict {
    let cast = Cast::of(&world).await?;
    let nested = format!("{}{}", "[".repeat(127), "]".repeat(127));
    let input_json = r#"{"id": 1234567890123456789, "e": 4.20e1}"#.to_owned();
    let next = v1::Subtask { input_json: input_json.clone(), ..cast.subtask("b", &["a"]) };
    cast.submit(cast.plan(vec![cast.subtask("a", &[]), next])).await?;
    let result = format!(r#"{{"response": "x", "id": 1234567890123456789, "n": 42, "none": null, "deep": {nested}}}"#);
    let taken = cast.take().await?;
    let (status, result_json) = (TaskStatus::Completed.into(), result.clone());
    let update = v1::TaskStatusUpdate { status, result_json, ..Default::default() };
    cast.bob.tell("", &taken.about, &update).await?;
    let mut got = cast.take().await?.inputs;
    let mut checks = Checks::of("the context of the second");
    checks.same("input", serde_json::from_str::<Value>(&input_json).ok(), Some(got.input));
    for results in [&mut got.previous_results, &mut got.dependency_results] {
        checks.same("results.a.result", Some(&result), results.remove("a").map(|found| found.result_json).as_ref());
    }
    checks.done()?;
    let results = cast.alice.call(cast.alice.client.plan(&cast.plan_id).results()).await;
    let found = answered("alice lists the results", results)?.remove("a").map(|result| result.result_json);
    same("alice lists the results", "a.result_json", Some(result), found)
}

async fn sequence_and_parallel(world: World) -> Verdict {
    let cast = Cast::of(&world).await?;
    let subtasks = vec![cast.subtask("a", &[]), cast.subtask("b", &[]), cast.subtask("c", &[])];
    let sequence = v1::Plan { mode: v1::PlanMode::Sequential.into(), ..cast.plan(subtasks) };
    cast.submit(sequence).await?;
    for (place, earlier) in [vec![], vec!["a"], vec!["a", "b"]].into_iter().enumerate() {
        cast.count_is("SEQUENTIAL", &[SubtaskState::HandingOff], 1).await?;
        let got = cast.complete(&place.to_string()).await?;
        same("SEQUENTIAL", "previous_results", earlier, names(&got.previous_results))?;
    }
    let world = world.another();
    let cast = Cast::of(&world).await?;
    let subtasks = vec![cast.subtask("a", &[]), cast.subtask("b", &[])];
    cast.submit(v1::Plan { mode: v1::PlanMode::Parallel.into(), ..cast.plan(subtasks) }).await?;
    cast.is("PARALLEL", PlanState::Running, &[SubtaskState::HandingOff; 2]).await?;
    cast.complete("1").await?;
    let second = cast.complete("2").await?;
    let results = second.previous_results.len() + second.dependency_results.len();
    same("PARALLEL", "results in the context", 0, results)
}

async fn each_problem(world: World) -> Verdict {
    let cast = Cast::of(&world).await?;
    let of = |id: &str| cast.subtask(id, &[]);
    let mode = |mode: v1::PlanMode, subtasks| v1::Plan { mode: mode.into(), ..cast.plan(subtasks) };
    let untyped = v1::Subtask { agent_type: String::new(), ..of("a") };
    let topics = |id: &str, produces: &[&str], consumes: &[&str]| v1::Subtask {
        produces: produces.iter().map(ToString::to_string).collect(),
        consumes: consumes.iter().map(ToString::to_string).collect(),
        ..of(id)
    };
    let sequential = v1::PlanMode::Sequential;
    let plans = [
        ("EMPTY", cast.plan(vec![])),
        ("TOO_MANY_SUBTASKS", cast.plan((0..257).map(|number| of(&format!("s{number}"))).collect())),
        ("ID_MISSING", cast.plan(vec![of("")])),
        ("ID_DOUBLED", cast.plan(vec![of("a"), of("a")])),
        ("DEPENDENCY_UNKNOWN", cast.plan(vec![cast.subtask("a", &["nowhere"])])),
        ("DEPENDENCY_ON_ITSELF", cast.plan(vec![cast.subtask("a", &["a"])])),
        ("CYCLE", cast.plan(vec![cast.subtask("a", &["b"]), cast.subtask("b", &["a"])])),
        ("NO_PRODUCER", cast.plan(vec![topics("a", &[], &["t"])])),
        ("CONSUMES_ITSELF", cast.plan(vec![topics("a", &["t"], &["t"])])),
        ("NO_AGENT", cast.plan(vec![untyped])),
        ("ORDER", mode(sequential, vec![cast.subtask("a", &["b"]), of("b")])),
        ("PARALLEL_DEPENDS", mode(v1::PlanMode::Parallel, vec![of("a"), cast.subtask("b", &["a"])])),
        ("FIELD_INVALID", cast.plan(vec![v1::Subtask { attempts_max: 5, ..of("a") }])),
        ("PRODUCED_UNUSED", cast.plan(vec![topics("a", &["t"], &[])])),
        ("", cast.plan(vec![of("a"), cast.subtask("b", &["a"])])),
    ];
    for (code, plan) in plans {
        let problems = cast.problems(plan.clone()).await?;
        let codes: Vec<&str> = problems.iter().map(|problem| problem.code.as_str()).collect();
        let step = format!("a plan with the problem {code:?}");
        let expected = match code {
            "" => vec![],
            // The sequence and the dependency lead in a circle.
            "ORDER" => vec!["ORDER", "CYCLE"],
            code => vec![code],
        };
        same(&step, "codes", expected, codes)?;
        let has_error = problems.iter().any(|problem| problem.severity() == v1::ProblemSeverity::Error);
        if has_error {
            refused(&step, cast.try_submit(&cast.alice, plan).await, PLAN_INVALID)?;
        } else {
            let is_remark = code.is_empty() || problems[0].severity() == v1::ProblemSeverity::Info;
            same(&step, "only a remark", true, is_remark)?;
        }
    }
    Ok(())
}

async fn all_problems(world: World) -> Verdict {
    let cast = Cast::of(&world).await?;
    let untyped = v1::Subtask { agent_type: String::new(), ..cast.subtask("d", &["nowhere"]) };
    let needy = v1::Subtask { consumes: vec!["x".to_owned()], ..cast.subtask("e", &[]) };
    let plan = cast.plan(vec![cast.subtask("a", &["b"]), cast.subtask("b", &["a"]), untyped, needy]);
    let problems = cast.problems(plan.clone()).await?;
    let cycle = problems.iter().find(|problem| problem.code == "CYCLE").cloned().unwrap_or_default();
    let mut checks = Checks::of("the problems of the plan");
    checks.holds("cycle", cycle.subtask_ids.len() >= 2, "the subtasks in their order", &cycle.subtask_ids);
    let topic = problems.iter().find(|problem| problem.code == "NO_PRODUCER").cloned().unwrap_or_default();
    checks.same("message", "Topic 'x' consumed by [e] but no producer", topic.message.as_str());
    checks.done()?;
    let refusal = refused("alice submits it", cast.try_submit(&cast.alice, plan).await, PLAN_INVALID)?;
    let mut checks = Checks::of("the refusal of the plan");
    for code in ["CYCLE", "DEPENDENCY_UNKNOWN", "NO_AGENT", "NO_PRODUCER"] {
        let is_named = refusal.violations.iter().any(|(_, problem)| problem.starts_with(code));
        checks.holds(code, is_named, "in the BadRequest", &refusal.violations);
    }
    let absent = Refusal(Code::NotFound, "PLAN_UNKNOWN");
    checks.refused_as_absent("the plan", cast.get(&cast.alice).await, absent);
    checks.done()
}

async fn lenient(world: World) -> Verdict {
    let cast = Cast::of(&world).await?;
    let needy = v1::Subtask { consumes: vec!["x".to_owned()], ..cast.subtask("a", &[]) };
    let check = v1::DataFlowCheck::Lenient.into();
    let plan = v1::Plan { data_flow_check: check, ..cast.plan(vec![needy]) };
    let problems = cast.problems(plan.clone()).await?;
    let seen: Vec<_> = problems.iter().map(|problem| (problem.code.as_str(), problem.severity())).collect();
    same("alice validates it", "problems", vec![("NO_PRODUCER", v1::ProblemSeverity::Warning)], seen)?;
    cast.submit(plan).await?;
    cast.complete("").await?;
    cast.is("after the result", PlanState::Completed, &[SubtaskState::Completed]).await.map(drop)
}

async fn same_plan(world: World) -> Verdict {
    let cast = Cast::of(&world).await?;
    let plan = cast.plan(vec![cast.subtask("a", &[])]);
    cast.submit(plan.clone()).await?;
    cast.submit(plan.clone()).await?;
    let other = cast.plan(vec![cast.subtask("b", &[])]);
    let mut checks = Checks::of("a plan with a known id");
    checks.refused("another plan", cast.try_submit(&cast.alice, other).await, EXISTS);
    checks.refused("another submitter", cast.try_submit(&cast.bob, plan).await, EXISTS);
    checks.done()?;
    cast.complete("").await?;
    let attempts: Vec<u32> = cast.run().await?.subtasks.iter().map(|subtask| subtask.attempts).collect();
    same("after the result", "attempts", vec![1], attempts)
}

async fn submission_is_signed(world: World) -> Verdict {
    let cast = Cast::of(&world).await?;
    cast.submit(cast.plan(vec![cast.subtask("a", &[])])).await?;
    let offer = cast.next(MessageType::HandoffRequest).await?;
    let request: v1::HandoffRequest = offer.payload();
    let behalf = request.on_behalf_of.clone().unwrap_or_default();
    let run = cast.run().await?;
    let mut checks = Checks::of("the coordinator's request");
    checks.same("sender_id", "baton.coordinator", offer.envelope.sender_id.as_str());
    checks.same("mode", v1::HandoffMode::Delegate, request.mode());
    checks.holds("loan_timeout", request.loan_timeout.is_some(), "the subtask's timeout", request.loan_timeout);
    checks.same("submitter_id", cast.alice.id(), behalf.submitter_id.as_str());
    checks.same("plan_id, subtask_id", (&*cast.plan_id, "a"), (&*behalf.plan_id, &*behalf.subtask_id));
    checks.same("submission_sha256", &run.submission_sha256, &behalf.submission_sha256);
    checks.done()?;
    cast.bob.tell("baton.coordinator", &offer.about(), &v1::HandoffAccept::default()).await?;
    let context = cast.next(MessageType::TaskContextTransfer).await?;
    cast.bob.tell("baton.coordinator", &context.about(), &completion_of(&context.payload())).await?;
    let get = v1::GetPlanRequest { plan_id: cast.plan_id.clone(), include_submission: true, ..Default::default() };
    let bob = &cast.bob;
    let got = bob.call(async { bob.client.answer(bob.client.plans().get_plan(get).await) }).await;
    let submission = answered("bob reads the submission", got)?.submission;
    let trust = baton_client::Trust::default();
    let now = baton_client::time::Clock::now(&baton_client::time::SystemClock);
    let verified = bob.call(bob.client.verified(submission, &trust, now)).await;
    let envelope = answered("bob verifies the submission", verified)?;
    same("bob verifies the submission", "sender_id", cast.alice.id(), envelope.sender_id.as_str())
}

async fn failure_and_retry(world: World) -> Verdict {
    let cast = Cast::of(&world).await?;
    cast.submit(cast.plan(vec![cast.subtask("a", &[]), cast.subtask("b", &["a"]), cast.subtask("c", &["b"])])).await?;
    cast.complete("1").await?;
    let taken = cast.take().await?;
    let failed = cast.report(&taken, TaskStatus::Failed, &json!({"response": "no data"})).await;
    answered("bob reports a failure", failed)?;
    let states = [SubtaskState::Completed, SubtaskState::Failed, SubtaskState::Skipped];
    let run = cast.is("after the failure", PlanState::Failed, &states).await?;
    let mut checks = Checks::of("after the failure");
    checks.same("b.cause", "no data", run.subtasks[1].cause.as_str());
    checks.same("b.error_code", v1::ErrorCode::SubtaskFailed, run.subtasks[1].error_code());
    checks.same("c.error_code", v1::ErrorCode::DependencyFailed, run.subtasks[2].error_code());
    checks.holds("c.cause", run.subtasks[2].cause.contains("b is FAILED"), "b is FAILED", &run.subtasks[2].cause);
    checks.done()?;
    let plan = cast.alice.client.plan(&cast.plan_id);
    let retried = answered("alice retries the plan", cast.alice.call(plan.retry()).await)?;
    same("alice retries the plan", "round", 2, retried.round)?;
    let running = Refusal(Code::FailedPrecondition, "PLAN_RUNNING");
    refused("alice retries it again", cast.alice.call(plan.retry()).await, running)?;
    cast.complete("2").await?;
    let last = cast.complete("3").await?;
    let number = last.previous_results.get("a").and_then(|result| result.numeric_value);
    same("the context of the last subtask", "the number of a", Some(1.0), number)?;
    cast.is("after the last result", PlanState::Completed, &[SubtaskState::Completed; 3]).await?;
    refused("alice retries the completed plan", cast.alice.call(plan.retry()).await, FINAL).map(drop)
}

async fn optional(world: World) -> Verdict {
    let cast = Cast::of(&world).await?;
    let first = v1::Subtask { optional: true, ..cast.subtask("a", &[]) };
    cast.submit(cast.plan(vec![first, cast.subtask("b", &["a"])])).await?;
    let taken = cast.take().await?;
    answered("bob reports a failure", cast.report(&taken, TaskStatus::Failed, &json!({})).await)?;
    let second = cast.complete("2").await?;
    same("the context of the second", "dependency_results", 0, second.dependency_results.len())?;
    let states = [SubtaskState::Failed, SubtaskState::Completed];
    cast.is("after the result", PlanState::Completed, &states).await.map(drop)
}

async fn late_work(world: World) -> Verdict {
    let cast = Cast::of(&world).await?;
    let timeout = Some(Span { seconds: 1, nanos: 0 });
    cast.submit(cast.plan(vec![v1::Subtask { timeout, ..cast.subtask("a", &[]) }])).await?;
    let taken = cast.take().await?;
    let told: v1::ErrorNotification = cast.next(MessageType::ErrorNotification).await?.payload();
    let mut checks = Checks::of("bob is told");
    checks.same("error_code", v1::ErrorCode::TaskRecalled, told.error_code());
    checks.same("next_step", v1::NextStep::DropTask, told.next_step());
    let late = cast.report(&taken, TaskStatus::Completed, &json!({"response": "1"})).await;
    checks.refused("bob's late result", late, Refusal(Code::FailedPrecondition, "STALE_EPOCH"));
    checks.done()?;
    cast.is("after the timeout", PlanState::Failed, &[SubtaskState::TimedOut]).await.map(drop)
}

async fn cancel(world: World) -> Verdict {
    let cast = Cast::of(&world).await?;
    cast.submit(cast.plan(vec![cast.subtask("a", &[]), cast.subtask("b", &["a"])])).await?;
    let taken = cast.take().await?;
    let plan = cast.alice.client.plan(&cast.plan_id);
    answered("alice cancels the plan", cast.alice.call(plan.cancel("no longer needed")).await)?;
    let run = cast.is("after the cancel", PlanState::Cancelled, &[SubtaskState::Cancelled; 2]).await?;
    same("after the cancel", "reason", "no longer needed", run.reason.as_str())?;
    let told: v1::ErrorNotification = cast.next(MessageType::ErrorNotification).await?.payload();
    same("bob is told", "next_step", v1::NextStep::DropTask, told.next_step())?;
    let late = cast.report(&taken, TaskStatus::Completed, &json!({"response": "1"})).await;
    let mut checks = Checks::of("after the cancel");
    checks.holds("bob's report", late.is_err(), "refused", &late);
    let again = answered("alice cancels it again", cast.alice.call(plan.cancel("")).await)?;
    checks.same("log_length", run.log_length, again.log_length);
    checks.done()?;

    let world = world.another();
    let cast = Cast::of(&world).await?;
    cast.submit(cast.plan(vec![cast.subtask("a", &[])])).await?;
    cast.complete("").await?;
    let plan = cast.alice.client.plan(&cast.plan_id);
    refused("alice cancels a completed plan", cast.alice.call(plan.cancel("")).await, FINAL).map(drop)
}

async fn slots(world: World) -> Verdict {
    let cast = Cast::of(&world).await?;
    let subtasks = (0..4).map(|number| cast.subtask(&format!("s{number}"), &[])).collect();
    cast.submit(v1::Plan { max_concurrency: 2, ..cast.plan(subtasks) }).await?;
    for done in 0..4 {
        let active = [SubtaskState::HandingOff, SubtaskState::Running];
        cast.count_is(&format!("after {done} results"), &active, (4 - done).min(2)).await?;
        cast.complete("").await?;
    }
    cast.is("after the last result", PlanState::Completed, &[SubtaskState::Completed; 4]).await.map(drop)
}

async fn result_is_checked(world: World) -> Verdict {
    let cast = Cast::of(&world).await?;
    cast.submit(cast.plan(vec![cast.subtask("a", &[])])).await?;
    let taken = cast.take().await?;
    let mut checks = Checks::of("a result that is refused");
    let wrong = json!({"response": 7, "tokens": -1, "success": "yes", "tools_used": [1], "numeric_value": "1"});
    checks.refused("wrong types", cast.report(&taken, TaskStatus::Completed, &wrong).await, INVALID);
    let large = json!({"response": "x".repeat(300 * 1024)});
    checks.refused("300 KiB", cast.report(&taken, TaskStatus::Completed, &large).await, INVALID);
    let huge = json!({"response": "x".repeat(2 * 1024 * 1024)});
    let too_large = Refusal(Code::InvalidArgument, "PAYLOAD_TOO_LARGE");
    checks.refused("2 MiB", cast.report(&taken, TaskStatus::Completed, &huge).await, too_large);
    checks.done()?;
    cast.is("after them", PlanState::Running, &[SubtaskState::Running]).await?;
    let stated = json!({"response": "5 of 7", "numeric_value": 5.5, "tokens": 12, "tools_used": ["sql"]});
    answered("bob reports a result", cast.report(&taken, TaskStatus::Completed, &stated).await)?;
    let results = cast.alice.call(cast.alice.client.plan(&cast.plan_id).results()).await;
    let result = answered("alice reads the results", results)?.remove("a").unwrap_or_default();
    let mut checks = Checks::of("alice reads the results");
    checks.same("numeric_value", Some(5.5), result.numeric_value);
    checks.same("response, tokens", ("5 of 7", 12), (&*result.response, result.tokens));
    checks.same("success, tools_used", (true, vec!["sql".to_owned()]), (result.success, result.tools_used));
    checks.done()
}

async fn entries_of_topics(world: World) -> Verdict {
    let cast = Cast::of(&world).await?;
    let produces = vec!["growth".to_owned(), "Report Data".to_owned()];
    cast.submit(cast.plan(vec![v1::Subtask { produces, ..cast.subtask("a", &[]) }])).await?;
    cast.complete("15.3%").await?;
    let workspace_id = format!("plan:{}", cast.plan_id);
    let request = v1::ListEntriesRequest { workspace_id, ..Default::default() };
    let alice = &cast.alice;
    let listed = alice.call(async { alice.client.answer(alice.client.workspaces().list_entries(request).await) }).await;
    let entries = answered("alice lists the entries", listed)?.entries;
    let mut checks = Checks::of("alice lists the entries");
    let topics: Vec<&str> = entries.iter().map(|entry| entry.topic.as_str()).collect();
    checks.same("topics", vec!["growth", "report_data"], topics);
    for entry in &entries {
        checks.same("author_id", "baton.coordinator", entry.author_id.as_str());
        let text = match &entry.entry {
            Some(v1::workspace_entry::Entry::Json(text)) => text.as_str(),
            Some(_) | None => "",
        };
        let json: Value = serde_json::from_str(text).unwrap_or_default();
        checks.same("entry", (&json!("a"), &json!(15.3)), (&json["subtask_id"], &json["numeric_value"]));
    }
    checks.done()
}

async fn watch_is_resumed(world: World) -> Verdict {
    let cast = Cast::of(&world).await?;
    cast.submit(cast.plan(vec![cast.subtask("a", &[]), cast.subtask("b", &["a"])])).await?;
    cast.complete("1").await?;
    let watch = v1::WatchPlanRequest { plan_id: cast.plan_id.clone(), after_number: 2 };
    let alice = &cast.alice;
    let opened = alice.call(async { alice.client.answer(alice.client.plans().watch_plan(watch).await) }).await;
    let mut updates = answered("alice watches after entry 2", opened)?;
    cast.complete("2").await?;
    let (mut numbers, mut caught_up) = (Vec::new(), 0);
    loop {
        let update = alice.call(async { Ok(updates.next().await) }).await;
        match answered("alice waits for an update", update)? {
            Some(Ok(v1::WatchPlanResponse { update: Some(Update::Entry(entry)) })) => numbers.push(entry.number),
            Some(Ok(v1::WatchPlanResponse { update: Some(Update::CaughtUp(_)) })) => caught_up += 1,
            None => break,
            other => return fail("alice waits for an update", "update", "an entry", format!("{other:?}")),
        }
    }
    let length = cast.run().await?.log_length;
    let mut checks = Checks::of("alice watches after entry 2");
    checks.same("numbers", (3..=length).collect(), numbers);
    checks.same("caught_up", 1, caught_up);
    checks.done()
}

async fn belongs_to_its_submitter(world: World) -> Verdict {
    skip_if_open(&world).await?;
    let cast = Cast::of(&world).await?;
    cast.submit(cast.plan(vec![cast.subtask("a", &[])])).await?;
    let stranger = world.agent("stranger").await?;
    let absent = Refusal(Code::NotFound, "PLAN_UNKNOWN");
    let mut checks = Checks::of("the reads of a stranger");
    let unknown = stranger.call(stranger.client.plan(&world.id("none")).state()).await;
    checks.refused_as_absent("an absent plan", unknown, absent);
    checks.refused_as_absent("alice's plan", cast.get(&stranger).await, absent);
    checks.done()?;
    cast.take().await?;
    answered("bob reads the plan of his subtask", cast.get(&cast.bob).await)?;
    let cancelled = cast.bob.call(cast.bob.client.plan(&cast.plan_id).cancel("")).await;
    refused("bob cancels the plan", cancelled, Refusal(Code::PermissionDenied, "PERMISSION_DENIED")).map(drop)
}

async fn coordinator_takes_no_mail(world: World) -> Verdict {
    let alice = world.agent("alice").await?;
    let invalid = Refusal(Code::InvalidArgument, "RECEIVER_INVALID");
    let mut checks = Checks::of("messages to the coordinator");
    let mail = v1::Info { text: "hello".to_owned(), ..Default::default() };
    checks.refused("mail", alice.say("baton.coordinator", &About::default(), &mail).await, invalid);
    let about = About::task(&world.id("task"), 1);
    let request = v1::HandoffRequest { task_type: "support".to_owned(), ..Default::default() };
    checks.refused("a handoff", alice.say("baton.coordinator", &about, &request).await, invalid);
    checks.done()
}
