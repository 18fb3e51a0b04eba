/* GrpcSession: one HTTP/2 connection of a gRPC server. What Python sees of it.
 *
 * Taking bytes makes objects, which may run the collector and with it any finaliser. `busy` keeps
 * those out: no method runs while another does.
 */
#include "base/shell.h"
#include "http2/h2_session.h"

static int enter(Session *self) {
    REFUSE(self->busy, PyExc_RuntimeError, "a GrpcSession was called from within itself");
    self->busy = 1;
    return 0;
}

/* Return None, or NULL after a failure. */
static PyObject *leave(Session *self, int failed) {
    self->busy = 0;
    return failed < 0 ? NULL : Py_NewRef(Py_None);
}

/* Return the events, or NULL after a failure. */
static PyObject *leave_with(Session *self, int failed, PyObject *events) {
    self->busy = 0;
    if (failed < 0) {
        Py_CLEAR(events);
    }
    return events;
}

static PyObject *receive_method(Session *self, PyObject *given) {
    Py_buffer data;
    TRY_OR_NULL(PyObject_GetBuffer(given, &data, PyBUF_SIMPLE));
    PyObject *events = PyList_New(0);
    if (events == NULL || enter(self) < 0) {
        Py_XDECREF(events);
        PyBuffer_Release(&data);
        return NULL;
    }
    int failed = self->over ? 0 : receive_bytes(self, data.buf, (size_t)data.len, events);
    events = leave_with(self, failed, events);
    PyBuffer_Release(&data);
    return events;
}

/* Read a stream's id; 0 with an exception set. What no id can be is no stream's: 2. */
static uint32_t read_id(PyObject *given) {
    int beyond;
    long long id = PyLong_AsLongLongAndOverflow(given, &beyond);
    if (id == -1 && PyErr_Occurred()) {
        return 0;
    }
    return beyond || id < 1 || id > MOST_STREAM ? 2 : (uint32_t)id;
}

/* Return messages as a list or tuple of bytes, a new reference. */
static PyObject *read_messages(PyObject *given) {
    PyObject *messages = PySequence_Fast(given, "messages are a sequence of bytes");
    for (Py_ssize_t i = 0; messages != NULL && i < PySequence_Fast_GET_SIZE(messages); i++) {
        PyObject *message = PySequence_Fast_GET_ITEM(messages, i);
        if (!PyBytes_Check(message) || PyBytes_GET_SIZE(message) > UINT32_MAX) {
            PyErr_Format(PyExc_TypeError, "a message is bytes, fewer than 2^32, not %.50s",
                         Py_TYPE(message)->tp_name);
            Py_CLEAR(messages);
        }
    }
    return messages;
}

static PyObject *send_method(Session *self, ARGUMENTS) {
    PyObject *stream_id, *given;
    TRY_OR_NULL(READ_PLACED("send", "OO", "stream_id messages", &stream_id, &given));
    uint32_t id = read_id(stream_id);
    PyObject *messages = id == 0 ? NULL : read_messages(given);
    if (messages == NULL || enter(self) < 0) {
        Py_XDECREF(messages);
        return NULL;
    }
    Stream *stream = stream_find(self, id);
    size_t waiting = 0;
    int failed = 0;
    if (stream != NULL && !stream->finished) {
        failed = send_messages(self, stream, messages);
        waiting = buffer_size(&stream->waiting);
        stream->pause_reported |= waiting > (size_t)self->limits.waiting_bytes;
    }
    self->busy = 0;
    Py_DECREF(messages);
    return failed < 0 ? NULL : PyLong_FromSize_t(waiting);
}

static PyObject *finish_method(Session *self, ARGUMENTS) {
    PyObject *stream_id, *given, *text;
    long long status;
    TRY_OR_NULL(READ_PLACED("finish", "OOLS", "stream_id messages status text", &stream_id, &given,
                            &status, &text));
    REFUSE_OR_NULL(status < 0 || status > 0xffff, PyExc_ValueError,
                   "a gRPC status is a number from 0, not %lld", status);
    uint32_t id = read_id(stream_id);
    PyObject *messages = id == 0 ? NULL : read_messages(given);
    if (messages == NULL || enter(self) < 0) {
        Py_XDECREF(messages);
        return NULL;
    }
    Stream *stream = stream_find(self, id);
    int failed = 0;
    if (stream != NULL && !stream->finished) {
        failed = send_messages(self, stream, messages);
        Py_XSETREF(stream->text, Py_NewRef(text));
        stream->status = (int)status;
        stream->finished = 1;
        failed = failed < 0 ? -1 : send_end(self, stream);
    }
    Py_DECREF(messages);
    return leave(self, failed);
}

static PyObject *reset_method(Session *self, ARGUMENTS) {
    REFUSE_OR_NULL(nargs != 2, PyExc_TypeError, "reset takes 2 arguments, not %zd", nargs);
    uint32_t id = read_id(args[0]);
    unsigned long code = id == 0 ? 0 : PyLong_AsUnsignedLongMask(args[1]);
    if (id == 0 || PyErr_Occurred() || enter(self) < 0) {
        return NULL;
    }
    Stream *stream = stream_find(self, id);
    return leave(self, stream == NULL || self->over ? 0 : reset_stream(self, stream, (uint32_t)code));
}

static PyObject *hold_method(Session *self, PyObject *given) {
    uint32_t id = read_id(given);
    if (id == 0 || enter(self) < 0) {
        return NULL;
    }
    Stream *stream = stream_find(self, id);
    if (stream != NULL) {
        stream->held = 1;
    }
    return leave(self, 0);
}

static PyObject *grant_method(Session *self, PyObject *given) {
    uint32_t id = read_id(given);
    if (id == 0 || enter(self) < 0) {
        return NULL;
    }
    Stream *stream = stream_find(self, id);
    int failed = 0;
    if (stream != NULL && stream->held) {
        stream->held = 0;
        failed = credit(self, stream);
    }
    return leave(self, failed);
}

static PyObject *block_method(Session *self, PyObject *Py_UNUSED(unused)) {
    self->blocked = 1;
    Py_RETURN_NONE;
}

static PyObject *unblock_method(Session *self, PyObject *Py_UNUSED(unused)) {
    PyObject *events = PyList_New(0);
    if (events == NULL || enter(self) < 0) {
        Py_XDECREF(events);
        return NULL;
    }
    self->blocked = 0;
    return leave_with(self, send_waiting(self, events), events);
}

static PyObject *drain_method(Session *self, PyObject *Py_UNUSED(unused)) {
    if (self->over || self->draining) {
        Py_RETURN_NONE;
    }
    TRY_OR_NULL(enter(self));
    self->draining = 1;
    int failed = put_goaway(self, MOST_STREAM, NO_ERROR, "draining") < 0 ||
                 put_frame(self, PING, 0, 0, drain_ping, sizeof drain_ping) < 0;
    return leave(self, failed ? -1 : 0);
}

static PyObject *reset_idle_method(Session *self, PyObject *Py_UNUSED(unused)) {
    TRY_OR_NULL(enter(self));
    self->idle_frames = self->early_resets = 0;
    int failed = 0;
    for (size_t i = 0; i < self->bucket_count; i++) {
        for (Stream *next, *stream = self->buckets[i]; stream != NULL && failed == 0; stream = next) {
            next = stream->same_bucket;
            if (stream->local_over && stream->left && !self->over) {
                failed = reset_stream(self, stream, NO_ERROR);
            } else {
                stream->left = stream->local_over;
            }
        }
    }
    return leave(self, failed);
}

static PyObject *take_method(Session *self, PyObject *Py_UNUSED(unused)) {
    Buffer *out = &self->out;
    PyObject *taken = PyBytes_FromStringAndSize((char *)out->at, (Py_ssize_t)out->size);
    if (taken != NULL && out->size > 0) {
        buffer_take(out, out->size);
    }
    return taken;
}

static int limits_are_sound(const SessionLimits *limits) {
    return limits->streams > 0 && limits->message_bytes >= 0 && limits->message_bytes <= UINT32_MAX &&
           limits->header_bytes > 0 && limits->header_bytes <= INT32_MAX && limits->stream_window > 0 &&
           limits->stream_window <= LARGEST_WINDOW && limits->connection_window >= DEFAULT_WINDOW &&
           limits->connection_window <= LARGEST_WINDOW && limits->streams <= LARGEST_WINDOW &&
           limits->waiting_bytes >= 0 && limits->idle_frames >= 0 && limits->early_resets >= 0;
}

static PyObject *session_new(NEW_ARGUMENTS) {
    SessionLimits limits;
    TRY_OR_NULL(READ_NEW("GrpcSession", "nnnnnnnn",
                         "streams message_bytes header_bytes stream_window connection_window "
                         "waiting_bytes idle_frames early_resets", &limits.streams,
                         &limits.message_bytes, &limits.header_bytes, &limits.stream_window,
                         &limits.connection_window, &limits.waiting_bytes, &limits.idle_frames,
                         &limits.early_resets));
    REFUSE_OR_NULL(!limits_are_sound(&limits), PyExc_ValueError,
                   "limits out of range: windows are 1 to 2^31-1 bytes, that "
                   "of a connection at least 65,535");
    Session *self = (Session *)type->tp_alloc(type, 0);
    NEED_OR_NULL(self);
    hpack_init(&self->hpack);
    self->limits = limits;
    self->peer_window = self->peer_initial = DEFAULT_WINDOW;
    self->window = limits.connection_window;
    if (put_greeting(self) < 0) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static void session_dealloc(Session *self) {
    hpack_free(&self->hpack);
    streams_free(self);
    buffer_free(&self->out);
    buffer_free(&self->frame);
    buffer_free(&self->block);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

MEMBERS(members,
    FIELDS(Session, T_PYSSIZET, READONLY, open_streams, held_bytes)
    FIELDS(Session, T_BOOL, READONLY, greeted, drained))

METHODS(methods,
    METHOD_O("receive", receive_method),
    METHOD_FASTCALL("send", send_method),
    METHOD_FASTCALL("finish", finish_method),
    METHOD_FASTCALL("reset", reset_method),
    METHOD_O("hold", hold_method),
    METHOD_O("grant", grant_method),
    METHOD_NOARGS("block", block_method),
    METHOD_NOARGS("unblock", unblock_method),
    METHOD_NOARGS("drain", drain_method),
    METHOD_NOARGS("reset_idle", reset_idle_method),
    METHOD_NOARGS("take", take_method))

PyTypeObject session_type = {
    TYPE("GrpcSession", Session, session),
    .tp_members = members, .tp_methods = methods,
};
