/* HTTP heads that come again and again: what the pure functions of `kvmesh.transport.http` do that are
 * named in each docstring here.
 */
#include "core.h"
#include <string.h>

#define DATE_BYTES 29
#define MOST_DIGITS 12

static const char pattern[] = "aaa, 00 aaa 0000 00:00:00 gmt";

typedef struct {
    const char *at;
    Py_ssize_t size;
} Text;

static int texts(PyObject *const *args, Py_ssize_t count, Text *out) {
    for (Py_ssize_t i = 0; i < count; i++) {
        if (!PyBytes_Check(args[i])) {
            PyErr_Format(PyExc_TypeError, "bytes, not %.50s", Py_TYPE(args[i])->tp_name);
            return -1;
        }
        out[i].at = PyBytes_AS_STRING(args[i]);
        out[i].size = PyBytes_GET_SIZE(args[i]);
    }
    return 0;
}

static int has_at(Text data, Py_ssize_t at, Text what) {
    return data.size - at >= what.size && memcmp(data.at + at, what.at, (size_t)what.size) == 0;
}

PyDoc_STRVAR(match_head_doc,
"match_head(data, before, behind, most) -> bytes or None\n\nReturn "
"`transport.http.wire.headers.pure_match_head`.");

static PyObject *match_head(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    (void)module;
    if (nargs != 4) {
        return PyErr_Format(PyExc_TypeError, "match_head takes 4 arguments, not %zd", nargs);
    }
    Text text[3];
    int bare = args[2] == Py_None;
    Py_ssize_t most = PyLong_AsSsize_t(args[3]);
    if ((most == -1 && PyErr_Occurred()) || texts(args, bare ? 2 : 3, text) < 0) {
        return NULL;
    }
    Text data = text[0], before = text[1];
    if (!has_at(data, 0, before)) {
        Py_RETURN_NONE;
    }
    if (bare) {
        return data.size == before.size ? PyBytes_FromStringAndSize(NULL, 0) : Py_NewRef(Py_None);
    }
    Py_ssize_t at = before.size, length = 0;
    while (at < data.size && at - before.size < MOST_DIGITS && data.at[at] >= '0' && data.at[at] <= '9') {
        length = length * 10 + (data.at[at++] - '0');
    }
    Py_ssize_t start = at + text[2].size;
    if (at == before.size || !has_at(data, at, text[2]) || data.size - start != length || length > most) {
        Py_RETURN_NONE;
    }
    return PyBytes_FromStringAndSize(data.at + start, length);
}

static int is_date(const char *at) {
    for (int i = 0; i < DATE_BYTES; i++) {
        char letter = at[i], low = letter | 32;
        int alike = pattern[i] == 'a' ? low >= 'a' && low <= 'z'
                  : pattern[i] == '0' ? letter >= '0' && letter <= '9'
                  : pattern[i] >= 'a' ? low == pattern[i] : letter == pattern[i];
        if (!alike) {
            return 0;
        }
    }
    return 1;
}

PyDoc_STRVAR(match_dated_doc,
"match_dated(data, before, after) -> int\n\nReturn "
"`transport.http.upstream.response_head.pure_match_dated`.");

static PyObject *match_dated(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    (void)module;
    Text text[3];
    if (nargs != 3) {
        return PyErr_Format(PyExc_TypeError, "match_dated takes 3 arguments, not %zd", nargs);
    }
    if (texts(args, 3, text) < 0) {
        return NULL;
    }
    Py_ssize_t end = text[1].size;
    if (!has_at(text[0], 0, text[1])) {
        return PyLong_FromLong(0);
    }
    if (text[2].size > 0) {
        if (text[0].size - end < DATE_BYTES || !is_date(text[0].at + end) ||
            !has_at(text[0], end + DATE_BYTES, text[2])) {
            return PyLong_FromLong(0);
        }
        end += DATE_BYTES + text[2].size;
    }
    return PyLong_FromSsize_t(end);
}

PyMethodDef native_head_methods[] = {
    {"match_head", (PyCFunction)(void (*)(void))match_head, METH_FASTCALL, match_head_doc},
    {"match_dated", (PyCFunction)(void (*)(void))match_dated, METH_FASTCALL, match_dated_doc},
    {NULL, NULL, 0, NULL},
};
