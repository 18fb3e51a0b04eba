/* Turns by worker, counted in a dict. */
#include "loads/turns.h"

#include "base/xxh3.h"

#define MOST_BEHIND 4 /* turns that one who joins or was away is given at most */
#define STACK_NAMES 256

/* Return 1 and what a worker had, 0 when it is not known, -1 with an error set. */
static int look_up(PyObject *turns, PyObject *worker, long long *taken) {
    PyObject *known = PyDict_GetItemWithError(turns, worker);
    if (known == NULL) {
        return PyErr_Occurred() ? -1 : 0;
    }
    *taken = PyLong_AsLongLong(known);
    return 1;
}

static int note(PyObject *turns, PyObject *worker, long long taken) {
    PyObject *value = PyLong_FromLongLong(taken);
    int failed = value == NULL ? -1 : PyDict_SetItem(turns, worker, value);
    Py_XDECREF(value);
    return failed;
}

int turns_take(PyObject *turns, PyObject *worker) {
    long long taken = 0;
    return look_up(turns, worker, &taken) < 0 ? -1 : note(turns, worker, taken + 1);
}

/* Write what each of the workers counts as having had: one that joins or was away is at most so far
 * behind. -1 with an error set.
 */
static int count_all(PyObject *turns, PyObject *const *names, Py_ssize_t count, long long *taken,
                     char *known) {
    long long most = 0, least = 1;
    int any = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        int found = look_up(turns, names[i], taken + i);
        TRY(found);
        known[i] = (char)found;
        if (found) {
            most = !any || taken[i] > most ? taken[i] : most;
            least = !any || taken[i] < least ? taken[i] : least;
            any = 1;
        }
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        long long counts = known[i] ? taken[i] : least - 1;
        counts = counts < most - MOST_BEHIND ? most - MOST_BEHIND : counts;
        TRY_IF((!known[i] || counts != taken[i]), note(turns, names[i], counts));
        taken[i] = counts;
    }
    return 0;
}

static int hash_text(PyObject *text, uint64_t seed, uint64_t *hash) {
    Py_ssize_t size;
    const char *bytes = PyUnicode_AsUTF8AndSize(text, &size);
    NEED(bytes);
    *hash = xxh3_64(bytes, (size_t)size, seed);
    return 0;
}

/* Return the first in the order of a replica's own of those that had `least`. */
static Py_ssize_t settle(PyObject *const *names, Py_ssize_t count, const long long *taken,
                         long long least, PyObject *replica) {
    Py_ssize_t best = -1;
    uint64_t seed, hash, best_hash = 0;
    TRY(hash_text(replica, 0, &seed));
    for (Py_ssize_t i = 0; i < count; i++) {
        if (taken[i] != least) {
            continue;
        }
        TRY(hash_text(names[i], seed, &hash));
        if (best < 0 || hash > best_hash ||
            (hash == best_hash && PyUnicode_Compare(names[i], names[best]) > 0)) {
            best = i;
            best_hash = hash;
        }
    }
    return best;
}

static Py_ssize_t find_next(PyObject *turns, PyObject *const *names, Py_ssize_t count,
                            PyObject *replica, long long *taken, char *known) {
    TRY(count_all(turns, names, count, taken, known));
    Py_ssize_t first = 0, ties = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        ties = ties && taken[i] == taken[first] ? ties + 1 : ties;
        if (ties == 0 || taken[i] < taken[first]) {
            first = i;
            ties = 1;
        }
    }
    return ties == 1 || PyUnicode_GET_LENGTH(replica) == 0
               ? first
               : settle(names, count, taken, taken[first], replica);
}

Py_ssize_t turns_next(PyObject *turns, PyObject *const *names, Py_ssize_t count, PyObject *replica) {
    long long on_stack[STACK_NAMES], *taken = on_stack;
    char known_on_stack[STACK_NAMES], *known = known_on_stack;
    REFUSE(count < 1, PyExc_ValueError, "it is nobody's turn among no workers");
    if (count > STACK_NAMES) {
        taken = PyMem_Malloc((size_t)count * (sizeof *taken + sizeof *known));
        NEED_MEMORY(taken);
        known = (char *)(taken + count);
    }
    Py_ssize_t next = find_next(turns, names, count, replica, taken, known);
    if (taken != on_stack) {
        PyMem_Free(taken);
    }
    return next;
}
