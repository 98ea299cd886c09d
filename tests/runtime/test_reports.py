"""News of requests as messages."""

from __future__ import annotations

from tests.fake_runner import END_ID
from tests.fakes import make_request

from palmette.runtime.reports import report


def test_each_token_of_the_text_is_told_once() -> None:
    """The end token is none of them, though it is of the output."""
    request = make_request("r", [3, 4])
    request.move_to("running")
    told = []
    for tokens in ([5], [6, 7], []):
        for token in tokens:
            request.append(token)
            request.text.push(token)
        told.append(report(request, "", finished=False).token_ids)
    request.append(END_ID)
    request.finish("stop", END_ID)
    last = report(request, "", finished=True)
    assert [*told, last.token_ids] == [(5,), (6, 7), (), ()]
    assert last.end is not None
    assert (last.end.kept_ids, last.end.output_tokens) == ((5, 6, 7), 4)
