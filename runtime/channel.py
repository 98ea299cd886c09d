"""What a client with many programs says to a server over HTTP, and how the server answers.

A client opens one channel. What it has to say of all its programs goes there in lists of `ChannelMessage`; the events
of all of them come back on one stream, as lists of `ProgramEvent`. The client numbers its programs itself, so that
opening one, with its first nodes, needs no round trip of its own.
"""

from __future__ import annotations

import msgspec

from .program import Event, Node


class ProgramOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """How a program is treated.

    Attributes:
        priority: requests of a higher priority go first; 0 is the usual one.
        cache_salt: prefixes are shared only among programs with the same salt.
        timeout_s: a request that has not ended so long after it came fails; None uses the server's own limit.
        idle_timeout_s: the program is dropped when nobody has listened to it or extended it for so long; None is the
            server's own limit, which is also the most.
        name: of the program, the same for every run of it: what earlier runs took tells when to begin it, and for how
            long to keep its prefixes. Up to 256 characters.
    """

    priority: int = 0
    cache_salt: str = ""
    timeout_s: float | None = None
    idle_timeout_s: float | None = None
    name: str = "program"


class OpenProgram(msgspec.Struct, frozen=True, kw_only=True, tag="open", omit_defaults=True):
    """Open an empty program of this number."""

    program: int
    options: ProgramOptions = ProgramOptions()


class ExtendProgram(msgspec.Struct, frozen=True, tag="extend"):
    """Add nodes to a program. Where they are refused, each of its generations and selects ends in a `Failed` event."""

    program: int
    nodes: tuple[Node, ...]


class AbortProgram(msgspec.Struct, frozen=True, tag="abort"):
    """End what still runs in a program; it stays open."""

    program: int


class CloseProgram(msgspec.Struct, frozen=True, tag="close"):
    """Abort what still runs in a program and forget it."""

    program: int


ChannelMessage = OpenProgram | ExtendProgram | AbortProgram | CloseProgram


class ProgramEvent(msgspec.Struct, frozen=True, array_like=True):
    """An event of the program of this number."""

    program: int
    event: Event
