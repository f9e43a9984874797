// The pictures of docs/console: what the documentation shows is what the pages look like.
import assert from "node:assert/strict";
import { existsSync, mkdirSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { scenario } from "./harness.js";
import { PICTURED, populated } from "./pages.js";

const FOLDER = fileURLToPath(new URL("../../docs/console/", import.meta.url));
const WRITES = process.env.CONSOLE_SCREENSHOTS === "1";
const BYTES_MAX = 80_000;
const ALL_BYTES_MAX = 1_000_000;
// A picture may differ in this many of its 640,000 pixels, each by this much of 255: processors round differently.
const PIXELS_MAX = 60;
const DIFFERENCE_MAX = 40;

scenario("C12: the pictures of the documentation are what the pages look like", async (scene) => {
  const pages = await populated(scene);
  // Without the script, which would change the texts back.
  const page = await scene.operator("/overview", { javaScriptEnabled: false });
  const names = [];
  let bytes = 0;
  if (WRITES) mkdirSync(FOLDER, { recursive: true });
  for (const name of PICTURED) {
    await page.goto(pages[name]);
    await fixTexts(page);
    for (const colorScheme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme });
      const picture = await page.screenshot({ clip: { x: 0, y: 0, width: 1000, height: 640 } });
      const file = `${name}-${colorScheme}.png`;
      names.push(file);
      bytes += picture.length;
      assert.ok(picture.length < BYTES_MAX, `${file} has ${picture.length} bytes`);
      if (WRITES) writeFileSync(FOLDER + file, picture);
      else await isLike(scene, picture, file, await lanes(page));
    }
  }
  assert.ok(bytes < ALL_BYTES_MAX, `the pictures have ${bytes} bytes`);
  assert.deepEqual(readdirSync(FOLDER).filter((name) => name.endsWith(".png")), names.sort());
});

/** Replaces what differs between two runs: ids, keys, times, the time that is left, and who is still there. */
async function fixTexts(page) {
  await page.evaluate(() => {
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    let count = 0;
    const ids = new Map();
    const fixed = (id) => {
      if (!ids.has(id)) ids.set(id, `01a20aac-45c5-7a0e-be25-0994d04850${(++count).toString(16).padStart(2, "0")}`);
      return ids.get(id);
    };
    for (let node = texts.nextNode(); node; node = texts.nextNode()) {
      // The heads of tables name each state, and stay.
      if (node.parentElement.closest("thead")) continue;
      node.data = node.data
        .replace(/[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}/g, fixed)
        .replace(/\d{4}-\d\d-\d\dT[\d:.]+Z/g, "2026-11-23T09:30:00Z")
        .replace(/\b\d+\.\d{3} s\b/g, "0.250 s")
        .replace(/\b[0-9a-f]{64}\b/g, "e8f8ceb495a8d933f6717bffd3da5f46be0d06431ba8129c0860305682820584")
        .replace(/\bbaton\.[0-9a-f]{16}\b/g, "baton.b1c18b17d6a80cf1")
        .replace(/\b(UNSEEN|SUSPECT|GONE)\b/g, "ALIVE")
        .replace(/\b(\d+(h|m|s) ?)+$/, "59m 30s");
    }
  });
}

/** The boxes of the lanes, whose bars are as long as the steps of this run. */
function lanes(page) {
  return page.locator("svg.lanes").evaluateAll((all) => all.map((picture) => picture.getBoundingClientRect().toJSON()));
}

/** Compares a picture with the one in the documentation, outside of these boxes. */
async function isLike(scene, picture, file, boxes) {
  assert.ok(existsSync(FOLDER + file), `${file} is missing: tests/console/run.sh --screenshots writes it`);
  // Another browser draws other letters.
  if (!process.env.CONSOLE_BROWSER_IS_PINNED) return;
  const urls = [picture, readFileSync(FOLDER + file)].map((bytes) => `data:image/png;base64,${bytes.toString("base64")}`);
  const canvas = await scene.page();
  const different = await canvas.evaluate(
    async ({ urls, most, boxes }) => {
      let width;
      const [one, other] = await Promise.all(
        urls.map(async (url) => {
          const image = await createImageBitmap(await (await fetch(url)).blob());
          width = image.width;
          const drawing = new OffscreenCanvas(image.width, image.height).getContext("2d");
          drawing.drawImage(image, 0, 0);
          return drawing.getImageData(0, 0, image.width, image.height).data;
        }),
      );
      if (one.length !== other.length) return Infinity;
      let pixels = 0;
      for (let at = 0; at < one.length; at += 4) {
        const [x, y] = [(at / 4) % width, Math.floor(at / 4 / width)];
        if (boxes.some((box) => x >= box.left && x < box.right && y >= box.top && y < box.bottom)) continue;
        if ([0, 1, 2].some((channel) => Math.abs(one[at + channel] - other[at + channel]) > most)) pixels++;
      }
      return pixels;
    },
    { urls, most: DIFFERENCE_MAX, boxes },
  );
  await canvas.close();
  assert.ok(
    different <= PIXELS_MAX,
    `${file} differs in ${different} pixels. If the page is right, tests/console/run.sh --screenshots draws it anew.`,
  );
}
