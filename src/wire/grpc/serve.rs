//! The gRPC services, made from the table of calls. The compiler compares the table with the schema: each method of a
//! service has a row with its streams, and a function in the module of the service.

use std::{collections::HashMap, pin::Pin};

use pastey::paste;
use tonic::{Request, Response, Status, Streaming, codec::CompressionEncoding, service::Routes};

use super::{
    agents, audit, blobs, bounds::ClientStream, call::Services, contexts, dead_letters, handoffs, messages,
    negotiations, plans, registries, responses::Responses, routing, schemas, tasks, threads, workspaces,
};
use crate::{
    broker::Broker,
    envelope::FRAME_BYTES_MAX,
    proto::v1,
    wire::operations::{OPERATIONS, Operation, Row, with_operations},
};

/// What a generated method returns.
type Answer<'f, R> = Pin<Box<dyn Future<Output = Result<Response<R>, Status>> + Send + 'f>>;

/// The number of the registry that a request about a name has.
macro_rules! registry {
    (MayRegister $request:ident) => {
        Some($request.get_ref().registry)
    };
    ($right:ident $request:ident) => {
        None
    };
}

/// A method of a service's trait. Its future is boxed as the trait declares it.
macro_rules! method {
    ($method:ident Unary $right:ident $module:ident) => {
        paste! { method! { @ $method $right $module, v1::[<$method Request>], v1::[<$method Response>] } }
    };
    ($method:ident ServerStream $right:ident $module:ident) => {
        paste! {
            type [<$method Stream>] = Responses<v1::[<$method Response>]>;
            method! { @ $method $right $module, v1::[<$method Request>], Responses<v1::[<$method Response>]> }
        }
    };
    ($method:ident ClientStream $right:ident $module:ident) => {
        paste! { method! { @ $method $right $module, Streaming<v1::[<$method Request>]>, v1::[<$method Response>] } }
    };
    ($method:ident BothStreams $right:ident $module:ident) => {
        paste! {
            type [<$method Stream>] = Responses<v1::[<$method Response>]>;
            method! { @ $method $right $module, Streaming<v1::[<$method Request>]>, Responses<v1::[<$method Response>]> }
        }
    };
    (@ $method:ident $right:ident $module:ident, $request:ty, $response:ty) => {
        paste! {
            fn [<$method:snake>]<'s, 'f>(&'s self, request: Request<$request>) -> Answer<'f, $response>
            where
                's: 'f,
                Self: 'f,
            {
                let registry = registry!($right request);
                let admitted = self.admit(Operation::$method, request, registry);
                Box::pin(async move {
                    let (call, request) = admitted?;
                    $module::[<$method:snake>](call, request).await.map(Response::new)
                })
            }
        }
    };
}

macro_rules! services {
    ($($service:ident in $module:ident {
        $($method:ident $streams:ident $right:ident $(($purpose:ident))? $rate:ident $effect:ident $size:ident;)*
    })*) => {
        $(paste! {
            impl v1::[<$service:snake _server>]::$service for Services {
                $(method! { $method $streams $right $module })*
            }
        })*

        /// The routes of all services of a broker.
        pub fn routes(broker: &Broker) -> Routes {
            let services = Services::new(broker.clone());
            let mut routes = Routes::default();
            $(paste! {
                let service = v1::[<$service:snake _server>]::[<$service Server>]::new(services.clone());
                // Requests are unpacked before, by `bounds`, which also says whether an answer may be compressed.
                let service = service
                    .max_decoding_message_size(FRAME_BYTES_MAX)
                    .max_encoding_message_size(FRAME_BYTES_MAX)
                    .send_compressed(CompressionEncoding::Gzip)
                    .send_compressed(CompressionEncoding::Zstd);
                routes = routes.add_service(service);
            })*
            routes
        }
    };
}
with_operations!(services);

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
