"""Where the server's configuration comes from: command line, environment, YAML file and defaults,
in that order.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path

import yaml
from pydantic import ValidationError

from duplex.config import ServeConfig

ENV_PREFIX = "DUPLEX_"
CONFIG_FILE_ENV = "DUPLEX_CONFIG"
CLIENT_ENV_PREFIX = "DUPLEX_CLIENT_"
"""Variables that tell the client commands of a server; `serve` passes over them."""

_LISTS = ("api_keys", "allowed_origins", "policy_options", "tls")
_OPTIONS = {
    "model": "MODEL",
    "api_keys": "--api-key",
    "allowed_origins": "--allow-origin",
    "policy_options": "--policy-option",
}


class ConfigError(Exception):
    """A configuration that can't be served. The message names each field and where it is set."""


def load_config(
    options: Mapping[str, object],
    *,
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> ServeConfig:
    """Puts a configuration together: `options` (the command line's) before environment variables
    DUPLEX_* before the YAML file (`file`, or what DUPLEX_CONFIG names) before the defaults.

    Raises ConfigError, which names every field at fault and the place that set it.
    """
    environ = os.environ if environ is None else environ
    if file is None and environ.get(CONFIG_FILE_ENV):
        file = Path(environ[CONFIG_FILE_ENV])
    values: dict[str, object] = {}
    places: dict[str, str] = {}
    if file is not None:
        _add(values, places, _read_file(file), lambda field: f"{file}: {field}")
    _add(values, places, _read_environ(environ), lambda field: ENV_PREFIX + field.upper())
    for field, value in options.items():
        values[field] = value
        places[field] = _OPTIONS.get(field, "--" + field.replace("_", "-"))
    try:
        config = ServeConfig.model_validate(values)
        if config.api_key_file is not None:
            keys = (*config.api_keys, *_read_keys(config.api_key_file))
            config = ServeConfig.model_validate(values | {"api_keys": keys})
    except ValidationError as error:
        raise ConfigError("\n".join(_describe(error, places))) from None
    if config.exposed and not config.api_keys:
        raise ConfigError(
            f"{places.get('host', 'host')}: {config.host} can be reached from other machines, and "
            "no API key is set. Set one (--api-key KEY, DUPLEX_API_KEYS or api_key_file), or "
            "listen on 127.0.0.1."
        )
    return config


def unknown_name(name: str, known: list[str]) -> str:
    """Says that `name` is unknown, and which known one was probably meant."""
    near = difflib.get_close_matches(name.lower().replace("-", "_"), known, n=1)
    return "unknown setting" + (f"; did you mean {near[0]}?" if near else "")


def _add(
    values: dict[str, object],
    places: dict[str, str],
    more: Mapping[str, object],
    place: Callable[[str], str],
) -> None:
    values.update(more)
    places.update({field: place(field) for field in more})


def _read_environ(environ: Mapping[str, str]) -> dict[str, object]:
    """The DUPLEX_* variables as fields; empty ones count as not set, lists split at commas."""
    found: dict[str, object] = {}
    for variable, text in environ.items():
        if not variable.startswith(ENV_PREFIX) or not text:
            continue
        if variable == CONFIG_FILE_ENV or variable.startswith(CLIENT_ENV_PREFIX):
            continue
        field = variable.removeprefix(ENV_PREFIX).lower()
        listed = [part.strip() for part in text.split(",") if part.strip()]
        found[field] = listed if field in _LISTS else text
    return found


def _read_file(path: Path) -> dict[str, object]:
    try:
        content = yaml.load(path.read_text("utf-8"), Loader=_UniqueKeys)
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid YAML: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected settings as `name: value` lines")
    return {str(name): value for name, value in content.items()}


def _read_keys(path: Path) -> list[str]:
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"api_key_file: {path} can't be read: {error}") from error
    keys = [key for line in lines if (key := line.strip()) and not key.startswith("#")]
    if not keys:
        raise ConfigError(f"api_key_file: {path} holds no key")
    return keys


def _describe(error: ValidationError, places: Mapping[str, str]) -> list[str]:
    known = list(ServeConfig.model_fields)
    lines = []
    for found in error.errors(include_url=False, include_input=False):
        field, *path = map(str, found["loc"])
        deeper = ".".join(path)
        text = found["msg"].removeprefix("Value error, ")
        if found["type"] == "extra_forbidden":
            text = unknown_name(field, known) if not deeper else "unknown setting"
        within = f" {deeper}:" if deeper else ""
        lines.append(f"{places.get(field, field)}:{within} {text}")
    return lines


class _UniqueKeys(yaml.SafeLoader):
    """YAML, except that a name given twice is an error."""

    def construct_mapping(
        self, node: yaml.MappingNode, deep: bool = False
    ) -> dict[Hashable, object]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key!r} is set twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)
