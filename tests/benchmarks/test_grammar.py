"""benchmarks/grammar.py: what it counts, and that an engine that crashes or hangs costs it one schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks import grammar, grammar_hard
from benchmarks.grammar_sample import Case, in_schema_order, read_cases, spelled
from benchmarks.grammar_tally import Record, engine_figures, ratios, tally

OBJECT = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}},
    "required": ["a"],
    "additionalProperties": False,
}
LINES: tuple[dict[str, Any], ...] = (
    {
        "id": "one",
        "split": "first",
        "schema": OBJECT,
        "valid": [{"a": 1, "b": True}, {"b": True, "a": 1}],
        "invalid": [{"a": "x"}, {"b": True}, {"a": 2}, {"c": 1, "a": 1}],
    },
    {"id": "two", "split": "second", "schema": {"type": "string"}, "valid": ["日本 é"], "invalid": [3]},
    {"id": "no", "split": "second", "schema": {"$ref": "https://example.com/x"}, "valid": [], "invalid": [1]},
)
NOTES = {"format_only": [["one", 3]], "jsonschema_says_valid": [["one", 2]]}


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    """A sample of three schemas with label notes beside it."""
    path = tmp_path / "sample.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    (tmp_path / "label_notes.json").write_text(json.dumps(NOTES))
    return path


def test_instances_are_read_without_the_struck_ones(sample: Path) -> None:
    """Label notes strike instances out or set them apart, and are not needed."""
    one, two, _ = read_cases(sample)
    assert (len(one.invalid), one.format_only) == (2, ({"c": 1, "a": 1},))
    assert (two.valid, two.invalid, two.format_only) == (("日本 é",), (3,), ())
    sample.with_name("label_notes.json").unlink()
    assert len(read_cases(sample)[0].invalid) == 4
    assert [case.id for case in read_cases(sample, ("second",))] == ["two", "no"]
    assert len(read_cases(sample, limit=2)) == 2


def test_other_files_are_read(tmp_path: Path) -> None:
    """Groups of the test suite have data, and handmade cases have texts, which are taken as they are."""
    path = tmp_path / "mixed.jsonl"
    group = {"id": "g", "keyword": "type", "schema": {}, "tests": [{"data": 1.5, "valid": True}]}
    handmade = {"key": "h", "schema": {}, "cases": [{"text": "[ 1 ]", "accept": False}]}
    path.write_text(json.dumps(group) + "\n" + json.dumps(handmade) + "\n")
    first, second = read_cases(path)
    assert (first.split, first.valid, first.invalid) == ("type", (1.5,), ())
    assert (second.split, second.spelled(second.invalid[0], "indented")) == ("handmade", "[ 1 ]")


def test_spellings() -> None:
    """Compact and indented text keep characters, and the default is what json.dumps writes."""
    value = {"é": [1, "\ud800"]}
    assert spelled({"é": [1, 2]}, "compact") == '{"é":[1,2]}'
    assert spelled({"é": [1, 2]}, "default") == '{"\\u00e9": [1, 2]}'
    assert spelled({"é": [1]}, "indented") == '{\n  "é": [\n    1\n  ]\n}'
    assert json.loads(spelled(value, "compact")) == value


def test_members_in_the_order_of_a_schema() -> None:
    """Orders are found through references and combinations, inside lists and members; unnamed members stay behind."""
    schema = {
        "$defs": {"inner": {"properties": {"x": {}, "y": {}}}},
        "allOf": [{"properties": {"p": {"items": {"$ref": "#/$defs/inner"}}}}],
        "properties": {"q": True},
    }
    found = in_schema_order({"z": 0, "p": [{"y": 1, "x": 2}], "q": 3}, schema)
    assert json.dumps(found) == '{"q": 3, "p": [{"x": 2, "y": 1}], "z": 0}'


def walked(**changes: Any) -> dict[str, Any]:
    """A worker's report on instances, all right, with changes."""
    right = {"compact": "right", "default": "right", "indented": "rejected"}
    report: dict[str, Any] = {"valid": [right], "invalid": [False], "format_only": [], "errors": []}
    return report | {"mask_us": [1.0, 3.0], "first_us": [3.0], "warm_us": [], "advance_us": [1.0]} | changes


def test_figures() -> None:
    """Counts and percentiles are those of the schemas that compiled; times of compiling include time-outs."""
    case, empty = Case("x", "s", {}, (1,), (2,)), Case("y", "s", False, (), (2,))
    records = [
        Record(case, "compiled", 2.0, walked=walked()),
        Record(case, "compiled", 4.0, walked=walked(invalid=[True])),
        Record(case, "timeout", 30_000.0),
        Record(case, "crash"),
        Record(empty, "refused", 1.0, unsatisfiable=True),
    ]
    found = tally(records)
    assert (found["compiled"], found["refused"], found["timeouts"], found["crashes"]) == (2, 1, 1, 1)
    assert (found["valid_rejected"], found["valid_rejected_indented"], found["valid_total"]) == (0, 2, 2)
    assert (found["invalid_accepted"], found["invalid_total"]) == (1, 2)
    assert (found["fully_right"], found["fully_right_total"]) == (2, 5)
    assert found["compile_ms"] == {"p50": 4.0, "p95": pytest.approx(27000.4), "max": 30_000.0}
    assert found["mask_us"]["avg"] == 2.0
    assert found["mask_us_warm"] is None
    assert ratios(found, found)["compile_ms.p50"] == 1.0
    wrong = ["x", "valid", 0, "indented rejected"]
    assert engine_figures(records)["wrong"] == [wrong, wrong, ["x", "invalid", 0]]


@pytest.mark.default_model
def test_the_native_engine_is_measured(
    sample: Path, tmp_path: Path, default_model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command writes the figures of each engine and split as JSON, and prints the table."""
    out = tmp_path / "out.json"
    grammar.main(["--data", str(sample), "--engines", "native", "--json", str(out)])
    figures = json.loads(out.read_text())["engines"]["native"]
    assert (figures["schemas"], figures["compiled"], figures["refused"]) == (3, 2, 1)
    assert (figures["timeouts"], figures["crashes"]) == (0, 0)
    assert (figures["valid_rejected"], figures["valid_order_only"], figures["valid_total"]) == (0, 1, 3)
    assert (figures["valid_rejected_default"], figures["invalid_accepted"], figures["invalid_total"]) == (0, 0, 3)
    assert figures["format_only_total"] == 1
    assert set(figures["mask_us"]) == {"avg", "p50", "p99", "max"}
    assert set(figures["mask_us_first_visit"]) == {"p50", "p99"}
    assert figures["compile_ms"]["max"] > 0
    assert list(figures["splits"]) == ["first", "second"]
    assert "compile ms p50/p95/max" in capsys.readouterr().out


@pytest.mark.default_model
@pytest.mark.parametrize(
    ("engine", "package"), [("llguidance", "llguidance"), ("xgrammar", "xgrammar"), ("outlines", "outlines_core")]
)
def test_peers_are_measured(engine: str, package: str, default_model_folder: Path) -> None:
    """The peers that are installed accept and reject what is plain."""
    pytest.importorskip(package)
    case = Case("x", "s", OBJECT, ({"a": 1, "b": True},), ({"a": "x"}, {"b": True}))
    found = grammar.run_engine(engine, [case], "smollm2", 60)
    assert (found["compiled"], found["fully_right"], found["walk_errors"]) == (1, 1, 0)
    assert found["masks"] > 0


def test_a_worker_that_fails_costs_one_schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dies, and one that never answers, are replaced."""
    (tmp_path / "grammar_worker.py").write_text(
        "import json, os, sys, time\n"
        "print(json.dumps({'ready_s': 0.0}), flush=True)\n"
        "for line in sys.stdin:\n"
        "    schema = json.loads(line)['schema']\n"
        "    if schema == 'dies': os._exit(3)\n"
        "    if schema == 'hangs': time.sleep(60)\n"
        "    print(json.dumps({'outcome': 'refused', 'reason': 'no', 'compile_ms': 1.0}), flush=True)\n"
    )
    monkeypatch.setattr(grammar, "__file__", str(tmp_path / "grammar.py"))
    cases = [Case(name, "s", name, (), ()) for name in ("dies", "fine", "hangs", "well")]
    found = grammar.run_engine("native", cases, "smollm2", 0.1)
    assert (found["crashes"], found["timeouts"], found["refused"]) == (1, 1, 2)
    assert found["not_compiled"]["dies"] == "the process ended with 3"


@pytest.mark.default_model
def test_hard_inputs_are_measured(default_model_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A hard input is compiled in a process of its own, which reports time and memory."""
    row = grammar_hard.run_hard("smollm2", ("objects 200 deep",))["hard"][0]
    assert row["outcome"] == "compiled"
    assert row["memory_mib"] < 300
    assert "objects 200 deep" in capsys.readouterr().out
