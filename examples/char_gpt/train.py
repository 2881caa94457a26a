"""A character-level GPT in Flax linen: does it train the same with its activations offloaded?

python examples/char_gpt/train.py --steps 60 --device rtx4090

The model and its step are those of `examples/gpt.py`, small and in float32; the text is made here.
"""

import pathlib
import sys

import jax
import numpy as np

from jaxswap import swap_offload

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import gpt
import side_by_side

NOUNS = [
    "cat",
    "sailor",
    "engine",
    "river",
    "poem",
    "violin",
    "fox",
    "baker",
    "comet",
    "garden",
    "clock",
    "lantern",
]
VERBS = [
    "sees",
    "follows",
    "paints",
    "repairs",
    "forgets",
    "greets",
    "outruns",
    "remembers",
    "carries",
    "hears",
]
ADJECTIVES = [
    "quiet",
    "red",
    "clever",
    "heavy",
    "early",
    "curious",
    "wooden",
    "bright",
    "patient",
    "small",
]
LINKS = (". ", ", and ", ", but ", "; ")


def make_text(rng, length):
    """Sentences of one pattern: enough to learn in a minute, too much to know by heart."""
    parts, size = [], 0
    while size < length:
        who, whom = (f"the {rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}" for _ in range(2))
        parts.append(f"{who} {rng.choice(VERBS)} {whom}{rng.choice(LINKS)}")
        size += len(parts[-1])
    return "".join(parts)[:length]


def build(*, batch=32, seq=128, layers=2, width=64, heads=4):
    """The state, and a function that makes the k-th batch."""
    text = make_text(np.random.default_rng(0), 50_000)
    letters = sorted(set(text))
    tokens = np.array([letters.index(letter) for letter in text], np.int32)

    def make_batch(k):
        starts = np.random.default_rng(k).integers(0, len(tokens) - seq, batch)
        return np.stack([tokens[start : start + seq] for start in starts])

    # A softmax does not notice a bias of its keys: its gradient is all rounding, which Adam would
    # make into steps.
    sizes = {"layers": layers, "width": width, "heads": heads, "vocab": len(letters)}
    model = gpt.GPT(**sizes, dtype=np.float32, attention_bias=False)
    return gpt.init(model, make_batch(0), jax.random.key(0)), make_batch


def run(*, steps, device, planner, **sizes):
    """Trains with and without jaxswap."""
    state, make_batch = build(**sizes)
    needs = side_by_side.forecast_bytes(gpt.train_step, state, make_batch(0), device)
    # A step this small fits any GPU: it gets 70 % of what it needs, so that something has to go.
    swapped = swap_offload(
        gpt.train_step, budget=int(0.7 * needs), device=device, planner=planner, confirm=False,
        donate_argnums=0,
    )  # fmt: skip
    return side_by_side.train_all(gpt.train_step, swapped, state, make_batch, steps)


if __name__ == "__main__":
    side_by_side.main(run, __file__, __doc__)
