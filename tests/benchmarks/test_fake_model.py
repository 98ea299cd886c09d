"""The model that computes nothing, on which processes and servers are tested and measured."""

from __future__ import annotations

from pathlib import Path

from tests.wire import run_tree

from palmette.bench import fake_model
from palmette.constrained import Grammar
from palmette.runtime.config import EngineConfig
from palmette.runtime.engine import Engine
from palmette.runtime.program import Generate, Generated, Text
from palmette.runtime.sampling_params import SamplingParams


def test_it_repeats_a_sentence(tmp_path: Path) -> None:
    """It honours stop strings, grammars and the number of tokens, as its scheduler is the real one."""
    loaded = fake_model.load(EngineConfig(model=str(fake_model.write_folder(tmp_path))))
    nodes = (
        Generate(1, 0, SamplingParams(max_tokens=100, stop=("jumps",)), stream=True),
        Generate(2, 0, SamplingParams(max_tokens=50)),
        Generate(3, 0, SamplingParams(max_tokens=50), Grammar.regex("[a-z]{2}-[0-9]")),
    )
    with Engine(loaded.scheduler, loaded.tokenizer, loaded.model_info) as engine:
        listener = run_tree(engine, [Text(0, None, "A"), *nodes])
    texts = []
    for node in nodes:
        done = listener.done[node.id]
        assert isinstance(done, Generated)
        texts.append(done.completions[0].text)
    assert texts == ["the quick brown fox ", (fake_model.TEXT * 2)[:50], "th-0"]
    assert "".join(delta.text for delta in listener.deltas) == texts[0]
