"""Models by their Hugging Face id: only the files that are used, never a pickle, kept in the library's own cache."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .errors import ModelLoadError

_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9_][\w.-]*")
_WEIGHTS = ("model.safetensors", "model-*-of-*.safetensors", "model.safetensors.index.json")
_OTHERS = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "tiktoken.model",
    "*.tiktoken",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)


def is_hub_id(name: str) -> bool:
    """Whether a name has the form of a Hugging Face id, "organisation/model"."""
    return _ID.fullmatch(name) is not None


def fetch(
    model_id: str,
    *,
    revision: str | None = None,
    offline: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
) -> Path:
    """The folder of a model of the Hugging Face hub in the library's cache; what is missing there is fetched.

    The library's own settings hold: HF_HOME, HF_HUB_CACHE, HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE.

    Args:
        revision: a branch, tag or commit; None is the main branch.
        offline: look in the cache only.
        progress: told how many bytes are done.

    Raises:
        ModelLoadError: the model or the revision does not exist, is not open to the user, cannot be reached, or has no
            safetensors; says what to do.
    """
    from huggingface_hub import snapshot_download

    with _explained(model_id, revision, offline):
        folder = snapshot_download(
            model_id,
            revision=revision,
            local_files_only=offline,
            allow_patterns=[*_WEIGHTS, *_OTHERS],
            ignore_patterns=["*/*"],
            tqdm_class=_bar(progress or _silent),
        )
    if not any(Path(folder).glob("model*.safetensors")):
        raise ModelLoadError(
            f"{model_id!r} has no safetensors on the Hugging Face hub, and its other files (pickles, GGUF) are not "
            "fetched: convert it with transformers' `save_pretrained` and give the folder, or download a .gguf file "
            "and give its path"
        )
    return Path(folder)


@contextmanager
def _explained(model_id: str, revision: str | None, offline: bool) -> Iterator[None]:
    """Say in our words what the library could not do."""
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError as error:
        raise ModelLoadError(
            f"{model_id!r} is gated: ask for access on its page of the Hugging Face hub, then set HF_TOKEN or run "
            "`hf auth login`"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise ModelLoadError(
            f"there is no model {model_id!r} on the Hugging Face hub, or it is private: look at the spelling; for a "
            "private one set HF_TOKEN or run `hf auth login`. There is no folder of that name either"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ModelLoadError(f"{model_id!r} has no revision {revision!r}: give a branch, a tag or a commit") from error
    except errors.HFValidationError as error:
        raise ModelLoadError(f"{model_id!r} is not a Hugging Face id: {error}") from error
    except errors.LocalEntryNotFoundError as error:
        raise ModelLoadError(_not_in_cache(model_id, revision, offline, error)) from error
    except Exception as error:  # a full disk, a server's error, a lost connection: whatever the library's client raises
        status = getattr(getattr(error, "response", None), "status_code", None)
        hint = " (is HF_TOKEN, or the token that `hf auth login` kept, out of date?)" if status == 401 else ""
        raise ModelLoadError(
            f"{model_id!r} could not be fetched from the Hugging Face hub: {_reason(error)}{hint}"
        ) from error


def _not_in_cache(model_id: str, revision: str | None, offline: bool, error: Exception) -> str:
    from huggingface_hub import constants

    at = f" at revision {revision!r}" if revision else ""
    missing = f"the cache {constants.HF_HUB_CACHE} does not hold all of {model_id!r}{at}"
    if offline:
        return f"{missing}, and with offline=True nothing is fetched; `palmette models pull {model_id}` does"
    if constants.HF_HUB_OFFLINE:
        return f"{missing}, and HF_HUB_OFFLINE is set: unset it to fetch the model"
    return (
        f"{missing}, and the Hugging Face hub at {constants.ENDPOINT} did not deliver it "
        f"({_reason(error.__cause__ or error)}): check the network, or give the folder of a model"
    )


def _reason(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0] or type(error).__name__


def _bar(progress: Callable[[str, int, int], None]) -> type[Any]:
    """A progress bar that prints nothing, and tells `progress` how many bytes are done."""
    from tqdm import tqdm  # type: ignore[import-untyped]  # it ships no annotations

    most = 0

    class Bar(tqdm):  # type: ignore[misc]  # as above
        def __init__(self, *args: Any, **options: Any) -> None:
            options.pop("name", None)
            self._counts_bytes = options.get("unit") == "B"
            super().__init__(*args, **{**options, "disable": True})

        def update(self, n: float | None = 1) -> bool | None:
            nonlocal most
            self.n += n or 0
            if self._counts_bytes and self.n > most:  # several bars count the same bytes, at different times
                most = int(self.n)
                progress("downloading", most, max(most, int(self.total or 0)))
            return None

    return Bar


def _silent(what: str, done: int, total: int) -> None:
    """The progress of someone who does not watch."""
