#!/usr/bin/env bash
# The programs of docs/how-to/frameworks-by-mcp.md: agents of Google ADK, CrewAI, Mastra, Microsoft Agent Framework and the Claude
# Agent SDK lend a task, and take one, through `baton mcp`. Their models follow a script (models.py).
#
#   BATON_BIN=target/debug/baton tests/frameworks/run.sh [HEADING...]
#
# With headings of the page, for example "Google ADK", only those. Needs python3 with venv, and node. Installs the exact versions of the requirements and of
# package-lock.json, from PyPI and npm, into BATON_CI_CACHE, about 950 MB: the program of the Claude Agent SDK is 370 of them.
# Ends with one line a framework, or fails; with exit code 75 if a registry cannot be reached.
set -euo pipefail

: "${BATON_BIN:?must name the baton program}"
BATON_BIN="$(realpath "$BATON_BIN")"
cd "$(dirname "${BASH_SOURCE[0]}")"

cache="${BATON_CI_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/baton-ci}"
mkdir -p "$cache"
hash_of() { cat "$@" | sha256sum | cut -c1-12; }

# Ends the script after an install that failed: unreachable PROBE..., a command that succeeds if the registry is there.
failed() {
    if "$@" >/dev/null 2>&1; then exit 1; fi
    echo "skipped: a registry cannot be reached" >&2
    exit 75
}

# Makes an environment of Python, unless it is whole: environment FOLDER REQUIREMENTS. The requirements are complete, so pip need not
# look for more; those of CrewAI leave out what only its memories and its files need, 600 MB.
environment() {
    if [[ -e "$1/complete" ]]; then return; fi
    rm -rf "$1"
    python3 -m venv "$1"
    "$1/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-compile --no-deps -r "$2" ||
        failed "$1/bin/pip" download --quiet --disable-pip-version-check --no-cache-dir --no-deps --dest "$1" idna==3.20
    touch "$1/complete"
}

python="$cache/frameworks-python-$(hash_of requirements.txt)"
environment "$python" requirements.txt
crew="$cache/frameworks-crewai-$(hash_of requirements-crewai.txt)"
environment "$crew" requirements-crewai.txt
modules="$cache/frameworks-npm-$(hash_of package-lock.json)"
if [[ ! -e "$modules/complete" ]]; then
    rm -rf "$modules"
    mkdir -p "$modules"
    cp package.json package-lock.json "$modules/"
    npm ci --loglevel=error --no-audit --no-fund --ignore-scripts --prefix "$modules" || failed npm view zod@4.6.7 version
    touch "$modules/complete"
fi

exec "$python/bin/python" -B check.py "$BATON_BIN" "$python" "$crew" "$modules/node_modules" "$@"
