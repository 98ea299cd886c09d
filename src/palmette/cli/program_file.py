"""FILE[:FUNCTION]: load a Python file and find the Palmette function in it."""

from __future__ import annotations

import difflib
import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType

import palmette as pt
from palmette.lang.outcome import place_and_reason

from .errors import RunError, UsageError


def load_function(target: str) -> pt.Function:
    """The function that `FILE[:FUNCTION]` names; without a name, the only one that the file defines.

    The file runs as a module, so what stands under ``if __name__ == "__main__"`` does not. Its folder is put first on
    `sys.path`, as `python FILE` does.

    Raises:
        UsageError: no such file, no such function, or several and no name.
        RunError: the file's own code failed.
    """
    path, name = split_target(target, "give FILE.py, or FILE.py:FUNCTION")
    functions = _functions_of(import_file(path))
    if name:
        return _named(functions, name, path)
    if len(functions) == 1:
        return next(iter(functions.values()))
    if not functions:
        raise UsageError(f"{path} defines no function with @pt.function", hint="decorate the program's function")
    raise UsageError(
        f"{path} defines {len(functions)} functions: {', '.join(functions)}",
        hint=f"name one: {path}:{list(functions)[-1]}",
    )


def file_of(function: pt.Function) -> Path:
    """The file that a program stands in."""
    return Path(inspect.getfile(inspect.unwrap(function)))


def failure_in(function: pt.Function, error: Exception) -> RunError:
    """What to raise from an exception of a program; names the line of its file."""
    file = file_of(function)
    return RunError(f"{function.__name__} of {file.name} failed at {place_and_reason(error, file)}")


def split_target(target: str, usage: str) -> tuple[Path, str]:
    """The file and the name after the colon, "" where there is none.

    Raises:
        UsageError: there is no such Python file; `usage` is the hint.
    """
    path, colon, name = target.rpartition(":")
    if not colon or Path(target).exists():
        path, name = target, ""
    file = Path(path)
    if not file.is_file():
        what = "is a folder, not a file" if file.is_dir() else "does not exist"
        raise UsageError(f"{path} {what}", hint=usage)
    if file.suffix != ".py":
        raise UsageError(f"{path} is not a Python file: its name must end in .py")
    return file, name


def import_file(path: Path) -> ModuleType:
    """Run a Python file as a module, its folder put first on `sys.path`.

    Raises:
        RunError: the file's own code failed.
    """
    name = f"palmette_program_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} cannot be imported as a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pydantic look a class's module up there
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise RunError(f"{path} cannot be loaded: {place_and_reason(error, path)}") from error
    return module


def _functions_of(module: ModuleType) -> dict[str, pt.Function]:
    """The module's own functions by name, in the order of the file; those it imports only where it has none."""
    functions = {name: value for name, value in vars(module).items() if isinstance(value, pt.Function)}
    own = {name: value for name, value in functions.items() if value.__module__ == module.__name__}
    return own or functions


def _named(functions: dict[str, pt.Function], name: str, path: Path) -> pt.Function:
    if name in functions:
        return functions[name]
    close = difflib.get_close_matches(name, functions, n=1)
    known = ", ".join(functions) or "none"
    raise UsageError(
        f"{path} has no function {name!r} with @pt.function; it has: {known}",
        hint=f"did you mean {path}:{close[0]}?" if close else "",
    )
