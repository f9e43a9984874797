#!/usr/bin/env bash
# The tests of the web console in a browser: a real broker, a headless Chromium.
#
#   BATON_BIN=target/debug/baton tests/console/run.sh
#   BATON_BIN=target/debug/baton tests/console/run.sh --screenshots    also makes the pictures of docs/console/
#
# Needs node and npm. $CHROMIUM names another browser than the one from npm.
set -euo pipefail

: "${BATON_BIN:?must name the baton program}"
BATON_BIN="$(realpath "$BATON_BIN")"
export BATON_BIN
cd "$(dirname "${BASH_SOURCE[0]}")"
if [[ "${1:-}" == --screenshots ]]; then
    SCREENSHOTS="$(realpath ../../docs)/console"
    export SCREENSHOTS
fi
if [[ ! node_modules/.package-lock.json -nt package-lock.json ]]; then
    npm ci --silent --no-audit --no-fund
fi

# The browser unpacks itself into the temporary folder.
TMPDIR="$(mktemp -d)"
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT
node --test --test-force-exit console.test.mjs
