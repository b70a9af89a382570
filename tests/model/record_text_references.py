"""Records what other programs make of our texts, as data for the tests. Run by hand; the tests need none of them.

python -m tests.model.record_text_references llama MODELS_DIR   # needs llama-cpp-python
python -m tests.model.record_text_references sentencepiece      # needs sentencepiece
python -m tests.model.record_text_references transformers       # needs transformers and jinja2
"""

from __future__ import annotations

import hashlib
import io
import json
import sys
from pathlib import Path
from typing import Any

from tests.model.template_cases import CASES, TEMPLATES
from tests.model.text_corpus import LONG_TEXTS, TEXTS, random_texts

DATA = Path(__file__).parent / "data"


def _write(name: str, data: dict[str, Any]) -> None:
    DATA.mkdir(exist_ok=True)
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"))
    (DATA / name).write_text(text.replace('},"', '},\n"') + "\n", encoding="utf-8")


def digest(ids: list[int]) -> str:
    return hashlib.sha256(json.dumps(ids).encode()).hexdigest()


def record_llama(models: Path) -> None:
    """Ids of llama.cpp's tokenizer for the real models, as plain text (no control tokens, no BOS)."""
    from llama_cpp import Llama  # type: ignore[import-not-found]

    texts = [*TEXTS.values(), *random_texts(150, seed=11)]
    recorded: dict[str, Any] = {"texts": texts, "models": {}}
    for path in sorted(models.glob("*.gguf")):
        model = Llama(str(path), vocab_only=True, verbose=False)

        def ids(text: str, model: Any = model) -> list[int]:
            return list(model.tokenize(text.encode(), add_bos=False, special=False))

        recorded["models"][path.name] = {
            "ids": [ids(t) for t in texts],
            "long": {name: digest(ids(t)) for name, t in LONG_TEXTS.items()},
        }
    _write("llama_ids.json", recorded)


def record_sentencepiece() -> None:
    """Small SentencePiece BPE vocabularies trained on our own texts, and SentencePiece's ids."""
    import sentencepiece  # type: ignore[import-not-found]

    texts = [*TEXTS.values(), *random_texts(200, seed=12)]
    training = [line for t in [*TEXTS.values(), *random_texts(400, seed=13)] for line in t.split("\n") if line.strip()]
    words = ["\n", "\n\n", "\t", "▁▁", "▁▁▁▁", "<b>", "</b>"]
    variants = {
        "prefix": {"add_dummy_prefix": True, "control_symbols": ["<|im_start|>", "<|im_end|>"]},
        "no prefix": {"add_dummy_prefix": False, "user_defined_symbols": words},
    }
    recorded: dict[str, Any] = {"texts": texts, "vocabularies": {}}
    for name, options in variants.items():
        out = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(training),
            model_writer=out,
            model_type="bpe",
            vocab_size=1100,
            byte_fallback=True,
            character_coverage=0.99,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            allow_whitespace_only_pieces=True,
            max_sentence_length=100_000,
            minloglevel=2,
            **options,
        )
        sp = sentencepiece.SentencePieceProcessor(model_proto=out.getvalue())
        pieces = [sp.id_to_piece(i) for i in range(sp.get_piece_size())]
        defined = set(words) if "user_defined_symbols" in options else set()
        types = [
            6 if sp.is_byte(i) else 3 if sp.is_control(i) else 2 if sp.is_unknown(i) else 4 if piece in defined else 1
            for i, piece in enumerate(pieces)
        ]
        recorded["vocabularies"][name] = {
            # GGUF files spell user-defined tokens with real spaces.
            "tokens": [p.replace("▁", " ") if t == 4 else p for p, t in zip(pieces, types, strict=True)],
            "types": types,
            "scores": [sp.get_score(i) for i in range(len(pieces))],
            "prefix": options["add_dummy_prefix"],
            "unk": sp.unk_id(),
            "bos": sp.bos_id(),
            "eos": sp.eos_id(),
            "ids": [sp.encode(t) for t in texts],
        }
    _write("sentencepiece_ids.json", recorded)


def record_transformers() -> None:
    """The prompts that `transformers` renders from our templates and messages."""
    from transformers.utils import chat_template_utils  # type: ignore[import-not-found]

    class FixedDay(chat_template_utils.datetime):  # type: ignore[misc]
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return cls(2024, 7, 26, 12, 30)

    chat_template_utils.datetime = FixedDay
    rendered = {}
    for name, case in CASES.items():
        texts, _ = chat_template_utils.render_jinja_template(
            conversations=[case["messages"]],
            tools=case.get("tools"),
            chat_template=TEMPLATES[case["template"]],
            add_generation_prompt=case.get("add_generation_prompt", True),
            continue_final_message=case.get("continue_final_message", False),
            bos_token="<s>",
            eos_token="</s>",
            **case.get("kwargs", {}),
        )
        rendered[name] = texts[0]
    _write("rendered_chats.json", rendered)


if __name__ == "__main__":
    if sys.argv[1:2] == ["llama"] and len(sys.argv) == 3:
        record_llama(Path(sys.argv[2]))
    elif sys.argv[1:] == ["sentencepiece"]:
        record_sentencepiece()
    elif sys.argv[1:] == ["transformers"]:
        record_transformers()
    else:
        sys.exit(__doc__)
