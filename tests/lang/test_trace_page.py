"""The page of a trace, in a browser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.runtime.server.chromium import Chromium, find_chromium

import palmette as pt
from palmette.lang.source_line import SourceLine
from palmette.lang.trace import trace_of
from palmette.lang.tree import NodeRecord, ProgramTree
from palmette.runtime.program import (
    ChoiceScore,
    Completion,
    Failed,
    Fork,
    Generate,
    Generated,
    Node,
    NodeUsage,
    Select,
    Selected,
    Text,
    Timings,
    TokenLogprob,
    TopLogprob,
)
from palmette.runtime.sampling_params import SamplingParams

EVIL = "</script><script>document.title = 'in'</script><img src=x onerror=\"document.title = 'in'\"> {{data}}"
LONG = "A long text. " * 100
PARAMS = SamplingParams()


def answer(*tokens: tuple[str, float], forced: tuple[tuple[int, int], ...] = (), steps: tuple[int, int]) -> Completion:
    others = TopLogprob(7, -1.5, "<b>")
    return Completion(
        text="".join(text for text, _ in tokens), token_ids=(), finish_reason="stop", prompt_tokens=12,
        cached_tokens=5, completion_tokens=len(tokens), forced_tokens=len(forced), forced_ranges=forced,
        logprobs=tuple(TokenLogprob(1, value, (TopLogprob(1, value, text), others), text) for text, value in tokens),
        timings=Timings(start_s=0.01 * steps[0], end_s=0.01 * steps[1], queue_s=0.005, first_token_s=0.02,
                        first_step=steps[0], last_step=steps[1], batch_size=2.5),
    )  # fmt: skip


def tree() -> ProgramTree:
    """Every kind of text, two branches that share steps, a select with scores, an evil text, a long one, a failure."""
    left = answer(('{"a": ', -0.9), ("12", -0.25), ("}", -3.0), forced=((0, 6), (8, 9)), steps=(3, 8))
    right = answer(("<i>", -0.1), (" so", -0.2), steps=(7, 9))
    timings = Timings(start_s=0.1, end_s=0.12, first_step=10, last_step=10, batch_size=1)
    nodes: list[tuple[Node, int]] = [
        (Text(0, None, "<|user|>\n", template=True), 0),
        (Text(1, 0, EVIL), 0),
        (Text(2, 1, LONG), 0),
        (Fork(3, 2, 2), 0),
        (Generate(4, 3, PARAMS), 1),
        (Text(5, 3, "Second: "), 2),
        (Generate(6, 5, PARAMS), 2),
        (Select(7, 3, ("yes", "no")), 0),
        (Generate(8, 7, PARAMS), 0),
    ]
    built = ProgramTree()
    for node, branch in nodes:
        built.add(NodeRecord(node, branch, SourceLine("folder/judge.py", 10 + node.id, "judge"), f"v{node.id}"))
        if isinstance(node, Fork):
            built.open_branches(node)
    used = (NodeUsage(1, reused=20), NodeUsage(2, computed=300))
    built.apply(Generated(4, (left,), (*used, NodeUsage(4, computed=2, forced=1))))
    built.apply(Generated(6, (right,), (NodeUsage(6, computed=2),)))
    scores = (ChoiceScore((1,), (-0.4,)), ChoiceScore((2, 3), (-1.0, -2.0)))
    built.apply(Selected(7, 0, scores, prompt_tokens=12, timings=timings))
    built.apply(Failed(8, "RequestError", EVIL))
    return built


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    program = find_chromium()
    if program is None:
        pytest.skip("no Chromium is installed")
    with Chromium(program, tmp_path_factory.mktemp("profile")) as chromium:
        yield chromium


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trace_of("judge <b>", tree(), "tiny").save(tmp_path_factory.mktemp("trace") / "trace.html")


@pytest.fixture
def page(browser: Chromium, page_file: Path) -> Iterator[Chromium]:
    """The page, freshly opened, wide and light. At the end nothing was complained of and nothing was loaded."""
    browser.problems.clear()
    browser.resize(1400, 1000)
    browser.prefer(dark=False)
    browser.open(f"file://{page_file}")
    yield browser
    assert browser.problems == []
    loaded = browser.run("performance.getEntriesByType('resource').map(entry => entry.name)")
    assert loaded == []


def row(node: int) -> str:
    return f".node[data-id='{node}']"


def segments(page: Chromium, node: int) -> list[list[str]]:
    """Kind and text of the parts of a node."""
    script = f'[...document.querySelectorAll("{row(node)} .seg")].map(e => [e.classList[1], e.textContent])'
    found: list[list[str]] = page.run(script)
    return found


def test_texts_are_told_apart(page: Chromium) -> None:
    """Prompt, reused, generated, forced and chosen text have each a colour of their own, which the legend explains."""
    assert segments(page, 4) == [["forced", '{"a": '], ["generated", "12"], ["forced", "}"]]
    assert segments(page, 1) == [["reused", EVIL]]
    assert segments(page, 2) == [["prompt", LONG]]
    assert segments(page, 7) == [["chosen", "yes"]]
    legend = page.run("[...document.querySelectorAll('#legend .seg')].map(e => e.textContent)")
    assert legend == ["prompt", "reused", "generated", "forced", "chosen"]
    colours = page.run("[...document.querySelectorAll('#legend .seg')].map(e => getComputedStyle(e).backgroundColor)")
    assert len(set(colours)) == 5
    page.prefer(dark=True)
    dark = page.run("[...document.querySelectorAll('#legend .seg')].map(e => getComputedStyle(e).backgroundColor)")
    assert len(set(dark)) == 5
    assert not set(dark[1:]) & set(colours[1:])


def test_program_text_is_text(page: Chromium) -> None:
    """Whatever texts, names and errors hold, none of it is markup: it is shown as it is."""
    assert page.run("document.title") == "judge <b>: trace"
    assert page.text("#name") == "judge <b>"
    assert page.text(f"{row(1)} .text") == EVIL
    assert EVIL in page.text(f"{row(8)} .error")
    assert page.run("document.querySelectorAll('img').length") == 0


def test_a_token_says_its_probability_under_the_mouse(page: Chromium) -> None:
    """Hovering shows the token, its log-probability, what else was likely there, and that the grammar forced it."""
    assert page.run("document.getElementById('tip').hidden")
    page.hover(f"{row(4)} .token:nth-child(1)")
    tip = page.text("#tip")
    assert '{"a":␣' in tip
    assert "log-probability -0.900" in tip
    assert "41 %" in tip
    assert "forced by the grammar" in tip
    assert "<b>" in tip
    page.hover(f"{row(4)} .generated .token")
    assert "log-probability -0.250" in page.text("#tip")
    assert "forced" not in page.text("#tip")
    box = page.run("(b => [b.left, b.top, innerWidth - b.right, innerHeight - b.bottom])(tip.getBoundingClientRect())")
    assert min(box) >= 0
    page.hover("#name")
    assert page.run("document.getElementById('tip').hidden")


def test_choices_say_their_scores(page: Chromium) -> None:
    """A select's choices and how likely each was, under the mouse and in the details."""
    page.hover(f"{row(7)} .chosen")
    assert "yes" in page.text("#tip")
    assert "22 %" in page.text("#tip")  # of "no": the mean of -1 and -2
    page.run("choose(7)")
    rows = page.run(
        "[...document.querySelectorAll('#details table tr')].map(e => [...e.cells].map(c => c.textContent))"
    )
    assert rows[1:] == [["yes", "-0.400", "-0.400"], ["no", "-3.000", "-1.500"]]


def test_details_have_times_and_batch_mates(page: Chromium) -> None:
    """Choosing a node shows its line, tokens, times, steps and who shared them; the mates are marked and lead on."""
    page.run(f'document.querySelector("{row(4)} .head").click()')
    details = page.run("document.getElementById('details').innerText")
    assert "judge.py:14 · branch 1 · node 4" in details
    for line in ("prompt\n12", "of it reused\n5", "queue\n5.0 ms", "first token after\n20.0 ms", "decode\n30.0 ms",
                 "steps of the engine\n3 to 8", "requests in a step, mean\n2.5"):  # fmt: skip
        assert line in details
    assert "1 of this program ran in the same steps" in details
    assert page.run("[...document.querySelectorAll('.node.mate')].map(e => e.dataset.id)") == ["6"]
    assert page.run("[...document.querySelectorAll('.call.mate')].map(e => e.dataset.id)") == ["6"]
    page.run("document.querySelector('.mates button').click()")
    assert page.run("document.querySelector('#details h3').textContent") == "gen v6"
    page.run("document.querySelector('#details .close').click()")
    assert page.run("document.getElementById('details').hidden")


def test_the_timeline_has_a_bar_a_call(page: Chromium) -> None:
    """Bars stand by branch and time, their parts as long as queue, prefill and decode; a click chooses the node."""
    names = page.run("[...document.querySelectorAll('#chart .names div')].map(e => e.textContent)")
    assert names == ["branch 0", "branch 1", "branch 2"]
    bars = page.run("[...document.querySelectorAll('.call')].map(e => [e.dataset.id, e.style.left, e.style.width])")
    assert [bar[0] for bar in bars] == ["7", "4", "6"]
    assert [float(bar[1].rstrip("%")) for bar in bars] == pytest.approx([83.33, 25, 58.33], abs=0.1)
    parts = page.run("[...document.querySelectorAll(\".call[data-id='4'] .phase\")].map(e => e.offsetWidth)")
    whole = sum(parts)
    assert [part / whole for part in parts] == pytest.approx([0.1, 0.3, 0.6], abs=0.02)
    page.run("document.querySelector(\".call[data-id='6']\").click()")
    assert page.run("chosen") == 6
    width = page.run("document.querySelector('.plot').offsetWidth")
    page.run("zoom.value = 2; zoom.dispatchEvent(new Event('input'))")
    assert page.run("document.querySelector('.plot').offsetWidth") == pytest.approx(4 * width, rel=0.02)


def test_long_texts_and_branches_fold(page: Chromium) -> None:
    """A long text shows its beginning until it is opened; a branch closes to one line that says what is in it."""
    height = page.run(f'document.querySelector("{row(2)}").offsetHeight')
    page.run(f'document.querySelector("{row(2)} .more").click()')
    assert page.run(f'document.querySelector("{row(2)}").offsetHeight') > height
    assert page.text(f"{row(2)} .more") == "Show less"
    page.run("document.querySelector('.opener').click()")
    assert page.run(f'document.querySelector("{row(4)}").offsetParent') is None
    assert page.text(".opener") == 'branch 11 nodes: {"a": 12}'
    page.run("document.getElementById('unfold').click()")
    assert page.run(f'document.querySelector("{row(4)}").offsetParent !== null')
    page.run("template.click()")
    assert page.run(f'document.querySelector("{row(0)}").offsetParent') is None


def test_keys_walk_the_tree(page: Chromium) -> None:
    """One tab stop; arrows move, unfold and fold; what is folded is passed over; Escape closes the details."""
    press = "key => document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true}))"
    assert page.run("document.querySelectorAll(\"#tree [tabindex='0']\").length") == 1
    page.run("document.querySelector(\"#tree [tabindex='0']\").focus()")
    page.run(f"['ArrowDown', 'ArrowDown', 'ArrowRight'].forEach({press})")
    assert page.run("chosen") == 2
    assert page.text(f"{row(2)} .more") == "Show less"
    page.run(f"['ArrowLeft', 'ArrowDown', 'ArrowLeft', 'ArrowDown'].forEach({press})")
    assert page.run("chosen") == 7  # both branches of the fork are closed
    page.run(f"['ArrowUp', 'ArrowRight', 'ArrowDown', 'ArrowLeft'].forEach({press})")
    assert page.run("chosen") == 3  # from the branch up to its fork
    page.run(f"['End'].forEach({press})")
    assert page.run("document.activeElement.dataset.id") == "8"
    page.run(f"['Escape'].forEach({press})")
    assert page.run("document.getElementById('details').hidden")


@pytest.mark.parametrize("width", [400, 1400])
def test_nothing_is_wider_than_the_window(page: Chromium, width: int) -> None:
    """Narrow or wide, with the details open, the page itself does not scroll sideways."""
    page.resize(width, 800)
    page.run("choose(4)")
    assert page.run("document.documentElement.scrollWidth") <= width
    assert page.run("details.getBoundingClientRect().bottom") <= 801


def test_a_thousand_nodes(browser: Chromium, tmp_path: Path) -> None:
    """A run of over a thousand nodes is drawn, and choosing one of many mates stays quick to answer."""

    @pt.function
    def program(s: pt.ProgramState) -> None:
        branches = s.fork(350)
        branches += lambda place: f"Case {place}: " + pt.gen("x") + "."
        branches.join()

    backend = pt.MockBackend({"": "because of this and that"})
    state = program.run(backend=backend, logprobs=2, return_text_in_logprobs=True)
    browser.problems.clear()
    browser.resize(1400, 1000)
    browser.open(f"file://{state.trace().save(tmp_path / 'many.html')}")
    assert browser.run("document.querySelectorAll('.node').length") == len(state.tree.nodes) > 1000
    assert browser.run("document.querySelectorAll('.token').length") > 1500
    browser.run("foldAll(true); choose(trace.nodes.findLast(node => node.kind === 'gen').id)")
    assert browser.run("document.activeElement.getBoundingClientRect().bottom <= innerHeight")
    assert browser.problems == []


def test_the_file_is_whole_by_itself(page_file: Path) -> None:
    """The page names no other file or address, and its own policy would not let it load one."""
    text = page_file.read_text(encoding="utf-8")
    assert "default-src 'none'" in text
    assert " src=" not in text.replace("img src=x", "")
    assert "http" not in text.replace("http-equiv", "")
    data = text.split('type="application/json">')[1].split("</script>")[0]
    assert "<" not in data
    assert len(json.loads(data)["nodes"]) == 9


def test_any_text_can_be_saved(tmp_path: Path) -> None:
    """Lone surrogates and control characters do not keep a trace from being written."""
    built = ProgramTree()
    built.add(NodeRecord(Text(0, None, "\ud800 \x00 \u2028"), 0, SourceLine("p.py", 1, "p"), None))
    trace = trace_of("\ud800", built, "")
    assert msgspec.json.decode(trace.save(tmp_path / "a.json").read_bytes())
    assert trace.save(tmp_path / "a.html").read_bytes()
