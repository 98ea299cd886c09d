"""A process that makes programs of grammars: ``python -m palmette.runtime.grammar_worker``, of grammar_process.py.

That is pure Python. In a thread of the engine's process it would hold the interpreter's lock against the scheduler;
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

from palmette.constrained.compiler import make_program
from palmette.constrained.errors import GrammarError, GrammarLimitError
from palmette.constrained.grammar import Grammar
from palmette.constrained.limits import CompileLimits, Deadline

from .stored_programs import bytes_text, pack_program, text_bytes

MEMORY_BYTES = 2 << 30
"""How much a worker may grow by. More fails the grammar, not the machine."""

_LOWER_PRIORITY = 5  # of the scheduler's thread and the model's: they go on where cores are few
_HEADER_BYTES = 8


class ProgramJob(msgspec.Struct, frozen=True, array_like=True):
    """What to make a program of: the fields of a `Grammar`, by `text_bytes`, over the bytes of `alphabet` ([32], bits).

    `simple` is that of `make_program`.
    """

    grammar: tuple[bytes, ...]
    alphabet: bytes
    limits: CompileLimits
    simple: bool = False

    @classmethod
    def of(cls, grammar: Grammar, alphabet: int, limits: CompileLimits, *, simple: bool = False) -> ProgramJob:
        """The job for `grammar`."""
        fields = tuple(map(text_bytes, dataclasses.astuple(grammar)))
        return cls(fields, alphabet.to_bytes(32, "little"), limits, simple)


class ProgramAnswer(msgspec.Struct, frozen=True, array_like=True):
    """What came of it: the bytes of `PackedProgram`; or an error: its class, its text and pointer by `text_bytes`."""

    data: bytes = b""
    is_plain: bool = False
    error: str = ""
    message: bytes = b""
    pointer: bytes = b""


def write_message(stream: IO[bytes], message: ProgramJob | ProgramAnswer) -> None:
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


def answer(job: ProgramJob) -> ProgramAnswer:
    """Make the program of a grammar, or say why there is none. Raises nothing that a grammar can cause."""
    try:
        grammar = Grammar(*map(bytes_text, job.grammar))  # type: ignore[arg-type]  # the kind is one of its own
        alphabet = int.from_bytes(job.alphabet, "little")
        packed = pack_program(make_program(grammar, alphabet, job.limits, Deadline(job.limits), simple=job.simple))
    except GrammarError as error:
        return ProgramAnswer(
            error=type(error).__name__, message=text_bytes(str(error)), pointer=text_bytes(error.pointer)
        )
    except MemoryError:
        what = f"the grammar takes more than {MEMORY_BYTES >> 20} MiB to compile; simplify it"
        return ProgramAnswer(error=GrammarLimitError.__name__, message=text_bytes(what))
    except RecursionError:
        return ProgramAnswer(error=GrammarLimitError.__name__, message=b"the grammar is nested too deeply; simplify it")
    except Exception as error:
        what = f"the grammar could not be compiled: {type(error).__name__}: {error}"
        return ProgramAnswer(error=GrammarError.__name__, message=text_bytes(what))
    return ProgramAnswer(packed.data, packed.is_plain)


def main() -> None:
    """Answer jobs until the input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not get between the answers
    _be_modest()
    jobs: queue.SimpleQueue[ProgramJob] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(jobs,), daemon=True).start()
    try:
        while True:
            write_message(answers, answer(jobs.get()))
    except OSError:
        os._exit(0)  # nobody reads them any more


def _receive(jobs: queue.SimpleQueue[ProgramJob]) -> None:
    """Take jobs in; end the process, whatever it does, when no more can come."""
    try:
        while True:
            jobs.put(msgspec.msgpack.decode(read_message(sys.stdin.buffer), type=ProgramJob))
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
