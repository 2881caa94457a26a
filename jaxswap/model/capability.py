"""Compute capabilities: what does a generation of GPUs allow, and what is it compiled as?

Input: a compute capability such as `(8, 6)`. Output: its limits, the capability to compile it
as, and the target text from which XLA builds a GPU that is not there.
Limits are those of one streaming multiprocessor ("core" in XLA's text), in bytes and counts.
"""

import json
import math
from dataclasses import dataclass
from types import MappingProxyType

from jaxswap._errors import BadArgumentError

Capability = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreLimits:
    """What one streaming multiprocessor of a compute capability has.

    Attributes:
        shared_memory_per_core: bytes of shared memory.
        shared_memory_per_block_optin: bytes of it that one block may ask for.
        threads_per_core_limit: resident threads.
        fpus_per_core: f32 units, each one multiply-add a clock.
        accelerated: whether the native target is the architecture's own variant (`sm_90a`).
        shared_memory_per_block: bytes a block gets without asking.
        registers_per_core_limit: 32-bit registers, all of which one block may use.
    """

    shared_memory_per_core: int
    shared_memory_per_block_optin: int
    threads_per_core_limit: int
    fpus_per_core: int
    accelerated: bool = False
    shared_memory_per_block: int = 49152
    registers_per_core_limit: int = 65536


def _limits(
    shared_kib: int, optin: int, threads: int, fpus: int, accelerated: bool = False
) -> CoreLimits:
    return CoreLimits(
        shared_memory_per_core=shared_kib * 1024,
        shared_memory_per_block_optin=optin,
        threads_per_core_limit=threads,
        fpus_per_core=fpus,
        accelerated=accelerated,
    )


# The values XLA's own target files hold (openxla/xla xla/backends/gpu/target_config/specs) for
# 8.0 (a100), 8.6 (a6000), 9.0 (h100) and 10.0 (b200); 7.5, 8.9 and 12.0 as in the CUDA C++
# Programming Guide, "Technical Specifications per Compute Capability".
CORE_LIMITS = MappingProxyType(
    {
        (7, 5): _limits(64, 65536, 1024, 64),
        (8, 0): _limits(164, 166912, 2048, 64),
        (8, 6): _limits(100, 101376, 1536, 128),
        (8, 9): _limits(100, 101376, 1536, 128),
        (9, 0): _limits(228, 232448, 2048, 128, accelerated=True),
        (10, 0): _limits(228, 232448, 2048, 128, accelerated=True),
        (12, 0): _limits(100, 101376, 1536, 128),
    }
)
_OLDEST = min(CORE_LIMITS)


def compiled_as(capability: Capability) -> Capability:
    """The capability that code for `capability` is compiled as.

    Its own where the compiler has it. Volta (7.0, 7.2) is older than CUDA 13's oldest, 7.5,
    and is compiled as that: close, but not its own code.

    Example:
        >>> compiled_as((8, 0)), compiled_as((7, 0))
        ((8, 0), (7, 5))
    """
    if capability in CORE_LIMITS:
        return capability
    if capability[0] == _OLDEST[0] and capability < _OLDEST:
        return _OLDEST
    known = ", ".join(_dotted(c) for c in sorted(CORE_LIMITS))
    raise BadArgumentError(
        f"Compute capability {_dotted(capability)} cannot be compiled for: its limits are not "
        f"known here. Known are {known}; 7.0 and 7.2 are compiled as 7.5."
    )


def explain_compiled_as(capability: Capability) -> str | None:
    """Says what is not exact about compiling for `capability`; None if nothing is.

    Example:
        >>> explain_compiled_as((9, 0)) is None
        True
    """
    target = compiled_as(capability)
    if target == capability:
        return None
    return (
        f"compiled for compute capability {_dotted(target)}: CUDA 13 no longer compiles for "
        f"{_dotted(capability)}. Buffer sizes are those of the {_dotted(target)} build."
    )


# XLA takes 80 % of the memory a target names as there for a program (`GetSchedulerMemoryLimit`),
# but on an attached GPU the whole of what JAX may use (its `py_client.cc` says so). A target
# therefore names more than there is: else a step would be rematerialised here and not there.
_XLA_SHARE = 0.8


def render_target(
    *,
    description: str,
    capability: Capability,
    sm_count: int,
    clock_rate_ghz: float,
    memory_bytes: int,
    memory_bandwidth_bytes_per_s: float,
    l2_cache_bytes: int,
) -> str:
    """Writes the text from which XLA builds a GPU to compile for (`GpuTargetConfigProto`).

    `memory_bytes` is what a program can have.
    """
    major, minor = compiled_as(capability)
    limits = CORE_LIMITS[major, minor]
    extension = "ACCELERATED_FEATURES" if limits.accelerated else "NONE"
    return f"""gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: {limits.shared_memory_per_block}
  shared_memory_per_core: {limits.shared_memory_per_core}
  shared_memory_per_block_optin: {limits.shared_memory_per_block_optin}
  threads_per_core_limit: {limits.threads_per_core_limit}
  core_count: {sm_count}
  fpus_per_core: {limits.fpus_per_core}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: {round(memory_bandwidth_bytes_per_s)}
  l2_cache_size: {l2_cache_bytes}
  clock_rate_ghz: {clock_rate_ghz}
  device_memory_size: {math.ceil(memory_bytes / _XLA_SHARE)}
  cuda_compute_capability {{ major: {major} minor: {minor} feature_extension: {extension} }}
  registers_per_core_limit: {limits.registers_per_core_limit}
  registers_per_block_limit: {limits.registers_per_core_limit}
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 7 }}
runtime_version {{ major: 13 minor: 0 patch: 0 }}
device_description_str: {json.dumps(description)}
"""


def _dotted(capability: Capability) -> str:
    return f"{capability[0]}.{capability[1]}"
