//! Targets that parse files from an operator and tokens from clients.

use std::{sync::LazyLock, time::Duration};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};

use super::split;
use crate::{
    broker::{
        access::Operator,
        jwt::{OperatorKeys, TokenTerms},
        queries::{make_token, parse_token},
    },
    config::{Config, Enrollment, PolicySource},
    envelope::keys::{PrivateKey, PublicKey},
    policy::{self, Action, Agent, Cases, Policies, Principal, Question, Resource, Shared, Source},
    time::Timestamp,
};

/// The configuration: an accepted file keeps its rules, also for the values that it omits.
pub(super) fn config(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    // A policy entry names files of this machine.
    if text.contains("policy") {
        return;
    }
    let Ok(config) = Config::parse("baton.toml".as_ref(), text) else { return };
    let (settings, local) = (&config.settings, config.listen.ip().is_loopback());
    assert!(local || !(settings.unsigned_allowed || config.plaintext_allowed));
    assert!(local || config.policy != PolicySource::BuiltIn(Enrollment::Open));
    let timeouts = settings.timeouts;
    for span in [timeouts.accept, timeouts.context, timeouts.complete, timeouts.whole] {
        assert!((settings.timeout_bounds.shortest..=settings.timeout_bounds.longest).contains(&span));
    }
    assert!((1..=16).contains(&settings.loop_limits.handoffs_max) && !settings.ack_wait.is_zero());
    assert!((1..=100).contains(&settings.broker_limits.network_percent_max));
    assert_eq!(settings.presence_rule(Timestamp::default()).lease, settings.presence_lease);
    drop(format!("{config:?}"));
}

/// Policies and cases: parsed policies fit the schema, so each decision can fail only by arithmetic overflow. A
/// question without a permitting rule is denied, and a repeated case or question is decided in the same way.
pub(super) fn policy(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(cases) = toml::from_str::<Cases>(text) {
        let built_in = Policies::built_in();
        for case in &cases.cases {
            assert_eq!(case.check(&built_in), case.check(&built_in));
        }
    }
    let Ok(policies) = Policies::parse(&[Source::new("fuzz.cedar", text)]) else { return };
    let alice = Agent { id: "alice", types: &[] };
    let to = Resource::Agent(Agent { id: "bob", types: &[] });
    let task = Resource::Task(Shared { id: "t", participants: &["bob"] });
    for (principal, action, resource) in [
        (Principal::Agent(alice), Action::HandOff { task_type: "refund", mode: "TRANSFER" }, to),
        (Principal::Agent(alice), Action::Send { message_type: "INFO" }, to),
        (Principal::Operator(policy::Operator { name: "olga", groups: &[] }), Action::ReadTask, task),
        (Principal::Anonymous, Action::Enroll, to),
    ] {
        let question = Question { principal, action, resource };
        let decision = policies.decide(&question);
        assert_eq!(decision, policies.decide(&question), "what is remembered is what was decided");
        assert!(!decision.is_allowed || (!decision.rules.is_empty() && decision.failures.is_empty()));
        let arithmetic = |failure: &String| failure.contains("overflow");
        assert!(decision.failures.iter().all(arithmetic), "{:?}", decision.failures);
        let known = policies.rule_ids();
        assert!(decision.rules.iter().all(|rule| known.contains(rule) && policies.rule(rule).is_some()));
    }
}

/// Keys: a parsed public key is not weak, and a parsed private key matches its public half.
pub(super) fn keys(bytes: &[u8]) {
    if let Ok(key) = PublicKey::parse(bytes) {
        assert_eq!(key.as_bytes(), bytes);
        assert!(!key.verifies(b"x", &[0; 64]), "a signature of zeros verifies");
    }
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Some(key) = PrivateKey::from_pem(text) {
        assert!(key.public().verifies(b"x", &key.sign(b"x")));
    }
    drop(OperatorKeys::parse(text, terms()));
    for pem in rustls_pki_types::pem::SliceIter::new(bytes) {
        let _: Result<(rustls_pki_types::pem::SectionKind, Vec<u8>), _> = pem;
    }
}

fn terms() -> TokenTerms {
    let (audience, groups_claim) = ("baton".to_owned(), Some("groups".to_owned()));
    TokenTerms { audience, issuer: None, leeway: Duration::ZERO, groups_claim }
}

static OPERATORS: LazyLock<(PrivateKey, OperatorKeys)> = LazyLock::new(|| {
    let key = PrivateKey::from_seed(&[9; 32]);
    let x = URL_SAFE_NO_PAD.encode(key.public().as_bytes());
    let set = format!(r#"{{"keys":[{{"kty":"OKP","crv":"Ed25519","alg":"EdDSA","kid":"k","x":"{x}"}}]}}"#);
    (key, OperatorKeys::parse(&set, terms()).expect("it is a key set"))
});

/// A bearer token: an accepted token carries a signature by the key. For the odd kind the target signs the token
/// itself, so that its claims are parsed.
pub(super) fn token(bytes: &[u8]) {
    let Some((kind, rest)) = split(bytes) else { return };
    let (key, operators) = &*OPERATORS;
    let Ok(text) = std::str::from_utf8(rest) else { return };
    if kind % 2 == 1 {
        let head = URL_SAFE_NO_PAD.encode(r#"{"alg":"EdDSA","kid":"k"}"#);
        let signed = format!("{head}.{}", URL_SAFE_NO_PAD.encode(text));
        let token = format!("{signed}.{}", URL_SAFE_NO_PAD.encode(key.sign(signed.as_bytes())));
        if let Ok(Operator { name, .. }) = operators.operator(&token, Timestamp::default()) {
            let claims: serde_json::Value = serde_json::from_str(text).expect("its claims were read");
            assert_eq!(claims["sub"], name);
            assert!(!name.is_empty() && claims["exp"].as_f64().is_some_and(|seconds| seconds > 0.0));
            assert!(
                claims["aud"] == "baton" || claims["aud"].as_array().is_some_and(|all| all.contains(&"baton".into()))
            );
        }
        return;
    }
    if operators.operator(text, Timestamp::default()).is_ok() {
        let (signed, signature) = text.rsplit_once('.').expect("a token has parts");
        let signature = URL_SAFE_NO_PAD.decode(signature).expect("it was read");
        assert!(key.public().verifies(signed.as_bytes(), &signature), "taken without a signature");
    }
}

/// A page token: an accepted token equals the token that was issued for this position in the list.
pub(super) fn page_token(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let (token, list) = text.split_once('\n').unwrap_or((text, "a list"));
    if let Ok(number) = parse_token(token, list) {
        assert_eq!(make_token(number, list), token);
    }
}
