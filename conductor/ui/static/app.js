// app.js chooses the view, and shows what holds for all views: readiness, the connection, the
// theme and the token.
//
//   #fleet, #prefixes, #explain, #feed, #server --show--> a section of the page
//   #fleet?state=stale                          --show--> the same, with parameters for the view
//   live.js --change--> the view in sight, at most once a frame

import { $, fill, h, mark, say } from "./dom.js";
import { plural, span } from "./format.js";
import * as health from "./health.js";
import { on, reopen, setToken, state, watch } from "./live.js";
import * as explain from "./explain.js";
import * as feed from "./feed.js";
import * as fleet from "./fleet.js";
import * as prefixes from "./prefixes.js";
import * as server from "./server.js";

const views = { fleet, prefixes, explain, feed, server };
let view = "";

// show shows the view that the address names.
function show() {
  const [name, query] = location.hash.slice(1).split("?", 2);
  if (name === "main") return; // the skip link
  view = name in views ? name : "fleet";
  for (const [other, { hide }] of Object.entries(views)) {
    const section = $(`view-${other}`);
    if (other !== view && !section.hidden) hide?.();
    section.hidden = other !== view;
  }
  for (const link of document.querySelectorAll("nav a")) mark(link, "aria-current", link.hash === `#${view}` && "page");
  document.title = view === "fleet" ? "Conductor" : `${$(`title-${view}`).textContent} – Conductor`;
  watch(["feed", "explain", "prefixes"].includes(view)); // meanwhile the server keeps queries
  views[view].show?.(new URLSearchParams(query));
  draw();
}

// draw shows the state. It runs at most once a frame.
let drawing = 0;
function draw() {
  drawing ||= requestAnimationFrame(() => {
    drawing = 0;
    readiness();
    banner();
    views[view].draw();
  });
}

// pill returns the level and words of the server in the corner of the page.
function pill() {
  const ready = state.stats?.ready;
  if (ready?.draining) return [health.summary().level, "Draining"];
  if (state.link === "lost") return ["bad", "No connection"];
  if (!ready) return ["none", "Connecting"];
  if (ready.recovering) return ["warn", "Recovering"];
  const { level, text } = health.summary();
  if (level !== "ok") return [level, text];
  return ready.ready ? ["ok", "Ready"] : ["warn", `Waiting for ${plural(ready.waiting, "source")}`];
}

function readiness() {
  const [level, text] = pill();
  mark($("ready"), "data-level", level);
  say($("ready"), text);
}

// notice returns what the banner says: its level, a sentence, and a button or a link that helps.
function notice() {
  const { link, why } = state;
  const left = `Next attempt in ${span(1000 * Math.max(1, Math.ceil((state.retryAt - Date.now()) / 1000)))}.`;
  const draining = state.stats?.ready.draining;
  if (link === "lost" && draining) return { level: "warn", text: `The server is draining: it finishes its requests and stops. What you see is the last it said. ${left}`, button: ["Try now", reopen] };
  if (link === "lost") return { level: "bad", text: `${why} What you see is as old as that. ${left}`, button: ["Try now", reopen] };
  if (link === "refused") return { level: "bad", text: `The server refuses: ${why}`, button: ["Try again", reopen] };
  if (link === "token") return { level: "warn", text: "A token is needed to see the fleet.", button: ["Give a token", login] };
  if (link === "paused") return { level: "warn", text: "Paused while the page was not in view.", button: ["Go on", reopen] };
  if (draining) return { level: "warn", text: "The server is draining: it finishes its requests and stops. Routers are told to ask another one." };
  const all = health.summary();
  return all.level === "ok" ? null : all;
}

let banned = "";
function banner() {
  const el = $("banner"), now = notice();
  el.hidden = !now;
  const text = now?.text ?? "";
  mark(el, "data-level", now?.level);
  if (text === banned) return;
  banned = text;
  const button = el.querySelector("button");
  if (button && now?.button && button.textContent === now.button[0]) say(el.firstChild, text); // keeps the focus
  else fill(el, text && h("span", null, text), now?.button && h("button", { type: "button", onclick: now.button[1] }, now.button[0]),
    now?.links?.map(([name, href]) => h("a", { href }, name)));
}
setInterval(() => document.hidden || draw(), 1000); // times go on

// login asks for a token.
function login() {
  const dialog = $("login");
  say($("login-why"), state.why ? `The server says: ${state.why}.` : "");
  if (!dialog.open) dialog.showModal();
}
$("login-form").addEventListener("submit", () => {
  setToken($("login-token").value.trim());
  $("login-token").value = "";
});

// The theme: that of the system, light, dark.
const themes = { system: ["◐", "as the system"], light: ["☀", "light"], dark: ["☾", "dark"] };
function themed(name) {
  const root = document.documentElement;
  if (name === "system") delete root.dataset.theme;
  else root.dataset.theme = name;
  const button = $("theme");
  say(button, themes[name][0]);
  mark(button, "aria-label", `Theme: ${themes[name][1]}`);
  mark(button, "title", `Theme: ${themes[name][1]}`);
  document.dispatchEvent(new Event("themed"));
}
$("theme").addEventListener("click", () => {
  const names = Object.keys(themes);
  const next = names[(names.indexOf(document.documentElement.dataset.theme ?? "system") + 1) % names.length];
  try { localStorage.setItem("conductor.theme", next); } catch { /* it lasts as long as the page */ }
  themed(next);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => document.dispatchEvent(new Event("themed")));
document.addEventListener("themed", draw);

let asked = false;
on("change", () => {
  if (state.link === "token" && !asked) login();
  asked = state.link === "token";
  draw();
});
window.addEventListener("hashchange", show);
themed(document.documentElement.dataset.theme ?? "system");
show();
