"""From records of schemas to the figures and the table of grammar.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from benchmarks.grammar_sample import SPELLINGS, Case

JSONSCHEMABENCH = (
    "Github_trivial", "Github_easy", "Github_medium", "Github_hard", "Github_ultra", "Glaiveai2K", "JsonSchemaStore",
    "Kubernetes", "Snowplow", "WashingtonPost",
)  # fmt: skip
"""The splits of the published benchmark; a sample may have more."""


@dataclass(frozen=True, slots=True)
class Record:
    """What one engine did with one schema.

    Attributes:
        outcome: "compiled", "refused", "timeout" or "crash". A schema that compiled and then took too long or crashed
            on an instance is of the latter two.
        compile_ms: CPU time until it was compiled or refused, or the time limit; None after a crash.
        walked: see grammar_worker.Walked; None unless it compiled.
    """

    case: Case
    outcome: str
    compile_ms: float | None = None
    reason: str = ""
    unsatisfiable: bool = False
    walked: dict[str, Any] | None = field(default=None, repr=False)


def tally(records: Sequence[Record]) -> dict[str, Any]:
    """The figures of some schemas.

    `fully_right` counts schemas with instances, of `fully_right_total`, whose every instance is judged right in compact
    spelling; a schema with no valid instance that is refused as unsatisfiable is right.
    """
    outcomes = [record.outcome for record in records]
    walks = [record.walked for record in records if record.walked is not None and record.outcome == "compiled"]
    measured = ("compiled", "timeout")
    with_instances = [record for record in records if record.case.valid or record.case.invalid]
    return {
        "schemas": len(records),
        "compiled": outcomes.count("compiled"),
        "refused": outcomes.count("refused"),
        "refused_as_unsatisfiable": sum(record.unsatisfiable for record in records),
        "timeouts": outcomes.count("timeout"),
        "crashes": outcomes.count("crash"),
        **_instances(walks),
        "fully_right": sum(map(is_right, with_instances)),
        "fully_right_total": len(with_instances),
        "compile_ms": _figures(_compile_times(records, measured), p50=50, p95=95, max=100),
        "refuse_ms": _figures(_compile_times(records, ("refused",)), p50=50, p95=95, max=100),
        "mask_us": _figures(_joined(walks, "mask_us"), avg=None, p50=50, p99=99, max=100),
        "mask_us_first_visit": _figures(_joined(walks, "first_us"), p50=50, p99=99),
        "mask_us_warm": _figures(_joined(walks, "warm_us"), avg=None, p50=50, p99=99),
        "advance_us": _figures(_joined(walks, "advance_us"), avg=None, p50=50, p99=99, max=100),
        "masks": len(_joined(walks, "mask_us")),
    }


def is_right(record: Record) -> bool:
    """Whether every instance was judged as its label says."""
    if record.outcome == "refused":
        return record.unsatisfiable and not record.case.valid
    if record.outcome != "compiled" or record.walked is None:
        return False
    accepted = all(outcome["compact"] in ("right", "order") for outcome in record.walked["valid"])
    return accepted and not any(record.walked["invalid"])


def wrong(records: Iterable[Record]) -> list[list[Any]]:
    """What was judged wrongly: schema, "valid" or "invalid", the instance's place among those scored, and how.

    Instances that are right but for the order of their keys are among them, named so.
    """
    found: list[list[Any]] = []
    for record in records:
        for place, outcome in enumerate((record.walked or {}).get("valid", ())):
            bad = [spelling for spelling in SPELLINGS if outcome[spelling] in ("rejected", "order")]
            found += [[record.case.id, "valid", place, f"{spelling} {outcome[spelling]}"] for spelling in bad]
        accepted = (record.walked or {}).get("invalid", ())
        found += [[record.case.id, "invalid", place] for place, taken in enumerate(accepted) if taken]
    return found


def _instances(walks: Sequence[dict[str, Any]]) -> dict[str, int]:
    valid = [outcome for walk in walks for outcome in walk["valid"]]
    invalid, formats = _joined(walks, "invalid"), _joined(walks, "format_only")
    rejected = {spelling: sum(outcome[spelling] == "rejected" for outcome in valid) for spelling in SPELLINGS}
    return {
        "valid_rejected": rejected["compact"],
        "valid_rejected_default": rejected["default"],
        "valid_rejected_indented": rejected["indented"],
        "valid_total": len(valid),
        "valid_order_only": sum(outcome["compact"] == "order" for outcome in valid),
        "invalid_accepted": sum(invalid),
        "invalid_total": len(invalid),
        "format_only_accepted": sum(formats),
        "format_only_total": len(formats),
        "walk_errors": sum(len(walk["errors"]) for walk in walks),
    }


def _joined(walks: Sequence[dict[str, Any]], name: str) -> list[Any]:
    return [value for walk in walks for value in walk[name]]


def _compile_times(records: Sequence[Record], outcomes: tuple[str, ...]) -> list[float]:
    return [r.compile_ms for r in records if r.outcome in outcomes and r.compile_ms is not None]


def _figures(values: Sequence[float], **percents: int | None) -> dict[str, float] | None:
    """Percentiles by name, the average for None; None where nothing was measured."""
    if not values:
        return None
    found = np.asarray(values)
    return {
        name: round(float(found.mean() if percent is None else np.percentile(found, percent)), 3)
        for name, percent in percents.items()
    }


def by_split(records: Sequence[Record]) -> dict[str, dict[str, Any]]:
    """Figures of each split, in the order in which they come."""
    names = dict.fromkeys(record.case.split for record in records)
    return {name: tally([record for record in records if record.case.split == name]) for name in names}


def engine_figures(records: Sequence[Record]) -> dict[str, Any]:
    """All figures of one engine: together, of each split, and of the published benchmark's splits where others are."""
    found = {**tally(records), "splits": by_split(records)}
    published = [record for record in records if record.case.split in JSONSCHEMABENCH]
    if published and len(published) < len(records):
        found["jsonschemabench_splits"] = tally(published)
    found["wrong"] = wrong(records)
    found["not_compiled"] = {r.case.id: r.reason or r.outcome for r in records if r.outcome != "compiled"}
    found["errors"] = {r.case.id: r.walked["errors"] for r in records if r.walked and r.walked["errors"]}
    return found


# -- the table --------------------------------------------------------------------------------------------------------

Column = tuple[str, int, Callable[[dict[str, Any]], str]]


def _of(name: str) -> Callable[[dict[str, Any]], str]:
    return lambda figures: str(figures[name])


def _share(part: str, total: str) -> Callable[[dict[str, Any]], str]:
    return lambda figures: f"{figures[part]}/{figures[total]}"


def _times(name: str, *parts: str) -> Callable[[dict[str, Any]], str]:
    def text(figures: dict[str, Any]) -> str:
        found = figures[name]
        return "-" if found is None else " / ".join(f"{found[part]:.3g}" for part in parts)

    return text


_COLUMNS: tuple[Column, ...] = (
    ("compiled", 9, _share("compiled", "schemas")),
    ("refused", 8, _of("refused")),
    ("t.o.", 5, _of("timeouts")),
    ("crash", 6, _of("crashes")),
    ("valid rejected", 15, _share("valid_rejected", "valid_total")),
    ("order", 6, _of("valid_order_only")),
    ("invalid accepted", 17, _share("invalid_accepted", "invalid_total")),
    ("right", 8, _share("fully_right", "fully_right_total")),
    ("compile ms p50/p95/max", 23, _times("compile_ms", "p50", "p95", "max")),
    ("mask us avg/p50/p99/max", 26, _times("mask_us", "avg", "p50", "p99", "max")),
    ("first p50/p99", 14, _times("mask_us_first_visit", "p50", "p99")),
    ("warm", 6, _times("mask_us_warm", "avg")),
)


def table(engines: dict[str, dict[str, Any]]) -> str:
    """Rows of all together and of each split, an engine below the other, then the ratios to llguidance."""
    lines = [f"{'':16} {'':11} " + " ".join(f"{name:>{width}}" for name, width, _ in _COLUMNS)]
    groups = dict.fromkeys(split for figures in engines.values() for split in figures["splits"])
    for group in ("all", "jsonschemabench_splits", *groups):
        for engine, figures in engines.items():
            found = figures if group == "all" else figures.get(group) or figures["splits"].get(group)
            if found is not None:
                cells = " ".join(f"{show(found):>{width}}" for _, width, show in _COLUMNS)
                lines.append(f"{group[:16]:16} {engine:11} {cells}")
    return "\n".join(lines + [_ratios(name, engines) for name in engines if name != _PEER and _PEER in engines])


_PEER = "llguidance"
_RATIOS = (
    ("compile_ms", "p50"), ("compile_ms", "p95"), ("compile_ms", "max"),
    ("mask_us", "avg"), ("mask_us", "p50"), ("mask_us", "p99"), ("mask_us", "max"),
)  # fmt: skip


def _ratios(engine: str, engines: dict[str, dict[str, Any]]) -> str:
    found = ratios(engines[engine], engines[_PEER])
    shown = ", ".join(f"{name.replace('.', ' ')} {ratio:.2f}" for name, ratio in found.items())
    return f"{engine} / {_PEER}: {shown}"


def ratios(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, float]:
    """Each time of an engine by that of another, as "mask_us.avg"; each over the schemas that the engine compiled."""
    return {
        f"{name}.{part}": round(ours[name][part] / theirs[name][part], 3)
        for name, part in _RATIOS
        if ours[name] and theirs[name] and theirs[name][part]
    }
