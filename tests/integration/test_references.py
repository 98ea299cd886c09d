"""References on a real engine: the answer of one node as constant text in another branch."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.wire import Listener

from palmette.constrained import Grammar
from palmette.runtime.engine import Engine
from palmette.runtime.errors import RequestError
from palmette.runtime.program import (
    Completion,
    Failed,
    Fork,
    Generate,
    Generated,
    Join,
    Node,
    Reference,
    Select,
    Selected,
    Text,
)
from palmette.runtime.sampling_params import SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
LONG = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)


def run(engine: Engine, nodes: Sequence[Node], awaited: Sequence[int]) -> Listener:
    """Send one tree, node by node, and wait for these nodes."""
    listener = Listener()
    session = engine.open(listener)
    for node in nodes:
        session.extend([node])
    listener.wait(awaited)
    session.close()
    return listener


def completion(listener: Listener, node: int) -> Completion:
    event = listener.done[node]
    assert isinstance(event, Generated), event
    return event.completions[0]


def failure(listener: Listener, node: int) -> Failed:
    event = listener.done[node]
    assert isinstance(event, Failed), event
    return event


def alone(engine: Engine, prompt: str) -> Completion:
    return completion(run(engine, [Text(0, None, prompt), Generate(1, 0, GREEDY)], [1]), 1)


def test_a_reference_is_encoded_as_one_string_with_the_text_around_it(tiny_engine: Engine) -> None:
    """The branch goes on exactly as if the answer had been written there, and its tokens are the reference's."""
    nodes: list[Node] = [
        Text(0, None, "The quick "),
        Generate(1, 0, LONG),
        Text(2, None, "It is th"),
        Reference(3, 2, 1),
        Text(4, 3, "ere and"),
        Generate(5, 4, GREEDY),
    ]
    listener = run(tiny_engine, nodes, [5])
    answer = completion(listener, 1).text
    expected = alone(tiny_engine, f"It is th{answer}ere and")
    assert completion(listener, 5).token_ids == expected.token_ids
    assert completion(listener, 5).prompt_tokens == expected.prompt_tokens
    event = listener.done[5]
    assert isinstance(event, Generated)
    usage = {each.node: each.computed + each.reused for each in event.usage}
    assert usage.keys() >= {2, 3, 4, 5}
    assert usage[2] + usage[3] + usage[4] == expected.prompt_tokens


def test_of_several_answers_the_first_of_a_select_the_choice(tiny_engine: Engine) -> None:
    """Texts, selects, n > 1 and other references can be referred to, from any branch."""
    many = SamplingParams(temperature=1, seed=3, max_tokens=4, ignore_eos=True)
    nodes: list[Node] = [
        Text(0, None, "the "),
        Generate(1, 0, many, n=3),
        Select(2, 0, ("trunk", "branch")),
        Reference(3, None, 1),
        Reference(4, 3, 2),
        Reference(5, 4, 0),
        Reference(6, 5, 4),
        Generate(7, 6, GREEDY),
    ]
    listener = run(tiny_engine, nodes, [7])
    selected = listener.done[2]
    assert isinstance(selected, Selected)
    choice = ("trunk", "branch")[selected.choice]
    expected = alone(tiny_engine, f"{completion(listener, 1).text}{choice}the {choice}")
    assert completion(listener, 7).text == expected.text
    assert listener.done.keys() == {1, 2, 7}


def test_a_reference_to_its_own_branch_and_to_what_is_long_done(tiny_engine: Engine) -> None:
    """The source may be the parent, further up, or done before the reference comes."""
    listener = Listener()
    session = tiny_engine.open(listener)
    session.extend([Text(0, None, "a "), Generate(1, 0, GREEDY)])
    listener.wait([1])
    session.extend([Reference(2, 1, 1), Reference(3, 2, 0), Generate(4, 3, GREEDY)])
    listener.wait([4])
    session.close()
    first = completion(listener, 1)
    assert completion(listener, 4).prompt_tokens > first.prompt_tokens + len(first.token_ids)


def test_unquoted_takes_what_the_quotes_hold(tiny_engine: Engine) -> None:
    """Escapes are read as JSON reads them; the answer itself stays as it is."""
    quoted = Generate(0, None, LONG, Grammar.regex(r'"a\\n\\u00e9 b"'))
    nodes: list[Node] = [quoted, Reference(1, None, 0, unquoted=True), Generate(2, 1, GREEDY)]
    listener = run(tiny_engine, nodes, [2])
    assert completion(listener, 0).text == '"a\\n\\u00e9 b"'
    assert completion(listener, 2).text == alone(tiny_engine, "a\né b").text


@pytest.mark.parametrize("pattern", ['"never en', "[0-9]{3}"])
def test_unquoted_says_what_is_not_a_whole_string(tiny_engine: Engine, pattern: str) -> None:
    """A string that was cut off, or no string at all, fails the reference and what continues it, and nothing else."""
    nodes: list[Node] = [
        Generate(0, None, LONG, Grammar.regex(pattern)),
        Reference(1, None, 0, unquoted=True),
        Generate(2, 1, GREEDY),
        Generate(3, 0, GREEDY),
    ]
    listener = run(tiny_engine, nodes, [0, 1, 2, 3])
    assert "not one whole JSON string" in failure(listener, 1).message
    assert failure(listener, 2).message == failure(listener, 1).message
    assert completion(listener, 3).text


def test_a_reference_fails_with_its_source(tiny_engine: Engine) -> None:
    """The error is the source's, and comes as the reference's own event."""
    nodes: list[Node] = [
        Generate(0, None, GREEDY, n=0),
        Text(1, None, "x"),
        Reference(2, 1, 0),
        Generate(3, 2, GREEDY),
        Reference(4, None, 3),
    ]
    listener = run(tiny_engine, nodes, [0, 2, 3, 4])
    assert {failure(listener, node).message for node in (0, 2, 3, 4)} == {failure(listener, 0).message}
    assert failure(listener, 4).kind == "RequestError"


@pytest.mark.parametrize("source", [1, 2])
def test_forks_and_joins_have_no_text(tiny_engine: Engine, source: int) -> None:
    """A reference to one fails and names it."""
    nodes: list[Node] = [Text(0, None, "x"), Fork(1, 0, 1), Join(2, 1, (1,)), Reference(3, 0, source)]
    assert f"refers to node {source}, a fork or a join" in failure(run(tiny_engine, nodes, [3]), 3).message


@pytest.mark.parametrize("source", [0, 1, 7, -1])
def test_a_source_must_be_there_before(tiny_engine: Engine, source: int) -> None:
    """An unknown source, itself or one that comes later is refused at once, so that nothing waits in a circle."""
    session = tiny_engine.open(lambda event: None)
    with pytest.raises(RequestError, match=f"node 0 refers to node {source}, which does not exist before it"):
        session.extend([Reference(0, None, source), Text(1, None, "later")])
    session.close()


def test_a_chain_of_references_is_not_followed_by_recursion(tiny_engine: Engine) -> None:
    """Five thousand references, each to the one before, are resolved one after the other, and fail so too."""
    chain: list[Node] = [Reference(i, None, i - 1) for i in range(1, 5_000)]
    good = run_all(tiny_engine, [Generate(0, None, GREEDY), *chain, Generate(5_000, 4_999, GREEDY)], [5_000])
    assert completion(good, 5_000).text == alone(tiny_engine, completion(good, 0).text).text
    bad = run_all(tiny_engine, [Generate(0, None, GREEDY, Grammar.regex("(")), *chain], [4_999])
    assert failure(bad, 4_999).message == failure(bad, 0).message


def run_all(engine: Engine, nodes: Sequence[Node], awaited: Sequence[int]) -> Listener:
    """Send one tree in one message."""
    listener = Listener()
    session = engine.open(listener)
    session.extend(nodes)
    listener.wait(awaited)
    session.close()
    return listener
