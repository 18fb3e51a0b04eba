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
#define NATIVE_VERSION 28

/* Set an error, as PyErr_Format; -1. */
#define set_error(...) (PyErr_Format(__VA_ARGS__), -1)

/* Set MemoryError; return -1. */
static inline int no_memory(void) {
    PyErr_NoMemory();
    return -1;
}

/* Return from a function that returns -1 where it fails, or NULL: if a call failed in the same way, if
 * nothing was made, if there is no memory, or, with an error of one's own, if something is wrong. Only
 * where nothing is to be let go of.
 */
#define RETURN_IF(failed, value) \
    do { \
        if (failed) return value; \
    } while (0)
#define TRY(call) RETURN_IF((call) < 0, -1)
#define TRY_IF(needed, call) RETURN_IF((needed) && (call) < 0, -1)
#define TRY_OR_NULL(call) RETURN_IF((call) < 0, NULL)
#define NEED(made) RETURN_IF((made) == NULL, -1)
#define NEED_OR_NULL(made) RETURN_IF((made) == NULL, NULL)
#define NEED_MEMORY(memory) RETURN_IF((memory) == NULL, no_memory())
#define NEED_MEMORY_OR_NULL(memory) RETURN_IF((memory) == NULL, (PyErr_NoMemory(), NULL))
#define REFUSE(wrong, ...) RETURN_IF(wrong, set_error(__VA_ARGS__))
#define REFUSE_OR_NULL(wrong, ...) RETURN_IF(wrong, (PyErr_Format(__VA_ARGS__), NULL))

/* Return that something is not as it has to be read, or why not: 0. */
#define EXPECT(read) RETURN_IF(!(read), 0)

/* Return -1 if an error is set. */
static inline int no_error(void) { return PyErr_Occurred() ? -1 : 0; }

/* Return None, or NULL if a call failed; what was made, or NULL, and it is let go of, if an error is set. */
static inline PyObject *none_or_null(int failed) { return failed < 0 ? NULL : Py_NewRef(Py_None); }

static inline PyObject *made_or_null(void *made) {
    if (PyErr_Occurred()) {
        Py_CLEAR(made);
    }
    return made;
}

/* Do the same, which is told `with`, for each of up to 12. */
#define EACH_1(do_, with, one, ...) do_(with, one)
#define EACH_2(do_, with, one, ...) do_(with, one) EACH_1(do_, with, __VA_ARGS__)
#define EACH_3(do_, with, one, ...) do_(with, one) EACH_2(do_, with, __VA_ARGS__)
#define EACH_4(do_, with, one, ...) do_(with, one) EACH_3(do_, with, __VA_ARGS__)
#define EACH_5(do_, with, one, ...) do_(with, one) EACH_4(do_, with, __VA_ARGS__)
#define EACH_6(do_, with, one, ...) do_(with, one) EACH_5(do_, with, __VA_ARGS__)
#define EACH_7(do_, with, one, ...) do_(with, one) EACH_6(do_, with, __VA_ARGS__)
#define EACH_8(do_, with, one, ...) do_(with, one) EACH_7(do_, with, __VA_ARGS__)
#define EACH_9(do_, with, one, ...) do_(with, one) EACH_8(do_, with, __VA_ARGS__)
#define EACH_10(do_, with, one, ...) do_(with, one) EACH_9(do_, with, __VA_ARGS__)
#define EACH_11(do_, with, one, ...) do_(with, one) EACH_10(do_, with, __VA_ARGS__)
#define EACH_12(do_, with, one, ...) do_(with, one) EACH_11(do_, with, __VA_ARGS__)
#define EACH_OF(_1, _2, _3, _4, _5, _6, _7, _8, _9, _10, _11, _12, each, ...) each
#define EACH(do_, with, ...) \
    EACH_OF(__VA_ARGS__, EACH_12, EACH_11, EACH_10, EACH_9, EACH_8, EACH_7, EACH_6, EACH_5, EACH_4, \
            EACH_3, EACH_2, EACH_1, 0)(do_, with, __VA_ARGS__, 0)
#define ONE_CALL(function, one) function(one);
#define CALL_EACH(function, ...) \
    do { \
        EACH(ONE_CALL, function, __VA_ARGS__) \
    } while (0)
#define XDECREF_ALL(...) CALL_EACH(Py_XDECREF, __VA_ARGS__)
#define CLEAR_ALL(...) CALL_EACH(Py_CLEAR, __VA_ARGS__)
#define VISIT_ALL(...) CALL_EACH(Py_VISIT, __VA_ARGS__)
#define FREE_ALL(...) CALL_EACH(PyMem_Free, __VA_ARGS__)
#define RAW_FREE_ALL(...) CALL_EACH(PyMem_RawFree, __VA_ARGS__)

/* Append to a list what was made, or put it in a dict, whose references are taken; -1 with an error set,
 * which may be why it was not made.
 */
static inline int list_add(PyObject *list, PyObject *made) {
    int failed = made == NULL ? -1 : PyList_Append(list, made);
    Py_XDECREF(made);
    return failed;
}

static inline int dict_add(PyObject *dict, PyObject *key, PyObject *made) {
    int failed = key == NULL || made == NULL ? -1 : PyDict_SetItem(dict, key, made);
    XDECREF_ALL(key, made);
    return failed;
}

/* Append what was made to a list that is being made, or put it in its place in a new list or tuple;
 * NULL, with an error set: the list is dropped. Takes the reference.
 */
static inline void append_made(PyObject **list, PyObject *made) {
    if (list_add(*list, made) < 0) {
        Py_CLEAR(*list);
    }
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
