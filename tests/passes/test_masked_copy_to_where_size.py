"""masked-copy-to-where: long histories, long chains and large graphs."""

import time

import torch
from masked_copies import View, make_graph

aten = torch.ops.aten


def test_masks_with_long_histories_need_no_recursion():
    view = View.of(make_graph(copies=1, history=5000))
    assert view.fired == 1
    assert not view.graph.find_nodes(op="call_function", target=aten.index.Tensor)


def test_long_chains_between_pick_and_put_need_no_recursion():
    assert View.of(make_graph(copies=1, history=1, chain=5000)).fired == 1


def test_time_grows_with_the_graph_and_not_faster():
    """Comparing each pair of masks anew would take a hundred times the time."""

    def seconds(copies, history):
        module = make_graph(copies, history)
        start = time.process_time()
        View.of(module)
        return time.process_time() - start

    seconds(2, 10)
    assert seconds(200, 10) < 30 * seconds(20, 10)
    assert seconds(2, 2000) < 30 * seconds(2, 200)
