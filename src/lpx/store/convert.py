"""From a safetensors model to one GGUF file in the store, which llama.cpp reads too."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from lpx.errors import UnsupportedModelError
from lpx.store.folder import StoredModel, find_stored
from lpx.store.locks import Progress, name_lock
from lpx.store.names import check_name, check_version, name_from
from lpx.store.space import check_space, disk_error
from lpx.store.versions import describe, partial_folder, publish


def convert_model(
    source: str,
    folder: Path,
    target: str,
    progress: Progress | None = None,
    *,
    name: str | None = None,
    version: str | None = None,
    make_current: bool = True,
) -> StoredModel:
    """Convert the Hugging Face folder that `source` (a path, NAME or NAME@VERSION) means; matrices become `target`.

    Raises ConfigError for an unknown type, ModelNotFoundError, ModelFileError and its kinds for a model that cannot be
    converted, DownloadError for what the disk refuses.
    """
    from lpx.model.files import open_model, resolve_model
    from lpx.model.gguf_conversion import check_same, check_target, config_metadata, tensors_of
    from lpx.model.gguf_vocabulary import vocabulary_metadata
    from lpx.model.gguf_writer import write_gguf
    from lpx.model.hf_folder import HfFolder
    from lpx.model.tokenizer_source import HfTokenizerSource

    check_target(target)
    stored = None if Path(source).exists() else find_stored(source, folder)
    path = resolve_model(source, folder)
    if not path.is_dir():
        raise UnsupportedModelError(f"{path} is a GGUF file already; give a folder with safetensors")
    base = stored.name if stored is not None else path.resolve().name
    called = check_name(name) if name is not None else name_from(f"{base}-{target}")
    if version is not None:
        check_version(version)
    report = progress or (lambda phase, done, total: None)
    try:
        with name_lock(folder, called, report), open_model(path) as files:
            config_json = HfFolder(path).config
            vocabulary = files.tokenizer_source
            assert isinstance(vocabulary, HfTokenizerSource)
            metadata = config_metadata(files.config, config_json, base, target)
            metadata |= vocabulary_metadata(vocabulary, files.config.vocab_size)
            if files.chat_template is not None:
                metadata["tokenizer.chat_template"] = files.chat_template
            tensors = list(tensors_of(files.config, config_json, *files.stored(), target))
            check_space(folder, sum(tensor.nbytes for tensor in tensors), called)
            scratch = partial_folder(folder, called, "convert")
            shutil.rmtree(scratch, ignore_errors=True)
            try:
                scratch.mkdir()
                out = scratch / f"{called}.gguf"
                write_gguf(out, metadata, tensors, progress=lambda done, total: report("converting", done, total))
                with open_model(out) as written:
                    check_same(files.config, written.config)
                described = describe(
                    out,
                    name=called,
                    source=stored.source if stored is not None and stored.source else f"file:{path}",
                    licence=None if stored is None else stored.licence,
                    version=version,
                )
                origin = stored.spelled if stored is not None else str(path)
                described = replace(described, derived_from=f"{origin}, converted to {target}")
                return publish(scratch, folder, described, make_current=make_current)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
    except OSError as error:
        raise disk_error(error)(f"cannot store {called} in {folder}: {error.strerror or error}") from error
