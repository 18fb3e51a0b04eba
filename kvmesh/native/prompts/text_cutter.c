/* TextCutter: where a tokenizer cuts a text before anything else, at its added tokens:
 * core.prompts.segment_cache.SegmentCache._split, one pass instead of a regular expression.
 */
#include "base/shell.h"
#include "prompts/packer.h"

#include <stdlib.h>
#include <string.h>

enum { FIRSTS = 128 };

typedef struct {
    PyObject *text; /* owned */
    Py_ssize_t length;
    int atomic; /* a segment begins here */
} Token;

typedef struct {
    PyObject_HEAD
    Token *tokens; /* in order of their characters */
    Py_ssize_t count;
    uint8_t firsts[FIRSTS]; /* whether a token begins with this character */
    int only;               /* the one that all begin with, 0: there are several */
} TextCutter;

static void cutter_dealloc(TextCutter *self) {
    for (Py_ssize_t i = 0; i < self->count; i++) {
        Py_XDECREF(self->tokens[i].text);
    }
    PyMem_Free(self->tokens);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

/* Take one token; -1 with an error set. */
static int take_token(TextCutter *self, PyObject *text, PyObject *atomic) {
    Py_ssize_t length = PyUnicode_CheckExact(text) ? PyUnicode_GET_LENGTH(text) : 0;
    Py_UCS4 first = length > 0 ? PyUnicode_READ_CHAR(text, 0) : FIRSTS;
    if (first == 0 || first >= FIRSTS) {
        return set_error(PyExc_ValueError, "a token that texts are cut at begins with ASCII, not as %R",
                         text);
    }
    Token *last = self->count ? self->tokens + self->count - 1 : NULL;
    if (last != NULL && last->length < length) {
        return set_error(PyExc_ValueError, "the longest tokens come first");
    }
    int divides = PySet_Contains(atomic, text);
    if (divides < 0) {
        return -1;
    }
    self->tokens[self->count++] = (Token){Py_NewRef(text), length, divides};
    self->only = self->count == 1 || self->only == (int)first ? (int)first : 0;
    self->firsts[first] = 1;
    return 0;
}

static int compare(const void *one, const void *other) {
    return PyUnicode_Compare(((const Token *)one)->text, ((const Token *)other)->text);
}

/* TextCutter(tokens, atomic) */
static PyObject *cutter_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    PyObject *tokens, *atomic;
    if (READ_NEW("TextCutter", "T!", "tokens atomic", &tokens, &PyFrozenSet_Type, &atomic) < 0) {
        return NULL;
    }
    TextCutter *self = (TextCutter *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->tokens = PyMem_Calloc((size_t)PyTuple_GET_SIZE(tokens) + 1, sizeof *self->tokens);
    if (self->tokens == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tokens); i++) {
        if (take_token(self, PyTuple_GET_ITEM(tokens, i), atomic) < 0) {
            Py_DECREF(self);
            return NULL;
        }
    }
    qsort(self->tokens, (size_t)self->count, sizeof *self->tokens, compare);
    return (PyObject *)self;
}

/* Return the next place from `at` on where a token may begin; the text's length for none. */
static Py_ssize_t next_first(const TextCutter *self, int kind, const void *data, Py_ssize_t at,
                             Py_ssize_t length) {
    if (kind == PyUnicode_1BYTE_KIND && self->only) {
        const char *start = (const char *)data + at;
        const char *found = memchr(start, self->only, (size_t)(length - at));
        return found == NULL ? length : found - (const char *)data;
    }
    for (; at < length; at++) {
        Py_UCS4 one = PyUnicode_READ(kind, data, at);
        if (one < FIRSTS && self->firsts[one]) {
            break;
        }
    }
    return at;
}

/* Return the first of tokens lo to hi, alike in `depth` characters and longer, whose next one is at
 * least `least`; hi for none.
 */
static Py_ssize_t first_with(const TextCutter *self, Py_ssize_t lo, Py_ssize_t hi, Py_ssize_t depth,
                             Py_UCS4 least) {
    while (lo < hi) {
        Py_ssize_t middle = lo + (hi - lo) / 2;
        if (PyUnicode_READ_CHAR(self->tokens[middle].text, depth) < least) {
            lo = middle + 1;
        } else {
            hi = middle;
        }
    }
    return lo;
}

/* Return the longest token at a place; NULL for none. However many tokens begin alike, each character
 * takes O(log(tokens)): texts may be full of such beginnings.
 */
static const Token *token_at(const TextCutter *self, int kind, const void *data, Py_ssize_t at,
                             Py_ssize_t length) {
    const Token *found = NULL;
    Py_ssize_t lo = 0, hi = self->count;
    for (Py_ssize_t depth = 0; at + depth < length; depth++) {
        Py_UCS4 one = PyUnicode_READ(kind, data, at + depth);
        while (lo < hi && self->tokens[lo].length == depth) {
            lo++;
        }
        lo = first_with(self, lo, hi, depth, one);
        hi = first_with(self, lo, hi, depth, one + 1);
        if (lo == hi) {
            break;
        }
        found = self->tokens[lo].length == depth + 1 ? self->tokens + lo : found;
    }
    return found;
}

/* Append a part of a text that is not empty; -1 with an error set. */
static int append(PyObject *parts, PyObject *text, Py_ssize_t from, Py_ssize_t to) {
    if (from >= to) {
        return 0;
    }
    PyObject *part = PyUnicode_Substring(text, from, to);
    int failed = part == NULL || PyList_Append(parts, part) < 0;
    Py_XDECREF(part);
    return failed ? -1 : 0;
}

/* cut(text) -> segments */
static PyObject *cutter_cut(TextCutter *self, PyObject *text) {
    if (!PyUnicode_CheckExact(text)) {
        return PyErr_Format(PyExc_TypeError, "a text is a str, not %.80s", Py_TYPE(text)->tp_name);
    }
    PyObject *parts = PyList_New(0);
    Py_ssize_t length = PyUnicode_GET_LENGTH(text), from = 0, at = 0;
    int kind = (int)PyUnicode_KIND(text);
    const void *data = PyUnicode_DATA(text);
    while (parts != NULL && (at = next_first(self, kind, data, at, length)) < length) {
        const Token *token = token_at(self, kind, data, at, length);
        if (token != NULL && token->atomic) {
            if (append(parts, text, from, at) < 0) {
                Py_CLEAR(parts);
            }
            from = at;
        }
        at += token == NULL ? 1 : token->length;
    }
    if (parts != NULL && append(parts, text, from, length) < 0) {
        Py_CLEAR(parts);
    }
    return parts;
}

static PyMethodDef cutter_methods[] = {
    METHOD_O("cut", cutter_cut),
    {NULL, NULL, 0, NULL},
};

PyTypeObject text_cutter_type = {
    TYPE("TextCutter", TextCutter, cutter),
    .tp_methods = cutter_methods,
};
