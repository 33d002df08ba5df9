// The keys: one table for what they do and for the list of them.

export const SYMBOLS = [
  ["n", "N", "normal"], ["s", "S", "supraventricular"], ["v", "V", "ventricular"], ["f", "F", "fusion"], ["q", "Q", "paced or unknown"],
];

export function commands(app) {
  const { strip, families, eventList: events } = app;
  const names = SYMBOLS.map(([key, symbol, text]) => [key, `name the marked beats, families or event ${text}, ${symbol}`, () => app.name(symbol)]);
  return [
    ...names,
    ["x", "no beat but an artefact: delete the marked beats or families", () => app.remove()],
    ["Delete", "", () => app.remove()],
    ["Backspace", "", () => app.remove()],
    ["i", "insert a beat at the cursor", () => app.insert()],
    ["ArrowRight", "next beat; with Shift, mark up to it", event => app.stepBeat(1, event.shiftKey)],
    ["ArrowLeft", "previous beat; with Shift, mark up to it", event => app.stepBeat(-1, event.shiftKey)],
    [".", "move the cursor 10 ms later", () => app.setCursor(app.cursor + 0.01 * app.info.rate_hz, true)],
    [",", "move the cursor 10 ms earlier", () => app.setCursor(app.cursor - 0.01 * app.info.rate_hz, true)],
    ["d", "next doubtful beat", () => app.nextDoubtful()],
    ["j", "show the beats of the question", () => app.showQuestion()],
    ["y", "the other beats of the question are right: the next question", () => app.othersAreRight()],
    ["e", "next event", () => events.step(1)],
    ["E", "previous event", () => events.step(-1)],
    ["c", "confirm the event", () => app.judge("confirmed")],
    ["z", "refuse the event", () => app.judge("refused")],
    ["[", "begin of the event to the cursor", () => app.moveEdge("start")],
    ["]", "end of the event to the cursor", () => app.moveEdge("stop")],
    ["a", "add an event over the calipers or the marked beats", () => app.addEvent()],
    ["ArrowDown", "next family", () => { app.show("families"); families.step(1); }],
    ["ArrowUp", "previous family", () => { app.show("families"); families.step(-1); }],
    ["/", "split the family", () => app.split()],
    ["m", "merge the marked families", () => app.merge()],
    ["u", "undo", () => app.change({ do: "undo" })],
    ["r", "redo", () => app.change({ do: "redo" })],
    ["PageDown", "later", () => app.page(1)],
    ["PageUp", "earlier", () => app.page(-1)],
    ["Home", "begin of the recording", () => app.goto(0, { select: false })],
    ["End", "end of the recording", () => app.goto(app.info.num_samples, { select: false })],
    ["+", "zoom in", () => app.zoom(1 / 1.5)],
    ["-", "zoom out", () => app.zoom(1.5)],
    ["0", "25 mm/s", () => app.paperSpeed()],
    [">", "larger", () => app.setGain(1)],
    ["<", "smaller", () => app.setGain(-1)],
    ["k", "calipers: from the cursor; , and . move it", () => app.measure()],
    ["w", "waves of what is shown", () => app.toggleWaves()],
    ["1", "families", () => app.show("families")],
    ["2", "events", () => app.show("events")],
    ["3", "full disclosure", () => app.show("disclosure")],
    ["p", "report, to read and print", () => app.report()],
    ["Escape", "unmark all", () => { strip.caliper = null; app.unmark(); }],
    ["?", "this list", () => app.help()],
  ];
}

const SHOWN = { ArrowRight: "→", ArrowLeft: "←", ArrowDown: "↓", ArrowUp: "↑" };
export const shownKey = key => SHOWN[key] ?? key;

// Run commands by keys, except where a key has a use of its own.
export function listen(table) {
  const byKey = new Map(table.map(([key, , run]) => [key, run]));
  byKey.set("=", byKey.get("+"));
  document.addEventListener("keydown", event => {
    if (document.querySelector("dialog[open]")) return;
    const { key, target } = event, isUndo = (event.ctrlKey || event.metaKey) && /^[zy]$/i.test(key);
    if (isUndo) { byKey.get(key.toLowerCase() === "y" || event.shiftKey ? "r" : "u")(event); event.preventDefault(); return; }
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (target.matches("input, select") && !["Escape"].includes(key)) return;
    if (target.getAttribute("role") === "tab" && /^Arrow/.test(key)) return;
    const run = byKey.get(key);
    if (run) { run(event); event.preventDefault(); }
  });
}
