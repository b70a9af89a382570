"""Every key that a profile may hold: its section, what kind of value it has, and what it does.

A key is called as the option of the command line is, and means the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "text",
    "whole",  # number
    "number",
    "flag",
    "size",  # bytes, or text such as "512M"
    "path",  # relative to the file
    "model",  # a path relative to the file, or a name
    "template",  # text, or a path relative to the file
    "list",  # of texts; a single text counts as a list of one
    "speculation",  # a table, or JSON text as the option takes it
]


@dataclass(frozen=True, slots=True)
class Key:
    """One option. `name` is the parameter's, with underscores."""

    section: str
    name: str
    kind: Kind
    help: str
    default: str | None = None  # as it would be written; None: LPX chooses, or there is none
    secret: bool = False  # the file must be private then, and the value is never shown

    @property
    def spelled(self) -> str:
        """As profiles and command lines spell it."""
        return self.name.replace("_", "-")


SECTIONS: dict[str, str] = {
    "model": "which model, and how its files are read",
    "engine": "how much of the machine the model gets",
    "server": "where lpx serve listens",
    "access": "who may use lpx serve",
    "limits": "of all clients together",
    "batches": "files and batches behind the API",
    "tls": "HTTPS; files in PEM form",
    "cors": "which pages of other origins may use the server from a browser",
    "logs": "what lpx serve writes down",
}

KEYS: tuple[Key, ...] = (
    Key("model", "model", "model", "a .gguf file, a Hugging Face folder, or a name in the model folder"),
    Key("model", "models_dir", "path", "the model folder"),
    Key("model", "dtype", "text", "type of unquantized weights; another one than the file's is refused", '"auto"'),
    Key("model", "quantization", "text", "of safetensors at load: none, q8 or q4", '"none"'),
    Key("model", "chat_template", "template", "a Jinja chat template, as a file or as text, instead of the model's"),
    Key("model", "tokenizer_pre", "text", "pre-tokenizer, when the file names one that LPX does not know"),
    Key("engine", "threads", "whole", "threads that compute; without it the physical cores"),
    Key("engine", "isa", "text", "kernel set; without it the best that the processor has"),
    Key("engine", "kv_cache_memory", "size", 'memory for the KV cache, such as "512M" or "2G"'),
    Key("engine", "kv_cache_dtype", "text", "type of keys and values: f16, bf16, q8, q4, or two as K,V", '"auto"'),
    Key("engine", "enable_prefix_caching", "flag", "keep computed prompts and share their beginnings", "true"),
    Key("engine", "itl_target_ms", "number", "longest step of running streams while prompts are computed"),
    Key("engine", "max_model_len", "whole", "longest context in tokens, prompt and answer together"),
    Key("engine", "max_num_seqs", "whole", "sequences that run at once", "64"),
    Key("engine", "max_num_batched_tokens", "whole", "tokens computed in one step", "512"),
    Key("engine", "speculative_config", "speculation", "how tokens are drafted", '{ method = "auto" }'),
    Key("server", "host", "text", "address to listen on", '"127.0.0.1"'),
    Key("server", "port", "whole", "port; 0 takes a free one", "8080"),
    Key("server", "served_model_name", "text", "name that clients see"),
    Key("server", "enable_request_timings", "flag", "put timings into answers", "true"),
    Key("access", "api_key", "list", "keys that clients must show; the file must be private then", secret=True),
    Key("access", "admin_api_key", "list", "keys that may change what is served", secret=True),
    Key("access", "api_key_file", "path", "a file of keys, one on a line"),
    Key("access", "insecure_no_auth", "flag", "allow a host that others reach without any key", "false"),
    Key("access", "allowed_hosts", "list", "host names besides loopback names and addresses"),
    Key("limits", "max_concurrent_requests", "whole", "requests that are answered at once"),
    Key("limits", "requests_per_minute", "whole", "requests in a minute"),
    Key("limits", "tokens_per_minute", "whole", "tokens of prompts and answers in a minute"),
    Key("limits", "max_prompt_tokens", "whole", "longest prompt"),
    Key("limits", "max_output_tokens", "whole", "longest answer"),
    Key("limits", "max_choices", "whole", "choices of a request: prompts times n"),
    Key("limits", "max_body_size", "size", "largest request body", '"8M"'),
    Key("limits", "max_waiting", "whole", "sequences that may wait beside those that run", "1024"),
    Key("limits", "max_connections", "whole", "open connections", "1000"),
    Key("batches", "data_dir", "path", "private folder of files and batches: turns /v1/files and /v1/batches on"),
    Key("batches", "batch_max_inflight", "whole", "requests of batches that run at once", "16"),
    Key("batches", "max_file_size", "size", "largest uploaded file", '"200M"'),
    Key("batches", "max_stored_size", "size", "all files of one key together", '"2G"'),
    Key("batches", "keep_files_days", "whole", "days until files and ended batches are deleted", "30"),
    Key("tls", "ssl_certfile", "path", "certificate: serve HTTPS"),
    Key("tls", "ssl_keyfile", "path", "private key, if it is not in the certificate's file"),
    Key("tls", "ssl_ca_certs", "path", "authorities whose client certificates are accepted"),
    Key("tls", "ssl_cert_reqs", "whole", "client certificates: 0 none, 1 optional, 2 required", "0"),
    Key("cors", "allowed_origins", "list", 'origins such as "https://app.example"'),
    Key("cors", "allowed_methods", "list", "methods that these pages may use"),
    Key("cors", "allowed_headers", "list", "headers that these pages may send"),
    Key("cors", "allow_credentials", "flag", "let these pages send credentials of the browser", "false"),
    Key("logs", "log_format", "text", "text, or json: one object a line", '"text"'),
    Key("logs", "log_requests_to", "path", "folder for the texts of requests and answers"),
    Key("logs", "access_log", "flag", "a line for each HTTP request", "false"),
)
_BY_NAME = {key.name: key for key in KEYS}


def key_named(name: str) -> Key:
    """The key called `name`, in either spelling; KeyError when there is none."""
    return _BY_NAME[name.replace("-", "_")]
