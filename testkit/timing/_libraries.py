"""What heavy libraries did during a test: kernels that they compiled, GPU memory. Looked for, never imported.

A library is followed from the first look after its import on, so a compilation by Triton or ``cpp_extension`` in the
very phase of a test that imports it is missed.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from testkit._loaded import loaded
from testkit.timing._clock import Clock
from testkit.timing._run import Jit


class Libraries:
    """Adds up what was compiled since ``take`` was last called."""

    def __init__(self) -> None:
        self._jit = Jit()
        self._triton = _Triton(self._jit)
        self._extensions = _Extensions(self._jit)
        self._inductor = _Inductor(self._jit)
        self._modules = 0

    def look(self) -> None:
        """Follow what has been imported since, and read what only keeps figures."""
        if self._modules == len(sys.modules):
            return  # several times a test, and there is nothing to follow
        found = [loaded("triton"), loaded("torch.utils.cpp_extension"), loaded("torch._dynamo.utils")]
        if not any(found):
            self._modules = len(sys.modules)
        libraries: tuple[_Triton | _Extensions | _Inductor, ...] = (self._triton, self._extensions, self._inductor)
        for module, library in zip(found, libraries, strict=True):
            if module is not None:
                with suppress(Exception):  # what a test put in a library's place
                    library.follow(module)

    def take(self) -> Jit | None:
        """What was compiled since the last call; None if nothing was."""
        self.look()
        jit = self._jit
        if not (jit.count or jit.hits or jit.seconds):
            return None
        found = Jit(jit.seconds, jit.count, jit.hits)
        jit.seconds, jit.count, jit.hits = 0.0, 0, 0
        return found

    def close(self) -> None:
        """Leave the libraries as they were."""
        self._triton.close()
        self._extensions.close()


def gpu_peak() -> int:
    """Bytes: the most that torch's tensors took on one CUDA device since the last call; 0 where CUDA is not in use.

    torch keeps one peak for all who ask, so this starts torch's own figures anew: ``torch.cuda.max_memory_allocated()``
    after it counts from here. Without that a test would be billed for the largest one before it.
    """
    try:
        torch: Any = loaded("torch")
        cuda = getattr(torch, "cuda", None)
        if cuda is None or not cuda.is_initialized():
            return 0
        devices = range(cuda.device_count())
        peak = max((int(cuda.max_memory_allocated(device)) for device in devices), default=0)
        for device in devices:
            cuda.reset_peak_memory_stats(device)
    except Exception:  # noqa: BLE001 - a device that is lost, or what a test put in torch's place
        return 0
    return peak


class _Triton:
    """Follows Triton's own listener (3.4 and newer), or the hooks before and after a compilation (older ones)."""

    def __init__(self, jit: Jit) -> None:
        self._jit = jit
        self._listen = self._on_compilation  # one object: a bound method is a new one each time
        self._before = self._on_begin
        self._after = self._on_end
        self._others: Any = None
        self._knobs: Any = None
        self._function: Any = None
        self._begin = 0.0

    def follow(self, triton: Any) -> None:
        knobs: Any = getattr(getattr(triton, "knobs", None), "compilation", None)
        if hasattr(knobs, "listener"):
            if knobs.listener is not self._listen:  # nobody's, or set by a test
                self._knobs, self._others = knobs, knobs.listener
                knobs.listener = self._listen
            return
        runtime = getattr(getattr(triton, "runtime", None), "jit", None)
        function = getattr(runtime, "JITFunction", None)
        if getattr(function, "cache_hook", 0) is None and getattr(function, "compiled_hook", 0) is None:
            self._function = function
            self._function.cache_hook, self._function.compiled_hook = self._before, self._after

    def close(self) -> None:
        if self._knobs is not None and self._knobs.listener is self._listen:
            self._knobs.listener = self._others
        if self._function is not None and self._function.cache_hook is self._before:
            self._function.cache_hook = self._function.compiled_hook = None

    def _on_compilation(self, **facts: Any) -> None:
        if self._others is not None:
            self._others(**facts)
        if _inductor_is_compiling():
            return  # its own figures hold this kernel
        if facts.get("cache_hit"):
            self._jit.hits += 1
        else:
            self._jit.count += 1
        self._jit.seconds += max(0.0, getattr(facts.get("times"), "total", 0) / 1e6)

    def _on_begin(self, *_: Any, **__: Any) -> bool:
        self._begin = Clock.now()
        return False  # True would keep Triton from compiling

    def _on_end(self, *_: Any, **__: Any) -> bool:
        if not _inductor_is_compiling():
            self._jit.count += 1
            self._jit.seconds += Clock.now() - self._begin
        return False


def _inductor_is_compiling() -> bool:
    guards: Any = loaded("torch._guards")
    return guards is not None and guards.CompileContext.current_compile_id() is not None


class _Inductor:
    """Reads the figures that torch.compile keeps: whole frames and backward passes, graphs compiled or from a cache."""

    SECONDS = ("_compile.compile_inner", "backward._backward_impl")
    COMPILED = ("fxgraph_cache_miss", "fxgraph_cache_bypass")
    HITS = ("fxgraph_cache_hit",)

    def __init__(self, jit: Jit) -> None:
        self._jit = jit
        self._lists: dict[str, tuple[list[float], int]] = {}
        self._counts: dict[str, int] = {}

    def follow(self, utils: Any) -> None:
        times: Mapping[str, list[float]] = getattr(utils, "compilation_time_metrics", {})
        for key in self.SECONDS if times else ():
            values = times.get(key)
            if values is None:
                continue
            known, length = self._lists.get(key, (values, 0))
            # torch._dynamo.reset() drops the lists, and tests call it: what is in a new list is new
            self._jit.seconds += sum(values[length if known is values else 0 :])
            self._lists[key] = (values, len(values))
        counters = getattr(utils, "counters", {})
        if "inductor" in counters:
            self._jit.count += sum(self._new(counters["inductor"], key) for key in self.COMPILED)
            self._jit.hits += sum(self._new(counters["inductor"], key) for key in self.HITS)

    def _new(self, counter: Mapping[str, int], key: str) -> int:
        count, before = counter.get(key, 0), self._counts.get(key, 0)
        self._counts[key] = count
        return count - before if count >= before else count  # tests clear the counters


class _Extensions:
    """Wraps the function that builds what ``torch.utils.cpp_extension.load`` and ``load_inline`` load."""

    NAME = "_jit_compile"

    def __init__(self, jit: Jit) -> None:
        self._jit = jit
        self._module: Any = None
        self._original: Callable[..., Any] | None = None
        self._wrapper: Callable[..., Any] | None = None

    def follow(self, module: Any) -> None:
        original = getattr(module, self.NAME, None)
        if self._wrapper is not None or not callable(original):
            return
        signature = inspect.signature(original)

        def build(*args: Any, **kwargs: Any) -> Any:
            folder = signature.bind(*args, **kwargs).arguments.get("build_directory")
            before, begin = _files(folder), Clock.now()
            try:
                return original(*args, **kwargs)
            finally:
                self._jit.seconds += Clock.now() - begin
                if _files(folder) == before:
                    self._jit.hits += 1
                else:
                    self._jit.count += 1

        self._module, self._original, self._wrapper = module, original, build
        setattr(module, self.NAME, build)

    def close(self) -> None:
        if self._module is not None and getattr(self._module, self.NAME) is self._wrapper:
            setattr(self._module, self.NAME, self._original)


def _files(folder: Any) -> dict[str, int]:
    """The libraries in a build folder, and when they were written."""
    try:
        with os.scandir(folder) as entries:
            return {
                entry.name: entry.stat().st_mtime_ns for entry in entries if entry.name.endswith((".so", ".pyd", ".o"))
            }
    except (OSError, TypeError):  # not made yet, or no folder is known
        return {}
