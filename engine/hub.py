"""Fetches a model's files from the Hugging Face hub: only those it needs, and no code."""

from __future__ import annotations

import glob
import re
from pathlib import Path
from typing import Final

from engine.api import EngineError
from engine.directory import CONFIG, VOICES, VOICES_ARCHIVE, read_config

_REPOSITORY: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def is_repository(model: str) -> bool:
    """True for the form `owner/name`."""
    return _REPOSITORY.fullmatch(model) is not None


def fetch(repository: str, *, endpoint: str | None = None) -> Path:
    """The local directory of a repository's files, downloaded unless they are cached.

    Raises EngineError, in the hub's words, if the repository, the network or the permission to
    read it is missing. Cache and token are huggingface_hub's business (HF_HOME, HF_TOKEN).
    endpoint: another hub than the public one.
    """
    from huggingface_hub import snapshot_download

    def download(*names: str) -> Path:
        return Path(snapshot_download(repository, allow_patterns=list(names), endpoint=endpoint))

    try:
        config, _ = read_config(download(CONFIG))
        names = map(glob.escape, config.files)
        return download(CONFIG, *names, VOICES_ARCHIVE, f"{VOICES}/*")
    except EngineError:
        raise
    except Exception as error:  # The HTTP library's own errors are among them.
        words = " ".join(str(error).split())
        raise EngineError(
            f"{repository}: not fetched from the Hugging Face hub: {words} "
            "(Where there is no network, give the directory of the model's files.)"
        ) from error
