"""A token says a timing in a few characters, and whatever is handed in, reading it is safe."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrace.device.tokens import MOST_DEVIATIONS, TokenError
from streamrace.replay.deviations import Deviation, Jitter, OperationDelay, Stretch
from streamrace.replay.names import OperationName
from streamrace.replay.tokens import EXAMPLE, Token
from tests.examples import examples

Q = "model.layers.0.self_attn.q_proj.weight"
COPY = OperationName(0, 1, 1, "forward", Q, "copy_", 1)
LONG = OperationName(15, 20, 16, "backward", "model.layers.10.post_attention_layernorm.weight", "reduce_scatter", 12)

EXAMPLES = {
    f"t1,hpz,fix=none,0/1.1/forward/{Q}/copy_/1+64us": Token(
        "hpz", {"fix": "none"}, (OperationDelay(COPY, "long", 64_000),)
    ),
    "t1,main,0/2.1/step///1@+1500ns": Token(
        "main", {}, (OperationDelay(OperationName(0, 2, 1, "step", "", "", 1), "late", 1500),)
    ),
    "t1,main,x4:stream:compute,x2:host,x3:link:nccl%200%2C1,x5:kernel:aten::copy_,x9:rank:1,jitter:20:7": Token(
        "main",
        {},
        (
            Stretch("stream:compute", 4),
            Stretch("host", 2),
            Stretch("link:nccl 0,1", 3),
            Stretch("kernel:aten::copy_", 5),
            Stretch("rank:1", 9),
            Jitter(20, 7),
        ),
    ),
    "t1,16-gpus,deepspeed=0.19.8,hardware=profiles/own.toml,jitter=0.5,x4:host:2": Token(
        "16-gpus", {"jitter": "0.5", "hardware": "profiles/own.toml", "deepspeed": "0.19.8"}, (Stretch("host:2", 4),)
    ),
}

names = st.text(st.characters(exclude_categories=()), max_size=20) | st.text(",/%=+@: x1\n~'\"$`*", max_size=10)
counts = st.integers(0, 10**9)
operations = st.builds(OperationName, counts, counts, counts, names, names, names, st.integers(1, 10**9))
durations = st.integers(1, 10**15) | st.builds(
    lambda n, unit: n * unit, st.integers(1, 10**6), st.just(10**3) | st.just(10**9)
)
delays = st.builds(OperationDelay, operations, st.sampled_from(["late", "long"]), durations)
whats = st.sampled_from(["stream:", "kernel:", "link:"]).flatmap(lambda kind: names.map(kind.__add__))
whats = whats | st.sampled_from(["host", "host:2", "rank:0"])
stretches = st.builds(Stretch, whats, st.integers(2, 10**6))
jitters = st.builds(Jitter, st.integers(1, 10**4), st.integers(0, 10**15))
tokens = st.builds(
    lambda scenario, options, deviations, jitter: Token(scenario, options, (*deviations, *jitter)),
    st.text("abz09-", min_size=1, max_size=10),
    st.dictionaries(st.text("abxz_", min_size=1, max_size=8), names, max_size=4),
    st.lists(delays | stretches, max_size=4),
    st.lists(jitters, max_size=1),
)


@pytest.mark.parametrize("text", EXAMPLES)
def test_what_a_token_looks_like(text: str) -> None:
    assert str(EXAMPLES[text]) == text
    assert Token.parse(text) == EXAMPLES[text]


def test_the_example_in_every_refusal_is_a_token() -> None:
    assert str(Token.parse(EXAMPLE)) == EXAMPLE


@pytest.mark.parametrize("how", ["late", "long"])
def test_one_delay_fits_on_a_line(how: str) -> None:
    text = str(Token("hpz", {"fix": "none"}, (OperationDelay(LONG, how, 64_000),)))  # type: ignore[arg-type]
    assert len(text) <= 120


@pytest.mark.parametrize(
    ("ns", "text"),
    [(1, "1ns"), (64_000, "64us"), (64_001, "64001ns"), (2 * 10**6, "2ms"), (10**9, "1s"), (10**15, "1000000s")],
)
def test_durations_are_exact_and_in_the_largest_unit_that_is(ns: int, text: str) -> None:
    token = Token("hpz", {}, (OperationDelay(COPY, "long", ns),))
    assert str(token).endswith(f"/1+{text}")
    assert Token.parse(str(token)) == token


def test_a_token_may_be_written_in_other_units_and_with_white_space_around() -> None:
    text = f"t1,hpz,0/1.1/forward/{Q}/copy_/1"
    assert Token.parse(f" {text}+1000ns\n") == Token.parse(f"{text}+1us")


def test_a_token_is_the_same_in_whatever_order_its_options_came() -> None:
    one, other = Token("a", {"x": "1", "b": "2"}, ()), Token("a", {"b": "2", "x": "1"}, ())
    assert one == other
    assert hash(one) == hash(other)
    assert str(one) == str(other) == "t1,a,b=2,x=1"


@examples(300)
@given(token=tokens)
def test_every_token_is_read_as_it_was_written_and_needs_no_quotes(token: Token) -> None:
    text = str(token)
    assert Token.parse(text) == token
    assert str(Token.parse(text)) == text
    assert re.fullmatch(r"t1,[A-Za-z0-9_.,:/=@+%-]+", text)


@pytest.mark.parametrize("shell", ["sh", "bash", "zsh"])
def test_a_shell_hands_a_token_on_as_it_is(shell: str) -> None:
    if not shutil.which(shell):
        pytest.skip(f"there is no {shell}")
    odd = "~ a,b/{c,d}[e]*?!$(f)`g`'h'\"i\"\\j#k&l;m|n<o>p%41=~q\n^é"
    token = Token(
        "hpz", {"fix": odd}, (OperationDelay(COPY._replace(parameter=odd), "late", 64_000), Stretch(f"link:{odd}", 2))
    )
    options = {"bash": ["-O", "extglob"], "zsh": ["-o", "extendedglob", "-o", "magicequalsubst"]}.get(shell, [])
    told = subprocess.run([shell, *options, "-c", f"printf %s {token}"], capture_output=True, text=True, check=True)
    assert Token.parse(told.stdout) == token


@examples(300)
@given(text=st.text(st.characters(exclude_categories=())) | st.text("t1,hpz=x4:/.+@%s ").map("t1,a,".__add__))
def test_any_text_is_a_token_or_refused(text: str) -> None:
    read_or_refused(text)


@examples(300)
@given(token=tokens, data=st.data())
def test_a_token_with_errors_of_typing_is_a_token_or_refused(token: Token, data: st.DataObject) -> None:
    text = str(token)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        instead = data.draw(st.text(",/%=+@:.x019n \u0661\ud800", max_size=2))
        text = text[:at] + instead + text[at + data.draw(st.integers(0, 2)) :]
    read_or_refused(text)


def read_or_refused(text: str) -> None:
    try:
        token = Token.parse(text)
    except TokenError as error:
        said = str(error)
    else:
        said = f"it is {token}; a token looks like {EXAMPLE}"
        assert Token.parse(str(token)) == token
    assert said.endswith(f"; a token looks like {EXAMPLE}")
    assert said.isprintable()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "'' does not begin with the version of a token: this release reads t1"),
        ("hpz,fix=none", "'hpz,fix=none' does not begin with the version"),
        ("t2,hpz,y", "'t2,hpz,y' is of another version: this release reads t1"),
        ("t1", "'t1' names no scenario"),
        ("t1,HPZ", "part 2 of the token, 'HPZ', does not name a scenario"),
        ("t1,hpz,", "part 3 of the token, '', is neither an option (fix=none) nor a deviation"),
        ("t1,hpz,Fix=none", "part 3 of the token, 'Fix=none', has 'Fix' for an option's name"),
        ("t1,hpz,fix=none,fix=none", "part 4 of the token, 'fix=none', gives an option a second time"),
        ("t1,hpz,fix=a b", "has ' ', which a token writes as '%20'"),
        ("t1,hpz,fix=5%", "has '%', which a token writes as '%25' where no code follows"),
        ("t1,hpz,fix=%FF", "has percent codes that are not UTF-8"),
        ("t1,hpz,x4:link:nccl é", "has ' ', which"),
        ("t1,hpz,x4:link:é", r"'x4:link:\xe9', has '\xe9', which a token writes as '%C3%A9'"),
        ("t1,hpz,x1:host", "'x1:host', is out of bounds: a factor is from 2 to 1000000;"),
        ("t1,hpz,x1000001:host", "a factor is from 2 to 1000000"),
        ("t1,hpz,x4:compute", "stretches none of stream:..., kernel:..., link:..., rank:1, host and host:1"),
        ("t1,hpz,x4:host:all", "stretches none of"),
        ("t1,hpz,jitter:0:1", "a jitter is from 1 to 10000 %"),
        ("t1,hpz,jitter:10001:1", "a jitter is from 1 to 10000 %"),
        ("t1,hpz,jitter:1:1,jitter:1:2", "part 4 of the token, 'jitter:1:2', has a second jitter"),
        ("t1,hpz,0/1.1/forward/p/copy_/1+0us", "a delay is from 1 to 1000000000000000 ns"),
        ("t1,hpz,0/1.1/forward/p/copy_/1+1000001s", "a delay is from 1 to 1000000000000000 ns"),
        ("t1,hpz,0/1.1/forward/p/copy_/0+1us", "an occurrence is from 1"),
        ("t1,hpz,0/1.1/forward/p/copy_/1+1.5us", "is neither an option"),
        ("t1,hpz,0/1.1/forward/p/copy_/1-1us", "is neither an option"),
        ("t1,hpz,0/1.1/forward/p/q/copy_/1+1us", "is neither an option"),
        ("t1,hpz,0/1.1/forward/p/copy_/\u0661+1us", "is neither an option"),
        (f"t1,hpz,x{'9' * 5000}:host", "has a number of more than 18 digits"),
        (f"t1,hpz,{'y' * 5000}", f"'{'y' * 77}...', is neither"),
        (f"t1,hpz,fix={'y' * 10_000}", "has 10011 characters, and a token at most 10000"),
        ("t1,hpz" + ",x2:host" * 65, "part 67 of the token, 'x2:host', goes beyond the 64 deviations"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(text: str, says: str) -> None:
    with pytest.raises(TokenError) as error:
        Token.parse(text)
    assert says in str(error.value)
    assert str(error.value).endswith(f"; a token looks like {EXAMPLE}")


def test_as_much_as_is_allowed_is_read() -> None:
    token = Token("hpz", {}, (OperationDelay(COPY, "late", 10**15),) * MOST_DEVIATIONS)
    assert Token.parse(str(token)) == token


@pytest.mark.parametrize(
    ("scenario", "options", "deviation", "says"),
    [
        ("h,pz", {}, Stretch("host", 2), "this token does not name a scenario"),
        ("hpz\n", {}, Stretch("host", 2), "this token does not name a scenario"),
        ("hpz", {"a=b": ""}, Stretch("host", 2), "this token has 'a=b' for an option's name"),
        ("hpz", {"fix": "é" * 2000}, Stretch("host", 2), "this token has more than 10000 characters"),
        ("hpz", {}, Stretch("host", 1), "'x1:host' is out of bounds: a factor is from 2 to 1000000"),
        ("hpz", {}, OperationDelay(COPY, "late", 0), "/copy_/1@+0s' is out of bounds: a delay is from 1"),
        ("hpz", {}, OperationDelay(COPY._replace(step=-1), "late", 1), "a step is from 0"),
    ],
)
def test_no_token_is_made_that_could_not_be_read(
    scenario: str, options: dict[str, str], deviation: Deviation, says: str
) -> None:
    with pytest.raises(TokenError) as error:
        Token(scenario, options, (deviation,))
    assert says in str(error.value)
