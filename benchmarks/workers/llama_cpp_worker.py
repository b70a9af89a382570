"""llama.cpp behind the worker protocol, through llama-cpp-python's low-level batch API.

`Lookup` goes through its high-level `Llama` instead, where its own speculation by n-grams is.

Runs in the interpreter that has llama-cpp-python (`--peer-python`); numpy is the only other import.
"""

import ctypes
import sys
import time
from pathlib import Path

import llama_cpp
import numpy as np
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

sys.path.insert(0, str(Path(__file__).parent))
from protocol import serve


class Peer:
    """One model; a context for many short sequences and, when asked for, one for a single long sequence."""

    def __init__(self):
        self.model = self.context = None
        self.contexts = {}  # (tokens of a sequence, sequences): context
        # A quiet log: llama.cpp prints hundreds of lines a load.
        self._log = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self._log, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()

    def load(self, model, threads, context=4096, sequences=16, batch=512, long_context=0):
        started = time.perf_counter()
        self.model = llama_cpp.llama_model_load_from_file(model.encode(), llama_cpp.llama_model_default_params())
        if not self.model:
            raise RuntimeError(f"llama.cpp cannot load {model}")
        vocab = llama_cpp.llama_model_get_vocab(self.model)
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(vocab)
        self.batch_size = batch
        self._make_context(threads, context, sequences, False)
        if long_context:
            self._make_context(threads, long_context, 1, True)
        self._use_context(1, context)
        self.greedy = llama_cpp.llama_sampler_init_greedy()
        self.batch = llama_cpp.llama_batch_init(batch, 0, 1)
        features = llama_cpp.llama_print_system_info().decode()
        return {
            "engine": f"llama.cpp (llama-cpp-python {llama_cpp.__version__})",
            "isa": " ".join(part.split("=")[0].strip() for part in features.replace("CPU :", "").split("|")).strip(),
            "threads": threads,
            "seconds": time.perf_counter() - started,
        }

    def _make_context(self, threads, context, sequences, flash_attention):
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = context * sequences
        params.n_seq_max = sequences
        params.n_batch = params.n_ubatch = self.batch_size
        params.n_threads = params.n_threads_batch = threads
        params.no_perf = True
        if flash_attention and hasattr(params, "flash_attn_type"):
            params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED
        elif flash_attention and hasattr(params, "flash_attn"):  # older versions
            params.flash_attn = True
        made = llama_cpp.llama_init_from_model(self.model, params)
        if not made:
            raise RuntimeError(f"llama.cpp cannot make a context of {sequences} x {context} tokens")
        self.contexts[context, sequences] = made

    def _use_context(self, sequences, tokens):
        """The first context, in order of making, that so many sequences of so many tokens fit."""
        fits = [c for (most, count), c in self.contexts.items() if tokens <= most and sequences <= count]
        if not fits:
            raise RuntimeError(f"{sequences} sequences of {tokens} tokens fit no context")
        self.context = fits[0]
        self.memory = llama_cpp.llama_get_memory(self.context)

    def _decode(self, rows):
        """`rows`: (token, position, sequence, wants logits)."""
        self.batch.n_tokens = len(rows)
        for i, (token, position, sequence, logits) in enumerate(rows):
            self.batch.token[i] = token
            self.batch.pos[i] = position
            self.batch.n_seq_id[i] = 1
            self.batch.seq_id[i][0] = sequence
            self.batch.logits[i] = logits
        status = llama_cpp.llama_decode(self.context, self.batch)
        if status != 0:
            raise RuntimeError(f"llama_decode returned {status}")

    def _prefill(self, prompts):
        """Feeds all prompts in full batches and returns the first greedy token of each."""
        llama_cpp.llama_memory_clear(self.memory, True)
        rows = [
            (token, position, sequence, position == len(prompt) - 1)
            for sequence, prompt in enumerate(prompts)
            for position, token in enumerate(prompt)
        ]
        first = {}
        for start in range(0, len(rows), self.batch_size):
            chunk = rows[start : start + self.batch_size]
            self._decode(chunk)
            for i, (_, _, sequence, logits) in enumerate(chunk):
                if logits:
                    first[sequence] = llama_cpp.llama_sampler_sample(self.greedy, self.context, i)
        return [first[sequence] for sequence in range(len(prompts))]

    def generate(self, prompts, tokens):
        """Greedy, end-of-sequence ignored: `tokens` tokens of every prompt, all sequences in one batch a step."""
        self._use_context(len(prompts), max(map(len, prompts)) + tokens)
        started = time.perf_counter()
        current = self._prefill(prompts)
        prefilled = time.perf_counter()
        outputs = [[token] for token in current]
        for step in range(tokens - 1):
            self._decode([(t, len(prompts[s]) + step, s, True) for s, t in enumerate(current)])
            current = [llama_cpp.llama_sampler_sample(self.greedy, self.context, i) for i in range(len(current))]
            for output, token in zip(outputs, current, strict=True):
                output.append(token)
        ended = time.perf_counter()
        return {"prefill_seconds": prefilled - started, "decode_seconds": ended - prefilled, "token_ids": outputs}

    def logprobs(self, windows, path):
        """Writes float32 log-probabilities [rows, vocab] of every position of every window to `path` (.npy)."""
        total = sum(len(window) for window in windows)
        out = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(total, self.vocab_size))
        row = 0
        for window in windows:
            llama_cpp.llama_memory_clear(self.memory, True)
            for start in range(0, len(window), self.batch_size):
                chunk = window[start : start + self.batch_size]
                self._decode([(token, start + i, 0, True) for i, token in enumerate(chunk)])
                for i in range(len(chunk)):
                    pointer = llama_cpp.llama_get_logits_ith(self.context, i)
                    logits = np.ctypeslib.as_array(pointer, shape=(self.vocab_size,)).astype(np.float64)
                    logits -= logits.max()
                    out[row] = logits - np.log(np.exp(logits).sum())
                    row += 1
        out.flush()
        return {"rows": row}

    def losses(self, windows, scored):
        """Negative log-likelihoods in nats of the tokens behind rows [begin, end) of each window, all in one list."""
        found = []
        for window, (begin, end) in zip(windows, scored, strict=True):
            llama_cpp.llama_memory_clear(self.memory, True)
            for start in range(0, len(window), self.batch_size):
                chunk = window[start : start + self.batch_size]
                wanted = [begin <= start + i < end for i in range(len(chunk))]
                self._decode([(token, start + i, 0, wanted[i]) for i, token in enumerate(chunk)])
                for i in (i for i, this in enumerate(wanted) if this):
                    pointer = llama_cpp.llama_get_logits_ith(self.context, i)
                    logits = np.ctypeslib.as_array(pointer, shape=(self.vocab_size,)).astype(np.float64)
                    most = logits.max()
                    target = window[start + i + 1]
                    found.append(float(np.log(np.exp(logits - most).sum()) + most - logits[target]))
        return {"losses": found}

    def tokenize(self, text):
        """Ids as `llama-perplexity` makes them: special tokens are added, and none is read out of the text."""
        vocab, data = llama_cpp.llama_model_get_vocab(self.model), text.encode()
        ids = (llama_cpp.llama_token * (len(data) + 2))()
        count = llama_cpp.llama_tokenize(vocab, data, len(data), ids, len(ids), True, False)
        return {"ids": list(ids[:count]), "bos": llama_cpp.llama_vocab_get_add_bos(vocab)}


class Lookup:
    """Greedy answers with llama-cpp-python's prompt lookup and without."""

    def __init__(self):
        self.models = {}  # by whether tokens are looked up

    def load(self, model, threads, context, drafted=10):
        shared = {"n_ctx": context, "n_threads": threads, "n_threads_batch": threads, "verbose": False}
        self.models[False] = llama_cpp.Llama(model, **shared)
        # With a draft model it stores the logits of every position, and `logits_all` makes room for them.
        lookup = LlamaPromptLookupDecoding(num_pred_tokens=drafted)
        self.models[True] = llama_cpp.Llama(model, draft_model=lookup, logits_all=True, **shared)
        return {"engine": f"llama.cpp (llama-cpp-python {llama_cpp.__version__})", "threads": threads}

    def answer(self, prompt, max_tokens, lookup):
        """One greedy answer up to its natural end."""
        model = self.models[lookup]
        vocab = llama_cpp.llama_model_get_vocab(model.model)
        token_ids, first = [], None
        started = time.perf_counter()
        for token in model.generate(prompt, temp=0.0):
            ended = time.perf_counter()
            first = first or ended
            token_ids.append(token)
            if len(token_ids) == max_tokens or llama_cpp.llama_vocab_is_eog(vocab, token):
                break
        return {"token_ids": token_ids, "decode_ms": 1e3 * (ended - first), "ttft_ms": 1e3 * (first - started)}


if __name__ == "__main__":
    peer, answers = Peer(), Lookup()
    serve(
        {
            "load": peer.load,
            "generate": peer.generate,
            "logprobs": peer.logprobs,
            "losses": peer.losses,
            "tokenize": peer.tokenize,
            "load_lookup": answers.load,
            "answer": answers.answer,
        }
    )
