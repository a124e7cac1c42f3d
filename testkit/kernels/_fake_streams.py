"""Streams and events for machines without CUDA: they order nothing, since everything runs at once and in order."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any


class Stream:
    """Stands for ``torch.cuda.Stream``."""

    _numbers = itertools.count(1)

    def __init__(self, device: Any = None, priority: int = 0, **kwargs: Any) -> None:
        self.priority = priority
        self.cuda_stream = self.stream_id = kwargs.get("stream_id", 0) or next(self._numbers)
        self.device_index = 0

    @property
    def device(self) -> Any:
        import torch

        return torch.device("cuda", 0)

    def wait_event(self, event: Event) -> None:
        event.wait(self)

    def wait_stream(self, stream: Stream) -> None:
        self.wait_event(stream.record_event())

    def record_event(self, event: Event | None = None) -> Event:
        event = Event() if event is None else event
        event.record(self)
        return event

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.cuda_stream == self.cuda_stream

    def __hash__(self) -> int:
        return hash(self.cuda_stream)

    def __enter__(self) -> Stream:
        self._context = StreamContext(self)
        self._context.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._context.__exit__(*error)


class Event:
    """Stands for ``torch.cuda.Event``."""

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, external: bool = False
    ) -> None:
        self.enable_timing = enable_timing

    def record(self, stream: Stream | None = None) -> None:
        pass

    def wait(self, stream: Stream | None = None) -> None:
        pass

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end_event: Event) -> float:
        return 0.0


class StreamContext:
    """Stands for ``torch.cuda.stream(...)``."""

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        import torch

        if self.stream is not None:
            self._before = torch.cuda.current_stream()
            torch.cuda.set_stream(self.stream)  # type: ignore[arg-type]  # a stand-in too

    def __exit__(self, *error: object) -> None:
        import torch

        if self.stream is not None:
            torch.cuda.set_stream(self._before)


def are_fake() -> bool:
    """Are the streams of torch these ones now?"""
    import torch

    now: Any = torch.cuda.Stream
    return now is Stream


@contextmanager
def fake_streams(*, always: bool = False) -> Iterator[None]:
    """Within the block ``torch.cuda.Stream``, ``Event``, ``stream`` and what belongs to them work without CUDA.

    For code that makes its streams before the call that is tested, such as a layer in its ``__init__``::

        with fake_streams():
            layer = Layer()
            assert_stream_safe(lambda: layer(x), lambda: layer.serial(x))

    Operations run at once, on the CPU, whatever the stream. Where CUDA is available nothing is replaced, so that the
    same test uses real streams there, unless ``always``. ``torch.cuda.is_available()`` stays as it is, and names that a
    module took out of torch.cuda before (``from torch.cuda import Stream``) are not replaced.
    """
    import torch

    if are_fake() or (torch.cuda.is_available() and not always):
        yield
        return
    default = Stream(stream_id=0)
    default.cuda_stream = default.stream_id = 0
    current = [default]

    def set_stream(stream: Stream | None) -> None:
        if stream is not None:
            current[0] = stream

    names: dict[str, Any] = {
        "Stream": Stream,
        "Event": Event,
        "StreamContext": StreamContext,
        "stream": StreamContext,
        "set_stream": set_stream,
        "current_stream": lambda device=None: current[0],
        "default_stream": lambda device=None: default,
        "synchronize": lambda device=None: None,
        "_sleep": lambda cycles: None,
    }
    with ExitStack() as stack:
        stack.enter_context(replaced(torch.cuda, **names))
        stack.enter_context(replaced(torch.Tensor, record_stream=lambda tensor, stream: None))
        yield


@contextmanager
def replaced(owner: Any, **names: Any) -> Iterator[None]:
    """Within the block ``owner`` has these attributes instead of its own or inherited ones."""
    before = {name: vars(owner)[name] for name in names if name in vars(owner)}
    for name, value in names.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name in names:
            if name in before:
                setattr(owner, name, before[name])
            else:
                delattr(owner, name)
