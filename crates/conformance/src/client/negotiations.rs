//! The scripted broker's `NegotiationService`: it shows the negotiations that the case has set.

use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Code, Request, Response, Status};

use super::{
    broker::{Answer, NOT_IN_SCRIPT, Scripted},
    refusal::Refusal,
};
use baton_client::proto::v1;
use baton_services::v1::negotiation_service_server::NegotiationService;

#[tonic::async_trait]
impl NegotiationService for Scripted {
    type WatchNegotiationStream = UnboundedReceiverStream<Result<v1::WatchNegotiationResponse, Status>>;

    async fn get_negotiation(&self, request: Request<v1::GetNegotiationRequest>) -> Answer<v1::GetNegotiationResponse> {
        self.check_token(&request)?;
        let negotiation = self.state().negotiations.get(&request.into_inner().negotiation_id).cloned();
        match negotiation {
            Some(_) => Ok(Response::new(v1::GetNegotiationResponse { negotiation })),
            None => Err(Refusal::new(Code::NotFound, "NEGOTIATION_UNKNOWN").status()),
        }
    }

    async fn list_negotiations(&self, _: Request<v1::ListNegotiationsRequest>) -> Answer<v1::ListNegotiationsResponse> {
        Err(NOT_IN_SCRIPT.status())
    }

    async fn watch_negotiation(&self, _: Request<v1::WatchNegotiationRequest>) -> Answer<Self::WatchNegotiationStream> {
        Err(NOT_IN_SCRIPT.status())
    }

    async fn cancel_negotiation(
        &self,
        _: Request<v1::CancelNegotiationRequest>,
    ) -> Answer<v1::CancelNegotiationResponse> {
        Err(NOT_IN_SCRIPT.status())
    }
}
