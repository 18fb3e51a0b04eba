"""`python -m tests.fuzz.sanitized [DECODER…] [--seconds 600]`: the compiled decoders under clang.

Each C file of the core is built with libFuzzer's coverage, the address and undefined-behaviour
sanitizers and source coverage into one program (harness.c), so that the fuzzer sees which lines of
C an input reaches; `python -m tests.fuzz` sees Python alone. Seeds: those of the targets, the kept
corpora, and foreign ones (tests/fuzz/foreign). An input that breaks a target is left in
.fuzz/sanitized/ and is a failure, and so is a decoder of which less than 95 % of the lines of C are
reached. `--seconds 0` runs what is there: the seeds, and what earlier runs found.
"""

import argparse
import os
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from shutil import which
from typing import Final

import msgspec

from tests.fuzz.corpus import kept
from tests.fuzz.foreign import foreign
from tests.fuzz.targets import seeds

ROOT: Final = Path(__file__).parents[2]
NATIVE: Final = ROOT / "kvmesh" / "native"
OUT: Final = ROOT / ".fuzz" / "sanitized"
PROGRAM: Final = OUT / "decoders"
AIM_PERCENT: Final = 95.0
COMPILE: Final = (
    *("-O1", "-g", "-std=c11", "-fPIC", "-fno-omit-frame-pointer"),
    *("-fsanitize=fuzzer-no-link,address,undefined", "-fno-sanitize-recover=undefined"),
    *("-fprofile-instr-generate", "-fcoverage-mapping"),
)
LINK: Final = ("-fsanitize=fuzzer,address,undefined", "-fprofile-instr-generate")
LIMITS: Final = ("-timeout=20", "-rss_limit_mb=3000", "-max_len=8192")
AT_ONCE: Final = 2


class Decoder(msgspec.Struct, frozen=True):
    """C files of a room that read others' bytes, and the fuzz targets that reach them."""

    room: str
    files: tuple[str, ...]
    own: tuple[str, ...]

    @property
    def targets(self) -> tuple[str, ...]:
        """Return its own targets, and those that reach all of them without memory or misused."""
        return (*self.own, "starving", "misused")


DECODERS: Final = {
    "json": Decoder(
        "bodies",
        (
            *("scan.c", "scan_tokens.c", "scan_python.c", "scanned.c", "json_text.c"),
            *("json_copy.c", "usage_wish.c"),
        ),
        ("scan",),
    ),
    "json_size": Decoder("bodies", ("json_size.c",), ("json_size",)),
    "engine_events": Decoder("engines", ("engine_batch.c", "engine_events.c"), ("engine_cache",)),
    "event_streams": Decoder(
        "wire",
        ("sse.c", "sse_twin.c", "events.c", "keep.c", "keep_scan.c", "unasked.c"),
        ("sse", "kept"),
    ),
    "http2": Decoder(
        "http2",
        ("h2_frames.c", "h2_receive.c", "h2_streams.c", "hpack.c", "hpack_huffman.c"),
        ("grpc", "grpc_answers", "grpc_calls"),
    ),
    "ext_proc": Decoder("wire", ("extproc_read.c",), ("extproc",)),
    "journal": Decoder("index", ("fold.c",), ("journal",)),
    "bookings": Decoder("peers", ("message_fold.c",), ("records",)),
}


def _run(*command: str | Path, **more: str) -> None:
    subprocess.run(command, check=True, env=os.environ | more)


def _of_clang(wish: str) -> str:
    said = subprocess.run(["clang", wish], capture_output=True, text=True, check=True)
    return said.stdout.strip()


def _tool(name: str) -> str:
    """Return a tool of LLVM, by its plain name or with clang's version."""
    version = _of_clang("-dumpversion")
    found = which(name) or which(f"{name}-{version.partition('.')[0]}")
    if found is None:
        raise SystemExit(f"{name} is not installed: apt-get install llvm")
    return found


def build() -> None:
    """Build the program, anew where a source is newer."""
    objects = OUT / "objects"
    objects.mkdir(parents=True, exist_ok=True)
    include = f"-I{sysconfig.get_path('include')}"
    newest_header = max(path.stat().st_mtime for path in NATIVE.rglob("*.h"))

    def compiled(source: Path) -> Path:
        made = objects / f"{source.stem}.o"
        if not made.exists() or made.stat().st_mtime < max(newest_header, source.stat().st_mtime):
            _run("clang", "-c", *COMPILE, include, f"-I{NATIVE}", source, "-o", made)
        return made

    with ThreadPoolExecutor(AT_ONCE) as pool:
        made = list(pool.map(compiled, sorted(NATIVE.rglob("*.c"))))
    place = sysconfig.get_config_var("LIBDIR")
    library = f"-lpython{sysconfig.get_config_var('LDVERSION')}"
    harness = Path(__file__).with_name("harness.c")
    runtime = _of_clang("-print-runtime-dir")
    if not any(Path(runtime).glob("libclang_rt.fuzzer*")):
        raise SystemExit(f"no libFuzzer in {runtime}: apt-get install libclang-rt-14-dev")
    _run(
        *("clang", "-O1", "-g", *LINK, include, str(harness), *map(str, made)),
        *(f"-L{place}", library),
        *(f"-Wl,-rpath,{place}", "-lm", "-o", str(PROGRAM)),
    )


def _environment(target: str, profile: Path) -> dict[str, str]:
    path = [str(ROOT), *(one for one in sys.path if one.endswith("-packages"))]
    return {
        "FUZZ_PATH": os.pathsep.join(path),
        "FUZZ_TARGET": target,
        "LLVM_PROFILE_FILE": str(profile),
        "PYTHONMALLOC": "malloc",
        "PYTHONDONTWRITEBYTECODE": "1",
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }


def fuzz(target: str, seconds: int) -> tuple[Path, bool]:
    """Fuzz one target; return the profile of what all its inputs reach, and whether none broke."""
    corpus, log = OUT / target, OUT / f"{target}.log"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, one in enumerate([*seeds(target), *kept(target), *foreign(target)]):
        (corpus / f"seed-{number}").write_bytes(one)
    profile = OUT / f"{target}.profraw"
    flags = (*LIMITS, f"-artifact_prefix={OUT / target}-", "-print_final_stats=1")
    whole = True
    with log.open("wb") as output:
        for more in (*((f"-max_total_time={seconds}",) if seconds else ()), "-runs=0"):
            ended = subprocess.run(
                [PROGRAM, corpus, *flags, more],
                env=os.environ | _environment(target, profile),
                stdout=output,
                stderr=output,
                check=False,
            )
            whole = whole and ended.returncode == 0
    sys.stdout.write(f"{target}: {'ok' if whole else f'broken, see {log}'}\n")
    sys.stdout.flush()
    return profile, whole


def report(name: str, profiles: Sequence[Path]) -> bool:
    """Print the lines of a decoder's files that are reached; return whether these are enough."""
    merged = OUT / f"{name}.profdata"
    _run(_tool("llvm-profdata"), "merge", "-sparse", *profiles, "-o", merged)
    decoder = DECODERS[name]
    files = [str(NATIVE / decoder.room / one) for one in decoder.files]
    printed = subprocess.run(
        [_tool("llvm-cov"), "export", "-summary-only", PROGRAM, f"-instr-profile={merged}", *files],
        capture_output=True,
        check=True,
    ).stdout
    data = msgspec.json.decode(printed)["data"][0]
    for one in data["files"]:
        lines = one["summary"]["lines"]
        sys.stdout.write(
            f"  {Path(one['filename']).name:20} {lines['covered']:5} of {lines['count']:5} lines"
            f" {lines['percent']:6.1f} %\n"
        )
    percent: float = data["totals"]["lines"]["percent"]
    enough = percent >= AIM_PERCENT
    short = "" if enough else f", below {AIM_PERCENT:.0f} %"
    sys.stdout.write(f"{name}: {percent:.1f} % of its lines{short}\n")
    return enough


def main() -> int:
    """Return 1 when an input broke a target, or too little of a decoder was reached."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("decoder", nargs="*", choices=[*DECODERS, []])
    parser.add_argument("--seconds", type=int, default=600, help="of each target")
    chosen = parser.parse_args()
    names = chosen.decoder or list(DECODERS)
    build()
    targets = sorted({target for name in names for target in DECODERS[name].targets})
    with ThreadPoolExecutor(AT_ONCE) as pool:
        done = dict(
            zip(targets, pool.map(partial(fuzz, seconds=chosen.seconds), targets), strict=True)
        )
    enough = [
        report(name, [done[target][0] for target in DECODERS[name].targets]) for name in names
    ]
    return int(not all(enough) or not all(whole for _, whole in done.values()))


if __name__ == "__main__":
    sys.exit(main())
