#!/usr/bin/env bash
# The table of docs/performance.md in one go: baton, the bare pipeline and the peers, in turn, several rounds, one machine.
#
#   benches/compare.sh PEERS [ROUNDS]
#
# PEERS is the runner of the peers, a script that is called as `PEERS redis-always -- --seconds 10 --signed` and prints a
# line with handoffs/s=NUMBER. A peer that it cannot start is left out of the table. Environment: BENCH_SECONDS (10) for
# each measurement; TMPDIR for the disk that all of them write to; BATON_BIN and PIPELINE_BIN, executables to measure
# instead of those that are built here. Prints Markdown; every figure goes to stderr at once.

set -euo pipefail
peers="$(realpath "${1:?the runner of the peers}")" rounds="${2:-5}" seconds="${BENCH_SECONDS:-10}"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
figures="$(mktemp)"
trap 'rm -f "$figures"' EXIT

# Notes one figure: note NAME NUMBER
note() { printf '%s\t%s\n' "$1" "$2" | tee -a "$figures" >&2; }

# Handoffs a second out of a report of `baton bench handoff`.
rate() { python3 -c 'import json, sys; print(json.load(sys.stdin)["handoffs_per_second"])'; }

work=(--pairs 8 --window 32 --context-size 2048 --duration "${seconds}s" --warm-up 2s -o json)
baton() { measure "$baton_bin" bench "$@"; }
pipeline() { measure "$pipeline_bin" "" "$@"; }
# measure EXECUTABLE SUBCOMMAND NAME FLAG ...: one figure of `handoff`. A bench that fails ends the whole.
measure() {
    local executable="$1" subcommand="$2" name="$3" figure
    figure="$("$executable" ${subcommand:+"$subcommand"} handoff "${work[@]}" "${@:4}" | rate)"
    note "$name" "$figure"
}
peer() {
    local name="$1" line
    shift
    line="$(RUST_BACKTRACE=0 "$peers" "$1" -- --pairs 8 --window 32 --context 2048 --seconds "$seconds" "${@:2}" | grep 'handoffs/s=')" || return 0
    note "$name" "$(sed 's/.*handoffs\/s=\([0-9.]*\).*/\1/' <<<"$line")"
}

[[ -n "${BATON_BIN:-}" ]] || cargo build --release --features full --quiet
baton_bin="${BATON_BIN:-${CARGO_TARGET_DIR:-target}/release/baton}"
pipeline_bin="${PIPELINE_BIN:-$(benches/executable.sh pipeline)}"
for ((round = 1; round <= rounds; round++)); do
    echo "round $round of $rounds, load $(cut -d" " -f1-3 /proc/loadavg)" >&2
    baton 'baton, signed'
    peer 'Redis always, signed' redis-always --signed
    pipeline 'bare pipeline, signed'
    baton 'baton, signed and verified end to end' --verify
    peer 'NATS always, signed' nats-always --signed
    pipeline 'bare pipeline, signed and verified end to end' --verify
    baton 'baton, nothing signed' --unsigned
    peer 'Redis always, nothing signed' redis-always
    pipeline 'bare pipeline, nothing signed, no sync' --unsigned --no-sync
    peer 'RabbitMQ quorum, signed' rabbit --signed
done

python3 - "$figures" <<'PYTHON'
import collections, statistics, sys

figures = collections.defaultdict(list)
for line in open(sys.argv[1]):
    name, number = line.rstrip("\n").split("\t")
    figures[name].append(float(number))
median = {name: statistics.median(numbers) for name, numbers in figures.items()}
print("| | handoffs/s, median | range |\n|---|---|---|")
for name, numbers in figures.items():
    print(f"| {name} | {median[name]:,.0f} | {min(numbers):,.0f} to {max(numbers):,.0f} |")
signed, verified, unsigned = "baton, signed", "baton, signed and verified end to end", "baton, nothing signed"
print("\n| | against | wanted | reached |\n|---|---|---|---|")
for ours, theirs, wanted in [
    (signed, "Redis always, signed", 1.5),
    (verified, "Redis always, signed", 1.0),
    (unsigned, "Redis always, nothing signed", 1.2),
    (signed, "NATS always, signed", 5),
    (signed, "RabbitMQ quorum, signed", 2.5),
    (signed, "bare pipeline, signed", 0.85),
]:
    reached = f"{median[ours] / median[theirs]:.2f} ×" if theirs in median else "not measured"
    print(f"| {ours} | {theirs} | {wanted} × | {reached} |")
PYTHON
