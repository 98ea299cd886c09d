"""Nothing in a step's launch or sampling makes the host wait for the device, which here is torch's `meta`.

A tensor of `meta` has no numbers: asking for one is an error, as is an operation whose result's shape depends on them.
What else makes a host wait for a GPU, numbers that come to it by another way than the staging, is watched for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.fakes import make_score
from tests.sampling import ints, setup
from tests.step_plans import PlannedRow, StepPlanner
from tests.tiny_models import tiny_config
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from palmette.runtime import kernel_chooser
from palmette.runtime.batch import FROM_SLOT, Int32Array, StepMasks, StepPlan
from palmette.runtime.host_copies import HostCopies, HostCopy
from palmette.runtime.kv_storage import KVStorage
from palmette.runtime.layers.attention import RadixAttention
from palmette.runtime.layers.placement import Placement
from palmette.runtime.layers.rotary import Angles
from palmette.runtime.model_runner import ModelRunner
from palmette.runtime.models import ModelConfig, model_factory
from palmette.runtime.pinned_staging import PinnedStaging, staged_words
from palmette.runtime.sampler import Sampler
from palmette.runtime.sampling_params import SamplingParams
from palmette.runtime.step_builder import Row, build_plan

META = torch.device("meta")
SLOTS = 8
PARAMS = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.8, top_k=20, top_p=0.9, min_p=0.05, seed=1),
    SamplingParams(temperature=1.0, seed=2, logprobs=3, logit_bias={5: 1.5}, min_tokens=4),
    SamplingParams(temperature=0.0, repetition_penalty=1.2, frequency_penalty=0.5, logprobs=0),
)


class WaitingError(AssertionError):
    """The host would wait here."""


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it unannotated
    """Refuses operations that bring numbers of the host to the device or back, or that must know the device's."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = {leaf.device.type for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        writes = func.overloadpacket in (torch.ops.aten.index_put_, torch.ops.aten._index_put_impl_)
        if writes and any(index is not None and index.dtype == torch.bool for index in args[1]):
            raise WaitingError(f"{func} counts what is true in an index")
        out = func(*args, **(kwargs or {}))
        made = {leaf.device.type for leaf in tree_leaves(out) if isinstance(leaf, Tensor)}
        if len(given | made) > 1:
            raise WaitingError(f"{func} is given tensors of {given}, and gives one of {made}")
        return out


class NoAttention:
    """An attention backend that plans nothing and gives queries for answers."""

    def plan(self, batch: object) -> None:
        """Nothing to prepare."""

    def run(self, qkv: Tensor, layer: RadixAttention, angles: Angles | None = None) -> Tensor:
        return qkv[:, : layer.num_heads].contiguous()

    def decode_graph(self, rows: int, context_length: int) -> None:
        """Steps are not recorded."""


def _upload(_: PinnedStaging, arrays: Sequence[Int32Array], out: Tensor | None = None) -> list[Tensor]:
    """`PinnedStaging.upload`, without numbers."""
    assert all(array.dtype == np.int32 for array in arrays)
    memory = torch.empty(staged_words([len(array) for array in arrays]), dtype=torch.int32, device=META)
    sizes = [staged_words([len(array)]) for array in arrays]
    return [part[: len(array)] for part, array in zip(torch.split(memory, sizes), arrays, strict=True)]


def _begin(copies: HostCopies, words: Tensor) -> HostCopy:
    """`HostCopies.begin`, without numbers."""
    return HostCopy(words, None, [])


@pytest.fixture(params=["torch", "kernels"])
def runner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModelRunner:
    """Whose tokens torch chooses, or kernels that are left out."""
    monkeypatch.setattr(PinnedStaging, "upload", _upload)
    monkeypatch.setattr(HostCopies, "begin", _begin)
    monkeypatch.setattr(kernel_chooser, "choose_tokens", lambda *arguments, **options: None)
    config = ModelConfig.from_dict(tiny_config(), source="test")
    placement = Placement(dtype=torch.bfloat16, device=META)
    storage = KVStorage(config, placement, num_pages=64, page_size=16)
    sampler = Sampler(config.vocab_size, SLOTS, 4, META, kernels=request.param == "kernels")
    model = model_factory(config.architecture)(config, placement)
    return ModelRunner(model, storage, sampler, attention=NoAttention())


def choices_plan(prompt_logprobs: int = 0) -> StepPlan:
    """A step of a tree of choices, more rows than there are slots, some of one token."""
    tails = [[3 + i, 4, 5, 6][: 1 + i % 4] for i in range(12)]
    request = make_score("s", [list(range(3, 40)) + tail for tail in tails], 37, page_size=1)
    request.slot = 3
    request.page_table.pages.extend(np.arange(request.pages_for(request.end, 1), dtype=np.int32))
    request.params = SamplingParams(prompt_logprobs=prompt_logprobs)
    plan = build_plan(1, [Row(request, request.end)], 1)
    assert len(plan.seq_lens) > SLOTS
    return plan


def decodes_plan() -> StepPlan:
    """Prompts, decodes and forced tokens of requests with all kinds of options, one of them scored."""
    planner = StepPlanner(64, 16)
    requests = [planner.request([3, 4, 5], most_tokens=32) for _ in PARAMS]
    rows = [PlannedRow(each, [FROM_SLOT]) for each in requests[:2]]
    rows.append(PlannedRow(requests[2], [6, 7, 8], score=[(0, 7), (1, 8)], top=2))
    rows.append(PlannedRow(requests[3], [9, 10]))
    setups = [
        setup(slot, params, prompt=[3, 4, 5], output=[6] if slot == 3 else [], ends=[1])
        for slot, params in enumerate(PARAMS)
    ]
    return replace(planner.plan(rows), setups=tuple(setups))


@pytest.mark.parametrize("likeliest", [0, 3])
def test_choices_are_scored_without_waiting(runner: ModelRunner, likeliest: int) -> None:
    """Their logits, the sums of those and the likeliest beside them; no row is sampled."""
    plan = choices_plan(likeliest)
    assert int(plan.score_top.max()) == likeliest
    with Watch():
        runner.launch(plan).sample()


def test_tokens_are_sampled_without_waiting(runner: ModelRunner) -> None:
    """Slots are loaded, penalties counted, masks written, scores shaped and log-probabilities told."""
    words = -(-runner.config.vocab_size // 32)
    masks = StepMasks(ints([0, 1, -1, 0]), (ints([0, 1]), np.ones((2, words), dtype=np.uint32)))
    with Watch():
        runner.launch(decodes_plan()).sample(masks)


@pytest.mark.parametrize(
    "wait",
    [
        lambda x: x.sum().item(),
        lambda x: x[x > 0],
        lambda x: x.__setitem__(x > 0, x[:2]),
        lambda x: x[torch.tensor([0])],
        lambda x: x.to("cpu"),
        lambda x: torch.tensor([1.0]).to(x.device),
        lambda x: x.repeat_interleave(x.int()),
    ],
)
def test_what_waits_is_noticed(wait: Callable[[Tensor], object]) -> None:
    """Numbers that the host asks for, indices of the host, shapes that depend on numbers, and copies."""
    with pytest.raises((WaitingError, RuntimeError)), Watch():
        wait(torch.empty(4, device=META))
