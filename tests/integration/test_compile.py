"""Programs compiled for every kind of backend."""

from __future__ import annotations

import palmette as pt
from palmette.lang.compiling import KnowsTokens


@pt.function(max_tokens=4, temperature=0)
def straight(s: pt.ProgramState, topic: str) -> None:
    s += pt.system("It is what it is.") + pt.user(f"Say: {topic}")
    branches = s.fork(2)
    branches += ["First, " + pt.gen("x"), "then, " + pt.gen("x")]
    branches.join()
    s += pt.assistant("There: " + pt.gen("y"))


def test_what_is_compiled_is_what_runs(backend: pt.Backend) -> None:
    """The nodes are those of a run on that backend, its chat template's and sampling defaults' among them."""
    compiled = straight.compile("a tree", backend=backend)
    assert compiled.is_complete
    state = straight.run("a tree", backend=backend)
    assert compiled.nodes == tuple(record.node for record in state._execution.tree.records)
    assert (compiled.constant_tokens is not None) == isinstance(backend, KnowsTokens)
    if compiled.constant_tokens is not None:
        assert sum(node.computed for node in state.tree.nodes if node.kind in ("text", "template")) <= (
            compiled.constant_tokens
        )
        assert state.get_meta_info("y")["prompt_tokens"] == sum(
            shape.tokens or 0
            for node, shape in zip(compiled.nodes, compiled.shapes, strict=True)
            if shape.calls and state._execution.tree.records[node.id].branch == 0
        )
