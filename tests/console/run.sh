#!/usr/bin/env bash
# The web console in a browser: real brokers, the command line for the agents, and Chromium for the reader.
#
#   tests/console/run.sh                                     with target/debug/baton
#   BATON_BIN=target/release/baton tests/console/run.sh      with another binary
#   tests/console/run.sh --only FILE...                      only these files of tests, for example live.test.js
#   tests/console/run.sh --screenshots                       writes docs/console/*.png anew
#   tests/console/run.sh --install                           only installs the tools
#   CHROMIUM=/usr/bin/chromium tests/console/run.sh          with another browser than the pinned one
#
# Needs node and npm. package-lock.json has the versions of the tools, which go into BATON_CI_CACHE.
set -euo pipefail

mode="${1:-}"
if [[ "$mode" != --install ]]; then
    BATON_BIN="$(realpath "${BATON_BIN:-target/debug/baton}")"
    export BATON_BIN
fi
cd "$(dirname "${BASH_SOURCE[0]}")"

cache="${BATON_CI_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/baton-ci}"
tools="$cache/console-$(sha256sum package-lock.json | cut -c1-12)"
if [[ ! -e "$tools/complete" ]]; then
    echo "# installing $tools"
    rm -rf "$tools"
    mkdir -p "$tools"
    cp package.json package-lock.json "$tools"
    npm ci --no-audit --no-fund --loglevel=error --prefix "$tools"
    # The package unpacks its browser into the temporary folder of each process. Here it is unpacked once.
    packed="$tools/node_modules/@sparticuz/chromium/bin"
    unpack() {
        node --input-type=module -e '
            import { createReadStream } from "node:fs";
            import { pipeline } from "node:stream/promises";
            import { createBrotliDecompress } from "node:zlib";
            await pipeline(createReadStream(process.argv[1]), createBrotliDecompress(), process.stdout);' "$1"
    }
    unpack "$packed/chromium.br" >"$tools/chromium"
    chmod +x "$tools/chromium"
    for name in fonts al2023; do
        mkdir "$tools/$name"
        unpack "$packed/$name.tar.br" | tar -x -C "$tools/$name"
    done
    # The one family of the pictures, so that they are the same on each machine.
    cat >"$tools/fonts.conf" <<END
<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>$tools/fonts</dir><cachedir>$tools/fonts-cache</cachedir></fontconfig>
END
    touch "$tools/complete"
fi
if [[ "$mode" == --install ]]; then exit; fi
if [[ -z "${CHROMIUM:-}" ]]; then
    export CHROMIUM="$tools/chromium" CONSOLE_BROWSER_IS_PINNED=1
    if ldd "$CHROMIUM" | grep -q 'not found'; then
        export LD_LIBRARY_PATH="$tools/al2023/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
    fi
fi
export CONSOLE_TOOLS="$tools" FONTCONFIG_FILE="$tools/fonts.conf"

# All that the tests write, and that the browser leaves.
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
export TMPDIR="$work" HOME="$work" XDG_CONFIG_HOME="$work/config" XDG_CACHE_HOME="$work/cache" LC_ALL=C.UTF-8 TZ=UTC
unset BATON_SERVER BATON_CA BATON_TOKEN BATON_CERT BATON_CERT_KEY BATON_DATA BATON_LISTEN BATON_CONFIG BATON_PROFILE

files=(*.test.js)
case "$mode" in
    "") ;;
    --only) files=("${@:2}") ;;
    --screenshots) files=(pictures.test.js); export CONSOLE_SCREENSHOTS=1 ;;
    *) echo "unknown option: $mode" >&2; exit 2 ;;
esac
# One browser at a time: the tests of a file wait more than they compute, but the browsers do not.
node --test --test-concurrency=1 --test-reporter=spec "${files[@]}"
