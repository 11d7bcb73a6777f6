import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_both_servers_are_measured_under_the_same_load():
    command = [sys.executable, "-m", "recipes.bench.sockets"]
    done = subprocess.run(
        [*command, "--sessions", "2", "--seconds", "0.8", "--json"],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if "DUPLEX_" not in name},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    for name in ("bare", "server"):
        assert result[name]["sessions"] == 2
        assert result[name]["frames_in"] == result[name]["frames_out"] == 20
        assert result[name]["lost"] == result[name]["errors"] == 0
        assert result[name]["latency"]["p50_ms"] > 0
        assert result[name]["server_cpu"] is not None  # may be under a tick, and then 0
    assert "ratio" in result
