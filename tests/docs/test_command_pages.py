"""Every command has its part of a page, with what it takes."""

from __future__ import annotations

from tests.docs.pages import DOCS, command_pages, examples_of, leaf_commands


def test_every_command_and_option_is_on_a_page() -> None:
    pages = command_pages(DOCS)
    for path, command in leaf_commands():
        level = "#" if len(path) == 1 else "##"
        page = pages[path[0]]
        assert f"{level} lpx {' '.join(path)}\n" in page
        part = page.split(f"{level} lpx {' '.join(path)}\n")[1].split("\n## ")[0]
        for parameter in command.params:
            if not parameter.hidden:
                shown = parameter.opts[-1] if parameter.param_type_name == "option" else parameter.human_readable_name
                assert shown in part, (path, parameter)
        for _, example in examples_of(command):
            assert example in part


def test_commands_link_the_pages_that_use_them() -> None:
    assert "[Many requests from a file](../batch.md)" in command_pages(DOCS)["batch"]
