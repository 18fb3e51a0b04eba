/* What a session sends: frames, and messages as far as flow control lets them go. */
#include "http2/h2_session.h"

#define ROOM_SHARE 4 /* a stream that was told to pause resumes at this part of the bound */

/* `:status: 200` and `content-type: application/grpc`, without use of the table. */
static const uint8_t answer_head[] = "\x88\x0f\x10\x10" "application/grpc";
static const uint8_t status_name[] = "\x00\x0b" "grpc-status";
static const uint8_t text_name[] = "\x00\x0c" "grpc-message";
#define LETTERS(text) (sizeof text - 1)
#define MOST_TEXT 8192 /* of a grpc-message */

int put_frame(Session *self, int kind, int flags, uint32_t stream, const void *payload, size_t size) {
    Buffer *out = &self->out;
    TRY(buffer_reserve(out, FRAME_HEAD + size));
    uint8_t *at = out->at + out->size;
    write_u32(at, (uint32_t)size << 8 | (uint32_t)kind);
    at[4] = (uint8_t)flags;
    write_u32(at + 5, stream);
    if (size > 0) {
        memcpy(at + FRAME_HEAD, payload, size);
    }
    out->size += FRAME_HEAD + size;
    return 0;
}

int put_number(Session *self, int kind, uint32_t stream, uint32_t number) {
    uint8_t payload[4];
    write_u32(payload, number);
    return put_frame(self, kind, 0, stream, payload, sizeof payload);
}

int put_goaway(Session *self, uint32_t last, uint32_t code, const char *text) {
    uint8_t payload[8 + 256];
    size_t length = strlen(text) < 256 ? strlen(text) : 256;
    write_u32(payload, last);
    write_u32(payload + 4, code);
    memcpy(payload + 8, text, length);
    return put_frame(self, GOAWAY, 0, 0, payload, 8 + length);
}

/* Send SETTINGS, and the window of the connection on top of the one that each begins with. */
int put_greeting(Session *self) {
    enum { MAX_CONCURRENT_STREAMS = 3, INITIAL_WINDOW_SIZE = 4, MAX_HEADER_LIST_SIZE = 6 };
    const struct {
        uint8_t id;
        Py_ssize_t value;
    } settings[] = {{MAX_CONCURRENT_STREAMS, self->limits.streams},
                {INITIAL_WINDOW_SIZE, self->limits.stream_window},
                {MAX_HEADER_LIST_SIZE, self->limits.header_bytes}};
    uint8_t payload[sizeof settings / sizeof *settings * 6];
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        payload[6 * i] = 0;
        payload[6 * i + 1] = settings[i].id;
        write_u32(payload + 6 * i + 2, (uint32_t)settings[i].value);
    }
    TRY(put_frame(self, SETTINGS, 0, 0, payload, sizeof payload));
    Py_ssize_t more = self->limits.connection_window - DEFAULT_WINDOW;
    return more > 0 ? put_number(self, WINDOW_UPDATE, 0, (uint32_t)more) : 0;
}

/* Send a block of headers. The peer may have asked for a smaller table: ours is not used, so it is
 * said to be empty at the first chance.
 */
static int put_head(Session *self, Stream *stream, int flags, const uint8_t *block, size_t size) {
    if (!self->table_changed) {
        return put_frame(self, HEADERS, flags | END_HEADERS, stream->id, block, size);
    }
    uint8_t with_size[sizeof answer_head + sizeof status_name + sizeof text_name + MOST_TEXT + 64];
    with_size[0] = 0x20;
    memcpy(with_size + 1, block, size);
    self->table_changed = 0;
    return put_frame(self, HEADERS, flags | END_HEADERS, stream->id, with_size, size + 1);
}

/* DATA frames of one stream, each filled before the next begins. */
typedef struct {
    Session *session;
    Stream *stream;
    size_t at, used; /* of the frame: where it begins in `out`, and the bytes in it */
    int begun;
} Writer;

static void close_frame(Writer *self) {
    if (self->begun) {
        uint8_t *at = self->session->out.at + self->at;
        write_u32(at, (uint32_t)self->used << 8 | DATA);
        at[4] = 0;
        write_u32(at + 5, self->stream->id);
        self->begun = 0;
        forgive(self->session);
    }
}

static int64_t window_of(Session *self, Stream *stream) {
    int64_t own = self->peer_initial - stream->sent;
    return own < self->peer_window ? own : self->peer_window;
}

/* Send what the windows allow of some bytes, return how many; -1 with MemoryError set. */
static Py_ssize_t write_bytes(Writer *self, const uint8_t *from, size_t size) {
    Session *session = self->session;
    Buffer *out = &session->out;
    size_t done = 0;
    while (done < size) {
        int64_t window = window_of(session, self->stream);
        if (window <= 0) {
            break;
        }
        if (self->begun && self->used == FRAME_BYTES) {
            close_frame(self);
        }
        size_t part = size - done, room = FRAME_BYTES - (self->begun ? self->used : 0);
        part = part < room ? part : room;
        part = (int64_t)part < window ? part : (size_t)window;
        if (!self->begun) {
            TRY(buffer_reserve(out, FRAME_HEAD + part));
            self->at = out->size; /* `start` is 0: all of `out` is taken at once */
            self->begun = 1;
            self->used = 0;
            out->size += FRAME_HEAD;
        }
        if (buffer_add(out, from + done, part) < 0) {
            close_frame(self);
            return -1;
        }
        self->used += part;
        self->stream->sent += (int64_t)part;
        session->peer_window -= (int64_t)part;
        done += part;
    }
    return (Py_ssize_t)done;
}

/* Send or keep some bytes; `*keep` once anything waits. */
static int write_or_keep(Writer *self, const uint8_t *from, size_t size, int *keep) {
    Py_ssize_t done = *keep ? 0 : write_bytes(self, from, size);
    TRY(done);
    if ((size_t)done < size) {
        *keep = 1;
        self->session->held_bytes += (Py_ssize_t)size - done;
        return buffer_add(&self->stream->waiting, from + done, size - (size_t)done);
    }
    return 0;
}

static int put_answer_head(Session *self, Stream *stream) {
    if (stream->answered) {
        return 0;
    }
    stream->answered = 1;
    return put_head(self, stream, 0, answer_head, LETTERS(answer_head));
}

int send_messages(Session *self, Stream *stream, PyObject *messages) {
    Py_ssize_t count = PySequence_Fast_GET_SIZE(messages);
    if (count == 0 || self->over) {
        return 0;
    }
    int keep = self->blocked || buffer_size(&stream->waiting) > 0;
    TRY_IF(!keep, put_answer_head(self, stream));
    Writer writer = {.session = self, .stream = stream};
    int failed = 0;
    for (Py_ssize_t i = 0; i < count && !failed; i++) {
        PyObject *message = PySequence_Fast_GET_ITEM(messages, i);
        uint8_t prefix[MESSAGE_HEAD] = {0};
        write_u32(prefix + 1, (uint32_t)PyBytes_GET_SIZE(message));
        failed = write_or_keep(&writer, prefix, sizeof prefix, &keep) < 0 ||
                 write_or_keep(&writer, (const uint8_t *)PyBytes_AS_STRING(message),
                               (size_t)PyBytes_GET_SIZE(message), &keep) < 0;
    }
    close_frame(&writer);
    if (keep) {
        ready_add(self, stream);
    }
    return failed ? -1 : 0;
}

static size_t add_number(uint8_t *to, uint32_t number) {
    char text[12];
    int length = PyOS_snprintf(text, sizeof text, "%u", number);
    to[0] = (uint8_t)length;
    memcpy(to + 1, text, (size_t)length);
    return (size_t)length + 1;
}

/* The length of a text, with the 7 bits that the first byte has. */
static size_t add_length(uint8_t *to, size_t length) {
    if (length < 127) {
        to[0] = (uint8_t)length;
        return 1;
    }
    size_t at = 0;
    to[at++] = 127;
    for (length -= 127; length >= 128; length >>= 7) {
        to[at++] = (uint8_t)(length & 127) | 128;
    }
    to[at++] = (uint8_t)length;
    return at;
}

static size_t add_bytes(uint8_t *to, const void *from, size_t size) {
    memcpy(to, from, size);
    return size;
}

static int put_trailers(Session *self, Stream *stream) {
    uint8_t block[sizeof answer_head + sizeof status_name + sizeof text_name + MOST_TEXT + 48];
    size_t size = stream->answered ? 0 : add_bytes(block, answer_head, LETTERS(answer_head));
    size += add_bytes(block + size, status_name, LETTERS(status_name));
    size += add_number(block + size, (uint32_t)stream->status);
    size_t length = (size_t)PyBytes_GET_SIZE(stream->text);
    if (length > 0) {
        length = length < MOST_TEXT ? length : MOST_TEXT;
        size += add_bytes(block + size, text_name, LETTERS(text_name));
        size += add_length(block + size, length);
        size += add_bytes(block + size, PyBytes_AS_STRING(stream->text), length);
    }
    return put_head(self, stream, END_STREAM, block, size);
}

int send_end(Session *self, Stream *stream) {
    if (!stream->finished || stream->local_over || buffer_size(&stream->waiting) > 0 || self->over) {
        return 0;
    }
    if (self->blocked) {
        ready_add(self, stream);
        return 0;
    }
    TRY(put_trailers(self, stream));
    stream->answered = stream->local_over = 1;
    if (stream->remote_over) {
        stream_drop(self, stream);
    }
    return 0;
}

/* Send one frame of what waits, return whether any byte went; the stream may be gone afterwards. */
static int send_turn(Session *self, Stream *stream, PyObject *events) {
    Buffer *waiting = &stream->waiting;
    size_t part = buffer_size(waiting);
    Py_ssize_t done = 0;
    if (part > 0) {
        Writer writer = {.session = self, .stream = stream};
        TRY_IF(window_of(self, stream) > 0, put_answer_head(self, stream));
        part = part < FRAME_BYTES ? part : FRAME_BYTES;
        done = write_bytes(&writer, buffer_begin(waiting), part);
        close_frame(&writer);
        TRY(done);
        buffer_take(waiting, (size_t)done);
        self->held_bytes -= done;
    }
    size_t left = buffer_size(waiting);
    if (stream->pause_reported && left * ROOM_SHARE <= (size_t)self->limits.waiting_bytes) {
        stream->pause_reported = 0;
        TRY_IF(!stream->finished, add_event(events, stream->id, RESUMED, Py_NewRef(Py_None)));
    }
    if (left > 0) {
        ready_add(self, stream);
    } else if (send_end(self, stream) < 0) {
        return -1;
    }
    return done > 0;
}

int send_waiting(Session *self, PyObject *events) {
    for (int moved = 1; moved && !self->blocked && !self->over;) {
        moved = 0;
        Stream *last = self->last_ready;
        for (int more = last != NULL; more;) {
            Stream *stream = self->first_ready;
            more = stream != last;
            ready_remove(self, stream);
            int sent = send_turn(self, stream, events);
            TRY(sent);
            moved |= sent;
        }
    }
    return 0;
}

int finish_stream(Session *self, Stream *stream, int status, const char *text) {
    if (stream->finished) {
        return 0;
    }
    PyObject *bytes = PyBytes_FromString(text);
    NEED(bytes);
    Py_XSETREF(stream->text, bytes);
    stream->status = status;
    stream->finished = 1;
    return send_end(self, stream);
}

int reset_stream(Session *self, Stream *stream, uint32_t code) {
    uint32_t id = stream->id;
    stream_drop(self, stream);
    return put_number(self, RST_STREAM, id, code);
}

int fail(Session *self, PyObject *events, uint32_t code, const char *text) {
    TRY(put_goaway(self, self->last_stream, code, text));
    self->over = 1;
    return add_event(events, 0, FAILED, Py_BuildValue("(Is)", (unsigned)code, text));
}
