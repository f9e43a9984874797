//! SPEC 5: authentication, authorization, and limits.

use prost::Message as _;
use tonic::Code;

use super::{
    check::{Answer, Checks, NoAnswer, Problem, Refusal, Verdict, answered, fail, refused},
    story::{Stage, Story},
    world::{Actor, World, card},
};
use baton_client::{About, Client, Options, envelope::signing, proto::v1};

cases! {
    "access.plaintext-is-refused" "5"
        "A connection without TLS gets no answer to any call but a refusal." plaintext_is_refused;
    "access.session-needs-an-identity" "5"
        "Connect, Receive and Ack without a token or a certificate are refused with IDENTITY_MISSING."
        session_needs_an_identity;
    "access.made-up-token-is-refused" "5"
        "A token that the broker has not given is refused with TOKEN_INVALID." made_up_token;
    "access.challenge-needs-the-key" "5"
        "A challenge signed by another key is refused with CHALLENGE_FAILED." challenge_needs_the_key;
    "access.challenge-is-good-once" "5"
        "A challenge can be answered once; made-up and foreign ones never." challenge_is_good_once;
    "access.session-sends-only-as-its-agent" "5"
        "A session, and a call with a token, may send only as the agent it has proven to be: else SENDER_MISMATCH."
        sends_only_as_its_agent;
    "access.mailbox-is-ones-own" "5"
        "Receive takes from the mailbox of the caller, and from no other." mailbox_is_ones_own;
    "access.task-is-its-participants" "5"
        "An agent that takes no part in a task or handoff cannot read it: PERMISSION_DENIED, as for a missing one; no list entry."
        task_is_its_participants;
    "access.denied-names-the-rule" "5"
        "A denial is PERMISSION_DENIED and names the action, the resource and the rules." denied_names_the_rule;
    "access.agents-settle-no-dead-letters" "5"
        "An agent that no rule permits it cannot redrive or discard dead letters." agents_settle_no_dead_letters;
    "access.audit-log-is-the-operators" "5"
        "An agent cannot read the audit log; the operator can, and finds each act." audit_log;
    "access.stranger-cannot-enrol" "5"
        "Where enrolment is not open, a stranger without an invitation cannot register." stranger_cannot_enrol;
    "access.invitation-is-good-once" "5"
        "An invitation lets one new agent register, once, under its id; another agent is refused." invitation;
    "access.card-is-ones-own" "5"
        "A registration under an agent's id with another key, or under the broker's id, is refused." card_is_ones_own;
    "access.card-is-bounded" "5"
        "Id lengths, map sizes and lists of a card are bounded; over a bound is FIELD_INVALID." card_is_bounded;
    "access.frame-is-bounded" "5"
        "A frame over 4 MiB is refused, and the broker goes on." frame_is_bounded;
}

const MISSING: Refusal = Refusal(Code::Unauthenticated, "IDENTITY_MISSING");
const DENIED: Refusal = Refusal(Code::PermissionDenied, "PERMISSION_DENIED");

async fn plaintext_is_refused(world: World) -> Verdict {
    let server = &world.target.options.server;
    if server.starts_with("http://") {
        return Err(Problem::Skipped("the target was named without TLS".to_owned()));
    }
    let step = "a client calls ListAgents without TLS";
    let options = Options { server: format!("http://{server}"), ..Options::default() };
    let Ok(client) = world.call(Client::connect(&options)).await else { return Ok(()) };
    let request = v1::ListAgentsRequest::default();
    match world.call(async { client.answer(client.agents().list_agents(request).await) }).await {
        Err(_) => Ok(()),
        Ok(listed) => fail(step, "answer", "a refusal", format!("{} agents", listed.agents.len())),
    }
}

async fn receive(world: &World, by: &Client) -> Answer<()> {
    world.call(async { by.answer(by.messages().receive(v1::ReceiveRequest::default()).await) }).await.map(drop)
}

async fn open_session(world: &World, by: &Client) -> Answer<()> {
    world.call(baton_client::Session::open(by)).await.map(drop)
}

async fn session_needs_an_identity(world: World) -> Verdict {
    let anonymous = &world.anonymous;
    let mut checks = Checks::of("a client without an identity calls");
    checks.refused("Connect", open_session(&world, anonymous).await, MISSING);
    checks.refused("Receive", receive(&world, anonymous).await, MISSING);
    let outcome = Some(v1::acknowledgement::Outcome::Ack(v1::Ack {}));
    let acknowledgement = Some(v1::Acknowledgement { delivery_id: "1-1".to_owned(), outcome });
    let request = v1::AckRequest { acknowledgement };
    let acked = world.call(async { anonymous.answer(anonymous.messages().ack(request).await) }).await;
    checks.refused("Ack", acked, MISSING);
    checks.done()
}

async fn made_up_token(world: World) -> Verdict {
    let guessed = world.anonymous.with_token("made-up").map_err(|error| Problem::Skipped(error.to_string()))?;
    let invalid = Refusal(Code::Unauthenticated, "TOKEN_INVALID");
    let mut checks = Checks::of("a client calls with an invalid token");
    checks.refused("Connect", open_session(&world, &guessed).await, invalid);
    checks.refused("Receive", receive(&world, &guessed).await, invalid);
    checks.done()
}

const CHALLENGE: Refusal = Refusal(Code::Unauthenticated, "CHALLENGE_FAILED");

async fn challenge_needs_the_key(world: World) -> Verdict {
    let (alice, mut impostor) = (world.enrol("alice", &[]).await?, world.enrol("bob", &[]).await?);
    impostor.agent = alice.agent.clone();
    let proven = world.call(world.anonymous.prove(&impostor)).await;
    refused("bob's key answers a challenge for alice", proven, CHALLENGE)?;
    answered("alice's key answers one", world.call(world.anonymous.prove(&alice)).await).map(drop)
}

async fn challenge_is_good_once(world: World) -> Verdict {
    let (alice, bob) = (world.enrol("alice", &[]).await?, world.enrol("bob", &[]).await?);
    let challenge = async |agent_id: String| {
        let request = v1::CreateChallengeRequest { agent_id };
        world.call(async { world.anonymous.answer(world.anonymous.agents().create_challenge(request).await) }).await
    };
    let answer = async |who: &baton_client::Identity, challenge: bytes::Bytes| {
        let (agent_id, key_id) = (who.agent.to_string(), who.key_id.to_string());
        let signature = who.key.sign(&signing::session_input(&agent_id, &key_id, &challenge)).to_vec().into();
        let request = v1::CreateTokenRequest { agent_id, key_id, challenge, signature };
        let token =
            world.call(async { world.anonymous.answer(world.anonymous.agents().create_token(request).await) }).await;
        token.map(drop) // a secret: not for the report
    };
    let given = answered("alice asks for a challenge", challenge(alice.agent.to_string()).await)?.challenge;
    let mut checks = Checks::of("a challenge is answered");
    checks.refused("bob answers alice's", answer(&bob, given).await, CHALLENGE);
    let given = answered("alice asks for a challenge", challenge(alice.agent.to_string()).await)?.challenge;
    answered("alice answers it", answer(&alice, given.clone()).await)?;
    checks.refused("alice answers it again", answer(&alice, given).await, CHALLENGE);
    checks.refused("alice makes one up", answer(&alice, vec![7; 32].into()).await, CHALLENGE);
    checks.done()?;
    // The refusal of an unregistered agent would tell a stranger which agents exist.
    answered("a challenge for an agent that is not registered", challenge(world.id("unknown")).await).map(drop)
}

async fn sends_only_as_its_agent(world: World) -> Verdict {
    let (alice, bob) = (world.agent("alice").await?, world.agent("bob").await?);
    let mismatch = Refusal(Code::PermissionDenied, "SENDER_MISMATCH");
    let of_bob = bob.info(alice.id(), "by bob, truly");
    refused("alice's session sends bob's envelope", alice.submit(&of_bob).await, mismatch)?;
    let request = v1::SendRequest { envelope: of_bob.encode_to_vec().into(), ..Default::default() };
    let sent = alice.call(async { alice.client.answer(alice.client.messages().send(request.clone()).await) }).await;
    refused("a call with alice's token sends it", sent, mismatch)?;
    let sent = world.call(async { world.anonymous.answer(world.anonymous.messages().send(request).await) }).await;
    answered("a call without a token sends it: the signature proves bob", sent)?;
    alice.tell(bob.id(), &About::default(), &v1::Info::default()).await.map(drop)
}

async fn mailbox_is_ones_own(world: World) -> Verdict {
    let (alice, bob) = (world.agent("alice").await?, world.agent("bob").await?);
    let carol = world.enrol("carol", &[]).await?;
    alice.tell(carol.agent.as_str(), &About::default(), &v1::Info::default()).await?;
    alice.tell(bob.id(), &About::default(), &v1::Delegation::default()).await?;
    // The mail for carol is older. If it were in bob's mailbox, it would come first.
    bob.take(v1::MessageType::Delegation).await?;
    let carol = world.connect(&carol, 1).await?;
    carol.take(v1::MessageType::Info).await.map(drop)
}

/// Skips the case if enrolment is open: reading may be open too then, and no refusal can be observed.
pub(super) async fn skip_if_open(world: &World) -> Verdict {
    let identity = world.identity("stranger");
    match world.register(&world.anonymous, card(&identity, &[])).await {
        Ok(_) => Err(Problem::Skipped("enrolment is open at this broker, and so is reading".to_owned())),
        Err(_) => Ok(()),
    }
}

async fn task_is_its_participants(world: World) -> Verdict {
    skip_if_open(&world).await?;
    let story = Story::at(&world, Stage::Requested).await?;
    let carol = world.agent("carol").await?;
    let client = &carol.client;
    let mut checks = Checks::of("carol, who took no part, reads");
    checks.refused("GetTask", carol.task(&story.task).await, DENIED);
    checks.refused("GetTask of none", carol.task(&world.id("none")).await, DENIED);
    checks.refused("GetHandoff", carol.handoff(&story.handoff).await, DENIED);
    let none = story.alice.info(carol.id(), "").message_id;
    checks.refused("GetHandoff of none", carol.handoff(&none).await, DENIED);
    let log = v1::GetCustodyLogRequest { task_id: story.task.clone(), ..Default::default() };
    let log = carol.call(async { client.answer(client.tasks().get_custody_log(log).await) }).await;
    checks.refused("GetCustodyLog", log, DENIED);
    let watch = v1::WatchTaskRequest { task_id: story.task.clone(), after_number: 0 };
    let watch = carol.call(async { client.answer(client.tasks().watch_task(watch).await).map(drop) }).await;
    checks.refused("WatchTask", watch, DENIED);
    let list = v1::ListHandoffsRequest { task_id: story.task.clone(), ..Default::default() };
    let list = carol.call(async { client.answer(client.handoffs().list_handoffs(list).await) }).await;
    checks.same("ListHandoffs", 0, answered("carol lists the handoffs", list)?.handoffs.len());
    checks.done()?;
    answered("bob, who is the candidate, reads the handoff", story.bob.handoff(&story.handoff).await).map(drop)
}

/// Makes a dead letter of a message that alice sent, and returns its id.
async fn a_dead_letter(alice: &Actor, bob: &Actor) -> Verdict<String> {
    alice.tell(bob.id(), &About::default(), &v1::Info::default()).await?;
    let delivered = bob.next("bob gets a message").await?;
    bob.nack(&delivered, v1::NackCause::Poison, std::time::Duration::ZERO).await?;
    let filter = Some(v1::DeadLetterFilter { sender_id: alice.id().to_owned(), ..Default::default() });
    let request = v1::ListDeadLettersRequest { filter, ..Default::default() };
    let listed =
        alice.call(async { alice.client.answer(alice.client.dead_letters().list_dead_letters(request).await) }).await;
    let mut listed = answered("alice lists her dead letters", listed)?.dead_letters;
    Ok(listed.pop().unwrap_or_default().dead_letter_id)
}

async fn denied_names_the_rule(world: World) -> Verdict {
    let (alice, bob) = (world.agent("alice").await?, world.agent("bob").await?);
    let dead_letter_id = a_dead_letter(&alice, &bob).await?;
    let request = v1::RedriveDeadLetterRequest { dead_letter_id, ..Default::default() };
    let client = &alice.client;
    let answer = alice.call(async { client.answer(client.dead_letters().redrive_dead_letter(request).await) }).await;
    let step = "alice redrives a dead letter, which no rule permits her";
    let refusal = refused(step, answer, DENIED)?;
    let mut checks = Checks::of(step);
    for name in ["action", "resource", "rules"] {
        checks.holds(&format!("metadata.{name}"), refusal.metadata.contains_key(name), "set", &refusal.metadata);
    }
    checks.done()
}

async fn agents_settle_no_dead_letters(world: World) -> Verdict {
    let (alice, bob) = (world.agent("alice").await?, world.agent("bob").await?);
    let dead_letter_id = a_dead_letter(&alice, &bob).await?;
    let mut checks = Checks::of("an agent settles a dead letter of its own");
    for who in [&alice, &bob] {
        let client = &who.client;
        let redrive = v1::RedriveDeadLetterRequest { dead_letter_id: dead_letter_id.clone(), ..Default::default() };
        let redriven =
            who.call(async { client.answer(client.dead_letters().redrive_dead_letter(redrive).await) }).await;
        checks.refused(&format!("{} redrives it", who.id()), redriven, DENIED);
        let discard = v1::DiscardDeadLetterRequest { dead_letter_id: dead_letter_id.clone(), ..Default::default() };
        let discarded =
            who.call(async { client.answer(client.dead_letters().discard_dead_letter(discard).await) }).await;
        checks.refused(&format!("{} discards it", who.id()), discarded, DENIED);
    }
    checks.done()
}

pub(super) async fn read_audit(world: &World, by: &Client, after_number: u64) -> Answer<v1::ListAuditEntriesResponse> {
    let request = v1::ListAuditEntriesRequest { page_size: 1000, after_number };
    world.call(async { by.answer(by.audit().list_audit_entries(request).await) }).await
}

async fn audit_log(world: World) -> Verdict {
    let alice = world.agent("alice").await?;
    refused("alice reads the audit log", read_audit(&world, &alice.client, 0).await, DENIED)?;
    let operator = world.operator()?;
    let step = "the operator reads the audit log";
    let length = answered(step, read_audit(&world, &operator, 0).await)?.log_length;
    // The entries of this case are among the latest 1,000, however long the log is.
    let latest = answered(step, read_audit(&world, &operator, length.saturating_sub(1000)).await)?.entries;
    let about_alice = |entry: &v1::AuditLogEntry| {
        entry.entry.as_ref().is_some_and(|entry| {
            entry.subject.contains(alice.id()) && entry.action() == v1::AuditAction::AgentRegistered
        })
    };
    let mut checks = Checks::of(step);
    checks.holds("entries", latest.iter().any(about_alice), "that alice was registered", latest.len());
    checks.done()
}

async fn stranger_cannot_enrol(world: World) -> Verdict {
    skip_if_open(&world).await?;
    let identity = world.identity("stranger");
    let answer = world.register(&world.anonymous, card(&identity, &[])).await;
    refused("a stranger registers", answer, MISSING)?;
    let proven = world.call(world.anonymous.prove(&identity)).await;
    refused("and proves who it is", proven, CHALLENGE).map(drop)
}

async fn invitation(world: World) -> Verdict {
    let operator = world.operator()?;
    skip_if_open(&world).await?;
    let (alice, bob) = (world.identity("alice"), world.identity("bob"));
    let request = v1::CreateInvitationRequest { agent_id: alice.agent.to_string(), ..Default::default() };
    let made = world.call(async { operator.answer(operator.agents().create_invitation(request).await) }).await;
    let invitation = answered("the operator invites alice", made)?.invitation;
    let register = async |identity, invitation: &str| {
        let request = v1::RegisterAgentRequest { card: Some(card(identity, &[])), invitation: invitation.to_owned() };
        world.call(async { world.anonymous.answer(world.anonymous.agents().register_agent(request).await) }).await
    };
    let invalid = Refusal(Code::Unauthenticated, "INVITATION_INVALID");
    let mut checks = Checks::of("an invitation for alice is used");
    checks.refused("a made-up one", register(&alice, "made-up").await, invalid);
    checks.refused("by bob", register(&bob, &invitation).await, invalid);
    answered("alice registers with it", register(&alice, &invitation).await)?;
    checks.refused("by bob, after alice", register(&bob, &invitation).await, invalid);
    checks.done()
}

const EXISTS: [&str; 2] = ["AGENT_EXISTS", "IDENTITY_MISSING"];

async fn card_is_ones_own(world: World) -> Verdict {
    let (alice, mallory) = (world.enrol("alice", &[]).await?, world.identity("mallory"));
    let register = async |card: v1::AgentCard| world.register(&world.registrar(), card).await;
    let mut checks = Checks::of("mallory registers");
    let theirs = v1::AgentCard { agent_id: alice.agent.to_string(), ..card(&mallory, &[]) };
    let taken = world.register(&world.anonymous, theirs.clone()).await;
    // A broker without open enrolment refuses a stranger before it compares ids.
    let is_refused = matches!(&taken, Err(NoAnswer::Refused(seen)) if EXISTS.contains(&seen.reason.as_str()));
    checks.holds("as alice", is_refused, "refused: AGENT_EXISTS, or IDENTITY_MISSING", &taken);
    checks.holds("as alice, by the registrar", register(theirs).await.is_err(), "refused", "taken");
    let broker = v1::AgentCard { agent_id: "baton".to_owned(), ..card(&mallory, &[]) };
    checks.refused("as the broker", register(broker).await, Refusal(Code::InvalidArgument, "FIELD_INVALID"));
    let stolen = v1::AgentCard { keys: vec![alice.agent_key()], ..card(&mallory, &[]) };
    checks.refused("with alice's key", register(stolen).await, Refusal(Code::AlreadyExists, "KEY_TAKEN"));
    checks.done()?;
    answered("alice registers again, as she is", register(card(&alice, &[])).await).map(drop)
}

async fn card_is_bounded(world: World) -> Verdict {
    let base = card(&world.identity("alice"), &[]);
    let entries = |many: usize| (0..many).map(|number| (number.to_string(), String::new())).collect();
    let cards = [
        ("agent_id of 129 characters", v1::AgentCard { agent_id: "x".repeat(129), ..base.clone() }),
        ("33 metadata entries", v1::AgentCard { metadata: entries(33), ..base.clone() }),
        (
            "17 types",
            v1::AgentCard { agent_types: (0..17).map(|number| format!("t{number}")).collect(), ..base.clone() },
        ),
        ("description of 4097 bytes", v1::AgentCard { description: "x".repeat(4097), ..base.clone() }),
        ("65 skills", v1::AgentCard { skills: vec![v1::AgentSkill::default(); 65], ..base.clone() }),
        ("no keys", v1::AgentCard { keys: Vec::new(), ..base }),
    ];
    let mut checks = Checks::of("a card over a bound is registered");
    for (name, card) in cards {
        let answer = world.register(&world.registrar(), card).await;
        checks.refused(name, answer, Refusal(Code::InvalidArgument, "FIELD_INVALID"));
    }
    checks.done()
}

async fn frame_is_bounded(world: World) -> Verdict {
    let alice = world.agent("alice").await?;
    let request = v1::SendRequest { envelope: vec![0; 5 * 1024 * 1024].into(), ..Default::default() };
    // A separate connection: the broker may close it, as long as it does not accept the frame.
    let other = answered("the suite connects", world.call(world.target.connect()).await)?;
    // The client library would refuse to send the frame.
    let mut messages = other.messages().max_encoding_message_size(usize::MAX);
    let sent = world.call(async { other.answer(messages.send(request).await) }).await;
    let step = "a client sends a frame of 5 MiB";
    match sent {
        Ok(answer) => return fail(step, "answer", "a refusal", format!("{answer:?}")),
        Err(NoAnswer::Refused(refusal)) => {
            let is_bound = [Code::ResourceExhausted, Code::InvalidArgument, Code::OutOfRange].contains(&refusal.code);
            let mut checks = Checks::of(step);
            checks.holds("code", is_bound, "ResourceExhausted, InvalidArgument or OutOfRange", refusal.code);
            checks.done()?;
        }
        // The broker may also end the connection.
        Err(NoAnswer::Other(_)) => {}
    }
    alice.tell("", &About::default(), &v1::Heartbeat::default()).await.map(drop)
}
