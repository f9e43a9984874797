//! Authentication of a call: by its token, or by the client certificate of its connection.

use tonic::{Request, Status};

use super::refuse;
use crate::{
    broker::{
        Broker, BrokerError,
        access::{Caller, Purpose},
        identity::Credential,
    },
    ids::AgentId,
    wire::edge::ConnectInfo,
};

/// The caller: identified by the token in "authorization: Bearer TOKEN", else by the client's certificate, else
/// [`Caller::Anonymous`]. Fails if the token is invalid, or if token and certificate name different agents.
pub(super) fn caller<T>(broker: &Broker, request: &Request<T>) -> Result<Caller, Status> {
    let certified = certified(request);
    match broker.identities().caller(token(request)?, broker.directory(), broker.now()).map_err(refuse)? {
        // An unregistered agent stays anonymous, so that it can register over this connection.
        Caller::Anonymous => match certified.filter(|agent| broker.directory().is_registered(agent)) {
            Some(agent) => Ok(Caller::Agent(agent.clone())),
            None => Ok(Caller::Anonymous),
        },
        Caller::Agent(agent) => match certified.filter(|certified| **certified != agent) {
            Some(certified) => Err(refuse(BrokerError::IdentityConflict { agent, certified: certified.clone() })),
            None => Ok(Caller::Agent(agent)),
        },
        // An operator may call over an agent's connection, so the token alone decides.
        operator @ Caller::Operator(_) => Ok(operator),
    }
}

/// The token of a request, if it has one.
fn token<T>(request: &Request<T>) -> Result<Option<&str>, Status> {
    let Some(value) = request.metadata().get("authorization") else { return Ok(None) };
    match value.to_str().ok().and_then(|text| text.split_once(' ')) {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => Ok(Some(token.trim())),
        Some(_) | None => Err(refuse(BrokerError::TokenInvalid)),
    }
}

/// The caller, with what proves it again later. Fails for an anonymous caller.
pub(super) fn proven<T>(broker: &Broker, request: &Request<T>) -> Result<(Caller, Credential), Status> {
    match (caller(broker, request)?, token(request)?) {
        (_, Some(token)) => broker.identities().prove(token, broker.directory(), broker.now()).map_err(refuse),
        (Caller::Agent(agent), None) => Ok((Caller::Agent(agent.clone()), Credential::Certificate(agent))),
        (Caller::Anonymous | Caller::Operator(_), None) => Err(refuse(BrokerError::IdentityMissing)),
    }
}

/// The caller, admitted for a purpose. Fails if the purpose needs an identity and the caller has none. The call counts
/// against the caller's rate.
pub(super) fn admitted<T>(broker: &Broker, request: &Request<T>, purpose: Purpose) -> Result<Caller, Status> {
    let caller = caller(broker, request)?;
    broker.access().reach(&caller, purpose).map_err(refuse)?;
    broker.count_call(&caller).map_err(refuse)?;
    Ok(caller)
}

/// The agent that makes the call. Fails for operators and anonymous callers.
pub(super) fn agent<T>(broker: &Broker, request: &Request<T>) -> Result<AgentId, Status> {
    match (caller(broker, request)?, certified(request)) {
        // The certificate is valid, but its agent is not registered: a clearer error than a missing identity.
        (Caller::Anonymous, Some(unknown)) => Err(refuse(BrokerError::AgentUnknown { agent: unknown.to_string() })),
        (caller, _) => caller.agent().cloned().map_err(refuse),
    }
}

/// The agent named by the connection's client certificate.
fn certified<T>(request: &Request<T>) -> Option<&AgentId> {
    request.extensions().get::<ConnectInfo>()?.agent.as_ref()
}
