"""The rules of a stream: from what its leads show to alarms.

They are evaluated once a second of stream time, from the seconds before, so alarms are a function of the stream alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from heartlm.monitor.alarms import SEVERITIES, Alarm, AlarmRules
from heartlm.monitor.lead_rules import LOST_S, LeadRules, LeadSecond

_SLOWER = 0.7
"""A lead denies a tachycardia only if it shows a rate below this share of the limit: leads miss some of the beats."""
_TRACE_OF_VT = 0.06
"""VT by the classes of beats needs this probability of VT or VF in a window of any lead: noise that looks like V beats
shows less."""


class Rules:
    """The rules of one stream, and what they remember.

    With several leads an alarm that one finds can be denied by another that can be read, because noise, a loose
    electrode and a low QRS are mostly of one lead: VF, asystole, bradycardia and pauses by any that does not find them;
    VT and runs where the leads' mean probability of ventricular beats is low; a tachycardia by a far lower rate.

    Args:
        stream: its name.
        rules: when alarms are raised.
        rate_hz: samples a second.
        begin_s: where in the stream sample 0 lies.
        num_leads: leads of the stream.
    """

    def __init__(
        self, stream: str, rules: AlarmRules, rate_hz: float, begin_s: float = 0.0, num_leads: int = 1
    ) -> None:
        self.stream, self.rules, self.rate_hz, self.begin_s = stream, rules, rate_hz, begin_s
        self.leads = [LeadRules(rules, rate_hz) for _ in range(num_leads)]
        self.lost = False
        self.af = 0.0
        self.af_onset = 0
        self.lead_in_use = 0
        """The first lead whose beats counted when last any did."""
        self.active = dict[str, Alarm]()

    def second(self, now: int, leads: Sequence[LeadSecond], af: tuple[float, int] | None) -> list[Alarm]:
        """Take in what was found in one more second.

        Args:
            now: samples of each lead that came so far.
            leads: what each of them shows.
            af: probability of AF and the sample of its onset if it is AF, None where it was not judged now.

        Returns:
            Alarms that were raised, and those that ended with their `stop`.
        """
        for lead, own in zip(self.leads, leads, strict=True):
            lead.take(now, own)
        self.af, self.af_onset = af or (self.af, self.af_onset)
        was_lost, self.lost = self.lost, all(lead.lost for lead in self.leads)
        changes = list[Alarm]()
        if self.lost:
            if not was_lost:
                self.af = 0.0
                changes = [self._ended(kind, now) for kind in list(self.active)]
                if "signal lost" not in self.rules.off:
                    changes.append(self._raised("signal lost", now - LOST_S * round(self.rate_hz), now, 1.0))
            return changes
        if "signal lost" in self.active:
            changes.append(self._ended("signal lost", now))
        found = self._agreed(now)
        for kind in SEVERITIES if found or self.active else ():
            if kind == "signal lost" or kind in self.rules.off:
                continue
            place = found.get(kind)
            if kind in self.active:
                if place is None:
                    changes.append(self._ended(kind, now))
            elif place is not None:
                changes.append(self._raised(kind, place[0], now, place[1]))
        return changes

    def state(self) -> dict[str, Any]:
        """What it remembers: numbers, arrays, and dictionaries of them."""
        return {
            "leads": {str(place): lead.state() for place, lead in enumerate(self.leads)},
            "lost": self.lost,
            "af": self.af,
            "af_onset": self.af_onset,
            "lead_in_use": self.lead_in_use,
            "active": {
                kind: {"start": alarm.start, "raised": alarm.raised, "confidence": alarm.confidence}
                for kind, alarm in self.active.items()
            },
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` gave, for the same stream, rate and leads."""
        for place, lead in enumerate(self.leads):
            lead.restore(state["leads"][str(place)])
        self.lost, self.lead_in_use = state["lost"], state["lead_in_use"]
        self.af, self.af_onset = state["af"], state["af_onset"]
        self.active = {
            kind: Alarm(self.stream, kind, stop=None, rate_hz=self.rate_hz, begin_s=self.begin_s, **alarm)
            for kind, alarm in state["active"].items()
        }

    def _raised(self, kind: str, start: int, now: int, confidence: float) -> Alarm:
        alarm = Alarm(self.stream, kind, max(0, start), now, None, confidence, self.rate_hz, self.begin_s)
        self.active[kind] = alarm
        return alarm

    def _ended(self, kind: str, now: int) -> Alarm:
        return replace(self.active.pop(kind), stop=now)

    def _agreed(self, now: int) -> dict[str, tuple[int, float]]:
        """Kinds that hold now, and no lead denies: where each began, and its confidence."""
        rules = self.rules
        judged = [(lead, lead.judge(now)) for lead in self.leads if not lead.lost]
        of_beats = [lead for lead, own in judged if own.has_beats]
        out = dict[str, tuple[int, float]]()
        kinds = {kind for _, own in judged for kind in own.found}
        for kind in SEVERITIES if kinds else ():
            if kind not in kinds:
                continue
            places = [own.found[kind] for _, own in judged if kind in own.found]
            start = min(start for start, _ in places)
            able = [lead for lead, own in judged if own.has_beats and own.clear and lead.begin <= start]
            if kind in ("VF", "asystole"):
                denied = any(kind not in own.found for lead, own in judged if own.clear and lead.begin <= start)
            elif kind in ("VT", "run"):
                shares = [lead.ventricular_since(start) for lead in able]
                denied = bool(shares) and sum(shares) / len(shares) < rules.v_share
                if kind == "VT":  # two ways to see it: if one is sure, little of the other is enough
                    waves = [wave for lead, _ in judged if not math.isnan(wave := lead.wave_of_vt())]
                    if waves:
                        denied = max(waves) < _TRACE_OF_VT or (denied and sum(waves) / len(waves) < rules.vt_share)
            elif kind == "extreme tachycardia":
                first = now - round(60 / rules.tachycardia_bpm * rules.tachycardia_beats * self.rate_hz)
                denied = any(lead.rate_since(first) < _SLOWER * rules.tachycardia_bpm for lead in able)
            else:
                denied = any(kind not in own.found for lead, own in judged if lead in able)
            if not denied:
                out[kind] = start, min(confidence for _, confidence in places)
        if not of_beats:  # what lasts is not known to have ended
            return out | {kind: (0, 0.0) for kind in self.active if kind not in ("VF", "asystole")}
        self.lead_in_use = self.leads.index(of_beats[0])
        if self.af >= (rules.af_share if "AF" not in self.active else rules.af_share / 2):
            out["AF"] = self.af_onset, self.af
        return out
