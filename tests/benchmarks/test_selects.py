"""benchmarks/selects.py asks what it says it asks, and counts what is computed."""

from __future__ import annotations

from benchmarks.selects import fewest_tokens, measured, prompts

from palmette.runtime.engine import Engine


def test_one_pass_computes_hardly_more_than_it_must(roomy_engine: Engine) -> None:
    """Both ways of asking score all topics of all messages; one of them computes what they share once."""
    asked = prompts(6, 2)
    figures = measured(roomy_engine, asked, repeats=1, alone=2)
    fewest = fewest_tokens(roomy_engine._tokenizer, asked)
    assert fewest <= figures["one_pass"].tokens < figures["request_a_choice"].tokens
    assert figures["one_pass"].tokens <= 1.05 * fewest
    assert all(len(each.wall_s) == len(each.cpu_s) == len(each.alone_ms) == 1 for each in figures.values())
