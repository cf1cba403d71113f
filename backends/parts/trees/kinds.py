"""Recognises the writer of a tree file (XGBoost, LightGBM or treelite) from the content of the file."""

import re
from pathlib import Path
from typing import Literal

from harness.backends.parts.trees.checkpoint import is_checkpoint
from harness.errors import ConfigError

Kind = Literal["xgboost", "lightgbm", "treelite"]

_HEAD_BYTES = 256
_XGBOOST_TEXT = re.compile(rb'\s*\{\s*"learner"')
_XGBOOST_BINARY = re.compile(rb"\{[LliIU].{1,8}learner\{", re.DOTALL)
_LIGHTGBM = re.compile(rb"tree\r?\nversion=v\d")

_OTHERS = {
    b"\x80": "it is a pickle, which is code: save the model with its own save_model, or treelite's serialize",
    b"binf": "it is XGBoost's old binary format: load it in XGBoost before 3.1, and save it as .ubj",
    b"bs64": "it is XGBoost's old text format: load it in XGBoost before 3.1, and save it as .ubj",
}
"""Maps the first bytes of files that look like tree files to the reason for refusing them."""


def kind_of(path: Path) -> Kind:
    """Returns the kind; raises a ConfigError if the file is not from XGBoost, LightGBM or treelite."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError as e:
        raise ConfigError(f"{path} cannot be read: {e.strerror or e}") from None
    if _XGBOOST_TEXT.match(head) or _XGBOOST_BINARY.match(head):
        return "xgboost"
    if _LIGHTGBM.match(head):
        return "lightgbm"
    if is_checkpoint(head):
        return "treelite"
    known = next((text for begin, text in _OTHERS.items() if head.startswith(begin)), None)
    raise ConfigError(
        f"{path}: "
        + (
            known
            or "it is neither XGBoost's JSON or UBJSON, nor LightGBM's text, nor a treelite 4 checkpoint: save the "
            "model again"
        )
    )


def is_text(path: Path) -> bool:
    """Returns whether an XGBoost file is JSON; otherwise, the file is UBJSON."""
    with path.open("rb") as file:
        return _XGBOOST_TEXT.match(file.read(_HEAD_BYTES)) is not None
