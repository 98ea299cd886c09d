"""Models by Hugging Face id, from a hub on loopback: fetched, found again, and what is said where that fails."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fake_hub import FakeHub, running_hub
from tests.tiny_models import tiny_config, write_tiny_model
from tests.wire import complete

from palmette.runtime import launch
from palmette.runtime.errors import ModelLoadError
from palmette.runtime.hub import fetch, is_hub_id
from palmette.runtime.model_path import find_model
from palmette.runtime.sampling_params import SamplingParams

ID = "orchard/pear"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub with one tiny model among files that nobody needs, and an empty cache."""
    from huggingface_hub import constants

    folder = write_tiny_model(tmp_path / "pear", shards=2)
    (folder / "generation_config.json").write_text('{"temperature": 0.5}')
    for name in ("pytorch_model.bin", "consolidated.safetensors", "README.md", "original/model.safetensors"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"not wanted")
    with running_hub() as hub:
        hub.models[ID] = folder
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        yield hub


@pytest.mark.parametrize(
    ("name", "is_id"),
    [(ID, True), ("a/b-1.5_x", True), ("pear", False), ("a/b/c", False), ("./a", False), ("/a", False), ("~/a", False)],
)
def test_ids_have_an_organisation_and_a_name(name: str, is_id: bool) -> None:
    """Anything else is a path."""
    assert is_hub_id(name) is is_id


def test_only_the_files_that_are_used_are_fetched(hub: FakeHub) -> None:
    """Config, tokenizer and safetensors; no pickle, no other format, nothing from subfolders. The bytes are counted."""
    steps: list[tuple[str, int, int]] = []
    folder = fetch(ID, progress=lambda *step: steps.append(step))
    names = {path.name for path in folder.iterdir()}
    assert names == hub.downloaded
    assert names == {
        "config.json",
        "generation_config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    size = sum((folder / name).stat().st_size for name in names)
    assert steps[-1] == ("downloading", size, size)
    assert [done for _, done, _ in steps] == sorted(done for _, done, _ in steps)


@pytest.mark.parametrize("name", ["tiktoken.model", "qwen.tiktoken", "merges.txt", "chat_template.json"])
def test_every_form_of_a_tokenizer_is_fetched(hub: FakeHub, name: str) -> None:
    """What a folder may hold its tokenizer and chat template in, a repository may too."""
    (hub.models[ID] / name).write_text("{}")
    assert (fetch(ID) / name).is_file()


def test_an_id_is_launched_and_then_launched_offline(hub: FakeHub) -> None:
    """The engine is named as it was asked for; the second time nothing is asked of the hub."""
    params = SamplingParams(temperature=0, max_tokens=4)
    with launch(ID, revision="v1", max_total_tokens=500, processes=False) as engine:
        assert engine.model_info.name == ID
        assert engine.model_info.sampling_defaults == {"temperature": 0.5}
        answer = complete(engine, ["Tree"], params)
    hub.requests.clear()
    with launch(ID, revision="v1", offline=True, max_total_tokens=500, processes=False) as engine:
        assert complete(engine, ["Tree"], params) == answer
    assert hub.requests == []


def test_a_cached_model_is_used_when_the_hub_cannot_be_reached(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the library does it."""
    from huggingface_hub import constants

    folder = fetch(ID)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    assert fetch(ID) == folder


def test_a_folder_wins_over_an_id(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is on this machine is not looked for elsewhere, and has no revision."""
    monkeypatch.chdir(tmp_path)
    folder = write_tiny_model(Path(ID))
    assert find_model(ID) == folder
    assert hub.requests == []
    with pytest.raises(ModelLoadError, match=r"revision='v1' goes with a Hugging Face id, and orchard/pear is on this"):
        find_model(ID, revision="v1")


def test_what_is_not_there_is_said(hub: FakeHub) -> None:
    """A model, and a revision."""
    with pytest.raises(ModelLoadError, match=r"there is no model 'orchard/paer' .* or it is private"):
        fetch("orchard/paer")
    with pytest.raises(ModelLoadError, match=r"'orchard/pear' has no revision 'v9': give a branch"):
        fetch(ID, revision="v9")


def test_a_gated_model_says_how_to_get_access(hub: FakeHub) -> None:
    """A token or a login."""
    hub.gated.add(ID)
    with pytest.raises(ModelLoadError, match=r"'orchard/pear' is gated: .* HF_TOKEN"):
        fetch(ID)


def test_an_error_of_the_hub_is_one_message(hub: FakeHub) -> None:
    """A file that the hub cannot deliver."""
    hub.broken.add("tokenizer.json")
    with pytest.raises(ModelLoadError, match=r"'orchard/pear'.*(cannot be fetched|did not deliver)"):
        fetch(ID)


def test_a_token_that_is_not_accepted_says_so(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the hub answers to one that is out of date."""
    monkeypatch.setattr(FakeHub, "answer", lambda *_: (401, {}, b"{}"))
    with pytest.raises(ModelLoadError, match=r"401 Unauthorized.*is HF_TOKEN.* out of date\?"):
        fetch(ID)


def test_an_answer_that_is_not_a_hubs_is_one_message(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as the page on which a network asks for a login."""
    monkeypatch.setattr(FakeHub, "answer", lambda *_: (200, {}, b"<html>"))
    with pytest.raises(ModelLoadError, match="'orchard/pear' could not be fetched from the Hugging Face hub: "):
        fetch(ID)


def test_a_model_without_safetensors_says_what_to_do(hub: FakeHub) -> None:
    """Pickles are not fetched, and not mentioned as a way."""
    for path in hub.models[ID].glob("model*"):
        path.unlink()
    with pytest.raises(ModelLoadError, match=r"has no safetensors on the Hugging Face hub"):
        fetch(ID)
    assert "pytorch_model.bin" not in hub.downloaded


def test_offline_without_a_cached_copy(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each way to be offline names itself."""
    from huggingface_hub import constants

    with pytest.raises(ModelLoadError, match=r"does not hold all of 'orchard/pear', and with offline=True nothing"):
        fetch(ID, offline=True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelLoadError, match=r"HF_HUB_OFFLINE is set"):
        fetch(ID)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(ModelLoadError, match=r"hub at http://127\.0\.0\.1:1 did not deliver it"):
        fetch(ID)
    assert hub.requests == []


def test_an_interrupted_fetch_is_not_a_model(hub: FakeHub) -> None:
    """A copy that lacks a shard is not used offline, and is completed online."""
    shard = "model-00002-of-00002.safetensors"
    hub.broken.add(shard)
    with pytest.raises(ModelLoadError):
        fetch(ID)
    with pytest.raises(ModelLoadError, match="does not hold all of"):
        fetch(ID, offline=True)
    hub.broken.clear()
    assert (fetch(ID) / shard).is_file()


def test_the_environment_names_the_hub_and_the_cache(hub: FakeHub, tmp_path: Path) -> None:
    """HF_ENDPOINT, HF_HOME and HF_HUB_OFFLINE, through the command line in processes of their own."""
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1"}

    def palmette(*words: str, **extra: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "palmette", "models", *words]
        return subprocess.run(command, env=environment | extra, capture_output=True, text=True, check=False)

    pulled = palmette("pull", ID)
    assert pulled.returncode == 0, pulled.stderr
    folder = Path(pulled.stdout.strip())
    assert folder.is_relative_to(tmp_path / "home")
    assert (folder / "config.json").read_text() == (hub.models[ID] / "config.json").read_text()
    assert tiny_config()["model_type"] in (folder / "config.json").read_text()
    hub.requests.clear()
    assert palmette("pull", ID, HF_HUB_OFFLINE="1").stdout == pulled.stdout
    assert palmette("path", ID).stdout == pulled.stdout
    assert hub.requests == []
