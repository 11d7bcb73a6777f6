"""The agent's frames as a client wants them: in its format, at that format's rate."""

from __future__ import annotations

from duplex.settings import G711, G711_RATE
from engine.api import Pcm
from media.formats import AudioFormat, encode
from media.resample import Resampler


class OutputEncoder:
    """Encodes frame by frame; G.711 goes through a stateful resampler to 8 kHz."""

    def __init__(self, sample_rate: int) -> None:
        self.rate = sample_rate
        """Samples a second of what was encoded last."""
        self._sample_rate = sample_rate
        self._to_g711: Resampler | None = None

    def encode(self, audio_format: AudioFormat, pcm: Pcm) -> tuple[bytes, int]:
        """A frame [frame_size] as bytes, and how many samples they hold."""
        if audio_format in G711:
            if self._to_g711 is None:
                self._to_g711 = Resampler(self._sample_rate, G711_RATE)
            pcm = self._to_g711.push(pcm)
            self.rate = G711_RATE
        else:
            self.rate = self._sample_rate
        return encode(audio_format, pcm, self.rate), len(pcm)
