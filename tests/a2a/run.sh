#!/usr/bin/env bash
# The official Python and TypeScript clients of A2A 1.0 against `baton gateway`: card, stream, wait, get, list, cancel, in both
# bindings. The agent behind the card is a shell script in `baton agent exec`.
#
#   BATON_BIN=target/debug/baton tests/a2a/run.sh
#
# Needs python3 with venv, and node. Installs the exact versions of requirements.txt and package-lock.json, from PyPI and npm,
# into BATON_CI_CACHE. Ends with one line a client and binding, or fails.
set -euo pipefail

: "${BATON_BIN:?must name the baton program}"
BATON_BIN="$(realpath "$BATON_BIN")"
cd "$(dirname "${BASH_SOURCE[0]}")"
export PYTHONDONTWRITEBYTECODE=1
unset BATON_SERVER BATON_CA BATON_TOKEN BATON_CERT BATON_CERT_KEY BATON_DATA BATON_LISTEN BATON_CONFIG

cache="${BATON_CI_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/baton-ci}"
venv="$cache/a2a-python-$(sha256sum requirements.txt | cut -c1-12)"
if [[ ! -e "$venv/complete" ]]; then
    rm -rf "$venv"
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps -r requirements.txt
    touch "$venv/complete"
fi
modules="$cache/a2a-typescript-$(sha256sum package-lock.json | cut -c1-12)"
if [[ ! -e "$modules/complete" ]]; then
    rm -rf "$modules"
    mkdir -p "$modules"
    cp package.json package-lock.json "$modules/"
    npm ci --loglevel=error --no-audit --no-fund --ignore-scripts --prefix "$modules"
    touch "$modules/complete"
fi

work="$(mktemp -d)"
started=()
trap 'kill "${started[@]}" 2> /dev/null || true; wait "${started[@]}" 2> /dev/null || true; rm -rf "$work"' EXIT

# Waits until the file has its first line: comes FILE LOG.
comes() {
    for _ in $(seq 600); do
        [[ -s "$1" ]] && return
        kill -0 "${started[-1]}" 2> /dev/null || break
        sleep 0.1
    done
    cat "$2" >&2
    exit 1
}

"$BATON_BIN" dev --data "$work/data" --listen 127.0.0.1:0 > "$work/broker.log" 2>&1 &
started+=($!)
comes "$work/data/address" "$work/broker.log"
ca="$work/data/tls/ca.pem"
at=(--server "$(cat "$work/data/address")" --ca "$ca")

"$BATON_BIN" keygen --out "$work/adder.pem" > /dev/null
"$BATON_BIN" agent exec --id adder --key "$work/adder.pem" --type sums --concurrency 4 "${at[@]}" -- ./adder.sh \
    > "$work/adder.log" 2> "$work/adder.err" &
started+=($!)
comes "$work/adder.log" "$work/adder.err"

"$BATON_BIN" keygen --out "$work/caller.pem" > /dev/null
"$BATON_BIN" agent register --id caller --key "$work/caller.pem" "${at[@]}" > /dev/null
"$BATON_BIN" gateway grant --data "$work/gateway" --id caller --key "$work/caller.pem" --days 1 "${at[@]}" -o json > "$work/grant.json"
"$BATON_BIN" gateway --data "$work/gateway" --listen 127.0.0.1:0 --tls-cert "$work/data/tls/server.pem" \
    --tls-key "$work/data/tls/server.key" --a2a-publish type:sums "${at[@]}" -o json > "$work/gateway.address" 2> "$work/gateway.log" &
started+=($!)
comes "$work/gateway.address" "$work/gateway.log"
url="$(python3 -c 'import json, sys; print(json.load(sys.stdin)["a2a"][0])' < "$work/gateway.address")"
token="$(python3 -c 'import json, sys; print(json.load(sys.stdin)["token"])' < "$work/grant.json")"

"$venv/bin/python" story.py "$url" "$ca" "$token"
# A module finds its dependencies beside itself.
cp story.mjs "$modules/"
NODE_EXTRA_CA_CERTS="$ca" node "$modules/story.mjs" "$url" "$token"
