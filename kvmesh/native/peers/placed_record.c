/* What replicas are told of a booking when it is placed. */
#include "base/arguments.h"
#include "base/names.h"
#include "peers/outbox.h"
#include "prompts/graded.h"
#include "prompts/hashed.h"

#include <string.h>

/* Of sharing keys, with 0 for the hashes between. */
static void put_keys(Graded *out, const Booking *booking, long long size) {
    long long keys = Py_SIZE(booking), deepest = key_depth(keys);
    long long blocks = booking->prompt_tokens / size + (booking->prompt_tokens % size > 0);
    blocks = blocks > deepest ? blocks : deepest;
    out->blocks = blocks < graded_depth(MOST_GRADED) ? blocks : graded_depth(MOST_GRADED);
    keys = keys < key_count(out->blocks) ? keys : key_count(out->blocks);
    out->count = (Py_ssize_t)graded_count(key_depth(keys));
    memset(out->at, 0, (size_t)out->count * sizeof *out->at);
    for (long long number = 1; number <= keys; number++) {
        out->at[key_place(number)] = booking->keys[number - 1];
    }
}

/* Of what computes its hashes when asked, in Python; -1 with an error set. May run anything. */
static int ask_graded(Graded *out, PyObject *hashes) {
    long long blocks;
    TRY(read_attribute(hashes, interned.blocks, 'L', &blocks));
    out->blocks = within(0, blocks, graded_depth(MOST_GRADED));
    PyObject *given = PyLong_FromLongLong(out->blocks);
    PyObject *found =
        given == NULL ? NULL : PyObject_CallMethodOneArg(hashes, interned.upto, given);
    Py_XDECREF(given);
    Py_buffer view;
    if (found == NULL || PyObject_GetBuffer(found, &view, PyBUF_SIMPLE) < 0) {
        Py_XDECREF(found);
        return -1;
    }
    long long known = view.len / (Py_ssize_t)sizeof *out->at;
    out->count = (Py_ssize_t)grade(view.buf, known, out->blocks, out->at);
    PyBuffer_Release(&view);
    Py_DECREF(found);
    return 0;
}

int graded_read(const Booking *booking, long long size, Graded *out) {
    PyObject *hashes = booking->hashes;
    if (!is_believed(booking)) {
        put_keys(out, booking, size);
        return 0;
    }
    if (Py_IS_TYPE(hashes, &hashed_type)) {
        long long known = Py_SIZE(hashes);
        out->blocks = known < graded_depth(MOST_GRADED) ? known : graded_depth(MOST_GRADED);
        out->count = (Py_ssize_t)grade(((Hashed *)hashes)->at, known, out->blocks, out->at);
        return 0;
    }
    Py_INCREF(hashes);
    int failed = ask_graded(out, hashes);
    Py_DECREF(hashes);
    return failed;
}

long long booking_expected_blocks(const Booking *booking, long long size) {
    long long end = booking->prompt_tokens + booking->output_tokens;
    long long grown = (end + size - 1) / size - (booking->prompt_tokens + size - 1) / size;
    return booking->expected_blocks + grown + booking->foreseen_blocks;
}
