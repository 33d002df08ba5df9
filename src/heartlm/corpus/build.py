"""Build a corpus: fit the tokenizer on the training split, encode every lead, write the files, rename the folder.

Memory holds only a few parts of the plan at a time, for any number of recordings. A journal records the finished parts.
If a build is killed, the same command resumes it and writes the same corpus byte for byte. An existing corpus is
replaced only when the new one is complete.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import tee
from pathlib import Path
from typing import Any

import numpy as np

from heartlm.corpus.bucket import check_place, copy_of, upload
from heartlm.corpus.config import TokenizeConfig
from heartlm.corpus.corpus import Corpus, open_corpus
from heartlm.corpus.encode import Part, SelectedLeads, encode_part, find_source, joined_parts, readable_leads
from heartlm.corpus.journal import Journal, clear, partial_folder
from heartlm.corpus.manifest import finish_corpus
from heartlm.corpus.plan import BuildPlan, PartRecords, Statements, listed, make_plan, settings_of
from heartlm.corpus.schema import FILES
from heartlm.databases.database import Database
from heartlm.databases.spool import RecordSpool
from heartlm.databases.statements import statements_of
from heartlm.errors import HeartlmError
from heartlm.sources.address import output_path
from heartlm.storage.atomic import explained, publish_folder, recover_folder
from heartlm.storage.foreign import RemotePath
from heartlm.system.processes import Lost, run_each
from heartlm.system.progress import say, track
from heartlm.tokenizers.base import Lead, Tokenizer, load_tokenizer

WORTH_KEEPING_S = 10.0
"""Time in seconds after which the partial result of a failed build is kept, so that it can be resumed."""

FIT_RECORDINGS = 300
"""Maximum number of training recordings per database that the tokenizer is fitted on."""


def build_corpus(
    folders: Sequence[Path],
    tokenizer: Tokenizer,
    out: Path,
    config: TokenizeConfig | None = None,
    *,
    fit: bool = True,
    command: str | None = None,
) -> dict[str, Any]:
    """Tokenise the databases in `folders` into the corpus folder `out` and return its manifest.

    Args:
        folders: folders of the databases.
        tokenizer: the tokenizer. It is fitted on the training split unless `fit` is false or it has no parameters.
        out: the corpus folder, or its address in a bucket. It is replaced when the new corpus is complete.
        config: settings; the tokenizer's own are not read.
        fit: whether to fit the tokenizer; false for a tokenizer from another run.
        command: the command line, recorded in the manifest for reproducibility.

    Raises:
        HeartlmError: the input is unreadable or has no usable recording, or `out` cannot be written or is not a corpus.
    """
    config, out, address = config or TokenizeConfig(), output_path(out), None
    if isinstance(out, RemotePath):
        address, out = out, copy_of(out)
        check_place(address)
    databases, records, statements = _sources(folders, tokenizer, out, config)
    # The journal first: it locks the folder against another build. The plan before the fit: its fingerprint of the
    # files decides whether an earlier build, with its tokenizer, is continued.
    with _under_way(out) as journal:
        plan = make_plan(records)
        fit = fit and tokenizer.needs_fitting
        settings = settings_of(config, tokenizer, fit, databases, plan, statements)
        tokenizer = _begin(journal, settings, databases, plan, tokenizer, config, fit)
        encode = _Encode(tokenizer, config, statements, databases)
        if config.num_shards > 1:
            shards = _build_shards(out, journal, settings, plan, encode)
            _refuse_empty(shards.values(), folders)
            manifest = finish_corpus(journal.folder, shards, tokenizer, command)
            if address is not None:  # as long as a build can be resumed
                upload(journal.folder, manifest, address)
            for name in FILES:  # empty ones of the journal
                (journal.folder / name).unlink()
            for shard in shards.values():
                shard.path.unlink()
            return manifest
        _clear_shards(_shards_of(out), {})
        encoded = _encoded(plan.parts(journal.num_parts), encode)
        parts = track(
            encoded, len(plan), "tokenize", lambda part: part.num_samples / 1e6, "M samples", journal.num_parts
        )
        with closing(encoded):
            for part in parts:
                journal.add(part)
        _refuse_empty([journal], folders)
        shutil.rmtree(_shards_of(out), ignore_errors=True)  # of a build in shards that was given up
        manifest = finish_corpus(journal.folder, {"": journal}, tokenizer, command)
        if address is not None:
            upload(journal.folder, manifest, address)
        return manifest


def build_part(folders: Sequence[Path], out: Path, config: TokenizeConfig, given: Path | None) -> tuple[int, int]:
    """Build the shard of `config.part`, to be joined by `build_corpus` with as many shards.

    The tokenizer is fitted by each part, in the same way.

    Returns:
        Number of recordings of the shard, and of those that could not be read.

    Raises:
        HeartlmError: see `build_corpus`.
    """
    out = copy_of(address) if isinstance(address := output_path(out), RemotePath) else out
    tokenizer = config.new_tokenizer() if given is None else load_tokenizer(given)
    databases, records, statements = _sources(folders, tokenizer, out, config)
    plan, fit = make_plan(records), given is None and tokenizer.needs_fitting
    settings = settings_of(config, tokenizer, fit, databases, plan, statements)
    if fit:
        fit_on_training(tokenizer, databases, plan, config)
    work = _ShardWork(_shards_of(out), _Encode(tokenizer, config, statements, databases), settings)
    index, num_shards = config.part_of
    work((index, plan.shards(num_shards)[index]))
    entries = Journal(work.folder / _name_of(index)).entries()
    counts = np.array([(entry["num_records"], entry["num_unreadable"]) for entry in entries]).reshape(-1, 2)
    num_records, num_unreadable = counts.sum(0).tolist()
    return num_records, num_unreadable


def _sources(
    folders: Sequence[Path], tokenizer: Tokenizer, out: Path, config: TokenizeConfig
) -> tuple[list[Database], list[Sequence[str] | RecordSpool], dict[str, dict[str, bool]]]:
    """Return databases, their recordings, and what is stated about these; refuse an `out` that holds something else."""
    opened = [listed(folder, "refuse" if config.strict else "warn") for folder in folders]
    databases, records = [database for database, _ in opened], [names for _, names in opened]
    for name, count in Counter(database.name for database in databases).items():
        if count > 1:
            raise HeartlmError(f"two folders hold a database called {name!r}: rename one, or name it in database.json")
    recover_folder(out)
    is_corpus = (out / "manifest.json").is_file() and ((out / "codes.bin").is_file() or (out / "shards").is_dir())
    if out.exists() and not is_corpus and not (out.is_dir() and not any(out.iterdir())):
        raise HeartlmError(f"{out} exists and is no corpus: choose another name, or remove it first")
    statements = dict[str, dict[str, bool]]()
    for database, names in opened if config.labels is not None or tokenizer.joins_leads else ():
        whole = database.with_files(dict(names)) if isinstance(names, RecordSpool) else database
        stated = statements_of(whole, config.labels)
        statements |= {f"{database.name}/{name}": dict(each) for name, each in stated.items()}
    return databases, records, statements


def _refuse_empty(journals: Iterable[Journal], folders: Sequence[Path]) -> None:
    """Raise a HeartlmError if no part has a token."""
    reasons = list[Any]()
    for journal in journals:
        for entry in journal.entries():
            if any(row["num_tokens"] for row in entry["rows"]):
                return
            reasons += (left_out["reason"] for left_out in entry["dropped"])
    raise HeartlmError(f"nothing to tokenise in {', '.join(map(str, folders))}: {commonest(reasons)}")


# --- shards -----------------------------------------------------------------------------------------------------------

Shard = tuple[int, BuildPlan]
"""Index of a shard, and its parts."""


def _shards_of(out: Path) -> Path:
    """Return the folder of the shards until they are joined."""
    return out.with_name(f".{out.name}.shards")


def _clear_shards(folder: Path, usable: Mapping[str, Any]) -> None:
    """Remove the shards of an earlier build, by their names and settings, unless another process writes them."""
    for name in sorted({path.name.removeprefix(".").removesuffix(".partial") for path in folder.glob("*")}):
        shard = folder / name
        # the partial one first: another process may rename it meanwhile
        own = [Journal(each).settings for each in (shard.with_name(f".{name}.partial"), shard)]
        if name not in usable or usable[name] not in own:
            with suppress(HeartlmError), partial_folder(shard) as partial:
                clear(partial, "*")
                shutil.rmtree(shard, ignore_errors=True)


def _name_of(index: int) -> str:
    return f"{index:04d}"


@dataclass(frozen=True)
class _ShardWork:
    """Building of one shard in a folder of its own, which has its name when it is complete.

    A killed build continues, as that of a corpus does. Returns the number of samples.
    """

    folder: Path
    encode: _Encode
    settings: dict[str, Any]

    def settings_of(self, index: int) -> dict[str, Any]:
        """Return everything that a shard depends on."""
        return self.settings | {"shard": index, "tokens of": self.encode.tokenizer.content_hash()}

    def __call__(self, shard: Shard, at_start: Callable[[Journal], None] | None = None) -> int:
        index, parts = shard
        folder, num_samples = self.folder / _name_of(index), 0
        settings = self.settings_of(index)
        if Journal(folder).settings == settings:
            return 0
        with partial_folder(folder) as partial:
            journal = Journal(partial)
            if journal.settings == settings:
                journal.resume()
            else:
                clear(partial, "*")
                journal.begin(settings)
            if at_start is not None:
                at_start(journal)
            for part in parts.parts(journal.num_parts):
                encoded = self.encode(part)
                num_samples += encoded.num_samples
                journal.add(encoded)
            (partial / "lock").unlink()
            publish_folder(partial, folder)
        return num_samples


def _build_shards(
    out: Path, journal: Journal, settings: dict[str, Any], plan: BuildPlan, encode: _Encode
) -> dict[str, Journal]:
    """Build the shards that are not complete, each by one worker; return the journal of each by its final folder."""
    config, work = encode.config, _ShardWork(_shards_of(out), encode, settings)
    items = list(enumerate(plan.shards(config.num_shards)))
    _clear_shards(work.folder, {_name_of(index): work.settings_of(index) for index, _ in items})
    joined = journal.folder / "shards"
    joined.mkdir(exist_ok=True)
    # a build that was killed when it joined the shards has moved some
    todo = [item for item in items if not (joined / _name_of(item[0])).is_dir()]
    processes = config.processes_for(len(todo))
    with closing(run_each(work, todo, config, processes, start="fork")) as outcomes:
        built = track(outcomes, len(todo), "tokenize", lambda done: 0.0 if isinstance(done, Lost) else done / 1e6)
        for item, outcome in zip(todo, built, strict=True):
            while isinstance(outcome, Lost):
                outcome = _without_lost(work, item)
    for index, _ in todo:
        (work.folder / _name_of(index)).replace(joined / _name_of(index))
    shutil.rmtree(work.folder, ignore_errors=True)  # with those of a build of another number of shards
    return {f"shards/{_name_of(index)}": Journal(joined / _name_of(index)) for index, _ in items}


def _without_lost(work: _ShardWork, shard: Shard) -> int | Lost:
    """Continue a shard whose worker ended twice: encode the next part record by record, then the others as usual."""

    def next_part(journal: Journal) -> None:
        if len(rest := shard[1].parts(journal.num_parts, journal.num_parts + 1)):
            journal.add(next(_encoded(rest, work.encode, 2)))
            raise _AddedError

    with suppress(_AddedError):
        work(shard, next_part)
    return next(run_each(work, [shard], work.encode.config, 2, start="fork"))


class _AddedError(Exception):
    """A part was added to a shard that others continue."""


def build_configured(
    folders: Sequence[Path], out: Path, config: TokenizeConfig, given: Path | None, command: str
) -> Corpus:
    """Build the corpus of the databases in `folders` and open it.

    Args:
        folders: folders of the databases.
        out: the corpus folder.
        config: the settings.
        given: folder of a tokenizer to use; None to fit a new one.
        command: the command line, recorded in the manifest.

    Raises:
        HeartlmError: see `build_corpus`.
    """
    tokenizer = config.new_tokenizer() if given is None else load_tokenizer(given)
    build_corpus(folders, tokenizer, out, config, fit=given is None, command=command)
    return open_corpus(out)


@dataclass(frozen=True)
class _Encode:
    """Encoding of a part; see `encode_part`."""

    tokenizer: Tokenizer
    config: TokenizeConfig
    statements: Statements
    databases: Sequence[Database]

    def __call__(self, part: PartRecords) -> Part:
        return encode_part(part.opened(self.databases), part.record_ids, self.tokenizer, self.config, self.statements)


def _encoded(plan: BuildPlan, encode: _Encode, fewest: int = 1) -> Generator[Part]:
    """Encode the parts of a plan by the engine, with at least `fewest` processes, and yield them in their order.

    If a worker ends twice with a part, its recordings are encoded one by one: the others of the part are not lost.

    Raises:
        HeartlmError: a recording is unreadable or its worker ended, and unreadable recordings are not skipped.
    """
    config = encode.config
    processes = max(config.processes_for(len(plan)), fewest)
    items, sent = tee(plan)
    with closing(run_each(encode, sent, config, processes, start="fork")) as encoded:
        for item, part in zip(items, encoded, strict=True):
            if isinstance(part, Lost):
                with closing(run_each(encode, item.singles(), config, max(processes, 2), start="fork")) as alone:
                    names = [f"{encode.databases[item.database].name}/{record_id}" for record_id in item.record_ids]
                    yield joined_parts([_kept(*pair, config) for pair in zip(names, alone, strict=True)])
            else:
                yield part


def _kept(name: str, part: Part | Lost, config: TokenizeConfig) -> Part:
    """Return the part of one recording, without it if its worker ended twice."""
    if isinstance(part, Part):
        return part
    if not config.skip_unreadable:
        raise HeartlmError(f"{name}: {part.reason}; --skip-unreadable leaves it out")
    without = Part(name.partition("/")[0], 1, tokens=dict.fromkeys(FILES, b""))
    without.drop(name, part.reason, unreadable=True)
    return without


@contextmanager
def _under_way(out: Path) -> Iterator[Journal]:
    """Yield the journal of the partial corpus, which is renamed to `out` if the block succeeds.

    If the block fails, the partial corpus is kept after `WORTH_KEEPING_S` or in a resumed build, and otherwise removed.
    """
    worth_keeping, journal = time.monotonic() + WORTH_KEEPING_S, None
    try:
        with partial_folder(out) as folder:
            journal = Journal(folder)
            if journal.settings is not None:
                worth_keeping = 0.0
            yield journal
            journal.path.unlink()
            (folder / "lock").unlink()
            publish_folder(folder, out)
    except BaseException as error:
        kept = journal is not None and journal.settings is not None and time.monotonic() > worth_keeping
        if journal is not None and not kept:
            shutil.rmtree(journal.folder, ignore_errors=True)
        raised = explained(out, error) if isinstance(error, OSError) else error
        if not isinstance(raised, HeartlmError):
            raise
        text = str(raised) if journal is None else str(raised).replace(str(journal.folder), str(out))
        if kept:
            text += "; what is tokenised so far is kept, the same command continues there"
        raise HeartlmError(text) from error


def _begin(
    journal: Journal,
    settings: dict[str, Any],
    databases: Sequence[Database],
    plan: BuildPlan,
    tokenizer: Tokenizer,
    config: TokenizeConfig,
    fit: bool,
) -> Tokenizer:
    """Resume an earlier build, or start by fitting the tokenizer; return the tokenizer to encode with."""
    earlier_settings = journal.settings
    if earlier_settings == settings:
        journal.resume()
        clear(journal.folder, ".*")  # files that a killed build did not finish
        # what an earlier build with --skip-unreadable left out must stop one without it
        if config.skip_unreadable or not any(entry["num_unreadable"] for entry in journal.entries()):
            done = sum(entry["num_records"] for entry in journal.entries())
            say(f"tokenize: continues after {done:,} of {plan.num_records:,} recordings, done before")
            return load_tokenizer(journal.folder / "tokenizer") if fit else tokenizer
    if earlier_settings is not None:
        changed = [name for name in settings if earlier_settings.get(name) != settings[name]] or ["skip_unreadable"]
        say(f"tokenize: an earlier build was not finished, but {', '.join(changed)} changed since: starts again")
    clear(journal.folder, "*")
    if fit:
        fit_on_training(tokenizer, databases, plan, config)
    tokenizer.save(journal.folder / "tokenizer")
    journal.begin(settings)
    return tokenizer


def fit_on_training(
    tokenizer: Tokenizer, databases: Sequence[Database], plan: BuildPlan, config: TokenizeConfig
) -> None:
    """Fit `tokenizer` on leads of the training split, and record the databases in `fitted_on`.

    Raises:
        HeartlmError: there is no training recording, one is unreadable, or none can be used.
    """
    random = np.random.Generator(np.random.Philox(config.seed))
    chosen: list[SelectedLeads] = []
    for span in sorted(plan.spans, key=lambda span: databases[span.database].name):
        usable: dict[int, SelectedLeads] = {}
        for place, database, record_id in _training(databases[span.database], span.records, random):
            if len(usable) == FIT_RECORDINGS:
                break
            source = find_source(database, record_id, tokenizer, config.training_leads, config.skip_unreadable)
            if isinstance(source, SelectedLeads):
                usable[place] = source
        chosen += [usable[place] for place in sorted(usable)]
    if not chosen:
        raise HeartlmError("no recording is in the training split, so there is nothing to fit the tokenizer on")
    unused, num_leads = Part(""), 0

    def leads() -> Iterator[Lead]:
        nonlocal num_leads
        for source in track(chosen, len(chosen), f"fit the {tokenizer.kind} tokenizer"):
            for lead in readable_leads(source, tokenizer, config, unused):
                num_leads += 1
                yield lead
        if not num_leads:
            reasons = commonest(each["reason"] for each in unused.dropped)
            raise HeartlmError(f"no recording of the training split can be fitted on: {reasons}")

    tokenizer.fit(leads(), config.seed)
    counts = Counter(source.recording.database for source in chosen)
    tokenizer.fitted_on = {"split": "train", "recordings": dict(counts), "seed": config.seed}


def _training(
    database: Database, records: Sequence[str] | RecordSpool, random: np.random.Generator
) -> Iterator[tuple[int, Database, str]]:
    """Yield the recordings of the training split in a random order: place, database with the recording, and name.

    Of a large source the split is looked up when a recording is drawn: it may be in the header.
    """
    if isinstance(records, RecordSpool):
        for place in map(int, random.permutation(len(records))):
            [(record_id, files)] = records[place : place + 1]
            one = database.with_files({record_id: files})
            if one.split_of(record_id) == "train":
                yield place, one, record_id
        return
    training = [record_id for record_id in records if database.split_of(record_id) == "train"]
    for place in random.permutation(len(training)).tolist():
        yield place, database, training[place]


def commonest(reasons: Iterable[Any]) -> str:
    """Return the three most frequent reasons with their counts."""
    counts = Counter(map(str, reasons))
    return "; ".join(f"{reason} ({count})" for reason, count in counts.most_common(3)) or "no recordings"
