"""Grammars in Lark's notation: what they match, and what is said of those that are refused."""

from __future__ import annotations

import ast
import json
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palmette.constrained import Grammar, GrammarError, UnsatisfiableGrammarError, UnsupportedGrammarError
from palmette.constrained.lark_terminals import COMMON_TERMINALS
from palmette.constrained.whole_match import matches

ARITHMETIC = Grammar.lark("""
    start: sum
    ?sum: product | sum "+" product -> add      // left recursion, aliases and comments
    ?product: atom | product "*" atom -> multiply
    ?atom: INT | "(" sum ")"
    %import common.INT
    %import common.WS_INLINE
    %ignore WS_INLINE
""")

JSON = Grammar.lark(r"""
    ?start: value
    ?value: object | array | ESCAPED_STRING | SIGNED_NUMBER | "true" | "false" | "null"
    array: "[" [value ("," value)*] "]"
    object: "{" [pair ("," pair)*] "}"
    pair: ESCAPED_STRING ":" value
    %import common (ESCAPED_STRING, SIGNED_NUMBER, WS)
    %ignore WS
""")

SQL = Grammar.lark(r"""
    start: "select"i columns "from"i NAME [where] ";"?
    columns: "*" | NAME ("," NAME)*
    where: "where"i condition (("and"i | "or"i) condition)*
    condition: NAME OPERATOR value
    value: NUMBER | STRING
    OPERATOR: "<" "="? | ">" "="? | "="
    NAME.2: /[a-z_][a-z0-9_]*/
    STRING: "'" /[^']/* "'"
    NUMBER: "0".."9"+
    %ignore /\s+/
    %ignore COMMENT
    COMMENT: /--[^\n]*/
""")


def is_arithmetic(text: str) -> bool:
    """Whether Python reads `text` as sums and products of integers."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # 1(2) is a call, with a warning
            tree = ast.parse(text.strip(), mode="eval")
    except SyntaxError:
        return False
    allowed = (ast.Expression, ast.BinOp, ast.Constant, ast.Add, ast.Mult)
    return all(isinstance(node, allowed) for node in ast.walk(tree))


@settings(max_examples=500, deadline=None)
@given(st.text("12+*() ", max_size=12))
def test_sums_are_those_of_python(text: str) -> None:
    """A left-recursive grammar with ignored blanks matches what Python's own parser does."""
    assert matches(ARITHMETIC, text) == is_arithmetic(text)


@settings(max_examples=200, deadline=None)
@given(st.recursive(st.sampled_from(["1", "2 ", "12"]), lambda part: st.tuples(part, st.sampled_from("+*"), part).map(
    lambda found: f"({found[0]} {found[1]}{found[2]})"), max_leaves=8))  # fmt: skip
def test_nested_sums_are_matched(text: str) -> None:
    """Deeply bracketed sums are texts of the grammar, and not without one of their brackets."""
    assert matches(ARITHMETIC, text)
    assert not matches(ARITHMETIC, text + ")")


@settings(max_examples=200, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(st.characters(codec="utf-8"), max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3),
    ),
    st.sampled_from([None, 1]),
)
def test_json_is_matched(value: object, indent: int | None) -> None:
    """A JSON grammar matches what Python writes, and no part of it that is not whole."""
    text = json.dumps(value, indent=indent)
    assert matches(JSON, text)
    assert not matches(JSON, text + "]")


@pytest.mark.parametrize(
    "text",
    ["select * from t", "SELECT a,b FROM t where a>=1 And b='x y' ;", "select a -- what\n from t", " select*from t "],
)
def test_queries(text: str) -> None:
    """Strings without case, terminals of terminals, and two ignored terminals."""
    assert matches(SQL, text)


@pytest.mark.parametrize(
    "text", ["select from t", "select * from t where", "select a b from t", "select * from t = 1", ""]
)
def test_what_is_no_query(text: str) -> None:
    """Parts that the rules ask for must be there."""
    assert not matches(SQL, text)


@pytest.mark.parametrize(
    ("source", "good", "bad"),
    [
        ('start: "a"~3', ["aaa"], ["aa", "aaaa"]),
        ('start: "a"~1..2 "b"*', ["a", "aab", "abbb"], ["b", "aaa"]),
        ('start: ["a" | "b"] "c"', ["c", "ac", "bc"], ["abc", "a"]),
        ('start: A+\nA: "x".."z" | "\\u00e9" | "\\x41"', ["xyz", "é", "A"], ["w", ""]),
        ('start: "straße"i', ["STRAßE", "straße"], ["strasse"]),
        ("start: /a.c/s /[xy]+/i", ["a\ncXy", "abcY"], ["ac", "abcz"]),
        (r'start: "\"" /\// "\\"', ['"/\\'], ['"/']),
        ('start: a | b\na: "x"\n | "y"\n\nb:\n', ["x", "y", ""], ["z"]),
        ('!start: b\n?b.3: C -> d\n | "e" -> f # comment\nC.-1: "c"', ["c", "e"], ["f"]),
        ('start: "a" "b"\n%ignore " "', ["ab", " a  b ", "a b"], ["a\tb"]),
        ('start: AB\nAB: "a" "b"\n%ignore " "', ["ab", " ab "], ["a b"]),
        (
            'start: WORD "=" N\n%import common.WORD\n%import common.SIGNED_NUMBER -> N',
            ["x=-1.5e3", "y=2."],
            ["x=", "1=1"],
        ),
        ('start: start "," "x" | "x"', ["x", "x,x,x"], ["x,", ""]),
        ('start: start start | "a" | ', ["", "a", "aaaa"], ["b"]),
        ('start: "a"? b\nb: "c"', ["c", "ac"], ["a"]),
    ],
)
def test_notation(source: str, good: list[str], bad: list[str]) -> None:
    """Each part of the notation says what it says in Lark."""
    grammar = Grammar.lark(source)
    assert [text for text in good if not matches(grammar, text)] == []
    assert [text for text in bad if matches(grammar, text)] == []


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("NUMBER", ["1", "1.", ".5", "1e5", "1.5E-3"], ["-1", "e5", "."]),
        ("FLOAT", ["1.", ".5", "1e5"], ["1"]),
        ("ESCAPED_STRING", ['"a"', r'"a\"b"', '""'], ['"', '"a"b"', '"a\nb"', r'"\"']),
        ("C_COMMENT", ["/**/", "/* a * b\n **/"], ["/*/", "/* */ */"]),
        ("CNAME", ["_a1"], ["1a", ""]),
        ("NEWLINE", ["\n", "\r\n\n"], ["\r"]),
    ],
)
def test_common_terminals(name: str, good: list[str], bad: list[str]) -> None:
    """Imported terminals match what those of Lark's library do."""
    grammar = Grammar.lark(f"start: {name}\n%import common.{name}")
    assert [text for text in good if not matches(grammar, text)] == []
    assert [text for text in bad if matches(grammar, text)] == []


@pytest.mark.parametrize("name", COMMON_TERMINALS)
def test_every_common_terminal_can_be_imported(name: str) -> None:
    """Each has some text, and none is empty."""
    assert not matches(Grammar.lark(f"start: {name}\n%import common.{name}"), "")


def test_another_rule_may_be_the_start() -> None:
    """`start` names the rule where texts begin."""
    assert matches(Grammar.lark('a: "x"', start="a"), "x")


@pytest.mark.parametrize(
    ("source", "pointer", "message"),
    [
        ("", "", "has no rules"),
        ('begin: "a"', "", "did you mean start='begin'?|its rules are: begin"),
        ("start: item\nitems: /a/", "line 1, column 8", "did you mean 'items'?"),
        ("start: NUMBER", "line 1, column 8", "%import common.NUMBER"),
        ('start: "a"\n\nstart: "b"', "line 3, column 1", "defined twice; first at line 1, column 1"),
        ('start: "a', "line 1, column 8", "no closing"),
        ("start: /a", "line 1, column 8", "no closing /"),
        ("start: 'a'", "line 1, column 8", "double quotes"),
        ('start: ("a"', "line 1, column 8", "missing ')'"),
        ('start: ["a"', "line 1, column 8", "missing ']'"),
        ('start: "a" )', "line 1, column 12", "found ')'"),
        ("start: *", "line 1, column 8", "nothing to repeat"),
        ('start: "a"~3..2', "line 1, column 11", "is empty"),
        ('start: "a"~9999999999', "line 1, column 11", "billion"),
        ('start: ""', "line 1, column 8", "empty string"),
        (r'start: "\q"', "line 1, column 8", r"unknown escape \q"),
        ('start: "z".."a"', "line 1, column 8", "a range is"),
        ("start: A\nA: /a*/", "line 2, column 1", "may be empty"),
        ("start: A\nA: b\nb: /c/", "line 2, column 4", "may have terminals only"),
        ('start: A\nA: "a" B\nB: "b" A', "line 3, column 8", "made of itself"),
        ("start: /(/", "line 1, column 8", "missing"),
        ("start: A\n%import common.NUMBR -> A", "line 2, column 1", "did you mean 'NUMBER'?"),
        ("%unknown x", "line 1, column 1", "unknown directive '%unknown'"),
        ("start = x", "line 1, column 1", "expected 'name: ...'"),
    ],
)
def test_mistakes_are_shown(source: str, pointer: str, message: str) -> None:
    """The error says what is wrong, where, and what may be meant."""
    with pytest.raises(GrammarError) as caught:
        matches(Grammar.lark(source), "")
    assert caught.value.pointer == pointer
    assert any(part in str(caught.value) for part in message.split("|"))


@pytest.mark.parametrize(
    ("source", "pointer", "feature"),
    [
        ("start: A\n%declare A", "line 2, column 1", "%declare"),
        ("start: a\n%import .other.a", "line 2, column 1", "%import"),
        ("start: list{A}\nlist{x}: x+\nA: /a/", "line 1, column 8", "template"),
        ("list{x}: x+\nstart: list{A}", "line 1, column 1", "template"),
        ("start: /^a/", "line 1, column 8", "anchor"),
        ('start: "a"\n%override b: "c"', "line 2, column 1", "%override"),
        (r"start: /(a)\1/", "line 1, column 8", "backreference"),
    ],
)
def test_refusals_name_the_feature(source: str, pointer: str, feature: str) -> None:
    """What is legal in Lark but not supported is refused by name."""
    with pytest.raises(UnsupportedGrammarError) as caught:
        matches(Grammar.lark(source), "")
    assert caught.value.pointer == pointer
    assert feature in str(caught.value)


def test_a_rule_without_texts_is_shown() -> None:
    """A rule that never ends is named with its place."""
    with pytest.raises(UnsatisfiableGrammarError, match="'a' matches no text") as caught:
        matches(Grammar.lark('start: "x" | a\na: "y" a'), "x")
    assert caught.value.pointer == "line 2, column 1"
