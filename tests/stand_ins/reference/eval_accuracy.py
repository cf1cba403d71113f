"""Stands in for MLCommons' language/deepseek-r1/eval_accuracy.py, with its options and its last lines but without a
judge.

The data are JSON with the right token ids for each sample.
"""

import argparse
import json
import sys
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dataset-file", type=Path, required=True)
    parser.add_argument("--input-file", type=Path, required=True)
    parser.add_argument("--output-file", type=Path, required=True)
    options = parser.parse_args()
    right = json.loads(options.dataset_file.read_bytes())
    rows = json.loads(options.input_file.read_bytes())
    answers = {row["qsl_idx"]: bytes.fromhex(row["data"]) for row in rows}
    ids = {
        sample: [int.from_bytes(data[i : i + 4], "little") for i in range(0, len(data), 4)]
        for sample, data in answers.items()
    }
    shares = [100.0 * (found == right[sample]) for sample, found in ids.items()]
    lengths = [len(found) for found in ids.values()]
    results = {
        "exact_match": sum(shares) / len(shares),
        "tokens_per_sample": sum(lengths) / len(lengths),
        "num-samples": len(shares),
    }
    sys.stdout.write(f"\nResults\n\n{results}\n")


if __name__ == "__main__":
    main()
