"""What composing the enabled plugins adds to the time of lowering the example policy.

    python benchmarks/composition.py [--runs N] [--json FILE]

In one process, alternately: the policy rewritten with the default plugins, and with everything
disabled, then lowered on the CPU. What composition adds is the difference of the two rewrites; the
share is of everything else that lowering it takes (export, build). Promise: under 5 %.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

import graftwork
from graftwork.plugins import LoweringContext, rewrite_program, select_plugins

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import robot_policy

PROMISED_SHARE = 0.05


def measure(runs: int) -> dict[str, float]:
    """Medians in seconds: rewriting with and without plugins, and the rest of the lowering."""
    torch.manual_seed(0)
    policy, inputs = robot_policy.RobotPolicy().eval(), robot_policy.example_inputs()
    enabled = select_plugins()
    disabled = select_plugins(disable=["all"])
    seconds: dict[str, list[float]] = {"enabled": [], "disabled": [], "rest": []}
    # The first run pays for imports and is left out.
    for run in range(runs + 1):
        with tempfile.TemporaryDirectory() as directory:
            report = graftwork.lower(policy, inputs, directory=directory, verify=False).report
        with graftwork.exportable_checks():
            program = torch.export.export(policy, inputs, strict=False)
        took = {}
        for name, selection in (("enabled", enabled), ("disabled", disabled)):
            start = time.perf_counter()
            rewrite_program(program, selection, LoweringContext())
            took[name] = time.perf_counter() - start
        took["rest"] = report.stages["export"] + report.stages["lower"]
        for name, value in took.items():
            if run:
                seconds[name].append(value)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    medians["added"] = medians["enabled"] - medians["disabled"]
    medians["share"] = medians["added"] / (medians["rest"] + medians["disabled"])
    return medians


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    result = measure(arguments.runs)
    print(f"rewrite, default plugins     {result['enabled']:8.3f} s")
    print(f"rewrite, everything disabled {result['disabled']:8.3f} s")
    print(f"export and build             {result['rest']:8.3f} s")
    print(f"composition adds             {result['share']:8.1%} (promised under 5 %)")
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")
    sys.exit(result["share"] >= PROMISED_SHARE)


if __name__ == "__main__":
    main()
