/* What each kind of frame says to a session; those of a call's content go on to h2_calls.c. */
#include "http2/h2_session.h"

#define MOST_CONTINUATIONS 64

static int take_settings(Session *self, const Frame *frame, PyObject *events) {
    enum { HEADER_TABLE_SIZE = 1, ENABLE_PUSH, MAX_CONCURRENT, INITIAL_WINDOW, MAX_FRAME };
    FAIL_IF(frame->stream != 0, PROTOCOL_ERROR, "SETTINGS on a stream");
    FAIL_IF(frame->flags & ACK ? frame->size != 0 : frame->size % 6 != 0, FRAME_SIZE_ERROR,
            "SETTINGS of a wrong size");
    for (const uint8_t *at = frame->at; at < frame->at + frame->size; at += 6) {
        uint32_t value = read_u32(at + 2);
        switch (at[0] << 8 | at[1]) {
        case HEADER_TABLE_SIZE:
            self->table_changed = 1;
            break;
        case ENABLE_PUSH:
            FAIL_IF(value > 1, PROTOCOL_ERROR, "ENABLE_PUSH is 0 or 1");
            break;
        case INITIAL_WINDOW:
            FAIL_IF(value > LARGEST_WINDOW, FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE above 2^31-1");
            self->peer_initial = value;
            break;
        case MAX_FRAME:
            FAIL_IF(value < FRAME_BYTES || value > 0xffffff, PROTOCOL_ERROR,
                    "MAX_FRAME_SIZE out of its range");
            break;
        default:
            break;
        }
    }
    self->settled = 1;
    return frame->flags & ACK ? 0 : put_frame(self, SETTINGS, ACK, 0, NULL, 0);
}

static int take_ping(Session *self, const Frame *frame, PyObject *events) {
    FAIL_IF(frame->stream != 0, PROTOCOL_ERROR, "PING on a stream");
    FAIL_IF(frame->size != 8, FRAME_SIZE_ERROR, "PING of a wrong size");
    if (!(frame->flags & ACK)) {
        return put_frame(self, PING, ACK, 0, frame->at, frame->size);
    }
    if (self->draining && !self->drained && memcmp(frame->at, drain_ping, sizeof drain_ping) == 0) {
        self->drained = 1;
        return put_goaway(self, self->last_stream, NO_ERROR, "draining");
    }
    return 0;
}

static int take_window(Session *self, const Frame *frame, PyObject *events) {
    FAIL_IF(frame->size != 4, FRAME_SIZE_ERROR, "WINDOW_UPDATE of a wrong size");
    uint32_t more = read_u32(frame->at) & LARGEST_WINDOW;
    FAIL_IF(more == 0, PROTOCOL_ERROR, "WINDOW_UPDATE by 0");
    if (frame->stream == 0) {
        self->peer_window += more;
        return self->peer_window <= LARGEST_WINDOW
                   ? 0
                   : fail(self, events, FLOW_CONTROL_ERROR, "a window above 2^31-1");
    }
    Stream *stream = stream_find(self, frame->stream);
    if (stream == NULL) {
        return frame->stream <= self->last_stream
                   ? 0
                   : fail(self, events, PROTOCOL_ERROR, "WINDOW_UPDATE of an idle stream");
    }
    stream->sent -= more;
    if (self->peer_initial - stream->sent <= LARGEST_WINDOW) {
        return 0;
    }
    int open = !stream->finished;
    uint32_t id = stream->id;
    TRY(reset_stream(self, stream, FLOW_CONTROL_ERROR));
    return open ? add_event(events, id, RESET, PyLong_FromLong(FLOW_CONTROL_ERROR)) : 0;
}

static int take_reset(Session *self, const Frame *frame, PyObject *events) {
    FAIL_IF(frame->size != 4, FRAME_SIZE_ERROR, "RST_STREAM of a wrong size");
    FAIL_IF(frame->stream == 0 || frame->stream > self->last_stream, PROTOCOL_ERROR,
            "RST_STREAM of an idle stream");
    Stream *stream = stream_find(self, frame->stream);
    if (stream == NULL) {
        return 0;
    }
    int open = !stream->finished;
    self->early_resets += !stream->answered;
    stream_drop(self, stream);
    return open ? add_event(events, frame->stream, RESET, PyLong_FromUnsignedLong(read_u32(frame->at))) : 0;
}

/* Cut padding and priority off a frame; 0 when it does not hold them. */
static int strip(Frame *frame) {
    size_t padding = 0;
    if (frame->flags & PADDED) {
        if (frame->size < 1) {
            return 0;
        }
        padding = frame->at[0];
        frame->at++;
        frame->size--;
    }
    size_t priority = frame->kind == HEADERS && frame->flags & PRIORITISED ? 5 : 0;
    if (frame->size < padding + priority) {
        return 0;
    }
    frame->at += priority;
    frame->size -= padding + priority;
    return 1;
}

static int take_headers(Session *self, const Frame *whole, PyObject *events) {
    Frame frame = *whole;
    FAIL_IF(frame.stream % 2 == 0, PROTOCOL_ERROR, "HEADERS on no stream of a client");
    FAIL_IF(!strip(&frame), PROTOCOL_ERROR, "HEADERS with more padding than bytes");
    if (frame.flags & END_HEADERS) {
        return take_head(self, frame.stream, frame.flags, frame.at, frame.size, events);
    }
    self->block_stream = frame.stream;
    self->block_flags = frame.flags;
    self->block_frames = 0;
    return buffer_add(&self->block, frame.at, frame.size);
}

static int take_continuation(Session *self, const Frame *frame, PyObject *events) {
    Buffer *block = &self->block;
    FAIL_IF(frame->stream != self->block_stream || self->block_stream == 0, PROTOCOL_ERROR,
            "CONTINUATION of no headers");
    FAIL_IF(++self->block_frames > MOST_CONTINUATIONS || buffer_size(block) + frame->size >
            (size_t)self->limits.header_bytes, ENHANCE_YOUR_CALM, "headers too large");
    TRY(buffer_add(block, frame->at, frame->size));
    if (!(frame->flags & END_HEADERS)) {
        return 0;
    }
    uint32_t id = self->block_stream;
    self->block_stream = 0;
    int failed = take_head(self, id, self->block_flags, buffer_begin(block), buffer_size(block), events);
    buffer_take(block, buffer_size(block));
    return failed;
}

static int take_data_frame(Session *self, const Frame *whole, PyObject *events) {
    Frame frame = *whole;
    self->window -= (int64_t)frame.size;
    self->owed += frame.size;
    FAIL_IF(self->window < 0, FLOW_CONTROL_ERROR, "more DATA than the connection's window");
    FAIL_IF(frame.stream % 2 == 0 || frame.stream > self->last_stream, PROTOCOL_ERROR,
            "DATA on an idle stream");
    Stream *stream = stream_find(self, frame.stream);
    if (stream == NULL) {
        return put_number(self, RST_STREAM, frame.stream, STREAM_CLOSED);
    }
    stream->window -= (int64_t)frame.size;
    FAIL_IF(stream->window < 0, FLOW_CONTROL_ERROR, "more DATA than the stream's window");
    stream->owed += frame.size;
    FAIL_IF(!strip(&frame), PROTOCOL_ERROR, "DATA with more padding than bytes");
    return take_data(self, &frame, events);
}

static int take_priority(Session *self, const Frame *frame, PyObject *events) {
    FAIL_IF(frame->stream == 0, PROTOCOL_ERROR, "PRIORITY of no stream");
    return frame->size == 5 ? 0 : fail(self, events, FRAME_SIZE_ERROR, "PRIORITY of a wrong size");
}

int take_frame(Session *self, const Frame *frame, PyObject *events) {
    FAIL_IF(self->block_stream != 0 && frame->kind != CONTINUATION, PROTOCOL_ERROR,
            "headers cut by another frame");
    FAIL_IF(!self->settled && frame->kind != SETTINGS, PROTOCOL_ERROR,
            "the first frame is not SETTINGS");
    self->idle_frames += frame->kind == DATA ? frame->size == 0 : frame->kind != HEADERS;
    switch (frame->kind) {
    case DATA:
        return take_data_frame(self, frame, events);
    case HEADERS:
        return take_headers(self, frame, events);
    case RST_STREAM:
        return take_reset(self, frame, events);
    case SETTINGS:
        return take_settings(self, frame, events);
    case PUSH_PROMISE:
        return fail(self, events, PROTOCOL_ERROR, "PUSH_PROMISE of a client");
    case PING:
        return take_ping(self, frame, events);
    case WINDOW_UPDATE:
        return take_window(self, frame, events);
    case CONTINUATION:
        return take_continuation(self, frame, events);
    case PRIORITY:
        return take_priority(self, frame, events);
    case GOAWAY:
        return frame->stream == 0 ? 0 : fail(self, events, PROTOCOL_ERROR, "GOAWAY on a stream");
    default: /* of an extension: ignored */
        return 0;
    }
}
