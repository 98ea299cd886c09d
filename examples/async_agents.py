"""Three agents on one event loop: an async program awaits its values, and asyncio runs many of them side by side."""

import asyncio
from typing import Literal

import palmette as pt

Opinion = Literal["agree", "disagree", "unsure"]
ROLES = ["a cyclist", "a lorry driver", "a shopkeeper"]


@pt.function(temperature=0)
async def panelist(s: pt.ProgramState, role: str, claim: str) -> str:
    s += pt.system(f"You are {role}.") + pt.user(f"Do you agree? {claim}")
    s += pt.assistant("I " + pt.gen("opinion", type=Opinion))
    opinion = await s.get("opinion")
    s += pt.user("Why?") + pt.assistant(pt.gen("reason", max_tokens=24, stop=[".", "\n"]))
    return f"{role}: {opinion}, {(await s.get('reason')).strip()}"


async def discuss(engine: pt.Backend, claim: str = "Main streets need lanes for bicycles.") -> list[str]:
    states = await asyncio.gather(*(panelist.run_async(role, claim, backend=engine, timeout_s=60) for role in ROLES))
    return [state.ret_value for state in states]


if __name__ == "__main__":
    with pt.runtime.launch() as engine:
        print("\n".join(asyncio.run(discuss(engine))))
