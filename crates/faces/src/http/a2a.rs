//! A2A 1.0: the agents and types that the operator has published, each below `/a2a/NAME`. Two bindings of one core, JSON-RPC
//! and HTTP+JSON.

mod cards;
mod events;
mod rest;
mod rpc;

use std::{collections::HashMap, sync::Arc};

use a2a::{
    CancelTaskRequest, DeleteTaskPushNotificationConfigRequest, GetTaskPushNotificationConfigRequest, GetTaskRequest,
    ListTaskPushNotificationConfigsRequest, ListTasksRequest, SVC_PARAM_VERSION, SendMessageRequest,
    SendMessageResponse, SubscribeToTaskRequest, TaskPushNotificationConfig,
};
use axum::{
    extract::{Path, Request, State},
    response::{IntoResponse as _, Response},
};
use baton_client::proto::v1;
use http::{Method, StatusCode, Uri, request::Parts};
use serde::de::DeserializeOwned;
use serde_json::Value;

pub(super) use self::cards::Cards;
use self::events::{Events, Following};
use super::{
    Gateway,
    access::{Refused, no_grant},
    api, body,
    callers::Caller,
};
use crate::a2a::{
    Failure, Modes, Reached, VERSION, View,
    sending::{Wanted, check_length, check_tenant, wanted},
};

const CARD: &str = ".well-known/agent-card.json";

/// Answers a request below `/a2a/NAME`.
pub(super) async fn serve(
    State(gateway): State<Arc<Gateway>>,
    Path(path): Path<HashMap<String, String>>,
    request: Request,
) -> Response {
    let part = |name: &str| path.get(name).map(String::as_str).unwrap_or_default();
    let Some(published) = gateway.published.iter().find(|published| published.name() == part("name")) else {
        return unknown().into_response();
    };
    match (request.method(), part("rest")) {
        (&Method::GET | &Method::HEAD, CARD) => return cards::card(&gateway, published, request).await,
        (_, CARD) => return StatusCode::METHOD_NOT_ALLOWED.into_response(),
        _ => {}
    }
    let admitted = match gateway.callers.admit(request.headers()).await {
        Ok(admitted) => admitted,
        Err(refused) => return refused.into_response(),
    };
    let (head, body) = request.into_parts();
    let body = match body::read(body).await {
        Ok(body) => body,
        Err(refused) => return refused.into_response(),
    };
    let reached = Reached { face: Arc::clone(&admitted.caller.face), published: published.clone() };
    let call = Call { gateway: &gateway, caller: &admitted.caller, reached };
    let answer = match part("rest") {
        "" => rpc::answer(&call, &head, &body).await,
        rest => rest::answer(&call, &head, rest, &body).await,
    };
    body::holding(answer, admitted.place)
}

fn unknown() -> Refused {
    Refused::new(StatusCode::NOT_FOUND, "PATH_UNKNOWN", "nothing is published here")
}

/// A request of a caller.
struct Call<'a> {
    gateway: &'a Gateway,
    caller: &'a Caller,
    reached: Reached,
}

/// What a client asks for, in either binding.
enum Operation {
    Send(SendMessageRequest),
    SendStreaming(SendMessageRequest),
    Get(GetTaskRequest),
    List(ListTasksRequest),
    Cancel(CancelTaskRequest),
    Subscribe(SubscribeToTaskRequest),
    /// A call about push notifications, with its parameters, which count only where the gateway serves it.
    Push(PushCall, Value),
    ExtendedCard,
}

/// The calls about push notifications.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PushCall {
    Create,
    Get,
    List,
    Delete,
}

/// What an operation gives.
enum Outcome {
    Value(Value),
    Stream(Box<Following>),
}

impl Call<'_> {
    /// Runs the operation, unless the gateway or the grant ends first. The task goes on.
    async fn run(&self, operation: Operation) -> Result<Outcome, Ended> {
        tokio::select! {
            outcome = self.perform(operation) => outcome.map_err(Ended::Failed),
            () = self.gateway.stop.cancelled() => Err(Ended::Refused(api::stopping())),
            () = self.caller.stop.cancelled() => Err(Ended::Refused(match self.gateway.stop.is_cancelled() {
                true => api::stopping(),
                false => no_grant(),
            })),
        }
    }

    async fn perform(&self, operation: Operation) -> Result<Outcome, Failure> {
        let reached = &self.reached;
        let value = match operation {
            Operation::Send(request) => {
                let wanted = wanted(request.configuration.as_ref())?;
                let task = self.send(&request, &wanted).await?;
                let view = match wanted.is_immediate {
                    true => reached.view(task).await?,
                    false => reached.settled(task).await?,
                };
                serde_json::to_value(SendMessageResponse::Task(view.task(wanted.modes)))
            }
            Operation::SendStreaming(request) => {
                let wanted = wanted(request.configuration.as_ref())?;
                let first = self.send(&request, &wanted).await?;
                let first = reached.view(first).await?;
                return Ok(Outcome::Stream(self.following(first, wanted.modes, true)));
            }
            Operation::Get(request) => {
                check_tenant(request.tenant.as_deref())?;
                check_length("historyLength", request.history_length)?;
                serde_json::to_value(reached.get(&request.id).await?.task(Modes::ALL))
            }
            Operation::List(request) => serde_json::to_value(reached.list(&request).await?),
            Operation::Cancel(request) => serde_json::to_value(reached.cancel(&request).await?.task(Modes::ALL)),
            Operation::Subscribe(request) => {
                check_tenant(request.tenant.as_deref())?;
                let first = reached.get(&request.id).await?;
                if first.state.is_terminal() {
                    return Err(Failure::unsupported("the task has ended; get it instead"));
                }
                return Ok(Outcome::Stream(self.following(first, Modes::ALL, false)));
            }
            Operation::Push(call, params) => Ok(self.push(call, params).await?),
            Operation::ExtendedCard => return Err(Failure::unsupported("there is no extended card")),
        };
        Ok(Outcome::Value(value.unwrap_or_default()))
    }

    /// Takes a message, with its push notifications.
    async fn send(&self, request: &SendMessageRequest, wanted: &Wanted) -> Result<v1::Task, Failure> {
        let Some(given) = &wanted.push else { return self.reached.send(request).await };
        let pushes = self.gateway.pushes.as_ref().ok_or_else(Failure::no_push)?;
        pushes.check(given, wanted.modes)?;
        let task = self.reached.send(request).await?;
        pushes.create(&self.reached, &task.task_id, given, wanted.modes).await?;
        Ok(task)
    }

    async fn push(&self, call: PushCall, params: Value) -> Result<Value, Failure> {
        let pushes = self.gateway.pushes.as_ref().ok_or_else(Failure::no_push)?;
        let shown = match call {
            PushCall::Create => {
                let given: TaskPushNotificationConfig = parsed(params)?;
                self.check(given.tenant.as_deref(), &given.task_id).await?;
                serde_json::to_value(pushes.create(&self.reached, &given.task_id, &given, Modes::ALL).await?)
            }
            PushCall::Get => {
                let request: GetTaskPushNotificationConfigRequest = parsed(params)?;
                self.check(request.tenant.as_deref(), &request.task_id).await?;
                serde_json::to_value(pushes.get(&request).await?)
            }
            PushCall::List => {
                let request: ListTaskPushNotificationConfigsRequest = parsed(params)?;
                self.check(request.tenant.as_deref(), &request.task_id).await?;
                let configs = pushes.list(&request).await?;
                Ok(serde_json::json!({"configs": configs, "nextPageToken": ""}))
            }
            PushCall::Delete => {
                let request: DeleteTaskPushNotificationConfigRequest = parsed(params)?;
                self.check(request.tenant.as_deref(), &request.task_id).await?;
                pushes.delete(&request).await?;
                Ok(Value::Object(serde_json::Map::new()))
            }
        };
        Ok(shown.unwrap_or_default())
    }

    /// Checks that the task is one of this caller here.
    async fn check(&self, tenant: Option<&str>, task_id: &str) -> Result<(), Failure> {
        check_tenant(tenant)?;
        self.reached.get(task_id).await.map(drop)
    }

    fn following(&self, first: View, modes: Modes, until_asked: bool) -> Box<Following> {
        let stop = self.caller.stop.clone();
        Box::new(Following { reached: self.reached.clone(), first, modes, until_asked, stop })
    }
}

/// Why an operation has no outcome.
enum Ended {
    Failed(Failure),
    /// By the gateway, in its own form.
    Refused(Refused),
}

/// Checks the version of the protocol that a request names, in its head or in its address. None is 0.3 (A2A 3.6.2).
fn check_version(head: &Parts) -> Result<(), Failure> {
    let named = head.headers.get(SVC_PARAM_VERSION).map(|value| value.to_str().unwrap_or("?").trim().to_owned());
    let asked = || query(&head.uri).into_iter().find(|(name, _)| name.eq_ignore_ascii_case(SVC_PARAM_VERSION));
    let version =
        named.filter(|named| !named.is_empty()).or_else(|| asked().map(|(_, value)| value)).unwrap_or_default();
    if version == VERSION { Ok(()) } else { Err(Failure::version(&version)) }
}

/// The parameters of an address.
fn query(uri: &Uri) -> Vec<(String, String)> {
    axum::extract::Query::try_from_uri(uri).map(|axum::extract::Query(pairs)| pairs).unwrap_or_default()
}

/// The parameters of an operation. `Err`: names the wrong field.
fn parsed<T: DeserializeOwned>(params: Value) -> Result<T, Failure> {
    serde_path_to_error::deserialize(params).map_err(|error| {
        let problem = crate::text::clean(&error.inner().to_string(), 512);
        let path = error.path().to_string();
        Failure::invalid(if path == "." { "params" } else { &path }, problem)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn one_version_is_spoken() {
        let check = |uri: &str, version: Option<&str>| {
            let mut request = Request::builder().uri(uri);
            if let Some(version) = version {
                request = request.header("A2A-Version", version);
            }
            let (head, _) = request.body(axum::body::Body::empty()).unwrap().into_parts();
            check_version(&head).map_err(|failure| failure.code)
        };
        assert_eq!(check("/a2a/b", Some("1.0")), Ok(()));
        assert_eq!(check("/a2a/b?A2A-Version=1.0", None), Ok(()));
        for (uri, version) in [
            ("/a2a/b", None),
            ("/a2a/b", Some("")),
            ("/a2a/b", Some("0.3")),
            ("/a2a/b", Some("1.1")),
            ("/a2a/b", Some("2.0")),
            ("/a2a/b?A2A-Version=1.0", Some("0.3")),
        ] {
            assert_eq!(check(uri, version), Err(-32009), "{uri} {version:?}");
        }
    }

    #[test]
    fn a_wrong_field_is_named() {
        let wrong = json!({"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": 7}]}});
        let failure = parsed::<SendMessageRequest>(wrong).unwrap_err();
        assert_eq!(failure.code, -32602);
        assert!(failure.message.starts_with("message.parts[0]"), "{failure:?}");
        assert!(parsed::<GetTaskRequest>(json!({})).unwrap_err().message.contains("id"));
    }
}
