import asyncio
import os
import signal
import sys
import time
import venv
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from duplex.robot.pipe import Kind
from duplex.robot.process import RobotPolicy
from engine.api import EngineError, EngineLost, EngineUnavailable
from engine.backoff import Backoff
from media.ndarray_msgpack import packb, unpackb

POLICIES = "tests.duplex.robot.policies"


@asynccontextmanager
async def running(name="Policy", python=None, **options):
    policy = RobotPolicy(
        f"{POLICIES}:{name}", options, python, backoff=Backoff(first_s=0.01, longest_s=0.05)
    )
    await policy.start()
    try:
        yield policy
    finally:
        await policy.stop()


async def answer(link, **observation):
    return await link.ask(packb(observation), time.monotonic(), None)


async def reply(link, **observation):
    message = await answer(link, **observation)
    assert message.kind is Kind.REPLY, message
    return unpackb(message.payload)


async def waiting(path):
    while not path.exists():
        await asyncio.sleep(0.001)


async def test_a_policy_answers_and_closes(tmp_path):
    closed = tmp_path / "closed"
    async with running(closed=str(closed), horizon=3) as policy:
        link = policy.connect()
        metadata = unpackb(link.metadata)
        assert metadata["options"]["horizon"] == 3
        assert metadata["python"] == sys.executable
        said = await reply(link, x=2.0, image=np.zeros(3_000_000, np.uint8))
        assert (said["reset"], said["size"]) == (True, 3_000_000)
        assert said["actions"].tolist() == [[2, 2]] * 3
        assert said["policy_timing"]["infer_ms"] <= said["server_timing"]["infer_ms"]
        assert not (await reply(link))["reset"]
        pid = policy.pid
    assert closed.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_robots_are_told_apart():
    async with running("Stateful") as policy:
        one, two = policy.connect(), policy.connect()
        assert (await reply(one))["actions"].tolist() == [[1, 1]]
        assert (await reply(two))["actions"].tolist() == [[1, 2]]
        assert (await reply(one))["actions"].tolist() == [[2, 2]]
        assert unpackb((await answer(one, endpoint="reset")).payload) == {
            "status": "reset successful"
        }
        assert (await reply(one))["actions"].tolist() == [[1, 2]]
        two.leave()
        assert (await reply(one))["actions"].tolist() == [[2, 1]]


async def test_those_that_wait_go_through_together(tmp_path):
    gate = tmp_path / "gate"
    async with running("Batched") as policy:
        links = [policy.connect() for _ in range(6)]
        first = asyncio.create_task(reply(links[0], do="wait", gate=str(gate)))
        await waiting(gate.with_suffix(".waiting"))
        others = [asyncio.create_task(reply(link, x=1.0 * n)) for n, link in enumerate(links[1:])]
        await asyncio.sleep(0)  # each has handed over its message
        await reply_written(policy)
        gate.touch()
        assert (await first)["batch"] == 1
        said = await asyncio.gather(*others)
        assert [each["batch"] for each in said] == [5] * 5
        assert [each["actions"][0, 0] for each in said] == [0, 1, 2, 3, 4]


async def reply_written(policy):
    """Waits until what was handed over is in the pipe."""
    worker = policy._worker
    while len(worker._tasks) > 1:  # all but the reader
        await asyncio.sleep(0)


async def test_failures_say_what_is_to_be_said():
    async with running() as policy:
        link = policy.connect()
        for observation, said in [
            ({"do": "fail"}, b"Internal inference error"),
            ({"do": "give nothing"}, b"Internal inference error"),
            ({"do": "refuse"}, b"do is not what I do"),
        ]:
            message = await answer(link, **observation)
            assert (message.kind, message.payload) == (Kind.FAILED, said)
        message = await link.ask(b"\xc1", 0.0, None)
        assert message.kind is Kind.INVALID
        assert (await reply(link, x=1.0))["actions"][0, 0] == 1


async def test_a_robot_that_leaves_while_it_waits_disturbs_nobody(tmp_path):
    gate = tmp_path / "gate"
    async with running() as policy:
        one, two = policy.connect(), policy.connect()
        asking = asyncio.create_task(reply(one, do="wait", gate=str(gate)))
        large = asyncio.create_task(reply(two, image=np.zeros(8 << 20, np.uint8)))
        await waiting(gate.with_suffix(".waiting"))
        asking.cancel()
        large.cancel()
        await asyncio.wait({asking, large})
        one.leave()
        two.leave()
        gate.touch()
        assert (await reply(policy.connect(), x=3.0))["actions"][0, 0] == 3


async def test_after_a_death_there_is_a_new_policy():
    async with running() as policy:
        link, other = policy.connect(), policy.connect()
        with pytest.raises(EngineLost, match="exit code 3"):
            await answer(link, do="die")
        with pytest.raises(EngineLost):
            await answer(other)
        with pytest.raises(EngineUnavailable):
            policy.connect()
        async with asyncio.timeout(30):
            while not policy.restarts:
                await asyncio.sleep(0.01)
        assert (await reply(policy.connect()))["reset"]


async def test_a_policy_that_is_killed_is_noticed_by_who_waits(tmp_path):
    async with running() as policy:
        gate = tmp_path / "gate"
        asking = asyncio.create_task(answer(policy.connect(), do="wait", gate=str(gate)))
        await waiting(gate.with_suffix(".waiting"))
        os.kill(policy.pid, signal.SIGKILL)
        with pytest.raises(EngineLost, match="signal 9"):
            await asking


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("Unloadable", {}, "OSError: no weights here"),
        ("Stateful", {"horizon": 1}, "unexpected keyword argument 'horizon'"),
        ("nothing", {}, "has no nothing"),
        ("not_sendable", {}, "metadata can't be sent: policy: a Policy"),
    ],
)
async def test_what_cannot_be_loaded_is_said_in_its_own_words(name, options, said):
    with pytest.raises(EngineError, match=said):
        async with running(name, **options):
            pass


async def test_an_interpreter_that_is_none_is_said(tmp_path):
    with pytest.raises(EngineError, match="can't be run: No such file"):
        async with running(python=tmp_path / "python"):
            pass
    script = tmp_path / "false"
    script.write_text("#!/bin/sh\nexit 5\n")
    script.chmod(0o700)
    with pytest.raises(EngineError, match="ended at its start: exit code 5"):
        async with running(python=script):
            pass


@pytest.fixture
def other_python(tmp_path):
    """An interpreter with NumPy and nothing else."""
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    (site,) = (tmp_path / "venv/lib").glob("python*/site-packages")
    for part in Path(np.__file__).parents[1].glob("numpy*"):
        (site / part.name).symlink_to(part)
    return tmp_path / "venv/bin/python"


@pytest.mark.parametrize("plain", ["", "1"])
async def test_a_policy_runs_in_another_interpreter_without_our_packages(
    other_python, monkeypatch, plain
):
    monkeypatch.setenv("MSGPACK_PUREPYTHON", plain)  # as where our compiled part doesn't fit
    async with running(python=other_python) as policy:
        link = policy.connect()
        assert unpackb(link.metadata)["python"] == str(other_python)
        said = await reply(link, image=np.zeros((64, 64, 3), np.uint8), prompt="go")
        assert said["size"] == 64 * 64 * 3
        assert (await link.ask(b"\xdd\xff\xff\xff\xff", 0.0, None)).kind is Kind.INVALID
        message = await answer(link, do="import", module="aiohttp")
        assert message.kind is Kind.FAILED


async def test_an_interpreter_without_numpy_says_so(other_python):
    for part in other_python.parents[1].glob("lib/python*/site-packages/numpy*"):
        part.unlink()
    with pytest.raises(EngineError, match=r"venv/bin/python can't run policies: No module named"):
        async with running(python=other_python):
            pass


async def test_a_policy_ends_with_its_owner_even_while_it_thinks(tmp_path):
    gate = tmp_path / "gate"
    script = f"""
import asyncio
from duplex.robot.process import RobotPolicy
from media.ndarray_msgpack import packb

async def main():
    policy = RobotPolicy("{POLICIES}:Policy", {{}})
    await policy.start()
    print(policy.pid, flush=True)
    await policy.connect().ask(packb({{"do": "wait", "gate": "{gate}"}}), 0.0, None)

asyncio.run(main())
"""
    owner = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", script), stdout=asyncio.subprocess.PIPE
    )
    pid = int(await owner.stdout.readline())
    await waiting(gate.with_suffix(".waiting"))
    owner.kill()
    await owner.wait()
    async with asyncio.timeout(20):
        while not _is_dead(pid):
            await asyncio.sleep(0.01)


def _is_dead(pid):
    """Gone, or a zombie where no init asks how it ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


async def test_stopping_is_idempotent_and_needs_no_start():
    policy = RobotPolicy(f"{POLICIES}:Policy", {})
    await policy.stop()
    with pytest.raises(EngineUnavailable):
        policy.connect()
    await policy.start()
    await policy.stop()
    await policy.stop()


async def test_a_start_that_is_given_up_leaves_no_process():
    policy = RobotPolicy(f"{POLICIES}:Policy", {})
    starting = asyncio.create_task(policy.start())
    await asyncio.sleep(0.05)
    starting.cancel()
    await asyncio.wait({starting})
    assert starting.cancelled()
    await policy.stop()
    assert policy.pid is None
