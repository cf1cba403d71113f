#!/usr/bin/env bash
# What CI runs. ./test.sh [--all] [pytest arguments]; --all includes the tests marked slow.
set -euo pipefail
# shellcheck source=scripts/env.sh
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/scripts/env.sh"

workers=(-n 3 --dist loadfile) # more than cores: half of a test is waiting for a run; a file's fixtures are made once
all=false
extras=(dev ort tensorflow text audio)
pytest_args=()
for arg in "$@"; do
    if [[ $arg == --all ]]; then
        all=true
        extras+=(openvino litert torch ncnn mnn tract ort-genai openvino-genai llama-cpp parquet hf rouge)
    else
        pytest_args+=("$arg")
    fi
done

ensure_env "${extras[@]}"
unset PYTHONDONTWRITEBYTECODE # compiled modules halve the start of the thousand commands below
cd -- "$root"
export PATH="$venv/bin:$PATH"
failed=()

# step NAME COMMAND...: all steps run, so that one go shows every problem.
step() {
    local name=$1 start=$SECONDS verdict=ok
    shift
    printf '== %s\n' "$name"
    "$@" || {
        verdict=FAILED
        failed+=("$name")
    }
    printf '== %s: %s, %d s\n' "$name" "$verdict" $((SECONDS - start))
}

step 'ruff check' ruff check .
step 'ruff format' ruff format --check .
step shellcheck shellcheck -x run.sh test.sh .ci/run scripts/env.sh
step mypy mypy
step pytest python -m pytest "${workers[@]}" -m 'not slow' ${pytest_args[@]+"${pytest_args[@]}"}
if $all; then
    step 'pytest, slow' python -m pytest "${workers[@]}" -m slow ${pytest_args[@]+"${pytest_args[@]}"}
fi

if ((${#failed[@]})); then
    IFS=,
    say "failed: ${failed[*]}"
    exit 1
fi
