"""What a model over all leads states about a short recording, and what follows for rhythms, beats and blocks.

    all ECG leads at 100 Hz ─► probability of each statement ─┬► AF and flutter are found or denied
                                                              ├► V and S beats are denied, or the likeliest one is named
                                                              └► AV block I, and the side of a wide QRS

Rules for a lead, or for intervals, see less than the twelve leads together; what they measured stays as the
explanation. The model was trained on recordings of ten seconds: longer ones are not judged by it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from heartlm.analysis.av_block import BLOCKS
from heartlm.analysis.conduction import LONGEST_PR_MS
from heartlm.analysis.findings import Event
from heartlm.analysis.stages import Classes
from heartlm.ecg.recording import Annotations, Recording
from heartlm.ecg.statements import STATEMENTS
from heartlm.inference.finetuned import FineTuned
from heartlm.tokenizers.base import Lead
from heartlm.tokenizers.leads import NUM_KNOWN, places_of

SHORTEST_S, LONGEST_S = 5.0, 60.0
FEWEST_LEADS = 8
"""Leads of known direction that a recording must have: those from which all twelve of a resting ECG follow."""

OF_RHYTHM = {"AFIB": "AF", "AFLT": "flutter"}
OF_BEATS = {"PVC": "V", "PAC": "S"}
OF_SIDE = {"CLBBB": "LBBB", "CRBBB": "RBBB"}
PR, OF_PR = "1AVB", "AV block I"
"""Statements, and the events or classes of beats that they decide."""

DENIED = 0.2
"""Fraction of the threshold below which a statement denies what rules found; PVC denies below the threshold itself.
Chosen on folds 7 and 8 of PTB-XL and on LUDB, where probabilities are lower (docs/log/statements.md)."""

PR_DENIED, UNSURE_PR_MS, PR_SHARE = 0.05, 205.0, 0.8
"""AV block I: the same fraction; up to this interval it needs the statement; one that is not long, measured in this
fraction of the beats, contradicts it. Chosen on folds 7 and 8 and on LUDB, 24 recordings with the block."""
WITHOUT_PR = {"AF", "flutter", "VF", "junctional", *BLOCKS}
"""Events that a stated AV block I contradicts where no interval shows it."""

LEAST_OF_CLASS = 0.1
"""Least probability of the class of the beat that a statement names. Chosen on folds 1 to 6 of PTB-XL, by models of the
other half of them (docs/log/statements.md)."""


@dataclass(frozen=True)
class StatementProbabilities:
    """What is stated about a recording.

    Attributes:
        probability: probability of each statement; empty if the recording was not judged.
        threshold: probability at which each is present.
    """

    probability: Mapping[str, float]
    threshold: Mapping[str, float]

    def __contains__(self, name: str) -> bool:
        return name in self.probability

    def says(self, name: str) -> bool:
        """Return whether the statement is present."""
        return name in self.probability and self.probability[name] >= self.threshold[name]

    def denies(self, name: str) -> bool:
        """Return whether the statement is absent, even if rules found it."""
        share = 1.0 if name == "PVC" else DENIED
        return name in self.probability and self.probability[name] < share * self.threshold[name]

    @property
    def present(self) -> dict[str, float]:
        """Probability of each statement that is present, the likeliest first."""
        found = {name: each for name, each in self.probability.items() if self.says(name)}
        return dict(sorted(found.items(), key=lambda item: -item[1]))


def stated(
    recording: Recording, leads: Sequence[int], sample: NDArray[np.int64], model: FineTuned
) -> StatementProbabilities:
    """Return what `model` states about the ECG `leads` of a recording with the beats `sample`.

    Nothing is stated about a recording that is too short or too long, or has too few leads.

    Raises:
        HeartlmError: the signal cannot be read.
    """
    from heartlm.tasks.statements import probabilities_of, thresholds_of

    leads = sorted(leads)
    names = tuple(recording.lead_names[lead] for lead in leads)
    known = sum(place < NUM_KNOWN for place in places_of(names).values())
    if not SHORTEST_S <= recording.duration_s <= LONGEST_S or known < FEWEST_LEADS:
        return StatementProbabilities({}, {})
    beats = Annotations(recording.rate_hz, sample, np.full(len(sample), "Q", "<U1"), beats_labelled=False)
    tokens = model.tokenizer.encode(Lead(beats, recording.signal(leads=leads), 0, names))
    found = probabilities_of(model.model, [tokens.codes], model.info)[0].tolist()
    classes = model.info.classes
    return StatementProbabilities(
        dict(zip(classes, found, strict=True)), dict(zip(classes, thresholds_of(model.info), strict=True))
    )


def rhythms_by(
    facts: StatementProbabilities, sample: NDArray[np.int64], found: list[Event]
) -> tuple[list[Event], list[str]]:
    """Return AF and flutter by what is stated, and a note where it contradicts what intervals or the wave say."""
    known = [name for name in OF_RHYTHM if name in facts]
    if not known or len(sample) < 2:
        return found, []
    present = [name for name in known if facts.says(name)]
    if not present:
        denied = sorted({event.kind for event in found} & {OF_RHYTHM[name] for name in known if facts.denies(name)})
        kept = [event for event in found if event.kind not in denied]
        return kept, [f"{', '.join(denied)} by intervals or wave; all leads together deny it"] if denied else []
    if any(event.kind != "junctional" for event in found):
        return found, []
    likeliest = max(present, key=lambda name: facts.probability[name] - facts.threshold[name])
    whole = Event(OF_RHYTHM[likeliest], int(sample[0]), int(sample[-1]) + 1, facts.probability[likeliest])
    return [whole], [f"{whole.kind} by all leads together, not by intervals or wave"]


def beats_by(
    facts: StatementProbabilities,
    classes: Classes,
    probability: NDArray[np.float32],
    paced: NDArray[np.bool_],
    names: NDArray[np.str_],
    run_beats: int,
) -> Classes:
    """Return the classes of beats by what is stated: ectopic beats that it denies are N; runs stay.

    Args:
        facts: what is stated.
        classes: classes of the beats so far.
        probability: probability of each class of each beat, float32 `[num_beats, num_classes]`.
        paced: which beats follow a pacing spike, bool `[num_beats]`; they are N.
        names: names of the classes.
        run_beats: fewest beats of a run.
    """
    symbol, certainty, notes = classes.symbol.copy(), classes.certainty.copy(), list(classes.notes)
    for name, kind in OF_BEATS.items():
        if name not in facts:
            continue
        of_class = np.where(paced, 0, probability[:, list(names).index(kind)])
        if facts.says(name):
            likeliest = int(of_class.argmax()) if len(of_class) else 0
            if len(symbol) and not (symbol == kind).any() and of_class[likeliest] >= LEAST_OF_CLASS:
                symbol[likeliest], certainty[likeliest] = kind, of_class[likeliest]
                notes.append(f"{STATEMENTS[name].words} by all leads together: the likeliest beat is {kind}")
            continue
        if not facts.denies(name):
            continue
        edges = np.flatnonzero(np.diff(symbol == kind, prepend=False, append=False)).reshape(-1, 2)
        denied = [slice(start, stop) for start, stop in edges.tolist() if stop - start < run_beats]
        for part in denied:
            certainty[part], symbol[part] = 1 - certainty[part], "N"
        if num := sum(part.stop - part.start for part in denied):
            notes.append(f"{num:,} beats would be {kind} by the model of beats; all leads together deny it")
    return replace(classes, symbol=symbol, certainty=certainty, notes=notes)


def blocks_by(
    facts: StatementProbabilities,
    events: list[Event],
    sample: NDArray[np.int64],
    others: Sequence[Event] = (),
    pr_ms: NDArray[np.float64] | None = None,
) -> list[Event]:
    """Return events of intervals with blocks by what is stated; a bundle branch block that it denies is a wide QRS.

    Args:
        facts: what is stated.
        events: events of intervals.
        sample: positions of the beats.
        others: other events.
        pr_ms: PR interval of each conducted beat, NaN where there is no P wave; None if they were not measured.
    """
    if len(sample) < 2:
        return events
    if PR in facts:
        long_pr = [event for event in events if event.kind == OF_PR]
        events = [event for event in events if event.kind != OF_PR]
        if not facts.says(PR):
            possible = facts.probability[PR] >= PR_DENIED * facts.threshold[PR]
            events += [each for each in long_pr if possible and each.interval_ms > UNSURE_PR_MS]
        elif long_pr or not (_has_short_pr(pr_ms, sample) or WITHOUT_PR & {event.kind for event in others}):
            events += long_pr or [_whole(OF_PR, facts.probability[PR], sample)]
    if not all(name in facts for name in OF_SIDE):
        return events
    wide = [event for event in events if event.kind in ("wide QRS", *OF_SIDE.values())]
    others = [event for event in events if event not in wide]
    present = [name for name in OF_SIDE if facts.says(name)]
    if not present:
        denied = [kind for side, kind in OF_SIDE.items() if facts.denies(side)]
        return others + [replace(event, kind="wide QRS") if event.kind in denied else event for event in wide]
    name = max(present, key=lambda each: facts.probability[each] - facts.threshold[each])
    kind, certainty = OF_SIDE[name], facts.probability[name]
    sided = [replace(event, kind=kind, confidence=certainty) for event in wide]
    return others + (sided or [_whole(kind, certainty, sample)])


def _has_short_pr(pr_ms: NDArray[np.float64] | None, sample: NDArray[np.int64]) -> bool:
    """Return whether PR is usual in most of the conducted beats, or hardly any beat is conducted, as in pacing."""
    if pr_ms is None:
        return False
    known = pr_ms[~np.isnan(pr_ms)]
    is_usual = len(known) >= PR_SHARE * len(pr_ms) and float(np.median(known)) <= LONGEST_PR_MS if len(known) else False
    return is_usual or 2 * len(pr_ms) < len(sample)


def _whole(kind: str, confidence: float, sample: NDArray[np.int64]) -> Event:
    """Return an event from the first beat to the last."""
    return Event(kind, int(sample[0]), int(sample[-1]) + 1, confidence, num_beats=len(sample))
