"""What was patched is put back as it was, whatever happened in between."""

import os
import threading

import pytest

from graftwork.backend.patches.shared import SharedPatch
from graftwork.backend.patching import Patches


class Base:
    inherited = "base"

    @staticmethod
    def fixed():
        return "stock"

    @classmethod
    def made(cls):
        return cls


class Thing(Base):
    own = "own"


def test_attributes_come_back_as_the_objects_they_were(monkeypatch):
    monkeypatch.setenv("GRAFTWORK_TEST", "before")
    before = dict(vars(Thing)), dict(vars(Base))
    patches = Patches()
    assert patches.set(Thing, "own", 1) == "own"
    patches.set(Thing, "inherited", 2)
    patches.set(Thing, "own", 3)
    patches.set(Base, "fixed", staticmethod(lambda: "patched"))
    patches.set(Base, "made", classmethod(lambda cls: None))
    patches.environment("GRAFTWORK_TEST", "during")
    patches.environment("GRAFTWORK_NEW", "during")
    assert (Thing.own, Thing.inherited, Base.fixed()) == (3, 2, "patched")
    patches.undo()
    assert (dict(vars(Thing)), dict(vars(Base))) == before
    assert os.environ["GRAFTWORK_TEST"] == "before" and "GRAFTWORK_NEW" not in os.environ


def test_a_name_that_moved_is_an_error():
    with pytest.raises(AttributeError):
        Patches().set(Thing, "moved", 1)


def test_one_failing_undo_does_not_keep_the_others():
    patches = Patches()
    patches.set(Thing, "own", 1)
    patches.at_end(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        patches.undo()
    assert Thing.own == "own"


@pytest.mark.parametrize("first_out", ["first in", "last in"])
def test_two_threads_that_overlap_are_both_patched_and_leave_nothing(first_out):
    """pytorch/pytorch#168042: threads that compile at once corrupt patched global state."""
    patch = SharedPatch("test", lambda p: p.set(Thing, "own", "patched"), lambda: True)
    events = {name: (threading.Event(), threading.Event()) for name in ("a", "b")}
    seen = {}

    def compile_in(name):
        entered, leave = events[name]
        with patch.held():
            entered.set()
            assert leave.wait(10)
            seen[name] = Thing.own

    threads = {name: threading.Thread(target=compile_in, args=(name,)) for name in events}
    for name, thread in threads.items():
        thread.start()
        assert events[name][0].wait(10)
    for name in ("a", "b") if first_out == "first in" else ("b", "a"):
        events[name][1].set()
        threads[name].join(10)
    assert seen == {"a": "patched", "b": "patched"}
    assert Thing.own == "own"


def test_a_patch_that_torch_does_not_need_changes_nothing_and_says_so(caplog):
    patch = SharedPatch("some-patch", lambda p: p.set(Thing, "own", "patched"), lambda: False)
    with caplog.at_level("INFO", logger="graftwork"), patch.held():
        assert Thing.own == "own"
    assert "some-patch" in caplog.text and "does not need it" in caplog.text


def test_a_patch_that_cannot_be_applied_leaves_nothing():
    def half(patches):
        patches.set(Thing, "own", "patched")
        patches.set(Thing, "moved", 1)

    patch = SharedPatch("half", half, lambda: True)
    with pytest.raises(AttributeError), patch.held():
        pass
    assert Thing.own == "own"


def test_host_code_is_built_for_any_cpu_on_every_release(monkeypatch):
    from graftwork.backend import host
    from graftwork.plugins import torch_private

    builder = torch_private.inductor_cpp_builder()
    config = torch_private.inductor_config()
    compiler = builder.get_cpp_compiler()

    def flags():
        return " ".join(builder._get_optimization_cflags(compiler)[0])

    with config.patch(host.portable_host_options()), host.portable_host():
        assert "native" not in flags()
    # A release without the option: the flag is dropped instead.
    assert "march=native" in flags()
    old = SharedPatch("host", host._drop_native, lambda: True)
    with old.held():
        assert "native" not in flags()
    assert "march=native" in flags()


def test_no_vector_extension_is_tried_out_for_the_host_code(monkeypatch):
    from graftwork.backend import host
    from graftwork.plugins import torch_private

    extensions = torch_private.inductor_vector_extensions()
    tried = []
    monkeypatch.setattr(
        extensions.VecISA, "check_build", lambda self, code: bool(tried.append(self))
    )
    for memo in (extensions.valid_vec_isa_list, extensions.VecISA._VecISA__bool__impl):
        memo.cache_clear()
    try:
        with torch_private.inductor_config().patch(host.portable_host_options()):
            with host.portable_host():
                assert not extensions.pick_vec_isa() and not tried
            extensions.pick_vec_isa()
            assert tried or not extensions.supported_vec_isa_list
    finally:
        for memo in (extensions.valid_vec_isa_list, extensions.VecISA._VecISA__bool__impl):
            memo.cache_clear()
