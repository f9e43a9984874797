//! JSON Web Tokens of operators: which are accepted, the faults of others, groups, and keys that change.

use baton::proto::v1;
use baton_client::{Client, ClientError};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::{Value, json};
use tonic::Code;

use crate::broker::{Broker, card, eventually, write};

const FAR: i64 = 4_000_000_000;

/// An issuer of tokens, and a folder with its public key.
struct Issuer {
    pair: rcgen::KeyPair,
    folder: tempfile::TempDir,
}

impl Issuer {
    fn new() -> Self {
        let issuer = Self { pair: pair(), folder: tempfile::tempdir().unwrap() };
        write(&issuer.path(), &issuer.pair.public_key_pem());
        issuer
    }

    fn path(&self) -> std::path::PathBuf {
        self.folder.path().join("operators.pem")
    }

    /// A section of the configuration with this key.
    fn section(&self) -> String {
        format!("[operators]\nkeys = {:?}\naudience = \"baton\"\n", self.path())
    }
}

fn pair() -> rcgen::KeyPair {
    rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap()
}

fn token(pair: &rcgen::KeyPair, claims: &Value) -> String {
    let key = EncodingKey::from_ed_pem(pair.serialize_pem().as_bytes()).unwrap();
    encode(&Header::new(Algorithm::EdDSA), claims, &key).unwrap()
}

fn olga(audience: &str, expires_at: i64) -> Value {
    json!({"sub": "olga", "aud": audience, "exp": expires_at})
}

async fn register(broker: &Broker, token: String) -> Result<v1::RegisterAgentResponse, ClientError> {
    let client = broker.client_with(Some(token)).await;
    let request = v1::RegisterAgentRequest { card: Some(card("a", "")), ..Default::default() };
    client.answer(client.agents().register_agent(request).await)
}

/// The text of a refusal with TOKEN_INVALID.
#[track_caller]
fn invalid<T: std::fmt::Debug>(outcome: Result<T, ClientError>) -> String {
    match outcome {
        Err(ClientError::Refused(refused)) => {
            assert_eq!((refused.code, refused.reason.as_str()), (Code::Unauthenticated, "TOKEN_INVALID"));
            refused.to_string()
        }
        other => panic!("expected TOKEN_INVALID, not {other:?}"),
    }
}

#[tokio::test]
async fn an_operator_may_show_a_token_that_the_configured_key_has_signed() {
    let issuer = Issuer::new();
    let broker = Broker::serve("", &issuer.section());
    for (claims, pair, fault) in [
        (olga("another", FAR), &issuer.pair, "for another audience (aud)"),
        (olga("baton", 1_000_000_000), &issuer.pair, "has expired"),
        (json!({"sub": "olga", "aud": "baton", "exp": FAR, "nbf": FAR}), &issuer.pair, "not valid yet"),
        (olga("baton", FAR), &pair(), "not signed by a configured key"),
    ] {
        let message = invalid(register(&broker, token(pair, &claims)).await);
        assert!(message.contains(fault), "{message}");
    }
    let message = invalid(register(&broker, "no.token.at-all".to_owned()).await);
    assert!(message.contains("malformed"), "{message}");
    eventually("the log says why", async || broker.log().contains("refused a token of an operator: it ")).await;
    register(&broker, token(&issuer.pair, &olga("baton", FAR))).await.unwrap();
}

#[tokio::test]
async fn keys_of_operators_that_change_count_from_then_on_and_broken_ones_do_not() {
    let issuer = Issuer::new();
    let broker = Broker::serve("", &issuer.section());
    let operator = broker.operator().await;
    let last_act = async || {
        let request = v1::ListAuditEntriesRequest { page_size: 1000, after_number: 0 };
        let page = operator.answer(operator.audit().list_audit_entries(request).await).unwrap();
        page.entries.last().unwrap().entry.as_ref().unwrap().action()
    };
    let old = token(&issuer.pair, &olga("baton", FAR));
    register(&broker, old.clone()).await.unwrap();
    for broken in ["", "{\"keys\": []}", "nonsense"] {
        write(&issuer.path(), broken);
        broker.hang_up();
        let is_refused = async || last_act().await == v1::AuditAction::OperatorKeysRefused;
        eventually("the refusal is on record", is_refused).await;
        register(&broker, old.clone()).await.expect("the old key stays");
        write(&issuer.path(), &issuer.pair.public_key_pem());
        broker.hang_up();
        let is_mended = async || last_act().await == v1::AuditAction::OperatorKeysLoaded;
        eventually("the mended file is taken", is_mended).await;
    }
    // The broker watches the file, without a signal.
    let next = pair();
    write(&issuer.path(), &next.public_key_pem());
    let new = token(&next, &olga("baton", FAR));
    eventually("a change is seen", async || register(&broker, new.clone()).await.is_ok()).await;
    invalid(register(&broker, old).await);
}

#[tokio::test]
async fn a_policy_permits_a_group_of_operators_what_it_denies_to_others() {
    let issuer = Issuer::new();
    let policy = issuer.folder.path().join("policy.cedar");
    let rule = "@id(\"sre\") permit(principal in Group::\"sre\", action == Action::\"readAuditLog\", resource);";
    write(&policy, rule);
    let more = format!("{}groups_claim = \"groups\"\n[policy]\npath = {policy:?}\n", issuer.section());
    let broker = Broker::serve("", &more);
    let read = async |groups: Value| {
        let mut claims = olga("baton", FAR);
        claims["groups"] = groups;
        let client: Client = broker.client_with(Some(token(&issuer.pair, &claims))).await;
        let request = v1::ListAuditEntriesRequest { page_size: 1, after_number: 0 };
        client.answer(client.audit().list_audit_entries(request).await)
    };
    read(json!(["on call", "sre"])).await.unwrap();
    match read(json!(["on call"])).await {
        Err(ClientError::Refused(refused)) => assert_eq!(refused.code, Code::PermissionDenied, "{refused}"),
        other => panic!("expected a denial, not {other:?}"),
    }
    let message = invalid(read(json!({"sre": true})).await);
    assert!(message.contains("groups"), "{message}");
}
