// ways.js shows what leads to sources: the engines that are asked where they publish, the
// instances of LMCache that report, and the topics on our sockets that no source claims.

import { $, h, keep, mark, say } from "./dom.js";
import { ago, int, plural } from "./format.js";
import { levels } from "./health.js";
import { now, state } from "./live.js";

const none = { targets: 0, waiting: 0, learning: 0, instances: 0, unclaimed: 0, topics: 0, list: [] };
const discovery = () => state.stats.discovery ?? none;
const lmcache = () => state.stats.lmcache ?? none;
const unclaimed = () => state.stats.unclaimed ?? none;
const nameOf = (t) => (t.dp_rank === null ? t.instance_id : `${t.instance_id} / ${t.dp_rank}`);
const missing = (u) => `${plural(u.entries, "entry", "entries")} of the model ${u.modelname} as ${u.instance_id}`;

const shownVain = 3; // of what queries ask for in vain

// findings returns a finding for each kind that lacks something, and the function that leads there.
export function findings() {
  const all = [];
  const waits = discovery().list.find((t) => t.state === "waiting");
  if (waits) all.push({ code: "discovery", severity: discovery().severity, count: discovery().waiting, noun: "engine", text: `${nameOf(waits)} has not told where it publishes. ${waits.error}`, go: toTargets });
  const stray = lmcache().list.find((r) => r.state === "unclaimed");
  if (stray) all.push({ code: "unclaimed", severity: lmcache().severity, count: lmcache().unclaimed, noun: "instance", text: `${stray.instance_id} reports ${missing(stray.unclaimed[0])}, and no source takes them: register that with type LMCache and endpoint push:`, go: toReporters });
  const topic = unclaimed().list[0];
  if (topic) all.push({ code: "unclaimed_topic", severity: unclaimed().severity, count: unclaimed().topics, noun: "topic", text: `No source claims the topic "${topic.topic}" from ${topic.from} at ${topic.endpoint}: ${topic.advice}`, go: toTopics });
  const vain = state.stats.unregistered ?? none;
  for (const v of vain.list.slice(0, shownVain)) {
    const more = vain.list.length - shownVain, last = v === vain.list[shownVain - 1] && more > 0;
    all.push({ code: "not_registered", key: `not_registered ${v.tenant_id} ${v.modelname} ${v.block_size}`, severity: vain.severity, count: 1, noun: "model",
      text: `${v.advice}, and queries ask for it${last ? `; ${plural(more, "other is", "others are")} asked for, too: conductor doctor lists them` : ""}`, go: () => { location.hash = "#explain"; } });
  }
  return all;
}

const lead = (id) => () => {
  $(id).scrollIntoView({ block: "nearest" });
  $(id).focus();
};
const toTargets = lead("title-targets"), toReporters = lead("title-reporters"), toTopics = lead("title-topics");

const cell = (name, ...children) => h("td", { role: "cell", "data-name": name }, ...children);
const makeRow = (names) => () => h("tr", { role: "row" }, h("th", { scope: "row", role: "rowheader" }, h("span"), h("small")),
  cell("State", h("span", { class: "dot" }), h("span"), h("small")), names.map((n) => cell(n, h("span"), h("small"))));

// update writes the cells of a row: pairs of a text and a smaller one. severity is that of a row that lacks something.
function update(tr, row, severity, pairs) {
  const lacks = row.state === "waiting" || row.state === "unclaimed", calm = row.state === "found" || row.state === "followed";
  mark(tr.children[1].firstChild, "data-level", levels[lacks ? severity : calm ? "ok" : "info"]);
  pairs.forEach(([text, small], i) => {
    const [big, little] = [...tr.children[i].children].slice(-2);
    say(big, text);
    say(little, small ?? "");
  });
}

// shown writes how many rows of a list are there.
const shown = (all, what, list) => (all > list.length ? `${what}; ${int(list.length)} are shown` : what);

export function draw(filterBy) {
  const d = discovery(), l = lmcache();
  $("targets").hidden = d.targets === 0;
  say($("targets-count"), shown(d.targets, [plural(d.targets, "target"), d.waiting && `${int(d.waiting)} waiting`, d.learning && `${int(d.learning)} learning`].filter(Boolean).join(", "), d.list));
  keep($("targets-body"), d.list, (t) => `${t.tenant_id} ${nameOf(t)}`, (t) => {
    const tr = makeRow(["Addresses", "Sources"])();
    tr.lastChild.firstChild.replaceWith(h("button", { type: "button", class: "link", onclick: () => filterBy(t.instance_id) }));
    return tr;
  }, (tr, t) => {
    update(tr, t, d.severity, [[nameOf(t), [t.tenant_id === "default" ? "" : t.tenant_id, t.url || "endpoints are known"].filter(Boolean).join(" · ")], [t.state, t.error], [int(t.addresses)], [int(t.sources)]]);
    mark(tr.lastChild.firstChild, "aria-label", `Show ${plural(t.sources, "source")} of ${t.instance_id}`);
  });
  const u = unclaimed();
  $("topics").hidden = u.topics === 0;
  say($("topics-count"), plural(u.topics, "topic"));
  keep($("topics-body"), u.list, (t) => `${t.endpoint} ${t.dp_rank} ${t.topic}`, makeRow(["Messages", "Last message"]), (tr, t) => {
    update(tr, { state: "unclaimed" }, u.severity, [[`"${t.topic}"`, `${t.dp_rank === null ? "" : `dp_rank ${t.dp_rank} · `}from ${t.from} to ${t.endpoint}`], ["unclaimed", t.advice], [int(t.messages)], [ago(Math.max(0, now() - Date.parse(t.last)))]]);
  });
  $("reporters").hidden = l.instances === 0;
  say($("reporters-count"), shown(l.instances, [plural(l.instances, "instance"), l.unclaimed && `${int(l.unclaimed)} with reports that no source takes`].filter(Boolean).join(", "), l.list));
  keep($("reporters-body"), l.list.map((r, i, all) => ({ ...r, key: `${r.instance_id} ${all.slice(0, i).filter((o) => o.instance_id === r.instance_id).length}` })), (r) => r.key, makeRow(["Sequence", "Last report"]), (tr, r) => {
    update(tr, r, l.severity, [[r.instance_id, r.followed_by.length ? `for ${r.followed_by.join(", ")}` : "no source of its own"], [r.state, r.unclaimed.map(missing).join("; ")],
      [int(r.seq), r.outcome === "applied" ? "" : `the last batch was ${r.outcome}`], [ago(Math.max(0, now() - Date.parse(r.last)))]]);
  });
}
