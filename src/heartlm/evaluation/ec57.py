"""Beat-by-beat and episode-by-episode comparison of two annotation files (ANSI/AAMI EC57).

    annotation files ─► beats in order, with the spans of VF and shutdown before each ─► pairs ─► 7 × 7 matrix
                     └► spans of AF and of VF ─► `episodes.compare_spans`

The results equal those of `bxb` and `epicmp` of the WFDB Software Package (https://physionet.org/content/wfdb/, version
10.7), which published EC57 results use. Beats are therefore paired in time order with one beat of look-ahead, not
nearest first as in `matching`. Exceptional cases also follow those programs, as described in
https://physionet.org/physiotools/wag/bxb-1.htm and epicmp-1.htm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from heartlm.ecg.matching import MATCH_WINDOW_S
from heartlm.ecg.recording import Recording
from heartlm.errors import HeartlmError
from heartlm.evaluation.bootstrap import Counts, Floats, Resampling, estimate, ratio, sum_by
from heartlm.evaluation.episodes import NUM_COUNTS, Episodes, compare_spans, episode_ratios, score_episodes
from heartlm.formats.annotation_file import AnnotationFile

LEARNING_S = 300.0
"""Learning period of EC57 in seconds: the start of a recording, which is not scored."""

LABELS = "NSVFQOX"
"""Rows (reference) and columns (test) of the matrix. O: no matching beat; X: no matching beat, during shutdown."""

_N, _S, _V, _F, _, _O, _X = range(len(LABELS))
_NOT_COUNTED = -1

# Row of each beat code. Escape beats (e, j, n) are S here but N in `recording.py`; flutter waves (!) are not beats.
_LABEL = {
    symbol: LABELS.index(label)
    for label, symbols in {"N": "NLRB", "S": "AaJSjen", "V": "VrE", "F": "F", "Q": "Q/f?", "O": "!"}.items()
    for symbol in symbols
}

EPISODES = ("AF", "VF")
"""Kinds of episodes to compare."""

# Position of a missing item: beyond the end of every recording.
_FAR = 1 << 62

Span = tuple[int, int]


@dataclass
class _Track:
    """Beats of a file, with a sentinel at 0 before them and three sentinels beyond the end.

    Attributes:
        time: positions in ticks.
        label: row or column of the matrix, `_NOT_COUNTED` for sentinels.
        fibrillation: spans of VF, in file order.
        shutdown: spans without a readable signal, in file order.
        num_known: numbers of VF and shutdown spans that precede each beat in the file.
        interval: ticks since the previous beat; 0 if there is none, or if VF or shutdown starts in between.
    """

    time: list[int] = field(default_factory=lambda: [0])
    label: list[int] = field(default_factory=lambda: [_NOT_COUNTED])
    fibrillation: list[Span] = field(default_factory=list)
    shutdown: list[Span] = field(default_factory=list)
    num_known: list[Span] = field(default_factory=lambda: [(0, 0)])
    interval: list[int] = field(default_factory=lambda: [0])
    ends_in_shutdown: bool = False
    is_reference: bool = False

    def add(self, time: int, label: int) -> None:
        """Append a beat."""
        before, known = self.time[-1], (len(self.fibrillation), len(self.shutdown))
        opened = [start for start, _ in self.fibrillation[-2:] + self.shutdown[-2:]]
        broken = before == 0 or time == _FAR or any(before <= start < time for start in opened)
        self.time.append(time)
        self.label.append(label)
        self.num_known.append(known)
        self.interval.append(0 if broken else time - before)

    def missing(self, beat: int, time: int) -> int:
        """Return the label of a missing beat at `time`, from the last two spans known after the beat `beat`."""
        kinds = zip((self.fibrillation, self.shutdown), self.num_known[beat + 1], strict=True)
        in_vf, in_shutdown = (
            any(start <= time <= stop for start, stop in spans[max(known - 2, 0) : known]) for spans, known in kinds
        )
        return _NOT_COUNTED if in_vf and self.is_reference else _X if in_shutdown else _O


def positions(file: AnnotationFile, rate_hz: float) -> list[int]:
    """Return positions of all annotations in samples at `rate_hz`; halves are rounded up, as in the WFDB library."""
    if file.ticks_hz is None or file.ticks_hz == rate_hz:
        return [int(time) for time in file.sample]
    return [math.floor(time + 0.5) for time in (file.sample * (rate_hz / file.ticks_hz)).tolist()]


def _track(
    file: AnnotationFile, rate_hz: float, window: int, *, exclude_vf: bool, is_reference: bool = False
) -> _Track:
    times, symbols = positions(file, rate_hz), file.symbol.tolist()
    unreadable = ((file.subtype & 0x30) == 0x30).tolist()  # subtype of a noise annotation: no readable signal
    track, index, num = _Track(is_reference=is_reference), 0, len(times)
    while index < num:
        time, symbol = times[index], symbols[index]
        if symbol in _LABEL:
            track.add(time, _LABEL[symbol])
        elif symbol == "~" and unreadable[index]:
            shutdown = track.shutdown
            track.ends_in_shutdown = index + 1 == num
            if track.ends_in_shutdown:
                # no end; as in the programs, a later one of the test file has the end of the previous one
                shutdown.append((time, _FAR if is_reference or not shutdown else shutdown[-1][1]))
            elif symbols[index + 1] == "~" and not unreadable[index + 1]:
                index += 1
                shutdown.append((time, times[index]))
            else:  # a single mark within a shutdown that lasts from the last beat or VF to the next annotation
                last_vf = track.fibrillation[-1][1] if track.fibrillation else -1
                stop = times[index + 1] - window
                shutdown.append((min(max(last_vf, track.time[-1]) + window, stop), stop))
        elif symbol == "[" and exclude_vf:
            end = next((later for later in range(index + 1, num) if symbols[later] == "]"), None)
            if end is None:  # as in the programs, only a first span of VF lasts to the end
                track.fibrillation.append((time, track.fibrillation[-1][1] if track.fibrillation else _FAR))
                break
            index = end
            track.fibrillation.append((time, times[end]))
        index += 1
    for _ in range(3):
        track.add(_FAR, _NOT_COUNTED)
    return track


@dataclass(frozen=True)
class BeatComparison:
    """Beat-by-beat comparison of one recording.

    Attributes:
        matrix: number of pairs by reference (row) and test label (column) in the order of `LABELS`, int64 `[7, 7]`.
        rr_error_ms: root mean square difference of the RR intervals of pairs in ms, NaN if there are none.
        shutdown_s: whole seconds without a readable signal according to the test file.
    """

    matrix: Counts
    rr_error_ms: float
    shutdown_s: int


def compare_beats(
    reference: AnnotationFile,
    test: AnnotationFile,
    rate_hz: float,
    num_samples: int,
    *,
    learning_s: float = LEARNING_S,
    window_s: float = MATCH_WINDOW_S,
    exclude_vf: bool = True,
) -> BeatComparison:
    """Pair the beats of two files as `bxb` does.

    Args:
        reference: reference annotations.
        test: annotations to evaluate.
        rate_hz: sampling rate of the recording in Hz.
        num_samples: length of the recording in samples; 0 if unknown: the comparison then ends with the reference.
        learning_s: time in seconds to skip at the start.
        window_s: largest distance of a pair in seconds.
        exclude_vf: exclude test beats during ventricular fibrillation of the reference, and all beats within VF of
            the same file; otherwise VF marks are ignored.
    """
    window, start = int(window_s * rate_hz + 0.5), int(learning_s * rate_hz + 0.5)
    ref = _track(reference, rate_hz, window, exclude_vf=exclude_vf, is_reference=True)
    tested = _track(test, rate_hz, window, exclude_vf=exclude_vf)
    matrix = np.zeros((len(LABELS), len(LABELS)), np.int64)
    squares: list[int] = []

    def pair(row: int, column: int) -> None:
        if row != _NOT_COUNTED and column != _NOT_COUNTED:
            matrix[row, column] += 1
        if min(ref.interval[i], tested.interval[j]) > 0:
            squares.append((ref.interval[i] - tested.interval[j]) ** 2)

    # The first test beat may match a reference beat in the learning period, or the one before it the first reference.
    i = next(k for k, time in enumerate(ref.time) if time >= start)
    j = next(k for k, time in enumerate(tested.time[1:]) if time >= start)
    distance = [abs(ref.time[i] - time) for time in tested.time[j : j + 3]]
    if distance[0] < distance[1] and distance[0] <= window:
        pair(ref.label[i], tested.label[j])
        i, j = i + 1, j + 1
    else:
        j += 2 if tested.time[j + 1] - start <= window and distance[2] < distance[1] else 1

    while min(ref.time[i], tested.time[j]) <= num_samples if num_samples else ref.time[i] < _FAR:
        ref_time, test_time = ref.time[i], tested.time[j]
        is_close, next_pair = abs(ref_time - test_time) <= window, abs(ref.time[i + 1] - tested.time[j + 1])
        # The earlier file's next beat may be nearer to the later beat, unless that one has a nearer partner itself.
        rival = abs(ref_time - tested.time[j + 1]) if test_time < ref_time else abs(test_time - ref.time[i + 1])
        if is_close and (abs(ref_time - test_time) < rival or next_pair < rival):
            pair(ref.label[i], tested.label[j])
            i, j = i + 1, j + 1
        elif test_time < ref_time:
            pair(ref.missing(i, test_time), tested.label[j])
            j += 1
        else:
            pair(ref.label[i], tested.missing(j, ref_time))
            i += 1
    matrix[_O:, _O:] = 0
    error_ms = math.sqrt(sum(squares) / len(squares)) * 1000 / rate_hz if squares else math.nan
    spans = tested.shutdown[: tested.num_known[j + 1][1]]
    if tested.ends_in_shutdown and len(spans) == len(tested.shutdown):
        spans = [*spans[:-1], (spans[-1][0], num_samples or spans[-1][0])]
    shutdown = int(rate_hz / 2 + 0.5) + sum(stop - begin for begin, stop in spans)
    return BeatComparison(matrix, error_ms, int(shutdown / int(rate_hz + 0.5)))  # towards zero, as C divides


def beat_ratios(matrix: Counts) -> dict[str, Any]:
    """Return sensitivity and positive predictivity of QRS, V and S; `[..., 7, 7]` → each float64 `[...]`.

    F and Q beats labelled V, and Q beats labelled S, are excluded from positive predictivity.
    """
    beats = matrix[..., :_O, :_O].sum(axis=(-2, -1))
    return {
        "qrs_se": ratio(beats, beats + matrix[..., :_O, _O:].sum(axis=(-2, -1))),
        "qrs_ppv": ratio(beats, beats + matrix[..., _O:, :_O].sum(axis=(-2, -1))),
        "v_se": ratio(matrix[..., _V, _V], matrix[..., _V, :].sum(axis=-1)),
        "v_ppv": ratio(matrix[..., _V, _V], matrix[..., [_N, _S, _V, _O, _X], _V].sum(axis=-1)),
        "s_se": ratio(matrix[..., _S, _S], matrix[..., _S, :].sum(axis=-1)),
        "s_ppv": ratio(matrix[..., _S, _S], matrix[..., [_N, _S, _V, _F, _O, _X], _S].sum(axis=-1)),
    }


def spans_of(file: AnnotationFile, kind: str, rate_hz: float, end: int) -> list[Span]:
    """Return episodes of a file in ticks at `rate_hz`: `"AF"` by rhythm changes to `(AFIB`, `"VF"` by `[` and `]`.

    An episode without an end mark lasts to `end`.
    """
    spans: list[Span] = []
    opened: int | None = None
    for index, (time, symbol) in enumerate(zip(positions(file, rate_hz), file.symbol.tolist(), strict=True)):
        if kind == "VF":
            opens, closes = symbol == "[", symbol == "]"
        else:
            opens = symbol == "+" and file.aux.get(index, "").startswith("(AFIB")
            closes = symbol == "+" and not opens
        if opens and opened is None:
            opened = time
        elif closes and opened is not None:
            spans.append((opened, time))
            opened = None
    return spans if opened is None else [*spans, (opened, max(end, opened))]


@dataclass(frozen=True)
class RecordComparison:
    """Comparison of two annotation files of one recording.

    Attributes:
        record: name of the recording.
        patient: patient ID.
        beats: beat-by-beat comparison.
        episodes: comparison of episodes, by kind.
    """

    record: str
    patient: str
    beats: BeatComparison
    episodes: dict[str, Episodes]

    def to_json(self) -> dict[str, Any]:
        """Return all results as JSON values; undefined scores are None."""
        error = self.beats.rr_error_ms
        row = {"record": self.record, "patient": self.patient} | _means(beat_ratios(self.beats.matrix))
        row |= {"rr_error_ms": None if math.isnan(error) else error, "shutdown_s": self.beats.shutdown_s}
        row["matrix"] = self.beats.matrix.tolist()
        for kind, found in self.episodes.items():
            row[kind] = found._asdict() | _means(episode_ratios(np.array(found[:NUM_COUNTS])))
        return row


def compare_record(
    recording: Recording, reference: AnnotationFile, test: AnnotationFile, *, learning_s: float, **options: Any
) -> RecordComparison:
    """Compare two annotation files of `recording`; `options` as for `compare_beats`.

    Episodes of a recording of unknown length end with the last annotation of either file.

    Raises:
        HeartlmError: the recording ends within the learning period, or annotations are not in time order.
    """
    rate_hz, length = recording.rate_hz, recording.num_samples
    for file in (reference, test):
        if len(back := np.flatnonzero(np.diff(file.sample) < 0)):
            raise HeartlmError(
                f"{file.path}: annotation {back[0] + 2} is earlier than the one before it; write them in order of time"
            )
    last = max(max(positions(file, rate_hz), default=0) for file in (reference, test))
    start, end = int(learning_s * rate_hz + 0.5), length or last
    if end <= start:
        raise HeartlmError(
            f"{recording.path}: {'the end' if length else 'no length known, the last annotation'} is at "
            f"{end / rate_hz:.0f} s, within the learning period of {learning_s:g} s; give a shorter --learning"
            + ("" if length else ", or a header with the length")
        )
    beats = compare_beats(reference, test, rate_hz, length, learning_s=learning_s, **options)
    episodes = {}
    for kind in EPISODES:
        true, predicted = (spans_of(file, kind, rate_hz, end) for file in (reference, test))
        episodes[kind] = compare_spans(true, predicted, end, start=start, ticks_hz=rate_hz)
    return RecordComparison(recording.record_id, recording.patient_id, beats, episodes)


def summarize(records: Sequence[RecordComparison]) -> dict[str, Any]:
    """Return scores of all records pooled, with intervals over patients (gross), and means over records (average)."""
    patients = [each.patient for each in records]
    matrices, resampling = np.stack([each.beats.matrix for each in records]), Resampling()
    names, by_patient = sum_by(patients, matrices)
    drawn = beat_ratios(resampling.resample(by_patient))
    gross: dict[str, Any] = {"matrix": matrices.sum(axis=0).tolist()} | {
        name: estimate(float(value), drawn[name], len(names))
        for name, value in beat_ratios(matrices.sum(axis=0)).items()
    }
    average: dict[str, Any] = _means(beat_ratios(matrices))
    for kind in EPISODES:
        episodes = [each.episodes[kind] for each in records]
        gross[kind] = score_episodes(episodes, patients)
        average[kind] = _means(episode_ratios(np.array([each[:NUM_COUNTS] for each in episodes])))
    return {"gross": gross, "average": average}


def _means(scores: dict[str, Floats]) -> dict[str, Any]:
    """Return the mean of each score over the records, of one or several, in which it is defined."""
    known = {name: values[~np.isnan(values)] for name, values in scores.items()}
    return {name: float(values.mean()) if len(values) else None for name, values in known.items()}
