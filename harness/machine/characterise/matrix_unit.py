"""Decides whether a product ran on the processor's matrix unit, and states the evidence. Has no side effects.

The matrix units are AMX and AVX-512 BF16 for bf16, AMX and VNNI for int8, and Arm's bf16 and i8mm. If a library reports
its kernels, the kernels' names are the evidence. Otherwise the rate is compared with the fp32 peak of all libraries.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

USED, NOT_USED, UNKNOWN = "used", "not used", "unknown"

UNITS: Mapping[str, tuple[str, ...]] = {
    "int8": ("amx_int8", "avx512_vnni", "avx_vnni", "i8mm", "asimddp"),
    "bf16": ("amx_bf16", "avx512_bf16", "bf16"),
}
"""Maps a precision to the instruction sets that multiply and add in one step, widest first."""

_KERNELS = {
    "int8": re.compile(r"amx|vnni|avx512_I8|i8mm", re.IGNORECASE),
    "bf16": re.compile(r"amx|avx512_(core_)?bf16", re.IGNORECASE),
}
_PLAIN_KERNELS = re.compile(r"ref|jit:uni|gemm_mlas_f32|\bavx2\b")

RATIOS: Mapping[str, tuple[float, float]] = {"int8": (1.5, 2.2), "bf16": (1.05, 1.3)}
"""Maps a precision to two thresholds for its rate relative to the fp32 rate. If the rate is below the first threshold,
the product did not use the unit. If the rate is above the second threshold, the product used the unit.

Without VNNI, an int8 product needs three instructions for four times as many numbers, so its rate is at most 4/3 of the
fp32 rate. With VNNI, the rate of an int8 product is 4 times the fp32 rate. Without a bf16 unit, the numbers are first
converted to fp32, so the rate is at most the fp32 rate.
"""


class Verdict(NamedTuple):
    use: str
    """One of USED, NOT_USED and UNKNOWN."""
    evidence: str


def verdict(
    precision: str,
    flags: Sequence[str] | None,
    kernels: str,
    times_fp32: float | None,
    *,
    is_disturbed: bool = False,
) -> Verdict:
    """Returns the verdict on one product.

    flags: the processor's instruction sets, or None if the kernel does not list them. kernels: the names that the
    library reports for its kernels, or ''. times_fp32: rate relative to the fp32 peak of all libraries, or None if this
    peak is unknown. is_disturbed: whether other processes ran, so that a low rate proves nothing.
    """
    if precision not in UNITS:
        return Verdict(
            NOT_USED, f"no unit of this processor family multiplies {precision} matrices"
        )
    if flags is None:
        return Verdict(UNKNOWN, "the system lists no instruction sets")
    present = [flag for flag in UNITS[precision] if flag in flags]
    if not present:
        return Verdict(NOT_USED, f"the processor has none of {', '.join(UNITS[precision])}")
    return _by_kernel(precision, kernels) or _by_rate(
        precision, present[0], times_fp32, is_disturbed=is_disturbed
    )


def _by_kernel(precision: str, kernels: str) -> Verdict | None:
    """Returns the verdict from the kernels' names, or None if the names are not conclusive."""
    if _KERNELS[precision].search(kernels):
        return Verdict(USED, f"kernel {kernels}")
    return Verdict(NOT_USED, f"kernel {kernels}") if _PLAIN_KERNELS.search(kernels) else None


def _by_rate(precision: str, flag: str, times_fp32: float | None, *, is_disturbed: bool) -> Verdict:
    if times_fp32 is None:
        return Verdict(
            UNKNOWN,
            f"the processor has {flag}, but the fp32 rate is missing, so the rates cannot be compared",
        )
    low, high = RATIOS[precision]
    shown = f"{times_fp32:.2f} times the fp32 peak, with {flag}"
    if times_fp32 >= high:
        return Verdict(USED, f"{shown}: impossible without it")
    if is_disturbed:
        return Verdict(UNKNOWN, f"{shown}: something else ran at the same time")
    if times_fp32 < low:
        return Verdict(NOT_USED, f"{shown}: no more than without it")
    return Verdict(UNKNOWN, f"{shown}: possible either way")
