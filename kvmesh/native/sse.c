/* A stream of server-sent events seen in passing: what `kvmesh.core.engines.event_stream` does.
 *
 * What engines send is done here: whole and cut events whose lines end in LF, tokens, `[DONE]`; usage
 * is decoded when asked for. The pure twin, made when first needed, takes the rest: events that may be
 * errors or have several lines; and the whole stream from the first CR or overlong event on.
 */
#define _GNU_SOURCE
#include "core.h"
#include <string.h>
#include <structmember.h>

#define MOST_HELD (1 << 16)
#define ORDINARY "data: {"
#define DONE "data: [DONE]"
#define LENGTH(text) ((Py_ssize_t)(sizeof text - 1))

enum { TOKEN, USAGE, END, RARE };

typedef struct {
    PyObject_HEAD
    PyObject *make;  /* makes the pure twin */
    PyObject *twin;  /* it, NULL until it is needed */
    PyObject *held;  /* bytes that have not passed yet, NULL for none */
    PyObject *find;  /* find_usage(data, before): what an event reports, over what was reported before */
    PyObject *usage; /* what was reported but for `unread`, NULL for nothing */
    PyObject *unread; /* the data of the last event that reports usage, NULL for none */
    Py_ssize_t tokens, due, told_by_twin;
    char done, complete, handed_over; /* handed_over: the twin does everything */
} EventStream;

static int starts(const char *at, Py_ssize_t size, const char *with, Py_ssize_t length) {
    return size >= length && memcmp(at, with, (size_t)length) == 0;
}

/* Tell whether each `"usage"` in an event is null, so that decoding would find none. */
static int lacks_usage(const char *at, Py_ssize_t size) {
    const char *end = at + size, *found = at;
    static const char word[] = "\"usage\"";
    while ((found = memmem(found, (size_t)(end - found), word, sizeof word - 1)) != NULL) {
        found += sizeof word - 1;
        const char *value = found + (end - found > 1 && found[1] == ' ') + 1;
        if (end - value < 4 || *found != ':' || memcmp(value, "null", 4) != 0 ||
            memchr(at, '\\', (size_t)size) != NULL) {
            return 0;
        }
    }
    return 1;
}

/* Say what an event of one line, without its end, is. */
static int kind_of(const char *at, Py_ssize_t size) {
    if (starts(at, size, ORDINARY, LENGTH(ORDINARY))) {
        static const char error[] = "\"error\"";
        int plain = memmem(at, (size_t)size, error, sizeof error - 1) == NULL;
        return !plain ? RARE : lacks_usage(at, size) ? TOKEN : USAGE;
    }
    return size == LENGTH(DONE) && memcmp(at, DONE, sizeof DONE - 1) == 0 ? END : RARE;
}

/* Tell whether nothing but white space follows a last `[DONE]`. */
static int ends_done(const char *at, Py_ssize_t size) {
    while (size > 0 && (at[size - 1] == ' ' || (at[size - 1] >= '\t' && at[size - 1] <= '\r'))) {
        size--;
    }
    return size >= LENGTH(DONE) && memcmp(at + size - LENGTH(DONE), DONE, sizeof DONE - 1) == 0;
}

/* Return behind the last blank line, 0 without any. */
static Py_ssize_t behind_last(const char *at, Py_ssize_t size) {
    for (Py_ssize_t i = size; i > 1; i--) {
        if (at[i - 1] == '\n' && at[i - 2] == '\n') {
            return i;
        }
    }
    return 0;
}

/* Return a new reference to the twin. */
static PyObject *twin_of(EventStream *self) {
    if (self->twin == NULL && self->make == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "a stream that was collected");
        return NULL;
    }
    if (self->twin == NULL) {
        PyObject *make = Py_NewRef(self->make), *twin = PyObject_CallNoArgs(make);
        Py_DECREF(make);
        if (twin == NULL) {
            return NULL;
        }
        Py_XSETREF(self->twin, twin);
    }
    return Py_NewRef(self->twin);
}

/* Let go of what a call of the twin returned, and take over what it has counted; -1 if it raised. */
static int count_twins(EventStream *self, PyObject *twin, PyObject *returned) {
    PyObject *found = returned == NULL ? NULL : PyObject_GetAttrString(twin, "tokens");
    Py_ssize_t tokens = found == NULL ? -1 : PyLong_AsSsize_t(found);
    Py_XDECREF(found);
    Py_XDECREF(returned);
    Py_DECREF(twin);
    if (tokens < 0) {
        return PyErr_Occurred() ? -1 : 0;
    }
    self->tokens += tokens - self->told_by_twin;
    self->told_by_twin = tokens;
    return 0;
}

/* Decode the last report of usage. */
static int read_usage(EventStream *self) {
    PyObject *unread = self->unread;
    if (unread == NULL) {
        return 0;
    }
    self->unread = NULL;
    PyObject *find = Py_XNewRef(self->find);
    PyObject *before = Py_NewRef(self->usage == NULL ? Py_None : self->usage);
    PyObject *found = find == NULL ? NULL
                                   : PyObject_CallFunctionObjArgs(find, unread, before, NULL);
    if (find == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "a stream that was collected");
    }
    Py_XDECREF(find);
    Py_DECREF(before);
    Py_DECREF(unread);
    if (found == NULL) {
        return -1;
    }
    Py_XSETREF(self->usage, found);
    return 0;
}

/* Keep an event's data, which reports usage, until that is asked for. */
static int keep_usage(EventStream *self, const char *at, Py_ssize_t size) {
    if (read_usage(self) < 0) {
        return -1;
    }
    PyObject *data = PyBytes_FromStringAndSize(at + LENGTH("data: "), size - LENGTH("data: "));
    if (data == NULL) {
        return -1;
    }
    Py_XSETREF(self->unread, data);
    return 0;
}

/* Have the twin look into one event. */
static int take_rare(EventStream *self, const char *at, Py_ssize_t size) {
    PyObject *twin = read_usage(self) < 0 ? NULL : twin_of(self);
    if (twin == NULL) {
        return -1;
    }
    PyObject *before = Py_NewRef(self->usage == NULL ? Py_None : self->usage);
    PyObject *found = PyObject_CallMethod(twin, "take_event", "y#O", at, size, before);
    Py_DECREF(before);
    if (found != NULL) {
        Py_XSETREF(self->usage, Py_NewRef(found));
    }
    return count_twins(self, twin, found);
}

/* Have the twin do everything from here on. */
static int hand_over(EventStream *self) {
    PyObject *held = self->held == NULL ? PyBytes_FromStringAndSize(NULL, 0) : Py_NewRef(self->held);
    PyObject *twin = held == NULL || read_usage(self) < 0 ? NULL : twin_of(self);
    if (twin == NULL) {
        Py_XDECREF(held);
        return -1;
    }
    PyObject *before = Py_NewRef(self->usage == NULL ? Py_None : self->usage);
    PyObject *done = PyObject_CallMethod(twin, "resume", "OOO", held,
                                         self->complete ? Py_True : Py_False, before);
    Py_DECREF(before);
    Py_DECREF(held);
    if (count_twins(self, twin, done) < 0) {
        return -1;
    }
    Py_CLEAR(self->held);
    self->handed_over = 1;
    return 0;
}

/* Count the whole events in a text that ends behind its last blank line. */
static int count_events(EventStream *self, const char *at, Py_ssize_t size) {
    const char *last = at + size - 2; /* the last blank line, which ends the last event */
    while (at <= last) {
        const char *line = memchr(at, '\n', (size_t)(last + 1 - at));
        const char *end = line != NULL && line <= last && line[1] == '\n' ? line : NULL;
        int one = end != NULL;
        if (end == NULL) {
            end = memmem(at, (size_t)(last - at), "\n\n", 2);
            end = end == NULL ? last : end;
        }
        int kind = one ? kind_of(at, end - at) : RARE;
        if (end == at) {
            ; /* a blank line more */
        } else if (kind == TOKEN || kind == USAGE) {
            self->tokens++;
            if (kind == USAGE && keep_usage(self, at, end - at) < 0) {
                return -1;
            }
        } else if (kind == END) {
            self->done = 1;
        } else if (take_rare(self, at, end - at) < 0) {
            return -1;
        }
        at = end + 2;
    }
    return 0;
}

static PyObject *feed_twin(EventStream *self, PyObject *data) {
    PyObject *twin = twin_of(self);
    PyObject *passed = twin == NULL ? NULL : PyObject_CallMethod(twin, "feed", "O", data);
    if (twin != NULL && count_twins(self, twin, Py_XNewRef(passed)) < 0) {
        Py_CLEAR(passed);
    }
    return passed;
}

/* Return what a method or attribute of the twin says. */
static PyObject *ask_twin(EventStream *self, const char *name, int call) {
    PyObject *twin = twin_of(self), *found = NULL;
    if (twin != NULL) {
        found = call ? PyObject_CallMethod(twin, name, NULL) : PyObject_GetAttrString(twin, name);
        Py_DECREF(twin);
    }
    return found;
}

PyDoc_STRVAR(feed_doc,
"feed(data) -> bytes\n\nReturn what may pass now: all up to the last blank line; `data` itself when "
"that is all. Counts what ended.");

static PyObject *stream_feed(EventStream *self, PyObject *data) {
    if (!PyBytes_CheckExact(data)) {
        return PyErr_Format(PyExc_TypeError, "bytes, not %.50s", Py_TYPE(data)->tp_name);
    }
    const char *text = PyBytes_AS_STRING(data);
    Py_ssize_t size = PyBytes_GET_SIZE(data);
    int odd = !self->handed_over && memchr(text, '\r', (size_t)size) != NULL;
    if (odd && hand_over(self) < 0) {
        return NULL;
    }
    if (self->handed_over) {
        return feed_twin(self, data);
    }
    PyObject *whole = Py_NewRef(data);
    if (self->held != NULL) {
        Py_DECREF(whole);
        Py_ssize_t before = PyBytes_GET_SIZE(self->held);
        whole = PyBytes_FromStringAndSize(NULL, before + size);
        if (whole == NULL) {
            return NULL;
        }
        memcpy(PyBytes_AS_STRING(whole), PyBytes_AS_STRING(self->held), (size_t)before);
        memcpy(PyBytes_AS_STRING(whole) + before, text, (size_t)size);
        text = PyBytes_AS_STRING(whole);
        size += before;
    }
    Py_ssize_t end = behind_last(text, size);
    PyObject *passed = NULL, *rest = NULL;
    if (size - end > MOST_HELD) {
        passed = hand_over(self) < 0 ? NULL : feed_twin(self, data);
        Py_DECREF(whole);
        return passed;
    }
    passed = end == size ? Py_NewRef(whole) : PyBytes_FromStringAndSize(text, end);
    rest = end == size ? NULL : PyBytes_FromStringAndSize(text + end, size - end);
    if (passed == NULL || (rest == NULL && end < size)) {
        Py_XDECREF(passed);
        Py_DECREF(whole);
        return NULL;
    }
    Py_XSETREF(self->held, rest);
    if (end > 0) {
        self->complete = (char)ends_done(text, end);
        if (count_events(self, text, end) < 0) {
            Py_CLEAR(passed);
        }
    }
    Py_DECREF(whole);
    return passed;
}

/* Return the size in a plain chunk size line (1 to 6 hexadecimal digits, CRLF) and where it ends, 0 for
 * any other and for that of the last chunk. */
static Py_ssize_t chunk_size(const char *at, const char *end, const char **content) {
    Py_ssize_t size = 0;
    for (int digits = 0; digits < 7 && at < end; digits++, at++) {
        char letter = *at;
        if (letter >= '0' && letter <= '9') {
            size = size * 16 + letter - '0';
        } else if ((letter | 32) >= 'a' && (letter | 32) <= 'f') {
            size = size * 16 + (letter | 32) - 'a' + 10;
        } else {
            *content = at + 2;
            return digits > 0 && end - at > 1 && at[0] == '\r' && at[1] == '\n' ? size : 0;
        }
    }
    return 0;
}

/* Count the events of one chunk if they are whole and ordinary; -1 if not. */
static Py_ssize_t count_plain(const char *at, Py_ssize_t size, int *last, unsigned *kinds) {
    const char *end = at + size;
    Py_ssize_t tokens = 0;
    while (at < end) {
        const char *line = memchr(at, '\n', (size_t)(end - at));
        int whole = line != NULL && line + 1 < end && line[1] == '\n';
        *last = whole ? kind_of(at, line - at) : RARE;
        if (*last == RARE) {
            return -1;
        }
        tokens += *last != END;
        *kinds |= 1u << *last;
        at = line + 2;
    }
    return tokens;
}

/* Keep what chunks that were counted report. */
static int keep_usages(EventStream *self, const char *at, const char *end) {
    Py_ssize_t size;
    const char *content = at;
    for (; (size = chunk_size(at, end, &content)) > 0; at = content + size + 2) {
        for (const char *event = content; event < content + size;) {
            const char *line = memchr(event, '\n', (size_t)(content + size - event));
            if (kind_of(event, line - event) == USAGE && keep_usage(self, event, line - event) < 0) {
                return -1;
            }
            event = line + 2;
        }
    }
    return 0;
}

enum { TAKEN = 1, DUE = 2, ENDED = 4 };

static PyObject *taken(const EventStream *self, int ended) {
    return PyLong_FromLong(TAKEN | (self->tokens >= self->due ? DUE : 0) | (ended ? ENDED : 0));
}

static PyObject *take_by_twin(EventStream *self, PyObject *const *args) {
    PyObject *twin = twin_of(self);
    PyObject *found = twin == NULL ? NULL : PyObject_CallMethod(twin, "take", "OO", args[0], args[1]);
    long flags = found == NULL ? -1 : PyLong_AsLong(found);
    if (twin == NULL || count_twins(self, twin, found) < 0 || flags < 0) {
        return PyErr_Occurred() ? NULL : PyLong_FromLong(0);
    }
    return flags == 0 ? PyLong_FromLong(0) : taken(self, (flags & ENDED) != 0);
}

PyDoc_STRVAR(take_doc,
"take(data, may_end) -> int\n\nCount `data`, which stands between two chunks of HTTP, if it is nothing but "
"whole plain chunks of\nwhole ordinary events, and, if it `may_end`, the last chunk, so that it may be "
"passed on as it came:\n1, with 2 once `tokens` are `due` and 4 at the end. Else 0, and nothing has changed.");

static PyObject *stream_take(EventStream *self, PyObject *const *args, Py_ssize_t nargs) {
    static const char last_chunk[] = "0\r\n\r\n";
    if (nargs != 2 || !PyBytes_CheckExact(args[0])) {
        PyErr_SetString(PyExc_TypeError, "take takes bytes and whether they may end");
        return NULL;
    }
    const char *at = PyBytes_AS_STRING(args[0]), *end = at + PyBytes_GET_SIZE(args[0]);
    int may_end = PyObject_IsTrue(args[1]);
    if (may_end < 0) {
        return NULL;
    }
    if (self->handed_over) {
        return take_by_twin(self, args);
    }
    if (self->held != NULL || at == end) {
        return PyLong_FromLong(0);
    }
    Py_ssize_t tokens = 0;
    int last = RARE, ended = 0;
    unsigned kinds = 0;
    while (at < end) {
        ended = may_end && end - at == LENGTH(last_chunk) && memcmp(at, last_chunk, 5) == 0;
        if (ended) {
            break;
        }
        const char *content = at;
        Py_ssize_t size = chunk_size(at, end, &content);
        if (size <= 0 || end - content < size + 2 || content[size] != '\r' ||
            content[size + 1] != '\n' || memchr(content, '\r', (size_t)size) != NULL) {
            return PyLong_FromLong(0);
        }
        Py_ssize_t found = count_plain(content, size, &last, &kinds);
        if (found < 0) {
            return PyLong_FromLong(0);
        }
        tokens += found;
        at = content + size + 2;
    }
    if ((kinds & 1u << USAGE) != 0 && keep_usages(self, PyBytes_AS_STRING(args[0]), end) < 0) {
        return NULL;
    }
    self->tokens += tokens;
    self->done |= (kinds & 1u << END) != 0;
    if (last != RARE) {
        self->complete = last == END;
    }
    return taken(self, ended);
}

PyDoc_STRVAR(flush_doc, "flush() -> bytes\n\nReturn what is held: the stream has ended.");

static PyObject *stream_flush(EventStream *self, PyObject *none) {
    (void)none;
    if (self->handed_over) {
        return ask_twin(self, "flush", 1);
    }
    PyObject *held = self->held;
    self->held = NULL;
    return held == NULL ? PyBytes_FromStringAndSize(NULL, 0) : held;
}

PyDoc_STRVAR(is_complete_doc,
"is_complete() -> bool\n\nReturn whether the last event that passed was `[DONE]`: nothing is missing.");

static PyObject *stream_is_complete(EventStream *self, PyObject *none) {
    (void)none;
    if (self->handed_over) {
        return ask_twin(self, "is_complete", 1);
    }
    return PyBool_FromLong(self->complete);
}

/* Attributes that the twin alone can have: `closure` is the name, and what stands for it without. */
typedef struct {
    const char *name;
    int kind; /* 0: 0, 1: b"", 2: None, 3: False */
} Told;

static PyObject *get_told(EventStream *self, void *closure) {
    const Told *told = closure;
    if (self->twin != NULL) {
        return ask_twin(self, told->name, 0);
    }
    switch (told->kind) {
    case 0:
        return PyLong_FromLong(0);
    case 1:
        return PyBytes_FromStringAndSize(NULL, 0);
    case 2:
        Py_RETURN_NONE;
    default:
        Py_RETURN_FALSE;
    }
}

static PyObject *get_done(EventStream *self, void *closure) {
    if (self->done) {
        Py_RETURN_TRUE;
    }
    return get_told(self, closure);
}

static PyObject *get_usage(EventStream *self, void *closure) {
    if (self->handed_over) {
        return get_told(self, closure);
    }
    return read_usage(self) < 0 ? NULL : Py_NewRef(self->usage == NULL ? Py_None : self->usage);
}

static PyObject *get_held(EventStream *self, void *closure) {
    if (self->handed_over) {
        return get_told(self, closure);
    }
    return self->held == NULL ? PyBytes_FromStringAndSize(NULL, 0) : Py_NewRef(self->held);
}

static const Told told[] = {{"done", 3}, {"errors", 0}, {"error", 1}, {"usage", 2}, {"held", 1}, {"torn", 3}};

static PyGetSetDef stream_told[] = {
    {"done", (getter)get_done, NULL, "whether `[DONE]` was seen as an event of its own", (void *)&told[0]},
    {"errors", (getter)get_told, NULL, "error events", (void *)&told[1]},
    {"error", (getter)get_told, NULL, "the last error event's data", (void *)&told[2]},
    {"usage", (getter)get_usage, NULL, "what was reported last, or None", (void *)&told[3]},
    {"held", (getter)get_held, NULL, "what has not passed yet", (void *)&told[4]},
    {"torn", (getter)get_told, NULL, "whether a part of an overlong event has passed", (void *)&told[5]},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef stream_members[] = {
    {"tokens", T_PYSSIZET, offsetof(EventStream, tokens), READONLY, "events that carry output"},
    {"due", T_PYSSIZET, offsetof(EventStream, due), 0, "the tokens at which `take` says so"},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef stream_methods[] = {
    {"feed", (PyCFunction)stream_feed, METH_O, feed_doc},
    {"take", (PyCFunction)(void (*)(void))stream_take, METH_FASTCALL, take_doc},
    {"flush", (PyCFunction)stream_flush, METH_NOARGS, flush_doc},
    {"is_complete", (PyCFunction)stream_is_complete, METH_NOARGS, is_complete_doc},
    {NULL, NULL, 0, NULL},
};

static PyObject *stream_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *make, *find;
    if (kwargs != NULL && PyDict_GET_SIZE(kwargs) > 0) {
        PyErr_SetString(PyExc_TypeError, "EventStream takes no keyword arguments");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "OO:EventStream", &make, &find)) {
        return NULL;
    }
    EventStream *self = (EventStream *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->make = Py_NewRef(make);
        self->find = Py_NewRef(find);
        self->due = 1;
    }
    return (PyObject *)self;
}

static int stream_traverse(EventStream *self, visitproc visit, void *arg) {
    Py_VISIT(self->make);
    Py_VISIT(self->find);
    Py_VISIT(self->usage);
    Py_VISIT(self->twin);
    return 0;
}

static int stream_clear(EventStream *self) {
    Py_CLEAR(self->find);
    Py_CLEAR(self->usage);
    Py_CLEAR(self->make);
    Py_CLEAR(self->twin);
    return 0;
}

static void stream_dealloc(EventStream *self) {
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->make);
    Py_CLEAR(self->twin);
    Py_CLEAR(self->held);
    Py_CLEAR(self->find);
    Py_CLEAR(self->usage);
    Py_CLEAR(self->unread);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

PyTypeObject event_stream_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "kvmesh._native.EventStream",
    .tp_basicsize = sizeof(EventStream),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "EventStream(make, find_usage)\n\nWhat core.engines.event_stream.EventStream does; `make` makes one.",
    .tp_new = stream_new,
    .tp_dealloc = (destructor)stream_dealloc,
    .tp_traverse = (traverseproc)stream_traverse,
    .tp_clear = (inquiry)stream_clear,
    .tp_methods = stream_methods,
    .tp_members = stream_members,
    .tp_getset = stream_told,
};
