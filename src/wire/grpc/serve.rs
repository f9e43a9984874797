//! The gRPC services, made from the table of calls. Each call has a function in the module of its service, whose request
//! and response are those of the schema.

use std::{collections::HashMap, convert::Infallible, pin::Pin};

use axum::{body::Body as RequestBody, extract::Request as HttpRequest};
use bytes::Bytes;
use http::Response as HttpResponse;
use pastey::paste;
use prost::Message;
use tokio_stream::StreamExt as _;
use tonic::{
    Request, Response, Status, Streaming, body::Body, codec::CompressionEncoding, server::Grpc, service::Routes,
};
use tower::service_fn;

use super::{
    LARGE_BYTES, agents, audit, blobs,
    bounds::ClientStream,
    call::{Call, Services},
    contexts, dead_letters,
    frames::{AnyResponse, FrameCodec, Requests, decoded},
    handoffs, messages, negotiations, plans, registries,
    responses::Responses,
    routing, schemas, tasks, threads, workspaces,
};
use crate::{
    broker::Broker,
    envelope::FRAME_BYTES_MAX,
    proto::v1,
    wire::operations::{OPERATIONS, Operation, Right, Row, with_operations},
};

/// What a call returns, once its function has run.
type Answer<R> = Pin<Box<dyn Future<Output = Result<Response<R>, Status>> + Send>>;

type AnyResponses = Responses<AnyResponse>;

/// A call by its streams: admits a caller and runs the function of the call, from frames to responses.
#[derive(Clone, Copy)]
enum Serve {
    Unary(fn(&Services, Request<Bytes>) -> Answer<AnyResponse>),
    ServerStream(fn(&Services, Request<Bytes>) -> Answer<AnyResponses>),
    ClientStream(fn(&Services, Request<Streaming<Bytes>>) -> Answer<AnyResponse>),
    BothStreams(fn(&Services, Request<Streaming<Bytes>>) -> Answer<AnyResponses>),
}

/// A request, before its caller is admitted.
pub(super) enum Arrived<Q> {
    Decoded(Q),
    /// Bytes that take long to decode. Their caller is charged for it.
    Large(Bytes),
}

impl<Q: Message + Default + 'static> Arrived<Q> {
    /// The request of a call, and the rest, which has what admits its caller.
    pub(super) fn of(request: Request<Bytes>, right: Right) -> Result<(Self, Request<()>), Status> {
        let (metadata, extensions, frame) = request.into_parts();
        // What the right asks for is in the request.
        let is_at_once = frame.len() <= LARGE_BYTES || right == Right::MayRegister;
        let arrived = if is_at_once { Self::Decoded(decoded(frame)?) } else { Self::Large(frame) };
        Ok((arrived, Request::from_parts(metadata, extensions, ())))
    }

    /// The request, decoded beside the threads of connections if it is large.
    pub(super) async fn decoded(self, call: &Call) -> Result<Q, Status> {
        match self {
            Self::Decoded(request) => Ok(request),
            Self::Large(frame) => call.decode(frame).await,
        }
    }
}

fn any<R: Message + 'static>(response: R) -> AnyResponse {
    Box::new(response)
}

fn all<R: Message + 'static>(responses: Responses<R>) -> AnyResponses {
    Box::pin(responses.map(|response| response.map(any)))
}

/// Runs the function of an admitted call.
fn run<Q, R, A, T>(
    admitted: Result<(Call, Q), Status>,
    function: impl FnOnce(Call, Q) -> A + Send + 'static,
    response: fn(R) -> T,
) -> Answer<T>
where
    Q: Send + 'static,
    R: 'static,
    A: Future<Output = Result<R, Status>> + Send,
    T: 'static,
{
    Box::pin(async move {
        let (call, request) = admitted?;
        function(call, request).await.map(|answer| Response::new(response(answer)))
    })
}

/// The number of the registry that a request about a name has.
macro_rules! registry {
    (MayRegister $request:ident) => {
        match &$request {
            Arrived::Decoded(request) => Some(request.registry),
            Arrived::Large(_) => None,
        }
    };
    ($right:ident $request:ident) => {
        None
    };
}

/// How a call is served.
macro_rules! serve {
    ($method:ident Unary $right:ident $module:ident) => {
        serve! { @one Unary any $method $right $module }
    };
    ($method:ident ServerStream $right:ident $module:ident) => {
        serve! { @one ServerStream all $method $right $module }
    };
    ($method:ident ClientStream $right:ident $module:ident) => {
        serve! { @many ClientStream any $method $module }
    };
    ($method:ident BothStreams $right:ident $module:ident) => {
        serve! { @many BothStreams all $method $module }
    };
    (@one $streams:ident $response:ident $method:ident $right:ident $module:ident) => {
        paste! {
            Serve::$streams(|services, request| {
                let arrived = Arrived::<v1::[<$method Request>]>::of(request, Operation::$method.row().right);
                let admitted = arrived.and_then(|(request, rest)| {
                    let registry = registry!($right request);
                    services.admit(Operation::$method, rest, registry).map(|call| (call, request))
                });
                let function = |call: Call, request: Arrived<_>| async move {
                    let request = request.decoded(&call).await?;
                    $module::[<$method:snake>](call, request).await
                };
                run(admitted, function, $response::<v1::[<$method Response>]>)
            })
        }
    };
    (@many $streams:ident $response:ident $method:ident $module:ident) => {
        paste! {
            Serve::$streams(|services, request| {
                let (metadata, extensions, frames) = request.into_parts();
                let rest = Request::from_parts(metadata, extensions, ());
                let admitted = services.admit(Operation::$method, rest, None);
                let admitted = admitted.map(|call| (call, Requests::<v1::[<$method Request>]>::new(frames)));
                run(admitted, $module::[<$method:snake>], $response::<v1::[<$method Response>]>)
            })
        }
    };
}

macro_rules! calls {
    ($($service:ident in $module:ident {
        $($method:ident $streams:ident $right:ident $(($purpose:ident))? $rate:ident $effect:ident $size:ident;)*
    })*) => {
        /// All calls, in the order of [`OPERATIONS`].
        const CALLS: &[Serve] = &[$($(serve! { $method $streams $right $module },)*)*];
    };
}
with_operations!(calls);

/// The routes of all services of a broker.
pub fn routes(broker: &Broker) -> Routes {
    let services = Services::new(broker.clone());
    let mut router = Routes::default().into_axum_router();
    for (row, call) in OPERATIONS.iter().zip(CALLS) {
        let (services, call) = (services.clone(), *call);
        let service = service_fn(move |request| {
            let services = services.clone();
            async move { Ok::<_, Infallible>(answer(&services, call, request).await) }
        });
        router = router.route_service(row.path, service);
    }
    router.into()
}

/// Answers a call.
async fn answer(services: &Services, call: Serve, request: HttpRequest<RequestBody>) -> HttpResponse<Body> {
    // Requests are unpacked before, by `bounds`, which also says whether an answer may be compressed.
    let mut grpc = Grpc::new(FrameCodec)
        .max_decoding_message_size(FRAME_BYTES_MAX)
        .max_encoding_message_size(FRAME_BYTES_MAX)
        .send_compressed(CompressionEncoding::Gzip)
        .send_compressed(CompressionEncoding::Zstd);
    match call {
        Serve::Unary(serve) => grpc.unary(service_fn(|request| serve(services, request)), request).await,
        Serve::ServerStream(serve) => {
            grpc.server_streaming(service_fn(|request| serve(services, request)), request).await
        }
        Serve::ClientStream(serve) => {
            grpc.client_streaming(service_fn(|request| serve(services, request)), request).await
        }
        Serve::BothStreams(serve) => grpc.streaming(service_fn(|request| serve(services, request)), request).await,
    }
}

/// The paths of calls whose client sends a stream, with the kind of the stream.
pub fn client_streams() -> HashMap<String, ClientStream> {
    let sessions = OPERATIONS.iter().filter(|row| row.has_client_stream());
    let sessions = sessions.map(|row: &Row| (row.path.to_owned(), ClientStream::Session));
    REFLECTION_STREAMS.map(|path| (path.to_owned(), ClientStream::Foreign)).into_iter().chain(sessions).collect()
}

/// The paths of streams of other services.
const REFLECTION_STREAMS: [&str; 2] = [
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
];
