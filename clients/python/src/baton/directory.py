"""The public keys of other agents, pinned or from the broker's directory."""

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping

from baton import v1
from baton.errors import VerificationError
from baton.signing import verify_envelope, verify_voucher

BROKER_ID = "baton"
"""The agent id of a broker."""

KEY_CACHE_SECONDS = 60.0
"""The lifetime of a cached key in seconds, and so the maximum delay before a revocation takes effect here."""


class Directory:
    """Keys by agent and key id. Agents with pinned keys are never looked up at the broker.

    If operators are configured, a key from the broker is valid only with a voucher of one of them.
    """

    def __init__(
        self,
        get_agent: Callable[[str], Awaitable[v1.Agent]],
        pinned: Mapping[str, Iterable[v1.AgentKey]],
        operators: Mapping[str, bytes],
    ) -> None:
        self._get_agent = get_agent
        self._operators = dict(operators)
        self._pinned = {agent_id: {key.key_id: key for key in keys} for agent_id, keys in pinned.items()}
        self._broker = v1.Welcome()
        self._fetched: dict[str, tuple[float, dict[str, v1.AgentKey]]] = {}

    def meet_broker(self, welcome: v1.Welcome) -> None:
        """Stores the broker's own key from its welcome over TLS. Pinned keys of the broker take precedence."""
        self._broker = welcome

    async def verify(self, envelope: v1.Envelope) -> None:
        """Verifies the sender's signature. Raises VerificationError; BatonError if the keys cannot be fetched."""
        verify_envelope(envelope, await self.key(envelope.sender_id, envelope.key_id))

    async def key(self, agent_id: str, key_id: str) -> v1.AgentKey:
        """Returns one key. Raises VerificationError, KEY_UNKNOWN; BatonError if the keys cannot be fetched."""
        keys = self._pinned.get(agent_id)
        is_pinned = keys is not None
        broker_key = self._broker.broker_key
        if keys is None and agent_id == self._broker.broker_id and key_id == broker_key.key_id:
            return broker_key
        if keys is None:
            fetched_at, keys = self._fetched.get(agent_id, (0.0, {}))
            if key_id not in keys or time.monotonic() - fetched_at > KEY_CACHE_SECONDS:
                card = (await self._get_agent(agent_id)).card
                keys = {key.key_id: key for key in card.keys}
                self._fetched[agent_id] = (time.monotonic(), keys)
        if key_id not in keys:
            raise VerificationError("KEY_UNKNOWN", f"{agent_id} has no key {key_id}")
        # The broker itself is the authority for its own key, so that key needs no voucher.
        needs_voucher = self._operators and not is_pinned and agent_id != BROKER_ID
        if needs_voucher and not any(
            self._vouches(voucher, agent_id, keys[key_id]) for voucher in keys[key_id].vouchers
        ):
            raise VerificationError("KEY_UNKNOWN", f"no operator vouches for key {key_id} of {agent_id}")
        return keys[key_id]

    def _vouches(self, voucher: v1.KeyVoucher, agent_id: str, key: v1.AgentKey) -> bool:
        operator = self._operators.get(voucher.operator_key_id)
        not_after = voucher.not_after_time if voucher.HasField("not_after_time") else None
        if operator is None or (not_after is not None and not_after.ToNanoseconds() <= time.time_ns()):
            return False
        operator_key = v1.AgentKey(key_id=voucher.operator_key_id, public_key=operator)
        try:
            verify_voucher(agent_id, key, operator_key, not_after, voucher.signature)
        except VerificationError:
            return False
        return True
