//! Plans: subtasks that agents carry out, with what each gets; restarts, refusals, workspaces, and custody logs.

use std::{collections::HashMap, sync::Arc, time::Duration};

use baton_broker_core::{
    Retention, Settings,
    access::Caller,
    blobs::BlobPlace,
    codes::{ErrorCode, Refusal as _},
    domain::{
        EntityId, Input,
        plan::{self, PlanState},
        workspace::Limits,
    },
    engine::{Command, NewBlob},
    envelope::digest_of,
    ids::{AgentId, PlanId, WorkspaceId},
    policy::{Policies, Source},
    proto::v1::{self, plan_entry::Event},
    queries::TaskFilter,
    store::Table,
};
use prost::Message as _;
use serde_json::{Value, json};

use crate::world::{Refusal, Session, World, assert_refused, caller_of, operator};

const DAY: Duration = Duration::from_secs(24 * 3600);

pub(crate) fn subtask(id: &str, needs: &[&str]) -> v1::Subtask {
    v1::Subtask {
        id: id.to_owned(),
        description: format!("子任务 {id}"),
        role: "analyst".to_owned(),
        agent_type: "worker".to_owned(),
        dependencies: needs.iter().map(ToString::to_string).collect(),
        timeout: Some(prost_types::Duration { seconds: 100, nanos: 0 }),
        ..Default::default()
    }
}

pub(crate) fn plan_of(subtasks: Vec<v1::Subtask>) -> v1::Plan {
    v1::Plan { plan_id: "q3".to_owned(), description: "季度报告".to_owned(), subtasks, ..Default::default() }
}

/// The report: a fetch, two calculations at once, a synthesis.
fn report() -> v1::Plan {
    plan_of(vec![
        v1::Subtask { produces: vec!["Financial Data".to_owned()], ..subtask("fetch", &[]) },
        subtask("growth", &["fetch"]),
        v1::Subtask { consumes: vec!["financial_data".to_owned()], ..subtask("margin", &[]) },
        subtask("synthesis", &["growth", "margin"]),
    ])
}

pub(crate) fn agent(name: &str) -> Caller {
    Caller::Agent(AgentId::parse(name).unwrap())
}

pub(crate) fn id() -> PlanId {
    PlanId::parse("q3").unwrap()
}

/// Agents of a plan: their sessions, and the requests that they have got.
pub(crate) struct Workers {
    pub(crate) sessions: HashMap<String, Session>,
    /// By subtask: the agent, the request, and then the context.
    pub(crate) offers: HashMap<String, (String, v1::Envelope)>,
    pub(crate) contexts: HashMap<String, v1::TaskContextTransfer>,
}

impl World {
    pub(crate) fn submit(&mut self, plan: v1::Plan) -> Result<v1::Receipt, Refusal> {
        let payload = v1::PlanSubmission { plan: Some(plan), ..Default::default() };
        self.send(self.envelope("alice", "", v1::MessageType::PlanSubmission, &payload))
    }

    pub(crate) fn change_plan(&mut self, input: plan::Input) -> Result<bool, Refusal> {
        let input = Box::new(Input::Plan(input));
        self.ask(|reply| Command::Apply { about: EntityId::Plan(id()), caller: caller_of(&input), input, reply })
    }

    pub(crate) fn plan(&self) -> v1::PlanRun {
        let caller = operator();
        let (plan, spec) = self.view(&caller).plan(&id()).expect("the plan is known");
        baton_broker_core::records::plan_run_to_v1(&plan, Some(&spec))
    }

    pub(crate) fn states(&self) -> String {
        let names = self.plan().subtasks.into_iter().map(|subtask| {
            let state = subtask.state().as_str_name().trim_start_matches("SUBTASK_STATE_").to_owned();
            format!("{}={state}", subtask.id)
        });
        names.collect::<Vec<_>>().join(" ")
    }

    /// The task of the latest attempt of a subtask.
    pub(crate) fn task_of(&self, subtask: &str) -> String {
        let of_plan = self.plan().subtasks.into_iter();
        of_plan.filter(|status| status.id == subtask).map(|status| status.task_id).next().expect("it was attempted")
    }

    pub(crate) fn plan_log(&self) -> Vec<v1::PlanEntry> {
        let caller = operator();
        let page = self.view(&caller).plan_log(&id(), 0, 1000).unwrap();
        assert!(page.entries.iter().map(|entry| entry.number).eq(1..=page.length));
        page.entries
    }

    pub(crate) fn results(&self) -> HashMap<String, v1::SubtaskResult> {
        let caller = operator();
        let (results, next) = self.view(&caller).plan_results(&id(), 0, 256).unwrap();
        assert_eq!(next, None);
        results.into_iter().map(|result| (result.subtask_id.clone(), result)).collect()
    }

    pub(crate) fn workers(&mut self, names: &[&str]) -> Workers {
        let sessions = names.iter().map(|name| ((*name).to_owned(), self.connect(name))).collect();
        Workers { sessions, offers: HashMap::new(), contexts: HashMap::new() }
    }
}

impl Workers {
    /// Acks all mail, and keeps the requests and the contexts.
    pub(crate) fn fetch(&mut self, world: &mut World) {
        let mut names: Vec<String> = self.sessions.keys().cloned().collect();
        names.sort();
        for name in names {
            loop {
                let mail = self.sessions.get_mut(&name).unwrap().deliveries();
                if mail.is_empty() {
                    break;
                }
                for (delivery, envelope) in mail {
                    world.ack(&self.sessions[&name], &delivery);
                    let payload = envelope.payload.as_ref().unwrap().value.clone();
                    match envelope.message_type() {
                        v1::MessageType::HandoffRequest => {
                            let request = v1::HandoffRequest::decode(payload).unwrap();
                            let subtask = request.on_behalf_of.unwrap().subtask_id;
                            self.offers.insert(subtask, (name.clone(), envelope));
                        }
                        v1::MessageType::TaskContextTransfer => {
                            let context = v1::TaskContextTransfer::decode(payload).unwrap();
                            let of =
                                self.offers.iter().find(|(_, (_, offer))| offer.message_id == envelope.correlation_id);
                            self.contexts.insert(of.unwrap().0.clone(), context);
                        }
                        _ => {}
                    }
                }
            }
        }
    }

    pub(crate) fn about<M: prost::Message + prost::Name>(
        &self,
        world: &World,
        subtask: &str,
        kind: v1::MessageType,
        payload: &M,
    ) -> v1::Envelope {
        let (name, offer) = &self.offers[subtask];
        v1::Envelope {
            correlation_id: offer.message_id.clone(),
            task_id: offer.task_id.clone(),
            epoch: offer.epoch,
            ..world.envelope(name, "baton.coordinator", kind, payload)
        }
    }

    /// The agent that was asked takes the subtask. Returns its context.
    pub(crate) fn take(&mut self, world: &mut World, subtask: &str) -> v1::TaskContextTransfer {
        self.fetch(world);
        let accept = self.about(world, subtask, v1::MessageType::HandoffAccept, &v1::HandoffAccept::default());
        world.send(accept).unwrap();
        self.fetch(world);
        let context = self.contexts[subtask].clone();
        let complete = v1::HandoffComplete {
            outcome: v1::HandoffOutcome::Success.into(),
            context_digest: digest_of(&context.sections).to_vec().into(),
            ..Default::default()
        };
        let complete = self.about(world, subtask, v1::MessageType::HandoffComplete, &complete);
        world.send(complete).unwrap();
        context
    }

    pub(crate) fn reject(&mut self, world: &mut World, subtask: &str) {
        self.fetch(world);
        let reject = self.about(world, subtask, v1::MessageType::HandoffReject, &v1::HandoffReject::default());
        world.send(reject).unwrap();
    }

    pub(crate) fn report(
        &mut self,
        world: &mut World,
        subtask: &str,
        status: v1::TaskStatus,
        result: &Value,
    ) -> Result<v1::Receipt, Refusal> {
        self.report_text(world, subtask, status, &result.to_string())
    }

    pub(crate) fn report_text(
        &mut self,
        world: &mut World,
        subtask: &str,
        status: v1::TaskStatus,
        result: &str,
    ) -> Result<v1::Receipt, Refusal> {
        let result_json = result.to_owned();
        let payload = v1::TaskStatusUpdate { status: status.into(), result_json, ..Default::default() };
        let report = self.about(world, subtask, v1::MessageType::TaskStatusUpdate, &payload);
        let epoch = report.epoch + 1;
        world.send(v1::Envelope { epoch, correlation_id: String::new(), receiver_id: String::new(), ..report })
    }

    pub(crate) fn complete(&mut self, world: &mut World, subtask: &str, response: &str) {
        self.take(world, subtask);
        self.report(world, subtask, v1::TaskStatus::Completed, &json!({"response": response})).unwrap();
    }
}

pub(crate) fn section(context: &v1::TaskContextTransfer, name: &str) -> Value {
    let section = context.sections.iter().find(|section| section.name == name).expect("the section is there");
    let Some(v1::context_section::Content::Json(json)) = &section.content else { panic!("no JSON") };
    serde_json::from_str(json).unwrap()
}

#[test]
fn the_report_completes_with_its_numbers_over_restarts() {
    let mut world = World::with(&["alice", "bob:worker", "carol:worker"]);
    let receipt = world.submit(report()).unwrap();
    assert_eq!((receipt.resource.as_str(), receipt.task_id.as_str()), ("plan:q3", ""));
    let mut workers = world.workers(&["bob", "carol"]);
    let context = workers.take(&mut world, "fetch");
    let description = section(&context, "task_description");
    assert_eq!(
        [&description["role"], &description["task_id"], &description["plan_id"], &description["attempt"]],
        [&json!("analyst"), &json!(world.task_of("fetch")), &json!("q3"), &json!(1)]
    );
    world.restart();
    let mut workers = Workers { sessions: world.workers(&["bob", "carol"]).sessions, ..workers };
    workers.report(&mut world, "fetch", v1::TaskStatus::Completed, &json!({"response": "数据已获取"})).unwrap();
    assert_eq!(world.states(), "fetch=COMPLETED growth=HANDING_OFF margin=HANDING_OFF synthesis=PENDING");
    world.restart();
    let mut workers = Workers { sessions: world.workers(&["bob", "carol"]).sessions, ..workers };
    workers.complete(&mut world, "growth", "增长率为15.3％");
    let margin = workers.take(&mut world, "margin");
    assert_eq!(section(&margin, "consumed")["financial_data"]["fetch"]["response"], "数据已获取");
    let result = json!({"response": "利润率为 7.2%", "tokens": 12, "tools_used": ["sql"]});
    workers.report(&mut world, "margin", v1::TaskStatus::Completed, &result).unwrap();
    let synthesis = workers.take(&mut world, "synthesis");
    let direct = section(&synthesis, "dependency_results");
    assert_eq!((&direct["growth"]["numeric_value"], &direct["margin"]["numeric_value"]), (&json!(15.3), &json!(7.2)));
    let previous = section(&synthesis, "previous_results");
    assert_eq!(previous.as_object().unwrap().keys().collect::<Vec<_>>(), ["fetch", "growth", "margin"]);
    workers.report(&mut world, "synthesis", v1::TaskStatus::Completed, &json!({"response": "完成"})).unwrap();
    assert_eq!(world.plan().state(), v1::PlanState::Completed);
    let results = world.results();
    assert_eq!((results["growth"].numeric_value, results["margin"].numeric_value), (Some(15.3), Some(7.2)));
    assert_eq!((results["margin"].tokens, &results["margin"].tools_used[..]), (12, &["sql".to_owned()][..]));
    for task in ["fetch", "growth", "margin", "synthesis"].map(|subtask| world.task_of(subtask)) {
        let record = world.task(&task);
        assert!(record.task.status.is_final() && record.task.owner.is_coordinator(), "{task}");
        world.audit(&task);
    }
}

#[test]
fn results_are_entries_of_the_workspace_of_the_plan() {
    let mut world = World::with(&["alice", "bob:worker"]);
    world.submit(report()).unwrap();
    let mut workers = world.workers(&["bob"]);
    workers.complete(&mut world, "fetch", "42");
    let query = baton_broker_core::queries::EntryQuery {
        workspace: WorkspaceId::parse("plan:q3").unwrap(),
        topics: Vec::new(),
        after: 0,
        limit: 10,
        envelopes: false,
    };
    for caller in [agent("alice"), agent("bob")] {
        let page = world.view(&caller).workspace_entries(&query).unwrap();
        let [entry] = &page.entries[..] else { panic!("{:?}", page.entries) };
        assert_eq!((entry.topic.as_str(), entry.author_id.as_str()), ("financial_data", "baton.coordinator"));
        let Some(v1::workspace_entry::Entry::Json(json)) = entry.entry.as_ref() else { panic!("no JSON") };
        let json: Value = serde_json::from_str(json).unwrap();
        assert_eq!((&json["subtask_id"], &json["numeric_value"]), (&json!("fetch"), &json!(42)));
    }
}

#[test]
fn a_result_that_finds_no_room_in_the_workspace_is_kept_by_the_plan() {
    let workspace = Limits { entries_max: 1, ..Limits::default() };
    let mut world = World::with_settings(&["alice", "bob:worker"], Settings { workspace, ..Settings::default() });
    let topics = |id: &str| v1::Subtask { produces: vec!["t".to_owned()], ..subtask(id, &[]) };
    world.submit(plan_of(vec![topics("a"), topics("b")])).unwrap();
    let mut workers = world.workers(&["bob"]);
    workers.complete(&mut world, "a", "1");
    workers.complete(&mut world, "b", "2");
    assert_eq!(world.plan().state(), v1::PlanState::Completed);
    assert_eq!(world.results()["b"].numeric_value, Some(2.0));
    let is_left_out =
        |entry: &v1::PlanEntry| matches!(&entry.event, Some(Event::NotAppended(not)) if not.subtask_id == "b");
    assert!(world.plan_log().iter().any(is_left_out), "{:#?}", world.plan_log());
}

#[test]
fn a_result_over_the_size_of_an_entry_is_kept_by_the_plan_and_delays_no_other() {
    let mut world = World::with(&["alice", "bob:worker"]);
    let topics = |id: &str| v1::Subtask { produces: vec!["t".to_owned()], ..subtask(id, &[]) };
    world.submit(plan_of(vec![topics("a"), topics("b")])).unwrap();
    let mut workers = world.workers(&["bob"]);
    workers.take(&mut world, "a");
    // The entry has the list twice, and once more as the text of the response, in which each backslash is four.
    let result = json!({"tools_used": ["\\".repeat(131_062)]});
    workers.report(&mut world, "a", v1::TaskStatus::Completed, &result).unwrap();
    workers.complete(&mut world, "b", "2");
    assert_eq!(world.plan().state(), v1::PlanState::Completed);
    assert_eq!(world.results()["a"].result_json, result.to_string());
    let is_left_out = |entry: &v1::PlanEntry| {
        let Some(Event::NotAppended(not)) = &entry.event else { return false };
        not.subtask_id == "a" && not.error_code() == v1::ErrorCode::EntryTooLarge
    };
    assert!(world.plan_log().iter().any(is_left_out));
}

#[test]
fn a_failed_calculation_skips_the_synthesis_until_a_retry() {
    let mut world = World::with(&["alice", "bob:worker"]);
    let mut alice = world.connect("alice");
    world.submit(report()).unwrap();
    let mut workers = world.workers(&["bob"]);
    workers.complete(&mut world, "fetch", "");
    workers.complete(&mut world, "growth", "15.3");
    workers.take(&mut world, "margin");
    workers.report(&mut world, "margin", v1::TaskStatus::Failed, &json!({"response": "缺少数据"})).unwrap();
    assert_eq!(world.states(), "fetch=COMPLETED growth=COMPLETED margin=FAILED synthesis=SKIPPED");
    let first = world.task_of("margin");
    assert_eq!(world.plan().subtasks[3].cause, "margin is FAILED: 缺少数据");
    let (_, notice) = alice.delivery();
    let notice = v1::ErrorNotification::decode(notice.payload.unwrap().value).unwrap();
    assert_eq!((notice.error_code(), notice.severity()), (v1::ErrorCode::PlanFailed, v1::Severity::Critical));
    world.restart();
    assert!(world.change_plan(plan::Input::Retry { by: "alice".to_owned() }).unwrap());
    let refused = world.change_plan(plan::Input::Retry { by: "alice".to_owned() });
    assert_refused(refused, ErrorCode::PlanRunning);
    let mut workers = world.workers(&["bob"]);
    workers.complete(&mut world, "margin", "7.2");
    workers.complete(&mut world, "synthesis", "");
    assert_eq!(world.plan().state(), v1::PlanState::Completed);
    assert_eq!(world.results()["growth"].numeric_value, Some(15.3), "what completed keeps its result");
    world.audit(&first);
    world.audit(&world.task_of("margin"));
}

#[test]
fn a_subtask_that_is_late_is_taken_back_and_its_result_is_refused() {
    let mut world = World::with(&["alice", "bob:worker"]);
    world.submit(plan_of(vec![subtask("a", &[]), subtask("b", &["a"])])).unwrap();
    let mut workers = world.workers(&["bob"]);
    workers.take(&mut world, "a");
    world.pass(Duration::from_secs(101));
    assert_eq!(world.states(), "a=TIMED_OUT b=SKIPPED");
    let late = workers.report(&mut world, "a", v1::TaskStatus::Completed, &json!({"response": "1"}));
    assert_refused(late, ErrorCode::StaleEpoch);
    assert!(world.results().is_empty());
    world.audit(&world.task_of("a"));
}

#[test]
fn another_attempt_asks_another_agent() {
    let mut world = World::with(&["alice", "bob:worker", "carol:worker"]);
    world.submit(plan_of(vec![v1::Subtask { attempts_max: 2, ..subtask("a", &[]) }])).unwrap();
    let mut workers = world.workers(&["bob", "carol"]);
    workers.take(&mut world, "a");
    let first = workers.offers["a"].0.clone();
    workers.report(&mut world, "a", v1::TaskStatus::Failed, &json!({})).unwrap();
    assert_eq!(world.states(), "a=READY");
    world.restart();
    let mut workers = Workers { sessions: world.workers(&["bob", "carol"]).sessions, ..workers };
    world.pass(Duration::from_secs(2));
    workers.complete(&mut world, "a", "1");
    assert_ne!(workers.offers["a"].0, first);
    assert_eq!(world.plan().state(), v1::PlanState::Completed);
    world.audit(&world.task_of("a"));
}

/// Tasks of other agents with any name do not touch the plan, and no agent creates a task with the id of one of the plan.
#[test]
fn a_foreign_task_of_any_name_leaves_a_plan_alone() {
    let mut world = World::with(&["alice", "bob:worker", "mallory", "trent"]);
    let of_mallory = |world: &mut World, task: &str| {
        let request = world.request("mallory", "trent", 1);
        world.send(v1::Envelope { task_id: task.to_owned(), ..request })
    };
    of_mallory(&mut world, "q3.a").unwrap();
    world.submit(plan_of(vec![v1::Subtask { attempts_max: 2, ..subtask("a", &[]) }, subtask("b", &["a"])])).unwrap();
    let mut workers = world.workers(&["bob"]);
    workers.take(&mut world, "a");
    let first = world.task_of("a");
    // The worker knows the submission, so it knows the ids of all further tasks.
    for name in ["q3.b", "q3.a.r2", "q3.b.r2"] {
        of_mallory(&mut world, name).unwrap();
    }
    let ids = [first.replace(".a", ".b"), first.replace(".a", "-2.a"), first.clone(), "baton.x".to_owned()];
    for id in &ids {
        let code = if *id == first { ErrorCode::NotOwner } else { ErrorCode::FieldInvalid };
        assert_refused(of_mallory(&mut world, id), code);
        let (payload, kind) = (v1::TaskRequest::default(), v1::MessageType::TaskRequest);
        let handoff = Some(v1::HandoffRequest { task_type: "support".into(), ..Default::default() });
        let payload = v1::TaskRequest { handoff, award_rule: v1::AwardRule::Soonest.into(), ..payload };
        let mandate = world.envelope("mallory", "type:worker", kind, &payload);
        assert_refused(world.send(v1::Envelope { task_id: id.clone(), epoch: 1, ..mandate }), code);
    }
    workers.report(&mut world, "a", v1::TaskStatus::Failed, &json!({})).unwrap();
    world.restart();
    let mut workers = Workers { sessions: world.workers(&["bob"]).sessions, ..workers };
    world.pass(Duration::from_secs(2));
    workers.complete(&mut world, "a", "1");
    workers.take(&mut world, "b");
    workers.report(&mut world, "b", v1::TaskStatus::Failed, &json!({})).unwrap();
    assert_eq!(world.states(), "a=COMPLETED b=FAILED");
    of_mallory(&mut world, "q3.b.r3").unwrap();
    world.change_plan(plan::Input::Retry { by: "alice".to_owned() }).unwrap();
    workers.complete(&mut world, "b", "2");
    assert_eq!(world.plan().state(), v1::PlanState::Completed);
    world.audit(&world.task_of("b"));
}

/// Another plan's name and a subtask's name make the same words: `q3.a` with `b`, `q3` with `a.b`.
#[test]
fn plans_with_like_names_and_a_plan_submitted_again_after_its_removal_complete() {
    let retention = Retention { ended_tasks: Some(DAY), ..Retention::default() };
    let mut world = World::with_settings(&["alice", "bob:worker"], Settings { retention, ..Settings::default() });
    let like = v1::Plan { plan_id: "q3.a".to_owned(), ..plan_of(vec![subtask("b", &[])]) };
    world.submit(like).unwrap();
    for _ in 0..2 {
        world.submit(plan_of(vec![subtask("a.b", &[])])).unwrap();
        let mut workers = world.workers(&["bob"]);
        workers.complete(&mut world, "a.b", "1");
        assert_eq!(world.plan().state(), v1::PlanState::Completed);
        workers.sessions.into_values().for_each(|session| world.disconnect(session));
        world.pass(DAY * 4);
        assert_eq!(world.rows(Table::Plans), 0);
    }
}

#[test]
fn the_tasks_of_a_plan_are_in_the_list_of_the_coordinator() {
    let mut world = World::with(&["alice", "bob:worker"]);
    world.submit(plan_of(vec![subtask("a", &[]), subtask("b", &["a"])])).unwrap();
    world.workers(&["bob"]).reject(&mut world, "a");
    world.restart();
    let (caller, owner) = (operator(), Some(AgentId::coordinator()));
    let page = world.view(&caller).tasks(&TaskFilter { owner, ..TaskFilter::default() }, 100, "").unwrap();
    assert_eq!(page.entries.iter().map(|record| record.task.id.as_str()).collect::<Vec<_>>(), [world.task_of("a")]);
}

#[test]
fn an_attempt_that_all_reject_makes_no_dead_letter() {
    let mut world = World::with(&["alice", "bob:worker"]);
    world.submit(plan_of(vec![subtask("a", &[])])).unwrap();
    let mut workers = world.workers(&["bob"]);
    workers.reject(&mut world, "a");
    let status = world.plan().subtasks.remove(0);
    assert_eq!((status.state(), status.error_code()), (v1::SubtaskState::Failed, v1::ErrorCode::NoCandidate));
    assert!(world.dead_letters().is_empty());
    assert!(world.task(&world.task_of("a")).task.status.is_final());
}

#[test]
fn a_cancelled_plan_takes_its_tasks_back_and_a_second_cancel_changes_nothing() {
    let mut world = World::with(&["alice", "bob:worker"]);
    world.submit(plan_of(vec![subtask("a", &[]), subtask("b", &[]), subtask("c", &["a"])])).unwrap();
    let mut workers = world.workers(&["bob"]);
    workers.take(&mut world, "a");
    let cancel = plan::Input::Cancel { by: "alice".to_owned(), reason: "不再需要".to_owned() };
    assert!(world.change_plan(cancel.clone()).unwrap());
    assert_eq!(world.states(), "a=CANCELLED b=CANCELLED c=CANCELLED");
    assert!(!world.change_plan(cancel).unwrap());
    for task in [world.task_of("a"), world.task_of("b")] {
        let record = world.task(&task);
        assert!(record.task.status.is_final() && record.task.owner.is_coordinator());
        world.audit(&task);
    }
    let late = workers.report(&mut world, "a", v1::TaskStatus::Completed, &json!({"response": "1"}));
    assert!(late.is_err());
}

#[test]
fn the_end_of_the_plans_time_ends_all_of_it() {
    let mut world = World::with(&["alice", "bob:worker"]);
    let whole_timeout = Some(prost_types::Duration { seconds: 20, nanos: 0 });
    let subtasks = vec![subtask("a", &[]), subtask("b", &[]), subtask("c", &["a"])];
    world.submit(v1::Plan { whole_timeout, ..plan_of(subtasks) }).unwrap();
    let mut workers = world.workers(&["bob"]);
    workers.take(&mut world, "a");
    world.restart();
    world.pass(Duration::from_secs(21));
    assert_eq!(world.states(), "a=TIMED_OUT b=TIMED_OUT c=SKIPPED");
    assert_eq!(world.plan().state(), v1::PlanState::Failed);
    for task in [world.task_of("a"), world.task_of("b")] {
        assert!(world.task(&task).task.status.is_final(), "{task}");
        world.audit(&task);
    }
}

#[test]
fn only_max_concurrency_handoffs_are_open() {
    let mut world = World::with(&["alice", "bob:worker"]);
    let subtasks = (0..12).map(|number| subtask(&format!("s{number}"), &[])).collect();
    world.submit(v1::Plan { max_concurrency: 3, ..plan_of(subtasks) }).unwrap();
    let mut workers = world.workers(&["bob"]);
    for _ in 0..12 {
        workers.fetch(&mut world);
        assert!(world.states().matches("HANDING_OFF").count() <= 3, "{}", world.states());
        let open = world.plan().subtasks.into_iter().find(|subtask| subtask.state() == v1::SubtaskState::HandingOff);
        workers.complete(&mut world, &open.unwrap().id, "");
    }
    assert_eq!(world.plan().state(), v1::PlanState::Completed);
}

/// Waiting for a busy worker uses no attempt, also if it lasts longer than the whole time of a handoff.
#[test]
fn subtasks_wait_for_the_one_worker_that_does_one_at_a_time() {
    let mut world = World::with(&["alice", "bob:worker"]);
    world.equip("bob", &[], 1);
    // The worker gives no sign between its messages.
    let patient = prost_types::Duration { seconds: 24 * 3600, nanos: 0 };
    let slow = |number| v1::Subtask {
        timeout: None,
        silence_timeout: Some(patient),
        attempts_max: 2,
        ..subtask(&format!("s{number}"), &[])
    };
    let whole = prost_types::Duration { seconds: 7200, nanos: 0 };
    let plan = v1::Plan { whole_timeout: Some(whole), ..plan_of((0..5).map(slow).collect()) };
    world.submit(v1::Plan { max_concurrency: 5, ..plan }).unwrap();
    let mut workers = world.workers(&["bob"]);
    for _ in 0..5 {
        workers.fetch(&mut world);
        let (subtask, _) = workers.offers.iter().next().expect("one is offered");
        let subtask = subtask.clone();
        workers.take(&mut world, &subtask);
        world.pass(Duration::from_secs(350));
        workers.fetch(&mut world);
        assert_eq!(workers.offers.len(), 1, "the worker is full");
        let completed = v1::TaskStatus::Completed;
        workers.report(&mut world, &subtask, completed, &json!({"response": "done"})).unwrap();
        workers.offers.clear();
        // An attempt whose time ran out while it waited is made again after its pause.
        for _ in 0..30 {
            workers.fetch(&mut world);
            if workers.offers.is_empty() {
                world.pass(Duration::from_secs(1));
            }
        }
    }
    assert_eq!(world.plan().state(), v1::PlanState::Completed, "{}", world.states());
    let attempts: Vec<u32> = world.plan().subtasks.iter().map(|subtask| subtask.attempts).collect();
    assert_eq!(attempts, [1; 5]);
}

#[test]
fn the_same_plan_again_is_the_same_plan() {
    let mut world = World::with(&["alice", "bob:worker", "mallory"]);
    world.submit(report()).unwrap();
    let again = world.submit(report()).unwrap();
    assert_eq!(again.resource, "plan:q3");
    assert_refused(world.submit(plan_of(vec![subtask("other", &[])])), ErrorCode::PlanExists);
    let payload = v1::PlanSubmission { plan: Some(report()), ..Default::default() };
    let stolen = world.envelope("mallory", "", v1::MessageType::PlanSubmission, &payload);
    assert_refused(world.send(stolen), ErrorCode::PlanExists);
    assert_eq!(world.rows(Table::Plans), 1);
}

#[test]
fn running_plans_of_one_agent_are_bounded_also_over_a_restart() {
    let mut settings = Settings::default();
    settings.limits.running_plans_max = 2;
    let mut world = World::with_settings(&["alice", "bob:worker"], settings);
    let named = |id: &str| v1::Plan { plan_id: id.to_owned(), ..plan_of(vec![subtask("a", &[])]) };
    world.submit(named("q3")).unwrap();
    world.submit(named("q4")).unwrap();
    assert_refused(world.submit(named("q5")), ErrorCode::LimitExceeded);
    world.submit(named("q3")).expect("the same plan again opens none");
    world.restart();
    assert_refused(world.submit(named("q5")), ErrorCode::LimitExceeded);
    let (by, reason) = ("alice".to_owned(), String::new());
    assert!(world.change_plan(plan::Input::Cancel { by: by.clone(), reason }).unwrap());
    world.submit(named("q5")).unwrap();
    assert_refused(world.change_plan(plan::Input::Retry { by }), ErrorCode::LimitExceeded);
    assert_eq!(world.plan().state(), v1::PlanState::Cancelled);
    let payload = v1::PlanSubmission { plan: Some(named("q6")), ..Default::default() };
    let of_bob = world.envelope("bob", "", v1::MessageType::PlanSubmission, &payload);
    world.send(of_bob).expect("the limit is each agent's own");
}

#[test]
fn a_plan_with_problems_is_refused_with_all_of_them() {
    let mut world = World::with(&["alice", "bob:worker"]);
    let mut untyped = subtask("d", &["nowhere"]);
    untyped.agent_type.clear();
    let before = world.rows(Table::Tasks);
    let refusal = assert_refused(
        world.submit(plan_of(vec![subtask("a", &["b"]), subtask("b", &["a"]), untyped])),
        ErrorCode::PlanInvalid,
    );
    let problems: Vec<String> = refusal.violations().iter().map(|violation| violation.problem.clone()).collect();
    for code in ["CYCLE", "DEPENDENCY_UNKNOWN", "NO_AGENT"] {
        assert!(problems.iter().any(|problem| problem.starts_with(code)), "{code}: {problems:?}");
    }
    let many = (0..257).map(|number| subtask(&format!("s{number}"), &[])).collect();
    assert_refused(world.submit(plan_of(many)), ErrorCode::PlanInvalid);
    assert_eq!((world.rows(Table::Plans), world.rows(Table::Tasks)), (0, before));
}

#[test]
fn the_coordinator_hands_off_with_the_rights_of_the_submitter() {
    let rule = r#"@id("not-to-bob") forbid (principal == Agent::"alice", action == Action::"handOff", resource == Agent::"bob");"#;
    let sources = [Source::new("default", baton_broker_core::policy::DEFAULT), Source::new("test.cedar", rule)];
    let policies = Policies::parse(&sources).unwrap();
    let mut world = World::with(&["alice", "bob:worker", "carol:other"]);
    world.resources.policies.store(Arc::new(policies));
    let named =
        v1::Subtask { agent_type: String::new(), agent_id: "bob".to_owned(), attempts_max: 3, ..subtask("a", &[]) };
    let other = v1::Subtask { agent_type: "other".to_owned(), ..subtask("b", &[]) };
    world.submit(plan_of(vec![named, other])).unwrap();
    let plan = world.plan();
    assert_eq!(world.states(), "a=FAILED b=HANDING_OFF");
    assert_eq!(plan.subtasks[0].error_code(), v1::ErrorCode::PermissionDenied);
    assert!(plan.subtasks[0].cause.contains("not-to-bob"), "{}", plan.subtasks[0].cause);
    assert_eq!(plan.subtasks[0].attempts, 1, "a rule does not change with time");
}

#[test]
fn subtasks_that_start_together_go_to_different_agents() {
    let mut world = World::with(&["alice", "bob:worker", "carol:worker", "dave:worker"]);
    world.submit(plan_of((0..5).map(|number| subtask(&format!("s{number}"), &[])).collect())).unwrap();
    let mut workers = world.workers(&["bob", "carol", "dave"]);
    workers.fetch(&mut world);
    for name in ["bob", "carol", "dave"] {
        let offers = workers.offers.values().filter(|(asked, _)| asked == name).count();
        assert!((1..=2).contains(&offers), "{name}: {offers}");
    }
    for number in 0..5 {
        workers.complete(&mut world, &format!("s{number}"), "");
    }
    for name in ["bob", "carol", "dave"] {
        assert_eq!(world.counted(name), (0, 0), "{name} has no work any more");
    }
}

#[test]
fn a_plan_of_many_subtasks_that_no_agent_can_take_ends() {
    let mut world = World::with(&["alice"]);
    let subtasks = (0..256).map(|number| subtask(&format!("s{number}"), &[])).collect();
    world.submit(v1::Plan { max_concurrency: 1, ..plan_of(subtasks) }).unwrap();
    world.settle();
    assert_eq!(world.plan().state(), v1::PlanState::Failed);
    assert!(world.plan().subtasks.iter().all(|subtask| subtask.state() == v1::SubtaskState::Failed));
    assert_eq!(world.rows(Table::Tasks), 0);
}

#[test]
fn a_subtask_by_skills_goes_to_an_agent_that_has_them() {
    let mut world = World::with(&["alice", "bob"]);
    let wanted = |skill: &str| v1::Subtask {
        agent_type: String::new(),
        required_skills: vec![skill.to_owned()],
        ..subtask("a", &[])
    };
    world.submit(plan_of(vec![wanted("finance")])).unwrap();
    assert_eq!(world.states(), "a=FAILED", "no agent has the skill");
}

#[test]
fn a_result_with_wrong_types_is_refused_and_one_of_the_agents_own_number_stands() {
    let mut world = World::with(&["alice", "bob:worker"]);
    world.submit(plan_of(vec![subtask("a", &[])])).unwrap();
    let mut workers = world.workers(&["bob"]);
    workers.take(&mut world, "a");
    let wrong = json!({"response": 7, "tokens": -1, "tools_used": [1]});
    let refusal =
        assert_refused(workers.report(&mut world, "a", v1::TaskStatus::Completed, &wrong), ErrorCode::FieldInvalid);
    assert_eq!(refusal.violations().len(), 3);
    let right = json!({"response": "5 of 7", "numeric_value": 5.5, "extra": {"more": true}});
    workers.report(&mut world, "a", v1::TaskStatus::Completed, &right).unwrap();
    let result = &world.results()["a"];
    assert_eq!((result.numeric_value, result.response.as_str()), (Some(5.5), "5 of 7"));
    assert_eq!(serde_json::from_str::<Value>(&result.result_json).unwrap()["extra"]["more"], true);
}

#[test]
fn results_and_inputs_reach_the_next_subtask_as_they_were_sent() {
    let mut world = World::with(&["alice", "bob:worker"]);
    let (input_json, of_plan) = (r#"{"id": 1234567890123456789, "n": 4.20e1}"#, r#"{ "n": 42 }"#);
    let next = v1::Subtask { input_json: input_json.to_owned(), ..subtask("b", &["a"]) };
    world.submit(v1::Plan { input_json: of_plan.to_owned(), ..plan_of(vec![subtask("a", &[]), next]) }).unwrap();
    let mut workers = world.workers(&["bob"]);
    workers.take(&mut world, "a");
    let nested = format!("{}{}", "[".repeat(127), "]".repeat(127));
    let number = "1234567890123456789";
    let result = format!(r#"{{"response": "x", "numeric_value": {number}, "n": 42, "none": null, "deep": {nested}}}"#);
    workers.report_text(&mut world, "a", v1::TaskStatus::Completed, &result).unwrap();
    world.restart();
    assert_eq!(world.results()["a"].result_json, result);
    let mut workers = Workers { sessions: world.workers(&["bob"]).sessions, ..workers };
    let context = workers.take(&mut world, "b");
    let text = |name: &str| {
        let section = context.sections.iter().find(|section| section.name == name).unwrap();
        let Some(v1::context_section::Content::Json(json)) = &section.content else { panic!("no JSON") };
        json.clone()
    };
    assert_eq!((&*text("input"), &*text("plan_input")), (input_json, of_plan));
    for name in ["previous_results", "dependency_results"] {
        let json = text(name);
        assert!(json.contains(&result) && json.contains(&format!(r#""numeric_value":{number},"#)), "{json:.300}");
    }
}

#[test]
fn an_input_that_is_no_object_is_refused_with_its_place() {
    let mut world = World::with(&["alice", "bob:worker"]);
    let wrong = v1::Subtask { input_json: r#"{"a": [NaN]}"#.to_owned(), ..subtask("a", &[]) };
    let plan = v1::Plan { input_json: "[1]".to_owned(), ..plan_of(vec![wrong]) };
    let refusal = assert_refused(world.submit(plan), ErrorCode::PlanInvalid);
    let paths: Vec<&str> = refusal.violations().iter().map(|violation| violation.path.as_str()).collect();
    assert!(
        paths[0].ends_with("plan.input_json") && paths[1].ends_with("plan.subtasks[0].input_json/a/0"),
        "{paths:?}"
    );
}

#[test]
fn large_results_do_not_overflow_the_context() {
    let mut world = World::with(&["alice", "bob:worker"]);
    let names: Vec<String> = (0..5).map(|number| format!("s{number}")).collect();
    let mut subtasks: Vec<v1::Subtask> = names.iter().map(|name| subtask(name, &[])).collect();
    subtasks.push(subtask("last", &names.iter().map(String::as_str).collect::<Vec<_>>()));
    world.submit(plan_of(subtasks)).unwrap();
    let mut workers = world.workers(&["bob"]);
    for name in &names {
        workers.complete(&mut world, name, &format!("{} 7", "x".repeat(200 * 1024)));
    }
    let context = workers.take(&mut world, "last");
    let previous = section(&context, "previous_results");
    let omitted = previous.as_object().unwrap().values().filter(|result| result["omitted"] == true).count();
    assert!(omitted > 0, "what does not fit is marked");
    assert!(previous.as_object().unwrap().values().all(|result| result["numeric_value"] == 7.0));
}

#[test]
fn large_inputs_leave_less_room_for_results() {
    let mut world = World::with(&["alice", "bob:worker"]);
    let input_json = json!({"text": "i".repeat(250 * 1024)}).to_string();
    let names: Vec<String> = (0..5).map(|number| format!("s{number}")).collect();
    let mut subtasks: Vec<v1::Subtask> = names.iter().map(|name| subtask(name, &[])).collect();
    let needs: Vec<&str> = names.iter().map(String::as_str).collect();
    subtasks.push(v1::Subtask { input_json: input_json.clone(), ..subtask("last", &needs) });
    world.submit(v1::Plan { input_json, ..plan_of(subtasks) }).unwrap();
    let mut workers = world.workers(&["bob"]);
    for name in &names {
        // The result repeats the response. Three of 120 KiB fit, and ten in two sections do not.
        workers.complete(&mut world, name, &"x".repeat(60 * 1024));
    }
    let context = workers.take(&mut world, "last");
    assert_eq!(section(&context, "plan_input"), section(&context, "input"));
    for name in ["dependency_results", "previous_results"] {
        let results = section(&context, name);
        assert_eq!(results.as_object().unwrap().len(), 5, "{name}");
    }
    assert!(section(&context, "previous_results")["s4"]["omitted"] == true);
}

#[test]
fn a_plan_belongs_to_its_submitter_and_shows_itself_to_its_agents() {
    let mut world = World::with(&["alice", "bob:worker", "mallory"]);
    world.submit(plan_of(vec![subtask("a", &[])])).unwrap();
    let mut workers = world.workers(&["bob"]);
    assert!(world.view(&agent("bob")).plan(&id()).is_err(), "bob has taken nothing yet");
    workers.take(&mut world, "a");
    assert!(world.view(&agent("bob")).plan(&id()).is_ok());
    let stranger = world.view(&agent("mallory")).plan(&id()).unwrap_err();
    let unknown = world.view(&agent("mallory")).plan(&PlanId::parse("none").unwrap()).unwrap_err();
    assert_eq!((stranger.code(), unknown.code()), (ErrorCode::PermissionDenied, ErrorCode::PermissionDenied));
    let access =
        baton_broker_core::access::Access { policies: &world.resources.policies, directory: world.engine.directory() };
    let (plan, _) = world.view(&operator()).plan(&id()).unwrap();
    assert!(access.may_cancel_plan(&agent("alice"), &plan).is_ok());
    assert!(access.may_cancel_plan(&agent("bob"), &plan).is_err());
    let listed = world.view(&agent("bob")).plans(&[PlanState::Running], 10, "").unwrap();
    assert_eq!(listed.entries.len(), 1);
    assert_eq!(world.view(&agent("mallory")).plans(&[], 10, "").unwrap().entries.len(), 0);
    let submission = world.view(&agent("bob")).plan_submission(&id(), None).unwrap();
    assert_eq!(v1::Envelope::decode(submission).unwrap().sender_id, "alice");
}

#[test]
fn an_operator_cannot_take_a_task_of_a_plan() {
    let mut world = World::with(&["alice", "bob:worker", "carol"]);
    world.submit(plan_of(vec![subtask("a", &[])])).unwrap();
    let mut workers = world.workers(&["bob"]);
    workers.take(&mut world, "a");
    let wanted = baton_broker_core::engine::Reassignment {
        task: baton_broker_core::ids::TaskId::parse(&world.task_of("a")).unwrap(),
        expected_epoch: 2,
        to: baton_broker_core::domain::Receiver::parse("carol").unwrap(),
        reason_text: String::new(),
    };
    let refused = world.ask(|reply| Command::Reassign { wanted, caller: operator(), reply });
    assert_refused(refused, ErrorCode::FieldInvalid);
}

#[test]
fn an_ended_plan_is_removed_with_all_of_it() {
    let retention = Retention { ended_tasks: Some(DAY), ..Retention::default() };
    let mut world = World::with_settings(&["alice", "bob:worker"], Settings { retention, ..Settings::default() });
    world.submit(report()).unwrap();
    let mut workers = world.workers(&["bob"]);
    for name in ["fetch", "growth", "margin", "synthesis"] {
        workers.complete(&mut world, name, "1");
    }
    world.pass(DAY / 2);
    assert_eq!(world.rows(Table::Plans), 1);
    world.pass(DAY * 3);
    for table in
        [Table::Plans, Table::PlanSpecs, Table::PlanLog, Table::Tasks, Table::Listings, Table::WorkspaceEntries]
    {
        assert_eq!(world.rows(table), 0, "{}", table.name());
    }
}

#[test]
fn plans_can_be_switched_off() {
    let settings = Settings { plans_enabled: false, ..Settings::default() };
    let mut world = World::with_settings(&["alice"], settings);
    assert_refused(world.submit(plan_of(vec![subtask("a", &[])])), ErrorCode::NotSupported);
}

#[test]
fn a_removed_plan_holds_no_blob_and_ends_each_of_its_holds_once() {
    let retention = Retention { ended_tasks: Some(DAY), ..Retention::default() };
    let settings = Settings { retention, ..Settings::default() };
    let mut world = World::with_settings(&["alice", "bob:worker", "carol"], settings);
    world.submit(plan_of(vec![subtask("a", &[])])).unwrap();
    world.send(world.request("alice", "carol", 1)).unwrap();
    let alice = || AgentId::parse("alice").unwrap();
    let (plan, task) = (WorkspaceId::parse("plan:q3").unwrap(), WorkspaceId::parse("task:t").unwrap());
    let begin = |world: &mut World, digest, workspace: &WorkspaceId| {
        let (workspace, media_type) = (workspace.clone(), String::new());
        let blob = Box::new(NewBlob { digest, size: 5, media_type, workspace });
        world.ask(|reply| Command::BeginUpload { agent: alice(), blob, reply }).unwrap()
    };
    for digest in [[1; 32], [2; 32]] {
        begin(&mut world, digest, &plan);
        world.ask(|reply| Command::FinishUpload { agent: alice(), place: BlobPlace::alone(digest), reply }).unwrap();
    }
    assert!(begin(&mut world, [2; 32], &task).is_some());
    world.workers(&["bob"]).complete(&mut world, "a", "1");
    // The removal of the plan is due in the batch of this call.
    world.now = world.now.plus(DAY * 2);
    let (digest, workspace, caller) = ([2; 32], plan, agent("alice"));
    world.ask(|reply| Command::DeleteBlob { digest, workspace, caller, reply }).unwrap();
    assert_eq!(world.rows(Table::Plans), 0);
    world.pass(DAY * 2);
    let alice = agent("alice");
    assert!(world.view(&alice).blob(&[1; 32], None).is_err());
    assert!(world.view(&alice).blob(&[2; 32], None).is_ok(), "the task holds it");
    assert_eq!(world.rows(Table::Blobs), 4, "a blob, its hold in two entries, and the quota of its writer");
}

#[test]
fn the_coordinator_takes_no_mail() {
    let mut world = World::with(&["alice", "bob:worker"]);
    let mail = world.info("alice", "baton.coordinator", "hello");
    assert!(world.send(mail).is_err());
}

#[test]
fn a_further_attempt_prefers_an_agent_that_is_there_to_one_that_is_gone() {
    let mut world = World::with(&["alice", "bob:worker", "carol:worker"]);
    let mut workers = world.workers(&["bob"]);
    world.pass(Duration::from_secs(61)); // carol never came
    world.heartbeat(&workers.sessions["bob"]);
    assert!(world.is_gone("carol") && !world.is_gone("bob"));
    world.submit(plan_of(vec![v1::Subtask { attempts_max: 2, ..subtask("a", &[]) }])).unwrap();
    workers.take(&mut world, "a");
    workers.report(&mut world, "a", v1::TaskStatus::Failed, &json!({})).unwrap();
    world.pass(Duration::from_secs(2));
    assert_eq!(world.states(), "a=HANDING_OFF");
    let handoff = world.handoff(&world.plan().subtasks[0].handoff_id);
    assert_eq!(handoff.candidate.as_str(), "bob", "it has failed once, but it answers");
    assert_eq!(handoff.next_candidates[0].as_str(), "carol", "asked last, if it comes to that");
}
