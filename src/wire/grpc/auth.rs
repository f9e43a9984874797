//! Who makes a call: from its metadata.

use tonic::{Status, metadata::MetadataMap};

use super::refuse;
use crate::{
    broker::{Broker, BrokerError, access::Caller},
    ids::AgentId,
};

/// The caller, by the token in "authorization: Bearer TOKEN", or nobody.
pub(super) fn caller(broker: &Broker, metadata: &MetadataMap) -> Result<Caller, Status> {
    let token = match metadata.get("authorization") {
        None => None,
        Some(value) => {
            let text = value.to_str().ok().and_then(|text| text.split_once(' '));
            match text {
                Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => Some(token.trim()),
                Some(_) | None => return Err(refuse(BrokerError::TokenInvalid)),
            }
        }
    };
    broker.identities().caller(token, broker.now()).map_err(refuse)
}

/// The agent that makes the call.
pub(super) fn agent(broker: &Broker, metadata: &MetadataMap) -> Result<AgentId, Status> {
    caller(broker, metadata)?.agent().cloned().map_err(refuse)
}
