"""Put a trained codec and language model together as a model directory for the engine.

`python -m recipes.nano.export CODEC LM TOKENIZER CLIPS OUT` writes config.json, mimi.json, the two
safetensors files in half precision, the tokenizer and one voice prompt for each agent voice.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
import typer
from safetensors.torch import load_file, save

from recipes.nano.clips import Clips
from recipes.nano.codec import HOP, Codec, export_state
from recipes.nano.lm import LmConfig
from recipes.nano.tokenizer import TextTokenizer
from recipes.nano.weights import load_parts

VOICES = ("ember", "slate")  # the agent's voices 0 and 1: a woman's and a man's
VOICE_FRAMES = 30
ABOUT = (
    "A small model that speaks a little English: it greets, tells its name, counts, adds and "
    "subtracts up to twenty, names the days of the week, and stops when it is told to."
)
EXAMPLES = (
    "Hello!", "What is your name?", "Count to ten.", "Stop!", "What is seven plus five?",
    "Can you count down from eight?", "Name the days of the week.", "Repeat the number twelve.",
    "Goodbye.",
)  # fmt: skip
SAMPLING = {
    "text_temperature": 0.0, "text_top_k": 25, "audio_temperature": 0.6, "audio_top_k": 40,
}  # fmt: skip


@torch.no_grad()
def voice_codes(codec: Codec, clips: Clips, voice: int) -> torch.Tensor:
    """A voice prompt [frames, 8]: the agent's greeting and thanks, encoded."""
    pcm = torch.zeros(VOICE_FRAMES * HOP)
    at = HOP // 2
    for key in (("greet", "0"), ("thanks", "")):
        clip = clips.groups["agent", voice, *key][0]
        start, length = int(clips.start[clip]), int(clips.length[clip])
        length = max(0, min(length, len(pcm) - at))
        pcm[at : at + length] = torch.from_numpy(clips.pcm[start : start + length]).float() / 32768
        at += length + HOP
    return codec.encode(pcm[None, None])[0].t().contiguous()


def _write(tensors: dict[str, torch.Tensor], path: Path) -> None:
    path.write_bytes(save(tensors, metadata={"format": "pt"}))


def main(codec_dir: Path, lm_dir: Path, tokenizer: Path, clips_dir: Path, out: Path) -> None:
    """Write the model directory OUT; config.json comes last, and makes it one."""
    clips = Clips.load(clips_dir)
    (out / "voices").mkdir(parents=True, exist_ok=True)
    codec = Codec().eval()
    codec.load_state_dict(load_parts(codec_dir, "codec"))
    mimi = export_state(codec)
    _write(mimi, out / "mimi.safetensors")
    (out / "mimi.json").write_text(json.dumps(codec.config.to_json(), indent=1) + "\n")
    lm = {k: v.half().contiguous() for k, v in load_parts(lm_dir, "lm").items()}
    _write(lm, out / "model.safetensors")
    if tokenizer.resolve() != (out / "tokenizer.model").resolve():
        shutil.copy(tokenizer, out / "tokenizer.model")
    codes = load_file(lm_dir / "prompt_codes.safetensors")
    config: dict[str, Any] = {
        "name": "nano", "about": ABOUT, "examples": EXAMPLES,
        "moshi_name": "model.safetensors", "mimi_name": "mimi.safetensors",
        "tokenizer_name": "tokenizer.model", "mimi_config": "mimi.json", "slots": 4,
        "default_voice": VOICES[0], "sampling": SAMPLING,
        "prompt": {
            "silence_codes": codes["silence"].tolist(), "user_codes": codes["user"].tolist(),
            "silence_frames": 6,
        },
        **LmConfig(text_card=TextTokenizer(tokenizer).card).to_json(),
    }  # fmt: skip
    for voice, name in enumerate(VOICES):
        _write({"codes": voice_codes(codec, clips, voice)}, out / f"voices/{name}.safetensors")
    whole = json.dumps(config, indent=1) + "\n"
    part = out / "config.json.part"
    part.write_text(whole)
    part.replace(out / "config.json")
    size = sum(p.stat().st_size for p in out.rglob("*") if p.is_file())
    print(f"{out}: {size / 1e6:.2f} MB")


if __name__ == "__main__":
    typer.run(main)
