"""A model directory: a Moshi or PersonaPlex repository as it is, or what its config.json names.

`config.json` is Kyutai's: `ServingConfig` reads what concerns files and serving, `LMConfig` the
rest. Without it the files have their published names and the model its published sizes, and the
tensors tell PersonaPlex (16 depformer steps) from Moshi (8).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, TypeVar

import msgspec
from safetensors import SafetensorError, safe_open

from engine.api import EngineError
from engine.lm.config import MOSHI_7B, PERSONAPLEX_7B, LMConfig
from engine.mimi.config import MIMI_24KHZ, MimiConfig
from engine.sampling import Sampling

CONFIG: Final = "config.json"
VOICES: Final = "voices"
VOICES_ARCHIVE: Final = "voices.tgz"

Json = dict[str, object]
_T = TypeVar("_T")
_Positive = Annotated[int, msgspec.Meta(ge=1)]


class LMGenConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Kyutai's `lm_gen_config`: how the model is sampled."""

    use_sampling: bool | None = None
    temp: float | None = None
    temp_text: float | None = None
    top_k: int | None = None
    top_k_text: int | None = None


class SamplingConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`sampling`: the same by our own names; goes before `lm_gen_config`."""

    text_temperature: float | None = None
    text_top_k: int | None = None
    audio_temperature: float | None = None
    audio_top_k: int | None = None


class ServingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What config.json says besides the language model's sizes. Every key may be absent."""

    model_type: str = "moshi"
    moshi_name: str = "model.safetensors"
    mimi_name: str = "tokenizer-e351c8d8-checkpoint125.safetensors"
    tokenizer_name: str = "tokenizer_spm_32k_3.model"
    mimi_config: str | Json | None = None
    """The codec's sizes, or the name of the file with them. None: the published codec's."""
    mimi_config_name: str | None = None
    """Kyutai's key for the name of that file."""
    lora_name: str | None = None
    lm_gen_config: LMGenConfig = LMGenConfig()
    sampling: SamplingConfig = SamplingConfig()
    name: str | None = None
    """For display."""
    about: str = ""
    """What the model can do, for people."""
    examples: tuple[str, ...] = ()
    """Sentences to say to it."""
    slots: _Positive | None = None
    """Sessions that are served unless the deployment says otherwise."""
    default_voice: str | None = None
    version: str | None = None
    """The model's, for people."""
    model_id: Json | None = None
    """Where the model comes from, for people."""

    @property
    def codec_file(self) -> str | None:
        """The name of the file with the codec's sizes."""
        return self.mimi_config if isinstance(self.mimi_config, str) else self.mimi_config_name

    @property
    def files(self) -> tuple[str, ...]:
        """The names of the files that the model can't do without."""
        codec = (self.codec_file,) if self.codec_file is not None else ()
        return (self.moshi_name, self.mimi_name, self.tokenizer_name, *codec)


class ModelDirectory(msgspec.Struct, frozen=True, kw_only=True):
    """A model's files and how to serve them."""

    path: Path
    name: str
    about: str
    examples: tuple[str, ...]
    lm: Path
    mimi: Path
    tokenizer: Path
    voices: Path | None
    """`voices/`, else `voices.tgz`, else nothing."""
    lm_config: LMConfig
    mimi_config: MimiConfig
    sampling: Sampling
    """Defaults for sessions that name none."""
    prompts: bool
    """Takes a voice and a persona, as PersonaPlex does."""
    default_voice: str | None
    slots: int | None


def read_config(path: Path) -> tuple[ServingConfig, Json]:
    """Splits a directory's config.json into what concerns serving and what is the model's own.

    Without that file there are only defaults. Raises EngineError that names the file for what
    isn't JSON, a wrong type, a file outside the directory and a kind of model that isn't served.
    """
    file = path / CONFIG
    if not file.is_file():
        return ServingConfig(), {}
    data = file.read_bytes()
    try:
        config = msgspec.json.decode(data, type=ServingConfig)
        rest = msgspec.json.decode(data, type=Json)
    except msgspec.MsgspecError as error:
        raise EngineError(f"{file}: {error}") from error
    if config.model_type not in ("moshi", "personaplex"):
        raise EngineError(f"{file}: model_type {config.model_type!r} isn't served")
    if config.lora_name is not None:
        raise EngineError(f"{file}: lora_name isn't served: merge the adapter into the weights")
    for name in config.files:
        if not name or Path(name).is_absolute() or ".." in Path(name).parts or ":" in name:
            raise EngineError(f"{file}: {name!r} isn't the name of a file in the directory")
    return config, {k: v for k, v in rest.items() if k not in ServingConfig.__struct_fields__}


def read_directory(path: Path, name: str | None = None) -> ModelDirectory:
    """Reads a directory's config and finds its files; loads no tensor.

    name: for display, where the config has none. Raises EngineError that names the directory and
    everything that it lacks.
    """
    if not path.is_dir():
        raise EngineError(f"{path}: no such directory")
    config, lm_options = read_config(path)
    missing = [file for file in config.files if not (path / file).is_file()]
    if missing:
        raise EngineError(f"{path}: missing {', '.join(missing)}")
    voices = next((p for p in (path / VOICES, path / VOICES_ARCHIVE) if p.exists()), None)
    lm = path / config.moshi_name
    lm_config = _lm_config(config, lm_options, lm, voices is not None)
    return ModelDirectory(
        path=path,
        name=config.name or name or path.resolve().name,
        about=config.about,
        examples=config.examples,
        lm=lm,
        mimi=path / config.mimi_name,
        tokenizer=path / config.tokenizer_name,
        voices=voices,
        lm_config=lm_config,
        mimi_config=_mimi_config(config, path),
        sampling=_sampling(config, path),
        prompts=(
            _personaplex(config) or "prompt" in lm_options or lm_config.dep_q > lm_config.books
        ),
        default_voice=config.default_voice,
        slots=config.slots,
    )


def _personaplex(config: ServingConfig) -> bool:
    return config.model_type == "personaplex"


def _lm_config(config: ServingConfig, options: Json, weights: Path, voices: bool) -> LMConfig:
    """The config's sizes, or a published model's where it gives none."""
    if not options.keys() <= {"prompt"}:
        return LMConfig.from_json(options)
    personaplex = _personaplex(config) or voices or _depformer_steps(weights) > MOSHI_7B.dep_q
    preset = PERSONAPLEX_7B if personaplex else MOSHI_7B
    prompt = options.get("prompt")
    if prompt is None:
        return preset
    return LMConfig.from_json({**msgspec.structs.asdict(preset), "prompt": prompt})


def _depformer_steps(weights: Path) -> int:
    """How many depformer steps a checkpoint has, by the names of its heads."""
    try:
        with safe_open(str(weights), framework="pt") as file:
            names = set(file.keys())
    except (OSError, SafetensorError) as error:
        raise EngineError(f"{weights}: not a readable safetensors file: {error}") from error
    steps = 0
    while f"linears.{steps}.weight" in names:
        steps += 1
    return steps


def _mimi_config(config: ServingConfig, path: Path) -> MimiConfig:
    options = config.mimi_config
    if config.codec_file is not None:
        file = path / config.codec_file
        try:
            options = msgspec.json.decode(file.read_bytes(), type=Json)
        except msgspec.MsgspecError as error:
            raise EngineError(f"{file}: {error}") from error
    return MimiConfig.from_json(options) if isinstance(options, dict) else MIMI_24KHZ


def _sampling(config: ServingConfig, where: Path) -> Sampling:
    """The model's defaults: our own names before Kyutai's, those before the published values."""
    own, kyutai, default = config.sampling, config.lm_gen_config, Sampling()
    greedy = 0.0 if kyutai.use_sampling is False else None
    try:
        return Sampling(
            text_temperature=_first(
                own.text_temperature, greedy, kyutai.temp_text, default.text_temperature
            ),
            text_top_k=_first(own.text_top_k, kyutai.top_k_text, default.text_top_k),
            audio_temperature=_first(
                own.audio_temperature, greedy, kyutai.temp, default.audio_temperature
            ),
            audio_top_k=_first(own.audio_top_k, kyutai.top_k, default.audio_top_k),
        )
    except ValueError as error:
        raise EngineError(f"{where / CONFIG}: {error}") from error


def _first(*values: _T | None) -> _T:
    """The first value that is given; the last one always is."""
    return next(value for value in values if value is not None)
