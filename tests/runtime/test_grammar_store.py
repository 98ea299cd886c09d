"""Programs of grammars on disk."""

from __future__ import annotations

import logging
import os
import threading
import time
from pathlib import Path

import pytest

from palmette.constrained import CompileLimits, Grammar
from palmette.runtime.grammar_store import GrammarStore

LIMITS = CompileLimits()
ALL_BYTES = (1 << 256) - 1


def store_in(folder: Path, *, alphabet: int = ALL_BYTES, most_bytes: int = 1 << 20) -> GrammarStore:
    return GrammarStore(folder, alphabet=alphabet, limits=LIMITS, most_bytes=most_bytes)


def test_what_was_put_is_found_by_the_next_store(tmp_path: Path) -> None:
    """Grammars are known by their whole value; the folder is made, for this user alone."""
    folder = tmp_path / "a" / "b"
    assert store_in(folder).get(Grammar.regex("x")) is None
    store_in(folder).put(Grammar.regex("x"), b"program of x")
    assert store_in(folder).get(Grammar.regex("x")) == b"program of x"
    assert store_in(folder).get(Grammar.regex("y")) is None
    assert folder.stat().st_mode & 0o077 == 0


def test_programs_for_another_alphabet_or_limits_are_not_found(tmp_path: Path) -> None:
    """What was made under other conditions is another thing."""
    store_in(tmp_path).put(Grammar.regex("x"), b"program")
    assert store_in(tmp_path, alphabet=255).get(Grammar.regex("x")) is None
    other = GrammarStore(tmp_path, alphabet=ALL_BYTES, limits=CompileLimits(seconds=1.0))
    assert other.get(Grammar.regex("x")) is None


def test_programs_of_other_code_are_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that another version made are made anew."""
    store_in(tmp_path).put(Grammar.regex("x"), b"program")
    monkeypatch.setattr("palmette.runtime.grammar_store.code_digest", lambda: "another")
    assert store_in(tmp_path).get(Grammar.regex("x")) is None


@pytest.mark.parametrize("damage", ["cut", "changed", "empty", "foreign"])
def test_a_damaged_file_is_ignored_and_written_anew(tmp_path: Path, damage: str) -> None:
    """Every byte counts, and a file under another grammar's name does too."""
    store = store_in(tmp_path)
    store.put(Grammar.regex("x"), b"program of x")
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    if damage == "foreign":
        store.put(Grammar.regex("y"), b"program of y")
        (other,) = set(tmp_path.iterdir()) - {path}
        content = other.read_bytes()
    changed = content[:-1] + bytes([content[-1] ^ 1])
    path.write_bytes({"cut": content[:-3], "changed": changed, "empty": b"", "foreign": content}[damage])
    assert store.get(Grammar.regex("x")) is None
    store.put(Grammar.regex("x"), b"program of x")
    assert store.get(Grammar.regex("x")) == b"program of x"


def test_the_folder_is_bounded(tmp_path: Path) -> None:
    """What was read longest ago goes first; a grammar larger than the folder may be is not kept at all."""
    store = store_in(tmp_path, most_bytes=3500)
    for index, name in enumerate("abc"):
        store.put(Grammar.regex(name), bytes(1000))
        os.utime(store._path(store._key(Grammar.regex(name))), (index, index))
    assert store.get(Grammar.regex("a")) is not None
    store.put(Grammar.regex("d"), bytes(1000))
    assert [store.get(Grammar.regex(name)) is not None for name in "abcd"] == [True, False, True, True]
    store.put(Grammar.regex("e"), bytes(4000))
    assert store.get(Grammar.regex("e")) is None
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 3500


def test_what_a_dead_process_left_half_written_is_removed(tmp_path: Path) -> None:
    """Old partial files go; one that another process may be writing now stays, as do files of others."""
    store = store_in(tmp_path)
    (tmp_path / ".partial-old").write_bytes(b"half")
    (tmp_path / ".partial-new").write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("mine")
    long_ago = time.time() - 1e5
    os.utime(tmp_path / ".partial-old", (long_ago, long_ago))
    store.put(Grammar.regex("x"), b"program")
    names = {path.name for path in tmp_path.iterdir()}
    assert ".partial-old" not in names
    assert {".partial-new", "notes.txt"} <= names


def test_a_folder_that_cannot_be_used_fails_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is stored, which is logged once."""
    (tmp_path / "file").write_text("not a folder")
    store = store_in(tmp_path / "file")
    with caplog.at_level(logging.WARNING):
        for name in "xyz":
            store.put(Grammar.regex(name), b"program")
            assert store.get(Grammar.regex(name)) is None
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_many_writers_share_a_folder(tmp_path: Path) -> None:
    """A file is there whole or not at all, whoever writes and removes beside."""
    stores = [store_in(tmp_path, most_bytes=20_000) for _ in range(4)]
    wrong: list[bytes] = []

    def work(store: GrammarStore) -> None:
        for round_ in range(60):
            grammar = Grammar.regex(str(round_ % 7))
            store.put(grammar, grammar.source.encode() * 4000)
            found = store.get(grammar)
            if found is not None and found != grammar.source.encode() * 4000:
                wrong.append(found)

    threads = [threading.Thread(target=work, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".partial")]
