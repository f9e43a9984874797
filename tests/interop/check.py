"""A broker as a real process, Python agents, agents in Rust and Go, and grpcurl: what they do with each other.

Run by run.sh. Prints every check; ends with "N passed, N failed" and exit code 1 if any failed.
"""

import asyncio
import json
import os
import sys
import tempfile
from base64 import b64encode
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import backlog
import commands
import grpc
from google.protobuf import json_format
from harness import Checks, Mail, run, running, until

from baton import (
    Agent,
    BatonError,
    context_digest,
    generate_key,
    json_section,
    load_key,
    make_envelope,
    payload_of,
    public_bytes,
    save_key,
    sign_envelope,
    v1,
    verify_envelope,
    verify_receipt,
)

SECTIONS = [
    json_section("task_description", {"title": "Router drops the line every evening.", "Gruß": "客服"}),
    json_section("history_log", [{"who": "customer", "text": "It is down again."}]),
    v1.ContextSection(name="attachment", bytes=v1.ContextBytes(media_type="image/png", data=bytes(range(256)))),
]

LETTERS = 100_000
BACKLOG_SECONDS = 3600.0
"""How long sending and draining them may take on a loaded machine, with a broker that is not optimised."""


@dataclass
class World:
    """What all scenarios share."""

    checks: Checks
    folder: Path
    server: str
    ca: Path

    def agent(self, agent_id: str, key: Any = None) -> Agent:
        """An agent of this broker; its key is made if none is given."""
        return Agent(self.server, agent_id, key or generate_key(), key_id=commands.KEY_ID, ca_file=self.ca)

    async def grpcurl(self, *arguments: str, fails: bool = False, **options: Any) -> str:
        """A call by grpcurl."""
        return await run(commands.grpcurl(self.server, self.ca, *arguments, **options), fails=fails)


def request() -> v1.HandoffRequest:
    """A handoff request."""
    return v1.HandoffRequest(
        task_type="support-ticket",
        reason=v1.HANDOFF_REASON_SKILL,
        priority=v1.PRIORITY_HIGH,
        initial_context_summary="Router drops the line every evening.",
    )


# ------------------------------------------------------------------------------------------------ Python and Rust


async def hand_over(world: World, agent: Agent, mail: Mail, receiver: str, task_id: str) -> str:
    """Hands a new task from a Python agent to an agent in Rust, looking at every step. Returns the handoff's id."""
    checks = world.checks
    receipt = await agent.request_handoff(receiver, task_id, request())
    checks.same("receipt of the request: owner, epoch", (receipt.owner_id, receipt.epoch), (agent.agent_id, 1))
    checks.same("its state", receipt.handoff_state, v1.HANDOFF_STATE_REQUESTED)
    checks.same("its custody hash has bytes", len(receipt.custody_hash), 32)
    handoff_id = receipt.handoff_id

    accept = await mail.next(v1.HandoffAccept, handoff_id=handoff_id)
    checks.same("the accept is signed by", accept.envelope.sender_id, receiver)
    handoff = await agent.get_handoff(handoff_id)
    views = (handoff.state, handoff.sender_view, handoff.receiver_view)
    expected = (
        v1.HANDOFF_STATE_ACCEPTED,
        v1.SENDER_VIEW_CONTEXT_PREPARING,
        v1.RECEIVER_VIEW_AWAITING_CONTEXT_TRANSFER,
    )
    checks.same("state and views after the accept", views, expected)
    task = await agent.get_task(task_id)
    checks.same("the task is still at", (task.owner_id, task.epoch), (agent.agent_id, 1))

    receipt = await agent.send_context(accept, SECTIONS)
    await accept.ack()
    checks.same("state after the context", receipt.handoff_state, v1.HANDOFF_STATE_CONTEXT_SENT)
    complete = await mail.next(v1.HandoffComplete, handoff_id=handoff_id)
    checks.same("its outcome", complete.payload.outcome, v1.HANDOFF_OUTCOME_SUCCESS)
    wanted = set(accept.payload.wanted_sections)
    digest = context_digest(section for section in SECTIONS if not wanted or section.name in wanted)
    checks.same("the digest that Rust computed", complete.payload.context_digest.hex(), digest.hex())
    await complete.ack()

    handoff = await agent.get_handoff(handoff_id)
    views = (handoff.state, handoff.sender_view, handoff.receiver_view)
    expected = (v1.HANDOFF_STATE_COMPLETED, v1.SENDER_VIEW_TASK_FINISHED, v1.RECEIVER_VIEW_ACTIVE)
    checks.same("state and views at the end", views, expected)
    checks.same("the digest that the broker keeps", handoff.context_digest.hex(), digest.hex())
    return handoff_id


async def python_to_rust(world: World) -> None:
    """Python hands a ticket to Rust; the key of the Rust agent was made by Python."""
    key = world.folder / "rust-taker.pem"
    save_key(key, generate_key())
    async with world.agent("python-giver") as agent:
        await agent.register()
        await agent.connect()
        mail = Mail(agent)
        command = commands.agent_serve("rust-taker", key, world.server, world.ca)
        async with running(command, world.folder / "rust-taker.log") as process:
            await until("rust-taker is there", lambda: is_there(agent, "rust-taker"), process)
            card = (await agent.get_agent("rust-taker")).card
            found = [(one.key_id, one.public_key) for one in card.keys]
            world.checks.same("its key is ours", found, [(commands.KEY_ID, public_bytes(load_key(key)))])
            await hand_over(world, agent, mail, "rust-taker", "ticket-1")
            task = await agent.get_task("ticket-1")
            world.checks.same("the task is now at", (task.owner_id, task.epoch), ("rust-taker", 2))
            sending = agent.update_status("ticket-1", 1, v1.TASK_STATUS_COMPLETED)
            what = "the former owner says that the ticket is done"
            error = await world.checks.refused(what, sending, "FAILED_PRECONDITION", "STALE_EPOCH")
            epochs = (error.metadata.get("claimed_epoch"), error.metadata.get("current_epoch"))
            world.checks.same("which says the epochs", epochs, ("1", "2"))


async def there_and_back(world: World) -> None:
    """Python hands a ticket to Rust, which hands it back; the key of the Python agent was made by `baton keygen`."""
    checks = world.checks
    rust_key, python_key = world.folder / "rust-returner.pem", world.folder / "python-returner.pem"
    await run(commands.keygen(rust_key))
    await run(commands.keygen(python_key))
    async with world.agent("python-returner", load_key(python_key)) as agent:
        await agent.register()
        await agent.connect()
        mail = Mail(agent)
        command = commands.agent_serve("rust-returner", rust_key, world.server, world.ca, "python-returner")
        async with running(command, world.folder / "rust-returner.log") as process:
            await until("rust-returner is there", lambda: is_there(agent, "rust-returner"), process)
            await hand_over(world, agent, mail, "rust-returner", "ticket-2")

            back = await mail.next(v1.HandoffRequest, task_id="ticket-2")
            found = (back.envelope.sender_id, back.envelope.epoch)
            checks.same("the request back is of", found, ("rust-returner", 2))
            receipt = await agent.accept(back)
            await back.ack()
            checks.same("state after our accept", receipt.handoff_state, v1.HANDOFF_STATE_ACCEPTED)
            context = await mail.next(v1.TaskContextTransfer, handoff_id=back.envelope.message_id)
            sections = context.payload.sections
            stated = context.payload.context_digest.hex()
            checks.same("the digest that Rust states is the one we compute", context_digest(sections).hex(), stated)
            report = json.loads(sections[0].json)
            checks.same("the report that comes back", report, {"by": "rust-returner"})
            kept = [section for section in SECTIONS if section.name != "progress_report"]
            checks.same("what we sent comes back with it", list(sections[1:]) == kept, True)
            receipt = await agent.complete(context)
            await context.ack()
            found = (receipt.owner_id, receipt.epoch, receipt.handoff_state)
            checks.same("receipt of our completion", found, ("python-returner", 3, v1.HANDOFF_STATE_COMPLETED))
            task = await agent.get_task("ticket-2")
            hops = [(hop.sender_id, hop.receiver_id, hop.epoch) for hop in task.hops]
            expected = [("python-returner", "rust-returner", 2), ("rust-returner", "python-returner", 3)]
            checks.same("the way that the task went", hops, expected)
            result = {"cause": "a loose cable"}
            receipt = await agent.update_status("ticket-2", 3, v1.TASK_STATUS_COMPLETED, result=result)
            checks.same("the task's last status", receipt.task_status, v1.TASK_STATUS_COMPLETED)
            sending = agent.update_status("ticket-2", 3, v1.TASK_STATUS_FAILED)
            await checks.refused("another last status", sending, "FAILED_PRECONDITION", "TASK_FINAL")


async def is_there(agent: Agent, agent_id: str) -> bool:
    """Whether the agent is registered and has a session."""
    try:
        return (await agent.get_agent(agent_id)).session_count > 0
    except BatonError as error:
        if error.reason == "AGENT_UNKNOWN":
            return False
        raise


# ------------------------------------------------------------------------------------------------------- refusals


async def refusals(world: World) -> None:
    """What the broker must refuse, sent on a session; and the same by a simple call."""
    checks = world.checks
    key, other_key = generate_key(), generate_key()
    async with world.agent("refused", key) as agent, world.agent("other", other_key) as other, channel(world) as calls:
        broker = v1.BrokerServiceStub(calls)

        async def send(envelope: v1.Envelope) -> v1.Receipt:
            try:
                return (await broker.Send(v1.SendRequest(envelope=envelope))).receipt
            except grpc.aio.AioRpcError as error:
                raise BatonError.from_call(error) from error

        for one in (agent, other):
            await one.register()
            await one.connect()

        def info(text: str = "hello", sender: str = "refused") -> v1.Envelope:
            return make_envelope(v1.Info(text=text), sender_id=sender, receiver_id="other")

        def signed(envelope: v1.Envelope, with_key: Any = key, key_id: str = commands.KEY_ID) -> v1.Envelope:
            sign_envelope(envelope, key_id, with_key)
            return envelope

        later = signed(info())
        later.signature_version = 2
        changed = signed(info())
        changed.payload.CopyFrom(info("goodbye").payload)
        short = signed(info())
        short.signature = short.signature[:63]
        cases = [
            ("an unsigned envelope", info(), "UNAUTHENTICATED", "SIGNATURE_MISSING"),
            ("another agent's signature", signed(info(), other_key), "UNAUTHENTICATED", "SIGNATURE_INVALID"),
            ("a payload changed after signing", changed, "UNAUTHENTICATED", "SIGNATURE_INVALID"),
            ("a signature of 63 bytes", short, "UNAUTHENTICATED", "SIGNATURE_INVALID"),
            ("a key id that is not registered", signed(info(), key_id="k9"), "UNAUTHENTICATED", "KEY_UNKNOWN"),
            ("a later signature_version", later, "INVALID_ARGUMENT", "SIGNATURE_VERSION_UNKNOWN"),
        ]
        for what, envelope, code, reason in cases:
            await checks.refused(f"{what}, on the session", agent.send_envelope(envelope), code, reason)
            # Without a token a caller is not told which keys there are.
            reason = "SIGNATURE_INVALID" if reason == "KEY_UNKNOWN" else reason
            await checks.refused(f"{what}, by Send", send(envelope), code, reason)

        foreign = signed(info(sender="other"), other_key)
        what = "an envelope of another sender, well signed, on our session"
        await checks.refused(what, agent.send_envelope(foreign), "PERMISSION_DENIED", "SENDER_MISMATCH")
        receipt = await other.send_envelope(signed(greeting := info_of_other(), other_key))
        checks.same("the same sender on its own session is taken", receipt.message_id, greeting.message_id)

        first = signed(info("one"))
        receipt = await agent.send_envelope(first)
        checks.same("the same envelope again gives the same receipt", await agent.send_envelope(first), receipt)
        second = info("two")
        second.message_id = first.message_id
        what = "another message under the same id"
        await checks.refused(what, agent.send_envelope(signed(second)), "ALREADY_EXISTS", "MESSAGE_ID_REUSED")

        old = info()
        old.timestamp.seconds -= 301
        what = "a timestamp outside of the clock window"
        code = "INVALID_ARGUMENT"
        await checks.refused(what, agent.send_envelope(signed(old)), code, "TIMESTAMP_OUTSIDE_WINDOW")
        bad = make_envelope(request(), sender_id="refused", receiver_id="other", task_id="a b", epoch=1)
        error = await checks.refused("a task id with a space", agent.send_envelope(signed(bad)), code, "FIELD_INVALID")
        checks.same("the field that is named", [one.field for one in error.field_violations], ["envelope.task_id"])
        unknown = agent.send(v1.Info(text="hello"), receiver_id="unknown")
        await checks.refused("a receiver that is not registered", unknown, "NOT_FOUND", "RECEIVER_UNKNOWN")
        ahead = agent.request_handoff("other", "ticket-ahead", request(), epoch=2)
        await checks.refused("a new task at epoch 2", ahead, "FAILED_PRECONDITION", "EPOCH_AHEAD")
        await agent.request_handoff("other", "ticket-open", request())
        again = agent.request_handoff("other", "ticket-open", request())
        await checks.refused("a second handoff of the same task", again, "FAILED_PRECONDITION", "HANDOFF_OPEN")


def info_of_other() -> v1.Envelope:
    """A message of the other agent."""
    return make_envelope(v1.Info(text="hello"), sender_id="other", receiver_id="refused")


async def identities(world: World) -> None:
    """Who does not prove who they are does not get in."""
    checks = world.checks
    async with world.agent("identity") as agent, world.agent("identity") as thief, channel(world) as calls:
        await agent.register()
        what = "another key for a registered agent"
        # The client of a known agent proves who it is, to change its card: this one cannot.
        await checks.refused(what, thief.register(), "UNAUTHENTICATED", "CHALLENGE_FAILED")
        what = "a challenge signed with another key"
        await checks.refused(what, thief.prove_identity(), "UNAUTHENTICATED", "CHALLENGE_FAILED")
        broker, agents = v1.BrokerServiceStub(calls), v1.AgentServiceStub(calls)
        for what, metadata, reason in [
            ("a session without a token", (), "IDENTITY_MISSING"),
            ("a session with a wrong token", (("authorization", "Bearer 0000"),), "TOKEN_INVALID"),
        ]:
            await checks.refused(what, first_frame(broker.Connect(metadata=metadata)), "UNAUTHENTICATED", reason)
        weak = v1.AgentCard(agent_id="weak", keys=[v1.AgentKey(key_id="k1", public_key=b"\1" + bytes(31))])
        registering = translated(agents.RegisterAgent(v1.RegisterAgentRequest(card=weak)))
        await checks.refused("a weak key", registering, "INVALID_ARGUMENT", "KEY_WEAK")


def channel(world: World) -> grpc.aio.Channel:
    """A connection without an identity."""
    return grpc.aio.secure_channel(world.server, grpc.ssl_channel_credentials(world.ca.read_bytes()))


async def first_frame(call: Any) -> Any:
    """What a session begins with."""
    return await translated(call.read())


async def translated(call: Any) -> Any:
    """The answer of a call, or its error as ours."""
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise BatonError.from_call(error) from error


# -------------------------------------------------------------------------------------------------------- grpcurl


async def by_hand(world: World) -> None:
    """All of it with nothing but the command line and grpcurl."""
    checks = world.checks
    services = (await world.grpcurl("list")).split()
    for service in ["AgentService", "BrokerService", "DeadLetterService", "HandoffService", "TaskService"]:
        checks.true(f"reflection lists {service}", f"baton.v1.{service}" in services)
    described = await world.grpcurl("describe", "baton.v1.Envelope")
    checks.true("it describes the envelope", "signature_version = 14" in described)
    health = await world.grpcurl("grpc.health.v1.Health/Check", data='{"service": "baton.v1.BrokerService"}')
    checks.same("health", json.loads(health), {"status": "SERVING"})

    keys = {name: world.folder / f"{name}.pem" for name in ("curl-sender", "curl-receiver")}
    for name, key in keys.items():
        await run(commands.keygen(key))
        public_key = b64encode(public_bytes(load_key(key))).decode()
        card = {"agentId": name, "keys": [{"keyId": commands.KEY_ID, "publicKey": public_key}]}
        answer = await world.grpcurl("baton.v1.AgentService/RegisterAgent", data=json.dumps({"card": card}))
        checks.same("registered", json.loads(answer)["agent"]["card"]["agentId"], name)

    draft = {
        "senderId": "curl-sender",
        "receiverId": "curl-receiver",
        "payload": {"@type": "type.googleapis.com/baton.v1.Info", "topic": "greeting", "text": "Grüße, by hand"},
    }
    signed = await run(commands.envelope_sign(keys["curl-sender"]), json.dumps(draft))
    sender_key = v1.AgentKey(key_id=commands.KEY_ID, public_key=public_bytes(load_key(keys["curl-sender"])))
    envelope = json_format.Parse(signed, v1.SendRequest()).envelope
    verify_envelope(envelope, sender_key)
    checks.true("Python verifies what `baton envelope sign` signed", True)
    unsigned = json.dumps({"envelope": json.loads(signed)["envelope"] | {"signature": ""}})
    told = await world.grpcurl("baton.v1.BrokerService/Send", data=unsigned, fails=True)
    checks.true("grpcurl sends it unsigned: Unauthenticated", "Code: Unauthenticated" in told)
    answer = await world.grpcurl("baton.v1.BrokerService/Send", data=signed)
    receipt = json_format.ParseDict(json.loads(answer)["receipt"], v1.Receipt())
    async with world.agent("reader") as reader:
        broker_keys = {key.key_id: key for key in (await reader.get_agent("baton")).card.keys}
    verify_receipt(receipt, broker_keys[receipt.key_id])
    checks.same("grpcurl sends it signed: a receipt that verifies", receipt.message_id, envelope.message_id)

    token = (await run(commands.token("curl-receiver", keys["curl-receiver"], world.server, world.ca))).strip()
    told = await world.grpcurl("baton.v1.BrokerService/Receive", data='{"maxDeliveries": 1}', fails=True)
    checks.true("receiving without a token: Unauthenticated", "Code: Unauthenticated" in told)
    answer = await world.grpcurl("baton.v1.BrokerService/Receive", data='{"maxDeliveries": 1}', token=token)
    delivery = json.loads(answer)["delivery"]
    envelope = json_format.ParseDict(delivery["envelope"], v1.Envelope())
    verify_envelope(envelope, sender_key)
    checks.same("the delivery verifies and says", payload_of(envelope).text, "Grüße, by hand")
    ack = json.dumps({"acknowledgement": {"deliveryId": delivery["deliveryId"], "ack": {}}})
    answer = await world.grpcurl("baton.v1.BrokerService/Ack", data=ack, token=token)
    checks.same("acked", json.loads(answer)["acknowledged"]["deliveryId"], delivery["deliveryId"])
    told = await world.grpcurl("baton.v1.BrokerService/Ack", data=ack, token=token, fails=True)
    checks.true("acked again: NotFound", "Code: NotFound" in told)


# ------------------------------------------------------------------------------------------------ Python and Python


async def a_run_with_go(world: World) -> None:
    """A model of a Python agent routes a task to the node of a Go agent, which reports its turn and finishes the task."""
    checks = world.checks
    graph = v1.Graph(graph_id="tickets", entry_node_ids=["triage"])
    graph.nodes.add(node_id="triage", description="reads", handoffs=1, output_nodes=["billing", "end"])
    graph.nodes.add(node_id="billing", description="pays", agent_id="go-biller", output_nodes=["end"])
    async with world.agent("python-triage") as agent:
        await agent.register()
        await agent.connect()
        command = commands.go_node("go-biller", "billing", world.server, world.ca)
        async with running(command, world.folder / "go-biller.log") as process:
            await until("go-biller is there", lambda: is_there(agent, "go-biller"), process)
            await agent.register_graph(graph)
            receipt = await agent.request_handoff("go-biller", "invoice-1", request())
            await agent.cancel(receipt, "go-biller")
            [task] = [one for one in await agent.owned_tasks() if one.task_id == "invoice-1"]
            run = await agent.start_run("tickets", task_id="invoice-1")
            call = v1.ToolCall(call_id="1", name="transfer_to_billing", arguments_json='{"reason":"an invoice"}')
            step = await run.turn("triage", calls=[call], output="pay twice")
            checks.same("the choice is a handoff to", step.receiver_id, "go-biller")
            handed = await task.hand_over(step.receiver_id, step.proposal, SECTIONS)
            checks.same("the new owner, and its epoch", (handed.owner_id, handed.epoch), ("go-biller", 2))
            entries = [entry async for entry in run.watch()]
            checks.same("the entries of the run, dense", [one.number for one in entries], [*range(1, len(entries) + 1)])
            turns = [one.turn for one in entries if one.HasField("turn")]
            expected = [("python-triage", "pay twice"), ("go-biller", "triage said: pay twice")]
            checks.same("reporters and outputs", [(one.reporter_id, one.output) for one in turns], expected)
            checks.same("the end of the run", entries[-1].ended.state, v1.RUN_STATE_COMPLETED)


async def the_example(world: World) -> None:
    """The tickets of the README's story, with two Python agents."""
    script = Path(__file__).resolve().parents[2] / "clients/python/examples/ticket_agent.py"
    example = [sys.executable, str(script), "--server", world.server, "--ca"]
    example += [str(world.ca)]

    def who(name: str) -> list[str]:
        return [*example, "--id", name, "--key", str(world.folder / f"{name}.pem")]

    async with running([*who("bob"), "serve"], world.folder / "bob.log") as process, world.agent("looker") as looker:
        await until("bob is there", lambda: is_there(looker, "bob"), process)
        told = await run([*who("alice"), "offer", "--to", "bob", "--task", "ticket-3"])
        last = told.strip().splitlines()[-1]
        world.checks.same("alice's last word", last, "ticket-3: handed over, owned by bob at epoch 2")


async def a_large_backlog(world: World) -> None:
    """100,000 letters, acked with the largest credit, drain in one session of stock grpcio."""
    checks, key = world.checks, generate_key()
    async with world.agent("letter-sender", key) as sender, world.agent("letter-reader") as reader:
        tokens = []
        for one in (sender, reader):
            await one.register()
            tokens.append((("authorization", f"Bearer {await one.prove_identity()}"),))
        with backlog.channel(world.server, world.ca.read_bytes()) as calls:
            stub = v1.BrokerServiceStub(calls)
            names = (commands.KEY_ID, "letter-sender", "letter-reader")
            async with asyncio.timeout(BACKLOG_SECONDS):
                await asyncio.to_thread(backlog.send, stub, tokens[0], key, *names, LETTERS)
                granted, numbers = await asyncio.to_thread(backlog.drain, stub, tokens[1], LETTERS)
    checks.same("the credit that is granted", granted, backlog.CREDIT)
    checks.same("letters, each once and in their order", numbers == list(range(1, LETTERS + 1)), True)


async def main() -> int:
    """Starts the broker and runs all scenarios. Returns the exit code."""
    checks = Checks()
    with tempfile.TemporaryDirectory(prefix="baton-interop-") as name:
        folder = Path(name)
        os.chdir(folder)  # what runs in the checkout is none of ours
        data = folder / "data"
        address = data / "address"

        async def is_ready() -> bool:
            return address.exists()

        async def scenarios() -> None:
            async with running(commands.dev(data), folder / "broker.log") as process:
                await until("the broker is ready", is_ready, process)
                world = World(checks, folder, address.read_text("utf-8").strip(), data / "tls" / "ca.pem")
                print(f"  the broker listens on {world.server}")
                for scenario in (
                    python_to_rust,
                    there_and_back,
                    refusals,
                    identities,
                    by_hand,
                    a_run_with_go,
                    the_example,
                    a_large_backlog,
                ):
                    await checks.scenario(str(scenario.__doc__), lambda run=scenario: run(world))

        await checks.scenario("The broker", scenarios)
    print(f"\n{checks.passed} passed, {checks.failed} failed")
    return 1 if checks.failed or not checks.passed else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
