// chart.js draws the last hour with uPlot.

import { fill, h, mark, say } from "./dom.js";
import { compact, int, micro, percent, rate } from "./format.js";
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
const steps = Array.from({ length: 30 }, (_, i) => [1, 2, 5][i % 3] * 10 ** Math.floor(i / 3)); // between two lines of a grid
const recent = (u) => { // the range of times; uPlot would make a day of a single point
  const last = u.data[0].at(-1) ?? now() / 1000;
  return [Math.min(u.data[0][0] ?? last, last - shortest), last];
};

// chart returns a function that draws points into the element host. lines are drawn in turn,
// each {name, tint, fill, right, value(point), number}; number writes a value. A line that is right has the axis there.
// past leaves out the present, where only points of the history have the values. A value that is null is a gap.
export function chart(host, legend, title, lines, number, { axis: written = numbers, past = false, empty = 10 } = {}) {
  let plot = null;
  const values = lines.map(({ name, tint }) => {
    const value = h("b", null, "–");
    return { value, row: h("span", { class: "key", vars: { "--tint": `var(${tint})` } }, name, " ", value) };
  });
  fill(legend, values.toReversed().map((v) => v.row));

  const text = (line, p) => (line.value(p) === null ? "–" : (line.number ?? number)(line.value(p)));
  const label = (u) => {
    const at = u.cursor.idx ?? u.data[0].length - 1;
    lines.forEach((line, i) => say(values[i].value, points[at] ? text(line, points[at]) : "–"));
  };
  let points = [];

  function make() {
    plot?.destroy();
    const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    plot = new uPlot({
      width: host.clientWidth, height,
      padding: [8, lines.some((line) => line.right) ? 8 : 26, 0, 0], // half of the last time, where no axis has the room
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, points: { size: 6 } },
      scales: { x: { range: recent }, y: { range: fromZero(empty) }, right: { range: fromZero(10) } },
      axes: [
        { ...axis, size: 22, space: 70, values: (u, at) => at.map((t) => new Date(t * 1000).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", second: u.scales.x.max - u.scales.x.min < 300 ? "2-digit" : undefined })) },
        { ...axis, size: 46, space: 32, incrs: written === numbers ? steps : undefined, values: written },
        ...(lines.some((line) => line.right) ? [{ ...axis, size: 34, space: 32, incrs: steps, scale: "right", side: 1, grid: { show: false }, values: numbers }] : []),
      ],
      series: [{}, ...lines.map((line) => ({
        label: line.name, scale: line.right ? "right" : "y", stroke: colour(line.tint), width: line.fill ? 0 : 1.75, dash: line.dash,
        fill: line.fill ? colour(line.tint) : undefined, points: { show: false },
      }))],
      hooks: { setCursor: [label] },
    }, data(), host);
  }

  const data = () => [points.map((p) => p[0]), ...lines.map((line) => points.map((p) => (line.top ?? line.value)(p)))];
  new ResizeObserver(() => plot && host.clientWidth && plot.setSize({ width: host.clientWidth, height })).observe(host);
  document.addEventListener("themed", () => plot && host.clientWidth && make());

  return () => {
    if (!host.clientWidth) return;
    points = past ? state.history : withNow();
    if (!plot) make();
    else plot.setData(data());
    label(plot);
    const last = points.at(-1);
    mark(host, "aria-label", `${title} over the last hour. ${last ? lines.map((l) => `${l.name}: ${text(l, last)} ${past ? "last" : "now"}`).join(", ") : "No data yet"}.`);
  };
}

// withNow returns the history with the present state behind it.
function withNow() {
  const { stats, history } = state;
  if (!stats) return history;
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
  { name: "Refused/s (right)", tint: "--bad", dash: [5, 4], right: true, value: (p) => p[8] ?? null, number: rate },
  { name: "Cached", tint: "--accent", value: (p) => (p[6] ? p[7] / p[6] : null) },
], percent, { axis: (u, all) => all.map(percent), past: true, empty: 1 });
export const answers = (host, legend) => chart(host, legend, "Time to answer a query", [
  { name: "p99", tint: "--muted", dash: [5, 4], value: (p) => p[10] ?? null },
  { name: "p50", tint: "--accent", value: (p) => p[9] ?? null },
], micro, { axis: (u, all) => all.map(micro), past: true, empty: 0.01 });
