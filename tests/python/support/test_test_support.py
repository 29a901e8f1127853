"""The parts of the suite that decide what passes."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

from support import gtest, isa
from support.margin import MarginRule, comparable


def test_isa_tags():
    assert isa.level_of("Levels/Matmul.Equals/avx2") == "avx2"
    assert isa.level_of("Levels/Matmul.Equals/q4_0_avx512bf16_3") == "avx512bf16"
    assert isa.level_of("Matmul.Avx2") is None
    assert isa.level_of("Matmul.scalarproduct") is None
    assert "scalar" not in isa.missing_levels()


def test_cases_that_need_more_of_the_cpu(monkeypatch):
    monkeypatch.setattr(isa, "cpu_flags", lambda: frozenset({"avx2", "fma", "f16c"}))
    assert isa.can_run("A.b/avx2") and not isa.can_run("A.b/avx512") and isa.can_run("A.b")
    (case,) = isa.CASES
    assert not isa.can_run(case)
    monkeypatch.setattr(isa, "cpu_flags", lambda: frozenset({"ospke"}))
    assert isa.can_run(case)


def test_output_of_a_crash_is_the_running_case():
    output = textwrap.dedent("""\
        [ RUN      ] A.one
        [       OK ] A.one (3 ms)
        [ RUN      ] A.two
        a.cc:4: Failure
        [  FAILED  ] A.two, where GetParam() = 7 (1 ms)
        [ RUN      ] A.three
        boo
        """)
    results = gtest.parse_output(output, -6)
    assert {name: r.outcome for name, r in results.items()} == {
        "A.one": "passed",
        "A.two": "failed",
        "A.three": "crashed",
    }
    assert "a.cc:4" in results["A.two"].output
    assert "boo" in results["A.three"].output and "-6" in results["A.three"].output


def test_cases_after_a_crash_run_in_a_new_process(tmp_path):
    """A stand-in executable that dies in its second case whenever that is among those selected."""
    program = tmp_path / "ft_test_fake"
    program.write_text(
        textwrap.dedent("""\
        #!/bin/sh
        cases=$(sed -n 's/--gtest_filter=//p' "${1#--gtest_flagfile=}" | tr ':' ' ')
        for case in $cases; do
          echo "[ RUN      ] $case"
          [ "$case" != A.two ] || kill -9 $$
          echo "[       OK ] $case (0 ms)"
        done
        """)
    )
    program.chmod(0o755)
    results = gtest.run_cases(program, ["A.one", "A.two", "A.three"])
    assert {n: r.outcome for n, r in results.items()} == {"A.one": "passed", "A.two": "crashed", "A.three": "passed"}


def test_a_case_that_never_ran_is_not_passed(tmp_path):
    program = tmp_path / "ft_test_fake"
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o755)
    assert gtest.run_cases(program, ["A.one"])["A.one"].outcome == "missing"


def test_margin_rule():
    assert comparable([0.5, 0.3, 0.1, 0.9], error=0.1) == 2
    rule = MarginRule()
    assert rule.check([1, 2, 9], [1, 2, 3], [0.5, 0.5, 0.01], 0.1, "near tie") == 2
    rule.require_share()
    with pytest.raises(AssertionError, match="differ"):
        rule.check([1, 9, 3], [1, 2, 3], [0.5, 0.5, 0.5], 0.1, "wrong token")
    rule = MarginRule()
    rule.check([9, 9, 9, 9], [1, 2, 3, 4], [0.5, 0.01, 0.5, 0.5], 0.3, "hopeless")
    with pytest.raises(AssertionError, match="0 of 4"):
        rule.require_share()


@pytest.mark.parametrize("levels, code", [("fast", 1), ("", 0)])
def test_missing_tests_fail_the_run(levels, code, tmp_path):
    """One passing test of a suite that expects many."""
    (tmp_path / "test_one.py").write_text("def test_one(): pass\n")
    root = gtest.ROOT
    for name in ("conftest.py", "expected.toml"):
        (tmp_path / name).write_text((root / "tests" / name).read_text())
    expected = (tmp_path / "expected.toml").read_text()
    assert "fast = " in expected
    env = os.environ | {"PYTHONPATH": str(root / "tests")}
    options = ["--rootdir", str(tmp_path), "-c", os.devnull, "-p", "no:cacheprovider", f"--expect-levels={levels}"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(tmp_path)],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert "1 passed" in done.stdout
    assert ("fewer tests ran" in done.stdout) == bool(code)
