"""bucketize: which interval a value falls into, as a count of boundaries."""

import torch

from graftwork.plugins import LoweringContext, rewrite_program
from graftwork.plugins.checking import find_plugin, select_plugin_alone
from graftwork.plugins.verification import assert_verified

ID = "bucketize"
BOUNDARIES = torch.tensor([0.0, 1.0, 1.0, 2.0])
VALUES = torch.tensor([-1.0, 0.0, 0.5, 1.0, 2.0, 3.0, torch.nan, torch.inf, -torch.inf])


def test_properties_hold(examples):
    assert_verified(ID, examples=examples)


def test_values_on_a_boundary_go_left_or_right(rewrite):
    left = rewrite(ID, lambda x: torch.bucketize(x, BOUNDARIES), VALUES)
    assert left(VALUES).tolist() == [0, 0, 1, 1, 3, 4, 4, 4, 0]
    right = rewrite(ID, lambda x: torch.bucketize(x, BOUNDARIES, right=True), VALUES)
    assert right(VALUES).tolist() == [0, 1, 1, 3, 4, 4, 4, 4, 0]


def test_a_side_by_name_counts_like_right(rewrite):
    program = rewrite(
        ID,
        lambda x: torch.searchsorted(BOUNDARIES, x, side="right", out_int32=True),
        VALUES,
    )
    assert program.fired == 1
    assert program(VALUES).tolist() == [0, 1, 1, 3, 4, 4, 4, 4, 0]
    assert program(VALUES).dtype == torch.int32


def test_a_sequence_with_a_sorter_is_declined(rewrite):
    order = torch.tensor([0, 1, 2, 3])
    program = rewrite(ID, lambda x: torch.searchsorted(BOUNDARIES, x, sorter=order), VALUES)
    assert program.fired == 0
    assert program.declined == ["an unsorted sequence with a sorter"]


def test_other_targets_keep_the_operator():
    class Buckets(torch.nn.Module):
        def forward(self, x):
            return torch.bucketize(x, x)

    program = torch.export.export(Buckets(), (torch.ones(2),), strict=False)
    selection = select_plugin_alone(find_plugin(ID))
    for target, fired in {"cpu": 1, "aoti": 0, "cuda": 0}.items():
        _, log = rewrite_program(program, selection, LoweringContext(target=target))
        assert log.fired(ID) == fired
