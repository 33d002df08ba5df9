"""Options: from words and settings files to dataclasses, mistakes named in one line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from heartlm.cli.options import existing, parse, seconds
from heartlm.errors import HeartlmError


@dataclass
class Soup:
    """What to cook.

    Attributes:
        pots: one or more of them.
        salt_g: how much salt.
        kind: which soup.
        hot: serve it hot.
        thick: with flour.
        guests: how many; by default all.
        spices: grams of each.
        note: where the recipe is.
    """

    pots: list[str]
    salt_g: float = 1.0
    kind: Literal["pea", "leek"] = "pea"
    hot: bool = True
    thick: bool = False
    guests: int | None = None
    spices: dict[str, float] = field(default_factory=dict)
    note: Path | None = None


@dataclass
class Settings:
    """Settings.

    Attributes:
        steps: how many.
        learning_rate: how fast.
        name: how called.
    """

    steps: int = 10
    learning_rate: float | None = None
    name: str = "a"


def cook(arguments: Sequence[str]) -> int:
    """Cook.

    Examples:
        heartlm cook a
        heartlm cook a b
    """
    raise NotImplementedError(arguments)


def soup(*words: str) -> Soup:
    return parse(Soup, words, "cook", cook, positionals=["pots"])


def settings(*words: str) -> Settings:
    return parse(Settings, words, "set", config_file=True)


def test_defaults() -> None:
    assert soup("red") == Soup(["red"])


@pytest.mark.parametrize(
    "words",
    [("--salt-g", "2.5"), ("--salt_g", "2.5"), ("--salt-g=2.5",), ("--salt_g=2.5",)],
    ids=" ".join,
)
def test_hyphens_and_underscores_are_alike(words: tuple[str, ...]) -> None:
    assert soup("red", *words).salt_g == 2.5


def test_hyphens_in_values_stay() -> None:
    assert soup("red-hot", "--note=/a-b/c_d").pots == ["red-hot"]
    assert soup("x", "--note=/a-b/c_d").note == Path("/a-b/c_d")


@pytest.mark.parametrize(
    ("words", "hot", "thick"),
    [
        ((), True, False),
        (("--no-hot", "--thick"), False, True),
        (("--no_hot",), False, False),
        (("--hot",), True, False),
    ],
)
def test_flags_have_a_yes_and_a_no(words: tuple[str, ...], hot: bool, thick: bool) -> None:
    found = soup("red", *words)
    assert (found.hot, found.thick) == (hot, thick)


def test_several_values() -> None:
    found = soup("red", "blue", "--kind", "leek", "--guests", "3", "--spices", "{mace: 2, salt: 0.5}")
    assert found == Soup(["red", "blue"], kind="leek", guests=3, spices={"mace": 2.0, "salt": 0.5})


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "pots"),
        (("red", "--pepper", "3"), "--pepper"),
        (("red", "--salt-g", "much"), '"salt_g": Expected a number. Got value: much'),
        (("red", "--salt-g"), "--salt-g"),
        (("red", "--kind", "fish"), "\"kind\": Expected one of 'pea', 'leek'. Got value: fish"),
        (("red", "--guests", "2.5"), '"guests": Expected a whole number. Got value: 2.5'),
        (("red", "--spices", "7"), '"spices": Expected a mapping, such as {name: 1}. Got value: 7'),
        (("red", "--hot=perhaps"), "hot"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_field(words: tuple[str, ...], said: str) -> None:
    with pytest.raises(HeartlmError) as error:
        soup(*words)
    text = str(error.value)
    assert said in text and text.endswith("(see heartlm cook --help)")
    assert "\n" not in text and "<class" not in text and "typing" not in text


def test_help_shows_hyphens_defaults_and_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        soup("--help")
    printed = capsys.readouterr().out
    assert (
        "--salt-g" in printed
        and "how much salt" in printed
        and "examples:\n  heartlm cook a\n  heartlm cook a b\n" in printed
    )
    assert "salt_g" not in printed.replace("SALT_G", "")


# --- settings files ---------------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "settings.yaml"
    path.write_text("steps: 20\nlearning_rate: 1e-3\n")
    return path


def test_a_settings_file_first_or_by_name(file: Path) -> None:
    assert settings(str(file)) == settings("--config", str(file)) == Settings(20, 1e-3)


def test_options_win_over_the_file_wherever_they_stand(file: Path) -> None:
    expected = Settings(30, 1e-3, "b")
    assert settings(str(file), "--steps", "30", "--name=b") == expected
    assert settings("--config", str(file), "--steps=30", "--name", "b") == expected


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("stepz: 3\n", "stepz"),
        ("steps: many\n", '"steps": Expected a whole number. Got value: many'),
        ("learning-rate: 1\n", "learning-rate"),
        ("steps: [1\n", "settings.yaml: not valid YAML"),
        ("- steps\n", "settings.yaml: fields with their values expected"),
        ("", "settings.yaml: fields with their values expected"),
        ("\udcff", "settings.yaml: UTF-8 text expected"),
    ],
)
def test_a_mistake_in_the_file_is_one_line(file: Path, content: str, said: str) -> None:
    file.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(HeartlmError) as error:
        settings(str(file))
    assert said in str(error.value) and "\n" not in str(error.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(HeartlmError, match=r"cannot read .*none\.yaml: No such file or directory"):
        settings(str(tmp_path / "none.yaml"))
    with pytest.raises(HeartlmError, match=r"cannot read .*: Is a directory"):
        settings(str(tmp_path))


def test_existing(tmp_path: Path) -> None:
    assert existing(tmp_path, "folder") == tmp_path
    with pytest.raises(HeartlmError, match="none: no such run"):
        existing(tmp_path / "none", "run")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("60", 60),
        ("1485.25", 1485.25),
        ("0:24:45", 1485),
        ("+24:45.5", 1485.5),
        ("90:00", 5400),
        ("25:03:07", 90_187),
        ("1e2", 100),
        ("-5", -5),
    ],
)
def test_a_time_is_seconds_or_has_colons(text: str, expected: float):
    assert seconds(text, "--start") == expected


@pytest.mark.parametrize("text", ["0:74:45", "1:2", "1:60", "1:02:03:04", "::", "", "noon", "nan", "inf", "1:-2"])
def test_another_time_is_refused(text: str):
    with pytest.raises(HeartlmError, match=r"--start is .*expected seconds, m:ss or h:mm:ss"):
        seconds(text, "--start")


def test_options_of_commands_that_open_recordings(monkeypatch: pytest.MonkeyPatch) -> None:
    from heartlm.formats.stated import VARIABLE, Stated

    monkeypatch.delenv(VARIABLE, raising=False)
    words = ["a", "--rate", "250", "--units", "uV,200(1024)/mV", "--leads", "I, V5"]
    assert parse(Settings, words[1:], "tokenize") == Settings()
    assert Stated.current() == Stated(250.0, ("uV", "200(1024)/mV"), ("I", "V5"))
    parse(Settings, [], "tokenize")  # options of one command do not apply to the next
    assert Stated.current() == Stated()
    with Stated(100.0).used():
        assert Stated.current().rate_hz == 100
    for refused, reason in ((["--rate", "0"], "rate: 0 found"), (["--units", "furlong"], "units: 'furlong' found")):
        with pytest.raises(HeartlmError, match=reason):
            parse(Settings, refused, "analyze")
    with pytest.raises(HeartlmError, match="rate"):
        parse(Settings, ["--rate", "250"], "pretrain")
