"""Verification through the real GPU compiler, on a machine without a GPU."""

import dataclasses
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import io_callback

from jaxswap import _compat
from jaxswap._errors import CompileError, MissingCompilerError, UnknownDeviceError
from jaxswap.model.device import Device
from jaxswap.verify import target
from jaxswap.verify.verify import verify, verify_together

MIB = 2**20


def shape(*dims, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(dims, dtype)


def step(weights, x):
    """One step of gradient descent: the smallest real training step."""
    loss, grad = jax.value_and_grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(weights)
    return weights - 0.1 * grad, loss


ARGS = (shape(512, 512), shape(4096, 512))


@pytest.mark.gpu_compile
def test_bytes_are_the_arguments_outputs_and_temporaries():
    found = verify(step, *ARGS, device="h100-sxm", donate_argnums=0)
    assert found.compiled.argument_bytes == (512 * 512 + 4096 * 512) * 4
    assert found.compiled.alias_bytes == 512 * 512 * 4
    # The activations, 8 MiB, and what XLA adds to compute the loss.
    assert 8 * MIB <= found.compiled.temp_bytes < 17 * MIB
    plain = verify(step, *ARGS, device="h100-sxm")
    assert plain.compiled.alias_bytes == 0
    assert plain.device_bytes - plain.compiled.temp_bytes == pytest.approx(
        found.device_bytes - found.compiled.temp_bytes + 512 * 512 * 4
    )


def call_debug(w):
    jax.debug.callback(lambda shown: None, w)
    return w


def call_print(w):
    jax.debug.print("{}", w[0, 0], ordered=True)
    return w


def call_pure(w):
    return w * jax.pure_callback(lambda: 2.0, shape())


def call_ordered(w):
    return w * io_callback(lambda shown: 2.0, shape(), w[0, 0], ordered=True)


@pytest.mark.gpu_compile
@pytest.mark.parametrize("call", [call_debug, call_print, call_pure, call_ordered])
def test_a_step_that_calls_python_is_compiled_without_the_call(call):
    found = verify(lambda w, x: step(call(w), x), *ARGS, device="h100-sxm", donate_argnums=0)
    plain = verify(step, *ARGS, device="h100-sxm", donate_argnums=0)
    # A product with what a call returns may be an array of its own.
    assert plain.device_bytes <= found.device_bytes <= plain.device_bytes + 2 * MIB


@pytest.mark.gpu_compile
def test_the_curve_peaks_where_xla_says():
    found = verify(step, *ARGS, device="h100-sxm", donate_argnums=0)
    assert found.memory.peak_bytes == pytest.approx(found.device_bytes, rel=0.05)
    assert "dot_general" in found.hlo_text
    assert found.source_of(found.memory.buffers[0].name).startswith("test_verify.py:")


@pytest.mark.gpu_compile
@pytest.mark.parametrize("device", ["h100-sxm", "rtx2080ti"])  # Triton dots, library dots
def test_flops_are_those_of_the_three_dots(device):
    found = verify(step, *ARGS, device=device)
    # Forward, and the gradient of the weights; x needs none.
    assert found.timeline.matrix_flops == 2 * (2 * 4096 * 512 * 512)
    assert found.time_is == "replayed"
    assert found.step_s == found.timeline.step_s > 0


@pytest.mark.gpu_compile
def test_xla_may_use_what_the_device_has_and_rematerialises_only_beyond():
    def loss(weights, x):
        for w in weights:
            x = jax.nn.gelu(x @ w)
        return x.sum()

    args = ([shape(256, 256)] * 6, shape(8192, 256))
    ample = Device.named("h100-sxm")
    needed = verify(jax.grad(loss), *args, device=ample).device_bytes
    with_memory = lambda size: dataclasses.replace(ample, memory_bytes=int(size))
    # As on an attached GPU, where JAX tells XLA what it may use; a target's 80 % would be less.
    fits = verify(jax.grad(loss), *args, device=with_memory(needed / 0.8))
    assert fits.device_bytes == needed
    beyond = verify(jax.grad(loss), *args, device=with_memory(needed / 1.3))
    assert beyond.device_bytes < 0.8 * needed


@pytest.mark.gpu_compile
def test_a_faster_device_is_faster_and_a_jitted_step_brings_its_donation():
    jitted = jax.jit(step, donate_argnums=0)
    fast, slow = (verify(jitted, *ARGS, device=d) for d in ("h100-sxm", "t4"))
    assert fast.step_s < slow.step_s
    assert fast.compiled.alias_bytes == 512 * 512 * 4


@pytest.mark.gpu_compile
def test_offloaded_bytes_are_seen_on_the_host_and_on_the_link():
    def loss(w, x):
        policy = jax.checkpoint_policies.save_and_offload_only_these_names(
            names_which_can_be_saved=[], names_which_can_be_offloaded=["h"],
            offload_src="device", offload_dst="pinned_host",
        )  # fmt: skip

        def layer(w, x):
            h = checkpoint_name(jnp.tanh(x @ w), "h")
            return jnp.sin(h @ w)

        return jnp.mean(jax.checkpoint(layer, policy=policy)(w, x) ** 2)

    found = verify(jax.grad(loss), *ARGS, device="h100-sxm")
    offloaded = 4096 * 512 * 4
    assert found.host_bytes == offloaded
    assert found.timeline.to_host_bytes == offloaded
    assert found.timeline.to_device_bytes >= offloaded


@pytest.mark.gpu_compile
def test_a_scan_is_replayed_with_its_trips():
    def run(w, x):
        return jax.lax.scan(lambda c, _: (jnp.tanh(c @ w), None), x, length=20)[0]

    found = verify(run, *ARGS, device="h100-sxm")
    assert found.timeline.matrix_flops == 20 * 2 * 4096 * 512 * 512
    assert found.timeline.notes == ()


@pytest.mark.gpu_compile
def test_too_much_for_the_device_is_an_answer():
    small = dataclasses.replace(Device.named("rtx4090"), memory_bytes=16 * MIB)
    found = verify(step, *ARGS, device=small)
    assert not found.fits
    assert found.device_bytes > 16 * MIB
    assert "does not fit" in str(found)


@pytest.mark.gpu_compile
def test_the_summary_says_how_each_number_was_found():
    found = verify(step, *ARGS, device="v100-16gb")
    text = str(found)
    assert "(compiled), fits" in text
    assert "(replayed)" in text
    assert "note: compiled for compute capability 7.5" in text
    assert found.to_json()["time_is"] == "replayed"


@pytest.mark.gpu_compile
def test_a_child_process_compiles_the_same():
    code = _compat.to_bytecode(_compat.lower_for_gpu(jax.jit(step), ARGS))
    config = Device.named("a100-40gb").target_config()
    here = target.compile_here(code, config, {"xla_gpu_autotune_level": 0})
    child = target._compile_in_child(code, config, {"xla_gpu_autotune_level": 0})
    assert dataclasses.replace(child, hlo_text="") == dataclasses.replace(here, hlo_text="")
    assert child.hlo_text.count("fusion(") == here.hlo_text.count("fusion(")


@pytest.fixture
def jobs(monkeypatch):
    """What a stand-in for the compiler is given: the code, the options, and in which thread."""
    found = []

    def compile_here(code, config, options):
        found.append((code, options, threading.get_ident()))
        sizes = dict.fromkeys((f.name for f in dataclasses.fields(target.Compiled)), 0)
        return target.Compiled(**sizes | {"hlo_text": f"module {len(found)}", "note": ""})

    for name in ("has_gpu_compiler_plugin", "can_compile_for_gpu_here"):
        monkeypatch.setattr(_compat, name, lambda: True)
    monkeypatch.setattr(_compat, "to_bytecode", lambda lowered: lowered.as_text())
    monkeypatch.setattr(target, "compile_here", compile_here)
    monkeypatch.setattr(target, "_answers", {})
    return found


def test_the_same_step_is_compiled_once_and_few_answers_are_held(jobs):
    ask = lambda device="t4", **options: target.compile_for(
        lambda x: x @ x, (shape(8, 8),), Device.named(device), options=options
    )
    assert ask().hlo_text == "module 1"
    assert ask().hlo_text == "module 1"  # the same code, from another line
    assert ask("rtx4090").hlo_text == "module 2"
    assert ask(xla_some_option=1).hlo_text == "module 3"
    for number in range(target._MAX_ANSWERS):
        ask(xla_some_option=2 + number)
    assert len(target._answers) == target._MAX_ANSWERS
    assert ask().hlo_text == f"module {len(jobs)}"  # forgotten, and compiled again
    assert len(jobs) == target._MAX_ANSWERS + 4


def test_steps_compiled_together_are_lowered_here_with_the_settings_of_this_thread(jobs):
    lowering = []
    traced_in = lambda step: lambda x: lowering.append(threading.get_ident()) or step(x)
    steps = [(traced_in(jnp.sin), None), (traced_in(jnp.cos), {"xla_some_option": 1})]
    with jax.enable_x64(True):
        args = (shape(8, dtype=jnp.float64),)
        found = target.compile_together(steps, args, Device.named("t4"))
    assert lowering == [threading.get_ident()] * 2
    assert all("tensor<8xf64>" in code for code, *_ in jobs)
    assert len({thread for *_, thread in jobs}) == 2  # at once
    for (_, options), answer, name in zip(steps, found, ("sine", "cosine"), strict=True):
        code, given, _ = jobs[int(answer.hlo_text.removeprefix("module ")) - 1]
        assert name in code
        assert given.get("xla_some_option") == (options or {}).get("xla_some_option")


def test_the_compiler_follows_the_settings_of_the_thread_that_asks(jobs, monkeypatch):
    seen, compile_here = [], target.compile_here

    def note(*job):
        seen.append(_compat.find_compiler_settings())
        return compile_here(*job)

    monkeypatch.setattr(target, "compile_here", note)
    own = _compat.find_compiler_settings()
    changed = own | {"memory_fitting_effort": 0.5, "use_shardy_partitioner": False}
    steps = [(jnp.sin, None), (jnp.cos, None)]
    with _compat.use_compiler_settings(changed):
        target.compile_together(steps, (shape(8),), Device.named("t4"))
    assert seen == [changed, changed]
    assert _compat.find_compiler_settings() == own != changed


def test_of_the_same_steps_together_one_is_compiled(jobs):
    steps = [(jnp.sin, None), (jnp.cos, None), (jnp.sin, None)]
    ask = lambda: target.compile_together(steps, (shape(8),), Device.named("t4"))
    first, other, again = ask()
    assert first is again is not other
    assert ask() == [first, other, first]
    assert len(jobs) == 2


def test_who_asks_for_what_is_being_compiled_waits_for_that(jobs, monkeypatch):
    compile_here, may_go_on = target.compile_here, threading.Event()

    def compile_slowly(*job):
        may_go_on.wait()
        return compile_here(*job)

    monkeypatch.setattr(target, "compile_here", compile_slowly)
    args, t4 = (shape(8),), Device.named("t4")
    with ThreadPoolExecutor(2) as pool:
        begun = target.begin_compiling(jnp.sin, args, t4, pool)
        asked = target.begin_compiling(jnp.sin, args, t4, pool)
        may_go_on.set()
        assert target.compile_for(jnp.sin, args, t4) is begun.result() is asked.result()
    assert len(jobs) == 1


def test_what_fails_in_another_thread_is_tried_again_by_who_needs_it(jobs, monkeypatch):
    compile_here, args, t4 = target.compile_here, (shape(8),), Device.named("t4")

    def fail(*job):
        raise CompileError("no memory left")

    monkeypatch.setattr(target, "compile_here", fail)
    with ThreadPoolExecutor(1) as pool:
        begun = target.begin_compiling(jnp.sin, args, t4, pool)
        with pytest.raises(CompileError, match="no memory left"):
            begun.result()
    monkeypatch.setattr(target, "compile_here", compile_here)
    assert target.compile_for(jnp.sin, args, t4).hlo_text == "module 1"


def test_what_fails_before_it_is_compiled_can_be_asked_again(jobs, monkeypatch):
    def interrupt():
        raise KeyboardInterrupt

    args, t4 = (shape(8),), Device.named("t4")
    with monkeypatch.context() as patched:
        patched.setattr(_compat, "can_compile_for_gpu_here", interrupt)
        with pytest.raises(KeyboardInterrupt):
            target.compile_for(jnp.sin, args, t4)
    with ThreadPoolExecutor(1) as pool:
        begun = target.begin_compiling(jnp.sin, args, t4, pool)
        assert begun.result(timeout=60).hlo_text == "module 1"


def test_no_more_than_two_steps_are_compiled_at_once_whoever_asks(jobs, monkeypatch):
    compile_here, lock, is_under_way = target.compile_here, threading.Lock(), []
    entered, may_go_on, most = threading.Semaphore(0), threading.Event(), []

    def count(*job):
        with lock:
            is_under_way.append(job)
            most.append(len(is_under_way))
        entered.release()
        may_go_on.wait()
        answer = compile_here(*job)
        with lock:
            is_under_way.pop()
        return answer

    monkeypatch.setattr(target, "compile_here", count)
    args, t4 = (shape(8),), Device.named("t4")
    with ThreadPoolExecutor(4) as pool:
        fns = (jnp.sin, jnp.cos, jnp.tan, jnp.tanh)
        begun = [target.begin_compiling(fn, args, t4, pool) for fn in fns]
        entered.acquire()
        entered.acquire()
        may_go_on.set()
        assert len({each.result().hlo_text for each in begun}) == len(fns)
    assert max(most) == 2


def test_what_nobody_waits_for_is_not_begun(jobs, monkeypatch):
    compile_here, may_go_on = target.compile_here, threading.Event()

    def compile_slowly(*job):
        may_go_on.wait()
        return compile_here(*job)

    monkeypatch.setattr(target, "compile_here", compile_slowly)
    args, t4 = (shape(8),), Device.named("t4")
    with target.open_pool() as pool:
        fns = (jnp.sin, jnp.cos, jnp.tan, jnp.tanh)
        begun = [target.begin_compiling(fn, args, t4, pool) for fn in fns]
    may_go_on.set()
    assert [each.cancelled() for each in begun] == [False, False, True, True]
    assert all(each.result() for each in begun[:2])


@pytest.mark.gpu_compile
def test_steps_compiled_together_are_as_one_by_one(monkeypatch):
    steps = [
        (step, None),
        (lambda w, x: step(jnp.sin(w), x), {"xla_gpu_enable_triton_gemm": False}),
    ]
    monkeypatch.setattr(target, "_answers", {})
    together = verify_together(steps, ARGS, Device.named("h100-sxm"), (0,))
    target._answers.clear()
    for (fn, options), found in zip(steps, together, strict=True):
        alone = verify(fn, *ARGS, device="h100-sxm", donate_argnums=0, options=options)
        assert alone.step_s == found.step_s
        facts = [dataclasses.replace(v.compiled, hlo_text="") for v in (alone, found)]
        assert facts[0] == facts[1]


@pytest.mark.gpu_compile
def test_what_the_compiler_refuses_among_others_is_an_error(monkeypatch):
    monkeypatch.setattr(target, "_answers", {})
    refused = (step, {"xla_no_such_option": True})
    for steps in ([refused, (step, None)], [(step, None), refused]):
        with pytest.raises(CompileError, match="xla_no_such_option"):
            verify_together(steps, ARGS, Device.named("h100-sxm"), (0,))


@pytest.mark.gpu_compile
def test_a_dot_that_triton_cannot_tile_untuned_is_compiled_as_a_library_call():
    # 197 tokens (a vision transformer's) leave no power-of-two tiling.
    x, w = shape(75648, 384, dtype=jnp.float16), shape(384, 1536, dtype=jnp.float16)
    found = verify(lambda x, w: x @ w, x, w, device="rtx3090")
    assert found.timeline.matrix_flops == 2 * 75648 * 384 * 1536


@pytest.mark.gpu_compile
def test_several_gpus_show_their_collectives():
    script = """
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
import jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P
from jaxswap import verify
mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
put = lambda s, p: jax.ShapeDtypeStruct(s, jnp.float32, sharding=NamedSharding(mesh, p))
grad = jax.jit(jax.grad(lambda w, x: jnp.mean((x @ w) ** 2)))
found = verify(grad, put((512, 512), P()), put((4096, 512), P("data")), device="a100-40gb")
print([e.stream for e in found.timeline.events].count("collective"), found.compiled.argument_bytes)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )  # fmt: skip
    collectives, argument_bytes = map(int, done.stdout.split())
    assert collectives >= 1
    assert argument_bytes == (512 * 512 + 4096 * 512 // 4) * 4


def test_a_function_that_does_not_trace_raises_its_own_error():
    with pytest.raises(TypeError, match="dot_general requires contracting dimensions"):
        verify(lambda x, y: x @ y, shape(3, 4), shape(5, 6), device="h100-sxm")


def test_an_unknown_device_is_named_with_its_neighbours():
    with pytest.raises(UnknownDeviceError, match="nearest: rtx4090"):
        verify(step, *ARGS, device="rtx4091")


def test_without_the_compiler_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(_compat, "has_gpu_compiler_plugin", lambda: False)
    with pytest.raises(MissingCompilerError, match=r"pip install 'jaxswap\[gpu-compile\]'"):
        verify(step, *ARGS, device="h100-sxm")


def test_the_compilers_words_are_translated():
    assert isinstance(target._translate("INTERNAL: ptxas not found"), MissingCompilerError)
    assert isinstance(target._translate("INTERNAL: bad layout"), CompileError)


def test_on_a_machine_without_a_gpu_a_device_must_be_named():
    if jax.default_backend() == "gpu":
        pytest.skip("a GPU is attached")
    with pytest.raises(UnknownDeviceError):
        verify(step, *ARGS)


@pytest.mark.gpu
def test_an_attached_gpu_is_measured():
    args = (jnp.ones((512, 512)), jnp.ones((4096, 512)))
    found = verify(step, *args, donate_argnums=0)
    assert found.time_is == "measured"
    assert jnp.isfinite(args[0]).all()  # the caller's arguments are not consumed


@pytest.mark.gpu_compile
def test_no_cuda_toolkit_of_the_machine_is_needed(tmp_path):
    """The wheels bring ptxas and nvlink: an empty PATH and CUDA_HOME must do."""
    script = (
        "import jax, jax.numpy as jnp; from jaxswap import verify; "
        "print(verify(lambda x: jnp.sin(x @ x), jax.ShapeDtypeStruct((256, 256), jnp.float32), "
        "device='t4').device_bytes)"
    )
    toolkit = ("CUDA_HOME", "CUDA_PATH", "LD_LIBRARY_PATH")
    environment = {k: v for k, v in os.environ.items() if k not in toolkit}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True,
        env={**environment, "PATH": str(tmp_path), "JAX_PLATFORMS": "cpu"},
    )  # fmt: skip
    assert int(done.stdout) >= 2 * 256 * 256 * 4
