"""A model without its weights: what a program is compiled for."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import palmette as pt
from palmette.lang.backend import Backend
from palmette.runtime.described_model import DescribedModel
from palmette.runtime.engine import Engine
from palmette.runtime.errors import EngineError, ModelLoadError


@pt.function(max_tokens=4)
def program(s: pt.ProgramState) -> None:
    s += pt.system("You are brief.") + pt.user("It is what it is.") + pt.assistant(pt.gen("x"))


def test_it_describes_what_an_engine_runs(tiny_model_folder: Path, tiny_engine: Engine) -> None:
    """Template, special tokens and token counts are the engine's own; it is a backend."""
    described = DescribedModel.find(str(tiny_model_folder))
    assert isinstance(described, Backend)
    known, here = msgspec.structs.asdict(tiny_engine.model_info), msgspec.structs.asdict(described.model_info)
    for field in ("name", "chat_template", "bos_token", "eos_token", "special_tokens", "sampling_defaults"):
        assert here[field] == known[field]
    compiled = program.compile(backend=described)
    assert compiled.nodes == program.compile(backend=tiny_engine).nodes
    state = program.run(backend=tiny_engine)
    before_call = sum(shape.tokens or 0 for shape in compiled.shapes if shape.calls)
    assert before_call == state.get_meta_info("x")["prompt_tokens"]


def test_nothing_runs_on_it(tiny_model_folder: Path) -> None:
    """A program that is run on it is told why not."""
    with pytest.raises(EngineError, match="only described here"):
        program.run(backend=DescribedModel.find(str(tiny_model_folder)))


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    """It is refused as an engine refuses it."""
    with pytest.raises(ModelLoadError, match=r"no config\.json"):
        DescribedModel.find(str(tmp_path))
