"""The calls about agents: registration, keys, and the directory."""

import contextlib
from collections.abc import AsyncGenerator, Iterable, Mapping
from datetime import timedelta
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from google.protobuf.field_mask_pb2 import FieldMask

from baton import v1
from baton.connection import Connection
from baton.delivery import duration
from baton.errors import BatonError
from baton.following import follow_changes
from baton.keys import public_bytes

_FOUND_PAGE_MAX = 1000
_PAGE_SIZE = 200


class Registry:
    """The calls about agents. `Agent` has them."""

    agent_id: str
    key_id: str
    capacity: int
    _key: Ed25519PrivateKey
    _connection: Connection

    async def register(
        self,
        *,
        agent_types: Iterable[str] = (),
        description: str = "",
        skills: Iterable[v1.AgentSkill] = (),
        metadata: Mapping[str, str] | None = None,
        decides_within: timedelta | None = None,
        invitation: str = "",
    ) -> v1.Agent:
        """Registers this agent's card with its key, or updates it. Registering the same card again is not an error.

        `decides_within` is the time that the agent needs to decide about an offered handoff, 1 s to 7 days; default:
        the timeout of each request.

        `invitation` is the secret of an invitation; it permits a new agent to register where only operators may. Raises
        BatonError, CHALLENGE_FAILED if the id is registered with another key.
        """
        card = v1.AgentCard(
            agent_id=self.agent_id,
            agent_types=agent_types,
            description=description,
            skills=skills,
            capacity=self.capacity,
            keys=[v1.AgentKey(key_id=self.key_id, public_key=public_bytes(self._key))],
            metadata=metadata,
            decides_within=duration(decides_within),
        )
        request = v1.RegisterAgentRequest(card=card, invitation=invitation)
        try:
            answer = await self._connection.call(self._connection.agents.RegisterAgent, request)
        except BatonError as error:
            if error.reason != "AGENT_EXISTS":
                raise
            # The agent is registered with another card. It may change its own card once it has proven its identity.
            await self._connection.prove()
            answer = await self._connection.call(self._connection.agents.RegisterAgent, request)
        agent: v1.Agent = answer.agent
        return agent

    async def prove_identity(self) -> str:
        """Signs a challenge to obtain the token that later calls carry. `connect` calls this. Raises BatonError."""
        return await self._connection.prove()

    async def invite(self, agent_id: str = "", lifetime: timedelta | None = None) -> str:
        """Creates an invitation for one new agent: `agent_id`, or any id if empty. Returns the secret."""
        request = v1.CreateInvitationRequest(agent_id=agent_id, lifetime=duration(lifetime))
        invitation: str = (await self._connection.call(self._connection.agents.CreateInvitation, request)).invitation
        return invitation

    async def add_key(
        self, agent_id: str, key: v1.AgentKey, *, replaces: Iterable[str] = (), grace: timedelta | None = None
    ) -> v1.Agent:
        """Adds a key to an agent. The keys in `replaces` stay valid for `grace`, one day by default."""
        request = v1.AddAgentKeyRequest(agent_id=agent_id, key=key, replaced_key_ids=replaces, grace=duration(grace))
        agent: v1.Agent = (await self._connection.call(self._connection.agents.AddAgentKey, request)).agent
        return agent

    async def revoke_key(self, agent_id: str, key_id: str, reason: str = "") -> v1.Agent:
        """Revokes a key of an agent permanently: the broker refuses every signature made with it."""
        request = v1.RevokeAgentKeyRequest(agent_id=agent_id, key_id=key_id, reason_text=reason)
        agent: v1.Agent = (await self._connection.call(self._connection.agents.RevokeAgentKey, request)).agent
        return agent

    async def vouch_for_key(self, agent_id: str, key_id: str, voucher: v1.KeyVoucher) -> v1.Agent:
        """Adds an operator's voucher for a key of an agent: see `vouch`."""
        request = v1.VouchForAgentKeyRequest(agent_id=agent_id, key_id=key_id, voucher=voucher)
        agent: v1.Agent = (await self._connection.call(self._connection.agents.VouchForAgentKey, request)).agent
        return agent

    async def get_agent(self, agent_id: str) -> v1.Agent:
        """Returns an agent's registration; the broker's own id is `baton`. Raises BatonError, AGENT_UNKNOWN."""
        request = v1.GetAgentRequest(agent_id=agent_id)
        agent: v1.Agent = (await self._connection.call(self._connection.agents.GetAgent, request)).agent
        return agent

    async def list_processes(self, agent_id: str) -> list[v1.Process]:
        """Returns the processes of an agent that have an open session, in the order in which they came, at most 100.

        Each names at most 20 tasks that it works on, without those that this agent may not see. Raises BatonError,
        AGENT_UNKNOWN.
        """
        request = v1.ListProcessesRequest(agent_id=agent_id)
        return list((await self._connection.call(self._connection.agents.ListProcesses, request)).processes)

    async def update_agent(
        self,
        agent_id: str = "",
        *,
        agent_types: Iterable[str] | None = None,
        description: str | None = None,
        skills: Iterable[v1.AgentSkill] | None = None,
        capacity: int | None = None,
        metadata: Mapping[str, str] | None = None,
        decides_within: timedelta | None = None,
        etag: str = "",
    ) -> v1.Agent:
        """Changes the fields of a card that are not None; each is replaced as a whole. Default: this agent's card.

        With `etag` the change fails with CONFLICT if the card has changed since `get_agent` returned this etag. Raises
        BatonError, for example AGENT_UNKNOWN, PERMISSION_DENIED, FIELD_INVALID; ValueError if no field is named.
        """
        fields = {
            "agent_types": agent_types,
            "description": description,
            "skills": skills,
            "capacity": capacity,
            "metadata": metadata,
            "decides_within": duration(decides_within),
        }
        changed: dict[str, Any] = {name: value for name, value in fields.items() if value is not None}
        if not changed:
            raise ValueError("name at least one field to change")
        request = v1.UpdateAgentRequest(
            card=v1.AgentCard(agent_id=agent_id or self.agent_id, **changed),
            update_mask=FieldMask(paths=changed),
            etag=etag,
        )
        agent: v1.Agent = (await self._connection.call(self._connection.agents.UpdateAgent, request)).agent
        return agent

    async def deregister(self, agent_id: str = "", *, force: bool = False, reason: str = "") -> v1.Agent:
        """Deregisters an agent for good; by default this one. Repeating the call has no effect.

        The broker revokes its keys, ends its sessions, and never uses the id again. `force` also deregisters an agent
        that owns open tasks or has open handoffs, which is refused with AGENT_BUSY otherwise. `reason` has at most 1024
        bytes. Raises BatonError.
        """
        request = v1.DeregisterAgentRequest(agent_id=agent_id or self.agent_id, force=force, reason_text=reason)
        agent: v1.Agent = (await self._connection.call(self._connection.agents.DeregisterAgent, request)).agent
        return agent

    async def find_agents(
        self,
        *,
        agent_type: str = "",
        required_skills: Iterable[str] = (),
        preferred_skills: Iterable[str] = (),
        task_type: str = "",
        languages: Iterable[str] = (),
        tags: Iterable[str] = (),
        priority: v1.Priority = v1.PRIORITY_UNSPECIFIED,
        as_sender_id: str = "",
        include_gone: bool = False,
        limit: int = 50,
    ) -> list[v1.AgentMatch]:
        """Returns the agents that fit, best first, at most `limit`, each with the reasons for its rank: see `explain`.

        Asks no agent. An agent finds only those to which the policies let it hand a task over. `priority` is a
        PRIORITY_*, by default MEDIUM. The order may change between two pages of 1000 agents; an agent that moves back
        then occurs twice. Raises BatonError, for example FIELD_INVALID, SENDER_MISMATCH, PERMISSION_DENIED.
        """
        request = v1.FindAgentsRequest(
            agent_type=agent_type,
            required_skills=required_skills,
            preferred_skills=preferred_skills,
            task_type=task_type,
            languages=languages,
            tags=tags,
            priority=priority,
            as_sender_id=as_sender_id,
            include_gone=include_gone,
        )
        found: list[v1.AgentMatch] = []
        while len(found) < limit:
            request.page_size = min(limit - len(found), _FOUND_PAGE_MAX)
            page = await self._connection.call(self._connection.agents.FindAgents, request)
            found += page.matches
            request.page_token = page.next_page_token
            if not page.next_page_token:
                break
        return found

    async def list_agents(
        self,
        *,
        agent_type: str = "",
        skill: str = "",
        tag: str = "",
        language: str = "",
        task_type: str = "",
        presence: v1.Presence = v1.PRESENCE_UNSPECIFIED,
        include_deregistered: bool = False,
    ) -> AsyncGenerator[v1.Agent, None]:
        """Yields the agents that match all filters, in the order of their ids.

        `skill` also matches a more specific one. `presence` is a PRESENCE_*, by default any. Raises BatonError, for
        example FIELD_INVALID.
        """
        request = v1.ListAgentsRequest(
            page_size=_PAGE_SIZE,
            agent_type=agent_type,
            skill=skill,
            tag=tag,
            language=language,
            task_type=task_type,
            presence=presence,
            include_deregistered=include_deregistered,
        )
        while True:
            page = await self._connection.call(self._connection.agents.ListAgents, request)
            for agent in page.agents:
                yield agent
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    async def watch_agents(
        self, *, after_cursor: int = 0, agent_type: str = "", skill: str = "", cards_only: bool = False
    ) -> AsyncGenerator[v1.WatchAgentsResponse, None]:
        """Yields the agents, then one `caught_up`, then each change, without end.

        `response.WhichOneof("event")` is `agent`, `left_agent_id`, `activities` or `caught_up`. The watch continues by
        itself over lost connections and restarts of the broker. A later process continues with the last
        `response.cursor` as `after_cursor`. Raises BatonError if the broker refuses.
        """
        request = v1.WatchAgentsRequest(
            after_cursor=after_cursor, agent_type=agent_type, skill=skill, cards_only=cards_only
        )

        stream = follow_changes(self._connection, self._connection.agents.WatchAgents, request)
        async with contextlib.aclosing(stream) as responses:
            async for response in responses:
                yield response


def explain(match: v1.AgentMatch) -> str:
    """Returns the reasons for a rank, for people: a line for the agent, and one for each factor of its score."""
    presence = v1.Presence.Name(match.presence).removeprefix("PRESENCE_")
    full = ", full" if match.load.is_full else ""
    lines = [f"{match.rank}. {match.agent_id}: {match.score:.3f}, {presence}{full}"]
    for factor in match.factors:
        part = f"{factor.value:.2f} x {factor.weight:.2f} = {factor.value * factor.weight:.3f}"
        lines.append(f"   {factor.name:<14} {part}  {factor.text}")
    return "\n".join(lines)
