#!/usr/bin/env bash
# Starts a versitygw of its own, on a free port and in a folder of its own, and runs the tests of the engine against it.
#
#     tests/cluster/bucket.sh VERSITYGW             the program
#     tests/cluster/bucket.sh VERSITYGW --measure   prints appends a second, beside those of a folder

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
program="$(realpath "$1")"
work="$(mktemp -d)"
server=

cleanup() {
    if [[ -n "$server" ]]; then
        kill "$server" || true
        wait "$server" || true
    fi
    rm -rf "$work"
}
trap cleanup EXIT

mkdir -p "$work/objects/logs"
export AWS_ACCESS_KEY_ID=broker AWS_SECRET_ACCESS_KEY=a-secret-of-this-test
# Its end is that of its standard input, which is this shell.
coproc holder { exec python3 tests/ports.py; }
read -r port <&"${holder[0]}"
"$program" --access "$AWS_ACCESS_KEY_ID" --secret "$AWS_SECRET_ACCESS_KEY" --port "127.0.0.1:$port" posix "$work/objects" \
    >"$work/server.log" 2>&1 &
server=$!
for _ in {1..100}; do
    if (: <>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then break; fi
    kill -0 "$server" || { cat "$work/server.log"; exit 1; }
    sleep 0.1
done

export BATON_BUCKET="$port"
if [[ "${2:-}" == --measure ]]; then
    cargo test --locked --test cluster_bucket -- --ignored --nocapture --test-threads 1
else
    # Without a crate's name: else its libraries are compiled again, with only the features that this crate asks for.
    cargo test --locked --test cluster_bucket
fi
