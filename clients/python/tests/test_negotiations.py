"""Negotiations: offers, counter-offers, awards with and without a task, and what a restart leaves."""

import asyncio
import contextlib
from datetime import UTC, datetime, timedelta

import pytest
from brokers import begin, needs_broker, within

from baton import BatonError, NegotiationFailedError, VerificationError, generate_key, json_section, offer, v1

pytestmark = needs_broker

ALL = "all:analyst"
GOALS = [json_section("goals", ["the sums of march"])]
TERMS = v1.HandoffRequest(task_type="report")


def wanted(seconds=120, **fields):
    request = v1.TaskRequest(description="the sums of march", **fields)
    request.offers_deadline.FromDatetime(datetime.now(UTC) + timedelta(seconds=seconds))
    return request


@contextlib.asynccontextmanager
async def bidders(broker, bids, owned):
    """Agents that offer by these functions; `owned` gets what they take over."""
    async with contextlib.AsyncExitStack() as stack:
        for name, bid in bids.items():
            agent = await stack.enter_async_context(broker.agent(name))
            agent.on_task_request(bid)

            @agent.on_handoff
            async def take(one, name=name):
                task = await (await one.accept()).complete()
                owned.put_nowait((name, one.is_award, one.sender_id, task))

            @agent.on(v1.TaskAccept, v1.NegotiationClosed)
            async def told(delivery, name=name):
                owned.put_nowait(
                    (
                        name,
                        type(delivery.payload).__name__,
                        delivery.payload.winner_id if hasattr(delivery.payload, "winner_id") else "",
                        None,
                    )
                )

            await agent.register(agent_types=["analyst"])
            await agent.connect()
        yield


def costs(cost):
    async def bid(one):
        assert one.request.description == "the sums of march"
        return offer(confidence=0.9, cost=cost, conditions="by mail")

    return bid


async def declines(_):
    return v1.TaskDecline(reason=v1.REJECT_REASON_OVERLOADED, reason_text="too much work")


async def test_offers_are_iterated_countered_and_awarded(broker):
    told = asyncio.Queue()

    async def haggles(one):
        if one.counter is None:
            return offer(confidence=0.5, cost=9)
        assert one.request.description == "the sums of march"
        if one.round == 3:
            return v1.TaskDecline(reason_text="no lower")
        return offer(confidence=0.5, cost=one.counter.cost + 1)

    async with (
        broker.agent("alice") as alice,
        bidders(broker, {"bob": costs(6), "carol": haggles, "dave": declines}, told),
    ):
        await begin(alice)
        async with broker.agent("erin") as erin:  # does not answer, so that the negotiation stays open
            await erin.register(agent_types=["analyst"])
        seen = []
        async with alice.negotiate(ALL, wanted()) as negotiation:
            async for bid in negotiation:
                seen.append((bid.agent_id, bid.offer.cost, bid.offer.round))
                if bid.agent_id == "carol" and bid.offer.cost > 4:
                    await bid.counter(cost=bid.offer.cost - 4)
                standing = {one.agent_id for one in negotiation.bids.values()}
                if standing == {"bob", "carol"} and negotiation.bids["carol"].offer.cost <= 4 and negotiation.declines:
                    break
            assert [one for one in seen if one[0] == "carol"] == [("carol", 9, 0), ("carol", 6, 1), ("carol", 3, 2)]
            assert negotiation.bids["bob"].offer.conditions == "by mail"
            assert negotiation.declines["dave"].reason == v1.REJECT_REASON_OVERLOADED
            await negotiation.award(negotiation.bids["carol"], "thank you")
            state = await negotiation.state()
            assert (state.state, state.winner_id) == (v1.NEGOTIATION_STATE_SETTLED, "carol")
            with pytest.raises(BatonError, match="NEGOTIATION_CLOSED"):
                await negotiation.cancel()
        news = {(await within(told.get()))[:3] for _ in range(2)}
        assert news == {("carol", "TaskAccept", ""), ("bob", "NegotiationClosed", "carol")}
        listed = [one.negotiation_id async for one in alice.negotiations(agent_id="alice")]
        assert listed == [negotiation.negotiation_id]


async def test_the_iteration_ends_when_all_have_answered(broker):
    async with broker.agent("alice") as alice, bidders(broker, {"bob": costs(2), "carol": declines}, asyncio.Queue()):
        await begin(alice)
        async with alice.negotiate(ALL, wanted()) as negotiation:
            assert [bid.agent_id async for bid in negotiation] == ["bob"]
            assert (await within(negotiation.closed())).state == v1.NEGOTIATION_STATE_DECIDING
            states = []
            async for state in alice.watch_negotiation(negotiation.negotiation_id):
                states.append(state.state)
                if len(states) == 1:
                    await negotiation.cancel()
            assert states == [v1.NEGOTIATION_STATE_DECIDING, v1.NEGOTIATION_STATE_CANCELLED]


async def test_a_task_is_awarded_to_a_bid(broker):
    owned = asyncio.Queue()
    async with broker.agent("alice") as alice, bidders(broker, {"bob": costs(2), "carol": costs(1)}, owned):
        await begin(alice)
        async with alice.negotiate(ALL, wanted(handoff=TERMS), task_id="march") as negotiation:
            bids = [bid async for bid in negotiation]
            cheapest = min(bids, key=lambda bid: bid.offer.cost)
            handed = await within(negotiation.hand_over(cheapest, GOALS))
        assert (handed.owner_id, handed.task_id, handed.epoch) == ("carol", "march", 2)
        assert {(await within(owned.get()))[:3] for _ in range(2)} == {
            ("carol", True, "alice"),
            ("bob", "NegotiationClosed", "carol"),
        }


async def test_the_broker_awards_under_the_mandate_and_asks_the_next_offer(broker):
    owned = asyncio.Queue()
    async with (
        broker.agent("alice") as alice,
        broker.agent("bob") as bob,
        bidders(broker, {"carol": costs(2)}, owned),
    ):

        @bob.on_task_request
        async def bid(_):
            return offer(confidence=1.0, cost=1)

        @bob.on_handoff
        async def refuse(one):
            assert (one.is_award, one.request.task_type, one.sender_id) == (True, "report", "alice")
            await one.reject(v1.REJECT_REASON_OVERLOADED, "too late for me")

        await begin(alice)
        await bob.register(agent_types=["analyst"])
        await bob.connect()
        request = wanted(handoff=TERMS, award_rule=v1.AWARD_RULE_LOWEST_COST)
        async with alice.negotiate(ALL, request, task_id="march") as negotiation:
            handed = await within(negotiation.handed_over(GOALS))
            state = await negotiation.state()
        assert (handed.owner_id, handed.epoch, state.state) == ("carol", 2, v1.NEGOTIATION_STATE_SETTLED)
        assert len(handed.rejections) == 1
        name, is_award, sender_id, task = await within(owned.get())
        assert (name, is_award, sender_id, task.epoch) == ("carol", True, "alice", 2)


async def test_a_negotiation_without_an_offer_fails(broker):
    async with broker.agent("alice") as alice, bidders(broker, {"bob": declines}, asyncio.Queue()):
        await begin(alice)
        request = wanted(handoff=TERMS, award_rule=v1.AWARD_RULE_SOONEST)
        async with alice.negotiate(ALL, request, task_id="march") as negotiation:
            with pytest.raises(NegotiationFailedError) as failed:
                await within(negotiation.handed_over(GOALS))
            assert (failed.value.reason, failed.value.negotiation_id) == ("NO_OFFER", negotiation.negotiation_id)
        with pytest.raises(BatonError, match="RECEIVER_UNKNOWN"):
            async with alice.negotiate("all:unknown", wanted()):
                pass


async def test_an_agent_without_a_handler_declines(broker):
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:

        @bob.on_handoff
        async def take(_):
            pass

        await begin(alice)
        await bob.register(agent_types=["analyst"])
        await bob.connect()
        async with alice.negotiate(ALL, wanted()) as negotiation:
            assert [bid async for bid in negotiation] == []
            assert negotiation.declines["bob"].reason == v1.REJECT_REASON_NO_SKILL


async def test_a_negotiation_continues_after_restarts_of_requester_and_broker(broker):
    owned, key = asyncio.Queue(), generate_key()
    answers = asyncio.Event()

    async def waits(_):
        await answers.wait()
        return offer(confidence=0.5, cost=1)

    async with bidders(broker, {"bob": costs(2), "carol": waits}, owned):
        async with broker.agent("alice", key=key) as alice:
            await begin(alice)
            async with alice.negotiate(ALL, wanted(handoff=TERMS), task_id="march") as negotiation:
                first = await within(anext(negotiation))
        broker.kill()
        await broker.start()
        answers.set()
        async with broker.agent("alice", key=key) as alice:
            await begin(alice)
            async with alice.resume_negotiation(negotiation.negotiation_id) as again:
                bids = {bid.agent_id: bid async for bid in again}
                assert (bids["bob"].offer_id, bids["bob"].offer.cost) == (first.offer_id, 2)
                with pytest.raises(ValueError, match="terms"):
                    await again.hand_over(bids["carol"], GOALS)
                handed = await within(again.hand_over(bids["carol"], GOALS, terms=TERMS))
                assert handed.owner_id == "carol"


async def test_a_mandate_that_another_agent_signed_is_not_taken(broker):
    async with broker.agent("alice") as alice, broker.agent("bob") as bob:
        await begin(alice, bob)
        closed = v1.NegotiationClosed(negotiation_id="n", winner_id="bob")
        closed.task_request.sender_id = "alice"
        delivery = v1.Delivery()
        from baton import Delivery, make_envelope

        request = wanted(handoff=TERMS)
        mandate = make_envelope(request, sender_id="alice", receiver_id=ALL, task_id="march", epoch=1)
        mandate.key_id, mandate.signature, mandate.signature_version = "k1", bytes(64), 1
        closed.task_request.CopyFrom(mandate)
        closed.negotiation_id = mandate.message_id
        delivery.envelope.CopyFrom(
            make_envelope(closed, sender_id="baton", receiver_id="bob", task_id="march", epoch=1)
        )
        with pytest.raises(VerificationError, match="SIGNATURE_INVALID"):
            await bob._check_mandate(Delivery(delivery, closed, bob))
        delivery.envelope.epoch = 2
        with pytest.raises(VerificationError, match="another negotiation or task"):
            await bob._check_mandate(Delivery(delivery, closed, bob))
