#!/usr/bin/env bash
# The one way to plant a fault: applies a patch to a copy of the last commit, and runs a command there. The tree stays as it
# is. The copy builds into a target folder of its own, which begins as a copy of the libraries that are built already. The
# first build there compiles libraries again whose build scripts write sources, because the folder's path is in them, and all
# above them; later ones compile only what a patch changes. Exit codes: 3, the patch does not apply; else the command's.
#
#     tests/plant.sh PATCH COMMAND [ARGUMENT...]
#     tests/plant.sh --prepare                    only copies the libraries, before something else builds beside

set -euo pipefail
root="$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")"
target="${CARGO_TARGET_DIR:-$root/target}"
copy="$target/planted"
own="$target/planted-target"

# Copies the libraries that are built, unless that was done before.
prepare() {
    if [[ -d "$own" || ! -d "$target/debug/deps" ]]; then return; fi
    mkdir -p "$own/debug"
    cp -a "$target/debug/.fingerprint" "$target/debug/build" "$own/debug/"
    (cd "$target/debug" &&
        find deps \( -name '*.rlib' -o -name '*.rmeta' -o -name '*.so' -o -name '*.d' \) -print0 |
        tar --create --null --files-from=-) | tar --extract --directory "$own/debug"
}

prepare
if [[ "$1" == --prepare ]]; then exit; fi
patch="$(realpath "$1")"
shift
cd "$root"
rm -rf "$copy"
mkdir -p "$copy"
trap 'rm -rf "$copy"' EXIT
git archive HEAD | tar -x -C "$copy"
git -C "$copy" init --quiet
if ! git -C "$copy" apply "$patch"; then
    echo "$patch does not apply: the code has grown away from it, mend the patch" >&2
    exit 3
fi
# A crate that a former patch changed must be compiled without it: its sources are those of the commit again, but newer.
if [[ -e "$own/last.patch" ]]; then
    git apply --numstat "$own/last.patch" | cut -f3 | while read -r file; do
        if [[ -e "$copy/$file" ]]; then touch "$copy/$file"; fi
    done
fi
mkdir -p "$own"
cp "$patch" "$own/last.patch"
cd "$copy"
CARGO_TARGET_DIR="$own" "$@"
