/* What every room stands on: Python's headers, arguments, arrays, and the hash that tables place by.
 *
 * Everything runs under the interpreter's lock. shell.h makes types and methods, arguments.h reads their
 * arguments, names.h has names that C asks for, arrays.h numbers in a row, recent.h those used
 * least recently. mixing.h hashes numbers that others choose, xxh3.h contents.
 */
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

/* Number of this interface; `kvmesh.core` uses no other. */
#define NATIVE_VERSION 21

/* Set an error, as PyErr_Format; -1. */
#define set_error(...) (PyErr_Format(__VA_ARGS__), -1)

/* Set MemoryError; return -1. */
static inline int no_memory(void) {
    PyErr_NoMemory();
    return -1;
}

/* Return from a function that returns -1 where it fails: if a call fails in the same way, or if it
 * returns NULL. The same of a function that returns NULL where it fails. Nothing may have to be let go of.
 */
#define TRY(call) \
    do { \
        if ((call) < 0) return -1; \
    } while (0)
#define TRY_OR_NULL(call) \
    do { \
        if ((call) < 0) return NULL; \
    } while (0)
#define NEED(made) \
    do { \
        if ((made) == NULL) return -1; \
    } while (0)
#define NEED_OR_NULL(made) \
    do { \
        if ((made) == NULL) return NULL; \
    } while (0)

/* Return None, or NULL if a call failed. */
static inline PyObject *none_or_null(int failed) { return failed < 0 ? NULL : Py_NewRef(Py_None); }

/* Do the same with each of up to 12. */
#define EACH_1(do_, one, ...) do_(one);
#define EACH_2(do_, one, ...) do_(one); EACH_1(do_, __VA_ARGS__)
#define EACH_3(do_, one, ...) do_(one); EACH_2(do_, __VA_ARGS__)
#define EACH_4(do_, one, ...) do_(one); EACH_3(do_, __VA_ARGS__)
#define EACH_5(do_, one, ...) do_(one); EACH_4(do_, __VA_ARGS__)
#define EACH_6(do_, one, ...) do_(one); EACH_5(do_, __VA_ARGS__)
#define EACH_7(do_, one, ...) do_(one); EACH_6(do_, __VA_ARGS__)
#define EACH_8(do_, one, ...) do_(one); EACH_7(do_, __VA_ARGS__)
#define EACH_9(do_, one, ...) do_(one); EACH_8(do_, __VA_ARGS__)
#define EACH_10(do_, one, ...) do_(one); EACH_9(do_, __VA_ARGS__)
#define EACH_11(do_, one, ...) do_(one); EACH_10(do_, __VA_ARGS__)
#define EACH_12(do_, one, ...) do_(one); EACH_11(do_, __VA_ARGS__)
#define EACH_OF(_1, _2, _3, _4, _5, _6, _7, _8, _9, _10, _11, _12, each, ...) each
#define EACH(do_, ...) \
    do { \
        EACH_OF(__VA_ARGS__, EACH_12, EACH_11, EACH_10, EACH_9, EACH_8, EACH_7, EACH_6, EACH_5, \
                EACH_4, EACH_3, EACH_2, EACH_1, 0)(do_, __VA_ARGS__, 0) \
    } while (0)
#define XDECREF_ALL(...) EACH(Py_XDECREF, __VA_ARGS__)
#define CLEAR_ALL(...) EACH(Py_CLEAR, __VA_ARGS__)
#define VISIT_ALL(...) EACH(Py_VISIT, __VA_ARGS__)
#define FREE_ALL(...) EACH(PyMem_Free, __VA_ARGS__)
#define RAW_FREE_ALL(...) EACH(PyMem_RawFree, __VA_ARGS__)

/* Append what was made to a list that is being made, or put it in its place in a new list or tuple;
 * NULL, with an error set: the list is dropped. Takes the reference.
 */
static inline void append_made(PyObject **list, PyObject *made) {
    if (made == NULL || PyList_Append(*list, made) < 0) {
        Py_CLEAR(*list);
    }
    Py_XDECREF(made);
}

static inline void set_made(PyObject **row, Py_ssize_t place, PyObject *made) {
    if (made == NULL) {
        Py_CLEAR(*row);
    } else if (PyList_CheckExact(*row)) {
        PyList_SET_ITEM(*row, place, made);
    } else {
        PyTuple_SET_ITEM(*row, place, made);
    }
}
