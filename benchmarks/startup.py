"""How long it takes from a command line to the first token, and what the time goes into.

    python benchmarks/startup.py [--shape 1b|8b|tiny] [--mode engine processes] [--repeats N] [--tokenizer FOLDER]
        [--device cpu|cuda] [--json OUT]

Each start is a fresh interpreter that launches an engine on random weights (load_format "dummy") with a context of 8192
tokens, and asks it for one token, then for more. `engine` is ``launch(processes=False)``, `processes` is ``launch()``.
Times count from the moment at which the interpreter was asked for; the first start fills caches of compiled kernels and
of files. `--tokenizer` is what ``serving.py --export-tokenizer`` wrote; without it the tokenizer is that of the tests'
tiny model.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.model_shapes import Shape, config_of

GOAL_S = 15.0
_CHILD = Path(__file__).with_name("startup_child.py")


@dataclass(frozen=True)
class Start:
    """One start.

    Attributes:
        first_token_s: from the command to the first token.
        spans: name, begin and seconds of what was done, and its thread.
        packages: large packages that the process imported in all.
    """

    mode: str
    first_token_s: float
    spans: list[tuple[str, float, float, str]]
    packages: list[str]


def main() -> None:
    """Start engines, and print when each did what."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--shape", choices=("8b", "1b", "tiny"), default="1b")
    options.add_argument("--mode", nargs="+", choices=("engine", "processes"), default=["engine", "processes"])
    options.add_argument("--repeats", type=int, default=2)
    options.add_argument("--tokenizer", type=Path)
    options.add_argument("--device", default="auto")
    options.add_argument("--json", type=Path)
    given = options.parse_args()
    starts = []
    with tempfile.TemporaryDirectory() as name:
        folder = write_folder(Path(name), given.shape, given.tokenizer)
        for mode in given.mode:
            for _ in range(given.repeats):
                starts.append(one_start(mode, folder, given.device))
                print(f"{mode:10} first token after {starts[-1].first_token_s:6.2f} s (goal {GOAL_S})", flush=True)
            print_spans(starts[-1])
    if given.json:
        given.json.write_text(json.dumps([asdict(each) for each in starts], indent=2))


def write_folder(folder: Path, shape: Shape, tokenizer: Path | None) -> Path:
    """A model folder without weights."""
    if tokenizer is None:
        from tests.tiny_models import write_tiny_tokenizer

        write_tiny_tokenizer(folder)
    else:
        for file in tokenizer.iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
    (folder / "config.json").write_text(json.dumps(config_of(shape)))
    return folder


def one_start(mode: str, folder: Path, device: str) -> Start:
    """Start an engine in a new interpreter."""
    asked = time.time()
    done = subprocess.run([sys.executable, _CHILD, mode, folder, device], stdout=subprocess.PIPE, check=True, text=True)
    told = json.loads(done.stdout.splitlines()[-1])
    spans = [("interpreter", 0.0, told["began"] - asked, "MainThread")]
    spans += [(name, begin - asked, end - begin, thread) for name, begin, end, thread in told["spans"]]
    first = next(begin + seconds for name, begin, seconds, _ in spans if name.startswith("first token"))
    return Start(mode, first, sorted(spans, key=lambda span: span[1]), told["packages"])


def print_spans(start: Start) -> None:
    """A line for each span, in the order in which they began."""
    print(f"\n{start.mode}: begins at, takes (s)")
    for name, begin, seconds, thread in start.spans:
        where = "" if thread == "MainThread" else "  (beside)"
        print(f"  {begin:7.2f} {seconds:7.2f}  {name}{where}")
    print(f"  imported in this process: {', '.join(start.packages) or 'none of the large packages'}\n", flush=True)


if __name__ == "__main__":
    main()
