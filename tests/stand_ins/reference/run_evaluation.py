"""Stands in for MLCommons' text_to_video/wan-2.2-t2v-a14b/run_evaluation.py, with its options and results but without
VBench.

A video is right if it contains the digest of its prompt (tests/stand_ins/servers/makers.py).
"""

import argparse
import hashlib
import json
from pathlib import Path

DIMENSIONS = (
    *("subject_consistency", "dynamic_degree", "motion_smoothness", "appearance_style", "scene"),
    "background_consistency",
)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("videos-path", "output-path", "num-gpus"):
        parser.add_argument(f"--{name}")
    options = parser.parse_args()
    videos = sorted(Path(options.videos_path).iterdir())
    right = [
        hashlib.sha256(path.stem.rpartition("-")[0].encode()).digest() in path.read_bytes()
        for path in videos
    ]
    share = 0.705 * sum(right) / len(right)
    results = {name: [share, [path.name for path in videos]] for name in DIMENSIONS}
    out = Path(options.output_path) / "results_2026-11-27_eval_results.json"
    out.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
