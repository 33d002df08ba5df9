"""Tokens of the recordings to score, one lead each: from a corpus, or tokenised from a folder of recordings.

    corpus, split, names ───────────────────────────────┐
    folder of recordings ─► beats, annotated or detected ─► tokenizer of the run ─► ScoredLead, one a recording

If a recording has several leads in a corpus, the preferred one is scored, as in tokenising a test recording. Skipped
recordings are listed with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from heartlm.corpus.corpus import Corpus
from heartlm.corpus.encode import Unusable
from heartlm.databases.database import open_database
from heartlm.databases.statements import statements_of
from heartlm.ecg.leads import PREFERRED_LEADS
from heartlm.errors import HeartlmError
from heartlm.evaluation.config import EvaluationConfig
from heartlm.inference.leads import ScoredLead, lead_of_row, scored_lead
from heartlm.system.progress import track
from heartlm.tokenizers.base import Tokenizer


@dataclass(frozen=True)
class ScoredLeads:
    """Leads to score, and skipped recordings.

    Attributes:
        leads: one lead per recording.
        left_out: `record` and `reason` of each recording without a usable lead.
        damaged: `record` and `fault` of each scored recording with signs of damage.
    """

    leads: list[ScoredLead]
    left_out: list[dict[str, str]]
    damaged: list[dict[str, str]]


def leads_of_corpus(corpus: Corpus, config: EvaluationConfig) -> ScoredLeads:
    """Return the leads of `corpus` with the split and names of `config`.

    Raises:
        HeartlmError: a name does not exist in the split.
    """
    chosen = dict[tuple[str, str], tuple[int, int]]()
    for index, row in enumerate(corpus.records.rows):
        key, own = (row.database, row.record_id), (_preference(row.lead), index)
        chosen[key] = min(chosen.get(key, own), own)
    places = {key: index for key, (_, index) in chosen.items()}
    splits = {key: str(corpus.records.split[index]) for key, index in places.items()}
    to_score = _keys_to_score(corpus.folder, splits, config)
    has_tokens = corpus.records.num_tokens > 0
    leads = [lead_of_row(corpus, place) for key, place in places.items() if key in to_score and has_tokens[place]]
    empty = [key for key in sorted(to_score) if not has_tokens[places[key]]]
    left_out, names = [{"record": "/".join(key), "reason": "no tokens"} for key in empty], {lead.name for lead in leads}
    damaged = [entry for entry in corpus.manifest.get("damaged", []) if entry["record"] in names]
    return ScoredLeads(leads, left_out, damaged)


def leads_of_folder(folder: Path, tokenizer: Tokenizer, needs_classes: bool, config: EvaluationConfig) -> ScoredLeads:
    """Tokenise the recordings of `folder` with the split and names of `config`.

    With `needs_classes` and detected beats, recordings without beat classes are skipped: there is nothing to match.

    Raises:
        HeartlmError: a name does not exist in the split, or a file is unreadable.
    """
    if config.beats == "detected" and not tokenizer.needs_beats:
        raise HeartlmError(f"beats: 'detected' found, but tokens of the {tokenizer.kind} tokenizer are no beats")
    database, detected = open_database(folder), config.beats == "detected"
    splits = {(database.name, each): database.split_of(each) for each in database.record_ids}
    to_score = _keys_to_score(folder, splits, config)
    leads, left_out, damaged = list[ScoredLead](), list[dict[str, str]](), list[dict[str, str]]()
    statements = statements_of(database, config.labels) if tokenizer.joins_leads else {}
    chosen = [each for each in database.record_ids if (database.name, each) in to_score]
    for record_id in track(chosen, len(chosen), "tokenize"):
        recording, name = database.recording(record_id), f"{database.name}/{record_id}"
        annotations = recording.annotations if detected else None
        lead: ScoredLead | Unusable
        if detected and needs_classes and (annotations is None or not annotations.beats_labelled):
            lead = Unusable("beats not classified by anybody")
        else:
            lead = scored_lead(recording, tokenizer, config.beats, annotations)
        if isinstance(lead, Unusable):
            left_out.append({"record": name, "reason": lead.reason})
        else:
            leads.append(replace(lead, statements=statements.get(record_id, {})))
        recording.warn_if_damaged()
        damaged += [{"record": name, "fault": fault} for fault in recording.faults]
    return ScoredLeads(leads, left_out, damaged)


def _preference(lead: str) -> int:
    name = lead.lower()
    return PREFERRED_LEADS.index(name) if name in PREFERRED_LEADS else len(PREFERRED_LEADS)


def _keys_to_score(on: Path, splits: Mapping[tuple[str, str], str], config: EvaluationConfig) -> set[tuple[str, str]]:
    """Return the recordings of the folder `on` to score; `splits` has the split of every recording."""
    inside = {key for key, split in splits.items() if config.split in ("all", split)}
    if not config.record_ids:
        return inside
    for name in config.record_ids:
        if name not in {record_id for _, record_id in inside}:
            splits_of_name = sorted({split for (_, record_id), split in splits.items() if record_id == name})
            where = "no such recording"
            if splits_of_name:
                option = "all" if splits_of_name[0] == "excluded" else f"{splits_of_name[0]} or all"
                where = f"it is in {splits_of_name[0]}: use --split {option}"
            raise HeartlmError(f"records: {name!r} is not in the {config.split} split of {on}: {where}")
    return {(database, record_id) for database, record_id in inside if record_id in config.record_ids}
