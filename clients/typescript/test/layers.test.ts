import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";
import ts from "typescript";

const SRC = new URL("../../src/", import.meta.url);

/** The files of src that each file of src imports, also by `import type`. */
function importsOf(): Map<string, string[]> {
  const files = readdirSync(SRC, { recursive: true, encoding: "utf8" }).filter((file) => file.endsWith(".ts"));
  return new Map(
    files.map((file) => {
      const { importedFiles } = ts.preProcessFile(readFileSync(new URL(file, SRC), "utf8"));
      const own = importedFiles.map(({ fileName }) => fileName).filter((name) => name.startsWith("."));
      return [file, own.map((name) => new URL(name, new URL(file, SRC)).href.slice(SRC.href.length).replace(/\.js$/, ".ts"))];
    }),
  );
}

/** Returns a path along the imports that ends where it begins, if there is one. */
function circleIn(imports: ReadonlyMap<string, readonly string[]>): string[] | undefined {
  const done = new Set<string>();
  const from = (path: readonly string[], file: string): string[] | undefined => {
    if (path.includes(file)) return [...path.slice(path.indexOf(file)), file];
    if (done.has(file)) return undefined;
    for (const imported of imports.get(file) ?? []) {
      const circle = from([...path, file], imported);
      if (circle) return circle;
    }
    done.add(file);
    return undefined;
  };
  for (const file of imports.keys()) {
    const circle = from([], file);
    if (circle) return circle;
  }
  return undefined;
}

test("the imports of src form no circle", () => {
  const imports = importsOf();
  assert.ok(imports.get("agent.ts")?.includes("session.ts"));
  for (const [file, names] of imports) for (const name of names) assert.ok(imports.has(name), `${file} imports ${name}`);
  assert.equal(circleIn(imports)?.join(" → "), undefined);
});
