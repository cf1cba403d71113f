#!/usr/bin/env bash
# Measures on a machine with a GPU that reaches no package index, but has Python with PyTorch and NumPy.
#
#   scripts/gpu_day.sh --prepare [PYTHON]   here: downloads wheels for that Python (default 3.12) into
#                                           .gpu_day/, 16 MB; copy the checkout with that folder over. Model
#                                           files need no copy: they are made there, from random weights
#   scripts/gpu_day.sh OUT [OPTION...]      there: installs missing packages and measures for nine minutes;
#                                           with the same OUT, or its gpu_day.json in a new OUT, it
#                                           continues. All rows take half an hour
#
# OUT gets gpu_day.json, a page and the page's script. --work FOLDER takes models and runs (1.6 GB) out of OUT.
# Options: python benchmarks/gpu_day.py --help. On your own machine with a GPU, `./run.sh install torch nvml`
# and benchmarks/gpu_day.py are enough.
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
wheels=$root/.gpu_day
packages=(
    mlcommons-loadgen pydantic pydantic-core annotated-types typing-inspection typing-extensions argcomplete
    psutil prometheus-client rich markdown-it-py mdurl pygments nvidia-ml-py pyyaml packaging plotly
)

prepare() {
    local python=${1:-3.12} name pinned=()
    for name in "${packages[@]}"; do
        pinned+=("$(grep -iE "^$name==" "$root/constraints.txt")")
    done
    local tags=()
    for tag in manylinux_2_28 manylinux_2_27 manylinux_2_17 manylinux2014 manylinux1 manylinux_2_12; do
        tags+=(--platform "${tag}_x86_64")
    done
    mkdir -p -- "$wheels"
    python3 -m pip download --quiet --no-deps --only-binary=:all: --python-version "$python" \
        --implementation cp "${tags[@]}" --dest "$wheels" "${pinned[@]}"
    du -sh -- "$wheels"
}

# missing_here: prints the wheels of packages that this Python lacks.
missing_here() {
    python3 - "$wheels" <<'PYTHON'
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

for wheel in sorted(Path(sys.argv[1]).glob("*.whl")):
    try:
        version(wheel.name.split("-")[0].replace("_", "-"))
    except PackageNotFoundError:
        print(wheel)
PYTHON
}

case ${1:-} in
--prepare)
    shift
    prepare "$@"
    ;;
'' | -*)
    sed -n '2,15s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
    exit 2
    ;;
*)
    cd -- "$root"
    mapfile -t lacking < <(missing_here)
    if ((${#lacking[@]})); then
        python3 -m pip install --quiet --no-index --no-deps "${lacking[@]}"
    fi
    PYTHONUNBUFFERED=1 exec python3 -P benchmarks/gpu_day.py "$@"
    ;;
esac
