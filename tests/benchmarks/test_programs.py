"""benchmarks/programs.py and what belongs to it: the same programs for both systems, and true figures."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from benchmarks import programs, programs_workload
from benchmarks.programs_clients import Finished
from benchmarks.programs_infinite import RunRequest, hit_rate, optimal_hit_rate
from benchmarks.programs_measure import SYSTEMS, Bench, Outcome, System, arrivals, closed_loop, open_loop
from benchmarks.programs_real import RealEngine
from benchmarks.programs_simulation import SimulatedEngine
from benchmarks.programs_tree import Program
from benchmarks.programs_workload import KINDS, Texts, Writer
from hypothesis import given
from hypothesis import strategies as st

from palmette.runtime.config import EngineConfig


def bench(*, pool_tokens: int = 1 << 20, scale: float = 0.1, count: int = 24) -> Bench:
    return Bench(partial(SimulatedEngine, pool_tokens=pool_tokens), Texts(scale=scale), count, job=4)


def answers(outcome: Outcome) -> dict[int, dict[int, tuple[int, ...]]]:
    """By program and node."""
    return {each.item.number: each.answers for each in outcome.finished}


@pytest.mark.parametrize("pool_tokens", [1 << 20, 4096])
def test_both_systems_get_the_same_answers(pool_tokens: int) -> None:
    """However programs are run, and however short memory is, they get the same answers by as many requests."""
    setup = bench(pool_tokens=pool_tokens)
    outcomes = [open_loop(setup, system, 20.0) for system in SYSTEMS.values()]

    assert len(answers(outcomes[0])) == setup.count
    assert {each.item.kind for each in outcomes[0].finished} == KINDS.keys()
    assert answers(outcomes[0]) == answers(outcomes[1])
    assert outcomes[0].requests == outcomes[1].requests == outcomes[0].stats.finished
    for outcome in outcomes:
        assert 0 < outcome.hit_rate <= outcome.optimal_hit_rate < 1
        assert outcome.hit_rate == pytest.approx(
            outcome.stats.hit_rate, abs=0.01
        )  # which counts tokens that a select repeats


def test_nothing_is_left_behind() -> None:
    """When all programs have ended, every page is free or may be evicted."""
    machines: list[SimulatedEngine] = []

    def machine(config: EngineConfig) -> SimulatedEngine:
        machines.append(SimulatedEngine(config, 8192))
        return machines[-1]

    closed_loop(replace(bench(), machine=machine), SYSTEMS["tree_aware"], 8)

    machines[0].scheduler.check_invariants()
    machines[0].scheduler.flush_cache()
    stats = machines[0].stats()
    assert stats.free_pages == stats.total_pages
    assert len(machines[0].host) == 0


def line_of_calls(w: Writer) -> Program:
    """Eight calls one after the other, of which none is read."""
    branch = w.tree.branch().tokens(w.own(40))
    for _ in range(8):
        branch.generate(4)
        branch.tokens(w.own(4))
    yield from ()


def test_round_trips_of_a_straight_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A straight line of eight calls is one round trip as a tree, and eight as calls."""
    monkeypatch.setattr(programs_workload, "KINDS", {"line": line_of_calls})

    def seconds(system: System, round_trip_s: float) -> float:
        outcome = closed_loop(replace(bench(count=1), round_trip_s=round_trip_s), system, 1)
        return outcome.finished[0].seconds

    tree, calls = SYSTEMS["tree_aware"], SYSTEMS["call_by_call"]
    assert seconds(tree, 1.0) - seconds(tree, 0.0) == pytest.approx(1.0)
    assert seconds(calls, 1.0) - seconds(calls, 0.0) == pytest.approx(8.0)


def test_a_closed_loop_has_so_many_under_way() -> None:
    """There are never more programs under way than the closed loop says, and so many until the last has begun."""
    finished = closed_loop(bench(), SYSTEMS["call_by_call"], 6).finished

    assert [each.began_s for each in finished].count(0.0) == 6
    last_s = max(each.began_s for each in finished)
    assert all(under_way(finished, each.began_s) == 6 for each in finished if each.began_s <= last_s)


def under_way(finished: object, at_s: float) -> int:
    assert isinstance(finished, list)
    programs: list[Finished] = finished
    return sum(each.began_s <= at_s < each.ended_s for each in programs)


def test_arrivals_come_in_jobs_at_the_rate() -> None:
    """Programs arrive at the rate that was asked for, several at once."""
    times = arrivals(replace(bench(count=20_000), job=16), 5.0)

    assert times == sorted(times)
    assert 20_000 / times[-1] == pytest.approx(5.0, rel=0.1)
    assert 20_000 / len(set(times)) == pytest.approx(16, rel=0.1)


def run_request(prompt: list[int], *, at_s: float, output: tuple[int, ...] = (), cached: int = 0) -> RunRequest:
    return RunRequest(np.array(prompt, dtype=np.int32), at_s, at_s, at_s + 1.5, cached, output)


def test_the_infinite_cache_by_hand() -> None:
    """Prompts count as soon as they began, answers when they ended, and the last token of a prompt never."""
    requests = [
        run_request([1, 2, 3, 4], at_s=0.0, output=(5, 6)),
        run_request([1, 2, 3, 4], at_s=1.0),  # 3: all but the last
        run_request([1, 2, 3, 4, 5, 6, 7], at_s=1.2),  # 4: the answer is not there yet
        run_request([1, 2, 3, 4, 5, 6, 8], at_s=4.0, cached=5),  # 6
    ]

    assert optimal_hit_rate(requests) == 13 / 22
    assert hit_rate(requests) == 5 / 22


@given(st.lists(st.tuples(st.integers(0, 45), st.integers(1, 50), st.integers(0, 2)), min_size=1, max_size=12))
def test_the_infinite_cache_against_comparing_all(shapes: list[tuple[int, int, int]]) -> None:
    """Found by blocks, the optimum is what comparing every prompt with all before it gives."""
    prompts = [[1] * shared + [place % 3 + 2] * own for place, (shared, own, _) in enumerate(shapes)]
    requests = [
        run_request(prompt, at_s=place * 1.0, output=(1,) * output)
        for place, (prompt, (_, _, output)) in enumerate(zip(prompts, shapes, strict=True))
    ]
    hits = 0
    for place, prompt in enumerate(prompts):
        known = prompts[:place] + [prompts[each] + [1] * shapes[each][2] for each in range(place - 1)]
        hits += min(max((shared_length(prompt, other) for other in known), default=0), len(prompt) - 1)

    assert optimal_hit_rate(requests) == hits / sum(map(len, prompts))


def shared_length(left: list[int], right: list[int]) -> int:
    return next((n for n, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


def test_the_command_writes_its_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--simulate --json` writes the figures of both systems."""
    path = tmp_path / "out.json"
    programs.main(["--simulate", "--programs", "16", "--in-flight", "8", "--scale", "0.1", "--json", str(path)])

    written = json.loads(path.read_text())
    for system in ("tree_aware", "call_by_call"):
        for name in ("mean_s", "p95_s", "programs_per_s", "hit_rate", "optimal_hit_rate"):
            assert written[system][name] > 0
    assert capsys.readouterr().out.count("programs/s") == 4


def test_programs_on_an_engine_that_computes(tiny_model_folder: Path) -> None:
    """The same clients run the same programs on a real engine, in real time, with the same answers both ways."""

    def machine(config: EngineConfig) -> RealEngine:
        return RealEngine(EngineConfig(model=str(tiny_model_folder), device="cpu", max_total_tokens=8000, seed=1))

    texts = Texts(scale=0.02, first_id=40, exact=True)
    setup = Bench(machine, texts, count=6, seed=3, round_trip_s=0.001, job=4)
    outcomes = [open_loop(setup, system, 50.0) for system in SYSTEMS.values()]

    assert answers(outcomes[0]) == answers(outcomes[1])
    assert outcomes[0].requests == outcomes[1].requests
    assert all(0 < outcome.hit_rate <= outcome.optimal_hit_rate for outcome in outcomes)
