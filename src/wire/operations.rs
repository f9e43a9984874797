//! The calls of the broker's services: one row a call.
//!
//! Owns who may make a call, how it counts against the rates of its caller, and the bounds of its work. From a row come
//! the gRPC method, the admission of its callers, the test of access and the table in docs/services.md. Must not know
//! the transport of a call, nor its function.

use crate::broker::{access::Purpose, places::WorkSize};

/// Calls a macro with all rows.
///
/// A row has the method, the streams of the call ([`Streams`]), the callers that it admits ([`Right`]), its rate
/// ([`Rate`]), its effect ([`Effect`]) and the size of its work: [`WorkSize`] of its largest part. A service names its
/// module in [`super::grpc`], which has a function for each method.
macro_rules! with_operations {
    ($with:ident) => {
        $with! {
            AgentService in agents {
                RegisterAgent         Unary         Open                   CardChange  Write  Small;
                CreateInvitation      Unary         May(Invite)            Call        Write  Small;
                AddAgentKey           Unary         May(ManageKeys)        Call        Write  Small;
                RevokeAgentKey        Unary         May(ManageKeys)        Call        Write  Small;
                VouchForAgentKey      Unary         May(ManageKeys)        Call        Write  Small;
                GetAgent              Unary         Open                   Call        Read   Small;
                ListProcesses         Unary         ReadsDirectory         Call        Read   Large;
                ListAgents            Unary         ReadsDirectory         Call        Read   Large;
                UpdateAgent           Unary         May(ChangeCards)       CardChange  Write  Small;
                DeregisterAgent       Unary         May(Deregister)        CardChange  Write  Small;
                FindAgents            Unary         ReadsDirectory         Call        Read   Large;
                WatchAgents           ServerStream  ReadsDirectory         Call        Read   Small;
                CreateChallenge       Unary         Unproven               None        Write  Small;
                CreateToken           Unary         Unproven               None        Write  Small;
                CreateLoginCode       Unary         Proven                 Call        Write  Small;
            }
            AuditService in audit {
                ListAuditEntries      Unary         May(ReadAuditLog)      Call        Read   Large;
            }
            BlobService in blobs {
                WriteBlob             ClientStream  Agent                  Call        Write  Large;
                GetBlobWrite          Unary         Agent                  Call        Read   Large;
                ReadBlob              ServerStream  May(ReadBlobs)         Call        Read   Large;
                GetBlob               Unary         May(ReadBlobs)         Call        Read   Small;
                FindMissingBlobs      Unary         May(ReadBlobs)         Call        Read   Large;
                ListBlobs             Unary         May(ReadBlobs)         Call        Read   Large;
                DeleteBlob            Unary         May(WriteBlobs)        Call        Write  Small;
            }
            BrokerService in messages {
                Connect               BothStreams   Agent                  None        Write  Large;
                Send                  Unary         Sender                 None        Write  Large;
                Receive               ServerStream  Agent                  None        Write  Large;
                Ack                   Unary         Agent                  None        Write  Small;
            }
            ContextService in contexts {
                GetContext            Unary         May(ReadContexts)      Call        Read   Small;
                GetContextSection     Unary         May(ReadContexts)      Call        Read   Large;
                ListContextVersions   Unary         May(ReadContexts)      Call        Read   Large;
                CheckpointContext     Unary         Sender                 None        Write  Large;
            }
            DeadLetterService in dead_letters {
                GetDeadLetter         Unary         May(ReadDeadLetters)   Call        Read   Small;
                ListDeadLetters       Unary         May(ReadDeadLetters)   Call        Read   Large;
                ExportDeadLetters     ServerStream  May(ReadDeadLetters)   Call        Read   Large;
                RedriveDeadLetter     Unary         May(SettleDeadLetters) Call        Write  Small;
                RedriveDeadLetters    ServerStream  May(SettleDeadLetters) Call        Write  Large;
                DiscardDeadLetter     Unary         May(SettleDeadLetters) Call        Write  Small;
            }
            HandoffService in handoffs {
                GetHandoff            Unary         May(ReadHandoffs)      Call        Read   Small;
                ListHandoffs          Unary         May(ReadHandoffs)      Call        Read   Large;
                WatchHandoff          ServerStream  May(ReadHandoffs)      Call        Read   Small;
                WatchHandoffs         ServerStream  May(ReadHandoffs)      Call        Read   Small;
            }
            NegotiationService in negotiations {
                GetNegotiation        Unary         May(ReadNegotiations)  Call        Read   Small;
                ListNegotiations      Unary         May(ReadNegotiations)  Call        Read   Large;
                WatchNegotiation      ServerStream  May(ReadNegotiations)  Call        Read   Small;
                CancelNegotiation     Unary         May(ReadNegotiations)  Call        Write  Small;
            }
            PlanService in plans {
                ValidatePlan          Unary         May(SubmitPlan)        Call        Read   Large;
                SubmitPlan            Unary         Sender                 None        Write  Large;
                ExtendPlan            Unary         Sender                 None        Write  Large;
                GetPlan               Unary         May(ReadPlans)         Call        Read   Small;
                ListPlans             Unary         May(ReadPlans)         Call        Read   Large;
                ListPlanResults       Unary         May(ReadPlans)         Call        Read   Large;
                WatchPlan             ServerStream  May(ReadPlans)         Call        Read   Small;
                CancelPlan            Unary         May(CancelPlans)       Call        Write  Small;
                CancelSubtask         Unary         May(CancelPlans)       Call        Write  Small;
                RetrySubtask          Unary         May(CancelPlans)       Call        Write  Small;
                ReassignSubtask       Unary         May(CancelPlans)       Call        Write  Small;
                RetryPlan             Unary         May(CancelPlans)       Call        Write  Small;
            }
            RegistryService in registries {
                GetRegistration       Unary         May(ReadRegistrations) Call        Read   Small;
                ListRegistrations     Unary         May(ReadRegistrations) Call        Read   Large;
                TransferRegistration  Unary         MayRegister            NameChange  Write  Small;
                RetireRegistration    Unary         MayRegister            NameChange  Write  Small;
                RemoveRegistration    Unary         MayRegister            NameChange  Write  Small;
            }
            RoutingService in routing {
                RegisterGraph         Unary         May(RegisterGraph)     NameChange  Write  Large;
                ValidateGraph         Unary         May(ReadGraphs)        Call        Read   Large;
                GetGraph              Unary         May(ReadGraphs)        Call        Read   Small;
                ListGraphs            Unary         May(ReadGraphs)        Call        Read   Large;
                StartRun              Unary         May(StartRun)          Call        Write  Small;
                GetRun                Unary         May(ReadRuns)          Call        Read   Small;
                ListRuns              Unary         May(ReadRuns)          Call        Read   Large;
                WatchRun              ServerStream  May(ReadRuns)          Call        Read   Small;
                CancelRun             Unary         May(RecordTurn)        Call        Write  Small;
                GetNodeTools          Unary         May(ReadRuns)          Call        Read   Small;
                RecordTurn            Unary         May(RecordTurn)        Call        Write  Small;
            }
            SchemaService in schemas {
                RegisterSchema        Unary         May(RegisterSchema)    NameChange  Write  Large;
                GetSchema             Unary         May(ReadSchemas)       Call        Read   Small;
                ListSchemas           Unary         May(ReadSchemas)       Call        Read   Large;
                CheckSchema           Unary         May(ReadSchemas)       Call        Read   Large;
            }
            TaskService in tasks {
                GetTask               Unary         May(ReadTasks)         Call        Read   Small;
                ListTasks             Unary         May(ReadTasks)         Call        Read   Large;
                GetCustodyLog         Unary         May(ReadTasks)         Call        Read   Large;
                WatchTask             ServerStream  May(ReadTasks)         Call        Read   Small;
                ReassignTask          Unary         May(ReassignTasks)     Call        Write  Small;
                ResumeTasks           Unary         Agent                  None        Write  Large;
            }
            ThreadService in threads {
                PutAgentSpec          Unary         May(ManageSpecs)       NameChange  Write  Small;
                GetAgentSpec          Unary         May(ReadSpecs)         Call        Read   Small;
                ListAgentSpecs        Unary         May(ReadSpecs)         Call        Read   Large;
                PutModelSpec          Unary         May(ManageSpecs)       NameChange  Write  Small;
                ListModelSpecs        Unary         May(ReadSpecs)         Call        Read   Large;
                CreateThread          Unary         May(UseThreads)        Call        Write  Small;
                GetThread             Unary         May(ReadThreads)       Call        Read   Small;
                ListThreads           Unary         May(ReadThreads)       Call        Read   Large;
                WatchThread           ServerStream  May(ReadThreads)       Call        Read   Small;
                ApplyHandoffAction    Unary         May(UseThreads)        Call        Write  Small;
                BeginRun              Unary         May(UseThreads)        Call        Write  Small;
                EndStep               Unary         May(UseThreads)        Call        Write  Small;
                EndRun                Unary         May(UseThreads)        Call        Write  Small;
            }
            WorkspaceService in workspaces {
                AppendEntry           Unary         Sender                 None        Write  Large;
                ListEntries           Unary         May(ReadWorkspaces)    Call        Read   Large;
                WatchEntries          ServerStream  May(ReadWorkspaces)    Call        Read   Large;
                ListTopics            Unary         May(ReadWorkspaces)    Call        Read   Small;
                GetWorkspace          Unary         May(ReadWorkspaces)    Call        Read   Small;
            }
        }
    };
}
pub(super) use with_operations;

/// A row of the table.
#[derive(Debug, PartialEq)]
pub struct Row {
    /// The path on the wire: `/baton.v1.SERVICE/METHOD`.
    pub path: &'static str,
    /// The streams of the call.
    pub streams: Streams,
    /// The callers that it admits.
    pub right: Right,
    /// How it counts against the rates of its caller.
    pub rate: Rate,
    /// Its effect on the broker's state.
    pub effect: Effect,
    /// The size of the largest part of its work beside the engine.
    pub size: WorkSize,
}

/// The streams of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Streams {
    /// One request, one response.
    Unary,
    /// Any number of responses.
    ServerStream,
    /// Any number of requests.
    ClientStream,
    /// Any number of both.
    BothStreams,
}

/// The callers that a call admits. Within it, the policies decide about each record.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Right {
    /// Any caller. No token is read: the call is a part of the proof of an identity.
    Unproven,
    /// Any caller. The function of the call asks the policies by its request.
    Open,
    /// An agent, or a caller without an identity: the signature of the envelope proves its sender.
    Sender,
    /// An agent. The call concerns its own mail, tasks and uploads.
    Agent,
    /// A caller with an identity that can be proved again later.
    Proven,
    /// A caller that may reach some record for this purpose.
    May(Purpose),
    /// The same, for the purpose of registering in the registry that the request names.
    MayRegister,
    /// A caller that may read the directory.
    ReadsDirectory,
}

/// How a call counts against the rates of its caller, once the caller is admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rate {
    /// Not at the admission. The engine counts messages and acks; a call without a token has no rate.
    None,
    /// As a call.
    Call,
    /// As a call, and as a change of a name in a registry.
    NameChange,
    /// As a change of a card.
    CardChange,
}

/// What a call may do to the broker's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    Read,
    /// Changes it.
    Write,
}

/// The right of a row.
macro_rules! right {
    (May $purpose:ident) => {
        Right::May(Purpose::$purpose)
    };
    ($right:ident) => {
        Right::$right
    };
}

macro_rules! table {
    ($($service:ident in $module:ident {
        $($method:ident $streams:ident $right:ident $(($purpose:ident))? $rate:ident $effect:ident $size:ident;)*
    })*) => {
        /// A call.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Operation {
            $($(
                #[doc = concat!("The call of `", stringify!($service), "` with this name.")]
                $method,
            )*)*
        }

        /// All rows, in the order of [`Operation`].
        pub const OPERATIONS: &[Row] = &[$($(Row {
            path: concat!("/baton.v1.", stringify!($service), "/", stringify!($method)),
            streams: Streams::$streams,
            right: right!($right $($purpose)?),
            rate: Rate::$rate,
            effect: Effect::$effect,
            size: WorkSize::$size,
        },)*)*];

        /// The full names of the broker's own services.
        pub const SERVICES: &[&str] = &[$(concat!("baton.v1.", stringify!($service)),)*];
    };
}
with_operations!(table);

impl Operation {
    /// The row of the call.
    pub fn row(self) -> &'static Row {
        &OPERATIONS[self as usize]
    }
}

impl Row {
    /// Whether the client of the call sends a stream.
    pub fn has_client_stream(&self) -> bool {
        matches!(self.streams, Streams::ClientStream | Streams::BothStreams)
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;
    use crate::proto;

    /// The table of the documentation.
    fn page() -> String {
        let row = |row: &Row| {
            let (service, method) = row.path.trim_start_matches("/baton.v1.").split_once('/').unwrap();
            let callers = match row.right {
                Right::Unproven => "any; no token is read".to_owned(),
                Right::Open => "any; the call decides by its request".to_owned(),
                Right::Sender => "the sender of the envelope, with or without a token".to_owned(),
                Right::Agent => "an agent, about its own".to_owned(),
                Right::Proven => "any identity".to_owned(),
                Right::May(purpose) => format!("`{}`", purpose.action_name()),
                Right::MayRegister => "`registerGraph`, `registerSchema` or `manageSpecs`".to_owned(),
                Right::ReadsDirectory => "`readDirectory`".to_owned(),
            };
            let counts = match row.rate {
                Rate::None => "",
                Rate::Call => "call",
                Rate::NameChange => "call, name",
                Rate::CardChange => "card",
            };
            let effect = match row.effect {
                Effect::Read => "reads",
                Effect::Write => "changes",
            };
            let streams = match row.streams {
                Streams::Unary => "",
                Streams::ServerStream => "responses",
                Streams::ClientStream => "requests",
                Streams::BothStreams => "both",
            };
            format!("| `{service}` | `{method}` | {callers} | {counts} | {effect} | {streams} |\n")
        };
        let head = "| service | call | callers | counts as | effect | streams |\n|---|---|---|---|---|---|\n";
        std::iter::once(head.to_owned()).chain(OPERATIONS.iter().map(row)).collect()
    }

    #[test]
    fn the_documentation_has_the_table() {
        let page = page();
        let is_there = include_str!("../../docs/services.md").contains(&page);
        assert!(is_there, "docs/services.md has to have this table:\n{page}");
    }

    #[test]
    fn the_table_has_the_calls_of_the_schema() {
        let files = prost_types::FileDescriptorSet::decode(proto::DESCRIPTORS).unwrap();
        let services = files.file.iter().filter(|file| file.package() == "baton.v1").flat_map(|file| &file.service);
        let mut services: Vec<_> = services.collect();
        services.sort_by_key(|service| service.name());
        let names: Vec<_> = services.iter().map(|service| format!("baton.v1.{}", service.name())).collect();
        assert_eq!(SERVICES, names);
        let calls = services.iter().flat_map(|service| {
            service.method.iter().map(move |method| {
                let streams = match (method.client_streaming(), method.server_streaming()) {
                    (false, false) => Streams::Unary,
                    (false, true) => Streams::ServerStream,
                    (true, false) => Streams::ClientStream,
                    (true, true) => Streams::BothStreams,
                };
                (format!("/baton.v1.{}/{}", service.name(), method.name()), streams)
            })
        });
        let rows = OPERATIONS.iter().map(|row| (row.path.to_owned(), row.streams));
        assert_eq!(rows.collect::<Vec<_>>(), calls.collect::<Vec<_>>());
    }
}
