#!/usr/bin/env bash
# Builds the documentation site: scripts/site/build.sh OUT. Fails if a link is dead. Requires the group `site`.
set -euo pipefail
here=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")
out=$(realpath -m -- "${1:?usage: scripts/site/build.sh OUT}")
pages=$(mktemp -d)
trap 'rm -rf -- "$pages"' EXIT

cd -- "$here/../.."
git ls-files -z -- '*.md' docs examples harness/results/result.schema.json benchmarks/results ':!docs/figures/README.md' |
    xargs -0 cp --parents -t "$pages" --
sphinx-build -q -W --keep-going -c "$here" "$pages" "$out"
cp -- "$out/README.html" "$out/index.html"
printf '%s\n' "$out/index.html"
