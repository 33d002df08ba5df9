// The page of a review: its state, what the keys do to it, and the views that draw it.

import { Disclosure } from "./disclosure.js";
import { Events } from "./events.js";
import { Families } from "./families.js";
import { asked, Gallery } from "./gallery.js";
import { commands, listen, shownKey, SYMBOLS } from "./keys.js";
import { Overview } from "./overview.js";
import { clock, colour, elapsed, element, lowerBound, MM, NAMES, nearest } from "./shared.js";
import { Signal } from "./signal.js";
import { Strip } from "./strip.js";
import { Wire } from "./wire.js";

const $ = id => document.getElementById(id), GAINS = [2.5, 5, 10, 20, 40], MOST_OF_EVENT = 100, TABS = ["families", "events", "disclosure"];

class App {
  constructor() {
    Object.assign(this, { info: null, beats: null, events: [], revision: -1, loaded: 0, question: null, view: { start: 0, spp: 1 },
      cursor: 0, beat: -1, marked: new Set(), event: null, leads: [], gain: 10, measures: false, showsWaves: false, tab: "families" });
    this.times = { draw: [], change: [] };  // milliseconds until all was drawn, for measurements
    this.strip = new Strip(this, $("strip"));
    this.overview = new Overview(this, $("overview"));
    this.disclosure = new Disclosure(this, document.querySelector(".lines"));
    this.eventList = new Events(this, document.querySelector("#events .rows"), $("filter"));
    this.families = new Families(this, document.querySelector(".cards"));
    this.gallery = new Gallery(this, $("gallery"));
    this.wire = new Wire(message => this.pushed(message), isOpen => this.connected(isOpen));
    this.buttons();
    addEventListener("resize", () => { if (this.info) { this.setView(this.view.start); this.eventList.show(); this.families.show(); } });
    addEventListener("hashchange", () => this.openHash());
  }

  // Connection and recordings

  async connected(isOpen) {
    if (!isOpen) { this.say("no connection to the server: what was done is kept; the page connects again by itself", true); return; }
    this.say("");
    try { await (this.info ? this.open(this.info.name) : this.openHash()); } catch (error) { this.say(error.message, true); }
  }

  async openHash() {
    const named = decodeURIComponent(location.hash.slice(1));
    const { title, recordings } = await this.wire.ask("list");
    $("back").hidden = recordings.length < 2;
    if (named && recordings.some(([name]) => name === named)) return this.open(named);
    if (recordings.length === 1) return this.open(recordings[0][0]);
    this.info = null;
    document.body.dataset.view = "list";
    $("review").hidden = true; $("list").hidden = false;
    $("list").querySelector("h2").textContent = title;
    $("list").querySelector(".rows").replaceChildren(...recordings.map(([name, about]) => {
      const row = element("button");
      row.append(element("b", "", name), element("span", "quiet", about || "not analysed yet"));
      row.onclick = () => { location.hash = encodeURIComponent(name); };
      return row;
    }));
  }

  async open(name) {
    this.say(`${name}: is opened; a recording that was not analysed yet is analysed first, a day in about a minute`);
    const isSame = this.info?.name === name;
    const info = await this.wire.ask("open", { name });
    const places = isSame ? [this.view, this.leads] : null;
    this.info = info;
    this.signal = new Signal(this.wire, info);
    this.signal.onMore = () => this.draw();
    this.familyLeads = info.family_leads;
    document.title = `${info.record} heartlm review`;
    $("list").hidden = true; $("review").hidden = false;
    $("record").textContent = info.record;
    this.leads = places?.[1] ?? (info.ecg.length ? info.ecg : info.leads.map((_, lead) => lead)).slice().sort((a, b) => a - b);
    if (!isSame) {
      Object.assign(this, { cursor: 0, beat: -1, event: null, disclosed: info.ecg[0] ?? 0 });
      this.marked.clear(); this.gallery.close(); this.strip.caliper = null; this.strip.waves = [];
      if (this.leads.length > 6) this.setGainTo(5);
      this.chooseLeads();
      for (const button of document.querySelectorAll("[data-symbol]")) button.hidden = !`${info.symbols}x`.includes(button.dataset.symbol);
      $("kind").replaceChildren(...Object.keys(info.kinds).map(kind => element("option", "", kind)));
    }
    this.strip.fit();
    await this.refresh();
    if (!isSame) this.paperSpeed();
    this.show(this.tab);
    this.say("");
    document.body.dataset.view = "review";
  }

  async refresh() {  // all that depends on corrections
    const [beats, { events, revision }] = await Promise.all([this.wire.ask("beats"), this.wire.ask("events")]);
    const at = this.beats && this.beat >= 0 ? this.beats.sample[this.beat] : null;
    Object.assign(this, { beats, events, revision });
    this.loaded++;
    this.marked.clear();
    if (at !== null) this.beat = this.indexOf(at);
    if (this.event && !events.some(each => each.id === this.event)) this.event = null;
    $("counts").textContent = this.overview.counts();
    this.eventList.load();
    if (!this.gallery.box.hidden) this.gallery.show();
    this.draw();
    document.documentElement.dataset.revision = revision;
    this.settled = this.background();
  }

  async background() {  // what may come a little later
    const { revision } = this;
    try {
      if (this.tab === "families") await this.families.load(); else this.families.isStale = true;
      const { question } = await this.wire.ask("question");
      if (revision !== this.revision) return;  // a later correction asks again
      this.question = question;
      $("question").hidden = !question;
      if (question) $("question").querySelector("span").textContent = asked(question);
    } catch (error) { this.say(error.message, true); }
    document.documentElement.dataset.settled = revision;
    this.times.settled ??= performance.now();
  }

  pushed({ revision, name }) {
    if (!this.info || name !== this.info.name || revision === this.revision) return;
    this.refresh().then(() => this.say("changed in another window"), error => this.say(error.message, true));
  }

  // Corrections

  async change(change) {
    const begin = performance.now();
    try {
      const { text } = await this.wire.ask("change", { change, revision: this.revision });
      await this.refresh();
      this.say(text);
      this.times.change.push(performance.now() - begin);
      return true;
    } catch (error) {
      this.say(error.message, true);
      if (this.wire.isOpen) await this.refresh().catch(() => {});
      return false;
    }
  }

  eventBeats() {  // the beats of the chosen event, unless it is a long one
    const event = this.events.find(each => each.id === this.event);
    if (!event) return [];
    const first = lowerBound(this.beats.sample, event.start), stop = lowerBound(this.beats.sample, event.stop);
    return stop - first <= MOST_OF_EVENT ? Array.from({ length: stop - first }, (_, at) => first + at) : [];
  }

  target() {  // what a name is for: marked families, else marked beats, the beat at the cursor, or those of the event
    if (this.families.chosen.size) return [...this.families.chosen].map(family => ({ family }));
    const beats = this.marked.size ? [...this.marked].sort((a, b) => a - b) : this.beat >= 0 ? [this.beat] : this.eventBeats();
    return beats.length ? [{ beats: beats.map(at => this.beats.sample[at]) }] : [];
  }

  async each(make) {
    const targets = this.target();
    if (!targets.length) this.say("choose a beat or a family first", true);
    for (const target of targets) if (!await this.change(make(target))) return;
  }

  name(symbol) { return this.each(target => ({ do: "name", symbol, ...target })); }

  remove() { return this.each(target => ({ do: "delete", ...target })); }

  async insert() {
    const sample = Math.round(this.cursor);
    if (await this.change({ do: "insert", sample, symbol: "N" })) this.chooseBeat(nearest(this.beats.sample, sample), { moves: false });
  }

  split() {
    const [family] = this.families.chosen;
    return family === undefined ? this.say("choose a family first", true) : this.change({ do: "split", family });
  }

  merge() {
    const families = [...this.families.chosen];
    return families.length < 2 ? this.say("choose two families or more, with Shift or Ctrl", true) : this.change({ do: "merge", families });
  }

  judge(state) { return this.event ? this.change({ do: "event", id: this.event, state }) : this.say("choose an event first", true); }

  moveEdge(edge) {
    const event = this.events.find(each => each.id === this.event);
    if (!event) return this.say("choose an event first", true);
    const { start, stop } = { ...event, [edge]: Math.round(this.cursor) };
    return start < stop ? this.change({ do: "event", id: event.id, state: "changed", start, stop }) : this.say("an event ends after its begin", true);
  }

  addEvent() {
    const { caliper } = this.strip, marked = [...this.marked].sort((a, b) => a - b), { sample } = this.beats;
    let span = caliper && [Math.min(caliper.a, caliper.b), Math.max(caliper.a, caliper.b)];
    if (marked.length) span = [sample[marked[0]], sample[marked.at(-1)] + 1];
    if (!span || span[1] - span[0] < 1) return this.say("mark beats with Shift and arrows, or draw calipers, where the event is", true);
    this.show("events");
    return this.change({ do: "add", kind: $("kind").value, start: Math.max(0, Math.round(span[0])), stop: Math.min(this.info.num_samples, Math.round(span[1])) });
  }

  // Places

  stripWidth() { return Math.max(40, $("strip").clientWidth); }

  setView(start, spp = this.view.spp) {
    this.begun ??= performance.now();
    const { num_samples, rate_hz } = this.info, width = this.stripWidth();
    spp = Math.max(rate_hz / 4000, Math.min(spp, Math.max(num_samples, rate_hz) / width));
    this.view = { spp, start: Math.max(0, Math.min(start, num_samples - width * spp)) };
    this.strip.stale = true;
    this.draw();
  }

  zoom(factor, at = this.cursor) {
    const { start, spp } = this.view, width = this.stripWidth();
    const fixed = at >= start && at <= start + width * spp ? at : start + width * spp / 2, place = (fixed - start) / spp;
    const wanted = Math.max(this.info.rate_hz / 4000, Math.min(spp * factor, this.info.num_samples / width));
    this.setView(fixed - place * wanted, wanted);
  }

  paperSpeed() { const width = this.stripWidth(), spp = this.info.rate_hz / (25 * MM); this.setView(this.cursor - width * spp / 2, spp); }

  page(by) { const width = this.stripWidth() * this.view.spp; this.goto(this.view.start + width * (0.5 + by * 0.9), { select: false }); }

  goto(sample, { select = true } = {}) {
    this.cursor = Math.max(0, Math.min(this.info.num_samples - 1, Math.round(sample)));
    this.beat = select ? this.indexOf(this.cursor) : -1;
    this.setView(this.cursor - this.stripWidth() * this.view.spp / 2);
    this.disclosure.follow();
  }

  setCursor(sample, follows = false) {
    const { caliper } = this.strip;
    this.cursor = Math.max(0, Math.min(this.info.num_samples - 1, sample));
    this.beat = this.indexOf(Math.round(this.cursor));
    this.unchoose();
    if (caliper && this.measures) caliper.b = this.cursor;
    const { start, spp } = this.view, width = this.stripWidth() * spp;
    if (follows && (this.cursor < start || this.cursor > start + width)) this.setView(this.cursor - width / 2);
    this.draw();
  }

  indexOf(sample) { const at = lowerBound(this.beats.sample, sample); return this.beats.sample[at] === sample ? at : -1; }

  chooseBeat(at, { moves = true } = {}) {
    if (at < 0) return;
    this.unchoose();
    this.marked.clear();
    this.beat = at;
    this.cursor = this.beats.sample[at];
    const { start, spp } = this.view, width = this.stripWidth() * spp;
    if (moves && (this.cursor < start + 0.1 * width || this.cursor > start + 0.9 * width)) this.goto(this.cursor); else this.draw();
    if (this.strip.caliper && this.measures) this.strip.caliper.b = this.cursor;
  }

  stepBeat(by, marks) {
    const { sample } = this.beats, from = this.beat;
    const next = from >= 0 ? from + by : by > 0 ? lowerBound(sample, this.cursor) : lowerBound(sample, this.cursor) - 1;
    if (next < 0 || next >= sample.length) return;
    const marked = new Set(this.marked);
    this.chooseBeat(next);
    if (marks) { for (const each of [...marked, from, next]) if (each >= 0) this.marked.add(each); this.draw(); }
  }

  markTo(at) { for (let each = Math.min(at, this.beat); each <= Math.max(at, this.beat); each++) this.marked.add(each); this.draw(); }

  toggleMark(at) { if (this.beat >= 0) this.marked.add(this.beat); if (!this.marked.delete(at)) this.marked.add(at); this.draw(); }

  unchoose() { if (this.families.chosen.size) { this.families.chosen.clear(); this.families.mark(); } }

  unmark() { this.marked.clear(); this.event = null; this.unchoose(); this.eventList.show(); this.draw(); }

  chooseEvent(id) {
    this.event = id;
    const event = this.events.find(each => each.id === id), width = this.stripWidth() * this.view.spp;
    this.unchoose();
    this.show("events");
    const isLong = event.stop - event.start > width;
    this.goto(isLong ? event.start + 0.4 * width : (event.start + event.stop) / 2, { select: false });
    this.cursor = event.start;
    this.eventList.reveal(id);
    this.draw();
  }

  async nextDoubtful() {
    try {
      const { sample } = await this.wire.ask("doubtful", { after: Math.round(this.cursor) });
      if (sample === null) this.say("no doubtful beat after this place"); else this.chooseBeat(this.indexOf(sample));
    } catch (error) { this.say(error.message, true); }
  }

  showQuestion() {
    if (!this.question) return this.say("no question is left");
    const { kind, family, beat } = this.question;
    this.show("families");
    this.unchoose();
    this.marked.clear();
    this.gallery.open(this.question);
    if (kind === "family") this.families.choose(family); else this.goto(beat, { select: false });
    $("gallery").scrollIntoView({ block: "nearest" });
  }

  async othersAreRight() {  // of the question: the next one is shown
    const others = this.gallery.others();
    if (!this.gallery.samples.length) return this.showQuestion();
    if (others.length) {
      const done = await this.change({ do: "name", beats: others.map(at => this.beats.sample[at]), symbol: this.gallery.symbol });
      if (!done) return;
      await this.settled;
    }
    this.gallery.close();
    if (this.question) this.showQuestion();
  }

  // Appearance

  draw() {
    this.begun ??= performance.now();
    this.frame ??= requestAnimationFrame(() => { this.frame = null; this.drawNow(); });
  }

  drawNow() {
    if (!this.info || !this.beats) return;
    const begun = this.begun, waits = [this.strip.draw()];
    this.overview.draw();
    if (this.tab === "disclosure") waits.push(this.disclosure.draw());
    this.describe();
    const missing = waits.filter(Boolean);
    if (missing.length) Promise.all(missing).then(() => this.draw(), error => this.say(error.message, true));
    else { this.times.first ??= performance.now(); this.times.draw.push(performance.now() - begun); this.begun = null; }
    if (this.showsWaves && this.strip.stale) this.strip.loadWaves();
    this.strip.stale = false;
  }

  describe() {
    const { info, view } = this, seconds = this.cursor / info.rate_hz, mmPerS = info.rate_hz / view.spp / MM;
    const at = clock(info, seconds);
    $("where").textContent = `${elapsed(seconds, 2)}${at ? `, ${at}` : ""}; ${mmPerS >= 1 ? mmPerS.toFixed(mmPerS < 10 ? 1 : 0) : mmPerS.toPrecision(1)} mm/s`;
    const families = this.families.chosen.size, { beats } = this;
    let text = "Choose a beat, or a family";
    if (families) text = families === 1 ? "One family is chosen" : `${families} families are chosen`;
    else if (this.marked.size) text = `${this.marked.size} beats are marked`;
    else if (this.beat >= 0) {
      const name = String.fromCharCode(beats.symbol[this.beat]), sure = Math.round(beats.probability[this.beat] / 2.55);
      const source = ["", ", follows a correction", ", named by the reviewer"][beats.source[this.beat]];
      text = `${NAMES[name] ?? name} beat, ${sure} %${source}`;
    }
    else if (this.event && this.eventBeats().length) text = `Choose a beat, or name the ${this.eventBeats().length} beats of the event`;
    $("selected").textContent = text;
  }

  show(tab) {
    this.tab = tab;
    for (const each of TABS) {
      $(each).hidden = each !== tab;
      $(`tab-${each}`).setAttribute("aria-selected", each === tab);
      $(`tab-${each}`).tabIndex = each === tab ? 0 : -1;
    }
    if (tab === "families" && this.families.isStale) { this.families.isStale = false; this.families.load().catch(error => this.say(error.message, true)); }
    if (tab === "events") this.eventList.show();
    if (tab === "disclosure") this.disclosure.follow();
    this.draw();
  }

  chooseLeads() {
    const { info } = this;
    $("leads").querySelector("div").replaceChildren(...info.leads.map((name, lead) => {
      const label = element("label"), box = element("input");
      box.type = "checkbox"; box.checked = this.leads.includes(lead);
      box.onchange = () => {
        this.leads = info.leads.map((_, each) => each).filter(each => each === lead ? box.checked : this.leads.includes(each));
        this.strip.fit(); this.draw();
      };
      label.append(box, ` ${name}`);
      return label;
    }));
    $("lead").replaceChildren(...info.leads.map((name, lead) => { const o = element("option", "", name); o.value = lead; return o; }));
    $("lead").value = this.disclosed;
  }

  setGain(by) { this.setGainTo(GAINS[Math.max(0, Math.min(GAINS.length - 1, GAINS.indexOf(this.gain) + by))]); this.draw(); }
  setGainTo(gain) { this.gain = gain; $("gain").value = String(gain); }

  measure() {
    this.measures = !this.measures;
    $("measure").setAttribute("aria-pressed", this.measures);
    this.strip.caliper = this.measures ? { a: this.cursor, b: this.cursor, top: 0, bottom: 0 } : null;
    this.draw();
  }

  toggleWaves() {
    this.showsWaves = !this.showsWaves;
    $("waves").setAttribute("aria-pressed", this.showsWaves);
    if (this.showsWaves) this.strip.loadWaves();
    this.draw();
  }

  report() { open(`report/${encodeURIComponent(this.info.name)}${location.search}`, "_blank"); }

  help() { $("keys").showModal(); }

  say(text, isError = false) {
    $("status").textContent = text;
    $("status").classList.toggle("error", isError);
    clearTimeout(this.silence);
    if (text && this.wire?.isOpen && this.info) this.silence = setTimeout(() => { $("status").textContent = ""; }, isError ? 8000 : 4000);
  }

  buttons() {
    const on = (id, run) => { $(id).onclick = run; };
    on("undo", () => this.change({ do: "undo" })); on("redo", () => this.change({ do: "redo" }));
    on("report", () => this.report()); on("help", () => this.help());
    on("back", () => { location.hash = ""; });
    on("earlier", () => this.page(-1)); on("later", () => this.page(1));
    on("closer", () => this.zoom(1 / 1.5)); on("farther", () => this.zoom(1.5)); on("paper", () => this.paperSpeed());
    on("measure", () => this.measure()); on("waves", () => this.toggleWaves());
    on("split", () => this.split()); on("merge", () => this.merge()); on("add", () => this.addEvent()); on("go", () => this.showQuestion());
    on("right", () => this.othersAreRight());
    $("gain").onchange = () => { this.setGainTo(Number($("gain").value)); this.draw(); };
    $("lead").onchange = () => { this.disclosed = Number($("lead").value); this.draw(); };
    for (const tab of TABS) {
      on(`tab-${tab}`, () => this.show(tab));
      $(`tab-${tab}`).addEventListener("keydown", event => {
        const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (!by) return;
        const next = TABS[(TABS.indexOf(tab) + by + TABS.length) % TABS.length];
        this.show(next); $(`tab-${next}`).focus();
      });
    }
    for (const [key, symbol, text] of [...SYMBOLS, ["x", "x", "no beat"]]) {
      const button = element("button", "", `${symbol} ${text}`);
      button.style.borderBottomColor = symbol === "x" ? "#8a949e" : colour(symbol);
      button.title = `key ${key}`; button.dataset.symbol = symbol;
      button.onclick = () => symbol === "x" ? this.remove() : this.name(symbol);
      document.querySelector(".tools.name").append(button);
    }
    const table = commands(this);
    listen(table.map(([key, text, run]) => [key, text, event => { if (this.beats && !$("review").hidden) run(event); }]));
    $("keys").querySelector("dl").replaceChildren(...table.filter(([, text]) => text).flatMap(([key, text]) => {
      const term = element("dt");
      term.append(element("kbd", "", shownKey(key)));
      return [term, element("dd", "", text)];
    }));
  }
}

window.heartlm = new App();
