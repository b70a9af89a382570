"""A model of an old layout has no place for its speed; the command that its refusal names gives it one."""

from __future__ import annotations

import shlex

import pytest
from typer.testing import CliRunner

from lpx.cli.app import app
from lpx.errors import ModelStoreError
from lpx.store import find_stored
from lpx.store.importing import check_has_manifest, note_speed
from tests.reference.model_files import write_hf_folder, write_model_gguf
from tests.reference.tiny_models import make_tiny


@pytest.mark.parametrize("layout", ["file in a folder", "file beside", "hugging face folder"])
def test_the_command_that_is_named_gives_an_old_layout_a_manifest(layout, tmp_path):
    config, weights = make_tiny("llama", seed=1)
    folder = tmp_path / "模型 folder"
    folder.mkdir()
    if layout == "hugging face folder":
        write_hf_folder(folder / "old", config, weights)
    elif layout == "file beside":
        write_model_gguf(folder / "old.gguf", config, weights)
    else:
        (folder / "old").mkdir()
        write_model_gguf(folder / "old" / "其他 name.gguf", config, weights)
    with pytest.raises(ModelStoreError) as caught:
        check_has_manifest(find_stored("old", folder))
    lpx, *command = shlex.split(str(caught.value).partition("give it one with: ")[2])
    assert lpx == "lpx"
    done = CliRunner().invoke(app, [*command, "--models-dir", str(folder)])
    assert done.exit_code == 0, done.output
    model = find_stored("old", folder)
    check_has_manifest(model)
    note_speed(folder, model, {"decode_tokens_per_second": 5.0})
    assert find_stored("old", folder).measured[0]["decode_tokens_per_second"] == 5.0
