"""Addresses lose what may be a secret, wherever it is written, and keep what names a place."""

from __future__ import annotations

import pytest

from lpx.addresses import without_secrets


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://u:MARKER@h/x", "https://h/x"),
        ("https://MARKER@h:80/x?a=MARKER#MARKER", "https://h:80/x"),
        ("https://u:MA/RKER@h/x", "https://h/x"),
        ("https://u:p#MARKER@h/x?y", "https://h/x"),
        ("https://u:p?MARKER", "https://…"),
        ("https://u:12/MARKER@h/x", "https://h/x"),
        ("https://u:12#MARKER@h", "https://h"),
        ("//u:MARKER@h", "//h"),
        ("u:MARKER@h:80 h/x?access_token=MARKER y", "h:80 h/x y"),
        ("proxy=http://u:MARKER@p:3128/: refused", "proxy=http://p:3128/: refused"),
        ('{"model": "https://u:MARKER@h?x=MARKER", "k": 1}', '{"model": "https://h", "k": 1}'),
    ],
)
def test_secrets_of_addresses_are_dropped(text: str, shown: str) -> None:
    assert without_secrets(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        *(
            "https://[::1]:8080/v1",
            "https://北京.cn/模型",
            "https://h/@scope/pkg",
            "tcp://1.2.3.4:80",
            "file:///home/x",
        ),
        *("/home/u/模型", "C:\\x", "a//b/c", "hf:owner/name:q4@main", "sport = :8080", "what? x = 1", "git@h:a/b.git"),
    ],
)
def test_what_names_a_place_stays(text: str) -> None:
    assert without_secrets(text) == text
