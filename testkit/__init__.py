"""testkit: a pytest toolkit for the CI of GPU-kernel and multi-process Python projects.

Importing this package imports neither pytest nor torch. As a pytest plugin it loads the capabilities
named in ``pytest_plugins``; leave one out with ``-p no:testkit.cleanup.plugin``, all with ``-p no:testkit``.

PYTEST_DONT_REWRITE
"""

__version__ = "0.1.0"

pytest_plugins = (
    "testkit.pairwise.plugin",
    "testkit.cleanup.plugin",
    "testkit.gpus.plugin",
    "testkit.processes.plugin",
    "testkit.timing.plugin",
    "testkit.kernels.plugin",
    "testkit.syncs.plugin",
    "testkit.environment.plugin",
)
