"""When a node's requests ran, and what was forced of their text, as clients read it."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass

from .messages import RequestEnd
from .program import Timings


@dataclass(frozen=True, slots=True)
class Beginning:
    """When a job could begin, and when its requests were on their way: seconds since its program was opened."""

    started_s: float = 0.0
    sent_s: float = 0.0


def timings_of(end: RequestEnd, beginning: Beginning) -> Timings:
    """When a request ran.

    Its durations are by the scheduler's clock and its beginning by the program's, so that the two need not agree.
    """
    lead_s = beginning.sent_s - beginning.started_s
    ran = end.last_step > 0
    return Timings(
        start_s=beginning.started_s,
        end_s=beginning.sent_s + end.elapsed_s,
        queue_s=lead_s + (end.elapsed_s if end.queue_s is None else end.queue_s),
        first_token_s=None if end.first_token_s is None else lead_s + end.first_token_s,
        first_step=end.first_step if ran else None,
        last_step=end.last_step if ran else None,
        batch_size=end.batch_size if ran else None,
    )


def timings_of_all(ends: Sequence[RequestEnd], beginning: Beginning) -> Timings:
    """When the requests of a select ran: until the first of them ran, and until the last of them ended."""
    each = [timings_of(end, beginning) for end in ends]
    ran = [end for end in ends if end.last_step > 0]
    steps = [end.last_step + 1 - end.first_step for end in ran]
    rows = [end.batch_size * count for end, count in zip(ran, steps, strict=True)]
    return Timings(
        start_s=beginning.started_s,
        end_s=max(timings.end_s for timings in each),
        queue_s=min(timings.queue_s for timings in each),
        first_step=min(end.first_step for end in ran) if ran else None,
        last_step=max(end.last_step for end in ran) if ran else None,
        batch_size=sum(rows) / sum(steps) if ran else None,
    )


def forced_characters(end: RequestEnd, token_bytes: Sequence[bytes | None]) -> tuple[tuple[int, int], ...]:
    """The characters of a request's text that its grammar forced, as (begin, end) in order.

    A token that ends within a character ends before it here.
    """
    if not end.forced_ranges:
        return ()
    decoder, length, ends = codecs.getincrementaldecoder("utf-8")("replace"), 0, [0]
    for token_id in end.kept_ids:
        known = token_bytes[token_id] if 0 <= token_id < len(token_bytes) else None
        length += len(decoder.decode(known or b""))
        ends.append(length)
    whole = len(end.text or "")
    places = [tuple(ends[at] if at < len(ends) else whole for at in pair) for pair in end.forced_ranges]
    return tuple((begin, stop) for begin, stop in places if begin < stop)
