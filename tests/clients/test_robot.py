import numpy as np
import pytest

from clients.errors import BadEvent, ConnectionLost, Unauthorized, Unreachable
from clients.robot import PATH, PolicyFailed, connect, robot_url
from clients.robot_replay import RecordingError, read_recording, replay

POLICY = "tests.duplex.robot.policies:Policy"
KEY = "correct-horse-battery"


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("ws://h:1", f"ws://h:1{PATH}"),
        ("http://h:1/", f"ws://h:1{PATH}"),
        ("https://h", f"wss://h{PATH}"),
        ("h:8000", f"ws://h:8000{PATH}"),
        ("ws://h/policy?x=1", "ws://h/policy?x=1"),
    ],
)
def test_addresses(given, address):
    assert robot_url(given) == address


@pytest.mark.parametrize("given", ["ftp://h", "ws://", ""])
def test_what_is_no_address_is_said(given):
    with pytest.raises(Unreachable, match="no address"):
        robot_url(given)


async def test_asking_a_policy(start_server):
    async with start_server(policy=POLICY) as server, connect(server.address) as policy:
        assert policy.metadata["cube"].shape == (2, 2)
        assert (await policy.infer({"x": 2.0}))["actions"].tolist() == [[2, 2]] * 3
        assert not (await policy.infer({}))["reset"]
        await policy.reset()
        assert (await policy.infer({}))["reset"]
        with pytest.raises(BadEvent, match="Invalid request payload"):
            await policy.infer({"session_id": 3})
        with pytest.raises(PolicyFailed, match="Internal inference error"):
            await policy.infer({"do": "fail"})
        with pytest.raises(ConnectionLost, match="1011"):
            await policy.infer({})


async def test_what_can_go_wrong_at_the_start(start_server):
    async with start_server(api_keys=(KEY,)) as server:
        with pytest.raises(Unauthorized):
            async with connect(server.address, api_key="wrong-horse-battery"):
                pass
        with pytest.raises(PolicyFailed, match="Robot policy not available"):
            async with connect(server.address, api_key=KEY):
                pass
        with pytest.raises(Unreachable, match="HTTP 404"):
            async with connect(server.address + "/nowhere", api_key=KEY):
                pass
    with pytest.raises(Unreachable, match="no server at"):
        async with connect("ws://127.0.0.1:9"):
            pass


async def test_a_recording_is_replayed(start_server, tmp_path):
    recording, out = tmp_path / "in.npz", tmp_path / "out.npz"
    xs = np.linspace(0, 1, 5)
    np.savez(recording, x=xs, image=np.zeros((5, 8, 8, 3), np.uint8), prompt="go")
    told = []
    async with start_server(policy=POLICY) as server:
        result = await replay(
            recording,
            out,
            url=server.address,
            session_id="a",
            rate_hz=200.0,
            on_progress=lambda done, steps: told.append((done, steps)),
        )
    assert (result.inferences, result.horizon, result.dim) == (5, 3, 2)
    assert told == [(n, 5) for n in range(1, 6)]
    assert result.latency.p50_ms >= result.policy.p50_ms
    with np.load(out) as file:
        np.testing.assert_array_equal(file["actions"][:, 0, 0], xs)


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"a": np.zeros((2, 3)), "b": np.zeros((3, 3))}, "b has 3 steps, others have 2"),
        ({"prompt": np.array("go")}, "no array with a row for each step"),
        ({"a": np.zeros((0, 3))}, "no array with a row for each step"),
        ({"a": np.array([{}], dtype=object)}, "can't be read as NPZ"),
    ],
)
def test_recordings_that_are_none(tmp_path, arrays, said):
    path = tmp_path / "in.npz"
    np.savez(path, **arrays)
    with pytest.raises(RecordingError, match=said):
        read_recording(path)


def test_a_file_that_is_no_recording(tmp_path):
    (tmp_path / "in.npz").write_bytes(b"not one")
    for name in ("in.npz", "missing.npz"):
        with pytest.raises(RecordingError, match=f"{name} can't be read"):
            read_recording(tmp_path / name)


async def test_what_cannot_be_sent_is_said(start_server, tmp_path):
    np.savez(tmp_path / "in.npz", z=np.zeros((2, 2), complex))
    async with start_server(policy=POLICY) as server:
        with pytest.raises(RecordingError, match="z: arrays of complex128"):
            await replay(tmp_path / "in.npz", None, url=server.address)
