// format.js writes numbers and times for people.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

// int writes 1234567 as 1,234,567.
export const int = (n) => whole.format(n ?? 0);

// compact writes 1234567 as 1.23M; numbers below 10,000 are whole.
export const compact = (n) => ((n ?? 0) < 10_000 ? whole.format(n ?? 0) : short.format(n));

// rate writes events or queries a second.
export function rate(n) {
  n ??= 0;
  if (n === 0) return "0";
  return n < 10 ? n.toFixed(1) : compact(Math.round(n));
}

// percent writes a part of 1.
export const percent = (x) => `${(100 * x).toFixed(x > 0 && x < 0.1 ? 1 : 0)} %`;

// micro writes a duration of some seconds, from microseconds on.
export const micro = (s) => (s > 0 && s < 0.001 ? `${(1e6 * s).toFixed(s < 1e-5 ? 1 : 0)} µs` : s < 0.01 && s > 0 ? `${(1e3 * s).toFixed(1)} ms` : span(1e3 * s));

// moment writes a time of the server as date and time of the reader.
export const moment = (time) => new Date(time).toLocaleString("en-GB", { day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit" });

// bytes writes a number of bytes in binary units.
export function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  for (n ??= 0; n >= 1024 && i < units.length - 1; i++) n /= 1024;
  return `${n < 10 && i > 0 ? n.toFixed(1) : Math.round(n)} ${units[i]}`;
}

// span writes a duration of some milliseconds.
export function span(ms) {
  if (ms < 1) return "0";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const s = ms / 1000;
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 120) return `${Math.round(s)} s`;
  if (s < 7200) return `${Math.round(s / 60)} min`;
  return s < 172_800 ? `${Math.round(s / 3600)} h` : `${Math.round(s / 86_400)} d`;
}

// ago writes how long ago something was, by the server's clock.
export const ago = (ms) => (ms < 0 ? "never" : ms < 1000 ? "now" : `${span(ms)} ago`);

// plural writes a count with its noun.
export const plural = (n, noun, many) => `${int(n)} ${n === 1 ? noun : (many ?? noun + "s")}`;
