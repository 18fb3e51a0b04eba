/* One HTTP/2 connection of a gRPC server, without its socket. Source: RFC 9113, RFC 7541, and "gRPC over
 * HTTP2" of the gRPC documentation.
 */
#pragma once

#include "http2/hpack.h"
#include "http2/http2.h"
#include <string.h>

#define FRAME_HEAD 9
#define FRAME_BYTES 16384 /* the largest frame that every peer takes, and the largest taken here */
#define MESSAGE_HEAD 5
#define LARGEST_WINDOW 0x7fffffff
#define DEFAULT_WINDOW 65535
#define MOST_STREAM 0x7fffffff

enum { DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE,
       CONTINUATION };
enum { END_STREAM = 0x1, ACK = 0x1, END_HEADERS = 0x4, PADDED = 0x8, PRIORITISED = 0x20 };
enum { NO_ERROR, PROTOCOL_ERROR, INTERNAL_ERROR, FLOW_CONTROL_ERROR, SETTINGS_TIMEOUT, STREAM_CLOSED,
       FRAME_SIZE_ERROR, REFUSED_STREAM, CANCEL, COMPRESSION_ERROR, CONNECT_ERROR, ENHANCE_YOUR_CALM };
/* Kinds of events, as kvmesh/transport/grpc/session_events.py has them. */
enum { OPENED, MESSAGE, ENDED, RESET, RESUMED, BROKEN, FAILED };
/* gRPC status codes. */
enum { GRPC_RESOURCE_EXHAUSTED = 8, GRPC_UNIMPLEMENTED = 12, GRPC_INTERNAL = 13 };

/* What a PING says that is sent when a connection drains; its answer ends the wait. */
static const uint8_t drain_ping[8] = "kvmesh\0\1";

typedef struct {
    uint8_t *at;
    size_t start, size, room; /* bytes from `start` to `size` are held */
} Buffer;

typedef struct Stream {
    struct Stream *same_bucket, *before, *after; /* before, after: of those that wait to send */
    uint32_t id;
    int64_t sent;      /* DATA sent, less the window that was granted on top of the initial one */
    int64_t window;    /* what the peer may still send */
    size_t owed;       /* of which was taken and not granted again */
    uint8_t prefix[MESSAGE_HEAD];
    int prefix_size;
    PyObject *message; /* that is not whole, NULL for none */
    Py_ssize_t have, need;
    Buffer waiting;
    PyObject *text;    /* of the trailers, percent-encoded; NULL until it is finished */
    int status;
    uint8_t held, answered, finished, pause_reported, local_over, remote_over, left, queued;
} Stream;

typedef struct {
    Py_ssize_t streams, message_bytes, header_bytes, stream_window, connection_window, waiting_bytes,
        idle_frames, early_resets;
} SessionLimits;

typedef struct {
    PyObject_HEAD
    SessionLimits limits;
    Hpack hpack;
    Stream **buckets;
    size_t bucket_count; /* a power of 2 */
    Stream *first_ready, *last_ready;
    Buffer out, frame, block; /* frame: one that is cut off; block: headers that go on */
    uint32_t block_stream, last_stream;
    int block_frames, block_flags;
    int64_t peer_window, peer_initial, window;
    size_t owed;
    Py_ssize_t open_streams, idle_frames, early_resets;
    Py_ssize_t held_bytes; /* of messages that are not whole, and that wait to go out */
    int preface_size;
    char settled, blocked, over, draining, greeted, drained, table_changed, busy;
} Session;

/* Buffers: room for `more` at the end, -1 with MemoryError set; bytes taken away from the front. */
int buffer_reserve(Buffer *self, size_t more);
int buffer_add(Buffer *self, const void *from, size_t size);
void buffer_take(Buffer *self, size_t size);
void buffer_free(Buffer *self);
static inline size_t buffer_size(const Buffer *self) {
    return self->size - self->start;
}

/* Where its bytes begin; never NULL, to which not even 0 may be added. */
static inline const uint8_t *buffer_begin(const Buffer *self) {
    return self->at == NULL ? (const uint8_t *)"" : self->at + self->start;
}

static inline uint32_t read_u32(const uint8_t *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static inline void write_u32(uint8_t *at, uint32_t number) {
    at[0] = (uint8_t)(number >> 24);
    at[1] = (uint8_t)(number >> 16);
    at[2] = (uint8_t)(number >> 8);
    at[3] = (uint8_t)number;
}

/* Idle frames that a message makes up for, in or out: a client grants window as it reads. */
static inline void forgive(Session *self) {
    self->idle_frames -= self->idle_frames < 8 ? self->idle_frames : 8;
}

/* Streams by id. */
Stream *stream_find(Session *self, uint32_t id);
Stream *stream_open(Session *self, uint32_t id);
void stream_drop(Session *self, Stream *stream);
void streams_free(Session *self);
void ready_add(Session *self, Stream *stream);
void ready_remove(Session *self, Stream *stream);

/* Frames out; -1 with MemoryError set. */
int put_frame(Session *self, int kind, int flags, uint32_t stream, const void *payload, size_t size);
int put_number(Session *self, int kind, uint32_t stream, uint32_t number);
int put_goaway(Session *self, uint32_t last, uint32_t code, const char *text);
int put_greeting(Session *self);

/* Queue whole messages, a list or tuple of bytes, as far as flow control allows on their way. */
int send_messages(Session *self, Stream *stream, PyObject *messages);
/* Send trailers if nothing of the stream waits; the stream may be gone afterwards. */
int send_end(Session *self, Stream *stream);
/* Let the streams that wait send, in turns; RESUMED events into `events`. */
int send_waiting(Session *self, PyObject *events);
int finish_stream(Session *self, Stream *stream, int status, const char *text);
int reset_stream(Session *self, Stream *stream, uint32_t code);

/* Append an event; takes over the reference to `value`, which may be NULL with an exception set. */
static inline int add_event(PyObject *events, uint32_t stream, int kind, PyObject *value) {
    return value == NULL ? -1
                         : list_add(events, Py_BuildValue("(IiN)", (unsigned)stream, kind, value));
}

/* End the connection for what the peer did; a text of our own. */
int fail(Session *self, PyObject *events, uint32_t code, const char *text);
#define FAIL_IF(wrong, ...) RETURN_IF(wrong, fail(self, events, __VA_ARGS__))

/* Take the peer's bytes; -1 with an exception set. */
int receive_bytes(Session *self, const uint8_t *at, size_t size, PyObject *events);
/* One whole frame. */
typedef struct {
    int kind, flags;
    uint32_t stream;
    const uint8_t *at;
    size_t size;
} Frame;
/* Grant a stream anew what was taken of its window, once that is half of it. */
int credit(Session *self, Stream *stream);
int take_frame(Session *self, const Frame *frame, PyObject *events);
int take_data(Session *self, const Frame *frame, PyObject *events);
int take_head(Session *self, uint32_t id, int flags, const uint8_t *block, size_t size, PyObject *events);
