"""`palmette generate`: one answer to one prompt."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import Run, UseEngine
from tests.lang.test_chat_template import SMOLLM2

from palmette.constrained import grammar_backend
from palmette.runtime.program import Failed, Generate, Select


def test_the_answer_alone(palmette: Run, use_engine: UseEngine) -> None:
    """Standard output holds the answer and nothing else; a model without a chat template continues the prompt."""
    backend = use_engine(["A pear."])
    result = palmette("generate", "Name a fruit:")
    assert result.stdout == "A pear.\n"
    assert backend.calls[0].prompt == "Name a fruit:"


def test_chat_format(palmette: Run, use_engine: UseEngine) -> None:
    """A model with a chat template is asked in it, unless --no-chat is given."""
    backend = use_engine(["A pear.", "A fig."], chat_template=SMOLLM2)
    palmette("generate", "Name a fruit.")
    assert backend.calls[0].prompt.endswith("Name a fruit.<|im_end|>\n<|im_start|>assistant\n")
    palmette("generate", "Name a fruit.", "--no-chat")
    assert backend.calls[1].prompt == "Name a fruit."


def test_stream(palmette: Run, use_engine: UseEngine) -> None:
    """A streamed answer is the same text."""
    use_engine(["A pear tree."], piece_length=2)
    assert palmette("generate", "Name a tree.", "--stream").stdout == "A pear tree.\n"


def test_options_reach_the_engine(palmette: Run, use_engine: UseEngine) -> None:
    """Sampling options and a pattern arrive at the node."""
    backend = use_engine(["1969"])
    words = ["--regex", "[0-9]{4}", "--max-tokens", "7", "--temperature", "0", "--seed", "3"]
    assert palmette("generate", "The year:", *words).stdout == "1969\n"
    node = backend.calls[0].node
    assert isinstance(node, Generate)
    assert node.grammar is not None
    assert node.grammar.source == "[0-9]{4}"
    assert (node.params.max_tokens, node.params.temperature, node.params.seed) == (7, 0.0, 3)


def test_json_schema(palmette: Run, use_engine: UseEngine, tmp_path: Path) -> None:
    """The schema is read from the file."""
    (tmp_path / "schema.json").write_text('{"type": "boolean"}')
    use_engine(["true"])
    assert palmette("generate", "Yes?", "--json-schema", tmp_path / "schema.json").stdout == "true\n"


def test_type(palmette: Run, use_engine: UseEngine, tmp_path: Path) -> None:
    """A named type or a class of a file; what is no text is printed as JSON."""
    (tmp_path / "pets.py").write_text(
        "import dataclasses\n@dataclasses.dataclass\nclass Pet:\n    name: str\n    age: int\n"
    )
    use_engine(['{"name": "Rex", "age": 3}', '"dark brown"', "12"])
    assert palmette("generate", "A dog:", "--type", f"{tmp_path}/pets.py:Pet").stdout == '{"name": "Rex", "age": 3}\n'
    assert palmette("generate", "A colour:", "--type", "str").stdout == "dark brown\n"
    assert palmette("generate", "A number:", "--type", "int").stdout == "12\n"
    result = palmette("generate", "A dog:", "--type", f"{tmp_path}/pets.py:Cat")
    assert (result.exit_code, "names no type of" in result.stderr) == (2, True)


def test_ebnf(palmette: Run, use_engine: UseEngine, tmp_path: Path) -> None:
    """A grammar is given as text, or as a file."""
    (tmp_path / "answer.gbnf").write_text('root ::= "yes" | "no"\n')
    use_engine(["no", "yes"])
    assert palmette("generate", "Fruit?", "--ebnf", 'root ::= "yes" | "no"').stdout == "no\n"
    assert palmette("generate", "Fruit?", "--ebnf", tmp_path / "answer.gbnf").stdout == "yes\n"


def test_lark(palmette: Run, use_engine: UseEngine, tmp_path: Path) -> None:
    """The same for a grammar in Lark's notation."""
    (tmp_path / "answer.lark").write_text('start: "yes" | "no"\n')
    use_engine(["no", "yes"])
    assert palmette("generate", "Fruit?", "--lark", 'start: "yes" | "no"').stdout == "no\n"
    assert palmette("generate", "Fruit?", "--lark", tmp_path / "answer.lark").stdout == "yes\n"
    assert palmette("generate", "Fruit?", "--lark", tmp_path / "nowhere").exit_code == 2


def test_structural_tag(palmette: Run, use_engine: UseEngine, tmp_path: Path) -> None:
    """A structural tag is JSON, or a file of it; what is no JSON is told so."""
    spec = json.dumps({"type": "structural_tag", "format": {"type": "const_string", "value": "ok"}})
    (tmp_path / "tag.json").write_text(spec)
    use_engine(["ok", "ok"])
    assert palmette("generate", "Well?", "--tag", spec).stdout == "ok\n"
    assert palmette("generate", "Well?", "--structural-tag", tmp_path / "tag.json").stdout == "ok\n"
    assert "--tag is not JSON" in palmette("generate", "Well?", "--tag", "{").stderr


def test_several_answers_and_stops(palmette: Run, use_engine: UseEngine) -> None:
    """Each of several answers is one line of JSON; stops may be given again and again."""
    backend = use_engine(["a\nb", "c"])
    words = ["--n", "2", "--stop", ".", "--stop", "!", "--stop-regex", "[0-9]", "--top-p", "0.5", "--top-k", "3"]
    assert palmette("generate", "Letters:", *words).stdout == '"a\\nb"\n"c"\n'
    node = backend.calls[0].node
    assert isinstance(node, Generate)
    assert (node.n, node.params.stop, node.params.stop_regex) == (2, (".", "!"), ("[0-9]",))
    assert (node.params.top_p, node.params.top_k) == (0.5, 3)


@pytest.mark.parametrize("choices", ["yes, no", '["yes", "no"]'])
def test_choices(palmette: Run, use_engine: UseEngine, choices: str) -> None:
    """Choices are a select, written with commas or as a JSON array."""
    backend = use_engine(["no"])
    assert palmette("generate", "Fruit?", "--choices", choices).stdout == "no\n"
    node = backend.calls[0].node
    assert isinstance(node, Select)
    assert node.choices == ("yes", "no")


def test_prompt_from_standard_input(palmette: Run, use_engine: UseEngine) -> None:
    """A prompt of - is read from standard input."""
    backend = use_engine(["A pear."])
    palmette("generate", "-", stdin="Name a fruit:")
    assert backend.calls[0].prompt == "Name a fruit:"


def test_a_cut_off_answer_is_noted(palmette: Run, use_engine: UseEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that ended by its token limit is printed, and the note is on standard error."""
    use_engine(["A pear."])
    monkeypatch.setattr("palmette.lang.state.ProgramState.get_meta_info", lambda s, name: {"finish_reason": "length"})
    result = palmette("generate", "Name a fruit:")
    assert result.stdout == "A pear.\n"
    assert "--max-tokens raises it" in result.stderr


@pytest.mark.parametrize(("kind", "exit_code"), [("GrammarError", 2), ("RequestError", 2), ("EngineError", 1)])
@pytest.mark.parametrize("stream", [[], ["--stream"]])
def test_what_the_engine_refuses(
    palmette: Run,
    use_engine: UseEngine,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    exit_code: int,
    stream: list[str],
) -> None:
    """The engine's own message, without a place in Palmette's code: 2 for what was asked, 1 for what broke."""
    backend = use_engine()

    def fail(session: object, nodes: object) -> None:
        generations = [node for node in nodes if isinstance(node, Generate)]  # type: ignore[attr-defined]
        for node in generations:
            backend.timeline.after(0.0, lambda: session._events(Failed(node.id, kind, "the reason")))  # type: ignore[attr-defined]  # noqa: B023

    monkeypatch.setattr("palmette.lang.mock_backend.MockSession.extend", fail)
    result = palmette("generate", "Hi", *stream)
    assert result.stderr.split("\n")[1] == "error: the reason"
    assert result.exit_code == exit_code


@pytest.mark.usefixtures("no_engine")
class TestRefused:
    """What cannot be asked is refused with exit code 2 before an engine starts."""

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            ([""], 'error: the prompt is empty\nhint: palmette generate "Name a fruit tree."'),
            (["Hi", "--regex", "a", "--choices", "a,b"], "error: --regex and --choices do not go together"),
            (["Hi", "--choices", "a,b", "--stream"], "error: --choices and --stream do not go together"),
            (["Hi", "--choices", "a,b", "--max-tokens", "3"], "error: --choices and --max-tokens do not go together"),
            (["Hi", "--choices", "a,a"], "error: choices must be distinct"),
            (["Hi", "--regex", "("], "error: bad regular expression '('"),
            (["Hi", "--choices", "["], "error: --choices starts as a JSON array but is none"),
            (["Hi", "--choices", "[1]"], "error: "),
            (["Hi", "--temperature", "-1"], "error: --temperature must be a number from 0"),
            (["Hi", "--max-tokens", "-1"], "error: --max-tokens must be a whole number"),
            (["Hi", "--stop-regex", "("], "error: bad"),
            (["Hi", "--n", "0"], "error: --n must be a whole number of at least 1"),
            (["Hi", "--n", "2", "--stream"], "error: --n and --stream do not go together"),
            (["Hi", "--ebnf", "root ::= ("], "error: "),
            (["Hi", "--ebnf", "nowhere.gbnf"], "error: --ebnf nowhere.gbnf cannot be read: No such file"),
            (["Hi", "--type", "pear"], "error: pear does not exist\nhint: --type FILE.py:CLASS"),
            (["Hi", "--json-schema", "nowhere.json"], "error: --json-schema nowhere.json cannot be read: No such file"),
        ],
    )
    def test_words(self, palmette: Run, words: list[str], message: str) -> None:
        """One message, and a hint where there is one to give."""
        result = palmette("generate", *words)
        assert result.stderr.startswith(message)
        assert result.exit_code == 2
        assert result.stdout == ""

    @pytest.mark.parametrize(
        ("text", "message"), [("{", "is not JSON"), (json.dumps(3), "schema"), ('{"not": {}}', "nothing matches")]
    )
    def test_schema_file(self, palmette: Run, tmp_path: Path, text: str, message: str) -> None:
        """A file that is not JSON, or no schema."""
        (tmp_path / "schema.json").write_text(text)
        result = palmette("generate", "Hi", "--json-schema", tmp_path / "schema.json")
        assert message in result.stderr
        assert result.exit_code == 2

    def test_wrong_type_and_unknown_option(self, palmette: Run) -> None:
        """What typer itself refuses ends in exit code 2 too."""
        assert palmette("generate", "Hi", "--max-tokens", "few").exit_code == 2
        assert "--maxtokens" in palmette("generate", "Hi", "--maxtokens", "3").stderr


def test_grammar_backend(palmette: Run, use_engine: UseEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another grammar backend is asked for by name; one that is not installed, or does not exist, is wrong use."""
    use_engine(["12"])
    assert palmette("generate", "Number:", "--grammar-backend", "native").stdout == "12\n"
    assert palmette("generate", "Number:", "--grammar-backend", "guess").exit_code == 2
    grammar_backend.cache_clear()
    monkeypatch.setitem(sys.modules, "xgrammar", None)
    monkeypatch.delitem(sys.modules, "palmette.constrained.backends.xgrammar", raising=False)
    result = palmette("generate", "Number:", "--grammar-backend", "xgrammar")
    assert (result.exit_code, "pip install 'palmette[grammars]'" in result.stderr) == (2, True)
