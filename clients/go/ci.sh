#!/usr/bin/env bash
# Everything that must hold for the Go client: the stubs are those of the schema, vet and staticcheck are content, the
# tests pass against a real broker, and it conforms.
#
#   BATON_BIN=target/debug/baton clients/go/ci.sh
#
# Needs go and npm; installs its tools, in pinned versions, into BATON_CI_CACHE.
set -euo pipefail

: "${BATON_BIN:?must name the baton program}"
BATON_BIN="$(realpath "$BATON_BIN")"
export BATON_BIN
cd "$(dirname "${BASH_SOURCE[0]}")"

buf_version=1.75.0
cache="${BATON_CI_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/baton-ci}"
tools="$cache/go-tools-1"
buf="$cache/buf-$buf_version"
if [[ ! -x "$buf/node_modules/.bin/buf" ]]; then
    npm install --no-audit --no-fund --no-save --loglevel=error --prefix "$buf" "@bufbuild/buf@$buf_version"
fi
for tool in \
    google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.12 \
    google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.6.2 \
    honnef.co/go/tools/cmd/staticcheck@v0.8.2; do
    name="${tool%@*}"
    if [[ ! -x "$tools/${name##*/}" ]]; then
        GOBIN="$tools" go install "$tool"
    fi
done
export PATH="$tools:$buf/node_modules/.bin:$PATH"

echo "# stubs"
# Made anew beside the ones that are checked in, which stay as they are.
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
buf generate --output "$work"
diff -r "$work/batonv1" batonv1
echo "# format, vet, staticcheck"
test -z "$(gofmt -l . | tee -a /dev/stderr)" # -a: where that is a file, it is not emptied
go mod tidy -diff
go vet ./...
staticcheck ./...
echo "# the module for OpenTelemetry"
(cd otelbaton && go mod tidy -diff && go vet ./... && staticcheck ./... && go test -count=1 ./...)
echo "# tests"
go test -race -count=1 -timeout 15m ./...
echo "# conformance"
go build -race -o "$work/harness" ./internal/harness
"$BATON_BIN" conformance --patience 2m --client "$work/harness" --jobs 3
