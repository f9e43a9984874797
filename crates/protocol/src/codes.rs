//! The stable error codes of SPEC 11. Owns their names, numbers and categories. Must not know gRPC, nor the rules that
//! lead to a code. `proto/baton/v1/error.proto` has the same list, and a test compares the two.

use std::{fmt, time::Duration};

/// The kind of a refusal, by the caller's possible reaction. Each is named after its gRPC code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Category {
    /// The request can never succeed.
    InvalidArgument,
    /// The caller's identity is unknown.
    Unauthenticated,
    /// The caller lacks permission.
    PermissionDenied,
    /// The requested entity does not exist.
    NotFound,
    /// The entity already exists.
    AlreadyExists,
    /// The entity's state does not allow the request.
    FailedPrecondition,
    /// A concurrent change came first.
    Aborted,
    /// An offset or a range is beyond the end.
    OutOfRange,
    /// Stored bytes are lost for good.
    DataLoss,
    /// A limit is exceeded.
    ResourceExhausted,
    /// The broker cannot serve the request now; a retry may succeed.
    Unavailable,
    /// This version does not support the request.
    Unimplemented,
    /// A fault of the broker.
    Internal,
    /// Never the answer to a call: only sent to agents in an `ErrorNotification`.
    NotificationOnly,
}

impl Category {
    /// The number of the category's gRPC code (SPEC 11), as `google.rpc.Code` has it.
    pub const fn grpc_code(self) -> i32 {
        match self {
            Self::InvalidArgument => 3,
            Self::Unauthenticated => 16,
            Self::PermissionDenied => 7,
            Self::NotFound => 5,
            Self::AlreadyExists => 6,
            Self::FailedPrecondition => 9,
            Self::Aborted => 10,
            Self::OutOfRange => 11,
            Self::DataLoss => 15,
            Self::ResourceExhausted => 8,
            Self::Unavailable => 14,
            Self::Unimplemented => 12,
            // A notification code appears in notices only. As a refusal it would be a bug of the broker.
            Self::Internal | Self::NotificationOnly => 13,
        }
    }
}

macro_rules! codes {
    ($($variant:ident = $number:literal $name:literal $category:ident,)*) => {
        /// A stable code. `proto/baton/v1/error.proto` defines each one, and `docs/errors.md` says how to react.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[expect(missing_docs, reason = "described in the schema and in docs/errors.md")]
        pub enum ErrorCode { $($variant = $number,)* }

        impl ErrorCode {
            /// All codes, in the order of their declaration.
            pub const ALL: &[ErrorCode] = &[$(ErrorCode::$variant,)*];

            /// The stable name: the reason in `google.rpc.ErrorInfo`.
            pub const fn name(self) -> &'static str {
                match self { $(ErrorCode::$variant => $name,)* }
            }

            /// The category of the code.
            pub const fn category(self) -> Category {
                match self { $(ErrorCode::$variant => Category::$category,)* }
            }

            /// The code's number in the schema.
            pub const fn number(self) -> i32 {
                self as i32
            }

            /// The code with this number in the schema.
            pub fn from_number(number: i32) -> Option<Self> {
                Self::ALL.iter().copied().find(|code| code.number() == number)
            }
        }
    };
}

codes! {
    FieldInvalid = 1 "FIELD_INVALID" InvalidArgument,
    PayloadTypeMismatch = 2 "PAYLOAD_TYPE_MISMATCH" InvalidArgument,
    Malformed = 3 "MALFORMED" InvalidArgument,
    PayloadTooLarge = 4 "PAYLOAD_TOO_LARGE" InvalidArgument,
    TimestampOutsideWindow = 5 "TIMESTAMP_OUTSIDE_WINDOW" InvalidArgument,
    ReceiverInvalid = 6 "RECEIVER_INVALID" InvalidArgument,
    SignatureVersionUnknown = 7 "SIGNATURE_VERSION_UNKNOWN" InvalidArgument,
    ContextDigestMismatch = 8 "CONTEXT_DIGEST_MISMATCH" InvalidArgument,
    KeyWeak = 9 "KEY_WEAK" InvalidArgument,
    PageTokenInvalid = 10 "PAGE_TOKEN_INVALID" InvalidArgument,
    SignatureMissing = 20 "SIGNATURE_MISSING" Unauthenticated,
    SignatureInvalid = 21 "SIGNATURE_INVALID" Unauthenticated,
    KeyUnknown = 22 "KEY_UNKNOWN" Unauthenticated,
    KeyNotValid = 23 "KEY_NOT_VALID" Unauthenticated,
    IdentityMissing = 24 "IDENTITY_MISSING" Unauthenticated,
    TokenInvalid = 25 "TOKEN_INVALID" Unauthenticated,
    ChallengeFailed = 26 "CHALLENGE_FAILED" Unauthenticated,
    TlsRequired = 27 "TLS_REQUIRED" Unauthenticated,
    InvitationInvalid = 28 "INVITATION_INVALID" Unauthenticated,
    SenderMismatch = 40 "SENDER_MISMATCH" PermissionDenied,
    NotOwner = 41 "NOT_OWNER" PermissionDenied,
    NotCandidate = 42 "NOT_CANDIDATE" PermissionDenied,
    PermissionDenied = 43 "PERMISSION_DENIED" PermissionDenied,
    NotAsked = 44 "NOT_ASKED" PermissionDenied,
    ReceiverUnknown = 60 "RECEIVER_UNKNOWN" NotFound,
    AgentUnknown = 61 "AGENT_UNKNOWN" NotFound,
    TaskUnknown = 62 "TASK_UNKNOWN" NotFound,
    HandoffUnknown = 63 "HANDOFF_UNKNOWN" NotFound,
    DeliveryUnknown = 64 "DELIVERY_UNKNOWN" NotFound,
    DeadLetterUnknown = 65 "DEAD_LETTER_UNKNOWN" NotFound,
    NothingMatches = 66 "NOTHING_MATCHES" NotFound,
    AgentKeyUnknown = 67 "AGENT_KEY_UNKNOWN" NotFound,
    GraphUnknown = 208 "GRAPH_UNKNOWN" NotFound,
    PlanUnknown = 207 "PLAN_UNKNOWN" NotFound,
    SubtaskUnknown = 212 "SUBTASK_UNKNOWN" NotFound,
    RunUnknown = 209 "RUN_UNKNOWN" NotFound,
    SpecUnknown = 210 "SPEC_UNKNOWN" NotFound,
    ThreadUnknown = 211 "THREAD_UNKNOWN" NotFound,
    NegotiationUnknown = 200 "NEGOTIATION_UNKNOWN" NotFound,
    OfferUnknown = 201 "OFFER_UNKNOWN" NotFound,
    MessageIdReused = 80 "MESSAGE_ID_REUSED" AlreadyExists,
    AgentExists = 81 "AGENT_EXISTS" AlreadyExists,
    KeyTaken = 82 "KEY_TAKEN" AlreadyExists,
    KeyExists = 83 "KEY_EXISTS" AlreadyExists,
    InputTaken = 220 "INPUT_TAKEN" AlreadyExists,
    PlanExists = 222 "PLAN_EXISTS" AlreadyExists,
    RunExists = 223 "RUN_EXISTS" AlreadyExists,
    ThreadExists = 224 "THREAD_EXISTS" AlreadyExists,
    TaskExists = 228 "TASK_EXISTS" AlreadyExists,
    HandoffOpen = 100 "HANDOFF_OPEN" FailedPrecondition,
    HandoffState = 101 "HANDOFF_STATE" FailedPrecondition,
    HandoffFinal = 102 "HANDOFF_FINAL" FailedPrecondition,
    HandoffExpired = 103 "HANDOFF_EXPIRED" FailedPrecondition,
    StaleEpoch = 104 "STALE_EPOCH" FailedPrecondition,
    EpochAhead = 105 "EPOCH_AHEAD" FailedPrecondition,
    LoopLimit = 106 "LOOP_LIMIT" FailedPrecondition,
    TaskFinal = 107 "TASK_FINAL" FailedPrecondition,
    MessageExpired = 108 "MESSAGE_EXPIRED" FailedPrecondition,
    DeadLetterSettled = 109 "DEAD_LETTER_SETTLED" FailedPrecondition,
    DeadLetterNotAMessage = 110 "DEAD_LETTER_NOT_A_MESSAGE" FailedPrecondition,
    KeyRevoked = 111 "KEY_REVOKED" FailedPrecondition,
    AgentBusy = 243 "AGENT_BUSY" FailedPrecondition,
    NegotiationClosed = 240 "NEGOTIATION_CLOSED" FailedPrecondition,
    OfferNotStanding = 241 "OFFER_NOT_STANDING" FailedPrecondition,
    RoundLimit = 242 "ROUND_LIMIT" FailedPrecondition,
    NotLent = 253 "NOT_LENT" FailedPrecondition,
    AgentGone = 254 "AGENT_GONE" FailedPrecondition,
    InputExpired = 255 "INPUT_EXPIRED" FailedPrecondition,
    SchemaUnknown = 204 "SCHEMA_UNKNOWN" NotFound,
    SchemaExists = 221 "SCHEMA_EXISTS" AlreadyExists,
    ContextSchemaViolation = 270 "CONTEXT_SCHEMA_VIOLATION" InvalidArgument,
    SchemaRejected = 273 "SCHEMA_REJECTED" InvalidArgument,
    FilterNotApplicable = 269 "FILTER_NOT_APPLICABLE" FailedPrecondition,
    ContextVersionUnknown = 202 "CONTEXT_VERSION_UNKNOWN" NotFound,
    ContextBaseUnknown = 244 "CONTEXT_BASE_UNKNOWN" FailedPrecondition,
    ContextDeltaInvalid = 271 "CONTEXT_DELTA_INVALID" InvalidArgument,
    BlobUnknown = 203 "BLOB_UNKNOWN" NotFound,
    UploadUnknown = 205 "UPLOAD_UNKNOWN" NotFound,
    BlobIncomplete = 245 "BLOB_INCOMPLETE" FailedPrecondition,
    BlobDigestMismatch = 272 "BLOB_DIGEST_MISMATCH" InvalidArgument,
    BlobOutOfRange = 277 "BLOB_OUT_OF_RANGE" OutOfRange,
    BlobDamaged = 278 "BLOB_DAMAGED" DataLoss,
    WorkspaceUnknown = 206 "WORKSPACE_UNKNOWN" NotFound,
    WorkspaceClosed = 246 "WORKSPACE_CLOSED" FailedPrecondition,
    EntryTooLarge = 274 "ENTRY_TOO_LARGE" InvalidArgument,
    SequenceConflict = 281 "SEQUENCE_CONFLICT" Aborted,
    QuotaExceeded = 290 "QUOTA_EXCEEDED" ResourceExhausted,
    PlanFinal = 247 "PLAN_FINAL" FailedPrecondition,
    PlanRunning = 265 "PLAN_RUNNING" FailedPrecondition,
    SubtaskState = 267 "SUBTASK_STATE" FailedPrecondition,
    NodeNotActive = 248 "NODE_NOT_ACTIVE" FailedPrecondition,
    TransferNotOffered = 249 "TRANSFER_NOT_OFFERED" FailedPrecondition,
    TransferAmbiguous = 250 "TRANSFER_AMBIGUOUS" FailedPrecondition,
    RunFinal = 259 "RUN_FINAL" FailedPrecondition,
    NameRetired = 266 "NAME_RETIRED" FailedPrecondition,
    HandoffResolveFailed = 251 "HANDOFF_RESOLVE_FAILED" FailedPrecondition,
    HandoffPluginMissing = 252 "HANDOFF_PLUGIN_MISSING" FailedPrecondition,
    RunOpen = 280 "RUN_OPEN" Aborted,
    PlanInvalid = 275 "PLAN_INVALID" InvalidArgument,
    GraphInvalid = 276 "GRAPH_INVALID" InvalidArgument,
    Conflict = 120 "CONFLICT" Aborted,
    LimitExceeded = 130 "LIMIT_EXCEEDED" ResourceExhausted,
    ShuttingDown = 140 "SHUTTING_DOWN" Unavailable,
    StoreUnavailable = 141 "STORE_UNAVAILABLE" Unavailable,
    NotSupported = 150 "NOT_SUPPORTED" Unimplemented,
    Internal = 151 "INTERNAL" Internal,
    AcceptTimeout = 160 "ACCEPT_TIMEOUT" NotificationOnly,
    ContextTimeout = 161 "CONTEXT_TIMEOUT" NotificationOnly,
    CompleteTimeout = 162 "COMPLETE_TIMEOUT" NotificationOnly,
    WholeTimeout = 163 "WHOLE_TIMEOUT" NotificationOnly,
    NoCandidate = 164 "NO_CANDIDATE" NotificationOnly,
    TakeoverFailed = 165 "TAKEOVER_FAILED" NotificationOnly,
    HandoffCancelled = 166 "HANDOFF_CANCELLED" NotificationOnly,
    AgentError = 167 "AGENT_ERROR" NotificationOnly,
    OfferWithdrawn = 168 "OFFER_WITHDRAWN" NotificationOnly,
    HandoffRedriven = 169 "HANDOFF_REDRIVEN" NotificationOnly,
    TaskRecalled = 300 "TASK_RECALLED" NotificationOnly,
    TaskReassigned = 305 "TASK_REASSIGNED" NotificationOnly,
    TaskAbandoned = 306 "TASK_ABANDONED" NotificationOnly,
    TaskCanceled = 307 "TASK_CANCELED" NotificationOnly,
    StepsExhausted = 303 "STEPS_EXHAUSTED" NotificationOnly,
    NoOffer = 301 "NO_OFFER" NotificationOnly,
    NegotiationExpired = 302 "NEGOTIATION_EXPIRED" NotificationOnly,
    PlanFailed = 310 "PLAN_FAILED" NotificationOnly,
    SubtaskFailed = 311 "SUBTASK_FAILED" NotificationOnly,
    DependencyFailed = 312 "DEPENDENCY_FAILED" NotificationOnly,
    DependencyTimeout = 313 "DEPENDENCY_TIMEOUT" NotificationOnly,
    ForEachInvalid = 314 "FOR_EACH_INVALID" NotificationOnly,
}

/// An invalid field of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldViolation {
    /// The path of the field, for example `envelope.task_id`.
    pub path: String,
    /// The violated rule, for example "must not be empty".
    pub problem: String,
}

impl fmt::Display for FieldViolation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {}", self.path, self.problem)
    }
}

/// An error reported to a caller. Its `Display` text contains only facts that the caller may know.
pub trait Refusal: fmt::Display + fmt::Debug {
    /// The stable code.
    fn code(&self) -> ErrorCode;

    /// Additional facts for programs, as names and values.
    fn metadata(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    /// The invalid fields, if the code concerns fields.
    fn violations(&self) -> &[FieldViolation] {
        &[]
    }

    /// The time after which a retry may succeed, if waiting helps.
    fn retry_after(&self) -> Option<Duration> {
        None
    }
}
