#!/usr/bin/env bash
# Instructions of a part of the broker, as valgrind counts them: for machines on which time is not to be trusted.
#
#   benches/instructions.sh [PART ...]      names as `cargo bench --bench parts` prints them; default: a choice
#
# Takes the part's turns once for none and once for many; the difference, divided, is what one costs. valgrind knows fewer
# instructions than the processor: signatures take other ways than they do outside, and only compare with themselves.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
(($#)) || set -- sign/one verify/strict 'verify/batch of 32' verify/envelope codec/frame codec/envelope \
    'codec/signing input' 'codec/handoff record, write' 'codec/handoff record, read' 'step/whole handoff'
turns=50
bench="$(cargo bench --quiet --bench parts --no-run --message-format json \
    | python3 -c 'import json, sys
print([line["executable"] for line in map(json.loads, sys.stdin) if line.get("executable") and line["target"]["name"] == "parts"][-1])')"

# Counts a run: count PART TURNS; prints how many things a turn is, and the instructions of the run.
count() {
    local log
    log="$(mktemp)"
    PARTS_TURNS="$1:$2" valgrind --tool=cachegrind --cache-sim=no --cachegrind-out-file=/dev/null "$bench" 2>"$log"
    sed -n 's/,//g; s/.*I *refs: *//p' "$log"
    rm -f "$log"
}

for part in "$@"; do
    { read -r _; read -r none; } < <(count "$part" 0)
    { read -r many; read -r all; } < <(count "$part" "$turns")
    printf '%-30s %10d instructions\n' "$part" "$(((all - none) / turns / many))"
done
