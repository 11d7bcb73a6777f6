"""The server's configuration: everything that `duplex serve` can be told, checked."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Literal, Self

import msgspec
import yaml
from pydantic import (
    BaseModel,
    ByteSize,
    ConfigDict,
    Field,
    JsonValue,
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from duplex.defaults import DEFAULT_HOST, DEFAULT_MODEL, DEFAULT_PORT
from duplex.pipelines import PipelineSettings
from engine.api import EngineConfig

_ORIGIN = re.compile(r"https?://(\[[0-9a-f:.]+\]|[a-z0-9.-]+)(:\d{1,5})?")
_KEY = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]{8,256}")
_FACTORY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_ICE_HOST = r"[^\s?:/@\[\]]+(:\d{1,5})?"  # no IPv6 literal: aiortc would refuse it at each call
_ICE_URL = re.compile(rf"stuns?:{_ICE_HOST}|turns?:{_ICE_HOST}(\?transport=(udp|tcp))?")
_DEVICE = re.compile(r"cpu|\d{1,3}")
_MAX_SESSIONS = 4096
SELF_SIGNED = "self-signed"
Seconds = Annotated[float, Field(gt=0, le=86_400)]


class IceServerConfig(BaseModel):
    """A STUN or TURN server. TURN wants `username` and `credential`, as in the W3C's
    RTCIceServer, or the `secret` that it shares with us: then each caller gets credentials of its
    own, which expire.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    urls: tuple[str, ...] = Field(min_length=1)
    username: str | None = Field(None, min_length=1)
    credential: SecretStr | None = Field(None, min_length=1)
    secret: SecretStr | None = Field(None, min_length=8)
    ttl_s: Seconds = 3600.0
    """How long credentials made with the secret can open relays; open ones go on."""

    @field_validator("urls", mode="before")
    @classmethod
    def _one_url_is_a_list_too(cls, urls: object) -> object:
        return (urls,) if isinstance(urls, str) else urls

    @field_validator("urls")
    @classmethod
    def _urls_are_ice(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        for url in urls:
            if not _ICE_URL.fullmatch(url):
                raise ValueError(f"{url!r} is no ICE server, such as turn:turn.example.com:3478")
        return urls

    @model_validator(mode="after")
    def _turn_has_its_credentials(self) -> Self:
        """A browser refuses the whole list otherwise, and with it every call."""
        pair = (self.username is not None, self.credential is not None)
        if self.secret is not None and any(pair):
            raise ValueError("a secret makes username and credential; set it or them")
        if any(pair) and not all(pair):
            raise ValueError("username and credential belong together")
        if self.secret is None and not any(pair) and any(url[0] == "t" for url in self.urls):
            raise ValueError("a TURN server wants username and credential, or the secret")
        return self


class ServeConfig(BaseModel):
    """Everything `duplex serve` can be told. The fields' names are those of the YAML file."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    model: str = Field(DEFAULT_MODEL, min_length=1)
    """A model's name, a model directory or a Hugging Face repository id."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    max_sessions: int | Literal["auto"] | None = None
    """Slots: conversations at a time, on all devices together. "auto": as many as memory and the
    time of a step allow. None: the model's default.
    """
    devices: tuple[str, ...] = ()
    """An engine on each: indices of GPUs, or "cpu". None: one engine, on `device`."""
    admission: Literal["measured", "slots"] = "measured"
    """What a session needs: a free slot, or also the time for its steps, as measured."""
    context: int | None = Field(None, ge=1)
    """GPU only: frames that a session remembers. None: as many as the model was made for."""
    kv: Literal["bf16", "fp8"] | None = None
    """GPU only: the type of keys and values. None: bf16."""
    weights: Literal["bf16", "fp8"] | None = None
    """GPU only: the type of the temporal transformer's weights. None: bf16."""
    step_mode: Literal["ready", "fixed"] = "ready"
    """"fixed": a session's output is bit-identical whoever shares the batch."""
    threads: int | None = Field(None, ge=1, le=1024)
    """The engine's CPU threads. None: its own choice."""
    delay_frames: int = Field(0, ge=0, le=1000)
    """The echoes only: imitates a model's start-up delay."""
    voices_dir: Path | None = None
    """A directory of voices beside the model's own."""
    prefix_cache_bytes: ByteSize = ByteSize(1 << 30)
    """Memory for prefilled prompts, kept for the next caller with the same voice and persona."""

    policy: str | None = None
    """A robot policy's factory, as package.module:factory."""
    policy_options: dict[str, JsonValue] = {}
    """What the factory is called with."""
    policy_python: Path | None = None
    """The interpreter that the policy runs in. None: the server's own."""
    robot_idle_timeout_s: Seconds = 30.0
    """A robot that sends nothing for this long is disconnected."""

    host: str = Field(DEFAULT_HOST, min_length=1)
    """Address to listen on. Beyond loopback an API key is required."""
    port: int = Field(DEFAULT_PORT, ge=0, le=65_535)
    """0 takes a free one."""
    media_workers: int = Field(1, ge=1, le=64)
    """Processes that carry the callers. 1: this one does."""
    api_keys: tuple[SecretStr, ...] = ()
    api_key_file: Path | None = None
    """A file of more API keys, one a line; lines that begin with `#` are comments."""
    allowed_origins: tuple[str, ...] = ()
    """Browser origins that may connect, besides loopback ones on the server's own port."""

    tls: Literal["self-signed"] | tuple[Path, Path] | None = None
    """Certificate chain and key as PEM files, or a certificate of our own for each start."""
    ice_servers: tuple[IceServerConfig, ...] = ()
    """STUN and TURN servers, for us and for the page. None: host candidates only."""

    chat: PipelineSettings | None = None
    """The stages that answer `POST /v1/chat/completions`. None: no chat."""

    max_message_bytes: ByteSize = Field(ByteSize(16 << 20), ge=1024, le=1 << 30)
    """A larger WebSocket message closes its connection with 1009."""
    message_rate: float = Field(2000, ge=10)
    """Messages a second of one connection, pings and pongs too, a larger one counting as several
    of 16 KiB. Above it, reading from that connection pauses.
    """
    control_rate: float = Field(50, ge=1)
    """Messages a second that aren't audio. More are refused with `rate_limit_exceeded`."""
    max_connections: int = Field(1024, ge=1)
    """WebSocket connections in all."""
    max_connections_per_client: int = Field(256, ge=1)
    """WebSocket connections of one API key or, without keys, of one address."""

    handshake_timeout_s: Seconds = 10.0
    """From a TCP connection to its whole HTTP request; also for idle HTTP connections."""
    heartbeat_s: Seconds = 20.0
    """A connection silent for this long is pinged; without an answer in half of it, it's over."""
    write_timeout_s: Seconds = 10.0
    """A connection that takes nothing for this long, while something waits for it, is over."""
    idle_timeout_s: Seconds = 300.0
    """A session without any event from its client for this long ends, unless it asks for less."""
    resume_grace_s: float = Field(30.0, ge=0, le=3600)
    """How long a full-duplex session waits for its client to come back. 0 turns resume off."""
    drain_s: float = Field(30.0, ge=0, le=86_400)
    """How long live sessions may go on after SIGTERM."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @field_validator("api_keys")
    @classmethod
    def _keys_fit_a_header(cls, keys: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
        for key in keys:
            if not _KEY.fullmatch(key.get_secret_value()):
                raise ValueError(
                    "an API key has 8 to 256 characters, each a letter, a digit or one of "
                    "!#$%&'*+-.^_`|~ (what fits a WebSocket subprotocol)"
                )
            if key.get_secret_value().startswith("ek_"):
                raise ValueError("an API key does not begin with ek_, as client secrets do")
        return keys

    @field_validator("policy")
    @classmethod
    def _policy_is_a_factory(cls, policy: str | None) -> str | None:
        if policy is not None and not _FACTORY.fullmatch(policy):
            raise ValueError(f"{policy!r} is no factory, such as package.module:factory")
        return policy

    @field_validator("max_sessions", mode="plain")
    @classmethod
    def _sessions_are_some_or_auto(cls, sessions: object) -> int | Literal["auto"] | None:
        if sessions is None or sessions == "auto":
            return None if sessions is None else "auto"
        text = str(sessions)
        if not text.isdecimal() or not 1 <= int(text) <= _MAX_SESSIONS:
            raise ValueError(f"expected a number from 1 to {_MAX_SESSIONS}, or auto")
        return int(text)

    @field_validator("devices", mode="plain")
    @classmethod
    def _devices_are_gpus_or_cpu(cls, devices: object, info: ValidationInfo) -> tuple[str, ...]:
        """On the command line and in the environment with commas; alone, also without a list."""
        listed = devices if isinstance(devices, list | tuple) else str(devices).split(",")
        names = [str(device).strip() for device in listed]
        for name in names:
            if not _DEVICE.fullmatch(name):
                raise ValueError(f"{name!r} is neither the index of a GPU nor cpu")
        gpus = [name for name in names if name != "cpu"]
        if len(set(gpus)) < len(gpus):
            raise ValueError("a GPU is named twice")
        if names and info.data.get("device", "auto") != "auto":
            raise ValueError("device is set, too, and there can be only one of them")
        sessions = info.data.get("max_sessions")
        if isinstance(sessions, int) and sessions < len(names):
            raise ValueError(f"{len(names)} engines can't share max_sessions: {sessions}")
        return tuple(name if name == "cpu" else f"cuda:{name}" for name in names)

    @field_validator("policy_options", mode="before")
    @classmethod
    def _pairs_are_options(cls, options: object) -> object:
        """On the command line and in the environment: `name=value`, the value as in YAML."""
        if not isinstance(options, list | tuple):
            return options
        read: dict[str, object] = {}
        for option in options:
            name, is_pair, text = str(option).partition("=")
            if not is_pair or not name.isidentifier():
                raise ValueError(f"{option!r} is no option, such as horizon=8")
            try:
                read[name] = yaml.safe_load(text)
            except yaml.YAMLError as error:
                raise ValueError(f"{option!r} is no option: {error}") from error
        return read

    @field_validator("policy_options", "policy_python")
    @classmethod
    def _policies_have_a_name(cls, value: object, info: ValidationInfo) -> object:
        if value and info.data.get("policy", "") is None:
            raise ValueError("no policy is set that it could be for")
        return value

    @field_validator("tls", mode="before")
    @classmethod
    def _tls_is_two_files_or_self_signed(cls, tls: object) -> object:
        """The command line gives two words in any case."""
        if not isinstance(tls, str | list | tuple):
            return tls
        words = (tls,) if isinstance(tls, str) else tuple(tls)
        if set(words) == {SELF_SIGNED}:
            return SELF_SIGNED
        if len(words) != 2:
            raise ValueError("expected a certificate file and a key file, or self-signed")
        for path in words:
            if not Path(path).is_file():
                raise ValueError(f"there is no file {path}")
        return words

    @field_validator("ice_servers", "chat", mode="before")
    @classmethod
    def _text_is_json(cls, value: object, info: ValidationInfo) -> object:
        """In the environment."""
        if not isinstance(value, str):
            return value
        try:
            return msgspec.json.decode(value)
        except msgspec.DecodeError as error:
            what = "list of servers" if info.field_name == "ice_servers" else "object"
            raise ValueError(f"expected a JSON {what}: {error}") from error

    @field_validator("allowed_origins")
    @classmethod
    def _origins_are_origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        lowered = tuple(origin.lower().rstrip("/") for origin in origins)
        for origin in lowered:
            if not _ORIGIN.fullmatch(origin):
                raise ValueError(f"{origin!r} is no origin, such as https://voice.example.com:8443")
        return lowered

    @property
    def scheme(self) -> str:
        """Of the server's addresses."""
        return "https" if self.tls else "http"

    @property
    def exposed(self) -> bool:
        """Whether other machines can reach the server."""
        if self.host == "localhost":
            return False
        try:
            return not ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return True

    def engine(self) -> EngineConfig:
        """The part that the engine's process is told."""
        return EngineConfig(
            model=self.model,
            slots=self.max_sessions,
            device=self.device,
            devices=self.devices,
            admission=self.admission,
            context=self.context,
            kv=self.kv,
            weights=self.weights,
            step_mode=self.step_mode,
            threads=self.threads,
            prefix_cache_bytes=int(self.prefix_cache_bytes),
            voices_dir=None if self.voices_dir is None else str(self.voices_dir),
            delay_frames=self.delay_frames,
            chat=None if self.chat is None else self.chat.config(),
        )
