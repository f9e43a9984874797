#!/usr/bin/env bash
# Everything that must hold for the Java client: it compiles without warnings, its tests pass against a real broker, its
# Javadoc is whole, and the example of the README runs.
#
#   BATON_BIN=target/debug/baton clients/java/ci.sh
#
# Needs a JDK 17 or later and Maven; the rest comes from Maven Central in the exact versions of pom.xml, with checksums
# that must agree, into MAVEN_REPO_LOCAL (default: Maven's own).
set -euo pipefail

: "${BATON_BIN:?must name the baton program}"
BATON_BIN="$(realpath "$BATON_BIN")"
export BATON_BIN
cd "$(dirname "${BASH_SOURCE[0]}")"

maven=(mvn --batch-mode --no-transfer-progress --strict-checksums --errors)
if [[ -n "${MAVEN_REPO_LOCAL:-}" ]]; then maven+=("-Dmaven.repo.local=$MAVEN_REPO_LOCAL"); fi

work="$(mktemp -d)"
broker=
serving=
finish() {
    for process in $serving $broker; do kill "$process" 2>/dev/null && wait "$process" 2>/dev/null || true; done
    rm -rf "$work"
}
trap finish EXIT

echo "# compile, tests, Javadoc"
"${maven[@]}" --quiet clean package -Dorg.slf4j.simpleLogger.showLogName=false
# A suite that skipped its broker tests has shown nothing.
if grep -l 'skipped="[1-9]' target/surefire-reports/*.xml; then
    echo "tests were skipped" >&2
    exit 1
fi
grep -ho '<testsuite [^>]*' target/surefire-reports/*.xml |
    sed -E 's/.* name="([^"]*)".* tests="([0-9]+)".*/\1: \2 tests/'

echo "# the licence in the jar"
jar --list --file target/baton-client-0.1.0.jar | grep '^META-INF/LICENSE$'

echo "# conformance"
"${maven[@]}" --quiet dependency:build-classpath -Dmdep.outputFile=target/test.classpath -Dmdep.includeScope=test
# In the environment: a report names its command, and that is long enough.
CLASSPATH="target/test-classes:target/classes:$(cat target/test.classpath)" \
    "$BATON_BIN" conformance --patience 2m --client "java dev.baton.Harness" --jobs 2
echo "# the example"
"$BATON_BIN" dev --data "$work/data" --port 0 >"$work/broker.log" 2>&1 &
broker=$!
until [[ -s "$work/data/address" ]]; do kill -0 "$broker"; sleep 0.05; done
# No function: in the background that would be a shell, and killing it would leave the agent behind.
example=(java -cp 'target/*:target/lib/*' examples/TicketAgent.java "$(cat "$work/data/address")" "$work/data/tls/ca.pem")
"${example[@]}" bob "$work/bob.pem" serve >"$work/bob.log" 2>&1 &
serving=$!
until grep -q "waiting for tickets" "$work/bob.log"; do kill -0 "$serving"; sleep 0.05; done
"${example[@]}" alice "$work/alice.pem" offer bob ticket-1 | tee "$work/alice.log"
grep -q "ticket-1: handed over, owned by bob at epoch 2" "$work/alice.log"
echo "the Java client is in order"
