"""`heartlm rates`: mean heart rate of each minute of a recording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from heartlm.cli.options import parse
from heartlm.errors import HeartlmError


@dataclass(frozen=True)
class RatesOptions:
    """Options of `heartlm rates`; a field is an option, and its line below is its help.

    Attributes:
        recording: path of a recording in any format.
        most: number of minutes to print.
    """

    recording: Path
    most: int = 60


def run(arguments: Sequence[str]) -> int:
    """Print the mean heart rate of each minute of a recording.

    Examples:
        heartlm rates data/mitdb/100
        heartlm rates day.csv --rate 250 --units uV --most 10
    """
    options = parse(RatesOptions, arguments, "rates", run, positionals=["recording"], opens_recordings=True)
    if options.most < 1:  # one line and exit status 2
        raise HeartlmError(f"most: {options.most} found, at least 1 expected")
    import numpy as np  # after the arguments are checked: --help loads little

    import heartlm

    recording = heartlm.open_recording(options.recording)
    beats_s = heartlm.detect_beats(recording) / recording.rate_hz
    for minute in range(min(options.most, int(recording.duration_s // 60) + 1)):
        inside = beats_s[(beats_s >= 60 * minute) & (beats_s < 60 * minute + 60)]
        rate = f"{60 / np.diff(inside).mean():.0f}/min" if len(inside) > 1 else "-"
        print(f"{minute:>4} min  {rate}")
    return 0
