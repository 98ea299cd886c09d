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


def numpy_style(query: str, low: int, high: int, **rest: int) -> None:
    """Search the web.

    More about it.

    Parameters
    ----------
    query : str
        what to look for,
        in words: any

        and more
    low, high : int, optional
        bounds
    **rest
        others

    Returns
    -------
    limit : int
        not a parameter here
    """


def rest_style(query: str, limit: int, rest: int) -> None:
    """Search the web
    for pages.

    More about it: nothing.

    :param query: what to look for,
        in words: any
    :param int limit: pages
    :type limit: int
    :keyword rest:
        others
    :returns: query: not a parameter
    """


def test_styles_of_numpy_and_rest() -> None:
    """Parameters and their texts are found over several lines; other sections are left alone."""
    assert docstring_of(numpy_style) == Docstring(
        "Search the web.",
        {"query": "what to look for, in words: any and more", "low": "bounds", "high": "bounds", "rest": "others"},
    )
    assert docstring_of(rest_style) == Docstring(
        "Search the web for pages.", {"query": "what to look for, in words: any", "limit": "pages", "rest": "others"}
    )
