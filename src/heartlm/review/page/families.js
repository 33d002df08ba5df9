// Families of beats of one shape: the mean, its spread, the count and examples; named, split and merged as a whole.

import { colour, element, fitted, nearest } from "./shared.js";

export class Families {
  constructor(app, box) {
    Object.assign(this, { app, box, chosen: new Set(), families: [], cards: new Map(), key: "" });
  }

  async load() {
    const answer = await this.app.wire.ask("families");
    this.families = answer.families;
    this.mean = answer.mean; this.spread = answer.spread;
    const known = new Set(this.families.map(each => each.id));
    this.chosen = new Set([...this.chosen].filter(id => known.has(id)));
    this.show();
  }

  show() {
    this.box.replaceChildren(...this.families.map((family, place) => this.card(family, place)));
    this.mark();
    if (!this.families.length) this.box.append(element("p", "quiet", "No beats, so no families."));
  }

  card(family, place) {
    const card = element("div", "card"), button = element("button", "pick"), canvas = element("canvas");
    const head = element("span", "head"), name = element("b", "", family.name);
    name.style.color = colour(family.name);
    head.append(name, element("span", "", `${family.count.toLocaleString("en")} beats`));
    head.append(element("span", "quiet", family.reviewed ? "named" : `doubt ${(100 * family.doubt).toFixed(family.doubt < 0.1 ? 1 : 0)} %`));
    button.append(head, canvas);
    button.dataset.family = family.id;
    button.setAttribute("aria-label", `family of ${family.count} beats named ${family.name}`);
    button.onclick = event => this.choose(family.id, event.shiftKey || event.ctrlKey || event.metaKey);
    const examples = element("div", "examples");
    family.examples.slice(0, 6).forEach((sample, number) => {
      const example = element("button", "", String(number + 1));
      example.title = "go to this example";
      example.onclick = () => this.app.chooseBeat(nearest(this.app.beats.sample, sample));
      examples.append(example);
    });
    card.append(button, examples);
    this.cards.set(family.id, button);
    requestAnimationFrame(() => this.drawMean(canvas, place, family.name));
    return card;
  }

  drawMean(canvas, place, name) {
    const { g, width, height } = fitted(canvas), [, numLeads, numSamples] = this.mean.shape, { leads } = this.app.info;
    const shown = Math.min(numLeads, width > 260 ? 3 : 2), w = width / shown;
    const value = (array, lead, at) => array[(place * numLeads + lead) * numSamples + at];
    let most = 0.5;
    for (let lead = 0; lead < shown; lead++) for (let at = 0; at < numSamples; at++) most = Math.max(most, Math.abs(value(this.mean, lead, at)));
    const y = v => height / 2 + 4 - v / most * (height / 2 - 10), x = (lead, at) => lead * w + 3 + at / (numSamples - 1) * (w - 6);
    for (let lead = 0; lead < shown; lead++) {
      g.fillStyle = `${colour(name)}2e`; g.beginPath();
      for (let at = 0; at < numSamples; at++) g.lineTo(x(lead, at), y(value(this.mean, lead, at) + value(this.spread, lead, at)));
      for (let at = numSamples; at--;) g.lineTo(x(lead, at), y(value(this.mean, lead, at) - value(this.spread, lead, at)));
      g.fill();
      g.strokeStyle = colour(name); g.lineWidth = 1.6; g.beginPath();
      for (let at = 0; at < numSamples; at++) g.lineTo(x(lead, at), y(value(this.mean, lead, at)));
      g.stroke();
      g.fillStyle = "#5b6874"; g.font = "10px system-ui"; g.fillText(leads[this.app.familyLeads[lead]] ?? "", lead * w + 4, 10);
    }
  }

  choose(id, adds = false) {
    if (!adds) { const only = this.chosen.has(id) && this.chosen.size === 1; this.chosen.clear(); if (!only) this.chosen.add(id); }
    else if (!this.chosen.delete(id)) this.chosen.add(id);
    this.app.marked.clear();
    this.mark();
    const family = this.families.find(each => each.id === id);
    if (this.chosen.has(id) && family?.examples.length) this.app.goto(family.examples[0], { select: false });
    this.app.draw();
  }

  step(by) {
    const at = this.families.findIndex(each => this.chosen.has(each.id));
    const next = this.families[at < 0 ? 0 : Math.max(0, Math.min(this.families.length - 1, at + by))];
    if (!next) return;
    this.chosen.clear();
    this.choose(next.id);
    this.cards.get(next.id)?.scrollIntoView({ block: "nearest" });
  }

  mark() {
    for (const [id, card] of this.cards) card.setAttribute("aria-pressed", this.chosen.has(id));
  }
}
