"""`swap_offload` behaves like `jax.jit`, plans once per signature, and says what it does."""

import dataclasses
import functools
import inspect
import logging
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxswap
from jaxswap import _decorator, _shortfall, swap_offload
from jaxswap._arguments import commit_donated
from jaxswap._errors import (
    BadArgumentError,
    BudgetInfeasibleError,
    OutOfMemoryError,
    UnknownDeviceError,
)
from jaxswap.apply.check import CheckError
from jaxswap.apply.decision import Decision
from jaxswap.model.device import Device
from jaxswap.model.simulate import Forecast
from jaxswap.plan.plan import Plan, PlannedValue


def step(w, x, scale=1.0):
    """Descends."""

    def loss(w):
        y = x
        for _ in range(3):
            y = jnp.tanh(y @ w)
        return jnp.mean(y**2)

    return w - scale * jax.grad(loss)(w)


# Large enough that its ops are worth scheduling around (1 MiB).
W, X = jnp.eye(512) * 0.5, jnp.ones((512, 512))
OFFLOAD = Plan(
    decisions={"0/1": Decision(action="offload")},  # the first layer's result
    values={"0/1": PlannedValue(size_bytes=2**20)},
    forecast=Forecast(peak_bytes=1, step_s=1.0),
    budget_bytes=1,
    device="t4",
)


def test_it_is_used_with_and_without_arguments():
    bare, called = swap_offload(step), swap_offload(device="t4", confirm=False)(step)
    for swapped in (bare, called):
        np.testing.assert_array_equal(swapped(W, X), jax.jit(step)(W, X))
        assert swapped.__name__ == "step"
        assert swapped.__doc__ == "Descends."
        assert swapped.__wrapped__ is step


def test_a_given_plan_is_followed_and_computes_the_same():
    swapped = swap_offload(step, plan=OFFLOAD)
    assert str(jax.make_jaxpr(swapped)(W, X)).count("MemorySpace.Host") == 1
    np.testing.assert_array_equal(swapped(W, X), jax.jit(step)(W, X))
    assert swapped.plan_for(W, X) is OFFLOAD


def test_there_is_one_plan_per_signature(monkeypatch):
    made = []

    def count(fn, *args, **settings):
        made.append([a.shape for a in args])
        return jaxswap.Plan(**{f: getattr(OFFLOAD, f) for f in OFFLOAD.__dataclass_fields__})

    monkeypatch.setattr(jaxswap._api, "plan", count)
    swapped = swap_offload(step, device="t4", donate_argnums=())
    for batch in (4, 4, 6, 4, 6):
        swapped(W, jnp.ones((batch, 512)))
    assert made == [[(512, 512), (4, 512)], [(512, 512), (6, 512)]]


def test_on_a_cpu_without_a_device_it_jits_plainly_and_says_why(caplog):
    with caplog.at_level(logging.WARNING, logger="jaxswap"):
        assert swap_offload(step).plan_for(W, X) is None
    assert "memory kinds do nothing on the cpu backend" in caplog.text
    assert 'device="rtx4090"' in caplog.text


def test_one_line_says_what_was_planned(caplog):
    with caplog.at_level(logging.INFO, logger="jaxswap"):
        swap_offload(step, device="t4", confirm=False).plan_for(W, X)
    (record,) = [r for r in caplog.records if r.name == "jaxswap"]
    assert record.getMessage().startswith("step on t4: fits as it is")


def test_static_and_keyword_arguments_pass_through():
    swapped = swap_offload(step, static_argnames="scale", plan=OFFLOAD)
    np.testing.assert_array_equal(swapped(W, X, scale=2.0), jax.jit(step)(W, X, 2.0))
    np.testing.assert_array_equal(swapped(W, x=X), jax.jit(step)(W, X))


def test_it_works_inside_jit_and_without_jit():
    swapped = swap_offload(step, plan=OFFLOAD)
    np.testing.assert_array_equal(jax.jit(swapped)(W, X), jax.jit(step)(W, X))
    with jax.disable_jit():
        np.testing.assert_allclose(swapped(W, X), step(W, X), rtol=1e-6)


def test_donated_arguments_are_known_to_the_planner(monkeypatch):
    seen = {}

    def record(fn, *args, donate_argnums, **settings):
        seen["donated"] = donate_argnums
        return OFFLOAD

    monkeypatch.setattr(jaxswap._api, "plan", record)
    swapped = swap_offload(lambda s, x: step(s["w"], x), device="t4", donate_argnums=(0,))
    swapped.lower({"a": jnp.ones(3), "w": W}, X)
    assert seen["donated"] == (0, 1)


def test_lower_and_trace_are_those_of_jit():
    assert "tanh" in swap_offload(step, plan=OFFLOAD).lower(W, X).as_text()


def test_static_arguments_by_number_and_by_name_share_nothing():
    def scaled(w, x, mode, *, power):
        seen.append((mode, power))
        return step(w, x, 2.0 if mode == "double" else 1.0) ** power

    seen = []
    swapped = swap_offload(scaled, static_argnums=2, static_argnames="power", plan=OFFLOAD)
    plain = jax.jit(scaled, static_argnums=2, static_argnames="power")
    for mode, power in (("double", 2), ("plain", 2), ("double", 1)):
        expected = plain(W, X, mode, power=power)
        np.testing.assert_allclose(swapped(W, X, mode, power=power), expected, rtol=1e-6)
    assert set(seen) == {("double", 2), ("plain", 2), ("double", 1)}


def test_python_numbers_are_arguments_too():
    swapped = swap_offload(step, plan=OFFLOAD)
    np.testing.assert_array_equal(swapped(W, X, 3), jax.jit(step)(W, X, 3))
    assert swapped.plan_for(W, X, 3) is OFFLOAD
    assert swapped.plan_for(W, X, scale=3.0) is OFFLOAD


def test_shardings_and_unused_arguments_pass_through():
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    replicated = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    swapped = swap_offload(
        lambda w, x, unused: step(w, x),
        plan=OFFLOAD, in_shardings=(replicated, rows, None), out_shardings=rows, keep_unused=True,
    )  # fmt: skip
    out = swapped(W, X, jnp.ones(3))
    assert out.sharding.is_equivalent_to(rows, 2)
    np.testing.assert_array_equal(out, jax.jit(step)(W, X))
    assert swapped.plan_for(W, X, jnp.ones(3)) is OFFLOAD
    kept = swapped.lower(W, X, jnp.ones(3)).compile()
    assert len(kept.input_shardings[0]) == 3


def test_donated_arguments_are_consumed_as_by_jit():
    w = W + 0
    swapped = swap_offload(step, plan=OFFLOAD, donate_argnums=0)
    swapped(w, X)
    assert w.is_deleted()
    assert not X.is_deleted()


@swap_offload(plan=OFFLOAD)
def decorated(w, x):
    """Is found by its name."""
    return step(w, x)


class Trainer:
    def __init__(self, scale):
        self.scale = scale

    @functools.partial(swap_offload, plan=OFFLOAD, static_argnums=0)
    def step(self, w, x):
        return step(w, x, self.scale)


def test_it_pickles():
    assert pickle.loads(pickle.dumps(decorated)) is decorated
    swapped = swap_offload(step, plan=OFFLOAD, donate_argnums=1)
    again = pickle.loads(pickle.dumps(swapped))
    assert again is not swapped
    np.testing.assert_array_equal(again(W, X + 0), swapped(W, X + 0))
    assert again.plan_for(W, X) == OFFLOAD


def test_methods_signatures_and_docstrings_are_as_of_functions():
    trainer = Trainer(2.0)
    np.testing.assert_array_equal(trainer.step(W, X), jax.jit(step)(W, X, 2.0))
    assert list(inspect.signature(trainer.step).parameters) == ["w", "x"]
    assert inspect.signature(swap_offload(step)) == inspect.signature(step)
    assert decorated.__doc__ == "Is found by its name."
    assert "swap_offload of <function" in repr(decorated)


def test_lower_trace_and_shapes_are_those_of_jit():
    swapped = swap_offload(step, plan=OFFLOAD)
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (W, X)]
    assert swapped.eval_shape(*shapes).shape == W.shape
    assert swapped.trace(*shapes).jaxpr.in_avals[0].shape == W.shape
    compiled = swapped.lower(*shapes).compile()
    np.testing.assert_array_equal(compiled(W, X), jax.jit(step)(W, X))


def test_a_plan_that_it_makes_itself_is_followed_whatever_the_numbers_are():
    def deep(weights, x, rate, *, power=2):
        def loss(weights):
            y = x
            for w in weights:
                y = jnp.tanh(y @ w) * rate
            return jnp.mean(y**power)

        return [w - rate * g for w, g in zip(weights, jax.grad(loss)(weights), strict=True)]

    args = [0.1 * jnp.ones((256, 256))] * 4, jnp.ones((2048, 256))
    swapped = swap_offload(
        deep,
        device="t4",
        budget="14MiB",
        planner="greedy",
        confirm=False,
        donate_argnames="weights",
    )
    # A Python number, an array and a strict dtype: casts differ, and names of values with them.
    for rate in (0.9, jnp.float32(0.9), jnp.bfloat16(0.9)):
        plan = swapped.plan_for(*args, rate)
        assert plan.names("offload") + plan.names("recompute")
        expected = jax.jit(deep)(*args, rate)
        found = swapped(weights=[w + 0 for w in args[0]], x=args[1], rate=rate)
        for a, b in zip(expected, found, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    assert len(swapped._plans) == 6  # positional and by keyword


def test_clearing_the_cache_plans_anew(monkeypatch):
    made = []
    monkeypatch.setattr(jaxswap._api, "plan", lambda *a, **k: made.append(1) or OFFLOAD)
    swapped = swap_offload(step, device="t4")
    swapped.plan_for(W, X)
    swapped.clear_cache()
    swapped.plan_for(W, X)
    assert made == [1, 1]


# ---- the default budget ----


def test_the_default_budget_is_what_jax_may_use_less_a_reserve(monkeypatch):

    limited = dataclasses.replace(Device.named("t4"), memory_bytes=1000 * 2**20)
    monkeypatch.setattr(Device, "detect", staticmethod(lambda: limited))
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    seen = {}

    def record(fn, *args, budget, device, **settings):
        seen.update(budget=budget, device=device)
        return OFFLOAD

    monkeypatch.setattr(jaxswap._api, "plan", record)
    swap_offload(step).plan_for(W, X)
    assert seen == {"budget": 950 * 2**20, "device": limited}


# ---- out of memory ----


def exhausted(num_bytes):
    return jax.errors.JaxRuntimeError(
        f"RESOURCE_EXHAUSTED: Out of memory while trying to allocate {num_bytes} bytes."
    )


class Exhausting:
    """A `jit` whose first calls run out of memory, before anything is consumed or after."""

    def __init__(self, errors, consumes=False):
        self.errors, self.consumes, self.made = list(errors), consumes, 0

    def __call__(self, fn, **jit_kwargs):
        self.made += 1
        jitted = jax.jit(fn, **jit_kwargs)

        @functools.wraps(fn)
        def run(*args, **kwargs):
            jitted.trace(*args, **kwargs)
            if self.errors:
                if self.consumes:
                    args[0].delete()
                raise self.errors.pop(0)
            return jitted(*args, **kwargs)

        run.trace, run.lower = jitted.trace, jitted.lower
        return run


def budgets_seen(monkeypatch, *, floor_bytes=0):
    """Records the budgets that are planned for, and gives a plan for each."""

    seen = []

    def record(fn, *args, budget, **settings):
        seen.append(budget)
        if budget < floor_bytes:
            raise BudgetInfeasibleError(f"No plan fits `budget={budget}`")
        return dataclasses.replace(OFFLOAD, budget_bytes=budget)

    monkeypatch.setattr(jaxswap._api, "plan", record)
    return seen


def test_running_out_of_memory_once_plans_again_with_what_was_missing(monkeypatch, caplog):
    seen = budgets_seen(monkeypatch)
    monkeypatch.setattr(_decorator, "_jit", Exhausting([exhausted(300)]))
    swapped = swap_offload(step, device="t4", budget=1000, donate_argnums=0)
    w = W + 0
    with caplog.at_level(logging.WARNING, logger="jaxswap"):
        out = swapped(w, X)
    np.testing.assert_array_equal(out, jax.jit(step)(W, X))
    assert seen == [1000, 700]
    assert "ran out of memory: planning again for 700 B, 300 B less" in caplog.text
    assert swapped.plan_for(W, X).budget_bytes == 700
    swapped(W + 0, X)
    assert len(seen) == 2


def test_the_second_plan_gets_its_compiler_options(monkeypatch):
    empty = dataclasses.replace(
        OFFLOAD, decisions=dict.fromkeys(OFFLOAD.decisions, Decision(action="keep"))
    )
    plans = iter([empty, OFFLOAD])
    monkeypatch.setattr(_decorator, "plan_call", lambda *args: next(plans))
    monkeypatch.setattr(_decorator, "_is_on_gpu", lambda: True)
    monkeypatch.setattr(_decorator, "_jit", Exhausting([exhausted(300)]))
    swapped = swap_offload(step, device="t4")
    np.testing.assert_array_equal(swapped(W, X), jax.jit(step)(W, X))
    assert swapped._options == OFFLOAD.compiler_options()


def test_running_out_of_memory_twice_is_an_error_with_the_plan(monkeypatch):
    seen = budgets_seen(monkeypatch)
    monkeypatch.setattr(_decorator, "_jit", Exhausting([exhausted(300), exhausted(200)]))
    swapped = swap_offload(step, device="t4", budget=1000, donate_argnums=0)
    w = W + 0
    with pytest.raises(OutOfMemoryError, match="for 300 B less, ran out of memory too") as caught:
        swapped(w, X)
    assert seen == [1000, 700]
    assert caught.value.plan.budget_bytes == 700
    assert caught.value.report is not None
    assert not w.is_deleted()
    assert isinstance(caught.value, MemoryError)


def test_a_floor_above_the_lowered_budget_is_an_error_with_the_plan(monkeypatch):
    budgets_seen(monkeypatch, floor_bytes=900)
    monkeypatch.setattr(_decorator, "_jit", Exhausting([exhausted(300)]))
    with pytest.raises(OutOfMemoryError, match="no plan needs 300 B less") as caught:
        swap_offload(step, device="t4", budget=1000)(W, X)
    assert isinstance(caught.value.__cause__, BudgetInfeasibleError)
    assert caught.value.plan.budget_bytes == 1000


def test_a_given_plan_is_not_replaced(monkeypatch):
    monkeypatch.setattr(_decorator, "_jit", Exhausting([exhausted(300)]))
    with pytest.raises(OutOfMemoryError, match="its plan was given, and is not replaced"):
        swap_offload(step, plan=OFFLOAD)(W, X)


def test_arguments_that_are_gone_are_not_run_with_again(monkeypatch):
    budgets_seen(monkeypatch)
    monkeypatch.setattr(_decorator, "_jit", Exhausting([exhausted(300)], consumes=True))
    with pytest.raises(OutOfMemoryError, match="donated arguments are gone"):
        swap_offload(step, device="t4", budget=1000, donate_argnums=0)(W + 0, X)


def test_it_plans_again_only_once_for_a_signature(monkeypatch):
    budgets_seen(monkeypatch)
    jit = Exhausting([exhausted(300)])
    monkeypatch.setattr(_decorator, "_jit", jit)
    swapped = swap_offload(step, device="t4", budget=1000)
    swapped(W, X)
    jit.errors.append(exhausted(10))
    with pytest.raises(OutOfMemoryError, match="it was planned again before"):
        swapped(W, X)


def test_other_errors_of_the_runtime_are_left_alone(monkeypatch):
    other = jax.errors.JaxRuntimeError("INTERNAL: something else")
    monkeypatch.setattr(_decorator, "_jit", Exhausting([other, exhausted(3)]))
    with pytest.raises(jax.errors.JaxRuntimeError, match="something else"):
        swap_offload(step, plan=OFFLOAD)(W, X)
    # Nothing was planned: JAX's own error says all there is to say.
    with pytest.raises(jax.errors.JaxRuntimeError, match="RESOURCE_EXHAUSTED"):
        swap_offload(step)(W, X)


class _Stats:
    def __init__(self, stats):
        self.memory_stats = lambda: stats


@pytest.mark.parametrize(
    ("message", "stats", "shortfall"),
    [
        ("Out of memory while trying to allocate 300 bytes.", None, 300),
        ("Out of memory allocating 300 bytes.", {}, 300),
        ("trying to allocate 1.5KiB", {"bytes_limit": 5000, "bytes_in_use": 4000}, 536),
        ("allocate 400 bytes", {"bytes_limit": 5000, "bytes_in_use": 4000}, 20),
        ("allocate 9000 bytes", {"bytes_limit": 5000, "bytes_in_use": 0}, 1000),
        ("allocate 9000 bytes", None, 100),
        ("out of memory", None, 100),
    ],
)
def test_the_shortfall_is_what_was_asked_for_less_what_was_free(message, stats, shortfall):
    assert _shortfall.find_shortfall(RuntimeError(message), 1000, _Stats(stats)) == shortfall


# ---- the self check ----


def test_the_self_check_passes_once_per_signature_and_consumes_nothing():
    traced = []

    def counted(w, x):
        traced.append(x.shape)
        return step(w, x)

    swapped = swap_offload(counted, plan=OFFLOAD, self_check=True, donate_argnums=0)
    w = W + 0
    out = swapped(w, X)
    assert w.is_deleted()  # by the call itself, after the check
    np.testing.assert_array_equal(out, jax.jit(step)(W, X))
    calls = len(traced)
    swapped(W + 0, X)
    assert len(traced) == calls
    np.testing.assert_array_equal(jax.jit(swapped)(W, X), out)


def test_the_self_check_finds_a_step_that_computes_something_else(monkeypatch):
    apply = jaxswap._api.apply
    wrong = lambda fn, plan: lambda *args: {"w": 1.01 * apply(fn, plan)(*args)["w"]}
    monkeypatch.setattr(jaxswap._api, "apply", wrong)
    swapped = swap_offload(
        lambda w, x: {"w": step(w, x)}, plan=OFFLOAD, self_check=True, donate_argnums=0
    )
    w = W + 0
    with pytest.raises(CheckError, match=r"off by 1\.0e-02 in `result\['w'\]`"):
        swapped(w, X)
    assert not w.is_deleted()


def test_the_self_check_says_when_there_is_nothing_to_compare_with(monkeypatch, caplog):
    def refuse(fn, **jit_kwargs):
        if fn is step:
            raise exhausted(3)
        return real(fn, **jit_kwargs)

    real = jax.jit
    swapped = swap_offload(step, plan=OFFLOAD, self_check=True)
    monkeypatch.setattr(jax, "jit", refuse)
    with caplog.at_level(logging.WARNING, logger="jaxswap"):
        swapped(W, X)
    assert "is not checked: as written it does not fit" in caplog.text


def test_the_public_self_check():
    found = jaxswap.self_check(step, OFFLOAD, W, X)
    assert found.is_identical
    with pytest.raises(CheckError, match="was allowed"):
        jaxswap.self_check(step, OFFLOAD, W, X, rtol=-1.0)


# ---- reports ----


def test_the_report_is_of_the_plan():
    swapped = swap_offload(step, device="t4", confirm=False, budget="1GiB")
    report = swapped.report(W, X)
    assert report.title == "step"
    assert report.budget_bytes == 2**30
    assert "t4" in str(report)


# ---- bad input ----


def test_a_step_without_a_gradient_is_jitted_with_a_warning():
    swapped = swap_offload(lambda w, x: w @ x, device="t4", confirm=False)
    with pytest.warns(UserWarning, match=r"takes no gradient, .* it is jitted as it is"):
        np.testing.assert_array_equal(swapped(W, X), jax.jit(jnp.matmul)(W, X))
    assert swapped.plan_for(W, X) is None
    tight = swap_offload(lambda w, x: w @ x, device="t4", confirm=False, budget="1KiB")
    with pytest.warns(UserWarning, match="takes no gradient"):
        tight(W, X)
    with pytest.raises(BadArgumentError, match=r"nothing is planned.*device=\"rtx4090\""):
        swapped.report(W, X)


def test_bad_settings_are_said_at_once():
    with pytest.raises(UnknownDeviceError):
        swap_offload(step, device="no-such-gpu")
    with pytest.raises(BadArgumentError, match="it takes a function"):
        swap_offload("10GiB")


def test_on_a_gpu_a_plan_with_offloads_is_compiled_so_that_copies_overlap(monkeypatch):
    monkeypatch.setattr(_decorator, "_is_on_gpu", lambda: True)
    given = []

    def jit(fn, **kwargs):
        given.append(kwargs.get("compiler_options"))
        return jax.jit(fn, **kwargs)

    monkeypatch.setattr(_decorator, "_jit", jit)
    own = {"xla_gpu_autotune_level": 0}
    expected = jax.jit(step)(W, X)
    swapped = swap_offload(step, plan=OFFLOAD, compiler_options=own)
    assert swapped.lower(W, X).as_text()
    np.testing.assert_array_equal(swapped(W, X), expected)
    assert given == [own, own, OFFLOAD.compiler_options() | own]


def test_on_a_gpu_the_second_call_compiles_nothing(monkeypatch):
    monkeypatch.setattr(_decorator, "_is_on_gpu", lambda: True)
    swapped = swap_offload(step, plan=OFFLOAD, donate_argnums=0)
    w = jnp.array(W)
    assert not w.committed
    w = swapped(w, X)
    w = swapped(w, X)
    assert w.committed
    assert swapped._jitted._cache_size() == 1


def test_only_what_is_donated_is_committed():
    loose = jnp.ones(2)
    args, kwargs = commit_donated(
        lambda a, b, *, c: None, ({"x": loose}, loose), {"c": loose},
        {"donate_argnums": 0, "donate_argnames": "c"},
    )  # fmt: skip
    assert args[0]["x"].committed
    assert kwargs["c"].committed
    assert args[1] is loose
    assert args[0]["x"].unsafe_buffer_pointer() == loose.unsafe_buffer_pointer()


def test_nothing_is_committed_where_jit_might_run_elsewhere():
    loose = jnp.ones(2)
    commit = lambda: commit_donated(lambda a: None, (loose,), {}, {"donate_argnums": 0})[0][0]
    with jax.default_device(jax.devices()[0]):
        assert commit() is loose
    assert commit().committed
    traced = []
    jax.jit(lambda x: traced.append(commit_donated(
        lambda a, b: None, (loose, x), {}, {"donate_argnums": 0})))(loose)  # fmt: skip
    assert traced[0][0][0] is loose


def test_a_static_argument_stays_the_object_that_it_is():
    static = {"a": 1}
    args, _ = commit_donated(lambda s, w: None, (static, jnp.ones(2)), {}, {"donate_argnums": 1})
    assert args[0] is static


def test_a_later_plan_gets_the_compiler_options_that_the_first_did_without(monkeypatch):
    monkeypatch.setattr(_decorator, "_is_on_gpu", lambda: True)
    sized = dataclasses.replace(
        OFFLOAD, budget_bytes=90, memory_bytes=100, decisions={
            name: Decision(action="recompute") for name in OFFLOAD.decisions
        },
    )  # fmt: skip
    plans = iter([sized, dataclasses.replace(OFFLOAD, budget_bytes=80, memory_bytes=100)])
    monkeypatch.setattr(_decorator, "plan_call", lambda *args: next(plans))
    swapped = swap_offload(step)
    swapped.lower(W, X)
    assert swapped._options.keys() == sized.compiler_options().keys()
    swapped.lower(W, X[:256])
    assert swapped._options == OFFLOAD.compiler_options() | sized.compiler_options()
    swapped.clear_cache()
    assert swapped._options == {}


def test_inside_an_outer_jit_the_compiler_options_are_the_callers(monkeypatch):
    monkeypatch.setattr(_decorator, "_is_on_gpu", lambda: True)
    swapped = swap_offload(step, plan=OFFLOAD)
    expected = jax.jit(step)(W, X)
    outer = jax.jit(lambda w, x: swapped(w, x))
    np.testing.assert_array_equal(outer(W, X), expected)
    np.testing.assert_array_equal(swapped(W, X), expected)
    np.testing.assert_array_equal(outer(W, X[:256]), jax.jit(step)(W, X[:256]))
