"""What comes in pieces shows no secret, wherever it is cut."""

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from itertools import groupby, pairwise
from operator import itemgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom.activities.adapters.redaction.disguises import LEAST_TAIL
from loom.activities.adapters.redaction.mask import LINE_LIMIT, RESERVE, WORDS, SecretMask, StreamingMask
from loom.activities.adapters.redaction.patterns import ANYWHERE, BEFORE_RUNS, IN_RUNS
from loom.activities.call_model import Streamed
from loom.domain.agents.spec import AgentSpec
from loom.domain.core.messages import Tail
from loom.domain.core.tasks import Action, Origin
from loom.domain.run.activity_payloads import ModelRequest
from loom.domain.run.stream_events import StreamEvent, model_said, model_thought
from tests.corpora.secrets.making import ALNUM, Maker
from tests.corpora.secrets.samples import Sample, leaks, samples

CORPUS = tuple(samples(seed=20_260_101))
MAKER = Maker(7)
MASK = SecretMask([MAKER.password() + "/" + MAKER.password()])


def streamed(mask: SecretMask, pieces: list[str], line_limit: int = LINE_LIMIT, reserve: int = RESERVE) -> str:
    stream = StreamingMask(mask, line_limit=line_limit, reserve=reserve)
    return "".join([*map(stream.feed, pieces), stream.flush()])


def cut(text: str, places: list[int]) -> list[str]:
    at = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[start:end] for start, end in pairwise(at)]


SECRETS = st.sampled_from(CORPUS)
FILLER = st.text(alphabet=st.sampled_from(" \n\r\tabc=:/.\"'é"), max_size=30)
PLACES = st.lists(st.integers(0, 10_000), max_size=30)


@given(st.lists(st.tuples(FILLER, SECRETS), min_size=1, max_size=4), PLACES)
def test_wherever_a_stream_is_cut_it_shows_what_the_whole_text_shows(
    parts: list[tuple[str, Sample]], places: list[int]
) -> None:
    text = "\n".join(filler + "\n" + sample.text for filler, sample in parts) + "\n"
    assert streamed(MASK, cut(text, places)) == MASK.redact(text)


SHORT = st.sampled_from([sample for sample in CORPUS if len(sample.text) < 190 and "\n" not in sample.text])


@given(SHORT, st.integers(0, 400), st.integers(0, 400), st.integers(1, 64), st.sampled_from([" ", "x", ";", '"a",']))
def test_in_a_line_too_long_to_wait_for_nothing_leaks_either(
    sample: Sample, before: int, after: int, size: int, filler: str
) -> None:
    edge = "" if filler == " " else " "
    text = filler * before + edge + sample.text + edge + filler * after
    shown = streamed(MASK, [text[at : at + size] for at in range(0, len(text), size)], line_limit=300, reserve=200)
    if not leaks(sample, MASK.redact(text)):
        assert not leaks(sample, shown)


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_no_kind_of_secret_leaks_from_an_endless_line(every: int) -> None:
    kinds = {sample.kind: sample for sample in CORPUS if not leaks(sample, MASK.redact(sample.text))}
    for number, sample in enumerate([*kinds.values()][::every]):
        text = "word " * 4000 + "x" * number + " " + sample.text + " word" * 4000
        shown = streamed(SecretMask(), [text[at : at + 3001] for at in range(0, len(text), 3001)])
        assert not leaks(sample, shown), sample.kind
        assert shown.startswith("word " * 4000)
        assert shown.endswith(" word" * 4000)


@pytest.mark.parametrize("cuts", [12, pytest.param(40, marks=pytest.mark.slow)])
def test_a_cut_in_two_of_every_kind_of_secret_is_safe(cuts: int) -> None:
    kinds = {sample.kind: sample for sample in CORPUS}
    for sample in kinds.values():
        whole = MASK.redact(sample.text)
        step = max(1, len(sample.text) // cuts)
        for at in range(0, len(sample.text), step):
            assert streamed(SecretMask(), [sample.text[:at], sample.text[at:]]) == whole, (sample.kind, at)


def test_whole_lines_pass_at_once_and_unfinished_ones_wait() -> None:
    stream = StreamingMask(SecretMask())
    secret = "gh" + "p_" + MAKER.of(ALNUM, 36)
    seen = [stream.feed(piece) for piece in ("one\ntw", "o\n", "tok " + secret[:9], secret[9:], "\n10 %\r", "end")]
    assert [*seen, stream.flush()] == ["one\n", "two\n", "", "", "tok [REDACTED]\n10 %\r", "", "end"]


def test_an_open_key_waits_for_its_end_and_no_longer() -> None:
    key = next(sample for sample in CORPUS if sample.kind == "rsa key").text
    stream = StreamingMask(SecretMask())
    seen = [stream.feed(line) for line in f"before\n{key}after\n".splitlines(keepends=True)]
    assert "".join(seen) == "before\n[REDACTED]\nafter\n"
    assert [piece for piece in seen if piece] == ["before\n", "[REDACTED]\n", "after\n"]


def test_what_a_stream_keeps_back_is_bounded() -> None:
    stream = StreamingMask(SecretMask())
    fed = shown = 0
    for piece in ("-----BEGIN RSA PRIVATE KEY-----\n", *["no key at all, but a long story\n"] * 4000, "ab " * 40_000):
        fed, shown = fed + len(piece), shown + len(stream.feed(piece))
        assert fed - shown < 100_000
    assert shown > 100_000


def words(mask: SecretMask, pieces: list[str]) -> list[str]:
    stream = StreamingMask(mask, ends=WORDS)
    return [*map(stream.feed, pieces), stream.flush()]


def test_words_pass_as_soon_as_they_are_complete() -> None:
    seen = words(SecretMask(), ["The ans", "wer", " is ", "4", "2. Use ", '"x = 1" ', "then"])
    assert seen == ["The ", "", "answer is ", "", "42. Use ", '"x = 1" ', "", "then"]


@given(SHORT, PLACES)
def test_word_by_word_no_secret_leaks_wherever_the_text_is_cut(sample: Sample, places: list[int]) -> None:
    text = f"It says: {sample.text} and that is all. "
    if not leaks(sample, MASK.redact(text)):
        assert not leaks(sample, "".join(words(MASK, cut(text, places))))


OWN = MAKER.of(ALNUM, 24)


@given(
    st.sampled_from([" ".join(OWN), f"{OWN[:10]}\n{OWN[10:]}", OWN.upper(), OWN[::-1], f"{OWN[:8]} {OWN[8:]}"]), PLACES
)
def test_a_known_secret_in_disguise_is_held_back_until_it_is_whole(disguised: str, places: list[int]) -> None:
    text = f"It says {disguised}\nand that is all.\n"
    for shown in ("".join(words(SecretMask([OWN]), cut(text, places))), streamed(SecretMask([OWN]), cut(text, places))):
        assert shown.startswith("It says ")
        assert shown.endswith("[REDACTED]\nand that is all.\n")
        assert len(shown) < len("It says [REDACTED]\nand that is all.\n") + 2 * LEAST_TAIL


REQUEST = ModelRequest(
    origin=Origin(run_id="r"), turn=1, spec_digest="", spec=AgentSpec(name="a", model="m"), tail=Tail()
)
KINDS = st.sampled_from([Action.REASONING, Action.THINKING])


def told(made: list[tuple[Action, str]], places: list[int]) -> list[tuple[Action, str]]:
    """What the stream tells of a reply in which the model thinks and writes by turns, cut anywhere."""
    emitted: list[StreamEvent] = []
    thinking = Streamed(emitted.append, REQUEST, StreamingMask(MASK, ends=WORDS), model_thought)
    text = Streamed(emitted.append, REQUEST, StreamingMask(MASK, ends=WORDS), model_said)
    text.other, thinking.other = thinking, text
    for kind, whole in made:
        for piece in cut(whole, places):
            (text if kind is Action.THINKING else thinking).add(piece)
    thinking.end()
    text.end()
    return in_turn((event.action, event.parameters["content"]) for event in emitted)


def in_turn(pieces: Iterable[tuple[Action, str]]) -> list[tuple[Action, str]]:
    """Pieces of one kind that follow each other, joined."""
    grouped = groupby((piece for piece in pieces if piece[1]), key=itemgetter(0))
    return [(kind, "".join(text for _, text in pieces)) for kind, pieces in grouped]


@given(st.lists(st.tuples(KINDS, st.text(alphabet="ab. \n"))), PLACES)
def test_thinking_and_text_come_in_the_order_in_which_the_model_made_them(
    made: list[tuple[Action, str]], places: list[int]
) -> None:
    assert told(made, places) == in_turn(made)


@given(st.lists(st.tuples(KINDS, SHORT), min_size=1, max_size=4), PLACES)
def test_no_secret_leaks_from_thinking_and_text_by_turns(parts: list[tuple[Action, Sample]], places: list[int]) -> None:
    made = [(kind, f"It says: {sample.text} and that is all. ") for kind, sample in parts]
    shown = "".join(text for _, text in told(made, places))
    for (_, sample), (_, text) in zip(parts, made, strict=True):
        assert leaks(sample, MASK.redact(text)) or not leaks(sample, shown)


LITERALS = sorted((shape.literal for shape in (*IN_RUNS, *BEFORE_RUNS, *ANYWHERE)), key=len)


def drawn(sample: Sample) -> Sample:
    """The sample without the part of its secret that all secrets of its format have."""
    prefix = next((literal for literal in reversed(LITERALS) if sample.secret.startswith(literal)), "")
    return replace(sample, secret=sample.secret.removeprefix(prefix) or sample.secret)


@cache  # and not when the tests are collected, which each process does
def drawn_corpus() -> list[Sample]:
    """Those of the corpus that are masked in one piece."""
    return [drawn(sample) for sample in CORPUS if not leaks(sample, MASK.redact(sample.text))]


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_no_half_of_any_kind_of_secret_shows_where_the_model_thinks_between_the_halves(every: int) -> None:
    for sample in [*{each.kind: each for each in drawn_corpus()}.values()][::every]:
        for at in range(0, len(sample.text), max(1, len(sample.text) // 6)):
            shown = interrupted(f"It says: {sample.text} and that is all.", [at + len("It says: ")])
            assert not leaks(sample, shown), (sample.kind, at, shown)
            assert shown.startswith("It says: ")


def test_the_name_before_a_long_value_counts_however_far_away_it_is() -> None:
    secret = "dZKogt/" + 60 * "1EsHpMTOlHGhn0V"
    shown = interrupted(f'It says: {{"SessionToken": "{secret}"}} and that is all.', [700])
    assert shown.startswith('It says: {"SessionToken": "[REDACTED]')
    assert "dZKogt" not in shown


@given(st.deferred(lambda: st.sampled_from(drawn_corpus())), PLACES)
def test_no_part_of_a_secret_shows_however_often_the_model_thinks_meanwhile(sample: Sample, places: list[int]) -> None:
    text = f"It says: {sample.text} and that is all."
    shown = interrupted(text, places)
    # Until a secret goes on for so long, it may be a word.
    assert leaks(sample, MASK.redact(text)) or not leaks(sample, shown, least=12), shown


def test_the_beginning_of_a_secret_that_a_number_precedes_does_not_show() -> None:
    secret = "AA" + "DgRYSX" + MAKER.of(ALNUM, 27)
    said = f"BOT=590429305:{secret}"
    assert secret not in MASK.redact(said)
    assert interrupted(said, [said.index(secret) + 8]) == "BOT=590429305[REDACTED][REDACTED]"


@given(st.integers(1, len(OWN) - 1), st.sampled_from([OWN, OWN.upper(), OWN[::-1]]))
def test_no_half_of_a_known_secret_shows_either(at: int, spelt: str) -> None:
    shown = interrupted(spelt, [at], SecretMask([OWN]))
    assert max(len(part) for part in shown.split("[REDACTED]")) < LEAST_TAIL


@pytest.mark.parametrize(
    "said", ["so we use GitHub.", "It is 42", "a pattern", "in 3.5 days", "一二三 GPT-4o。", 'He said: "I']
)
def test_what_can_not_begin_a_secret_shows_before_the_model_thinks_again(said: str) -> None:
    stream = StreamingMask(MASK, ends=WORDS)
    assert stream.feed(said) + stream.pause() == said


def interrupted(text: str, places: list[int], mask: SecretMask = MASK) -> str:
    """What the stream shows of a text between whose parts the model thinks."""
    stream = StreamingMask(mask, ends=WORDS)
    shown = [stream.feed(part) + stream.pause() for part in cut(text, places)]
    return "".join([*shown, stream.flush()])


def test_a_switch_to_thinking_and_back_shows_no_half_of_a_secret() -> None:
    secret = "gh" + "p_" + MAKER.of(ALNUM, 36)
    made = [(Action.THINKING, secret[:20]), (Action.REASONING, "hm. "), (Action.THINKING, secret[20:])]
    assert [text for _, text in told(made, [])] == ["[REDACTED]", "hm. ", "[REDACTED]"]
