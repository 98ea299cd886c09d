"""What docstrings say of functions and parameters."""

from __future__ import annotations

from palmette.lang.docstring import Docstring, docstring_of


def full(query: str, limit: int, **rest: int) -> None:
    """Search the web
    for pages.

    More about it: nothing.

    Args:
        query: what to look for,
            in words: any.

        limit (int, optional): pages
        **rest: others.
            note: not an entry

    Returns:
        limit: not a parameter here.
    """


def test_summary_and_entries_are_found() -> None:
    """The first paragraph and the entries of Args, joined over their lines; other sections are left alone."""
    assert docstring_of(full) == Docstring(
        "Search the web for pages.",
        {"query": "what to look for, in words: any.", "limit": "pages", "rest": "others. note: not an entry"},
    )


def test_functions_without_one_have_an_empty_one() -> None:
    """No docstring, and one that begins with its arguments."""

    def bare() -> None: ...

    def arguments_only(a: int) -> None:
        """
        Args:
            a: number
        """

    assert docstring_of(bare) == Docstring("", {})
    assert docstring_of(arguments_only) == Docstring("", {"a": "number"})
