#!/usr/bin/env bash
# `baton mcp` and `baton gateway` with the official Python and TypeScript clients of the Model Context Protocol: every tool,
# resource and prompt, in the era of initialize and in that of metadata on each request.
#
#   BATON_BIN=target/debug/baton tests/mcp/run.sh
#
# Needs python3 with venv, and node. Installs the exact versions of requirements.txt and package-lock.json, from PyPI and npm,
# into BATON_CI_CACHE. Ends with one line a client and era, or fails.
set -euo pipefail

: "${BATON_BIN:?must name the baton program}"
BATON_BIN="$(realpath "$BATON_BIN")"
cd "$(dirname "${BASH_SOURCE[0]}")"
export PYTHONDONTWRITEBYTECODE=1
unset BATON_SERVER BATON_CA BATON_TOKEN BATON_CERT BATON_CERT_KEY BATON_DATA BATON_LISTEN BATON_CONFIG

cache="${BATON_CI_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/baton-ci}"
venv="$cache/mcp-python-$(sha256sum requirements.txt | cut -c1-12)"
if [[ ! -e "$venv/complete" ]]; then
    rm -rf "$venv"
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps -r requirements.txt
    touch "$venv/complete"
fi
modules="$cache/mcp-typescript-$(sha256sum package-lock.json | cut -c1-12)"
if [[ ! -e "$modules/complete" ]]; then
    rm -rf "$modules"
    mkdir -p "$modules"
    cp package.json package-lock.json "$modules/"
    npm ci --loglevel=error --no-audit --no-fund --prefix "$modules"
    touch "$modules/complete"
fi

work="$(mktemp -d)"
"$BATON_BIN" dev --data "$work/data" --listen 127.0.0.1:0 > "$work/broker.log" 2>&1 &
broker=$!
gateway=
trap 'kill "$broker" $gateway 2> /dev/null || true; wait "$broker" $gateway 2> /dev/null || true; rm -rf "$work"' EXIT
for _ in $(seq 600); do
    [[ -s "$work/data/address" ]] && break
    kill -0 "$broker" 2> /dev/null || { cat "$work/broker.log" >&2; exit 1; }
    sleep 0.1
done
server="$(cat "$work/data/address")"
# A module finds its dependencies beside itself.
cp story.mjs story.json "$modules/"
ca="$work/data/tls/ca.pem"
sets=core,context,plans,offers,workspace,mail
"$BATON_BIN" gateway --data "$work/gateway" --listen 127.0.0.1:0 --tls-cert "$work/data/tls/server.pem" --tools "$sets" \
    --tls-key "$work/data/tls/server.key" --server "$server" --ca "$ca" -o json > "$work/gateway.address" 2> "$work/gateway.log" &
gateway=$!
for _ in $(seq 600); do
    [[ -s "$work/gateway.address" ]] && break
    kill -0 "$gateway" 2> /dev/null || { cat "$work/gateway.log" >&2; exit 1; }
    sleep 0.1
done
url="$(python3 -c 'import json, sys; print(json.load(sys.stdin)["mcp"])' < "$work/gateway.address")"
"$venv/bin/python" openapi.py "${url%/mcp}/api/v1/openapi.json" "$ca"
for over in "" "$url"; do
    for era in legacy auto; do
        "$venv/bin/python" story.py "$BATON_BIN" "$work" "$server" "$ca" "$era" $over
        NODE_EXTRA_CA_CERTS="$ca" node "$modules/story.mjs" "$BATON_BIN" "$work" "$server" "$ca" "$era" $over
    done
    NODE_EXTRA_CA_CERTS="$ca" node "$modules/story.mjs" "$BATON_BIN" "$work" "$server" "$ca" sdk1 $over
done
conformance/run.sh "$BATON_BIN" "$work" "$server" "$ca" "$url"
