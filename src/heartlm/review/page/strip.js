// Some seconds of all chosen leads on mm paper, with beats, events, calipers and waves.

import { clock, colour, elapsed, eventColour, fitted, lowerBound, MM, nearest } from "./shared.js";

const ROW = 14, NUM_ROWS = 3, BARS = ROW * NUM_ROWS, HEAD = BARS + 24, FOOT = 16, WAVES = ["#2f8f4e", "#c2331c", "#7446c8"], NEAR_PX = 14, MOST_WAVES_S = 60, EDGE_PX = 7, NORMAL = "N".charCodeAt(0);

export class Strip {
  constructor(app, canvas) {
    Object.assign(this, { app, canvas, caliper: null, waves: [], pointers: new Map(), action: null });
    canvas.addEventListener("pointerdown", event => this.down(event));
    canvas.addEventListener("pointermove", event => this.move(event));
    for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, event => this.up(event, end === "pointercancel"));
    canvas.addEventListener("wheel", event => {
      if (event.ctrlKey || event.metaKey) {
        app.zoom(Math.exp(event.deltaY * 0.004), this.sample(event));
      } else {
        const delta = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
        if (!delta) return;  // up and down scrolls the page
        app.setView(app.view.start + delta * app.view.spp);
      }
      event.preventDefault();
    }, { passive: false });
  }

  x(sample) { return (sample - this.app.view.start) / this.app.view.spp; }
  sample(event) { return this.app.view.start + (event.clientX - this.canvas.getBoundingClientRect().left) * this.app.view.spp; }
  pxPerMv() { return this.app.gain * MM; }

  fit() {  // the height follows from the number of leads
    const { leads } = this.app, lane = leads.length > 6 ? 50 : leads.length > 3 ? 72 : leads.length > 2 ? 116 : leads.length > 1 ? 140 : 200;
    this.canvas.style.height = `${HEAD + FOOT + lane * Math.max(1, leads.length)}px`;
  }

  // Returns a promise of the tiles that are missing, or null if all was drawn.
  draw() {
    const { app } = this, { info, view, leads, signal } = app, { g, width, height } = fitted(this.canvas);
    const stop = view.start + width * view.spp, level = signal.level(view.spp);
    const wait = signal.need(level, view.start, stop, leads);
    this.paper(g, width, height);
    const lane = (height - HEAD - FOOT) / Math.max(1, leads.length), scale = info.unit_mv * this.pxPerMv();
    this.drawWaves(g, stop, height);
    this.drawMarks(g, stop, height);
    g.lineJoin = "round"; g.lineWidth = level ? 1 : 1.2; g.strokeStyle = "#16202a";
    leads.forEach((lead, place) => {
      const centre = HEAD + lane * (place + 0.62), middle = signal.middle(lead, level, view.start, stop);
      g.save(); g.beginPath(); g.rect(0, HEAD, width, height - HEAD - FOOT); g.clip();
      g.beginPath();
      signal.path(g, lead, level, view.start - view.spp, stop + view.spp, s => this.x(s), v => centre - (v - middle) * scale);
      g.stroke(); g.restore();
      g.font = "600 12px system-ui"; g.fillStyle = "rgba(255,250,246,.85)";
      g.fillRect(2, centre + 4, g.measureText(info.leads[lead]).width + 8, 16);
      g.fillStyle = "#16202a"; g.fillText(info.leads[lead], 6, centre + 16);
    });
    this.drawBeats(g, stop, height);
    this.drawEvents(g, stop);
    this.drawCaliper(g, height);
    const cursor = this.x(app.cursor);
    g.strokeStyle = "#2064c0"; g.lineWidth = 1; g.setLineDash([5, 4]);
    g.beginPath(); g.moveTo(cursor, BARS); g.lineTo(cursor, height - FOOT); g.stroke(); g.setLineDash([]);
    return wait;
  }

  paper(g, width, height) {
    const { view, info } = this.app, mmX = info.rate_hz / 25 / view.spp, big = mmX * 5;
    g.fillStyle = "#fffaf6"; g.fillRect(0, 0, width, height);
    const lines = (stepX, stepY, style) => {
      g.strokeStyle = style; g.lineWidth = 1; g.beginPath();
      if (stepX >= 2.5) {
        for (let x = -((view.start / view.spp) % stepX + stepX) % stepX; x < width; x += stepX) {
          g.moveTo(Math.round(x) + 0.5, HEAD); g.lineTo(Math.round(x) + 0.5, height - FOOT);
        }
      }
      if (stepY) for (let y = HEAD; y < height - FOOT; y += stepY) { g.moveTo(0, Math.round(y) + 0.5); g.lineTo(width, Math.round(y) + 0.5); }
      g.stroke();
    };
    lines(mmX, mmX >= 2.5 ? MM : 0, "#f6e3dc");
    lines(big, mmX >= 0.5 ? MM * 5 : 0, "#ecc9bf");
    // times below, about 90 px apart
    const perPx = view.spp / info.rate_hz;
    const step = [0.2, 0.5, 1, 2, 5, 10, 30, 60, 300, 600, 1800, 3600, 7200, 14400, 43200].find(s => s / perPx >= 90) ?? 86400;
    g.font = "11px system-ui"; g.fillStyle = "#5b6874"; g.strokeStyle = "#c9a79d";
    for (let s = Math.max(0, Math.ceil(view.start / info.rate_hz / step) * step); s <= info.num_samples / info.rate_hz; s += step) {
      const x = this.x(s * info.rate_hz);
      if (x > width) break;
      g.beginPath(); g.moveTo(x, height - FOOT); g.lineTo(x, height - FOOT + 4); g.stroke();
      g.fillText(elapsed(s, step < 1 ? 1 : 0), x + 3, height - 4);
    }
  }

  drawBeats(g, stop) {
    const { app } = this, { sample, symbol, probability, source } = app.beats;
    const first = lowerBound(sample, app.view.start), last = lowerBound(sample, stop);
    const room = (stop - app.view.start) / app.view.spp / Math.max(1, last - first);
    if (room < 7) {  // no room for letters: one mark for each column of pixels, of the rarest class
      const columns = new Map();
      for (let at = first; at < last; at++) {
        const x = Math.round(this.x(sample[at]));
        if (symbol[at] !== NORMAL || !columns.has(x)) columns.set(x, symbol[at]);
      }
      for (const [x, code] of columns) {
        g.fillStyle = colour(String.fromCharCode(code));
        g.fillRect(x - 0.5, BARS + 6, 1, code === NORMAL ? 6 : 12);
      }
      return;
    }
    g.textAlign = "center";
    for (let at = first; at < last; at++) {
      const x = this.x(sample[at]), name = String.fromCharCode(symbol[at]);
      g.fillStyle = colour(name);
      g.font = name === "N" ? "13px system-ui" : "700 14px system-ui";
      g.fillText(name, x, BARS + 17);
      if (source[at] === 2) g.fillRect(x - 5, BARS + 20, 10, 2);  // named by the reviewer
      else if (source[at] === 1) { g.beginPath(); g.arc(x, BARS + 21, 2, 0, 7); g.fill(); }  // follows a correction
      else if (probability[at] < 191) { g.font = "9px system-ui"; g.fillText("?", x + 8, BARS + 12); }
      if (at + 1 < last && room > 45) {
        const rr = (sample[at + 1] - sample[at]) / app.info.rate_hz;
        g.font = "10px system-ui"; g.fillStyle = "#7b8792";
        g.fillText(Math.round(1000 * rr), (x + this.x(sample[at + 1])) / 2, BARS + 15);
      }
    }
    g.textAlign = "left";
  }

  drawMarks(g, stop, height) {
    const { app } = this, { sample, symbol } = app.beats;
    const event = app.events.find(each => each.id === app.event);
    if (event) {
      g.fillStyle = "rgba(32,100,192,.08)";
      g.fillRect(this.x(event.start), HEAD, Math.max(2, this.x(event.stop) - this.x(event.start)), height - HEAD - FOOT);
    }
    const first = lowerBound(sample, app.view.start), last = lowerBound(sample, stop);
    if (last - first > 4000) return;
    for (let at = first; at < last; at++) {
      if (at !== app.beat && !app.marked.has(at)) continue;
      const x = this.x(sample[at]), half = Math.max(3, 0.12 * app.info.rate_hz / app.view.spp);
      g.fillStyle = at === app.beat ? "rgba(32,100,192,.2)" : "rgba(32,100,192,.12)";
      g.fillRect(x - half, BARS + 2, 2 * half, height - FOOT - BARS - 2);
      g.fillStyle = colour(String.fromCharCode(symbol[at]));
    }
  }

  // The events that are seen, each with its row: the first one that is free, the longest first. Short ones without room
  // are left out, so that a day is drawn as fast as a minute.
  visibleEvents(stop) {
    const { view, events, event } = this.app, width = Math.ceil((stop - view.start) / view.spp);
    const taken = Array.from({ length: NUM_ROWS }, () => new Uint8Array(width + 1)), placed = [];
    const seen = events.filter(each => each.start < stop && each.stop > view.start && (each.state !== "refused" || each.id === event));
    seen.sort((a, b) => (b.id === event) - (a.id === event) || b.stop - b.start - (a.stop - a.start));
    for (const each of seen) {
      const first = Math.max(0, Math.floor(this.x(each.start))), last = Math.min(width, Math.ceil(this.x(each.stop)) + 2);
      const free = taken.findIndex(row => { for (let at = first; at < last; at++) if (row[at]) return false; return true; });
      if (free < 0 && last - first < 6) continue;
      const row = free < 0 ? NUM_ROWS - 1 : free;
      taken[row].fill(1, first, last);
      placed.push({ event: each, row });
    }
    return placed;
  }

  drawEvents(g, stop) {
    g.font = "600 11px system-ui";
    this.shown = this.visibleEvents(stop);
    for (const { event, row } of this.shown) {
      const x = this.x(event.start), w = Math.max(2, this.x(event.stop) - x), left = Math.max(0, x), y = row * ROW;
      const isChosen = event.id === this.app.event, text = event.kind + (event.state === "automatic" ? "" : `, ${event.state}`);
      g.fillStyle = eventColour(event.kind); g.globalAlpha = event.state === "refused" ? 0.35 : isChosen ? 1 : 0.8;
      g.fillRect(x, y, w, ROW - 1); g.globalAlpha = 1;
      if (x + w - left > g.measureText(text).width + 10) { g.fillStyle = "#fff"; g.fillText(text, left + 6, y + 10); }
      if (isChosen) { g.fillStyle = "#16202a"; g.fillRect(x - 2, y - 1, 4, ROW + 2); g.fillRect(x + w - 2, y - 1, 4, ROW + 2); }
    }
  }

  async loadWaves() {
    const { app } = this, { info, view } = app, stop = view.start + app.stripWidth() * view.spp;
    if ((stop - view.start) / info.rate_hz > MOST_WAVES_S) { this.waves = []; return app.say(`waves are shown of ${MOST_WAVES_S} s at most: zoom in`); }
    clearTimeout(this.waiting);
    this.waiting = setTimeout(async () => {
      try {
        const { waves } = await app.wire.ask("waves", { start: Math.round(view.start), stop: Math.min(info.num_samples, Math.round(stop)) });
        this.waves = Array.from({ length: waves.length / 9 }, (_, beat) => [0, 1, 2].map(kind => waves.slice(9 * beat + 3 * kind, 9 * beat + 3 * kind + 3)));
        document.documentElement.dataset.waves = this.waves.length;
        app.draw();
      } catch (error) { app.say(error.message, true); }
    }, 150);
  }

  drawWaves(g, stop, height) {
    if (!this.app.showsWaves) return;
    for (const waves of this.waves) {
      waves.forEach(([on, , off], kind) => {
        if (on < 0 || off < 0 || off < this.app.view.start || on > stop) return;
        g.fillStyle = `${WAVES[kind]}26`;
        g.fillRect(this.x(on), HEAD, this.x(off) - this.x(on), height - HEAD - FOOT);
        g.fillStyle = WAVES[kind]; g.font = "10px system-ui";
        const text = ["P", "QRS", "T"][kind];
        if (this.x(off) - this.x(on) > g.measureText(text).width - 8) g.fillText(text, this.x(on), height - FOOT - 3 - (kind === 1 ? 10 : 0));
      });
    }
  }

  drawCaliper(g, height) {
    if (!this.caliper) return;
    const { a, b, top, bottom } = this.caliper, x0 = this.x(Math.min(a, b)), x1 = this.x(Math.max(a, b));
    const ms = Math.abs(b - a) / this.app.info.rate_hz * 1000, mv = Math.abs(bottom - top) / this.pxPerMv();
    g.strokeStyle = "#0a7d6b"; g.fillStyle = "rgba(10,125,107,.1)"; g.lineWidth = 1.5;
    g.fillRect(x0, HEAD, x1 - x0, height - HEAD - FOOT);
    g.beginPath();
    for (const x of [x0, x1]) { g.moveTo(x, HEAD); g.lineTo(x, height - FOOT); }
    if (bottom !== top) for (const y of [top, bottom]) { g.moveTo(x0, y); g.lineTo(x1, y); }
    g.stroke();
    const text = this.caliperText = `${ms.toFixed(0)} ms` + (ms > 0 ? `, ${(60000 / ms).toFixed(0)}/min` : "") + (mv ? `, ${mv.toFixed(2)} mV` : "");
    g.font = "600 13px system-ui";
    const w = g.measureText(text).width + 12, x = Math.max(2, Math.min((x0 + x1 - w) / 2, this.canvas.clientWidth - w - 2));
    g.fillStyle = "#0a7d6b"; g.fillRect(x, HEAD + 3, w, 20);
    g.fillStyle = "#fff"; g.fillText(text, x + 6, HEAD + 17);
  }

  // The edge of the chosen event under the pointer: "start", "stop" or null.
  edge(event) {
    const { app } = this, chosen = app.events.find(each => each.id === app.event);
    const y = event.clientY - this.canvas.getBoundingClientRect().top, sample = this.sample(event);
    if (!chosen || y > BARS + 4) return null;
    const near = edge => Math.abs(this.x(chosen[edge]) - this.x(sample)) <= EDGE_PX;
    return near("start") ? "start" : near("stop") ? "stop" : null;
  }

  down(event) {
    const { app } = this, y = event.clientY - this.canvas.getBoundingClientRect().top, sample = this.sample(event);
    this.canvas.focus({ preventScroll: true });
    this.canvas.setPointerCapture(event.pointerId);
    this.pointers.set(event.pointerId, event.clientX);
    if (this.pointers.size === 2) { this.action = { kind: "pinch", gap: this.gap(), spp: app.view.spp, at: sample }; return; }
    const edge = this.edge(event);
    if (edge) this.action = { kind: "edge", edge, event: { ...app.events.find(each => each.id === app.event) } };
    else if (app.measures) { this.action = { kind: "caliper" }; this.caliper = { a: sample, b: sample, top: y, bottom: y }; }
    else this.action = { kind: "pan", from: event.clientX, start: app.view.start, moved: false };
  }

  gap() { const [a, b] = [...this.pointers.values()]; return Math.max(10, Math.abs(a - b)); }

  move(event) {
    const { app, action } = this;
    if (!action) { this.canvas.style.cursor = this.edge(event) ? "ew-resize" : app.measures ? "crosshair" : "grab"; return; }
    this.pointers.set(event.pointerId, event.clientX);
    const sample = this.sample(event);
    if (action.kind === "pinch" && this.pointers.size === 2) app.zoom(action.spp * action.gap / this.gap() / app.view.spp, action.at);
    else if (action.kind === "edge") {
      const chosen = app.events.find(each => each.id === app.event), one = Math.round(sample);
      if (action.edge === "start") chosen.start = Math.max(0, Math.min(one, chosen.stop - 1));
      else chosen.stop = Math.min(app.info.num_samples, Math.max(one, chosen.start + 1));
      app.draw();
    } else if (action.kind === "caliper") {
      Object.assign(this.caliper, { b: sample, bottom: event.clientY - this.canvas.getBoundingClientRect().top });
      app.draw();
    } else if (action.kind === "pan") {
      action.moved ||= Math.abs(event.clientX - action.from) > 4;
      if (action.moved) app.setView(action.start - (event.clientX - action.from) * app.view.spp);
    }
  }

  up(event, cancelled) {
    const { app, action } = this;
    this.pointers.delete(event.pointerId);
    if (!action || this.pointers.size) return;
    this.action = null;
    if (action.kind === "edge") {
      const { id, start, stop } = app.events.find(each => each.id === app.event);
      if (start !== action.event.start || stop !== action.event.stop) app.change({ do: "event", id, state: "changed", start, stop });
    } else if (action.kind === "pan" && !action.moved && !cancelled) this.click(event);
  }

  click(event) {
    const { app } = this, y = event.clientY - this.canvas.getBoundingClientRect().top, sample = this.sample(event);
    if (y <= BARS) {
      const margin = 4 * app.view.spp, row = Math.floor(y / ROW);
      const hit = (this.shown ?? []).find(each => each.row === row && each.event.start - margin <= sample && sample <= each.event.stop + margin);
      if (hit) { app.chooseEvent(hit.event.id); return; }
    }
    const beat = nearest(app.beats.sample, sample);
    const isNear = beat >= 0 && Math.abs(app.beats.sample[beat] - sample) <= NEAR_PX * app.view.spp;
    if (isNear && event.shiftKey && app.beat >= 0) app.markTo(beat);
    else if (isNear && (event.ctrlKey || event.metaKey)) app.toggleMark(beat);
    else if (isNear) app.chooseBeat(beat, { moves: false });
    else app.setCursor(sample);
  }
}
