"""What the processes of one engine say to each other beside the messages of requests.

Over sockets: what a parent's programs ask of the server process, and what comes back. Over pipes, a line of JSON each:
the settings a process starts with, how far it is, and when it is to end.
"""

from __future__ import annotations

import msgspec

from palmette.runtime.config import EngineConfig
from palmette.runtime.messages import Answer, Question, SessionOptions, StepOutput
from palmette.runtime.program import Event, ModelInfo, Node
from palmette.runtime.server_settings import ServerSettings

# -- sockets --------------------------------------------------------------------------------------------------------


class ModelLoaded(msgspec.Struct, frozen=True, tag="model_loaded"):
    """The scheduler has its model."""

    model_info: ModelInfo


class OpenProgram(msgspec.Struct, frozen=True, tag="open"):
    """Open a request tree; the parent numbers its programs."""

    program: int
    options: SessionOptions = SessionOptions()


class ExtendProgram(msgspec.Struct, frozen=True, tag="extend"):
    """Add nodes to a tree. Their ids were checked."""

    program: int
    nodes: tuple[Node, ...]


class AbortProgram(msgspec.Struct, frozen=True, tag="abort_program"):
    """Fail the nodes of a tree that are not done."""

    program: int


class CloseProgram(msgspec.Struct, frozen=True, tag="close"):
    """Abort what runs and forget the tree."""

    program: int


FromParent = OpenProgram | ExtendProgram | AbortProgram | CloseProgram | Question
ToServer = StepOutput | Answer | ModelLoaded | FromParent


class ProgramEvents(msgspec.Struct, frozen=True, tag="events"):
    """News of one program, oldest first."""

    program: int
    events: tuple[Event, ...]


class QuestionFailed(msgspec.Struct, frozen=True, tag="question_failed"):
    """A question that the engine cannot answer any more."""

    id: int
    message: str


FromServer = ProgramEvents | Answer | QuestionFailed

# -- pipes ----------------------------------------------------------------------------------------------------------

DEFAULT_LOADER = "palmette.runtime.loading:load_scheduler"


class ChildSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The first line that a process reads: all that it must know. Never on a command line, which others can read.

    Attributes:
        parent_pid: whose end ends the process.
        folder: the private folder of the sockets.
        engine: its `model` is the path of the folder or file that was found.
        model_name: as it was asked for.
        rank, world_size: of the scheduler: which GPU of how many it runs.
        loader, loader_options: what builds the scheduler, as module:function, and its keyword arguments.
    """

    parent_pid: int = 0
    folder: str = ""
    engine: EngineConfig
    server: ServerSettings
    model_name: str | None = None
    rank: int = 0
    world_size: int = 1
    loader: str = DEFAULT_LOADER
    loader_options: dict[str, float] = {}


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """End.

    Attributes:
        drain_s: of the server: open requests may go on for so long.
        reason: why those that are open fail at once; None lets them go on.
    """

    drain_s: float = 0.0
    reason: str | None = None


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """What a process that is starting does now."""

    text: str


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """A process can do its work; `model_info` and `port` come from the server."""

    model_info: ModelInfo | None = None
    port: int = 0


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """A process cannot start: the error that it met, by the module and name of its class."""

    module: str
    kind: str
    message: str


FromChild = Progress | Ready | Refused
