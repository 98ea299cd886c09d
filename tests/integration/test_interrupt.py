"""Ctrl-C in a program, a batch and an async program: the run ends, and the engine gets its pages back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import asyncio, os, signal, sys, threading, time
import palmette as pt

@pt.function
def endless(s: pt.ProgramState, place: int = 0) -> None:
    while True:
        s += f"{place}" + pt.gen("x", 64, ignore_eos=True, n=2)
        s["x"]

@pt.function
async def awaiting(s: pt.ProgramState) -> None:
    while True:
        s += pt.gen("x", 64, ignore_eos=True)
        await s.get("x")

def interrupt_soon() -> None:
    while engine.stats().running == 0:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)  # which shells switch off for what runs in the background
runs = {
    "run": lambda: endless.run(backend=engine),
    "batch": lambda: endless.run_batch([{"place": place} for place in range(6)], backend=engine, num_threads=3),
    "async": lambda: awaiting.run(backend=engine),
    "read": lambda: endless.stream(backend=engine)["never"],
}
with pt.runtime.launch(sys.argv[1], seed=0, max_total_tokens=4000, processes=False) as engine:
    threading.Thread(target=interrupt_soon, daemon=True).start()
    try:
        runs[sys.argv[2]]()
    except KeyboardInterrupt:
        print("interrupted")
    for _ in range(300):
        engine.flush_cache()
        stats = engine.stats()
        if sys.argv[2] == "read" or (stats.free_pages == stats.total_pages and stats.running == 0):
            print("given back")
            break
        time.sleep(0.02)
    else:
        print(stats)
"""


@pytest.mark.parametrize("how", ["run", "batch", "async", "read"])
def test_ctrl_c_ends_the_run(tiny_model_folder: Path, how: str) -> None:
    """KeyboardInterrupt reaches the caller, and what was running is aborted."""
    command = [sys.executable, "-W", "error", "-c", SCRIPT, str(tiny_model_folder), how]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert answer.stdout.split("\n")[:2] == ["interrupted", "given back"], answer.stdout + answer.stderr
