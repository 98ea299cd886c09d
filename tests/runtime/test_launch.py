"""`launch`: settings and models that do not fit get an error that says what would."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.tiny_models import random_tensors, tiny_config, tiny_tokenizer_spec, write_tiny_model, write_weights
from tests.wire import complete, run_tree

from palmette.constrained import Grammar
from palmette.constrained.errors import PalmetteError
from palmette.runtime import EngineConfig, launch
from palmette.runtime.config import DType, EngineSettings, ModelImpl
from palmette.runtime.errors import ModelLoadError, RequestError
from palmette.runtime.launch import ServerOptions
from palmette.runtime.models import UnsupportedModelError
from palmette.runtime.program import Failed, Generate, Generated, Text
from palmette.runtime.sampling_params import SamplingParams
from palmette.runtime.server_settings import ServerSettings
from palmette.runtime.tokenizer import Tokenizer
from palmette.runtime.weights import open_checkpoint


def test_launch_takes_every_setting() -> None:
    """The typed keyword arguments of `launch` are the fields of `EngineConfig`."""
    fields = {field.name for field in dataclasses.fields(EngineConfig)}
    assert fields == {"model"} | EngineSettings.__annotations__.keys()


def test_launch_takes_every_setting_of_a_server() -> None:
    """The typed keyword arguments of `launch` are the fields of `ServerSettings` too."""
    assert {field.name for field in dataclasses.fields(ServerSettings)} == ServerOptions.__annotations__.keys()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"policy": "shortest"}, "policy must be one of fcfs, lpm, dfs-weight, least-work, random, not 'shortest'"),
        ({"chunk_size": 0}, "chunk_size must be a whole number of at least 1, not 0"),
        ({"page_size": True}, "page_size must be a whole number"),
        ({"device": "tpu"}, "device='tpu'"),
        ({"attention_backend": "fast"}, "attention_backend must be one of"),
        ({"context_length": 10**6}, "context_length=1000000 is more than"),
        ({"model_impl": "vllm"}, "model_impl must be one of auto, native, transformers, not 'vllm'"),
        ({"generation_config": False}, "generation_config must be one of auto, none, not False"),
        ({"offline": 1}, "offline must be True or False, not 1"),
        ({"radix_cache": "no"}, "radix_cache must be True or False, not 'no'"),
        ({"revision": ""}, "revision must be a string or None, not ''"),
        ({"grammar_backend": "xgramar"}, "llguidance, xgrammar, not 'xgramar'; did you mean 'xgrammar'?"),
        ({"dtype": "int8"}, "dtype must be one of auto, float32, bfloat16, float16, not 'int8'"),
    ],
)
def test_a_setting_out_of_range_is_named(tiny_model_folder: Path, settings: dict[str, Any], message: str) -> None:
    """The error names the setting, its value and what is allowed."""
    with pytest.raises(PalmetteError, match=re.escape(message)):
        launch(str(tiny_model_folder), max_total_tokens=1000, processes=False, **settings)


def test_an_unknown_setting_is_a_type_error(tiny_model_folder: Path) -> None:
    """A misspelt setting fails at the call and is corrected; another one gets the list."""
    with pytest.raises(TypeError, match=r"no setting 'max_total_token'; did you mean 'max_total_tokens'\?"):
        launch(str(tiny_model_folder), max_total_token=5, processes=False)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"no setting 'gpu'; settings are revision, offline, model_impl"):
        launch(str(tiny_model_folder), gpu=1, processes=False)  # type: ignore[call-overload]


@pytest.mark.parametrize("model", [3, b"model", ["a"], True])
def test_a_model_is_a_string_or_path(model: Any) -> None:
    """The message says what may be given."""
    message = re.escape(f"model must be a string, not {model!r}: a folder with config.json")
    with pytest.raises(RequestError, match=message):
        launch(model, processes=False)


@pytest.mark.parametrize(
    "model", ["", "nope", "/no/such/folder", "./nope", "a/b/c", "nope.gguf", "org/nope.gguf", "~no user/m", "a" * 5000]
)
def test_an_unknown_model_says_what_a_model_is(model: str) -> None:
    """A folder, a .gguf file, a Hugging Face id, or nothing."""
    message = re.escape(f"no model {model!r}: there is no such folder or file. A model is a folder with config.json")
    with pytest.raises(ModelLoadError, match=message + ".*gguf.*Hugging Face id.*built-in"):
        launch(model, processes=False)


def test_the_built_in_model_has_no_revision_and_is_not_fetched_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both errors say what would do."""
    monkeypatch.setenv("PALMETTE_CACHE", str(tmp_path))
    with pytest.raises(ModelLoadError, match="revision='v1' goes with a Hugging Face id"):
        launch(revision="v1", processes=False)
    with pytest.raises(ModelLoadError, match="offline=True fetches nothing; `palmette models pull` does"):
        launch(offline=True, processes=False)


def without_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def with_broken_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")


def with_broken_config(folder: Path) -> None:
    (folder / "config.json").write_text("{nothing")


def with_unknown_architecture(folder: Path) -> None:
    config = tiny_config(architectures=["OddForCausalLM"], model_type="odd")
    (folder / "config.json").write_text(json.dumps(config))


def without_config(folder: Path) -> None:
    for name in ("config.json", "tokenizer.json"):
        (folder / name).unlink()


def with_a_gguf_file(folder: Path) -> None:
    without_config(folder)
    (folder / "pear.gguf").touch()


def with_nested_config(folder: Path) -> None:
    (folder / "config.json").write_text("[" * 100_000)


def with_wrong_shapes(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps(tiny_config(intermediate_size=96)))


def with_pickles(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def with_a_vocabulary_of_text(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps(tiny_config(vocab_size="many")))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (without_tokenizer, r"has no tokenizer"),
        (with_broken_tokenizer, r"tokenizer\.json does not describe a tokenizer"),
        (with_broken_config, r"config\.json cannot be read as JSON"),
        (without_config, r"has no config\.json: is it a model folder\?"),
        (with_a_gguf_file, r"has no config\.json: it holds pear\.gguf: give the path of a \.gguf file itself"),
        (with_nested_config, r"config\.json cannot be read as JSON: maximum recursion depth exceeded"),
        (with_unknown_architecture, r"OddForCausalLM.*neither to Palmette nor to transformers"),
        (with_wrong_shapes, r"tensor 'model\.layers.*' has shape \(80, 48\), config\.json asks for \(96, 48\)"),
        (with_pickles, r"pytorch_model\.bin, a pickle"),
        (with_a_vocabulary_of_text, r"vocab_size must be a whole number of at least 1, not 'many'"),
    ],
)
def test_a_damaged_folder_is_named(tmp_path: Path, damage: Callable[[Path], None], message: str) -> None:
    """The error says which file, and what about it."""
    folder = write_tiny_model(tmp_path / "model")
    damage(folder)
    with pytest.raises(ModelLoadError, match=message) as caught:
        launch(folder, max_total_tokens=100, processes=False)
    assert str(folder) in str(caught.value)


def test_a_damaged_gguf_file_is_named(tmp_path: Path) -> None:
    """And one that transformers' code is asked to run."""
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF but no more")
    with pytest.raises(ModelLoadError, match=re.escape(str(path))):
        launch(path, processes=False)
    with pytest.raises(ModelLoadError, match=r"model_impl='transformers' needs a folder of safetensors"):
        open_checkpoint(path, "transformers")


@pytest.mark.parametrize("model_impl", ["native", "transformers"])
def test_a_model_too_large_for_memory_is_named(tmp_path: Path, model_impl: ModelImpl) -> None:
    """A petabyte of embeddings, under either code."""
    folder = write_tiny_model(tmp_path, tiny_config())
    (folder / "config.json").write_text(json.dumps(tiny_config(vocab_size=2**31 - 1, hidden_size=6 * 2**16)))
    with pytest.raises(ModelLoadError, match=rf"^{re.escape(str(folder))}: .*allocate memory"):
        launch(folder, load_format="dummy", device="cpu", max_total_tokens=100, model_impl=model_impl, processes=False)


def test_a_pool_too_large_for_memory_is_named(tmp_path: Path) -> None:
    """With the settings that make it smaller."""
    folder = write_tiny_model(tmp_path, tiny_config(head_dim=2**16))
    with pytest.raises(
        RequestError, match=r"KV pool of 2147483647 tokens, which takes \d+\.\d GiB: .* are free; lower max_total_tok"
    ):
        launch(folder, device="cpu", max_total_tokens=2**31 - 1, processes=False)
    with pytest.raises(RequestError, match="max_running_requests must be a whole number of at most 65536"):
        EngineConfig(max_running_requests=10**9)
    with pytest.raises(RequestError, match="max_total_tokens must be a whole number of at most 2147483647, not 2147"):
        launch(folder, max_total_tokens=2**31, processes=False)


def test_native_code_can_be_asked_for(tmp_path: Path) -> None:
    """Where there is none, transformers' is not taken."""
    folder = write_tiny_model(tmp_path / "model")
    with_unknown_architecture(folder)
    with pytest.raises(UnsupportedModelError, match="OddForCausalLM"):
        launch(folder, model_impl="native", processes=False)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("model_impl", ["native", "transformers"])
def test_every_dtype_runs_on_a_cpu(tiny_model_folder: Path, dtype: DType, model_impl: ModelImpl) -> None:
    """In either code, sampled and greedy, constrained and not."""
    with launch(
        tiny_model_folder, dtype=dtype, model_impl=model_impl, device="cpu", max_total_tokens=500, processes=False
    ) as engine:
        for params in (SamplingParams(temperature=0, max_tokens=6), SamplingParams(seed=1, max_tokens=6)):
            assert len(complete(engine, ["A tree has", "It is"], params)) == 2
        grammar = Grammar.regex("[a-z]{3}")
        params = SamplingParams(max_tokens=6, seed=2)
        done = run_tree(engine, [Text(0, None, "A tree"), Generate(1, 0, params, grammar=grammar)]).done[1]
        assert isinstance(done, Generated)
        assert re.fullmatch("[a-z]{3}", done.completions[0].text)


# -- vocabularies and ends --------------------------------------------------------------------------------------------


def test_logits_wider_than_the_tokenizer_are_never_taken(tmp_path: Path) -> None:
    """Padded rows have no token, even where their logits are by far the largest."""
    config = tiny_config(vocab_size=400)
    folder = write_tiny_model(tmp_path, config)
    tensors = random_tensors(config)
    tensors["lm_head.weight"][360:] *= 100
    write_weights(folder, tensors)
    with launch(folder, max_total_tokens=500, processes=False) as engine:
        size = len(engine.tokenizer.token_bytes)
        assert size < 400
        for params in (
            SamplingParams(temperature=0, max_tokens=20),
            SamplingParams(temperature=5.0, max_tokens=20, ignore_eos=True),
        ):
            done = run_tree(engine, [Text(0, None, "A tree"), Generate(1, 0, params)]).done[1]
            assert isinstance(done, Generated)
            assert max(done.completions[0].token_ids) < size


def test_logits_narrower_than_the_tokenizer_run_without_its_last_tokens(tmp_path: Path) -> None:
    """A prompt with a token that the model does not know is refused; others run, constrained ones too."""
    vocab_size = len(tiny_tokenizer_spec()["model"]["vocab"]) - 24
    folder = write_tiny_model(tmp_path, tiny_config(vocab_size=vocab_size))
    with launch(folder, max_total_tokens=500, processes=False) as engine:
        spelled = [token.decode(errors="replace") for token in engine.tokenizer.token_bytes[vocab_size:] if token]
        unknown = next(text for text in spelled if max(engine.tokenizer.encode_text(text)) >= vocab_size)
        params = SamplingParams(temperature=0, max_tokens=12)
        grammar = Grammar.regex(r"\{\"name\": \"[a-z]{2}\"\}")
        events = run_tree(
            engine,
            [
                Text(0, None, "a"),
                Generate(1, 0, params),
                Text(2, None, "b"),
                Generate(3, 2, params, grammar=grammar),
                Text(4, None, unknown),
                Generate(5, 4, params),
            ],
        ).done
        plain, constrained, refused = events[1], events[3], events[5]
        assert isinstance(plain, Generated)
        assert isinstance(constrained, Generated)
        assert re.fullmatch(r'\{"name": "[a-z]{2}"\}', constrained.completions[0].text)
        assert isinstance(refused, Failed)
        assert f"the model knows tokens 0 to {vocab_size - 1} only" in refused.message


@pytest.mark.parametrize("ends", [7, [2, 7]])
def test_end_tokens_of_every_file_are_known(tmp_path: Path, ends: Any) -> None:
    """Of config.json and its text_config, of generation_config.json, of the tokenizer; one or several."""
    folder = write_tiny_model(tmp_path, tiny_config(eos_token_id=5, text_config={"eos_token_id": [6]}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    assert Tokenizer.load(folder).end_ids == {2, 5, 6, 7}
