"""The table of fixes: which row speaks for which wait, and where the cautions stand."""

from __future__ import annotations

import linecache

import pytest

from testkit.syncs._fixes import RACE, STALL, TEMPLATES, WARM_UP, advice, cautions, fix, template
from testkit.syncs._seen import KINDS, Seen

SYMPTOMS = [
    ("gapped copy", Seen("Tensor.to", "gapped", "", 64, "H2D")),
    ("pageable download", Seen("Tensor.copy_", "pageable", "", 64, "D2H")),
    ("pageable upload", Seen("Tensor.to", "pageable", "", 64, "H2D")),
    ("list index", Seen("Tensor.__getitem__ (aten.index)", "upload", "list as index", 16, "H2D")),
    ("host index", Seen("Tensor.__getitem__ (aten.index)", "upload", "index on the CPU", 16, "H2D")),
    ("number stored", Seen("Tensor.__setitem__ (aten.copy_)", "upload", "", 4, "H2D")),
    ("number stored", Seen("aten.index_put_", "upload", "value on the CPU", 4, "H2D")),
    ("built from Python values", Seen("torch.tensor (aten.copy_)", "upload", "", 24, "H2D")),
    ("built from Python values", Seen("Tensor.new_tensor", "upload")),
    ("blocking upload", Seen("Tensor.cuda (aten.copy_)", "upload", "", 24, "H2D")),
    ("type of the host", Seen("Tensor.type (aten.copy_)", "download", "", 24, "D2H")),
    ("errors read", Seen("torch.linalg.inv (aten._linalg_check_errors)", "read")),
    ("any or all", Seen("torch.equal (aten.equal)", "read")),
    ("device value as argument", Seen("Tensor.masked_fill (aten.masked_fill)", "read", "tensor as value")),
    ("range not given", Seen("torch.histc (aten.histc)", "read", "no min and max")),
    ("lengths on the device", Seen("aten._ctc_loss", "read", "lengths on the device")),
    ("value read", Seen("Tensor.item (aten._local_scalar_dense)", "read", "", 4, "D2H")),
    ("blocking download", Seen("Tensor.cpu (aten.copy_)", "download", "", 24, "D2H")),
    ("repeat_interleave", Seen("aten.repeat_interleave", "shape", "no output_size")),
    ("one_hot", Seen("aten.one_hot", "shape", "no num_classes")),
    ("mask stored", Seen("Tensor.__setitem__ (aten.index_put_)", "shape", "mask index")),
    ("mask index", Seen("Tensor.__getitem__ (aten.index)", "shape", "mask index")),
    ("nonzero", Seen("torch.where (aten.nonzero)", "shape")),
    ("size from data", Seen("torch.unique (aten._unique2)", "shape")),
    ("checked on the host", Seen("aten._linalg_svd", "library")),
    ("synchronize", Seen("torch.cuda.synchronize", "synchronize")),
    ("unknown", Seen("my_ext.op", "unknown")),
]


@pytest.mark.parametrize(("name", "seen"), SYMPTOMS, ids=[f"{name}-{seen.operator}" for name, seen in SYMPTOMS])
def test_each_symptom_gets_the_row_that_was_written_for_it(name: str, seen: Seen) -> None:
    assert template(seen).name == name


def test_every_row_speaks_for_some_symptom() -> None:
    assert {row.name for row in (*TEMPLATES, WARM_UP)} == {name for name, _ in SYMPTOMS}


@pytest.mark.parametrize("kind", KINDS)
def test_no_wait_is_left_without_advice(kind: str) -> None:
    assert advice(Seen("?", kind))


# What stands in a source line, where only torch's warning spoke. The first words are those of the measured operations.
LINES = [
    ("n = lens.max().item()", "value read"),
    ("if bool(done[0]):", "value read"),
    ("if mask.any():", "any or all"),
    ("rows = x.cpu().numpy()", "blocking download"),
    ("y = x.to('cpu')", "blocking download"),
    ("y = c.cuda()", "blocking upload"),
    ("y = torch.from_numpy(a).to(device)", "blocking upload"),
    ("t = torch.tensor([1, 2, 3], device=device)", "built from Python values"),
    ("t = torch.as_tensor(values, device=D)", "built from Python values"),
    ("z = x.new_tensor([0])", "built from Python values"),
    ("y = x[[0, 3, 5]]", "list index"),
    ("x[3] = 1.0", "number stored"),
    ("self.table[i] = n", "number stored"),
    ("b = x.type(torch.BoolTensor)", "type of the host"),
    ("r = torch.repeat_interleave(lens)", "repeat_interleave"),
    ("i = mask.nonzero()", "nonzero"),
    ("u = torch.unique(ids)", "size from data"),
    ("h = torch.nn.functional.one_hot(ids)", "one_hot"),
    ("w = torch.linalg.inv(x)", "checked on the host"),
    ("side.synchronize()", "synchronize"),
    ("y = my_ext.op(x)", "unknown"),
]


@pytest.mark.parametrize(("line", "name"), LINES, ids=[line for line, _ in LINES])
def test_where_no_operator_is_known_the_source_line_is_read(line: str, name: str) -> None:
    assert template(Seen("?", "unknown"), line).name == name


@pytest.mark.parametrize(
    ("kind", "line", "name"),
    [
        ("upload", "lens = torch.tensor(lengths, device=device)", "built from Python values"),
        ("upload", "x[3] = 1.0", "number stored"),
        ("upload", "y = host.to(device)", "blocking upload"),
        ("upload", "y = copied(host)", "blocking upload"),
        ("download", "b = x.type(torch.BoolTensor)", "type of the host"),
        ("download", "t = torch.tensor(x.tolist(), device=device)", "blocking download"),
        ("read", "if mask.any():", "any or all"),
    ],
)
def test_the_source_line_says_what_a_lone_operator_does_not(kind: str, line: str, name: str) -> None:
    assert template(Seen("aten.copy_", kind), line).name == name


def test_the_source_is_found_by_file_and_line(tmp_path: object) -> None:
    path = f"{tmp_path}/step.py"
    linecache.cache[path] = (2, None, ["def step(x):\n", "    return x.item()\n"], path)
    assert advice(Seen("?", "unknown"), f"{path}:2") == advice(Seen("aten._local_scalar_dense", "read"))
    assert advice(Seen("?", "unknown"), f"{path}:9") == WARM_UP.advice
    assert advice(Seen("?", "unknown"), "?") == WARM_UP.advice


def test_who_is_told_to_pin_is_told_of_both_dangers() -> None:
    pins = [row for row in TEMPLATES if "pin" in row.advice]
    assert {row.name for row in pins} == {row.name for row in TEMPLATES if row.pins}
    text = fix(Seen("Tensor.to", "pageable", "", 64, "H2D"))
    assert f"caution: {RACE}" in text
    assert f"caution: {STALL}" in text


def test_who_is_not_told_to_pin_is_not_cautioned() -> None:
    seen = Seen("Tensor.item", "read")
    assert fix(seen) == advice(seen)
    assert cautions([advice(seen)]) == []
