"""Fetching from a hub: a server of our own that speaks its protocol, and none at all."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import pytest

from engine.api import EngineError
from engine.hub import fetch, is_repository

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPOSITORY = "someone/a-model"


FILES = {
    "config.json": json.dumps({"moshi_name": "lm[1].safetensors"}).encode(),
    "lm[1].safetensors": b"language model",
    "tokenizer-e351c8d8-checkpoint125.safetensors": b"codec",
    "tokenizer_spm_32k_3.model": b"tokenizer",
    "voices/ada.wav": b"voice",
}


def _digest(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


class Hub(ThreadingHTTPServer):
    """Serves `files` as the repository's; `asked` are those downloaded."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.refusal = "RepoNotFound"

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *arguments: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        path, files = unquote(self.path.split("?")[0]), self.server.files
        if not path.removeprefix("/api/models").startswith(f"/{REPOSITORY}/"):
            self._refuse(self.server.refusal)
        elif "/tree/" in path:
            listed = [
                {"type": "file", "path": name, "size": len(data), "oid": _digest(data)}
                for name, data in files.items()
            ]
            self._send(json.dumps(listed).encode(), body=body)
        elif path.startswith("/api/"):
            siblings = [{"rfilename": name} for name in files]
            about = {"id": REPOSITORY, "sha": COMMIT, "siblings": siblings}
            self._send(json.dumps(about).encode(), body=body)
        else:
            name = path.split("/", 5)[5]
            if body:
                self.server.asked.append(name)
            self._send(files[name], body=body)

    def _refuse(self, reason: str) -> None:
        self.send_response(403 if reason == "GatedRepo" else 404)
        self.send_header("X-Error-Code", reason)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _send(self, data: bytes, *, body: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("ETag", f'"{_digest(data)}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if body:
            self.wfile.write(data)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    with Hub() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_fetches_what_is_needed_and_nothing_else(hub: Hub) -> None:
    hub.files = FILES | {"modeling.py": b"raise SystemExit", "pytorch_model.bin": b"pickle"}
    path = fetch(REPOSITORY, endpoint=hub.endpoint)
    found = {str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()}
    assert found == FILES.keys()
    assert sorted(hub.asked) == sorted(FILES)


def test_a_repository_without_config_has_the_published_names(hub: Hub) -> None:
    hub.files = {"model.safetensors": b"language model", "voices.tgz": b"voices", "notes": b""}
    path = fetch(REPOSITORY, endpoint=hub.endpoint)
    assert sorted(file.name for file in path.iterdir()) == ["model.safetensors", "voices.tgz"]


def test_what_was_fetched_once_needs_no_network(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.files = FILES
    path = fetch(REPOSITORY, endpoint=hub.endpoint)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert fetch(REPOSITORY, endpoint=hub.endpoint) == path


@pytest.mark.parametrize("reason", ["RepoNotFound", "GatedRepo"])
def test_a_refusal_is_said_with_the_repository(hub: Hub, reason: str) -> None:
    hub.refusal = reason
    with pytest.raises(EngineError, match=r"^nobody/nothing: .*give the directory") as caught:
        fetch("nobody/nothing", endpoint=hub.endpoint)
    assert hub.endpoint in str(caught.value)


def test_without_a_network_it_says_so(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(EngineError, match="Where there is no network, give the directory"):
        fetch(REPOSITORY, endpoint=hub.endpoint)


def test_a_config_that_cant_be_read_is_named(hub: Hub) -> None:
    hub.files = {"config.json": b"{"}
    with pytest.raises(EngineError, match=r"config\.json"):
        fetch(REPOSITORY, endpoint=hub.endpoint)


@pytest.mark.parametrize(
    ("model", "is_one"),
    [
        ("kyutai/moshiko-pytorch-bf16", True),
        ("nvidia/personaplex-7b-v1", True),
        ("tiny", False),
        ("../models", False),
        ("/models/moshi", False),
        ("a/b/c", False),
        ("a/", False),
        ("", False),
    ],
)
def test_what_looks_like_a_repository(model: str, is_one: bool) -> None:
    assert is_repository(model) == is_one
