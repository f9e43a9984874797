#!/usr/bin/env bash
# The one way to plant a fault: applies a patch to a copy of the last commit, and runs a command there. The tree stays as it
# is, and the copy shares its target folder. Exit codes: 3, the patch does not apply; else the command's.
#
#     tests/plant.sh PATCH COMMAND [ARGUMENT...]

set -euo pipefail
patch="$(realpath "$1")"
shift
cd "$(dirname "${BASH_SOURCE[0]}")/.."

target="${CARGO_TARGET_DIR:-$PWD/target}"
copy="$target/planted"
rm -rf "$copy"
mkdir -p "$copy"
trap 'rm -rf "$copy"' EXIT
git archive HEAD | tar -x -C "$copy"
git -C "$copy" init --quiet
if ! git -C "$copy" apply "$patch"; then
    echo "$patch does not apply: the code has grown away from it, mend the patch" >&2
    exit 3
fi
cd "$copy"
CARGO_TARGET_DIR="$target" "$@"
