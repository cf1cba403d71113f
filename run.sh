#!/usr/bin/env bash
# Runs the harness on a machine that has Python 3.11, 3.12 or 3.13 and pip, venv or uv:
#
#   ./run.sh --scenario server --backend ort
#
# .venv is made on first use, with the framework of the backend asked for (ort when none is named),
# and with what draws the report. `./run.sh install EXTRA...` adds other optional parts to it;
# without names it lists them.
set -euo pipefail
# shellcheck source=scripts/env.sh
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/scripts/env.sh"

if [[ ${1-} == install ]]; then
    shift
    install_extras "$@"
    exit
fi

# The values of `--NAME VALUE` and `--NAME=VALUE` among the arguments, one a line.
option() {
    local name=$1
    shift
    while (($#)); do
        case $1 in
        "$name") printf '%s\n' "${2-}" ;;
        "$name"=*) printf '%s\n' "${1#*=}" ;;
        esac
        shift
    done
}

# The last value that the files of --config have for an option of that name and pattern, or nothing.
configured() {
    local config value last=''
    while read -r config; do
        if [[ -d $config ]]; then
            config=$config/config.yaml # a run's folder stands for its configuration
        fi
        if [[ -f $config ]]; then # a preset has neither a backend nor a model
            value=$(sed -n "s/^$1: *\($2\) *\$/\1/p" "$config")
            last=${value:-$last}
        fi
    done <<<"$configs"
    printf '%s' "$last"
}

configs=$(option --config "$@")
backend=$(option --backend "$@" | tail -n 1)
if [[ -z $backend ]]; then
    backend=$(configured backend '[a-z]*')
fi

# Extras that are backends are described so; others are null, a plug-in, or an unknown name.
if grep -qF "\"${backend:=ort}\": \"backend $backend" "$root/harness/core/extras.py"; then
    ensure_env "$backend" report
else
    ensure_env report
fi

model=$(option --model "$@" | tail -n 1)
if [[ -z $model ]]; then
    model=$(configured model '[a-z]*\/[a-z0-9_.]*')
fi
if [[ $model == light/* || $model == zoo/* ]]; then
    ensure_env onnx
fi

printf -v MLPERF_HARNESS_PROGRAM %q "$0" # the name in usages and messages
export MLPERF_HARNESS_PROGRAM
exec "$venv/bin/python" -P -m harness "$@"
