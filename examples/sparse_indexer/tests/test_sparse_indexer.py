"""Which ops the indexer takes on seven machines, on one that is none of them; and that it indexes."""

from pathlib import Path

import pytest

from testkit.laws import assert_platform_choices

TABLE = Path(__file__).with_name("platforms.json")


def machine(arch, library):
    """What answers on a machine: its card's name, and which ops the vendor's library has there (None: no library)."""
    return {"sparse_indexer.platform:arch": arch, "aiterlike": library}


WHOLE, SOME, ABSENT = ["quantize", "logits", "topk"], ["topk"], None
MACHINES = {
    "cpu": machine("", ABSENT),
    "gfx90a": machine("gfx90a:sramecc+:xnack-", WHOLE),
    "gfx942": machine("gfx942:sramecc+:xnack-", WHOLE),
    "gfx950": machine("gfx950:sramecc+:xnack-", WHOLE),
    "gfx1100": machine("gfx1100", SOME),
    "gfx1100 without the library": machine("gfx1100", ABSENT),
    "gfx1201": machine("gfx1201", SOME),
}


def test_every_machine_takes_the_ops_that_it_has():
    assert_platform_choices("sparse_indexer.indexer:choose", MACHINES, snapshot=TABLE)


@pytest.mark.parametrize(("k", "found"), [(0, []), (1, [0]), (2, [0, 2]), (4, [0, 1, 2, 3])])
def test_it_finds_the_keys_that_point_where_the_query_does(k, found):
    from sparse_indexer.indexer import index  # here, so that a planted fault of its import fails a test

    assert index([1.0, 0.0], [[1.0, 0.0], [-1.0, 0.0], [0.9, 0.1], [0.0, 1.0]], k) == found
