"""Settings from flags, the environment and a file, and where each came from."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palmette.runtime.config import EngineConfig
from palmette.runtime.errors import RequestError
from palmette.runtime.server_settings import ServerSettings
from palmette.runtime.setting_table import GROUPS, Value, settings, size
from palmette.runtime.settings_file import EffectiveSettings, effective_settings


def settings_file(folder: Path, text: str) -> Path:
    path = folder / "palmette.toml"
    path.write_text(text, encoding="utf-8")
    path.chmod(0o600)
    return path


def from_file(folder: Path, text: str) -> EffectiveSettings:
    return effective_settings({}, {}, settings_file(folder, text))


def test_every_field_is_a_setting() -> None:
    """Every field of both dataclasses is in the table, under a heading and with a line of its own."""
    fields = {field.name for kind in (EngineConfig, ServerSettings) for field in dataclasses.fields(kind)}
    assert fields <= settings().keys()
    assert {setting.group for setting in settings().values()} == set(GROUPS)
    assert [setting.name for setting in settings().values() if not setting.line] == []


def test_names_are_unique() -> None:
    """No setting of the server has the name of one of the engine: a file and `launch` have one name space."""
    engine, server = ({field.name for field in dataclasses.fields(kind)} for kind in (EngineConfig, ServerSettings))
    assert not engine & server


def test_defaults() -> None:
    """Without anything the defaults hold, but for a fixed port and a log of requests."""
    effective = effective_settings({}, {})
    assert effective.engine == EngineConfig()
    assert effective.server == ServerSettings(port=8000, log_requests=True)
    assert {chosen.source for chosen in effective.chosen.values()} == {"default"}


def test_precedence(tmp_path: Path) -> None:
    """A flag wins over the environment, the environment over the file, the file over the default."""
    file = settings_file(tmp_path, "port = 1\nchunk_size = 1\nhost = 'a'\n")
    environment = {"PALMETTE_PORT": "2", "PALMETTE_CHUNK_SIZE": "2"}
    effective = effective_settings({"port": 3}, environment, file)
    assert (effective.server.port, effective.engine.chunk_size, effective.server.host) == (3, 2, "a")
    sources = {name: effective.chosen[name].source for name in ("port", "chunk_size", "host", "seed")}
    assert sources == {
        "port": "--port",
        "chunk_size": "PALMETTE_CHUNK_SIZE",
        "host": f"host in {file}",
        "seed": "default",
    }


def test_values_of_every_kind(tmp_path: Path) -> None:
    """A file gives switches, numbers, sizes, times, choices, texts and lists; the environment the same as text."""
    text = """
        model = "some/model"
        radix_cache = false
        seed = 7
        memory_bytes = "1.5GiB"
        max_body_bytes = 1000
        idle_timeout_s = 60
        policy = "fcfs"
        cors_origins = ["https://a.example", "https://b.example"]
    """
    variables = {
        "PALMETTE_MODEL": "some/model",
        "PALMETTE_RADIX_CACHE": "off",
        "PALMETTE_SEED": "7",
        "PALMETTE_MEMORY_BYTES": "1536m",
        "PALMETTE_MAX_BODY_BYTES": "1000",
        "PALMETTE_IDLE_TIMEOUT_S": "60.0",
        "PALMETTE_POLICY": "fcfs",
        "PALMETTE_CORS_ORIGINS": "https://a.example, https://b.example",
    }
    read = from_file(tmp_path, text)
    asked = effective_settings({}, variables)
    assert (read.engine, read.server) == (asked.engine, asked.server)
    assert read.engine.memory_bytes == 3 << 29
    assert read.server.cors_origins == ("https://a.example", "https://b.example")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prot = 1", "'prot', which is no setting; did you mean port?"),
        ("max-running-requests = 1", "did you mean max_running_requests?"),
        ("zzz = 1", "settings are model, "),
        ("[server]\nport = 1", "has a table [server]; settings stand at the top"),
        ("port = '1'", "must be a whole number, not '1'"),
        ("port = true", "must be a whole number, not True"),
        ("port = 99999", "must be a whole number from 0 (any free port) to 65535, not 99999"),
        ("port = 1.5", "must be a whole number, not 1.5"),
        ("radix_cache = 1", "must be true or false, not 1"),
        ("memory_bytes = '1GB'", "must be a number of bytes such as 1073741824 or 1GiB, not '1GB'"),
        ("memory_bytes = '0.3KiB'", "must be a number of bytes"),
        ("policy = 'lmp'", "did you mean 'lpm'?"),
        ("cors_origins = [1]", "must be a list of texts, not [1]"),
        ("cors_origins = 'https://a.example'", "must be a list of texts"),
        ("api_key = ''", "must not be empty"),
        ("ssl_keyfile = '/nowhere'", "must be a file, and there is none at '/nowhere'"),
        ("idle_timeout_s = nan", "must be a number of seconds above 0"),
        ("idle_timeout_s = 0", "must be a number of seconds above 0, not 0"),
        ("port = ", "is not TOML"),
        ("port = 1\nport = 2", "is not TOML"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, said: str) -> None:
    """What a file has wrong is said with the file's name, the value, and what is allowed."""
    with pytest.raises(RequestError) as raised:
        from_file(tmp_path, text)
    assert said in str(raised.value)
    assert "palmette.toml" in str(raised.value)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("PALMETTE_PROT", "1", "the variable PALMETTE_PROT is no setting; did you mean PALMETTE_PORT?"),
        ("PALMETTE_PORT", "", "PALMETTE_PORT must be a whole number, not ''"),
        ("PALMETTE_PORT", "-1", "PALMETTE_PORT must be a whole number from 0"),
        ("PALMETTE_OFFLINE", "maybe", "PALMETTE_OFFLINE must be true or false, not 'maybe'"),
        ("PALMETTE_DTYPE", "float23", "PALMETTE_DTYPE must be one of"),
        ("PALMETTE_API_KEY", "", "PALMETTE_API_KEY must not be empty"),
        ("PALMETTE_API_KEY", "two words", "PALMETTE_API_KEY must be of printable ASCII"),
    ],
)
def test_bad_variables(name: str, text: str, said: str) -> None:
    """What a variable has wrong is said with its name; an empty key does not turn the asking for keys off."""
    with pytest.raises(RequestError, match="PALMETTE_") as raised:
        effective_settings({}, {name: text})
    assert said in str(raised.value)


def test_variables_of_others() -> None:
    """What Kubernetes sets for a service named palmette is no setting, nor is the cache folder; others are told of."""
    environment = {
        "PALMETTE_PORT": "tcp://10.0.0.7:8000",
        "PALMETTE_PORT_8000_TCP": "tcp://10.0.0.7:8000",
        "PALMETTE_PORT_8000_TCP_ADDR": "10.0.0.7",
        "PALMETTE_SERVICE_HOST": "10.0.0.7",
        "PALMETTE_SERVICE_PORT": "8000",
        "PALMETTE_CACHE": "/tmp",
        "PALMETTE_WEATHER_STATION": "1",
    }
    effective = effective_settings({}, environment)
    assert effective.server.port == 8000
    assert ["Kubernetes" in note for note in effective.notes] == [True, False]
    assert "PALMETTE_WEATHER_STATION" in effective.notes[1]


def test_missing_and_unreadable_files(tmp_path: Path) -> None:
    """A file that is not there, is a folder or is no text is said to be so."""
    with pytest.raises(RequestError, match="there is no settings file"):
        effective_settings({}, {}, tmp_path / "none.toml")
    with pytest.raises(RequestError, match="cannot be read"):
        effective_settings({}, {}, tmp_path)
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(RequestError, match="cannot be read"):
        effective_settings({}, {}, tmp_path / "bytes.toml")


def test_a_readable_secret_is_noted(tmp_path: Path) -> None:
    """A key in a file that others may read is told of."""
    path = settings_file(tmp_path, "api_key = 'open-sesame'\n")
    assert effective_settings({}, {}, path).notes == ()
    path.chmod(0o644)
    (note,) = effective_settings({}, {}, path).notes
    assert "chmod 600" in note
    assert "open-sesame" not in note


def test_printed_settings_are_a_file(tmp_path: Path) -> None:
    """What is printed can be fed back as a file, says who chose what, and shows no secret."""
    flags: dict[str, Value] = {
        "port": 1234,
        "api_key": "open-sesame",
        "model_name": 'a "b" \\ é \n',
        "memory_bytes": 1000,
    }
    effective = effective_settings(flags, {"PALMETTE_POLICY": "fcfs", "PALMETTE_MAX_BODY_BYTES": "3MiB"})
    text = effective.as_toml()
    assert "open-sesame" not in text
    assert "open-sesame" not in repr(effective.server)
    assert '# api_key = "***"' in text
    assert tomllib.loads(text)["policy"] == "fcfs"
    again = from_file(tmp_path, text)
    assert again.engine == effective.engine
    assert again.server == dataclasses.replace(effective.server, api_key=None)
    (line,) = [line for line in text.splitlines() if line.startswith("policy")]
    assert line.split() == ["policy", "=", '"fcfs"', "#", "PALMETTE_POLICY"]


@given(st.integers(0, 1 << 50))
def test_sizes_read_what_they_show(count: int) -> None:
    """A size in its shortest form reads as the same number of bytes."""
    assert settings()["memory_bytes"].from_text(size(count), "--memory-bytes") == count


@given(st.text())
def test_no_text_crashes(text: str) -> None:
    """Any text given to any setting is a value or a clear refusal."""
    said = []
    for setting in settings().values():
        try:
            setting.from_text(text, setting.flag)
        except RequestError as error:
            said.append((setting.flag, str(error)))
    assert [flag for flag, message in said if not message.startswith(f"{flag} must be ")] == []


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"host": ""}, "host must be a name or an address"),
        ({"host": "http://127.0.0.1"}, "without scheme and port"),
        ({"port": True}, "port must be a whole number"),
        ({"max_open_requests": 0}, "max_open_requests must be a whole number of at least 1, not 0"),
        ({"max_body_bytes": 1.5}, "max_body_bytes must be a whole number"),
        ({"drain_timeout_s": -1}, "drain_timeout_s must be a number of seconds of at least 0, not -1"),
        ({"status_interval_s": float("inf")}, "status_interval_s must be a number of seconds"),
        ({"cors_origins": ("https://a.example/path",)}, "not 'https://a.example/path'"),
        ({"cors_origins": "https://a.example"}, "cors_origins must be a tuple"),
        ({"api_key": "kéy"}, "printable ASCII"),
        ({"model_name": "  "}, "model_name must be a name"),
        ({"log_level": "warn"}, "did you mean 'warning'?"),
        ({"log_format": "xml"}, "log_format must be one of text, json, not 'xml'"),
        ({"web_page": "yes"}, "web_page must be True or False"),
        ({"ssl_keyfile_password": "secret"}, "goes with ssl_certfile"),
    ],
)
def test_server_settings_are_checked(wrong: dict[str, object], said: str) -> None:
    """A setting of the server that cannot be is refused by name, with what is allowed."""
    with pytest.raises(RequestError) as raised:
        ServerSettings(**wrong)  # type: ignore[arg-type]  # that is the point
    assert said in str(raised.value)


def test_the_key_pair_is_complete(tmp_path: Path) -> None:
    """A certificate without its key is refused; a file that holds both is enough."""
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    certificate.write_text("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n")
    key.write_text("-----BEGIN PRIVATE KEY-----\n-----END PRIVATE KEY-----\n")
    with pytest.raises(RequestError, match="holds no private key; name its file as ssl_keyfile"):
        ServerSettings(ssl_certfile=str(certificate))
    with pytest.raises(RequestError, match="goes with ssl_certfile"):
        ServerSettings(ssl_keyfile=str(key))
    assert ServerSettings(ssl_certfile=str(certificate), ssl_keyfile=str(key)).scheme == "https"
    certificate.write_text(certificate.read_text() + key.read_text())
    assert ServerSettings(ssl_certfile=str(certificate)).scheme == "https"
    assert ServerSettings().scheme == "http"
