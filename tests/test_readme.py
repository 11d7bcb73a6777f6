"""What the README says, run as it stands there."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np

from media.files import read_audio, write_wav

ROOT = Path(__file__).parents[1]


def test_the_conversation_in_python(start_process, tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    voice = np.random.default_rng(0).uniform(-0.5, 0.5, 30 * 1_920).astype(np.float32)
    write_wav(tmp_path / "question.wav", voice, 24_000, "float")
    with start_process("echo") as server:
        address = server.address.replace("http", "ws", 1)
        assert '"ws://127.0.0.1:8091"' in code
        done = subprocess.run(
            [sys.executable, "-c", code.replace("ws://127.0.0.1:8091", address)],
            cwd=tmp_path,
            env={"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, "")
    answer = read_audio(tmp_path / "answer.wav", 24_000)
    assert len(answer) == (30 + 63) * 1_920  # five seconds more, in whole frames
    expected = np.pad(voice, (0, 63 * 1_920))
    assert np.abs(answer - expected).max() < 2**-15  # a WAV of 16 bits
