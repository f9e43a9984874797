//! Calls with encoded messages, for programs that write and read messages by the schema's descriptors.

use std::time::Duration;

use bytes::{Buf as _, BufMut as _, Bytes};
use prost::Message as _;
use tokio::time;
use tonic::{
    Code, Request, Status, Streaming,
    client::Grpc,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    codegen::http::uri::PathAndQuery,
};

use super::{Client, authorized::Authorized};
use crate::proto;

/// Passes messages on as they are.
struct AsTheyAre;

impl Codec for AsTheyAre {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for AsTheyAre {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(message);
        Ok(())
    }
}

impl Decoder for AsTheyAre {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        let bytes = buffer.remaining();
        Ok(Some(buffer.copy_to_bytes(bytes)))
    }
}

/// The encoded answers of a call, one after the other. Dropping it ends the call.
#[derive(Debug)]
pub struct EncodedAnswers(Streaming<Bytes>);

impl EncodedAnswers {
    /// The next answer; `None` at the end. Cancel safe.
    ///
    /// # Errors
    ///
    /// The status by which the broker has ended the stream. Afterwards there is no further answer.
    pub async fn next(&mut self) -> Result<Option<Bytes>, proto::Status> {
        self.0.message().await.map_err(|status| as_message(&status))
    }
}

impl Client {
    /// Makes a unary call. `method` is its path, for example `/baton.v1.TaskService/GetTask`; request and answer are
    /// encoded messages. With a `timeout` the broker and this client give the call up after it.
    ///
    /// # Errors
    ///
    /// The status of the call with its details: the broker's refusal, UNAVAILABLE without a broker, DEADLINE_EXCEEDED after
    /// the timeout, INVALID_ARGUMENT for a method that is no path.
    pub async fn call_encoded(
        &self,
        method: &str,
        message: Bytes,
        timeout: Option<Duration>,
    ) -> Result<Bytes, proto::Status> {
        let path = path_of(method)?;
        let call = async {
            let mut grpc = self.ready().await?;
            Ok(grpc.unary(request(message, timeout), path, AsTheyAre).await?.into_inner())
        };
        within(timeout, call).await
    }

    /// Makes a call whose answers are a stream. The timeout bounds the time until the stream begins.
    ///
    /// # Errors
    ///
    /// As [`Self::call_encoded`].
    pub async fn stream_encoded(
        &self,
        method: &str,
        message: Bytes,
        timeout: Option<Duration>,
    ) -> Result<EncodedAnswers, proto::Status> {
        let path = path_of(method)?;
        let call = async {
            let mut grpc = self.ready().await?;
            Ok(EncodedAnswers(grpc.server_streaming(request(message, timeout), path, AsTheyAre).await?.into_inner()))
        };
        within(timeout, call).await
    }

    async fn ready(&self) -> Result<Grpc<Authorized>, Status> {
        let mut grpc = self.grpc();
        grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        Ok(grpc)
    }
}

fn path_of(method: &str) -> Result<PathAndQuery, proto::Status> {
    let parsed: Result<PathAndQuery, _> = method.parse();
    parsed.ok().filter(|path| path.path() == method && method.starts_with('/')).ok_or_else(|| {
        let message = format!("{method:?} is not the path of a method, as /baton.v1.TaskService/GetTask");
        proto::Status { code: Code::InvalidArgument.into(), message, details: Vec::new() }
    })
}

fn request(message: Bytes, timeout: Option<Duration>) -> Request<Bytes> {
    let mut request = Request::new(message);
    if let Some(timeout) = timeout {
        request.set_timeout(timeout);
    }
    request
}

async fn within<T>(
    timeout: Option<Duration>,
    call: impl Future<Output = Result<T, Status>>,
) -> Result<T, proto::Status> {
    let Some(timeout) = timeout else { return call.await.map_err(|status| as_message(&status)) };
    let over = || Status::deadline_exceeded("the deadline has passed");
    match time::timeout(timeout, call).await {
        // The transport calls its own end of the time so.
        Ok(Err(status)) if status.code() == Code::Cancelled => Err(as_message(&over())),
        Ok(answer) => answer.map_err(|status| as_message(&status)),
        Err(_) => Err(as_message(&over())),
    }
}

/// The status as a message: with the details that the broker has sent. A status without them comes from the connection,
/// possibly in terms of HTTP/2: then no broker answers.
fn as_message(status: &Status) -> proto::Status {
    let details = proto::Status::decode(status.details()).map(|sent| sent.details).unwrap_or_default();
    let is_of_connection = matches!(status.code(), Code::Unknown | Code::Internal | Code::Cancelled);
    let code = if details.is_empty() && is_of_connection { Code::Unavailable } else { status.code() };
    proto::Status { code: code.into(), message: status.message().to_owned(), details }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_call_without_a_broker_or_with_a_wrong_name_has_a_status() {
        let client = Client::of_no_server();
        let code = async |method: &str| client.call_encoded(method, Bytes::new(), None).await.unwrap_err().code;
        assert_eq!(code("/baton.v1.TaskService/GetTask").await, Code::Unavailable as i32);
        for wrong in ["", "baton.v1.TaskService/GetTask", "/a?b", "/a b", "http://a/b"] {
            assert_eq!(code(wrong).await, Code::InvalidArgument as i32, "{wrong:?}");
        }
        let late = within::<()>(Some(Duration::from_millis(1)), std::future::pending()).await.unwrap_err();
        assert_eq!(late.code, Code::DeadlineExceeded as i32);
        let cut = within::<()>(Some(Duration::from_secs(9)), async { Err(Status::cancelled("Timeout expired")) });
        assert_eq!(cut.await.unwrap_err().code, Code::DeadlineExceeded as i32);
    }

    #[test]
    fn what_the_connection_says_is_unavailable_and_what_the_broker_says_stays() {
        use tonic_types::{ErrorDetails, StatusExt};
        assert_eq!(as_message(&Status::unknown("h2 protocol error")).code, Code::Unavailable as i32);
        assert_eq!(as_message(&Status::unauthenticated("no")).code, Code::Unauthenticated as i32);
        let details = ErrorDetails::with_error_info("INTERNAL", "baton", []);
        let sent =
            as_message(&<Status as StatusExt>::with_error_details(Code::Internal, "a fault of the broker", details));
        assert_eq!((sent.code, sent.details.len()), (Code::Internal as i32, 1));
    }
}
