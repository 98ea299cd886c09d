"""Collected schemas and instances, in the shared folder beside the repository; its README says whose they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[3] / "shared" / "data" / "jsonschema"


def read_lines(name: str) -> list[Any]:
    """The JSON values of a .jsonl file of the shared folder."""
    return [json.loads(line) for line in (DATA / name).read_text().split("\n") if line]


def unscored() -> set[tuple[str, int]]:
    """Invalid instances that are so only by `format`, or only by their label: (id, index)."""
    notes = json.loads((DATA / "label_notes.json").read_text())
    return {(schema_id, index) for found in notes.values() for schema_id, index in found}
