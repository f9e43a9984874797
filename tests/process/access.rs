//! Authorization as operators and agents meet it: changing policies, keys, the audit log, and objects of other agents.

use std::path::PathBuf;

use baton::{
    envelope::keys::PrivateKey,
    ids::{AgentId, KeyId},
    proto::v1::{self, MessageType},
};
use baton_client::{About, Client, ClientError, Options, Trust, vouch};
use prost::Message as _;
use serde_json::Value;
use tonic::Code;

use crate::broker::{Broker, a_request, card, composer, eventually, exit_of, identity, new_task, write};

#[track_caller]
fn refused<T: std::fmt::Debug>(outcome: Result<T, ClientError>, code: Code, reason: &str) -> String {
    match outcome {
        Err(ClientError::Refused(refused)) => {
            assert_eq!((refused.code, refused.reason.as_str()), (code, reason), "{refused}");
            refused.to_string()
        }
        other => panic!("expected {reason}, not {other:?}"),
    }
}

/// Starts a broker with its own policy files: the default policy and `more`.
fn with_policy(more: &str) -> (Broker, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    write(&folder.path().join("default.cedar"), baton::policy::DEFAULT);
    write(&folder.path().join("more.cedar"), more);
    (Broker::serve("", &format!("[policy]\npath = {:?}\n", folder.path())), folder)
}

async fn register(client: &Client, card: v1::AgentCard) -> Result<v1::RegisterAgentResponse, ClientError> {
    let request = v1::RegisterAgentRequest { card: Some(card), ..Default::default() };
    client.answer(client.agents().register_agent(request).await)
}

async fn ask_to_take(client: &Client, from: &str, to: &str) -> Result<v1::SendResponse, ClientError> {
    let envelope = composer(from).encode(to, MessageType::HandoffRequest, &About::task(&new_task(), 1), &a_request());
    client.answer(client.messages().send(v1::SendRequest { envelope, ..Default::default() }).await)
}

async fn audit_log(client: &Client) -> Vec<v1::AuditEntry> {
    let request = v1::ListAuditEntriesRequest { page_size: 1000, after_number: 0 };
    let page = client.answer(client.audit().list_audit_entries(request).await).unwrap();
    page.entries.into_iter().filter_map(|shown| shown.entry).collect()
}

const FORBID: &str = "@id(\"not-to-b\") forbid(principal, action == Action::\"handOff\", resource == Agent::\"b\");";

#[tokio::test]
async fn a_policy_that_changes_counts_from_then_on_and_a_broken_one_does_not() {
    let (broker, folder) = with_policy("");
    let operator = broker.operator().await;
    for name in ["a", "b"] {
        register(&operator, card(name, "")).await.unwrap();
    }
    let a = broker.client_of("a").await;
    ask_to_take(&a, "a", "b").await.unwrap();
    write(&folder.path().join("more.cedar"), FORBID);
    broker.hang_up();
    eventually("the new policy counts", async || ask_to_take(&a, "a", "b").await.is_err()).await;
    let message = refused(ask_to_take(&a, "a", "b").await, Code::PermissionDenied, "PERMISSION_DENIED");
    assert!(message.contains("forbidden by not-to-b"), "{message}");
    let deep = format!("permit(principal, action, resource) when {{ {}true{} }};", "(".repeat(600), ")".repeat(600));
    for broken in ["permit(principal, action", "permit(principal is Robot, action, resource);", &deep] {
        write(&folder.path().join("more.cedar"), broken);
        broker.hang_up();
        let is_on_record = async || {
            let last = audit_log(&operator).await.pop().unwrap();
            last.action() == v1::AuditAction::PolicyRefused && last.details.contains("more.cedar")
        };
        eventually("the refusal is on record", is_on_record).await;
        refused(ask_to_take(&a, "a", "b").await, Code::PermissionDenied, "PERMISSION_DENIED");
        write(&folder.path().join("more.cedar"), FORBID);
        broker.hang_up();
        let is_mended = async || audit_log(&operator).await.pop().unwrap().action() == v1::AuditAction::PolicyLoaded;
        eventually("the mended one is taken", is_mended).await;
    }
    // The broker watches the files and their folder, without a signal.
    std::fs::remove_file(folder.path().join("more.cedar")).unwrap();
    eventually("a change is seen", async || ask_to_take(&a, "a", "b").await.is_ok()).await;
}

#[test]
fn a_broker_does_not_start_with_a_broken_policy() {
    let folder = tempfile::tempdir().unwrap();
    let policy = folder.path().join("policy.cedar");
    let dev = || {
        let mut command = crate::broker::baton();
        command.args(["dev", "--port", "0", "--data"]).arg(folder.path().join("data")).arg("--policy").arg(&policy);
        exit_of(&mut command)
    };
    let (code, message) = dev();
    assert!(code == Some(3) && message.contains("policy.cedar"), "{message}");
    write(&policy, "permit(principal, action == Action::\"fly\", resource);");
    let (code, message) = dev();
    assert!(code == Some(3) && message.contains("fly"), "{message}");
}

#[test]
fn policies_are_checked_tested_and_explained_by_command() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let run = |arguments: &[&str]| {
        let output = crate::broker::baton().current_dir(folder.path()).arg("policy").args(arguments).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (code, default, _) = run(&["show", "default"]);
    assert_eq!(code, Some(0));
    write(&path("good.cedar"), &format!("{default}\n{FORBID}"));
    let (code, said, warned) = run(&["check", "good.cedar"]);
    assert_eq!((code, said.as_str(), warned.as_str()), (Some(0), "good.cedar: 13 rules, 0 warnings\n", ""));
    write(&path("shadowed.cedar"), &format!("{default}\n@id(\"none\") forbid(principal, action, resource);"));
    let (code, _, warned) = run(&["check", "shadowed.cedar"]);
    assert_eq!(code, Some(0));
    assert!(
        warned.contains("rule operators never decides anything: rule none forbids all that it permits"),
        "{warned}"
    );
    assert_eq!(run(&["check", "--deny-warnings", "shadowed.cedar"]).0, Some(3));
    write(&path("broken.cedar"), "permit(principal,\naction");
    let (code, _, warned) = run(&["check", "broken.cedar"]);
    assert!(code == Some(3) && warned.contains("broken.cedar, line 2"), "{warned}");

    let case = |resource: &str, expect: &str| {
        format!(
            "[[case]]\nprincipal = \"agent:a\"\naction = \"handOff\"\nresource = {resource:?}\nexpect = {expect:?}\n"
        )
    };
    write(&path("cases.toml"), &[case("agent:b", "deny"), case("agent:c", "allow")].concat());
    let (code, said, _) = run(&["test", "--policy", "good.cedar", "cases.toml"]);
    assert_eq!(code, Some(0), "{said}");
    let (code, said, warned) = run(&["test", "cases.toml"]);
    assert!(code == Some(1) && said.contains("FAILED  agent:a handOff agent:b: expected Deny"), "{said}");
    assert!(warned.contains("1 of 2 cases failed"), "{warned}");

    let asked = ["explain", "--principal", "agent:a", "--action", "handOff", "--resource", "agent:b"];
    let (_, said, _) = run(&[&asked[..], &["--policy", "good.cedar"]].concat());
    let said: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((said["allowed"].as_bool(), said["why"].as_str()), (Some(false), Some("forbidden by not-to-b")));
    assert!(said["rules"][0]["text"].as_str().unwrap().contains("forbid"), "{said}");
    let (code, _, warned) = run(&["explain", "--principal", "agent:a", "--action", "fly", "--resource", "agent:b"]);
    assert!(code == Some(2) && warned.contains("handOff"), "{warned}");
}

#[tokio::test]
async fn agents_read_only_their_own() {
    let broker = Broker::serve("", "");
    let operator = broker.operator().await;
    for name in ["a", "b", "c"] {
        register(&operator, card(name, "")).await.unwrap();
    }
    let (a, c) = (broker.client_of("a").await, broker.client_of("c").await);
    let receipt = ask_to_take(&a, "a", "b").await.unwrap().receipt.unwrap();
    let (task_id, handoff_id) = (receipt.task_id, receipt.handoff_id);
    let denied = |outcome: Result<(), ClientError>| {
        let message = refused(outcome, Code::PermissionDenied, "PERMISSION_DENIED");
        assert!(message.contains("no policy permits it"), "{message}");
    };
    let read_task = c.tasks().get_task(v1::GetTaskRequest { task_id: task_id.clone() }).await;
    denied(c.answer(read_task).map(drop));
    let log = v1::GetCustodyLogRequest { task_id: task_id.clone(), include_envelopes: true, ..Default::default() };
    denied(c.answer(c.tasks().get_custody_log(log).await).map(drop));
    let watch = c.tasks().watch_task(v1::WatchTaskRequest { task_id, after_number: 0 }).await;
    denied(c.answer(watch).map(drop));
    let watch = c.handoffs().watch_handoff(v1::WatchHandoffRequest { handoff_id: handoff_id.clone() }).await;
    denied(c.answer(watch).map(drop));
    // A mailbox is selected only by the caller's identity: c reads its own mailbox, which is empty.
    let receive = v1::ReceiveRequest { max_deliveries: 1, ..Default::default() };
    let mut mail = c.answer(c.messages().receive(receive).await).unwrap();
    assert!(tokio::time::timeout(std::time::Duration::from_millis(300), mail.message()).await.is_err());
    // b rejects and is the only candidate: the request becomes a dead letter of a and b.
    let b = broker.agent_session("b").await;
    let request = b.take().await.unwrap();
    b.reject(&request, &v1::HandoffReject { reason: v1::RejectReason::Other.into(), ..Default::default() })
        .await
        .unwrap();
    let list = v1::ListDeadLettersRequest::default();
    let dead = a.answer(a.dead_letters().list_dead_letters(list.clone()).await).unwrap().dead_letters.remove(0);
    let get = v1::GetDeadLetterRequest { dead_letter_id: dead.dead_letter_id.clone() };
    denied(c.answer(c.dead_letters().get_dead_letter(get).await).map(drop));
    let dead_letter_id = dead.dead_letter_id.clone();
    let redrive = v1::RedriveDeadLetterRequest { dead_letter_id, to_agent_id: "c".into() };
    denied(a.answer(a.dead_letters().redrive_dead_letter(redrive).await).map(drop));
    assert_eq!(c.answer(c.dead_letters().list_dead_letters(list).await).unwrap().dead_letters, []);
    denied(c.answer(c.audit().list_audit_entries(v1::ListAuditEntriesRequest::default()).await).map(drop));
}

#[tokio::test]
async fn a_revoked_key_ends_the_session_and_the_token_that_it_opened() {
    let broker = Broker::serve("", "");
    let operator = broker.operator().await;
    for name in ["a", "b"] {
        register(&operator, card(name, "")).await.unwrap();
    }
    let agent = broker.agent_session("a").await;
    let by_token = agent.client.clone();
    by_token.agents().list_agents(v1::ListAgentsRequest::default()).await.unwrap();
    let receive = by_token.messages().receive(v1::ReceiveRequest::default()).await;
    let mut mail = by_token.answer(receive).unwrap();
    let (code, said) = exit_of(&mut broker.command(&["agent", "key", "revoke", "a", "k1", "--reason", "lost"]));
    assert_eq!(code, Some(0), "{said}");
    let ended = agent.next().await.unwrap_err().to_string();
    assert!(ended.contains("a key of the agent was revoked"), "{ended}");
    let last = mail.message().await.map(tonic::Response::new);
    let ended = refused(by_token.answer(last).map(drop), Code::Unauthenticated, "KEY_NOT_VALID");
    assert!(ended.contains("a key of the agent was revoked"), "{ended}");
    // The token is refused, so the client proves its key again, and the key is refused, too.
    let list = by_token.agents().list_agents(v1::ListAgentsRequest::default()).await;
    refused(by_token.answer(list).map(drop), Code::Unauthenticated, "CHALLENGE_FAILED");
    let client = broker.client().await;
    refused(client.prove(&identity("a")).await, Code::Unauthenticated, "CHALLENGE_FAILED");
    let info = composer("a").encode("b", MessageType::Info, &About::default(), &v1::Info::default());
    refused(
        client.answer(client.messages().send(v1::SendRequest { envelope: info, ..Default::default() }).await),
        Code::Unauthenticated,
        "KEY_NOT_VALID",
    );
    let last = audit_log(&operator).await.pop().unwrap();
    assert_eq!((last.action(), last.actor.as_str()), (v1::AuditAction::KeyRevoked, "operator operator.token"));
    assert_eq!((last.subject.as_str(), last.details.as_str()), ("a", "key k1: lost"));
}

#[tokio::test]
async fn the_audit_log_is_on_record_over_restarts_and_its_chain_holds() {
    let broker = Broker::serve("", "");
    let operator = broker.operator().await;
    register(&operator, card("a", "billing")).await.unwrap();
    let second = hex::encode(PrivateKey::from_seed(&[2; 32]).public().as_bytes());
    broker.lines(&["agent", "invite", "--for", "c", "--type", "billing"]);
    broker.lines(&["agent", "key", "add", "a", "k2", "--public-key", &second, "--replaces", "k1"]);
    let broker = Broker::serve_again(broker.kill());
    let log = broker.lines(&["audit"]);
    let acts: Vec<&str> = log
        .iter()
        .map(|shown| shown["entry"]["action"].as_str().unwrap().trim_start_matches("AUDIT_ACTION_"))
        .collect();
    let expected = ["POLICY_LOADED", "AGENT_REGISTERED", "INVITATION_CREATED", "KEY_ADDED", "POLICY_LOADED"];
    // The first start is that of the development broker that made the folder.
    assert_eq!(acts[acts.len() - 5..], expected);
    let invited = log[acts.len() - 3]["entry"]["details"].as_str().unwrap();
    assert!(invited.contains("for c") && invited.contains("billing"), "{invited}");
    let text = log.iter().map(Value::to_string).collect::<String>();
    assert!(!text.contains("invitation-"), "no secrets in it");
}

#[tokio::test]
async fn a_receiver_can_believe_an_operator_instead_of_the_broker() {
    let broker = Broker::start();
    let (a, b) = (broker.agent("a").await, broker.agent("b").await);
    let ops = PrivateKey::from_seed(&[7; 32]);
    let ops_id = KeyId::parse("ops").unwrap();
    let trust = Trust::Operators([(ops_id.clone(), ops.public())].into());
    let b = b.trusting(trust.clone());
    let info = v1::Info::default();
    a.send("b", MessageType::Info, &About::default(), &info).await.unwrap();
    let error = b.next().await.unwrap_err();
    assert!(error.to_string().contains("the sender of a message does not verify"), "{error}");
    let (agent, key_id) = (AgentId::parse("a").unwrap(), KeyId::parse("k1").unwrap());
    let voucher = vouch(&ops, &ops_id, &agent, &key_id, &identity("a").key.public(), None);
    let operator = broker.operator().await;
    let request =
        v1::VouchForAgentKeyRequest { agent_id: "a".into(), key_id: "k1".into(), voucher: Some(voucher.clone()) };
    operator.answer(operator.agents().vouch_for_agent_key(request).await).unwrap();
    a.send("b", MessageType::Info, &About::default(), &info).await.unwrap();
    b.next().await.expect("an operator vouches for the key");
    let pinned = Trust::Pinned([(agent, vec![PrivateKey::from_seed(&[9; 32]).public()])].into());
    let b = b.trusting(pinned);
    a.send("b", MessageType::Info, &About::default(), &info).await.unwrap();
    assert!(b.next().await.is_err(), "another key is pinned");
    let own = v1::KeyVoucher { signature: vec![0; 63].into(), ..voucher };
    let request = v1::VouchForAgentKeyRequest { agent_id: "a".into(), key_id: "k1".into(), voucher: Some(own) };
    refused(
        operator.answer(operator.agents().vouch_for_agent_key(request).await),
        Code::InvalidArgument,
        "FIELD_INVALID",
    );
}

#[tokio::test]
async fn a_message_that_is_sent_again_is_not_applied_again_wherever_it_comes_from() {
    let broker = Broker::start();
    let (a, b, c) = (broker.agent("a").await, broker.agent("b").await, broker.agent("c").await);
    let envelope = composer("a").encode("b", MessageType::Info, &About::default(), &v1::Info::default());
    let first = a.session.send(envelope.clone()).await.unwrap();
    b.take().await.unwrap();
    // A repeat gets the first receipt: in another session of the same agent, by a call without a token, and after a
    // crash.
    let again = broker.agent("a").await;
    assert_eq!(again.session.send(envelope.clone()).await.unwrap(), first);
    let anonymous = broker.client().await;
    let sent = anonymous.messages().send(v1::SendRequest { envelope: envelope.clone(), ..Default::default() }).await;
    assert_eq!(anonymous.answer(sent).unwrap().receipt.unwrap(), first);
    // An operator's token does not permit sending as the agent, although the operator may do everything else.
    let operator = broker.operator().await;
    let sent = operator.messages().send(v1::SendRequest { envelope: envelope.clone(), ..Default::default() }).await;
    refused(operator.answer(sent), Code::PermissionDenied, "SENDER_MISMATCH");
    // Another agent's session does not permit it either.
    refused(c.session.send(envelope.clone()).await, Code::PermissionDenied, "SENDER_MISMATCH");
    let broker = Broker::start_in(broker.kill(), &[]);
    let a = broker.agent("a").await;
    assert_eq!(a.session.send(envelope.clone()).await.unwrap(), first);
    // The same id with other content is a different message.
    let mut other = v1::Envelope::decode(envelope).unwrap();
    other.receiver_id = "c".into();
    baton::envelope::sign(&mut other, &KeyId::parse("k1").unwrap(), &identity("a").key);
    refused(a.session.send(other.encode_to_vec().into()).await, Code::AlreadyExists, "MESSAGE_ID_REUSED");
    let b = broker.agent("b").await;
    assert!(tokio::time::timeout(std::time::Duration::from_millis(300), b.next()).await.is_err(), "delivered once");
}

#[tokio::test]
async fn plaintext_is_only_where_it_was_asked_for_and_never_to_another_machine() {
    let broker = Broker::start_in(std::sync::Arc::new(tempfile::tempdir().unwrap()), &["--plaintext"]);
    let options = |server: String| Options { server, ..Options::default() };
    let plain = Client::connect(&options(format!("http://{}", broker.address))).await.unwrap();
    register(&plain, card("a", "")).await.unwrap();
    plain.prove(&identity("a")).await.unwrap();
    broker.agent("b").await; // over TLS, on the same port
    let closed = Broker::start();
    let plain = Client::connect(&options(format!("http://{}", closed.address))).await.unwrap();
    refused(register(&plain, card("a", "")).await, Code::Unauthenticated, "TLS_REQUIRED");
    let afar = Client::connect(&options("http://192.0.2.1:22866".to_owned())).await;
    assert!(matches!(afar, Err(ClientError::PlaintextAfar { .. })), "{afar:?}");
    let mut command = crate::broker::baton();
    command.args(["dev", "--plaintext", "--listen", "0.0.0.0:0", "--data"]).arg(broker.folder.path().join("other"));
    let (code, message) = exit_of(&mut command);
    assert!(code == Some(3) && message.contains("loopback"), "{message}");
}

#[tokio::test]
async fn no_secret_and_no_payload_is_in_the_log() {
    let folder = std::sync::Arc::new(tempfile::tempdir().unwrap());
    let mut command = crate::broker::baton();
    command.args(["dev", "--port", "0", "--data"]).arg(folder.path().join("data")).env("BATON_LOG", "baton=trace");
    let broker = Broker::spawn(command, folder);
    let (a, _b) = (broker.agent("a").await, broker.agent("b").await);
    let token = broker.client().await.prove(&identity("a")).await.unwrap();
    let info = v1::Info { text: "the-payload".to_owned(), ..Default::default() };
    a.send("b", MessageType::Info, &About::default(), &info).await.unwrap();
    let operator = broker.operator().await;
    let made = operator.agents().create_invitation(v1::CreateInvitationRequest::default()).await;
    let invitation = operator.answer(made).unwrap().invitation;
    let wrong = broker.client_with(Some("a-wrong-token".to_owned())).await;
    let list = wrong.agents().list_agents(v1::ListAgentsRequest::default()).await;
    refused(wrong.answer(list).map(drop), Code::Unauthenticated, "TOKEN_INVALID");
    let log = broker.log();
    assert!(log.contains("registered an agent") && log.contains("accepted an envelope"), "it does log");
    let secrets = [&token, &broker.operator_token(), &invitation, "a-wrong-token", "the-payload", "PRIVATE KEY"];
    for secret in secrets {
        assert!(!log.contains(secret), "{secret} is in the log");
    }
}

/// The folder and everything in it: path, whether it is a folder, and permissions.
fn modes(folder: &std::path::Path) -> Vec<(PathBuf, bool, u32)> {
    use std::os::unix::fs::PermissionsExt as _;
    let mut found = Vec::new();
    let mut left = vec![folder.to_owned()];
    while let Some(path) = left.pop() {
        let Ok(metadata) = std::fs::metadata(&path) else { continue }; // compaction has removed the file
        if metadata.is_dir() {
            left.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        found.push((path, metadata.is_dir(), metadata.permissions().mode() & 0o777));
    }
    found
}

#[track_caller]
fn assert_only_the_broker_can_read(data: &std::path::Path) {
    for (path, is_folder, mode) in modes(data) {
        assert_eq!(mode, if is_folder { 0o700 } else { 0o600 }, "{} has mode {mode:o}", path.display());
    }
}

/// Starts `baton dev` in a shell with umask 0.
fn start_with_umask_0(folder: std::sync::Arc<tempfile::TempDir>) -> Broker {
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "umask 0; exec \"$0\" dev --port 0 --data \"$1\"", env!("CARGO_BIN_EXE_baton")]);
    command.arg(folder.path().join("data"));
    Broker::spawn(command, folder)
}

#[tokio::test]
async fn everything_in_the_data_folder_is_the_brokers_own_and_is_made_so_again() {
    use std::os::unix::fs::PermissionsExt;
    let broker = start_with_umask_0(std::sync::Arc::new(tempfile::tempdir().unwrap()));
    let (a, _b) = (broker.agent("a").await, broker.agent("b").await);
    let info = v1::Info { text: "x".repeat(30_000), ..Default::default() };
    for _ in 0..20 {
        a.send("b", MessageType::Info, &About::default(), &info).await.unwrap();
    }
    let is_table = |(path, ..): &(PathBuf, bool, u32)| path.parent().is_some_and(|folder| folder.ends_with("tables"));
    let has_tables = async || modes(&broker.data().join("store")).iter().filter(|file| is_table(file)).count() > 2;
    eventually("records are written into tables", has_tables).await;
    assert_only_the_broker_can_read(&broker.data());
    let (folder, data) = (broker.kill(), |folder: &tempfile::TempDir| folder.path().join("data"));
    for (path, is_folder, _) in modes(&data(&folder)) {
        std::fs::set_permissions(path, PermissionsExt::from_mode(if is_folder { 0o755 } else { 0o644 })).unwrap();
    }
    let broker = start_with_umask_0(folder);
    assert_only_the_broker_can_read(&broker.data());
    assert!(broker.log().contains("removed the permissions of other users from the data folder"), "{}", broker.log());
    broker.client_of("a").await;
    // A folder with other files keeps its permissions.
    let shared = tempfile::tempdir().unwrap();
    std::fs::set_permissions(shared.path(), PermissionsExt::from_mode(0o755)).unwrap();
    write(&shared.path().join("holiday.jpg"), "not ours");
    let mut command = crate::broker::baton();
    let (code, said) = exit_of(command.args(["dev", "--port", "0", "--data"]).arg(shared.path()));
    assert!(code == Some(3) && said.contains("other users can access") && said.contains("--data"), "{said}");
    assert_eq!(modes(shared.path()).len(), 2);
}
