"""In a process of its own, as it is the process's allocator that is told."""

import platform
import subprocess
import sys

import pytest

ROUNDS = 20
SCRIPT = f"""
import resource, sys
from duplex.allocator import keep_freed_memory
if sys.argv[1] == "keep":
    keep_freed_memory()
    keep_freed_memory()
def use():
    blocks = [bytearray(2 << 20) for _ in range(4)]
    for block in blocks:
        block[::4096] = block[::4096]
use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range({ROUNDS}):
    use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how):
    command = [sys.executable, "-c", SCRIPT, how]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is glibc that is told")
def test_blocks_of_megabytes_are_reused():
    """A page that is used for the first time is a fault: there are 512 in a block of 2 MiB."""
    assert faults("keep") < 512 < faults("leave")
