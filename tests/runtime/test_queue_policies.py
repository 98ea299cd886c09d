"""Orders of the waiting queue."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes import make_request
from tests.program_calls import make_call

from palmette.runtime.admission import OutputEstimate
from palmette.runtime.config import EngineConfig, Policy
from palmette.runtime.errors import RequestError
from palmette.runtime.kv_memory import KVMemory
from palmette.runtime.program_table import DECODE_WEIGHT, ProgramTable
from palmette.runtime.queue_policies import (
    REFRESHED,
    WEIGHED,
    WINDOW,
    FirstComeFirstServed,
    HeaviestSubtreeFirst,
    LeastWorkFirst,
    LongestPrefixMatch,
    queue_policy,
    siblings_together,
)
from palmette.runtime.request import Request

LONG = list(range(3, 40))


def cached(*prompts: list[int], num_pages: int = 4000, page_size: int = 1, namespace: str = "") -> KVMemory:
    """A KV memory whose radix cache holds these prompts."""
    memory = KVMemory(num_pages, page_size)
    for prompt in prompts:
        cache(memory, prompt, namespace)
    return memory


def cache(memory: KVMemory, prompt: list[int], namespace: str = "") -> None:
    request = make_request("cached", prompt)
    request.namespace = namespace
    memory.attach(request, memory.match(request))
    memory.reserve(request, request.remaining)
    request.num_computed = request.end
    memory.release(request)


def requests(*prompts: list[int], groups: str = "") -> list[Request]:
    """Requests in order of arrival; groups[i] names the group of the i-th."""
    made = [
        make_request(str(i), prompt, group=groups[i] if groups and groups[i] != "-" else None)
        for i, prompt in enumerate(prompts)
    ]
    for arrival, request in enumerate(made):
        request.arrival = arrival
    return made


def prefixes(*lengths: int) -> list[list[int]]:
    """Prompts that share so many tokens with LONG."""
    return [[*LONG[:length], 1, 1] for length in lengths]


def names(ordered: list[Request]) -> str:
    return "".join(request.id for request in ordered)


def test_fcfs_keeps_the_order_of_arrival() -> None:
    """First come, first served."""
    assert names(FirstComeFirstServed().order(requests([3], [4], [5]))) == "012"


def test_lpm_takes_the_longest_match_first() -> None:
    """Longest match first; equals in order of arrival."""
    assert names(LongestPrefixMatch(cached(LONG)).order(requests(*prefixes(1, 9, 5, 9)))) == "1320"


def test_lpm_keeps_siblings_together() -> None:
    """A group follows its best member."""
    policy = LongestPrefixMatch(cached(LONG))
    assert names(policy.order(requests(*prefixes(1, 9, 5, 8), groups="a-ba"))) == "1302"
    assert names(siblings_together(requests([3], [3], [3], [3], groups="abab"))) == "0213"


def test_lpm_looks_within_the_name_space() -> None:
    """What another name space has cached is no match."""
    memory = cached(LONG, namespace="other")
    waiting = requests(*prefixes(1, 9))
    assert names(LongestPrefixMatch(memory).order(waiting)) == "01"
    waiting[1].namespace = "other"
    assert names(LongestPrefixMatch(memory).order(waiting)) == "10"


def test_lengths_are_looked_up_anew_when_the_tree_grew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Match lengths are kept until something was inserted, and then a bounded number is looked up in a step."""
    memory = cached()
    looked_up: list[str] = []
    match = memory.match

    def counted(request: Request) -> object:
        looked_up.append(request.id)
        return match(request)

    monkeypatch.setattr(memory, "match", counted)
    policy, waiting = LongestPrefixMatch(memory), requests(*prefixes(*[1] * WINDOW))
    policy.order(waiting)
    policy.order(waiting)
    assert len(looked_up) == WINDOW
    cache(memory, LONG)
    looked_up.clear()
    policy.order(waiting)
    assert len(looked_up) == REFRESHED
    for _ in range(2):
        policy.order(waiting)
    assert set(looked_up) == {request.id for request in waiting}


def test_lengths_of_requests_long_gone_are_forgotten() -> None:
    """The lengths kept stay bounded, however many requests come and go."""
    policy = LongestPrefixMatch(cached())
    for i in range(1000):
        policy.order([make_request(str(i), [3])])
    assert len(policy._cached._known) <= 5 * WINDOW


def test_the_heaviest_subtree_goes_first() -> None:
    """Two requests below one branch weigh more than one below another with a longer match; a node goes before below."""
    memory = cached([3, 4, 5, 6, 7], [3, 4, 9, 9], [8, 8, 8, 8, 8, 8])
    waiting = requests([8, 8, 8, 8, 8, 8, 1], [40, 40], [3, 4, 9, 9, 1], [3, 4, 5, 6, 1], [3, 4, 5, 6, 2], [3, 4, 1])
    # below 3 4: five, six and seven have two requests, nine one, and one stops at 3 4 itself
    assert names(HeaviestSubtreeFirst(memory).order(waiting)) == "534201"


def least_work(*waiting: Request, memory: KVMemory | None = None) -> str:
    """The order of requests that came like this and belong to programs of their own, or to none."""
    table = ProgramTable()
    for arrival, request in enumerate(waiting):
        request.arrival = arrival
        table.enter(request)
    estimate = OutputEstimate()
    estimate.ratio = 0.5
    return names(LeastWorkFirst(memory or cached(), estimate).order(list(waiting)))


def test_the_least_work_goes_first() -> None:
    """What is cached is none; of the answer half is expected, and each token of it counts three times."""
    waiting = [
        make_request("a", LONG, max_tokens=2),
        make_request("b", [3] * 20, max_tokens=2),
        make_request("c", [9, 9], max_tokens=16),
        make_request("d", [9, 9], max_tokens=1, kind="score", score_from=1),
    ]
    assert least_work(*waiting) == "dbca"
    assert least_work(*waiting, memory=cached(LONG)) == "dabc"
    assert DECODE_WEIGHT == 3
    assert names(LeastWorkFirst(cached(), OutputEstimate()).order(requests([3], [4], [5], [6]))) == "0123"


def test_calls_that_come_later_are_work() -> None:
    """A short call of a long program is not short."""
    long = make_call("l", "l", [3], later_tokens=100)
    middle = make_call("m", "m", [3] * 20)
    assert least_work(long, middle, make_call("s", "s", [3] * 5)) == "sml"


def test_what_earlier_runs_took_is_work() -> None:
    """As long as the program has not done it."""
    heavy, light = make_call("h", "h", [3], name="heavy"), make_call("l", "l", [3] * 50, name="light")
    table = ProgramTable()
    for request in (heavy, light):
        table.enter(request)
    assert heavy.program is not None
    heavy.program.kind.work.add(1000.0)
    policy = LeastWorkFirst(cached(), OutputEstimate())
    assert names(policy.order([heavy, light])) == "lh"
    heavy.program.work = 970.0
    assert names(policy.order([heavy, light])) == "hl"


def test_least_work_keeps_siblings_together() -> None:
    """A group follows its best member. It needs no radix cache: then nothing is cached."""
    waiting = requests([3] * 9, [3] * 2, [3] * 5, [3] * 7, groups="a-ba")
    memory = KVMemory(16, 1, radix_cache=False)
    assert names(queue_policy("least-work", memory, OutputEstimate()).order(waiting)) == "1230"


def test_deep_trees_need_no_recursion() -> None:
    """A tree of thousands of nodes on one path is ordered."""
    sequence = [3 + i % 40 for i in range(4000)]
    memory = cached(sequence, num_pages=10_000)
    for length in range(3999, 0, -2):
        cache(memory, [*sequence[:length], 1])
    waiting = requests([*sequence, 1], sequence[:9])
    assert names(HeaviestSubtreeFirst(memory).order(waiting)) == "10"


@pytest.mark.parametrize("name", ["fcfs", "lpm", "dfs-weight", "least-work", "random"])
@given(lengths=st.lists(st.integers(0, 37), min_size=1, max_size=WEIGHED + 20))
def test_every_policy_offers_everybody_once(name: Policy, lengths: list[int]) -> None:
    """An order leaves nobody out and invents nobody."""
    waiting = requests(*prefixes(*lengths))
    ordered = queue_policy(name, cached(LONG, [*LONG[:9], 2, 2]), OutputEstimate(), 7).order(waiting)
    assert sorted(request.arrival for request in ordered) == list(range(len(lengths)))


def test_random_is_the_same_for_the_same_seed() -> None:
    """A seed gives one sequence of orders, and another seed another one."""
    waiting = requests(*[[3]] * 50)
    first, again, other = (queue_policy("random", cached(), OutputEstimate(), seed) for seed in (1, 1, 2))
    orders = [[names(policy.order(waiting)) for _ in range(3)] for policy in (first, again, other)]
    assert orders[0] == orders[1] != orders[2]
    assert len(set(orders[0])) == 3


def test_without_a_cache_there_is_nothing_to_match() -> None:
    """The policies that look at the radix cache fall back to the order of arrival where it is off."""
    without = KVMemory(4, 1, radix_cache=False)
    for name, kind in (("lpm", LongestPrefixMatch), ("dfs-weight", HeaviestSubtreeFirst)):
        policy: Policy = "lpm" if name == "lpm" else "dfs-weight"
        assert isinstance(queue_policy(policy, without, OutputEstimate()), FirstComeFirstServed)
        assert isinstance(queue_policy(policy, KVMemory(4, 1), OutputEstimate()), kind)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"policy": "dfs_weight"},
            "one of fcfs, lpm, dfs-weight, least-work, random, not .dfs_weight.; did you mean .dfs-weight.?",
        ),
        ({"policy": None}, "not None"),
        ({"max_wait_s": -1}, "max_wait_s must be a number of seconds from 0 to 1e"),
        ({"max_wait_s": None}, "max_wait_s must be a number of seconds from 0 to 1e[+]06, not None"),
        ({"max_wait_s": float("nan")}, "not nan"),
        ({"max_wait_s": True}, "not True"),
        ({"max_wait_s": "2"}, "not '2'"),
        ({"request_timeout_s": 0}, "request_timeout_s must be a number of seconds from 0.001 to 1e[+]06, or None"),
        ({"request_timeout_s": float("inf")}, "not inf"),
        ({"max_queued_requests": 0}, "max_queued_requests must be a whole number of at least 1, not 0"),
        ({"max_queued_requests": 1.5}, "not 1.5"),
    ],
)
def test_settings_are_checked(settings: dict[str, object], message: str) -> None:
    """A wrong setting is refused with its name, what is allowed, and what was given."""
    with pytest.raises(RequestError, match=message):
        EngineConfig(**settings)  # type: ignore[arg-type]  # that is what is tested


def test_good_settings_are_taken() -> None:
    """Whole numbers and fractions of seconds are both fine, and no limit is None."""
    config = EngineConfig(policy="random", max_wait_s=0, request_timeout_s=0.5, max_queued_requests=1)
    assert (config.max_wait_s, config.request_timeout_s) == (0, 0.5)
    assert EngineConfig().request_timeout_s is None
