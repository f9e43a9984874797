#!/usr/bin/env bash
# Everything that must hold for the TypeScript client: the stubs are those of the schema, it builds from nothing, eslint is content, the tests pass against a
# real broker, and the package that would be published can be installed and imported.
#
#   BATON_BIN=target/debug/baton clients/typescript/ci.sh
#
# Needs node and npm; package-lock.json has all versions but that of buf, which goes into BATON_CI_CACHE.
set -euo pipefail

: "${BATON_BIN:?must name the baton program}"
BATON_BIN="$(realpath "$BATON_BIN")"
export BATON_BIN
cd "$(dirname "${BASH_SOURCE[0]}")"

echo "# install"
npm ci --no-audit --no-fund --loglevel=error
echo "# stubs"
buf_version=1.75.0
buf="${BATON_CI_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/baton-ci}/buf-$buf_version"
if [[ ! -x "$buf/node_modules/.bin/buf" ]]; then
    npm install --no-audit --no-fund --no-save --loglevel=error --prefix "$buf" "@bufbuild/buf@$buf_version"
fi
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
# Made anew beside the ones that are checked in, which stay as they are.
PATH="$PWD/node_modules/.bin:$PATH" "$buf/node_modules/.bin/buf" generate --output "$work"
diff -r "$work/src/gen" src/gen
rm -rf build
echo "# build, tests"
npm test
npm run test-newest
echo "# conformance"
"$BATON_BIN" conformance --patience 2m --client "node build/test/harness.js" --jobs 3
echo "# lint"
npm run lint
echo "# the package"
npm pack --silent --ignore-scripts --pack-destination "$work"
mkdir "$work/user"
tar -tf "$work"/*.tgz | grep '^package/LICENSE$'
mv "$work"/*.tgz "$work/user"
cd "$work/user"
echo '{"type": "module"}' >package.json
npm install --no-audit --no-fund --loglevel=error ./*.tgz
node --input-type=module -e '
    import { Agent, v1 } from "@baton-broker/client";
    import { Priority } from "@baton-broker/client/v1";
    if (typeof Agent.connect !== "function" || v1.Priority !== Priority) process.exit(1);
    console.log("installed and imported");'
echo "# the least TypeScript"
# The oldest version of the peer dependency reads the types of the package and of its dependencies.
npm install --no-audit --no-fund --loglevel=error typescript@5.7.3 @types/node@20.19.43
cat >agent.ts <<'TS'
import { Agent, BatonError, v1 } from "@baton-broker/client";
import { Priority } from "@baton-broker/client/v1";
const agent: Agent = await Agent.fromEnv({ card: { agentTypes: ["support"] } });
for await (const offer of agent.handoffs({ resume: true })) {
  const task = await (await offer.accept()).complete();
  await task.finish({ cause: "a loose cable" });
}
try {
  const { status } = await agent.delegate("bob", "ticket-1", { taskType: "support", priority: Priority.HIGH }, []);
  console.log(v1.TaskStatus[status]);
} catch (error) {
  if (error instanceof BatonError) console.log(error.reason);
}
TS
npx tsc --noEmit --strict --target ES2022 --module NodeNext --types node agent.ts
npx tsc --version
