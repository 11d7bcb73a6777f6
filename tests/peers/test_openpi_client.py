"""`openpi_client` of the PyPI package `openpi-client`, unmodified, against a running server.

Judged with openpi-client 0.1.2, installed without its dependencies: it pins NumPy 1. Quirks: a host
that begins with "ws" is taken as a whole address; its `reset` does nothing on the wire; any text is
an error to it, and where it expects the metadata a text is a TypeError; the arrays that it reads
can't be written to.
"""

import asyncio
from contextlib import asynccontextmanager, contextmanager

import numpy as np
import pytest
import torch
from openpi_client import msgpack_numpy
from openpi_client.websocket_client_policy import WebsocketClientPolicy
from safetensors.torch import save_file

from clients.events import AudioFrame
from clients.session import connect
from media.ndarray_msgpack import CodecError, packb
from recipes.robot.arm import random_joints, random_target, render
from recipes.robot.network import HORIZON
from recipes.robot.policy import IMAGE, JOINTS
from recipes.robot.train import train

# The client connects as websockets deprecated in its version 17.
pytestmark = pytest.mark.filterwarnings("ignore:connect.. must be used:DeprecationWarning")

POLICIES = "tests.duplex.robot.policies"
FRAME = 1_920


@pytest.fixture(scope="module")
def arm(tmp_path_factory):
    """The arm's network, hardly trained, and its weights' file."""
    network, _ = train(steps=20, scenes=128)
    path = tmp_path_factory.mktemp("arm") / "arm.safetensors"
    save_file(network.state_dict(), path)
    return network.eval(), path


@asynccontextmanager
async def conversation(server):
    """A live full-duplex session, which must hear every frame back while the block runs."""
    pcm = np.random.default_rng(1).uniform(-0.5, 0.5, (8, FRAME)).astype(np.float32)
    done = asyncio.Event()

    async def talk():
        async with connect(server.address.replace("http", "ws", 1)) as session:
            frames = 0

            async def hear():
                nonlocal frames
                async for event in session:
                    if isinstance(event, AudioFrame):
                        np.testing.assert_array_equal(event.pcm, pcm[frames % len(pcm)])
                        frames += 1

            hearing = asyncio.create_task(hear())
            sent = 0
            while not done.is_set() or sent < 10:
                await session.send_audio(pcm[sent % len(pcm)])
                sent += 1
                await asyncio.sleep(0.01)
            await session.end_input()
            await hearing
            return sent, frames

    talking = asyncio.create_task(talk())
    try:
        yield
    finally:
        done.set()
        sent, frames = await talking
    assert sent == frames >= 10


@contextmanager
def policy_at(server, **options):
    policy = WebsocketClientPolicy(server.address.replace("http", "ws", 1), **options)
    try:
        yield policy
    finally:
        policy._ws.close()  # it never says goodbye itself


async def test_a_thousand_inferences_with_images_beside_a_conversation(start_server, arm):
    network, weights = arm
    rng = np.random.default_rng(0)
    joints, targets = random_joints(rng, 50), random_target(rng, 50)
    images, joints = render(joints, targets), joints.astype(np.float32)
    with torch.inference_mode():
        expected = network(torch.from_numpy(images), torch.from_numpy(joints)).numpy()

    def act(server):
        with policy_at(server) as policy:
            assert policy.get_server_metadata()["action_horizon"] == HORIZON
            for number in range(1_000):
                row = number % 50
                reply = policy.infer({IMAGE: images[row], JOINTS: joints[row], "prompt": "reach"})
                assert reply["actions"].shape == (HORIZON, 2)
                np.testing.assert_allclose(reply["actions"], expected[row], atol=1e-5)
                assert reply["policy_timing"]["infer_ms"] > 0
                assert ("prev_total_ms" in reply["server_timing"]) == (number > 0)

    options = {"weights": str(weights)}
    async with (
        start_server(policy="recipes.robot.policy:make", policy_options=options) as server,
        conversation(server),
    ):
        await asyncio.to_thread(act, server)


async def test_a_slow_policy_holds_up_nobody_but_its_robot(start_server, tmp_path):
    """The policy waits for a gate that opens only when the conversation has gone on meanwhile."""
    image, gate = np.zeros(2 << 20, np.uint8), tmp_path / "gate"

    def act(server):
        with policy_at(server) as policy:
            return policy.infer({"image": image, "do": "wait", "gate": str(gate)})

    async with start_server(policy=f"{POLICIES}:Policy") as server:
        acting = asyncio.create_task(asyncio.to_thread(act, server))
        try:
            async with conversation(server):
                while not gate.with_suffix(".waiting").exists():
                    await asyncio.sleep(0.001)
            assert not acting.done()
        finally:
            gate.touch()
        assert (await acting)["size"] == image.nbytes


async def test_what_openpi_sends_arrives_and_what_it_gets_it_can_read(start_server):
    observation = {
        "image": np.arange(48, dtype=np.uint8).reshape(4, 4, 3).transpose(2, 0, 1),
        "state": np.linspace(0, 1, 7),
        "half": np.float16(0.5),
        "words": np.array(["pick", "place"]),
        "prompt": "pick it up",
        "nested": {"list": [1, 2.5, None, True]},
        "x": np.float64(4.0),
    }

    def act(server):
        with policy_at(server, api_key="correct-horse-battery") as policy:
            np.testing.assert_array_equal(policy.get_server_metadata()["cube"], np.zeros((2, 2)))
            return policy.infer(observation)

    keys = ("correct-horse-battery",)
    async with start_server(policy=f"{POLICIES}:Policy", api_keys=keys) as server:
        reply = await asyncio.to_thread(act, server)
    np.testing.assert_array_equal(reply["actions"], np.full((3, 2), 4.0))
    assert reply["size"] == 48 + 56 + 5 * 4 * 2
    assert reply["reset"] is True


async def test_a_failure_is_an_exception_of_the_client(start_server):
    def act(server):
        with (
            policy_at(server) as policy,
            pytest.raises(RuntimeError, match="Internal inference error") as failed,
        ):
            policy.infer({"do": "fail"})
        assert "Traceback" not in str(failed.value)
        assert "secret" not in str(failed.value)

    async with start_server(policy=f"{POLICIES}:Policy") as server:
        await asyncio.to_thread(act, server)


async def test_a_reset_by_hand_is_understood(start_server):
    def act(server):
        with policy_at(server) as policy:
            assert policy.infer({"session_id": "a"})["reset"]
            assert not policy.infer({"session_id": "a"})["reset"]
            assert policy.infer({"endpoint": "reset"}) == {"status": "reset successful"}
            assert policy.infer({"session_id": "a"})["reset"]

    async with start_server(policy=f"{POLICIES}:Policy") as server:
        await asyncio.to_thread(act, server)


def test_the_codecs_are_the_same_byte_for_byte():
    rng = np.random.default_rng(0)
    value = {
        "actions": rng.normal(size=(8, 7)),
        "f": np.float32(1.5),
        "i": np.array(3, ">i4"),
        "b": np.array([True, False]),
        "t": {"infer_ms": 1.5, "n": [1, "a", None]},
    }
    assert packb(value) == msgpack_numpy.packb(value)


@pytest.mark.parametrize("bad", [np.array([object()]), np.zeros(2, complex)])
def test_both_refuse_to_send_the_same(bad):
    with pytest.raises(ValueError, match="Unsupported dtype"):
        msgpack_numpy.packb(bad)
    with pytest.raises(CodecError):
        packb(bad)
