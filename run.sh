#!/usr/bin/env bash
# Runs the harness on a machine that has Python 3.11 and nothing else:
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

# The value of the last `--NAME VALUE` or `--NAME=VALUE` among the arguments, or nothing.
option() {
    local name=$1 value=''
    shift
    while (($#)); do
        case $1 in
        "$name") value=${2-} ;;
        "$name"=*) value=${1#*=} ;;
        esac
        shift
    done
    printf '%s' "$value"
}

backend=$(option --backend "$@")
config=$(option --config "$@")
if [[ -d $config ]]; then
    config=$config/config.yaml # a run's folder stands for its configuration
fi
if [[ -z $backend && -f $config ]]; then
    backend=$(sed -n 's/^backend: *\([a-z]*\) *$/\1/p' "$config")
fi

# Extras that are backends are described so; others are null, a plug-in, or an unknown name.
if grep -qF "\"${backend:=ort}\": \"backend $backend" "$root/harness/core/extras.py"; then
    ensure_env "$backend" report
else
    ensure_env report
fi

model=$(option --model "$@")
if [[ -z $model && -f $config ]]; then
    model=$(sed -n 's/^model: *\(\(light\|zoo\)\/[a-z0-9_.]*\) *$/\1/p' "$config")
fi
if [[ $model == light/* || $model == zoo/* ]]; then
    ensure_env light
fi

printf -v MLPERF_HARNESS_PROGRAM %q "$0" # the name in usages and messages
export MLPERF_HARNESS_PROGRAM
exec "$venv/bin/python" -P -m harness "$@"
