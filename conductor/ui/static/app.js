// app.js chooses the view, and shows what holds for all views: readiness, the connection, the
// theme and the token.
//
//   #fleet, #prefixes, #explain, #feed, #server --show--> a section of the page
//   live.js --change--> the view in sight, at most once a frame

import { $, fill, h, mark, say } from "./dom.js";
import { plural, span } from "./format.js";
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
  const name = location.hash.slice(1) || "fleet";
  if (name === "main") return; // the skip link
  view = name in views ? name : "fleet";
  for (const [other, { hide }] of Object.entries(views)) {
    const section = $(`view-${other}`);
    if (other !== view && !section.hidden) hide?.();
    section.hidden = other !== view;
  }
  for (const link of document.querySelectorAll("nav a")) mark(link, "aria-current", link.hash === `#${view}` && "page");
  document.title = view === "fleet" ? "Conductor" : `${$(`title-${view}`).textContent} – Conductor`;
  watch(view === "feed" || view === "explain");
  views[view].show?.();
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

// level and words of readiness.
function readyText() {
  const ready = state.stats?.ready;
  if (!ready) return ["none", "Connecting"];
  if (ready.draining) return ["bad", "Draining"];
  if (ready.recovering) return ["warn", "Recovering"];
  if (!ready.ready) return ["warn", `Waiting for ${plural(ready.waiting, "source")}`];
  return ["ok", "Ready"];
}

function readiness() {
  const [level, text] = state.link === "lost" ? ["bad", "No connection"] : readyText();
  mark($("ready"), "data-level", level);
  say($("ready"), text);
}

let banned = "";
function banner() {
  const el = $("banner");
  const left = Math.max(1, Math.ceil((state.retryAt - Date.now()) / 1000));
  const text = {
    lost: `${state.why} What you see is as old as that. Next attempt in ${span(left * 1000)}.`,
    refused: `The server refuses: ${state.why}`,
    token: "A token is needed to see the fleet.",
    paused: "Paused while the page was not in view.",
  }[state.link] ?? "";
  el.hidden = text === "";
  if (text === banned) return;
  banned = text;
  const again = { token: ["Give a token", login], lost: ["Try now", reopen], refused: ["Try again", reopen], paused: ["Go on", reopen] }[state.link];
  const button = el.querySelector("button");
  if (button && again && button.textContent === again[0]) say(el.firstChild, text); // keeps the focus
  else fill(el, text && h("span", null, text), again && h("button", { type: "button", onclick: again[1] }, again[0]));
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
