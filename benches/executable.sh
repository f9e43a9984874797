#!/usr/bin/env bash
# Builds a bench and prints the path of its executable: benches/executable.sh NAME

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
cargo bench --quiet --bench "$1" --no-run --message-format json | python3 -c '
import json, sys
built = [line for line in map(json.loads, sys.stdin) if line.get("executable") and line["target"]["name"] == sys.argv[1]]
print(built[-1]["executable"])' "$1"
