// The beats of a question, side by side: the wrong ones are picked and named, the others are right.

import { colour, element, fitted, nearest } from "./shared.js";

const BEFORE_S = 0.5, AFTER_S = 0.6;

export class Gallery {
  constructor(app, box) { Object.assign(this, { app, box, samples: [], symbol: "" }); }

  open({ beats, symbol }) {
    Object.assign(this, { samples: beats, symbol });
    this.box.hidden = false;
    this.box.querySelector(".tools span").textContent = `Pick the beats that are not ${symbol} and name them; then the others are right.`;
    this.show();
  }

  close() { this.samples = []; this.box.hidden = true; }

  // The beats that are still as the question had them.
  others() {
    const { sample, symbol } = this.app.beats;
    return this.samples.map(each => nearest(sample, each)).filter(at => at >= 0 && String.fromCharCode(symbol[at]) === this.symbol && !this.app.marked.has(at));
  }

  show() {
    const { app } = this, { sample, symbol } = app.beats;
    this.box.querySelector(".beats").replaceChildren(...this.samples.map(each => {
      const at = nearest(sample, each), name = String.fromCharCode(symbol[at]), button = element("button"), canvas = element("canvas");
      button.append(canvas, element("b", "", name));
      button.lastChild.style.color = colour(name);
      button.setAttribute("aria-pressed", app.marked.has(at));
      button.setAttribute("aria-label", `beat ${name}`);
      button.onclick = () => {
        app.unchoose();
        if (!app.marked.delete(at)) app.marked.add(at);
        button.setAttribute("aria-pressed", app.marked.has(at));
        app.goto(sample[at]);
      };
      requestAnimationFrame(() => this.drawBeat(canvas, each, name));
      return button;
    }));
  }

  async drawBeat(canvas, sample, name) {
    const { signal, info, disclosed } = this.app, start = sample - BEFORE_S * info.rate_hz, stop = sample + AFTER_S * info.rate_hz;
    await signal.need(0, start, stop, [disclosed])?.catch(() => {});
    const { g, width, height } = fitted(canvas), middle = signal.middle(disclosed, 0, start, stop);
    const scale = info.unit_mv * height / 4;
    g.strokeStyle = colour(name); g.lineWidth = 1.2; g.beginPath();
    signal.path(g, disclosed, 0, start, stop, s => (s - start) / (stop - start) * width, v => height * 0.6 - (v - middle) * scale);
    g.stroke();
  }
}

// The question in words.
export function asked({ kind, count, symbol, expected }) {
  const wrong = expected < 0.5 ? "" : `, of which about ${Math.round(expected).toLocaleString("en")} may be wrong`;
  const beats = count === 1 ? "is this beat" : `are these ${count.toLocaleString("en")} beats`;
  return `Next: ${beats} ${kind === "family" && count > 1 ? "of one family " : ""}${symbol}${wrong}?`;
}
