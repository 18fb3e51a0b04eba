/* The calls of a gRPC client: their heads, their messages, their ends. */
#include "http2/h2_session.h"

#define FIRST_ROOM (64 * 1024) /* of a message that is not whole: more is taken as its bytes arrive */
#define MOST_REASON 128

static int is_token(const uint8_t *at, Py_ssize_t size) {
    for (Py_ssize_t i = 0; i < size; i++) {
        uint8_t letter = at[i];
        if (letter <= ' ' || letter >= 127 || (letter >= 'A' && letter <= 'Z') ||
            (letter == ':' && i > 0)) {
            return 0;
        }
    }
    return size > 0;
}

static int is_value(const uint8_t *at, Py_ssize_t size) {
    for (Py_ssize_t i = 0; i < size; i++) {
        if (at[i] == 0 || at[i] == '\r' || at[i] == '\n') {
            return 0;
        }
    }
    return 1;
}

static int is_text(PyObject *bytes, const char *text) {
    size_t size = strlen(text);
    return (size_t)PyBytes_GET_SIZE(bytes) == size && memcmp(PyBytes_AS_STRING(bytes), text, size) == 0;
}

/* Return the bit of a pseudo header of a request, 0 for a name that is none. */
static unsigned pseudo_bit(PyObject *name) {
    static const char *const names[] = {":method", ":path", ":scheme", ":authority"};
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
        if (is_text(name, names[i])) {
            return 1u << i;
        }
    }
    return 0;
}

static int is_of_one_hop(PyObject *name, PyObject *value) {
    static const char *const names[] = {"connection", "keep-alive", "proxy-connection",
                                        "transfer-encoding", "upgrade"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (is_text(name, names[i])) {
            return 1;
        }
    }
    return is_text(name, "te") && !is_text(value, "trailers");
}

static int head_is_sound(PyObject *fields, int trailers) {
    enum { METHOD = 1, PATH = 2, SCHEME = 4 };
    unsigned met = 0;
    int regular = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(fields); i++) {
        PyObject *field = PyTuple_GET_ITEM(fields, i);
        PyObject *name = PyTuple_GET_ITEM(field, 0), *value = PyTuple_GET_ITEM(field, 1);
        const uint8_t *at = (const uint8_t *)PyBytes_AS_STRING(name);
        EXPECT(is_token(at, PyBytes_GET_SIZE(name)) && is_value((const uint8_t
                                                                 *)PyBytes_AS_STRING(value),
                                                                PyBytes_GET_SIZE(value)));
        if (at[0] != ':') {
            regular = 1;
            if (is_of_one_hop(name, value)) {
                return 0;
            }
            continue;
        }
        unsigned bit = pseudo_bit(name);
        if (bit == 0 || met & bit || regular || trailers) {
            return 0;
        }
        met |= bit;
    }
    return trailers || (met & (METHOD | PATH | SCHEME)) == (METHOD | PATH | SCHEME);
}

static int break_stream(Session *self, Stream *stream, int status, const char *text, PyObject *events) {
    uint32_t id = stream->id;
    TRY(finish_stream(self, stream, status, text));
    return add_event(events, id, BROKEN, Py_BuildValue("(is)", status, text));
}

/* Note that the peer has ended its side; the stream may be gone afterwards. */
static int take_end(Session *self, Stream *stream, PyObject *events) {
    stream->remote_over = 1;
    if (stream->local_over) {
        stream_drop(self, stream);
        return 0;
    }
    if (stream->finished) {
        return 0;
    }
    if (stream->prefix_size > 0) {
        return break_stream(self, stream, GRPC_INTERNAL, "the stream ended within a message", events);
    }
    return add_event(events, stream->id, ENDED, Py_NewRef(Py_None));
}

/* A head of a stream that is open: trailers of the client, which end it. */
static int take_trailers(Session *self, Stream *stream, int flags, PyObject *fields, PyObject *events) {
    if (flags & END_STREAM && !stream->remote_over && head_is_sound(fields, 1)) {
        return take_end(self, stream, events);
    }
    int open = !stream->finished;
    uint32_t id = stream->id;
    TRY(reset_stream(self, stream, PROTOCOL_ERROR));
    return open ? add_event(events, id, RESET, PyLong_FromLong(PROTOCOL_ERROR)) : 0;
}

static int take_request(Session *self, uint32_t id, int flags, PyObject *fields, PyObject *events) {
    if (id <= self->last_stream) {
        Stream *stream = stream_find(self, id);
        return stream != NULL ? take_trailers(self, stream, flags, fields, events)
                              : put_number(self, RST_STREAM, id, STREAM_CLOSED);
    }
    self->last_stream = id;
    if (self->open_streams >= self->limits.streams || self->drained) {
        self->early_resets++;
        return put_number(self, RST_STREAM, id, REFUSED_STREAM);
    }
    if (!head_is_sound(fields, 0)) {
        self->early_resets++;
        return put_number(self, RST_STREAM, id, PROTOCOL_ERROR);
    }
    Stream *stream = stream_open(self, id);
    NEED(stream);
    TRY(add_event(events, id, OPENED, Py_NewRef(fields)));
    return flags & END_STREAM ? take_end(self, stream, events) : 0;
}

int take_head(Session *self, uint32_t id, int flags, const uint8_t *block, size_t size, PyObject *events) {
    PyObject *found = PyList_New(0);
    NEED(found);
    int read = hpack_decode(&self->hpack, block, size, (size_t)self->limits.header_bytes, found);
    PyObject *fields = read == HPACK_READ ? PyList_AsTuple(found) : NULL;
    Py_DECREF(found);
    FAIL_IF(read == HPACK_BROKEN, COMPRESSION_ERROR, "headers that cannot be decoded");
    FAIL_IF(read == HPACK_TOO_LARGE, ENHANCE_YOUR_CALM, "headers too large");
    NEED(fields);
    int failed = take_request(self, id, flags, fields, events);
    Py_DECREF(fields);
    return failed;
}

/* Begin the message whose prefix is whole; 1 when it may not be, and its stream is finished. */
static int begin_message(Session *self, Stream *stream, size_t at_hand, PyObject *events) {
    uint32_t length = read_u32(stream->prefix + 1);
    if (stream->prefix[0] != 0) {
        return break_stream(self, stream, GRPC_UNIMPLEMENTED,
                            "compressed messages are not read: send identity", events) < 0 ? -1 : 1;
    }
    if (length > (uint64_t)self->limits.message_bytes) {
        char text[MOST_REASON];
        PyOS_snprintf(text, sizeof text, "a message of %u bytes; %zd are taken at most", length,
                      self->limits.message_bytes);
        return break_stream(self, stream, GRPC_RESOURCE_EXHAUSTED, text, events) < 0 ? -1 : 1;
    }
    size_t room = at_hand > FIRST_ROOM ? at_hand : FIRST_ROOM;
    stream->need = (Py_ssize_t)length;
    stream->have = 0;
    stream->message = PyBytes_FromStringAndSize(NULL, room < length ? (Py_ssize_t)room : stream->need);
    return stream->message == NULL ? -1 : 0;
}

static int grow_message(Stream *stream, Py_ssize_t needed) {
    Py_ssize_t room = PyBytes_GET_SIZE(stream->message);
    if (needed <= room) {
        return 0;
    }
    Py_ssize_t twice = 2 * room > needed ? 2 * room : needed;
    return _PyBytes_Resize(&stream->message, twice < stream->need ? twice : stream->need);
}

/* Take bytes of messages; 1 when the stream broke, and may be gone. */
static int take_messages(Session *self, Stream *stream, const uint8_t *at, size_t size, PyObject *events) {
    while (size > 0) {
        if (stream->message == NULL) {
            size_t part = MESSAGE_HEAD - (size_t)stream->prefix_size;
            part = part < size ? part : size;
            memcpy(stream->prefix + stream->prefix_size, at, part);
            stream->prefix_size += (int)part;
            at += part;
            size -= part;
            if (stream->prefix_size < MESSAGE_HEAD) {
                return 0;
            }
            int begun = begin_message(self, stream, size, events);
            if (begun != 0) {
                return begun;
            }
        }
        size_t rest = (size_t)(stream->need - stream->have), part = rest < size ? rest : size;
        TRY(grow_message(stream, stream->have + (Py_ssize_t)part));
        memcpy(PyBytes_AS_STRING(stream->message) + stream->have, at, part);
        stream->have += (Py_ssize_t)part;
        self->held_bytes += (Py_ssize_t)part;
        at += part;
        size -= part;
        if (stream->have == stream->need) {
            PyObject *whole = stream->message;
            self->held_bytes -= stream->need;
            stream->message = NULL;
            stream->prefix_size = 0;
            forgive(self);
            TRY(add_event(events, stream->id, MESSAGE, whole));
        }
    }
    return 0;
}

int credit(Session *self, Stream *stream) {
    if (stream->held || stream->remote_over ||
        stream->owed * 2 < (size_t)self->limits.stream_window) {
        return 0;
    }
    uint32_t more = (uint32_t)stream->owed;
    stream->owed = 0;
    stream->window += more;
    return put_number(self, WINDOW_UPDATE, stream->id, more);
}

int take_data(Session *self, const Frame *frame, PyObject *events) {
    uint32_t id = frame->stream;
    Stream *stream = stream_find(self, id);
    if (stream->remote_over) {
        int open = !stream->finished;
        TRY(reset_stream(self, stream, STREAM_CLOSED));
        return open ? add_event(events, id, RESET, PyLong_FromLong(STREAM_CLOSED)) : 0;
    }
    int broken = stream->finished ? 0 : take_messages(self, stream, frame->at, frame->size, events);
    TRY(broken);
    if (frame->flags & END_STREAM) {
        return take_end(self, stream, events);
    }
    return credit(self, stream);
}
