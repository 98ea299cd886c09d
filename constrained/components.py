"""Cycles of a graph: its strongly connected components."""

from __future__ import annotations

from collections.abc import Mapping, Set


def components(graph: Mapping[str, Mapping[str, object]]) -> list[set[str]]:
    """The strongly connected components of `graph`. Source: Kosaraju and Sharir; iterative."""
    callers: dict[str, list[str]] = {name: [] for name in graph}
    for name, targets in graph.items():
        for target in targets:
            callers[target].append(name)
    placed: set[str] = set()
    found = []
    for name in reversed(_finished(graph)):
        if name not in placed:
            component = _reached(name, callers, placed)
            placed |= component
            found.append(component)
    return found


def _finished(graph: Mapping[str, Mapping[str, object]]) -> list[str]:
    """All names, each after those it reaches that do not reach it."""
    order: list[str] = []
    seen: set[str] = set()
    for root in graph:
        if root in seen:
            continue
        seen.add(root)
        path = [(root, iter(graph[root]))]
        while path:
            name, targets = path[-1]
            target = next((each for each in targets if each not in seen), None)
            if target is None:
                order.append(name)
                path.pop()
            else:
                seen.add(target)
                path.append((target, iter(graph[target])))
    return order


def _reached(start: str, graph: Mapping[str, list[str]], without: Set[str]) -> set[str]:
    reached = {start}
    todo = [start]
    while todo:
        for name in graph[todo.pop()]:
            if name not in reached and name not in without:
                reached.add(name)
                todo.append(name)
    return reached
