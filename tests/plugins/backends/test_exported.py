"""The reader accepts only sizes from the expressions in a .pt2 file; tested without PyTorch."""

import pytest

from harness.backends.parts.exported import _TARGET, _is_size


@pytest.mark.parametrize(
    "expression",
    [
        "Symbol('s0', integer=True)*2",
        "Symbol('s77', positive=True, integer=True)",
        "Max(1, FloorDiv(Symbol('s0', integer=True) + 3, 2))",
        "Eq(Symbol('u0'), 4)",
        "8",
    ],
)
def test_arithmetic_of_sizes_is_accepted(expression: str) -> None:
    assert _is_size(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "FloorDiv('__import__(chr(111))', 1)",
        "Symbol('s0')*Max('1', 2)",
        "Symbol('__import__')",
        "Symbol('s0', 'x0')",
        "Symbol(name='s0')",
        "Symbol('s0').__class__",
        "__import__('os')",
        "(lambda: 1)()",
        "[1][0]",
        "Symbol(b's0')",
        "",
    ],
)
def test_expression_that_is_not_arithmetic_is_refused_as_a_size(expression: str) -> None:
    assert not _is_size(expression)


def test_operators_that_read_or_write_files_are_refused_as_targets() -> None:
    assert _TARGET.fullmatch("torch.ops.aten.add.Tensor")
    assert not _TARGET.fullmatch("torch.ops.aten.from_file.default")
