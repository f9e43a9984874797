#!/usr/bin/env bash
# Everything that must hold for the Python client: format, lint, types, tests against a real broker, a wheel that works,
# and the example of the README.
#
#   BATON_BIN=target/debug/baton clients/python/ci.sh
#
# Needs python3 with venv, and Python 3.11 or 3.12 for the oldest versions; installs the exact versions of the requirements,
# from PyPI, into BATON_CI_CACHE.
set -euo pipefail

: "${BATON_BIN:?must name the baton program}"
BATON_BIN="$(realpath "$BATON_BIN")"
export BATON_BIN
cd "$(dirname "${BASH_SOURCE[0]}")"
export no_grpc_proxy=127.0.0.1 no_proxy=127.0.0.1 PYTHONDONTWRITEBYTECODE=1

cache="${BATON_CI_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/baton-ci}"
locks="$(cat requirements.txt requirements-adapters.txt | sha256sum | cut -c1-12)"
venv="$cache/python-client-$locks"
# Makes an environment, unless it is whole: environment FOLDER PYTHON REQUIREMENTS...
environment() {
    local folder="$1" python="$2" options=()
    if [[ -e "$folder/complete" ]]; then return; fi
    shift 2
    for file in "$@"; do options+=(-r "$file"); done
    rm -rf "$folder"
    "$python" -m venv "$folder"
    "$folder/bin/pip" install --quiet --disable-pip-version-check --no-deps "${options[@]}"
    "$folder/bin/pip" check
    touch "$folder/complete"
}
environment "$venv" python3 requirements.txt requirements-adapters.txt

# The old versions have no wheels for a later Python.
old_python=
for candidate in python3 python3.12 python3.11; do
    if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' 2>/dev/null; then
        old_python="$candidate"
        break
    fi
done
if [[ -z "$old_python" ]]; then
    echo "needs Python 3.11 or 3.12 for the oldest versions of grpcio and protobuf" >&2
    exit 1
fi
stubs_venv="$cache/python-stubs-$(sha256sum <requirements-stubs.txt | cut -c1-12)"
environment "$stubs_venv" "$old_python" requirements-stubs.txt
oldest_venv="$cache/python-oldest-$(sha256sum <requirements-oldest.txt | cut -c1-12)"
environment "$oldest_venv" "$old_python" requirements-oldest.txt
export PATH="$venv/bin:$PATH"

work="$(mktemp -d)"
broker=
serving=
oldest=
finish() {
    for process in $oldest $serving $broker; do kill "$process" 2>/dev/null && wait "$process" 2>/dev/null || true; done
    rm -rf "$work"
}
trap finish EXIT

echo "# stubs"
"$stubs_venv/bin/python" generate.py --check
echo "# format, lint, types"
ruff format --check .
ruff check .
mypy
python pages.py "$work/pages" README.md ../../docs/tutorials/python.md ../../docs/how-to/agent-frameworks.md
mypy "$work"/pages/*.py
echo "# tests"
# Without its framework an adapter's test is skipped.
python -c 'import agents, langgraph.graph, pydantic_ai'
# Beside them those with the oldest versions: most of their time is waiting.
"$oldest_venv/bin/python" -m pytest --quiet -p no:cacheprovider --basetemp "$work/tests-oldest" >"$work/oldest.log" 2>&1 &
oldest=$!
pytest --quiet -p no:cacheprovider --basetemp "$work/tests"
echo "# tests with the oldest versions"
code=0
wait "$oldest" || code=$?
oldest=
cat "$work/oldest.log"
((code == 0))
echo "# conformance"
PYTHONPATH=src "$BATON_BIN" conformance --patience 2m --client "python tests/harness.py" --jobs 3
echo "# the source distribution, and the wheel made of it"
# From a copy: what a build leaves behind is not for this folder.
mkdir "$work/source"
cp -r pyproject.toml README.md LICENSE src "$work/source"
(cd "$work/source" && python -c 'from setuptools import build_meta; build_meta.build_sdist("../dist")' >"$work/sdist.log")
pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation -w "$work/dist" "$work"/dist/*.tar.gz
tar -tf "$work"/dist/*.tar.gz | grep '/LICENSE$'
python -m zipfile --list "$work"/dist/*.whl | grep -o '^[^ ]*licenses/LICENSE'
python3 -m venv --system-site-packages "$work/venv"
# The dependencies are those of the tests.
echo "$venv"/lib/python3*/site-packages > "$(echo "$work"/venv/lib/python3*/site-packages)/tests.pth"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps "$work"/dist/*.whl
(
    cd "$work"
    "$work/venv/bin/python" -c '
import pathlib, baton
folder = pathlib.Path(baton.__file__).parent
assert "venv" in str(folder), folder
assert (folder / "py.typed").exists() and list(folder.glob("_gen/baton/v1/*.pyi"))
assert baton.v1.HandoffRequest(task_type="x").task_type == "x"
'
)
echo "# the example"
"$BATON_BIN" dev --data "$work/data" --port 0 >"$work/broker.log" 2>&1 &
broker=$!
until [[ -s "$work/data/address" ]]; do kill -0 "$broker"; sleep 0.05; done
# No function: in the background that would be a shell, and killing it would leave the agent behind.
example=("$work/venv/bin/python" examples/ticket_agent.py --server "$(cat "$work/data/address")" --ca "$work/data/tls/ca.pem")
"${example[@]}" --id bob --key "$work/bob.pem" serve >"$work/bob.log" 2>&1 &
serving=$!
until grep -q "waiting for tickets" "$work/bob.log"; do kill -0 "$serving"; sleep 0.05; done
"${example[@]}" --id alice --key "$work/alice.pem" offer --to bob --task ticket-1 | tee "$work/alice.log"
grep -q "ticket-1: handed over, owned by bob at epoch 2" "$work/alice.log"
echo "the Python client is in order"
