#!/usr/bin/env bash
# `baton mcp` and a gateway with the official conformance suite of the Model Context Protocol, in both eras. The suite speaks HTTP
# alone, so a bridge stands before the command. It sends no token, so a proxy before the gateway adds one. All scenarios for
# servers run that need no tools of the suite's own ("test_…"); those about HTTP and about sessions run where they apply.
#
#   tests/mcp/conformance/run.sh BATON FOLDER SERVER CA URL
#
# URL is the gateway's, whose folder is FOLDER/gateway.
#
# Needs npm and python3. Installs the exact versions of package-lock.json, among them the Node.js that the suite needs, from npm
# into BATON_CI_CACHE. FOLDER is for the agent's key and the results. Prints the summary of each scenario; fails if one fails.
set -euo pipefail

baton="$1" folder="$2" server="$3" ca="$4" url="$5"
cd "$(dirname "${BASH_SOURCE[0]}")"
declare -A both=(
    [2025-11-25]="server-initialize ping tools-list resources-list prompts-list"
    [2026-07-28]="tools-list resources-list prompts-list caching sep-2164-resource-not-found
        input-required-result-unsupported-methods input-required-result-ignore-extra-params input-required-result-validate-input"
)
declare -A of_stdio=([2025-11-25]="server-session-lifecycle" [2026-07-28]="")
declare -A of_http=([2025-11-25]="dns-rebinding-protection" [2026-07-28]="http-header-validation dns-rebinding-protection")

cache="${BATON_CI_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/baton-ci}"
modules="$cache/mcp-conformance-$(sha256sum package-lock.json | cut -c1-12)"
if [[ ! -e "$modules/complete" ]]; then
    rm -rf "$modules"
    mkdir -p "$modules"
    cp package.json package-lock.json "$modules/"
    npm ci --loglevel=error --no-audit --no-fund --prefix "$modules"
    touch "$modules/complete"
fi

"$baton" keygen --out "$folder/conformance.pem" >"$folder/conformance.key.log"
coproc holder { exec python3 ../../ports.py; }
read -r port <&"${holder[0]}"
command="'$baton' mcp --id conformance --key '$folder/conformance.pem' --server '$server' --ca '$ca'"
node "$modules/node_modules/supergateway/dist/index.js" --stateful --outputTransport streamableHttp --port "$port" \
    --logLevel none --stdio "$command" >"$folder/bridge.log" 2>&1 &
bridge=$! proxy=
trap 'kill "$bridge" $proxy 2>/dev/null || true; wait "$bridge" $proxy 2>/dev/null || true' EXIT
for _ in {1..600}; do
    if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then break; fi
    kill -0 "$bridge" 2>/dev/null || { cat "$folder/bridge.log" >&2; exit 1; }
    sleep 0.1
done

code=0
# run WAY URL VERSION SCENARIO…
run() {
    local way="$1" at="$2" version="$3" scenario log="$folder/conformance.log" passed
    shift 3
    for scenario in "$@"; do
        if "$modules/node_modules/node/bin/node" "$modules/node_modules/@modelcontextprotocol/conformance/dist/index.js" server \
            --url "$at" --scenario "$scenario" --spec-version "$version" >"$log" 2>&1 &&
            passed="$(grep '^Passed: ' "$log")"; then
            printf 'conformance, %s, %s, %s: %s\n' "$way" "$version" "$scenario" "${passed#Passed: }"
        else
            code=1
            cat "$log"
        fi
    done
}

for version in "${!both[@]}"; do
    # shellcheck disable=SC2086
    run stdio "http://127.0.0.1:$port/mcp" "$version" ${both[$version]} ${of_stdio[$version]}
done

broker=(--server "$server" --ca "$ca")
"$baton" keygen --out "$folder/conformance-http.pem" >"$folder/conformance.key.log"
"$baton" agent register --id conformance-http --key "$folder/conformance-http.pem" "${broker[@]}" >"$folder/conformance.key.log"
BATON_TOKEN="$("$baton" gateway grant --data "$folder/gateway" --id conformance-http --key "$folder/conformance-http.pem" -o json \
    "${broker[@]}" | python3 -c 'import json, sys; print(json.load(sys.stdin)["token"])')"
export BATON_TOKEN
node with-token.mjs "$url" "$ca" >"$folder/proxy.port" &
proxy=$!
for _ in {1..600}; do
    [[ -s "$folder/proxy.port" ]] && break
    kill -0 "$proxy"
    sleep 0.1
done
proxy_port="$(<"$folder/proxy.port")"
for version in "${!both[@]}"; do
    # shellcheck disable=SC2086
    run HTTP "http://127.0.0.1:$proxy_port/mcp" "$version" ${both[$version]} ${of_http[$version]}
done
exit "$code"
