"""How `select` weighs its choices: the names that `choices_method` accepts.

Every method scores each whole choice on the joint tokenization of prompt and choice; of equals the first one wins.
"""

from __future__ import annotations

from typing import Final, get_args

from palmette.runtime.program import SelectMethod

token_length_normalized: Final[SelectMethod] = "token_length_normalized"
"""The mean log-probability of a choice's tokens, so that a long choice is not worse for its length."""

greedy_token_selection: Final[SelectMethod] = "greedy_token_selection"
"""Token by token, keep the choices whose next token is the likeliest, until one is left."""

unconditional_likelihood_normalized: Final[SelectMethod] = "unconditional_likelihood_normalized"
"""As token_length_normalized, less what the choice scores without the prompt: frequent words gain nothing."""

SELECT_METHODS: Final[tuple[str, ...]] = get_args(SelectMethod)
