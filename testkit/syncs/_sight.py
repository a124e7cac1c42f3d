"""Whether a wait could have been seen while a block ran: there was a device that tells, or a simulated one."""

from __future__ import annotations

from testkit._loaded import loaded


def simulations() -> int:
    """A number that grows with each use of the simulated device in this process; it asks for its backend each time."""
    backend = loaded("testkit.syncs._backend")
    if backend is None:
        return 0
    info = backend.install.cache_info()
    return int(info.hits + info.misses)


def blind(before: int) -> str:
    """Why nothing could be seen since ``simulations()`` was ``before``, or "" if something could."""
    from testkit.syncs import _arming
    from testkit.syncs._guard import sight

    simulated = loaded("testkit.syncs._simulated")
    if simulations() > before or getattr(simulated, "_inside", False):
        return ""
    if _arming.can_see():
        return ""
    return sight()
