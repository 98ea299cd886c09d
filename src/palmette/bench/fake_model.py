"""A model that computes nothing, for measuring what is around models: scheduler, processes, HTTP.

`write_folder` makes a model folder with a tokenizer of single bytes and no weights. An engine runs it with::

    Runtime.start(EngineConfig(model=folder), ServerSettings(), loader=LOADER, loader_options={"step_s": 0.01})

Everything but the model is real: queues, radix tree, pages, grammars, stop strings, text.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from palmette.constrained.token_bytes import byte_marks
from palmette.runtime.batch import UNCONSTRAINED, Int32Array, StepMasks, StepPlan, StepResult, UInt32Array

if TYPE_CHECKING:
    from palmette.runtime.config import EngineConfig, Sizes
    from palmette.runtime.loading import LoadedEngine

LOADER = "palmette.bench.fake_model:load"
"""What `Runtime.start` takes as `loader`."""

SPECIAL_TOKENS = ("<|end|>", "<|im_start|>", "<|im_end|>")
TEXT = "the quick brown fox jumps over the lazy dog. "
"""What every answer repeats."""

CONTEXT_LENGTH = 1 << 16
_PAGE_SIZE = 16
_POOL_TOKENS = 1 << 20
_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_folder(folder: Path) -> Path:
    """Write the files of the model into `folder`, which may exist, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    marks = byte_marks()
    vocab = {token: index for index, token in enumerate([*SPECIAL_TOKENS, *marks])}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    spec = {
        "version": "1.0",
        "added_tokens": [_special(index, token) for index, token in enumerate(SPECIAL_TOKENS)],
        "pre_tokenizer": level,
        "decoder": level,
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    }
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(vocab),
        "max_position_embeddings": CONTEXT_LENGTH,
        "eos_token_id": 0,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(spec))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": SPECIAL_TOKENS[0], "chat_template": _CHAT_TEMPLATE})
    )
    return folder


def load(config: EngineConfig, *, step_s: float = 0.0) -> LoadedEngine:
    """The scheduler of an engine without a model.

    Args:
        step_s: how long a step takes on the device that there is not.
    """
    from palmette.runtime.loading import LoadedEngine, build_scheduler
    from palmette.runtime.program import ModelInfo
    from palmette.runtime.tokenizer import Tokenizer

    folder = Path(config.model or "")
    tokenizer = Tokenizer.load(folder)
    vocab_size = len(tokenizer.token_bytes)
    runner = FakeRunner(
        FakeSizes(config.context_length or CONTEXT_LENGTH, vocab_size),
        text_ids=tokenizer.encode_text(TEXT),
        page_size=config.page_size or _PAGE_SIZE,
        pool_tokens=config.max_total_tokens or _POOL_TOKENS,
        step_s=step_s,
    )
    info = ModelInfo(
        name=folder.name,
        context_length=runner.config.context_length,
        vocab_size=vocab_size,
        chat_template=tokenizer.chat_template,
        bos_token=tokenizer.bos_token,
        eos_token=tokenizer.eos_token,
        special_tokens=tokenizer.special_tokens,
    )
    scheduler = build_scheduler(runner, tokenizer, config)
    return LoadedEngine(scheduler, tokenizer, info, config.overlap is not False)


def _special(token_id: int, content: str) -> dict[str, object]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token_id, "content": content, "special": True, **flags}


@dataclass(frozen=True, slots=True)
class FakeSizes:
    """What a scheduler must know of a model."""

    context_length: int
    vocab_size: int


class FakeRunner:
    """Runs steps of the model: an answer is `TEXT` again and again, or what its mask allows first.

    Attributes:
        config, num_pages, page_size: what a scheduler is built by.
        step_s: how long a step takes.
    """

    def __init__(
        self, config: FakeSizes, *, text_ids: Sequence[int], page_size: int, pool_tokens: int, step_s: float = 0.0
    ) -> None:
        self.config = config
        self.page_size = page_size
        self.num_pages = max(1, pool_tokens // page_size)
        self._text_ids = np.array(text_ids, dtype=np.int32)
        self.step_s = step_s
        self._masks: dict[int, UInt32Array] = {}
        self._free_at = 0.0  # when the device has computed all steps so far

    def sizes(self, settings: EngineConfig) -> Sizes:
        """A CPU's."""
        return settings.sizes_for("cpu")

    def launch(self, plan: StepPlan) -> FakeStep:
        """Begin a step."""
        self._free_at = max(self._free_at, time.monotonic()) + self.step_s if self.step_s else 0.0
        return FakeStep(self, plan, self._free_at)

    def sampled(self, plan: StepPlan, masks: StepMasks | None) -> Int32Array:
        """The tokens of a step's sampled rows."""
        token_ids: Int32Array = self._text_ids[plan.output_positions % len(self._text_ids)]
        if masks is None:
            return token_ids
        if masks.updates is not None:
            self._masks.update(zip(masks.updates[0].tolist(), masks.updates[1].copy(), strict=True))
        for index in np.flatnonzero(masks.rows != UNCONSTRAINED):
            bits = np.unpackbits(self._masks[int(masks.rows[index])].view(np.uint8), bitorder="little")
            if not bits[token_ids[index]]:
                token_ids[index] = int(bits.argmax())
        return token_ids


class FakeStep:
    """A step in flight, done at a time of the monotonic clock."""

    def __init__(self, runner: FakeRunner, plan: StepPlan, done_at: float) -> None:
        self._runner = runner
        self._plan = plan
        self._done_at = done_at
        self._token_ids: Int32Array | None = None

    def sample(self, masks: StepMasks | None = None) -> None:
        """Have its rows sampled."""
        self._token_ids = self._runner.sampled(self._plan, masks)

    def result(self) -> StepResult:
        """Wait until it is done."""
        if self._token_ids is None:
            self.sample()
        if self._done_at and (left := self._done_at - time.monotonic()) > 0:
            time.sleep(left)
        assert self._token_ids is not None
        return _result(self._plan, self._token_ids, self._runner.step_s)


def _result(plan: StepPlan, token_ids: Int32Array, device_s: float) -> StepResult:
    """Every token has the same log-probability."""
    scored, most = len(plan.score_tokens), int(plan.score_top.max(initial=0))
    return StepResult(
        step=plan.step,
        token_ids=token_ids,
        logprobs=np.full(len(token_ids), -1.0, dtype=np.float32),
        top_logprobs=(None,) * len(token_ids),
        score_logprobs=np.full(scored, -1.0, dtype=np.float32),
        score_top=(
            np.tile(np.arange(most, dtype=np.int32), (scored, 1)),
            np.full((scored, most), -1.0, dtype=np.float32),
        ),
        device_s=device_s,
    )
