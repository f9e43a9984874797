//! `AuditService`.

use tonic::{Request, Response, Status};

use super::{auth, page_size, refuse, run_large};
use crate::{
    broker::{
        Broker,
        access::{Caller, Purpose},
    },
    proto::v1::{self, audit_service_server::AuditService},
};

pub(super) struct Audit {
    broker: Broker,
}

impl Audit {
    pub(super) fn new(broker: Broker) -> Self {
        Self { broker }
    }
}

#[tonic::async_trait]
impl AuditService for Audit {
    async fn list_audit_entries(
        &self,
        request: Request<v1::ListAuditEntriesRequest>,
    ) -> Result<Response<v1::ListAuditEntriesResponse>, Status> {
        let caller = auth::admitted(&self.broker, &request, Purpose::ReadAuditLog)?;
        run_large(&self.broker, &caller, move |broker, caller| list(broker, caller, request.get_ref()))
            .await
            .map(Response::new)
    }
}

fn list(
    broker: &Broker,
    caller: &Caller,
    request: &v1::ListAuditEntriesRequest,
) -> Result<v1::ListAuditEntriesResponse, Status> {
    let size = page_size(request.page_size);
    broker.view(caller).audit_log(request.after_number, size).map_err(refuse)
}
