// chart.js draws the history with uPlot: all charts the same points of the same time, which the operator chooses.

import { fill, h, mark, say } from "./dom.js";
import { compact, int, micro, percent, rate, span } from "./format.js";
import { now, state } from "./live.js";

const height = 160;
const soonest = 5; // seconds after the last point that the present is a point of its own
const shortest = 120; // seconds that a chart shows at least

// colour returns the value of a custom property as a canvas needs it.
function colour(name) {
  const probe = h("span", { class: "probe", vars: { "--probe": `var(${name})` } });
  document.body.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}

const numbers = (u, all) => all.map((v) => compact(v));
const fromZero = (empty) => (u, min, max) => [0, max > 0 ? max * 1.08 : empty]; // empty is the top of a scale without values
const alone = (u, i) => u.data[i].flatMap((v, at, all) => (v != null && all[at - 1] == null && all[at + 1] == null ? [at] : [])); // points that no line leads to
const steps = Array.from({ length: 30 }, (_, i) => [1, 2, 5][i % 3] * 10 ** Math.floor(i / 3)); // between two lines of a grid
let range = 3600; // seconds that the charts show at most

// choose sets how many seconds the charts show.
export const choose = (seconds) => { range = seconds; };

// shownPoints returns the points that the charts show, the last of them the present, and the times of their left and right ends:
// the left one is no earlier than the first point, unless that has only just been.
function shownPoints() {
  const all = withNow();
  const to = all.at(-1)?.[0] ?? now() / 1000;
  const from = Math.max(to - range, Math.min(all[0]?.[0] ?? to, to - shortest));
  return { points: all.filter((p) => p[0] >= from), from, to };
}

// cached returns which part of the asked tokens of some points was cached, null if none were asked.
function cached(points) {
  const asked = points.reduce((n, p) => n + (p[6] ?? 0), 0);
  return asked ? points.reduce((n, p) => n + (p[7] ?? 0), 0) / asked : null;
}

// cachedNow is cached for what the charts show.
export const cachedNow = () => cached(shownPoints().points);

// chart returns a function that draws what is shown into the element host. lines are drawn in turn,
// each {name, tint, fill, right, value(point), sum(points), number}; number writes a value. A line that is right has the axis there.
// A value that is null is a gap. The legend has sum where a line has it, else the last value, and that of a moment under the pointer.
export function chart(host, legend, title, lines, number, { axis: written = numbers, empty = 10 } = {}) {
  let plot = null;
  const values = lines.map(({ name, tint }) => {
    const value = h("b", null, "–");
    return { value, row: h("span", { class: "key", vars: { "--tint": `var(${tint})` } }, name, " ", value) };
  });
  fill(legend, values.toReversed().map((v) => v.row));

  let points = [], from = 0, to = 0;
  const valueOf = (line, p) => (p ? line.value(p) ?? null : null);
  const write = (line, v) => (v === null ? "–" : (line.number ?? number)(v));
  const latest = (line) => write(line, line.sum ? line.sum(points) : valueOf(line, points.findLast((p) => valueOf(line, p) !== null)));
  const label = (u) => lines.forEach((line, i) => say(values[i].value, u.cursor.idx == null ? latest(line) : write(line, valueOf(line, points[u.cursor.idx]))));

  function make() {
    plot?.destroy();
    const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    plot = new uPlot({
      width: host.clientWidth, height,
      padding: [8, lines.some((line) => line.right) ? 8 : 26, 0, 0], // half of the last time, where no axis has the room
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, points: { size: 6 } },
      scales: { x: { range: () => [from, to] }, y: { range: fromZero(empty) }, right: { range: fromZero(10) } },
      axes: [
        { ...axis, size: 22, space: 70, values: (u, at) => at.map((t) => new Date(t * 1000).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", second: u.scales.x.max - u.scales.x.min < 300 ? "2-digit" : undefined })) },
        { ...axis, size: 46, space: 32, incrs: written === numbers ? steps : undefined, values: written },
        ...(lines.some((line) => line.right) ? [{ ...axis, size: 34, space: 32, incrs: steps, scale: "right", side: 1, grid: { show: false }, values: numbers }] : []),
      ],
      series: [{}, ...lines.map((line) => ({
        label: line.name, scale: line.right ? "right" : "y", stroke: colour(line.tint), width: line.fill ? 0 : 1.75, dash: line.dash,
        fill: line.fill ? colour(line.tint) : undefined, points: { show: false, size: 6, fill: colour(line.tint), filter: alone },
      }))],
      hooks: { setCursor: [label] },
    }, data(), host);
  }

  const data = () => [points.map((p) => p[0]), ...lines.map((line) => points.map((p) => (line.top ?? line.value)(p) ?? null))];
  new ResizeObserver(() => plot && host.clientWidth && plot.setSize({ width: host.clientWidth, height })).observe(host);
  document.addEventListener("themed", () => plot && host.clientWidth && make());

  return () => {
    if (!host.clientWidth) return;
    ({ points, from, to } = shownPoints());
    if (!plot) make();
    else plot.setData(data());
    label(plot);
    const none = points.length > 1 && lines.every((line) => points.every((p) => valueOf(line, p) === null));
    mark(host, "data-none", none && (state.model ? "Kept for all models together" : "No queries in this time"));
    mark(host, "aria-label", `${title} over ${span(1000 * (to - from))}. ${points.length ? lines.map((l) => `${l.name}: ${latest(l)}`).join(", ") : "No data yet"}.`);
  };
}

// withNow returns the history with the present state behind it; of one model the present is not known.
function withNow() {
  const { stats, history } = state;
  if (!stats || state.model) return history;
  const blocks = Object.fromEntries((stats.tiers ?? []).map((t) => [t.tier, t.blocks]));
  const now = [Date.parse(stats.time) / 1000, blocks.device ?? 0, blocks.host ?? 0, blocks.disk ?? 0, stats.totals.events_per_s, stats.totals.queries_per_s];
  return now[0] > (history.at(-1)?.[0] ?? 0) + soonest ? [...history, now] : history;
}

// tiers stacks the blocks of the tiers, rates draws events and queries.
export const tiers = (host, legend) => chart(host, legend, "Blocks by tier", [
  { name: "Disk", tint: "--disk", fill: true, value: (p) => p[3], top: (p) => p[1] + p[2] + p[3] },
  { name: "Host", tint: "--host", fill: true, value: (p) => p[2], top: (p) => p[1] + p[2] },
  { name: "Device", tint: "--device", fill: true, value: (p) => p[1] },
], int);
export const rates = (host, legend) => chart(host, legend, "Rates", [
  { name: "Queries/s (right)", tint: "--muted", dash: [5, 4], right: true, value: (p) => p[5] },
  { name: "Events/s", tint: "--accent", value: (p) => p[4] },
], rate);

// hits draws which part of the asked tokens was held, and what was refused; answers how long queries took.
export const hits = (host, legend) => chart(host, legend, "Hit rate and refusals", [
  { name: "Refused/s (right)", tint: "--bad", dash: [5, 4], right: true, value: (p) => p[8], number: rate },
  { name: "Cached", tint: "--accent", value: (p) => (p[6] ? p[7] / p[6] : null), sum: cached },
], percent, { axis: (u, all) => all.map(percent), empty: 1 });
export const answers = (host, legend) => chart(host, legend, "Time to answer a query", [
  { name: "p99", tint: "--muted", dash: [5, 4], value: (p) => p[10] },
  { name: "p50", tint: "--accent", value: (p) => p[9] },
], micro, { axis: (u, all) => all.map(micro), empty: 0.01 });
