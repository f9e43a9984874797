#!/usr/bin/env bash
# Shows that the simulator can see: breaks the broker in one way after another, and says how many seeds it takes until a
# law is found broken. Each way is a patch in mutations/, planted by tests/plant.sh.
#
#     tests/simulator/mutations.sh [MOST_SEEDS]

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

most="${1:-2000}"
log="${CARGO_TARGET_DIR:-$PWD/target}/mutant.log"
escaped=0

for patch in tests/simulator/mutations/*.patch; do
    name="$(basename "$patch" .patch)"
    code=0
    RUST_BACKTRACE=0 BATON_SIM_SEEDS="$most" \
        tests/plant.sh "$patch" cargo test --quiet --locked --test simulator >"$log" 2>&1 || code=$?
    seeds="$(sed -n 's/.*breaks a law, after \([0-9]*\) seeds.*/\1/p' "$log")"
    if ((code == 0)); then
        printf '%-34s not caught by %s seeds\n' "$name" "$most"
        escaped=1
    elif [[ -z "$seeds" ]]; then
        # A patch that the code has grown away from breaks nothing.
        printf '%-34s does not apply or does not compile: mend the patch\n' "$name"
        escaped=1
    else
        law="$(grep -A1 -m1 'panicked at' "$log" | tail -1 | cut -c1-100)"
        printf '%-34s caught by seed %-5s %s\n' "$name" "$seeds" "$law"
    fi
done
exit "$escaped"
