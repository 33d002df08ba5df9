// Full disclosure: the chosen lead in lines of one minute, beats coloured by class. A click goes there.

import { colour, clock, elapsed, fitted, lowerBound } from "./shared.js";

const LINE_S = 60, LINE = 38, LEFT = 62;

export class Disclosure {
  constructor(app, box) {
    Object.assign(this, { app, box, canvas: box.querySelector("canvas"), space: box.querySelector(".space") });
    box.addEventListener("scroll", () => app.draw());
    this.canvas.addEventListener("click", event => {
      const at = this.canvas.getBoundingClientRect(), line = Math.floor((event.clientY - at.top + box.scrollTop) / LINE);
      const part = (event.clientX - at.left - LEFT) / (at.width - LEFT);
      app.goto((line + Math.max(0, part)) * LINE_S * app.info.rate_hz, { select: false });
    });
  }

  follow() {  // scroll to the line of the cursor, if it is out of sight
    const { app, box } = this, lines = Math.ceil(app.info.num_samples / app.info.rate_hz / LINE_S);
    this.space.style.height = `${lines * LINE}px`;
    const y = Math.floor(app.cursor / app.info.rate_hz / LINE_S) * LINE;
    if (y < box.scrollTop || y + LINE > box.scrollTop + box.clientHeight) box.scrollTop = y - box.clientHeight / 2;
  }

  draw() {
    const { app, box } = this, { info, signal, beats } = app, span = LINE_S * info.rate_hz;
    const lines = Math.ceil(info.num_samples / span);
    this.space.style.height = `${lines * LINE}px`;
    this.canvas.style.height = `${Math.min(box.clientHeight, lines * LINE)}px`;
    const { g, width, height } = fitted(this.canvas), top = box.scrollTop;
    const first = Math.floor(top / LINE), last = Math.min(lines, Math.ceil((top + height) / LINE));
    const spp = span / (width - LEFT), level = signal.level(spp), lead = app.disclosed;
    const from = first * span, to = last * span, wait = signal.need(level, from, to, [lead]);
    const scale = info.unit_mv * LINE * 0.3 * app.gain / 10;
    g.font = "11px system-ui";
    const byClass = new Map(), at = line => line * LINE - top;
    const start = app.view.start, stop = start + app.view.spp * app.stripWidth();
    for (let line = first; line < last; line++) {
      const left = Math.max(start, line * span), right = Math.min(stop, (line + 1) * span);
      if (left < right) {
        g.fillStyle = "rgba(32,100,192,.14)";
        g.fillRect(LEFT + (left - line * span) / spp, at(line), Math.max(3, (right - left) / spp), LINE);
      }
      g.fillStyle = "#5b6874";
      g.fillText(clock(info, line * LINE_S).slice(0, 5) || elapsed(line * LINE_S).slice(0, -3), 4, at(line) + LINE / 2 + 4);
      const end = Math.min(info.num_samples, (line + 1) * span);
      let beat = lowerBound(beats.sample, line * span), place = line * span;
      while (place < end) {  // up to the middle between a beat and the next one
        const next = beat + 1 < beats.sample.length ? (beats.sample[beat] + beats.sample[beat + 1]) / 2 : Infinity;
        const until = Math.min(end, next), name = beat < beats.sample.length ? String.fromCharCode(beats.symbol[beat]) : "N";
        if (until > place) {
          const parts = byClass.get(name) ?? byClass.set(name, []).get(name), before = parts.at(-1);
          if (before && before[0] === line && before[2] === place) before[2] = until; else parts.push([line, place, until]);
        }
        place = until; beat++;
      }
    }
    const middles = new Map();
    for (const name of [...byClass.keys()].sort((a, b) => (a === "N" ? -1 : 0) - (b === "N" ? -1 : 0))) {
      g.strokeStyle = colour(name); g.lineWidth = name === "N" ? 0.8 : 1.2; g.beginPath();
      for (const [line, begin, end] of byClass.get(name)) {
        if (!middles.has(line)) middles.set(line, signal.middle(lead, level, line * span, (line + 1) * span));
        const middle = middles.get(line), centre = at(line) + LINE / 2;
        signal.path(g, lead, level, begin, end, s => LEFT + (s - line * span) / spp, v => centre - Math.max(-LINE, Math.min(LINE, (v - middle) * scale)));
      }
      g.stroke();
    }
    return wait;
  }
}
