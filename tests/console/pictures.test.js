// The pictures of docs/console: what the documentation shows is what the pages look like.
import assert from "node:assert/strict";
import { existsSync, mkdirSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { scenario } from "./harness.js";
import { lively } from "./lively.js";

const FOLDER = fileURLToPath(new URL("../../docs/console/", import.meta.url));
const WRITES = process.env.CONSOLE_SCREENSHOTS === "1";
const BYTES_MAX = 150_000;
const ALL_BYTES_MAX = 3_200_000;
// A picture may differ in this many of its pixels, each by this much of 255: processors round differently.
const PIXELS_MAX = 90;
const DIFFERENCE_MAX = 40;
const DESKTOP = { width: 1280, height: 800 };
const PHONE = { width: 390, height: 780 };
// The pages of which there is a picture of a phone.
const ON_A_PHONE = ["overview", "tasks", "task", "handoff", "agents", "reassign", "desk"];

scenario("C12: the pictures of the documentation are what the pages look like", async (scene) => {
  const pages = await lively(scene);
  // Without the script, which would change the texts back.
  const page = await scene.operator("/overview", { javaScriptEnabled: false });
  const [names, differences] = [[], []];
  let bytes = 0;
  if (WRITES) mkdirSync(FOLDER, { recursive: true });
  for (const [name, url] of Object.entries(pages)) {
    for (const kind of ["light", "dark", ...(ON_A_PHONE.includes(name) ? ["phone"] : [])]) {
      const size = kind === "phone" ? PHONE : DESKTOP;
      await page.setViewportSize(size);
      await page.emulateMedia({ colorScheme: kind === "dark" ? "dark" : "light" });
      await page.goto(url);
      await fixTexts(page);
      const picture = await page.screenshot({ clip: { x: 0, y: 0, ...size } });
      const file = `${name}-${kind}.png`;
      names.push(file);
      bytes += picture.length;
      assert.ok(picture.length < BYTES_MAX, `${file} has ${picture.length} bytes`);
      if (WRITES) writeFileSync(FOLDER + file, picture);
      else differences.push(...(await differencesOf(scene, picture, file, await lanes(page))));
    }
  }
  const advice = "If the pages are right, tests/console/run.sh --screenshots draws them anew.";
  assert.deepEqual(differences, [], advice);
  assert.ok(bytes < ALL_BYTES_MAX, `the pictures have ${bytes} bytes`);
  assert.deepEqual(readdirSync(FOLDER).filter((name) => name.endsWith(".png")).sort(), names.sort());
});

/**
 * Replaces what differs between two runs: ids, keys, and times. The company has worked for a minute, so its times are
 * spread over a day, in their order. Who is there stays as the broker sees it.
 */
async function fixTexts(page) {
  await page.evaluate(() => {
    const span = (minutes) => (minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h`);
    const ago = (all, isOldestFirst) =>
      all.forEach((time, index) => {
        const place = isOldestFirst ? all.length - index : index + 1;
        const minutes = Math.min(2 + place * place * 2, 1380);
        time.textContent = time.textContent.startsWith("in ") ? `in ${span(minutes)}` : `${span(minutes)} ago`;
      });
    const times = [...document.querySelectorAll("time[title]")];
    ago(times.filter((time) => !("left" in time.dataset) && !time.closest(".story")), false);
    ago(times.filter((time) => !("left" in time.dataset) && time.closest(".story")), true);
    times.filter((time) => "left" in time.dataset).forEach((time, index) => (time.textContent = span([38, 55, 24, 51, 12, 47, 90, 33][index % 8])));
    // Counted from time to time.
    document.getElementById("parked")?.remove();
    const chart = document.querySelector("svg.chart");
    if (chart) {
      for (const bar of chart.querySelectorAll("rect")) bar.remove();
      for (let minute = 0; minute < 60; minute++) {
        const good = Math.round(30 + 26 * Math.sin(minute / 7) + ((minute * 37) % 17));
        const bad = minute % 11 === 4 ? 8 : minute % 7 === 2 ? 4 : 0;
        for (const [kind, y, height] of [["good", 98 - good, good], ["bad", 98 - good - bad, bad]]) {
          const bar = document.createElementNS("http://www.w3.org/2000/svg", "rect");
          for (const [name, value] of Object.entries({ class: `bar-${kind}`, x: minute * 10 + 1, y, width: 8, height })) bar.setAttribute(name, value);
          chart.append(bar);
        }
      }
    }
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    let count = 0;
    const ids = new Map();
    const fixed = (id) => {
      if (!ids.has(id)) ids.set(id, `01a20aac-45${(++count).toString(16).padStart(2, "0")}-7a0e-be25-0994d0485021`);
      return ids.get(id);
    };
    for (let node = texts.nextNode(); node; node = texts.nextNode()) {
      if (node.parentElement.closest("thead")) continue;
      node.data = node.data
        .replace(/[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}/g, fixed)
        .replace(/\d{4}-\d\d-\d\d [\d:.]+ UTC/g, "2026-11-23 09:30:00 UTC")
        .replace(/\d{4}-\d\d-\d\dT[\d:.]+Z/g, "2026-11-23T09:30:00Z")
        .replace(/\b\d+\.\d{3} s\b/g, "0.250 s")
        .replace(/(?<![.\d])\d+(\.\d)? ?s\b/g, "24 s")
        .replace(/at most \d+ in a minute/, "at most 73 in a minute")
        .replace(/\b[0-9a-f]{64}\b/g, "e8f8ceb495a8d933f6717bffd3da5f46be0d06431ba8129c0860305682820584")
        .replace(/\bbaton\.[0-9a-f]{16}\b/g, "baton.b1c18b17d6a80cf1")
        .replace(/^median takeover, 99 % in .+$/, "median takeover, 99 % in 51 s");
    }
  });
}

/** The boxes of the lanes, timelines and deadlines, whose bars are as long as the steps of this run. */
function lanes(page) {
  return page.locator("svg.lanes, svg.timeline, .bars svg").evaluateAll((all) => all.map((picture) => picture.getBoundingClientRect().toJSON()));
}

/** Compares a picture with the one in the documentation, outside of these boxes. Returns what differs. */
async function differencesOf(scene, picture, file, boxes) {
  if (!existsSync(FOLDER + file)) return [`${file} is missing`];
  // Another browser draws other letters.
  if (!process.env.CONSOLE_BROWSER_IS_PINNED) return [];
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
  return different <= PIXELS_MAX ? [] : [`${file} differs in ${different} pixels`];
}
