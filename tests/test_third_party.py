"""A stranger's plugins come in by the door the built-in ones use.

`third_party/graftwork-extra-ops` is built and installed by pip into a folder of its own; further
distributions, broken ones among them, are made on the spot. Each test asks a fresh process whose
path holds those folders.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent / "third_party" / "graftwork-extra-ops"


@pytest.fixture(scope="module")
def extra_ops(tmp_path_factory):
    """The folder into which pip installed the package."""
    source = tmp_path_factory.mktemp("source") / PACKAGE.name
    shutil.copytree(PACKAGE, source)
    installed = tmp_path_factory.mktemp("installed")
    command = ["install", "--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    subprocess.run(
        [sys.executable, "-m", "pip", *command, "--target", str(installed), str(source)],
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    )
    return installed


def write_distribution(folder, name, plugins, version="1.0"):
    """Lay a distribution out as pip would; `plugins` maps ids to the modules' source."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = ["[graftwork.plugins]"]
    for number, (plugin_id, source) in enumerate(plugins.items()):
        module = f"{name.replace('-', '_')}_{number}"
        (folder / f"{module}.py").write_text(source)
        lines.append(f"{plugin_id} = {module}")
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return folder


def decomposition_of(op, summary="a stranger's"):
    return f"""
import torch
from graftwork.plugins import PluginInfo, hookimpl

@hookimpl
def describe_plugin():
    return PluginInfo(summary={summary!r})

@hookimpl
def list_decompositions():
    return {{torch.ops.aten.{op}: lambda x: x}}
"""


def run(command, *folders, directory):
    """Run a fresh interpreter with `folders` on its path, outside of any checkout."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, folders)),
        "GRAFTWORK_ENABLE": "",
        "GRAFTWORK_DISABLE": "",
    }
    return subprocess.run(
        [sys.executable, *command],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )


def ask(script, *folders, directory):
    """Run a script, which prints JSON last."""
    done = run(["-c", script], *folders, directory=directory)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


LIST = """
import json
from graftwork.plugins import select_plugins
print(json.dumps({
    choice.plugin.qualified_id: [
        choice.plugin.kind, choice.plugin.version, choice.enabled, choice.reason
    ]
    for choice in select_plugins().choices
}))
"""

LOWER = """
import json, sys
import torch
from torch.distributions import MultivariateNormal
import graftwork

class LogProb(torch.nn.Module):
    def forward(self, mean, scale, action):
        scale = scale.permute(2, 0, 1).permute(1, 2, 0)
        normal = MultivariateNormal(mean, scale_tril=scale, validate_args=False)
        return normal.log_prob(action)

torch.manual_seed(0)
scale = torch.rand(2, 3, 3).tril() + torch.eye(3)
inputs = (torch.randn(2, 3), scale, torch.randn(2, 3))
found = {}
for name, settings in {
    "as installed": {},
    "no merging": {"disable": ["merge-permutes"]},
    "no solving": {"disable": ["solve-triangular"]},
    "too large": {"options": {"solve-triangular": {"largest": 2}}},
}.items():
    try:
        lowered = graftwork.lower(LogProb(), inputs, directory=name, **settings)
        found[name] = {
            plugin.id: [plugin.version, plugin.enabled, plugin.fired, plugin.reason]
            for plugin in lowered.report.plugins
            if plugin.distribution == "graftwork-extra-ops"
        } | {"equal": all(output.equal for output in lowered.report.outputs)}
    except graftwork.plugins.GraftworkError as error:
        found[name] = str(error)
print(json.dumps(found))
"""


def test_installed_plugins_are_listed_with_distribution_and_version(extra_ops, tmp_path):
    listed = ask(LIST, extra_ops, directory=tmp_path)
    assert listed["graftwork-extra-ops/solve-triangular"] == [
        "decomposition",
        "1.2.0",
        True,
        "default",
    ]
    assert listed["graftwork-extra-ops/merge-permutes"] == ["pass", "1.2.0", True, "default"]
    assert "graftwork/detach-copy" in listed
    assert not any("extra-ops" in name for name in ask(LIST, directory=tmp_path))


def test_installed_plugins_are_verified_through_pytest(extra_ops, tmp_path):
    (tmp_path / "test_nothing.py").write_text("def test_nothing(): pass\n")
    flags = ["--graftwork=solve-triangular,merge-permutes", "--graftwork-examples=5"]
    done = run(["-m", "pytest", "-v", *flags], extra_ops, directory=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "graftwork::solve-triangular::solves-equal-eager PASSED" in done.stdout
    assert "graftwork::merge-permutes::merged-equals-both PASSED" in done.stdout
    assert "4 passed" in done.stdout


def test_installed_plugins_lower_and_can_be_disabled_or_given_options(extra_ops, tmp_path):
    found = ask(LOWER, extra_ops, directory=tmp_path)
    assert found["as installed"] == {
        "merge-permutes": ["1.2.0", True, 1, "default"],
        "solve-triangular": ["1.2.0", True, 1, "default"],
        "equal": True,
    }
    assert found["no merging"] == {
        "merge-permutes": ["1.2.0", False, 0, "disabled by this call"],
        "solve-triangular": ["1.2.0", True, 1, "default"],
        "equal": True,
    }
    for name, remedy in {
        "no solving": "plugin 'solve-triangular' provides it and is disabled",
        "too large": "linalg_solve_triangular",
    }.items():
        assert "aten::linalg_solve_triangular" in found[name]
        assert remedy in found[name]
        assert not list((tmp_path / name).glob("*")) if (tmp_path / name).exists() else True


def test_a_broken_plugin_is_listed_and_fails_only_who_enables_it(tmp_path):
    folder = write_distribution(
        tmp_path / "broken", "broken-ops", {"broken-op": "import no_such_library"}
    )
    listed = ask(LIST, folder, directory=tmp_path)
    kind, version, enabled, reason = listed["broken-ops/broken-op"]
    assert (kind, version, enabled) == ("none", "1.0", False)
    assert "No module named 'no_such_library'" in reason
    enabled = run(
        ["-c", "from graftwork.plugins import select_plugins; select_plugins(['broken-op'])"],
        folder,
        directory=tmp_path,
    )
    assert enabled.returncode == 1
    for part in ("broken-ops", "no_such_library", "this call"):
        assert part in enabled.stderr.splitlines()[-1]


def test_two_distributions_with_one_id_clash_until_one_is_disabled(tmp_path):
    first, second = (
        write_distribution(tmp_path / name, name, {"same-id": decomposition_of("alias.default")})
        for name in ("first-ops", "second-ops")
    )
    script = """
import json
from graftwork.plugins import select_plugins
from graftwork.plugins.errors import PluginClashError
try:
    select_plugins()
    message = ""
except PluginClashError as error:
    message = str(error)
chosen = select_plugins(disable=["first-ops/same-id"])
names = [c.plugin.distribution for c in chosen.enabled if c.plugin.id == "same-id"]
print(json.dumps([message, names]))
"""
    message, names = ask(script, first, second, directory=tmp_path)
    for part in ("same-id", "first-ops", "second-ops", "disable 'first-ops/same-id'"):
        assert part in message
    assert names == ["second-ops"]


def test_two_plugins_that_claim_one_operator_clash_until_one_is_disabled(tmp_path):
    folder = write_distribution(
        tmp_path / "own-ops", "own-ops", {"own-detach": decomposition_of("detach_copy.default")}
    )
    script = """
import json, torch
from graftwork import rewrite
from graftwork.plugins.errors import PluginClashError
program = torch.export.export(
    torch.nn.Linear(2, 2), (torch.ones(1, 2),), strict=False
)
try:
    rewrite(program)
    message = ""
except PluginClashError as error:
    message = str(error)
rewrite(program, disable=["detach-copy"])
print(json.dumps(message))
"""
    message = ask(script, folder, directory=tmp_path)
    for part in ("detach_copy", "own-detach", "own-ops", "detach-copy", "disable"):
        assert part in message
