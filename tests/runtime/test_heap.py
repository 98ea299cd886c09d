"""What the collector does in the processes of an engine."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import gc
from palmette.runtime.processes.heap import settle_heap
kept = [[] for _ in range(100_000)]
settle_heap()
walked = len(gc.get_objects())
a = []
a.append(a)
del a
print(walked < 10_000, gc.get_freeze_count() > 100_000, gc.isenabled(), gc.collect())
"""


def test_what_is_loaded_is_walked_no_more_and_cycles_are_still_collected() -> None:
    """What was there before is out of the collector's sight; what comes later is collected."""
    answer = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == ["True", "True", "True", "1"]
