"""Libraries that GPU tests run on: torch and what it was built with, CUDA, ROCm, NCCL, cuDNN, rdma-core, packages.

torch is asked only if somebody else has imported it; otherwise its files are read.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from testkit.environment._sources import Fact, Sources, numbers_in

IBVERBS = "libibverbs.so.1"


def torch(sources: Sources) -> Fact:
    return _of_torch(sources, "__version__")


def torch_cuda(sources: Sources) -> Fact:
    """The CUDA that torch was built with: ``12.8``."""
    return _of_torch(sources, "cuda")


def torch_hip(sources: Sources) -> Fact:
    """The HIP that torch was built with: ``6.4.43484``."""
    return _of_torch(sources, "hip")


def _of_torch(sources: Sources, name: str) -> Fact:
    module = sources.module("torch")
    if module is not None:
        value = getattr(getattr(module, "version", None), name, None)
        return Fact(None if value is None else str(value), f"torch.version.{name}")
    for folder in sources.search:
        path = Path(folder, "torch", "version.py")
        if path.is_file():
            return Fact(_constant(path.read_text(encoding="utf-8"), name), f"{name} in {path}")
    return _distribution(sources, "torch") if name == "__version__" else Fact(None, "no torch/version.py in sys.path")


def _constant(source: str, name: str) -> str | None:
    for node in ast.parse(source).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name) and target.id == name:
            value = getattr(getattr(node, "value", None), "value", None)
            return None if value is None else str(value)
    return None


def _distribution(sources: Sources, *prefixes: str) -> Fact:
    """The version of the first package with such a name, or with such a beginning if that ends in ``-cu``."""
    for prefix in prefixes:
        for name, version in sources.packages.items():
            if name == prefix or (prefix.endswith("-cu") and name.startswith(prefix)):
                return Fact(version, f"package {name}")
    some = " or ".join(prefix + "*" if prefix.endswith("-cu") else prefix for prefix in prefixes)
    return Fact(None, f"no package {some}")


def triton(sources: Sources) -> Fact:
    return _distribution(sources, "triton", "pytorch-triton", "pytorch-triton-rocm", "triton-rocm")


def cuda_toolkit(sources: Sources) -> Fact:
    """The toolkit that would compile here, from the version.json that it brings."""
    home = sources.environ.get("CUDA_HOME") or sources.environ.get("CUDA_PATH") or "/usr/local/cuda"
    path = f"{home}/version.json"
    text = sources.text(path)
    return Fact(json.loads(text)["cuda"]["version"] if text else None, path)


def rocm(sources: Sources) -> Fact:
    path = f"{_rocm_home(sources)}/.info/version"
    return Fact(numbers_in(sources.text(path)) or None, path)


def _rocm_home(sources: Sources) -> str:
    return sources.environ.get("ROCM_PATH") or "/opt/rocm"


def nccl(sources: Sources) -> Fact:
    """The one that torch says it uses, or that would be loaded."""
    if (said := _collectives_of_torch(sources, "cuda")) is not None:
        return said
    package = _distribution(sources, "nvidia-nccl-cu")  # torch's wheels load it before any other
    return package if package.value else _named_by_file(sources, "libnccl.so.2", package.how)


def rccl(sources: Sources) -> Fact:
    if (said := _collectives_of_torch(sources, "hip")) is not None:
        return said
    path = f"{_rocm_home(sources)}/include/rccl/rccl.h"
    # Its library's file is named after ROCm's version, not its own.
    parts = dict(re.findall(r"#define NCCL_(MAJOR|MINOR|PATCH) (\d+)", sources.text(path)))
    version = ".".join(parts[part] for part in ("MAJOR", "MINOR", "PATCH")) if len(parts) == 3 else None
    return Fact(version, path)


def _collectives_of_torch(sources: Sources, built_with: str) -> Fact | None:
    module = sources.module("torch")
    if module is None or not getattr(module.version, built_with, None):
        return None
    version: Callable[[], tuple[int, ...]] | None = getattr(getattr(module.cuda, "nccl", None), "version", None)
    return Fact(".".join(map(str, version())), "torch.cuda.nccl.version()") if version else None


def cudnn(sources: Sources) -> Fact:
    package = _distribution(sources, "nvidia-cudnn-cu")
    if package.value:
        return package
    found = [_named_by_file(sources, f"libcudnn.so.{major}", package.how) for major in (9, 8)]
    return found[0] if found[0].value else found[1]


def _named_by_file(sources: Sources, soname: str, otherwise: str) -> Fact:
    """A library's version, which stands behind ``.so.`` in the name of its file."""
    path = sources.library(soname)
    version = PurePosixPath(path).name.partition(".so.")[2]
    return Fact(version or None, path if version else f"{otherwise}, no {soname} for the loader")


def rdma_core(sources: Sources) -> Fact:
    """``50.0``: rdma-core's own version ends the name of libibverbs' file, libibverbs.so.1.14.50.0."""
    return _of_ibverbs(sources, slice(2, None))


def ibverbs(sources: Sources) -> Fact:
    """``1.14``: the interface of libibverbs."""
    return _of_ibverbs(sources, slice(2))


def _of_ibverbs(sources: Sources, part: slice) -> Fact:
    whole = _named_by_file(sources, IBVERBS, "")
    if whole.value is None:
        return Fact(None, f"no {IBVERBS} for the loader")
    return Fact(".".join(str(whole.value).split(".")[part]) or None, whole.how)


def packages(sources: Sources) -> Fact:
    return Fact(sources.packages, "names of .dist-info and .egg-info in sys.path")


def package_digest(sources: Sources) -> Fact:
    """The same for the same packages in the same versions; None without any."""
    lines = "".join(f"{name}=={version}\n" for name, version in sources.packages.items())
    digest = hashlib.sha256(lines.encode()).hexdigest()[:16]
    return Fact(digest if lines else None, f"SHA-256 of {len(sources.packages)} names and versions, 16 digits")
