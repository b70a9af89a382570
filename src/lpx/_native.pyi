"""Types of the native core; what the calls mean is said in native/src/bind_*.cpp and the headers there."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

KV_BLOCK_SIZE: int
SPLIT_TOKENS: int

_Int32s = NDArray[np.int32]
_Floats = NDArray[np.float32]
_SamplingResults = tuple[_Int32s, NDArray[np.uint8], _Int32s, _Floats, _Int32s, _Int32s, _Floats]

class KvHead:
    def __init__(self, key_type: str, value_type: str, head_dim: int, blocks: int, isa: str = "") -> None: ...
    def store(self, keys: _Floats, values: _Floats, position: int, block_table: Sequence[int]) -> None: ...
    def block(self, index: int) -> tuple[_Floats, _Floats]: ...
    def attend(
        self,
        query: _Floats,
        group: int,
        first_position: int,
        block_table: Sequence[int],
        window: int = 0,
        softcap: float = 0.0,
    ) -> _Floats: ...

class PackedMatrix:
    @staticmethod
    def pack(
        type: str,
        rows: int,
        cols: int,
        data: NDArray[np.uint8],
        row_map: _Int32s | None = None,
        threads: int = 1,
        split: bool = False,
    ) -> PackedMatrix: ...
    @staticmethod
    def quantize(
        bits: int,
        type: str,
        rows: int,
        cols: int,
        data: NDArray[np.uint8],
        row_map: _Int32s | None = None,
        threads: int = 1,
    ) -> PackedMatrix: ...
    @staticmethod
    def packed_bytes(type: str, rows: int, cols: int, quantize_bits: int = 0, split: bool = False) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def cols(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def float_weights(self) -> bool: ...
    @property
    def format(self) -> str: ...
    def decode(self, rows: _Int32s) -> _Floats: ...
    def screen(self, x: _Floats, isa: str = "", refine: bool = False) -> _Floats: ...
    def matmul(self, x: _Floats, isa: str = "", threads: int = 1) -> _Floats: ...

def decode_rows(type: str, cols: int, data: NDArray[np.uint8]) -> _Floats: ...
def quantize_activations(
    x: _Floats, isa: str = ""
) -> tuple[NDArray[np.int8], _Floats, NDArray[np.int16], NDArray[np.int8], _Floats, NDArray[np.int32]]: ...
def available_isas() -> list[str]: ...

class DecoderConfig:
    def __init__(
        self,
        *,
        hidden_size: int,
        intermediate_size: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        vocab_size: int,
        norm_eps: float,
        activation: str,
        embedding_scale: float,
        attention_scale: float,
        attention_softcap: float,
        logit_softcap: float,
        tied_head: bool,
        split_head: bool,
        inv_freqs: Sequence[Sequence[float]],
        attention_factors: Sequence[float],
        windows: Sequence[int],
        rotary_of_layer: Sequence[int],
    ) -> None: ...
    def kv_block_bytes(self, key_type: str, value_type: str) -> int: ...
    def work_bytes(self, max_rows: int, max_model_len: int, threads: int) -> int: ...

# name, type, rows, cols, data, row map, bits to quantize to, whether the data is a mapped file
Weight: TypeAlias = tuple[str, str, int, int, NDArray[np.uint8], _Int32s | None, int, bool]

class Decoder:
    def __init__(
        self,
        *,
        config: DecoderConfig,
        threads: int,
        isa: str,
        max_rows: int,
        max_model_len: int,
        kv_blocks: int,
        key_type: str,
        value_type: str,
    ) -> None: ...
    def set_weights(self, weights: Sequence[Weight]) -> None: ...
    def finish(self) -> None: ...
    def step(
        self,
        token_ids: _Int32s,
        row_begin: _Int32s,
        start_position: _Int32s,
        block_ids: _Int32s,
        table_begin: _Int32s,
        logit_rows: _Int32s,
        sampling: _Int32s,
        drafted: _Int32s,
        positions: NDArray[np.int64],
        targets: _Int32s,
        top: _Int32s,
        numbers: _Floats,
        top_k: _Int32s,
        seeds: NDArray[np.uint64],
        ids: _Int32s,
        ids_begin: _Int32s,
        bias_values: _Floats,
        mask: _Int32s,
        masks: NDArray[np.uint32],
        more_steps: int,
        stop_ids: _Int32s,
        stop_begin: _Int32s,
        drafting: Drafting | None,
        pool_begin: _Int32s,
        pool_end: _Int32s,
        pool_sums: NDArray[np.float64],
    ) -> _SamplingResults: ...
    @property
    def most_screened_rows(self) -> int: ...
    @property
    def screened_rows(self) -> int: ...
    def kv_block(self, block: int, layer: int, kv_head: int) -> tuple[_Floats, _Floats]: ...
    def populate_kv(self, first: int, count: int) -> bool: ...
    def logits(
        self,
        token_ids: _Int32s,
        row_begin: _Int32s,
        start_position: _Int32s,
        block_ids: _Int32s,
        table_begin: _Int32s,
        logit_rows: _Int32s,
    ) -> _Floats: ...
    @property
    def isa(self) -> str: ...
    @property
    def weight_bytes(self) -> int: ...
    @property
    def bytes_per_row_step(self) -> int: ...
    @property
    def kv_bytes(self) -> int: ...
    def set_profiling(self, on: bool) -> None: ...
    def profile(self) -> dict[str, float]: ...

class Roofline:
    def __init__(self, *, threads: int, isa: str, bytes: int) -> None: ...
    @property
    def isa(self) -> str: ...
    @property
    def threads(self) -> int: ...
    def read(self, bytes: int, streams: int, fetched: bool, seconds: float) -> list[float]: ...
    def multiply_add(self, kind: str, seconds: float) -> list[float]: ...

class SharedTexts:
    def __init__(self, *, most_tokens: int, most_texts: int) -> None: ...
    def add(self, ids: list[int]) -> None: ...
    @property
    def tokens(self) -> int: ...
    @property
    def texts(self) -> int: ...

class SuffixMatcher:
    def __init__(self, shared: SharedTexts | None = None) -> None: ...
    def extend(self, ids: list[int], judge: bool) -> None: ...
    def propose(
        self,
        most: int,
        common: list[float],
        common_weight: float,
        least_chance: float = 0.0,
        least_worth: float = 0.0,
    ) -> tuple[list[int], list[float]]: ...
    def __len__(self) -> int: ...
    @property
    def judged(self) -> list[float]: ...
    @property
    def right(self) -> list[float]: ...

class Drafting:
    """Has a lone sequence draft between the steps that follow each other in one call of `Decoder.step`.

    Drafts are worth and cost tokens: those that come beside the sampled ones, and those that would come in the time.
    `balance` and `steps` (drafted, accepted, whether something could be drafted, milliseconds) change with the call.
    """

    def __init__(
        self,
        *,
        matcher: SuffixMatcher,  # knows the text up to the row; takes in the tokens of the steps
        common: list[float],  # chances of its classes that other texts have shown
        common_weight: float,  # judgements that they count for
        least_worth: float,  # the chance of a drafted token and all before it
        step_ms: list[float],  # of a step of 1, 2, ... rows; no more are drafted for
        least_gain: float,  # times the speed without drafts
        balance: float,  # what drafts have brought the sequence, less what they have cost it
        allowance: float,  # what they may cost it beyond that
        allowance_share: float,  # and more with every token
        most_ms: float,  # no step begins that is expected to end later
    ) -> None: ...
    def choose(self, chances: list[float]) -> tuple[int, float]: ...
    @property
    def balance(self) -> float: ...
    @property
    def steps(self) -> list[tuple[int, int, bool, float]]: ...

def sample_rows(
    logits: _Floats,
    isa: str,
    sampling: _Int32s,
    drafted: _Int32s,
    positions: NDArray[np.int64],
    targets: _Int32s,
    top: _Int32s,
    numbers: _Floats,
    top_k: _Int32s,
    seeds: NDArray[np.uint64],
    ids: _Int32s,
    ids_begin: _Int32s,
    bias_values: _Floats,
    mask: _Int32s,
    masks: NDArray[np.uint32],
) -> _SamplingResults: ...
def trim_heap() -> None: ...
def read_strings(data: NDArray[np.uint8], pos: int, count: int) -> tuple[list[str], int]: ...
def join_strings(strings: list[str]) -> tuple[bytes, NDArray[np.uint32]]: ...
def merge_pieces(pieces: list[str]) -> list[tuple[str, str]]: ...
def split_merges(lines: list[str], vocab: dict[str, int], tokens: list[str]) -> list[tuple[str, str]]: ...
def gumbel_noise(seed: int, position: int, token_id: int) -> float: ...
