"""From settings to a running engine: the model, its tokenizer, and the scheduler between them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from palmette.constrained import MaskTable, Vocabulary, grammar_backend
from palmette.constrained.collector import UNCOLLECTED
from palmette.constrained.compiler import warm_up
from palmette.constrained.limits import DEFAULT_LIMITS

from .batch import Runner
from .config import EngineConfig, Sizes
from .engine import Engine
from .errors import ModelLoadError, RequestError
from .forced_text import ForcedText
from .generation_config import sampling_defaults
from .grammar_cache import GrammarCache
from .grammar_compiler import GrammarCompiler
from .grammar_queue import GrammarQueue
from .grammar_store import GrammarStore
from .model_path import find_model, model_name
from .models import ModelConfig
from .program import ModelInfo
from .scheduler import Scheduler
from .tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """All that a scheduler's process runs."""

    scheduler: Scheduler
    tokenizer: Tokenizer
    model_info: ModelInfo
    overlap: bool


def load_engine(config: EngineConfig) -> Engine:
    """Load the model that `config` names and start an engine on it.

    Raises: as `load_scheduler`.
    """
    loaded = load_scheduler(config)
    return Engine(loaded.scheduler, loaded.tokenizer, loaded.model_info, seed=config.seed, overlap=loaded.overlap)


def load_scheduler(config: EngineConfig) -> LoadedEngine:
    """Load the model that `config` names, and its tokenizer, and build a scheduler on them.

    Raises:
        ModelLoadError: the model or its tokenizer cannot be found or read.
        RequestError: a setting does not fit the model or the device.
        GrammarBackendError: the package of the grammar backend is not installed.
    """
    grammar_backend(config.grammar_backend)  # before anything large is read
    path = find_model(config.model, revision=config.revision, offline=config.offline)
    defaults = sampling_defaults(path) if config.generation_config == "auto" else {}
    with UNCOLLECTED, _beside() as pool:  # collecting would take a tenth of the time of imports
        reading = pool.submit(Tokenizer.load, path)
        from .model_runner import ModelRunner  # loads torch, which a scheduler of another runner does without

        tokenizer = reading.result()
        warming = pool.submit(_warm_grammars, path, tokenizer) if config.grammar_backend == "native" else None
        runner = ModelRunner.load(path, config, valid_vocab=len(tokenizer.token_bytes))
        if warming is not None:
            warming.result()
    scheduler = build_scheduler(runner, tokenizer, config)
    info = ModelInfo(
        name=model_name(config.model, path),
        context_length=context_length(runner, config),
        vocab_size=runner.config.vocab_size,
        chat_template=tokenizer.chat_template,
        bos_token=tokenizer.bos_token,
        eos_token=tokenizer.eos_token,
        special_tokens=tokenizer.special_tokens,
        sampling_defaults=defaults,
    )
    on_gpu = runner.device_type == "cuda"  # a CPU has nobody to overlap with
    return LoadedEngine(scheduler, tokenizer, info, on_gpu if config.overlap is None else config.overlap)


@contextmanager
def _beside() -> Iterator[Executor]:
    """Threads for what can be done while the weights are read; an error in the block does not wait for them."""
    pool = ThreadPoolExecutor(2, thread_name_prefix="palmette-loading")
    try:
        yield pool
    finally:
        pool.shutdown(wait=False)


def _warm_grammars(path: Path, tokenizer: Tokenizer) -> None:
    """Do now what `grammar_queue` would do later: the compiled loops, and the vocabulary that grammars are made for."""
    warm_up()
    if path.is_dir():
        with suppress(ModelLoadError):  # it is for the model's loader to tell
            _ = tokenizer.vocabulary(ModelConfig.from_folder(path).vocab_size).slices


class ModelSizes(Protocol):
    """What a scheduler must know of a model."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def context_length(self) -> int: ...


class SizedRunner(Runner, Protocol):
    """A runner, and what a scheduler is built by."""

    @property
    def config(self) -> ModelSizes: ...

    @property
    def num_pages(self) -> int: ...

    @property
    def page_size(self) -> int: ...

    def sizes(self, settings: EngineConfig) -> Sizes:
        """Those of the device that it is on."""


def build_scheduler(runner: SizedRunner, tokenizer: Tokenizer, config: EngineConfig) -> Scheduler:
    """The scheduler of a loaded model, with grammars over its vocabulary."""
    vocabulary = tokenizer.vocabulary(runner.config.vocab_size)
    return Scheduler(
        runner,
        config=config,
        num_pages=runner.num_pages,
        page_size=runner.page_size,
        context_length=context_length(runner, config),
        sizes=runner.sizes(config),
        vocab_size=min(runner.config.vocab_size, len(tokenizer.token_bytes)),  # more logits than tokens are common
        mask_table=MaskTable(config.mask_rows, vocabulary),
        grammar_queue=grammar_queue(vocabulary, config),
        forced_text=ForcedText(tokenizer),
    )


def grammar_queue(vocabulary: Vocabulary, config: EngineConfig) -> GrammarQueue:
    """A queue whose compiler has its first worker process started."""
    cache = GrammarCache(memory_bytes=config.grammar_cache_bytes)
    if config.grammar_backend != "native":
        backend = grammar_backend(config.grammar_backend)
        return GrammarQueue(partial(backend.compile, vocabulary=vocabulary, limits=DEFAULT_LIMITS), cache=cache)
    store = None
    if config.grammar_cache_dir is not None:
        folder = Path(config.grammar_cache_dir).expanduser()
        store = GrammarStore(folder, alphabet=vocabulary.alphabet, limits=DEFAULT_LIMITS)
    compiler = GrammarCompiler(vocabulary, store=store)
    compiler.warm_up()
    return GrammarQueue(compiler, cache=cache)


def context_length(runner: SizedRunner, config: EngineConfig) -> int:
    """Most tokens of prompt and output: the model's own length unless a shorter one is set.

    Raises:
        RequestError: more is asked for than the model was made for.
    """
    longest = runner.config.context_length
    if config.context_length is not None and config.context_length > longest:
        raise RequestError(f"context_length={config.context_length} is more than the model's own {longest}")
    return config.context_length or longest
