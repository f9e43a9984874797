//! An admitted call: its caller, and its ways to the broker.
//!
//! Owns the admission of every call, from its row in [`crate::wire::operations`]. A function of a call has nothing but a
//! [`Call`] to reach the broker by, and only the admission makes one: so no call is without a right.

use std::sync::Arc;

use bytes::Bytes;
use prost::Message;
use tonic::{Request, Status, metadata::MetadataMap};

use super::{blobs::BlobStreams, bounds::Unread, frames::decoded, refuse, refuse_shared};
use crate::{
    broker::{
        Broker, BrokerError, Reply,
        access::{Caller, Purpose},
        engine::Command,
        identity::Credential,
        places::WorkSize,
        queries::View,
    },
    ids::AgentId,
    records::Registry,
    wire::{
        edge::ConnectInfo,
        operations::{Effect, Operation, Rate, Right, Row},
    },
};

/// A call whose caller is admitted.
pub(super) struct Call {
    pub(super) broker: Broker,
    /// The caller. Anonymous in a call that reads no token.
    pub(super) caller: Caller,
    /// What proves the caller again later. `None`: the row of the call does not ask for it.
    pub(super) credential: Option<Credential>,
    pub(super) connection: Connection,
    /// The streams of blobs of all calls.
    pub(super) blobs: Arc<BlobStreams>,
    row: &'static Row,
}

/// What the layers below say of a call's connection.
#[derive(Default)]
pub(super) struct Connection {
    /// `None`: a test of the services alone.
    pub(super) info: Option<ConnectInfo>,
    /// The bytes that a session may leave unread. `None`: the client sends no stream.
    pub(super) unread: Option<Unread>,
}

/// The services of a broker, which admit their calls.
#[derive(Clone)]
pub(super) struct Services {
    broker: Broker,
    blobs: Arc<BlobStreams>,
}

impl Services {
    pub(super) fn new(broker: Broker) -> Self {
        Self { broker, blobs: Arc::default() }
    }

    /// Admits a call: finds its caller, checks the right of its row, and counts it against the rates of the caller.
    /// `registry` is the number in a request about a name; the rest of the request has its metadata and extensions.
    pub(super) fn admit(
        &self,
        operation: Operation,
        request: Request<()>,
        registry: Option<i32>,
    ) -> Result<Call, Status> {
        let (metadata, extensions, ()) = request.into_parts();
        let connection =
            Connection { info: extensions.get::<ConnectInfo>().cloned(), unread: extensions.get::<Unread>().cloned() };
        let (broker, row) = (&self.broker, operation.row());
        let certified = connection.info.as_ref().and_then(|info| info.agent.as_ref());
        let (caller, credential) = match row.right {
            Right::Unproven => (Caller::Anonymous, None),
            Right::Proven => proven(broker, token(&metadata)?, certified).map(|(caller, by)| (caller, Some(by)))?,
            Right::Open | Right::Sender | Right::Agent | Right::May(_) | Right::MayRegister | Right::ReadsDirectory => {
                (caller(broker, token(&metadata)?, certified)?, None)
            }
        };
        check(broker, row.right, &caller, certified, registry)?;
        count(broker, row.rate, &caller).map_err(refuse)?;
        let (broker, blobs) = (broker.clone(), self.blobs.clone());
        Ok(Call { broker, caller, credential, connection, blobs, row })
    }
}

/// The caller: identified by the token, else by the client's certificate, else [`Caller::Anonymous`]. Fails if the token
/// is invalid, or if token and certificate name different agents.
fn caller(broker: &Broker, token: Option<&str>, certified: Option<&AgentId>) -> Result<Caller, Status> {
    match broker.identities().caller(token, broker.directory(), broker.now()).map_err(refuse)? {
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

/// The token in "authorization: Bearer TOKEN", if the call has one.
fn token(metadata: &MetadataMap) -> Result<Option<&str>, Status> {
    let Some(value) = metadata.get("authorization") else { return Ok(None) };
    match value.to_str().ok().and_then(|text| text.split_once(' ')) {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => Ok(Some(token.trim())),
        Some(_) | None => Err(refuse(BrokerError::TokenInvalid)),
    }
}

/// The caller, with what proves it again later. Fails for an anonymous caller.
fn proven(broker: &Broker, token: Option<&str>, certified: Option<&AgentId>) -> Result<(Caller, Credential), Status> {
    match (caller(broker, token, certified)?, token) {
        (_, Some(token)) => broker.identities().prove(token, broker.directory(), broker.now()).map_err(refuse),
        (Caller::Agent(agent), None) => Ok((Caller::Agent(agent.clone()), Credential::Certificate(agent))),
        (Caller::Anonymous | Caller::Operator(_), None) => Err(refuse(BrokerError::IdentityMissing)),
    }
}

/// Checks that a caller has the right of a row.
fn check(
    broker: &Broker,
    right: Right,
    caller: &Caller,
    certified: Option<&AgentId>,
    registry: Option<i32>,
) -> Result<(), Status> {
    let reach = |purpose| broker.access().reach(caller, purpose).map(drop);
    let checked = match right {
        Right::Unproven | Right::Open | Right::Proven => Ok(()),
        Right::Sender => match caller {
            Caller::Anonymous | Caller::Agent(_) => Ok(()),
            // A caller with a token sends only as itself (SPEC 5), and an operator is no agent.
            Caller::Operator(_) => Err(BrokerError::SenderNoAgent { caller: caller.to_string() }),
        },
        Right::Agent => match (caller, certified) {
            // The certificate is valid, but its agent is not registered: a clearer error than a missing identity.
            (Caller::Anonymous, Some(unknown)) => Err(BrokerError::AgentUnknown { agent: unknown.to_string() }),
            (Caller::Anonymous | Caller::Agent(_) | Caller::Operator(_), _) => caller.agent().map(drop),
        },
        Right::May(purpose) => reach(purpose),
        // The function of the call refuses the number of an unknown registry.
        Right::MayRegister => {
            let registry = registry.and_then(Registry::from_number);
            reach(registry.map_or(Purpose::RegisterGraph, Purpose::of_registering))
        }
        Right::ReadsDirectory => broker.access().may_see_directory(caller),
    };
    checked.map_err(refuse)
}

fn count(broker: &Broker, rate: Rate, caller: &Caller) -> Result<(), BrokerError> {
    match rate {
        Rate::None => Ok(()),
        Rate::Call => broker.count_call(caller),
        Rate::NameChange => {
            broker.count_call(caller)?;
            broker.count_name_change(caller)
        }
        Rate::CardChange => broker.count_card_change(caller),
    }
}

impl Call {
    /// The agent that makes the call. Fails for operators and anonymous callers, whom the row has refused already.
    pub(super) fn agent(&self) -> Result<&AgentId, Status> {
        self.caller.agent().map_err(refuse)
    }

    /// Checks that the caller may register agents without an invitation.
    pub(super) fn may_enroll(&self) -> Result<(), Status> {
        self.broker.access().reach(&self.caller, Purpose::Enroll).map(drop).map_err(refuse)
    }

    /// The call as the sender of its envelope makes it. Only for an envelope that the broker has accepted: its signature
    /// has proved the sender.
    pub(super) fn of_sender(&self, sender: AgentId) -> Self {
        debug_assert_eq!(self.row.right, Right::Sender, "{} proves no sender", self.row.path);
        Self {
            broker: self.broker.clone(),
            caller: Caller::Agent(sender),
            credential: None,
            connection: Connection::default(),
            blobs: self.blobs.clone(),
            row: self.row,
        }
    }

    /// Asks the engine for a change by this caller. Returns after the commit.
    pub(super) async fn ask<T>(&self, command: impl FnOnce(Caller, Reply<T>) -> Command) -> Result<T, Status> {
        debug_assert_eq!(self.row.effect, Effect::Write, "{} changes the state", self.row.path);
        self.broker.ask(|reply| command(self.caller.clone(), reply)).await.map_err(refuse_shared)
    }

    /// Runs a small read beside the threads of connections.
    pub(super) async fn read_small<T: Send + 'static>(
        &self,
        read: impl FnOnce(View<'_>) -> Result<T, BrokerError> + Send + 'static,
    ) -> Result<T, Status> {
        self.read(WorkSize::Small, read).await.map_err(refuse)
    }

    /// Runs a large read or check beside the threads of connections.
    pub(super) async fn read_large<T: Send + 'static>(
        &self,
        read: impl FnOnce(View<'_>) -> Result<T, BrokerError> + Send + 'static,
    ) -> Result<T, Status> {
        self.read(WorkSize::Large, read).await.map_err(refuse)
    }

    /// Runs a read of this size, for a caller that handles its error.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        size: WorkSize,
        read: impl FnOnce(View<'_>) -> Result<T, BrokerError> + Send + 'static,
    ) -> Result<T, BrokerError> {
        let (reader, reading) = (self.broker.clone(), self.caller.clone());
        self.run(size, move || read(reader.view(&reading))).await?
    }

    /// Runs the large work of a whole call, as [`Self::read_large`] does.
    pub(super) async fn run_large<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Broker, &Caller) -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        let (worker, working) = (self.broker.clone(), self.caller.clone());
        self.run(WorkSize::Large, move || work(&worker, &working)).await.map_err(refuse)?
    }

    /// Decodes a large request beside the threads of connections. The work is charged to the caller.
    pub(super) async fn decode<Q: Message + Default + 'static>(&self, frame: Bytes) -> Result<Q, Status> {
        self.broker.workers().run(&self.caller, WorkSize::Large, move || decoded(frame)).await.map_err(refuse)?
    }

    /// Runs work of this size beside the threads of connections. The work is charged to the caller.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        size: WorkSize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, BrokerError> {
        debug_assert!(size == WorkSize::Small || size == self.row.size, "{} has large work", self.row.path);
        self.broker.workers().run(&self.caller, size, work).await
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use tonic_types::StatusExt as _;

    use super::{
        super::{serve::Arrived, submit},
        *,
    };
    use crate::{
        broker::{AgentLimits, BrokerIdentity, Resources, Settings, Signer, access::Operator, identity::Identities},
        envelope::keys::PrivateKey,
        ids::{KeyId, SystemIds},
        policy::{DEFAULT, Policies, Source},
        proto::v1,
        store::MemoryStore,
        time::SystemClock,
        wire::operations::OPERATIONS,
    };

    fn broker() -> Broker {
        broker_with(Settings::default())
    }

    fn broker_with(settings: Settings) -> Broker {
        let identity = BrokerIdentity {
            key_id: KeyId::parse("k1").unwrap(),
            key: PrivateKey::from_seed(&[1; 32]),
            coordinator: Signer::new(PrivateKey::from_seed(&[77; 32])),
        };
        let (identities, ids, clock) = (Identities::new("token", None), Arc::new(SystemIds), Arc::new(SystemClock));
        let store = Arc::new(MemoryStore::default());
        Broker::start(store, identity, settings, Resources::default(), identities, ids, clock).unwrap()
    }

    fn obey(broker: &Broker, policies: &[&str]) {
        let sources: Vec<_> = policies.iter().map(|text| Source::new("test.cedar", *text)).collect();
        broker.resources().policies.store(Arc::new(Policies::parse(&sources).unwrap()));
    }

    /// The reason for which the rows refuse a caller. `None`: it is admitted.
    fn refusal(broker: &Broker, row: &Row, caller: &Caller) -> Option<String> {
        let graphs = v1::Registry::Graphs.into();
        let refused = check(broker, row.right, caller, None, Some(graphs)).err()?;
        Some(refused.get_error_details().error_info().unwrap().reason.clone())
    }

    /// A call of this row by the caller, which is admitted.
    fn admitted(broker: &Broker, operation: Operation, caller: &Caller) -> Call {
        let connection = Connection::default();
        let (broker, caller, row) = (broker.clone(), caller.clone(), operation.row());
        Call { broker, caller, credential: None, connection, blobs: Arc::default(), row }
    }

    /// SPEC 5: work is charged to the agent that causes it.
    #[tokio::test]
    async fn the_parsing_of_large_messages_and_requests_is_charged_to_their_caller() {
        let limits = AgentLimits { cpu_ms_per_second: 1, ..AgentLimits::default() };
        let broker = broker_with(Settings { limits, ..Settings::default() });
        let is_overdrawn = |caller: &Caller| broker.workers().check(caller).is_err();
        let agent = |name: &str| Caller::Agent(AgentId::parse(name).unwrap());

        let sender = agent("sender");
        let call = admitted(&broker, Operation::Send, &sender);
        let envelope = v1::Envelope { task_id: "x".repeat(900_000), ..Default::default() };
        let raw = Bytes::from(envelope.encode_to_vec());
        for _ in 0..1000 {
            submit(&call, raw.clone(), None).await.unwrap_err();
            if is_overdrawn(&sender) {
                break;
            }
        }
        assert!(is_overdrawn(&sender));

        let reader = agent("reader");
        let call = admitted(&broker, Operation::GetTask, &reader);
        let request = v1::GetTaskRequest { task_id: "x".repeat(900_000) };
        for _ in 0..1000 {
            let arrived =
                Arrived::<v1::GetTaskRequest>::of(Request::new(Bytes::from(request.encode_to_vec())), call.row.right)
                    .unwrap()
                    .0;
            assert_eq!(arrived.decoded(&call).await.unwrap(), request);
            if is_overdrawn(&reader) {
                break;
            }
        }
        assert!(is_overdrawn(&reader));
        broker.stop().await.unwrap();
    }

    #[tokio::test]
    async fn each_row_admits_its_callers_and_no_others() {
        let broker = broker();
        let agent = Caller::Agent(AgentId::parse("a").unwrap());
        let operator = Caller::Operator(Operator::named("o"));
        for row in OPERATIONS {
            let (of_anonymous, of_operator) = match row.right {
                Right::Unproven | Right::Open => (None, None),
                Right::Sender => (None, Some("SENDER_MISMATCH")),
                Right::Agent => (Some("IDENTITY_MISSING"), Some("PERMISSION_DENIED")),
                // `proven` refuses an anonymous caller before.
                Right::Proven => (None, None),
                Right::May(_) | Right::MayRegister | Right::ReadsDirectory => (Some("IDENTITY_MISSING"), None),
            };
            assert_eq!(refusal(&broker, row, &Caller::Anonymous).as_deref(), of_anonymous, "{}", row.path);
            assert_eq!(refusal(&broker, row, &agent).as_deref(), None, "{}", row.path);
            assert_eq!(refusal(&broker, row, &operator).as_deref(), of_operator, "{}", row.path);
        }
        // Without a right, an operator and an agent are told so at once only about the directory. Elsewhere the policies
        // decide about each record.
        obey(&broker, &[]);
        for row in OPERATIONS {
            let of_all = (row.right == Right::ReadsDirectory).then_some("PERMISSION_DENIED");
            assert_eq!(refusal(&broker, row, &agent).as_deref(), of_all, "{}", row.path);
            if !matches!(row.right, Right::Sender | Right::Agent) {
                assert_eq!(refusal(&broker, row, &operator).as_deref(), of_all, "{}", row.path);
            }
        }
        broker.stop().await.unwrap();
    }

    #[tokio::test]
    async fn a_rule_for_anonymous_callers_opens_the_calls_of_its_action_alone() {
        let broker = broker();
        let action_of = |row: &Row| match row.right {
            Right::Unproven | Right::Open | Right::Sender | Right::Agent | Right::Proven => None,
            Right::May(purpose) => Some(purpose.action_name()),
            Right::MayRegister => Some("registerGraph"),
            Right::ReadsDirectory => Some("readDirectory"),
        };
        let actions: BTreeSet<&str> = OPERATIONS.iter().filter_map(action_of).collect();
        for action in actions {
            obey(&broker, &[DEFAULT, &format!("permit(principal, action == Action::\"{action}\", resource);")]);
            for row in OPERATIONS {
                let Some(of_row) = action_of(row) else { continue };
                let refused = (of_row != action).then_some("IDENTITY_MISSING");
                assert_eq!(refusal(&broker, row, &Caller::Anonymous).as_deref(), refused, "{action}: {}", row.path);
            }
        }
        broker.stop().await.unwrap();
    }
}
