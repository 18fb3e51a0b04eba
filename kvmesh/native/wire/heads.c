/* HTTP heads that come again and again: what the function of its name in
 * tests/reference/transport/heads.py does.
 */
#include "base/shell.h"
#include "wire/wire.h"
#include <string.h>

#define MOST_DIGITS 12

typedef struct {
    const char *at;
    Py_ssize_t size;
} Text;

static int texts(PyObject *const *args, Py_ssize_t count, Text *out) {
    for (Py_ssize_t i = 0; i < count; i++) {
        REFUSE(!PyBytes_Check(args[i]), PyExc_TypeError, "bytes, not %.50s",
               Py_TYPE(args[i])->tp_name);
        out[i].at = PyBytes_AS_STRING(args[i]);
        out[i].size = PyBytes_GET_SIZE(args[i]);
    }
    return 0;
}

static int has_at(Text data, Py_ssize_t at, Text what) {
    return data.size - at >= what.size && memcmp(data.at + at, what.at, (size_t)what.size) == 0;
}

static PyObject *match_head(PyObject *Py_UNUSED(module), ARGUMENTS) {
    REFUSE_OR_NULL(nargs != 4, PyExc_TypeError, "match_head takes 4 arguments, not %zd", nargs);
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

static int has_break(Text text) {
    return memchr(text.at, '\n', (size_t)text.size) != NULL ||
           memchr(text.at, '\r', (size_t)text.size) != NULL;
}

static char *append(char *at, Text text) {
    memcpy(at, text.at, (size_t)text.size);
    return at + text.size;
}

/* Read one header: a tuple of two bytes. The items are the header's, which its sequence keeps alive. */
static int header_of(PyObject *header, Text *out) {
    REFUSE(!PyTuple_Check(header) || PyTuple_GET_SIZE(header) != 2, PyExc_TypeError,
           "a header is a tuple of two, not %.50s", Py_TYPE(header)->tp_name);
    return texts(&PyTuple_GET_ITEM(header, 0), 2, out);
}

static PyObject *render(PyObject *Py_UNUSED(module), PyObject *headers) {
    PyObject *all = PySequence_Fast(headers, "headers are a sequence");
    NEED_OR_NULL(all);
    Py_ssize_t count = PySequence_Fast_GET_SIZE(all), size = 0;
    int broken = 0;
    Text text[2];
    for (Py_ssize_t i = 0; i < count; i++) {
        if (header_of(PySequence_Fast_GET_ITEM(all, i), text) < 0) {
            Py_DECREF(all);
            return NULL;
        }
        broken |= has_break(text[0]) || has_break(text[1]);
        size += text[0].size + text[1].size + 4;
    }
    PyObject *block = PyBytes_FromStringAndSize(NULL, size);
    char *at = block == NULL ? NULL : PyBytes_AS_STRING(block);
    for (Py_ssize_t i = 0; i < count && at != NULL; i++) {
        (void)header_of(PySequence_Fast_GET_ITEM(all, i), text);
        at = append(append(append(append(at, text[0]), (Text){": ", 2}), text[1]), (Text){"\r\n", 2});
    }
    Py_DECREF(all);
    if (broken && block != NULL) {
        PyErr_Format(PyExc_ValueError, "header with a line break in %R", block);
        Py_CLEAR(block);
    }
    return block;
}

PyMethodDef native_head_methods[] = {
    METHOD_FASTCALL("match_head", match_head),
    METHOD_O("render", render),
    {NULL, NULL, 0, NULL},
};
