/* WorkerTurns: counts turns by worker. */
#include "loads/turns.h"

#include "base/shell.h"
#include "base/xxh3.h"

#define MOST_BEHIND 4 /* turns that one who joins or was away is given at most */
#define STACK_NAMES 256

/* Return 1 and what a worker had, 0 when it is not known, -1 with an error set. */
static int look_up(const Turns *self, PyObject *worker, long long *taken) {
    PyObject *known = PyDict_GetItemWithError(self->taken, worker);
    if (known == NULL) {
        return PyErr_Occurred() ? -1 : 0;
    }
    *taken = PyLong_AsLongLong(known);
    return 1;
}

static int note(Turns *self, PyObject *worker, long long taken) {
    PyObject *value = PyLong_FromLongLong(taken);
    int failed = value == NULL ? -1 : PyDict_SetItem(self->taken, worker, value);
    Py_XDECREF(value);
    return failed;
}

int turns_take(Turns *self, PyObject *worker) {
    long long taken = 0;
    return look_up(self, worker, &taken) < 0 ? -1 : note(self, worker, taken + 1);
}

/* Write what each of the workers counts as having had: one that joins or was away is at most so far
 * behind. -1 with an error set.
 */
static int count_all(Turns *self, PyObject *const *names, Py_ssize_t count, long long *taken,
                     char *known) {
    long long most = 0, least = 1;
    int any = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        int found = look_up(self, names[i], taken + i);
        if (found < 0) {
            return -1;
        }
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
        if ((!known[i] || counts != taken[i]) && note(self, names[i], counts) < 0) {
            return -1;
        }
        taken[i] = counts;
    }
    return 0;
}

static int hash_text(PyObject *text, uint64_t seed, uint64_t *hash) {
    Py_ssize_t size;
    const char *bytes = PyUnicode_AsUTF8AndSize(text, &size);
    if (bytes == NULL) {
        return -1;
    }
    *hash = xxh3_64(bytes, (size_t)size, seed);
    return 0;
}

/* Return the first in the order of a replica's own of those that had `least`. */
static Py_ssize_t settle(PyObject *const *names, Py_ssize_t count, const long long *taken,
                         long long least, PyObject *replica) {
    Py_ssize_t best = -1;
    uint64_t seed, hash, best_hash = 0;
    if (hash_text(replica, 0, &seed) < 0) {
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        if (taken[i] != least) {
            continue;
        }
        if (hash_text(names[i], seed, &hash) < 0) {
            return -1;
        }
        if (best < 0 || hash > best_hash ||
            (hash == best_hash && PyUnicode_Compare(names[i], names[best]) > 0)) {
            best = i;
            best_hash = hash;
        }
    }
    return best;
}

static Py_ssize_t find_next(Turns *self, PyObject *const *names, Py_ssize_t count,
                            PyObject *replica, long long *taken, char *known) {
    if (count_all(self, names, count, taken, known) < 0) {
        return -1;
    }
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

Py_ssize_t turns_next(Turns *self, PyObject *const *names, Py_ssize_t count, PyObject *replica) {
    long long on_stack[STACK_NAMES], *taken = on_stack;
    char known_on_stack[STACK_NAMES], *known = known_on_stack;
    if (count < 1) {
        return set_error(PyExc_ValueError, "it is nobody's turn among no workers");
    }
    if (count > STACK_NAMES) {
        taken = PyMem_Malloc((size_t)count * (sizeof *taken + sizeof *known));
        if (taken == NULL) {
            return no_memory();
        }
        known = (char *)(taken + count);
    }
    Py_ssize_t next = find_next(self, names, count, replica, taken, known);
    if (taken != on_stack) {
        PyMem_Free(taken);
    }
    return next;
}

static PyObject *call_take(Turns *self, PyObject *worker) {
    PyObject *name = read_text("a worker", worker);
    int failed = name == NULL ? -1 : turns_take(self, name);
    Py_XDECREF(name);
    return failed ? NULL : Py_NewRef(Py_None);
}

static PyObject *call_next(Turns *self, PyObject *const *args, Py_ssize_t nargs,
                           PyObject *keywords) {
    PyObject *listed, *given;
    if (READ("next", "OO", "names replica", &listed, &given) < 0) {
        return NULL;
    }
    PyObject *replica = read_text("a replica", given);
    PyObject *all = replica == NULL ? NULL : PySequence_Tuple(listed);
    PyObject *names = all == NULL ? NULL : PyTuple_New(PyTuple_GET_SIZE(all));
    for (Py_ssize_t i = 0; names != NULL && i < PyTuple_GET_SIZE(all); i++) {
        PyObject *name = read_text("a worker", PyTuple_GET_ITEM(all, i));
        set_made(&names, i, name);
    }
    PyObject *next = NULL;
    if (names != NULL) {
        Py_ssize_t at = turns_next(self, ((PyTupleObject *)names)->ob_item,
                                   PyTuple_GET_SIZE(names), replica);
        next = at < 0 ? NULL : Py_NewRef(PyTuple_GET_ITEM(all, at));
    }
    XDECREF_ALL(replica, all, names);
    return next;
}

static PyObject *call_remove(Turns *self, PyObject *worker) {
    PyObject *name = read_text("a worker", worker);
    if (name == NULL) {
        return NULL;
    }
    if (PyDict_DelItem(self->taken, name) < 0) {
        PyErr_Clear(); /* it had no turn */
    }
    Py_DECREF(name);
    Py_RETURN_NONE;
}

static PyObject *turns_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    if (READ_NEW("WorkerTurns", "", "", NULL) < 0) {
        return NULL;
    }
    Turns *self = (Turns *)type->tp_alloc(type, 0);
    if (self != NULL && (self->taken = PyDict_New()) == NULL) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static void turns_dealloc(Turns *self) {
    Py_XDECREF(self->taken);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef methods[] = {
    METHOD_O("take", call_take),
    METHOD_KEYWORDS("next", call_next),
    METHOD_O("remove", call_remove),
    {NULL, NULL, 0, NULL},
};

PyTypeObject turns_type = {
    TYPE("WorkerTurns", Turns, turns),
    .tp_methods = methods,
};
