//! The owners of shared names, by the calls of the Rust client.

use baton::proto::v1::{RegistrationState, Registry};
use baton_client::ClientError;

use crate::broker::Broker;

#[track_caller]
fn refused<T: std::fmt::Debug>(outcome: Result<T, ClientError>, reason: &str) {
    let error = outcome.expect_err(reason);
    assert_eq!(error.reason(), Some(reason), "{error}");
}

#[tokio::test]
async fn a_name_is_handed_over_retired_and_removed() {
    let broker = Broker::start();
    let (alice, bob) = (broker.agent("alice").await.client, broker.agent("bob").await.client);
    let (schemas, name) = (Registry::Schemas, "ticket");
    for version in ["1", "2"] {
        alice.register_schema(name, version, &format!("{{\"maxLength\":{version}}}")).await.unwrap();
    }
    let first = alice.get_registration(schemas, name).await.unwrap();
    assert_eq!((first.owner_id.as_str(), first.entries, first.state()), ("alice", 2, RegistrationState::Active));

    // Another agent cannot take a name that it was not offered.
    refused(bob.transfer_registration(schemas, name, "bob", "").await, "PERMISSION_DENIED");
    let offered = alice.transfer_registration(schemas, name, "bob", &first.etag).await.unwrap();
    assert_eq!((offered.owner_id.as_str(), offered.offered_to_id.as_str()), ("alice", "bob"));
    refused(alice.transfer_registration(schemas, name, "alice", &first.etag).await, "CONFLICT");
    let taken = bob.transfer_registration(schemas, name, "bob", "").await.unwrap();
    assert_eq!((taken.owner_id.as_str(), taken.offered_to_id.as_str()), ("bob", ""));

    refused(alice.retire_registration(schemas, name, "").await, "PERMISSION_DENIED");
    let retired = bob.retire_registration(schemas, name, "").await.unwrap();
    assert_eq!(retired.state(), RegistrationState::Retired);
    let left = bob.remove_registration(schemas, name, "1", &retired.etag).await.unwrap();
    assert_eq!((left.entries, left.state()), (1, RegistrationState::Retired));
    let gone = bob.remove_registration(schemas, name, "2", "").await.unwrap();
    assert_eq!((gone.entries, gone.state()), (0, RegistrationState::Removed));
    refused(alice.get_registration(schemas, "unknown").await, "SCHEMA_UNKNOWN");
}
