"""Conditions on the columns of an index, as `duration_s >= 10 and num_leads = 12`.

    condition  = term {"or" term}
    term       = factor {"and" factor}
    factor     = "not" factor | "(" condition ")" | COLUMN comparison
    comparison = ("=" | "!=" | "<" | "<=" | ">" | ">=") VALUE
               | ["not"] "in" "(" VALUE {"," VALUE} ")" | "is" ["not"] "null" | "has" TEXT

`has` looks for one of the values of a column with several, as leads. Values are numbers, or texts in quotes, which also
state dates. The condition becomes an expression of Arrow; nothing of it is executed.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any, NoReturn

from heartlm.errors import HeartlmError

_TOKEN = re.compile(
    r"""\s*(?:(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)(?![\w.])
        |(?P<text>'(?:[^']|'')*'|"(?:[^"]|"")*")|(?P<word>[A-Za-z_]\w*)|(?P<sign><=|>=|!=|<>|==|=|<|>|\(|\)|,))""",
    re.VERBOSE,
)
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_DEEPEST = 50


def parse_where(text: str, schema: Any) -> Any:
    """Return a condition as an expression of Arrow.

    Args:
        text: the condition.
        schema: columns of the table, as of Arrow.

    Raises:
        HeartlmError: the condition does not follow the grammar, or names a column that there is not.
    """
    return _Parser(text, schema).parse()


class _Parser:
    def __init__(self, text: str, schema: Any) -> None:
        self.text, self.schema, self.place, self.depth = text, schema, 0, 0
        self.tokens = list[tuple[str, str, int]]()  # kind, text, place
        end = 0
        while end < len(text.rstrip()):
            if (match := _TOKEN.match(text, end)) is None:
                self.refuse(f"{text[end:].lstrip()[0]!r} found", end)
            kind = str(match.lastgroup)
            self.tokens.append((kind, match[kind], match.start(kind)))
            end = match.end()

    def refuse(self, what: str, at: int | None = None) -> NoReturn:
        if at is None:
            at = self.tokens[self.place][2] if self.place < len(self.tokens) else len(self.text)
        raise HeartlmError(
            f"where: {what} at character {at + 1} of {self.text!r}; a condition such as  duration_s >= 10 and "
            "num_leads = 12  expected"
        )

    def taken(self, *texts: str) -> str | None:
        """Take the next token if it is one of `texts`, in any case."""
        if self.place < len(self.tokens):
            kind, text, _ = self.tokens[self.place]
            if kind in ("word", "sign") and text.lower() in texts:
                self.place += 1
                return text.lower()
        return None

    def need(self, text: str) -> None:
        if self.taken(text) is None:
            self.refuse(f"{text!r} missing")

    def parse(self) -> Any:
        expression = self.condition()
        if self.place < len(self.tokens):
            self.refuse(f"{self.tokens[self.place][1]!r} found")
        return expression

    def condition(self) -> Any:
        expression = self.term()
        while self.taken("or"):
            expression = expression | self.term()
        return expression

    def term(self) -> Any:
        expression = self.factor()
        while self.taken("and"):
            expression = expression & self.factor()
        return expression

    def factor(self) -> Any:
        self.depth += 1
        if self.depth > _DEEPEST:
            self.refuse("too many parentheses")
        if self.taken("not"):
            expression = ~self.factor()
        elif self.taken("("):
            expression = self.condition()
            self.need(")")
        else:
            expression = self.comparison()
        self.depth -= 1
        return expression

    def comparison(self) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        kind, name, _ = self.tokens[self.place] if self.place < len(self.tokens) else ("", "", 0)
        if kind != "word":
            self.refuse("name of a column missing")
        if name not in self.schema.names:
            self.refuse(f"no column {name!r} (there are {', '.join(self.schema.names)})")
        self.place += 1
        column, of = pc.field(name), self.schema.field(name).type
        if self.taken("is"):
            is_not = self.taken("not")
            self.need("null")
            return ~column.is_null() if is_not else column.is_null()
        if self.taken("has"):
            if not pa.types.is_string(of):
                self.refuse(f"{name} has numbers, not texts")
            value = self.value(of)
            return pc.match_substring_regex(column, f"(^|; ){re.escape(value)}(; |$)")
        is_not = self.taken("not")
        if self.taken("in"):
            self.need("(")
            values = [self.value(of)]
            while self.taken(","):
                values.append(self.value(of))
            self.need(")")
            found = column.isin(pa.array(values, of))
            return ~found if is_not else found
        sign = None if is_not else self.taken(*_COMPARE)
        if sign is None:
            self.refuse("=, !=, <, <=, >, >=, in, is or has missing")
        return _COMPARE[sign](column, pa.scalar(self.value(of), of))

    def value(self, of: Any) -> Any:
        """Take a value of the type of a column."""
        import pyarrow as pa

        kind, text, _ = self.tokens[self.place] if self.place < len(self.tokens) else ("", "", 0)
        if kind not in ("number", "text"):
            self.refuse("a value missing (texts stand in quotes)")
        is_number = not (pa.types.is_string(of) or pa.types.is_timestamp(of))
        if is_number != (kind == "number"):
            self.refuse(f"{text} found, a {'number' if is_number else 'text in quotes'} expected")
        value: Any = text[1:-1].replace(2 * text[0], text[0]) if kind == "text" else float(text)
        if pa.types.is_timestamp(of):
            try:
                value = pa.scalar(value).cast(of).as_py()
            except pa.ArrowInvalid:
                self.refuse(f"{text} found, a date such as '2020-01-31' or '2020-01-31T12:00:00' expected")
        elif pa.types.is_integer(of):
            if value != int(value):
                self.refuse(f"{text} found, a whole number expected")
            value = int(value)
        self.place += 1
        return value
