"""Agents for the baton handoff broker.

An agent registers, proves its identity with its ed25519 key, and hands tasks over or takes them: see
`baton.agent.Agent`. The messages of the schema are in `baton.v1`.
"""

from baton import v1
from baton.agent import Agent
from baton.custody import VerifiedLog
from baton.delivery import Delivery
from baton.envelopes import bytes_section, handoff_id_of, json_section, make_envelope, payload_of
from baton.errors import (
    BatonError,
    FieldViolation,
    HandoffFailedError,
    NoAnswerError,
    PoisonError,
    RecallReason,
    RetryLaterError,
    TaskRecalledError,
    UntrustedError,
    VerificationError,
)
from baton.handoffs import ContextWanted, HandedOver, Offer, OwnedTask, Takeover
from baton.keys import generate_key, load_key, public_bytes, save_key
from baton.loans import Outcome, Recalled
from baton.questions import Answer, Question
from baton.signing import context_digest, sign_envelope, verify_envelope, verify_receipt, vouch

__all__ = [
    "Agent",
    "Answer",
    "BatonError",
    "ContextWanted",
    "Delivery",
    "FieldViolation",
    "HandedOver",
    "HandoffFailedError",
    "NoAnswerError",
    "Offer",
    "Outcome",
    "OwnedTask",
    "PoisonError",
    "Question",
    "RecallReason",
    "Recalled",
    "RetryLaterError",
    "Takeover",
    "TaskRecalledError",
    "UntrustedError",
    "VerificationError",
    "VerifiedLog",
    "bytes_section",
    "context_digest",
    "generate_key",
    "handoff_id_of",
    "json_section",
    "load_key",
    "make_envelope",
    "payload_of",
    "public_bytes",
    "save_key",
    "sign_envelope",
    "v1",
    "verify_envelope",
    "verify_receipt",
    "vouch",
]
