"""A public class has a name that no other one has: who reads it anywhere knows which one is meant."""

from __future__ import annotations

import ast
from collections import defaultdict

from tests.packages import PACKAGES, is_program
from tests.project.test_files import ROOT, name_of, sources, tree_of


def test_no_public_class_has_the_name_of_another() -> None:
    found: dict[str, list[str]] = defaultdict(list)
    for path in (path for path in sources(*PACKAGES, "papers") if not is_program(path.relative_to(ROOT))):
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(name_of(path))
    assert len(found) > 300
    assert {name: files for name, files in found.items() if len(files) > 1} == {}
