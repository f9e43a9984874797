#!/usr/bin/env bash
# Shows that the simulator of a cluster can see: breaks the members in one way after another, and says how many seeds it takes
# until a law is found broken. Each way is a patch in mutations/, planted by tests/plant.sh.
#
#     tests/cluster/mutations.sh [MOST_SEEDS]

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

most="${1:-2000}"
log="${CARGO_TARGET_DIR:-$PWD/target}/mutant.log"
escaped=0

for patch in tests/cluster/mutations/*.patch; do
    name="$(basename "$patch" .patch)"
    code=0
    RUST_BACKTRACE=0 BATON_SIM_SEEDS="$most" tests/plant.sh "$patch" \
        cargo test --quiet --locked -p baton-cluster --test cluster_simulator three_brokers >"$log" 2>&1 || code=$?
    found="$(sed -n 's/.*breaks a law, after \([0-9]*\) seeds: \(.*\)/\1 \2/p' "$log" | head -1)"
    if ((code == 0)); then
        printf '%-42s not caught by %s seeds\n' "$name" "$most"
        escaped=1
    elif [[ -z "$found" ]]; then
        # A patch that the code has grown away from breaks nothing.
        printf '%-42s does not apply or does not compile: mend the patch\n' "$name"
        escaped=1
    else
        printf '%-42s caught by seed %-5s %s\n' "$name" "${found%% *}" "${found#* }"
    fi
done
exit "$escaped"
