"""A made-up machine: an engine whose time is known, on memory and processors whose speed changes by itself."""

import math
import random
from dataclasses import dataclass, field

from lpx.bench.gate.pieces import DECODE, Piece
from lpx.bench.weather import Look

READ, MULTIPLY = 40e9, 400e9
SLOW, FAST = 33e9 / READ, 50e9 / READ
DECODE_SPEED = "decode_tokens_per_second"
PIECES = 12  # of a session, with a look before and after each
PIECE_SECONDS, LOAD_SECONDS = 0.12, 0.8


@dataclass
class Weather:
    """Factors on memory and multipliers at a time, of one kind of unrest.

    - calm: nearly constant
    - drift: the memory wanders, by about 10 % a minute; another day it begins elsewhere
    - bimodal: a neighbour takes 40 % of the memory for some ten seconds at a time
    - slow, fast: the memory reads at 33 or at 50 GB/s, but for 1 % that is too quick for a look
    - swings: a neighbour takes it from 60 to 33 GB/s for some ten seconds at a time
    - bursts: in one of ten pieces something else runs, which a look sees only if it falls on it
    """

    kind: str
    draw: random.Random
    memory: float = 1.0
    multipliers: float = 1.0
    taken: bool = False
    _level: float = field(default=0.0)

    def __post_init__(self):
        if self.kind in ("drift", "bimodal", "swings"):
            self.taken = self.draw.random() < 0.5
            self._level = self.draw.gauss(0, 0.15) if self.kind == "drift" else 0.0
        self.multipliers = math.exp(self.draw.gauss(0, 0.03))
        self.pass_time(0.0)

    def pass_time(self, seconds):
        if self.kind == "drift":
            self._level += self.draw.gauss(0, 0.1 * math.sqrt(seconds / 60))
        if self.kind in ("bimodal", "swings") and self.draw.random() < seconds / 10:
            self.taken = not self.taken
        self.memory = math.exp(self._level)
        if self.kind == "bimodal":
            self.memory = 0.6 if self.taken else 1.0
        if self.kind == "swings":
            self.memory = SLOW if self.taken else 1.5
        if self.kind in ("slow", "fast"):
            self.memory = (SLOW if self.kind == "slow" else FAST) * math.exp(self.draw.gauss(0, 0.01))

    def burst(self):
        return self.draw.uniform(1.3, 2.5) if self.kind == "bursts" and self.draw.random() < 0.1 else 1.0


@dataclass
class Engine:
    """Decodes at `speed` tokens a second in fair weather, and spends `share` of its time on memory.

    Beyond a factor `cap` on the memory it is no faster: then its cores are what it waits for.
    """

    speed: float = 300.0
    share: float = 0.85
    cap: float = math.inf

    def seconds(self, weather, tokens):
        memory = min(1.0, self.cap) / min(weather.memory, self.cap)
        return tokens / self.speed * (self.share * memory + (1 - self.share) / weather.multipliers)


class Run:
    """Sessions of pieces of one engine, or of two in alternation, from some moment on."""

    def __init__(self, kind, seed, spread=0.006):
        """`spread` is the standard deviation of log time between sessions, for where the memory of a load lies."""
        self.draw, self.spread = random.Random(seed), spread
        self.weather = Weather(kind, self.draw)
        self.seconds = 0.0

    def session(self, number, engine):
        placed = self._load()
        pieces, before = [], self._look()
        for _ in range(PIECES):
            speed = self._piece(engine, placed)
            after = self._look()
            pieces.append(Piece(DECODE, number, {DECODE_SPEED: speed}, Look.mean((before, after)), 0.0))
            before = after
        return pieces

    def paired_session(self, number, ours, theirs):
        """(pieces of ours, pieces of theirs), with the order turned from piece to piece."""
        sides, placed = (ours, theirs), (self._load(), self._load())
        pieces = ([], [])
        for count in range(PIECES):
            for at in (0, 1) if count % 2 == 0 else (1, 0):
                speed = self._piece(sides[at], placed[at])
                pieces[at].append(Piece(DECODE, number, {DECODE_SPEED: speed}, None, 0.0))
        return pieces

    def _load(self):
        """Where the memory of this load lies: a factor on its times."""
        self._wait(LOAD_SECONDS)
        return math.exp(self.draw.gauss(0, self.spread))

    def _piece(self, engine, placed):
        """Tokens a second."""
        seconds = engine.seconds(self.weather, 16) * placed * math.exp(self.draw.gauss(0, 0.02)) * self.weather.burst()
        self._wait(PIECE_SECONDS)
        return 16 / seconds

    def _look(self):
        slow = self.weather.burst()
        noise = math.exp(self.draw.gauss(0, 0.02))
        return Look(READ * self.weather.memory * noise / slow, MULTIPLY * self.weather.multipliers / slow)

    def _wait(self, seconds):
        self.seconds += seconds
        self.weather.pass_time(seconds)
