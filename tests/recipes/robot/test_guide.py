"""The programs of docs/robots.md, run as they stand there, but for the server's port."""

import asyncio
import os
import re
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[3]
GUIDE = (ROOT / "docs/robots.md").read_text("utf-8")
PROGRAMS = {
    name: code for code, name in re.findall(r"```python\n(# (\S+)\n.*?)```", GUIDE, re.DOTALL)
}


async def run(folder, *arguments, **environ):
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]} | environ,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode == 0, (arguments, err.decode())
    return out.decode()


async def test_every_program_runs(start_process, tmp_path):
    assert set(PROGRAMS) == {"my_policy.py", "robot.py", "robot_async.py", "record.py"}
    (serve,) = re.findall(r"^duplex serve (echo .* horizon=10)$", GUIDE, re.MULTILINE)
    (replay,) = re.findall(r"^duplex (robot --replay .*)$", GUIDE, re.MULTILINE)
    (tmp_path / "my_policy.py").write_text(PROGRAMS["my_policy.py"])
    with start_process(*serve.split(), PYTHONPATH=str(tmp_path)) as server:
        address = server.address.removeprefix("http://")
        for name, code in PROGRAMS.items():
            (tmp_path / name).write_text(code.replace("localhost:8091", address))
        said = await run(tmp_path, "robot.py")
        assert "{'action_horizon': 10, 'image_size': [224, 224]}" in said
        assert said.count("(10, 7) {'infer_ms': ") == 3
        assert await run(tmp_path, "robot_async.py") == "(10, 7)\n"
        await run(tmp_path, "record.py")
        command = ("-c", "from duplex.cli import main; main()", *replay.split())
        said = await run(tmp_path, *command, DUPLEX_CLIENT_URL=f"ws://{address}")
        assert re.search(r"inferences +50\b", said)
    with np.load(tmp_path / "actions.npz") as file, np.load(tmp_path / "observations.npz") as sent:
        states = sent["observation/state"]
        assert file["actions"].shape == (50, 10, 7)
        np.testing.assert_allclose(file["actions"][:, 0], -0.5 * states)
