"""A process that lowers grammars: ``python -m palmette.runtime.grammar_worker``, started by grammar_process.py.

Lowering is pure Python. In a thread of the engine's process it would hold the interpreter's lock against the scheduler;
here it holds up nobody, can be killed in the middle, and its memory is bounded.

It reads jobs from standard input and writes answers to what was standard output, each with its length before it. It
ends when its input does, in the middle of a job too, so it never outlives the process that started it.
"""

from __future__ import annotations

import dataclasses
import os
import queue
import sys
import threading
from typing import IO

import msgspec

from palmette.constrained.compiler import lower_and_simplify
from palmette.constrained.errors import GrammarError, GrammarLimitError
from palmette.constrained.grammar import Grammar
from palmette.constrained.limits import CompileLimits, Deadline

from .stored_rules import bytes_text, pack_rules, text_bytes

MEMORY_BYTES = 2 << 30
"""How much a worker may grow by. More fails the grammar, not the machine."""

_LOWER_PRIORITY = 5  # of the scheduler's thread and the model's: they go on where cores are few
_HEADER_BYTES = 8


class LowerJob(msgspec.Struct, frozen=True, array_like=True):
    """What to lower: the fields of a `Grammar`, by `text_bytes`, over the bytes of `alphabet` ([32], bit sets)."""

    grammar: tuple[bytes, ...]
    alphabet: bytes
    limits: CompileLimits

    @classmethod
    def of(cls, grammar: Grammar, alphabet: int, limits: CompileLimits) -> LowerJob:
        """The job to lower `grammar`."""
        fields = tuple(map(text_bytes, dataclasses.astuple(grammar)))
        return cls(fields, alphabet.to_bytes(32, "little"), limits)


class Lowered(msgspec.Struct, frozen=True, array_like=True):
    """What came of it: the bytes of `PackedRules`; or an error: its class, and its text and pointer by `text_bytes`."""

    data: bytes = b""
    is_plain: bool = False
    error: str = ""
    message: bytes = b""
    pointer: bytes = b""


def write_message(stream: IO[bytes], message: LowerJob | Lowered) -> None:
    """Write a message: its length in 8 bytes, little-endian, and its msgpack."""
    data = msgspec.msgpack.encode(message)
    stream.write(len(data).to_bytes(_HEADER_BYTES, "little"))
    stream.write(data)
    stream.flush()


def read_message(stream: IO[bytes]) -> bytes:
    """The msgpack of the next message.

    Raises:
        EOFError: the stream ends before it does, or what it holds is no message.
    """
    size = int.from_bytes(_read_exactly(stream, _HEADER_BYTES), "little")
    if size > MEMORY_BYTES:
        raise EOFError("what the other process sent is no message")
    return _read_exactly(stream, size)


def _read_exactly(stream: IO[bytes], size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError("the other process ended")
    return data


def answer(job: LowerJob) -> Lowered:
    """Lower a grammar, or say why it cannot be lowered. Raises nothing that a grammar can cause."""
    try:
        grammar = Grammar(*map(bytes_text, job.grammar))  # type: ignore[arg-type]  # the kind is one of its own
        alphabet = int.from_bytes(job.alphabet, "little")
        rules = lower_and_simplify(grammar, alphabet, job.limits, Deadline(job.limits))
        packed = pack_rules(rules)
    except GrammarError as error:
        return Lowered(error=type(error).__name__, message=text_bytes(str(error)), pointer=text_bytes(error.pointer))
    except MemoryError:
        what = f"the grammar takes more than {MEMORY_BYTES >> 20} MiB to compile; simplify it"
        return Lowered(error=GrammarLimitError.__name__, message=text_bytes(what))
    except RecursionError:
        return Lowered(error=GrammarLimitError.__name__, message=b"the grammar is nested too deeply; simplify it")
    except Exception as error:
        what = f"the grammar could not be compiled: {type(error).__name__}: {error}"
        return Lowered(error=GrammarError.__name__, message=text_bytes(what))
    return Lowered(packed.data, packed.is_plain)


def main() -> None:
    """Answer jobs until the input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not get between the answers
    _be_modest()
    jobs: queue.SimpleQueue[LowerJob] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(jobs,), daemon=True).start()
    try:
        while True:
            write_message(answers, answer(jobs.get()))
    except OSError:
        os._exit(0)  # nobody reads them any more


def _receive(jobs: queue.SimpleQueue[LowerJob]) -> None:
    """Take jobs in; end the process, whatever it does, when no more can come."""
    try:
        while True:
            jobs.put(msgspec.msgpack.decode(read_message(sys.stdin.buffer), type=LowerJob))
    except (EOFError, OSError):
        os._exit(0)


def _be_modest() -> None:
    """Give way to the engine, and take a bounded amount of memory, where the system can do it."""
    try:
        import resource

        os.nice(_LOWER_PRIORITY)
        with open("/proc/self/statm") as statm:
            used = int(statm.read().split()[0]) * resource.getpagesize()
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, most))
    except (ImportError, OSError, ValueError):
        return  # no such limits on this system


if __name__ == "__main__":
    main()
