"""Training steps in every style that users write them in, small, in f32.

Each builder returns a step and its arguments. `chain` feeds a step's results back into it.
"""

import functools
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen, nnx

KEY = jax.random.key(0)
RNG = np.random.default_rng(0)


def normal(*shape):
    """Random numbers that nothing has to be compiled for."""
    return jnp.asarray(RNG.standard_normal(shape), jnp.float32)


def _sgd(params, grads):
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def _mlp_params(sizes=(6, 8, 8, 4)):
    return [{"w": normal(a, b) / a**0.5, "b": normal(b)} for a, b in itertools.pairwise(sizes)]


def _mlp(params, x):
    for layer in params[:-1]:
        x = jax.nn.gelu(x @ layer["w"] + layer["b"])
    return x @ params[-1]["w"] + params[-1]["b"]


X = normal(5, 6)
Y = normal(5, 4)


def mlp():
    optimizer = optax.adamw(1e-2)
    params = _mlp_params()

    def step(params, state, x, y):
        loss = lambda p: jnp.mean((_mlp(p, x) - y) ** 2)
        value, grads = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, x, y, value

    return step, (params, optimizer.init(params), X, Y)


def transformer(is_scanned: bool):
    d, heads = 8, 2

    def block(x, p):
        b, s, _ = x.shape
        q, k, v = jnp.split((x @ p["qkv"]).reshape(b, s, 3 * heads, d // heads), 3, axis=2)
        a = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k), -1)
        x = x + jnp.einsum("bhqk,bkhd->bqhd", a, v).reshape(b, s, d) @ p["out"]
        return x + jax.nn.gelu(x @ p["up"]) @ p["down"]

    shapes = {"qkv": (2, d, 3 * d), "out": (2, d, d), "up": (2, d, 4 * d), "down": (2, 4 * d, d)}
    params = {name: normal(*shape) / shape[1] ** 0.5 for name, shape in shapes.items()}
    x = normal(2, 5, d)

    def loss(params, x):
        if is_scanned:
            h, _ = jax.lax.scan(lambda c, p: (block(c, p), None), x, params)
        else:
            h = x
            for i in range(2):
                h = block(h, jax.tree.map(lambda p, i=i: p[i], params))
        return jnp.mean(h**2)

    def step(params, x):
        value, grads = jax.value_and_grad(loss)(params, x)
        return _sgd(params, grads), x, value

    return step, (params, x)


class _Net(linen.Module):
    @linen.compact
    def __call__(self, x):
        x = linen.relu(linen.BatchNorm(use_running_average=False)(linen.Conv(4, (3, 3))(x)))
        x = linen.Conv(4, (3, 3))(linen.Dropout(0.3, deterministic=False)(x))
        return linen.Dense(3)(linen.max_pool(x, (2, 2), (2, 2)).reshape(x.shape[0], -1))


def linen_batch_stats():
    net = _Net()
    x = normal(3, 6, 6, 2)
    shapes = jax.eval_shape(net.init, {"params": KEY, "dropout": KEY}, x)
    variables = jax.tree.map(lambda s: 0.3 * normal(*s.shape), shapes)

    def step(variables, key, x):
        key, dropout = jax.random.split(key)

        def loss(params):
            out, updates = net.apply(
                variables | {"params": params},
                x,
                rngs={"dropout": dropout},
                mutable=["batch_stats"],
            )
            return jnp.mean(out**2), (updates, out.argmax(-1))

        (value, (updates, _)), grads = jax.value_and_grad(loss, has_aux=True)(variables["params"])
        return {"params": _sgd(variables["params"], grads), **updates}, key, x, value

    return step, (variables, KEY, x)


def nnx_module():
    class Model(nnx.Module):
        def __init__(self, rngs):
            self.first = nnx.Linear(6, 8, rngs=rngs)
            self.norm = nnx.BatchNorm(8, rngs=rngs)
            self.second = nnx.Linear(8, 4, rngs=rngs)

        def __call__(self, x):
            return self.second(nnx.gelu(self.norm(self.first(x))))

    graph, state = nnx.split(Model(nnx.Rngs(0)))

    def step(state, x, y):
        model = nnx.merge(graph, state)
        loss = lambda m: jnp.mean((m(x) - y) ** 2)
        value, grads = nnx.value_and_grad(loss)(model)
        nnx.update(model, _sgd(nnx.state(model, nnx.Param), grads))
        return nnx.state(model), x, y, value

    return step, (state, X, Y)


def equinox_module():
    model = eqx.nn.MLP(6, 4, 8, 2, key=KEY)
    arrays, static = eqx.partition(model, eqx.is_array)

    def step(arrays, x, y):
        @eqx.filter_value_and_grad
        def loss(model):
            return jnp.mean((jax.vmap(model)(x) - y) ** 2)

        value, grads = loss(eqx.combine(arrays, static))
        return _sgd(arrays, eqx.filter(grads, eqx.is_array)), x, y, value

    return step, (arrays, X, Y)


@jax.custom_vjp
def _scaled(x, w):
    return jnp.tanh(x @ w)


def _scaled_forward(x, w):
    hidden = x @ w
    return jnp.tanh(hidden), (x, w, hidden)


def _scaled_backward(saved, cotangent):
    x, w, hidden = saved
    # Twice the true gradient: only the custom rule gives this.
    inner = 2.0 * cotangent * (1 - jnp.tanh(hidden) ** 2)
    return inner @ w.T, x.T @ inner


_scaled.defvjp(_scaled_forward, _scaled_backward)


def custom_rule():
    w = normal(6, 6) / 3

    def step(w, x):
        value, grad = jax.value_and_grad(lambda w: jnp.sum(_scaled(_scaled(x, w), w) ** 2))(w)
        return w - 0.01 * grad, x, value

    return step, (w, X)


def two_losses():
    """The second loss reads what the first gradient made, as when training a GAN."""
    a, b = _mlp_params(), _mlp_params((4, 8, 1))

    def step(a, b, x):
        critic = lambda b, a: jnp.mean(_mlp(b, _mlp(a, x)) ** 2)
        first, grads = jax.value_and_grad(critic)(b, a)
        b = _sgd(b, grads)
        second, pullback = jax.vjp(lambda a: -critic(b, a), a)
        return _sgd(a, pullback(jnp.ones_like(second))[0]), b, x, first + second

    return step, (a, b, X)


def accumulation():
    params = _mlp_params()

    def step(params, x, y):
        def body(total, batch):
            grads = jax.grad(lambda p: jnp.mean((_mlp(p, batch[0]) - batch[1]) ** 2))(params)
            return jax.tree.map(jnp.add, total, grads), None

        batches = jnp.stack([x, 2 * x, -x]), jnp.stack([y, y, y])
        total, _ = jax.lax.scan(body, jax.tree.map(jnp.zeros_like, params), batches)
        return _sgd(params, total), x, y

    return step, (params, X, Y)


def linear_solve():
    """An implicit layer: what it computes is the solution of a linear system."""
    params = {"inner": normal(6, 6) / 10, "in": normal(6, 6), "out": normal(6, 4)}

    def solve(apply, b):
        richardson = lambda _, v: v + b - apply(v)
        return jax.lax.fori_loop(0, 8, richardson, b)

    def step(params, x):
        def loss(params):
            h = jnp.tanh(x @ params["in"])
            system = lambda v: v + v @ params["inner"]
            h = jax.lax.custom_linear_solve(system, h, solve, transpose_solve=solve)
            return jnp.mean(jnp.sin(h @ params["out"]) ** 2)

        value, grads = jax.value_and_grad(loss)(params)
        return _sgd(params, grads), x, value

    return step, (params, X)


def second_order():
    params = _mlp_params()

    def step(params, x):
        def penalty(params):
            slope = jax.grad(lambda x: jnp.sum(_mlp(params, x) ** 2))(x)
            return jnp.mean(slope**2)

        value, grads = jax.value_and_grad(penalty)(params)
        return _sgd(params, jax.tree.map(lambda g: 0.01 * g, grads)), x, value

    return step, (params, X)


def forward_over_reverse():
    params = _mlp_params()

    def step(params, x, y):
        grad = jax.grad(lambda p: jnp.mean((_mlp(p, x) - y) ** 2))
        grads, product = jax.jvp(grad, (params,), (params,))
        return _sgd(params, jax.tree.map(lambda a, b: a + 0.01 * b, grads, product)), x, y

    return step, (params, X, Y)


def per_example():
    params = _mlp_params()

    def step(params, x, y):
        grad = jax.grad(lambda p, x, y: jnp.mean((_mlp(p, x) - y) ** 2))
        grads = jax.vmap(grad, (None, 0, 0))(params, x, y)
        clipped = jax.tree.map(lambda g: jnp.clip(g, -1, 1).mean(0), grads)
        return _sgd(params, clipped), x, y

    return step, (params, X, Y)


def user_checkpoints():
    params = _mlp_params((6, 8, 8, 8, 4))
    save = jax.checkpoint_policies.dots_saveable

    def step(params, x, y):
        def loss(params):
            h = x
            for layer in params[:-1]:
                dense = lambda h, p: jnp.sin(jnp.tanh(h @ p["w"] + p["b"]))
                h = jax.checkpoint(dense, policy=save)(h, layer)
            return jnp.mean((h @ params[-1]["w"] - y) ** 2)

        value, grads = jax.value_and_grad(loss)(params)
        return _sgd(params, grads), x, y, value

    return step, (params, X, Y)


def inner_jit():
    """A step that is jitted already, and was run before."""
    step, args = mlp()
    jitted = jax.jit(step)
    jitted(*args)
    return lambda *xs: jitted(*xs), args


def branches_and_loops():
    """Gradients that are taken inside a `cond` and a `fori_loop`."""
    params = _mlp_params()

    def step(params, x, y):
        descend = lambda p: _sgd(p, jax.grad(lambda p: jnp.mean((_mlp(p, x) - y) ** 2))(p))
        params = jax.lax.cond(x.sum() > -1e9, descend, lambda p: p, params)
        return jax.lax.fori_loop(0, 2, lambda _, p: descend(p), params), x, y

    return step, (params, X, Y)


def layers_in_branches(in_scan=False):
    """Layers that are skipped at times, and one whose activation is chosen, all differentiated."""
    params = _mlp_params((6, 6, 6, 6))
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *params)

    def layer(h, p, k):
        wide = lambda h: jnp.tanh(jnp.sin(h @ p["w"] + p["b"]) @ p["w"])
        h = jax.lax.cond(k > 0, wide, lambda h: h, h)
        return h + jax.lax.switch(k % 2, [jnp.sin, lambda h: jnp.tanh(h @ p["w"])], h)

    def step(params, x):
        def loss(params):
            if in_scan:
                return jnp.mean(
                    jax.lax.scan(lambda h, pk: (layer(h, *pk), None), x, (params, jnp.arange(3)))[0]
                    ** 2
                )
            h = x
            for k, p in enumerate(params):
                h = layer(h, p, jnp.int32(k) + (x.sum() > 1e9))
            return jnp.mean(h**2)

        value, grads = jax.value_and_grad(loss)(params)
        return _sgd(params, grads), x, value

    return step, (stacked if in_scan else params, X)


def integer_inputs():
    """Integers among what is differentiated, and a random key in the loss."""
    table = normal(7, 6)
    params = (table, _mlp_params())

    def step(params, tokens, key):
        key, noise = jax.random.split(key)

        def loss(params, tokens):
            h = params[0][tokens]
            keep = jax.random.bernoulli(noise, 0.7, h.shape)
            return jnp.mean(_mlp(params[1], jnp.where(keep, h / 0.7, 0.0)) ** 2)

        grads = jax.grad(loss, argnums=(0, 1), allow_int=True)(params, tokens)
        return _sgd(params, grads[0]), tokens, key

    return step, (params, jnp.array([1, 5, 2, 2]), KEY)


def sharded():
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    params = _mlp_params()
    spec = jax.sharding.PartitionSpec

    @functools.partial(
        jax.shard_map, mesh=mesh, in_specs=(spec(), spec("data"), spec("data")), out_specs=spec()
    )
    def mean_gradient(params, x, y):
        grads = jax.grad(lambda p: jnp.mean((_mlp(p, x) - y) ** 2))(params)
        return jax.tree.map(lambda g: jax.lax.pmean(g, "data"), grads)

    def step(params, x, y):
        return _sgd(params, mean_gradient(params, x, y)), x, y

    return step, (params, X, Y)


MODELS = {
    "mlp": mlp,
    "transformer": lambda: transformer(False),
    "scanned transformer": lambda: transformer(True),
    "batch norm and dropout": linen_batch_stats,
}
STYLES = {
    "nnx": nnx_module,
    "equinox": equinox_module,
    "custom rule": custom_rule,
    "two losses": two_losses,
    "accumulation": accumulation,
    "linear solve": linear_solve,
    "second order": second_order,
    "forward over reverse": forward_over_reverse,
    "per example": per_example,
    "user checkpoints": user_checkpoints,
    "inner jit": inner_jit,
    "branches and loops": branches_and_loops,
    "layers in branches": layers_in_branches,
    "layers in branches in a loop": lambda: layers_in_branches(in_scan=True),
    "integers and keys": integer_inputs,
    "shard_map": sharded,
}


def chain(step, args, times: int):
    """Runs a jitted step several times in a row, each on the results of the one before."""
    for _ in range(times):
        out = step(*args)
        args = out[: len(args)]
    return out
