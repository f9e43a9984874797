#!/usr/bin/env bash
# The broker with clients in other languages: Python agents, a Go agent, and grpcurl. Needs python3, go and grpcurl.
#
#   tests/interop/run.sh                                   with target/debug/baton
#   BATON_BIN=target/release/baton tests/interop/run.sh    with another binary
#
# What the command line is called with stands in commands.py. Ends with "N passed, 0 failed", or fails.
set -euo pipefail
cd "$(dirname "$0")/../.."

export BATON_BIN="${BATON_BIN:-target/debug/baton}"
unset BATON_SERVER BATON_CA BATON_TOKEN BATON_CERT BATON_CERT_KEY BATON_DATA BATON_LISTEN BATON_CONFIG
export PYTHONPATH="$PWD/clients/python/src" PYTHONDONTWRITEBYTECODE=1
export no_grpc_proxy=127.0.0.1 no_proxy=127.0.0.1

requirements=clients/python/requirements.txt
venv="${BATON_INTEROP_CACHE:-${CARGO_TARGET_DIR:-target}/interop}/venv-$(sha256sum "$requirements" | cut -c1-12)"
if [ ! -e "$venv/complete" ]; then
    echo "# making $venv"
    rm -rf "$venv"
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check -r "$requirements"
    touch "$venv/complete"
fi

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
echo "# vectors"
"$venv/bin/python" vectors/generate.py --check
echo "# tests of the Python client that need no broker; clients/python/ci.sh runs all of them"
env -u BATON_BIN "$venv/bin/python" -m pytest --quiet -p no:cacheprovider --basetemp "$work/tests" clients/python
echo "# the agent in Go"
export GO_NODE="$work/go-node"
go build -C clients/go -o "$GO_NODE" ./internal/node
echo "# with a broker: $("$BATON_BIN" --version)"
"$venv/bin/python" tests/interop/check.py
