// Keeps an open page up to date, counts its times on, and keeps the views that its reader has saved. Every page can be read without this script.
"use strict";

const PAUSE_MS = 1000;
const RETRY_MS = 3000;
const said = document.getElementById("connection");

// A code for the login is in the fragment, which browsers send to no server and write into no log.
const login = document.getElementById("login");
const code = new URLSearchParams(location.hash.slice(1)).get("code");
if (login && code) {
  history.replaceState(null, "", location.pathname);
  logInWith(code);
}

// A link of another caller must not replace an open session without a question.
async function logInWith(code) {
  // Asked for again, because a browser that follows a link from another site shows no session.
  const answer = await fetch("/login", { cache: "no-store" }).then((answer) => answer.text()).catch(() => "");
  const form = new DOMParser().parseFromString(answer, "text/html").getElementById("login");
  // Without an answer it is not known whether somebody is logged in.
  const present = form ? form.dataset.present : "somebody else, perhaps";
  if (present && !confirm(`You are logged in as ${present}. End this session, and log in with the code of this address?`)) return;
  login.elements.code.value = code;
  login.submit();
}

// A span in its largest unit, in the steps of the broker.
function span(seconds) {
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} days`;
}

// The times count on, also while nothing changes. The whole time is in the title of each.
function showTimes() {
  for (const time of document.querySelectorAll("time[title]")) {
    const left = Math.floor((Date.parse(time.dateTime) - Date.now()) / 1000);
    if (Number.isNaN(left)) continue;
    const isLeft = "left" in time.dataset;
    const text = span(Math.abs(left));
    time.textContent = left > 0 ? (isLeft ? text : `in ${text}`) : isLeft ? `overdue ${text}` : `${text} ago`;
    time.classList.toggle("late", isLeft && left < 60);
  }
}

// The keys: / searches, j and k go through the rows of a list, Enter opens.
document.addEventListener("keydown", (event) => {
  const isTyped = event.target.closest?.("input, select, textarea");
  if (isTyped || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") {
    const search = document.querySelector("main input[type=search], main .filter input");
    if (!search) return;
    event.preventDefault();
    search.focus();
    search.select();
  } else if (event.key === "j" || event.key === "k") {
    const rows = [...document.querySelectorAll("main tbody tr, main .needs li")].filter((row) => row.querySelector("a"));
    if (rows.length === 0) return;
    const at = rows.findIndex((row) => row.contains(document.activeElement));
    const to = at < 0 ? 0 : Math.min(Math.max(at + (event.key === "j" ? 1 : -1), 0), rows.length - 1);
    rows[to].querySelector("a").focus();
  }
});

// The command line of an act follows the fields of its form, by the rule of the broker for words of a shell.
function quoted(text) {
  return /^[A-Za-z0-9_.\/:@,=+-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

const act = document.getElementById("act");
function showCommand() {
  for (const word of document.querySelectorAll("#command [data-of]")) {
    const field = act.elements[word.dataset.of];
    if (!field) continue;
    const { flag, unset } = word.dataset;
    if (field.type === "checkbox") word.textContent = field.checked ? flag : "";
    else word.textContent = field.value === "" ? unset : flag + quoted(field.value);
  }
}
if (act) {
  act.addEventListener("input", showCommand);
  // Fields that were filled before this script ran, or that the browser restored.
  showCommand();
  const copy = document.createElement("button");
  copy.type = "button";
  copy.textContent = "Copy";
  copy.addEventListener("click", async () => {
    await navigator.clipboard.writeText(document.getElementById("command").textContent);
    copy.textContent = "Copied";
  });
  document.getElementById("command").after(copy);
}

// The views that the reader has saved, in this browser alone: a name, and the filters of the address.
const VIEWS_MAX = 20;
const saved = document.getElementById("saved");
function savedViews() {
  try {
    const views = JSON.parse(localStorage.getItem("baton-views") ?? "[]");
    const isView = (view) => typeof view?.name === "string" && typeof view.query === "string";
    return Array.isArray(views) ? views.filter(isView).slice(0, VIEWS_MAX) : [];
  } catch {
    return [];
  }
}

function showViews(views) {
  localStorage.setItem("baton-views", JSON.stringify(views));
  const list = saved.querySelector("ul");
  list.replaceChildren(
    ...views.map(({ name, query }, place) => {
      const [item, link, remove] = ["li", "a", "button"].map((tag) => document.createElement(tag));
      link.textContent = name;
      link.href = `/tasks?${new URLSearchParams(query)}`;
      if (link.search === location.search) link.setAttribute("aria-current", "true");
      remove.type = "button";
      remove.textContent = "Remove";
      remove.setAttribute("aria-label", `Remove ${name}`);
      remove.addEventListener("click", () => showViews(savedViews().filter((_, other) => other !== place)));
      item.append(link, remove);
      return item;
    }),
  );
}
if (saved) {
  saved.hidden = false;
  showViews(savedViews());
  saved.querySelector("form").addEventListener("submit", (event) => {
    event.preventDefault();
    const field = event.target.elements.name;
    const name = field.value.trim().slice(0, 60);
    const query = new URLSearchParams([...new URLSearchParams(location.search)].filter(([key, value]) => value && key !== "page"));
    if (!name || `${query}`.length > 1000) return;
    const views = savedViews().filter((view) => view.name !== name);
    showViews([...views, { name, query: `${query}` }].slice(-VIEWS_MAX));
    field.value = "";
  });
}

let isAsking = false;
let isStale = false;

// Asks for the page again and changes what differs, so that the focus and the place on the page stay.
async function refresh() {
  isStale = true;
  if (isAsking || document.hidden) return;
  isAsking = true;
  while (isStale) {
    isStale = false;
    try {
      const answer = await fetch(location.href, { headers: { "baton-refresh": "1" }, cache: "no-store" });
      if (answer.status === 401) location.assign("/login?next=" + encodeURIComponent(location.pathname + location.search));
      if (answer.ok) {
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        Idiomorph.morph(document.querySelector("main"), page.querySelector("main"), {
          callbacks: {
            // A form keeps what its reader has typed, and a fold stays as its reader left it.
            beforeNodeMorphed: (node) => !(node instanceof HTMLFormElement) && node.dataset?.kept === undefined,
            beforeAttributeUpdated: (name, node) => !(name === "open" && node instanceof HTMLDetailsElement),
          },
        });
        showTimes();
      }
    } catch {
      // Without a connection. The stream of events says so.
    }
    await new Promise((done) => setTimeout(done, PAUSE_MS));
  }
  isAsking = false;
}

function follow() {
  const events = new EventSource(live || "/events");
  events.addEventListener("changed", () => refresh());
  events.onopen = () => {
    said.textContent = "";
    refresh();
  };
  events.onerror = () => {
    said.textContent = "The connection to the broker is lost. This page goes on when the broker answers.";
    if (events.readyState !== EventSource.CLOSED) return;
    // The broker has refused the stream: its session may have ended, which the page itself finds out.
    refresh();
    setTimeout(follow, RETRY_MS);
  };
}

showTimes();
setInterval(showTimes, PAUSE_MS);
const live = document.querySelector("main[data-live]")?.dataset.live;
if (live !== undefined) {
  document.addEventListener("visibilitychange", () => isStale && refresh());
  follow();
}
