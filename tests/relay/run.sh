#!/usr/bin/env bash
# The great relay: one task goes Python → TypeScript → Go → Java → Rust → Python through a broker process over TLS, with a
# rejection and a kill on the way. Then a Python, a TypeScript and a Go agent work in one run over a task, and one of them
# rejects it first. At the end each language checks the custody log. Builds each client as its users do.
#
#   BATON_BIN=target/debug/baton tests/relay/run.sh
#
# Needs python3 with venv, node and npm, go, a JDK with Maven, and cargo. What clients/*/ci.sh has built is taken as it is.
# relay.py says what must hold.
set -euo pipefail

: "${BATON_BIN:?must name the baton program}"
BATON_BIN="$(realpath "$BATON_BIN")"
export BATON_BIN
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export no_grpc_proxy=127.0.0.1 no_proxy=127.0.0.1 PYTHONDONTWRITEBYTECODE=1

cache="${BATON_CI_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/baton-ci}"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

echo "# python: a wheel, installed"
venv="$cache/relay-$(sha256sum clients/python/requirements.txt | cut -c1-12)"
if [[ ! -e "$venv/complete" ]]; then
    rm -rf "$venv"
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps -r clients/python/requirements.txt
    touch "$venv/complete"
fi
mkdir "$work/python"
cp -r clients/python/{pyproject.toml,README.md,LICENSE,src} "$work/python"
"$venv/bin/pip" wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation -w "$work" "$work/python"
"$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --force-reinstall "$work"/*.whl

echo "# typescript"
(
    cd clients/typescript
    if [[ ! node_modules/.package-lock.json -nt package-lock.json ]]; then
        npm ci --loglevel=error --no-audit --no-fund
    fi
    npm run --silent build
)

echo "# go"
(cd clients/go && go build -o "$work/relay-go" ./examples/relay)

echo "# java"
(
    cd clients/java
    jar=target/baton-client-0.1.0.jar
    if [[ ! -e "$jar" || ! -d target/lib || -n "$(find src pom.xml ../../proto -newer "$jar" -print -quit)" ]]; then
        maven=(mvn --batch-mode --no-transfer-progress --strict-checksums --quiet -Dstyle.color=never)
        if [[ -n "${MAVEN_REPO_LOCAL:-}" ]]; then maven+=("-Dmaven.repo.local=$MAVEN_REPO_LOCAL"); fi
        "${maven[@]}" package -DskipTests -Dmaven.javadoc.skip -Dmaven.source.skip
    fi
    mkdir "$work/java"
    javac -cp "$jar:target/lib/*" -d "$work/java" examples/Relay.java
)

echo "# rust"
cargo build --quiet --locked --example relay

java="clients/java/target"
export RELAY_PYTHON="$venv/bin/python clients/python/examples/relay.py"
export RELAY_TYPESCRIPT="node clients/typescript/build/examples/relay.js"
export RELAY_GO="$work/relay-go"
export RELAY_JAVA="java -cp $work/java:$java/baton-client-0.1.0.jar:$java/lib/* Relay"
export RELAY_RUST="${CARGO_TARGET_DIR:-target}/debug/examples/relay"
exec_folder="$work/relay"
mkdir "$exec_folder"
"$venv/bin/python" tests/relay/relay.py "$exec_folder"
