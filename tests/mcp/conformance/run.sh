#!/usr/bin/env bash
# `baton mcp` with the official conformance suite of the Model Context Protocol, in both eras. The suite speaks HTTP alone, so a
# bridge stands before the command. All scenarios for servers run that need no tools of the suite's own ("test_…") and that are not
# about HTTP, which the bridge speaks.
#
#   tests/mcp/conformance/run.sh BATON FOLDER SERVER CA
#
# Needs npm and python3. Installs the exact versions of package-lock.json, among them the Node.js that the suite needs, from npm
# into BATON_CI_CACHE. FOLDER is for the agent's key and the results. Prints the summary of each scenario; fails if one fails.
set -euo pipefail

baton="$1" folder="$2" server="$3" ca="$4"
cd "$(dirname "${BASH_SOURCE[0]}")"
declare -A scenarios=(
    [2025-11-25]="server-initialize server-session-lifecycle ping tools-list resources-list prompts-list"
    [2026-07-28]="tools-list resources-list prompts-list caching sep-2164-resource-not-found
        input-required-result-unsupported-methods input-required-result-ignore-extra-params input-required-result-validate-input"
)

cache="${BATON_CI_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/baton-ci}"
modules="$cache/mcp-conformance-$(sha256sum package-lock.json | cut -c1-12)"
if [[ ! -e "$modules/complete" ]]; then
    rm -rf "$modules"
    mkdir -p "$modules"
    cp package.json package-lock.json "$modules/"
    npm ci --silent --no-audit --no-fund --prefix "$modules"
    touch "$modules/complete"
fi

"$baton" keygen --out "$folder/conformance.pem" >"$folder/conformance.key.log"
coproc holder { exec python3 ../../ports.py; }
read -r port <&"${holder[0]}"
command="'$baton' mcp --id conformance --key '$folder/conformance.pem' --server '$server' --ca '$ca'"
node "$modules/node_modules/supergateway/dist/index.js" --stateful --outputTransport streamableHttp --port "$port" \
    --logLevel none --stdio "$command" >"$folder/bridge.log" 2>&1 &
bridge=$!
trap 'kill "$bridge" 2>/dev/null || true; wait "$bridge" 2>/dev/null || true' EXIT
for _ in {1..600}; do
    if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then break; fi
    kill -0 "$bridge" 2>/dev/null || { cat "$folder/bridge.log" >&2; exit 1; }
    sleep 0.1
done

code=0
for version in "${!scenarios[@]}"; do
    for scenario in ${scenarios[$version]}; do
        log="$folder/conformance.log"
        if "$modules/node_modules/node/bin/node" "$modules/node_modules/@modelcontextprotocol/conformance/dist/index.js" server \
            --url "http://127.0.0.1:$port/mcp" --scenario "$scenario" --spec-version "$version" >"$log" 2>&1 &&
            passed="$(grep '^Passed: ' "$log")"; then
            printf 'conformance, %s, %s: %s\n' "$version" "$scenario" "${passed#Passed: }"
        else
            code=1
            cat "$log"
        fi
    done
done
exit "$code"
