import json
import subprocess
import sys

import numpy as np
import psutil
import pytest
from typer.testing import CliRunner

from duplex.cli import app
from duplex.version import VERSION
from media.files import write_wav
from media.wav import Subtype

runner = CliRunner()


def run(*arguments, **environ):
    return runner.invoke(app, list(arguments), env={"COLUMNS": "200"} | environ)


@pytest.mark.parametrize("command", ["serve", "replay", "bench", "offline"])
def test_every_command_is_listed_and_explains_itself(command):
    summary = run("--help").output
    assert command in summary
    answer = run(command, "--help")
    assert answer.exit_code == 0
    assert "--help" in answer.output


def test_without_a_command_the_help_is_shown():
    assert "serve" in run().output


def test_version():
    assert run("--version").output == f"duplex {VERSION}\n"


@pytest.mark.parametrize(
    ("arguments", "environ", "said"),
    [
        (["--port", "70000"], {}, "--port: "),
        (["--device", "tpu"], {}, "--device"),
        (["--host", "0.0.0.0"], {}, "no API key is set"),
        (["--config", "no.yaml"], {}, "no.yaml: can't be read"),
        ([], {"DUPLEX_MAX_SESIONS": "3"}, "did you mean max_sessions?"),
        (["--api-key", "k"], {}, "--api-key: an API key has 8"),
    ],
)
def test_what_cannot_be_served_is_said_at_once(arguments, environ, said):
    answer = run("serve", *arguments, **environ)
    assert answer.exit_code != 0
    assert said in answer.output


def test_a_server_that_is_not_there_is_an_error_not_a_traceback(tmp_path):
    silence = tmp_path / "a.wav"
    silence.write_bytes(b"not a recording")
    answer = run("replay", str(silence), "--url", "ws://127.0.0.1:9")
    assert answer.exit_code == 1
    assert "a.wav" in answer.output
    answer = run("bench", "--url", "ws://127.0.0.1:9", "--sessions", "1", "--seconds", "1")
    assert answer.exit_code == 1
    assert "no server at" in answer.output


def test_bench_starts_a_server_of_a_model_and_ends_it():
    answer = run("bench", "--model", "echo", "--sessions", "2", "--seconds", "2", "--json")
    assert answer.exit_code == 0, answer.output
    result = json.loads(answer.stdout.splitlines()[-1])
    assert (result["sessions"], result["lost"], result["errors"]) == (2, 0, 0)
    assert result["server_cpu"] > 0  # half a second may take less than a tick of the clock
    assert not psutil.Process().children()


def test_bench_says_that_a_model_cannot_be_served():
    answer = run("bench", "--model", "no/such model")
    assert answer.exit_code == 1
    assert "the server ended" in answer.output


def test_an_offline_run_with_nothing_left_says_so_and_names_no_speed(tmp_path):
    recordings, out = tmp_path / "in", tmp_path / "out"
    recordings.mkdir()
    write_wav(recordings / "a.wav", np.zeros(4_800, np.float32), 24_000, Subtype.FLOAT)
    first, second = (run("offline", str(recordings), str(out), "--model", "echo") for _ in range(2))
    assert (first.exit_code, second.exit_code) == (0, 0)
    assert "times real time" in first.output
    assert "done already" not in first.output
    assert "times real time" not in second.output
    assert "done already" in second.output


def test_help_loads_none_of_the_heavy_modules():
    heavy = ["numpy", "torch", "aiohttp", "pydantic", "av", "websockets"]
    code = (
        "import sys, duplex.cli\n"
        f"sys.exit(', '.join(name for name in {heavy} if name in sys.modules) or None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_the_servers_own_process_imports_has_no_torch():
    code = (
        "import sys, web.server, duplex.config, duplex.runtime, engine.child\n"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
