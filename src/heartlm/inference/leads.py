"""One lead of one recording, tokenised for a model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from heartlm.corpus.corpus import Corpus
from heartlm.corpus.encode import SelectedLeads, Unusable, source_of, usable_leads
from heartlm.corpus.plan import Beats
from heartlm.ecg.recording import Annotations, Recording
from heartlm.tokenizers.base import Lead, Tokenizer, Tokens


@dataclass(frozen=True)
class ScoredLead:
    """One lead of one recording, ready for the model.

    Attributes:
        database: name of the database.
        record_id: name within the database.
        patient_id: patient ID, unique over databases.
        lead: name of the lead, empty if no signal was read.
        rate_hz: time units of `tokens.sample` per second.
        tokens: all tokens of the lead.
        annotations: annotated beats if `tokens` are of detected beats; else None.
        statements: whether each known statement about the recording is present.
    """

    database: str
    record_id: str
    patient_id: str
    lead: str
    rate_hz: float
    tokens: Tokens
    annotations: Annotations | None = None
    statements: Mapping[str, bool] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """`database/record`."""
        return f"{self.database}/{self.record_id}"


def lead_of_row(corpus: Corpus, index: int) -> ScoredLead:
    """Return the lead of one row of a corpus."""
    row, tokens = corpus.records.rows[index], corpus.tokens_of(index)
    return ScoredLead(
        row.database,
        row.record_id,
        row.patient_id,
        row.lead,
        row.rate_hz,
        Tokens(
            corpus.codes[tokens],
            corpus.sample[tokens],
            corpus.beat_class[tokens],
            corpus.rhythm[tokens],
            corpus.scale_mv[tokens],
        ),
        statements=json.loads(row.statements),
    )


def scored_lead(
    recording: Recording, tokenizer: Tokenizer, beats: Beats, annotations: Annotations | None = None
) -> ScoredLead | Unusable:
    """Tokenise the preferred lead of `recording`: MLII or II if present, else the first lead in millivolts.

    `annotations` are set if its beats are to be detected and matched.

    Raises:
        HeartlmError: a file is unreadable, or beats must be detected and cannot be.
    """
    source = source_of(recording, "test", tokenizer, "first")
    lead = next(usable_leads(source, tokenizer, beats, "warn")) if isinstance(source, SelectedLeads) else source
    return lead if isinstance(lead, Unusable) else lead_of(recording, lead, tokenizer, annotations)


def lead_of(
    recording: Recording, lead: Lead, tokenizer: Tokenizer, annotations: Annotations | None = None
) -> ScoredLead:
    """Tokenise a lead of `recording`."""
    return ScoredLead(
        recording.database,
        recording.record_id,
        recording.patient_id,
        ",".join(lead.names) or (recording.lead_names[lead.index] if recording.lead_names else ""),
        recording.rate_hz,
        tokenizer.encode(lead),
        annotations,
    )
