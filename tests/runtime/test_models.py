"""Configs as they are found in the wild, and models split over ranks."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.tiny_families import write_family
from tests.tiny_models import LLAMA3_ROPE, tiny_config, tiny_mistral_config, write_tiny_model
from torch import Tensor

from palmette.runtime.attention import AttentionPlan, attention_backend
from palmette.runtime.errors import ModelLoadError
from palmette.runtime.kv_storage import KVStorage
from palmette.runtime.layers.embedding import LMHead, VocabParallelEmbedding
from palmette.runtime.layers.linear import (
    ColumnParallelLinear,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    RowParallelLinear,
)
from palmette.runtime.layers.placement import Placement, Slots
from palmette.runtime.models import ARCHITECTURES, ModelConfig, RopeScaling, UnsupportedModelError, model_factory
from palmette.runtime.weights import load_model


class ThreadRanks:
    """Ranks that are threads of one process: each waits until all have brought their tensor."""

    def __init__(self, world: int) -> None:
        self.world = world
        self._barrier = threading.Barrier(world, timeout=60)
        self._parts: list[Tensor | None] = [None] * world

    def run(self, work: Callable[[Placement], Tensor]) -> list[Tensor]:
        """What `work` returns on each rank."""

        def on(rank: int) -> Tensor:
            with torch.inference_mode():
                return work(Placement(rank, self.world, _RankOf(self, rank)))

        with ThreadPoolExecutor(self.world) as pool:
            return list(pool.map(on, range(self.world)))

    def exchange(self, rank: int, tensor: Tensor) -> list[Tensor]:
        self._parts[rank] = tensor
        self._barrier.wait()
        parts = [part for part in self._parts if part is not None]
        self._barrier.wait()
        return parts


class _RankOf:
    def __init__(self, ranks: ThreadRanks, rank: int) -> None:
        self._ranks, self._rank = ranks, rank

    def all_reduce(self, tensor: Tensor) -> Tensor:
        return torch.stack(self._ranks.exchange(self._rank, tensor)).sum(0)

    def all_gather(self, tensor: Tensor) -> Tensor:
        return torch.cat(self._ranks.exchange(self._rank, tensor), dim=-1)


def config_of(**changes: Any) -> ModelConfig:
    return ModelConfig.from_dict(tiny_config(**changes), source="config.json")


def load_whole(slots: Slots, tensors: dict[str, Tensor]) -> None:
    for name, slot in slots.items():
        assert slot.shape == tuple(tensors[name].shape)
        slot.fill(tensors[name])


# -- configs ----------------------------------------------------------------------------------------------------------


def test_both_spellings_of_rope_theta_and_dtype_are_read() -> None:
    """transformers 4 and 5 write the same model in two ways."""
    old = config_of(rope_theta=5e5, rope_scaling=LLAMA3_ROPE, torch_dtype="bfloat16")
    values = tiny_config(rope_parameters={**LLAMA3_ROPE, "rope_theta": 5e5}, dtype="bfloat16")
    del values["rope_theta"], values["torch_dtype"]
    assert ModelConfig.from_dict(values, source="config.json") == old
    assert old.rope == RopeScaling("llama3", 4.0, 1.0, 4.0, 64)
    assert old.rope_theta == 5e5


def test_mistral_has_a_window_and_null_means_none() -> None:
    """sliding_window may be a number, null or absent."""
    assert ModelConfig.from_dict(tiny_mistral_config(), source="c").sliding_window == 8
    assert ModelConfig.from_dict(tiny_mistral_config(sliding_window=None), source="c").sliding_window is None
    assert config_of().sliding_window is None


def test_head_dim_and_kv_heads_have_defaults() -> None:
    """hidden_size / heads, and as many key heads as query heads."""
    config = config_of(num_key_value_heads=None)
    assert (config.head_dim, config.num_kv_heads) == (8, 6)
    assert config_of(head_dim=32).head_dim == 32


def test_yarn_says_how_long_contexts_are() -> None:
    """max_position_embeddings is left at the length that is stretched, or is already the stretched one."""
    yarn = {"rope_type": "yarn", "factor": 4.0}
    assert config_of(rope_scaling=yarn, max_position_embeddings=128).context_length == 512
    yarn["original_max_position_embeddings"] = 128
    assert config_of(rope_scaling=yarn, max_position_embeddings=160).context_length == 512
    assert config_of(rope_scaling=yarn, max_position_embeddings=600).context_length == 600
    linear = {"rope_type": "linear", "factor": 4.0}
    assert config_of(rope_scaling=linear, max_position_embeddings=128).context_length == 128


@pytest.mark.parametrize("eos", [(2, (2,)), ([2, 7], (2, 7)), (None, ())])
def test_end_tokens_are_one_several_or_none(eos: tuple[Any, tuple[int, ...]]) -> None:
    """eos_token_id is an int, a list or null."""
    assert config_of(eos_token_id=eos[0]).eos_token_ids == eos[1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_scaling": {"rope_type": "longrope"}}, "rope_type='longrope'.*known: default, linear, llama3, yarn"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "factor must be a number above 0, not None"),
        ({"rope_parameters": 3}, "rope_parameters must be an object, not 3"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor must be a number above 0, not None"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"quantization_config": {"quant_method": "gptq"}}, "gptq"),
        ({"num_attention_heads": 5}, "num_attention_heads=5 is not a multiple"),
        ({"num_attention_heads": 6, "hidden_size": 50}, "hidden_size=50"),
        ({"head_dim": 7}, "head_dim=7 must be even"),
        ({"hidden_size": "48"}, "hidden_size must be a whole number"),
        ({"vocab_size": None}, "vocab_size must be a whole number of at least 1, not None"),
        ({"architectures": None}, "architectures must be a list of one name"),
        ({"mlp_bias": 1}, "mlp_bias must be true or false"),
        ({"rms_norm_eps": math.nan}, "rms_norm_eps must be a number above 0, not nan"),
        ({"rope_theta": math.inf}, "rope_theta must be a number above 0, not inf"),
        ({"rope_theta": 10**400}, "rope_theta is too large"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": math.nan}}, "factor must be a number above 0, not nan"),
        ({"vocab_size": 2**31}, "vocab_size must be a whole number of at most 2147483647, not 2147483648"),
        ({"hidden_act": ["silu"]}, r"hidden_act=\['silu'\] is not supported"),
        ({"eos_token_id": "2"}, "eos_token_id must be a token id or a list of them, not '2'"),
        ({"eos_token_id": [2, -1]}, r"eos_token_id must be a token id or a list of them, not \[2, -1\]"),
    ],
)
def test_wrong_fields_are_named(changes: dict[str, Any], message: str) -> None:
    """The error names the file, the field, its value and what is known."""
    with pytest.raises(ModelLoadError, match=rf"^config\.json: .*{message}"):
        config_of(**changes)


def test_unknown_architectures_list_the_known() -> None:
    """A user sees which models would work."""
    message = "'GPT2LMHeadModel' is not supported; known: LlamaForCausalLM, Mistral"
    with pytest.raises(UnsupportedModelError, match=message):
        model_factory("GPT2LMHeadModel")
    with pytest.raises(UnsupportedModelError, match=rf"^config\.json: .*{message}"):
        config_of(architectures=["GPT2LMHeadModel"])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_has_a_factory(architecture: str) -> None:
    """The table of config readers is that of models."""
    assert model_factory(architecture)(config_of(architectures=[architecture]), Placement()).slots()


def test_reading_a_config_does_not_import_torch() -> None:
    """Listing models and reading configs stays quick."""
    code = "import sys, palmette.runtime.models.config; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


# -- shards -----------------------------------------------------------------------------------------------------------


def test_column_shards_join_to_the_whole() -> None:
    """Each rank holds its part of the outputs of every merged layer."""
    tensors = {f"{n}.{k}": torch.randn(*s) for n in "ab" for k, s in (("weight", (8, 6)), ("bias", (8,)))}
    x = torch.randn(3, 6)

    def on_rank(placement: Placement) -> Tensor:
        merged = MergedColumnParallelLinear(6, (8, 8), bias=True, placement=placement)
        load_whole(merged.slots("a", "b"), tensors)
        single = ColumnParallelLinear(6, 8, bias=True, placement=placement)
        load_whole(single.slots("a"), tensors)
        assert torch.equal(single(x), merged(x)[:, : 8 // placement.world])
        return torch.as_tensor(merged(x))

    whole = ThreadRanks(1).run(on_rank)[0]
    left, right = ThreadRanks(2).run(on_rank)
    for layer in range(2):
        parts = [left[:, layer * 4 : layer * 4 + 4], right[:, layer * 4 : layer * 4 + 4]]
        torch.testing.assert_close(torch.cat(parts, 1), whole[:, layer * 8 : layer * 8 + 8])


def test_row_shards_sum_to_the_whole() -> None:
    """Each rank holds its part of the inputs; the bias is added once."""
    tensors = {"o.weight": torch.randn(5, 8), "o.bias": torch.randn(5)}
    x = torch.randn(3, 8)

    def on_rank(placement: Placement) -> Tensor:
        layer = RowParallelLinear(8, 5, bias=True, placement=placement)
        load_whole(layer.slots("o"), tensors)
        part = 8 // placement.world
        return torch.as_tensor(layer(x[:, placement.rank * part :][:, :part]))

    whole = ThreadRanks(1).run(on_rank)[0]
    for out in ThreadRanks(2).run(on_rank):
        torch.testing.assert_close(out, whole)


@pytest.mark.parametrize("vocab_size", [10, 11])
def test_vocabulary_shards_embed_and_score_as_the_whole(vocab_size: int) -> None:
    """Also where the ranks' rows cannot be equal."""
    tensors = {"e.weight": torch.randn(vocab_size, 4)}
    token_ids = torch.arange(vocab_size)

    def on_rank(placement: Placement) -> Tensor:
        embedding = VocabParallelEmbedding(vocab_size, 4, placement=placement)
        load_whole(embedding.slots("e"), tensors)
        head = LMHead(vocab_size, 4, placement=placement, tied_to=embedding)
        return torch.as_tensor(head(embedding(token_ids)))

    whole = tensors["e.weight"] @ tensors["e.weight"].T
    for out in ThreadRanks(3).run(on_rank):
        torch.testing.assert_close(out, whole)


def test_key_heads_repeat_where_there_are_fewer_than_ranks() -> None:
    """Four ranks on two key heads: each head is on two ranks, beside the query heads that use it."""
    tensors = {"q.weight": torch.randn(16, 3), "k.weight": torch.randn(4, 3), "v.weight": torch.randn(4, 3)}
    for rank in range(4):
        layer = QKVParallelLinear(3, 8, 2, 2, placement=Placement(rank, 4))
        load_whole(layer.slots("q", "k", "v"), tensors)
        expected = [tensors["q.weight"][rank * 4 : rank * 4 + 4]]
        expected += [tensors[name][rank // 2 * 2 :][:2] for name in ("k.weight", "v.weight")]
        torch.testing.assert_close(layer.weight.data, torch.cat(expected))


def test_heads_that_cannot_be_split_are_refused() -> None:
    """The error names the size and the number of ranks."""
    with pytest.raises(ModelLoadError, match="num_attention_heads=6 cannot be split over 4 ranks"):
        QKVParallelLinear(3, 6, 2, 2, placement=Placement(0, 4))
    with pytest.raises(ModelLoadError, match="num_key_value_heads=2 cannot be repeated evenly over 3 ranks"):
        QKVParallelLinear(3, 6, 2, 2, placement=Placement(0, 3))


@pytest.mark.parametrize("load_format", ["auto", "dummy"])
@pytest.mark.parametrize("tied", [False, True])
def test_two_ranks_compute_the_logits_of_one(tmp_path: Path, load_format: Any, tied: bool) -> None:
    """A whole model, its weights read or random, split over two ranks."""
    config = tiny_config(tie_word_embeddings=tied, attention_bias=True, mlp_bias=True)
    check_two_ranks(write_tiny_model(tmp_path, config), load_format)


@pytest.mark.parametrize("case", ["qwen2", "qwen3", "gemma2"])
def test_two_ranks_compute_the_logits_of_other_families(tmp_path: Path, case: str) -> None:
    """Biases of some projections only, norms of heads, and caps of gathered logits."""
    check_two_ranks(write_family(tmp_path, case), "auto")


def check_two_ranks(folder: Path, load_format: Any) -> None:
    def on_rank(placement: Placement) -> Tensor:
        model = load_model(folder, placement, load_format=load_format, seed=3)
        attention = attention_backend(None, KVStorage(model.config, placement, num_pages=9, page_size=1))
        line, ends = np.arange(9, dtype=np.int32), np.array([0, 9], dtype=np.int32)
        attention.plan(AttentionPlan(line, ends, ends, line, ends[1:]))
        return model.logits(model.hidden(torch.arange(5, 14), torch.arange(9), attention))

    whole = ThreadRanks(1).run(on_rank)[0]
    assert whole.shape == (9, ModelConfig.from_folder(folder).vocab_size)
    for logits in ThreadRanks(2).run(on_rank):
        torch.testing.assert_close(logits, whole, atol=1e-4, rtol=1e-4)
