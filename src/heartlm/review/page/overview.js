// Heart rate, ectopic beats and events over the whole recording. A click goes there.

import { colour, elapsed, eventColour, clock, fitted } from "./shared.js";

const TOP = 16, BOTTOM = 16, LEFT = 34, HIGHEST = 200, ROW = 15, ROWS = ["S", "F", "V"];

export class Overview {
  constructor(app, canvas) {
    Object.assign(this, { app, canvas, picture: null });
    const go = event => {
      const box = canvas.getBoundingClientRect(), { num_samples } = app.info;
      app.goto((event.clientX - box.left - LEFT) / (box.width - LEFT) * num_samples, { select: false });
    };
    canvas.addEventListener("pointerdown", event => { canvas.setPointerCapture(event.pointerId); go(event); });
    canvas.addEventListener("pointermove", event => { if (event.buttons) go(event); });
  }

  x(sample, width) { return LEFT + sample / this.app.info.num_samples * (width - LEFT); }

  render(width, height) {  // all that changes with the beats and the size only
    const { app } = this, { sample, symbol } = app.beats, { num_samples, rate_hz } = app.info;
    const picture = new OffscreenCanvas(width * devicePixelRatio, height * devicePixelRatio), g = picture.getContext("2d");
    g.scale(devicePixelRatio, devicePixelRatio);
    const h = height - TOP - BOTTOM - ROWS.length * ROW, y = rate => TOP + h * (1 - Math.min(rate, HIGHEST) / HIGHEST);
    g.font = "11px system-ui"; g.strokeStyle = "#e3e6ea"; g.fillStyle = "#5b6874"; g.lineWidth = 1;
    for (const rate of [0, 50, 100, 150]) {
      g.beginPath(); g.moveTo(LEFT, y(rate)); g.lineTo(width, y(rate)); g.stroke();
      if (rate) g.fillText(rate, 6, y(rate) + 4);
    }
    const seconds = num_samples / rate_hz, most = (width - LEFT) / 90;
    const step = [10, 30, 60, 300, 600, 1800, 3600, 7200, 14400, 43200, 86400, 604800].find(s => seconds / s <= most) ?? 2592000;
    for (let s = 0; s < seconds; s += step) {
      const x = this.x(s * rate_hz, width);
      g.beginPath(); g.moveTo(x, TOP); g.lineTo(x, height - BOTTOM); g.stroke();
      g.fillText(clock(app.info, s) || elapsed(s), x + 3, height - 4);
    }
    const columns = Math.floor(width - LEFT), per = num_samples / columns;
    const counts = { S: new Float64Array(columns), V: new Float64Array(columns), F: new Float64Array(columns) };
    g.fillStyle = "#9bb7de"; g.strokeStyle = "#1f4f96";
    const mean = [];
    for (let c = 0, at = 0; c < columns; c++) {
      let low = Infinity, high = 0, sum = 0, num = 0;
      for (; at < sample.length && sample[at] < (c + 1) * per; at++) {
        const name = String.fromCharCode(symbol[at]);
        if (name in counts) counts[name][c]++;
        const rr = at ? (sample[at] - sample[at - 1]) / rate_hz : 0;
        if (rr < 0.2 || rr > 4) continue;
        low = Math.min(low, 60 / rr); high = Math.max(high, 60 / rr); sum += rr; num++;
      }
      mean.push(num ? 60 * num / sum : null);
      if (num > 1) g.fillRect(LEFT + c, y(high), 1, Math.max(1, y(low) - y(high)));
    }
    g.beginPath();
    let pen = false;
    mean.forEach((rate, c) => {
      if (rate !== null) { pen ? g.lineTo(LEFT + c + 0.5, y(rate)) : g.moveTo(LEFT + c + 0.5, y(rate)); pen = true; }
      else if (per > 8 * rate_hz) pen = false;  // narrower columns may have no beat
    });
    g.stroke();
    ROWS.forEach((name, row) => {  // ectopic beats of each column, below the rate
      const highest = Math.max(1, ...counts[name]), base = TOP + h + (row + 1) * ROW;
      g.fillStyle = "#5b6874"; g.fillText(name, 6, base - 2);
      g.fillStyle = colour(name);
      counts[name].forEach((count, c) => {
        if (count) { const tall = 2 + (ROW - 4) * count / highest; g.fillRect(LEFT + c, base - tall, 1.2, tall); }
      });
    });
    for (const event of app.events) {
      if (event.state === "refused") continue;
      const x = this.x(event.start, width);
      g.fillStyle = eventColour(event.kind);
      g.fillRect(x, 3, Math.max(1.5, this.x(event.stop, width) - x), TOP - 6);
    }
    this.picture = picture; this.key = `${app.revision}/${app.loaded}/${width}x${height}`;
  }

  draw() {
    const { app } = this, { g, width, height } = fitted(this.canvas);
    if (this.key !== `${app.revision}/${app.loaded}/${width}x${height}`) this.render(width, height);
    g.drawImage(this.picture, 0, 0, width, height);
    const x = this.x(app.view.start, width), w = Math.max(3, app.view.spp * app.stripWidth() / app.info.num_samples * (width - LEFT));
    g.fillStyle = "rgba(32,100,192,.16)"; g.strokeStyle = "#2064c0"; g.lineWidth = 1.5;
    g.fillRect(x, 1, w, height - 2); g.strokeRect(x, 1, w, height - 2);
    const cursor = this.x(app.cursor, width);
    g.strokeStyle = "#101820"; g.lineWidth = 1; g.beginPath(); g.moveTo(cursor, 0); g.lineTo(cursor, height); g.stroke();
  }

  counts() {  // the beats by class, in words
    const counts = {};
    for (const code of this.app.beats.symbol) counts[String.fromCharCode(code)] = (counts[String.fromCharCode(code)] ?? 0) + 1;
    return [..."NSVF"].filter(name => counts[name]).map(name => `${name} ${counts[name].toLocaleString("en")}`).join("  ");
  }
}
