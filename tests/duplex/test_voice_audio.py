"""A voice as a recording: from its data URL to what the engine is told."""

import base64

import msgspec
import numpy as np
import pytest
from running import FRAME, append, running, until

from duplex.commands import UpdateSession
from duplex.errors import SessionError
from duplex.events import Failed, OutputAudio, SessionUpdated
from duplex.settings import Settings
from duplex.wire.session_reader import read_session
from engine.api import BadParams
from engine.echo import EchoModel
from media.files import write_wav
from media.formats import AudioFormat

PCM = (np.sin(np.arange(48_000) / 20) / 2).astype(np.float32)


class Listener(EchoModel):
    """An echo that takes a recording, keeps it, and wants at least half a second of it."""

    def __init__(self, slots, delay):
        super().__init__(slots, delay)
        self._spec = msgspec.structs.replace(self._spec, voice_audio=True)
        self.heard = []

    def check(self, params):
        self.heard.append(np.frombuffer(params.voice_audio or b"", "<f4"))
        if 0 < len(self.heard[-1]) < 12_000:
            raise BadParams("voice_audio", "too short")


@pytest.fixture
async def talk():
    """A runtime's session, and the model that hears what it is told."""
    models = []

    def model(slots, delay):
        models.append(Listener(slots, delay))
        return models[-1]

    async with running(model=model) as runtime:
        settings = Settings(input_format=AudioFormat.PCM_F32LE)
        yield runtime.create_session("s", settings), models[0]


async def update(session, url):
    fields = {"ref_audio": url, "overlap_policy": "barge_in_on_speech"}
    patch, substitutions = read_session(fields, session.runtime.spec)
    await session.handle(UpdateSession(patch=patch, substitutions=substitutions))


def data_url(data, kind="audio/wav"):
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def wav(tmp_path, pcm, rate):
    write_wav(tmp_path / "voice.wav", pcm, rate, "float")
    return (tmp_path / "voice.wav").read_bytes()


async def test_it_reaches_the_engine_as_samples_at_the_models_rate(talk, tmp_path):
    session, model = talk
    await update(session, data_url(wav(tmp_path, PCM[:24_000], 24_000)))
    await until(session, SessionUpdated)
    assert np.array_equal(model.heard[-1], PCM[:24_000])
    await update(session, data_url(wav(tmp_path, PCM, 48_000)))
    await until(session, SessionUpdated)
    assert len(model.heard[-1]) == 24_000
    assert np.abs(model.heard[-1][500:-500] - PCM[1_000:-1_000:2]).max() < 0.01


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"no audio at all", "can't be read as audio"),
        (b"ffconcat version 1.0\nfile README.md\n", "can't be read as audio"),
        (None, "longer than 30 s"),
    ],
)
async def test_what_can_not_be_decoded_changes_nothing(talk, tmp_path, data, message):
    session, model = talk
    data = data or wav(tmp_path, np.zeros(8_000 * 31, np.float32), 8_000)
    await update(session, data_url(data))
    error = (await until(session, Failed))[-1].error
    assert (error.code, error.param, error.fatal) == ("bad_audio", "session.ref_audio", False)
    assert message in error.message
    assert (session.opened, model.heard) == (False, [])
    assert session.settings.overlap_policy == "listen_only"


@pytest.mark.parametrize("text", ["A", "AAA", "A?AA", "AAAA\n", "AAAA====", "é"])
async def test_what_is_no_base64_is_refused(talk, text):
    session, _ = talk
    await update(session, f"data:audio/wav;base64,{text}")
    error = (await until(session, Failed))[-1].error
    assert (error.code, error.param) == ("bad_audio", "session.ref_audio")


async def test_the_engines_objection_names_the_clients_field(talk, tmp_path):
    session, _ = talk
    await update(session, data_url(wav(tmp_path, PCM[:1_000], 24_000)))
    error = (await until(session, Failed))[-1].error
    assert (error.code, error.param) == ("invalid_value", "session.ref_audio")
    assert not session.opened


async def test_it_is_fixed_once_audio_has_been_sent(talk, tmp_path):
    session, model = talk
    url = data_url(wav(tmp_path, PCM[:24_000], 24_000))
    await update(session, url)
    await session.handle(append(np.zeros(FRAME, np.float32)))
    await until(session, OutputAudio)
    await update(session, url)
    await until(session, SessionUpdated)
    await update(session, data_url(wav(tmp_path, PCM[:20_000], 24_000)))
    error = (await until(session, Failed))[-1].error
    assert isinstance(error, SessionError)
    assert "fixed" in error.message
    assert len(model.heard) == 1
