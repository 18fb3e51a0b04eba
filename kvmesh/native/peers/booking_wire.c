/* Which messages of booking records are as they must be. */
#include "loads/loads.h"
#include "peers/booking_wire.h"
#include "prompts/graded.h"

#define MAX_ORDINAL (1ULL << 62) /* kvmesh.bounds.MAX_ORDINAL */
#define MAX_NAME 512             /* kvmesh.bounds.MAX_NAME */

enum { GREW_BYTES = 16 };

static inline Py_ssize_t most_graded(uint32_t blocks) {
    long long count = graded_length(blocks);
    return count < MOST_GRADED ? (Py_ssize_t)count : MOST_GRADED;
}

/* Return the bytes of a record by its first 8. */
Py_ssize_t wire_record_bytes(const uint8_t *record) {
    switch (record[0]) {
    case RECORD_PLACED:
        return PLACED_BYTES + 8 * (Py_ssize_t)read_u16(record + 2);
    case RECORD_GREW:
        return GREW_BYTES;
    case RECORD_FAILED:
        return FAILED_BYTES + padded(record[2]);
    case RECORD_NAMED:
        return SHORT_BYTES + padded(read_u16(record + 2));
    default:
        return SHORT_BYTES;
    }
}

/* Return the characters of padded text, -1 for what is no text. */
static Py_ssize_t text_length(const uint8_t *at, Py_ssize_t bytes) {
    for (Py_ssize_t i = bytes; i < padded(bytes); i++) {
        if (at[i]) {
            return -1;
        }
    }
    PyObject *text = PyUnicode_DecodeUTF8((const char *)at, bytes, NULL);
    if (text == NULL) {
        PyErr_Clear(); /* whoever reads it again says what is wrong */
        return -1;
    }
    Py_ssize_t length = PyUnicode_GET_LENGTH(text);
    Py_DECREF(text);
    return length;
}

static int is_named(const uint8_t *record) {
    Py_ssize_t length = record[1] ? -1 : text_length(record + SHORT_BYTES, read_u16(record + 2));
    return 0 < length && length <= MAX_NAME;
}

/* Return whether a record of which all bytes are there is as it must be. */
static int is_record(const uint8_t *record) {
    switch (record[0]) {
    case RECORD_PLACED:
        return !(record[1] & ~(PLACED_STREAMS | PLACED_BELIEVED | PLACED_TURN)) &&
               !read_u32(record + 28) &&
               (Py_ssize_t)read_u16(record + 2) <= most_graded(read_u32(record + 12));
    case RECORD_GREW:
        return !record[1] && !read_u16(record + 2) && read_u64(record + 8) <= MOST_TOKENS;
    case RECORD_PREFILLED:
    case RECORD_ENDED:
        return !record[1] && !read_u16(record + 2);
    case RECORD_STATE_BEGINS:
    case RECORD_STATE_ENDS:
        return !record[1] && !read_u16(record + 2) && !read_u32(record + 4);
    case RECORD_FAILED:
        return !record[3] && text_length(record + FAILED_BYTES, record[2]) >= 0;
    default:
        return record[0] == RECORD_NAMED && is_named(record);
    }
}

int wire_check(const uint8_t *data, Py_ssize_t size, WireHead *head) {
    if (size < HEAD_BYTES || data[0] != RECORDS_VERSION || data[1] & ~HEAD_SHARES ||
        read_u16(data + 2)) {
        return 0;
    }
    uint64_t epoch = read_u64(data + 8), first_seq = read_u64(data + 16);
    if (epoch > MAX_ORDINAL || first_seq > MAX_ORDINAL) {
        return 0;
    }
    head->epoch = (long long)epoch;
    head->first_seq = (long long)first_seq;
    head->events = read_u32(data + 4);
    head->shares = data[1] & HEAD_SHARES;
    head->end = HEAD_BYTES;
    int states = 0;
    for (uint32_t i = 0; i < head->events; i++) {
        const uint8_t *record = data + head->end;
        Py_ssize_t left = size - head->end;
        if (left < SHORT_BYTES || left < wire_record_bytes(record) || !is_record(record)) {
            return 0;
        }
        states += record[0] == RECORD_STATE_BEGINS;
        if (states > MOST_STATES) {
            return 0;
        }
        head->end += wire_record_bytes(record);
    }
    return head->shares || head->end == size;
}
