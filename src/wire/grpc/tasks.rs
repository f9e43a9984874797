//! `TaskService`.

use tonic::Status;

use super::{
    call::Call,
    checked, checked_with,
    log_watch::{self, Latest, LogWatcher, Next},
    numbered, page_size, parsed_id, refuse, refuse_shared,
    responses::{self, Responses, Taker},
};
use crate::{
    broker::{
        Broker, Reassigned, Updates,
        access::Caller,
        engine::{Command, Reassignment},
        queries::{CustodyPage, TaskFilter, View},
    },
    domain::{EntityId, Receiver, handoff::TaskStatus},
    envelope::Checks,
    ids::{AgentId, ConversationId, InstanceId, TaskId},
    proto::v1,
    wire::to_proto,
};

/// The most bytes of a reason in words, as in an envelope.
const REASON_BYTES_MAX: usize = 4096;

pub(super) async fn get_task(call: Call, request: v1::GetTaskRequest) -> Result<v1::GetTaskResponse, Status> {
    let id = parsed_id("task_id", &request.task_id, TaskId::parse)?;
    let task = call.read_small(move |view| view.shown_task(&id)).await?;
    Ok(v1::GetTaskResponse { task: Some(to_proto::shown_task(&task)) })
}

pub(super) async fn list_tasks(call: Call, request: v1::ListTasksRequest) -> Result<v1::ListTasksResponse, Status> {
    call.run_large(move |broker, caller| list(broker, caller, &request)).await
}

pub(super) async fn get_custody_log(
    call: Call,
    request: v1::GetCustodyLogRequest,
) -> Result<v1::GetCustodyLogResponse, Status> {
    call.run_large(move |broker, caller| custody_log(broker, caller, &request)).await
}

pub(super) async fn resume_tasks(
    call: Call,
    request: v1::ResumeTasksRequest,
) -> Result<v1::ResumeTasksResponse, Status> {
    let agent = call.agent()?.clone();
    let instance = parsed_id("instance_id", &request.instance_id, InstanceId::parse)?;
    let tasks_max = page_size(request.max_tasks);
    let owner = agent.clone();
    let tasks = call.read_large(move |view| view.left_tasks(&owner)).await?;
    let given = call.ask(|_, reply| Command::Resume { agent, instance, tasks, tasks_max, reply }).await?;
    let read = move |view: View<'_>| given.iter().map(|task| Ok(to_proto::task(&view.task(task)?))).collect();
    let tasks = call.read_large(read).await?;
    Ok(v1::ResumeTasksResponse { tasks })
}

pub(super) async fn reassign_task(
    call: Call,
    request: v1::ReassignTaskRequest,
) -> Result<v1::ReassignTaskResponse, Status> {
    let wanted = reassignment(request)?;
    let Reassigned { task, handoff } = call.ask(|caller, reply| Command::Reassign { wanted, caller, reply }).await?;
    Ok(v1::ReassignTaskResponse { task: Some(to_proto::task(&task)), handoff: Some(to_proto::handoff(&handoff)) })
}

pub(super) async fn watch_task(
    call: Call,
    request: v1::WatchTaskRequest,
) -> Result<Responses<v1::WatchTaskResponse>, Status> {
    let task = parsed_id("task_id", &request.task_id, TaskId::parse)?;
    let id = task.clone();
    // A task that the caller may not see is refused here, with the same answer as an absent one.
    call.read_small(move |view| view.task(&id)).await?;
    let (updates, latest) = Updates::latest();
    // Subscribes before the first page is read: an entry written between the two is announced, not lost.
    let watch = call.broker.watch(EntityId::Task(task.clone()), updates).await.map_err(refuse_shared)?;
    let (broker, after) = (call.broker.clone(), request.after_number);
    Ok(responses::stream(async move |taker| {
        let _watch = watch;
        log_watch::follow(Watcher { call, task, after, latest, taker }, broker).await
    }))
}

/// The most entries that one read of a watcher returns. Few of them have an envelope.
const ENTRIES_MAX: usize = 16;

struct Watcher {
    call: Call,
    task: TaskId,
    /// The number of the last entry that was sent or is missing.
    after: u64,
    latest: Latest,
    taker: Taker<v1::WatchTaskResponse>,
}

impl LogWatcher for Watcher {
    async fn send_entries(&mut self) -> Result<Next, Status> {
        loop {
            self.taker.demand().await;
            let page = self.page().await?;
            // These entries are missing, or the watcher comes from a longer log: one before the broker was restored.
            if let Some(gap) = page.gap {
                self.after = if page.entries.is_empty() { page.length } else { gap.1 };
                self.send(v1::watch_task_response::Update::Gap(to_proto::gap(gap))).await;
            }
            for entry in page.entries {
                self.after = entry.entry.as_ref().map_or(self.after, |entry| entry.number);
                self.send(v1::watch_task_response::Update::Entry(Box::new(sign(&self.call.broker, entry)))).await;
            }
            // Only a read up to the announced length is complete; a page may end early.
            if self.after >= page.length {
                return Ok(if page.is_final { Next::End } else { Next::Wait });
            }
        }
    }

    async fn grown(&mut self) -> Result<(), Status> {
        log_watch::changed(&mut self.latest).await
    }
}

impl Watcher {
    async fn page(&self) -> Result<CustodyPage, Status> {
        let (task, after) = (self.task.clone(), self.after);
        let page = self.call.read_small(move |view| {
            let mut page = view.custody(&task, after, ENTRIES_MAX, false)?;
            log_watch::keep_first(&mut page.entries);
            Ok(page)
        });
        page.await
    }

    async fn send(&self, update: v1::watch_task_response::Update) {
        self.taker.send(v1::WatchTaskResponse { update: Some(update) }).await;
    }
}

fn custody_log(
    broker: &Broker,
    caller: &Caller,
    request: &v1::GetCustodyLogRequest,
) -> Result<v1::GetCustodyLogResponse, Status> {
    let task = parsed_id("task_id", &request.task_id, TaskId::parse)?;
    let size = page_size(request.page_size);
    let view = broker.view(caller);
    let page = view.custody(&task, request.after_number, size, request.include_envelopes).map_err(refuse)?;
    Ok(v1::GetCustodyLogResponse {
        entries: page.entries.into_iter().map(|entry| sign(broker, entry)).collect(),
        custody_length: page.length,
        gap: page.gap.map(to_proto::gap),
    })
}

/// The entry with its receipt signed by the broker.
fn sign(broker: &Broker, entry: v1::CustodyLogEntry) -> v1::CustodyLogEntry {
    let receipt = entry.receipt.map(|receipt| broker.sign_receipt(receipt));
    v1::CustodyLogEntry { receipt, ..entry }
}

fn reassignment(request: v1::ReassignTaskRequest) -> Result<Reassignment, Status> {
    let mut checks = Checks::default();
    let task = checks.id("task_id", &request.task_id, TaskId::parse);
    let to = checks.id("to", &request.to, Receiver::parse);
    // An empty receiver is one of its own in an envelope, but a task needs a new owner.
    if request.to.is_empty() {
        checks.wrong("to", "must not be empty");
    }
    if request.expected_epoch == 0 {
        checks.wrong("expected_epoch", "must be at least 1");
    }
    checks.text("reason_text", &request.reason_text, REASON_BYTES_MAX);
    let (task, to) = checked_with(checks, (task, to))?;
    let v1::ReassignTaskRequest { expected_epoch, reason_text, .. } = request;
    Ok(Reassignment { task, expected_epoch, to, reason_text })
}

fn list(broker: &Broker, caller: &Caller, request: &v1::ListTasksRequest) -> Result<v1::ListTasksResponse, Status> {
    let size = page_size(request.page_size);
    let mut checks = Checks::default();
    let owner = checks.optional_id("owner_id", &request.owner_id, AgentId::parse);
    checks.at_most("statuses", request.statuses.len(), 6, "entries");
    let statuses = numbered(&mut checks, "statuses", "known statuses", &request.statuses, TaskStatus::from_number);
    let parent = checks.optional_id("parent_task_id", &request.parent_task_id, TaskId::parse);
    let conversation = checks.optional_id("conversation_id", &request.conversation_id, ConversationId::parse);
    let asked = checks.optional_id("asked_agent_id", &request.asked_agent_id, AgentId::parse);
    let by_update = match v1::TaskOrder::try_from(request.order) {
        Ok(order) => order == v1::TaskOrder::Update,
        Err(_) => {
            checks.wrong("order", format!("must be a known order, not {}", request.order));
            false
        }
    };
    if by_update && asked.is_some() {
        checks.wrong("order", "must not be set together with asked_agent_id");
    }
    let filter = TaskFilter { owner, statuses, parent, conversation, by_update };
    checked(checks)?;
    if let Some(asked) = asked {
        let page = broker.view(caller).questions(&asked, &filter, size, &request.page_token).map_err(refuse)?;
        return Ok(v1::ListTasksResponse {
            tasks: page.entries.iter().map(to_proto::shown_task).collect(),
            next_page_token: page.next_token,
        });
    }
    let page = broker.view(caller).tasks(&filter, size, &request.page_token).map_err(refuse)?;
    Ok(v1::ListTasksResponse {
        tasks: page.entries.iter().map(to_proto::task).collect(),
        next_page_token: page.next_token,
    })
}
