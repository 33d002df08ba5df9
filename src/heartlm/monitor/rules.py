"""Rules of one stream: from the results of its leads to alarms.

They are evaluated once per second of stream time on the seconds before, so alarms depend on the stream only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from heartlm.monitor.alarms import SEVERITIES, Alarm, AlarmRules
from heartlm.monitor.lead_rules import LOST_S, LeadRules, LeadSecond
from heartlm.monitor.state import Stateful

_VETO_RATE = 0.7
"""A lead vetoes a tachycardia or VT if its rate is below this fraction of the limit: leads miss some of the beats."""
_CLEAR_VETO_RATE = 0.92
"""The same for a lead with a clear signal, if the tachycardia is found in leads without one only."""
_VETO_VT = 0.3
"""Leads veto VT if the mean probability of ventricular beats over them is below."""


class Rules(Stateful):
    """Rules of one stream with their state.

    With several leads, a readable lead may veto an alarm of another, because noise, a loose electrode and a low QRS
    complex mostly affect a single lead. VF, asystole, bradycardia and pauses are vetoed by a lead that does not find
    them; VT and runs by a low mean probability of ventricular beats over the leads; VT and a tachycardia by a far lower
    rate. A lead that shows asystole vetoes VF and asystole only.

    Args:
        stream: name of the stream.
        rules: thresholds.
        rate_hz: samples per second.
        begin_s: time of sample 0 in the stream.
        num_leads: leads of the stream.

    Attributes:
        lost: the signals of all leads are lost.
        af: last probability of AF.
        af_onset: where it began.
        lead_in_use: the first lead whose beats are heartbeats, when last any were.
        active: alarms that have not ended, by kind.
    """

    STATE = ("begin_s", "leads", "lost", "af", "af_onset", "lead_in_use", "active")

    def __init__(
        self, stream: str, rules: AlarmRules, rate_hz: float, begin_s: float = 0.0, num_leads: int = 1
    ) -> None:
        self.stream, self.rules, self.rate_hz, self.begin_s = stream, rules, rate_hz, begin_s
        self.leads = [LeadRules(rules, rate_hz) for _ in range(num_leads)]
        self.lost = False
        self.af = 0.0
        self.af_onset = 0
        self.lead_in_use = 0
        self.active = dict[str, Alarm]()

    def restore(self, state: dict[str, Any]) -> None:
        """Set the saved attributes."""
        super().restore(state)
        self.active = {kind: Alarm(**alarm) for kind, alarm in state["active"].items()}

    def update(self, now: int, leads: Sequence[LeadSecond], af: tuple[float, int] | None) -> list[Alarm]:
        """Evaluate the rules after one more second.

        Args:
            now: samples of each lead so far.
            leads: results of the second in each lead.
            af: probability of AF and the sample at which it began; None if it was not judged in this second.

        Returns:
            Alarms that were raised, and alarms that ended with their `stop`.
        """
        added = [lead.add(now, second) for lead, second in zip(self.leads, leads, strict=True)]
        for lead, beats in zip(self.leads, added, strict=True):
            for beat in beats:
                lead.add_af(beat, [other.af_near(beat.sample) for other in self.leads if other is not lead])
        if af is not None:
            self.af, self.af_onset = af
        was_lost, self.lost = self.lost, all(lead.lost for lead in self.leads)
        changes = list[Alarm]()
        if self.lost:
            if not was_lost:
                self.af = 0.0
                changes = [self._end(kind, now) for kind in list(self.active)]
                if "signal lost" not in self.rules.off:
                    changes.append(self._raise("signal lost", now - LOST_S * round(self.rate_hz), now, 1.0))
            return changes
        if "signal lost" in self.active:
            changes.append(self._end("signal lost", now))
        found = self._combine_leads(now)
        for kind in SEVERITIES if found or self.active else ():
            if kind == "signal lost" or kind in self.rules.off:
                continue
            finding = found.get(kind)
            if kind in self.active:
                if finding is None:
                    changes.append(self._end(kind, now))
            elif finding is not None:
                changes.append(self._raise(kind, finding[0], now, finding[1]))
        return changes

    def _raise(self, kind: str, start: int, now: int, confidence: float) -> Alarm:
        alarm = Alarm(self.stream, kind, max(0, start), now, None, confidence, self.rate_hz, self.begin_s)
        self.active[kind] = alarm
        return alarm

    def _end(self, kind: str, now: int) -> Alarm:
        return replace(self.active.pop(kind), stop=now)

    def _combine_leads(self, now: int) -> dict[str, tuple[int, float]]:
        """Return the kinds of alarms that hold and that no lead vetoes, each with its start and confidence."""
        rules = self.rules
        leads = [lead for lead in self.leads if not lead.lost]
        for lead in leads:
            lead.judge(now)
        with_beats = [lead for lead in leads if lead.has_beats]
        combined = dict[str, tuple[int, float]]()
        kinds = {kind for lead in leads for kind in lead.found}
        able_to_veto = [lead for lead in leads if lead.is_clear(now)] if kinds else []
        for kind in SEVERITIES if kinds else ():
            if kind not in kinds:
                continue
            findings = [lead.found[kind] for lead in leads if kind in lead.found]
            start = min(start for start, _ in findings)
            clear = [lead for lead in able_to_veto if lead.begin <= start]
            # a lead in standstill next to another with beats has come off
            able = [lead for lead in clear if lead.has_beats and "asystole" not in lead.found]
            if kind in ("VF", "asystole"):
                vetoed = any(kind not in lead.found for lead in clear)
            elif kind in ("VT", "run"):
                ventricular = [lead.ventricular_since(start) for lead in able]
                least = rules.v_probability if kind == "run" else _VETO_VT
                vetoed = bool(ventricular) and sum(ventricular) / len(ventricular) < least
                if kind == "VT":
                    vetoed = vetoed or any(lead.rate_since(start) < _VETO_RATE * rules.vt_bpm for lead in able)
            elif kind == "extreme tachycardia":
                first = now - round(60 / rules.tachycardia_bpm * rules.tachycardia_beats * self.rate_hz)
                share = _VETO_RATE if any(kind in lead.found for lead in clear) else _CLEAR_VETO_RATE
                vetoed = any(lead.rate_since(first) < share * rules.tachycardia_bpm for lead in able)
            else:
                vetoed = any(kind not in lead.found for lead in able)
            if not vetoed:
                combined[kind] = start, min(confidence for _, confidence in findings)
        if not with_beats:  # alarms of beats continue: their end cannot be seen
            return combined | {kind: (0, 0.0) for kind in self.active if kind not in ("VF", "asystole")}
        self.lead_in_use = self.leads.index(with_beats[0])
        in_use, in_af = with_beats[0], "AF" in self.active
        if not in_use.af_told and in_use.af_probability >= rules.af_probability:
            self.af, self.af_onset = in_use.af_probability, in_use.af_onset
        if self.af >= (rules.af_probability / 2 if in_af else rules.af_probability):
            combined["AF"] = self.af_onset, self.af
            for lead in self.leads:  # once the model of long windows has ended it, the same beats do not raise it again
                lead.af_told = True
        return combined
