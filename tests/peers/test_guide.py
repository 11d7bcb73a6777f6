"""The programs of docs/realtime.md, run as they stand there, but for the server's port."""

import asyncio
import os
import re
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from media.files import write_wav
from recipes.bench.barge_in import speech

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
GUIDE = (ROOT / "docs/realtime.md").read_text("utf-8")
PROGRAMS = {
    name: code for code, name in re.findall(r"```\w+\n((?:#|//) (\S+)\n.*?)```", GUIDE, re.DOTALL)
}
TURN = ["input_audio_buffer.speech_started", "input_audio_buffer.committed", "response.done"]

# The wheel is installed without its dependencies, which its parent packages import.
OMNI = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
import test_vllm_omni
test_vllm_omni.stand_in()
exec(compile(open("omni.py").read(), "omni.py", "exec"))
"""


async def run(name, address, folder, *command):
    """Runs a program beside `speech.wav`, and gives the lines that it prints."""
    code = PROGRAMS[name]
    assert "localhost:8091" in code
    (folder / name).write_text(code.replace("localhost:8091", address))
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, (name, err.decode())
    return out.decode().splitlines()


def test_no_program_shadows_a_module():
    names = {Path(name).stem for name in PROGRAMS if name.endswith(".py")}
    assert names
    assert not [name for name in names if find_spec(name)]


async def test_every_program_runs(start_process, tmp_path):
    node, packages = shutil.which("node"), HERE / "node_modules"
    if node is None or not packages.exists():
        pytest.skip("the SDK is not here: npm install --no-package-lock --prefix tests/peers")
    (tmp_path / "node_modules").symlink_to(packages)
    sound = np.concatenate([np.zeros(4_800, np.float32), speech(None, 3.0)])
    write_wav(tmp_path / "speech.wav", sound, 24_000, "pcm16")
    commands = {name: (sys.executable, name) for name in PROGRAMS}
    commands |= {"agents.mjs": (node, "agents.mjs"), "omni.py": (sys.executable, "-c", OMNI)}
    with start_process("echo", "--max-sessions", "8", DUPLEX_DELAY_FRAMES="50") as server:
        address = server.address.partition("://")[2]
        printed = await asyncio.gather(
            *(run(name, address, tmp_path, *command) for name, command in commands.items())
        )
    lines = dict(zip(commands, printed, strict=True))

    for name in ("ask.py", "ask_sync.py", "beta.py", "plain.py", "agents.mjs"):
        assert [line for line in lines[name] if line in TURN] == TURN, name
    for name in lines:
        assert "error" not in lines[name], name
    assert (tmp_path / "answer.wav").stat().st_size > 2 * 24_000 * 2
    frames = [int(frame) for frame in " ".join(lines["full_duplex.py"]).split()]
    assert frames == list(range(len(frames)))
    assert len(frames) > 50
    assert (lines["plain.py"][0], lines["plain.py"][-1]) == ("session.created", "session.closed")
    assert lines["omni.py"].count("response.output_audio.delta") > 50
    assert "response.done" in lines["omni.py"]
    assert any(line.endswith("bytes to play") for line in lines["agents.mjs"])
