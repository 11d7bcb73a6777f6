"""Random full-duplex conversations: who says what and when, as placements, tokens and labels.

Agent and person are two channels of the same clock. Agent frame j and user frame j start at the
same moment; the server plays the agent's frame one frame later.
"""

import math
import random
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recipes.nano import domain
from recipes.nano.clips import SAMPLE_RATE, Clips
from recipes.nano.mixing import NO_PLACEMENTS, USER_RATE
from recipes.nano.tokenizer import PAD, TextTokenizer

FRAME_S = 0.08
FRAME = 1920
SILENCE_FRAMES = 6
VOICE_LEAST, VOICE_MOST = 20, 34
PROMPT_MOST = 100
NAMELESS_SHARE, BARE_SHARE = 0.33, 0.03
STOP_SHARE = 0.4
LABEL_S = 0.24
HEARD_AFTER_S = 0.16  # from a word's likely end to when it should have been recognised
REPLY_AFTER_S = 0.28  # from a request's end to the frame after which its answer is written
TEXT_LEAD_S = 0.06  # words are written so much before they begin to sound
CUT_AFTER_S = (0.1, 0.14)
# Some let a moment to stop go by and take the next: who never saw that would, too, but for ever.
LATE_SHARE, LATE_S = 0.12, 0.16
Placement = tuple[int, int, float, float, float]

_TURNS = {
    "plus": 18, "minus": 18, "count": 15, "countdown": 8, "repeat": 11, "greet": 14, "name": 7,
    "days": 3, "thanks": 8, "bye": 10, "other": 12, "back": 6, "noise": 5, "stop": 3,
}  # fmt: skip
_LONG = ("count", "countdown", "days")
WORDS = {word: i for i, word in enumerate(domain.request_words())}


@dataclass
class Dialogue:
    """One planned conversation of `frames` frames.

    `labels` [frames, 4] say what was asked (intent, first and second number) and which word was
    heard last; -1 where nothing is to be guessed.
    """

    frames: int
    voice: int
    name: str
    user: list[Placement] = field(default_factory=list)
    agent: list[Placement] = field(default_factory=list)
    text: list[int] = field(init=False)
    labels: NDArray[np.int16] = field(init=False)

    def __post_init__(self) -> None:
        self.text = [PAD] * self.frames
        self.labels = np.full((self.frames, 4), -1, np.int16)


@dataclass(frozen=True)
class Spoken:
    """One agent clip with its start and end in seconds."""

    clip: int
    start: float
    end: float


Heard = tuple[dict[str, Any], float]  # what a user clip is, and when it has been heard (seconds)


@dataclass(frozen=True)
class Interruption:
    """What comes of somebody who speaks while the agent does.

    Both are silent from `quiet` on; the agent falls silent at `cut` if it does before its end
    (seconds); a `request` is to be answered next.
    """

    quiet: float
    cut: float | None = None
    request: Heard | None = None


def _label_of(meta: dict[str, Any]) -> tuple[int, int, int]:
    """Intent, first and second number of what a user clip says."""
    a, b = (domain.NO_NUMBER if v < 0 else v for v in (meta["a"], meta["b"]))
    return domain.INTENTS.index(meta["intent"]), a, b


def _frames(start: float, end: float) -> slice:
    """The frames after the one of `start` up to that of `end` (seconds)."""
    return slice(int(start / FRAME_S) + 1, int(end / FRAME_S) + 1)


class Planner:
    """Draws conversations from the recorded clips."""

    def __init__(self, clips: Clips, tokenizer: TextTokenizer) -> None:
        self.clips = clips
        self.tokens = tokenizer

    def _say_user(
        self, d: Dialogue, rng: random.Random, intent: str, at: float, gain: float = 1.0
    ) -> Heard:
        """Place a user clip; returns what it is and when it ends (seconds)."""
        group = ("noise",) if intent == "noise" else ("user", intent)
        clip = rng.choice(self.clips.groups[group])
        rate = rng.uniform(*USER_RATE)
        meta = self.clips.meta[clip]
        end = at + meta["audible"] / rate / SAMPLE_RATE
        d.user.append((clip, int(at * SAMPLE_RATE), rate, gain, -1))
        if intent != "noise":
            self._label(d, _label_of(meta), end, end + LABEL_S)
            words = meta["text"].split()
            ends = list(accumulate(len(w) + 1 for w in words))
            for word, share in zip(words, ends, strict=True):
                heard = at + (end - at) * share / ends[-1] + HEARD_AFTER_S
                # up to the next word's, which overwrites the rest of this
                d.labels[_frames(heard, end + HEARD_AFTER_S + LABEL_S), 3] = WORDS.get(word, -1)
        return meta, end

    @staticmethod
    def _label(d: Dialogue, label: tuple[int, int, int], start: float, end: float) -> None:
        """Ask for what was heard in the frames after `start` up to `end` (seconds)."""
        d.labels[_frames(start, end), :3] = label

    def _speak(
        self, d: Dialogue, rng: random.Random, keys: list[tuple[str, str]], at: float, gap: float
    ) -> list[Spoken]:
        """Lay agent clips one after another, about `gap` seconds apart; a word begins at `at`."""
        out: list[Spoken] = []
        for kind, key in keys:
            clip = rng.choice(self.clips.groups["agent", d.voice, kind, key])
            if not out:
                at -= self.clips.meta[clip]["onsets"][0]
            end = at + float(self.clips.length[clip]) / SAMPLE_RATE
            out.append(Spoken(clip, at, end))
            at = end + gap + rng.uniform(0, 0.03)
        return out

    def _reply(
        self, d: Dialogue, rng: random.Random, meta: dict[str, Any], heard: float
    ) -> list[Spoken]:
        """Answer what was heard at `heard` (seconds).

        As little as possible is left to chance: where several frames or first words are as likely,
        silence is likelier than each of them.
        """
        frame = math.ceil((heard + REPLY_AFTER_S) / FRAME_S)
        at = TEXT_LEAD_S + (frame + 0.25) * FRAME_S
        intent, a, b = meta["intent"], meta["a"], meta["b"]
        gap = 0.0
        if intent in _LONG:
            words = (
                list(domain.DAYS)
                if intent == "days"
                else [domain.number(n) for n in domain.count_numbers(intent, a)]
            )
            keys = [("item", w) for w in words[:-1]] + [("last", words[-1])]
            gap = rng.uniform(0.04, 0.18)
        elif intent in ("plus", "minus"):
            keys = [("sum", f"{a} {intent} {b}")]
        elif intent == "name":
            keys = [("name", d.name)]
        elif intent == "greet":
            keys = [("greet", str(rng.choice(domain.greetings(meta["text"]))))]
        elif intent == "repeat":
            keys = [("last", domain.number(a))]
        else:
            keys = [("sorry" if intent == "other" else intent, "")]
        return self._speak(d, rng, keys, at, gap)

    def _commit(self, d: Dialogue, spoken: list[Spoken], cut: float | None) -> float:
        """Write the agent's clips and words, up to `cut`; returns when the agent falls silent."""
        for s in spoken:
            if cut is not None and s.start > cut - 0.05:
                break
            stopped = cut is not None and s.end > cut
            longest = int((cut - s.start) * SAMPLE_RATE) if cut is not None and stopped else -1
            d.agent.append((s.clip, int(s.start * SAMPLE_RATE), 1.0, 1.0, longest))
            meta = self.clips.meta[s.clip]
            for word, onset in zip(meta["text"].split(), meta["onsets"], strict=True):
                if cut is not None and s.start + onset > cut - 0.1:
                    break
                f = max(0, int((s.start + onset - TEXT_LEAD_S) / FRAME_S))
                while f < d.frames and d.text[f] != PAD:
                    f += 1
                if f < d.frames:
                    d.text[f] = self.tokens.word(word)
        return spoken[-1].end if cut is None else min(spoken[-1].end, cut)

    def _interrupt(
        self, d: Dialogue, rng: random.Random, intent: str, spoken: list[Spoken]
    ) -> Interruption:
        """Somebody may say something while the agent does: "stop", a request, or nothing of note.

        `intent` is what the agent answers with `spoken`.
        """
        begin, end = spoken[0].start, spoken[-1].end
        long, draw = end - begin, rng.random()
        if long > 0.9 and draw < (STOP_SHARE if intent in _LONG else 0.06):
            _, said = self._say_user(d, rng, "stop", begin + rng.uniform(0.1, long - 0.7))
            cut = said + rng.uniform(*CUT_AFTER_S)
            while rng.random() < LATE_SHARE:
                cut += LATE_S
            return Interruption(max(said, min(cut, end)), cut if cut < end else None)
        if intent in _LONG and long > 3 and draw < STOP_SHARE + 0.08:
            request = rng.choice(("plus", "minus", "repeat", "name", "count"))
            at = begin + rng.uniform(0.3, long - 2.5)
            meta, said = self._say_user(d, rng, request, at)
            cut = said + rng.uniform(*CUT_AFTER_S)
            if cut < end:
                return Interruption(max(said, cut), cut, (meta, said))
            return Interruption(max(said, end), None, (meta, max(said, end - REPLY_AFTER_S)))
        if long > 1.2 and draw > 0.6:
            kind = rng.choice(("back", "back", "noise"))
            at = begin + rng.uniform(0.1, long - 0.6)
            _, said = self._say_user(d, rng, kind, at, rng.uniform(0.4, 1.0))
            return Interruption(max(said, end))
        return Interruption(end)

    def plan(self, rng: random.Random, frames: int, name: str) -> Dialogue:
        """One conversation in a random voice."""
        d = Dialogue(frames, rng.randrange(2), name)
        intents, weights = list(_TURNS), list(_TURNS.values())
        t = rng.uniform(0.2, 1.8) if rng.random() > 0.03 else frames * FRAME_S
        pending: Heard | None = None
        while t < frames * FRAME_S - 1.2:
            if pending is None:
                intent = rng.choices(intents, weights)[0]
                pending = self._say_user(d, rng, intent, t)
            meta, heard = pending
            pending = None
            if meta["intent"] in ("back", "noise", "stop"):
                t = heard + rng.uniform(0.5, 1.8)
                continue
            spoken = self._reply(d, rng, meta, heard)
            cut_in = self._interrupt(d, rng, meta["intent"], spoken)
            said_until = self._commit(d, spoken, cut_in.cut)
            self._label(d, _label_of(meta), heard, said_until)
            pending = cut_in.request
            pause = rng.uniform(0.4, 1.6) if rng.random() < 0.9 else rng.uniform(1.6, 5.0)
            t = cut_in.quiet + pause
        return d


@dataclass
class Batch:
    """Planned conversations as tensors: placements (`mixing`), and by frame.

    `text` [rows, frames] and `labels` [rows, frames, 4] are the conversation's, `prompts`
    [rows, longest] the text of the prompts, of which a row has `prompt_frames`; the first
    `voice_frames` of them hold a voice.
    """

    user: Tensor
    agent: Tensor
    voice_prompt: Tensor
    text: Tensor
    labels: Tensor
    prompts: Tensor
    prompt_frames: Tensor
    voice_frames: Tensor


def plan_batch(planner: Planner, rng: random.Random, rows: int, frames: int) -> Batch:
    """Plan `rows` conversations, each with its PersonaPlex prompt.

    A prompt is voice frames, silence, the text prompt and silence again. A third of the rows have
    no text prompt and a few no prompt at all: then the agent goes by its default name.
    """
    clips, tokens = planner.clips, planner.tokens
    user: list[tuple[float, ...]] = []
    agent: list[tuple[float, ...]] = []
    voice: list[tuple[float, ...]] = []
    text, labels, prompt_frames, voice_frames = [], [], [], []
    prompts = np.full((rows, PROMPT_MOST), PAD)
    for row in range(rows):
        nameless, bare = rng.random() < NAMELESS_SHARE, rng.random() < BARE_SHARE
        name = domain.DEFAULT_NAME if nameless or bare else rng.choice(domain.NAMES)
        d = planner.plan(rng, frames, name)
        words = [] if nameless or bare else tokens.prompt(name, rng)
        length = 0 if bare else rng.randint(VOICE_LEAST, VOICE_MOST)
        prompts[row, length + SILENCE_FRAMES :][: len(words)] = words
        voice_frames.append(length)
        prompt_frames.append(0 if bare else length + 2 * SILENCE_FRAMES + len(words))
        at = 0
        while at < length * FRAME:
            clip = rng.choice(clips.groups["agent", d.voice])
            voice.append((row, clip, at, 1.0, 1.0, -1))
            at += int(clips.length[clip]) + int(rng.uniform(0.03, 0.2) * SAMPLE_RATE)
        user += [(row, *p) for p in d.user]
        agent += [(row, *p) for p in d.agent]
        text.append(d.text)
        labels.append(d.labels)

    def placements(items: list[tuple[float, ...]]) -> Tensor:
        return torch.tensor(items, dtype=torch.float64) if items else NO_PLACEMENTS

    return Batch(
        placements(user), placements(agent), placements(voice), torch.tensor(text),
        torch.from_numpy(np.stack(labels)), torch.from_numpy(prompts),
        torch.tensor(prompt_frames), torch.tensor(voice_frames),
    )  # fmt: skip
