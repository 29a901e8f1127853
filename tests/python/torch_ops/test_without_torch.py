"""Where PyTorch is not installed, importing freetoken.torch_ops says which extra is missing."""

from __future__ import annotations

import subprocess
import sys


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


def test_the_error_names_the_extra():
    done = python("import sys; sys.modules['torch'] = None; import freetoken.torch_ops")
    assert done.returncode == 1
    assert "pip install 'freetoken[torch]'" in done.stderr.splitlines()[-1]
    assert "During handling" not in done.stderr


def test_an_error_inside_torch_stays_itself():
    """A broken PyTorch is not a missing one."""
    code = """
import sys, types
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise ModuleNotFoundError("No module named 'sympy'", name="sympy")
sys.meta_path.insert(0, Finder())
import freetoken.torch_ops
"""
    assert python(code).stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'sympy'"
