/* Whose turn it is among workers: tests/reference/workers/turns.py. */
#ifndef KVMESH_TURNS_H
#define KVMESH_TURNS_H

#include "base/base.h"

typedef struct {
    PyObject_HEAD
    PyObject *taken; /* dict: worker -> turns that it had */
} Turns;

extern PyTypeObject turns_type;

/* Count a turn of a worker, a str itself; -1 with MemoryError set. */
int turns_take(Turns *self, PyObject *worker);

/* Return which of `count` workers' turn it is, at least one, strs themselves; -1 with an error set. */
Py_ssize_t turns_next(Turns *self, PyObject *const *names, Py_ssize_t count, PyObject *replica);

#endif
