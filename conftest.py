"""The reference example of enabling testkit: this line, or nothing.

Where testkit is installed, its entry point has already loaded it and the line changes nothing. It is for runs
with PYTEST_DISABLE_PLUGIN_AUTOLOAD=1. The same from the command line: ``-p testkit``.
"""

pytest_plugins = ["testkit"]
