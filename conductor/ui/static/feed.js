// feed.js shows batches and queries as they happen.

import { $, empty, fill, h } from "./dom.js";
import { int, plural } from "./format.js";
import { on, state } from "./live.js";

const most = 200; // rows of each list

const lists = { feed: { el: $("feed-batches"), none: $("feed-batches-empty"), waiting: [], row: batch }, query: { el: $("feed-queries"), none: $("feed-queries-empty"), waiting: [], row: query } };
let paused = false;

for (const [kind, list] of Object.entries(lists)) {
  on(kind, (value) => {
    if (paused || $("view-feed").hidden) return;
    list.waiting.push(value);
    if (list.waiting.length > most) list.waiting.shift();
    soon();
  });
}
let timer = 0;
const soon = () => { timer ||= requestAnimationFrame(() => { timer = 0; draw(); }); };

const clock = (time) => h("time", { datetime: time }, new Date(time).toLocaleTimeString("en-GB"));

function batch(b) {
  if (b.skipped) return h("li", { class: "skipped" }, plural(b.skipped, "more batch", "more batches"));
  const kinds = [b.stored && plural(b.stored, "store"), b.removed && plural(b.removed, "removal"), b.cleared && plural(b.cleared, "clear")].filter(Boolean).join(", ");
  const what = kinds ? `${kinds}${b.blocks ? ` · ${plural(b.blocks, "block")}` : ""}` : "no event";
  const [instance, tenant, rank] = split(b.source);
  return h("li", { "data-text": `${b.source} ${b.medium}`.toLowerCase() }, clock(b.time), h("span", { class: "who", title: `tenant ${tenant}` }, `${instance} / ${rank}`),
    h("span", { class: "what" }, what), h("small", null, [b.medium, `seq ${int(b.seq)}`, b.replayed && "replayed"].filter(Boolean).join(" · ")));
}

// split takes a key apart from its end: an instance may have a bar in its name.
function split(source) {
  const parts = source.split("|");
  const rank = parts.pop(), tenant = parts.pop();
  return [parts.join("|"), tenant, rank];
}

function query(q) {
  if (q.skipped) return h("li", { class: "skipped" }, plural(q.skipped, "more query", "more queries"));
  const part = q.tokens ? Math.min(100, 100 * q.matched_tokens / q.tokens) : 0;
  return h("li", { "data-text": `${q.tenant_id} ${q.model_name} ${q.best} ${q.lora_name ?? ""}`.toLowerCase() }, clock(q.time),
    h("span", { class: "who" }, q.best || "no instance"),
    h("span", { class: "what" }, h("span", { class: "meter", vars: { "--part": `${part}%` } }), h("span", null, `${int(q.matched_tokens)} of ${plural(q.tokens, "token")}`)),
    h("small", null, [q.model_name, q.lora_name, `${int(q.took_us)} µs`].filter(Boolean).join(" · "), " ", q.kept && h("a", { href: "#explain", onclick: () => { explainNext = q.id; } }, "explain")));
}

// explainNext is a query whose explanation was asked for here.
export let explainNext = "";
export const took = () => { explainNext = ""; };

export function draw() {
  const word = $("feed-filter").value.toLowerCase();
  for (const { el, none, waiting, row } of Object.values(lists)) {
    for (const value of waiting.splice(0)) el.prepend(row(value));
    while (el.children.length > most) el.lastChild.remove();
    for (const li of el.children) li.hidden = word !== "" && !(li.dataset.text ?? "").includes(word);
    el.hidden = el.children.length === 0;
    if (!el.hidden) fill(none);
    else if (!none.firstChild && state.stats) fill(none, empty("Nothing yet", el.id === "feed-batches" ? "Batches appear here when engines publish." : "Queries appear here when routers ask."));
  }
}

$("feed-filter").addEventListener("input", draw);
$("feed-pause").addEventListener("click", () => {
  paused = !paused;
  $("feed-pause").setAttribute("aria-pressed", String(paused));
  $("feed-pause").textContent = paused ? "Go on" : "Pause";
});
