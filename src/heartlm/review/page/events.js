// The list of events: confirm, refuse, change, add. Rows are made only where they are seen.

import { clock, duration, elapsed, element, eventColour, STATES } from "./shared.js";

const ROW = 34;

export class Events {
  constructor(app, box, filter) {
    Object.assign(this, { app, box, filter, space: element("div", "space") });
    box.append(this.space);
    box.addEventListener("scroll", () => this.show());
    filter.addEventListener("change", () => { box.scrollTop = 0; this.show(); });
  }

  load() {  // kinds to choose from
    const counts = new Map();
    for (const { kind } of this.app.events) counts.set(kind, (counts.get(kind) ?? 0) + 1);
    const kept = this.filter.value;
    const options = [["", `all kinds, ${this.app.events.length.toLocaleString("en")}`], ["automatic", "not yet judged"],
      ...[...counts].map(([kind, count]) => [kind, `${kind}, ${count.toLocaleString("en")}`])];
    this.filter.replaceChildren(...options.map(([value, text]) => { const o = element("option", "", text); o.value = value; return o; }));
    this.filter.value = options.some(([value]) => value === kept) ? kept : "";
    this.show();
  }

  rows() {
    const wanted = this.filter.value;
    return this.app.events.filter(each => !wanted || each.kind === wanted || each.state === wanted);
  }

  show() {
    const rows = this.rows(), { box } = this;
    this.space.style.height = `${rows.length * ROW}px`;
    const first = Math.max(0, Math.floor(box.scrollTop / ROW) - 4), last = Math.min(rows.length, first + Math.ceil(box.clientHeight / ROW) + 8);
    const focused = document.activeElement?.closest?.(".event")?.dataset.id;
    this.space.replaceChildren(...rows.slice(first, last).map((event, place) => this.row(event, first + place)));
    if (focused) this.space.querySelector(`[data-id="${CSS.escape(focused)}"] .name`)?.focus({ preventScroll: true });
    if (!rows.length) this.space.append(element("p", "quiet", "No events of this kind."));
  }

  row(event, place) {
    const { app } = this, rate = app.info.rate_hz, row = element("div", `event ${event.state}`), name = element("button", "name");
    row.style.top = `${place * ROW}px`; row.dataset.id = event.id;
    row.classList.toggle("chosen", event.id === app.event);
    const dot = element("i"); dot.style.background = eventColour(event.kind);
    const rated = event.rate_bpm === null ? "" : `${Math.round(event.rate_bpm)}/min`;
    name.append(dot, element("b", "", event.kind), element("span", "", clock(app.info, event.start / rate) || elapsed(event.start / rate)),
      element("span", "", duration((event.stop - event.start) / rate)), element("span", "wide", rated),
      element("span", "wide", event.num_beats ? `${event.num_beats.toLocaleString("en")} beats` : ""), element("span", "state", STATES[event.state] + (event.disputed ? ", disputed" : "")));
    name.onclick = () => app.chooseEvent(event.id);
    const confirm = element("button", "small", "Confirm"), refuse = element("button", "small", "Refuse");
    confirm.onclick = () => app.change({ do: "event", id: event.id, state: "confirmed" });
    refuse.onclick = () => app.change({ do: "event", id: event.id, state: "refused" });
    confirm.disabled = event.state === "confirmed"; refuse.disabled = event.state === "refused";
    row.append(name, confirm, refuse);
    return row;
  }

  step(by) {
    const rows = this.rows(), { app } = this;
    if (!rows.length) return;
    const at = rows.findIndex(each => each.id === app.event);
    let next = at + by;
    if (at < 0) {
      next = rows.findIndex(each => each.start > app.cursor);
      if (next < 0) next = rows.length;
      if (by < 0) next = rows.findLastIndex(each => each.start < app.cursor);
    }
    app.chooseEvent(rows[Math.max(0, Math.min(rows.length - 1, next))].id);
  }

  reveal(id) {
    const place = this.rows().findIndex(each => each.id === id), { box } = this;
    if (place < 0) return;
    if (place * ROW < box.scrollTop || (place + 1) * ROW > box.scrollTop + box.clientHeight) box.scrollTop = place * ROW - box.clientHeight / 2;
    this.show();
  }
}
