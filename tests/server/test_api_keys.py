"""Where keys come from, how they are told apart, and that nothing ever repeats one."""

from __future__ import annotations

import os
from hmac import compare_digest
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lpx.errors import ConfigError
from lpx.server import api_keys
from lpx.server.api_keys import ApiKeyError, KeyRing, parse_key_file
from lpx.server.sessions import LIFETIME_S, MAX_SESSIONS, Sessions
from lpx.server.settings import Limits, ServerSettings

ALICE, BOB = "sk-alice-0123456789", "sk-bob-0123456789ab"


def write(tmp_path: Path, text: str, mode: int = 0o600) -> Path:
    path = tmp_path / "keys.txt"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_file_gives_names_keys_and_limits() -> None:
    keys, defaults = parse_key_file(
        f"# who may come in\n\n* requests_per_minute=600\n"
        f"  alice:{ALICE}  tokens_per_minute=5000 max_choices=2  # she = alice\n{BOB}  # and he\n",
        "keys.txt",
    )
    assert keys[0].name == "alice"
    assert keys[0].limits == Limits(tokens_per_minute=5000, max_choices=2)
    assert keys[1].name.startswith("key-")
    assert defaults == Limits(requests_per_minute=600)


def test_limits_for_all_keys_fill_what_a_key_leaves_open(tmp_path: Path) -> None:
    ring = KeyRing(
        ["sk-given-0123456789"], write(tmp_path, f"* requests_per_minute=60\na:{ALICE} requests_per_minute=5\n")
    )
    assert [key.limits.requests_per_minute for key in ring.keys] == [60, 5]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a:SECRET-9 requests_per_minute", "line 1"),
        ("\n\na:SECRET-9 requests_per_minute=0", "line 3"),
        ("a:SECRET-9 requests_per_minute=-1", "line 1"),
        ("a:SECRET-9 requests_per_minute=1.5", "line 1"),
        ("a:SECRET-9 max_choices=1 max_choices=2", "each once"),
        ("a:SECRET-9 SECRET-9=1", "requests_per_minute"),
        ("a: SECRET-9", "line 1"),
        ("a:", "visible ASCII"),
        ("key = SECRET-9", "line 1"),
        ("a:SECRET-9\nb:SECRET-9", "same key"),
        ("a:SECRET-9\na:SECRET-10", "same name"),
        ("a:SÉCRET-9", "visible ASCII"),
        ("a:" + "SECRET-9" * 100, "visible ASCII"),
        ("# nothing\n\n* max_choices=1", "no keys"),
    ],
)
def test_a_wrong_file_is_refused_and_not_repeated(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        KeyRing(path=write(tmp_path, text))
    assert said in str(caught.value)
    assert "CRET" not in str(caught.value)


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        KeyRing(path=tmp_path / "missing")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="UTF-8"):
        KeyRing(path=tmp_path / "binary")
    (tmp_path / "large").write_bytes(b"#" * 1_100_000)
    with pytest.raises(ConfigError, match="has more than"):
        KeyRing(path=tmp_path / "large")


def test_a_file_that_others_can_read_and_a_short_key_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    KeyRing(path=write(tmp_path, f"a:{ALICE}"))
    assert not caplog.records
    KeyRing(path=write(tmp_path, "a:short", 0o640))
    assert "chmod 600" in caplog.text
    assert "may be guessed" in caplog.text
    assert "short" not in caplog.text


def test_only_whole_keys_are_found() -> None:
    ring = KeyRing([ALICE, BOB])
    found = ring.find(ALICE)
    assert found is not None
    assert found == ring.keys[0]
    assert ring.with_identity(found.identity) == found
    for candidate in ("", ALICE[:-1], ALICE + "x", ALICE.upper(), " " + ALICE, "\udcff", "é" * 1000):
        assert ring.find(candidate) is None


@given(st.text(max_size=40))
def test_no_other_text_is_a_key(text: str) -> None:
    ring = KeyRing([ALICE])
    assert (ring.find(text) is not None) == (text == ALICE)


def test_every_key_is_compared_in_full_whichever_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = KeyRing([f"sk-0123456789abcdef-{number}" for number in range(5)])
    compared: list[tuple[int, int]] = []

    def noting(a: bytes, b: bytes) -> bool:
        compared.append((len(a), len(b)))
        return compare_digest(a, b)

    monkeypatch.setattr(api_keys, "compare_digest", noting)
    for candidate in ("sk-0123456789abcdef-0", "sk-0123456789abcdef-4", "sk-", ""):
        compared.clear()
        ring.find(candidate)
        assert compared == [(32, 32)] * 5  # digests of one length, all of them


def test_keys_are_in_no_text_that_python_makes_of_them() -> None:
    ring = KeyRing([ALICE])
    settings = ServerSettings(api_keys=(ALICE,))
    for shown in (repr(ring.keys), str(ring.keys[0]), repr(settings), repr(vars(ring)["_keys"])):
        assert ALICE not in shown
        assert repr(ring.keys[0].digest) not in shown


def test_a_file_is_read_again_and_a_wrong_one_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path, f"a:{ALICE}")
    ring = KeyRing(path=path)
    before = ring.find(ALICE)
    path.write_text(f"b:{BOB}\na:{ALICE}")
    ring.reload()
    assert ring.find(BOB) is not None
    assert ring.find(ALICE) == before
    path.write_text("a:")
    with pytest.raises(ConfigError):
        ring.reload()
    assert ring.find(BOB) is not None
    path.write_text(f"b:{BOB}")
    ring.reload()
    assert ring.find(ALICE) is None


# --- sessions -----------------------------------------------------------------------------------------------------


def test_a_session_ends_by_time_with_its_key_and_when_there_are_too_many(tmp_path: Path) -> None:
    path = write(tmp_path, f"a:{ALICE}\nb:{BOB}")
    ring = KeyRing(path=path)
    now = 0.0
    sessions = Sessions(ring, lambda: now)
    alice, bob = ring.keys
    token = sessions.begin(alice)
    assert sessions.find(token) == alice
    assert sessions.find(token[:-1]) is None
    now = LIFETIME_S
    assert sessions.find(token) is None
    token, other = sessions.begin(alice), sessions.begin(bob)
    path.write_text(f"b:{BOB}")
    ring.reload()
    assert sessions.find(token) is None
    assert sessions.find(other) == ring.keys[0]
    for _ in range(MAX_SESSIONS):
        sessions.begin(ring.keys[0])
    assert sessions.find(other) is None


def test_a_key_file_that_is_no_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, why in (
        (tmp_path / "pipe", "holds no keys"),  # nobody writes to it
        (tmp_path, "cannot be read"),
        (Path("/dev/zero"), "cannot be read"),
        (Path("a\0b"), "cannot be read"),
    ):
        with pytest.raises(ApiKeyError, match=why):
            KeyRing(path=path)
