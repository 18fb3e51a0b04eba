"""`python -m tests.fuzz TARGET SECONDS`: fuzz one target, from the seeds and what was found before.

What it finds interesting stays in .fuzz/TARGET; it ends with the name of an input that breaks it.
"""

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["kvmesh.core", "kvmesh.actors", "kvmesh.transport.http"]):
    from tests.fuzz.targets import TARGETS, seeds


def main(target: str, seconds: int) -> None:
    corpus = Path(".fuzz") / target
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds(target)):
        (corpus / f"seed-{number}").write_bytes(seed)
    limits = (f"-max_total_time={seconds}", "-timeout=20", "-rss_limit_mb=2048", "-max_len=4096")
    place = f"-artifact_prefix=.fuzz/{target}-"
    atheris.Setup(
        [sys.argv[0], *limits, place, "-print_final_stats=1", str(corpus)], TARGETS[target]
    )
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
