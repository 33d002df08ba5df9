// What all views share: colours, times, canvases, and the places of beats.

export const COLOURS = { N: "#22303c", S: "#9a6a00", V: "#c2331c", F: "#13806a", Q: "#7446c8", "|": "#8a949e" };
export const NAMES = { N: "normal", S: "supraventricular", V: "ventricular", F: "fusion", Q: "paced or unknown" };
export const GRAVE = new Set(["VF", "VT", "asystole", "AV block III", "IVR"]);
export const STATES = { automatic: "found", confirmed: "confirmed", refused: "refused", changed: "changed", added: "added" };
export const MM = 3.78;  // CSS pixels

export const colour = symbol => COLOURS[symbol] ?? COLOURS.Q;
export const eventColour = kind => GRAVE.has(kind) || /geminy|couplet/.test(kind) ? "#c2331c"
  : /AF|flutter/.test(kind) ? "#2064c0" : /SVT/.test(kind) ? "#9a6a00" : kind === "unreadable" ? "#8a949e" : "#4a5763";

export function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

// A canvas as large as its box, in CSS pixels.
export function fitted(canvas) {
  const scale = devicePixelRatio || 1, width = Math.max(40, canvas.clientWidth), height = Math.max(20, canvas.clientHeight);
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
  }
  const g = canvas.getContext("2d");
  g.setTransform(scale, 0, 0, scale, 0, 0);
  g.clearRect(0, 0, width, height);
  return { g, width, height };
}

// The index of the first value that is not below `value`.
export function lowerBound(sorted, value) {
  let low = 0, high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < value) low = middle + 1; else high = middle;
  }
  return low;
}

export function nearest(sorted, value) {
  const after = lowerBound(sorted, value);
  if (after === 0) return sorted.length ? 0 : -1;
  return after < sorted.length && sorted[after] - value < value - sorted[after - 1] ? after : after - 1;
}

const two = number => String(Math.floor(number)).padStart(2, "0");

export function elapsed(seconds, decimals = 0) {
  const unit = 10 ** decimals, whole = Math.floor(Math.max(0, seconds) * unit + 1e-6) / unit;
  const rest = (whole % 60).toFixed(decimals).padStart(decimals ? 3 + decimals : 2, "0");
  return `${Math.floor(whole / 3600)}:${two(whole / 60 % 60)}:${rest}`;
}

// The clock of the recorder, with the day from the second one on; empty if its start is unknown.
export function clock(info, seconds) {
  const [, h, m, s] = /(\d+):(\d\d):(\d\d)/.exec(info.start ?? "") ?? [];
  if (h === undefined) return "";
  const time = 3600 * h + 60 * m + Number(s) + seconds, day = Math.floor(time / 86400);
  return `${two(time / 3600 % 24)}:${two(time / 60 % 60)}:${two(time % 60)}` + (day ? ` day ${day + 1}` : "");
}

export function duration(seconds) {
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  return seconds < 3600 ? `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s` : elapsed(seconds);
}
