"""Public functions document what they take, return and raise."""

from __future__ import annotations

import ast
import re
from ast import FunctionDef
from collections.abc import Iterator
from pathlib import Path

import raysearch

PACKAGE = Path(raysearch.__file__).parent


def test_public_functions_with_two_parameters_document_all_parts() -> None:
    offenders = []
    for file in sorted(PACKAGE.rglob("*.py")):
        if file.name.startswith("_") and file.name != "__init__.py":
            continue
        for function in _public_functions(ast.parse(file.read_text(encoding="utf-8"))):
            if missing := _missing_parts(function):
                offenders.append(f"{file.relative_to(PACKAGE)}:{function.lineno} {function.name} lacks {missing}")
    assert offenders == []


def _public_functions(scope: ast.Module | ast.ClassDef) -> Iterator[FunctionDef]:
    """Yield the functions of a module or class, and those of its classes, except commands and overriding methods."""
    for node in scope.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from _public_functions(node)
        elif isinstance(node, FunctionDef) and not node.name.startswith("_"):
            decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
            # The docstring of a command is its help, and each of its parameters has a help of its own.
            if not any(re.match(r"override|overload|\w+\.command", decorator) for decorator in decorators):
                yield node


def _missing_parts(function: FunctionDef) -> list[str]:
    """Return the parameters and sections that the docstring of a function lacks; empty for a single parameter."""
    arguments = function.args
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    names += [argument.arg for argument in (arguments.vararg, arguments.kwarg) if argument is not None]
    documented_names = [name for name in names if name not in ("self", "cls") and not name.startswith("_")]
    if len(documented_names) < 2:
        return []
    docstring = ast.get_docstring(function) or ""
    missing = [name for name in documented_names if not re.search(rf"^    \**{name}: ", docstring, re.MULTILINE)]
    returned = ast.unparse(function.returns) if function.returns is not None else "None"
    has_result = returned not in ("None", "NoReturn", "Iterator[None]")
    if has_result and not re.search(r"^(Returns|Yields):", docstring, re.MULTILINE):
        missing.append("Returns or Yields")
    raises = any(isinstance(node, ast.Raise) and node.exc is not None for node in _nodes(function))
    if raises and not re.search(r"^Raises:", docstring, re.MULTILINE):
        missing.append("Raises")
    return missing


def _nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function without those of the functions in it."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, FunctionDef | ast.Lambda | ast.ClassDef):
            yield child
            yield from _nodes(child)
