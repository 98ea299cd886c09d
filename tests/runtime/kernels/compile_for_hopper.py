"""Compiles every kernel in `signatures_*.py` for sm_90, which needs no GPU, and prints what each takes.

    TRITON_INTERPRET=0 PYTHONPATH=src:. python -m tests.runtime.kernels.compile_for_hopper [PART OF A NAME ...]

A file of signatures holds `SIGNATURES: list[Signature]`: of each kernel its module (or that module's name), its name,
the types of its arguments and the values of its constexpr arguments, for example

    ("palmette.runtime.kernels.sums", "_sum", {"x": "*bf16", "out": "*fp32", "rows": "i32"}, {"SIZE": 128})

Pointers count as multiples of 16 bytes, as torch allocates them, and integers do where they say so ("i32:16"); of a
"*bf16:1" nothing is known. Launch options, such as num_warps, stand among the constexprs, as in a launch; so does
"spill_bytes", the most that a kernel may put in memory for want of registers, which is 0 where nothing is said.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import json
import pkgutil
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import palmette.runtime.kernels

Signature = tuple[str | ModuleType, str, dict[str, str], dict[str, Any]]

_OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg", "launch_pdl")
_HOPPER = GPUTarget("cuda", 90, 32)
_PTXAS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")


def signatures() -> list[Signature]:
    """Those of all files beside this one."""
    found: list[Signature] = []
    for path in sorted(Path(__file__).parent.glob("signatures_*.py")):
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        found += module.SIGNATURES
    return found


def kernel_of(signature: Signature) -> Any:
    """The JITFunction, without what autotuners wrap around it."""
    module = importlib.import_module(signature[0]) if isinstance(signature[0], str) else signature[0]
    kernel = getattr(module, signature[1])
    while not isinstance(kernel, triton.JITFunction):
        kernel = kernel.fn
    return kernel


def compiled(signature: Signature) -> Any:
    """The kernel as Triton compiles it; its `asm` has "ttgir", "ptx" and "cubin"."""
    kernel, types, constexprs = kernel_of(signature), signature[2], dict(signature[3])
    constexprs.pop("spill_bytes", None)
    options = {name: constexprs.pop(name) for name in _OPTIONS if name in constexprs}
    full = {name: "constexpr" if name in constexprs else types[name] for name in kernel.arg_names}
    hints = {name: int((kind.split(":") + (["16"] if kind[0] == "*" else ["1"]))[1]) for name, kind in full.items()}
    attrs = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(kernel.arg_names) if hints[name] == 16}
    plain = {name: kind.split(":")[0] for name, kind in full.items()}
    return triton.compile(ASTSource(kernel, plain, constexprs, attrs), target=_HOPPER, options=options)


def assembler_log(ptx: str) -> str:
    """What the assembler says."""
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        command = [str(_PTXAS), "--verbose", "--gpu-name=sm_90a", file.name, "--output-file=/dev/null"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stderr


def resources(log: str) -> dict[str, int]:
    """registers, stack_bytes, and spill_bytes: those of the stack that registers were put in for want of more."""
    stack, stores, loads = (sum(map(int, found)) for found in zip(*_STACK.findall(log), strict=True))
    return {"registers": int(_REGISTERS.findall(log)[-1]), "stack_bytes": stack, "spill_bytes": stores + loads}


def report(signature: Signature) -> dict[str, Any]:
    """What one kernel takes, or why it does not compile."""
    constexprs = ", ".join(f"{name}={value}" for name, value in signature[3].items())
    line: dict[str, Any] = {"kernel": f"{signature[1]}({', '.join(signature[2].values())}; {constexprs})"}
    try:
        with contextlib.redirect_stdout(io.StringIO()) as log:
            kernel = compiled(signature)
        found = resources(log.getvalue() or assembler_log(kernel.asm["ptx"]))  # one from the cache was not assembled
        spilled = found["spill_bytes"] > signature[3].get("spill_bytes", 0)
        return line | found | {"shared_bytes": kernel.metadata.shared, "spills_too_much": spilled}
    except Exception as error:  # of any kind: the test shows it and goes on with the next kernel
        return line | {"error": f"{type(error).__name__}: {error}"}


def left_out(listed: list[Signature]) -> Iterator[str]:
    """Kernels of `palmette.runtime.kernels` that are neither listed nor part of another kernel."""
    package = palmette.runtime.kernels
    modules = [importlib.import_module(f"{package.__name__}.{m.name}") for m in pkgutil.iter_modules(package.__path__)]
    functions = {f.fn: f for m in modules for f in vars(m).values() if isinstance(f, triton.JITFunction)}
    known = {kernel_of(signature).fn for signature in listed}
    for function, kernel in functions.items():
        called = re.compile(rf"\b{kernel.__name__}\b")
        if function not in known and not any(called.search(k.src) for k in functions.values() if k is not kernel):
            yield f"{kernel.__module__}.{kernel.__name__}"


if __name__ == "__main__":
    triton.knobs.nvidia.dump_ptxas_log = True
    parts, listed = sys.argv[1:], signatures()
    chosen = [s for s in listed if not parts or any(part in f"{s[0]}.{s[1]}" for part in parts)]
    print(json.dumps({"kernels": [report(s) for s in chosen], "left_out": list(left_out(listed))}, indent=1))
