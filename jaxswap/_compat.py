"""Private JAX: the only file that touches `jax._src`, `jaxlib` internals or a JAX version.

Each use says which JAX versions it is known for. Everything else in jaxswap imports from
here, so that a new JAX release is one file's work.
"""

import contextlib
import functools
import importlib.util
import io
import itertools
import threading
import types
import warnings
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any

# ---- tracing and jaxprs ----------------------------------------------------------------
# Known for jax 0.10.2. JAX is imported inside the functions, as below.

_shim_lock = threading.Lock()
_shim_users = 0
_active = threading.local()


@functools.cache
def jaxpr_api() -> Any:
    """The parts of JAX's intermediate language that jaxswap reads and builds programs with."""
    from jax._src import ad_checkpoint, core, dispatch, pjit, source_info_util
    from jax._src.interpreters import partial_eval
    from jax._src.lax import convolution, lax
    from jax._src.lax.control_flow import conditionals, loops
    from jax.extend.core import primitives

    return types.SimpleNamespace(
        ClosedJaxpr=core.ClosedJaxpr,
        DebugInfo=core.DebugInfo,
        DropVar=core.DropVar,
        Jaxpr=core.Jaxpr,
        JaxprEqn=core.JaxprEqn,
        Literal=core.Literal,
        Primitive=core.Primitive,
        ShapedArray=core.ShapedArray,
        Var=core.Var,
        call_primitives=(core.call_p, core.closed_call_p),
        custom_primitives=(primitives.custom_jvp_call_p, primitives.custom_vjp_call_p),
        check_jaxpr=core.check_jaxpr,
        cond_p=conditionals.cond_p,
        conv_p=convolution.conv_general_dilated_p,
        dce_jaxpr=partial_eval.dce_jaxpr,
        device_put_p=dispatch.device_put_p,
        dot_p=lax.dot_general_p,
        eval_jaxpr=core.eval_jaxpr,
        jit_p=pjit.jit_p,
        jaxpr_effects=partial_eval.make_jaxpr_effects,
        name_p=ad_checkpoint.name_p,
        new_eqn=core.new_jaxpr_eqn,
        optimization_barrier_p=lax.optimization_barrier_p,
        primitives=primitives,
        ragged_dot_p=lax.ragged_dot_general_p,
        remat_p=ad_checkpoint.remat_p,
        scan_p=loops.scan_p,
        subjaxprs=core.jaxprs_in_params,
        summarise_source=source_info_util.summarize,
        unmapped_aval=core.unmapped_aval,
        user_frame=source_info_util.user_frame,
        valid_jaxtype=core.valid_jaxtype,
        while_p=loops.while_p,
    )


@functools.cache
def _session_state() -> Any:
    """A thread-local setting that is part of the key of every trace JAX caches.

    JAX caches traces by function identity: without this, a `jit` inside the step that was
    traced before would be replayed from the cache, with nothing intercepted in it.
    """
    from jax._src import config

    return config.State(
        "jaxswap_session",
        0,
        "the jaxswap trace under way on this thread, 0 for none",
        include_in_trace_context=True,
    )


_session_numbers = itertools.count(1)


@contextlib.contextmanager
def intercept_differentiation(instrument: Callable[[Callable, tuple, bool], Callable]):
    """Hands every reverse-mode differentiation of this thread to `instrument` first.

    `jax.grad`, `value_and_grad` and `vjp`, and what Flax and Equinox build on them, all call
    `ad.linearize(…, is_vjp=True)`; `jax.linearize` and `jvp` call it without the flag, or not
    at all, and are left alone. The shim is installed while any thread needs it, and asks the
    thread it runs on, so that a second thread sees nothing of it.

    Args:
        instrument: takes the function, its primals and `has_aux`, and returns the function
            to differentiate in its stead.
    """
    global _shim_users
    from jax._src.interpreters import ad

    with _shim_lock:
        if _shim_users == 0:
            ad.linearize = _shim(ad.linearize)
        _shim_users += 1
    previous = getattr(_active, "instrument", None)
    _active.instrument = instrument
    try:
        with _session_state()(next(_session_numbers)):
            yield
    finally:
        _active.instrument = previous
        with _shim_lock:
            _shim_users -= 1
            if _shim_users == 0:
                ad.linearize = ad.linearize.__wrapped__  # pyright: ignore


def _shim(linearize: Callable) -> Callable:
    @functools.wraps(linearize)
    def shim(traceable, primals_ft, has_aux=False, is_vjp=False):
        instrument = getattr(_active, "instrument", None)
        if is_vjp and instrument is not None:
            traceable = instrument(traceable, primals_ft.unflatten(), has_aux)
        return linearize(traceable, primals_ft, has_aux=has_aux, is_vjp=is_vjp)

    return shim


@contextlib.contextmanager
def pause_interception():
    """Differentiations inside belong to the one outside: they are left as they are."""
    previous = getattr(_active, "instrument", None)
    _active.instrument = None
    try:
        yield
    finally:
        _active.instrument = previous


def is_interception_installed() -> bool:
    """Whether JAX's own function is replaced at this moment, by any thread."""
    from jax._src.interpreters import ad

    return hasattr(ad.linearize, "__wrapped__")


def strip_scopes(source_info: Any, prefix: str | tuple[str, ...]) -> Any:
    """The source information of an equation without the name scopes that start so."""
    stack = source_info.name_stack
    kept = tuple(e for e in stack.stack if not getattr(e, "name", "").startswith(prefix))
    if len(kept) == len(stack.stack):
        return source_info
    return source_info.replace(name_stack=type(stack)(kept))


def new_copy_eqn(source: Any, *, to_host: bool, scope: str = "") -> Any:
    """An equation that copies `source` to host memory, or back to the device, in a name scope."""
    from jax._src import core, dispatch, source_info_util

    space = core.MemorySpace.Host if to_host else core.MemorySpace.Device
    params = {
        "devices": (space,),
        "srcs": (None,),
        "copy_semantics": (dispatch.ArrayCopySemantics.ALWAYS_COPY,),
    }
    target = core.Var(source.aval.update(memory_space=space))
    info = source_info_util.new_source_info()
    if scope:
        info = info.replace(name_stack=info.name_stack.extend(scope))
    return core.new_jaxpr_eqn([source], [target], dispatch.device_put_p, params, set(), info)


def is_on_host(aval: Any) -> bool:
    """Whether an abstract value lives in host memory."""
    from jax._src import core

    return getattr(aval, "memory_space", None) == core.MemorySpace.Host


def varying_axes(aval: Any) -> frozenset:
    """The mesh axes a value differs along inside `shard_map`; none outside."""
    return getattr(getattr(aval, "mat", None), "varying", frozenset())


def is_placed_freely(aval: Any) -> bool:
    """Whether it is XLA's to say where on a mesh an array is, if it is on one."""
    mesh = getattr(getattr(aval, "sharding", None), "mesh", None)
    is_auto = mesh is None or mesh.empty or mesh.are_all_axes_auto
    return is_auto and not varying_axes(aval)


def called_jaxpr(eqn: Any, *, is_differentiated: bool = False) -> Any | None:
    """The `ClosedJaxpr` of a call that says nothing about where its arrays are, else None.

    Args:
        eqn: any equation.
        is_differentiated: whether functions with custom derivatives are plain calls by now.
    """
    api = jaxpr_api()
    if eqn.primitive is api.jit_p:
        params = eqn.params
        shardings = (*params["in_shardings"], *params["out_shardings"])
        layouts = (*params["in_layouts"], *params["out_layouts"])
        is_plain = all(type(s).__name__ == "UnspecifiedValue" for s in shardings)
        return params["jaxpr"] if is_plain and not any(layouts) else None
    is_custom = is_differentiated and eqn.primitive in api.custom_primitives
    if is_custom or eqn.primitive in api.call_primitives:
        inner = eqn.params["call_jaxpr"]
        return inner if isinstance(inner, api.ClosedJaxpr) else api.ClosedJaxpr(inner, ())
    return None


@functools.cache
def misreads_reversed_slices() -> bool:
    """Whether XLA:GPU gets slices of host memory wrong whose index runs backwards.

    openxla/xla #46231, fixed by #46308 of 27 July 2026. Seen in the modules that jaxlib
    0.10.2 compiles, reported for 0.11.0; older ones are not supported here. 0.11.1 came out
    three weeks after the fix, and is taken to have it.
    """
    from importlib.metadata import version as version_of

    version = tuple(int(part) for part in version_of("jaxlib").split(".")[:3])
    return (0, 10, 2) <= version <= (0, 11, 0)


@functools.cache
def warn_if_unknown_version() -> None:
    """Says once that jaxswap has not been tried with the JAX that is installed."""
    version = metadata.version("jax")
    if not version.startswith("0.10."):
        warnings.warn(
            f"jaxswap rewrites programs of JAX 0.10, and has not been tried with {version}. "
            "Check a step with `jaxswap.self_check` before you rely on it.",
            stacklevel=3,
        )


def count_gradients(arrays: Any) -> int:
    """How many gradients are being taken, one inside another, of what these arrays go into.

    Those that a `jit` is in between of are not seen.
    """
    from jax._src.interpreters import ad

    traces: set[int] = set()
    for array in arrays:
        while (inner := getattr(array, "primal", getattr(array, "val", None))) is not None:
            if isinstance(array, ad.LinearizeTracer):
                traces.add(id(array._trace))
            array = inner
    return len(traces)


def are_in_order(effects: Any) -> bool:
    """Whether some of these side effects are in order, which JAX 0.10 threads tokens through."""
    from jax._src import effects as effects_lib

    return any(effects_lib.ordered_effects.contains(effect) for effect in effects)


def can_have_own_derivative(closed: Any) -> bool:
    """Whether JAX takes this program as a function with a derivative of its own.

    Not with some side effects, nor with references in it.
    """
    from jax._src import effects as effects_lib
    from jax._src.state.types import AbstractRef

    if effects_lib.custom_derivatives_allowed_effects.filter_not_in(closed.effects):
        return False
    made = (v.aval for eqn in closed.jaxpr.eqns for v in eqn.outvars)
    return not any(isinstance(aval, AbstractRef) for aval in made)


def remember_axis_names() -> Callable[[], contextlib.AbstractContextManager]:
    """Binds the names of the mapped axes around this call again, wherever the result is entered."""
    from jax._src import core

    names = tuple(core.get_axis_env().axis_sizes.items())
    return lambda: core.extend_axis_env_nd(names)


def rename_effects(effects: Any, rename: Callable[[Any], Any]) -> Any:
    """Effects on references name the variable they act on: follows it to its new name."""
    if not effects:
        return effects
    return {e.replace(rename(e.input)) if hasattr(e, "input") else e for e in effects}


# ---- settings --------------------------------------------------------------------------


def is_at_top_level() -> bool:
    """Whether nothing is being traced around this call."""
    from jax._src import core

    return core.trace_state_clean()


def is_jit_disabled() -> bool:
    """Whether `jax.disable_jit` is in force."""
    from jax._src import config

    return bool(config.disable_jit.value)


def is_remat3() -> bool:
    """Whether `jax_remat3`, JAX's next `jax.checkpoint`, is switched on. Known for jax 0.10.2."""
    from jax._src import config

    return bool(config.remat3.value) if hasattr(config, "remat3") else False


def default_to_cpu() -> None:
    """Has JAX start on the CPU, unless the user chose a platform."""
    import jax
    from jax._src import config

    if not config.jax_platforms.value:
        jax.config.update("jax_platforms", "cpu")


# ---- compiler --------------------------------------------------------------------------
# Known for jax 0.10.2. JAX is imported inside the functions: the compiler's child process
# must set its environment before JAX starts.


def has_gpu_compiler_plugin() -> bool:
    """Whether a CUDA plugin, which carries XLA's GPU compiler, is installed."""
    names = ("jax_plugins.xla_cuda13", "jax_plugins.xla_cuda12")
    has_plugins = importlib.util.find_spec("jax_plugins") is not None
    return has_plugins and any(importlib.util.find_spec(name) is not None for name in names)


def can_compile_for_gpu_here() -> bool:
    """Whether the JAX of this process can compile for a GPU it does not have.

    The plugin registers its compiler where it can start: with `JAX_PLATFORMS=cpu`, or on a
    machine with CUDA's libraries. In any other process a child has to do it.
    """
    from jax._src import xla_bridge

    xla_bridge.backends()  # discovers the plugins, once
    return "cuda" in xla_bridge._topology_factories


def lower_for_gpu(jitted: Any, args: tuple) -> Any:
    """Lowers a jitted function for CUDA, with or without a GPU, to a `jax.stages.Lowered`.

    Calls of Python, such as `jax.debug.print`, are bound to a backend that may not be here: they
    are left out, and what they return is zeros, made when their operands are there.
    """
    from jax._src.interpreters import mlir

    traced = jitted.trace(*args)
    without = mlir.LoweringParameters(override_lowering_rules=_leave_out_callbacks())
    return traced.lower(lowering_platforms=("cuda",), _private_parameters=without)


@functools.cache
def _leave_out_callbacks() -> Any:
    import jax
    import jax.numpy as jnp
    from jax._src import callback, debugging
    from jax._src.interpreters import mlir

    def leave_out(ctx: Any, *operands: Any, **params: Any) -> Any:
        def answer(*xs: Any) -> list:
            zeros = [jnp.zeros(aval.shape, aval.dtype) for aval in ctx.avals_out]
            return jax.lax.optimization_barrier([*xs, *zeros])[len(xs) :]

        if ctx.tokens_in.effects():  # the effect is not there, and what waits for it goes on
            ctx.set_tokens_out(ctx.tokens_in)
        pure = ctx.replace(tokens_in=mlir.TokenSet(), tokens_out=None)
        return mlir.lower_fun(answer)(pure, *operands) if ctx.avals_out else []

    calls = (
        debugging.debug_callback_p, debugging.debug_print_p,
        callback.pure_callback_p, callback.io_callback_p,
    )  # fmt: skip
    return tuple((primitive, leave_out) for primitive in calls)


def to_bytecode(lowered: Any) -> bytes:
    """The StableHLO of a lowered function, with its source positions."""
    buffer = io.BytesIO()
    lowered.compiler_ir().operation.write_bytecode(buffer)
    return buffer.getvalue()


_COMPILER_SETTINGS = (
    "use_shardy_partitioner",
    "exec_time_optimization_effort",
    "memory_fitting_effort",
    "optimization_level",
    "memory_fitting_level",
    "enable_remat_opt_pass",
)


def find_compiler_settings() -> dict[str, Any]:
    """Settings of JAX that `compile_stablehlo` follows, as they are in this thread."""
    from jax._src import config

    return {name: getattr(config, name).value for name in _COMPILER_SETTINGS}


@contextlib.contextmanager
def use_compiler_settings(settings: Mapping[str, Any]):
    """Has this thread follow the settings of another."""
    from jax._src import config

    with contextlib.ExitStack() as stack:
        for name, value in settings.items():
            stack.enter_context(getattr(config, name)(value))
        yield


def compile_stablehlo(code: bytes, target_config: str, options: Mapping[str, Any]) -> Any:
    """Compiles StableHLO bytecode for the GPUs that `target_config` describes.

    Returns:
        A jaxlib `Executable` that cannot run, but has its module and memory statistics.
    """
    import numpy as np
    from jax._src import compiler
    from jax._src.interpreters import mlir
    from jax._src.lib.mlir import ir  # pyright: ignore[reportPrivateImportUsage]
    from jax.experimental import topologies
    from jaxlib import _jax  # pyright: ignore[reportAttributeAccessIssue]

    with mlir.make_ir_context():
        module = ir.Module.parse(code)
        count = ir.IntegerAttr(module.operation.attributes["mhlo.num_partitions"]).value
        topology = topologies.get_topology_desc(
            platform="cuda", target_config=target_config, topology=f"1x{count}x1"
        )
        client = topology.devices[0].client
        compile_options = compiler.get_compile_options(
            num_replicas=1,
            num_partitions=count,
            device_assignment=np.arange(count)[None, :],
            env_options_overrides=dict(options),
        )
        return client.compile(
            module,
            executable_devices=_jax.DeviceList(tuple(topology.devices)),
            compile_options=compile_options,
        )


def analyse_cost(hlo_text: str) -> Mapping[str, float]:
    """XLA's cost analysis of a module given as text: flops, transcendentals, bytes accessed."""
    import jax
    from jaxlib import _hlo, _jax  # pyright: ignore[reportAttributeAccessIssue]

    client = jax.local_devices(backend="cpu")[0].client
    return _jax.hlo_module_cost_analysis(client, _hlo.hlo_module_from_text(hlo_text))


def scheduled_text(executable: Any) -> str:
    """The scheduled HLO text of an executable of either kind, compiled here or for a target."""
    return executable.hlo_modules()[0].to_string()
