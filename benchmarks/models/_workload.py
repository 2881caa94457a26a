"""Workloads: what is a training step, ready to be jitted, and how much arithmetic is in it?

Input: a Flax linen model, a loss and an optax optimizer. Output: a `Workload`, whose arguments
are shapes: nothing is allocated until `concrete` is called.
The one convention: `step(variables, optimizer_state, *batch)` returns the new variables, the
new optimizer state and the loss; the first two are donated.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

from jaxswap._errors import BadArgumentError

Batch = tuple[jax.Array, ...]
_DTYPES = {"bf16": jnp.bfloat16, "f16": jnp.float16, "f32": jnp.float32}
_F16_LOSS_SCALE = 1024.0
# For what runs once, on CPU: an `init` compiles ten times faster.
COMPILE_FAST = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A training step, and what is needed to trace, compile, run or judge it.

    Attributes:
        name: the name it was built by.
        step: the pure training step, `step(*args) -> (variables, optimizer_state, loss)`.
        args: the step's arguments, as pytrees of `jax.ShapeDtypeStruct`.
        donate_argnums: the arguments that the step replaces, for `jax.jit`.
        samples: how many examples one step consumes.
        dtype: of the activations, `"bf16"`, `"f16"` or `"f32"`; parameters are always f32.
        analytic_flops: of the matmuls and convolutions in the model's forward and backward
            pass, two per multiply-add. Neither recomputation nor a multiplication by
            padding counts.
        init: makes the variables and the optimizer state from a key.
        draw: makes a random batch from a key.

    Example:
        >>> from benchmarks.models import build
        >>> workload = build("gpt2-small", layers=1, d_model=24, seq=8, vocab=16)
        >>> workload.samples, workload.dtype, workload.args[2].shape
        (16, 'bf16', (16, 8))
    """

    name: str
    step: Callable[..., tuple[Any, Any, jax.Array]]
    args: tuple[Any, ...]
    donate_argnums: tuple[int, ...]
    samples: int
    dtype: str
    analytic_flops: int
    init: Callable[[jax.Array], tuple[Any, Any]]
    draw: Callable[[jax.Array], Batch]


def parse_dtype(dtype: str) -> Any:
    """Turns `"bf16"`, `"f16"` or `"f32"` into the dtype of the activations."""
    if dtype not in _DTYPES:
        raise BadArgumentError(
            f"`dtype={dtype!r}` is not a precision that the models have: "
            f"use one of {', '.join(_DTYPES)}."
        )
    return _DTYPES[dtype]


def make_workload(
    *,
    name: str,
    model: nn.Module,
    loss: Callable[..., jax.Array],
    optimizer: optax.GradientTransformation,
    draw: Callable[[jax.Array], Batch],
    num_inputs: int = 1,
    dropout: float = 0.0,
    samples: int,
    dtype: str,
    analytic_flops: int,
) -> Workload:
    """Assembles a training step.

    Args:
        name: goes into the workload, as do `samples`, `dtype` and `analytic_flops`.
        model: the linen module; collections other than `params` are running statistics.
        loss: `loss(apply, *batch)`, where `apply(*inputs, **kwargs)` runs the model once.
        optimizer: updates the parameters.
        draw: a random batch from a key; its shapes become the step's arguments.
        num_inputs: how many leading arrays of the batch are the model's inputs.
        dropout: if there is any, a seed for its masks becomes the batch's last array.
        samples: examples per step.
        dtype: of the activations.
        analytic_flops: of a step.
    """
    if dropout:
        draw, loss = _seed_dropout(draw, loss)
    if dtype == "f16":
        # Gradients of the activations underflow in f16; bf16 has the range of f32.
        optimizer = optax.chain(optax.scale(1 / _F16_LOSS_SCALE), optimizer)

    def init(key: jax.Array) -> tuple[Any, Any]:
        variables = model.init(key, *draw(key)[:num_inputs])
        return variables, optimizer.init(variables["params"])

    key = jax.random.key(0)
    return Workload(
        name=name,
        step=_make_step(model, loss, optimizer, _F16_LOSS_SCALE if dtype == "f16" else None),
        args=(*jax.eval_shape(init, key), *jax.eval_shape(draw, key)),
        donate_argnums=(0, 1),
        samples=samples,
        dtype=dtype,
        analytic_flops=analytic_flops,
        init=init,
        draw=draw,
    )


def _seed_dropout(
    draw: Callable[[jax.Array], Batch], loss: Callable[..., jax.Array]
) -> tuple[Callable[[jax.Array], Batch], Callable[..., jax.Array]]:
    def draw_with_seed(key: jax.Array) -> Batch:
        batch_key, seed_key = jax.random.split(key)
        return *draw(batch_key), jax.random.randint(seed_key, (), 0, 2**31 - 1)

    def seeded_loss(apply: Callable[..., Any], *batch: jax.Array) -> jax.Array:
        *arrays, seed = batch
        return loss(partial(apply, rngs={"dropout": jax.random.key(seed)}), *arrays)

    return draw_with_seed, seeded_loss


def _make_step(
    model: nn.Module,
    loss: Callable[..., jax.Array],
    optimizer: optax.GradientTransformation,
    loss_scale: float | None,
) -> Callable[..., tuple[Any, Any, jax.Array]]:
    def scaled_loss(params: Any, statistics: Any, batch: Batch) -> tuple[jax.Array, Any]:
        updated = {}

        def apply(*inputs: jax.Array, **kwargs: Any) -> Any:
            variables = {"params": params, **statistics}
            out, new = model.apply(variables, *inputs, mutable=list(statistics), **kwargs)
            updated.update(new)
            return out

        value = loss(apply, *batch)
        return value if loss_scale is None else value * loss_scale, (value, updated)

    def step(variables: Any, optimizer_state: Any, *batch: jax.Array):
        statistics = {k: v for k, v in variables.items() if k != "params"}
        params = variables["params"]
        differentiate = jax.value_and_grad(scaled_loss, has_aux=True)
        (_, (value, statistics)), grads = differentiate(params, statistics, batch)
        updates, optimizer_state = optimizer.update(grads, optimizer_state, params)
        params = optax.apply_updates(params, updates)
        return {"params": params, **statistics}, optimizer_state, value

    return step


def concrete(workload: Workload, seed: int) -> tuple[Any, ...]:
    """Makes real arguments for a workload: initialised parameters and a random batch.

    Example:
        >>> from benchmarks.models import build, concrete
        >>> workload = build("gpt2-small", layers=1, d_model=24, seq=8, vocab=16)
        >>> *_, loss = jax.jit(workload.step)(*concrete(workload, 0))
        >>> loss.shape
        ()
    """

    def make(key: jax.Array) -> tuple[Any, ...]:
        init_key, batch_key = jax.random.split(key)
        return (*workload.init(init_key), *workload.draw(batch_key))

    return jax.jit(make, compiler_options=COMPILE_FAST)(jax.random.key(seed))
