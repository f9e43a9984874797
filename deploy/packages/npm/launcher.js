#!/usr/bin/env node
// Starts the program of this platform, which is a package of its own. Passes signals and the exit code on.
"use strict";

const { spawn } = require("node:child_process");
const { readFileSync } = require("node:fs");

const platform = `${process.platform}-${process.arch}`;
let program;
try {
  program = require.resolve(`@baton-broker/cli-${platform}/bin/baton`);
} catch {
  console.error(
    `baton: @baton-broker/cli-${platform} is not installed. There are programs for linux-x64 with glibc only. ` +
      "On such a machine install without --omit=optional.",
  );
  process.exit(1);
}

// Whether a key of the terminal, as ctrl-C, sends its signal to the program as well as to this process. The program takes a
// second one as the wish to end at once.
function isInForeground() {
  try {
    const [, , group, , , foreground] = readFileSync("/proc/self/stat", "utf8").replace(/^.*\) /s, "").split(" ");
    return group === foreground;
  } catch {
    return false;
  }
}

let child;
for (const signal of ["SIGINT", "SIGQUIT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2"]) {
  process.on(signal, () => {
    const isOfTerminal = (signal === "SIGINT" || signal === "SIGQUIT") && isInForeground();
    if (!isOfTerminal) child?.kill(signal);
  });
}
child = spawn(program, process.argv.slice(2), { stdio: "inherit" });
child.on("error", (error) => {
  console.error(`baton: ${program}: ${error.message}`);
  process.exit(1);
});
child.on("exit", (code, signal) => {
  if (signal === null) process.exit(code);
  process.removeAllListeners(signal);
  process.kill(process.pid, signal);
});
