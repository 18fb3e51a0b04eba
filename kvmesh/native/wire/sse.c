/* A stream of server-sent events seen in passing: what `kvmesh.core.engines.event_stream` does.
 *
 * What engines send is done here: whole and cut events whose lines end in LF, tokens, `[DONE]`; usage
 * is decoded when asked for. The pure twin, made when first needed, takes the rest: events that may be
 * errors or have several lines; and the whole stream from the first CR or overlong event on.
 */
#define _GNU_SOURCE
#include "base/shell.h"
#include "wire/sse.h"
#include <string.h>

#define MOST_HELD (1 << 16)
#define MOST_KEPT ((long long)1 << 40)
#define ID_TEXT_PER_BYTE 3 /* an id of 4 bytes has at most 10 digits, a comma and a blank */

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
        int kind = one ? event_kind(at, end - at) : EVENT_RARE;
        if (end == at) {
            ; /* a blank line more */
        } else if (kind <= EVENT_REASON) {
            self->tokens++;
            self->reasoned |= kind == EVENT_REASON;
            self->reported |= kind == EVENT_USAGE;
            TRY_IF(kind != EVENT_TOKEN, stream_keep_usage(self, at, end - at));
        } else if (kind == EVENT_END) {
            self->done = 1;
        } else if (stream_take_rare(self, at, end - at) < 0) {
            return -1;
        }
        at = end + 2;
    }
    return 0;
}

/* Count the events in what passes. Returns it; NULL, with the reference gone, if that failed. */
static PyObject *count_passed(EventStream *self, PyObject *passed) {
    const char *text = PyBytes_AS_STRING(passed);
    Py_ssize_t end = PyBytes_GET_SIZE(passed);
    if (end > 0) {
        self->complete = (char)ends_in_done(text, end);
        if (count_events(self, text, end) < 0) {
            Py_CLEAR(passed);
        }
    }
    return passed;
}

/* Take a piece behind what is held, which grows by doubling and is not searched again: bytes that come
 * one by one cost as much as at once. */
static PyObject *feed_behind(EventStream *self, PyObject *data) {
    const char *text = PyBytes_AS_STRING(data);
    Py_ssize_t size = PyBytes_GET_SIZE(data), before = PyByteArray_GET_SIZE(self->held);
    Py_ssize_t end = behind_last_event(text, size);
    if (end == 0 && size > 0 && text[0] == '\n' && PyByteArray_AS_STRING(self->held)[before - 1] == '\n') {
        end = 1; /* the blank line was cut */
    }
    Py_ssize_t rest = size - end + (end == 0 ? before : 0);
    if (rest > self->most_held) {
        return stream_hand_over(self) < 0 ? NULL : stream_feed_twin(self, data);
    }
    if (end == 0) {
        TRY_OR_NULL(PyByteArray_Resize(self->held, before + size));
        memcpy(PyByteArray_AS_STRING(self->held) + before, text, (size_t)size);
        return PyBytes_FromStringAndSize(NULL, 0);
    }
    PyObject *passed = PyBytes_FromStringAndSize(NULL, before + end);
    PyObject *tail = rest == 0 ? NULL : PyByteArray_FromStringAndSize(text + end, rest);
    if (passed == NULL || (tail == NULL && rest > 0)) {
        Py_XDECREF(passed);
        return NULL;
    }
    memcpy(PyBytes_AS_STRING(passed), PyByteArray_AS_STRING(self->held), (size_t)before);
    memcpy(PyBytes_AS_STRING(passed) + before, text, (size_t)end);
    Py_XSETREF(self->held, tail);
    return count_passed(self, passed);
}

/* Return what may pass of a piece more, as it came. */
static PyObject *feed_piece(EventStream *self, PyObject *data) {
    const char *text = PyBytes_AS_STRING(data);
    Py_ssize_t size = PyBytes_GET_SIZE(data);
    int odd = !self->handed_over && memchr(text, '\r', (size_t)size) != NULL;
    if (odd && stream_hand_over(self) < 0) {
        return NULL;
    }
    if (self->handed_over) {
        return stream_feed_twin(self, data);
    }
    if (self->held != NULL) {
        return feed_behind(self, data);
    }
    Py_ssize_t end = behind_last_event(text, size);
    if (size - end > self->most_held) {
        return stream_hand_over(self) < 0 ? NULL : stream_feed_twin(self, data);
    }
    PyObject *passed = end == size ? Py_NewRef(data) : PyBytes_FromStringAndSize(text, end);
    PyObject *rest = end == size ? NULL : PyByteArray_FromStringAndSize(text + end, size - end);
    if (passed == NULL || (rest == NULL && end < size)) {
        Py_XDECREF(passed);
        return NULL;
    }
    self->held = rest;
    return count_passed(self, passed);
}

static PyObject *stream_feed(EventStream *self, PyObject *data) {
    REFUSE_OR_NULL(!PyBytes_CheckExact(data), PyExc_TypeError, "bytes, not %.50s",
                   Py_TYPE(data)->tp_name);
    PyObject *passed = feed_piece(self, data);
    if (passed == NULL || !PyBytes_CheckExact(passed)) {
        return passed;
    }
    if (self->hides_usage && (self->reported || self->handed_over)) {
        passed = without_usage(passed);
        self->reported = 0;
    }
    if (self->keeper == NULL || passed == NULL) {
        return passed;
    }
    return keeper_pass(self->keeper, passed);
}

/* Keep what chunks that were counted report. */
static int keep_usages(EventStream *self, const char *at, const char *end) {
    Py_ssize_t size;
    const char *content = at;
    for (; (size = chunk_size(at, end, &content)) > 0; at = content + size + 2) {
        for (const char *event = content; event < content + size;) {
            const char *line = memchr(event, '\n', (size_t)(content + size - event));
            int kind = event_kind(event, line - event);
            TRY_IF((kind == EVENT_USAGE || kind == EVENT_REASON),
                   stream_keep_usage(self, event, line - event));
            event = line + 2;
        }
    }
    return 0;
}

/* Return what `take` says of chunks that it took, with those to pass instead, if there are any.
 * `reported`: they may report usage. */
static PyObject *taken(EventStream *self, PyObject *chunks, int ended, int reported) {
    long flags = STREAM_TAKEN | (self->tokens >= self->due ? STREAM_DUE : 0) | (ended ? STREAM_ENDED : 0);
    int hides = self->hides_usage && reported;
    if (self->keeper == NULL && !hides) {
        return PyLong_FromLong(flags);
    }
    PyObject *passed = hides ? chunks_without_usage(chunks) : Py_NewRef(chunks);
    if (passed != NULL && self->keeper != NULL) {
        PyObject *left = passed;
        passed = keeper_pass_chunks(self->keeper, left);
        Py_DECREF(left);
    }
    NEED_OR_NULL(passed);
    if (passed != chunks && flags == STREAM_TAKEN) {
        return passed; /* as of most chunks of a stream that is kept */
    }
    PyObject *said = passed == chunks ? PyLong_FromLong(flags) : Py_BuildValue("lO", flags, passed);
    Py_DECREF(passed);
    return said;
}

static PyObject *take_by_twin(EventStream *self, PyObject *const *args) {
    PyObject *twin = stream_twin(self);
    PyObject *found = twin == NULL ? NULL : PyObject_CallMethod(twin, "take", "OO", args[0], args[1]);
    long flags = found == NULL ? -1 : PyLong_AsLong(found);
    if (twin == NULL || stream_count_twins(self, twin, found) < 0 || flags < 0) {
        return PyErr_Occurred() ? NULL : PyLong_FromLong(0);
    }
    return flags == 0 ? PyLong_FromLong(0) : taken(self, args[0], (flags & STREAM_ENDED) != 0, 1);
}

static PyObject *stream_take(EventStream *self, ARGUMENTS) {
    static const char last_chunk[] = "0\r\n\r\n";
    REFUSE_OR_NULL(nargs != 2 || !PyBytes_CheckExact(args[0]), PyExc_TypeError,
                   "take takes bytes and whether they may end");
    const char *at = PyBytes_AS_STRING(args[0]), *end = at + PyBytes_GET_SIZE(args[0]);
    int may_end = PyObject_IsTrue(args[1]);
    TRY_OR_NULL(may_end);
    if (self->handed_over) {
        return take_by_twin(self, args);
    }
    if (self->held != NULL || at == end) {
        return PyLong_FromLong(0);
    }
    Py_ssize_t tokens = 0;
    int last = EVENT_RARE, ended = 0;
    unsigned kinds = 0;
    while (at < end) {
        ended = may_end && end - at == TEXT_LENGTH(last_chunk) && memcmp(at, last_chunk, 5) == 0;
        if (ended) {
            break;
        }
        const char *content = at;
        Py_ssize_t size = chunk_size(at, end, &content);
        if (size <= 0 || end - content < size + 2 || content[size] != '\r' ||
            content[size + 1] != '\n' || memchr(content, '\r', (size_t)size) != NULL) {
            return PyLong_FromLong(0);
        }
        Py_ssize_t found = count_plain_events(content, size, &last, &kinds);
        if (found < 0) {
            return PyLong_FromLong(0);
        }
        tokens += found;
        at = content + size + 2;
    }
    if ((kinds & (1u << EVENT_USAGE | 1u << EVENT_REASON)) != 0 && keep_usages(self, PyBytes_AS_STRING(args[0]), end) < 0) {
        return NULL;
    }
    self->tokens += tokens;
    self->done |= (kinds & 1u << EVENT_END) != 0;
    self->reasoned |= (kinds & 1u << EVENT_REASON) != 0;
    if (last != EVENT_RARE) {
        self->complete = last == EVENT_END;
    }
    return taken(self, args[0], ended, (kinds & 1u << EVENT_USAGE) != 0);
}

static PyObject *stream_keep(EventStream *self, NAMED_ARGUMENTS) {
    long long most_bytes;
    int strip, marking = 0;
    TRY_OR_NULL(READ("keep", "Np|p", "most_bytes strip marking", &most_bytes, &strip, &marking));
    REFUSE_OR_NULL(most_bytes < 0, PyExc_ValueError, "%lld bytes to keep: none are fewer",
                   most_bytes);
    REFUSE_OR_NULL(self->keeper != NULL || self->tokens > 0 || self->held != NULL || self->done ||
                   self->twin != NULL, PyExc_RuntimeError,
                   "a stream that has begun, or is kept already");
    most_bytes = most_bytes > MOST_KEPT ? MOST_KEPT : most_bytes;
    self->most_held = MOST_HELD + ID_TEXT_PER_BYTE * (Py_ssize_t)most_bytes;
    self->keeper = keeper_new((Py_ssize_t)most_bytes, strip, marking, self->most_held);
    return self->keeper == NULL ? NULL : Py_NewRef(Py_None);
}

static PyObject *get_kept(EventStream *self, void *Py_UNUSED(closure)) {
    if (self->keeper == NULL) {
        Py_RETURN_NONE;
    }
    REFUSE_OR_NULL(self->kept == NULL, PyExc_RuntimeError, "a stream that was collected");
    PyObject *make = Py_NewRef(self->kept), *told = keeper_tell(self->keeper, make);
    Py_DECREF(make);
    return told;
}

static PyObject *stream_sizeof(EventStream *self, PyObject *Py_UNUSED(none)) {
    Py_ssize_t kept = self->keeper == NULL ? 0 : keeper_size(self->keeper);
    return PyLong_FromSsize_t(Py_TYPE(self)->tp_basicsize + kept);
}

static PyObject *stream_flush(EventStream *self, PyObject *Py_UNUSED(none)) {
    if (self->handed_over) {
        return stream_ask_twin(self, "flush", 1);
    }
    PyObject *held = stream_held(self);
    if (held != NULL) {
        Py_CLEAR(self->held);
    }
    return held;
}

static PyObject *stream_is_complete(EventStream *self, PyObject *Py_UNUSED(none)) {
    if (self->handed_over) {
        return stream_ask_twin(self, "is_complete", 1);
    }
    return PyBool_FromLong(self->complete);
}

/* Attributes that the twin alone can have: `closure` is the name, and what stands for it without. */
typedef struct {
    const char *name;
    int kind; /* 0: 0, 1: b"", 2: None, 3: False */
} Property;

static PyObject *read_property(EventStream *self, void *closure) {
    const Property *property = closure;
    if (self->twin != NULL) {
        return stream_ask_twin(self, property->name, 0);
    }
    switch (property->kind) {
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
    return read_property(self, closure);
}

static PyObject *get_reasoned(EventStream *self, void *closure) {
    if (self->reasoned) {
        Py_RETURN_TRUE;
    }
    return read_property(self, closure);
}

static PyObject *get_usage(EventStream *self, void *closure) {
    if (self->handed_over) {
        return read_property(self, closure);
    }
    return stream_read_usage(self) < 0 ? NULL : Py_NewRef(self->usage == NULL ? Py_None : self->usage);
}

static PyObject *get_held(EventStream *self, void *closure) {
    if (self->handed_over) {
        return read_property(self, closure);
    }
    return stream_held(self);
}

static const Property property[] = {{"done", 3}, {"errors", 0}, {"error", 1}, {"usage", 2}, {"held", 1}, {"torn", 3}, {"reasoned", 3}};

GETTERS(stream_properties,
    {"done", (getter)get_done, NULL, "whether `[DONE]` was seen as an event of its own", (void *)&property[0]},
    {"errors", (getter)read_property, NULL, "error events", (void *)&property[1]},
    {"error", (getter)read_property, NULL, "the last error event's data", (void *)&property[2]},
    {"usage", (getter)get_usage, NULL, "what was reported last, or None", (void *)&property[3]},
    {"held", (getter)get_held, NULL, "what has not passed yet", (void *)&property[4]},
    {"torn", (getter)read_property, NULL, "whether a part of an overlong event has passed", (void *)&property[5]},
    {"kept", (getter)get_kept, NULL, "what was kept so far, None without `keep`", NULL},
    {"reasoned", (getter)get_reasoned, NULL, "whether an event said why the answer ended", (void *)&property[6]})

MEMBERS(stream_members,
    FIELDS(EventStream, T_PYSSIZET, READONLY, tokens)
    FIELDS(EventStream, T_PYSSIZET, 0, due)
    FIELDS(EventStream, T_BOOL, 0, hides_usage))

METHODS(stream_methods,
    METHOD_O("feed", stream_feed),
    METHOD_FASTCALL("take", stream_take),
    METHOD_KEYWORDS("keep", stream_keep),
    METHOD_NOARGS("flush", stream_flush),
    METHOD_NOARGS("is_complete", stream_is_complete),
    METHOD_NOARGS("__sizeof__", stream_sizeof))

static PyObject *stream_new(NEW_ARGUMENTS) {
    EventStream *self = (EventStream *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->due = 1;
        self->most_held = MOST_HELD;
        if (READ_NEW("EventStream", "+O+O+O", "make find_usage kept", &self->make, &self->find,
                     &self->kept) < 0) {
            Py_CLEAR(self);
        }
    }
    return (PyObject *)self;
}

TRAVERSE(EventStream, stream, make, find, usage, twin, kept)

static int stream_clear(EventStream *self) {
    CLEAR_ALL(self->find, self->usage, self->make, self->twin, self->kept);
    return 0;
}

static void stream_dealloc(EventStream *self) {
    PyObject_GC_UnTrack(self);
    CLEAR_ALL(self->make, self->twin, self->held, self->find, self->usage, self->unread, self->kept);
    keeper_free(self->keeper);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

PyTypeObject event_stream_type = {
    GC_TYPE("EventStream", EventStream, stream),
    .tp_clear = (inquiry)stream_clear,
    .tp_members = stream_members, .tp_getset = stream_properties, .tp_methods = stream_methods,
};
