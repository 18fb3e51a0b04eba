/* Answers to a gateway: what the pure functions of `kvmesh.transport.extproc.writing` do that are named
 * in each docstring here. Sizes are summed first, then all is written into one object.
 */
#include "base/shell.h"
#include "wire/wire.h"
#include <string.h>

#define MOST_FIELD 15
#define OVERWRITE "\x18\x02" /* HeaderValueOption.append_action = OVERWRITE_IF_EXISTS_OR_ADD */
#define CLEAR "\x28\x01"     /* CommonResponse.clear_route_cache */
#define END "\x10\x01"       /* StreamedBodyResponse.end_of_stream */
#define PAIR 2               /* bytes of each of them */
#define METADATA 8

static const char destination[] = "x-gateway-destination-endpoint", lb_namespace[] = "envoy.lb";

typedef struct {
    const char *at;
    Py_ssize_t size;
} Text;

/* An answer's parts, and the sizes of what they are in. */
typedef struct {
    PyObject *headers, *removed; /* fast sequences, owned */
    Text endpoint, body;         /* at NULL: none */
    Py_ssize_t mutation, common;
} Answer;

static Py_ssize_t varint_size(Py_ssize_t value) {
    Py_ssize_t size = 1;
    while (value > 0x7F) {
        value >>= 7;
        size++;
    }
    return size;
}

/* Return how long a field with a number of one byte is whose content has that size. */
static Py_ssize_t field_size(Py_ssize_t size) {
    return 1 + varint_size(size) + size;
}

static char *write_head(char *at, int number, Py_ssize_t size) {
    *at++ = (char)(number << 3 | 2);
    while (size > 0x7F) {
        *at++ = (char)((size & 0x7F) | 0x80);
        size >>= 7;
    }
    *at++ = (char)size;
    return at;
}

static char *write_text(char *at, int number, Text text) {
    at = write_head(at, number, text.size);
    memcpy(at, text.at, (size_t)text.size);
    return at + text.size;
}

static char *write_pair(char *at, const char *pair) {
    memcpy(at, pair, PAIR);
    return at + PAIR;
}

static Text text_of(PyObject *bytes) {
    return (Text){PyBytes_AS_STRING(bytes), PyBytes_GET_SIZE(bytes)};
}

static int text_or_none(PyObject *given, Text *text) {
    *text = (Text){NULL, 0};
    if (given != Py_None && !PyBytes_Check(given)) {
        return set_error(PyExc_TypeError, "bytes or None, not %.50s", Py_TYPE(given)->tp_name);
    }
    if (given != Py_None) {
        *text = text_of(given);
    }
    return 0;
}

static Py_ssize_t value_size(Text name, Text value) {
    return field_size(name.size) + field_size(value.size);
}

static Py_ssize_t option_size(Text name, Text value) {
    return field_size(value_size(name, value)) + PAIR;
}

static char *write_option(char *at, Text name, Text value) {
    at = write_head(at, 1, option_size(name, value));
    at = write_head(at, 1, value_size(name, value));
    at = write_text(at, 1, name);
    at = write_text(at, 3, value);
    return write_pair(at, OVERWRITE);
}

static const Text destination_text = {destination, sizeof destination - 1},
                  namespace_text = {lb_namespace, sizeof lb_namespace - 1};

/* Add what the headers take; -1 with TypeError for what is none. */
static int sum_headers(PyObject *headers, Py_ssize_t *size) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(headers); i++) {
        PyObject *header = PySequence_Fast_GET_ITEM(headers, i);
        if (!PyTuple_Check(header) || PyTuple_GET_SIZE(header) != 2 ||
            !PyBytes_Check(PyTuple_GET_ITEM(header, 0)) || !PyBytes_Check(PyTuple_GET_ITEM(header, 1))) {
            return set_error(PyExc_TypeError, "a header is a tuple of two bytes");
        }
        *size += field_size(option_size(text_of(PyTuple_GET_ITEM(header, 0)),
                                        text_of(PyTuple_GET_ITEM(header, 1))));
    }
    return 0;
}

static int sum_removed(PyObject *removed, Py_ssize_t *size) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(removed); i++) {
        PyObject *name = PySequence_Fast_GET_ITEM(removed, i);
        if (!PyBytes_Check(name)) {
            return set_error(PyExc_TypeError, "a header's name is bytes, not %.50s", Py_TYPE(name)->tp_name);
        }
        *size += field_size(PyBytes_GET_SIZE(name));
    }
    return 0;
}

static int sum_answer(Answer *answer) {
    answer->mutation = 0;
    if (answer->endpoint.at != NULL) {
        answer->mutation += field_size(option_size(destination_text, answer->endpoint));
    }
    if (sum_headers(answer->headers, &answer->mutation) < 0 ||
        sum_removed(answer->removed, &answer->mutation) < 0) {
        return -1;
    }
    answer->common = answer->mutation > 0 ? field_size(answer->mutation) : 0;
    if (answer->endpoint.at != NULL) {
        answer->common += PAIR;
    }
    if (answer->body.at != NULL) {
        answer->common += field_size(field_size(answer->body.size));
    }
    return 0;
}

static char *write_mutation(char *at, const Answer *answer) {
    if (answer->mutation == 0) {
        return at;
    }
    at = write_head(at, 2, answer->mutation);
    if (answer->endpoint.at != NULL) {
        at = write_option(at, destination_text, answer->endpoint);
    }
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(answer->headers); i++) {
        PyObject *header = PySequence_Fast_GET_ITEM(answer->headers, i);
        at = write_option(at, text_of(PyTuple_GET_ITEM(header, 0)), text_of(PyTuple_GET_ITEM(header, 1)));
    }
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(answer->removed); i++) {
        at = write_text(at, 2, text_of(PySequence_Fast_GET_ITEM(answer->removed, i)));
    }
    return at;
}

/* The dynamic metadata {"envoy.lb": {destination: endpoint}}, as Structs of Values. */
typedef struct {
    Py_ssize_t value, entry, inner, outer, whole, field;
} MetadataSizes;

static MetadataSizes metadata_sizes(Text endpoint) {
    MetadataSizes size;
    size.value = field_size(endpoint.size);
    size.entry = field_size(destination_text.size) + field_size(size.value);
    size.inner = field_size(size.entry);
    size.outer = field_size(size.inner);
    size.whole = field_size(namespace_text.size) + field_size(size.outer);
    size.field = field_size(field_size(size.whole));
    return size;
}

static char *write_metadata(char *at, Text endpoint) {
    MetadataSizes size = metadata_sizes(endpoint);
    at = write_head(at, METADATA, field_size(size.whole));
    at = write_head(at, 1, size.whole);
    at = write_text(at, 1, namespace_text);
    at = write_head(at, 2, size.outer);
    at = write_head(at, 5, size.inner);
    at = write_head(at, 1, size.entry);
    at = write_text(at, 1, destination_text);
    at = write_head(at, 2, size.value);
    return write_text(at, 3, endpoint);
}

static PyObject *write_answer(int number, Answer *answer) {
    if (sum_answer(answer) < 0) {
        return NULL;
    }
    Py_ssize_t inner = answer->common > 0 ? field_size(answer->common) : 0;
    Py_ssize_t size = field_size(inner);
    if (answer->endpoint.at != NULL) {
        size += metadata_sizes(answer->endpoint).field;
    }
    PyObject *out = PyBytes_FromStringAndSize(NULL, size);
    if (out == NULL) {
        return NULL;
    }
    char *at = write_head(PyBytes_AS_STRING(out), number, inner);
    if (inner > 0) {
        at = write_mutation(write_head(at, 1, answer->common), answer);
    }
    if (answer->endpoint.at != NULL) {
        at = write_pair(at, CLEAR);
    }
    if (answer->body.at != NULL) {
        at = write_text(write_head(at, 3, field_size(answer->body.size)), 1, answer->body);
    }
    if (answer->endpoint.at != NULL) {
        write_metadata(at, answer->endpoint);
    }
    return out;
}

static int number_of(PyObject *given) {
    long number = PyLong_AsLong(given);
    if ((number == -1 && PyErr_Occurred()) || number < 1 || number > MOST_FIELD) {
        if (!PyErr_Occurred()) {
            PyErr_Format(PyExc_ValueError, "field %ld is none of an answer", number);
        }
        return -1;
    }
    return (int)number;
}

static PyObject *write_extproc(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs) {
    if (nargs != 5) {
        return PyErr_Format(PyExc_TypeError, "write_extproc takes 5 arguments, not %zd", nargs);
    }
    Answer answer = {NULL, NULL, {NULL, 0}, {NULL, 0}, 0, 0};
    int number = number_of(args[0]);
    if (number < 0 || text_or_none(args[3], &answer.endpoint) < 0 ||
        text_or_none(args[4], &answer.body) < 0) {
        return NULL;
    }
    answer.headers = PySequence_Fast(args[1], "headers are a sequence");
    answer.removed = answer.headers == NULL ? NULL : PySequence_Fast(args[2], "names are a sequence");
    PyObject *out = answer.removed == NULL ? NULL : write_answer(number, &answer);
    XDECREF_ALL(answer.headers, answer.removed);
    return out;
}

static PyObject *write_extproc_piece(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs) {
    PyObject *field, *piece;
    int number, end;
    if (READ_PLACED("write_extproc_piece", "OSp", "number data end", &field, &piece, &end) < 0 ||
        (number = number_of(field)) < 0) {
        return NULL;
    }
    Text data = text_of(piece);
    Py_ssize_t streamed = (data.size > 0 ? field_size(data.size) : 0) + (end ? PAIR : 0);
    Py_ssize_t mutation = field_size(streamed), common = field_size(mutation);
    PyObject *out = PyBytes_FromStringAndSize(NULL, field_size(field_size(common)));
    if (out == NULL) {
        return NULL;
    }
    char *at = write_head(PyBytes_AS_STRING(out), number, field_size(common));
    at = write_head(at, 1, common);
    at = write_head(at, 3, mutation);
    at = write_head(at, 3, streamed);
    if (data.size > 0) {
        at = write_text(at, 1, data);
    }
    if (end) {
        write_pair(at, END);
    }
    return out;
}

PyMethodDef native_extproc_write_methods[] = {
    METHOD_FASTCALL("write_extproc", write_extproc),
    METHOD_FASTCALL("write_extproc_piece", write_extproc_piece),
    {NULL, NULL, 0, NULL},
};
