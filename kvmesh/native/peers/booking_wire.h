/* Booking records: core.routing.peer_records, read where they stand. */
#pragma once

#include "base/base.h"

#define RECORDS_VERSION 1
#define MOST_GRADED 1024 /* hashes of one record */
#define MOST_STATES 4    /* that begin in one message */
#define HEAD_BYTES 24
#define PLACED_BYTES 32 /* without its hashes */
#define SHORT_BYTES 8   /* of a record of no more, and before the text of a name */
#define FAILED_BYTES 24 /* without its text */

enum {
    RECORD_PLACED,
    RECORD_PREFILLED,
    RECORD_GREW,
    RECORD_ENDED,
    RECORD_STATE_BEGINS,
    RECORD_STATE_ENDS,
    RECORD_FAILED,
    RECORD_NAMED,
};

enum { HEAD_SHARES = 1 };
enum { PLACED_STREAMS = 1, PLACED_BELIEVED = 2, PLACED_TURN = 4 };

typedef struct {
    long long epoch, first_seq;
    uint32_t events;
    int shares;
    Py_ssize_t end; /* of the records */
} WireHead;

/* Return how many bytes a text of so many takes in a record. */
static inline Py_ssize_t padded(Py_ssize_t bytes) { return (bytes + 7) / 8 * 8; }

static inline uint32_t read_u16(const uint8_t *at) { return (uint32_t)at[0] | (uint32_t)at[1] << 8; }

static inline uint32_t read_u32(const uint8_t *at) {
    return read_u16(at) | read_u16(at + 2) << 16;
}

static inline uint64_t read_u64(const uint8_t *at) {
    return (uint64_t)read_u32(at) | (uint64_t)read_u32(at + 4) << 32;
}

static inline void write_u16(uint8_t *at, uint16_t value) {
    at[0] = (uint8_t)value;
    at[1] = (uint8_t)(value >> 8);
}

static inline void write_u32(uint8_t *at, uint32_t value) {
    write_u16(at, (uint16_t)value);
    write_u16(at + 2, (uint16_t)(value >> 16));
}

static inline void write_u64(uint8_t *at, uint64_t value) {
    write_u32(at, (uint32_t)value);
    write_u32(at + 4, (uint32_t)(value >> 32));
}

/* Return how many bytes a record has that was checked. */
Py_ssize_t wire_record_bytes(const uint8_t *record);

/* Read a message's head and check all of its records; 1, or 0 without an error set where it is not
 * as `read_records` wants it. What follows the records is not looked at.
 */
int wire_check(const uint8_t *data, Py_ssize_t size, WireHead *head);
