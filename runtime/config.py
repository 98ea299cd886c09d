"""Settings of an engine: one frozen value, checked when it is built."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Literal, TypedDict, get_args

from palmette.constrained.backends.names import GrammarBackendName

from .errors import RequestError

Policy = Literal["fcfs", "lpm", "dfs-weight", "least-work", "random"]
DType = Literal["auto", "float32", "bfloat16", "float16"]
LoadFormat = Literal["auto", "dummy"]
ModelImpl = Literal["auto", "native", "transformers"]
GenerationConfig = Literal["auto", "none"]

MODELS = (
    "a folder with config.json, safetensors and a tokenizer; a .gguf file; a Hugging Face id such as "
    "'HuggingFaceTB/SmolLM2-135M-Instruct'; or nothing, for the built-in model"
)
"""What may be given as a model."""

MOST_SECONDS = 1e6
"""The longest time that may be set, some eleven days: a longer one is as good as none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes of an engine on one kind of device; see `EngineConfig`."""

    page_size: int
    max_running_requests: int
    chunk_size: int
    mem_fraction: float


_SIZES = {
    "cpu": Sizes(page_size=1, max_running_requests=256, chunk_size=2048, mem_fraction=0.25),
    "cuda": Sizes(page_size=16, max_running_requests=1024, chunk_size=8192, mem_fraction=0.85),
}
_SMALL_GPU = Sizes(page_size=16, max_running_requests=256, chunk_size=2048, mem_fraction=0.85)
_SMALL_GPU_BYTES = 40 << 30
"""A GPU of less is small: 1024 requests in steps of 8192 tokens may need 4 to 5.5 GiB beside weights and KV pool;
256 in steps of 2048, half."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """How an engine runs a model.

    Attributes:
        model: a folder, a .gguf file, a Hugging Face id, or None for the built-in default model. A folder wins over an
            id of the same name.
        revision: of a Hugging Face id: a branch, tag or commit; None is the main branch.
        offline: fetch nothing: a Hugging Face id or the built-in model must be in the cache.
        model_impl: whose code runs the model: "native" is Palmette's, "transformers" that of transformers with
            Palmette's attention; "auto" takes the native one where there is one.
        generation_config: "auto" lets the sampling values of the model's generation_config.json stand where a program
            says nothing; "none" leaves them aside.
        load_format: "dummy" fills the shapes of config.json with random weights.
        dtype: of weights and KV cache; "auto" is float32 on a CPU and the model's own elsewhere.
        device: "cpu", "cuda", "cuda:1"; None picks a GPU where there is one.
        context_length: most tokens of prompt and output; None is the model's own.
        max_total_tokens: size of the KV pool in tokens; None sizes it from memory_bytes.
        memory_bytes: memory for the KV pool where max_total_tokens is None; None sizes it from mem_fraction.
        mem_fraction: on a GPU, the part of its whole memory that may be taken: by weights, the largest step and the KV
            pool, and by whoever else was there before, other engines and processes as well; on a CPU, the part of its
            free memory that the pool may take. None is 0.85 and 0.25.
        page_size: tokens a page; None is 16 on a GPU and 1 on a CPU.
        max_running_requests: most requests in the running batch; None is 1024 on a GPU, 256 on one of less
            than 40 GiB and on a CPU.
        chunk_size: most tokens computed in one step: longer prompts are computed in chunks. None is 8192 on a GPU,
            2048 on one of less than 40 GiB and on a CPU.
        policy: order of the waiting queue: "fcfs" first come, first served; "lpm" longest cached prefix first;
            "dfs-weight" through the radix cache, subtrees that most wait for first; "least-work" programs first that
            have least left to compute; "random".
        max_wait_s: seconds for which later requests may begin before a waiting one, counted from the first that does.
            0 keeps the order of arrival. More is worth it where long queues of programs share prefixes and only the
            time of all of them matters.
        max_queued_requests: most requests that wait for room or for their grammar; another is refused with
            QueueFullError. A fork or a generation with `n` is as many requests as it has branches or answers.
        request_timeout_s: seconds after which a request that has not ended fails with RequestTimeoutError; None is no
            limit. A program or a client may ask for less, or for more.
        radix_cache: keep finished prefixes for later requests.
        keep_prefixes: keep those that open programs will go on from, as long as they are worth their room, before any
            other; False keeps what was used last.
        jump_forward: append text that a grammar forces without sampling it.
        overlap: launch each step before the one before it is processed; None does where a GPU computes.
        seed: of random weights and of requests that name no seed.
        attention_backend: "flashinfer", with the extra `palmette[gpu]` on an NVIDIA GPU; "triton", Palmette's own
            kernels for GPUs; "cpu", for float32 on a CPU; "torch_native", anywhere and slowly. None picks the quickest
            of those that can be used.
        cuda_graphs: on a GPU, record small steps when their size first occurs, and replay them without the host's part.
        mask_rows: rows of the grammar mask table.
        grammar_backend: what compiles grammars: "native"; or "llguidance", "xgrammar" or "outlines", whose packages are
            the extra `palmette[grammars]`, and which cannot promise that an answer is complete within max_tokens.
        grammar_cache_bytes: memory for compiled grammars that no request uses now.
        grammar_cache_dir: a folder where lowered grammars are kept for later engines, of up to 256 MiB; None, the
            default, keeps none: most grammars compile in milliseconds.
    """

    model: str | None = None
    revision: str | None = None
    offline: bool = False
    model_impl: ModelImpl = "auto"
    generation_config: GenerationConfig = "auto"
    load_format: LoadFormat = "auto"
    dtype: DType = "auto"
    device: str | None = None
    context_length: int | None = None
    max_total_tokens: int | None = None
    memory_bytes: int | None = None
    mem_fraction: float | None = None
    page_size: int | None = None
    max_running_requests: int | None = None
    chunk_size: int | None = None
    policy: Policy = "least-work"
    max_wait_s: float = 2.0
    max_queued_requests: int = 16384
    request_timeout_s: float | None = None
    radix_cache: bool = True
    keep_prefixes: bool = True
    jump_forward: bool = True
    overlap: bool | None = None
    seed: int | None = None
    attention_backend: str | None = None
    cuda_graphs: bool = True
    mask_rows: int = 4096
    grammar_backend: GrammarBackendName = "native"
    grammar_cache_bytes: int = 512 << 20
    grammar_cache_dir: str | None = None

    def __post_init__(self) -> None:
        if self.model is not None and not isinstance(self.model, str):
            raise RequestError(f"model must be a string, not {self.model!r}: {MODELS}")
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                near = difflib.get_close_matches(str(getattr(self, name)), allowed, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise RequestError(f"{name} must be one of {', '.join(allowed)}, not {getattr(self, name)!r}{hint}")
        for name in _POSITIVE:
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise RequestError(f"{name} must be a whole number of at least 1, not {value!r}")
            most = _MOST.get(name, _LARGEST)
            if value is not None and value > most and name not in _IN_BYTES:
                raise RequestError(f"{name} must be a whole number of at most {most}, not {value!r}")
        if self.mem_fraction is not None and (
            isinstance(self.mem_fraction, bool)
            or not isinstance(self.mem_fraction, int | float)
            or not 0 < self.mem_fraction <= 1
        ):
            raise RequestError(f"mem_fraction must be a number above 0 and at most 1, not {self.mem_fraction!r}")
        for name, least in _SECONDS.items():
            _check_seconds(name, getattr(self, name), least)
        for name in _SWITCHES:
            if not isinstance(getattr(self, name), bool):
                raise RequestError(f"{name} must be True or False, not {getattr(self, name)!r}")
        if self.overlap is not None and not isinstance(self.overlap, bool):
            raise RequestError(f"overlap must be True, False or None, not {self.overlap!r}")
        for name in ("revision", "device", "attention_backend", "grammar_cache_dir"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise RequestError(f"{name} must be a string or None, not {value!r}")

    def sizes_for(self, device_type: str, device_bytes: int | None = None) -> Sizes:
        """The sizes that depend on the device: what was set, or the default of "cuda" or "cpu".

        Args:
            device_bytes: a GPU's whole memory; None is enough.
        """
        usual = _SIZES[device_type]
        if device_type == "cuda" and device_bytes is not None and device_bytes < _SMALL_GPU_BYTES:
            usual = _SMALL_GPU
        return Sizes(
            page_size=self.page_size or usual.page_size,
            max_running_requests=self.max_running_requests or usual.max_running_requests,
            chunk_size=self.chunk_size or usual.chunk_size,
            mem_fraction=self.mem_fraction or usual.mem_fraction,
        )


def _check_seconds(name: str, value: object, least: float) -> None:
    """Refuse what is no finite number of seconds, too few or too many. None is allowed where it is the default."""
    optional = name == "request_timeout_s"
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= MOST_SECONDS:
        raise RequestError(
            f"{name} must be a number of seconds from {least:g} to {MOST_SECONDS:g}{', or None' if optional else ''},"
            f" not {value!r}"
        )


class EngineSettings(TypedDict, total=False):
    """The fields of `EngineConfig` but for `model`, as keyword arguments of `launch`."""

    revision: str | None
    offline: bool
    model_impl: ModelImpl
    generation_config: GenerationConfig
    load_format: LoadFormat
    dtype: DType
    device: str | None
    context_length: int | None
    max_total_tokens: int | None
    memory_bytes: int | None
    mem_fraction: float | None
    page_size: int | None
    max_running_requests: int | None
    chunk_size: int | None
    policy: Policy
    max_wait_s: float
    max_queued_requests: int
    request_timeout_s: float | None
    radix_cache: bool
    keep_prefixes: bool
    jump_forward: bool
    overlap: bool | None
    seed: int | None
    attention_backend: str | None
    cuda_graphs: bool
    mask_rows: int
    grammar_backend: GrammarBackendName
    grammar_cache_bytes: int
    grammar_cache_dir: str | None


_CHOICES = {
    "policy": get_args(Policy),
    "dtype": get_args(DType),
    "load_format": get_args(LoadFormat),
    "model_impl": get_args(ModelImpl),
    "generation_config": get_args(GenerationConfig),
    "grammar_backend": get_args(GrammarBackendName),
}
_SWITCHES = ("offline", "radix_cache", "keep_prefixes", "jump_forward", "cuda_graphs")
_SECONDS = {"max_wait_s": 0.0, "request_timeout_s": 0.001}
_LARGEST = 2**31 - 1  # tokens and pages are counted in 32 bits
_IN_BYTES = ("memory_bytes", "grammar_cache_bytes")
_MOST = {"max_running_requests": 1 << 16, "mask_rows": 1 << 20}  # each takes memory when an engine starts
_POSITIVE = (
    "context_length",
    "max_total_tokens",
    "memory_bytes",
    "page_size",
    "max_running_requests",
    "max_queued_requests",
    "chunk_size",
    "mask_rows",
    "grammar_cache_bytes",
)
