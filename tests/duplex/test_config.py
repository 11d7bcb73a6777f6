from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duplex.config import ServeConfig
from duplex.config_sources import CONFIG_FILE_ENV, ConfigError, load_config
from duplex.defaults import DEFAULT_MODEL
from engine.api import EngineConfig
from engine.stages.config import StageConfig

KEY = "correct-horse-battery"


def write(path: Path, text: str) -> Path:
    path.write_text(text, "utf-8")
    return path


def load(options=None, *, file=None, **environ):
    return load_config(options or {}, file=file, environ=environ)


def test_defaults():
    config = load()
    assert (config.model, config.host, config.port) == (DEFAULT_MODEL, "127.0.0.1", 8091)
    assert config.max_message_bytes == 16 << 20


def test_command_line_before_environment_before_file_before_defaults(tmp_path):
    file = write(tmp_path / "c.yaml", "port: 1\nmax_sessions: 1\ndrain_s: 1\n")
    config = load({"port": 3}, file=file, DUPLEX_PORT="2", DUPLEX_MAX_SESSIONS="2", UNRELATED="x")
    assert (config.port, config.max_sessions, config.drain_s) == (3, 2, 1)
    assert config.device == "auto"


def test_environment_names_the_file(tmp_path):
    file = write(tmp_path / "c.yaml", "model: tiny\n")
    assert load(DUPLEX_CONFIG=str(file)).model == "tiny"


def test_empty_variables_count_as_not_set():
    assert load(DUPLEX_PORT="", DUPLEX_API_KEYS="").port == 8091


def test_what_client_commands_are_told_is_passed_over():
    assert load(DUPLEX_CLIENT_URL="ws://elsewhere").port == 8091


def test_lists_from_the_environment_split_at_commas():
    config = load(DUPLEX_ALLOWED_ORIGINS="https://a.example, http://b.example:80/")
    assert config.allowed_origins == ("https://a.example", "http://b.example:80")


def test_sizes_may_have_units(tmp_path):
    file = write(tmp_path / "c.yaml", "max_message_bytes: 8MiB\n")
    assert load(file=file).max_message_bytes == 8 << 20


@pytest.mark.parametrize(
    ("options", "environ", "yaml", "named"),
    [
        ({"port": 70_000}, {}, "", "--port:"),
        ({"api_keys": ["short"]}, {}, "", "--api-key: an API key has 8 to 256"),
        ({}, {"DUPLEX_PORT": "http"}, "", "DUPLEX_PORT:"),
        ({}, {"DUPLEX_MAX_SESION": "1"}, "", "did you mean max_sessions?"),
        ({}, {}, "max-sessions: 2", "unknown setting; did you mean max_sessions?"),
        ({}, {}, "zzz: 2", "zzz: unknown setting"),
        ({}, {}, "max_sessions: many", "max_sessions: expected a number from 1 to 4096, or auto"),
        ({}, {}, "max_sessions: 0", "max_sessions: expected"),
        ({"max_sessions": "4097"}, {}, "", "--max-sessions: expected"),
        ({}, {}, "max_sessions: true", "max_sessions: expected"),
        ({"devices": "0,x"}, {}, "", "--devices: 'x' is neither the index of a GPU nor cpu"),
        ({"devices": ""}, {}, "", "--devices: '' is neither"),
        ({}, {"DUPLEX_DEVICES": "1,1"}, "", "DUPLEX_DEVICES: a GPU is named twice"),
        ({}, {}, "devices: [0, -1]", "devices: '-1' is neither"),
        ({"device": "cuda"}, {}, "devices: [0, 1]", "devices: device is set, too"),
        ({"max_sessions": "1"}, {}, "devices: [0, 1]", "2 engines can't share max_sessions: 1"),
        ({"kv": "int4"}, {}, "", "--kv: Input should be 'bf16' or 'fp8'"),
        ({"context": 0}, {}, "", "--context: "),
        ({}, {}, "port: 1\nport: 2", "'port' is set twice"),
        ({}, {}, "- port", "expected settings"),
        ({}, {}, "port: [", "not valid YAML"),
        ({}, {}, "allowed_origins: ['https://a.example/page']", "is no origin"),
        ({}, {}, "allowed_origins: ['*']", "is no origin"),
        ({}, {}, "step_mode: fast", "'ready' or 'fixed'"),
        ({"api_keys": ["ek_correct-horse"]}, {}, "", "--api-key: an API key does not begin with"),
        ({"tls": ("a.pem", "b.pem")}, {}, "", "--tls: there is no file a.pem"),
        ({}, {"DUPLEX_TLS": "a.pem"}, "", "DUPLEX_TLS: expected a certificate file and a key"),
        ({}, {}, "tls: 3", "tls:"),
        ({}, {"DUPLEX_ICE_SERVERS": "turn:"}, "", "DUPLEX_ICE_SERVERS: expected a JSON list"),
        ({}, {}, "ice_servers: [{urls: 'http://a'}]", "is no ICE server"),
        ({}, {}, "ice_servers: [{urls: []}]", "ice_servers:"),
        ({}, {}, "ice_servers: [{urls: 'stun:a?transport=udp'}]", "is no ICE server"),
        ({}, {}, "ice_servers: [{urls: 'turn:a:b'}]", "is no ICE server"),
        ({}, {}, "ice_servers: [{urls: 'turn:a'}]", "ice_servers: 0: a TURN server wants"),
        ({}, {}, "ice_servers: [{urls: 'turn:a', username: u}]", "belong together"),
        (
            {},
            {},
            "ice_servers: [{urls: 'turn:a', secret: a-b-c-d-e, username: u, credential: c}]",
            "set it or them",
        ),
        ({}, {}, "ice_servers: [{url: 'stun:a'}]", "ice_servers:"),
        ({}, {"DUPLEX_CHAT": "parrot"}, "", "DUPLEX_CHAT: expected a JSON object"),
        ({}, {}, "chat: {stages: {a: {kind: echo}}}", "chat: model: Field required"),
        ({}, {}, "chat: {model: m, stages: {a: {kind: echo, fin: 1}}}", "stages.a.fin: unknown"),
        ({}, {}, "chat: {model: m, stages: {a: {kind: x, final: true}}}", "stages.a.kind: unknown"),
        ({}, {}, "chat: {model: m, stages: {}}", "chat: stages: a pipeline has at least one"),
    ],
)
def test_errors_name_the_field_and_its_place(tmp_path, options, environ, yaml, named):
    file = write(tmp_path / "c.yaml", yaml) if yaml else None
    with pytest.raises(ConfigError) as caught:
        load(options, file=file, **environ)
    assert named in str(caught.value)
    if yaml:
        assert str(file) in str(caught.value)


def test_every_error_is_told_at_once(tmp_path):
    file = write(tmp_path / "c.yaml", "port: -1\ndevice: tpu\n")
    with pytest.raises(ConfigError) as caught:
        load(file=file)
    assert len(str(caught.value).splitlines()) == 2


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nothing\.yaml: can't be read"):
        load(file=tmp_path / "nothing.yaml")


def test_sessions_are_a_number_or_auto(tmp_path):
    assert load().engine().slots is None
    assert load(DUPLEX_MAX_SESSIONS="auto").engine().slots == "auto"
    assert load({"max_sessions": "7"}).engine().slots == 7
    assert load(file=write(tmp_path / "c.yaml", "max_sessions: auto")).max_sessions == "auto"


def test_devices_are_gpus_or_the_cpu(tmp_path):
    assert load().devices == ()
    assert load({"devices": "0,1"}).engine().devices == ("cuda:0", "cuda:1")
    assert load(DUPLEX_DEVICES=" cpu, cpu ").devices == ("cpu", "cpu")
    assert load(file=write(tmp_path / "c.yaml", "devices: [0, 3]")).devices == ("cuda:0", "cuda:3")
    assert load(file=write(tmp_path / "d.yaml", "devices: 2")).devices == ("cuda:2",)


def test_tls_is_one_word_or_two_files(tmp_path):
    cert, key = write(tmp_path / "cert.pem", ""), write(tmp_path / "key.pem", "")
    assert load().tls is None
    for options in ({"tls": ("self-signed", "self-signed")}, {"tls": "self-signed"}):
        assert load(options).tls == "self-signed"
    assert load(DUPLEX_TLS="self-signed").tls == "self-signed"
    assert load(DUPLEX_TLS=f"{cert},{key}").tls == (cert, key)
    assert load({"tls": (cert, key)}).scheme == "https"


def test_ice_servers_come_from_yaml_or_as_json(tmp_path):
    yaml = "ice_servers: [{urls: 'turn:a:3478?transport=udp', username: u, credential: c-c-c}]\n"
    (server,) = load(file=write(tmp_path / "c.yaml", yaml)).ice_servers
    assert (server.urls, server.username) == (("turn:a:3478?transport=udp",), "u")
    assert "c-c-c" not in repr(server)
    json = '[{"urls": ["stun:a", "stuns:b"]}]'
    assert load(DUPLEX_ICE_SERVERS=json).ice_servers[0].urls == ("stun:a", "stuns:b")
    json = '[{"urls": "turns:a:443?transport=tcp", "secret": "correct-horse", "ttl_s": 60}]'
    (server,) = load(DUPLEX_ICE_SERVERS=json).ice_servers
    assert (server.ttl_s, server.username) == (60, None)
    assert "correct-horse" not in repr(server)


def test_chat_is_told_to_the_engine(tmp_path):
    yaml = "chat:\n  model: m\n  stages:\n    a: {kind: echo, final: true, options: {step_ms: 2}}\n"
    chat = load(file=write(tmp_path / "c.yaml", yaml)).engine().chat
    assert (chat.model, chat.max_requests) == ("m", 64)
    assert chat.stages == {"a": StageConfig(kind="echo", final=True, options={"step_ms": 2})}
    json = '{"model": "m", "stages": {"a": {"kind": "echo", "final": true}}}'
    assert load(DUPLEX_CHAT=json).engine().chat.model == "m"
    assert load().engine().chat is None


def test_errors_do_not_show_keys():
    with pytest.raises(ConfigError) as caught:
        load(DUPLEX_API_KEYS="se cret")
    assert "cret" not in str(caught.value)
    assert KEY not in repr(load({"api_keys": [KEY]}))


def test_keys_come_from_options_and_file_together(tmp_path):
    keys = write(tmp_path / "keys", f"# of the team\n\n{KEY}#1\n  {KEY}-2  \n")
    config = load({"api_keys": [KEY], "api_key_file": keys})
    assert [key.get_secret_value() for key in config.api_keys] == [KEY, f"{KEY}#1", f"{KEY}-2"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [("# none\n", "holds no key"), (None, "can't be read"), ("bad key\n", "8 to 256 characters")],
)
def test_a_bad_key_file_is_refused(tmp_path, content, problem):
    keys = tmp_path / "keys"
    if content is not None:
        write(keys, content)
    with pytest.raises(ConfigError, match=problem):
        load({"api_key_file": keys})


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "voice.example.com"])
def test_beyond_loopback_a_key_is_needed(host):
    with pytest.raises(ConfigError, match="Set one \\(--api-key"):
        load({"host": host})
    assert load({"host": host, "api_keys": [KEY]}).exposed


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_on_loopback_none_is(host):
    assert not load({"host": host}).exposed


def test_the_engine_is_told_its_part():
    config = ServeConfig(
        model="tiny",
        max_sessions=3,
        device="cpu",
        step_mode="fixed",
        threads=2,
        voices_dir=Path("/voices"),
        delay_frames=1,
        prefix_cache_bytes=5,
        context=750,
        kv="fp8",
        weights="fp8",
    )
    assert config.engine() == EngineConfig(
        model="tiny",
        slots=3,
        device="cpu",
        admission="measured",
        context=750,
        kv="fp8",
        weights="fp8",
        step_mode="fixed",
        threads=2,
        voices_dir="/voices",
        delay_frames=1,
        prefix_cache_bytes=5,
    )


@given(st.dictionaries(st.text(max_size=20), st.text(max_size=20), max_size=4))
def test_whatever_the_environment_holds_it_loads_or_says_why(environ):
    prefixed = {f"DUPLEX_{name}": value for name, value in environ.items()}
    prefixed.pop(CONFIG_FILE_ENV, None)
    try:
        load_config({}, environ=prefixed)
    except ConfigError as error:
        assert str(error)


def test_every_setting_is_documented():
    guide = (Path(__file__).parents[2] / "docs/configuration.md").read_text("utf-8")
    missing = [name for name in ServeConfig.model_fields if f"`{name}`" not in guide]
    assert missing == []
