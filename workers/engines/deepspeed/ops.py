"""What of DeepSpeed has to be compiled: asynchronous file access, for offload to NVMe. Built in set-up, never in a job.

DeepSpeed would compile at first use, one object a source, for minutes, under a lock that a killed build leaves behind.
Here each op is one source, compiled in a directory of its own that is moved into place when it is whole.
"""

import ctypes
import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import torch

from workers.errors import ConfigError, OpsError

OPS: Final = ("pin_memory", "async_io")  # in this order: the second looks for the first's symbols
REMEDY: Final = "build them once on every node: `shardyard-worker ops build`"
_FLAGS: Final = ("-O1", "-fopenmp")  # not for this machine's processor alone: an image is built elsewhere
_STATICS: Final = ("c_library_name", "c_block_size", "c_io_queue_depth")  # private names that sources share


def ops_directory(device: str) -> Path:
    """Return where the ops for `device` lie: in the environment, under what they were compiled against."""
    python = sysconfig.get_python_version()
    built_for = f"deepspeed-{version('deepspeed')}-torch-{torch.__version__}-python-{python}-{device}"
    return Path(sys.prefix) / "lib" / "shardyard-ops" / built_for


def device_here() -> str:
    """Return the device that ranks on this machine train on."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def missing_ops(device: str) -> tuple[str, ...]:
    """Return the ops that are not built."""
    return tuple(op for op in OPS if not _library(op, device).is_file())


def load_ops(device: str) -> None:
    """Give DeepSpeed the ops that were built. Raises ConfigError, with the remedy, where one is missing or does not load."""
    if missing := missing_ops(device):
        raise ConfigError(f"engine.offload: nvme needs DeepSpeed's ops {', '.join(missing)}; {REMEDY}")
    from deepspeed.ops.op_builder.builder import OpBuilder  # seconds, for the one engine that needs it

    for op in OPS:
        path = _library(op, device)
        try:
            _show_symbols(path)
            OpBuilder._loaded_ops[op] = _module(op, path)
        except (ImportError, OSError) as error:
            raise ConfigError(
                f"engine.offload: DeepSpeed's op {op} does not load: {error}; {REMEDY}"
            ) from error
    sys._deepspeed_pin_memory_op_module = OpBuilder._loaded_ops["pin_memory"]  # type: ignore[attr-defined]


def build_ops(device: str) -> list[Path]:
    """Compile what is missing and return where all lie. A minute of one core. Raises OpsError, with the remedy.

    The compiler finds libaio also through CPATH and LIBRARY_PATH. Several at once wait for each other.
    """
    directory = ops_directory(device)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with _locked(directory / "lock"):
            if missing := missing_ops(device):
                _check_compiler()
                _compile(missing, directory, device)
    except OSError as error:
        raise OpsError(f"ops cannot be built in {directory}: {error}") from error
    return [_library(op, device) for op in OPS]


def _library(op: str, device: str) -> Path:
    return ops_directory(device) / f"{op}.so"


def _show_symbols(path: Path) -> None:
    """Let libraries that are loaded after this one find its symbols."""
    ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


def _module(op: str, path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(op, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock that ends with this process, however it ends."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _check_compiler() -> None:
    compiler = os.environ.get("CXX", "c++")
    if shutil.which(compiler) is None:
        raise OpsError(f"no C++ compiler: {compiler} is not on PATH; on Debian: apt-get install g++")
    looked = subprocess.run(
        [compiler, "-E", "-x", "c++", "-include", "libaio.h", os.devnull], capture_output=True, check=False
    )
    if looked.returncode != 0:
        raise OpsError("libaio.h is not found; on Debian: apt-get install libaio-dev")


def _compile(ops: Sequence[str], directory: Path, device: str) -> None:
    os.environ["DS_ACCELERATOR"] = device  # DeepSpeed reads it when it is imported
    from deepspeed.ops.op_builder import AsyncIOBuilder, PinMemoryBuilder
    from torch.utils.cpp_extension import load

    builders = {"pin_memory": PinMemoryBuilder(), "async_io": AsyncIOBuilder()}
    with tempfile.TemporaryDirectory(dir=directory) as work:
        sources = Path(work) / "sources"
        _copy_sources(Path(builders["pin_memory"].deepspeed_src_path("csrc")), sources / "csrc")
        for op in ops:
            builder = builders[op]
            build = Path(work) / op
            build.mkdir()
            if op == "async_io":
                _show_symbols(_library("pin_memory", device))
            try:
                load(
                    name=op,
                    sources=[str(_one_source(op, builder.sources(), sources))],
                    extra_include_paths=[str(sources / path) for path in builder.include_paths()],
                    extra_cflags=list(_FLAGS),
                    extra_ldflags=["-laio", "-fopenmp"] if op == "async_io" else ["-fopenmp"],
                    build_directory=str(build),
                    with_cuda=device == "cuda",
                    is_python_module=False,
                    is_standalone=False,
                )
            except (RuntimeError, subprocess.CalledProcessError, OSError) as error:
                raise OpsError(f"{op} does not compile: {error}") from error
            (build / f"{op}.so").replace(directory / f"{op}.so")


def _copy_sources(origin: Path, to: Path) -> None:
    """Copy the sources, their headers guarded: DeepSpeed 0.19.8 includes each only once, from a source of its own."""
    for part in ("aio", "pin_memory"):
        shutil.copytree(origin / part, to / part)
    for header in to.rglob("*.h"):
        header.write_text("#pragma once\n" + header.read_text(encoding="utf-8"), encoding="utf-8")


def _one_source(op: str, sources: Sequence[str], directory: Path) -> Path:
    """Write the source that includes all of an op: torch's headers, 20 seconds of each, are read once."""
    lines = []
    for i, source in enumerate(sources):
        lines += [f"#define {name} {name}_{i}" for name in _STATICS]
        lines += [f'#include "{source}"']
        lines += [f"#undef {name}" for name in _STATICS]
    path = directory / f"{op}.cpp"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
