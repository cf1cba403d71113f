# shellcheck shell=bash
# Makes .venv and keeps it up to date. run.sh and test.sh source this file, and set -euo pipefail.
#
#   ensure_env EXTRA...       installs this checkout (editable), its core and these extras into .venv, in the
#                             versions of constraints.txt. Takes a few ms if nothing has changed.
#                             `dev` is the dependency group of that name.
#   install_extras EXTRA...   the same for ./run.sh install: checks the names; without names, lists the extras.

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
me=${0##*/}
venv=$root/.venv
uv=$root/.uv/bin/uv

say() { printf '%s: %s\n' "$me" "$*" >&2; }

fail() {
    say "$@"
    exit 1
}

# is_python FIRST END COMMAND: whether the command is a Python of at least version 3.FIRST and below 3.END.
is_python() {
    "$3" -c "import sys; sys.exit(not (3, $1) <= sys.version_info < (3, $2))" >/dev/null 2>&1
}

is_new_enough() { is_python 11 99 "$1"; }

# Uses uv from PATH, or else the uv that get_uv installs.
find_uv() {
    if uv --version >/dev/null 2>&1; then
        uv=uv
    fi
}

# Prefers Python 3.11 to 3.13 for .venv, because LoadGen has wheels only for these versions.
find_python() {
    local candidate
    for candidate in python3 python python3.13 python3.12 python3.11; do
        # Runs the command, because pyenv puts shims on PATH even for versions that are not active.
        if is_python 11 14 "$candidate"; then
            command -v "$candidate"
            return
        fi
    done
    find_uv
    "$uv" python find --quiet --system '>=3.11,<3.14' 2>/dev/null && return
    for candidate in python3 python python3.14; do
        if is_new_enough "$candidate"; then
            command -v "$candidate"
            return
        fi
    done
    fail "found no Python 3.11 or newer: install one, e.g. with \`uv python install 3.13\`"
}

# Checksum of everything that an install depends on, including the path, because an editable install refers to it.
env_key() { { cat "$root/pyproject.toml" "$root/constraints.txt" && printf '%s' "$root"; } | cksum; }

# is_installed KEY NAME
is_installed() {
    local stamp
    [[ -x $venv/bin/python && -f $venv/.installed-$2 ]] || return 1
    read -r stamp <"$venv/.installed-$2" && [[ $stamp == "$1" ]]
}

# The three functions below write their output to a log, and return the status of their commands.

get_uv() {
    [[ $uv == uv || -x $uv ]] || "$1" -m pip install --quiet --target "$root/.uv" uv==0.13.8
}

make_venv() {
    local python=$1
    [[ -x $venv/bin/python ]] && return
    "$uv" venv --quiet --clear --python "$python" "$venv" || "$python" -m venv --clear "$venv"
}

# install_into_venv WORD...: installs the words, which are arguments of pip.
install_into_venv() {
    local python=.venv/bin/python
    cd -- "$root" || return # so that a path with spaces or brackets is never parsed
    # uv does not read pip's settings. A folder of wheels may contain a CPU build of PyTorch, whereas the package
    # index has only builds with several GB of CUDA.
    export UV_FIND_LINKS=${UV_FIND_LINKS-${PIP_FIND_LINKS-}}
    # Also installs pip, because otherwise the command pip would install into another Python.
    "$uv" pip install --quiet --python "$python" -c constraints.txt pip "$@" && return
    printf 'uv is missing or failed; trying pip\n'
    "$python" -m pip --version || "$python" -m ensurepip || return
    "$python" -m pip install --quiet -c constraints.txt pip || return # older versions do not know --group
    "$python" -m pip install --quiet -c constraints.txt "$@"
}

# Texts that pip and uv print without a connection, although pip's last sentence blames conflicting versions.
no_network='NewConnectionError|NameResolutionError|name resolution|dns error|Connection refused|[Nn]etwork is unreachable'
no_network+='|error sending request|tcp connect error|ConnectTimeoutError|ProxyError'

# likely_cause PYTHON LOG: prints why the install failed, as the beginning of a sentence; nothing if unknown.
likely_cause() {
    local machine version
    machine=$(uname -m)
    if [[ $(<"$2") =~ $no_network ]]; then
        printf 'the package index cannot be reached: connect to the network, or download the wheels elsewhere and put '
        printf 'PIP_FIND_LINKS=FOLDER before the command; '
        return
    fi
    if [[ $uv != uv && ! -x $uv ]] && ! "$1" -c 'import pip' 2>/dev/null &&
        ! "$1" -c 'import ensurepip' 2>/dev/null; then
        printf '%s has no pip and no ensurepip: install uv, or python3-venv on Debian; ' "$1"
    elif ! { is_python 11 14 "$1" && [[ $machine == x86_64 ]]; } && ! command -v c++ >/dev/null; then
        version=$("$1" -c 'import sys; print(*sys.version_info[:2], sep=".")')
        printf 'LoadGen has no wheel for Python %s on Linux %s, and compiling it needs a C++ compiler' \
            "$version" "$machine"
        printf ' (g++ and python3-dev on Debian); '
    fi
}

# install_missing KEY NAME...: runs under the lock. Another process may already have installed the names.
install_missing() {
    local key=$1 name log python
    local missing=() extras=() groups=()
    shift
    for name in "$@"; do
        is_installed "$key" "$name" && continue
        missing+=("$name")
        case $name in
        core) ;;
        dev) groups+=(--group dev) ;;
        *) extras+=("$name") ;;
        esac
    done
    ((${#missing[@]})) || return 0

    find_uv
    python=$(find_python) || exit
    if [[ -x $venv/bin/python ]] && ! is_new_enough "$venv/bin/python"; then
        fail "$venv holds a Python older than 3.11: remove that folder and run again"
    fi
    for name in "${missing[@]}"; do
        if [[ $name == core && ${#missing[@]} -gt 1 ]]; then
            continue
        elif [[ -f $venv/.installed-$name ]]; then
            say "updating '$name' in .venv (pyproject.toml, constraints.txt or the folder's path changed)"
        else
            say "installing '$name' into .venv (first use)"
        fi
    done

    log=$(mktemp)
    # shellcheck disable=SC2064 # expands the value now
    trap "rm -f -- '$log'" EXIT
    {
        get_uv "$python" || printf 'uv cannot be installed; continuing with pip\n'
        make_venv "$python" &&
            (install_into_venv ${groups[@]+"${groups[@]}"} -e ".$(IFS=, && printf '%s' "${extras[*]+[${extras[*]}]}")")
    } >"$log" 2>&1 || {
        cat -- "$log" >&2
        fail "installing ${missing[*]} into .venv failed: $(likely_cause "$python" "$log")the installer's output is above"
    }
    for name in "${missing[@]}"; do
        printf '%s\n' "$key" >"$venv/.installed-$name"
    done
}

# locked COMMAND...: runs the command under a lock, so that only one such command runs in this checkout at a time.
locked() {
    (
        { mkdir -p -- "$root/.uv" && : >>"$root/.uv/lock"; } 2>/dev/null || fail "cannot write in $root"
        exec 9>>"$root/.uv/lock"
        if command -v flock >/dev/null && ! flock -n 9; then
            say "waiting for another install into .venv"
            flock 9
        fi
        "$@"
    ) || exit
}

ensure_env() {
    local key name
    local names=(core)
    key=$(env_key)
    for name in "$@"; do
        [[ -f $venv/.installed-$name-gpu ]] && name=$name-gpu # it has replaced the CPU variant
        names+=("$name")
    done
    for name in "${names[@]}"; do
        is_installed "$key" "$name" && continue
        locked install_missing "$key" "${names[@]}"
        return
    done
}

# remove_rival EXTRA PACKAGE...: removes an extra that provides the same module as an extra to install.
remove_rival() {
    local extra=$1
    shift
    [[ -f $venv/.installed-$extra ]] || return 0
    say "removing '$extra' from .venv"
    find_uv
    "$uv" pip uninstall --quiet --python "$venv/bin/python" "$@" ||
        "$venv/bin/python" -m pip uninstall --quiet --yes "$@" || fail "$* cannot be removed from .venv"
    rm -f -- "$venv/.installed-$extra"
}

install_extras() {
    local python answer names rivals rival packages hint
    python=$(find_python) || exit
    if [[ $# -eq 0 || $1 == -* ]]; then
        PYTHONPATH=$root exec "$python" -P -m harness.cli.start.install "$@"
    fi
    answer=$(PYTHONPATH=$root "$python" -P -m harness.cli.start.install "$@") || exit
    { read -r -a names && rivals=$(cat); } <<<"$answer"
    while read -r rival packages; do
        # shellcheck disable=SC2086 # package names, one per word
        [[ -z $rival ]] || locked remove_rival "$rival" $packages
    done <<<"$rivals"
    ensure_env "${names[@]}"
    [[ ${VIRTUAL_ENV-} == "$root/.venv" ]] || hint="; for \`python -m harness\`, run \`. .venv/bin/activate\` once"
    say "installed in .venv: ${names[*]}${hint-}"
}
