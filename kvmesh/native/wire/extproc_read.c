/* A gateway's messages (envoy.service.ext_proc.v3), in one pass without a copy but of what is kept. */
#include "base/shell.h"
#include "wire/wire.h"
#include <string.h>

enum { VARINT, FIXED64, BYTES, FIXED32 = 5 };
enum { FIRST_KIND = 2, KINDS = 6, METADATA = 8, ATTRIBUTES = 9, MODES = 11 };
/* Of the types that are handed over, by `messages.KINDS` and behind it. */
enum { REQUEST_HEADERS, RESPONSE_HEADERS, REQUEST_BODY, RESPONSE_BODY, REQUEST_TRAILERS,
       RESPONSE_TRAILERS, MODES_TYPE, ERROR_TYPE, TYPES };
enum { NOTHING, TEXT, NUMBER, FLAG };

#define MOST_NUMBER 0x1FFFFFFF
#define MOST_MODE 0xFF

static const char subset_namespace[] = "envoy.lb.subset_hint", lb_namespace[] = "envoy.lb",
                  subset_key[] = "x-gateway-destination-endpoint-subset",
                  served_key[] = "x-gateway-destination-endpoint-served";

typedef struct {
    const unsigned char *data;
    PyObject *error; /* CodecError, borrowed of the call's arguments */
} Message;

typedef struct {
    Py_ssize_t at, end;
} Span;

typedef struct {
    uint64_t number, value; /* value: of a VARINT */
    int wire;
    Span span; /* of any other */
} Field;

typedef struct {
    int kind;
    Span text;
    double number;
    int flag;
} Value;

/* What a message tells beside its headers or body; owned, NULL where it tells nothing. */
typedef struct {
    PyObject *subset, *served, *modes, *attributes;
} Beside;

static int read_varint(const Message *message, Span *span, uint64_t *out) {
    uint64_t value = 0;
    for (int shift = 0; span->at < span->end && shift <= 63; shift += 7) {
        unsigned char byte = message->data[span->at++];
        value |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) {
            *out = value;
            return 0;
        }
    }
    return set_error(message->error, "byte %zd: a number that does not end", span->at);
}

/* Read the next field of `rest` and move behind it; 0 at the end, -1 with an error set. */
static int next_field(const Message *message, Span *rest, Field *field) {
    if (rest->at >= rest->end) {
        return 0;
    }
    Py_ssize_t begin = rest->at;
    uint64_t tag, size;
    TRY(read_varint(message, rest, &tag));
    field->value = 0;
    field->number = tag >> 3;
    field->wire = (int)(tag & 7);
    REFUSE(field->number == 0 || field->number > MOST_NUMBER, message->error,
           "byte %zd: field number %llu is none", begin, (unsigned long long)field->number);
    switch (field->wire) {
    case VARINT:
        return read_varint(message, rest, &field->value) < 0 ? -1 : 1;
    case BYTES:
        TRY(read_varint(message, rest, &size));
        break;
    case FIXED64:
        size = 8;
        break;
    case FIXED32:
        size = 4;
        break;
    default:
        return set_error(message->error, "byte %zd: wire type %d is not known", begin, field->wire);
    }
    REFUSE(size > (uint64_t)(rest->end - rest->at), message->error,
           "byte %zd: field %llu is longer than its message", begin,
           (unsigned long long)field->number);
    field->span.at = rest->at;
    rest->at += (Py_ssize_t)size;
    field->span.end = rest->at;
    return 1;
}

static int is_bytes(const Field *field, uint64_t number) {
    return field->wire == BYTES && field->number == number;
}

static PyObject *bytes_of(const Message *message, Span span) {
    return PyBytes_FromStringAndSize((const char *)message->data + span.at, span.end - span.at);
}

static PyObject *text_of(const Message *message, Span span) {
    return PyUnicode_DecodeUTF8((const char *)message->data + span.at, span.end - span.at, "replace");
}

static int is_text(const Message *message, Span span, const char *text) {
    size_t size = strlen(text);
    return (size_t)(span.end - span.at) == size && memcmp(message->data + span.at, text, size) == 0;
}

/* Made without content, so that it is new: Python shares bytes of one letter, and of none. */
static PyObject *lower_of(const Message *message, Span span) {
    PyObject *name = PyBytes_FromStringAndSize(NULL, span.end - span.at);
    if (name != NULL) {
        char *at = PyBytes_AS_STRING(name);
        for (Py_ssize_t i = span.end - span.at - 1; i >= 0; i--) {
            unsigned char letter = message->data[span.at + i];
            at[i] = (char)(letter >= 'A' && letter <= 'Z' ? letter | 0x20 : letter);
        }
    }
    return name;
}

static int read_header(const Message *message, Span rest, PyObject *headers) {
    Span name = {0, 0}, value = {0, 0}, raw = {0, 0};
    Field field;
    int more;
    while ((more = next_field(message, &rest, &field)) > 0) {
        if (is_bytes(&field, 1)) {
            name = field.span;
        } else if (is_bytes(&field, 2)) {
            value = field.span;
        } else if (is_bytes(&field, 3)) {
            raw = field.span;
        }
    }
    TRY(more);
    PyObject *lower = lower_of(message, name);
    PyObject *text = lower == NULL ? NULL : bytes_of(message, raw.end > raw.at ? raw : value);
    PyObject *header = text == NULL ? NULL : PyTuple_Pack(2, lower, text);
    XDECREF_ALL(lower, text);
    return list_add(headers, header);
}

/* Return the headers of a HeaderMap. */
static PyObject *read_headers(const Message *message, Span rest) {
    PyObject *headers = PyList_New(0);
    Field field;
    int more = headers == NULL ? -1 : 1;
    while (more > 0 && (more = next_field(message, &rest, &field)) > 0) {
        if (is_bytes(&field, 1) && read_header(message, field.span, headers) < 0) {
            more = -1;
        }
    }
    if (more < 0) {
        Py_CLEAR(headers);
    }
    return headers;
}

/* Return the headers of a HttpHeaders or HttpTrailers; `ended`: nothing follows the former. */
static PyObject *read_head(const Message *message, Span rest, int *ended) {
    PyObject *headers = PyList_New(0);
    Field field;
    int more = headers == NULL ? -1 : 1;
    *ended = 0;
    while (more > 0 && (more = next_field(message, &rest, &field)) > 0) {
        if (is_bytes(&field, 1)) {
            Py_XSETREF(headers, read_headers(message, field.span));
            more = headers == NULL ? -1 : 1;
        } else if (field.wire == VARINT && field.number == 3) {
            *ended = field.value != 0;
        }
    }
    if (more < 0) {
        Py_CLEAR(headers);
    }
    return headers;
}

static int read_body(const Message *message, Span rest, Span *body, int *ended) {
    Field field;
    int more;
    *body = (Span){0, 0};
    *ended = 0;
    while ((more = next_field(message, &rest, &field)) > 0) {
        if (is_bytes(&field, 1)) {
            *body = field.span;
        } else if (field.wire == VARINT && (field.number == 2 || field.number == 3)) {
            *ended |= field.value != 0;
        }
    }
    return more;
}

/* Read an entry of a map: where key and value are. */
static int read_entry(const Message *message, Span rest, Span *key, Span *value) {
    Field field;
    int more;
    *key = *value = (Span){0, 0};
    while ((more = next_field(message, &rest, &field)) > 0) {
        if (is_bytes(&field, 1)) {
            *key = field.span;
        } else if (is_bytes(&field, 2)) {
            *value = field.span;
        }
    }
    return more;
}

/* Read the next entry of a google.protobuf.Struct: 1, 0 at the end, -1 with an error set. */
static int next_entry(const Message *message, Span *rest, Span *key, Span *value) {
    Field field;
    int more;
    while ((more = next_field(message, rest, &field)) > 0) {
        if (is_bytes(&field, 1)) {
            return read_entry(message, field.span, key, value) < 0 ? -1 : 1;
        }
    }
    return more;
}

static int read_value(const Message *message, Span rest, Value *value) {
    Field field;
    int more;
    value->kind = NOTHING;
    while ((more = next_field(message, &rest, &field)) > 0) {
        if (is_bytes(&field, 3)) {
            value->kind = TEXT;
            value->text = field.span;
        } else if (field.number == 2 && field.wire == FIXED64) {
            value->kind = NUMBER;
            value->number = PyFloat_Unpack8((const char *)message->data + field.span.at, 1);
        } else if (field.number == 4 && field.wire == VARINT) {
            value->kind = FLAG;
            value->flag = field.value != 0;
        }
    }
    return more;
}

/* Add the words of a text that commas separate. */
static int add_words(const Message *message, Span text, PyObject *words) {
    while (text.at <= text.end) {
        Span word = {text.at, text.at};
        while (word.end < text.end && message->data[word.end] != ',') {
            word.end++;
        }
        text.at = word.end + 1;
        while (word.at < word.end && message->data[word.at] == ' ') {
            word.at++;
        }
        while (word.at < word.end && message->data[word.end - 1] == ' ') {
            word.end--;
        }
        if (word.at == word.end) {
            continue;
        }
        int failed = list_add(words, text_of(message, word)) < 0;
        if (failed) {
            return -1;
        }
    }
    return 0;
}

static int add_listed(const Message *message, Span rest, PyObject *words) {
    Field field;
    Value value;
    int more;
    while ((more = next_field(message, &rest, &field)) > 0) {
        if (is_bytes(&field, 1) &&
            (read_value(message, field.span, &value) < 0 ||
             (value.kind == TEXT && add_words(message, value.text, words) < 0))) {
            return -1;
        }
    }
    return more;
}

/* Return the texts of a Value as a list: a list's, or those of one text. */
static PyObject *read_texts(const Message *message, Span rest) {
    PyObject *words = PyList_New(0);
    Field field;
    int more = words == NULL ? -1 : 1;
    while (more > 0 && (more = next_field(message, &rest, &field)) > 0) {
        if (!is_bytes(&field, 3) && !is_bytes(&field, 6)) {
            continue;
        }
        Py_XSETREF(words, PyList_New(0));
        if (words == NULL || (field.number == 3 ? add_words(message, field.span, words)
                                                : add_listed(message, field.span, words)) < 0) {
            more = -1;
        }
    }
    if (more < 0) {
        Py_CLEAR(words);
    }
    return words;
}

static int take_subset(const Message *message, Span value, Beside *beside) {
    PyObject *words = read_texts(message, value);
    PyObject *subset = words == NULL ? NULL : PyList_AsTuple(words);
    Py_XDECREF(words);
    NEED(subset);
    Py_XSETREF(beside->subset, subset);
    return 0;
}

static int take_served(const Message *message, Span value, Beside *beside) {
    PyObject *words = read_texts(message, value);
    NEED(words);
    PyObject *served = PyList_GET_SIZE(words) > 0 ? Py_NewRef(PyList_GET_ITEM(words, 0))
                                                  : PyUnicode_New(0, 0);
    Py_DECREF(words);
    NEED(served);
    Py_XSETREF(beside->served, served);
    return 0;
}

static int take_namespace(const Message *message, Span entry, Beside *beside) {
    Span name, fields, key, value;
    TRY(read_entry(message, entry, &name, &fields));
    int subset = is_text(message, name, subset_namespace);
    if (!subset && !is_text(message, name, lb_namespace)) {
        return 0;
    }
    int more;
    while ((more = next_entry(message, &fields, &key, &value)) > 0) {
        if (is_text(message, key, subset ? subset_key : served_key) &&
            (subset ? take_subset : take_served)(message, value, beside) < 0) {
            return -1;
        }
    }
    return more;
}

static int take_metadata(const Message *message, Span rest, Beside *beside) {
    Field field;
    int more;
    while ((more = next_field(message, &rest, &field)) > 0) {
        TRY_IF(is_bytes(&field, 1), take_namespace(message, field.span, beside));
    }
    return more;
}

static PyObject *object_of(const Message *message, const Value *value) {
    return value->kind == TEXT   ? text_of(message, value->text)
         : value->kind == NUMBER ? PyFloat_FromDouble(value->number)
                                 : PyBool_FromLong(value->flag);
}

static int take_attributes(const Message *message, Span entry, Beside *beside) {
    Span name, fields, key, place;
    if (beside->attributes == NULL && (beside->attributes = PyDict_New()) == NULL) {
        return -1;
    }
    TRY(read_entry(message, entry, &name, &fields));
    int more;
    while ((more = next_entry(message, &fields, &key, &place)) > 0) {
        Value value;
        TRY(read_value(message, place, &value));
        if (value.kind == NOTHING) {
            continue;
        }
        PyObject *text = text_of(message, key);
        PyObject *found = text == NULL ? NULL : object_of(message, &value);
        int failed = found == NULL || PyDict_SetItem(beside->attributes, text, found) < 0;
        XDECREF_ALL(text, found);
        if (failed) {
            return -1;
        }
    }
    return more;
}

static int take_modes(const Message *message, Span rest, PyObject *type, Beside *beside) {
    long modes[2] = {0, 0};
    Field field;
    int more;
    while ((more = next_field(message, &rest, &field)) > 0) {
        if (field.wire == VARINT && field.number <= 2) {
            modes[field.number - 1] = field.value < MOST_MODE ? (long)field.value : MOST_MODE;
        }
    }
    TRY(more);
    PyObject *found = PyObject_CallFunction(type, "ll", modes[0], modes[1]);
    NEED(found);
    Py_XSETREF(beside->modes, found);
    return 0;
}

static PyObject *make(PyObject *type, PyObject *const *given, size_t count) {
    for (size_t i = 0; i < count; i++) {
        NEED_OR_NULL(given[i]);
    }
    return PyObject_Vectorcall(type, given, count, NULL);
}

static PyObject *or_none(PyObject *given) {
    return given == NULL ? Py_None : given;
}

/* Make what was told of headers, a body or trailers; `kind` is its place among the types. */
static PyObject *make_received(const Message *message, int kind, Span span, PyObject *const *types,
                            const Beside *beside) {
    PyObject *found, *first = NULL;
    int ended = 0;
    if (kind == REQUEST_BODY || kind == RESPONSE_BODY) {
        Span body;
        if (read_body(message, span, &body, &ended) == 0) {
            first = bytes_of(message, body);
        }
    } else {
        first = read_head(message, span, &ended);
    }
    PyObject *end = ended ? Py_True : Py_False;
    if (kind == REQUEST_HEADERS) {
        PyObject *given[] = {first, end, or_none(beside->subset), or_none(beside->modes),
                             or_none(beside->attributes)};
        found = make(types[kind], given, 5);
    } else if (kind == RESPONSE_HEADERS) {
        PyObject *served = beside->served != NULL ? Py_NewRef(beside->served) : PyUnicode_New(0, 0);
        PyObject *given[] = {first, end, served, or_none(beside->attributes)};
        found = make(types[kind], given, 4);
        Py_XDECREF(served);
    } else {
        PyObject *given[] = {first, end};
        found = make(types[kind], given, kind < REQUEST_TRAILERS ? 2 : 1);
    }
    Py_XDECREF(first);
    return found;
}

static PyObject *read_message(const Message *message, Span rest, PyObject *const *types,
                              Beside *beside) {
    Field field;
    Span span = {0, 0};
    Py_ssize_t size = rest.end;
    int kind = -1, more;
    while ((more = next_field(message, &rest, &field)) > 0) {
        if (field.wire != BYTES) {
            continue;
        }
        int taken = 0;
        if (field.number >= FIRST_KIND && field.number < FIRST_KIND + KINDS) {
            kind = (int)field.number - FIRST_KIND;
            span = field.span;
        } else if (field.number == METADATA) {
            taken = take_metadata(message, field.span, beside);
        } else if (field.number == ATTRIBUTES) {
            taken = take_attributes(message, field.span, beside);
        } else if (field.number == MODES) {
            taken = take_modes(message, field.span, types[MODES_TYPE], beside);
        }
        TRY_OR_NULL(taken);
    }
    TRY_OR_NULL(more);
    REFUSE_OR_NULL(kind < 0, message->error,
                   "a message of %zd bytes has neither headers nor body: skip it", size);
    return make_received(message, kind, span, types, beside);
}

static PyObject *read_extproc(PyObject *Py_UNUSED(module), ARGUMENTS) {
    REFUSE_OR_NULL(nargs != 2 || !PyTuple_CheckExact(args[0]) || PyTuple_GET_SIZE(args[0]) != TYPES
                   || !PyBytes_CheckExact(args[1]), PyExc_TypeError,
                   "read_extproc takes a tuple of 8 types, and bytes");
    PyObject *const *types = &PyTuple_GET_ITEM(args[0], 0);
    REFUSE_OR_NULL(!PyExceptionClass_Check(types[ERROR_TYPE]), PyExc_TypeError,
                   "the last of the types is no exception");
    Message message = {(const unsigned char *)PyBytes_AS_STRING(args[1]), types[ERROR_TYPE]};
    Beside beside = {NULL, NULL, NULL, NULL};
    PyObject *found = read_message(&message, (Span){0, PyBytes_GET_SIZE(args[1])}, types, &beside);
    XDECREF_ALL(beside.subset, beside.served, beside.modes, beside.attributes);
    return found;
}

PyMethodDef native_extproc_read_methods[] = {
    METHOD_FASTCALL("read_extproc", read_extproc),
    {NULL, NULL, 0, NULL},
};
