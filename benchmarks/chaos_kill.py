from __future__ import annotations


async def killed_run(*a, **k): ...
