// detail.js shows one source at an address of its own, #fleet?source=KEY: its stream, who registered it, what has
// happened to it, its findings, and what the fleet loses with its instance.

import { $, add, empty, fill, finding, h, loading, problem } from "./dom.js";
import { ago, int, moment, percent, plural, rate, span } from "./format.js";
import { levels } from "./health.js";
import { ageOf, ask, state } from "./live.js";

let shown = ""; // the key of the source, "" while the dialog is closed
let loss = null; // the section about the instance
let story = null; // what the server keeps of the source: {answer, problem, seen}
let entered = false; // this page has put the source into the address, so that going back leaves it
const again = 10_000; // ms after which the story is asked for again; sooner if the row says that something has happened

// snapshotOf says how far snapshots of its engine have come, "" for a source that asks for none. In short
// it says so until one is applied.
export function snapshotOf(r, short) {
  const s = r.engine_snapshot;
  if (!s || short && s.state === "applied") return "";
  const why = s.reason ? `: ${s.reason.replaceAll("_", " ").replace(/^snapshot /, "")}` : "";
  if (short) return `engine snapshot ${s.state}${why}`;
  return [s.state + why, s.applied && `${plural(s.applied, "snapshot")} applied, the last with ${plural(s.blocks, "block")}`, s.failed && `${plural(s.failed, "request")} failed`].filter(Boolean).join("; ");
}

// open shows a source. addressed says that the address names it already.
export function open(source, addressed = false) {
  if (shown === source) return;
  shown = source;
  loss = lossOf(state.rows.get(source)?.instance_id ?? source.split("|").slice(0, -2).join("|"));
  story = null;
  entered = !addressed;
  if (entered) history.pushState(null, "", `#fleet?source=${encodeURIComponent(source)}`);
  fill($("detail-body"));
  follow();
  if (!$("detail").open) $("detail").showModal();
  $("detail").scrollTop = 0;
}

// close follows an address that names no source.
export function close() {
  entered = false;
  shown = "";
  $("detail").close();
}

// read asks what the server keeps of the source.
async function read(r) {
  const source = shown, seen = [r.state, r.gaps, r.restarts, r.epoch].join();
  if (story && story.seen === seen && Date.now() - story.at < again) return;
  story = { ...story, seen, at: Date.now() };
  let news;
  try {
    news = { answer: await ask(`admin/source?source=${encodeURIComponent(source)}`), problem: "" };
  } catch (e) {
    news = { problem: e.message };
  }
  if (source !== shown) return;
  Object.assign(story, news);
  follow();
}

// follow shows what has changed of the source.
export function follow() {
  if (!shown) return;
  const r = state.rows.get(shown);
  if (!r) {
    $("detail-title").textContent = shown;
    fill($("detail-body"), empty("This source is not here", "It was unregistered, or the address names another one."));
    return;
  }
  $("detail-title").textContent = `${r.instance_id}, rank ${r.dp_rank}`;
  document.title = `${r.instance_id}, rank ${r.dp_rank} – Conductor`;
  read(r);
  const fact = (name, value) => [h("dt", null, name), h("dd", null, value)];
  const facts = h("dl", { class: "facts" },
    fact("State", r.reason ? `${r.state}: ${r.reason.replaceAll("_", " ")}` : r.state),
    fact("Tenant", r.tenant_id), fact("Model", r.model_name), fact("Publisher", r.type), fact("Block size", `${int(r.block_size)} tokens`),
    fact("Blocks", int(r.blocks)), ["device", "host", "disk"].filter((t) => r.tiers[t]).map((t) => fact(`on ${t}`, int(r.tiers[t]))),
    fact("Events/s", rate(r.events_per_s)), fact("Last batch", ago(ageOf(r))),
    fact("Waiting", r.queued ? `${plural(r.queued, "batch", "batches")}, the oldest for ${span(r.lag_ms)}` : "nothing"),
    fact("Epoch", int(r.epoch)), fact("Watermark", r.last_seq === null ? "none" : int(r.last_seq)),
    fact("Began with", r.history_from || "nothing"), r.engine_snapshot && fact("Engine snapshot", snapshotOf(r)), fact("Gaps", int(r.gaps)), fact("Restarts", int(r.restarts)), fact("Left out", plural(r.dropped, "event")));
  const parts = [facts];
  if (r.expected) parts.push(h("h3", null, "What routers reported"), expectations(r));
  if (r.last_error) parts.push(h("h3", null, "Last error"), h("p", { class: "error" }, r.last_error));
  const body = $("detail-body");
  if (body.lastChild !== loss) fill(body, h("div"), h("div"), loss);
  fill(body.firstChild, parts);
  const keyed = JSON.stringify([r.source, r.findings, story?.answer, story?.problem]);
  if (loss.keyed === keyed) return; // links keep the focus, and texts their selection
  loss.keyed = keyed;
  const rest = told(fact);
  if (r.findings.length) rest.push(h("h3", null, "Findings"), h("ul", { class: "plain" }, r.findings.map((f) => h("li", { "data-level": levels[f.severity] }, h("span", { class: "dot" }), finding(f.code), " ", f.text))));
  if (story?.answer?.attention_groups.length) rest.push(h("h3", null, "Attention groups"), groups(story.answer.attention_groups));
  if (story?.answer) rest.push(h("h3", null, "What has happened"), timeline(story.answer));
  fill(body.children[1], rest);
}

const registrars = {
  configuration: "the settings", client: "a client", discovery: "discovery, which asked", replica: "the replica", peer: "nobody: its blocks came from a peer",
};

// told returns where the source is and who registered it.
function told(fact) {
  if (!story?.answer) return story?.problem ? [h("p", { class: "error" }, story.problem)] : [];
  const { registered: by, ...s } = story.answer;
  return [h("h3", null, "Where it is"), h("dl", { class: "facts", id: "detail-where" },
    fact("Live", h("code", null, s.endpoint || "none")), fact("Replay", s.replay_endpoint ? h("code", null, s.replay_endpoint) : "none: a gap cannot be filled"),
    s.snapshot_endpoint && fact("Snapshot", h("code", null, s.snapshot_endpoint)),
    fact("Registered", h("time", { datetime: by.at }, moment(by.at))), fact("Registered by", [registrars[by.by] ?? by.by, by.name && [" ", h("code", null, by.name)]]),
    fact("Reconnects", int(s.reconnects)), fact("Replayed", plural(s.replayed, "batch", "batches")))];
}

// groups shows what the engine has announced of its layers. Answers end where all of them can go on.
function groups(all) {
  const ranks = new Set(all.map((g) => g.dp_rank)).size > 1;
  const head = [ranks && "Rank", "Group", "Layers", "Window", "Block", "Blocks"].filter(Boolean);
  return h("table", { class: "small", id: "detail-groups" }, h("thead", null, h("tr", null, head.map((name) => h("th", { scope: "col", class: name === "Layers" ? null : "number" }, name)))),
    h("tbody", null, all.map((g) => h("tr", null, ranks && h("td", { class: "number" }, int(g.dp_rank)), h("td", { class: "number" }, int(g.group)), h("td", null, g.kind.replaceAll("_", " ") || "not named"),
      h("td", { class: "number" }, g.window ? int(g.window) : g.kind ? "none" : "unknown"), h("td", { class: "number" }, g.block_size ? int(g.block_size) : "unknown"), h("td", { class: "number" }, int(g.blocks))))));
}

const happened = {
  state: (e) => [`${e.from} → ${e.to}`, e.reason],
  gap: (e) => [plural(e.gaps, "gap"), "the missing batches are asked for where the engine can replay"],
  lost: (e) => [`${plural(e.batches, "batch", "batches")} lost`, "nobody has them any more"],
  dropped: (e) => [`blocks dropped, epoch ${int(e.epoch)} begins`, e.reason],
};

// timeline shows the events of a source, the newest first.
function timeline(s) {
  if (s.events.length === 0) return empty("Nothing yet", "Changes of its state, gaps and restarts appear here.");
  return [h("ol", { class: "timeline", id: "detail-timeline" }, s.events.toReversed().map((e) => {
    const [what, why] = happened[e.kind]?.(e) ?? [e.kind, ""];
    return h("li", { "data-level": levels[e.severity] }, h("time", { datetime: e.time }, moment(e.time)), h("span", null, what), why && h("small", null, why.replaceAll("_", " ")));
  })), s.older_events > 0 && h("p", { class: "hint" }, `${plural(s.older_events, "older event")} made room for these.`)];
}

// expectations says what became of the prompts that routers reported for the instance.
function expectations(r) {
  const x = r.expected;
  const fact = (name, value) => [h("dt", null, name), h("dd", null, value)];
  const time = (s) => s === null ? "–" : span(1000 * s);
  const approximate = r.state === "approximate";
  return h("dl", { class: "facts", id: "detail-expected" },
    fact("Prompts", int(x.prompts)), fact("New tokens", int(x.tokens)), fact("Expected now", `${int(x.pending)} tokens`),
    !approximate && [fact("Confirmed", x.confirmed_share === null ? "–" : `${percent(x.confirmed_share)} (${int(x.confirmed)} tokens)`), fact("Delay p50", time(x.delay_p50_s)), fact("Delay p99", time(x.delay_p99_s))],
    approximate ? fact("Evicted", `${int(x.evicted)} tokens`) : fact("Wasted", `${int(x.expired)} tokens`),
    x.taken_back > 0 && fact("Taken back", `${int(x.taken_back)} tokens`), x.dropped > 0 && fact("Dropped", `${int(x.dropped)} tokens`),
    x.ttl_s !== null && fact("ttl", span(1000 * x.ttl_s)));
}

// lossOf returns the section that asks what the fleet loses with an instance.
function lossOf(instance) {
  const answer = h("div", { "aria-live": "polite" });
  const button = h("button", { type: "button", onclick: compute }, `What does the fleet lose without ${instance}?`);
  async function compute() {
    button.disabled = true;
    fill(answer, loading("The server walks its indexes…"));
    try {
      fill(answer, lost(await ask(`admin/drain?instance=${encodeURIComponent(instance)}`)));
    } catch (e) {
      fill(answer, problem(e.message, compute));
    }
    button.disabled = false;
  }
  return h("section", { class: "loss" }, h("h3", null, "If this instance goes"), button, answer);
}

function lost(d) {
  const alone = d.held_tokens ? d.alone_tokens / d.held_tokens : 0;
  const parts = [h("p", null, `It holds ${int(d.held_tokens)} tokens on ${plural(d.sources.length, "rank")}. `,
    h("strong", null, d.alone_tokens ? `${int(d.alone_tokens)} of them (${percent(alone)}) are nowhere else.` : "All of them are elsewhere too."))];
  const tenants = Object.entries(d.alone_by_tenant).filter(([, n]) => n > 0);
  if (tenants.length > 1) parts.push(h("ul", { class: "plain" }, tenants.map(([t, n]) => h("li", null, `${t}: ${int(n)} tokens`))));
  if (d.prefixes.length) {
    parts.push(h("h4", null, "Prefixes that it alone held"), h("table", { class: "small" },
      h("thead", null, h("tr", null, h("th", { scope: "col" }, "Prefix"), h("th", { scope: "col", class: "number" }, "Tokens"), h("th", { scope: "col", class: "number" }, "Queries"))),
      h("tbody", null, d.prefixes.slice(0, 12).map((p) => h("tr", null, h("td", null, h("code", null, p.prefix.slice(0, 8))), h("td", { class: "number" }, int(p.tokens)), h("td", { class: "number" }, int(p.queries)))))));
  }
  return add(h("div"), parts);
}

$("detail").addEventListener("close", () => {
  if (!shown || $("detail").open) return; // the address has changed already, or a source was opened since
  shown = "";
  if (entered) history.back();
  else location.hash = "#fleet";
});
$("detail-close").addEventListener("click", () => $("detail").close());
$("detail").addEventListener("click", (e) => e.target === $("detail") && $("detail").close()); // the backdrop
