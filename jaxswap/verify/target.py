"""Target: what does the real GPU compiler make of this step, GPU or no GPU?

Input: a function, its arguments and a `Device`. Output: a `Compiled`: the scheduled module
as text, and the bytes of XLA's own buffer assignment.
The step is lowered to StableHLO here and compiled for the device's target description, in
this process where its JAX can do that, otherwise in a child whose environment lets it. Several
steps are compiled at once: the compiler takes one core, and leaves Python to others.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, fields
from typing import Any

import jax

from jaxswap import _compat
from jaxswap._errors import CompileError, MissingCompilerError
from jaxswap.model.device import Device
from jaxswap.verify.shortcuts import shortcut_options

# Autotuning times kernels on the device, and there is none. The choice of kernels does not
# change what is scheduled or how much memory it takes, but for library workspaces.
_OPTIONS = {"xla_gpu_autotune_level": 0}
# What XLA's Triton dots say when a shape has no tiling and tuning may not look for one.
_UNTUNED = "Couldn't find output tile sizes"
# The latest answers: as many as a plan may take to be confirmed, and few enough to hold.
_MAX_ANSWERS = 24
_answers: dict[str, "Future[Compiled]"] = {}
_answers_lock = threading.Lock()
# More would wait for each other's memory rather than for a core.
_MAX_AT_ONCE = 2
_compilers = threading.BoundedSemaphore(_MAX_AT_ONCE)
_INSTALL = (
    "Install it with `pip install 'jaxswap[gpu-compile]'` (about 700 MB: jax-cuda13-plugin and "
    "nvidia-cuda-nvcc; no GPU and no CUDA toolkit are needed)."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """What the compiler said. Bytes are XLA's buffer assignment, per device.

    `note` says what was done differently from an ordinary compilation, if anything.
    """

    hlo_text: str
    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    temp_bytes: int
    host_argument_bytes: int
    host_output_bytes: int
    host_alias_bytes: int
    host_temp_bytes: int
    note: str = ""

    @property
    def device_bytes(self) -> int:
        """What the step needs on the device: arguments + outputs − aliased + temporaries."""
        return self.argument_bytes + self.output_bytes - self.alias_bytes + self.temp_bytes

    @property
    def host_bytes(self) -> int:
        """What the step needs in pinned host memory, counted the same way."""
        arguments = self.host_argument_bytes + self.host_output_bytes - self.host_alias_bytes
        return arguments + self.host_temp_bytes


def compile_for(
    fn: Callable,
    args: tuple,
    device: Device,
    *,
    donate_argnums: tuple[int, ...] = (),
    options: Mapping[str, Any] | None = None,
) -> Compiled:
    """Compiles `fn(*args)` for `device` with XLA:GPU; runs nothing.

    Args:
        fn: any traceable function, jitted or not.
        args: arrays or `jax.ShapeDtypeStruct`s, sharded or not.
        device: the GPU to compile for; it need not be attached.
        donate_argnums: as in `jax.jit`; a jitted `fn` brings its own.
        options: XLA options on top of ours, such as `{"xla_gpu_enable_...": True}`.
    """
    lowered = _compat.lower_for_gpu(as_jitted(fn, donate_argnums), args)
    return compile_lowered(lowered, device, options=options)


def compile_together(
    steps: Sequence[tuple[Callable, Mapping[str, Any] | None]],
    args: tuple,
    device: Device,
    *,
    donate_argnums: tuple[int, ...] = (),
) -> list[Compiled]:
    """`compile_for` of several functions of the same arguments, each with its XLA options.

    All are lowered in the calling thread, whose settings of JAX are its own, each while those
    before it are compiled in others. The last has no need of another thread.
    """
    *others, (fn, options) = steps
    with open_pool() as pool:
        begun = [
            begin_compiling(each, args, device, pool, donate_argnums=donate_argnums, options=asked)
            for each, asked in others
        ]
        last = compile_for(fn, args, device, donate_argnums=donate_argnums, options=options)
        return [*(each.result() for each in begun), last]


@contextlib.contextmanager
def open_pool() -> Iterator[Executor]:
    """Threads to compile in; at the end nothing is begun that nobody waited for."""
    pool = ThreadPoolExecutor(_MAX_AT_ONCE)
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def begin_compiling(
    fn: Callable,
    args: tuple,
    device: Device,
    pool: Executor,
    *,
    donate_argnums: tuple[int, ...] = (),
    options: Mapping[str, Any] | None = None,
) -> "Future[Compiled]":
    """`compile_for` in a thread of a pool; the function is lowered in the calling thread.

    Who asks for the same meanwhile waits for that answer.
    """
    lowered = _compat.lower_for_gpu(as_jitted(fn, donate_argnums), args)
    return pool.submit(_answer, _prepare(lowered, device, options))


def compile_lowered(
    lowered: Any, device: Device, *, options: Mapping[str, Any] | None = None
) -> Compiled:
    """Compiles a step lowered for CUDA for `device`, here or in a child process.

    The same step, once more and with the same options, is answered from memory: who confirms a
    plan and then shows it compiles it once.
    """
    return _answer(_prepare(lowered, device, options))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """What the compiler is asked, and what tells it from other such questions.

    `settings` are JAX's, in the thread that asks.
    """

    code: bytes
    target: str
    options: Mapping[str, Any]
    settings: Mapping[str, Any]
    key: str


def _prepare(lowered: Any, device: Device, options: Mapping[str, Any] | None) -> _Job:
    target = device.target_config()
    merged = {**_OPTIONS, **(options or {})}
    if not _compat.has_gpu_compiler_plugin():
        raise MissingCompilerError(
            f"Compiling for {device.name!r} needs XLA's GPU compiler, and no JAX CUDA plugin is "
            f"installed. {_INSTALL}"
        )
    # Without source positions, which are different at every place that compiles the same step.
    asked = repr((lowered.as_text(), target, sorted(merged.items())))
    key = hashlib.sha256(asked.encode()).hexdigest()
    return _Job(
        code=_compat.to_bytecode(lowered),
        target=target,
        options=merged,
        settings=_compat.find_compiler_settings(),
        key=key,
    )


def _answer(job: _Job) -> Compiled:
    """What the compiler says, has said before, or is about to say in another thread."""
    own: Future[Compiled] = Future()
    try:
        with _answers_lock:
            known = _answers.setdefault(job.key, own)
            while len(_answers) > _MAX_ANSWERS:
                del _answers[next(iter(_answers))]
        if known is own:
            with _compilers, _compat.use_compiler_settings(job.settings):
                own.set_result(_compile_anywhere(job))
    except BaseException as error:
        with _answers_lock:  # who asks again may have more luck
            if _answers.get(job.key) is own:
                del _answers[job.key]
        if not own.done():
            own.set_exception(error)
        raise
    return known.result()


def _compile_anywhere(job: _Job) -> Compiled:
    compile_code = compile_here if _compat.can_compile_for_gpu_here() else _compile_in_child
    return compile_code(job.code, job.target, job.options)


def as_jitted(fn: Callable, donate_argnums: tuple[int, ...] = ()) -> Any:
    """`fn` under `jax.jit`; a function that is jitted already stays as it is."""
    if hasattr(fn, "trace") and not donate_argnums:
        return fn
    return jax.jit(fn, donate_argnums=donate_argnums)


def compile_here(code: bytes, target: str, options: Mapping[str, Any]) -> Compiled:
    """Compiles in this process."""
    try:
        return _compile(code, target, options)
    except jax.errors.JaxRuntimeError as error:
        raise _translate(str(error)) from error


def _compile(code: bytes, target: str, options: Mapping[str, Any]) -> Compiled:
    """Compiles by the shortcuts, and once more without where that fails."""
    try:
        with shortcut_options(target) as shortcuts:
            return _compile_untuned(code, target, {**shortcuts, **options})
    except jax.errors.JaxRuntimeError:
        return _compile_untuned(code, target, options)


def _compile_untuned(code: bytes, target: str, options: Mapping[str, Any]) -> Compiled:
    """Compiles, and once more with library dots where XLA's own cannot do without tuning."""
    try:
        return compiled_from(_compat.compile_stablehlo(code, target, options))
    except jax.errors.JaxRuntimeError as error:
        if _UNTUNED not in str(error) or options.get("xla_gpu_enable_triton_gemm") is False:
            raise
    executable = _compat.compile_stablehlo(
        code, target, {**options, "xla_gpu_enable_triton_gemm": False}
    )
    return compiled_from(executable, note="dots compiled as library calls, not as Triton kernels")


def compiled_from(executable: Any, note: str = "") -> Compiled:
    """Reads the facts off a jaxlib executable."""
    memory = executable.get_compiled_memory_stats()
    return Compiled(
        hlo_text=_compat.scheduled_text(executable),
        argument_bytes=memory.argument_size_in_bytes,
        output_bytes=memory.output_size_in_bytes,
        alias_bytes=memory.alias_size_in_bytes,
        temp_bytes=memory.temp_size_in_bytes,
        host_argument_bytes=memory.host_argument_size_in_bytes,
        host_output_bytes=memory.host_output_size_in_bytes,
        host_alias_bytes=memory.host_alias_size_in_bytes,
        host_temp_bytes=memory.host_temp_size_in_bytes,
        note=note,
    )


def _translate(message: str) -> Exception:
    """Turns the compiler's words into an error that says what to do."""
    if "ptxas" in message or "nvlink" in message or "libdevice" in message:
        return MissingCompilerError(
            f"XLA's GPU compiler could not find its assembler: {message.splitlines()[0]} {_INSTALL}"
        )
    return CompileError(f"XLA:GPU refused the program: {message}")


def _compile_in_child(code: bytes, target: str, options: Mapping[str, Any]) -> Compiled:
    """Compiles in a process whose JAX starts on the CPU, with the plugin as compiler only."""
    with tempfile.TemporaryDirectory(prefix="jaxswap-") as folder:
        where = pathlib.Path(folder)
        (where / "code.mlirbc").write_bytes(code)
        (where / "job.json").write_text(json.dumps({"target": target, "options": options}))
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
        done = subprocess.run(
            [sys.executable, "-m", "jaxswap.verify.target", folder],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        answer = where / "answer.json"
        if not answer.exists():
            tail = "\n".join(done.stderr.splitlines()[-5:])
            raise CompileError(
                f"The compiler's child process ended with exit code {done.returncode}: {tail}"
            )
        facts = json.loads(answer.read_text())
        if "error" in facts:
            raise _translate(facts["error"])
        return Compiled(hlo_text=(where / "module.txt").read_text(), **facts)


def _run_child(folder: str) -> None:
    """The child's half of `_compile_in_child`: one job in, one answer out."""
    where = pathlib.Path(folder)
    job = json.loads((where / "job.json").read_text())
    if not _compat.can_compile_for_gpu_here():
        facts = {"error": "the CUDA plugin is installed but did not register a compiler"}
    else:
        try:
            code = (where / "code.mlirbc").read_bytes()
            compiled = _compile(code, job["target"], job["options"])
            (where / "module.txt").write_text(compiled.hlo_text)
            facts = {f.name: getattr(compiled, f.name) for f in fields(Compiled)}
            del facts["hlo_text"]
        except jax.errors.JaxRuntimeError as error:
            facts = {"error": str(error)}
    (where / "answer.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    _run_child(sys.argv[1])
