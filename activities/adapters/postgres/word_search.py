"""Search by words, for memories and for documents: BM25 in Postgres.

Each word is weighted by its rarity and by its frequency in a row. The frequency saturates and is relative to the row's
length. The question's language is the one that has most of its common words, which are then left out. The other words
are reduced to their stems and find every word that begins with the stem, so that `painted` finds `painting`, too. Rows
contain unreduced words, so they don't depend on the language.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, LiteralString

from loom.activities.adapters.postgres.database import Connection
from loom.domain.core.lexemes import MOST_ASKED, asked_lexemes, lexemes_of

_LANGUAGES: Final = (
    "english", "german", "french", "spanish", "italian", "portuguese", "dutch", "swedish", "russian"
)  # fmt: skip
"""The languages of Postgres's own dictionaries. If two languages fit equally well, the first one is used."""
_READ: Final = """
SELECT language, word, ts_lexize((language || '_stem')::regdictionary, word)
FROM unnest(%s::text[]) AS language, unnest(%s::text[]) AS word
"""
_LEAST_STEM: Final = 4
"""Minimum number of characters for a stem to stand for all words that begin with it."""
_MOST_READ: Final = 60


@dataclass(frozen=True, kw_only=True, slots=True)
class AskedWord:
    """A word of a question."""

    text: str
    """The word, or the beginning of the words to find."""
    is_stem: bool = False

    @property
    def query(self) -> str:
        """The word as a tsquery."""
        return f"'{self.text}':*" if self.is_stem else f"'{self.text}'"


async def asked_words(connection: Connection, question: str) -> list[AskedWord]:
    """Return the question's words without the common words of its language, unless there are no others."""
    wanted = asked_lexemes(question)
    plain = [word for word in dict.fromkeys(lexemes_of(question)) if word.isalpha()][:_MOST_READ]
    if not any(word in plain for word in wanted):
        return [AskedWord(text=word) for word in wanted]
    rows = await (await connection.execute(_READ, (list(_LANGUAGES), plain))).fetchall()
    by_language: dict[str, dict[str, Sequence[str] | None]] = {language: {} for language in _LANGUAGES}
    for language, word, stems in rows:
        by_language[language][word] = stems
    stems = max(by_language.values(), key=lambda stems: sum(found == [] for found in stems.values()))
    telling = [word for word in wanted if stems.get(word) != []] or wanted
    return list(dict.fromkeys(_asked(word, stems.get(word)) for word in telling))[:MOST_ASKED]


def _asked(word: str, stems: Sequence[str] | None) -> AskedWord:
    """Return the word, or what it has in common with its stem, such as `marr` for `married`, whose stem is `marri`."""
    begins = word
    while stems and not stems[0].startswith(begins):
        begins = begins[:-1]
    if stems and begins == stems[0] and begins.endswith("i"):
        begins = begins[:-1]
    return AskedWord(text=begins, is_stem=True) if stems and len(begins) >= _LEAST_STEM else AskedWord(text=word)


def joined(words: Iterable[AskedWord], how: str) -> str:
    """Return a tsquery for several words. `how` is an operator."""
    return how.join(word.query for word in words)


def word_values(words: Sequence[AskedWord], often: Mapping[AskedWord, float], all_rows: float) -> dict[str, object]:
    """Return the parameters of `words_sql`. `often` maps words to the number of rows that contain them, and may lack
    words that only few rows contain.
    """
    queries = {f"w{number}": word.query for number, word in enumerate(words)}
    counts = {f"d{number}": float(often.get(word, 0.0)) for number, word in enumerate(words)}
    return {**queries, **counts, "all_rows": float(all_rows)}


_RARITY: Final = """
ln(1 + (greatest(%(all_rows)s, {rows}) + 0.5) / (greatest(%(d{n})s, count(*) FILTER (WHERE r{n} > 0)) + 0.5)) AS i{n}
"""


def words_sql(table: LiteralString, where: LiteralString, count: int, *, newest: bool, is_counted: bool) -> bytes:
    """Return the SQL for a search by `count` words. It selects each row's id, its share of the highest possible score,
    and the share of the question's words that it contains, weighted by rarity. The best row comes first.

    With `newest`, only the newest rows are ranked. With `is_counted`, rarity is relative to the rows of the view. In
    both forms, `words` is the tsquery that selects rows, and `depth` the number of results.
    """
    numbers = range(count)
    columns = ", ".join(f"ts_rank('{{1,1,1,1}}', lexemes, %(w{n})s::tsquery) AS r{n}" for n in numbers)
    rows = f"(SELECT count(*) FROM {table} WHERE {where})" if is_counted else "count(*)"  # noqa: S608 - constants
    rarity = ", ".join(_RARITY.format(n=n, rows=rows) for n in numbers)
    score = " + ".join(f"i{n} * r{n} / (r{n} + share)" for n in numbers)
    contained = " + ".join(f"CASE WHEN r{n} > 0 THEN i{n} ELSE 0 END" for n in numbers)
    highest = " + ".join(f"i{n}" for n in numbers)
    limit = "ORDER BY id DESC LIMIT %(newest)s" if newest else ""
    return f"""
        WITH matched AS MATERIALIZED (
            SELECT id, length, {columns} FROM {table} WHERE {where} AND lexemes @@ %(words)s::tsquery {limit}
        ),
        rarity AS (SELECT greatest(avg(length), 1) AS usual, {rarity} FROM matched),
        weighed AS (SELECT *, 0.7 * (0.25 + 0.75 * length / usual) AS share FROM matched, rarity)
        SELECT id, (({score}) / ({highest}))::float8, (({contained}) / ({highest}))::float8
        FROM weighed ORDER BY {score} DESC, id DESC LIMIT %(depth)s
        """.encode()  # noqa: S608
