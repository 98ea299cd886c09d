"""What an answer cost, as OpenAI's protocol tells it."""

from __future__ import annotations

from typing import Any

from palmette.runtime.program import FinishReason

from .request_log import TokenCounts

FINISH_REASONS: dict[FinishReason, str] = {"stop": "stop", "length": "length", "grammar": "stop", "abort": "stop"}
"""OpenAI's names; an answer to which its grammar lets nothing be added has come to its end."""


def usage(counts: TokenCounts) -> dict[str, Any]:
    """The usage object. `forced_tokens`, which a grammar left no choice in, are among the completion tokens."""
    return {
        "prompt_tokens": counts.prompt,
        "completion_tokens": counts.output,
        "total_tokens": counts.prompt + counts.output,
        "prompt_tokens_details": {"cached_tokens": counts.cached},
        "completion_tokens_details": {"forced_tokens": counts.forced},
    }
