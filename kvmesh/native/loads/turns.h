/* Whose turn it is among workers: tests/reference/workers/turns.py. */
#pragma once

#include "base/base.h"

/* `turns` is a dict: worker -> turns that it had, those of peers included. With one replica that is strict
 * rotation. Several that hear of each other's turns share one rotation; no worker is ahead of another by
 * more than the turns not heard of yet, and one. A worker that was away has at most 4 turns at once.
 */

/* Count a turn of a worker, a str itself; -1 with MemoryError set. */
int turns_take(PyObject *turns, PyObject *worker);

/* Return which of `count` workers' turn it is, at least one, strs themselves; -1 with an error set. Equal
 * ones come in an order of the replica's own, so that two which choose at the same time choose two; without
 * a name in that of `names`.
 */
Py_ssize_t turns_next(PyObject *turns, PyObject *const *names, Py_ssize_t count, PyObject *replica);
