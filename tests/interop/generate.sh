#!/usr/bin/env bash
# Makes stubs from a copy of proto/ alone, by the buf.gen.yaml and the commands of proto/README.md as they stand there, and
# compiles them.
#
#   tests/interop/generate.sh       with buf, protoc-gen-go, protoc-gen-go-grpc and go on the PATH
set -euo pipefail
cd "$(dirname "$0")/../.."

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
cp -r proto "$work"
cd "$work"
block() { sed -n "/^\`\`\`$1\$/,/^\`\`\`\$/{/^\`\`\`/d; p}" proto/README.md; }
block yaml >buf.gen.yaml
block sh >commands.sh
test -s buf.gen.yaml -a -s commands.sh
bash -euo pipefail commands.sh
for service in agent audit broker dead_letter handoff task; do
    test -s "baton/v1/${service}_service_grpc.pb.go"
done
echo "stubs of $(find baton -name '*.pb.go' | wc -l) files, made from proto/ alone, compile"
