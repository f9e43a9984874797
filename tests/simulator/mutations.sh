#!/usr/bin/env bash
# Shows that the simulator can see: breaks the broker in one way after another, and says how many seeds it takes until a
# law is found broken. Each way is a patch in mutations/. Works on a copy; the tree stays as it is.
#
#     tests/simulator/mutations.sh [MOST_SEEDS]

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

most="${1:-2000}"
target="${CARGO_TARGET_DIR:-$PWD/target}"
copy="$target/mutant"
log="$target/mutant.log"
escaped=0

for patch in tests/simulator/mutations/*.patch; do
    name="$(basename "$patch" .patch)"
    rm -rf "$copy"
    mkdir -p "$copy"
    git archive HEAD | tar -x -C "$copy"
    git -C "$copy" init --quiet
    git -C "$copy" apply "$PWD/$patch"
    # A patch that the code has grown away from breaks nothing.
    if ! (cd "$copy" && CARGO_TARGET_DIR="$target" cargo test --quiet --locked --test simulator --no-run) >"$log" 2>&1; then
        printf '%-34s does not compile: mend the patch\n' "$name"
        escaped=1
        continue
    fi
    code=0
    (cd "$copy" && CARGO_TARGET_DIR="$target" RUST_BACKTRACE=0 BATON_SIM_SEEDS="$most" \
        cargo test --quiet --locked --test simulator) >"$log" 2>&1 || code=$?
    if ((code == 0)); then
        printf '%-34s not caught by %s seeds\n' "$name" "$most"
        escaped=1
    else
        seeds="$(sed -n 's/.*breaks a law, after \([0-9]*\) seeds.*/\1/p' "$log")"
        law="$(grep -A1 -m1 'panicked at' "$log" | tail -1 | cut -c1-100)"
        printf '%-34s caught by seed %-5s %s\n' "$name" "${seeds:-?}" "$law"
    fi
done
rm -rf "$copy"
exit "$escaped"
