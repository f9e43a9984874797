//! `AuditService`.

use tonic::Status;

use super::{call::Call, page_size};
use crate::proto::v1;

pub(super) async fn list_audit_entries(
    call: Call,
    request: v1::ListAuditEntriesRequest,
) -> Result<v1::ListAuditEntriesResponse, Status> {
    call.read_large(move |view| view.audit_log(request.after_number, page_size(request.page_size))).await
}
