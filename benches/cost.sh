#!/usr/bin/env bash
# What a part of the broker costs, for machines that others use too, on which the time that passes says little.
#
#   benches/cost.sh time [PART ...]            processor time
#   benches/cost.sh passed [PART ...]          the time that passes, for parts that wait for the disk
#   benches/cost.sh instructions [PART ...]    instructions, as valgrind counts them
#
# Parts are named as `cargo bench --bench parts` prints them. To compare two, name them in turns: A B A B. Takes one turn
# of a part, which also prepares what it needs, and then many; the difference, divided, is what one costs. valgrind lacks
# the newest instructions: what uses them, as signatures and digests do, takes longer ways there, and its count compares
# only with itself. PARTS_BIN is an executable to measure instead of the one that is built here.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
method="${1:?time or instructions}"
shift
(($#)) || set -- sign/one verify/plain verify/strict 'verify/batch of 8' 'verify/batch of 32' 'verify/batch of 128' \
    verify/envelope sign/envelope sign/receipt codec/frame codec/envelope 'codec/signing input' \
    'codec/handoff record, write' 'codec/handoff record, read' 'step/whole handoff' 'commit/1 message' \
    'commit/32 messages' 'commit/256 messages' 'commit/bare append and sync'
bench="${PARTS_BIN:-$(benches/executable.sh parts)}"
said="$(mktemp)"
trap 'rm -f "$said"' EXIT

# Each takes a part so many times, PART TURNS, and prints what that took; how many things a turn is, is left in $said.
instructions() {
    PARTS_TURNS="$1:$2" valgrind --tool=cachegrind --cache-sim=no --cachegrind-out-file=/dev/null "$bench" 2>&1 >"$said" |
        sed -n 's/,//g; s/.*I *refs: *//p'
}
nanoseconds() {
    local TIMEFORMAT='%3U %3S'
    [[ $method == time ]] || TIMEFORMAT='%3R 0'
    { time PARTS_TURNS="$1:$2" "$bench" >"$said"; } 2>&1 | sed 's/\.//g' | { read -r user system; echo "$(((10#$user + 10#$system) * 1000000))"; }
}

for part in "$@"; do
    case "$method" in
        instructions)
            # What a part prepares differs from run to run by up to a million.
            turns=50 one="$(instructions "$part" 1)" all=0
            until ((all - one >= 200000000)); do turns=$((turns * 4)) all="$(instructions "$part" $((turns + 1)))"; done ;;
        time | passed)
            turns=5 one="$(nanoseconds "$part" 1)" all=0
            until ((all - one >= 1000000000)); do turns=$((turns * 4)) all="$(nanoseconds "$part" $((turns + 1)))"; done ;;
        *) echo "$method is neither time, passed nor instructions" >&2; exit 2 ;;
    esac
    unit="$([[ $method == instructions ]] && echo instructions || echo ns)"
    printf '%-30s %10d %s\n' "$part" "$(((all - one) / turns / $(<"$said")))" "$unit"
done
