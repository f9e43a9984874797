//! `TaskService`.

use tonic::{Request, Response, Status};

use super::{auth, checked, page_size, refuse};
use crate::{
    broker::{Broker, BrokerError, access::Caller, queries::TaskFilter},
    domain::handoff::TaskStatus,
    envelope::Checks,
    ids::{AgentId, TaskId},
    proto::v1::{self, task_service_server::TaskService},
    wire::to_proto,
};

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
        let caller = auth::caller(&self.broker, request.metadata())?;
        let mut checks = Checks::default();
        let id = checks.id("task_id", &request.get_ref().task_id, TaskId::parse);
        checked(checks)?;
        let task = self.broker.view(&caller).task(&id.expect("checked above")).map_err(refuse)?;
        Ok(Response::new(v1::GetTaskResponse { task: Some(to_proto::task(&task)) }))
    }

    async fn list_tasks(
        &self,
        request: Request<v1::ListTasksRequest>,
    ) -> Result<Response<v1::ListTasksResponse>, Status> {
        let caller = auth::caller(&self.broker, request.metadata())?;
        let broker = self.broker.clone();
        // A long list reads much: not on a thread that others wait for.
        let listed = tokio::task::spawn_blocking(move || list(&broker, &caller, request.get_ref()));
        listed.await.map_err(|_| refuse(BrokerError::Internal))?.map(Response::new)
    }
}

fn list(broker: &Broker, caller: &Caller, request: &v1::ListTasksRequest) -> Result<v1::ListTasksResponse, Status> {
    let size = page_size(request.page_size)?;
    let mut checks = Checks::default();
    let owner = checks.optional_id("owner_id", &request.owner_id, AgentId::parse);
    checks.at_most("statuses", request.statuses.len(), 6, "entries");
    let statuses = request.statuses.iter().filter_map(|number| {
        let status = TaskStatus::from_number(*number);
        if status.is_none() {
            checks.wrong("statuses", format!("must be known statuses, not {number}"));
        }
        status
    });
    let filter = TaskFilter { owner, statuses: statuses.collect() };
    checked(checks)?;
    let page = broker.view(caller).tasks(&filter, size, &request.page_token).map_err(refuse)?;
    Ok(v1::ListTasksResponse {
        tasks: page.entries.iter().map(to_proto::task).collect(),
        next_page_token: page.next_token,
    })
}
