"""What this CPU has: kernel ISA levels, and which a test case names; what single cases need."""

from __future__ import annotations

import functools
import re
from pathlib import Path

_AVX512 = {"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl"}
# Level -> the flags of /proc/cpuinfo it needs, in the order of the dispatch table.
LEVELS: dict[str, set[str]] = {
    "scalar": set(),
    "avx2": {"avx2", "fma", "f16c"},
    "avx2vnni": {"avx2", "fma", "f16c", "avx_vnni"},
    "avx512": _AVX512,
    "avx512vnni": _AVX512 | {"avx512_vnni"},
    "avx512bf16": _AVX512 | {"avx512_vnni", "avx512vbmi", "avx512_bf16"},
}
# Cases that need a flag of their own: ospke is memory protection keys, in use by the kernel.
CASES: dict[str, str] = {"SeededBugs.HostReadsDeviceMemory": "ospke"}
_TAG = re.compile(r"(?:^|[/_.])(" + "|".join(LEVELS) + r")(?=$|[/_.])")


@functools.cache
def cpu_flags() -> frozenset[str]:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            return frozenset(line.split(":", 1)[1].split())
    return frozenset()


def missing_levels() -> list[str]:
    """The levels this CPU cannot run, in table order."""
    return [level for level, needs in LEVELS.items() if not needs <= cpu_flags()]


def level_of(case: str) -> str | None:
    """The level a case's name is tagged with (a part between / _ or .), or None."""
    found = _TAG.search(case)
    return found.group(1) if found else None


def can_run(case: str) -> bool:
    """Whether this CPU has what the case needs."""
    return level_of(case) not in missing_levels() and (case not in CASES or CASES[case] in cpu_flags())
