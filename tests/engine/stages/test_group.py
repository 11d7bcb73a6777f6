"""Real processes: a leader, its child that ignores signals, and the tracker of their memory."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from engine.stages.vllm.group import end_group, kill_group

LEADER = """
import signal, subprocess, sys, time
from multiprocessing.shared_memory import SharedMemory
signal.signal(signal.SIGTERM, signal.SIG_IGN)
memory = SharedMemory(create=True, size=64)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, memory.name, flush=True)
time.sleep(600)
"""


@pytest.fixture
def leader():
    process = subprocess.Popen(
        [sys.executable, "-c", LEADER], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def alive(pid):
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_a_group_is_ended_and_its_shared_memory_removed(leader):
    child, memory = leader.stdout.readline().split()
    assert Path("/dev/shm", memory).exists()
    end_group(leader.pid, 20)
    leader.wait(20)
    assert not alive(int(child))
    assert not kill_group(leader.pid)
    assert not Path("/dev/shm", memory).exists()


def test_one_may_be_spared(leader):
    child, _ = leader.stdout.readline().split()
    kill_group(leader.pid, spare=leader.pid)
    assert os.waitid(os.P_PID, leader.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    while alive(int(child)):
        os.sched_yield()
    end_group(leader.pid, 20)
