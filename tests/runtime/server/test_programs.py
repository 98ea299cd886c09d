"""`/programs` and `/channels` on a real server."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.native_server import ServedEngine, served, wait_until_empty

from palmette.runtime.engine import Engine
from palmette.runtime.server import held_programs, programs
from palmette.runtime.server_settings import ServerSettings

Node = dict[str, Any]


@pytest.fixture
def client(tiny_server: ServedEngine) -> Iterator[httpx.Client]:
    """A client of the server around the tiny engine."""
    with httpx.Client(base_url=tiny_server.url, timeout=60) as client:
        yield client


def text(node: int, parent: int | None, words: str) -> Node:
    return {"type": "text", "id": node, "parent": parent, "text": words}


def gen(node: int, parent: int | None, *, stream: bool = False, **params: Any) -> Node:
    return {"type": "generate", "id": node, "parent": parent, "params": {"max_tokens": 6, **params}, "stream": stream}


AS_JSON = {"content-type": "application/json"}
LONG = [text(0, None, "Long"), gen(1, 0, stream=True, max_tokens=400, ignore_eos=True)]
BRANCHES = [
    text(0, None, "The river"),
    gen(1, 0, stream=True),
    gen(2, 0, stream=True, seed=3),
    {"type": "select", "id": 3, "parent": 1, "choices": [" good", " bad"]},
    {"type": "reference", "id": 4, "parent": 2, "source": 1},
    gen(5, 4),
]


def opened(client: httpx.Client, **body: Any) -> str:
    """The id of a new program."""
    answer = client.post("/programs", json=body)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def parsed(stream: str) -> list[dict[str, Any]]:
    """Server-sent events as dicts of their fields, data decoded."""
    found = []
    for block in stream.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line)
        if "data" in fields:
            found.append({**fields, "data": json.loads(fields["data"])})
    return found


def events_of(client: httpx.Client, program: str, after: int | None = None) -> list[dict[str, Any]]:
    """The program's events until all of it is done."""
    headers = {} if after is None else {"Last-Event-ID": str(after)}
    answer = client.get(f"/programs/{program}/events?until_done=1", headers=headers)
    assert answer.status_code == 200, answer.text
    return parsed(answer.text)


def error_of(answer: httpx.Response) -> tuple[int, str | None, str]:
    error = answer.json()["error"]
    return answer.status_code, error["param"], error["message"]


# -- one program -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", [{"params": {"stream": 1}}, {"headers": {"accept": "text/event-stream"}}])
def test_a_whole_program_in_one_request(client: httpx.Client, asked: dict[str, Any]) -> None:
    """Nodes go out with the opening, events come back on the answer, which ends when all is done."""
    first, *events, last = parsed(client.post("/programs", json={"nodes": BRANCHES}, **asked).text)
    assert first["event"] == "open"
    assert last == {"event": "end", "data": {"reason": "all of it is done"}}
    ends = {event["data"]["node"]: event["data"]["type"] for event in events if event["data"]["type"] != "delta"}
    assert ends == {1: "generated", 2: "generated", 3: "selected", 5: "generated"}
    for node in (1, 2):
        end = next(e["data"] for e in events if e["data"]["node"] == node and e["data"]["type"] == "generated")
        pieces = [e["data"]["text"] for e in events if e["data"]["node"] == node and e["data"]["type"] == "delta"]
        assert "".join(pieces) == end["completions"][0]["text"]
    assert client.post(f"/programs/{first['data']['id']}/extend", json={"nodes": []}).status_code == 404


def test_a_program_grows_while_it_runs(client: httpx.Client) -> None:
    """Open, extend, listen, extend, listen and delete: every generation ends once."""
    program = opened(client)
    assert client.post(f"/programs/{program}/extend", json={"nodes": [text(0, None, "a"), gen(1, 0)]}).text == "{}"
    assert [event["data"]["node"] for event in events_of(client, program)] == [1]
    client.post(f"/programs/{program}/extend", json={"nodes": [text(2, 1, "b"), gen(3, 2)]})
    assert [event["data"]["node"] for event in events_of(client, program, after=1)] == [3]
    assert client.delete(f"/programs/{program}").status_code == 200
    assert "it was deleted" in error_of(client.delete(f"/programs/{program}"))[2]


def test_a_listener_goes_on_where_it_was_cut_off(client: httpx.Client) -> None:
    """Whatever the last event that it has had, the rest follows, and both parts make the whole."""
    program = opened(client, nodes=BRANCHES)
    whole = events_of(client, program)
    assert [int(event["id"]) for event in whole] == list(range(1, len(whole) + 1))
    assert events_of(client, program) == whole
    for after in (0, 1, len(whole) - 1, len(whole)):
        assert events_of(client, program, after=after) == whole[after:]


def test_a_lost_connection_does_not_end_the_program(client: httpx.Client) -> None:
    """What is generated while nobody listens is delivered to who comes back."""
    program = opened(client, nodes=[text(0, None, "Long"), gen(1, 0, stream=True, max_tokens=30, ignore_eos=True)])
    with client.stream("GET", f"/programs/{program}/events") as answer:
        first = next(line for line in answer.iter_lines() if line.startswith("id: "))
    whole = [*events_of(client, program, after=int(first[4:]) - 1)]
    pieces = [event["data"]["text"] for event in whole if event["data"]["type"] == "delta"]
    assert whole[-1]["data"]["completions"][0]["text"].endswith("".join(pieces))
    assert whole[-1]["data"]["completions"][0]["completion_tokens"] == 30


def test_a_new_listener_sends_the_old_one_away(client: httpx.Client) -> None:
    """One listener at a time: the stream of the one before ends without an end event."""
    program = opened(client)
    with client.stream("GET", f"/programs/{program}/events") as old:
        lines = old.iter_lines()
        assert next(lines) == ":"
        with client.stream("GET", f"/programs/{program}/events") as new:
            assert not [line for line in lines if line.startswith("event")]
            client.delete(f"/programs/{program}")
            assert '{"reason":"it was deleted"}' in new.read().decode()


@pytest.mark.parametrize("asked", ["7", "x", "-1", "9" * 30])
def test_events_that_are_not_there(client: httpx.Client, asked: str) -> None:
    """An id that is no number is a 400; one of which nothing is kept, a 410 that says so."""
    program = opened(client)
    answer = client.get(f"/programs/{program}/events", headers={"Last-Event-ID": asked})
    status, param, message = error_of(answer)
    assert (status, param) == (410 if asked == "7" else 400, "Last-Event-ID"), message
    client.delete(f"/programs/{program}")


@pytest.mark.parametrize("how", ["delete", "abort", "hang up"])
def test_programs_end_and_give_their_pages_back(client: httpx.Client, tiny_engine: Engine, how: str) -> None:
    """Deleting, aborting and leaving a one-request program each end what runs."""
    if how == "hang up":
        with client.stream("POST", "/programs?stream=1", json={"nodes": LONG}) as answer:
            next(line for line in answer.iter_lines() if line.startswith("id: "))
    else:
        program = opened(client, nodes=LONG)
        if how == "abort":
            assert client.post(f"/programs/{program}/abort").status_code == 200
            assert events_of(client, program)[-1]["data"]["kind"] == "RequestAbortedError"
        client.delete(f"/programs/{program}")
    wait_until_empty(tiny_engine)


def test_idle_programs_are_dropped(tiny_engine: Engine) -> None:
    """One that nobody listens to or extends ends with its time, one that is listened to does not."""
    settings = ServerSettings(idle_timeout_s=1.0)
    with served(tiny_engine, settings) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        kept = opened(client)
        with client.stream("GET", f"/programs/{kept}/events"):
            dropped = opened(client, nodes=LONG, idle_timeout_s=0.2)
            while client.post(f"/programs/{dropped}/abort").status_code == 200:
                time.sleep(0.5)
            time.sleep(1.2)
            assert client.post(f"/programs/{kept}/extend", json={"nodes": []}).status_code == 200
        assert "for 0.2 s" in error_of(client.delete(f"/programs/{dropped}"))[2]
        wait_until_empty(tiny_engine)
        status, param, message = error_of(client.post("/programs", json={"idle_timeout_s": 2}))
        assert (status, param, "at most 1 s" in message) == (400, "idle_timeout_s", True)


def test_programs_are_bounded(tiny_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """There are as many programs, nodes and waiting events as there may be, and errors that say so."""
    monkeypatch.setattr(programs, "MAX_PROGRAMS", 2)
    monkeypatch.setattr(held_programs, "MAX_NODES", 3)
    monkeypatch.setattr(held_programs, "PROGRAM_EVENT_BYTES", 1000)
    with served(tiny_engine) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        one, two = opened(client), opened(client)
        answer = client.post("/programs", json={})
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert error_of(client.post(f"/programs/{one}/extend", json={"nodes": BRANCHES}))[:2] == (400, "nodes")
        client.post(f"/programs/{two}/extend", json={"nodes": LONG})
        while (answer := client.post(f"/programs/{two}/extend", json={"nodes": []})).status_code == 200:
            time.sleep(0.05)
        assert "too many waited" in error_of(answer)[2]
        wait_until_empty(tiny_engine)
        assert server.on_loop(lambda: server.app.state.programs.open_programs) == 1


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        (b"", None, "not valid JSON"),
        (b"[", None, "array"),
        (b"\xff", None, "not valid JSON"),
        (b"{}", None, "required field `nodes`"),
        (b'{"node": []}', None, "node"),
        (b'{"nodes": [{"type": "txt", "id": 7}]}', "nodes[0].type", "(node 7)"),
        (b'{"nodes": [{"type": "text", "id": 7, "parent": null}]}', "nodes[0]", "field `text`"),
        (b'{"nodes": [{"type": "text", "id": 7, "parent": "x", "text": ""}]}', "nodes[0].parent", "got `str`"),
        (
            b'{"nodes": [{"type": "generate", "id": 7, "parent": null, "params": {"top_p": 2}}]}',
            "nodes[0].params",
            "(node 7): top_p must be a number from 0 to 1, not 2",
        ),
        (
            b'{"nodes": [{"type": "generate", "id": 7, "parent": null, "params": {"max_token": 2}}]}',
            "nodes[0].params",
            "(node 7): object contains unknown field `max_token`",
        ),
        (b'{"nodes": [{"type": "text", "id": 7, "parent": null, "text": "", "tmplate": 1}]}', "nodes[0]", "tmplate"),
        (b'{"nodes": [{"type": "text", "id": -7, "parent": null, "text": ""}]}', "nodes", "node id -7"),
        (b'{"nodes": [{"type": "text", "id": 2147483648, "parent": null, "text": ""}]}', "nodes", "up to 2147483647"),
        (b'{"nodes": [{"type": "text", "id": 7, "parent": 5, "text": ""}]}', "nodes", "node 7 continues node 5"),
        (b'{"nodes": [{"type": "reference", "id": 7, "parent": null, "source": 5}]}', "nodes", "refers to node 5"),
    ],
)
def test_bad_nodes_are_named(client: httpx.Client, body: bytes, param: str | None, said: str) -> None:
    """400 with the field's place and the node's id; the program goes on without them."""
    program = opened(client)
    status, named, message = error_of(client.post(f"/programs/{program}/extend", content=body, headers=AS_JSON))
    assert (status, named) == (400, param), message
    assert said in message
    client.post(f"/programs/{program}/extend", json={"nodes": [text(0, None, "a"), gen(1, 0)]})
    assert events_of(client, program)[-1]["data"]["type"] == "generated"
    client.delete(f"/programs/{program}")


def test_a_bad_grammar_fails_its_node(client: httpx.Client) -> None:
    """A node whose grammar cannot be compiled ends in a failed event, whatever its source is."""
    sources = [("regex", "("), ("json_schema", "no JSON"), ("choices", "{}"), ("ebnf", "7"), ("structural_tag", "[]")]
    nodes = [
        {**gen(place, None), "grammar": {"kind": kind, "source": source}}
        for place, (kind, source) in enumerate(sources)
    ]
    program = opened(client, nodes=[text(9, None, "a"), *({**node, "parent": 9} for node in nodes)])
    assert {event["data"]["type"] for event in events_of(client, program)} == {"failed"}
    client.delete(f"/programs/{program}")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"priority": 1 << 40}, "priority"),
        ({"cache_salt": "x" * 2000}, "cache_salt"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"name": "x" * 257}, "name"),
        ({"idle_timeout_s": -1}, "idle_timeout_s"),
        ({"idle_timeout_s": 1e9}, "idle_timeout_s"),
        ({"nodes": [text(0, 4, "a")]}, "nodes"),
    ],
)
def test_bad_options_open_nothing(
    client: httpx.Client, tiny_server: ServedEngine, body: dict[str, Any], param: str
) -> None:
    """400 with the option, and no program is left behind."""
    before = tiny_server.on_loop(lambda: tiny_server.app.state.programs.open_programs)
    assert error_of(client.post("/programs", json=body))[:2] == (400, param)
    assert tiny_server.on_loop(lambda: tiny_server.app.state.programs.open_programs) == before


def names_seen(engine: Engine) -> set[str]:
    """The names of programs whose requests have reached the scheduler."""
    return set(engine._scheduler._programs._kinds)


def test_the_name_of_a_program_reaches_the_scheduler(client: httpx.Client, tiny_engine: Engine) -> None:
    """Of programs and of those of channels; one without a name is like all others without."""
    for body in ({"name": "by http"}, {}):
        program = opened(client, nodes=[text(0, None, "a"), gen(1, 0)], **body)
        events_of(client, program)
        client.delete(f"/programs/{program}")
    path = f"/channels/{client.post('/channels').json()['id']}"
    messages = [
        {"type": "open", "program": 1, "options": {"name": "by channel"}},
        {"type": "extend", "program": 1, "nodes": [text(0, None, "a"), gen(1, 0)]},
    ]
    client.put(f"{path}/messages/1", json=messages)
    with client.stream("GET", f"{path}/events") as answer:
        assert any("generated" in line for line in answer.iter_lines() if line.startswith("data: "))
    client.delete(path)
    wait_until_empty(tiny_engine)
    assert names_seen(tiny_engine) >= {"by http", "by channel", "program"}


def test_what_an_open_program_goes_on_from_is_kept_until_it_ends(client: httpx.Client, tiny_engine: Engine) -> None:
    """Between its calls its pages are protected; when it is deleted they are not."""
    program = opened(client, nodes=[text(0, None, "a river " * 9), gen(1, 0)])
    events_of(client, program)
    stats = tiny_engine.stats()
    assert (stats.running, stats.waiting) == (0, 0)
    assert stats.protected_pages > 0
    client.delete(f"/programs/{program}")
    wait_until_empty(tiny_engine)


# -- channels ----------------------------------------------------------------------------------------------------------


def test_a_channel_carries_many_programs(client: httpx.Client, tiny_engine: Engine) -> None:
    """Programs are opened, extended and closed by number; repeated requests are taken once; refusals are events."""
    path = f"/channels/{client.post('/channels').json()['id']}"
    nodes = [text(0, None, "a"), gen(1, 0)]
    messages = [
        {"type": "open", "program": 1},
        {"type": "open", "program": 2},
        {"type": "extend", "program": 1, "nodes": nodes},
        {"type": "extend", "program": 2, "nodes": nodes},
        {"type": "extend", "program": 3, "nodes": nodes},
        {"type": "extend", "program": 2, "nodes": nodes},
        {"type": "abort", "program": 8},
    ]
    for _ in range(2):
        assert client.put(f"{path}/messages/1", json=messages).text == "{}"
    with client.stream("GET", f"{path}/events") as answer:
        ends: list[tuple[int, str]] = []
        for line in answer.iter_lines():
            if line.startswith("data: "):
                ends += [(number, event["type"]) for number, event in json.loads(line[6:])]
            if len(ends) == 4:
                break
    assert sorted(ends) == [(1, "generated"), (2, "failed"), (2, "generated"), (3, "failed")]
    client.put(f"{path}/messages/2", json=[{"type": "extend", "program": 1, "nodes": [gen(2, 1, max_tokens=400)]}])
    client.put(f"{path}/messages/3", json=[{"type": "close", "program": number} for number in (1, 2, 3)])
    wait_until_empty(tiny_engine)
    assert client.delete(path).status_code == 200
    assert client.put(f"{path}/messages/4", json=[]).status_code == 404


@pytest.mark.parametrize(("number", "body"), [("0", "[]"), ("x", "[]"), ("1", "{}"), ("1", '[{"type":"opn"}]')])
def test_bad_messages_are_refused(client: httpx.Client, number: str, body: str) -> None:
    """400 for a bad number and for messages that are none."""
    path = f"/channels/{client.post('/channels').json()['id']}"
    assert client.put(f"{path}/messages/{number}", content=body, headers=AS_JSON).status_code == 400
    client.delete(path)


@pytest.mark.parametrize("path", ["/programs/no/extend", "/programs/no/abort", "/channels/no/events", "/programs/no"])
def test_unknown_ids_are_404(client: httpx.Client, path: str) -> None:
    """Every route says that there is nothing of this id, and how to make one."""
    method = {"extend": "POST", "abort": "POST", "events": "GET"}.get(path.rpartition("/")[2], "DELETE")
    status, _, message = error_of(client.request(method, path, json={"nodes": []} if method == "POST" else None))
    assert (status, "'no'; POST /" in message) == (404, True)


def test_the_page_shows_nodes_without_references(client: httpx.Client) -> None:
    """The OpenAPI page describes the nodes in place, with examples that the server takes."""
    page = client.get("/openapi.json").json()
    content = page["paths"]["/programs"]["post"]["requestBody"]["content"]["application/json"]
    assert "$ref" not in json.dumps(content["schema"])
    for example in content["examples"].values():
        program = opened(client, **example["value"])
        client.delete(f"/programs/{program}")


# -- the end -----------------------------------------------------------------------------------------------------------


def test_draining_ends_what_is_idle_and_then_the_rest(tiny_engine: Engine) -> None:
    """Idle programs and channels end at once, busy ones with their last result, and nothing new is opened."""
    with served(tiny_engine) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        idle, busy = (
            opened(client),
            opened(client, nodes=[text(0, None, "a"), gen(1, 0, max_tokens=60, ignore_eos=True)]),
        )
        channel = f"/channels/{client.post('/channels').json()['id']}"
        nodes = [text(0, None, "b"), gen(1, 0, max_tokens=60, ignore_eos=True)]
        client.put(
            f"{channel}/messages/1",
            json=[{"type": "open", "program": 1}, {"type": "extend", "program": 1, "nodes": nodes}],
        )
        with (
            client.stream("GET", f"/programs/{busy}/events") as of_program,
            client.stream("GET", f"{channel}/events") as of_channel,
        ):
            server.on_loop(server.app.state.programs.drain)
            assert "shutting down" in error_of(client.get(f"/programs/{idle}/events"))[2]
            for listening in (of_program, of_channel):
                *_, result, last = parsed(listening.read().decode())
                assert "generated" in json.dumps(result)
                assert last["data"] == {"reason": "the server is shutting down"}
        assert client.post("/programs", json={}).status_code == 503
        assert client.post("/channels").status_code == 503
