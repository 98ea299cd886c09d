"""EBNF grammars against a recogniser that knows nothing of automata."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.constrained.grammar_laws import check_masks, steered_answer
from tests.constrained.reference import BYTES, accepts
from tests.constrained.strategies import vocabularies

from palmette.constrained import (
    CompileLimits,
    Grammar,
    GrammarError,
    GrammarLimitError,
    UnsatisfiableGrammarError,
    UnsupportedGrammarError,
    Vocabulary,
    compile_grammar,
    matches,
)
from palmette.constrained.compiler import lower
from palmette.constrained.limits import Deadline


@dataclass(frozen=True)
class Part:
    """A piece of a grammar: how it is written, and what it is."""

    text: str
    kind: str
    parts: tuple[Part, ...] = ()
    low: int = 0
    high: int | None = None


def literal(chars: str) -> Part:
    """A string."""
    return Part(f'"{chars}"', "literal", low=len(chars))


NAMES = ("root", "one", "two")
leaves = (
    st.sampled_from(["a", "b", "ab", ""]).map(literal)
    | st.sampled_from(["a", "ab", "^a"]).map(lambda chars: Part(f"[{chars}]", "class"))
    | st.sampled_from(NAMES).map(lambda name: Part(name, "reference"))
)


def grown(parts: st.SearchStrategy[Part]) -> st.SearchStrategy[Part]:
    """Sequences, alternatives and repetitions of parts."""
    several = st.lists(parts, min_size=2, max_size=3).map(tuple)
    bounds = st.sampled_from(
        [("*", 0, None), ("+", 1, None), ("?", 0, 1), ("{2}", 2, 2), ("{1,2}", 1, 2), ("{0,}", 0, None)]
    )
    return (
        several.map(lambda each: Part(" ".join(f"({part.text})" for part in each), "sequence", each))
        | several.map(lambda each: Part(" | ".join(part.text for part in each), "choice", each))
        | st.tuples(parts, bounds).map(
            lambda found: Part(f"({found[0].text}){found[1][0]}", "repeat", (found[0],), found[1][1], found[1][2])
        )
    )


bodies = st.recursive(leaves, grown, max_leaves=5)
grammars = st.tuples(bodies, bodies, bodies).map(lambda found: dict(zip(NAMES, found, strict=True)))


class Recogniser:
    """All ends of every rule at every place of one text, as the least fixed point."""

    def __init__(self, rules: dict[str, Part], text: str, root: str = "root") -> None:
        self._rules = rules
        self._root = root
        self._text = text
        self._ends: dict[tuple[str, int], set[int]] = {}
        self._grow()

    def accepts(self) -> bool:
        """Whether the root rule matches the whole text."""
        return len(self._text) in self._ends[self._root, 0]

    def _grow(self) -> None:
        places = range(len(self._text) + 1)
        self._ends = {(name, place): set() for name in self._rules for place in places}
        while True:
            new = {(name, place): self._of(self._rules[name], place) for name, place in self._ends}
            if new == self._ends:
                return
            self._ends = new

    def _of(self, part: Part, start: int) -> set[int]:
        match part.kind:
            case "literal":
                return {start + part.low} if self._text.startswith(part.text[1:-1], start) else set()
            case "class":
                wanted, negated = part.text[1:-1].removeprefix("^"), part.text.startswith("[^")
                char = self._text[start : start + 1]
                return {start + 1} if char and (char in wanted) != negated else set()
            case "reference":
                return self._ends[part.text, start]
            case "choice":
                return set().union(*(self._of(each, start) for each in part.parts))
            case "sequence":
                ends = {start}
                for each in part.parts:
                    ends = set().union(*(self._of(each, end) for end in ends))
                return ends
            case _:
                return self._rounds(part, start)

    def _rounds(self, part: Part, start: int) -> set[int]:
        most = part.low + len(self._text) + 1 if part.high is None else part.high
        reached, found = {start}, {start} if part.low == 0 else set()
        for done in range(1, most + 1):
            reached = set().union(*(self._of(part.parts[0], end) for end in reached))
            found |= reached if done >= part.low else set()
        return found


def written(rules: dict[str, Part]) -> str:
    """The grammar as text, a rule a line."""
    return "\n".join(f"{name} ::= {part.text}" for name, part in rules.items())


SMALL = CompileLimits(configurations=300)
TEXTS = ["".join(chars) for length in range(4) for chars in product("abc", repeat=length) if chars.count("c") < 2]


@settings(max_examples=80)
@given(grammars)
def test_equals_a_slow_recogniser(rules: dict[str, Part]) -> None:
    """Any recursion, left recursion through empty rules included: the same short texts match."""
    grammar = Grammar.ebnf(written(rules))
    expected = [text for text in TEXTS if Recogniser(rules, text).accepts()]
    try:
        compiled = compile_grammar(grammar, BYTES, limits=SMALL)
        assert [text for text in TEXTS if accepts(compiled, text)] == expected
    except UnsatisfiableGrammarError:
        assert not all(any(Recogniser(rules, text, name).accepts() for text in TEXTS) for name in rules)
    except GrammarLimitError:
        pass  # so ambiguous that its stacks multiply


@settings(max_examples=30)
@given(grammars, vocabularies, st.integers(0, 4), st.data())
def test_answers_in_time(rules: dict[str, Part], vocabulary: Vocabulary, slack: int, data: st.DataObject) -> None:
    """A random answer with a tight budget is accepted by the slow recogniser."""
    grammar = Grammar.ebnf(written(rules))
    try:
        text = steered_answer(grammar, vocabulary, slack, data, SMALL)
    except (UnsatisfiableGrammarError, GrammarLimitError):
        return
    assert Recogniser(rules, text).accepts()


EXPRESSIONS = """
# left-recursive, as grammars of languages are
root   ::= expr
expr   ::= expr [+-] term
         | term
term   ::= term ("*" | "/") factor | factor
factor ::= [0-9]{1,3} | "(" expr ")" | factor "!"
"""


@settings(max_examples=10)
@given(vocabularies, st.data())
def test_masks_equal_brute_force(vocabulary: Vocabulary, data: st.DataObject) -> None:
    """Masks of a left-recursive grammar equal brute force over every token."""
    check_masks(Grammar.ebnf(EXPRESSIONS), vocabulary, data, steps=4)


def test_left_recursion() -> None:
    """Direct, mutual and hidden left recursion match what they say."""
    for text, expected in {"1": True, "1+2*3": True, "(1+2)!*34-5": True, "1!!": True, "1+": False, "": False}.items():
        assert matches(Grammar.ebnf(EXPRESSIONS), text) is expected
    mutual = Grammar.ebnf('root ::= a\na ::= b "x" | "y" |\nb ::= a "z" | root "w"')
    assert [text for text in ("", "y", "zx", "yzx", "zxwx", "x", "zxz") if matches(mutual, text)] == [
        *("", "y", "zx", "yzx", "zxwx")
    ]
    hidden = Grammar.ebnf('root ::= empty root "a" | "b"\nempty ::= "-"?')
    assert [text for text in ("b", "ba", "--ba", "--baa", "---baa") if matches(hidden, text)] == ["b", "ba", "--baa"]


@pytest.mark.parametrize(
    ("source", "text", "bad"),
    [
        ('root ::= root "+" root | root "*" root | [a-z] | "(" root ")"', "(a*b)+c*", "a++b"),
        ("root ::= root root | [a-z+]", "ab+", "a."),
        ('root ::= root root | "a" |', "aa", "aba"),
    ],
)
def test_ambiguous_operators_cost_no_more_than_a_list(source: str, text: str, bad: str) -> None:
    """A rule with itself on both ends is read as a list: few states however long the text is."""
    compiled = compile_grammar(Grammar.ebnf(source), BYTES)
    assert accepts(compiled, text * 300 + "a")
    assert not accepts(compiled, bad)
    assert len(compiled._automaton) < 40


def test_unambiguous_left_recursion_is_followed_in_bounded_states() -> None:
    """A left-recursive list meets no more states however long it is."""
    compiled = compile_grammar(Grammar.ebnf('root ::= root "," item | item\nitem ::= [a-z]+'), BYTES)
    state: int | None = compiled.start
    for byte in b"ab,c," * 500 + b"d":
        assert state is not None
        state = compiled.advance(state, byte)
    assert state is not None
    assert compiled.is_accepting(state)
    assert len(compiled._automaton) < 10


@pytest.mark.parametrize(
    ("source", "yes", "no"),
    [
        ('root ::= "a\\n\\t\\\\\\"\\x41\\u00e9\\U0001F600\\ud83d\\ude00"', 'a\n\t\\"Aé😀😀', "a"),
        ("root ::= 'it\\'s' \"\"", "it's", "it"),
        (r"root ::= [a-cé\]\-x^\n]+", "bé]-^\n", "d"),
        (r"root ::= [^a-z\u00e9]", "日", "é"),
        (r"root ::= [\d\w-]+", "9_-", "é"),
        ("root ::= .", "\n", ""),
        ('root ::= ("a" | "b"){2,3} "c"{,1} "d"{2,}', "abadd", "acdd"),
        ('root ::= "a" # comment "b"\n  "c" |\n\n  "d"\n', "ac", "ab"),
        ('root = a b\na := "1"\nb ::= "2"', "12", "1"),
        ('root ::= my-rule_2\nmy-rule_2 ::= "x"', "x", "y"),
        ('root ::= ("a"\n | "b"\n)? other\nother ::= "c"', "bc", "b"),
        ('root ::= "a" "*"', "a*", "aa"),
    ],
)
def test_notation(source: str, yes: str, no: str) -> None:
    """Escapes, classes, repetitions, comments and rules over several lines are read as written."""
    assert matches(Grammar.ebnf(source), yes)
    assert not matches(Grammar.ebnf(source), no)


@pytest.mark.parametrize(
    ("source", "message", "place"),
    [
        ('root ::= nam\nname ::= "a"', "no rule 'nam'; did you mean 'name'", "line 1, column 10"),
        ("root ::= xyz", "the rules are: root", "line 1, column 10"),
        ('root ::= "a"\nroot ::= "b"', "defined twice; first at line 1, column 1", "line 2, column 1"),
        ('root ::= "a', "no closing", "line 1, column 10"),
        ('root ::= "a\n"', "no closing", "line 1, column 10"),
        ("root ::= [ab", "no closing ]", "line 1, column 10"),
        ("root ::= []", "holds no character", "line 1, column 10"),
        ("root ::= [z-a]", "the range z-a is empty", "line 1, column 11"),
        ('root ::= "a"{3,1}', "{3,1} is empty", "line 1, column 13"),
        ('root ::= "a"{}', "a repetition is", "line 1, column 13"),
        ('root ::= "a"{9999999999}', "a billion", "line 1, column 13"),
        ("root ::= *", "nothing to repeat before '*'", "line 1, column 10"),
        ('root ::= ("a"', "missing ')'", "line 1, column 10"),
        ('root ::= "a" )', "found ')'", "line 1, column 14"),
        ('root ::= "\\q"', "unknown escape \\q", "line 1, column 11"),
        ('root ::= "\\x4"', "needs 2 hexadecimal digits", "line 1, column 11"),
        ('root ::= "\\ud800"', "surrogate", "line 1, column 11"),
        ('root "a"', "expected '::='", "line 1, column 6"),
        ('"a"', "expected the name of a rule", "line 1, column 1"),
    ],
)
def test_errors_say_what_and_where(source: str, message: str, place: str) -> None:
    """A grammar that is not legal is refused with the line and column of the fault."""
    with pytest.raises(GrammarError) as raised:
        matches(Grammar.ebnf(source), "")
    assert message in str(raised.value)
    assert raised.value.pointer == place


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ('root: "a"', "Lark"),
        ("root ::= /a+/", "Lark"),
        ('%import common\nroot ::= "a"', "Lark"),
        ('root ::= "a", "b"', "ISO 14977"),
        ('root ::= "a";', "ISO 14977"),
        ('root ::= "a" (= "b")', "lookahead"),
    ],
)
def test_other_dialects_are_refused_by_name(source: str, what: str) -> None:
    """Notation of other dialects is named, and what is allowed is said."""
    with pytest.raises(UnsupportedGrammarError, match=what):
        matches(Grammar.ebnf(source), "")


def test_the_root_rule() -> None:
    """Any rule may be the root; a missing one is an error, with a hint."""
    assert matches(Grammar.ebnf('start ::= "a"', root="start"), "a")
    with pytest.raises(GrammarError, match=r"no rule 'root'.*did you mean root='roots'"):
        matches(Grammar.ebnf('roots ::= "a"'), "a")
    with pytest.raises(GrammarError, match="has no rules"):
        matches(Grammar.ebnf(" # nothing\n"), "a")
    with pytest.raises(GrammarError, match="must be a string"):
        Grammar.ebnf(3)  # type: ignore[arg-type]  # what a user may do


def test_counted_rounds_of_an_empty_rule() -> None:
    """Two rounds of what is always empty are empty, and not impossible."""
    grammar = Grammar.ebnf('root ::= (two{2})* "a"\ntwo ::= ""')
    assert matches(grammar, "a")
    assert not matches(grammar, "")


def test_rules_that_match_nothing() -> None:
    """A rule that can never end is refused by name, used or not."""
    with pytest.raises(UnsatisfiableGrammarError, match=r"'loop' matches no text.*line 2, column 1"):
        matches(Grammar.ebnf('root ::= "a" | loop\nloop ::= "(" loop ")"'), "a")


def test_equal_grammars_are_one_key() -> None:
    """The same source and root give equal grammars, and another root another."""
    assert Grammar.ebnf("root ::= .") == Grammar.ebnf("root ::= .", root="root")
    assert Grammar.ebnf("root ::= .") != Grammar.ebnf("root ::= .", root="other")


def test_limits() -> None:
    """Sizes are bounded: characters, groups inside groups, repetitions."""
    for source, limits in (
        ('root ::= "a"', CompileLimits(source_chars=5)),
        ("root ::= " + "(" * 200 + '"a"' + ")" * 200, CompileLimits()),
        ('root ::= "a"{20000}', CompileLimits()),
        ('root ::= "a"\nb ::= "b"', CompileLimits(rules=1)),
        ("root ::= [ab" + "] [ab".join(map(chr, range(0x4E00, 0x4F00))) + "]", CompileLimits(seconds=0)),
        ("root ::= (" + '"a"? ' * 2_000 + "){2}", CompileLimits()),
        ("root ::= " + '"a"? ' * 2_000 + 'root "x" | "b"', CompileLimits()),
        ("root ::= " + "|".join(f'root "{i}" root | "{i}"' for i in range(1_000)), CompileLimits()),
        ("\n".join(f'r{i} ::= r{(i + 1) % 1000} "a" | "x"' for i in range(1_000)) + "\nroot ::= r0", CompileLimits()),
    ):
        with pytest.raises(GrammarLimitError):
            compile_grammar(Grammar.ebnf(source), BYTES, limits=limits)


@pytest.mark.parametrize("order", [1, -1])
def test_thousands_of_rules(order: int) -> None:
    """Rules compile in time that grows as their number, in whatever order they call each other."""
    chain = [f'r{i} ::= r{i + 1} "a"' for i in range(3_000)][::order]
    row = f"row ::= {' '.join(f'e{i}' for i in range(3_000))}"
    ends = [f'e{i} ::= "b"' for i in range(3_000)]
    grammar = Grammar.ebnf("\n".join(["root ::= r0 row", 'r3000 ::= "x"', row, *chain, *ends]))
    assert matches(grammar, "x" + "a" * 3_000 + "b" * 3_000)
    assert not matches(grammar, "x" + "a" * 3_000 + "b" * 2_999)


def test_a_class_of_thousands_of_characters() -> None:
    """A class is read in time that grows as it does."""
    grammar = Grammar.ebnf(f"root ::= [{''.join(map(chr, range(0x4E00, 0x8E00, 2)))}]")
    assert matches(grammar, chr(0x4E00))
    assert not matches(grammar, chr(0x4E01))


def test_deep_recursion_of_the_rewriting() -> None:
    """A cycle of hundreds of left calls is rewritten without recursion."""
    count = 60
    rules = [f'r{i} ::= r{(i + 1) % count} "{chr(97 + i % 26)}" | "."' for i in range(count)]
    grammar = Grammar.ebnf("\n".join(rules), root="r0")
    limits = CompileLimits()
    lower(grammar, limits, Deadline(limits)).verify()
    assert matches(grammar, ".ba")
    assert not matches(grammar, ".ab")
