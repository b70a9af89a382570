"""Whom a request is served for, and what that allows: the one place that admits work.

The outermost layer (`access`) sets the caller before any endpoint runs, and `Generation.start` admits through it. It
travels in a context variable, so that an endpoint can neither forget nor mix up whom it serves.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from time import monotonic
from typing import TYPE_CHECKING

from lpx.engine.sampling_params import SamplingParams
from lpx.errors import ContextLengthError, InvalidRequestError
from lpx.server.api_keys import ApiKey, KeyRing
from lpx.server.rate_limits import Clock, Quota, Ticket
from lpx.server.settings import Limits

if TYPE_CHECKING:
    from lpx.server.text_log import TextLog


@dataclass(frozen=True, slots=True)
class Caller:
    """A client for the time of one HTTP request or one WebSocket."""

    name: str | None = None  # of its key, for logs; None: no keys are set
    identity: str = ""  # of its key; "" shares with all who have none
    owner: str = ""  # of what is kept for it; as `identity`, but over restarts
    caps: Limits = field(default_factory=Limits)
    quotas: tuple[Quota, ...] = ()
    text_log: TextLog | None = None
    # A WebSocket lasts while many generations come and go: each of these counts as a request.
    counts_generations: bool = False
    is_patient: bool = False  # takes whole answers only, as batches do: nobody waits for the next token

    def admit(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, max_model_len: int
    ) -> tuple[SamplingParams, Ticket]:
        """The parameters to run with, and a ticket to settle at the end.

        Raises `InvalidRequestError` (`ContextLengthError`) for what this caller may never ask, and `LimitReached` for
        what it may not ask now.
        """
        caps = self.caps
        choices = len(prompts) * params.n
        if caps.max_choices is not None and choices > caps.max_choices:
            raise InvalidRequestError(
                f"{choices} choices (prompts times n) are more than the {caps.max_choices} allowed here.", param="n"
            )
        longest = max(map(len, prompts), default=0)
        if caps.max_prompt_tokens is not None and longest > caps.max_prompt_tokens:
            raise ContextLengthError(
                f"The prompt has {longest} tokens, and at most {caps.max_prompt_tokens} are allowed here: shorten it."
            )
        changes: dict[str, object] = {}
        most = caps.max_output_tokens
        if most is not None:
            if params.max_tokens is None:
                changes["max_tokens"] = most
            elif params.max_tokens > most:
                raise InvalidRequestError(
                    f"{params.max_tokens} output tokens are more than the {most} allowed here; give max_tokens up to "
                    f"{most}.",
                    param="max_tokens",
                )
        if self.identity:
            changes["cache_salt"] = self._salt(params.cache_salt)
        if changes:
            params = replace(params, **changes)  # type: ignore[arg-type]
        limit = max_model_len if params.max_tokens is None else params.max_tokens
        prompt_tokens = sum(map(len, prompts))
        output_tokens = params.n * sum(max(0, min(limit, max_model_len - len(prompt))) for prompt in prompts)
        return params, self._ticket(prompt_tokens, prompt_tokens + output_tokens)

    def _ticket(self, prompt_tokens: int, reserved: int) -> Ticket:
        slots = self.quotas if self.counts_generations else ()
        return Ticket(self.quotas, prompt_tokens=prompt_tokens, reserved=reserved, slots=slots)

    def _salt(self, given: str | None) -> str:
        """Prefix cache and shared drafts never cross keys, whatever `cache_salt` a request names."""
        text = b"" if given is None else b"salt " + given.encode("utf-8", "surrogatepass")
        return blake2b(text, key=bytes.fromhex(self.identity), digest_size=32).hexdigest()


ANYBODY = Caller()
_current: ContextVar[Caller] = ContextVar("lpx_caller", default=ANYBODY)


def current_caller() -> Caller:
    """Whom the running task serves."""
    return _current.get()


def default_length(tokens: int) -> int:
    """Tokens of an answer whose request does not say how many: so many, or as many as the caller may have."""
    most = current_caller().caps.max_output_tokens
    return tokens if most is None else min(tokens, most)


def set_caller(caller: Caller) -> None:
    """For the running task and those it starts."""
    _current.set(caller)


class Callers:
    """Makes a `Caller` of whoever has shown a key, and keeps what each key has under way and has left."""

    def __init__(
        self, ring: KeyRing, limits: Limits, text_log: TextLog | None = None, clock: Clock = monotonic
    ) -> None:
        self.ring = ring
        self._limits = limits
        self._text_log = text_log
        self._clock = clock
        self._of_all = Quota(limits, "this server", clock)
        self._of_keys: dict[str, Quota] = {}  # by identity; of the keys that are accepted

    def of(self, key: ApiKey | None, *, counts_generations: bool = False) -> Caller:
        """`None` while no keys are set."""
        if key is None:
            return Caller(
                None, "", "", self._limits, (self._of_all,), self._text_log, counts_generations=counts_generations
            )
        quota = self._of_keys.get(key.identity)
        if quota is None or quota.limits != key.limits:
            self._forget_revoked()
            quota = self._of_keys[key.identity] = Quota(key.limits, "this key", self._clock)
        return Caller(
            key.name,
            key.identity,
            key.owner,
            key.limits.tightened_by(self._limits),
            (quota, self._of_all),
            self._text_log,
            counts_generations=counts_generations,
        )

    def _forget_revoked(self) -> None:
        accepted = {key.identity for key in self.ring.keys}
        for gone in self._of_keys.keys() - accepted:
            del self._of_keys[gone]
