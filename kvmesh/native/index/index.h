/* The index: events folded into block tables, and prompts searched in them.
 *
 * fold.c applies a journal message, upkeep.c moves and cleans blocks. search.c finds where along a prompt
 * workers drop out, asking prompt.c for hashes; cut.c cuts hits to where they may end. view.c is what a
 * search needs, table_type.c what Python sees of a table.
 */
#pragma once

#include "table/table.h"

extern PyTypeObject table_type;

/* Clear bits in a slice of a shard, from `*hash` on, at first 0: then it is where the next one begins, 0
 * behind the last. Return about how many blocks it had, -1 with an error set. */
int64_t table_clear_some(Table *self, uint32_t number, PyObject *bits, uint64_t *hash);

/* Methods of Table: of fold.c, upkeep.c and view.c. */
PyObject *table_fold(Table *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *table_fold_ends(Table *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *table_move(Table *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *table_clear_bits(Table *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *table_pieces(Table *self, PyObject *nothing);
PyObject *table_view(Table *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *table_find_drops(Table *self, PyObject *const *args, Py_ssize_t nargs);
