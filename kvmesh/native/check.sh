#!/bin/sh
# Build the compiled core with the address and undefined-behaviour sanitizers of gcc, then of clang,
# each where it is installed (COMPILERS=gcc: of one), every warning an error, in a copy of the
# package, and run its tests there: `make native-check`.
set -eu
cd "$(dirname "$0")/../.."
PYTHON="${PYTHON:-.venv/bin/python}"
COMPILERS="${COMPILERS:-gcc clang}"
has() { case " $COMPILERS " in *" $1 "*) command -v "$1" >/dev/null ;; *) false ;; esac; }
copy=build/sanitized
rm -rf "$copy"
mkdir -p "$copy"
cp -r kvmesh "$copy/"
include="$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("include"))')"
suffix="$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')"
rm -f "$copy"/kvmesh/_native*
# $1 $2: the compiler, and the libraries of its sanitizers that Python is started with. clang reports
# what gcc does not, as an offset added to a null pointer.
check() {
    compiler="$1" preload="$2"
    shift 2
    echo "native-check: $compiler"
    "$compiler" -shared -fPIC -O1 -g -std=c11 -Wall -Wextra -Werror -Wno-missing-field-initializers \
        -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined \
        $shared -I"$include" -Ikvmesh/native kvmesh/native/*.c kvmesh/native/*/*.c \
        -o "$copy/kvmesh/_native$suffix"
    # Python's own allocator would hide errors; what it keeps until it exits is no leak. What work
    # costs is another run's: the sanitizer's memmem reads all of its haystack at each call. What
    # decides over a rollout is Python alone.
    # Few examples each: what hostile bytes and misuse break shows in the first. Walks of right calls
    # that are held against a model run in `make test` alone.
    LD_PRELOAD="$preload" ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc PYTHONPATH="$copy" \
        HYPOTHESIS_PROFILE=mutants \
        "$PYTHON" -m pytest -q -p no:cacheprovider -p no:xdist -o "pythonpath=$copy ." \
            -k "not leaks and not costs and not rollout and not decided_over_alike and not for_long" tests/property/native tests/property/insight \
            tests/property/index/test_ends_properties.py \
            tests/property/index/test_index_properties.py tests/property/index/test_approx_order.py tests/property/index/test_native_growth.py \
            tests/property/index/test_native_fold.py tests/property/index/test_heard_properties.py \
            tests/property/routing/test_native_peers.py tests/property/members/test_booking_outbox.py \
            tests/property/engines/test_group_captures.py \
            tests/property/engines/test_native_engine_cache.py \
            tests/property/engines/test_native_engine_cache_misuse.py tests/property/dispatch \
            tests/property/transport/test_extproc_reading.py tests/property/bounds/test_answers.py \
            tests/unit/core/index/test_approx.py tests/unit/core/index/test_thinned.py \
            tests/unit/core/routing tests/unit/core/dispatch/test_learned.py \
            tests/unit/core/blocks/test_hashing.py tests/unit/core/cost/test_program.py \
            tests/unit/core/index tests/unit/core/insight tests/unit/core/members \
            tests/unit/core/prompts/test_text_packer.py tests/unit/core/engines/test_event_stream.py \
            tests/unit/core/engines/kv_events tests/unit/transport/grpc \
            tests/unit/transport/http/upstream/test_response_head.py \
            tests/unit/transport/http/wire/test_headers.py tests/fuzz/test_targets.py "$@"
}

if has gcc; then
    shared=
    check gcc "$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libubsan.so)" "$@"
fi
if has clang; then
    shared=-shared-libasan
    check clang "$(clang -print-file-name=libclang_rt.asan-$(uname -m).so)" "$@"
fi
