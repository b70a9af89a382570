"""The sampler, spelled out in NumPy over whole sorted rows: what the native one has to return."""

import math

import numpy as np

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def _mix(x):
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def noise(seed, position, token_id):
    key = _mix((_mix((seed + _GOLDEN) & _MASK) + position * _GOLDEN) & _MASK)
    bits = _mix((key + (token_id + 1) * _GOLDEN) & _MASK)
    uniform = ((bits >> 12) + 0.5) * 2.0**-52
    return -math.log(-math.log(uniform))


def changed_logits(logits, settings, banned=(), prompt=(), output=()):
    """Logits after penalties, bias and bans."""
    changed = np.array(logits, dtype=np.float32)
    counts = {}
    for token in output:
        counts[token] = counts.get(token, 0) + 1
    for token in {*prompt, *output}:
        value = changed[token]
        penalty = np.float32(settings.repetition_penalty)
        value = value / penalty if value > 0 else value * penalty
        value = np.float32(value) - np.float32(settings.frequency_penalty) * np.float32(counts.get(token, 0))
        if counts.get(token, 0):
            value -= np.float32(settings.presence_penalty)
        changed[token] = value
    for token, bias in settings.logit_bias.items():
        changed[token] += np.float32(bias)
    changed[list(banned)] = -np.inf
    return changed


def kept_ids(changed, settings):
    """Ids that min_p, top_k and top_p leave, likeliest first; equal logits by id."""
    scaled = (changed.astype(np.float64) - changed.max()) / np.float32(settings.temperature)
    order = np.lexsort((np.arange(len(changed)), -scaled))
    order = [i for i in order if scaled[i] > -np.inf]
    if settings.min_p > 0:
        order = [i for i in order if scaled[i] >= math.log(np.float32(settings.min_p))]
    if settings.top_k > 0:
        order = order[: settings.top_k]
    if settings.top_p < 1:
        mass = np.exp(scaled[order])
        before = np.concatenate([[0.0], np.cumsum(mass)[:-1]])
        order = [i for i, b in zip(order, before, strict=True) if b == 0 or b < np.float32(settings.top_p) * mass.sum()]
    return [int(i) for i in order]


def sample(logits, settings, position, **history):
    changed = changed_logits(logits, settings, **history)
    if settings.temperature == 0:
        return int(np.argmax(changed))
    scaled = (changed.astype(np.float64) - changed.max()) / np.float32(settings.temperature)
    kept = kept_ids(changed, settings)
    return max(kept, key=lambda i: (scaled[i] + noise(settings.seed, position, i), -i))
