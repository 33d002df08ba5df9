"""AV blocks of second and third degree, junctional and paced rhythm that `heartlm analyze` finds.

    python -m studies.atria --ptb-xl DIR --ludb DIR --mitdb DIR

Simulated patients with sick sinus have one rhythm all the time, in two leads for a minute and in twelve for 15 s; half
the noise of an ambulatory recording. The rules were made with patients of seed 7, the figures are of seed 21. PTB-XL
(folds 1 to 8 of what is there), LUDB and mitdb have few of these rhythms: the table tells in how many recordings each
is found. Limits were chosen on PTB-XL, LUDB and DS1 of mitdb.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import heartlm
from heartlm.analysis.analyze import Analyst
from heartlm.analysis.findings import Findings
from heartlm.ecg.recording import Recording
from heartlm.simulate.config import SimulationConfig
from heartlm.simulate.patients import profile_of
from heartlm.simulate.synthesis import simulate_recording
from heartlm.system.cores import limit_threads
from lab.measure import Table
from lab.output import write_results
from lab.places import options
from studies.findings import PtbXl

SEED, NUM_PATIENTS, RATE_HZ = 21, 24, 500
RHYTHMS = {
    "BII": "Wenckebach",
    "BII Mobitz": "AV block II",
    "BII 2:1": "AV block II",
    "BIII": "AV block III",
    "NOD": "junctional",
    "P": "paced",
    "N": "",
    "B": "",
    "T": "",
    "AFIB": "",
}
"""Simulated rhythms, and what is to be found."""
EVENTS = ("Wenckebach", "AV block II", "AV block III", "junctional")
KINDS = (*EVENTS, "paced")
TWELVE = ("I", "II", "III", "aVR", "aVL", "aVF", "V1", "V2", "V3", "V4", "V5", "V6")


def kinds_of(findings: Findings) -> set[str]:
    """Return which of `KINDS` are found; paced is half of the beats."""
    kinds = {kind for kind in EVENTS if findings.of_kind(kind)}
    return kinds | ({"paced"} if findings.num_beats and findings.paced.mean() >= 0.5 else set())


def simulated(rhythm: str, leads: tuple[str, ...], minutes: float) -> Iterable[Recording]:
    """Yield a recording of each patient."""
    slow = [index for index in range(40 * NUM_PATIENTS) if profile_of(SEED, index) == "sick-sinus"]
    config = SimulationConfig(minutes=minutes, rate_hz=RATE_HZ, leads=leads, noise=0.5, seed=SEED)
    for patient in slow[:NUM_PATIENTS]:
        signal, _ = simulate_recording(config, patient, rhythm=rhythm)
        yield Recording.from_array(signal, rate_hz=float(RATE_HZ), leads=list(leads))


def main() -> None:
    """Analyse the recordings and write the results."""
    chosen = options(__doc__, "ptb-xl", "ludb", "mitdb").parse_args()
    limit_threads(1)
    analyst = Analyst.load(Path("beats"), Path("af"), Path("waveform"))
    drawn = Table("Simulated rhythms: in how many recordings each is found", ("rhythm", "leads", "recordings", *KINDS))
    for leads, minutes in ((("MLII", "V1"), 1.0), (TWELVE, 0.25)):
        for rhythm in RHYTHMS:
            found = Counter(
                kind for each in simulated(rhythm, leads, minutes) for kind in kinds_of(analyst.analyze(each))
            )
            drawn.add(rhythm, len(leads), NUM_PATIENTS, *(found[kind] for kind in KINDS))
    columns = ("data", "recordings", *KINDS, "second or third degree block in")
    real = Table("Recordings: in how many each is found", columns)
    names = PtbXl(chosen.ptb_xl).in_folds(range(1, 9))
    for title, paths in (
        ("PTB-XL, folds 1 to 8", sorted(chosen.ptb_xl / name for name in names)),
        ("LUDB", sorted(path.with_suffix("") for path in chosen.ludb.glob("**/*.hea"))),
        ("mitdb", sorted(path.with_suffix("") for path in chosen.mitdb.glob("*.hea"))),
    ):
        found, blocked = Counter[str](), list[str]()
        for path in paths:
            kinds = kinds_of(analyst.analyze(heartlm.open_recording(path)))
            found.update(kinds)
            blocked += [path.name] * bool(kinds & {"Wenckebach", "AV block II", "AV block III"})
        real.add(title, len(paths), *(found[kind] for kind in KINDS), ", ".join(blocked) or "none")
    write_results("atria", "AV blocks, junctional and paced rhythm", [drawn, real])


if __name__ == "__main__":
    main()
