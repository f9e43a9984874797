"""Agents for the baton handoff broker.

An agent registers, proves its identity with its ed25519 key, and hands tasks over or takes them: see
`baton.agent.Agent`. The messages of the schema are in `baton.v1`.
"""

from baton import v1
from baton.agent import Agent
from baton.blobs import blob_reference
from baton.custody import VerifiedLog
from baton.delivery import Delivery
from baton.envelopes import bytes_section, handoff_id_of, json_section, make_envelope, payload_of
from baton.errors import (
    BatonError,
    ConfigurationError,
    FieldViolation,
    GapError,
    HandoffFailedError,
    NegotiationFailedError,
    NoAnswerError,
    PoisonError,
    RecallReason,
    Rejection,
    RetryLaterError,
    TaskRecalledError,
    UntrustedError,
    VerificationError,
)
from baton.handoffs import ContextWanted, HandedOver
from baton.history import HistoryError, check_history, history_section
from baton.keys import generate_key, load_key, public_bytes, save_key
from baton.limits import json_object, json_text
from baton.loans import Outcome, Recalled
from baton.negotiations import Bid, Negotiation, OfferWanted, offer
from baton.plans import Element, Plan, SubtaskInputs, plan_of, subtask
from baton.questions import Answer, Question
from baton.registry import explain
from baton.runs import NodeTools, Run, Step
from baton.signing import context_digest, sign_envelope, verify_envelope, verify_receipt, vouch
from baton.tasks import Offer, OwnedTask, Takeover
from baton.threads import Thread, ThreadRun, ThreadStep
from baton.traces import current_trace, in_trace
from baton.turns import ModelTurn, read_turn
from baton.watching import Progress, progress_of
from baton.workspace import Entry, Workspace

__all__ = [
    "Agent",
    "Answer",
    "BatonError",
    "Bid",
    "ConfigurationError",
    "ContextWanted",
    "Delivery",
    "Element",
    "Entry",
    "FieldViolation",
    "GapError",
    "HandedOver",
    "HandoffFailedError",
    "HistoryError",
    "ModelTurn",
    "Negotiation",
    "NegotiationFailedError",
    "NoAnswerError",
    "NodeTools",
    "Offer",
    "OfferWanted",
    "Outcome",
    "OwnedTask",
    "Plan",
    "PoisonError",
    "Progress",
    "Question",
    "RecallReason",
    "Recalled",
    "Rejection",
    "RetryLaterError",
    "Run",
    "Step",
    "SubtaskInputs",
    "Takeover",
    "TaskRecalledError",
    "Thread",
    "ThreadRun",
    "ThreadStep",
    "UntrustedError",
    "VerificationError",
    "VerifiedLog",
    "Workspace",
    "blob_reference",
    "bytes_section",
    "check_history",
    "context_digest",
    "current_trace",
    "explain",
    "generate_key",
    "handoff_id_of",
    "history_section",
    "in_trace",
    "json_object",
    "json_section",
    "json_text",
    "load_key",
    "make_envelope",
    "offer",
    "payload_of",
    "plan_of",
    "progress_of",
    "public_bytes",
    "read_turn",
    "save_key",
    "sign_envelope",
    "subtask",
    "v1",
    "verify_envelope",
    "verify_receipt",
    "vouch",
]
