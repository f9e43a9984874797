// Keeps an open page up to date, and shows times in the zone of its reader. Every page can be read without this script.
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

function showTimes() {
  for (const time of document.querySelectorAll("time")) {
    // The text of other times is already for people, such as the time that is left.
    if (time.textContent === time.dateTime) time.textContent = new Date(time.dateTime).toLocaleString();
  }
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
          // A form keeps what its reader has typed.
          callbacks: { beforeNodeMorphed: (node) => !(node instanceof HTMLFormElement) },
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
  const events = new EventSource("/events");
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
if (document.querySelector("main[data-live]")) {
  document.addEventListener("visibilitychange", () => isStale && refresh());
  follow();
}
