"""Refuses a torch.export program (.pt2) that could do more than compute, before PyTorch reads it.

The archive names functions to call, and contains expressions that sympy evaluates as Python. A file could therefore run
any code. Only operators and arithmetic on sizes are accepted. PyTorch itself checks the archive's pickles, because
backends/torch.py lets it read only weights.
"""

import ast
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

from harness.errors import ConfigError

_TARGET = re.compile(
    r"torch\.ops(?!\.aten\.from_file\b)(\.[A-Za-z][A-Za-z0-9_]*){2,3}|torch\.sym_[a-z_]+|math\.(trunc|ceil|floor)"
    r"|torch\.ops\.aten\.__i?(and|or|xor|lshift|rshift)__\.[A-Za-z]+"
    r"|_operator\.(add|sub|mul|floordiv|truediv|mod|pow|neg|pos|eq|ne|lt|le|gt|ge|and_|or_|getitem)"
)
_SIZE_FUNCTION = re.compile(
    r"Symbol|Integer|Float|Rational|Add|Mul|Pow|Max|Min|Mod|PythonMod|FloorDiv|ModularIndexing"
    r"|CleanDiv|CeilToInt|FloorToInt|IntTrueDiv|FloatTrueDiv|PowByNatural|TruncToInt|Where"
    r"|Eq|Ne|Lt|Le|Gt|Ge|Equality|Unequality|LessThan|GreaterThan|StrictLessThan"
    r"|StrictGreaterThan|And|Or|Not|Identity"
)
_SIZE_SYNTAX = (
    ast.Expression,
    ast.Call,
    ast.keyword,
    ast.Name,
    ast.Constant,
    ast.BinOp,
    ast.UnaryOp,
    ast.BoolOp,
    ast.Compare,
    ast.Load,
    ast.operator,
    ast.unaryop,
    ast.boolop,
    ast.cmpop,
)


def check_is_data(path: Path) -> None:
    """Raises a ConfigError if the file could do more than compute, or is not a torch.export archive."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.namelist()
            graphs = [n for n in members if re.fullmatch(r"[^/]+/models/[^/]+\.json", n)]
            # Compiled libraries are refused, because PyTorch would load them.
            suspects = [n for n in members if "/aotinductor/" in n]
            if not graphs:
                raise ConfigError(
                    f"{path} is not an archive that torch.export.save of PyTorch 2.8 or "
                    "later wrote: export the model again"
                )
            for name in graphs:
                suspects += _suspects(json.loads(archive.read(name)))
    except (OSError, zipfile.BadZipFile, ValueError, RecursionError) as e:
        raise ConfigError(f"{path} is not an archive that torch.export.save wrote: {e}") from e
    if suspects:
        raise ConfigError(
            f"{path} contains {suspects[0][:80]!r}, which is neither an operator nor a size: a model file "
            "may only compute, so this file is not loaded"
        )


def _suspects(node: object) -> Iterator[str]:
    """Yields each call target and expression that the lists above do not allow."""
    if isinstance(node, list):
        for item in node:
            yield from _suspects(item)
    elif isinstance(node, dict):
        for key, value in node.items():
            if key == "target" and isinstance(value, str) and "inputs" in node:
                if not _TARGET.fullmatch(value):
                    yield value
            elif key == "expr_str" and isinstance(value, str):
                if not _is_size(value):
                    yield value
            else:
                yield from _suspects(value)


def _is_size(expression: str) -> bool:
    """Returns whether the expression is arithmetic on symbols and numbers, such as Symbol('s0', integer=True)*2.

    A string may only be a symbol's name, because sympy evaluates string arguments of its functions.
    """
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, ValueError):
        return False
    nodes = list(ast.walk(tree))
    calls = [n for n in nodes if isinstance(n, ast.Call)]
    names = {id(c.args[0]) for c in calls if _is_symbol(c)}
    return (
        all(isinstance(n, _SIZE_SYNTAX) for n in nodes)
        and all(isinstance(c.func, ast.Name) and _SIZE_FUNCTION.fullmatch(c.func.id) for c in calls)
        and all(
            isinstance(n.value, bool | int | float) or id(n) in names
            for n in nodes
            if isinstance(n, ast.Constant)
        )
    )


def _is_symbol(call: ast.Call) -> bool:
    """Returns whether the call is Symbol('s0', ...) with a name in PyTorch's form."""
    if not (isinstance(call.func, ast.Name) and call.func.id == "Symbol" and call.args):
        return False
    name = call.args[0]
    return isinstance(name, ast.Constant) and bool(
        isinstance(name.value, str) and re.fullmatch(r"[a-z]+[0-9]+", name.value)
    )
