"""Make the project's own test set: `python -m recipes.nano.testset OUT`.

Two engines that training never heard (the Piper voice `joe`, and festival's ked and slt) say
sentences to nano; half of the cases get room and noise. Writes WAV files and `cases.json`.
"""

import json
import random
import re
import wave
from pathlib import Path
from typing import Any

import numpy as np
import typer
from numpy.typing import NDArray

from recipes.nano import domain
from recipes.nano.clips import noise_clips
from recipes.nano.speech import SAMPLE_RATE, Joe, Pcm, Speak, festival, trim

COUNTS = {
    "greet": 28, "name": 28, "count": 44, "countdown": 24, "sum": 84, "days": 12, "repeat": 24,
    "thanks": 12, "bye": 12, "stop": 44, "goon": 24, "silent": 36, "other": 28,
}  # fmt: skip
MORE = {"days": 28, "thanks": 28, "bye": 28}  # of 12 cases, one that is wrong would be too many
SORRY = r"(sorry( [a-z]+)*)?"
STOPS = ("stop", "please stop", "okay stop", "stop")
BACKCHANNELS = ("uh huh", "yeah", "okay")
LEVEL = 0.5


def expected(request: domain.Request) -> str:
    """The regular expression for the whole transcript of a reply."""
    a, b = request.a, request.b
    match request.intent:
        case "greet":
            return r"(hello|hi)( [a-z]+)*"
        case "name":
            return r"my name is [a-z]+"
        case "count" | "countdown":
            return " ".join(map(domain.number, domain.count_numbers(request.intent, a)))
        case "plus" | "minus":
            whole = domain.sum_reply(request.intent, a, b)
            return f"({whole}|{whole.split(' is ')[1]})"
        case "days":
            return " ".join(domain.DAYS)
        case "repeat":
            return domain.number(a)
        case "thanks":
            return domain.THANKS_REPLY
        case "bye":
            return domain.BYE_REPLY
    return SORRY if request.intent == "other" else ""


def room_and_noise(pcm: Pcm, rng: np.random.RandomState) -> Pcm:
    """A decaying random room and steady noise 15 to 30 dB below the speech."""
    t = np.arange(int(0.25 * SAMPLE_RATE)) / SAMPLE_RATE
    room = rng.randn(len(t)) * np.exp(-t * 6.9 / rng.uniform(0.1, 0.4)) * (t > 0.003)
    room *= rng.uniform(0.1, 0.6) / np.sqrt((room**2).sum())
    room[0] = 1
    wet = np.fft.irfft(np.fft.rfft(pcm, 2 * len(pcm)) * np.fft.rfft(room, 2 * len(pcm)))[: len(pcm)]
    spectrum = np.fft.rfft(rng.randn(len(pcm)))
    spectrum *= np.maximum(np.arange(len(spectrum)), 8.0) ** -rng.uniform(0, 0.8)
    noise = np.fft.irfft(spectrum, len(pcm))
    loud = np.abs(pcm) > 0.02
    speech = np.sqrt((pcm[loud] ** 2).mean()) if loud.any() else 0.05
    noise *= speech * 10 ** (-rng.uniform(15, 30) / 20) / noise.std()
    return (wet + noise).astype(np.float32)


class Maker:
    """Builds cases one after another from one random stream."""

    def __init__(self, out: Path, seed: int) -> None:
        self.out, self.rng = out, random.Random(seed)
        self.numpy = np.random.RandomState(seed)
        self.engines: list[tuple[str, Speak]] = [("piper-joe", Joe()), ("festival", festival)]
        self.noises = noise_clips(seed + 1)
        self.cases: list[dict[str, Any]] = []

    def speak(self, engine: Speak, text: str) -> Pcm:
        pcm, _ = trim(engine(text, self.rng)[0])
        scaled: Pcm = (pcm / np.abs(pcm).max() * LEVEL).astype(np.float32)
        return scaled

    def write(self, track: Pcm, noisy: bool, **case: Any) -> None:
        pcm = room_and_noise(track, self.numpy) if noisy else track
        name = f"{len(self.cases):03d}-{case['kind']}.wav"
        with wave.open(str(self.out / name), "wb") as w:
            w.setnchannels(1)
            w.setsampwidth(2)
            w.setframerate(SAMPLE_RATE)
            data: NDArray[np.int16] = (pcm.clip(-1, 1) * 32767).astype(np.int16)
            w.writeframes(data.tobytes())
        self.cases.append({"wav": name, **case, "noisy": noisy})

    def case(self, kind: str) -> None:
        rng, i = self.rng, len(self.cases)
        label, engine = self.engines[i % 2]
        noisy = i % 4 >= 2
        lead = rng.uniform(0.5, 1.2)
        if kind == "silent":
            self._silent(engine, label, noisy, lead)
            return
        intent = {"sum": rng.choice(("plus", "minus")), "goon": "count", "stop": "count"}
        request = domain.random_request(rng, intent.get(kind, kind))
        while kind in ("stop", "goon") and request.a < 8:
            request = domain.random_request(rng, "count")
        said = self.speak(engine, request.text)
        reply = 1.2 + 0.75 * len(re.sub(r"[^a-z ]", "", expected(request)).split())
        track = np.zeros(int((lead + reply + 1.5) * SAMPLE_RATE) + len(said), np.float32)
        at = int(lead * SAMPLE_RATE)
        track[at : at + len(said)] += said
        case: dict[str, Any] = {
            "kind": kind,
            "text": request.text,
            "engine": label,
            "expect": expected(request),
        }
        if kind in ("stop", "goon"):
            word = rng.choice(STOPS if kind == "stop" else BACKCHANNELS)
            cut_in = self.speak(engine, word)
            at += len(said) + int(rng.uniform(1.2, 2.6) * SAMPLE_RATE)
            track[at : at + len(cut_in)] += cut_in[: len(track) - at]
            case["cut_in"] = word
            if kind == "stop":
                case["stop_end_s"] = round((at + len(cut_in)) / SAMPLE_RATE - 0.02, 3)
                case["expect"] = r"one( [a-z]+)*"
        self.write(track, noisy, **case)

    def _silent(self, engine: Speak, label: str, noisy: bool, lead: float) -> None:
        """Silence, noises or a lone backchannel."""
        track = np.zeros(6 * SAMPLE_RATE, np.float32)
        what = self.rng.choice(("silence", "noises", "backchannel", "backchannel"))
        at = int(lead * SAMPLE_RATE)
        if what == "noises":
            for _ in range(4):
                x = self.rng.choice(self.noises).astype(np.float32) / 32768
                x = x[: len(track) - at] * self.rng.uniform(0.2, 0.8)
                track[at : at + len(x)] += x
                at = min(
                    at + len(x) + int(self.rng.uniform(0.2, 0.8) * SAMPLE_RATE), len(track) - 1
                )
        elif what == "backchannel":
            word = self.rng.choice(BACKCHANNELS)
            said = self.speak(engine, word)
            track[at : at + len(said)] += said
            what = word
        self.write(track, noisy, kind="silent", text=what, engine=label, expect="")


def main(out: Path, seed: int = 11) -> None:
    """Write the whole set into `out`."""
    out.mkdir(parents=True, exist_ok=True)
    maker = Maker(out, seed)
    for kind, count in (*COUNTS.items(), *MORE.items()):
        for _ in range(count):
            maker.case(kind)
    (out / "cases.json").write_text(json.dumps(maker.cases, indent=1))
    print(f"{len(maker.cases)} cases")


if __name__ == "__main__":
    typer.run(main)
