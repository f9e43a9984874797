//! `TaskService`.

use tonic::{Request, Response, Status};

use super::{
    auth, checked, checked_with,
    log_watch::{self, Latest, LogWatcher, Next},
    numbered, page_size, parsed_id, read_small, refuse, refuse_shared,
    responses::{self, Responses, Taker},
    run_large,
};
use crate::{
    broker::{
        Broker, Reassigned, Updates,
        access::{Caller, Purpose},
        engine::{Command, Reassignment},
        queries::{CustodyPage, TaskFilter},
    },
    domain::{EntityId, Receiver, handoff::TaskStatus},
    envelope::Checks,
    ids::{AgentId, ConversationId, InstanceId, TaskId},
    proto::v1::{self, task_service_server::TaskService},
    wire::to_proto,
};

/// The most bytes of a reason in words, as in an envelope.
const REASON_BYTES_MAX: usize = 4096;

pub(super) struct Tasks {
    broker: Broker,
}

impl Tasks {
    pub(super) fn new(broker: Broker) -> Self {
        Self { broker }
    }
}

#[tonic::async_trait]
impl TaskService for Tasks {
    async fn get_task(&self, request: Request<v1::GetTaskRequest>) -> Result<Response<v1::GetTaskResponse>, Status> {
        let caller = auth::admitted(&self.broker, &request, Purpose::ReadTasks)?;
        let id = parsed_id("task_id", &request.get_ref().task_id, TaskId::parse)?;
        let task = read_small(&self.broker, &caller, move |view| view.shown_task(&id)).await.map_err(refuse)?;
        Ok(Response::new(v1::GetTaskResponse { task: Some(to_proto::shown_task(&task)) }))
    }

    async fn list_tasks(
        &self,
        request: Request<v1::ListTasksRequest>,
    ) -> Result<Response<v1::ListTasksResponse>, Status> {
        let caller = auth::admitted(&self.broker, &request, Purpose::ReadTasks)?;
        run_large(&self.broker, &caller, move |broker, caller| list(broker, caller, request.get_ref()))
            .await
            .map(Response::new)
    }

    async fn get_custody_log(
        &self,
        request: Request<v1::GetCustodyLogRequest>,
    ) -> Result<Response<v1::GetCustodyLogResponse>, Status> {
        let caller = auth::admitted(&self.broker, &request, Purpose::ReadTasks)?;
        run_large(&self.broker, &caller, move |broker, caller| custody_log(broker, caller, request.get_ref()))
            .await
            .map(Response::new)
    }

    async fn resume_tasks(
        &self,
        request: Request<v1::ResumeTasksRequest>,
    ) -> Result<Response<v1::ResumeTasksResponse>, Status> {
        let agent = auth::agent(&self.broker, &request)?;
        let caller = Caller::Agent(agent.clone());
        let instance = parsed_id("instance_id", &request.get_ref().instance_id, InstanceId::parse)?;
        let tasks_max = page_size(request.get_ref().max_tasks);
        let owner = agent.clone();
        let search = move |broker: &Broker, caller: &Caller| broker.view(caller).left_tasks(&owner).map_err(refuse);
        let tasks = run_large(&self.broker, &caller, search).await?;
        let command = |reply| Command::Resume { agent, instance, tasks, tasks_max, reply };
        let given = self.broker.ask(command).await.map_err(refuse_shared)?;
        let read = move |broker: &Broker, caller: &Caller| {
            let view = broker.view(caller);
            given.iter().map(|task| view.task(task).map(|task| to_proto::task(&task)).map_err(refuse)).collect()
        };
        let tasks = run_large(&self.broker, &caller, read).await?;
        Ok(Response::new(v1::ResumeTasksResponse { tasks }))
    }

    async fn reassign_task(
        &self,
        request: Request<v1::ReassignTaskRequest>,
    ) -> Result<Response<v1::ReassignTaskResponse>, Status> {
        let caller = auth::admitted(&self.broker, &request, Purpose::ReassignTasks)?;
        let wanted = reassignment(request.into_inner())?;
        let command = |reply| Command::Reassign { wanted, caller, reply };
        let Reassigned { task, handoff } = self.broker.ask(command).await.map_err(refuse_shared)?;
        Ok(Response::new(v1::ReassignTaskResponse {
            task: Some(to_proto::task(&task)),
            handoff: Some(to_proto::handoff(&handoff)),
        }))
    }

    type WatchTaskStream = Responses<v1::WatchTaskResponse>;

    async fn watch_task(
        &self,
        request: Request<v1::WatchTaskRequest>,
    ) -> Result<Response<Self::WatchTaskStream>, Status> {
        let caller = auth::admitted(&self.broker, &request, Purpose::ReadTasks)?;
        let request = request.get_ref();
        let task = parsed_id("task_id", &request.task_id, TaskId::parse)?;
        let id = task.clone();
        // A task that the caller may not see is refused here, with the same answer as an absent one.
        read_small(&self.broker, &caller, move |view| view.task(&id)).await.map_err(refuse)?;
        let (updates, latest) = Updates::latest();
        // Subscribes before the first page is read: an entry written between the two is announced, not lost.
        let watch = self.broker.watch(EntityId::Task(task.clone()), updates).await.map_err(refuse_shared)?;
        let (broker, after) = (self.broker.clone(), request.after_number);
        Ok(Response::new(responses::stream(async move |taker| {
            let _watch = watch;
            let watcher = Watcher { broker: broker.clone(), caller, task, after, latest, taker };
            log_watch::follow(watcher, broker).await
        })))
    }
}

/// The most entries that one read of a watcher returns. Few of them have an envelope.
const ENTRIES_MAX: usize = 16;

struct Watcher {
    broker: Broker,
    caller: Caller,
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
                self.send(v1::watch_task_response::Update::Entry(Box::new(sign(&self.broker, entry)))).await;
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
        let page = read_small(&self.broker, &self.caller, move |view| {
            let mut page = view.custody(&task, after, ENTRIES_MAX, false)?;
            log_watch::keep_first(&mut page.entries);
            Ok(page)
        });
        page.await.map_err(refuse)
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
