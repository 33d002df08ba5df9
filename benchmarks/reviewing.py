"""How long `heartlm review` takes to show a day, to jump and zoom in it and to correct it, measured in a browser.

    python -m benchmarks.reviewing --work FOLDER

The days are simulated, of three leads and of twelve, and analysed before. A headless Chromium of 1,400 by 1,000 pixels
on the same machine opens the page, waits until all of the first view is drawn, and then makes jumps to random places at
random zooms, from half a second to the whole day, in turns on the strip alone and with the lines of full disclosure. A
family of 5,000 beats or more is named and the name undone, in turns; the time ends when all beats and events are drawn
again. Memory is that of the server's process: what it holds, and with it the pages of mapped files that the system may
take back.
"""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from lab.chromium import Browser, wait_for
from lab.measure import Table
from lab.output import write_results
from lab.places import options
from lab.steps import Steps

LEADS = {"three leads": "[MLII, V1, V5]", "twelve leads": "[I, II, III, aVR, aVL, aVF, V1, V2, V3, V4, V5, V6]"}
LARGE = 5_000
SETTLED = "document.documentElement.dataset.settled === String(heartlm.revision)"
DRAWN = """new Promise(done => { const look = () => heartlm.begun || heartlm.frame ? setTimeout(look, 1)
    : done(heartlm.times.draw.at(-1)); look(); })"""


def analysed(work: Path, name: str, minutes: int) -> tuple[Path, Path]:
    """A simulated day, and the folder of its analysis."""
    folder, out, steps = work / name.replace(" ", "-"), work / f"{name.replace(' ', '-')}-analysis", Steps(work)
    size = ("--patients", 1, "--minutes", minutes, "--leads", LEADS[name], "--seed", 3)
    steps.run(f"simulate {name}", folder, "data", "simulate", folder, *size)
    recording = next(folder.glob("s*.hea")).with_suffix("")
    if not (out / f"{recording.name}.analysis.safetensors").is_file():
        code = "import sys; from heartlm.review.review import Review; Review.open(sys.argv[1], sys.argv[2])"
        subprocess.run([sys.executable, "-c", code, recording, out], check=True)
    return recording, out


def memory_mb(process: int) -> tuple[float, float]:
    """The memory that a process holds, and that with mapped files, in MB."""
    kilobytes = dict(re.findall(r"(\w+):\s+(\d+) kB", Path(f"/proc/{process}/status").read_text()))
    return int(kilobytes["RssAnon"]) / 1024, int(kilobytes["VmRSS"]) / 1024


def measured(recording: Path, out: Path, jumps: int, corrections: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "heartlm", "review", str(recording), "--out", str(out), "--no-open"]
    (out / f"{recording.name}.review.jsonl").unlink(missing_ok=True)
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    address = server.stderr.readline().removeprefix("page: ").strip()
    profile = Path(tempfile.mkdtemp())
    browser = Browser("about:blank", profile, 1400, 1000)
    try:
        browser.call("Page.navigate", url=address)
        ready = "document.body?.dataset.view === 'review' && heartlm.times.draw.length > 0"
        wait_for(lambda: browser.value(ready), 0.05)
        found: dict[str, Any] = {"first_s": browser.value("heartlm.times.first") / 1000}
        wait_for(lambda: browser.value(SETTLED), 0.05)
        found["settled_s"] = browser.value("heartlm.times.settled") / 1000
        draw, most = random.Random(1), browser.value("heartlm.info.num_samples / heartlm.stripWidth()")
        for name, view in (("strip", "events"), ("disclosure", "disclosure")):
            browser.value(f"heartlm.show('{view}')")
            times = []
            for _ in range(jumps):
                least = browser.value("heartlm.info.rate_hz") * 0.5 / browser.value("heartlm.stripWidth()")
                spp = least * (most / least) ** draw.random()
                move = f"heartlm.view.spp = {spp}; heartlm.goto({draw.random()} * heartlm.info.num_samples)"
                times.append(browser.value(f"{move}; {DRAWN}", awaited=True))
            found[f"{name}_ms"] = times
        large = f"heartlm.families.families.filter(each => each.count >= {LARGE})"
        family = f"{large}.sort((one, other) => one.count - other.count)[0]"
        browser.value("heartlm.show('families')")
        wait_for(lambda: browser.value("!heartlm.families.isStale"), 0.05)
        found["beats"] = browser.value(f"({family}).count")
        number, name = browser.value(f"({family}).id"), browser.value(f"({family}).name")
        other = "V" if name != "V" else "N"
        browser.value("heartlm.show('events')")
        times = []
        for _ in range(corrections):
            for change in (f"{{do: 'name', family: {number}, symbol: '{other}'}}", "{do: 'undo'}"):
                browser.value(f"heartlm.change({change})", awaited=True)
                times.append(browser.value("heartlm.times.change.at(-1)"))
                wait_for(lambda: browser.value(SETTLED), 0.02)
        found["change_ms"] = times
        found["memory_mb"] = memory_mb(server.pid)
        found["num_beats"] = browser.value("heartlm.beats.sample.length")
    finally:
        browser.close()
        server.terminate()
        server.wait(30)
        shutil.rmtree(profile, ignore_errors=True)
    return found


def main() -> None:
    settings = options(__doc__, "work", minutes=1440, jumps=300, corrections=10).parse_args()
    columns: tuple[str, ...] = ("recording", "beats", "first view, s", "ms of a jump: median", "99 %")
    columns += ("with the lines: median", "99 %")
    columns += ("beats of the family", "ms of a correction: median", "largest", "memory, MB", "with mapped files, MB")
    table = Table(f"A day of {settings.minutes / 60:g} hours in a browser", columns)
    for name in LEADS:
        found = measured(*analysed(settings.work, name, settings.minutes), settings.jumps, settings.corrections)
        table.add(
            name,
            f"{found['num_beats']:,}",
            f"{found['first_s']:.2f}",
            *(f"{np.percentile(found[each], of):.0f}" for each in ("strip_ms", "disclosure_ms") for of in (50, 99)),
            f"{found['beats']:,}",
            f"{np.median(found['change_ms']):.0f}",
            f"{max(found['change_ms']):.0f}",
            *(f"{each:.0f}" for each in found["memory_mb"]),
        )
        print(name, {key: value for key, value in found.items() if not isinstance(value, list)}, flush=True)
    write_results("reviewing", "A day in the page of a review", [table.close()])


if __name__ == "__main__":
    main()
