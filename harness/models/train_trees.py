"""Trains the small embedded decision trees on the digits.

    python -m harness.models.train_trees [--out DIR]

Writes FILE under DIR (default: the root of the repository), and prints the file's SHA-256.

Model: XGBoost's gradient-boosted trees, ROUNDS trees for each of the ten digits. A sample consists of an image's 64
pixels, row by row, as grey values scaled to 0..1. The model's output is the probability of each digit. The trees are
trained only on the training images of harness/models/train_digits.py. Cross-validation on these images determined the
settings. XGBoost runs on one thread, so that repeated runs write identical bytes.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.models.manifest.files import sha256_of
from harness.models.train_digits import SEED, load_split, to_input

FILE = "harness/models/shipped/digits-trees.ubj"
"""The model in XGBoost's UBJSON format."""

ROUNDS = 6
SETTINGS = {
    "objective": "multi:softprob",
    "num_class": 10,
    "max_depth": 5,
    "eta": 0.6,
    "subsample": 0.8,
    "colsample_bytree": 0.7,
    "tree_method": "exact",
    "nthread": 1,
    "seed": SEED,
}


def features(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Reshapes (n, 8, 8) pixels to (n, 64)."""
    rows: NDArray[np.float32] = to_input(images).reshape(len(images), -1)
    return rows


def train(images: NDArray[np.uint8], labels: NDArray[np.int64]) -> Any:
    """Returns the trained model as XGBoost's Booster."""
    import xgboost

    return xgboost.train(SETTINGS, xgboost.DMatrix(features(images), labels), ROUNDS)


def write_all(root: Path) -> None:
    """Trains the model, writes FILE under `root`, and prints the accuracy and the digest."""
    split = load_split()
    booster = train(split.train_images, split.train_labels)
    path = root / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    booster.save_model(path)
    predicted = booster.inplace_predict(features(split.test_images)).argmax(1)
    right = float((predicted == split.test_labels).mean())
    print(f"top-1 on the {len(split.test_labels)} held-out images: {right:.4f}")
    print(sha256_of(path), FILE)


def main() -> None:
    root = Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(description="Train the embedded trees.")
    parser.add_argument("--out", type=Path, default=root, help="root folder of the written files")
    write_all(parser.parse_args().out)


if __name__ == "__main__":
    main()
